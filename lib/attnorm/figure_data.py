"""The numbers behind a figure, for readers who want to plot them their own way."""

from __future__ import annotations

import base64
from html import escape

import numpy as np

from attnorm import kernel

#: A page stays light: larger tables belong into a file.
LARGEST = 500_000


def offer_data(name: str, **columns) -> None:
    """Show a link that saves the numbers of a figure as a CSV file.

    The file travels inside the link, so it needs no server and no network, and it is there in the built page
    as well as in a notebook. Outside a kernel one line says what the file would hold.

    Parameters
    ----------
    name : str
        File name without ending; take the label of the figure.
    **columns : array (T,)
        The columns by name, all of one length. Full precision is kept.

    Raises
    ------
    ValueError
        If there are no columns, one is not one-dimensional, their lengths differ, or the file would be larger
        than `LARGEST` bytes.

    Examples
    --------
    >>> offer_data("fig-example", t=[0, 1], gap=[1.0, 0.5])
    fig-example.csv: 2 rows of t, gap
    """
    arrays = {key: np.asarray(values) for key, values in columns.items()}
    shapes = {key: values.shape for key, values in arrays.items()}
    if not arrays or len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise ValueError(f"{name} needs columns of one length, got shapes {shapes}")
    rows = zip(*(values.tolist() for values in arrays.values()), strict=True)
    text = "\n".join([",".join(arrays), *(",".join(map(repr, row)) for row in rows)]) + "\n"
    if len(text) > LARGEST:
        raise ValueError(f"{name}.csv would have {len(text)} bytes, more than {LARGEST}")
    count = len(next(iter(arrays.values())))
    plain = f"{name}.csv: {count} rows of {', '.join(arrays)}"
    if kernel.shell() is None:
        print(plain)
        return
    from IPython.display import display

    address = "data:text/csv;base64," + base64.b64encode(text.encode()).decode()
    link = f'<a download="{escape(name)}.csv" href="{address}">Data of this figure</a>'
    html = f'<p style="font-size:0.9em">{link} ({count} rows, CSV: {escape(", ".join(arrays))})</p>'
    display({"text/html": html, "text/plain": plain}, raw=True)

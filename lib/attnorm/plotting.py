"""One look for every figure: a white card that reads in light and dark pages, and one line style per scheme.

Colours are those of Okabe and Ito, which people with the common colour-vision deficiencies can tell apart.
Each scheme also has its own marker and dash pattern, so that a figure survives printing in grey.
"""

from __future__ import annotations

import matplotlib as mpl
from cycler import cycler

_BLACK, _ORANGE, _SKY, _GREEN, _BLUE, _RED, _PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)

# Colour, marker, dashes. Neighbours in most figures (Post-LN and sqrt-scaling, Pre-LN and Peri-LN) are far
# apart in lightness as well as in hue.
_LOOK = {
    "post-ln": (_BLACK, "o", "solid"),
    "pre-ln": (_BLUE, "s", (0, (6, 2))),
    "mix-ln": (_GREEN, "D", (0, (6, 2, 1.5, 2))),
    "peri-ln": (_ORANGE, "^", "solid"),
    "ngpt": (_RED, "v", (0, (3, 1.5))),
    "sqrt-scaling": (_PURPLE, "X", (0, (1.5, 1.5))),
}


def style(scheme) -> dict:
    """Line keywords of a scheme: colour, marker and dashes are the same in every figure of the book.

    Parameters
    ----------
    scheme : str or Scheme
        A key of `attnorm.SCHEMES`, or the object.

    Returns
    -------
    dict
        Keywords of `matplotlib.lines.Line2D`. ``label`` is the name used in the text.

    Raises
    ------
    ValueError
        If the scheme has no style.

    Examples
    --------
    >>> style("pre-ln")["label"]
    'Pre-LN'
    """
    from attnorm.schemes import get_scheme

    known = get_scheme(scheme)
    if known.name not in _LOOK:
        raise ValueError(f"no style for scheme {known.name!r}; styles: {', '.join(_LOOK)}")
    colour, marker, dashes = _LOOK[known.name]
    return {
        "color": colour,
        "marker": marker,
        "linestyle": dashes,
        # A few markers a line: one at every sample would hide the line.
        "markevery": 0.12,
        "markersize": 5,
        "label": known.title,
    }


def use_style() -> None:
    """Set the look of the book. Call it once at the top of a chapter.

    The background is opaque white in both colour modes of the pages. PNG files are the same bytes in every
    build, so that a changed figure means a changed result.
    """
    mpl.rcParams.update(mpl.rcParamsDefault)
    mpl.rcParams.update(
        {
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "savefig.transparent": False,
            "figure.figsize": (7.0, 4.2),
            "figure.dpi": 120,
            "savefig.dpi": 120,
            "figure.constrained_layout.use": True,
            "font.size": 11,
            "axes.grid": True,
            "grid.color": "#DDDDDD",
            "grid.linewidth": 0.6,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": cycler(color=[_BLUE, _RED, _GREEN, _BLACK, _ORANGE, _PURPLE, _SKY]),
            "lines.linewidth": 1.8,
            "legend.frameon": False,
            "legend.handlelength": 3.2,  # long enough to tell the dashes apart
            "mathtext.fontset": "dejavusans",
            "text.usetex": False,
            "svg.hashsalt": "attnorm",
        }
    )

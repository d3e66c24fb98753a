"""Curves read off published figures: what the book compares its own with."""

import csv
import json
import tomllib
from dataclasses import dataclass

import numpy as np

from attnorm import sources
from attnorm.schemes import SCHEMES


@dataclass(frozen=True)
class PublishedCurves:
    """Curves of a figure in print.

    Attributes
    ----------
    times : array (T,)
        Depths.
    curves : dict of str to array (T,)
        Mean cosine by scheme; NaN where another curve hides this one.
    precision : float
        How far a value may be from the printed one.
    source : str
    """

    times: np.ndarray
    curves: dict
    precision: float
    source: str

    @property
    def table(self):
        """All curves in the order of `attnorm.SCHEMES`, (S, T)."""
        return np.stack([self.curves[name] for name in SCHEMES])


def cosine_figure():
    """Mean cosine of the six schemes with random weights, d = 512 (Karagodin et al. 2025).

    Returns
    -------
    PublishedCurves

    Raises
    ------
    attnorm.sources.ChecksumError
        If a file of ``data/published`` is not the one that belongs to the book.

    Examples
    --------
    >>> figure = cosine_figure()
    >>> float(figure.times[-1]), float(figure.curves["pre-ln"][-1]), figure.precision
    (10.0, 0.982, 0.005)
    """
    folder = sources.DATA / "published"
    sources.verify_checksums(folder, hint="restore data/published from the repository")
    about = tomllib.loads((folder / "source.toml").read_text(encoding="utf-8"))["paper1-cosine-figure"]
    if about["file"] not in json.loads((folder / sources.CHECKSUMS).read_text(encoding="utf-8")):
        raise sources.ChecksumError(f"{folder / sources.CHECKSUMS} does not list {about['file']}")
    with open(folder / about["file"], newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    columns = {key: np.array([float(row[key] or "nan") for row in rows]) for key in rows[0]}
    return PublishedCurves(
        times=columns["time"],
        curves={name: columns[name.replace("-", "_")] for name in SCHEMES},
        precision=about["precision"],
        source=about["source"],
    )


def distances(curves, published):
    """Root mean square and largest distance to published curves, over the points that are not hidden.

    Parameters
    ----------
    curves : array (..., S, T)
        In the order of `attnorm.SCHEMES`, at ``published.times``.
    published : PublishedCurves

    Returns
    -------
    rms, largest : array (...)
    """
    deviation = np.asarray(curves) - published.table
    if not np.isfinite(deviation[..., np.isfinite(published.table)]).all():
        raise ValueError("curves must be finite where the published ones are shown")
    return np.sqrt(np.nanmean(deviation**2, axis=(-2, -1))), np.nanmax(np.abs(deviation), axis=(-2, -1))

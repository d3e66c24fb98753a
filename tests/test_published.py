"""Published curves: the files are those of the book, and distances are what they say."""

import shutil

import numpy as np
import pytest

from attnorm import SCHEMES, sources
from attnorm.published import cosine_figure, distances


def test_the_published_curves_are_byte_for_byte_those_of_the_book():
    folder = sources.DATA / "published"
    sources.verify_checksums(folder)
    digest = sources.sha256(folder / "paper1-cosine-figure.csv")
    assert digest == "ea1298b401a298add9a922a0e496077ace02d1f646012b16273c2aff958d79f3"


def test_curves_are_those_of_the_file():
    figure = cosine_figure()
    assert figure.table.shape == (6, 14)
    assert list(figure.curves) == list(SCHEMES)
    assert figure.precision == 0.005
    assert np.isnan(figure.curves["post-ln"][:5]).all()
    assert figure.curves["post-ln"][5] == 0.503
    shown = figure.table[np.isfinite(figure.table)]
    assert ((shown >= 0) & (shown <= 1)).all()
    for curve in figure.curves.values():
        assert (np.diff(curve[np.isfinite(curve)]) >= 0).all()


def test_a_changed_file_is_refused(tmp_path, monkeypatch):
    shutil.copytree(sources.DATA / "published", tmp_path / "published")
    monkeypatch.setattr(sources, "DATA", tmp_path)
    assert cosine_figure().times[0] == 0.5
    path = tmp_path / "published" / "paper1-cosine-figure.csv"
    path.write_text(path.read_text().replace("0.503", "0.504"))
    with pytest.raises(sources.ChecksumError, match="restore data/published"):
        cosine_figure()


def test_distance_counts_the_points_that_are_shown():
    figure = cosine_figure()
    shifted = figure.table + 0.1
    shifted[np.isnan(figure.table)] = 7.0  # hidden points do not count
    shifted[1, -1] += 0.2
    shown = np.isfinite(figure.table).sum()
    rms, largest = distances(shifted, figure)
    assert largest == pytest.approx(0.3)
    assert rms == pytest.approx(np.sqrt((0.01 * (shown - 1) + 0.09) / shown))


def test_curves_with_holes_are_refused():
    with pytest.raises(ValueError, match="finite"):
        distances(np.full((6, 14), np.nan), cosine_figure())

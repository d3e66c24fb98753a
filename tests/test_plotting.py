"""Figures: one look per scheme, told apart without colour, the same bytes in every build."""

import base64
import io
import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

import attnorm
from attnorm import plotting
from attnorm.figure_data import offer_data


def luminance(colour):
    """Relative luminance of WCAG 2.1."""
    rgb = np.array(mpl.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.fixture(autouse=True)
def book_style():
    with mpl.rc_context():
        plotting.use_style()
        yield
    plt.close("all")


@pytest.mark.parametrize("scheme", attnorm.SCHEMES)
def test_every_scheme_has_a_style_that_draws(scheme):
    (line,) = plt.plot([0, 1], [0, 1], **plotting.style(scheme))
    assert line.get_label() == attnorm.SCHEMES[scheme].title


@pytest.mark.parametrize("key", ["color", "marker", "label"])
def test_no_two_schemes_share_a_colour_marker_or_label(key):
    looks = [str(plotting.style(scheme)[key]) for scheme in attnorm.SCHEMES]
    assert len(set(looks)) == len(looks)


def test_schemes_are_told_apart_in_grey_print_by_marker_and_dashes():
    grey = [
        (plotting.style(scheme)["marker"], str(plotting.style(scheme)["linestyle"]))
        for scheme in attnorm.SCHEMES
    ]
    assert len(set(grey)) == len(grey)


def test_lines_stand_out_from_the_white_card():
    contrast = {
        scheme: 1.05 / (luminance(plotting.style(scheme)["color"]) + 0.05) for scheme in attnorm.SCHEMES
    }
    assert min(contrast.values()) > 2, contrast


def test_an_unknown_scheme_is_refused_by_name():
    with pytest.raises(ValueError, match="layer-norm"):
        plotting.style("layer-norm")


def test_style_gives_a_new_dictionary_each_time():
    plotting.style("pre-ln")["color"] = "red"
    assert plotting.style("pre-ln")["color"] != "red"


def drawn_png():
    figure, axes = plt.subplots()
    axes.plot(np.linspace(0, 1, 50), np.linspace(0, 1, 50) ** 2, **plotting.style("ngpt"))
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    plt.close(figure)
    return buffer.getvalue()


def test_a_figure_is_the_same_bytes_each_time():
    assert drawn_png() == drawn_png()


def test_the_card_is_opaque_white():
    pixels = plt.imread(io.BytesIO(drawn_png()))
    corner = pixels[0, 0]
    assert np.array_equal(corner[:3], [1, 1, 1])
    assert pixels.shape[2] == 3 or corner[3] == 1


def test_use_style_does_not_depend_on_what_was_set_before():
    expected = drawn_png()
    mpl.rcParams["lines.linewidth"] = 9
    mpl.rcParams["axes.grid"] = False
    plotting.use_style()
    assert drawn_png() == expected


def test_the_numbers_of_a_figure_survive_as_csv(monkeypatch):
    """What the link saves is what was drawn, to the last bit."""
    shown = []
    monkeypatch.setattr("attnorm.kernel.shell", object)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    t, gap = np.linspace(0, 1, 7), np.geomspace(1, 1e-200, 7)
    offer_data("fig-example", t=t, gap=gap)
    encoded = re.search(r'href="data:text/csv;base64,([^"]+)"', shown[0]["text/html"]).group(1)
    table = np.genfromtxt(io.BytesIO(base64.b64decode(encoded)), delimiter=",", names=True)
    assert np.array_equal(table["t"], t)
    assert np.array_equal(table["gap"], gap)
    assert 'download="fig-example.csv"' in shown[0]["text/html"]


@pytest.mark.parametrize(
    "columns", [{}, {"t": [1, 2], "y": [1]}, {"t": np.ones((2, 2))}, {"t": np.ones(10**6)}]
)
def test_columns_that_are_no_table_are_refused(columns):
    with pytest.raises(ValueError, match="fig-example"):
        offer_data("fig-example", **columns)

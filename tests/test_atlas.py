"""The atlas of heads: what it measures, against loops over rows, and the HTML that carries it."""

import json
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from bs4 import BeautifulSoup

from attnorm import capacity
from attnorm.atlas import (
    QUANTITIES,
    Atlas,
    atlas_html,
    draw_atlas,
    measure_atlas,
    show_atlas,
)
from attnorm.book import foreign, gates
from attnorm.concentration import row_entropy
from attnorm.heads import each_layer
from tiny_models import tiny


def made_up(title="a model", shape=(2, 3, 4), **changes):
    rng = np.random.default_rng(0)
    values = {key: rng.uniform(0.1, 2.0, size=shape) for key, *_ in QUANTITIES}
    return Atlas(title, tuple(range(32, 32 + shape[0])), 16, values | changes)


def data_of(html):
    return json.loads(re.search(r"data = (\{.*\});", html).group(1))


def test_entropy_is_a_sum_over_the_row():
    weights = np.array([[0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]])
    expected = [-sum(a * np.log(a) for a in row if a > 0) for row in weights]
    np.testing.assert_allclose(row_entropy(weights), expected, atol=1e-15)
    assert row_entropy(torch.tensor(weights)).shape == (2,)


def test_every_quantity_is_a_mean_over_rows():
    model = tiny("gpt2")
    window = torch.randint(0, 256, (1, 24), generator=torch.Generator().manual_seed(1))
    atlas = measure_atlas(model, window, title="tiny", lengths=(8, 24), top_n=4)
    layers = each_layer(model, window[0], lambda layer: (layer.weights.double(), layer.value.double()))
    for i, (weights, value) in enumerate(layers):
        share = capacity.measure(weights, value, 4).separable_share
        for k, length in enumerate(atlas.lengths):
            rows = slice(4, length)
            entropy = -torch.special.xlogy(weights, weights).sum(-1)[:, rows].numpy()
            for key, expected in (
                ("entropy", entropy),
                ("effective", np.exp(entropy)),
                ("separable", share[:, rows]),
                ("first", weights[:, rows, 0].numpy()),
            ):
                np.testing.assert_allclose(atlas.values[key][k, i], expected.mean(axis=1), rtol=1e-5)


def test_html_passes_the_gates_of_a_page():
    html = atlas_html("heads", [made_up(), made_up("another", (1, 5, 2))], label='"x" @DATA@')
    soup = BeautifulSoup(f"<article>{html}</article>", "lxml")
    assert not gates.duplicate_ids(soup) + gates.images_without_alt(soup) + foreign.in_page(soup)
    assert soup.find(id="heads")["aria-label"] == '"x" @DATA@'
    assert all(field.find_parent("label") for field in soup.find_all(["select", "input"]))
    assert not re.search(r"https?:|src=|@import|url\(|fetch\(", html)
    assert "\n\n" not in html


def test_html_is_safe_where_titles_are_not():
    html = atlas_html("heads", [made_up("<b>$x$</script>")])
    assert html.count("</script>") == 1
    assert data_of(html)["models"][0]["title"] == "<b>$x$</script>"
    assert "$" not in atlas_html("heads", [made_up()])
    assert re.findall(r'id="([^"]+)"', html) == ["heads"]


def test_html_is_the_same_in_every_build():
    assert atlas_html("heads", [made_up()]) == atlas_html("heads", [made_up()])


def test_html_carries_the_values():
    atlas = made_up()
    data = data_of(atlas_html("heads", [atlas]))
    (model,) = data["models"]
    assert model["lengths"] == [32, 33]
    for key, *_ in QUANTITIES:
        np.testing.assert_allclose(model["values"][key], atlas.values[key], rtol=1e-3)


def test_cells_can_be_reached_and_say_what_they_show():
    html = atlas_html("heads", [made_up()])
    for needed in ('role="grid"', "aria-label", "tabIndex", "ArrowDown", 'aria-live="polite"', "noscript"):
        assert needed in html
    assert "prefers-reduced-motion" in html


def contrast(first, second):
    """Contrast ratio of two colours #rrggbb, by the definition of WCAG."""
    light = []
    for colour in (first, second):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        light.append(np.dot([0.2126, 0.7152, 0.0722], linear))
    return (max(light) + 0.05) / (min(light) + 0.05)


def test_colours_have_contrast():
    html = atlas_html("heads", [made_up()])
    assert "color: #111" in html
    assert contrast("#111111", "#ffffff") > 4.5
    for ground in ("#ffffff", "#121212"):
        assert contrast("#767676", ground) > 3


@pytest.mark.parametrize(
    ("atlas", "message"),
    [
        (made_up(entropy=np.ones((2, 3, 5))), "one shape"),
        (made_up(first=np.full((2, 3, 4), np.nan)), "finite"),
        (made_up(effective=np.zeros((2, 3, 4))), "positive"),
        (Atlas("short", (32,), 16, made_up().values), "lengths"),
    ],
)
def test_bad_values_are_named(atlas, message):
    with pytest.raises(ValueError, match=message):
        atlas_html("heads", [atlas])


def test_an_atlas_needs_a_model_and_stays_light():
    with pytest.raises(ValueError, match="at least one"):
        atlas_html("heads", [])
    with pytest.raises(ValueError, match="fewer lengths"):
        atlas_html("heads", [made_up(shape=(60, 20, 60))])


def test_outside_a_kernel_one_line_is_printed(capsys):
    show_atlas("heads", [made_up()])
    assert capsys.readouterr().out == "atlas heads: 12 heads of a model\n"


def test_the_still_has_a_panel_for_each_quantity():
    fig = draw_atlas(made_up(), 33)
    titles = [ax.get_title() for ax in fig.axes if ax.get_title()]
    plt.close(fig)
    assert titles == [title for _, title, *_ in QUANTITIES]
    with pytest.raises(ValueError, match="length must be one of"):
        draw_atlas(made_up(), 40)

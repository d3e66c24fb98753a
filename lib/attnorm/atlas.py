"""A grid of all heads of a model, to browse and play inside a page: data and script travel with it.

Nothing is fetched, and nothing moves before the reader asks for it. Cells are reached with the pointer or
with the arrow keys, and each says its numbers in words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from attnorm import capacity, kernel
from attnorm.algorithms import row_means
from attnorm.concentration import row_entropy
from attnorm.heads import each_layer
from attnorm.validate import finite_array, integer

#: A page stays light; more models or lengths need fewer heads.
LARGEST = 700_000
#: Quantities of a head: key, name, unit, whether the colours are logarithmic.
QUANTITIES = (
    ("entropy", "entropy", "nats", False),
    ("effective", "effective N", "tokens", True),
    ("separable", "separable share", "", False),
    ("first", "first-token mass", "", False),
)
# The colour map cividis, which people with the common colour-vision deficiencies see alike, at nine places.
_COLOURS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#fee838"]


@dataclass(frozen=True)
class Atlas:
    """What is shown of each head, at several window lengths.

    Attributes
    ----------
    title : str
        Model and text.
    lengths : tuple of int
        Window lengths L.
    top_n : int
        N of the separable share; rows that see no more tokens are left out of every mean.
    values : dict of str to array (lengths, layers, heads)
        By the keys of `QUANTITIES`; means over rows. ``entropy`` in nats; ``effective`` is exp(entropy) of
        each row, in tokens; ``separable`` is N_s / N; ``first`` the weight of the first token.
    """

    title: str
    lengths: tuple[int, ...]
    top_n: int
    values: dict[str, np.ndarray]


def measure_atlas(
    model, windows, *, title: str, lengths: Sequence[int], kind: str = "value", top_n: int = 16
) -> Atlas:
    """Measure every head; means over the rows N < n <= L of each window, and over windows.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    windows : torch.LongTensor (W, L)
    title : str
    lengths : sequence of int
        Larger than `top_n` and at most L.
    kind : str
        What x is in the separable share, one of `attnorm.heads.TOKENS`.
    top_n : int
        N of the separable share.

    Returns
    -------
    Atlas

    Raises
    ------
    ValueError
        If a length is not in its range.
    """
    top_n = integer("top_n", top_n, low=1)
    lengths = tuple(sorted({integer("length", length, low=top_n + 1) for length in lengths}))
    if not lengths:
        raise ValueError("lengths must name at least one length")

    def work(layer):
        share = capacity.measure_each(layer.weights, layer.tokens(kind), [top_n])[0].separable_share
        entropy = row_entropy(layer.weights)
        rows = entropy, np.exp(entropy), share, layer.weights[..., 0].detach().cpu().double().numpy()
        return np.stack([row_means(values, top_n, lengths) for values in rows])

    found = np.mean([each_layer(model, window, work) for window in windows], axis=0)
    # (layers, quantities, heads, lengths)
    by_name = {key: found[:, q].transpose(2, 0, 1) for q, (key, *_) in enumerate(QUANTITIES)}
    return Atlas(title, lengths, top_n, by_name)


_TEMPLATE = """
<div id="@NAME@" role="group" aria-label="@LABEL@">
<style>
#@NAME@ { padding: 6px; max-width: 38rem; }
#@NAME@ .controls { display: flex; flex-wrap: wrap; gap: 0.6rem 1rem; align-items: center; margin: 0.4rem 0; }
#@NAME@ label { display: flex; flex-wrap: wrap; gap: 0.4rem; align-items: center; }
#@NAME@ select, #@NAME@ button { font: inherit; min-height: 1.9rem; max-width: 100%; color: #111;
  background: #fff; border: 1px solid #767676; border-radius: 4px; padding: 0.15rem 0.6rem; }
#@NAME@ button { min-width: 6rem; }
#@NAME@ input { flex: 1 1 8rem; min-width: 6rem; }
#@NAME@ .heads { display: grid; gap: 2px; }
#@NAME@ .heads [role="row"] { display: grid; gap: 2px; align-items: center; }
#@NAME@ .heads [role="rowheader"], #@NAME@ .heads [role="columnheader"] { font-size: 0.75rem;
  text-align: center; overflow: hidden; }
#@NAME@ .heads [role="gridcell"] { height: 24px; box-sizing: border-box; border: 1px solid #767676;
  border-radius: 2px; cursor: pointer; }
#@NAME@ .heads [aria-selected="true"] { border: 3px solid #d55e00; }
#@NAME@ .heads [role="gridcell"]:focus { outline: 2px solid #fff; box-shadow: 0 0 0 5px #000;
  position: relative; z-index: 1; }
#@NAME@ select:focus-visible, #@NAME@ button:focus-visible, #@NAME@ input:focus-visible {
  outline: 2px solid #fff; box-shadow: 0 0 0 5px #000; }
#@NAME@ .legend { display: flex; gap: 0.5rem; align-items: center; margin: 0.5rem 0; font-size: 0.85rem; }
#@NAME@ .bar { flex: 1; height: 0.9rem; border: 1px solid #767676; }
#@NAME@ .words { min-height: 4.5em; margin: 0.4rem 0; }
#@NAME@ svg { display: block; width: 100%; max-width: 24rem; height: auto; background: #fff; color: #111;
  border-radius: 4px; }
@media print { #@NAME@ { display: none; } }
</style>
<noscript><p>The atlas needs JavaScript; the figure below shows stills of it.</p></noscript>
<div class="controls">
<label>model <select class="model"></select></label>
<label>quantity <select class="quantity"></select></label>
</div>
<div class="controls">
<button type="button">Play</button>
<label>window length <input type="range" min="0" value="0" step="1"></label>
<span class="length"></span>
</div>
<div class="legend"><span class="low"></span><span class="bar"></span><span class="high"></span></div>
<div class="heads" role="grid" aria-label="heads by layer, from the first layer down"></div>
<p class="words" aria-live="polite"></p>
<svg viewBox="0 0 320 130" role="img" aria-label="The quantity of the chosen head against the window length">
<g class="curve"></g></svg>
<script>
(() => {
  const box = document.getElementById("@NAME@"), data = @DATA@;
  const find = (what) => box.querySelector(what);
  const grid = find(".heads"), words = find(".words"), button = find("button"), slider = find("input");
  const models = find(".model"), quantities = find(".quantity"), curve = find(".curve");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let m = 0, q = 0, k = 0, layer = 0, head = 0, timer = null, cells = [];
  const make = (kind, role, text) => {
    const it = document.createElement(kind);
    if (role) it.setAttribute("role", role);
    if (text !== undefined) it.textContent = text;
    return it;
  };
  const value = (key, at, i, j) => data.models[m].values[key][at][i][j];
  const number = (v) => Number(v.toPrecision(3)).toString();
  const channels = data.colours.map((c) => [1, 3, 5].map((p) => parseInt(c.slice(p, p + 2), 16)));
  function range() {
    const all = data.models[m].values[data.quantities[q].key].flat(2);
    return [Math.min(...all), Math.max(...all)];
  }
  function place(v, low, high) {
    if (high <= low) return 0;
    if (data.quantities[q].log) return Math.log(v / low) / Math.log(high / low);
    return (v - low) / (high - low);
  }
  function colour(share) {
    const at = Math.max(0, Math.min(1, share)) * (channels.length - 1);
    const i = Math.min(Math.floor(at), channels.length - 2);
    const mixed = channels[i].map((c, p) => Math.round(c + (at - i) * (channels[i + 1][p] - c)));
    return "rgb(" + mixed.join(",") + ")";
  }
  function say(i, j) {
    const parts = data.quantities.map((one) =>
      one.name + " " + number(value(one.key, k, i, j)) + (one.unit ? " " + one.unit : ""));
    return "layer " + i + ", head " + j + ": " + parts.join(", ");
  }
  function build() {
    const shape = data.models[m].values.entropy[0];
    const columns = "1.8rem repeat(" + shape[0].length + ", minmax(0, 1fr))";
    grid.textContent = ""; cells = [];
    const top = make("div", "row");
    top.style.gridTemplateColumns = columns;
    top.append(make("span", "columnheader", ""));
    shape[0].forEach((_, j) => top.append(make("span", "columnheader", j)));
    grid.append(top);
    shape.forEach((heads, i) => {
      const row = make("div", "row");
      row.style.gridTemplateColumns = columns;
      row.append(make("span", "rowheader", i));
      cells.push(heads.map((_, j) => {
        const cell = make("div", "gridcell");
        cell.addEventListener("click", () => choose(i, j));
        cell.addEventListener("focus", () => choose(i, j, true));
        row.append(cell);
        return cell;
      }));
      grid.append(row);
    });
    layer = Math.min(layer, cells.length - 1); head = Math.min(head, cells[0].length - 1);
    slider.max = data.models[m].lengths.length - 1;
    k = Math.min(k, data.models[m].lengths.length - 1);
  }
  function draw() {
    const [low, high] = range(), one = data.quantities[q], lengths = data.models[m].lengths;
    cells.forEach((row, i) => row.forEach((cell, j) => {
      cell.style.background = colour(place(value(one.key, k, i, j), low, high));
      cell.setAttribute("aria-label", say(i, j));
      cell.setAttribute("aria-selected", i === layer && j === head);
      cell.tabIndex = i === layer && j === head ? 0 : -1;
    }));
    slider.value = k;
    slider.setAttribute("aria-valuetext", lengths[k] + " tokens");
    find(".length").textContent = "L = " + lengths[k];
    find(".low").textContent = number(low); find(".high").textContent = number(high);
    find(".bar").style.background = "linear-gradient(90deg," + data.colours.join(",") + ")";
    words.textContent = say(layer, head) + "; L = " + lengths[k] + ", N = " + data.models[m].topN +
      " for the share";
    const X = (at) => 58 + (246 * at) / Math.max(1, lengths.length - 1);
    const Y = (v) => 100 - 85 * place(v, low, high), end = lengths.length - 1;
    const points = lengths.map((_, at) => [X(at), Y(value(one.key, at, layer, head))]);
    const text = (x, y, t, anchor) => '<text x="' + x + '" y="' + y + '" font-size="11" text-anchor="' +
      anchor + '" fill="currentColor">' + t + "</text>";
    curve.innerHTML = '<path d="M58 12V100H310" fill="none" stroke="currentColor"/>' +
      '<polyline fill="none" stroke="#0072b2" stroke-width="2" points="' + points.join(" ") + '"/>' +
      points.map((p, at) => '<circle cx="' + p[0] + '" cy="' + p[1] + '" r="' + (at === k ? 5 : 2.5) +
        '" fill="' + (at === k ? "#d55e00" : "#0072b2") + '"/>').join("") +
      text(53, 103, number(low), "end") + text(53, 18, number(high), "end") +
      text(X(0), 114, lengths[0], "middle") + text(X(end), 114, lengths[end], "middle") +
      text(181, 127, "window length L: " + one.name + (one.unit ? ", " + one.unit : ""), "middle");
  }
  function choose(i, j, focused) {
    if (i === layer && j === head && focused) return;
    layer = i; head = j; draw();
    if (!focused) cells[i][j].focus({ preventScroll: true });
  }
  function stop() {
    clearInterval(timer); timer = null;
    words.setAttribute("aria-live", "polite");
    button.textContent = still.matches ? "Next length" : "Play";
  }
  function play() {
    const last = data.models[m].lengths.length - 1;
    if (still.matches) { k = k < last ? k + 1 : 0; draw(); return; }
    if (k >= last) k = 0;
    draw();
    button.textContent = "Pause";
    words.setAttribute("aria-live", "off");
    timer = setInterval(() => { if (k < last) { k++; draw(); } else stop(); }, 700);
  }
  grid.addEventListener("keydown", (event) => {
    const last = cells[0].length - 1, bottom = cells.length - 1;
    const to = { ArrowUp: [layer - 1, head], ArrowDown: [layer + 1, head], ArrowLeft: [layer, head - 1],
      ArrowRight: [layer, head + 1], Home: [layer, 0], End: [layer, last] }[event.key];
    if (!to) return;
    event.preventDefault();
    const i = Math.max(0, Math.min(bottom, to[0])), j = Math.max(0, Math.min(last, to[1]));
    choose(i, j); cells[i][j].scrollIntoView({ block: "nearest" });
  });
  data.models.forEach((one, i) => {
    const it = make("option", "", one.title);
    it.value = i; models.append(it);
  });
  data.quantities.forEach((one, i) => {
    const it = make("option", "", one.name + (one.unit ? " (" + one.unit + ")" : ""));
    it.value = i; quantities.append(it);
  });
  models.addEventListener("change", () => { stop(); m = Number(models.value); build(); draw(); });
  quantities.addEventListener("change", () => { q = Number(quantities.value); draw(); });
  button.addEventListener("click", () => (timer === null ? play() : stop()));
  slider.addEventListener("input", () => { stop(); k = Number(slider.value); draw(); });
  build(); k = data.models[m].lengths.length - 1; stop(); draw();
})();
</script>
</div>
"""


def atlas_html(name: str, atlases: Sequence[Atlas], *, label: str = "Atlas of attention heads") -> str:
    """The atlas as one piece of HTML.

    Parameters
    ----------
    name : str
        The id of its element; unique on the page.
    atlases : sequence of Atlas
        One for each model; the first is shown at the start.
    label : str
        What a reader who does not see it is told.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        If there is none, shapes do not fit, a value is not finite, or the data are larger than `LARGEST`.

    Examples
    --------
    >>> one = Atlas("a model", (32,), 16, {key: np.ones((1, 2, 3)) for key, *_ in QUANTITIES})
    >>> atlas_html("heads", [one]).count("<script>")
    1
    """
    if not atlases:
        raise ValueError("an atlas needs at least one model")
    data = {
        "models": [_plain(atlas) for atlas in atlases],
        "quantities": [
            {"key": key, "name": title, "unit": unit, "log": log} for key, title, unit, log in QUANTITIES
        ],
        "colours": _COLOURS,
    }
    packed = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    parts = {"NAME": escape(name), "LABEL": escape(label), "DATA": packed}
    html = re.sub("@(NAME|LABEL|DATA)@", lambda found: parts[found.group(1)], _TEMPLATE)
    if len(html) > LARGEST:
        raise ValueError(f"the atlas has {len(html)} bytes, more than {LARGEST}: take fewer lengths")
    # Without blank lines, which would end the block where Markdown reads it.
    return "\n".join(line for line in html.splitlines() if line.strip())


def _plain(atlas):
    shapes = {key: np.shape(atlas.values.get(key)) for key, *_ in QUANTITIES}
    shape = shapes["entropy"]
    if len(set(shapes.values())) != 1 or len(shape) != 3 or shape[0] != len(atlas.lengths):
        raise ValueError(
            f"values must have one shape (lengths, layers, heads), with {len(atlas.lengths)} lengths; "
            f"got {shapes}"
        )
    values = {}
    for key, title, _, log in QUANTITIES:
        array = finite_array(title, atlas.values[key])
        if log and array.min() <= 0:
            raise ValueError(f"{title} must be positive, its colours are logarithmic; got {array.min():g}")
        values[key] = [[[float(f"{v:.4g}") for v in row] for row in each] for each in array]
    return {
        "title": atlas.title,
        "lengths": list(map(int, atlas.lengths)),
        "topN": int(atlas.top_n),
        "values": values,
    }


def show_atlas(name: str, atlases: Sequence[Atlas], **options) -> None:
    """Show the atlas of `atlas_html` under the cell; outside a kernel, one line about it.

    Examples
    --------
    >>> one = Atlas("a model", (32,), 16, {key: np.ones((1, 2, 3)) for key, *_ in QUANTITIES})
    >>> show_atlas("heads", [one])
    atlas heads: 6 heads of a model
    """
    html = atlas_html(name, atlases, **options)
    counts = (f"{np.prod(np.shape(a.values['entropy'])[1:])} heads of {a.title}" for a in atlases)
    plain = f"atlas {name}: {', '.join(counts)}"
    if kernel.shell() is None:
        print(plain)
        return
    from IPython.display import display

    display({"text/html": html, "text/plain": plain}, raw=True)


def draw_atlas(atlas: Atlas, length: int):
    """The four quantities at one window length, as a figure for print: layers by heads.

    Parameters
    ----------
    atlas : Atlas
    length : int
        One of ``atlas.lengths``.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If the atlas does not have this length.
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import MaxNLocator

    if length not in atlas.lengths:
        raise ValueError(f"length must be one of {atlas.lengths}; got {length}")
    fig, axes = plt.subplots(2, 2, figsize=(7.2, 7.4), sharex=True, sharey=True)
    for ax, (key, title, unit, log) in zip(axes.flat, QUANTITIES, strict=True):
        shown = atlas.values[key][atlas.lengths.index(length)]
        norm = (LogNorm if log else Normalize)(shown.min(), shown.max())
        image = ax.imshow(
            shown,
            aspect="auto",
            cmap="cividis",
            norm=norm,
            interpolation="nearest",
        )
        ax.grid(False)
        ax.set_title(title, fontsize=11)
        fig.colorbar(image, ax=ax, label=unit)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
    for ax in axes[1]:
        ax.set_xlabel("head")
    for ax in axes[:, 0]:
        ax.set_ylabel("layer")
    return fig

"""Tokens that move on the sphere, as an animation inside a page: data and script travel with it.

Nothing is fetched, nothing moves before the reader asks for it, and the reader can stop it, go through it by
hand or with the keyboard. Where the system asks for reduced motion, the button goes on in a few steps.
"""

from __future__ import annotations

import base64
import json
import re
from html import escape

import numpy as np

from attnorm import kernel, validate
from attnorm.schemes import unit

#: A page stays light; a longer track needs fewer frames or tokens.
LARGEST = 700_000

_TEMPLATE = """
<div id="@NAME@" role="group" aria-label="@LABEL@">
<style>
#@NAME@ { padding: 5px; }
#@NAME@ .spheres { display: grid; gap: 0.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(12rem, 45%), 1fr)); }
#@NAME@ .sphere { text-align: center; }
#@NAME@ canvas { width: 100%; max-width: 15rem; background: #fff; border-radius: 4px; }
#@NAME@ .controls { display: flex; flex-wrap: wrap; gap: 0.8rem; align-items: center; margin-top: 0.6rem; }
#@NAME@ button { min-width: 6rem; padding: 0.3rem 0.8rem; font: inherit; }
#@NAME@ button:focus-visible, #@NAME@ input:focus-visible { outline: 3px solid #0072B2; outline-offset: 2px; }
#@NAME@ label { display: flex; align-items: center; gap: 0.5rem; flex: 1 1 12rem; }
#@NAME@ input { flex: 1; min-width: 6rem; }
@media print { #@NAME@ { display: none; } }
</style>
<div class="spheres">@CANVASES@</div>
<div class="controls">
<button type="button">Play</button>
<label>depth <input type="range" min="0" max="@LAST@" value="0" step="1"></label>
<span class="depth">t = 0</span>
</div>
<noscript><p>The animation needs JavaScript; the figure below shows stills of it.</p></noscript>
<script>
(() => {
  const box = document.getElementById("@NAME@"), data = @DATA@;
  const bytes = Uint8Array.from(atob(data.tracks), (c) => c.charCodeAt(0));
  const tracks = new Int16Array(bytes.buffer), n = data.tokens, frames = data.times.length, tail = data.tail;
  const canvases = [...box.querySelectorAll("canvas")];
  const button = box.querySelector("button"), slider = box.querySelector("input");
  const depth = box.querySelector(".depth");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let frame = 0, timer = null;

  function point(s, f, j, size) {
    const i = 3 * ((s * frames + f) * n + j), unit = (0.46 * size) / 32767;
    return [size / 2 + unit * tracks[i], size / 2 - unit * tracks[i + 1], tracks[i + 2] / 32767];
  }

  function draw(canvas, s) {
    const size = canvas.width, pen = canvas.getContext("2d"), colour = data.colours[s];
    pen.clearRect(0, 0, size, size);
    pen.globalAlpha = 1; pen.lineWidth = 1.5; pen.strokeStyle = "#999";
    pen.beginPath(); pen.arc(size / 2, size / 2, 0.46 * size, 0, 7); pen.stroke();
    pen.globalAlpha = 0.35; pen.beginPath();
    pen.ellipse(size / 2, size / 2, 0.46 * size, 0.16 * size, 0, 0, 7); pen.stroke();
    pen.strokeStyle = pen.fillStyle = colour;
    const height = (j) => point(s, frame, j, size)[2];
    const order = [...Array(n).keys()].sort((a, b) => height(a) - height(b));
    for (const j of order) {
      for (let f = Math.max(1, frame - tail); f <= frame; f++) {
        const from = point(s, f - 1, j, size), to = point(s, f, j, size);
        pen.globalAlpha = (to[2] < 0 ? 0.2 : 0.55) * (1 - (frame - f) / (tail + 1));
        pen.lineWidth = size / 110;
        pen.beginPath(); pen.moveTo(from[0], from[1]); pen.lineTo(to[0], to[1]); pen.stroke();
      }
      const [x, y, z] = point(s, frame, j, size);
      pen.globalAlpha = z < 0 ? 0.45 : 1;
      pen.beginPath(); pen.arc(x, y, (size / 48) * (1 + 0.25 * z), 0, 7);
      if (z < 0) { pen.lineWidth = size / 160; pen.stroke(); } else pen.fill();
    }
  }

  function show(f) {
    frame = f; slider.value = f;
    depth.textContent = "t = " + data.times[f];
    slider.setAttribute("aria-valuetext", "depth " + data.times[f]);
    canvases.forEach(draw);
  }

  function stop() {
    clearInterval(timer); timer = null;
    button.textContent = still.matches ? "Next step" : "Play";
  }

  function play() {
    if (frame >= frames - 1) show(0);
    if (still.matches) { show(Math.min(frames - 1, frame + Math.ceil(frames / 10))); return; }
    button.textContent = "Pause";
    timer = setInterval(() => (frame < frames - 1 ? show(frame + 1) : stop()), 60);
  }

  button.addEventListener("click", () => (timer === null ? play() : stop()));
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  stop(); show(0);
})();
</script>
</div>
"""


def view_from(eye, up=(0.0, 0.0, 1.0)):
    """Rotation (3, 3) whose rows are right, up and towards the reader, for one who looks from ``eye``.

    >>> view_from((0.0, -1.0, 0.0)).round(12).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]]
    """
    towards = unit(np.asarray(eye, dtype=float))
    right = unit(np.cross(up, towards))
    return np.array([right, np.cross(towards, right), towards]) + 0.0


def sphere_html(name, tracks, times, *, colours, label, view=None, tail=14):
    """The animation as one piece of HTML.

    Parameters
    ----------
    name : str
        The id of its element; unique on the page.
    tracks : dict of str to array (F, n, 3)
        Directions by title, all of one shape.
    times : array (F,)
        Depth of each frame, increasing.
    colours : list of str
        One for each track.
    label : str
        What a reader who does not see it is told.
    view : array (3, 3), optional
        Rotation, see `view_from`.
    tail : int
        Frames that a token leaves visible behind it.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        If shapes do not fit, the directions are not on the sphere, or the data are larger than `LARGEST`.

    Examples
    --------
    >>> html = sphere_html("a", {"one": np.eye(3)[None]}, [0.0], colours=["red"], label="three tokens")
    >>> html.count("<canvas")
    1
    """
    times = validate.times(times)
    arrays = {title: validate.finite_array(title, track) for title, track in tracks.items()}
    shapes = {track.shape for track in arrays.values()}
    shape = next(iter(shapes), ())
    if len(shapes) != 1 or len(shape) != 3 or shape[2] != 3 or shape[0] != len(times):
        raise ValueError(f"tracks must all have shape (F, n, 3) with F = {len(times)} times; got {shapes}")
    if len(colours) != len(arrays):
        raise ValueError(f"{len(arrays)} tracks need as many colours; got {len(colours)}")
    stacked = np.array(list(arrays.values()))
    if np.abs((stacked**2).sum(axis=-1) - 1).max() > 1e-6:
        raise ValueError("tracks must be unit directions")
    turned = stacked @ (np.eye(3) if view is None else np.asarray(view, dtype=float)).T
    packed = np.rint(32767 * np.clip(turned, -1, 1)).astype("<i2").tobytes()
    data = {
        "tracks": base64.b64encode(packed).decode(),
        "times": [f"{t:.3g}" for t in times],
        "tokens": shape[1],
        "colours": list(colours),
        "tail": int(tail),
    }
    canvases = "".join(
        f'<div class="sphere"><canvas width="320" height="320" role="img" '
        f'aria-label="Tokens on the sphere: {escape(title)}"></canvas><div>{escape(title)}</div></div>'
        for title in arrays
    )
    parts = {
        "NAME": escape(name),
        "LABEL": escape(label),
        "LAST": str(shape[0] - 1),
        "CANVASES": canvases,
        "DATA": json.dumps(data).replace("</", "<\\/"),
    }
    # In one pass: what is put in is not searched again.
    html = re.sub("@([A-Z]+)@", lambda found: parts[found[1]], _TEMPLATE)
    if len(html) > LARGEST:
        raise ValueError(f"the animation has {len(html)} bytes, more than {LARGEST}: take fewer frames")
    # Without blank lines, which would end the block where Markdown reads it.
    return "\n".join(line for line in html.splitlines() if line.strip())


def show_sphere(name, tracks, times, **options):
    """Show the animation of `sphere_html` under the cell; outside a kernel, one line about it.

    Examples
    --------
    >>> show_sphere("a", {"one": np.eye(3)[None]}, [0.0], colours=["red"], label="three tokens")
    animation a: 1 frames of one
    """
    html = sphere_html(name, tracks, times, **options)
    plain = f"animation {name}: {len(times)} frames of {', '.join(tracks)}"
    if kernel.shell() is None:
        print(plain)
        return
    from IPython.display import display

    display({"text/html": html, "text/plain": plain}, raw=True)

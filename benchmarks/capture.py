"""Attention weights of a GPT-2-sized model: the book's hooks, transformers and TransformerLens.

Each competitor runs one window through the same weights, and finds for each head the effective number of
tokens, the mean over rows of 1 / sum_j a_j^2. That needs every attention weight once.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import common

OURS = "book, each_layer"
PLAIN = "no capture (forward pass only)"
COMPETITORS = {
    OURS: "Book",
    "transformers, output_attentions": "Transformers",
    "TransformerLens, run_with_cache": "LensPatterns",
    "TransformerLens, run_with_cache of all": "LensAll",
    "TransformerLens, run_with_hooks": "LensHooks",
    PLAIN: "Plain",
}
#: Of single precision: a weight is a quotient of two rounded numbers, after sums over d = 768.
TOLERANCE = 1e-4


def effective(weights):
    """Mean over rows of 1 / sum_j a_j^2, for each head of weights (H, L, L)."""
    import torch

    return (1 / torch.einsum("hij,hij->hi", weights, weights)).mean(dim=1).tolist()


class Capture:
    """A competitor: a model, a window, and a way to `each` layer's weights."""

    def __init__(self, model, length, seed):
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch

        from attnorm import load_corpus, load_model
        from attnorm.heads import windows

        self.torch = torch
        self.model, self.tokenizer, _ = load_model(model, seed=seed)
        text, _ = load_corpus("king-james")
        self.tokens = windows(text, self.tokenizer, length)[0]

    def each(self, visit):
        """Call ``visit(index, weights)`` with the weights (H, L, L) of every layer; the answers."""
        raise NotImplementedError

    def measure(self):
        """Effective number of tokens of each head, layer by layer."""
        with self.torch.no_grad():
            return self.each(lambda _index, weights: effective(weights))

    def save(self, folder):
        """Write the weights of each layer to a file."""
        with self.torch.no_grad():
            self.each(lambda index, weights: np.save(Path(folder) / f"{index}.npy", weights.numpy()))

    def compare(self, folder):
        """Largest difference from the saved weights, relative to the largest weight of the row."""

        def miss(index, weights):
            saved = self.torch.from_numpy(np.load(Path(folder) / f"{index}.npy"))
            largest = saved.amax(dim=-1, keepdim=True)
            return float(((weights - saved).abs() / largest).max())

        with self.torch.no_grad():
            return self.each(miss)


class Book(Capture):
    """Hooks of the book hand over one layer at a time."""

    def each(self, visit):
        from attnorm.heads import each_layer

        return each_layer(self.model, self.tokens, lambda layer: visit(layer.index, layer.weights))


class Transformers(Capture):
    """The model returns the weights of all layers at the end."""

    def each(self, visit):
        out = self.model.base_model(input_ids=self.tokens[None], output_attentions=True, use_cache=False)
        return [visit(index, weights[0]) for index, weights in enumerate(out.attentions)]


class Plain(Capture):
    """A forward pass that looks at nothing: what all the others do at least."""

    def measure(self):
        with self.torch.no_grad():
            self.model.base_model(input_ids=self.tokens[None], use_cache=False)


class Lens(Capture):
    """TransformerLens around the same model; no output logits."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        from transformer_lens.model_bridge import TransformerBridge

        self.layers = self.model.config.num_hidden_layers
        # The name says which architecture it is; the model and its tokenizer are ours, nothing is fetched.
        self.bridge = TransformerBridge.boot_transformers(
            "gpt2", hf_model=self.model, tokenizer=self.tokenizer, device="cpu"
        )
        self.names = [f"blocks.{index}.attn.hook_pattern" for index in range(self.layers)]
        self.options = {"return_type": None, "stop_at_layer": self.layers}


class LensPatterns(Lens):
    """Its cache, asked for attention patterns only."""

    def each(self, visit):
        _, cache = self.bridge.run_with_cache(
            self.tokens[None], names_filter=lambda name: name.endswith("attn.hook_pattern"), **self.options
        )
        return [visit(index, cache[name][0]) for index, name in enumerate(self.names)]


class LensAll(Lens):
    """Its cache with everything in it, which is what it does unless told otherwise."""

    def each(self, visit):
        _, cache = self.bridge.run_with_cache(self.tokens[None], **self.options)
        return [visit(index, cache[name][0]) for index, name in enumerate(self.names)]


class LensHooks(Lens):
    """Its hooks, which also need no more than one layer at a time."""

    def each(self, visit):
        from transformer_lens.model_bridge.exceptions import StopAtLayerException

        found = []
        hooks = [
            (name, lambda pattern, hook: _append(found, visit(len(found), pattern[0]))) for name in self.names
        ]
        try:
            self.bridge.run_with_hooks(self.tokens[None], fwd_hooks=hooks, **self.options)
        except StopAtLayerException:
            return found
        return found


def _append(found, value):
    found.append(value)


def options(arguments=None):
    parser = common.parser(__doc__.split("\n")[0])
    parser.add_argument(
        "--model", default="random-gpt2", help="a name that attnorm.load_model knows, of GPT-2's kind"
    )
    parser.add_argument("--length", type=int, default=1024, help="tokens in the window")
    parser.add_argument("--seed", type=int, default=0, help="of random weights")
    parser.add_argument(
        "--peers",
        nargs="+",
        choices=list(COMPETITORS)[1:],
        default=list(COMPETITORS)[1:],
        help="whom to compare with",
    )
    return parser.parse_args(arguments)


def main(arguments=None) -> int:
    chosen = options(arguments)
    common.use(chosen.threads)
    model, length = ("gpt2-mini", 64) if chosen.small else (chosen.model, chosen.length)
    competitors = {}
    try:
        for name in (OURS, *chosen.peers):
            common.progress(f"preparing {name}")
            competitors[name] = common.Competitor(
                f"benchmarks.capture:{COMPETITORS[name]}", model, length, chosen.seed
            )
        checks = agreement(competitors)
        runs = common.in_turn(
            competitors, lambda _name, competitor: competitor.ask("measure"), chosen.repeats
        )
    finally:
        for competitor in competitors.values():
            competitor.close()
    rows = [{"name": name, **common.summary(found), **checks.get(name, {})} for name, found in runs.items()]
    common.ratios(rows, OURS, ["seconds", "cpu_seconds", "peak_MiB"])
    columns = {
        "name": "method",
        "seconds|.3g": "seconds",
        "seconds_ratio|.2f": "ratio to the book",
        "median_seconds|.3g": "median",
        "cpu_seconds|.3g": "CPU (s)",
        "peak_MiB|.0f": "peak (MiB)",
        "peak_MiB_ratio|.2f": "ratio to the book",
        "miss|.1e": "largest difference",
    }
    common.report(
        "capture: attention weights of all heads, one window",
        {"model": model, "length": length, "repeats": chosen.repeats, "threads": chosen.threads},
        ["torch", "transformers", "transformer-lens"],
        {"time, and memory above the model's": (rows, columns)},
        chosen.json,
    )
    return 0


def agreement(competitors):
    """Check that all see the same weights; the largest relative difference of each from the book's."""
    checks = {}
    with tempfile.TemporaryDirectory() as folder:
        competitors[OURS].ask("save", folder)
        uneven(folder)
        for name, competitor in competitors.items():
            if name in (OURS, PLAIN):
                continue
            misses = competitor.ask("compare", folder).value
            layers = len(list(Path(folder).iterdir()))
            if len(misses) != layers or not max(misses) < TOLERANCE:
                raise common.Disagreement(f"{name} sees other weights than the book: {misses}")
            checks[name] = {"miss": max(misses)}
    return checks


def uneven(folder):
    """A control: rows that are all but uniform would let any competitor agree."""
    for path in Path(folder).iterdir():
        last = np.load(path, mmap_mode="r")[:, -1]
        if (last.max(axis=-1) <= (1 + 100 * TOLERANCE) * last.min(axis=-1)).any():
            raise common.Disagreement(f"the weights of {path.stem} are uniform, which would check nothing")


if __name__ == "__main__":
    sys.exit(main())

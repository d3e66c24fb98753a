"""The second paper's algorithms 1 to 5: the book's matrix products against loops as the paper has them.

The loops run on the heads of one layer and a short window; both sides must find the same numbers. Then the
book runs all five on all 144 heads of a model of GPT-2's size, next to the times that the paper gives.
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks import common

#: What the paper says, on an Apple M1 Pro with ten cores and GPT-2's own weights.
PUBLISHED = {
    "1": "24 min",
    "2": "37 min",
    "3": "17 h 4 min",
    "4": "7 min",
    "5": "1 min",
    "1 to 5": "18 h 13 min",
}
ALGORITHMS = "1", "2", "3", "4", "5"
#: Of double precision; means of both sides are of the order of the numbers that they sum.
TOLERANCE = 1e-5
LEVEL = 0.05
TEMPERATURES, STEPS = (0.1, 1.0), (1e-3, 1e-1, 10.0)


def window(tokenizer, length):
    """The first tokens of the text."""
    from attnorm import load_corpus
    from attnorm.heads import windows

    text, _ = load_corpus("king-james-held-out")
    return windows(text, tokenizer, length)


class Small:
    """The first layer of gpt2-mini in double precision, and the settings of a size that loops can run."""

    def __init__(self, length):
        from attnorm import load_model

        self.model, tokenizer, _ = load_model("gpt2-mini", dtype="float64")
        self.model.transformer.h = self.model.transformer.h[:1]
        self.length = length
        self.window = window(tokenizer, length)
        self.lengths = (*(n for n in (32, 64, 128) if n < length), length)
        self.top_ns = tuple(n for n in (1, 5, 10, 20, 100) if n < length)
        self.share_top_ns = tuple(n for n in (1, 2, 4, 8, 16, 32, 64) if n < length)


class Book(Small):
    """`attnorm.algorithms`, called once for each algorithm."""

    def run(self, algorithm):
        from attnorm import algorithms

        arguments = self.model, self.window
        if algorithm == "1":
            found = algorithms.algorithm_1(*arguments, lengths=self.lengths, top_n=5)
            return np.stack([found.distance, found.bound, found.printed])[:, 0, 0]
        if algorithm == "2":
            found = algorithms.algorithm_2(*arguments, top_ns=self.top_ns)
            return np.stack([found.distance, found.bound, found.printed])[:, :, 0, :, 0].swapaxes(1, 2)
        if algorithm == "3":
            found = algorithms.algorithm_3(
                *arguments, lengths=(self.length,), levels=(LEVEL,), formulas=("printed",)
            )
            return found.first[0, 0]
        if algorithm == "4":
            return algorithms.algorithm_4(*arguments, top_ns=self.share_top_ns).share[:, 0].T
        found = algorithms.algorithm_5(*arguments, temperatures=TEMPERATURES, steps=STEPS, seed=0)
        return found.gradient[:, :, 0]


class Loops(Small):
    """`benchmarks.loops`, which also have the model run first."""

    def run(self, algorithm):
        from attnorm.heads import each_layer
        from benchmarks import loops

        layer = each_layer(self.model, self.window[0], lambda layer: layer)[0]
        weights, values = layer.weights.numpy(), layer.value.numpy()
        heads = list(zip(weights, values, strict=True))
        if algorithm == "1":
            return loops.algorithm_1(heads, self.lengths, 5)
        if algorithm == "2":
            return loops.algorithm_2(heads, self.length, self.top_ns)
        if algorithm == "3":
            return loops.algorithm_3(heads, (self.length,), LEVEL)
        if algorithm == "4":
            return loops.algorithm_4(heads, self.length, self.share_top_ns)
        # The logits from queries and keys, and not from the weights as in the book.
        query, key = layer.query.numpy(), layer.key.numpy()
        logits = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
        return loops.algorithm_5(logits, TEMPERATURES, STEPS, np.random.default_rng(0))


class Whole:
    """All heads of a model of GPT-2's size."""

    def __init__(self, model, length):
        from attnorm import load_model

        self.model, tokenizer, self.provenance = load_model(model)
        self.window = window(tokenizer, length)

    def run(self):
        from attnorm.algorithms import run_all

        found = run_all(self.model, self.window)
        return found.one.distance.shape[1] * found.one.distance.shape[2]


def difference(ours, theirs):
    """Largest difference, relative to the larger number; infinite where the shapes differ."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape or (np.isnan(ours) != np.isnan(theirs)).any():
        return np.inf
    size = np.maximum(np.abs(ours), np.abs(theirs))
    miss = np.abs(ours - theirs) / np.where(size > 0, size, 1.0)
    return float(np.nanmax(miss, initial=0.0))


def options(arguments=None):
    parser = common.parser(__doc__.split("\n")[0])
    parser.add_argument("--length", type=int, default=96, help="tokens that the loops measure, at most 1024")
    parser.add_argument(
        "--model", default="random-gpt2", help="for all heads: a name that attnorm.load_model knows"
    )
    parser.add_argument("--window", type=int, default=1024, help="for all heads: tokens")
    parser.add_argument(
        "--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS), help="of the loops"
    )
    return parser.parse_args(arguments)


def main(arguments=None) -> int:
    chosen = options(arguments)
    common.use(chosen.threads)
    length, model, size = chosen.length, chosen.model, chosen.window
    if chosen.small:
        length, model, size = 20, "gpt2-mini", 64
    rows = against_loops(chosen, length)
    common.progress(f"all heads: {model}, {size} tokens")
    with common.Competitor("benchmarks.capacity:Whole", model, size) as whole:
        runs = [whole.ask("run") for _ in range(1 if chosen.small else min(2, chosen.repeats))]
    everything = [
        {"name": f"book, {model}, {size} tokens, {runs[0].value} heads", **common.summary(runs)},
        {"name": "paper, GPT-2, 1024 tokens, 144 heads, Apple M1 Pro", "published": PUBLISHED["1 to 5"]},
    ]
    common.report(
        "capacity: algorithms 1 to 5",
        {"heads": 12, "length": length, "repeats": chosen.repeats, "threads": chosen.threads},
        ["torch", "transformers", "numpy", "scipy"],
        {
            "one layer of gpt2-mini: the book and loops in the order of the pseudocode": (
                rows,
                {
                    "name": "algorithm",
                    "book_seconds|.3g": "book (s)",
                    "loop_seconds|.3g": "loops (s)",
                    "seconds_ratio|.0f": "loops / book",
                    "book_peak_MiB|.0f": "book (MiB)",
                    "loop_peak_MiB|.0f": "loops (MiB)",
                    "miss|.1e": "largest difference",
                    "published": "paper, its size",
                },
            ),
            "algorithms 1 to 5 together, all rows of all heads": (
                everything,
                {
                    "name": "run",
                    "seconds|.3g": "seconds",
                    "median_seconds|.3g": "median",
                    "cpu_seconds|.3g": "CPU (s)",
                    "peak_MiB|.0f": "peak above the weights (MiB)",
                    "published": "published",
                },
            ),
        },
        chosen.json,
    )
    return 0


def against_loops(chosen, length):
    """Rows of the first table; there is none unless both sides agree on every algorithm."""
    competitors = {}
    try:
        competitors["book"] = common.Competitor("benchmarks.capacity:Book", length)
        competitors["loops"] = common.Competitor("benchmarks.capacity:Loops", length)
        rows = []
        for algorithm in chosen.algorithms:
            common.progress(f"algorithm {algorithm}")
            if algorithm == chosen.algorithms[0]:  # what is loaded once should not count
                common.in_turn(competitors, lambda _name, side: side.ask("run", "5"), 1)
            runs = common.in_turn(
                competitors,
                lambda _name, side, algorithm=algorithm: side.ask("run", algorithm),
                chosen.repeats,
            )
            miss = difference(runs["book"][0].value, runs["loops"][0].value)
            if not miss < TOLERANCE:
                raise common.Disagreement(
                    f"algorithm {algorithm}: the book differs from the loops by {miss:.2g}"
                )
            ours, theirs = (common.summary(runs[name]) for name in competitors)
            rows.append(
                {
                    "name": algorithm,
                    **{f"book_{key}": value for key, value in ours.items()},
                    **{f"loop_{key}": value for key, value in theirs.items()},
                    "seconds_ratio": theirs["seconds"] / ours["seconds"],
                    "cpu_seconds_ratio": theirs["cpu_seconds"] / ours["cpu_seconds"],
                    "miss": miss,
                    "published": PUBLISHED[algorithm],
                }
            )
    finally:
        for competitor in competitors.values():
            competitor.close()
    return rows


if __name__ == "__main__":
    sys.exit(main())

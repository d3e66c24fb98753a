"""The five algorithms of Mudarisov et al. (2025) on all heads of a model.

Layers are measured one after the other while the model runs (`attnorm.heads.each_layer`), and means over rows
are all that is kept. With a causal mask one window shows every shorter one: row n is the last row of a window
of n tokens, so the mean over the rows of a window of L tokens is a cumulative mean. A mean for N selected
tokens is over the rows that leave at least one token out, N < n <= L.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from scipy.interpolate import PchipInterpolator

from attnorm import capacity, sensitivity
from attnorm.heads import TOKENS, each_layer
from attnorm.parallel import each
from attnorm.random_set import expected_distance
from attnorm.samples import ks_critical, ks_statistic, tost
from attnorm.separability import measure as measure_set
from attnorm.separability import random_sets
from attnorm.theorem_two import rows_of_heads
from attnorm.validate import integer, number

#: The paper's settings, where it states them; its grids of L and T are not stated.
LENGTHS = (32, 64, 128, 256, 512, 1024)
TOP_NS = (1, 5, 10, 20, 100)
LEVELS = (0.01, 0.05)
STEPS = (1e-3, 1e-1, 10.0)
TEMPERATURES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
SHARE_TOP_NS = (1, 2, 5, 10, 16, 50, 100)
#: What dt is compared with: the main term of its expectation as printed, and the one that holds.
FORMULAS = ("printed", "main")
CONTROLS = ("random set", "shuffled x")
_GRID = (1, 2, 5, 10, 20, 50, 100, 200, 400, 700)
_ROUNDS = 8


@dataclass(frozen=True)
class Means:
    """What algorithms 1 and 2 find: means over rows, for each N, layer, head and window length.

    Arrays have the shape (N, layers, heads, lengths), in the units of x. NaN where a window has no row that
    sees more than N tokens.

    Attributes
    ----------
    top_ns, lengths : tuple of int
    distance : array
        dt of the N largest weights.
    bound : array
        Theorem 1, part 1.
    printed : array
        The expectation for a random set as printed, `attnorm.random_set.Expected.printed`.
    main : array
        The main term of the expectation that holds, `attnorm.random_set.Expected.main`.
    leading : array
        ``(n - N) |s|``.
    """

    top_ns: tuple[int, ...]
    lengths: tuple[int, ...]
    distance: np.ndarray
    bound: np.ndarray
    printed: np.ndarray
    main: np.ndarray
    leading: np.ndarray


@dataclass(frozen=True)
class Pairs:
    """Head means of dt and of the two expectations, at the N where they were computed.

    Attributes
    ----------
    lengths : tuple of int
    means : dict
        ``means[quantity][length][N]`` is an array (heads of all layers,); quantities are ``"distance"`` and
        those of `FORMULAS`.
    """

    lengths: tuple[int, ...]
    means: dict

    def computed(self, length: int, formula: str) -> list[int]:
        """The N for which dt and this expectation were computed, not interpolated."""
        return sorted(self.means["distance"][length].keys() & self.means[formula][length].keys())

    def every(self, length: int, formula: str):
        """N from 1 to L - 1, and the head means (N, heads) of dt and of the expectation.

        Between the N that were computed, the logarithms are interpolated against log N by monotone cubics.
        """
        known = self.computed(length, formula)
        numbers = np.arange(known[0], known[-1] + 1)
        found = []
        for quantity in ("distance", formula):
            values = np.log([self.means[quantity][length][n] for n in known])
            found.append(np.exp(PchipInterpolator(np.log(known), values)(np.log(numbers))))
        return numbers, *found


@dataclass(frozen=True)
class Critical:
    """What algorithm 3 finds, for each formula, level and window length.

    Attributes
    ----------
    lengths, levels, formulas : tuple
    first : array (formulas, levels, lengths)
        Smallest N at which the test does not reject; NaN if it always does.
    settled : array (formulas, levels, lengths)
        Smallest N from which on it never rejects again, up to L - 1; NaN if it rejects at the last.
    exact : array of bool (formulas, levels, lengths)
        Whether the head means at `first` and at `first` - 1 were computed and not interpolated.
    pairs : Pairs
    """

    lengths: tuple[int, ...]
    levels: tuple[float, ...]
    formulas: tuple[str, ...]
    first: np.ndarray
    settled: np.ndarray
    exact: np.ndarray
    pairs: Pairs


@dataclass(frozen=True)
class Shares:
    """What algorithm 4 finds: means over rows, arrays (N, layers, heads).

    Attributes
    ----------
    top_ns : tuple of int
    share : array
        N_s / N.
    lower, upper : array or None
        The printed sides of Theorem 2, see `attnorm.theorem_two.rows_of_heads`, where they were asked for.
        A row with r = 0 has the lower side minus infinity, and so has its mean.
    """

    top_ns: tuple[int, ...]
    share: np.ndarray
    lower: np.ndarray | None = None
    upper: np.ndarray | None = None


@dataclass(frozen=True)
class Probes:
    """What algorithm 5 finds: mean over rows of g(T, eps), array (temperatures, steps, layers, heads).

    `largest` is the paper's curve, the maximum over heads, of shape (temperatures, steps).
    """

    temperatures: tuple[float, ...]
    steps: tuple[float, ...]
    gradient: np.ndarray

    @property
    def largest(self) -> np.ndarray:
        """Maximum over layers and heads."""
        return self.gradient.max(axis=(-2, -1))


@dataclass(frozen=True)
class Results:
    """All five algorithms, see `run_all`."""

    one: Means
    two: Means
    three: Critical
    four: Shares
    five: Probes


def row_means(values, top_n: int, lengths: Sequence[int]) -> np.ndarray:
    """Mean over the rows n with N < n <= L, for every window length L.

    Parameters
    ----------
    values : array (..., R)
        One number a row; row n, counted from 1, sees n tokens.
    top_n : int
    lengths : sequence of int
        At most R.

    Returns
    -------
    array (..., lengths)
        NaN where L <= N.

    Examples
    --------
    >>> row_means([9.0, 1.0, 3.0, 5.0], 1, (2, 4)).tolist()
    [1.0, 3.0]
    """
    values = np.asarray(values, dtype=np.float64)
    top_n = integer("top_n", top_n, low=0)
    lengths = np.array([integer("length", length, low=1) for length in lengths])
    if lengths.max() > values.shape[-1]:
        raise ValueError(
            f"lengths must be at most the number of rows, {values.shape[-1]}; got {lengths.max()}"
        )
    total = np.cumsum(values[..., top_n:], axis=-1)
    count = lengths - top_n
    found = np.full((*values.shape[:-1], len(lengths)), np.nan)
    some = count > 0
    found[..., some] = total[..., count[some] - 1] / count[some]
    return found


def grid(length: int) -> tuple[int, ...]:
    """The N at which algorithm 3 begins, up to L - 1; those below L are the same for every L but three."""
    ends = {round(0.85 * length), round(0.95 * length), length - 1}
    return tuple(sorted({n for n in _GRID if n < length} | {n for n in ends if 1 <= n < length}))


def algorithm_1(model, windows, *, kind="value", lengths=None, top_n=5) -> Means:
    """dt, its bound and its expectations against the window length L.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        See `attnorm.heads.capture`.
    windows : torch.LongTensor (W, L) or (L,)
        Windows of tokens; results are means over them.
    kind : str
        What x is, one of `attnorm.heads.TOKENS`.
    lengths : sequence of int, optional
        Those of `LENGTHS` that the window has, if not given.
    top_n : int
        N.

    Returns
    -------
    Means

    Raises
    ------
    ValueError
        If a length is larger than the window, N is not smaller than the largest, or an argument is not of
        its kind.
    """
    windows, lengths = _windows(windows, lengths, kind)
    top_ns = _numbers((top_n,), lengths[-1])
    work = lambda layer: _means_of(_Rows(layer, kind), top_ns, lengths)  # noqa: E731
    return _means(_over_layers(model, windows, work))


def algorithm_2(model, windows, *, kind="value", top_ns=None) -> Means:
    """dt, its bound and its expectations against N, in whole windows. Arguments as in `algorithm_1`.

    `top_ns` are those of `TOP_NS` that leave a token out, if not given.
    """
    windows, _ = _windows(windows, None, kind)
    length = int(windows.shape[-1])
    top_ns = _numbers([n for n in TOP_NS if n < length] if top_ns is None else top_ns, length)
    work = lambda layer: _means_of(_Rows(layer, kind), top_ns, (length,))  # noqa: E731
    return _means(_over_layers(model, windows, work))


def algorithm_3(
    model,
    windows,
    *,
    kind="value",
    lengths=None,
    levels: Sequence[float] = LEVELS,
    formulas: Sequence[str] = FORMULAS,
    rounds: int = _ROUNDS,
) -> Critical:
    """The first N at which a Kolmogorov-Smirnov test does not tell dt from its expectation, by head means.

    Parameters
    ----------
    model, windows, kind, lengths
        As in `algorithm_1`.
    levels : sequence of float
        The test rejects if its exact p-value is below the level.
    formulas : sequence of str
        Of `FORMULAS`.
    rounds : int
        Passes through the model after the first one, each of which computes the two N at which the answer
        stands so far. 0 leaves the answer to the interpolation of `Pairs`.

    Returns
    -------
    Critical

    Notes
    -----
    Means at the N of `grid` are computed for all rows at once and interpolated. The answer, and the N before
    it, are then computed and the interpolation is renewed, until the answer stays.
    """
    windows, lengths = _windows(windows, lengths, kind)
    plan = {length: grid(length) for length in lengths}
    formulas = _formulas(formulas)
    pairs = _Collected(lengths)
    pairs.add(_over_layers(model, windows, lambda layer: _pairs_of(_Rows(layer, kind), plan)))
    return _refined(model, windows, kind, pairs, levels, formulas, rounds)


def head_means(model, windows, plan, *, kind="value") -> Pairs:
    """Head means of dt and of its expectations at chosen N, without interpolation.

    Parameters
    ----------
    model, windows, kind
        As in `algorithm_1`.
    plan : dict of int to sequence of int
        For each window length, the N; all below the length.

    Returns
    -------
    Pairs

    Raises
    ------
    ValueError
        If a length is larger than the window, or an N not below its length.
    """
    windows, lengths = _windows(windows, plan, kind)
    plan = {length: _numbers(plan[length], length) for length in lengths}
    pairs = _Collected(lengths)
    pairs.add(_over_layers(model, windows, lambda layer: _pairs_of(_Rows(layer, kind), plan)))
    return pairs.pairs()


def algorithm_4(
    model,
    windows,
    *,
    kind="value",
    top_ns=None,
    unit: bool = False,
    sides: bool = False,
    control: str | None = None,
    seed: int = 0,
) -> Shares:
    """Separable share N_s / N of every head.

    Parameters
    ----------
    model, windows, kind
        As in `algorithm_1`.
    top_ns : sequence of int, optional
        Those of `SHARE_TOP_NS` that leave a token out, if not given.
    unit : bool
        Divide each x by its length, as the paper does with embeddings.
    sides : bool
        Also the two sides of Theorem 2, which take most of the time.
    control : {"random set", "shuffled x"}, optional
        Select N random tokens in each row, or exchange the vectors x among the tokens of the window.
    seed : int
        Of the control.

    Returns
    -------
    Shares
    """
    windows, _ = _windows(windows, None, kind)
    length = int(windows.shape[-1])
    if control is not None and control not in CONTROLS:
        raise ValueError(f"control must be one of {', '.join(CONTROLS)}; got {control!r}")
    if control == "random set" and sides:
        raise ValueError("the sides of Theorem 2 are for the largest weights, not for a random set")
    top_ns = _numbers([n for n in SHARE_TOP_NS if n < length] if top_ns is None else top_ns, length)

    def work(layer):
        order = np.random.default_rng([seed, layer.index]).permutation(length)
        rows = _Rows(layer, kind, unit=unit, order=order if control == "shuffled x" else None)
        if control == "random set":
            rng = np.random.default_rng([seed, layer.index])
            return _random_shares_of(rows, top_ns, rng)
        return _sides_of(rows, top_ns) if sides else _shares_of(rows, top_ns)

    return _shares(top_ns, _over_layers(model, windows, work))


def algorithm_5(model, windows, *, temperatures=TEMPERATURES, steps=STEPS, seed: int = 0) -> Probes:
    """How far the weights move when the logits move by eps in a random direction, divided by eps: g(T, eps).

    Parameters
    ----------
    model, windows
        As in `algorithm_1`.
    temperatures, steps : sequence of float
        T and eps in units of the model's own logits q.k / sqrt(d_head): the model as it is has T = 1.
        In units of q.k, T and eps are sqrt(d_head) times as large, and g is so much smaller.
    seed : int
        Of the directions; layers have different ones, and heads of a layer share them.

    Returns
    -------
    Probes
    """
    windows, _ = _windows(windows, None, "value")
    temperatures, steps = tuple(map(float, temperatures)), tuple(map(float, steps))
    found = _over_layers(
        model, windows, lambda layer: {"gradient": _probe_of(layer, temperatures, steps, seed)}
    )
    return _probes(temperatures, steps, found)


def run_all(
    model,
    windows,
    *,
    kind="value",
    lengths=None,
    top_n: int = 5,
    top_ns=None,
    share_top_ns=None,
    levels=LEVELS,
    formulas=FORMULAS,
    rounds: int = 0,
    temperatures=TEMPERATURES,
    steps=STEPS,
    seed: int = 0,
) -> Results:
    """Algorithms 1 to 5; one pass serves 1, 2, 4, 5 and the beginning of 3. Arguments as in each of them.

    Without further `rounds`, algorithm 3 interpolates between the N of `grid`, which moves the first N by one
    or by a few per cent on trained heads.

    Returns
    -------
    Results
    """
    windows, lengths = _windows(windows, lengths, kind)
    length = int(windows.shape[-1])
    (top_n,) = _numbers((top_n,), length)
    top_ns = _numbers([n for n in TOP_NS if n < length] if top_ns is None else top_ns, length)
    share_top_ns = _numbers(
        [n for n in SHARE_TOP_NS if n < length] if share_top_ns is None else share_top_ns, length
    )
    formulas = _formulas(formulas)
    plan = {size: grid(size) for size in lengths}
    temperatures, steps = tuple(map(float, temperatures)), tuple(map(float, steps))

    def work(layer):
        rows = _Rows(layer, kind)
        rows.prepare({top_n, *top_ns, *share_top_ns}, {top_n, *top_ns, *plan[max(plan)]})
        return {
            "one": _means_of(rows, (top_n,), lengths),
            "two": _means_of(rows, top_ns, (length,)),
            "three": _pairs_of(rows, plan),
            "four": _shares_of(rows, share_top_ns),
            "five": {"gradient": _probe_of(layer, temperatures, steps, seed)},
        }

    found = _over_layers(model, windows, work)
    pairs = _Collected(lengths)
    pairs.add(found["three"])
    return Results(
        _means(found["one"]),
        _means(found["two"]),
        _refined(model, windows, kind, pairs, levels, formulas, rounds),
        _shares(share_top_ns, found["four"]),
        _probes(temperatures, steps, found["five"]),
    )


def critical(
    pairs: Pairs,
    length: int,
    *,
    formula: str = "printed",
    level: float = 0.05,
    heads=None,
    margin: float | None = None,
) -> tuple[float, float]:
    """First N at which the test does not reject (or, with a margin, at which equivalence is shown), and the
    first from which on this stays so.

    Parameters
    ----------
    pairs : Pairs
    length : int
        One of ``pairs.lengths``.
    formula : str
        One of `FORMULAS`.
    level : float
    heads : array of int, optional
        Only these heads.
    margin : float, optional
        Instead of the Kolmogorov-Smirnov test: two one-sided t-tests on the logarithms of the ratio, paired
        by head, see `attnorm.samples.tost`.

    Returns
    -------
    first, settled : float
        NaN if there is none up to the last N that was computed.
    """
    (formula,) = _formulas((formula,))
    level = number("level", level, above=0.0, high=1.0)
    numbers, distance, expected = pairs.every(length, formula)
    if heads is not None:
        distance, expected = distance[:, heads], expected[:, heads]
    return first_and_settled(numbers, accepts(distance, expected, level, margin))


def accepts(distance, expected, level: float, margin: float | None = None) -> np.ndarray:
    """Whether the test does not reject (or, with a margin, whether equivalence is shown), for every N.

    Parameters
    ----------
    distance, expected : array (N, heads)
        Head means.
    level, margin
        As in `critical`.

    Returns
    -------
    array of bool (N,)

    Examples
    --------
    >>> heads = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]])
    >>> accepts(heads, 1.5 * heads, 0.05).tolist(), accepts(heads, 1.5 * heads, 0.05, margin=0.1).tolist()
    ([True], [False])
    """
    if margin is None:
        return ks_statistic(distance, expected) < ks_critical(np.shape(distance)[-1], level)
    return tost(distance, expected, margin) < level


def first_and_settled(numbers, accepted) -> tuple[float, float]:
    """The first N that is accepted, and the first from which on all are; NaN if there is none.

    Examples
    --------
    >>> first_and_settled([1, 2, 3, 4, 5], [False, True, False, True, True])
    (2.0, 4.0)
    """
    numbers, accepted = np.asarray(numbers), np.asarray(accepted)
    first = float(numbers[accepted.argmax()]) if accepted.any() else np.nan
    if not accepted[-1]:
        return first, np.nan
    refused = np.flatnonzero(~accepted)
    return first, float(numbers[refused[-1] + 1] if len(refused) else numbers[0])


class _Rows:
    """What the rows of a layer give for one kind of x; each quantity and N is computed once."""

    def __init__(self, layer, kind, *, unit=False, order=None):
        self.weights = layer.weights.detach().cpu().double().numpy()
        x = layer.tokens(kind).detach().cpu().double().numpy()
        if unit:
            x = x / np.linalg.norm(x, axis=-1, keepdims=True)
        self.x = x if order is None else x[..., order, :]
        self._full, self._distances, self._expected = {}, {}, {}

    def prepare(self, full, expected):
        """Compute these N together, which is quicker than one after the other."""
        self.full(sorted(full))
        self.expected(sorted(expected), len(self.weights[0]))

    def full(self, top_ns):
        missing = [n for n in top_ns if n not in self._full]
        if missing:
            found = capacity.measure_each(self.weights, self.x, missing)
            self._full.update(zip(missing, found, strict=True))
        return [self._full[n] for n in top_ns]

    def distance(self, top_ns, rows):
        """dt (N, heads, rows) of the first rows."""
        missing = [n for n in top_ns if n not in self._full and self._short(self._distances, n, rows)]
        if missing:
            found = capacity.distances(self.weights, self.x, missing, rows=rows)
            self._distances.update(zip(missing, found, strict=True))
        return [(self._full[n].distance if n in self._full else self._distances[n])[:, :rows] for n in top_ns]

    def expected(self, sizes, rows):
        """main and printed (N, 2, heads, rows) of the first rows."""
        missing = [n for n in sizes if self._short(self._expected, n, rows)]
        if missing:
            a, x = self.weights[:, :rows, :rows], self.x[..., :rows, :]

            def one(head):
                found = expected_distance(a[head], x[head] if x.ndim == 3 else x, missing, gap=False)
                return np.stack([found.main, found.printed], axis=1)

            found = np.stack(each(one, range(len(a))), axis=2)
            self._expected.update(zip(missing, found, strict=True))
        return [self._expected[n][..., :rows] for n in sizes]

    @staticmethod
    def _short(known, n, rows):
        return n not in known or known[n].shape[-1] < rows


def _means_of(rows, top_ns, lengths):
    longest = max(lengths)
    found = {"top_ns": np.array(top_ns), "lengths": np.array(lengths)}
    parts = {"distance": [], "bound": [], "printed": [], "main": [], "leading": []}
    expected = rows.expected(top_ns, longest)
    for n, full, (main, printed) in zip(top_ns, rows.full(top_ns), expected, strict=True):
        values = (full.distance, full.distance_bound, printed, main, full.leading)
        for name, value in zip(parts, values, strict=True):
            parts[name].append(row_means(value, n, lengths))
    return found | {name: np.stack(values) for name, values in parts.items()}


def _pairs_of(rows, plan):
    """Head means (heads,) by quantity, length and N; `plan` names the N of each length."""
    found = {name: {length: {} for length in plan} for name in ("distance", *FORMULAS)}
    # The longest first: their rows hold those of the others.
    for length in sorted(plan, reverse=True):
        numbers = plan[length]
        if not numbers:
            continue
        expected = rows.expected(numbers, length)
        for n, dt, (main, printed) in zip(numbers, rows.distance(numbers, length), expected, strict=True):
            for name, value in (("distance", dt), ("main", main), ("printed", printed)):
                found[name][length][n] = row_means(value, n, (length,))[..., 0]
    return found


def _shares_of(rows, top_ns):
    length = rows.weights.shape[-1]
    found = [row_means(each.separable_share, each.top_n, (length,))[..., 0] for each in rows.full(top_ns)]
    return {"share": np.stack(found)}


def _sides_of(rows, top_ns):
    length = rows.weights.shape[-1]
    found = {"share": [], "lower": [], "upper": []}
    for n in top_ns:
        both = rows_of_heads(rows.weights, rows.x, n)
        for name, values in found.items():
            values.append(row_means(getattr(both, name), n, (length,))[..., 0])
    return {name: np.stack(values) for name, values in found.items()}


def _random_shares_of(rows, top_ns, rng):
    found = []
    for n in top_ns:
        chosen = random_sets(rows.weights.shape, n, rng)
        share = measure_set(rows.weights, rows.x, chosen).share
        found.append(row_means(share, n, (share.shape[-1],))[..., 0])
    return {"share": np.stack(found)}


def _probe_of(layer, temperatures, steps, seed):
    logits = sensitivity.logits_of(layer.weights.detach().cpu())
    if str(logits.dtype) not in ("torch.float32", "torch.float64"):
        logits = logits.float()
    found = each(
        lambda head: sensitivity.probe(logits[head], temperatures, steps, seed=seed + layer.index),
        range(len(logits)),
    )
    return np.stack([each.mean(axis=-1) for each in found], axis=-1)


class _Collected:
    """Pairs that grow."""

    def __init__(self, lengths):
        self.lengths = tuple(lengths)
        self.means = {name: {length: {} for length in self.lengths} for name in ("distance", *FORMULAS)}

    def add(self, found):
        """Add means of shape (layers, heads)."""
        for name, by_length in found.items():
            for length, values in by_length.items():
                self.means[name][length].update({n: np.ravel(value) for n, value in values.items()})

    def pairs(self):
        return Pairs(self.lengths, self.means)


def _refined(model, windows, kind, collected, levels, formulas, rounds):
    rounds = integer("rounds", rounds, low=0)
    levels = tuple(number("level", level, above=0.0, high=1.0) for level in levels)
    shape = len(formulas), len(levels), len(collected.lengths)
    for round_ in range(rounds + 1):
        pairs = collected.pairs()
        first, settled, exact = (np.full(shape, fill) for fill in (np.nan, np.nan, False))
        plan = {length: set() for length in collected.lengths}
        for (f, formula), (v, level), (k, length) in _products(formulas, levels, collected.lengths):
            first[f, v, k], settled[f, v, k] = critical(pairs, length, formula=formula, level=level)
            near = {first[f, v, k] - 1, first[f, v, k]} if np.isfinite(first[f, v, k]) else set()
            missing = {int(n) for n in near if n >= 1} - set(pairs.computed(length, formula))
            exact[f, v, k] = not missing
            plan[length] |= missing
        if exact.all() or round_ == rounds:
            break
        work = lambda layer: _pairs_of(_Rows(layer, kind), {k: sorted(v) for k, v in plan.items()})  # noqa: B023, E731
        collected.add(_over_layers(model, windows, work))
    return Critical(collected.lengths, levels, formulas, first, settled, exact, pairs)


def _products(*sequences):
    return itertools.product(*(enumerate(sequence) for sequence in sequences))


def _over_layers(model, windows, work: Callable):
    """``work(layer)``, a nested dict of arrays, stacked over layers (a new first axis), mean over windows."""
    found = [_stacked(each_layer(model, window, work)) for window in windows]
    return _mean(found)


def _stacked(layers):
    if isinstance(layers[0], dict):
        return {key: _stacked([layer[key] for layer in layers]) for key in layers[0]}
    return np.stack(layers)


def _mean(found):
    if isinstance(found[0], dict):
        return {key: _mean([each[key] for each in found]) for key in found[0]}
    return np.mean(found, axis=0)


def _means(found) -> Means:
    """From arrays (layers, N, heads, lengths)."""
    names = [field.name for field in fields(Means)[2:]]
    top_ns, lengths = (tuple(int(n) for n in found[name][0]) for name in ("top_ns", "lengths"))
    return Means(top_ns, lengths, *(np.moveaxis(found[name], 0, 1) for name in names))


def _shares(top_ns, found) -> Shares:
    return Shares(top_ns, **{name: np.moveaxis(values, 0, 1) for name, values in found.items()})


def _probes(temperatures, steps, found) -> Probes:
    return Probes(temperatures, steps, np.moveaxis(found["gradient"], 0, -2))


def _formulas(formulas) -> tuple[str, ...]:
    unknown = [formula for formula in formulas if formula not in FORMULAS]
    if unknown:
        raise ValueError(f"formulas must be of {', '.join(FORMULAS)}; got {unknown[0]!r}")
    return tuple(formulas)


def _numbers(top_ns, length):
    top_ns = tuple(integer("top_n", n, low=1) for n in top_ns)
    if not top_ns:
        raise ValueError("top_ns must name at least one N")
    if max(top_ns) >= length:
        raise ValueError(f"top_n must leave a token out of {length}; got {max(top_ns)}")
    return top_ns


def _windows(windows, lengths, kind):
    shape = tuple(getattr(windows, "shape", ()))
    if len(shape) not in (1, 2) or 0 in shape:
        given = f"shape {shape}" if shape else type(windows).__name__
        raise ValueError(f"windows must be a tensor of shape (W, L) or (L,); got {given}")
    windows = windows if len(shape) == 2 else windows[None]
    if kind not in TOKENS:
        raise ValueError(f"kind must be one of {', '.join(TOKENS)}; got {kind!r}")
    longest = int(windows.shape[-1])
    if lengths is None:
        lengths = [length for length in LENGTHS if length <= longest] or [longest]
    lengths = tuple(sorted({integer("length", length, low=2) for length in lengths}))
    if not lengths:
        raise ValueError("lengths must name at least one length")
    if lengths[-1] > longest:
        raise ValueError(f"lengths must be at most that of the window, {longest}; got {lengths[-1]}")
    return windows, lengths

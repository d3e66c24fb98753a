"""Rules that turn the logits of an attention row into weights: softmax and six others.

Every rule takes logits ``(..., L)`` (numpy or torch; leading axes are heads, rows, anything) and a boolean
mask of the tokens that each row sees, and returns weights of the same shape, kind and precision, exactly zero
where the mask is false. Rules are applied as they are printed, with the logits that softmax would get, so a
factor ``1/sqrt(d_head)`` or ``1/T`` belongs into the logits. The arithmetic is done in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from attnorm import validate
from attnorm.heads import attention_blocks, by_head
from attnorm.rows import plain

#: Scaling parameter of Scalable-Softmax in the figures of its paper; there it is learned, head by head.
SSMAX_S = 0.43
#: Polynomial of the entropy (in nats) for the inverse temperature, highest power first, as printed.
ADAPTIVE_POLYNOMIAL = -0.037, 0.481, -2.3, 4.917, -1.791
#: Rows of less entropy than this (in nats) keep their temperature.
ADAPTIVE_FROM = 0.5


def softmax(logits, visible=None, *, temperature=1.0):
    """``exp(z_i / T) / sum_j exp(z_j / T)``.

    Parameters
    ----------
    logits : array or tensor (..., L), floating
        Minus infinity is allowed for some, not for all, visible tokens of a row.
    visible : array or tensor of bool, optional
        Broadcasts to the shape of `logits`; all tokens if not given. For a causal mask, ``causal(L)``.
    temperature : float
        T > 0.

    Returns
    -------
    array or tensor (..., L)

    Raises
    ------
    ValueError
        If logits are not floating, have NaN or plus infinity at a visible token, the mask is not boolean or
        does not fit, a row sees no token, or has no finite logit.

    Examples
    --------
    >>> softmax(np.log([1.0, 3.0, 4.0]), np.array([True, True, False])).round(3).tolist()
    [0.25, 0.75, 0.0]
    """
    temperature = validate.number("temperature", temperature, above=0)
    return _apply(logits, visible, lambda z, seen: _softmax(z / temperature))


def sparsemax(logits, visible=None):
    """The point of the simplex nearest to z: ``max(z_i - tau, 0)``, with tau so that the row sums to one.

    Arguments, result and errors as in `softmax`. Source: Martins and Astudillo, arXiv 1602.02068.

    Examples
    --------
    >>> sparsemax(np.array([0.5, 0.0, -2.0])).tolist()
    [0.75, 0.25, 0.0]
    """
    from entmax import sparsemax as rule

    return _apply(logits, visible, lambda z, seen: _sparse(rule, z))


def entmax15(logits, visible=None):
    """alpha-entmax at alpha = 3/2: ``max(z_i / 2 - tau, 0)^2``, with tau so that the row sums to one.

    Arguments, result and errors as in `softmax`. Source: Peters, Niculae and Martins, arXiv 1905.05702.

    Examples
    --------
    >>> entmax15(np.array([2.0, 0.0, -1.0])).tolist()
    [1.0, 0.0, 0.0]
    """
    from entmax import entmax15 as rule

    return _apply(logits, visible, lambda z, seen: _sparse(rule, z))


def scalable_softmax(logits, visible=None, *, s=SSMAX_S):
    """``n^(s z_i) / sum_j n^(s z_j)``, the softmax of ``(s log n) z``; n is the number of visible tokens.

    Arguments, result and errors as in `softmax`; ``s > 0``. Source: Nakanishi, arXiv 2501.19399. (The factor
    stands at the logits: ``exp(z_i - s log n)`` over its sum is softmax again, since the shift cancels.)

    Examples
    --------
    >>> scalable_softmax(np.array([1.0, 0.0]), s=1.0).round(3).tolist()  # 2 : 1
    [0.667, 0.333]
    """
    import torch

    s = validate.number("s", s, above=0)

    def rule(z, seen):
        factor = s * seen.sum(dim=-1, keepdim=True).to(z.dtype).log()
        # A row that sees one token has the factor zero, which would make all logits equal.
        return _softmax(torch.where(seen, factor * _level(z), -math.inf))

    return _apply(logits, visible, rule)


def softmax1(logits, visible=None):
    """``exp(z_i) / (1 + sum_j exp(z_j))``: what is left of softmax when one more logit is 0. Rows sum to < 1.

    Arguments, result and errors as in `softmax`. Source: E. Miller, "Attention is off by one" (2023).

    Examples
    --------
    >>> softmax1(np.log([1.0, 2.0])).tolist()
    [0.25, 0.5]
    """
    import torch

    def rule(z, seen):
        top = z.amax(dim=-1, keepdim=True).clamp(min=0)
        parts = torch.exp(z - top)
        return parts / (torch.exp(-top) + parts.sum(dim=-1, keepdim=True))

    return _apply(logits, visible, rule)


def inverse_temperature(entropy):
    """Factor that adaptive temperature puts at the logits of a row with this entropy (in nats).

    ``max(1, polynomial)`` above `ADAPTIVE_FROM`, else 1. Takes and returns an array, or a torch tensor.

    Examples
    --------
    >>> inverse_temperature(np.array([0.4, 2.0, 7.0])).round(3).tolist()
    [1.0, 2.099, 1.0]
    """
    factor = 0.0 * entropy
    for coefficient in ADAPTIVE_POLYNOMIAL:
        factor = factor * entropy + coefficient
    adapt = (entropy > ADAPTIVE_FROM) & (factor > 1)
    return 1 + (factor - 1) * adapt


def adaptive_temperature(logits, visible=None):
    """Softmax of ``beta z``, where beta is `inverse_temperature` of the entropy of the softmax of z.

    Arguments, result and errors as in `softmax`. Source: Velickovic et al., arXiv 2410.01104. Their
    polynomial is a fit to one trained network, of entropies up to that of some thousand tokens at most.

    Examples
    --------
    A row of little entropy stays, any other becomes sharper.

    >>> sharp, flat = np.array([3.0, 0.0]), np.array([1.0, 0.0, 0.0, 0.0])
    >>> np.array_equal(adaptive_temperature(sharp), softmax(sharp))
    True
    >>> [rule(flat).round(2).tolist() for rule in (softmax, adaptive_temperature)]
    [[0.48, 0.17, 0.17, 0.17], [0.63, 0.12, 0.12, 0.12]]
    """
    import torch

    def rule(z, seen):
        p = _softmax(z)
        logs = torch.log(torch.where(p > 0, p, 1.0))  # 0 log 0 = 0, also for a gradient
        beta = inverse_temperature(-(p * logs).sum(dim=-1, keepdim=True))
        return _softmax(beta * _level(z))

    return _apply(logits, visible, rule)


def relu_over_length(logits, visible=None):
    """``max(z_i, 0) / n``, with n the number of visible tokens. Rows sum to anything from 0 on.

    Arguments, result and errors as in `softmax`. Source: Wortsman et al., arXiv 2309.08586.

    Examples
    --------
    >>> relu_over_length(np.array([3.0, -1.0, 1.5])).tolist()
    [1.0, 0.0, 0.5]
    """
    return _apply(
        logits, visible, lambda z, seen: z.clamp(min=0) / seen.sum(dim=-1, keepdim=True).to(z.dtype)
    )


@dataclass(frozen=True)
class Normaliser:
    """A rule with its name and its look. Call it like the function: ``rule(logits, visible)``.

    Attributes
    ----------
    name, title : str
        Key of `NORMALISERS`, and the name in text and legends.
    function : callable
    sums_to_one : bool
        Rows are distributions.
    shift_invariant : bool
        Weights stay when one number is added to all logits of a row.
    sparse : bool
        Visible tokens can get a weight of exactly zero.
    length_aware : bool
        The number of visible tokens enters the rule.
    color, marker, dashes
        The same in every figure of the book.
    """

    name: str
    title: str
    function: Callable
    sums_to_one: bool
    shift_invariant: bool
    sparse: bool
    length_aware: bool
    color: str
    marker: str
    dashes: object

    def __call__(self, logits, visible=None):
        return self.function(logits, visible)

    @property
    def style(self) -> dict:
        """Keywords of a matplotlib line, as `attnorm.plotting.style` gives them for a scheme."""
        return {
            "color": self.color,
            "marker": self.marker,
            "linestyle": self.dashes,
            "markevery": 0.12,
            "markersize": 5,
            "label": self.title,
        }


#: The rules by name.
NORMALISERS = {
    rule.name: rule
    for rule in (
        Normaliser("softmax", "softmax", softmax, True, True, False, False, "#000000", "o", "solid"),
        Normaliser(
            "entmax-1.5", "entmax-1.5", entmax15, True, True, True, False, "#E69F00", "^", (0, (6, 2))
        ),
        Normaliser(
            "sparsemax", "sparsemax", sparsemax, True, True, True, False, "#D55E00", "v", (0, (3, 1.5))
        ),
        Normaliser(
            "scalable-softmax",
            "Scalable-Softmax",
            scalable_softmax,
            True,
            True,
            False,
            True,
            "#0072B2",
            "s",
            (0, (6, 2, 1.5, 2)),
        ),
        Normaliser(
            "adaptive-temperature",
            "adaptive temperature",
            adaptive_temperature,
            True,
            True,
            False,
            False,
            "#009E73",
            "D",
            (0, (8, 2)),
        ),
        Normaliser(
            "softmax1", "softmax1", softmax1, False, False, False, False, "#56B4E9", "P", (0, (1.5, 1.5))
        ),
        Normaliser(
            "relu", "ReLU / L", relu_over_length, False, False, True, True, "#CC79A7", "X", (0, (1, 1, 4, 1))
        ),
    )
}


def get_normaliser(name) -> Normaliser:
    """The rule of that name, or `name` itself if it is one.

    Raises
    ------
    ValueError
        If there is no such rule.

    Examples
    --------
    >>> get_normaliser("sparsemax").sparse
    True
    """
    if isinstance(name, Normaliser):
        return name
    if name not in NORMALISERS:
        raise ValueError(f"normaliser must be one of {', '.join(NORMALISERS)}; got {name!r}")
    return NORMALISERS[name]


def causal(length: int) -> np.ndarray:
    """The mask (L, L) of a causal head: row i sees the tokens j <= i.

    Examples
    --------
    >>> causal(2).tolist()
    [[True, False], [True, True]]
    """
    return np.tri(validate.integer("length", length, low=1), dtype=bool)


def distributions(weights):
    """Rows over their sums, and the sums, for rules whose rows do not sum to one.

    Every length that `attnorm.capacity.measure` returns is proportional to the row of weights, and ratios and
    counts do not change with its scale. So the rows of any rule can be measured as distributions, and a
    length of the rule itself is that of the distribution times the sum.

    Parameters
    ----------
    weights : array or tensor (..., L)
        Not negative.

    Returns
    -------
    rows : array (..., L), float64
        A row of zeros becomes the first token alone, so that it is a distribution; mark it by its sum.
    sums : array (...)
        0 for a row of zeros.

    Raises
    ------
    ValueError
        If a weight is negative or not finite.

    Examples
    --------
    >>> rows, sums = distributions([[1.0, 3.0], [0.0, 0.0]])
    >>> rows.tolist(), sums.tolist()
    ([[0.25, 0.75], [1.0, 0.0]], [4.0, 0.0])
    """
    rows = np.array(validate.not_negative("weights", plain(weights), ndim=1))
    sums = rows.sum(axis=-1)
    rows[..., 0] += sums == 0
    return rows / np.where(sums == 0, 1.0, sums)[..., None], sums


def jacobian_norm(rule, logits, visible=None, *, steps: int = 60) -> np.ndarray:
    """Largest singular value of the derivative of each row of weights by its logits.

    Parameters
    ----------
    rule : str or Normaliser
    logits, visible
        As in `softmax`.
    steps : int
        Of the power method, which softmax1 and adaptive temperature need; it approaches from below. The other
        norms are exact (`attnorm.sensitivity.jacobian_norms`; ReLU's is 1/n, or 0 in a row of zeros).

    Returns
    -------
    array (...)
        Where a logit enters or leaves the support, the derivative is the one on the side of the weights.

    Raises
    ------
    ValueError
        As the rules do, or if `steps` is less than one.

    Examples
    --------
    >>> tie = np.zeros(2)
    >>> [round(float(jacobian_norm(rule, tie)), 3) for rule in ("softmax", "entmax-1.5", "sparsemax")]
    [0.5, 0.707, 1.0]
    """
    from attnorm.sensitivity import jacobian_norms

    rule, steps = get_normaliser(rule), validate.integer("steps", steps, low=1)
    weights = plain(rule(logits, visible))
    z = np.broadcast_to(plain(logits), weights.shape)
    seen = np.broadcast_to(True if visible is None else plain(visible).astype(bool), weights.shape)
    count = seen.sum(axis=-1)
    alphas = {"softmax": 1.0, "scalable-softmax": 1.0, "entmax-1.5": 1.5, "sparsemax": 2.0}
    if rule.name in alphas:
        factor = SSMAX_S * np.log(count) if rule.name == "scalable-softmax" else 1.0
        return factor * jacobian_norms(weights, alpha=alphas[rule.name]).spectral
    if rule.name == "relu":
        return np.where((weights > 0).any(axis=-1), 1 / count, 0.0)
    if rule.name == "softmax1":
        return _power(lambda v: _covariance(weights, v), lambda u: _covariance(weights, u), weights, steps)
    # Adaptive temperature: da = J_a (beta dz + z dbeta), and dbeta is the slope times dH = -J_p z . dz.
    p = softmax(z, seen)
    level = np.where(weights + p > 0, z - np.where(seen, z, -np.inf).max(axis=-1, keepdims=True), 0.0)
    entropy = -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1, keepdims=True)
    beta = inverse_temperature(entropy)
    slope = np.polyval(np.polyder(ADAPTIVE_POLYNOMIAL), entropy) * (beta > 1)
    along = -slope * _covariance(p, level)

    def forth(v):
        return _covariance(weights, beta * v + level * (along * v).sum(axis=-1, keepdims=True))

    def back(u):
        u = _covariance(weights, u)
        return beta * u + along * (level * u).sum(axis=-1, keepdims=True)

    return _power(forth, back, weights, steps)


def _covariance(a, v):
    """``(diag(a) - a a^T) v`` of each row."""
    return a * (v - (a * v).sum(axis=-1, keepdims=True))


def _power(forth, back, like, steps):
    """Largest singular value of the maps `forth`, with transpose `back`, from one fixed start."""
    v = np.random.default_rng(0).standard_normal(like.shape) * (like > 0)
    norm = np.zeros(like.shape[:-1])
    for _ in range(steps):
        length = np.linalg.norm(v, axis=-1, keepdims=True)
        v = forth(v / np.where(length > 0, length, 1.0))
        norm = np.linalg.norm(v, axis=-1)
        v = back(v)
    return norm


def head_logits(model, layer):
    """The logits of a captured layer, with their offset: what softmax turns into ``layer.weights``.

    ``log(layer.weights)`` gives logits up to one number a row, which is enough for the rules that do not
    change with it. The others need these: ``<q_i, k_j>`` times the model's factor, after the rotation by
    position if the model has one.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The one that `layer` was captured from.
    layer : attnorm.heads.Layer

    Returns
    -------
    tensor (H, L, L), float64
        Also for tokens that a row does not see.

    Raises
    ------
    ValueError
        If the model is neither GPT-2 nor of Llama's kind.
    """
    blocks, attention_name, _ = attention_blocks(model)
    query, key = layer.query.double(), layer.key.double()
    rotation = getattr(model.base_model, "rotary_emb", None)
    if rotation is not None:
        import torch
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        places = torch.arange(query.shape[1], device=query.device)[None]
        # The tables of the model itself, in its precision.
        cos, sin = (table.double() for table in rotation(layer.hidden[None], position_ids=places))
        query, key = (x[0] for x in apply_rotary_pos_emb(query[None], key[None], cos, sin))
    factor = getattr(blocks[layer.index], attention_name).scaling
    return query @ key.transpose(-1, -2) * factor


@contextmanager
def replaced(model, rule) -> Iterator[None]:
    """While inside, the attention of every layer of `model` uses `rule` in place of its softmax.

    Nothing is trained or rescaled: queries, keys, values and all other weights stay as they are.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        As for `attnorm.heads.capture`, with one sequence at a time.
    rule : callable
        Takes logits (H, L, L) and a mask (L, L), and returns weights.

    Raises
    ------
    ValueError
        If the model is of another kind, and during the pass if it is given more than one sequence.
    """
    blocks, attention_name, projections = attention_blocks(model)
    hooks = []
    try:
        for index, block in enumerate(blocks):
            attention = getattr(block, attention_name)
            seen: dict = {}
            for name in projections:
                hooks.append(getattr(attention, name).register_forward_hook(_remember(seen, name)))
            last = getattr(attention, "c_proj", None) or attention.o_proj
            hooks.append(last.register_forward_pre_hook(_average(model, rule, index, seen, projections)))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _remember(seen, name):
    def hook(_module, _arguments, output):
        seen[name] = output

    return hook


def _average(model, rule, index, seen, projections):
    """What goes into the output projection: the values of each head, averaged by the weights of `rule`."""

    def hook(_module, arguments):
        (given,) = arguments
        if given.shape[0] != 1:
            raise ValueError(f"give one sequence at a time; got a batch of {given.shape[0]}")
        parts = [seen.pop(name)[0] for name in projections]
        parts = parts[0].chunk(3, dim=-1) if len(parts) == 1 else parts
        heads = model.config.num_attention_heads
        width = given.shape[-1] // heads
        query, key, value = (by_head(part, heads, width) for part in parts)
        layer = SimpleNamespace(index=index, query=query, key=key, hidden=given[0])
        weights = rule(head_logits(model, layer), causal(given.shape[1])).to(given.dtype)
        return ((weights @ value).transpose(0, 1).reshape(given.shape),)

    return hook


def _apply(logits, visible, rule):
    """`rule` on float64 torch logits, minus infinity where nothing is seen; the result as `logits` came."""
    import torch

    if hasattr(logits, "detach"):
        z = logits
    else:
        z = np.asarray(logits)
        if z.dtype.kind != "f":
            raise ValueError(f"logits must be floating-point numbers; got {z.dtype}")
        z = _tensor(z)
    if not z.is_floating_point():
        raise ValueError(f"logits must be floating-point numbers; got {z.dtype}")
    if z.ndim < 1 or z.shape[-1] < 1:
        raise ValueError(f"logits must have shape (..., L) with L >= 1; got {tuple(z.shape)}")
    seen = torch.ones(z.shape[-1], dtype=torch.bool) if visible is None else _tensor(visible)
    if seen.dtype != torch.bool:
        raise ValueError(f"visible must be boolean; got {seen.dtype}")
    try:
        seen = seen.to(z.device).expand(z.shape)
    except RuntimeError as error:
        raise ValueError(
            f"visible must broadcast to the shape of logits {tuple(z.shape)}; got {tuple(seen.shape)}"
        ) from error
    work = torch.where(seen, z.double(), -math.inf)
    top = work.amax(dim=-1)
    if not torch.isfinite(top).all():
        raise ValueError(
            "each row must see a token with a finite logit, and no visible logit may be NaN or plus infinity"
        )
    weights = rule(work, seen).to(z.dtype)
    return weights if hasattr(logits, "detach") else weights.numpy()


def _tensor(values):
    import torch

    return values if hasattr(values, "detach") else torch.from_numpy(np.array(values))


def _softmax(z):
    return z.softmax(dim=-1)


def _level(z):
    """Logits minus their largest, without infinities: a factor of them then has a gradient."""
    return (z - z.amax(dim=-1, keepdim=True)).clamp(min=-1e300)


def _sparse(rule, z):
    # The threshold lies at most 1 (sparsemax) or 2 (entmax-1.5) below the largest logit, so a logit 4 below
    # gets zero whatever it is; sums of squares then keep their digits, and no infinity enters them.
    # The largest 64 logits are sorted first, and all only in rows whose support is larger.
    weights = rule((z - z.amax(dim=-1, keepdim=True)).clamp(min=-4.0), dim=-1, k=min(64, z.shape[-1]))
    return weights / weights.sum(dim=-1, keepdim=True)

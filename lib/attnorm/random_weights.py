"""Random weights, drawn once and tied across depth: draws of them, and a closed law for the mean cosine.

Entries of V have variance v/d, and Q, K, beta are such that the logits of uniform tokens have variance g.
The common part of all tokens is then multiplied by ``exp(S V)``, where S is depth on the clock of Post-LN,
and a large Gaussian matrix makes ``|exp(S V) m|^2 = I_0(2 sqrt(v) S) |m|^2`` of any m that does not know it.
"""

from dataclasses import dataclass

import numpy as np
import sympy as sp
from scipy.special import ive

from attnorm import validate
from attnorm.dynamics import check_tau, phases
from attnorm.random_start import uniform_directions
from attnorm.schemes import get_scheme

S, n, d, v, g = sp.symbols("S n d v g", positive=True)
c, nu = sp.symbols("c nu", nonnegative=True)

#: Squared length of the common part that has been added to every token by clock S.
COMMON = (sp.besseli(0, 2 * sp.sqrt(v) * S) - 1) / n
#: Mean square of the share of a token in the fluctuation of attention, at mean cosine c.
SCATTER = (sp.exp(g * (1 - c)) - 1) / n + g * (1 - c) ** 2 / d
#: Squared length of the attention vector, over v.
ATTENTION = c + (1 - c) * (1 / n + SCATTER)


def draw(rng, draws, n, d, *, value_variance=1.0, logit_variance=1.0):
    """Uniform directions and Gaussian weights, as keywords of `attnorm.ensemble.simulate_all`.

    Parameters
    ----------
    rng : Generator
    draws, n, d : int
        Number of independent draws R, tokens in each, dimension.
    value_variance : float
        v: entries of V have variance v/d.
    logit_variance : float
        g: entries of Q and K have variance sqrt(g)/d, and ``beta = sqrt(d)``, so that the logits have
        variance g.

    Returns
    -------
    dict
        ``x0`` (R, n, d), ``Q``, ``K``, ``V`` (R, d, d), ``beta``.

    Examples
    --------
    >>> drawn = draw(np.random.default_rng(0), 2, 5, 64)
    >>> drawn["x0"].shape, drawn["V"].shape, drawn["beta"]
    ((2, 5, 64), (2, 64, 64), 8.0)
    """
    draws, n, d = (validate.integer(k, x, low=1) for k, x in (("draws", draws), ("n", n), ("d", d)))
    v = validate.number("value_variance", value_variance, low=0.0)
    g = validate.number("logit_variance", logit_variance, low=0.0)
    x0 = uniform_directions(rng, draws, n, d)
    Q, K, V = (rng.standard_normal((draws, d, d), dtype=np.float32) for _ in range(3))
    for matrix, variance in ((Q, np.sqrt(g)), (K, np.sqrt(g)), (V, v)):
        matrix *= np.sqrt(variance / d)
    return {"x0": x0, "Q": Q, "K": K, "V": V, "beta": float(np.sqrt(d))}


@dataclass(frozen=True)
class MeanField:
    """The law along the depth; arrays (T, ...), with the shape of the parameters behind the first axis.

    Attributes
    ----------
    times : array (T,)
    cosine : array (T, ...)
        Mean cosine over pairs.
    radius : array (T, ...)
        Norm of a token.
    clock : array (T, ...)
        S, the depth at which Post-LN is at the same state.
    """

    times: np.ndarray
    cosine: np.ndarray
    radius: np.ndarray
    clock: np.ndarray


_scatter, _attention = (sp.lambdify((c, n, d, g), expression, "numpy") for expression in (SCATTER, ATTENTION))


def mean_field(
    scheme,
    times,
    *,
    n,
    d,
    value_variance=1.0,
    logit_variance=1.0,
    r0=1.0,
    alpha=1.0,
    tau=None,
    step=0.02,
):
    """Mean cosine and norm for tied random weights, to leading order in large n and d, without particles.

    Two numbers describe the state: the clock S and the scatter eta of the tokens, with
    ``S' = 1/s``, ``eta' = sqrt(SCATTER)/s``. A token is ``1 + COMMON + v eta^2`` long (squared, in units of
    its start), and COMMON over it is the cosine.

    Parameters
    ----------
    scheme : str or Scheme
    times : array (T,)
        Depths >= 0, strictly increasing.
    n, d, value_variance, logit_variance : float or array
        Number of tokens, dimension, v and g; broadcast against each other.
    r0 : float
        Initial norm, > 0.
    alpha : float or callable of t
    tau : float, optional
        As in `attnorm.simulate`.
    step : float
        Largest step of the classical Runge-Kutta method.

    Returns
    -------
    MeanField

    Raises
    ------
    ValueError
        On bad input.

    Examples
    --------
    >>> law = mean_field("post-ln", [3.0], n=192, d=512, value_variance=1.5)
    >>> bool(0.4 < law.cosine[0] < 0.6)
    True
    """
    scheme, times = get_scheme(scheme), validate.times(times)
    tau, alpha = check_tau(scheme, tau), validate.depth_function("alpha", alpha, low=0.0)
    r0, step = validate.number("r0", r0, above=0.0), validate.number("step", step, above=0.0)
    given = {"n": n, "d": d, "value_variance": value_variance, "logit_variance": logit_variance}
    for name, value in given.items():
        if not (validate.finite_array(name, value) > 0).all():
            raise ValueError(f"{name} must be > 0; got {np.min(value):g}")
    n, d, v, g = np.broadcast_arrays(*(np.asarray(value, dtype=float) for value in given.values()))

    def state(y):
        """Mean cosine, norm over the initial one, and length of the attention vector."""
        argument = 2 * np.sqrt(v) * y[0]
        # With exp(-x) taken out of the Bessel function nothing overflows.
        small = np.exp(-argument)
        common = (ive(0, argument) - small) / n
        square = small * (1 + v * y[1] ** 2) + common
        cosine = common / square
        with np.errstate(over="ignore"):  # beyond floats only in schemes that do not read it
            growth = np.exp(argument / 2) * np.sqrt(square)
        return cosine, growth, np.sqrt(v * _attention(cosine, n, d, g))

    result = np.empty((3, len(times), *n.shape))
    y, before = np.zeros((2, *n.shape)), 1.0

    def note(k, y, moves):
        cosine, growth, _ = state(y)
        radius = r0 * growth / before if moves else np.full_like(growth, r0)
        result[:, k] = cosine, radius, y[0]

    if times[0] == 0.0:
        note(0, y, False)
    for begin, end, late in phases(scheme, tau, times[-1]):
        reciprocal, moves = scheme.compiled(late)[0], scheme.laws(late)[1] != 0
        before = state(y)[1]

        def rates(t, y, reciprocal=reciprocal, moves=moves, before=before):
            cosine, growth, a = state(y)
            pace = reciprocal(r0 * growth / before if moves else r0, a, 0.0, t, alpha(t)) * np.ones_like(a)
            return np.stack([pace, pace * np.sqrt(_scatter(cosine, n, d, g))])

        t = begin
        for stop in np.append(times[(times > begin) & (times < end)], end):
            count = int(np.ceil((stop - t) / step))
            h = (stop - t) / max(count, 1)
            for i in range(count):
                at = t + i * h
                k1 = rates(at, y)
                k2 = rates(at + h / 2, y + h / 2 * k1)
                k3 = rates(at + h / 2, y + h / 2 * k2)
                y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + rates(at + h, y + h * k3))
            t = stop
            for k in np.flatnonzero(times == stop):
                note(k, y, moves)
    return MeanField(times, *result)

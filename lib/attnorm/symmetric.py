"""The symmetric start: all pairs keep one inner product gamma, and n particles become one scalar ODE.

Everything is written in the gap ``u = 1 - gamma``, with Q = K = V = I (Karagodin et al. 2025, Theorem 4.1)::

    gamma' = 2 u escape / s,   escape = (n - (n-1) u) / (e^{beta u} + n - 1)

and integrated in ``w = -ln u``, which keeps relative accuracy for gaps far below rounding.
"""

from dataclasses import dataclass

import mpmath
import numpy as np
import sympy as sp
from scipy.integrate import solve_ivp

from attnorm import validate
from attnorm.dynamics import check_tau, phases
from attnorm.schemes import a, alpha, get_scheme, r, t

u, beta, n = sp.symbols("u beta n", positive=True)

# Numerators and denominators carry a factor e^{-beta u}, so that no beta overflows.
_p = sp.exp(-beta * u)
_Z = 1 + (n - 1) * _p
ESCAPE = (n - (n - 1) * u) * _p / _Z
ALIGNMENT = (1 + (n - 1) * (1 - u) * _p) / _Z  # <theta_j, A_j>
ATTENTION_NORM = (
    sp.sqrt(1 + 2 * (n - 1) * (1 - u) * _p + (n - 1) * (1 + (n - 2) * (1 - u)) * _p**2) / _Z
)  # |A_j|

# Relative accuracy of one step in w and in ln r; scipy goes no lower than 2.2e-14.
_RTOL = 1e-13
# w starts at zero and small w are amplified by up to e^beta: the absolute tolerance must not be what stops
# the step control.
_ATOL = 1e-30
# The clock at which u = 1/2 is computed with this many digits; from there on only differences of the clock
# matter.
_DIGITS = 40


@dataclass(frozen=True)
class Equiangular:
    """The symmetric start along the depth; every array has shape (T,).

    Attributes
    ----------
    times, gamma, gap, radius, speed
        Depth, common inner product, ``1 - gamma`` (accurate in relative terms down to 1e-300), common norm
        r, ``gamma'``.
    """

    times: np.ndarray
    gamma: np.ndarray
    gap: np.ndarray
    radius: np.ndarray
    speed: np.ndarray


def equiangular(scheme, times, *, n, beta, r0=1.0, alpha=1.0, tau=None):
    """Solve the symmetric start: orthonormal directions and equal norms at t = 0, with Q = K = V = I.

    Where the radius is constant the equation separates, and the clock at which u = 1/2 is a quadrature,
    done in high precision: the escape takes a time of order e^beta, of which double precision would keep
    too few digits for the gap behind it.  Where the radius moves, the pair (w, ln r) is integrated in
    logarithmic depth.

    Parameters
    ----------
    scheme : str or Scheme
    times : array (T,)
        Depths >= 0, strictly increasing.
    n : int
        Number of tokens, >= 2.
    beta : float
        Inverse temperature, >= 0.
    r0 : float
        Initial norm, > 0.
    alpha : float or callable of t
        Step of nGPT, >= 0.
    tau : float, optional
        Depth of Mix-LN's switch, >= 0.

    Returns
    -------
    Equiangular

    Raises
    ------
    ValueError
        On bad input.

    Examples
    --------
    The gap of Post-LN falls like e^{-2t}:

    >>> flow = equiangular("post-ln", [0.0, 50.0, 60.0], n=8, beta=1.0)
    >>> round(float(np.log(flow.gap[1] / flow.gap[2])), 9)
    20.0
    """
    scheme, times = get_scheme(scheme), validate.times(times)
    tau = check_tau(scheme, tau)
    symmetric = _Symmetric(
        n=validate.integer("n", n, low=2),
        beta=validate.number("beta", beta, low=0.0),
        r0=validate.number("r0", r0, above=0.0),
        alpha=alpha if callable(alpha) else validate.number("alpha", alpha, low=0.0),
    )
    w, log_r, rate = np.zeros((3, len(times)))
    state = (0.0, 0.0)
    for begin, end, late in phases(scheme, tau, times[-1]) or [(0.0, 0.0, False)]:
        law = _Law(symmetric, scheme, late)
        inside = (times <= end) & ((times > begin) | (times == 0.0) & (begin == 0.0))
        solve = _grow if law.moves_radius else _turn
        path = solve(law, begin, state, np.append(times[inside], end))
        w[inside], log_r[inside] = path[:, :-1]
        rate[inside] = law.rates(times[inside], *path[:, :-1])[0]
        state = path[:, -1]
    gap = np.exp(-w)
    return Equiangular(
        times, gamma=-np.expm1(-w), gap=gap, radius=symmetric.r0 * np.exp(log_r), speed=gap * rate
    )


_geometry = sp.lambdify((u, n, beta), (ESCAPE, ALIGNMENT, ATTENTION_NORM), "numpy")


@dataclass(frozen=True)
class _Symmetric:
    n: int
    beta: float
    r0: float
    alpha: object


class _Law:
    """The scalar ODE of one scheme on one side of its switch."""

    def __init__(self, symmetric, scheme, late):
        self.n, self.beta, self.r0 = symmetric.n, symmetric.beta, symmetric.r0
        self.alpha = symmetric.alpha
        self.alpha_at = np.vectorize(
            validate.depth_function("alpha", symmetric.alpha, low=0.0), otypes=[float]
        )
        self.speed, radial = scheme.laws(late)
        self.moves_radius = radial != 0
        self._reciprocal_speed, self._radial = scheme.compiled(late)

    def rates(self, depth, w, log_r):
        """``(w', (ln r)')`` at the given depth, ``w = -ln u`` and ``ln(r / r0)``."""
        escape, alignment, attention_norm = _geometry(np.exp(-w), self.n, self.beta)
        radius = self.r0 * np.exp(log_r)
        law = (radius, attention_norm, alignment, depth, self.alpha_at(depth))
        return 2 * escape * self._reciprocal_speed(*law), self._radial(*law) / radius

    def separated(self):
        """``s = c(t) sigma(u)`` for a constant radius: the reciprocal of c and sigma, as expressions."""
        reciprocal = (1 / self.speed).subs({a: 1, r: self.r0})
        sigma = sp.simplify((self.speed * reciprocal).subs(r, self.r0)).subs(a, ATTENTION_NORM)
        if sigma.has(t, alpha):
            raise ValueError(f"the speed {self.speed} is not a function of depth times a function of |A|")
        return reciprocal, sigma

    def clock(self, depths):
        """``int_0^t dt / c`` at each depth."""
        reciprocal, _ = self.separated()
        if callable(self.alpha) and reciprocal.has(alpha):
            ticking = sp.lambdify((t, alpha), reciprocal, "numpy")
            return _integrate(
                lambda depth, _: np.array([ticking(depth, float(self.alpha_at(depth)))]), [0.0], depths, _RTOL
            )[0]
        end = sp.symbols("end", positive=True)
        clock = sp.lambdify((end, alpha), sp.integrate(reciprocal, (t, 0, end)), "numpy")
        return clock(depths, self.alpha) * np.ones_like(depths)

    def clock_at_half(self):
        """The clock at which u = 1/2, with `_DIGITS` digits: ``int_{1/2}^1 sigma / (2 u escape) du``."""
        _, sigma = self.separated()
        integrand = sp.lambdify((u, n, beta), sigma / (2 * u * ESCAPE), "mpmath")
        with mpmath.workdps(_DIGITS):
            size, temperature = mpmath.mpf(self.n), mpmath.mpf(self.beta)
            return mpmath.quad(lambda v: integrand(v, size, temperature), [0.5, 1])


def _turn(law, begin, state, depths):
    """Constant radius, from the start at depth zero: integrate w against the clock, from the start
    while the gap is near one and both ways from u = 1/2 after that."""
    if begin > 0.0:
        raise ValueError("a constant radius after the switch is not provided for")
    _, sigma = law.separated()
    rate = sp.lambdify((u, n, beta), 2 * ESCAPE / sigma, "numpy")
    with mpmath.workdps(_DIGITS):
        half = law.clock_at_half()
        clocks = law.clock(depths)
        offsets = np.array([float(mpmath.mpf(clock) - half) for clock in clocks])
    # Far before the escape w is tiny, and only a run from the start keeps its relative accuracy.
    early = clocks <= float(half) / 2
    w = np.empty_like(offsets)
    for part, start, at in (
        (early, 0.0, clocks),
        (~early & (offsets < 0), np.log(2.0), offsets),
        (~early & (offsets >= 0), np.log(2.0), offsets),
    ):
        if part.any():
            w[part] = _integrate(lambda _, w: rate(np.exp(-w), law.n, law.beta), [start], at[part], _ATOL)[0]
    return np.stack([w, np.full_like(w, state[1])])


def _grow(law, begin, state, depths):
    """Moving radius: integrate (w, ln r) against ``ln(1 + (t - begin) / r0)``, in which both end up
    linear."""

    def velocity(s, y):
        return np.array(law.rates(begin + law.r0 * np.expm1(s), *y)) * law.r0 * np.exp(s)

    return _integrate(velocity, state, np.log1p((depths - begin) / law.r0), [_ATOL, _RTOL])


def _integrate(velocity, state, at, atol):
    """Solve from ``state`` at zero to the points ``at``, all of one sign and in any order; shape
    (len(state), len(at))."""
    sign = -1.0 if at.min() < 0 else 1.0
    grid, position = np.unique(sign * at, return_inverse=True)
    if grid[-1] == 0.0:
        return np.repeat(np.asarray(state)[:, np.newaxis], len(at), axis=1)
    solution = solve_ivp(
        lambda s, y: sign * velocity(sign * s, y),
        (0.0, grid[-1]),
        state,
        method="DOP853",
        t_eval=grid,
        rtol=_RTOL,
        atol=atol,
    )
    if not solution.success:
        raise ArithmeticError(f"the scalar ODE could not be integrated: {solution.message}")
    return solution.y[:, position]

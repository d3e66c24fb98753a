"""Many runs at once: all schemes, from many starts, with matrices of their own, on torch.

`attnorm.simulate` solves one scheme to many digits. A figure with a band over random draws needs the reverse,
many runs to three or four digits. Here every pair (scheme, draw) is a system of one batch. All systems share
the matrix products of a stage; each has its own depth, its own step and its own error control, so a scheme
that is fast early does not slow the others down.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.integrate import RK23, RK45

from attnorm import validate
from attnorm.attention import check_matrices
from attnorm.dynamics import Trajectory, check_tau
from attnorm.schemes import SCHEMES, get_scheme, norm, unit

#: Pairs of Runge-Kutta formulas whose difference estimates the error, with their interpolants, from scipy.
METHODS = {"RK23": RK23, "RK45": RK45}

#: Floats of a state that are worked on together: more would leave the cache between two operations.
_CHUNK = 1 << 19


@dataclass(frozen=True)
class Ensemble:
    """Runs of S schemes from R draws, at T depths.

    Attributes
    ----------
    schemes : tuple of str
        Names of the schemes, in the order of the first axis.
    times : array (T,)
    cosine : array (S, T, R)
        Mean cosine over pairs of tokens.
    radius : array (S, T, R, n)
        Norms r_j.
    evaluations : array (S, R)
        How many times the attention of a system was computed.
    theta : array (S, T, R, n, d) or None
        Directions, where they were asked for.
    """

    schemes: tuple
    times: np.ndarray
    cosine: np.ndarray
    radius: np.ndarray
    evaluations: np.ndarray
    theta: np.ndarray | None = field(default=None, repr=False)

    def trajectory(self, scheme):
        """The runs of one scheme as `attnorm.Trajectory`: theta (T, R, n, d), radius (T, R, n)."""
        if self.theta is None:
            raise ValueError("directions were not kept: call simulate_all with keep_theta=True")
        name = get_scheme(scheme).name
        if name not in self.schemes:
            raise ValueError(f"{name} was not run; these were: {', '.join(self.schemes)}")
        at = self.schemes.index(name)
        return Trajectory(times=self.times, theta=self.theta[at], radius=self.radius[at])


def simulate_all(
    schemes,
    x0,
    times,
    *,
    beta=1.0,
    Q=None,
    K=None,
    V=None,
    causal=False,
    alpha=1.0,
    tau=None,
    rtol=1e-4,
    method="RK45",
    dtype="float32",
    keep_theta=False,
):
    """Solve the polar ODE of several schemes from R starts at once; the equations are those of `simulate`.

    Parameters
    ----------
    schemes : iterable of str or Scheme, or None
        None means all of `attnorm.SCHEMES`. Names must differ.
    x0 : array (R, n, d), or (n, d) for R = 1
        Tokens at t = 0, n >= 2, of any norm but zero.
    times : array (T,)
        Depths >= 0, strictly increasing.
    beta : float
        Inverse temperature, >= 0.
    Q, K : array (k, d) or (R, k, d), optional
        Constant in depth; None is the identity.
    V : array (d, d) or (R, d, d), optional
    causal : bool
    alpha : float or callable of t
        Step of nGPT, >= 0.
    tau : float, optional
        Depth of Mix-LN's switch, >= 0; needed where Mix-LN is among the schemes.
    rtol : float
        Error allowed in a step, in each system: root mean square over tokens of the error of a direction (a
        length) and of the relative error of a radius.
    method : {"RK45", "RK23"}
        Runge-Kutta pair: three or six evaluations a step, of order 3 or 5.
    dtype : {"float32", "float64"}
        Of the computation; results are float64. In float32 an `rtol` below 1e-6 is not met.
    keep_theta : bool
        Also return the directions, S T R n d numbers.

    Returns
    -------
    Ensemble

    Raises
    ------
    ValueError
        On bad input.
    ArithmeticError
        If a system has no solution: a radius reaches zero, or Peri-LN or nGPT meets A_j = 0.

    Examples
    --------
    >>> start = np.random.default_rng(0).standard_normal((5, 8, 16))
    >>> runs = simulate_all(["post-ln", "ngpt"], start, [0.0, 1.0, 2.0])
    >>> runs.cosine.shape, runs.radius.shape
    ((2, 3, 5), (2, 3, 5, 8))
    """
    systems = _Systems.check(schemes, x0, beta, Q, K, V, causal, alpha, tau, dtype)
    times = validate.times(times)
    rtol = validate.number("rtol", rtol, low=1e-12, high=1e-1)
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; allowed: {', '.join(METHODS)}")
    S, (R, n, d) = len(systems.schemes), systems.x0.shape
    cosine, radius = np.empty((S, R, len(times))), np.empty((S, R, len(times), n))
    theta = np.empty((S, R, len(times), n, d)) if keep_theta else None
    evaluations = np.empty((S, R), dtype=int)

    def store(system, k, state):
        s, i = divmod(system, R)
        directions = _unit(state[:, :d])
        centred = directions - directions.mean(dim=0)
        cosine[s, i, k] = 1.0 - float((centred * centred).sum()) / (n - 1)
        radius[s, i, k] = state[:, d].numpy()
        if keep_theta:
            theta[s, i, k] = directions.numpy()

    # Neighbours in this order have matrices in common.
    order = np.arange(S * R).reshape(S, R).T.ravel()
    size = max(1, _CHUNK // (n * d))
    for first in range(0, S * R, size):
        chosen = order[first : first + size]
        counts = _integrate(systems, chosen, times, METHODS[method], rtol, store)
        evaluations.ravel()[chosen] = counts
    return Ensemble(
        schemes=tuple(scheme.name for scheme in systems.schemes),
        times=times,
        cosine=cosine.swapaxes(1, 2),
        radius=radius.swapaxes(1, 2),
        evaluations=evaluations,
        theta=None if theta is None else theta.swapaxes(1, 2),
    )


@dataclass(frozen=True)
class _Systems:
    """Checked arguments. System ``s R + i`` is scheme s from start i."""

    schemes: tuple
    x0: np.ndarray
    beta: float
    M: torch.Tensor | None  # beta Q^T K, so that the logits are theta M theta^T; None is beta I
    V: torch.Tensor | None  # transposed
    hidden: torch.Tensor | None
    alpha: object
    tau: float
    dtype: torch.dtype

    @classmethod
    def check(cls, schemes, x0, beta, Q, K, V, causal, alpha, tau, dtype):
        schemes = SCHEMES if schemes is None else schemes
        if isinstance(schemes, str) or not isinstance(schemes, Iterable):
            raise ValueError(f"schemes must be an iterable of names or None; got {schemes!r}")
        schemes = tuple(get_scheme(scheme) for scheme in schemes)
        if not schemes or len({scheme.name for scheme in schemes}) < len(schemes):
            raise ValueError("schemes must be at least one, with names that differ")
        x0 = validate.tokens("x0", x0)
        x0 = x0[None] if x0.ndim == 2 else x0
        if x0.ndim != 3 or x0.shape[1] < 2:
            raise ValueError(f"x0 must have shape (R, n, d) or (n, d), with n >= 2 tokens; got {x0.shape}")
        if any(callable(matrix) for matrix in (Q, K, V)):
            raise ValueError("Q, K and V must be arrays: here they are constant in depth")
        Q, K, V = check_matrices(x0.shape, Q, K, V)
        if dtype not in ("float32", "float64"):
            raise ValueError(f"dtype must be 'float32' or 'float64'; got {dtype!r}")
        kind, n = getattr(torch, dtype), x0.shape[1]
        beta = validate.number("beta", beta, low=0.0)
        return cls(
            schemes=schemes,
            x0=x0,
            beta=beta,
            M=_folded(beta, Q, K, x0.shape, kind),
            V=None if V is None else _each(torch.tensor(V, dtype=kind).mT.contiguous(), x0.shape),
            hidden=torch.ones(n, n, dtype=torch.bool).triu(1) if causal else None,
            alpha=validate.depth_function("alpha", alpha, low=0.0),
            tau=max((check_tau(scheme, tau) for scheme in schemes if scheme.switches), default=np.inf),
            dtype=kind,
        )

    def start(self, chosen):
        """Directions and, in the last column, norms: (B, n, d + 1)."""
        x = self.x0[chosen % len(self.x0)]
        return torch.as_tensor(np.concatenate([unit(x), norm(x)], axis=-1), dtype=self.dtype)

    def field(self, chosen):
        """Right-hand side for the systems `chosen`: a function of depths (B,), late (B,) and states."""
        draws, kinds = chosen % len(self.x0), chosen // len(self.x0)
        M, V = (None if matrix is None else _rows(matrix, draws) for matrix in (self.M, self.V))
        laws = {(s, late): self.schemes[s].compiled(late) for s in set(kinds) for late in (False, True)}

        def rates(depths, late, states):
            theta = _unit(states[..., :-1])
            query = self.beta * theta if M is None else theta @ M
            logits = query @ theta.mT
            if self.hidden is not None:
                logits.masked_fill_(self.hidden, -torch.inf)
            A = torch.softmax(logits, dim=-1) @ theta
            A = A if V is None else A @ V
            rho, length = (theta * A).sum(dim=-1), torch.linalg.vector_norm(A, dim=-1)
            scalars = states[..., -1].numpy(), length.numpy(), rho.numpy()
            slowness, growth = np.empty_like(scalars[0]), np.empty_like(scalars[0])
            alpha = np.array([self.alpha(t) for t in depths])
            for (s, after), (reciprocal, radial) in laws.items():
                here = (kinds == s) & (late == after)
                if here.any():
                    law = *(x[here] for x in scalars), depths[here, None], alpha[here, None]
                    with np.errstate(divide="ignore", invalid="ignore"):
                        slowness[here], growth[here] = reciprocal(*law), radial(*law)
            out = torch.empty_like(states)
            torch.addcmul(A, theta, rho[..., None], value=-1, out=out[..., :-1])
            out[..., :-1] *= torch.from_numpy(slowness)[..., None]
            out[..., -1] = torch.from_numpy(growth)
            return out

        return rates

    def name(self, system):
        scheme, draw = divmod(int(system), len(self.x0))
        return f"{self.schemes[scheme].name}, draw {draw}"


def _folded(beta, Q, K, shape, kind):
    """beta Q^T K, (d, d) or (R, d, d), or None where both are the identity."""
    if Q is None and K is None:
        return None
    Q, K = (None if M is None else torch.tensor(M, dtype=kind) for M in (Q, K))
    M = K if Q is None else Q.mT if K is None else Q.mT @ K
    return _each((beta * M).contiguous(), shape)


def _each(matrix, shape):
    """A matrix for each draw, without copies where all have one."""
    return matrix.expand(shape[0], *matrix.shape[-2:])


def _rows(matrix, draws):
    """The matrices of some draws; one for all stays one."""
    return matrix[:1] if matrix.stride(0) == 0 else matrix[torch.as_tensor(draws)]


def _unit(x):
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def _error(difference, states):
    """Root mean square over tokens of the errors of direction and, in relative terms, of radius: (B,)."""
    direction = (difference[..., :-1] ** 2).sum(dim=-1)
    radius = (difference[..., -1] / states[..., -1]) ** 2
    return (direction + radius).mean(dim=-1).sqrt().double().numpy()


def _integrate(systems, chosen, times, pair, rtol, store):
    """Integrate the systems `chosen` in one batch, each with its own step.

    Hands every state asked for to ``store(system, index of the time, state)``; returns the evaluations of
    each system.
    """
    tables = (torch.as_tensor(table, dtype=systems.dtype) for table in (pair.A, pair.B, pair.E, pair.P))
    inner, outer, estimate, interpolant = tables
    power, end = -1.0 / (pair.error_estimator_order + 1), times[-1]
    switching = np.array([systems.schemes[c // len(systems.x0)].switches for c in chosen])
    tau = np.where(switching, systems.tau, np.inf)
    depth, late = np.zeros(len(chosen)), tau <= 0.0
    counts, asked = np.zeros(len(chosen), dtype=int), np.zeros(len(chosen), dtype=int)
    y = systems.start(chosen)
    if times[0] == 0.0:
        for b, system in enumerate(chosen):
            store(system, 0, y[b])
        asked += 1
    active = np.flatnonzero(asked < len(times))
    y, rates = y[torch.as_tensor(active)], systems.field(chosen[active])
    k = torch.empty(pair.n_stages + 1, *y.shape, dtype=systems.dtype)
    k[0] = rates(depth[active], late[active], y)
    counts[active] += 1
    step = np.full(len(chosen), np.nan)
    step[active] = rtol**-power / np.maximum(_error(k[0], y), 1.0)
    while len(active):
        stop = np.where(late[active], end, np.minimum(tau[active], end))
        h = np.minimum(step[active], stop - depth[active])
        if not (h > 1e-12 * end).all():
            stuck = active[np.argmin(h)]
            raise ArithmeticError(f"{systems.name(chosen[stuck])}: no solution beyond t = {depth[stuck]:g}")
        width = torch.as_tensor(h, dtype=systems.dtype)[:, None, None]
        for s in range(1, pair.n_stages):
            state = torch.addcmul(y, width, torch.tensordot(inner[s, :s], k[:s], 1))
            k[s] = rates(depth[active] + pair.C[s] * h, late[active], state)
        new = torch.addcmul(y, width, torch.tensordot(outer, k[:-1], 1))
        k[-1] = rates(depth[active] + h, late[active], new)
        counts[active] += pair.n_stages
        error = _error(width * torch.tensordot(estimate, k, 1), y) / rtol
        # A stage beyond the end of a solution gives NaN: the step is too long.
        error = np.where(np.isfinite(error), error, 1e9)
        taken = error <= 1.0
        for b in np.flatnonzero(taken & (new[..., -1].min(dim=1).values.numpy() <= 0)):
            where = f"near t = {depth[active[b]] + h[b]:g}"
            raise ArithmeticError(f"{systems.name(chosen[active[b]])}: a radius reached zero {where}")
        for b in np.flatnonzero(taken):
            system = active[b]
            reached = stop[b] if h[b] == stop[b] - depth[system] else depth[system] + h[b]
            while asked[system] < len(times) and times[asked[system]] <= reached:
                x = (times[asked[system]] - depth[system]) / h[b]
                powers = torch.as_tensor(x ** np.arange(1, interpolant.shape[1] + 1), dtype=systems.dtype)
                between = y[b] + width[b] * torch.tensordot(interpolant @ powers, k[:, b], 1)
                store(chosen[system], asked[system], between)
                asked[system] += 1
            depth[system] = reached
            y[b, :, :-1], y[b, :, -1] = _unit(new[b, :, :-1]), new[b, :, -1]
            k[0, b] = k[-1, b]
        step[active] = h * np.clip(0.9 * np.maximum(error, 1e-9) ** power, 0.2, 5.0)
        turned = taken & ~late[active] & (depth[active] >= tau[active])
        late[active[turned]] = True
        going = asked[active] < len(times)
        if not going.all():
            keep = torch.as_tensor(np.flatnonzero(going))
            active, turned, y, k = active[going], turned[going], y[keep], k[:, keep]
            rates = systems.field(chosen[active])
        if turned.any():  # the last slope of a step is the first of the next, unless the law has changed
            fresh, at = systems.field(chosen[active[turned]]), torch.as_tensor(np.flatnonzero(turned))
            k[0, at] = fresh(depth[active[turned]], late[active[turned]], y[at])
            counts[active[turned]] += 1
    return counts

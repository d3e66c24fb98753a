"""The interacting particles: theta_j' = (1/s_j) P_{theta_j} A_j with r_j' from the table of schemes."""

from dataclasses import dataclass

import numpy as np
from scipy.integrate import solve_ivp
from tqdm import tqdm

from attnorm import validate
from attnorm.attention import check_matrices, fused, times_matrix
from attnorm.schemes import a, get_scheme, norm, unit


@dataclass(frozen=True)
class Trajectory:
    """Tokens along the depth.

    Attributes
    ----------
    times : array (T,)
    theta : array (T, ..., n, d)
        Unit directions.
    radius : array (T, ..., n)
        Norms r_j > 0.
    """

    times: np.ndarray
    theta: np.ndarray
    radius: np.ndarray


@dataclass(frozen=True)
class _Problem:
    """Checked arguments, shared by the ODE and the layers."""

    scheme: object
    x0: np.ndarray
    beta: float
    causal: bool
    alpha: object
    tau: float | None
    matrices: tuple

    @classmethod
    def check(cls, scheme, x0, *, beta, Q, K, V, causal, alpha, tau):
        scheme = get_scheme(scheme)
        x0 = validate.tokens("x0", x0)
        at_start = [M(0.0) if callable(M) else M for M in (Q, K, V)]
        constant = check_matrices(x0.shape, *at_start)
        return cls(
            scheme=scheme,
            x0=x0,
            beta=validate.number("beta", beta, low=0.0),
            causal=bool(causal),
            alpha=validate.depth_function("alpha", alpha, low=0.0),
            tau=check_tau(scheme, tau),
            matrices=tuple(M if callable(M) else C for M, C in zip((Q, K, V), constant, strict=True)),
        )

    def at(self, t):
        """Q, K and V at depth ``t``."""
        if any(callable(M) for M in self.matrices):
            return check_matrices(self.x0.shape, *(M(t) if callable(M) else M for M in self.matrices))
        return self.matrices

    def attention(self, theta, t):
        """A_j at depth ``t``; theta (..., n, d)."""
        return fused(theta, self.beta, *self.at(t), self.causal)

    def values(self, theta, t):
        """V theta_k at depth ``t``."""
        return times_matrix(theta, self.at(t)[2])


def check_tau(scheme, tau):
    """The depth of Mix-LN's switch: required where the scheme switches, otherwise only checked."""
    if tau is None:
        if scheme.switches:
            raise ValueError(f"{scheme.name} needs tau, the depth of its switch: a number >= 0")
        return None
    return validate.number("tau", tau, low=0.0, finite=False)


def phases(scheme, tau, end):
    """The pieces of ``[0, end]`` on which one law holds: ``(start, stop, late)``."""
    pieces = [(0.0, min(tau, end), False), (tau, end, True)] if scheme.switches else [(0.0, end, False)]
    return [piece for piece in pieces if piece[0] < piece[1]]


def simulate(
    scheme,
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
    rtol=1e-8,
    progress=None,
):
    """Solve the polar ODE of a scheme from tokens ``x0`` at t = 0 (Karagodin et al. 2025, NA and Table 2).

    Integrates with an adaptive Runge-Kutta method of order 8.  Mix-LN is integrated up to ``tau`` and
    started again there, so no step crosses the switch.

    Parameters
    ----------
    scheme : str or Scheme
    x0 : array (..., n, d)
        Tokens at t = 0, of any norm but zero.  Leading dimensions are independent systems solved together.
    times : array (T,)
        Depths >= 0, strictly increasing, at which the state is returned.
    beta : float
        Inverse temperature, >= 0.
    Q, K, V : array or callable of t, optional
        Matrices (k, d), (k, d), (d, d); None is the identity.
    causal : bool
        If true, token j attends to k <= j only.
    alpha : float or callable of t
        Step of nGPT, >= 0; other schemes do not read it.
    tau : float, optional
        Depth of the switch, >= 0; needed by Mix-LN, not read by the others.
    rtol : float
        Relative tolerance of a step.
    progress : bool, optional
        Show a progress bar; by default only in a terminal.

    Returns
    -------
    Trajectory

    Raises
    ------
    ValueError
        On bad input.
    ArithmeticError
        If the ODE stops having a solution: a radius reaches zero, or Peri-LN or nGPT meets A_j = 0.

    Examples
    --------
    >>> flow = simulate("post-ln", np.eye(3), [0.0, 1.0, 2.0])
    >>> flow.theta.shape, flow.radius.shape
    ((3, 3, 3), (3, 3))
    """
    problem = _Problem.check(scheme, x0, beta=beta, Q=Q, K=K, V=V, causal=causal, alpha=alpha, tau=tau)
    times = validate.times(times)
    rtol = validate.number("rtol", rtol, low=1e-13, high=1e-2)
    shape, start = problem.x0.shape, norm(problem.x0)[..., 0]
    directions = problem.x0.size
    state = np.concatenate([unit(problem.x0).ravel(), start.ravel()])
    # Errors are relative: to 1 for a direction, to the initial norm for a radius.
    atol = rtol * 1e-2 * np.concatenate([np.ones(directions), start.ravel()])

    states = np.empty((len(times), state.size))
    states[times == 0.0] = state
    with tqdm(
        total=times[-1], disable=None if progress is None else not progress, unit="t", leave=False
    ) as bar:
        for begin, end, late in phases(problem.scheme, problem.tau, times[-1]):
            inside = (times > begin) & (times <= end)
            solution = solve_ivp(
                _state_velocity(problem, late, shape, bar),
                (begin, end),
                state,
                method="DOP853",
                t_eval=np.append(times[inside], [] if end in times[inside] else [end]),
                rtol=rtol,
                atol=atol,
                events=_ends(problem, late, shape, rtol),
            )
            if solution.status != 0:
                ends = ("a radius reached zero", "some A_j reached zero, where its direction is not defined")
                met = [
                    (at[0], reason) for at, reason in zip(solution.t_events, ends, strict=False) if len(at)
                ]
                at, reason = min(met, default=(max([begin, *solution.t]), solution.message))
                raise ArithmeticError(
                    f"{problem.scheme.name}: {reason} near t = {at:g}; no solution beyond it"
                )
            states[inside] = solution.y.T[: inside.sum()]
            state = solution.y[:, -1]

    theta = unit(states[:, :directions].reshape(len(times), *shape))
    radius = states[:, directions:].reshape(len(times), *shape[:-1])
    return Trajectory(times=times, theta=theta, radius=radius)


def velocity(scheme, x, t=0.0, *, beta=1.0, Q=None, K=None, V=None, causal=False, alpha=1.0, tau=None):
    """Right-hand side of the polar ODE at tokens ``x`` and depth ``t``: ``theta_j'`` (..., n, d) and
    ``r_j'`` (..., n).

    Other parameters and errors as in `simulate`.

    >>> turning, growth = velocity("pre-ln", np.eye(2))
    >>> growth.round(6).tolist()
    [0.731059, 0.731059]
    """
    problem = _Problem.check(scheme, x, beta=beta, Q=Q, K=K, V=V, causal=causal, alpha=alpha, tau=tau)
    t = validate.number("t", t, low=0.0)
    late = problem.scheme.switches and t > problem.tau
    turning, growth = _rates(problem, late)(t, unit(problem.x0), norm(problem.x0))
    return turning, growth[..., 0]


def _rates(problem, late):
    reciprocal_speed, radial = problem.scheme.compiled(late)

    def rates(t, theta, r):
        A = problem.attention(theta, t)
        rho = (theta * A).sum(axis=-1, keepdims=True)
        law = (r, norm(A), rho, t, problem.alpha(t))
        with np.errstate(divide="ignore", invalid="ignore"):
            turning = reciprocal_speed(*law) * (A - rho * theta)
            growth = radial(*law) * np.ones_like(r)
        if not (np.isfinite(turning).all() and np.isfinite(growth).all()):
            raise ArithmeticError(
                f"{problem.scheme.name}: the speed is not defined at t = {t:g} (is some A_j zero?)"
            )
        return turning, growth

    return rates


def _state_velocity(problem, late, shape, bar):
    rates, directions = _rates(problem, late), int(np.prod(shape))

    def state_velocity(t, state):
        bar.update(max(0.0, t - bar.n))
        theta = unit(state[:directions].reshape(shape))
        turning, growth = rates(t, theta, state[directions:].reshape(*shape[:-1], 1))
        return np.concatenate([turning.ravel(), growth.ravel()])

    return state_velocity


def _ends(problem, late, shape, rtol):
    """Events that end the flow: what the direction of motion is divided by falls to the resolution of the
    integrator. Near A_j = 0 the velocity of nGPT and Peri-LN jumps; the tokens can slide along the jump, and
    the step size with them to zero, so the flow is ended a hundred resolutions before it.
    """
    directions = int(np.prod(shape))
    start = norm(problem.x0).ravel()

    def smallest_radius(t, state):
        return (state[directions:] - rtol * start).min()

    def smallest_attention(t, state):
        theta = unit(state[:directions].reshape(shape))
        return norm(problem.attention(theta, t)).min() - 100 * rtol * norm(problem.values(theta, t)).max()

    divides_by_attention = any(law.has(a) for law in problem.scheme.laws(late))
    events = [smallest_radius] + [smallest_attention] * divides_by_attention
    for event in events:
        event.terminal = True
    return events


def run_layers(
    scheme,
    x0,
    n_layers,
    *,
    step=1.0,
    beta=1.0,
    Q=None,
    K=None,
    V=None,
    causal=False,
    alpha=1.0,
    tau=None,
    progress=None,
):
    """Apply the layer update of a scheme ``n_layers`` times; to first order in ``step`` it follows
    `simulate`.

    Layer k = 0, 1, ... acts at depth ``t = k step``; Mix-LN is a Post-LN layer where ``k step < tau``.
    Schemes that live on the sphere move directions and carry the radius unchanged.

    Parameters
    ----------
    n_layers : int
        >= 0.
    step : float
        Length of one layer in depth, > 0.
    scheme, x0, beta, Q, K, V, causal, alpha, tau, progress
        As in `simulate`.

    Returns
    -------
    Trajectory
        At the depths ``0, step, ..., n_layers step``.

    Examples
    --------
    >>> run_layers("pre-ln", np.eye(3), 2, step=0.5).times.tolist()
    [0.0, 0.5, 1.0]
    """
    problem = _Problem.check(scheme, x0, beta=beta, Q=Q, K=K, V=V, causal=causal, alpha=alpha, tau=tau)
    n_layers = validate.integer("n_layers", n_layers, low=0)
    step = validate.number("step", step, above=0.0)
    x = np.empty((n_layers + 1, *problem.x0.shape))
    x[0] = problem.x0
    for k in tqdm(
        range(n_layers), disable=None if progress is None else not progress, unit="layer", leave=False
    ):
        t = k * step
        x[k + 1] = problem.scheme.layer(
            x[k], lambda theta, t=t: problem.attention(theta, t), step, t, problem.alpha(t), problem.tau
        )
        if not np.isfinite(x[k + 1]).all():
            raise ArithmeticError(
                f"{problem.scheme.name}: layer {k} is not defined (a zero vector was normalised)"
            )
    return Trajectory(times=step * np.arange(n_layers + 1), theta=unit(x), radius=norm(x)[..., 0])

"""Post-LN beyond the reach of a plain integration: tokens that have met count as one from then on.

At a large inverse temperature clusters form within a few units of depth and then stand almost still for a
depth of order ``e^{beta (1 - gamma)}``. Inside a cluster tokens attract each other at a rate of order one,
which limits the steps of an explicit method. Here a cluster is one direction with a weight, so that the steps
can grow as the motion slows down::

    theta_a' = sum_b p_ab (theta_b - <theta_a, theta_b> theta_a),    p_ab ~ w_b e^{beta <theta_a, theta_b>}

with Q = K = V = I. Many systems are integrated together, each with its own step.
"""

from dataclasses import dataclass

import numpy as np
from scipy.integrate import RK45
from scipy.special import logsumexp
from tqdm import tqdm

from attnorm import validate
from attnorm.schemes import unit

# Dormand and Prince, order 5 with an error estimate of order 4. scipy's stepper has one step for all systems.
_NODES = [*(row[:stage] for stage, row in enumerate(RK45.A)), RK45.B]


@dataclass(frozen=True)
class Coarsening:
    """The steps of S systems; system i has taken its last one where its row stays constant.

    Attributes
    ----------
    times : array (K, S)
        Depth after each step.
    count : array (K, S)
        Clusters left.
    log_energy : array (K, S)
        log(-E) of all n tokens.
    theta : array (S, n, d)
        Directions at the end; those of met tokens agree.
    """

    times: np.ndarray
    count: np.ndarray
    log_energy: np.ndarray
    theta: np.ndarray

    def depth_of(self, clusters):
        """Depth (S,) after the first step with at most so many clusters; infinite where none had so few."""
        reached = self.count <= clusters
        first = np.take_along_axis(self.times, reached.argmax(axis=0)[None], axis=0)[0]
        return np.where(reached.any(axis=0), first, np.inf)


def coarsen(theta, beta, *, clusters=1, until=np.inf, chord=1e-4, rtol=1e-7, max_steps=20_000, progress=None):
    """Follow Post-LN until every system has become one cluster, or a few.

    Parameters
    ----------
    theta : array (S, n, d)
        Directions at depth 0 of S independent systems.
    beta : float or array (S,)
        Inverse temperature, >= 0, of each system.
    clusters : int
        A system stops after the step that leaves at most so many clusters.
    until : float
        Depth at which it stops otherwise.
    chord : float
        Tokens closer than this become one, at their weighted mean. They would meet anyway; the change to the
        others is of the order of its square.
    rtol : float
        Tolerance of a step.
    max_steps : int
        Limit on the number of steps.
    progress : bool, optional
        Show a progress bar; by default only in a terminal.

    Returns
    -------
    Coarsening

    Raises
    ------
    ValueError
        On bad input.
    ArithmeticError
        If a system has not come to its end after `max_steps` steps.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> run = coarsen(rng.standard_normal((3, 8, 3)), 4.0)
    >>> run.count[-1].tolist(), bool((run.depth_of(1) > run.depth_of(2)).all())
    ([1, 1, 1], True)
    """
    theta = unit(validate.tokens("theta", theta))
    if theta.ndim != 3:
        raise ValueError(f"theta must have shape (S, n, d); got {theta.shape}")
    systems, n, d = theta.shape
    if d < 2:
        raise ValueError("theta must have d >= 2: on a line, opposite tokens stay where they are")
    beta = validate.finite_array("beta", beta) * np.ones(systems)
    if beta.min() < 0:
        raise ValueError(f"beta must not be negative; got {beta.min():g}")
    clusters = validate.integer("clusters", clusters, low=1)
    until = validate.number("until", until, above=0.0, finite=False)
    chord = validate.number("chord", chord, above=0.0, high=0.1)
    rtol = validate.number("rtol", rtol, low=1e-12, high=1e-2)

    weight = np.ones((systems, n))  # zero: this token now stands at that of `leader`
    leader = np.tile(np.arange(n), (systems, 1))
    time, step = np.zeros(systems), np.full(systems, 1e-2)
    history = [(time.copy(), np.full(systems, n), _log_energy(theta, weight, beta))]
    place, alive = theta.copy(), np.arange(systems)
    with tqdm(
        total=systems, disable=None if progress is None else not progress, unit="run", leave=False
    ) as bar:
        for _ in range(validate.integer("max_steps", max_steps, low=1)):
            # Only the tokens that still count, in the systems that still move.
            width = int((weight[alive] > 0).sum(axis=1).max())
            kept = np.argsort(weight[alive] == 0, axis=1, kind="stable")[:, :width]
            rows = alive[:, None], kept
            moved, error = _step(place[rows], weight[rows], beta[alive], step[alive])
            size = np.abs(error).max(axis=(1, 2)) / rtol
            accepted = size <= 1
            at = alive[accepted]
            place[at[:, None], kept[accepted]] = unit(moved[accepted])
            time[at] += step[at]
            factor = np.clip(0.9 * np.maximum(size, 1e-10) ** -0.2, 0.2, 5.0)
            step[alive] *= factor
            step[alive] = np.minimum(step[alive], np.maximum(until - time[alive], 1e-300))
            _merge(place, weight, leader, at, chord)
            count = (weight > 0).sum(axis=1)
            energies = history[-1][2].copy()
            if len(at):
                energies[at] = _log_energy(place[rows][accepted], weight[rows][accepted], beta[at])
            history.append((time.copy(), count, energies))
            still = (count[alive] > clusters) & (time[alive] < until)
            bar.update(int((~still).sum()))
            alive = alive[still]
            if not len(alive):
                break
        else:
            raise ArithmeticError(f"{len(alive)} systems have not come to their end after {max_steps} steps")
    ends = np.take_along_axis(place, leader[:, :, None], axis=1)
    return Coarsening(*(np.array(part) for part in zip(*history, strict=True)), theta=ends)


def _velocity(theta, weight, beta):
    """Post-LN with weights, for states of a step that may lie off the sphere."""
    theta = unit(theta)
    cosines = theta @ np.swapaxes(theta, 1, 2)
    kernel = weight[:, None, :] * np.exp(beta[:, None, None] * (cosines - 1))
    p = kernel / kernel.sum(axis=2, keepdims=True)
    own = np.arange(theta.shape[1])
    p[:, own, own] = 0.0  # a token does not pull itself
    return p @ theta - (p * cosines).sum(axis=2, keepdims=True) * theta


def _step(theta, weight, beta, h):
    h = h[:, None, None]
    rates = []
    for nodes in _NODES:
        state = theta
        if len(nodes):
            state = theta + h * sum(c * k for c, k in zip(nodes, rates, strict=True))
        rates.append(_velocity(state, weight, beta))
    error = h * sum(c * k for c, k in zip(RK45.E, rates, strict=True))
    return state, error * (weight > 0)[:, :, None]


def _merge(place, weight, leader, systems, chord):
    """Tokens of the given systems closer than `chord` become one."""
    theta, w = place[systems], weight[systems]
    squared = 2 - 2 * theta @ np.swapaxes(theta, 1, 2)
    near = (squared < max(chord, 1e-7) ** 2) & (w[:, :, None] > 0) & (w[:, None, :] > 0)
    near &= np.tri(theta.shape[1], k=-1, dtype=bool).T
    for system, one, other in zip(*np.nonzero(near), strict=True):
        i = systems[system]
        if weight[i, one] == 0 or weight[i, other] == 0:  # met in this very step
            continue
        pair = [one, other]
        place[i, one] = unit(weight[i, pair] @ place[i, pair])
        weight[i, one] += weight[i, other]
        weight[i, other] = 0.0
        leader[i, leader[i] == other] = one


def _log_energy(theta, weight, beta):
    with np.errstate(divide="ignore"):
        logs = np.log(weight)
    cosines = theta @ np.swapaxes(theta, 1, 2)
    return logsumexp(logs[:, :, None] + logs[:, None, :] + beta[:, None, None] * cosines, axis=(1, 2))

"""The energy of the tokens as a landscape on a product of spheres: second derivatives, critical points, and
what a scheme does near one.

``E = -sum_{j,k} e^{beta <theta_j, theta_k>}`` with Q = K = V = I. Near a critical point every scheme is
``xi' = -M Hess(E) xi`` with ``M_j = 1 / (2 beta s_j Z_j) > 0`` (Karagodin et al. 2025, Theorem 3.1), so by
Sylvester's law of inertia all of them have as many unstable directions as Hess(E) has negative eigenvalues.
"""

import numpy as np

from attnorm import validate
from attnorm.schemes import unit


def tangent_frames(theta):
    """An orthonormal basis of the tangent space at each direction.

    Parameters
    ----------
    theta : array (n, d)
        Unit directions, d >= 2.

    Returns
    -------
    array (n, d, d - 1)
        Columns are orthogonal to the direction.

    Raises
    ------
    ValueError
        If there is no tangent space: d = 1, or a zero vector.

    Examples
    --------
    >>> np.abs(tangent_frames(np.eye(3))[0].T @ [1, 0, 0]).round(12).tolist()
    [0.0, 0.0]
    """
    theta = unit(validate.tokens("theta", theta))
    d = theta.shape[1]
    if d < 2:
        raise ValueError(f"directions in dimension {d} cannot turn: d must be at least 2")
    # The last d - 1 columns of the Householder matrix that maps theta to a multiple of the first axis.
    mirror = theta.copy()
    mirror[:, 0] += np.where(theta[:, 0] >= 0, 1.0, -1.0)
    square = (mirror**2).sum(axis=1)[:, None, None]
    return (np.eye(d) - 2 * mirror[:, :, None] * mirror[:, None, :] / square)[:, :, 1:]


def gradient(theta, beta):
    """First derivative of E, in the coordinates of `tangent_frames`, shape (n (d - 1),).

    >>> bool(np.abs(gradient(np.array([[0.0, 1.0], [0.0, -1.0]]), 1.0)).max() < 1e-12)
    True
    """
    theta, beta = unit(validate.tokens("theta", theta)), validate.number("beta", beta, low=0.0)
    pull = 2 * beta * np.exp(beta * theta @ theta.T) @ theta
    return -np.einsum("jdm,jd->jm", tangent_frames(theta), pull).ravel()


def hessian(theta, beta):
    """Second derivative of E along geodesics, in the coordinates of `tangent_frames`.

    Parameters
    ----------
    theta : array (n, d)
        Unit directions, d >= 2.
    beta : float
        Inverse temperature, >= 0.

    Returns
    -------
    array (n (d - 1), n (d - 1))
        Symmetric.

    Raises
    ------
    ValueError
        On bad input.

    Examples
    --------
    Two opposite tokens: turning the first towards the second lowers the energy, and so does turning both.

    >>> np.linalg.eigvalsh(hessian(np.array([[0.0, 1.0], [0.0, -1.0]]), 1.0)).round(6).tolist()
    [-1.471518, 0.0]
    """
    theta, beta = unit(validate.tokens("theta", theta)), validate.number("beta", beta, low=0.0)
    frames = tangent_frames(theta)
    n, _, m = frames.shape
    cosines = theta @ theta.T
    first = beta * np.exp(beta * cosines)  # phi'(gamma) for phi = e^{beta gamma}
    second = beta * first
    towards = np.einsum("jdm,kd->jkm", frames, theta)  # the part of theta_k tangent at theta_j
    blocks = 2 * second[:, :, None, None] * towards[:, :, :, None] * towards.transpose(1, 0, 2)[:, :, None, :]
    blocks += 2 * first[:, :, None, None] * np.einsum("jda,kdb->jkab", frames, frames)
    own = 2 * np.einsum("jk,jka,jkb->jab", second, towards, towards)
    own -= 2 * (first * cosines).sum(axis=1)[:, None, None] * np.eye(m)
    blocks[np.arange(n), np.arange(n)] += own
    return -blocks.transpose(0, 2, 1, 3).reshape(n * m, n * m)


def linearised(theta, beta, speed=1.0):
    """The matrix ``-M Hess(E)`` of a scheme near a critical point, in the coordinates of `tangent_frames`.

    Parameters
    ----------
    theta : array (n, d)
        A critical point.
    beta : float
        Inverse temperature, > 0.
    speed : float or array (n,)
        Speed factors s_j > 0 at the point; their own variation does not matter there.

    Returns
    -------
    array (n (d - 1), n (d - 1))

    Examples
    --------
    >>> pair = np.array([[0.0, 1.0], [0.0, -1.0]])
    >>> rate = np.linalg.eigvals(linearised(pair, 1.0)).real.max()
    >>> bool(np.isclose(rate, 2 / (np.exp(2) + 1)))
    True
    """
    theta, beta = unit(validate.tokens("theta", theta)), validate.number("beta", beta, above=0.0)
    speed = validate.finite_array("speed", speed) * np.ones(len(theta))
    if not (speed > 0).all():
        raise ValueError(f"speed factors must be positive; got {speed.min():g}")
    Z = np.exp(beta * theta @ theta.T).sum(axis=1)
    mobility = np.repeat(1 / (2 * beta * speed * Z), theta.shape[1] - 1)
    return -mobility[:, None] * hessian(theta, beta)


def critical_points(rng, n, d, beta, starts, *, apart=1e-3):
    """Critical points of the energy that are not synchronised, found from random directions.

    Levenberg and Marquardt's method on the gradient; it goes to a zero near the start, a saddle as readily as
    a minimum.

    Parameters
    ----------
    rng : numpy.random.Generator
    n, d : int
        Number of tokens and dimension, both >= 2.
    beta : float
        Inverse temperature, > 0.
    starts : int
        Number of random starts.
    apart : float
        Points whose tokens all lie within this chord count as synchronised and are left out.

    Returns
    -------
    array (m, n, d)
        With m <= starts; some may be the same up to rotation.

    Raises
    ------
    ValueError
        On bad input.

    Examples
    --------
    >>> points = critical_points(np.random.default_rng(0), 2, 3, 1.0, 5)
    >>> bool(np.allclose(points[:, 0], -points[:, 1], atol=1e-6))
    True
    """
    n, d = validate.integer("n", n, low=2), validate.integer("d", d, low=2)
    beta = validate.number("beta", beta, above=0.0)

    found = []
    for _ in range(validate.integer("starts", starts, low=1)):
        theta, slope = _nearest_critical_point(unit(rng.standard_normal((n, d))), beta)
        spread = np.linalg.norm(theta[:, None] - theta[None], axis=-1).max()
        if slope < 1e-11 and spread > apart:
            found.append(theta)
    return np.array(found).reshape(-1, n, d)


def _nearest_critical_point(theta, beta, steps=200):
    """A zero of the gradient, and what is left of the gradient relative to its largest term."""
    scale, damping = 2 * beta * np.exp(beta), 1e-2

    def moved(xi):
        return unit(theta + (tangent_frames(theta) @ xi.reshape(len(theta), -1, 1))[..., 0])

    slope = gradient(theta, beta) / scale
    for _ in range(steps):
        H = hessian(theta, beta) / scale
        trial = moved(-np.linalg.solve(H @ H + damping**2 * np.eye(len(H)), H @ slope))
        new = gradient(trial, beta) / scale
        if np.linalg.norm(new) < np.linalg.norm(slope):
            theta, slope, damping = trial, new, max(damping / 3, 1e-9)
        else:
            damping *= 4
        if np.linalg.norm(slope) < 1e-15 or damping > 1e6:
            break
    return theta, np.linalg.norm(slope)

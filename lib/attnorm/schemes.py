"""The normalisation schemes, each written once.

Tokens are ``x_j = r_j theta_j`` with ``r_j > 0`` and ``|theta_j| = 1``.  A scheme is a *speed regulation
factor* ``s_j``, a radial rate ``r_j'`` and the layer update that both come from::

    theta_j' = (1 / s_j) P_{theta_j} A_j,        P_theta v = v - <theta, v> theta

The derivation in chapter 1, the table on the page, `attnorm.simulate`, `attnorm.run_layers` and
`attnorm.equiangular` all read the objects of this module, so a formula cannot be right in one place and
wrong in another.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import sympy as sp

# r = |x_j|,  a = |A_j|,  rho = <theta_j, A_j>   (Karagodin et al. 2025, Table 2); t is depth, alpha the
# step of nGPT
r, a, t, alpha = sp.symbols("r a t alpha", positive=True)
rho = sp.symbols("rho", real=True)
tau = sp.symbols("tau", nonnegative=True)


def norm(x):
    """Euclidean norm of each row of an array ``(..., d)``, shape ``(..., 1)``, or of a sympy column
    vector."""
    if isinstance(x, sp.MatrixBase):
        return sp.sqrt(x.dot(x))
    return np.linalg.norm(x, axis=-1, keepdims=True)


def unit(x):
    """N(x) = x / |x|, row by row; for arrays ``(..., d)`` and sympy column vectors."""
    return x / norm(x)


def root(x):
    """Square root of a number or of a sympy expression."""
    return sp.sqrt(x) if isinstance(x, sp.Basic) else np.sqrt(x)


@dataclass(frozen=True)
class Scheme:
    """One normalisation scheme.

    Attributes
    ----------
    name, title : str
        Key in `SCHEMES` and name in the text.
    speed, radial : sympy.Expr
        ``s_j`` and ``r_j'`` in the symbols ``r, a, rho, t, tau, alpha`` of this module.
    layer : callable
        ``layer(x, A, h, t, alpha, tau)``, the update of one layer of step ``h`` at depth ``t``.  ``A`` maps
        directions to attention vectors.  Works on arrays ``(..., n, d)`` and, for one token, on sympy
        column vectors.
    source : str
        Where the scheme was introduced.
    """

    name: str
    title: str
    speed: sp.Expr
    radial: sp.Expr
    layer: Callable
    source: str

    @property
    def switches(self):
        """Whether the law changes at depth ``tau`` (Mix-LN)."""
        return (self.speed + self.radial).has(tau)

    @property
    def moves_radius(self):
        """Whether ``r_j`` changes at any depth."""
        return self.radial != 0

    def laws(self, late):
        """``(s_j, r_j')`` before (``late=False``) or after (``late=True``) the switch at ``tau``."""
        phase = {t <= tau: sp.false if late else sp.true}
        return self.speed.subs(phase), self.radial.subs(phase)

    def compiled(self, late=False):
        """Vectorised numpy functions ``(1/s_j, r_j')`` of ``(r, a, rho, t, alpha)``, compiled from the
        expressions.

        The reciprocal is compiled, so nGPT with ``alpha = 0`` stands still instead of dividing by zero.
        """
        speed, radial = self.laws(late)
        return tuple(sp.lambdify((r, a, rho, t, alpha), law, "numpy") for law in (1 / speed, radial))


POST_LN = Scheme(
    name="post-ln",
    title="Post-LN",
    speed=sp.Integer(1),
    radial=sp.Integer(0),
    layer=lambda x, A, h, t, alpha, tau: norm(x) * unit(unit(x) + h * A(unit(x))),
    source="Vaswani et al. 2017, arXiv 1706.03762",
)

PRE_LN = Scheme(
    name="pre-ln",
    title="Pre-LN",
    speed=r,
    radial=rho,
    layer=lambda x, A, h, t, alpha, tau: x + h * A(unit(x)),
    source="Xiong et al. 2020, arXiv 2002.04745",
)

MIX_LN = Scheme(
    name="mix-ln",
    title="Mix-LN",
    speed=sp.Piecewise((POST_LN.speed, t <= tau), (PRE_LN.speed, True)),
    radial=sp.Piecewise((POST_LN.radial, t <= tau), (PRE_LN.radial, True)),
    layer=lambda x, A, h, t, alpha, tau: (POST_LN if t < tau else PRE_LN).layer(x, A, h, t, alpha, tau),
    source="Li et al. 2025, arXiv 2412.13795",
)

PERI_LN = Scheme(
    name="peri-ln",
    title="Peri-LN",
    speed=r * a,
    radial=rho / a,
    layer=lambda x, A, h, t, alpha, tau: x + h * unit(A(unit(x))),
    source="Kim et al. 2025, arXiv 2502.02732",
)

NGPT = Scheme(
    name="ngpt",
    title="nGPT",
    speed=a / alpha,
    radial=sp.Integer(0),
    layer=lambda x, A, h, t, alpha, tau: (
        norm(x) * unit((1 - h * alpha) * unit(x) + h * alpha * unit(A(unit(x))))
    ),
    source="Loshchilov et al. 2025, arXiv 2410.01131",
)

SQRT_SCALING = Scheme(
    name="sqrt-scaling",
    title="sqrt-scaling",
    speed=sp.sqrt(t + 1),
    radial=sp.Integer(0),
    layer=lambda x, A, h, t, alpha, tau: norm(x) * unit(unit(x) + h * A(unit(x)) / root(t + 1)),
    source="Noci et al. 2022, arXiv 2206.03126",
)

SCHEMES = {scheme.name: scheme for scheme in (POST_LN, PRE_LN, MIX_LN, PERI_LN, NGPT, SQRT_SCALING)}


def get_scheme(scheme):
    """The `Scheme` of that name; a `Scheme` (a control with a wrong law, say) is returned as it is.

    Raises
    ------
    ValueError
        If the name is not a key of `SCHEMES`.
    """
    if isinstance(scheme, Scheme):
        return scheme
    if scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}; allowed: {', '.join(SCHEMES)}")
    return SCHEMES[scheme]

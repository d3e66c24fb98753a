import numpy as np
import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st

from attnorm import SCHEMES
from attnorm.schemes import alpha, get_scheme, norm, r, t, tau, unit

# Table 2 of Karagodin et al. 2025, typed here a second time: s_j and r_j' at numbers (r, a, rho, t, alpha),
# t > tau.
TABLE = {
    "post-ln": lambda r, a, rho, t, alpha: (1.0, 0.0),
    "pre-ln": lambda r, a, rho, t, alpha: (r, rho),
    "mix-ln": lambda r, a, rho, t, alpha: (r, rho),
    "peri-ln": lambda r, a, rho, t, alpha: (r * a, rho / a),
    "ngpt": lambda r, a, rho, t, alpha: (a / alpha, 0.0),
    "sqrt-scaling": lambda r, a, rho, t, alpha: (np.sqrt(t + 1), 0.0),
}
positive = st.floats(0.01, 100.0)


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
@given(values=st.tuples(positive, positive, st.floats(-1, 1), positive, positive))
def test_compiled_laws_are_the_printed_table(scheme, values):
    radius, a, cosine, depth, step = values
    values = (radius, a, cosine * a, depth, step)
    reciprocal_speed, radial = SCHEMES[scheme].compiled(late=True)
    speed_printed, radial_printed = TABLE[scheme](*values)
    np.testing.assert_allclose(1 / reciprocal_speed(*values), speed_printed, rtol=1e-13)
    np.testing.assert_allclose(radial(*values), radial_printed, rtol=1e-13)


def test_the_six_keys_are_there():
    assert {"post-ln", "pre-ln", "mix-ln", "peri-ln", "ngpt", "sqrt-scaling"} <= SCHEMES.keys()
    assert all(key == scheme.name for key, scheme in SCHEMES.items())


def test_mix_ln_is_post_ln_up_to_and_including_tau():
    mix = SCHEMES["mix-ln"]
    assert mix.laws(late=False) == (1, 0)
    assert mix.speed.subs({t: 2, tau: 2}) == 1
    assert mix.speed.subs({t: 3, tau: 2}) == r
    assert [scheme.name for scheme in SCHEMES.values() if scheme.switches] == ["mix-ln"]


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_the_layer_has_the_speed_and_the_radial_rate_of_its_ode(scheme):
    """d/dh of the exact layer at h = 0, in the plane of theta and A."""
    scheme = SCHEMES[scheme]
    h, a, angle = sp.symbols("h a angle", positive=True)
    x, A = sp.Matrix([r, 0]), a * sp.Matrix([sp.cos(angle), sp.sin(angle)])
    for late in (False, True):
        depth, switch = (sp.Integer(5), 0) if late else (sp.Integer(0), 1)
        moved = scheme.layer(x, lambda theta: A, h, depth, alpha, switch)
        law = {"a": a, "rho": a * sp.cos(angle), "t": depth}
        law = {
            symbol: law[symbol.name]
            for symbol in (sp.Symbol("a", positive=True), sp.Symbol("rho", real=True), t)
        }
        speed, radial = (sp.sympify(e).subs(law) for e in scheme.laws(late))
        assert sp.simplify(sp.diff(norm(moved), h).subs(h, 0) - radial) == 0
        assert sp.simplify(sp.diff(unit(moved)[1], h).subs(h, 0) - A[1] / speed) == 0


def test_an_unknown_scheme_is_named():
    with pytest.raises(ValueError, match="unknown scheme 'rms'; allowed: post-ln, pre-ln"):
        get_scheme("rms")

"""Claims: evidence passes only when it holds, and a broken computation is never evidence."""

import json
import math

import numpy as np
import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st

from attnorm.claims import ClaimFailed, Registry, claims, example
from attnorm.evidence import Evidence, slug
from attnorm.identities import examine
from attnorm.statements import Statement, read_statements

x, y = sp.symbols("x y", real=True)
p = sp.symbols("p", positive=True)
z = sp.Symbol("z")
n = sp.symbols("n", integer=True, positive=True)


@pytest.fixture
def claim():
    return example()


# --- derives ---


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((x + 1) ** 2, x**2 + 2 * x + 1),
        (sp.sin(x) ** 2 + sp.cos(x) ** 2, 1),
        (sp.log(p**2 * 3), 2 * sp.log(p) + sp.log(3)),
        (sp.exp(x + y) / sp.exp(y), sp.exp(x)),
        ((p**2 - 1) / (p - 1), p + 1),
        (sp.sqrt(p**2 + 2 * p + 1), p + 1),
        (sp.cosh(x), (sp.exp(x) + sp.exp(-x)) / 2),
        (sp.factorial(n + 1) / sp.factorial(n), n + 1),
        (sp.Piecewise((p, p <= 1), (1, True)), sp.Min(p, 1).rewrite(sp.Piecewise)),
        (sp.diff(sp.Integral(sp.exp(-(z**2)), (z, 0, x)), x), sp.exp(-(x**2))),
        (sp.Integral(z, (z, 0, x)), x**2 / 2),
        (sp.Matrix([x, sp.sin(x) ** 2]), sp.Matrix([x, 1 - sp.cos(x) ** 2])),
        ((x + x, [y, y * y]), (2 * x, [y, y**2])),
        (sp.S(2) + 2, 4),
    ],
    ids=str,
)
def test_a_true_identity_passes(claim, left, right):
    claim.derives(left, right, name="identity")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((x + 1) ** 2, x**2 + 1),
        (sp.sin(x) ** 2 - sp.cos(x) ** 2, 1),
        (sp.sqrt(x**2), x),
        (sp.log(sp.exp(z)), z),
        (sp.Piecewise((p, p <= 1), (1, True)), p),
        (sp.Matrix([x, y]), sp.Matrix([x, y + sp.Rational(1, 10**12)])),
        ((x, y), (y, x)),
        (x * (1 + sp.Rational(1, 10**15)), x),
        (sp.Integral(z, (z, 0, x)), x**2),
        (sp.zoo, x),
    ],
    ids=str,
)
def test_a_wrong_identity_is_refused(claim, left, right):
    with pytest.raises(ClaimFailed):
        claim.derives(left, right, name="identity")


def test_an_identity_true_only_under_an_assumption_needs_it(claim):
    with pytest.raises(ClaimFailed):
        claim.derives(sp.sqrt(x**2), x, name="without")
    claim.derives(sp.sqrt(x**2), x, name="with", assume=x > 0)
    claim.derives(sp.sqrt(x**2), -x, name="with predicate", assume=sp.Q.negative(x))


def test_an_assumption_between_symbols_restricts_the_random_points(claim):
    larger = sp.Piecewise((x, x > y), (y, True))
    with pytest.raises(ClaimFailed):
        claim.derives(larger, x, name="without")
    found = examine(larger, x, assume=x > y)
    assert not found.refuted


def test_an_identity_that_sympy_cannot_reduce_is_not_a_pass(claim):
    # True at every integer, and out of reach of the simplifier.
    parity = sp.floor(n / 2) + sp.floor((n + 1) / 2)
    assert not examine(parity, n).refuted
    with pytest.raises(ClaimFailed, match="sympy leaves the difference"):
        claim.derives(parity, n, name="parity")


def test_a_simplifier_that_never_comes_back_is_stopped_and_is_not_a_pass(claim, monkeypatch):
    def endless(_):
        while True:
            sp.sqrt(2)

    monkeypatch.setattr("attnorm.zero._LADDER", (endless,))
    monkeypatch.setattr("attnorm.zero._PATIENCE", 0.2)
    with pytest.raises(ClaimFailed, match="sympy leaves the difference"):
        claim.derives(2 * x, x + x + sp.Integral(0, (z, 0, 1)), name="endless")


def test_an_error_that_simplification_would_hide_is_found_at_random_points(claim, monkeypatch):
    monkeypatch.setattr("attnorm.zero._LADDER", (lambda d: sp.S.Zero,))
    with pytest.raises(ClaimFailed, match="against"):
        claim.derives(x, x + 1, name="a simplifier gone wrong")


def test_random_points_respect_integers_and_ranges():
    assert examine(sp.cos(2 * sp.pi * n), 1).holds
    narrow = sp.Piecewise((x, sp.And(x > 5, x < 6)), (0, True))
    assert not examine(narrow, x, at={x: (5, 6)}).refuted
    assert examine(narrow, x).refuted


def test_a_refutation_names_the_point_and_both_values():
    found = examine(x + 1, x, at={x: (2, 3)})
    assert "x = 2." in found.detail
    assert "against" in found.detail


def test_undefined_functions_and_their_derivatives_are_compared():
    f = sp.Function("f")
    assert examine(sp.diff(f(x) ** 2, x), 2 * f(x) * f(x).diff(x)).holds
    assert examine(sp.diff(f(x) ** 2, x), f(x) * f(x).diff(x)).refuted


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (sp.Matrix([1, 2]), sp.Matrix([1]), "shapes"),
        ((x, y), (x,), "shapes"),
        ((), (), "empty"),
        (0.5 * x, x / 2, "exact"),
        (sp.Symbol("q"), sp.Symbol("q", positive=True), "share the names"),
    ],
    ids=str,
)
def test_sides_that_cannot_be_compared_are_an_error(claim, left, right, message):
    with pytest.raises(ValueError, match=message):
        claim.derives(left, right, name="identity")


def test_a_range_for_a_symbol_that_does_not_occur_is_an_error():
    with pytest.raises(ValueError, match="occur in neither side"):
        examine(x, x, at={y: (0, 1)})


# --- checks, rejects, bounds, violates, measures ---


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("verb", ["checks", "rejects"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_value_that_is_not_finite_is_never_a_pass(claim, bad, verb, side):
    arguments = [1.0, 1.0]
    arguments[side] = bad
    with pytest.raises(ClaimFailed, match="not finite"):
        getattr(claim, verb)(*arguments, atol=1.0, name="broken")


@pytest.mark.parametrize("verb", ["bounds", "violates"])
@pytest.mark.parametrize(("value", "upper"), [(math.nan, 1.0), (math.inf, 1.0), (2.0, math.nan)])
def test_a_bound_on_a_value_that_is_not_finite_is_never_a_pass(claim, verb, value, upper):
    with pytest.raises(ClaimFailed, match="not finite"):
        getattr(claim, verb)(value, upper=upper, name="broken")


@pytest.mark.parametrize("verb", ["checks", "rejects"])
@pytest.mark.parametrize(
    ("measured", "expected"),
    [(np.ones(3), np.ones((3, 1))), (np.ones(3), np.ones(2)), (1.0, np.ones(3)), ([], []), ([], 1.0)],
)
def test_a_wrong_shape_is_never_a_pass(claim, verb, measured, expected):
    with pytest.raises(ClaimFailed):
        getattr(claim, verb)(measured, expected, atol=10, name="shape")


numbers = st.floats(-1e6, 1e6)
tolerances = st.floats(0, 1e3)


@given(measured=st.lists(numbers, min_size=1, max_size=4), expected=numbers, atol=tolerances, rtol=tolerances)
def test_a_control_passes_exactly_when_the_check_fails(measured, expected, atol, rtol):
    outcomes = []
    for verb in ("checks", "rejects"):
        try:
            getattr(example(), verb)(measured, expected, atol=atol, rtol=rtol, name="pair")
            outcomes.append(True)
        except ClaimFailed:
            outcomes.append(False)
    assert outcomes[0] is not outcomes[1]


@given(measured=st.lists(numbers, min_size=1, max_size=4), lower=numbers, upper=numbers)
def test_a_bound_is_violated_exactly_when_it_does_not_hold(measured, lower, upper):
    outcomes = []
    for verb in ("bounds", "violates"):
        try:
            getattr(example(), verb)(measured, lower=lower, upper=upper, name="pair")
            outcomes.append(True)
        except ClaimFailed:
            outcomes.append(False)
    assert outcomes == [
        all(lower <= m <= upper for m in measured),
        any(not lower <= m <= upper for m in measured),
    ]


def test_tolerance_zero_asks_for_equality(claim):
    claim.checks(3, 3, name="equal")
    with pytest.raises(ClaimFailed):
        claim.checks(3, np.nextafter(3.0, 4), name="one bit apart")


@pytest.mark.parametrize("tolerance", [-1.0, math.nan, math.inf])
def test_a_tolerance_that_could_pass_anything_is_refused(claim, tolerance):
    with pytest.raises(ValueError, match="atol"):
        claim.checks(1, 2, atol=tolerance, name="tolerance")


def test_complex_numbers_and_text_are_refused(claim):
    with pytest.raises(TypeError, match="real"):
        claim.checks(1 + 2j, 1, name="complex")
    with pytest.raises(TypeError, match="number"):
        claim.checks("one", 1, name="text")


def recorded(capture, verb, *args, **kwargs):
    """The evidence that a verb shows, caught before it is printed."""
    claim = Registry([statement()])["X1"]
    getattr(claim, verb)(*args, **kwargs)
    return capture.pop()


@pytest.fixture
def shown(monkeypatch):
    seen = []
    monkeypatch.setattr(Evidence, "show", lambda self, publish=True: seen.append(self))
    return seen


def test_the_entry_with_the_largest_deviation_relative_to_its_tolerance_is_stored(shown):
    # Entry 0 deviates more, entry 1 is closer to its tolerance.
    evidence = recorded(shown, "checks", [101.0, 1.05], [100.0, 1.0], rtol=0.06, name="entries")
    assert (evidence.measured, evidence.expected, evidence.tolerance) == (1.05, 1.0, 0.06)
    assert "(2,)" in evidence.detail


@pytest.mark.parametrize(
    ("verb", "args", "kwargs", "kind"),
    [
        ("derives", (x, x), {}, "symbolic"),
        ("checks", (np.float32(1), 1), {}, "numeric"),
        ("rejects", (1, 2), {}, "control"),
        ("rejects", (x, x + 1), {}, "control"),
        ("bounds", ([1, 2],), {"lower": 0, "upper": 3}, "numeric"),
        ("violates", (5,), {"upper": 3}, "control"),
        ("measures", (np.int64(5),), {"model": "smollm2-135m", "text": "bible", "unit": "tokens"}, "model"),
    ],
)
def test_records_are_plain_json_of_the_right_kind(shown, verb, args, kwargs, kind):
    record = recorded(shown, verb, *args, name="β = 2", **kwargs).record()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert (record["kind"], record["passed"], record["anchor"]) == (kind, True, "evidence-X1-2")
    assert all(value is None or type(value) in (str, float, bool) for value in record.values())


def test_a_failed_check_is_shown_before_it_raises(shown):
    with pytest.raises(ClaimFailed):
        Registry([statement()])["X1"].checks(math.nan, 1, name="broken")
    assert [evidence.passed for evidence in shown] == [False]


def test_a_symbolic_control_needs_a_point_where_the_sides_differ(claim):
    claim.rejects(2 * x, x, name="factor two")
    with pytest.raises(ClaimFailed):
        claim.rejects(sp.sin(x) ** 2, 1 - sp.cos(x) ** 2, name="a true identity in disguise")


def test_measures_takes_one_finite_number(claim):
    with pytest.raises(ValueError, match="one number"):
        claim.measures([1, 2], name="two", model="m")
    with pytest.raises(ClaimFailed):
        claim.measures(math.nan, name="nan", model="m")


def test_the_line_does_not_rely_on_colour_and_escapes_names(shown):
    line = recorded(shown, "checks", 1, 1, name="a < b").html()
    assert all(part in line for part in ("passed", "✓", "a &lt; b", 'id="evidence-X1-a-b"'))


@pytest.mark.parametrize(
    ("verb", "sides", "told"),
    [
        ("derives", (x + x, 2 * x), "2*x = 2*x; simplified"),
        ("rejects", (x, 2 * x), "x ≠ 2*x; differs, as it must"),
        ("derives", ((x + 1) ** 40, sp.expand((x + 1) ** 40)), "simplified to zero"),
        ("bounds", (0.123456789,), "measured 0.123457, expected <= 1"),
    ],
)
def test_the_line_says_what_was_compared_in_a_few_words(shown, verb, sides, told):
    bounds = {"upper": 1.0} if verb == "bounds" else {}
    evidence = recorded(shown, verb, *sides, name="line", **bounds)
    assert evidence.finding().startswith(told)
    assert len(evidence.finding()) < 160


def test_a_failed_identity_is_not_shown_as_an_equation(shown):
    with pytest.raises(ClaimFailed):
        Registry([statement()])["X1"].derives(x, 2 * x, name="wrong")
    assert shown[0].finding().startswith("x ≟ 2*x; ")


def test_outside_a_kernel_the_line_goes_to_standard_output(claim, capsys):
    claim.checks(1, 1, name="one")
    assert capsys.readouterr().out == "✓ passed [example] check one: measured 1, expected 1, tolerance 0\n"


# --- names and re-runs ---


def test_a_name_is_used_once_per_claim(claim):
    claim.checks(1, 1, name="same name")
    with pytest.raises(ValueError, match="unique"):
        claim.checks(1, 1, name="Same: name!")  # gives the same HTML id


def test_running_a_cell_again_is_harmless_and_a_second_cell_is_not(claim, monkeypatch):
    def run(execution, cell):
        monkeypatch.setattr("attnorm.kernel.current_run", lambda: (execution, cell))
        claim.checks(1, 1, name="same")

    run("first", "cell A")
    run("second", "cell A")
    with pytest.raises(ValueError, match="unique"):
        run("third", "cell B")
    claim.registry.forget()
    run("fourth", "cell B")


def test_a_loop_that_repeats_a_name_in_one_run_is_an_error(claim, monkeypatch):
    monkeypatch.setattr("attnorm.kernel.current_run", lambda: ("first", "cell A"))
    claim.checks(1, 1, name="same")
    with pytest.raises(ValueError, match="unique"):
        claim.checks(2, 2, name="same")


def test_one_registry_does_not_see_the_names_of_another():
    example().checks(1, 1, name="same")
    example().checks(1, 1, name="same")


def test_a_name_without_letters_or_digits_is_refused():
    with pytest.raises(ValueError, match="letter"):
        slug("βγ")


# --- statements ---


def statement(**changes):
    entry = {
        "id": "X1",
        "paper": "this book",
        "label": "",
        "title": "An example",
        "printed": "x = x",
        "verdict": "holds",
        "theorem": False,
        "chapter": "chapters/example",
    }
    return Statement(**(entry | changes))


def test_an_unknown_claim_names_near_matches():
    with pytest.raises(KeyError, match=r"T4\.1-pre-ln-terminal"):
        claims["T4.1-preln-terminal"]


@pytest.mark.parametrize(
    "changes", [{"verdict": "proved"}, {"verdict": "corrected"}, {"corrected": "y"}, {"theorem": "yes"}]
)
def test_a_statement_that_contradicts_itself_is_refused(changes):
    with pytest.raises(ValueError, match="X1"):
        statement(**changes)


ENTRY = """
[papers."this book"]
title = "Own results"
key = ""
[[claim]]
id = "X1"
paper = "this book"
label = ""
title = "t"
printed = "x"
verdict = "holds"
theorem = false
chapter = "c"
"""


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (ENTRY + 'colour = "red"', "unknown keys"),
        (ENTRY.replace('title = "t"\n', ""), "not complete"),
        (ENTRY.replace('paper = "this', 'paper = "that'), "is not one of"),
        (ENTRY + ENTRY[ENTRY.index("[[claim]]") :], "twice"),
    ],
)
def test_a_faulty_entry_is_refused_with_its_fault(toml, message):
    with pytest.raises(ValueError, match=message):
        read_statements(toml)


def test_all_twelve_cells_of_theorem_4_1_are_declared():
    schemes = ("post-ln", "pre-ln", "mix-ln", "peri-ln", "ngpt", "sqrt-scaling")
    assert {f"T4.1-{scheme}-{end}" for scheme in schemes for end in ("initial", "terminal")} <= set(claims)


def test_every_declared_formula_has_balanced_braces():
    for claim in claims.values():
        for formula in (claim.statement.printed, claim.statement.corrected):
            assert formula.count("{") == formula.count("}"), claim.statement.id


def test_a_measurement_names_its_model():
    with pytest.raises(ValueError, match="needs the name of the model"):
        example().measures(1.0, name="share", model="")

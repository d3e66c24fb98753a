"""The list of wrong formulas fits the library as it is, and the runner tells a caught one from a survivor."""

import pytest

from mutants import ROOT, Mutant, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=str)
def test_each_mutant_changes_one_place_of_the_library(mutant):
    assert mutant.source() != (ROOT / "lib" / "attnorm" / f"{mutant.module}.py").read_text(encoding="utf-8")


def test_the_tests_of_each_mutant_are_files_of_this_folder():
    # A file of lib would be run as it is, not as it was changed.
    named = {test for mutant in mutants() for test in mutant.tests}
    assert [test for test in named if not (test.startswith("tests/") and (ROOT / test).is_file())] == []


@pytest.mark.slow
def test_a_wrong_formula_is_caught_and_a_harmless_change_survives():
    tests = ("tests/test_measures.py",)
    wrong = Mutant("measures", "return 2.0 * np.arctan2(", "return np.arctan2(", tests)
    harmless = Mutant("measures", "return 2.0 * np.arctan2(", "return 1.0 * 2.0 * np.arctan2(", tests)
    assert not wrong.survives()
    assert harmless.survives()


def test_a_change_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="occurs 0 times"):
        Mutant("radial", "no such line", "", ()).source()

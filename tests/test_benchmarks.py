"""The benchmarks without their peers: they start, and what they compare the book with computes the same."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import capacity, capture, common, dynamics, loops  # noqa: E402

from attnorm import algorithms  # noqa: E402
from attnorm.heads import each_layer  # noqa: E402
from tiny_models import tiny  # noqa: E402

SCRIPTS = {"dynamics": dynamics, "capacity": capacity, "capture": capture}
LENGTH = 18


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_needs_no_peer(name):
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "--small" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("name", SCRIPTS)
def test_options_common_to_all(name, tmp_path):
    chosen = SCRIPTS[name].options(
        ["--small", "--repeats", "2", "--threads", "1", "--json", f"{tmp_path}/a.json"]
    )
    assert (chosen.small, chosen.repeats, chosen.threads) == (True, 2, 1)
    assert chosen.json == tmp_path / "a.json"
    with pytest.raises(SystemExit):
        SCRIPTS[name].options(["--no-such-option"])


@pytest.fixture(scope="module")
def model():
    return tiny("gpt2", dtype=torch.float64)


@pytest.fixture(scope="module")
def window():
    return torch.randint(0, 256, (1, LENGTH), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def heads(model, window):
    """Weights and values of the heads of all layers, as the loops take them."""
    layers = each_layer(model, window[0], lambda layer: (layer.weights.numpy(), layer.value.numpy()))
    return [(a, x) for weights, values in layers for a, x in zip(weights, values, strict=True)]


def by_head(array):
    """(N, layers, heads, lengths) to (heads of all layers, N or lengths), one of which is one."""
    kept = np.moveaxis(array, 0, -2)
    return kept.reshape(kept.shape[0] * kept.shape[1], -1)


def means(found):
    return np.stack([by_head(part) for part in (found.distance, found.bound, found.printed)])


def test_loops_of_algorithm_1_find_what_the_book_finds(model, window, heads):
    ours = means(algorithms.algorithm_1(model, window, lengths=(4, 9, LENGTH), top_n=5))
    theirs = loops.algorithm_1(heads, (4, 9, LENGTH), 5)
    assert np.isnan(theirs[:, :, 0]).all()  # no row of four tokens leaves one of five out
    assert capacity.difference(ours, theirs) < 1e-9


def test_loops_of_algorithm_2_find_what_the_book_finds(model, window, heads):
    ours = means(algorithms.algorithm_2(model, window, top_ns=(1, 7)))
    assert capacity.difference(ours, loops.algorithm_2(heads, LENGTH, (1, 7))) < 1e-9


def test_loops_of_algorithm_3_find_what_the_book_finds(model, window, heads):
    found = algorithms.algorithm_3(
        model, window, lengths=(12, LENGTH), levels=(capacity.LEVEL,), formulas=("printed",)
    )
    assert capacity.difference(found.first[0, 0], loops.algorithm_3(heads, (12, LENGTH), capacity.LEVEL)) == 0


def test_loops_of_algorithm_4_find_what_the_book_finds(model, window, heads):
    share = algorithms.algorithm_4(model, window, top_ns=(1, 4)).share
    assert capacity.difference(share.reshape(2, -1).T, loops.algorithm_4(heads, LENGTH, (1, 4))) < 1e-12


def test_loops_of_algorithm_5_find_what_the_book_finds(model, window):
    layer = each_layer(model, window[0], lambda layer: layer)[0]
    logits = (layer.query @ layer.key.mT / layer.query.shape[-1] ** 0.5).numpy()
    found = algorithms.algorithm_5(model, window, temperatures=(0.2, 1.0), steps=(1e-3, 10.0), seed=0)
    theirs = loops.algorithm_5(logits, (0.2, 1.0), (1e-3, 10.0), np.random.default_rng(0))
    assert capacity.difference(found.gradient[:, :, 0], theirs) < 1e-7


def test_differences_are_noticed():
    assert capacity.difference([1.0, np.nan], [1.0, np.nan]) == 0
    assert capacity.difference([1.0, 2.0], [1.0, 2.02]) == pytest.approx(0.01, rel=0.02)
    assert capacity.difference([1.0, np.nan], [1.0, 2.0]) == np.inf
    assert capacity.difference([1.0], [1.0, 1.0]) == np.inf


class Here:
    """A competitor in this process."""

    def __init__(self, subject):
        self.subject = subject

    def ask(self, method, *arguments):
        return common.Run(getattr(self.subject, method)(*arguments), 1.0, 1.0, 0)


@pytest.fixture(params=["random", "identity"])
def problem(request):
    return dynamics.Problem(n=6, d=8, depth=2.0, matrices=request.param, tau=0.6)


def test_peers_have_the_right_hand_side_of_the_book(problem):
    competitors = {
        "book, one by one": Here(dynamics.BookOne(problem)),
        "Euler": Here(dynamics.Euler(problem)),
    }
    assert dynamics.same_field(competitors, problem)["Euler"] < 1e-5


@pytest.mark.parametrize("scheme", dynamics.SCHEMES)
def test_wrong_law_is_not_compared(scheme, problem, monkeypatch):
    right = dynamics.law

    def wrong(name, late, r, a, rho, t):
        turning, growth = right(name, late, r, a, rho, t)
        return (1.01 * turning if name == scheme else turning), growth

    monkeypatch.setattr(dynamics, "law", wrong)
    competitors = {
        "book, one by one": Here(dynamics.BookOne(problem)),
        "Euler": Here(dynamics.Euler(problem)),
    }
    with pytest.raises(common.Disagreement, match="Euler"):
        dynamics.same_field(competitors, problem)


def test_all_methods_end_at_the_reference(problem, tmp_path):
    reference = str(tmp_path / "reference.npy")
    one, many, euler = (kind(problem) for kind in (dynamics.BookOne, dynamics.Book, dynamics.Euler))
    assert one.solve(1e-9) > 0
    one.save(reference)
    assert many.solve(1e-5) > 0
    assert many.error(reference) < 1e-3
    euler.solve(0.02)
    coarse = euler.error(reference)
    euler.solve(0.01)
    assert 1.7 < coarse / euler.error(reference) < 2.3  # of first order, also across the switch of Mix-LN
    dynamics.schemes_apart(np.load(reference), 1e-4)
    with pytest.raises(common.Disagreement, match="two schemes"):
        dynamics.schemes_apart(np.load(reference), 1.0)


def test_tolerance_is_the_loosest_that_serves():
    class Proportional:
        def solve(self, tolerance):
            self.at = tolerance

        def error(self, _reference):
            return 30 * self.at

    tolerance, error = dynamics.tuned("x", Here(Proportional()), None, 1e-4, 1e-4)
    assert 0.5e-4 < error <= 1e-4
    assert tolerance == pytest.approx(error / 30)


def test_method_that_never_gets_there_is_named():
    class Stuck:
        def solve(self, tolerance):
            return 1

        def error(self, _reference):
            return 1.0

    with pytest.raises(common.Disagreement, match="slow method"):
        dynamics.tuned("slow method", Here(Stuck()), None, 1e-4, 1e-4)


def test_effective_number_of_tokens():
    weights = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
    assert capture.effective(weights) == [1.5]


def test_competitor_lives_in_its_own_process_and_reports_errors():
    with common.Competitor("fractions:Fraction", 22, 7) as competitor:
        run = competitor.ask("limit_denominator", 2)
        assert run.value == 3
        assert run.seconds >= 0
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            competitor.ask("__floordiv__", 0)
    with pytest.raises(RuntimeError, match="no_such_name"):
        common.Competitor("fractions:no_such_name")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak is that of the whole process")
def test_peak_memory_is_that_of_the_run_alone():
    large = common.measured(lambda: len(b"x" * 2**26))
    small = common.measured(lambda: len(b"x" * 2**10))
    assert 0.9 * 2**26 < large.peak < 1.2 * 2**26
    assert small.peak < 2**24


def test_rounds_go_through_all_competitors(capsys):
    asked = []

    def ask(name, competitor):
        asked.append(name)
        return common.Run(competitor, 2.0 if len(asked) < 3 else 1.0, 0.5, 3 * common.MIB)

    runs = common.in_turn({"a": 1, "b": 2}, ask, 2)
    assert asked == ["a", "b", "a", "b"]
    assert common.summary(runs["a"]) == {
        "seconds": 1.0, "median_seconds": 1.5, "cpu_seconds": 0.5, "peak_MiB": 3.0,
    }  # fmt: skip
    assert capsys.readouterr().out == ""  # progress goes to stderr


def test_report_is_a_table_and_json(capsys, tmp_path):
    rows = [{"name": "ours", "seconds": 2.0}, {"name": "theirs", "seconds": 5.0}, {"name": "paper"}]
    common.ratios(rows, "ours", ["seconds"])
    columns = {"name": "method", "seconds|.1f": "seconds", "seconds_ratio|.2f": "ratio"}
    common.report("title", {"n": 3}, ["numpy"], {"all": (rows, columns)}, tmp_path / "out.json")
    printed = capsys.readouterr().out
    assert re.search(r"theirs +5\.0 +2\.50\n", printed)
    assert re.search(r"paper +- +-", printed)
    assert '"seconds_ratio": 2.5' in (tmp_path / "out.json").read_text()


def ranges():
    lines = (ROOT / "benchmarks" / "requirements.in").read_text(encoding="utf8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def pins(path):
    lines = [line for line in path.read_text(encoding="utf8").splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_lock_of_the_benchmarks_pins_every_range():
    locked = pins(ROOT / "benchmarks" / "requirements.lock")
    found = [Requirement(line.split("#")[0]) for line in ranges()]
    assert len(found) >= 4
    for requirement in found:
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), requirement


def test_every_range_of_the_benchmarks_has_a_reason():
    assert [line for line in ranges() if not re.fullmatch(r"[\w.-]+>=[\w.,<]+ +# \w.*", line)] == []


def test_peers_run_with_the_versions_of_the_book():
    book, peers = pins(ROOT / "requirements.lock"), pins(ROOT / "benchmarks" / "requirements.lock")
    assert {"torch", "transformers", "numpy"} <= book.keys() & peers.keys()
    assert {name: peers[name] for name in book.keys() & peers.keys() if peers[name] != book[name]} == {}


def test_lock_of_the_benchmarks_has_only_plain_pins():
    for line in (ROOT / "benchmarks" / "requirements.lock").read_text(encoding="utf8").splitlines():
        assert re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line), line

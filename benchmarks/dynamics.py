"""All six schemes solved to the same accuracy: the book, torchdiffeq, diffrax and fixed Euler steps.

Each competitor gets the same tokens and matrices and returns the same directions. Its tolerance or step is
chosen so that no direction is farther from a reference than `--accuracy`; only then is it timed.
"""

from __future__ import annotations

import math
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks import common

SCHEMES = "post-ln", "pre-ln", "mix-ln", "peri-ln", "ngpt", "sqrt-scaling"
OURS = "book, all at once"
PEERS = {
    "torchdiffeq dopri5": ("TorchDiffEq", "dopri5"),
    "torchdiffeq dopri8": ("TorchDiffEq", "dopri8"),
    "diffrax Tsit5": ("Diffrax", "Tsit5"),
    "diffrax Dopri8": ("Diffrax", "Dopri8"),
}
USUAL_STEP = 0.1


@dataclass(frozen=True)
class Problem:
    """What is solved; `tokens` makes the arrays."""

    n: int = 256
    d: int = 512
    depth: float = 10.0
    matrices: str = "random"
    seed: int = 1
    tau: float = 2.5

    @property
    def times(self):
        """Where the directions are compared: whole depths."""
        return np.arange(0.0, self.depth + 0.5)

    @property
    def beta(self):
        return math.sqrt(self.d) if self.matrices == "random" else 1.0

    def arrays(self):
        """Tokens (n, d), directions uniform and norm 1; Q, K, V (d, d) or None."""
        from attnorm.random_weights import draw

        drawn = draw(np.random.default_rng(self.seed), 1, self.n, self.d)
        x0, *matrices = (drawn[name][0].astype(np.float64) for name in ("x0", "Q", "K", "V"))
        return x0, *(matrices if self.matrices == "random" else (None, None, None))

    def folded(self):
        """What the peers use in place of Q, K and beta: M = beta Q^T K, as the book does too; and V^T."""
        x0, Q, K, V = self.arrays()
        return x0, None if Q is None else self.beta * Q.T @ K, None if V is None else V.T


def law(scheme, late, r, a, rho, t):
    """1 / s_j and r_j' of a scheme, from the table in the paper; the peers' own copy of it."""
    if scheme == "mix-ln":
        scheme = "pre-ln" if late else "post-ln"
    return {
        "post-ln": lambda: (1.0, 0 * r),
        "pre-ln": lambda: (1 / r, rho),
        "peri-ln": lambda: (1 / (r * a), rho / a),
        "ngpt": lambda: (1 / a, 0 * r),
        "sqrt-scaling": lambda: ((t + 1) ** -0.5, 0 * r),
    }[scheme]()


def phases(problem, scheme):
    """Pieces of the depth with one law each: start, end, whether it is the late one, and depths to return."""
    times = problem.times
    if scheme != "mix-ln" or not 0 < problem.tau < problem.depth:
        return [(0.0, problem.depth, False, times)]
    early, late = times[times <= problem.tau], times[times > problem.tau]
    return [(0.0, problem.tau, False, early), (problem.tau, problem.depth, True, late)]


class Solver:
    """What competitors share: they keep their last directions, and tell how far these are off."""

    def __init__(self, problem):
        self.problem = problem
        self.theta = None  # (schemes, times, n, d)

    def error(self, reference):
        """Largest distance of a direction from its reference, over schemes, depths and tokens."""
        exact = np.load(reference, mmap_mode="r")
        return max(
            float(np.linalg.norm(self.theta[s, k] - exact[s, k], axis=-1).max())
            for s in range(exact.shape[0])
            for k in range(exact.shape[1])
        )

    def save(self, path):
        np.save(path, self.theta)


class Book(Solver):
    """`attnorm.ensemble.simulate_all`: each scheme a system of one batch."""

    def __init__(self, problem):
        super().__init__(problem)
        from attnorm.ensemble import simulate_all

        self._simulate, (self.x0, *self.matrices) = simulate_all, problem.arrays()

    def solve(self, tolerance):
        self.theta, (Q, K, V) = None, self.matrices
        runs = self._simulate(
            SCHEMES, self.x0, self.problem.times, beta=self.problem.beta, Q=Q, K=K, V=V, tau=self.problem.tau,
            rtol=tolerance, keep_theta=True,
        )  # fmt: skip
        self.theta = runs.theta[:, :, 0]
        return int(runs.evaluations.sum())


class BookOne(Solver):
    """`attnorm.simulate`: a scheme at a time, in double precision."""

    def __init__(self, problem):
        super().__init__(problem)
        import attnorm
        from attnorm import dynamics

        self._attnorm, (self.x0, *self.matrices) = attnorm, problem.arrays()
        self.evaluations, attend = 0, dynamics.fused

        def counted(*arguments):
            self.evaluations += 1
            return attend(*arguments)

        dynamics.fused = counted

    @property
    def _options(self):
        Q, K, V = self.matrices
        return {"beta": self.problem.beta, "Q": Q, "K": K, "V": V, "tau": self.problem.tau}

    def solve(self, tolerance):
        self.theta, self.evaluations = None, 0
        found = [
            self._attnorm.simulate(
                scheme, self.x0, self.problem.times, rtol=tolerance, progress=False, **self._options
            )
            for scheme in SCHEMES
        ]
        self.theta = np.stack([flow.theta for flow in found])
        return self.evaluations

    def field(self, x, t):
        """theta' (schemes, n, d) and r' (schemes, n) at tokens `x` and depth `t`."""
        found = [self._attnorm.velocity(scheme, x, t, **self._options) for scheme in SCHEMES]
        return tuple(np.stack(part) for part in zip(*found, strict=True))


class TorchSolver(Solver):
    """The right-hand side in torch, in single precision, with the products that the book uses."""

    def __init__(self, problem):
        super().__init__(problem)
        import torch

        self.torch = torch
        self.x0, self.M, self.VT = (
            None if array is None else torch.tensor(array, dtype=torch.float32) for array in problem.folded()
        )
        self.evaluations = 0

    def start(self):
        return self.x0 / self.x0.norm(dim=-1, keepdim=True), self.x0.norm(dim=-1, keepdim=True)

    def right_hand_side(self, scheme, late):
        M, VT, beta = self.M, self.VT, self.problem.beta

        def velocity(t, state):
            self.evaluations += 1
            theta, r = state
            theta = theta / theta.norm(dim=-1, keepdim=True)
            logits = (beta * theta if M is None else theta @ M) @ theta.mT
            A = logits.softmax(dim=-1) @ (theta if VT is None else theta @ VT)
            rho, a = (theta * A).sum(dim=-1, keepdim=True), A.norm(dim=-1, keepdim=True)
            turning, growth = law(scheme, late, r, a, rho, t)
            return turning * (A - rho * theta), growth

        return velocity

    def field(self, x, t):
        x = self.torch.tensor(x, dtype=self.torch.float32)
        state = x / x.norm(dim=-1, keepdim=True), x.norm(dim=-1, keepdim=True)
        at = self.torch.tensor(t)
        found = [self.right_hand_side(scheme, t > self.problem.tau)(at, state) for scheme in SCHEMES]
        turning, growth = zip(*found, strict=True)
        return self.torch.stack(turning).numpy(), self.torch.stack(growth)[..., 0].numpy()

    def _keep(self, found):
        theta = self.torch.stack([self.torch.cat(parts) for parts in found])
        self.theta = (theta / theta.norm(dim=-1, keepdim=True)).numpy()


class TorchDiffEq(TorchSolver):
    """`torchdiffeq.odeint`, a scheme at a time."""

    def __init__(self, problem, method):
        super().__init__(problem)
        from torchdiffeq import odeint

        self._odeint, self.method = odeint, method

    def solve(self, tolerance):
        torch = self.torch
        self.theta, self.evaluations, found = None, 0, []
        with torch.no_grad():
            for scheme in SCHEMES:
                state, parts = self.start(), []
                for begin, end, late, times in phases(self.problem, scheme):
                    grid = torch.tensor(sorted({begin, *times, end}), dtype=torch.float64)
                    solution = self._odeint(
                        self.right_hand_side(scheme, late), state, grid,
                        # Entries of a direction are of the order 1 / sqrt(d).
                        rtol=tolerance, atol=tolerance / math.sqrt(self.problem.d), method=self.method,
                    )  # fmt: skip
                    wanted = np.isin(grid.numpy(), times)
                    parts.append(solution[0][torch.from_numpy(wanted)])
                    state = tuple(part[-1] for part in solution)
                found.append(parts)
            self._keep(found)
        return self.evaluations


class Euler(TorchSolver):
    """What is usual in the field: steps of one length, each direction put back on the sphere."""

    def solve(self, step):
        torch = self.torch
        self.theta, self.evaluations, found = None, 0, []
        with torch.no_grad():
            for scheme in SCHEMES:
                (theta, r), parts = self.start(), []
                for begin, end, late, times in phases(self.problem, scheme):
                    velocity = self.right_hand_side(scheme, late)
                    parts += [theta[None]] * (0.0 in times)
                    grid = sorted({begin, *times, end})
                    for start, stop in pairwise(grid):
                        count = max(1, round((stop - start) / step))
                        h = (stop - start) / count
                        for k in range(count):
                            turning, growth = velocity(start + k * h, (theta, r))
                            theta, r = theta + h * turning, r + h * growth
                            theta = theta / theta.norm(dim=-1, keepdim=True)
                        parts += [theta[None]] * (stop in times)
                found.append(parts)
            self._keep(found)
        return self.evaluations


class Diffrax(Solver):
    """`diffrax.diffeqsolve`, compiled by JAX, a scheme at a time."""

    def __init__(self, problem, solver):
        super().__init__(problem)
        import diffrax
        import jax
        import jax.numpy as jnp

        self.jnp, self.diffrax = jnp, diffrax
        self.solver = getattr(diffrax, solver)()
        x0, M, VT = problem.folded()
        self.x0 = jnp.asarray(x0, jnp.float32)
        self.matrices = tuple(None if array is None else jnp.asarray(array, jnp.float32) for array in (M, VT))
        self._compiled = {
            (scheme, late): jax.jit(self._program(scheme, late))
            for scheme in SCHEMES
            for late in (False, True)
        }
        tableau = self.solver.tableau
        self._each_step = tableau.num_stages - bool(tableau.fsal)

    def right_hand_side(self, scheme, late):
        jnp, beta = self.jnp, self.problem.beta
        from jax.nn import softmax

        def velocity(t, state, matrices):
            (theta, r), (M, VT) = state, matrices
            theta = theta / jnp.linalg.norm(theta, axis=-1, keepdims=True)
            logits = (beta * theta if M is None else theta @ M) @ theta.T
            A = softmax(logits, axis=-1) @ (theta if VT is None else theta @ VT)
            rho, a = (theta * A).sum(-1, keepdims=True), jnp.linalg.norm(A, axis=-1, keepdims=True)
            turning, growth = law(scheme, late, r, a, rho, t)
            return turning * (A - rho * theta), growth

        return velocity

    def _program(self, scheme, late):
        diffrax, velocity = self.diffrax, self.right_hand_side(scheme, late)

        def program(state, matrices, times, end, tolerance):
            solution = diffrax.diffeqsolve(
                diffrax.ODETerm(velocity), self.solver, times[0], end, None, state, matrices,
                saveat=diffrax.SaveAt(ts=times),
                stepsize_controller=diffrax.PIDController(
                    rtol=tolerance, atol=tolerance / math.sqrt(self.problem.d)
                ),
                max_steps=2**20,
            )  # fmt: skip
            return solution.ys, solution.stats["num_steps"]

        return program

    def _start(self, x):
        norms = self.jnp.linalg.norm(x, axis=-1, keepdims=True)
        return x / norms, norms

    def field(self, x, t):
        state = self._start(self.jnp.asarray(x, self.jnp.float32))
        found = [
            self.right_hand_side(scheme, t > self.problem.tau)(t, state, self.matrices) for scheme in SCHEMES
        ]
        turning, growth = zip(*found, strict=True)
        return np.stack(turning), np.stack(growth)[..., 0]

    def solve(self, tolerance):
        self.theta, steps, begun, found = None, 0, 0, []
        for scheme in SCHEMES:
            state, parts = self._start(self.x0), []
            for begin, end, late, times in phases(self.problem, scheme):
                grid = np.array(sorted({begin, *times, end}))
                ys, count = self._compiled[scheme, late](state, self.matrices, grid, end, tolerance)
                parts.append(np.asarray(ys[0])[np.isin(grid, times)])
                state = tuple(part[-1] for part in ys)
                steps, begun = steps + int(count), begun + 1
            found.append(np.concatenate(parts))
        theta = np.stack(found)
        self.theta = theta / np.linalg.norm(theta, axis=-1, keepdims=True)
        return steps * self._each_step + begun


def tuned(name, competitor, reference, accuracy, first, tries=6):
    """The loosest tolerance found with which the error is at most `accuracy`, and that error.

    The error is about proportional to the tolerance, so each try says where the next should be.
    """
    tolerance, best = first, None
    for _ in range(tries):
        competitor.ask("solve", tolerance)
        error = competitor.ask("error", reference).value
        common.progress(f"{name}: tolerance {tolerance:.2g}, error {error:.2g}")
        if error <= accuracy and (best is None or tolerance > best[0]):
            best = tolerance, error
        if accuracy / 2 < error <= accuracy:
            break
        tolerance = min(tolerance * max(0.7 * accuracy / max(error, 1e-12), 1e-3), 0.05)
        if best is not None and tolerance <= best[0]:
            break
    if best is None:
        raise common.Disagreement(
            f"{name} is not within {accuracy:g} of the reference at any tolerance tried"
        )
    return best


def euler_step(competitor, reference, accuracy):
    """A step with which Euler's error would be `accuracy`, and what was measured on the way.

    Steps are halved until the error falls in proportion; from there on it is of first order.
    """
    measured, step = [], USUAL_STEP
    while True:
        run = competitor.ask("solve", step)
        error = competitor.ask("error", reference).value
        measured.append({"step": step, "error": error, "evaluations": run.value, "seconds": run.seconds})
        common.progress(f"Euler: step {step:g}, error {error:.2g}")
        halved = len(measured) > 1 and measured[-2]["error"] / error
        if error <= accuracy or 1.8 < halved < 2.2 or len(measured) == 7:
            return step * min(1.0, accuracy / error), measured
        step /= 2


def same_field(competitors, problem):
    """Check that all right-hand sides are one, at random tokens, early and late; the largest difference.

    The tokens have norms from 1 to 2, so a factor r in the wrong place is seen.
    """
    rng = np.random.default_rng(problem.seed + 1)
    x = rng.standard_normal((problem.n, problem.d))
    x *= rng.uniform(1, 2, (problem.n, 1)) / np.linalg.norm(x, axis=-1, keepdims=True)
    found = {}
    for t in (0.25 * problem.tau, 2 * problem.tau):
        ours = competitors["book, one by one"].ask("field", x, t).value
        scale = [np.abs(part).max(axis=tuple(range(1, part.ndim)), keepdims=True) for part in ours]
        for name, competitor in competitors.items():
            if name not in PEERS and name != "Euler":
                continue
            theirs = competitor.ask("field", x, t).value
            for mine, other, size in zip(ours, theirs, scale, strict=True):
                miss = float((np.abs(mine - other) / np.where(size > 0, size, 1)).max())
                found[name] = max(miss, found.get(name, 0.0))
    for name, miss in found.items():
        if not miss < 1e-4:  # single precision leaves about 1e-5
            raise common.Disagreement(f"the right-hand side of {name} differs from the book's by {miss:.2g}")
    return found


def options(arguments=None):
    parser = common.parser(__doc__.split("\n")[0])
    parser.add_argument("--matrices", choices=["random", "identity"], default="random", help="Q, K and V")
    parser.add_argument("--accuracy", type=float, default=1e-4, help="largest error of a direction")
    parser.add_argument("--seed", type=int, default=1, help="of tokens and matrices")
    parser.add_argument(
        "--run-euler",
        action="store_true",
        help="also run Euler at the accuracy; without it, its time is estimated",
    )
    parser.add_argument(
        "--peers", nargs="+", choices=list(PEERS), default=list(PEERS), help="whom to compare with"
    )
    return parser.parse_args(arguments)


def main(arguments=None) -> int:
    chosen = options(arguments)
    common.use(chosen.threads)
    sizes = {"n": 24, "d": 32, "depth": 4.0} if chosen.small else {}
    problem = Problem(matrices=chosen.matrices, seed=chosen.seed, **sizes)
    competitors = {}
    with tempfile.TemporaryDirectory() as folder:
        reference = str(Path(folder) / "reference.npy")
        try:
            competitors[OURS] = common.Competitor("benchmarks.dynamics:Book", problem)
            competitors["book, one by one"] = common.Competitor("benchmarks.dynamics:BookOne", problem)
            for name in chosen.peers:
                kind, method = PEERS[name]
                competitors[name] = common.Competitor(f"benchmarks.dynamics:{kind}", problem, method)
            competitors["Euler"] = common.Competitor("benchmarks.dynamics:Euler", problem)
            rows, checks = compare(competitors, problem, reference, chosen)
        finally:
            for competitor in competitors.values():
                competitor.close()
    columns = {
        "name": "method",
        "error|.1e": "error",
        "tolerance|.1e": "tolerance or step",
        "evaluations|d": "evaluations",
        "seconds|.3g": "seconds",
        "seconds_ratio|.3g": "ratio to the book",
        "median_seconds|.3g": "median",
        "cpu_seconds|.3g": "CPU (s)",
        "compile_seconds|.3g": "compiling (s)",
        "peak_MiB|.0f": "peak (MiB)",
    }
    common.report(
        "dynamics: six schemes to equal accuracy",
        {
            **asdict(problem),
            "accuracy": chosen.accuracy,
            "repeats": chosen.repeats,
            "threads": chosen.threads,
        },
        ["torch", "torchdiffeq", "diffrax", "jax", "scipy", "numpy"],
        {
            f"largest error of a direction at most {chosen.accuracy:g}": (rows, columns),
            "right-hand sides, largest relative difference from the book's": (
                checks,
                {"name": "method", "miss|.1e": "difference"},
            ),
        },
        chosen.json,
    )
    return 0


def compare(competitors, problem, reference, chosen):
    """Check, tune, then time all in turn: the rows of the tables."""
    checks = [{"name": name, "miss": miss} for name, miss in same_field(competitors, problem).items()]
    common.progress("reference: the book's solver of order 8 at a tolerance of 1e-9")
    competitors["book, one by one"].ask("solve", 1e-9)
    competitors["book, one by one"].ask("save", reference)
    schemes_apart(np.load(reference, mmap_mode="r"), chosen.accuracy)

    found, compiling = {}, {}
    for name, competitor in competitors.items():
        if name == "Euler":
            continue
        cold = competitor.ask("solve", chosen.accuracy)
        if name.startswith("diffrax"):
            compiling[name] = cold.seconds - competitor.ask("solve", chosen.accuracy).seconds
        found[name] = tuned(name, competitor, reference, chosen.accuracy, chosen.accuracy)
    step, measured = euler_step(competitors["Euler"], reference, chosen.accuracy)

    asked = {**{name: tolerance for name, (tolerance, _) in found.items()}, "Euler": USUAL_STEP}
    runs = common.in_turn(
        competitors, lambda name, competitor: competitor.ask("solve", asked[name]), chosen.repeats
    )
    rows = [
        {
            "name": name, "error": error, "tolerance": tolerance, "evaluations": runs[name][0].value,
            **common.summary(runs[name]), "compile_seconds": compiling.get(name),
        }
        for name, (tolerance, error) in found.items()
    ]  # fmt: skip
    usual = {
        "name": "Euler, the usual step", "error": measured[0]["error"], "tolerance": USUAL_STEP,
        "evaluations": measured[0]["evaluations"], **common.summary(runs["Euler"]),
    }  # fmt: skip
    rows += [usual, at_accuracy(competitors["Euler"], usual, step, reference, chosen)]
    common.ratios(rows, OURS, ["seconds", "cpu_seconds", "peak_MiB"])
    return rows, checks


def at_accuracy(euler, usual, step, reference, chosen):
    """The row of Euler's method at the accuracy of the others."""
    if chosen.run_euler:
        run = euler.ask("solve", step)
        error = euler.ask("error", reference).value
        return {
            "name": "Euler, equal accuracy", "error": error, "tolerance": step, "evaluations": run.value,
            **common.summary([run]),
        }  # fmt: skip
    longer = usual["tolerance"] / step
    return {
        "name": "Euler, equal accuracy (estimated)", "error": chosen.accuracy, "tolerance": step,
        "evaluations": round(usual["evaluations"] * longer), "seconds": usual["seconds"] * longer,
        "cpu_seconds": usual["cpu_seconds"] * longer,
        "peak_MiB": usual["peak_MiB"],
    }  # fmt: skip


def schemes_apart(theta, accuracy):
    """A control: an accuracy that cannot tell one scheme from another would check nothing."""
    last = theta[:, -1]
    apart = min(
        float(np.linalg.norm(last[i] - last[j], axis=-1).max()) for i in range(len(last)) for j in range(i)
    )
    if apart < 10 * accuracy:
        raise common.Disagreement(f"two schemes differ by {apart:.2g} only: ask for more accuracy or depth")


if __name__ == "__main__":
    sys.exit(main())

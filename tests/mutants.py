"""Wrong formulas on purpose: each change to the library that ``mutants.toml`` lists must make a test fail.

``make mutants`` tries them all, two at a time; ``python tests/mutants.py schemes`` those of one module.
A mutant that survives means that a formula could be wrong without anyone noticing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
LIB = ROOT / "lib" / "attnorm"
LIST = Path(__file__).with_name("mutants.toml")
NO_TEST_FAILED, TESTS_FAILED = 0, 1  # exit codes of pytest; all others mean that it could not run


@dataclass(frozen=True)
class Mutant:
    """In ``module``, ``old`` becomes ``new``; one of ``tests`` must notice."""

    module: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self):
        return f"{self.module}: {self.old!r} -> {self.new!r}"

    def source(self) -> str:
        """The changed text of the module."""
        text = (LIB / f"{self.module}.py").read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self}: what it changes occurs {text.count(self.old)} times, not once")
        return text.replace(self.old, self.new)

    def survives(self) -> bool:
        """Whether the tests pass with the changed module."""
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "lib", "attnorm")
            shutil.copytree(LIB, copy, ignore=shutil.ignore_patterns("__pycache__"))
            Path(folder, "data").symlink_to(ROOT / "data")
            (copy / f"{self.module}.py").write_text(self.source(), encoding="utf-8")
            environment = os.environ | {
                "PYTHONPATH": str(copy.parent),
                "OMP_NUM_THREADS": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *self.tests]
            run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if run.returncode not in (NO_TEST_FAILED, TESTS_FAILED):
            raise RuntimeError(
                f"{self}: the tests could not be run\n{run.stdout[-2000:]}{run.stderr[-2000:]}"
            )
        return run.returncode == NO_TEST_FAILED


def mutants() -> list[Mutant]:
    """All of ``mutants.toml``; the tests of a module stand once, beside its changes."""
    modules = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return [
        Mutant(name, old, new, tuple(module["tests"]))
        for name, module in modules.items()
        for old, new in module["changes"]
    ]


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help="only these modules, for example schemes")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args(arguments)
    chosen = [m for m in mutants() if not options.modules or m.module in options.modules]
    if not chosen:
        parser.error(f"no mutants of {', '.join(options.modules)}")
    with ThreadPoolExecutor(options.jobs) as threads:
        fates = list(tqdm(threads.map(Mutant.survives, chosen), total=len(chosen), unit="mutant"))
    survivors = [mutant for mutant, survived in zip(chosen, fates, strict=True) if survived]
    for mutant in survivors:
        print(f"survived: {mutant}")
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants were caught")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())

"""What the benchmarks share: a process for each competitor, repetitions in turn, peak memory, tables.

A competitor is an object that lives in a process of its own, so that its memory can be told from that of the
others. It prepares itself once and is then asked for runs. The processes wait for one another: only one of
them computes at any time.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20


@dataclass(frozen=True)
class Run:
    """One answer of a competitor.

    Attributes
    ----------
    value : object
        What the method returned.
    seconds : float
        Wall-clock time of the method.
    cpu : float
        Seconds of all its threads together, which depend less on what else the machine does.
    peak : int
        The most bytes that the process held during it, above what it held when the competitor was prepared.
        So what a competitor keeps from one run to the next counts.
    """

    value: object
    seconds: float
    cpu: float
    peak: int


class Disagreement(SystemExit):
    """Competitors that do not compute the same thing must not be compared."""


class Competitor:
    """An object in a process of its own.

    Parameters
    ----------
    factory : str
        ``"module:name"`` of what makes the object there.
    *arguments
        For the factory; they are pickled.
    """

    def __init__(self, factory: str, *arguments):
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, factory, arguments), daemon=True)
        self._process.start()
        there.close()
        self.prepared = self._answer()

    def ask(self, method: str, *arguments) -> Run:
        """Call a method of the object, and measure the call."""
        self._pipe.send((method, arguments))
        return self._answer()

    def close(self) -> None:
        if self._process.is_alive():
            self._pipe.send(None)
        self._process.join()

    def __enter__(self) -> Competitor:
        return self

    def __exit__(self, *_error) -> None:
        self.close()

    def _answer(self) -> Run:
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"a competitor ended with exit code {self._process.exitcode}") from None
        if isinstance(answer, str):
            raise RuntimeError(f"in the competitor's process:\n{answer}")
        return answer


def _serve(pipe, factory, arguments):
    try:
        module, name = factory.split(":")
        subject = None

        def make():
            nonlocal subject
            subject = getattr(importlib.import_module(module), name)(*arguments)

        pipe.send(measured(make))
        base = settled()
        while (message := pipe.recv()) is not None:
            method, arguments = message
            pipe.send(measured(getattr(subject, method), *arguments, base=base))
    except EOFError:  # the other side has gone
        return
    except BaseException:
        pipe.send(traceback.format_exc())


def settled() -> int:
    """Bytes that this process holds once what it does not need is given back."""
    gc.collect()
    _give_back_free_memory()
    return _resident()


def measured(function, *arguments, base: int | None = None) -> Run:
    """Call a function; its time, and the most memory above `base`, or above what there was before."""
    before = settled()
    base = before if base is None else base
    exact = _forget_high_water()
    start, start_cpu = time.perf_counter(), time.process_time()
    value = function(*arguments)
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    return Run(value, seconds, cpu, max((_high_water() if exact else _lifetime_high_water()) - base, 0))


def in_turn(competitors: dict[str, Competitor], ask, repeats: int) -> dict[str, list[Run]]:
    """Runs of all competitors, round by round, so that a busy minute of the machine meets all of them.

    Parameters
    ----------
    competitors : dict
        By name.
    ask : callable
        ``ask(name, competitor)`` returns a `Run`.
    repeats : int
        Number of rounds.
    """
    runs: dict[str, list[Run]] = {name: [] for name in competitors}
    for round_ in range(repeats):
        for name, competitor in competitors.items():
            progress(f"round {round_ + 1} of {repeats}: {name}")
            runs[name].append(ask(name, competitor))
    return runs


def summary(runs: Iterable[Run]) -> dict[str, float]:
    """Least and median time, the least time of the processor, in seconds, and the largest peak in MiB."""
    runs = list(runs)
    seconds = [run.seconds for run in runs]
    return {
        "seconds": min(seconds),
        "median_seconds": statistics.median(seconds),
        "cpu_seconds": min(run.cpu for run in runs),
        "peak_MiB": max(run.peak for run in runs) / MIB,
    }


def ratios(rows: list[dict], ours: str, columns: Iterable[str]) -> None:
    """Add to each row its ratio to the row named `ours`, for each column that both have."""
    base = next(row for row in rows if row["name"] == ours)
    for row in rows:
        for column in columns:
            if row.get(column) is not None and base.get(column):
                row[f"{column}_ratio"] = row[column] / base[column]


def table(rows: list[dict], columns: dict[str, str]) -> str:
    """Rows as aligned text.

    Parameters
    ----------
    rows : list of dict
    columns : dict
        Key in a row to heading; a key may carry a format after a bar, as in ``"seconds|.3g"``.
    """
    lines = [list(columns.values())]
    for row in rows:
        cells = []
        for column in columns:
            key, _, style = column.partition("|")
            value = row.get(key)
            cells.append("-" if value is None else format(value, style))
        lines.append(cells)
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parser(description: str) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--small", action="store_true", help="small sizes: a test of the benchmark itself")
    made.add_argument("--repeats", type=int, default=3, help="rounds; the least time counts")
    made.add_argument("--threads", type=int, default=cores(), help="threads and cores that each may use")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to this file too")
    return made


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use(threads: int) -> None:
    """Give the competitors, which are started afterwards, this many threads and cores."""
    if threads < 1:
        raise SystemExit(f"--threads must be at least 1; got {threads}")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    # Also for JAX, which asks the system how many cores there are.
    if hasattr(os, "sched_setaffinity") and threads < cores():
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["JAX_PLATFORMS"] = "cpu"


def machine() -> str:
    """Processor, system and Python in a line."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [
            line.split(":", 1)[1] for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        name = models[0].strip() if models else name
    return f"{cores()} x {name}, {platform.system()}, Python {platform.python_version()}"


def versions(*packages: str) -> dict[str, str]:
    return {package: importlib.metadata.version(package) for package in packages}


def report(title: str, settings: dict, packages: Iterable[str], tables: dict, path: Path | None) -> None:
    """Print tables, and write their rows as JSON where that is asked for.

    Parameters
    ----------
    title : str
    settings : dict
    packages : iterable of str
        Whose versions are told.
    tables : dict
        Name of a table to its rows and columns, see `table`.
    path : Path, optional
        The JSON file.
    """
    found = versions(*packages)
    print(f"# {title}")
    print(machine())
    print(", ".join(f"{name} {version}" for name, version in found.items()))
    print(", ".join(f"{name} {value}" for name, value in settings.items()))
    for name, (rows, columns) in tables.items():
        print(f"\n## {name}\n{table(rows, columns)}")
    if path is not None:
        content = {
            "benchmark": title,
            "machine": machine(),
            "versions": found,
            "settings": settings,
            "tables": {name: rows for name, (rows, _) in tables.items()},
        }
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")


def _resident() -> int:
    import psutil

    return psutil.Process().memory_info().rss


def _give_back_free_memory() -> None:
    """Freed memory that the allocator keeps would hide the need of the next run (Linux with glibc)."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        except (OSError, AttributeError):
            return


def _forget_high_water() -> bool:
    """Set the peak of this process to its present memory, where the system can (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _high_water() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _lifetime_high_water() -> int:
    """The peak since the process began: of use where a run needs more than its preparation did."""
    import psutil

    information = psutil.Process().memory_info()
    if hasattr(information, "peak_wset"):  # Windows
        return information.peak_wset
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

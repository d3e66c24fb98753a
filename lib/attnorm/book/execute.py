"""Execute the chapters whose cells, library, data or models changed, several at a time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from attnorm.book.site import Book

# A chapter gives the same numbers alone, beside others, and on another number of cores.
DETERMINISM = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "SOURCE_DATE_EPOCH": "0",
    "JUPYTER_PREFER_ENV_PATH": "1",  # the kernel of this environment, not a user's kernel of the same name
    "PYTHONWARNINGS": "ignore:IProgress not found",  # no widgets in a page, and that is no fault
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
KEPT_CACHES = 2  # this one and the one before, so that going back to the last state of lib is quick
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Failure:
    """Why a chapter did not execute: its page, the line of the cell, and the error."""

    document: str
    line: int | None
    reason: str

    def __str__(self):
        where = f"{self.document}.md" + (f":{self.line}" if self.line else "")
        return f"{where}: {self.reason}"


def environment(root: Path) -> dict[str, str]:
    """Environment of a chapter's kernel: deterministic, and with the book's own lib first."""
    lib = str(root / "lib")
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, **DETERMINISM, "PYTHONPATH": os.pathsep.join([lib, path] if path else [lib])}


def cores() -> int:
    """Chapters executed at a time: ATTNORM_JOBS, or the cores this process may use, at most four."""
    wanted = os.environ.get("ATTNORM_JOBS")
    if wanted is not None:
        if not wanted.isdigit() or int(wanted) < 1:
            raise ValueError(f"ATTNORM_JOBS is {wanted!r}; it must be a whole number from 1 up")
        return int(wanted)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 4)


def cache_folder(book: Book, key: str) -> Path:
    return book.caches / key


def prune(book: Book, key: str) -> None:
    """Remove executed chapters of older states of lib, data or models."""
    folder = cache_folder(book, key)
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    folders = sorted((p for p in book.caches.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
    for old in folders[:-KEPT_CACHES]:
        shutil.rmtree(old)


def read_notebook(path: Path):
    """The chapter as a notebook, with the same cells as Sphinx will look for in the cache."""
    from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook

    text = path.read_text(encoding="utf8")
    if not is_myst_markdown_notebook(text):
        return None
    return read_myst_markdown_notebook(text, add_source_map=True, path=str(path))


def execute(book: Book, key: str, documents: list[str] | None = None, *, say=print) -> list[Failure]:
    """Execute what is not in the cache of `key`; what fails is not cached, so it fails again next time.

    Parameters
    ----------
    book : Book
    key : str
        From `attnorm.book.fingerprint.execution_key`.
    documents : list of str, optional
        Pages to look at; every page if not given.

    Returns
    -------
    list of Failure
        One for each chapter that raised, hung or lost its kernel.
    """
    from jupyter_cache import get_cache

    prune(book, key)
    cache = get_cache(cache_folder(book, key))
    cache.change_cache_limit(10_000)
    waiting = []
    for document in documents if documents is not None else book.documents():
        notebook = read_notebook(book.source(document))
        if notebook is None:
            continue
        try:
            cache.match_cache_notebook(notebook)
        except KeyError:
            waiting.append((document, notebook))
    if not waiting:
        return []
    seconds = _seconds(book)
    # The longest first (an unknown one counts as long), so that the last to end is a short one.
    waiting.sort(key=lambda item: -seconds.get(item[0], float("inf")))
    timeout = book.config().get("execute", {}).get("timeout", 600)
    say(f"executing {len(waiting)} chapter(s), {min(cores(), len(waiting))} at a time")
    return _run_apart(_execute_all(book, cache, waiting, timeout, say))


def _run_apart(work):
    """Run a coroutine in a thread; Ctrl-C in the main thread cancels it and waits until its kernels are gone.

    In the main thread each notebook client would take over Ctrl-C, and stop no kernel but its own.
    """
    running = []

    async def noted():
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await work

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        result = thread.submit(asyncio.run, noted())
        try:
            while not result.done():  # in steps, since on some systems nothing else interrupts a wait
                concurrent.futures.wait([result], timeout=0.5)
        except KeyboardInterrupt:
            logging.getLogger("tornado").disabled = logging.getLogger("tornado.general").disabled = True
            for loop, task in running:
                # The clients' own watchers stumble over kernels that go, and would bury the one line.
                loop.call_soon_threadsafe(loop.set_exception_handler, lambda *_: None)
                loop.call_soon_threadsafe(task.cancel)
            raise
    return result.result()


async def _execute_all(book, cache, waiting, timeout, say) -> list[Failure]:
    seats = asyncio.Semaphore(cores())
    env = environment(book.root)

    async def one(document, notebook):
        async with seats:
            start = time.perf_counter()
            failure = await _run(document, notebook, book.source(document).parent, timeout, env)
            elapsed = time.perf_counter() - start
        if failure is None:
            _store(cache, book, document, notebook, elapsed)
        say(f"  {document}  {elapsed:.1f} s" + ("" if failure is None else "  FAILED"))
        return failure

    async with asyncio.TaskGroup() as group:  # when it is cancelled, it waits until every kernel is down
        tasks = [group.create_task(one(*item)) for item in waiting]
    return [task.result() for task in tasks if task.result() is not None]


async def _run(document, notebook, folder, timeout, env) -> Failure | None:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    client = NotebookClient(
        notebook,
        timeout=timeout,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        # The kernel's port is open to this machine only; its warning about that would bury what matters.
        extra_arguments=["--IPKernelApp.log_level=50"],
    )
    try:
        await client.async_execute(env=env)
    except CellTimeoutError:
        return Failure(document, _line(notebook), f"a cell ran longer than {timeout} s")
    except CellExecutionError as error:
        return Failure(document, _line(notebook), ANSI.sub("", str(error)).strip())
    except DeadKernelError:
        return Failure(document, _line(notebook), "the kernel died (out of memory, or a crash in a library)")
    return None


def _line(notebook) -> int | None:
    """Source line of the last cell that started."""
    lines = notebook.metadata.get("source_map", [])
    started = [i for i, c in enumerate(notebook.cells) if c.cell_type == "code" and c.get("execution_count")]
    failed = [i for i, c in enumerate(notebook.cells) if _raised(c)]
    code = [i for i, c in enumerate(notebook.cells) if c.cell_type == "code"]
    if failed:
        index = failed[0]
    else:  # a cell that hangs has no count yet: it is the one after the last counted
        later = [i for i in code if not started or i > started[-1]]
        index = next(iter(later or code[-1:]), len(lines))
    return lines[index] + 1 if index < len(lines) else None


def _raised(cell) -> bool:
    return cell.cell_type == "code" and any(out.output_type == "error" for out in cell.outputs)


def _store(cache, book: Book, document: str, notebook, elapsed: float) -> None:
    from jupyter_cache.base import CacheBundleIn

    bundle = CacheBundleIn(
        notebook, str(book.source(document)), data={"execution_seconds": round(elapsed, 3)}
    )
    cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    seconds = _seconds(book)
    seconds[document] = round(elapsed, 3)
    (book.build / "seconds.json").write_text(json.dumps(seconds, indent=1, sort_keys=True))


def _seconds(book: Book) -> dict[str, float]:
    path = book.build / "seconds.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def timings(root: Path | str) -> dict[str, float]:
    """Seconds that each chapter took when it was last executed.

    Parameters
    ----------
    root : path
        Folder of the book.

    Returns
    -------
    dict
        Page name (as in _toc.yml) to seconds of wall time, in reading order; a page without cells is absent.
        The record is kept beside the cache, so it is there also when nothing had to be executed.
    """
    book = Book(Path(root))
    seconds = _seconds(book)
    return {document: seconds[document] for document in book.documents() if document in seconds}

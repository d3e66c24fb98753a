"""Where models and texts come from: provenance, the user's cache, and a network that may not be there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: A download that takes longer than this many seconds is given up.
FETCH_SECONDS = 600.0
CHECKSUMS = "checksums.json"
NOTHING_KEPT = "what was downloaded is not what this book was written for; nothing of it was kept"

#: What the repository ships for the chapters to read.
DATA = Path(__file__).resolve().parents[2] / "data"

_answers: dict[str, bool] = {}


class SourceUnavailable(RuntimeError):
    """A model or a text is neither cached nor to be had from the network now."""


class ChecksumError(RuntimeError):
    """A file is not, byte for byte, the file it should be."""


@dataclass(frozen=True)
class Provenance:
    """What was loaded and where it comes from; ``str`` of it is one line for a caption.

    Attributes
    ----------
    name : str
        Key under which it was loaded, for example ``"smollm2-135m"``.
    title : str
        What it is, for a reader.
    source : str
        Repository, package or generator that it came out of.
    licence : str
    size : str
        In words: parameters and heads of a model, characters of a text.
    revision : str
        Version of the source, or the seed of random weights.
    sha256 : str
        Checksum of what was fetched, or of the text; empty where nothing was fetched.

    Examples
    --------
    >>> print(Provenance("toy", "A toy", "seed 0", "MIT", "3 parameters"))
    A toy (seed 0; 3 parameters; MIT)
    """

    name: str
    title: str
    source: str
    licence: str
    size: str
    revision: str = ""
    sha256: str = ""

    def __str__(self):
        origin = f"{self.source} {self.revision[:12]}".strip()
        checksum = f"sha256 {self.sha256[:12]}…" if self.sha256 else ""
        return f"{self.title} ({'; '.join(filter(None, (origin, checksum, self.size, self.licence)))})"


def cache_dir() -> Path:
    """Folder that keeps what was fetched: ``ATTNORM_CACHE``, or the user's cache of this system."""
    chosen = os.environ.get("ATTNORM_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("attnorm"))


def chosen(what: str) -> str:
    """The name to load where a call says ``"auto"``: the environment's, else that of ``data/choice.toml``.

    Parameters
    ----------
    what : {"model", "text"}

    Raises
    ------
    ValueError
        Naming the file, if it is not valid or has other entries.
    """
    variable = {"model": "ATTNORM_MODEL", "text": "ATTNORM_CORPUS"}[what]
    if name := os.environ.get(variable):
        return name
    path = DATA / "choice.toml"
    if not path.is_file():  # the library without the book
        return "auto"
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    wrong = [
        key for key, value in entries.items() if key not in ("model", "text") or not isinstance(value, str)
    ]
    if wrong:
        raise ValueError(f"{path}: expected model and text, each a name in quotes; found {', '.join(wrong)}")
    return entries.get(what, "auto")


def offline() -> bool:
    """True where the environment forbids the network: ``ATTNORM_OFFLINE`` set to anything but 0."""
    return os.environ.get("ATTNORM_OFFLINE", "0") not in ("", "0")


def silence(who: str) -> str:
    """Why a source cannot be asked: one clause for a message."""
    return "ATTNORM_OFFLINE is set" if offline() else f"{who} does not answer"


def answers(key: str, ask: Callable[[], bool], seconds: float) -> bool:
    """Ask the network once per process, and take silence for a no.

    Parameters
    ----------
    key : str
        Names the question; its answer is remembered.
    ask : callable
        Returns whether the source answered. An exception is a no.
    seconds : float
        Longest wait. The question runs in a thread of its own, because looking up a name has no time limit.
    """
    if offline():
        return False
    if key not in _answers:
        said: list[bool] = []

        def run():
            try:
                said.append(bool(ask()))
            except Exception:
                said.append(False)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(seconds)
        _answers[key] = bool(said and said[0])
    return _answers[key]


def url_answers(url: str, seconds: float = 2.0) -> bool:
    """Whether a web address can be read now; asked once per process, within `seconds`."""
    import requests

    def ask():
        with requests.head(url, allow_redirects=True, timeout=seconds) as response:
            return response.ok

    return answers(url, ask, seconds)


def run_bounded(command: list[str], seconds: float, *, show: bool = False, env: dict | None = None) -> str:
    """Run a program that may use the network, and end it with its children after `seconds`.

    Returns
    -------
    str
        Its standard output; empty where `show` sent that to the terminal.

    Raises
    ------
    SourceUnavailable
        If it failed or ran out of time; the message ends with its own last line.
    """
    pipe = None if show else subprocess.PIPE
    own_group = {"start_new_session": True} if os.name == "posix" else {}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=env, **own_group
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException as error:  # an interrupt must not leave a download running either
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise SourceUnavailable(f"gave up after {seconds:g} s: {' '.join(command[:4])}") from None
            raise
    if process.returncode:
        last = (err or "").strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        raise SourceUnavailable(last[0])
    return out or ""


def _end(process):
    if os.name == "posix":
        import signal

        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def terminal() -> bool:
    """True where a person watches: only then is progress shown."""
    return sys.stderr is not None and sys.stderr.isatty()


def sha256(path: Path) -> str:
    """Checksum of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(path: Path, expected: str, hint: str = "delete it, and the next call fetches it again") -> None:
    """Compare a file with the checksum that it should have.

    Raises
    ------
    ChecksumError
        Naming the file, if it is another one, or damaged.
    """
    found = sha256(path)
    if found != expected:
        raise ChecksumError(f"{path} has sha256 {found} and should have {expected}: {hint}")


def record_checksums(folder: Path) -> None:
    """Write the checksums of the files of a folder beside them."""
    sums = {p.relative_to(folder).as_posix(): sha256(p) for p in sorted(folder.rglob("*")) if p.is_file()}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def recorded_checksums(folder: Path) -> dict[str, str]:
    """Name to sha256 of the files of a folder, as written beside them.

    Raises
    ------
    ChecksumError
        If the record is missing or damaged.
    """
    record = folder / CHECKSUMS
    try:
        sums = json.loads(record.read_text(encoding="utf-8"))
        if not (isinstance(sums, dict) and sums):
            raise ValueError("it lists no file")
    except (OSError, ValueError) as error:
        raise ChecksumError(f"{record} cannot be read ({error})") from error
    return sums


def verify_checksums(folder: Path, hint: str = "") -> None:
    """Compare the files of a folder with the checksums recorded beside them.

    Parameters
    ----------
    folder : Path
    hint : str
        What the reader can do; by default to delete the folder.

    Raises
    ------
    ChecksumError
        Naming the file that is missing or differs, or the record itself.
    """
    hint = hint or f"delete the folder {folder}, and the next call makes it again"
    try:
        sums = recorded_checksums(folder)
    except ChecksumError as error:
        raise ChecksumError(f"{error}: {hint}") from error
    for name, expected in sums.items():
        if not (folder / name).is_file():
            raise ChecksumError(f"{folder / name} is missing: {hint}")
        verify(folder / name, expected, hint)


def keep(target: Path, make: Callable[[Path], Path]) -> Path:
    """Put what `make` returns at `target`: all of it, or nothing.

    Parameters
    ----------
    target : Path
        File or folder; returned at once if it is there.
    make : callable
        Takes an empty folder to work in, and returns the file or folder in it that is to be kept.

    Notes
    -----
    The work is done beside the target, so that the last step is one rename, and by one process at a time.
    A process that is killed cannot tidy up: the next one removes what it left.
    """
    from filelock import FileLock, Timeout

    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.parent / f".{target.name}.lock", timeout=FETCH_SECONDS)
    try:
        with lock:
            for leftover in target.parent.glob(f".{target.name}.partial-*"):
                shutil.rmtree(leftover)
            if not target.exists():
                work = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
                try:
                    os.replace(make(work), target)
                finally:
                    shutil.rmtree(work, ignore_errors=True)
    except Timeout:
        raise SourceUnavailable(f"another process has been fetching {target} for too long") from None
    return target

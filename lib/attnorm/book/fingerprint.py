"""The key of everything besides a chapter's own cells that its outputs depend on.

jupyter-cache compares cells only: a changed line in the library would leave pages stale.
The key names the folder of executed chapters, so any change there executes them all again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import platform
from pathlib import Path

WATCHED = ("lib/**/*.py", "lib/**/*.toml", "data/**/*")


def execution_key(root: Path, *, models: str | None = None) -> str:
    """Hash of library, data, lock file, installed versions, Python and models.

    Parameters
    ----------
    root : Path
        Folder of the book.
    models : str, optional
        Identity of the models and texts that can be had; asked of `attnorm.models` if not given.

    Returns
    -------
    str
        32 hexadecimal digits.
    """
    machine = (platform.python_version(), platform.system(), platform.machine())
    models = available_models() if models is None else models
    return _digest(root, watched_files(root), *installed_versions(), *machine, models)


def _digest(root: Path, files: list[Path], *words: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    for word in words:
        digest.update(word.encode() + b"\0")
    return digest.hexdigest()[:32]


def sources_key(root: Path, key: str) -> str:
    """Hash of `key` and of every file that pages are made from: equal hashes mean equal pages."""
    return _digest(root, [p for p in (*root.glob("*"), *root.glob("chapters/**/*")) if p.is_file()], key)


def watched_files(root: Path) -> list[Path]:
    """Files whose bytes enter the key, in a fixed order."""
    found = {path for pattern in WATCHED for path in root.glob(pattern) if path.is_file()}
    lock = root / "requirements.lock"
    if lock.is_file():
        found.add(lock)
    return sorted(path for path in found if "__pycache__" not in path.parts)


@functools.cache
def installed_versions() -> tuple[str, ...]:
    """`name==version` of every installed distribution, sorted."""
    return tuple(sorted({f"{d.name}=={d.version}" for d in importlib.metadata.distributions()}))


def available_models() -> str:
    """What `attnorm.models.available_fingerprint` says, or nothing where it does not exist."""
    try:
        models = importlib.import_module("attnorm.models")
    except ModuleNotFoundError as error:
        if error.name != "attnorm.models":
            raise
        return ""
    return str(models.available_fingerprint()) if hasattr(models, "available_fingerprint") else ""

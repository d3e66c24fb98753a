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
    digest = hashlib.sha256()
    for path in watched_files(root):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    for line in (*installed_versions(), platform.python_version(), platform.system(), platform.machine()):
        digest.update(line.encode() + b"\0")
    digest.update((available_models() if models is None else models).encode())
    return digest.hexdigest()[:32]


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

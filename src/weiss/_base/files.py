"""Files that are either complete or absent, and locks so that one process at a time makes them."""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

READ_BYTES = 2**20
"""How much of a file or a connection is read at a time."""


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` to write to; rename it to ``path`` on success.

    A reader sees the old file or the new one, never half of one. If the body raises, or the process
    dies, ``path`` is unchanged. Its folder is created.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not the process number: containers that share a folder have the same ones.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, names: str = r".+") -> None:
    """Remove temporary files that `replacing` left in a folder when its process was killed.

    No other process may write to the folder; `names` is a pattern of the names of final files.
    """
    pattern = re.compile(rf"\.(?:{names})\.[0-9a-f]{{8}}\.tmp")
    for path in folder.glob(".*.tmp"):
        if pattern.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Write a folder's names to the disk: a rename must survive a power cut."""
    if os.name != "posix":
        return
    with suppress(OSError):  # some file systems cannot
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def cache_folder() -> Path:
    """Return the user's cache folder for Weiss: ``$XDG_CACHE_HOME/weiss`` or ``~/.cache/weiss``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weiss"


@contextmanager
def alone(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock on a path, by a file beside it; the system releases it when the process ends.

    Without `wait` it raises BlockingIOError if another process holds the lock.
    """
    try:
        import fcntl
    except ImportError:  # not a Unix: continue without
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    while True:
        file = lock.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise
        except OSError:
            break  # a file system without locks: continue without
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(lock)):
                break
        file.close()  # its last owner removed it in the meantime
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        file.close()

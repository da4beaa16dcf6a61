"""Files that are either whole or not there, and one process at a time to make them."""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` to write to; rename it to ``path`` when all went well.

    A reader sees the old file or the new one, never half of one. If the body raises, or the process
    dies, ``path`` is as it was.

    Args:
        path: the file to make or to replace; its folder is created.

    Yields:
        The path to write to.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with replacing(folder / "note.txt") as temporary:
        ...     _ = temporary.write_text("whole")
        >>> (folder / "note.txt").read_text()
        'whole'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Containers that share a folder have the same process numbers.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _keep_name(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, names: str = r".+") -> None:
    """Remove what `replacing` left in a folder, not below it, when its process was killed.

    Args:
        folder: which nobody else writes to.
        names: a pattern of the files that were to be made.
    """
    pattern = re.compile(rf"\.(?:{names})\.[0-9a-f]{{8}}\.tmp")
    for path in folder.glob(".*.tmp"):
        if pattern.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _keep_name(folder: Path) -> None:
    """Bring a folder's names to the disk: a rename too must survive a power cut."""
    if os.name != "posix":
        return
    with suppress(OSError):  # a file system that cannot
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
    """Let one process at a time work on a path; a lock ends with its process, however it ends.

    Args:
        path: what is worked on; the lock is a file beside it.
        wait: wait for another process to finish, rather than raise BlockingIOError.
    """
    try:
        import fcntl
    except ImportError:  # not a Unix: go on without
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
            break  # a file system without locks: go on without
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(lock)):
                break
        file.close()  # its last owner has removed it in the meantime
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        file.close()

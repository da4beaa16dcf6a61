"""Files that are either complete or absent, and locks so that one process at a time makes them."""

import json
import os
import re
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

READ_BYTES = 2**20
"""How much of a file or a connection is read at a time."""
LARGEST_TEXT = 2**26
"""Bytes of a file of text that is read whole; ours are far smaller."""


def special_file(path: str | Path) -> str:
    """Return "a FIFO", "a socket" or "a device" if it is one: opening it can wait for ever.

    Empty for a file, for a folder, and if there is none: opening these fails at once or not at all.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return ""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    return "a FIFO" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


def refuse_special_file(path: str | Path, error: type[ValueError] = ValueError) -> None:
    """Refuse a FIFO, a socket or a device, before it is opened."""
    if kind := special_file(path):
        raise error(
            f"{path} must be a file; it is {kind}, not a regular file. Save its content to a file."
        )


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


def read_text(path: Path) -> str:
    """Return the text of a file that may be damaged or come from somebody else.

    Raises:
        ValueError: it is no text in UTF-8, or far too large.
    """
    if (size := path.stat().st_size) > LARGEST_TEXT:
        raise ValueError(
            f"{path} must have at most {LARGEST_TEXT:,} bytes; it has {size:,}. Restore it."
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8; {error}. Restore it.") from error


def json_object(text: str, name: object) -> dict[str, Any]:
    """Return the object that JSON text describes; ``name`` is where the text is from.

    Raises:
        ValueError: it is no JSON, no object, or nested too deeply.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON; it is cut off or changed: {error}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} must hold an object with names; got {type(found).__name__}.")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; see `read_text` and `json_object`."""
    return json_object(read_text(path), path)


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
        # Nothing is cut off, and no link is followed: somebody else may have made the folder.
        opened = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        file = os.fdopen(opened, "wb", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise
        except OSError:
            break  # a file system without locks: continue without
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(opened), os.lstat(lock)):
                break
        file.close()  # its last owner removed it in the meantime
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        file.close()

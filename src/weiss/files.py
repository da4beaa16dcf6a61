"""Files that are either whole or not there: write under another name, then rename."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Return the user's cache folder for Weiss: ``$XDG_CACHE_HOME/weiss`` or ``~/.cache/weiss``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weiss"

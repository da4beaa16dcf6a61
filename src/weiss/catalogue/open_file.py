"""A file that is read in parts while it is open.

A memory map would end the process without a message (SIGBUS) when another program cuts the file
off. Reading gives less than was asked for instead, which is an error like any other.
"""

import os
import threading
import weakref
from pathlib import Path

from weiss.catalogue.records import REPAIR, DamagedIndexError


class OpenFile:
    """A file of an index, as large as it was when it was opened; it can be read when deleted."""

    def __init__(self, path: Path) -> None:
        self._name, self._file = path.name, path.open("rb", buffering=0)
        weakref.finalize(self, self._file.close)
        self.size = os.fstat(self._file.fileno()).st_size
        self._lock = threading.Lock()

    def read(self, start: int, count: int) -> bytes:
        """Return the bytes of a part that was inside; DamagedIndexError if it is cut off."""
        return self.read_parts([start], [count])

    def read_parts(self, starts: list[int], counts: list[int]) -> bytes:
        """Return the bytes of some parts one after the other; see `read`."""
        if hasattr(os, "pread"):  # a fifth of the time
            pread, number = os.pread, self._file.fileno()
            parts = [pread(number, *part) for part in zip(counts, starts, strict=True)]
        else:
            parts = []
            with self._lock:
                for start, count in zip(starts, counts, strict=True):
                    self._file.seek(start)
                    parts.append(self._file.read(count))
        found = b"".join(parts)
        if len(found) != sum(counts):  # none can be longer than it should
            raise self._cut_off()
        return found

    def refuse_cut_off(self) -> None:
        """Raise DamagedIndexError if it has become shorter: a map of it must not be read."""
        if os.fstat(self._file.fileno()).st_size < self.size:
            raise self._cut_off()

    def _cut_off(self) -> DamagedIndexError:
        size = os.fstat(self._file.fileno()).st_size
        return DamagedIndexError(
            f"{self._name} of the index must have {self.size:,} bytes; it has {size:,}. It was cut "
            f"off while it was open. {REPAIR}"
        )

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
        if hasattr(os, "pread"):  # a fifth of the time
            found = os.pread(self._file.fileno(), count, start)
        else:
            with self._lock:
                self._file.seek(start)
                found = self._file.read(count)
        if len(found) != count:
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

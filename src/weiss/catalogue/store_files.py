"""The file of a faiss store: what faiss wrote, then ids, facts and two checksums.

The order lets faiss read, or map, the file by itself: it ignores what follows its own part.

    faiss's part | ids, int64 | facts, JSON | three lengths, SHA-256 twice, MARK

The first checksum is of everything. The second leaves out faiss's part but for its beginning, which
says what follows: to compare it takes no time, however many vectors there are.
"""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss._base.files import replacing

MARK = b"weissST2"
END = struct.Struct("<QQQ32s32s8s")
CHUNK = 1 << 20


def write_store(
    path: str | Path, write_index: Callable[[Path], None], ids: Array, facts: dict[str, Any]
) -> None:
    """Write a store to a file, which is then whole or as it was before.

    Args:
        path: the file.
        write_index: writes faiss's part to the path it is given.
        ids: int64 ``(n,)``.
        facts: what JSON can hold.
    """
    with replacing(path) as temporary:
        write_index(temporary)
        size = temporary.stat().st_size
        tail = ids.astype("<i8").tobytes()
        words = json.dumps(facts).encode()
        with temporary.open("rb+") as file:
            of_all = _digest(file, size, tail + words)
            of_facts = _digest(file, min(size, CHUNK), tail + words + of_all)
            file.seek(size)
            lengths = (size, len(tail), len(words))
            file.write(tail + words + END.pack(*lengths, of_all, of_facts, MARK))


def read_facts(path: Path, *, everything: bool = True) -> tuple[dict[str, Any], Array]:
    """Return the facts and the ids int64 ``(n,)`` of a store, once a checksum is right.

    Args:
        path: the file.
        everything: compare the checksum of all of it, not of ids, facts and the beginning alone.

    Raises:
        ValueError: the file is cut off, changed, or no store.
        FileNotFoundError: there is none.
    """
    refused = ValueError(
        f"{path.name} must be a store written by Weiss; it is cut off, changed or something else. "
        "Make the index again, or bring the file back from a copy."
    )
    whole = path.stat().st_size
    with path.open("rb") as file:
        if whole < END.size:
            raise refused
        file.seek(whole - END.size)
        size, num_tail, num_words, of_all, of_facts, mark = END.unpack(file.read(END.size))
        if mark != MARK or size + num_tail + num_words + END.size != whole:
            raise refused
        file.seek(size)
        tail, words = file.read(num_tail), file.read(num_words)
        is_right = _digest(file, min(size, CHUNK), tail + words + of_all) == of_facts
        if everything and is_right:
            is_right = _digest(file, size, tail + words) == of_all
        if not is_right:
            raise refused
    facts: dict[str, Any] = json.loads(words)
    return facts, np.frombuffer(tail, "<i8").astype(np.int64)


def _digest(file: Any, size: int, rest: bytes) -> bytes:
    """Return the SHA-256 of the first ``size`` bytes of a file, and of ``rest``."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0:
        chunk = file.read(min(CHUNK, size))
        if not chunk:
            break
        digest.update(chunk)
        size -= len(chunk)
    digest.update(rest)
    return digest.digest()

"""A decoding process: asked for images on standard input, it answers with their sizes.

This file and `weiss.images`, which it needs, import Pillow and nothing else that is large, so that
a process is ready in a twentieth of a second.
"""

import json
import mmap
import os
import signal
import sys
from typing import IO, Any

from weiss import images


class Shared:
    """A file in memory, mapped, as long as it has to be; both processes have one of the same file.

    Args:
        file: the open file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self._mapped: mmap.mmap | None = None

    def bytes(self, length: int) -> memoryview:
        """Return the first bytes; the file grows if it is shorter."""
        if self._mapped is None or len(self._mapped) < length:
            size = max(os.fstat(self.file.fileno()).st_size, length, mmap.PAGESIZE)
            os.ftruncate(self.file.fileno(), size)
            self._mapped = mmap.mmap(self.file.fileno(), size)
        return memoryview(self._mapped)[:length]


def say(pipe: IO[bytes], message: Any) -> None:
    """Send a message; one that nobody hears any more is dropped."""
    try:
        pipe.write(json.dumps(message).encode() + b"\n")
        pipe.flush()
    except BrokenPipeError:
        return  # the answer that never comes tells what happened


def serve() -> None:
    """Answer until standard input ends. Arguments: path, channels, short side, shared file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks; then input ends
    channels, short_side = int(sys.argv[2]), int(sys.argv[3]) or None
    shared = Shared(os.fdopen(int(sys.argv[4]), "r+b", buffering=0))
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    while line := questions.readline():
        sizes: list[tuple[int, int] | str] = []
        pieces = []
        for path in json.loads(line):
            try:
                image = images.read(path, channels, short_side)
                pieces.append(image.tobytes())
                sizes.append((image.height, image.width))
            except images.BadImageError as error:
                sizes.append(str(error))
        space, start = shared.bytes(sum(map(len, pieces))), 0
        for piece in pieces:
            space[start : start + len(piece)] = piece
            start += len(piece)
        say(answers, sizes)

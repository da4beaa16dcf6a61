"""A decoding process: asked for images on standard input, it answers with their sizes.

This file and `weiss._base.images`, which it needs, import Pillow and nothing else that is large, so
that a process is ready in a twentieth of a second.
"""

import json
import mmap
import os
import signal
import sys
from dataclasses import dataclass
from typing import IO, Any

from weiss._base import images


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


def say(pipe: IO[bytes], message: Any, content: bytes = b"") -> None:
    """Send a message, and bytes behind it; what nobody hears any more is dropped."""
    try:
        pipe.write(json.dumps(message).encode() + b"\n")
        pipe.write(content)
        pipe.flush()
    except BrokenPipeError:
        return  # the answer that never comes tells what happened


def serve(channels: str, short_side: str, shared_file: str) -> None:
    """Decode files until standard input ends.

    Args:
        channels: 3 for RGB, 1 for grey.
        short_side: what a longer shorter side is reduced to; 0 keeps it.
        shared_file: the descriptor of the memory for pixels.
    """
    questions, answers = _pipes()
    shared = Shared(os.fdopen(int(shared_file), "r+b", buffering=0))
    while line := questions.readline():
        sizes: list[tuple[int, int] | str] = []
        pieces = []
        for path in json.loads(line):
            try:
                image = images.read(path, int(channels), int(short_side) or None)
                pieces.append(image.tobytes())
                sizes.append((image.height, image.width))
            except images.BadImageError as error:
                sizes.append(str(error))
        space, start = shared.bytes(sum(map(len, pieces))), 0
        for piece in pieces:
            space[start : start + len(piece)] = piece
            start += len(piece)
        say(answers, sizes)


class Refused(ValueError):  # noqa: N818 - a stranger's picture is no error of ours
    """A stranger's picture that is not decoded.

    Args:
        kind: large, scans, kind (no picture), broken or memory; of a process that ended: slow.
        words: what of it.
    """

    def __init__(self, kind: str, words: str = "") -> None:
        super().__init__(words)
        self.kind = kind


@dataclass(frozen=True)
class Order:
    """What a process that decodes for strangers is told when it starts.

    Args:
        channels: 3 for RGB, 1 for grey.
        short_side: what a longer shorter side is reduced to; None keeps it.
        max_pixels: width times height of a picture.
        max_side: the longer side of a picture.
        seconds: how long a picture may take; a process that takes longer is ended by the system.
        memory: bytes of memory that the process may ask for, where the system keeps count.
    """

    channels: int
    short_side: int | None
    max_pixels: int
    max_side: int
    seconds: float
    memory: int


def serve_strangers(order: str) -> None:
    """Decode what strangers have sent until standard input ends, or time runs out.

    A question is a line with a number of bytes, and these; the answer a line with the size of the
    picture and that of its pixels, and these. Or it is a line with a word and what is wrong.

    Args:
        order: an `Order` as JSON.
    """
    told = Order(**json.loads(order))
    questions, answers = _pipes()
    # Code in C hears no exception and may run for minutes: the system ends all of it.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _limit_memory(told.memory)
    while line := questions.readline():
        signal.setitimer(signal.ITIMER_REAL, told.seconds)
        answer: list[Any]
        pixels = b""
        try:
            answer, pixels = read_strange(questions.read(int(line)), told)
        except Refused as error:
            answer = [error.kind, str(error)]
        except MemoryError:
            answer = ["memory", ""]
        signal.setitimer(signal.ITIMER_REAL, 0)
        say(answers, answer, pixels)


def read_strange(content: bytes, order: Order) -> tuple[list[Any], bytes]:
    """Return width and height as a file says them, then height and width of its pixels; and these.

    Args:
        content: of the file.
        order: the channels and the size it is to have, and what is too large.

    Raises:
        Refused: it is too large, no picture or a broken one.
    """
    try:
        size = images.look(content, max_pixels=order.max_pixels, max_side=order.max_side)
    except images.TooLargeImageError as error:
        raise Refused("large", str(error)) from error
    except images.BadImageError as error:
        raise Refused("kind") from error
    if (number := images.scans(content)) > images.MAX_SCANS:
        raise Refused("scans", f"has {number:,}")
    try:
        image = images.read(content, order.channels, order.short_side, formats=images.FORMATS)
    except images.BadImageError as error:
        is_memory = isinstance(error.__cause__, MemoryError)
        raise Refused("memory" if is_memory else "broken") from error
    return [*size, image.height, image.width], image.tobytes()


def _pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Return where questions come from and where answers go."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it was not started deaf to it already
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    return sys.stdin.buffer, answers


def _limit_memory(size: int) -> None:
    """Let this process ask for so many bytes and no more, where the system keeps count."""
    try:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        allowed = size if most == resource.RLIM_INFINITY else min(size, most)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, most))
    except (ImportError, AttributeError, ValueError, OSError):
        return

"""The child process that decodes images: it reads requests on standard input and answers them.

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


class SharedFile:
    """An open file in memory that parent and child map."""

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


def send(pipe: IO[bytes], message: Any, content: bytes = b"") -> None:
    """Write a line of JSON and bytes behind it; ignore a reader that no longer exists."""
    try:
        pipe.write(json.dumps(message).encode() + b"\n")
        pipe.write(content)
        pipe.flush()
    except BrokenPipeError:
        return  # the sender notices it when no answer comes


def serve_files(channels: str, short_side: str, scaled: str, shared_file: str) -> None:
    """Decode files until standard input ends.

    A request is a list of paths. The answer has for each file its height and width, or what is
    wrong with it; the pixels lie one after the other in the shared file, given by its descriptor.
    Numbers are given as text: a shorter side of 0 keeps images as they are, `scaled` is 0 or 1.
    """
    requests, answers = _pipes()
    shared = SharedFile(os.fdopen(int(shared_file), "r+b", buffering=0))
    while line := requests.readline():
        sizes: list[tuple[int, int] | str] = []
        pieces = []
        for path in json.loads(line):
            try:
                side, is_scaled = int(short_side) or None, bool(int(scaled))
                image = images.read(path, int(channels), side, scaled=is_scaled)
                pieces.append(image.tobytes())
                sizes.append((image.height, image.width))
            except images.BadImageError as error:
                sizes.append(str(error))
        space, start = shared.bytes(sum(map(len, pieces))), 0
        for piece in pieces:
            space[start : start + len(piece)] = piece
            start += len(piece)
        send(answers, sizes)


class RefusedUpload(ValueError):  # noqa: N818 - a refused upload is no error of the program
    """An untrusted upload that is not decoded.

    Args:
        kind: large, scans, kind (no image), broken or memory; slow if the process took too long;
            costly if another process should decode it.
        words: details.
    """

    def __init__(self, kind: str, words: str = "") -> None:
        super().__init__(words)
        self.kind = kind


@dataclass(frozen=True)
class UploadSettings:
    """How a process decodes untrusted uploads, and what it refuses.

    Args:
        channels: 3 for RGB, 1 for grey.
        short_side: reduce a longer shorter side to this; None keeps it.
        max_pixels: the largest width times height.
        max_side: the largest width, and the largest height.
        seconds: how long an image may take; the system ends a process that takes longer.
        memory: bytes of memory that the process may use, where the system enforces it.
        max_cost: the largest number of pixels, times the scans of a JPEG file, that this process
            decodes; a more costly image is not refused for good. None for any.
        scaled: decode a JPEG file at a fraction of its size, see `weiss._base.images.decode`.
    """

    channels: int
    short_side: int | None
    max_pixels: int
    max_side: int
    seconds: float
    memory: int
    max_cost: int | None = None
    scaled: bool = False


def serve_uploads(settings: str) -> None:
    """Decode untrusted uploads until standard input ends, or time runs out.

    A request is a line with a number of bytes, and these bytes. The answer is a line with the size
    of the image and of its pixels, and the pixels; or a line with the kind of refusal and details.
    `settings` are `UploadSettings` as JSON.
    """
    told = UploadSettings(**json.loads(settings))
    requests, answers = _pipes()
    # Code in C cannot be interrupted by an exception: the signal ends the whole process.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _limit_memory(told.memory)
    while line := requests.readline():
        signal.setitimer(signal.ITIMER_REAL, told.seconds)
        answer: list[Any]
        pixels = b""
        try:
            answer, pixels = read_upload(requests.read(int(line)), told)
        except RefusedUpload as error:
            answer = [error.kind, str(error)]
        except MemoryError:
            answer = ["memory", ""]
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(answers, answer, pixels)


def read_upload(content: bytes, settings: UploadSettings) -> tuple[list[Any], bytes]:
    """Return width and height in the file's header, height and width of the pixels; and these.

    Raises:
        RefusedUpload: the upload is too large, no image or a broken one.
    """
    try:
        size = images.look(content, max_pixels=settings.max_pixels, max_side=settings.max_side)
    except images.TooLargeImageError as error:
        raise RefusedUpload("large", str(error)) from error
    except images.BadImageError as error:
        raise RefusedUpload("kind") from error
    if (number := images.scans(content)) > images.MAX_SCANS:
        raise RefusedUpload("scans", f"has {number:,}")
    if settings.max_cost and size[0] * size[1] * max(1, number) > settings.max_cost:
        raise RefusedUpload("costly")
    try:
        image = images.read(
            content,
            settings.channels,
            settings.short_side,
            scaled=settings.scaled,
            formats=images.FORMATS,
        )
    except images.BadImageError as error:
        is_memory = isinstance(error.__cause__, MemoryError)
        raise RefusedUpload("memory" if is_memory else "broken") from error
    return [*size, image.height, image.width], image.tobytes()


def _pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Return the pipe of requests and the pipe of answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    return sys.stdin.buffer, answers


def _limit_memory(size: int) -> None:
    """Limit the bytes that this process may use, where the system enforces it."""
    try:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        allowed = size if most == resource.RLIM_INFINITY else min(size, most)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, most))
    except (ImportError, AttributeError, ValueError, OSError):
        return

"""Image files decoded by every core: processes that write pixels into a file others map.

Why processes of our own and not threads or `multiprocessing`: Pillow holds Python's lock for a
sixth of its work, which stops sixteen threads from being sixteen times one; and `multiprocessing`
runs a caller's script again in every child unless it is guarded. A child here is a bare interpreter
that imports NumPy and Pillow, and nothing of the caller.

Protocol, one JSON line each way. To the child: a list of paths. Back: for each image its height
and width, or a message. To the child: which open file, and from which byte. The child writes the
pixels of the good ones there, one after the other, and says "done".
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from weiss import images

Array = np.ndarray[Any, Any]
PATIENCE = 10.0
"""Seconds a child may take to end after it was told to."""
_CHILD = "import sys; sys.path.append(sys.argv[1]); from weiss.decoding import serve; serve()"


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_file() -> IO[bytes]:
    """Open a file that lives in memory where the system can, else a temporary one; it has no name.

    Unlike shared memory under ``/dev/shm`` it has no limit but the memory itself.
    """
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("weiss"), "w+b", buffering=0)
    return cast(IO[bytes], tempfile.TemporaryFile(buffering=0))


@dataclass(frozen=True)
class Decoded:
    """What became of some image files.

    Args:
        starts: for each the first byte of its pixels in the file they were written to; -1 if bad.
        sizes: for each its height and width; zeros if bad.
        errors: position among the files -> what is wrong with it.
    """

    starts: list[int]
    sizes: list[tuple[int, int]]
    errors: dict[int, str]


class Decoders:
    """A pool of decoding processes that write into a few open files.

    Args:
        num_workers: how many processes.
        files: the open files to write into; `submit` says which.
        channels: 3 for RGB, 1 for grey.
        short_side: reduce the shorter side of larger images to this; None keeps them.
    """

    def __init__(
        self,
        num_workers: int,
        files: Sequence[IO[bytes]],
        *,
        channels: int = 3,
        short_side: int | None = None,
    ) -> None:
        self._files = [file.fileno() for file in files]
        self._ends = [0] * len(files)
        self._lock = threading.Lock()
        self._channels, self._short_side = channels, short_side
        self._mine = threading.local()
        self._children: list[subprocess.Popen[bytes]] = []
        # One thread for each child: it talks to that child alone and waits for it.
        self._threads = ThreadPoolExecutor(num_workers, "weiss-decode", self._start_child)

    def submit(self, paths: Sequence[str | Path], file: int = 0) -> "Future[Decoded]":
        """Decode some files, and append the pixels to one of the open files."""
        return self._threads.submit(self._decode, [os.fspath(path) for path in paths], file)

    def rewind(self, file: int) -> None:
        """Write from the start of a file again; what it held is no longer needed."""
        with self._lock:
            self._ends[file] = 0

    def end(self, file: int = 0) -> int:
        """Return how many bytes of a file are taken."""
        return self._ends[file]

    def close(self) -> None:
        """Drop what is not begun, and end the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            if child.stdin is not None:
                try:
                    child.stdin.close()
                except BrokenPipeError:
                    continue
        for child in self._children:
            try:
                child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._threads.shutdown(wait=True)
        for child in self._children:
            if child.stdout is not None:
                child.stdout.close()

    def __enter__(self) -> "Decoders":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        self.close()

    def _start_child(self) -> None:
        root = str(Path(__file__).parents[1])
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, root, str(self._channels), str(self._short_side or 0)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=self._files,
        )
        self._mine.child = child
        with self._lock:
            self._children.append(child)

    def _decode(self, paths: list[str], file: int) -> Decoded:
        _say(self._pipe("stdin"), paths)
        answers = self._hear()
        num_bytes = [0 if isinstance(a, str) else a[0] * a[1] * self._channels for a in answers]
        with self._lock:
            start = self._ends[file]
            self._ends[file] += sum(num_bytes)
        _say(self._pipe("stdin"), [self._files[file], start])
        self._hear()
        starts, sizes, errors = [], [], {}
        for position, answer in enumerate(answers):
            if isinstance(answer, str):
                errors[position] = answer
                starts.append(-1)
                sizes.append((0, 0))
                continue
            starts.append(start)
            sizes.append((answer[0], answer[1]))
            start += num_bytes[position]
        return Decoded(starts, sizes, errors)

    def _hear(self) -> Any:
        line = self._pipe("stdout").readline()
        if not line:
            status = self._mine.child.wait()
            raise RuntimeError(
                f"a decoding process must answer; it ended with status {status}. If that is -9 "
                "memory ran out: use fewer workers, or reduce the images first."
            )
        return json.loads(line)

    def _pipe(self, name: str) -> IO[bytes]:
        return cast(IO[bytes], getattr(self._mine.child, name))


def _say(pipe: IO[bytes], message: Any) -> None:
    try:
        pipe.write(json.dumps(message).encode() + b"\n")
        pipe.flush()
    except BrokenPipeError:
        return  # the answer that never comes tells what happened


def serve() -> None:
    """Be a decoding process: answer on standard output what standard input asks, until it ends."""
    channels, short_side = int(sys.argv[2]), int(sys.argv[3]) or None
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    while line := questions.readline():
        found: list[Array | str] = []
        for path in json.loads(line):
            try:
                found.append(images.decode(path, channels, short_side))
            except images.BadImageError as error:
                found.append(str(error))
        _say(answers, [item if isinstance(item, str) else item.shape[:2] for item in found])
        file, start = json.loads(questions.readline())
        for item in found:
            if not isinstance(item, str):
                start += write_at(file, np.ascontiguousarray(item), start)
        _say(answers, "done")


def write_at(file: int, pixels: Array, start: int) -> int:
    """Write an array's bytes at a place of an open file; return how many."""
    view = pixels.data.cast("B")
    written = 0
    while written < len(view):
        written += os.pwrite(file, view[written:], start + written)
    return written

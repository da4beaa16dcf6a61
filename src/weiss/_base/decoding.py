"""Image files decoded by every core, in processes of their own.

Why not threads: Pillow holds Python's lock for a sixth of its work, which stops sixteen threads
from being sixteen times one. Why not `multiprocessing`: it runs a caller's script again in every
child unless the script is guarded. A child here is a bare interpreter that imports Pillow, and
nothing of the caller (`weiss._base.decoder`).

Each child shares a file in memory with this process. It is asked for some images, writes their
pixels there one after the other, and answers with their sizes; one JSON line each way. A thread for
each child waits for the answer and hands the bytes to whoever asked, before it asks for more.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from weiss._base.decoder import Shared, say

Sink = Callable[[memoryview], int]
"""Takes the pixels of some images, good until it returns; says at which byte it has put them."""
PATIENCE = 10.0
"""Seconds a child may take to end after it was told to."""
# With -P a child does not look for modules where it was started; it looks where this process does.
_CHILD = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "import weiss._base.decoder; getattr(weiss._base.decoder, sys.argv[2])(*sys.argv[3:])"
)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start_child(function: str, *arguments: object, **options: Any) -> "subprocess.Popen[bytes]":
    """Start a process that calls a function of `weiss._base.decoder`, with pipes to it and from it.

    Ctrl-C is for whoever asks, and reaches all of a terminal's processes: the child is deaf to it
    from its first moment, for what it inherits is this thread's mask of signals.

    Args:
        function: its name.
        arguments: what it is given, as text.
        options: more of `subprocess.Popen`.
    """
    places = [str(Path(__file__).parents[1]), *(place for place in sys.path if place)]
    given = map(str, arguments)
    command = [sys.executable, "-P", "-c", _CHILD, json.dumps(places), function, *given]
    with _deaf_to_interrupts():
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Keep interrupts from this thread and from the processes that it starts."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class Decoded:
    """What became of some image files.

    Args:
        starts: for each the first byte of its pixels where the sink put them; -1 if bad.
        sizes: for each its height and width; zeros if bad.
        errors: position among the files -> what is wrong with it.
    """

    starts: list[int]
    sizes: list[tuple[int, int]]
    errors: dict[int, str]


@dataclass
class _Child:
    """A decoding process and the memory shared with it."""

    process: "subprocess.Popen[bytes]"
    shared: Shared

    @property
    def questions(self) -> IO[bytes]:
        return cast(IO[bytes], self.process.stdin)

    @property
    def answers(self) -> IO[bytes]:
        return cast(IO[bytes], self.process.stdout)


class Decoders:
    """A pool of decoding processes.

    Args:
        num_workers: how many processes.
        channels: 3 for RGB, 1 for grey.
        short_side: reduce the shorter side of larger images to this; None keeps them.
    """

    def __init__(
        self, num_workers: int, *, channels: int = 3, short_side: int | None = None
    ) -> None:
        self._channels, self._short_side = channels, short_side
        self._mine = threading.local()
        self._children: list[_Child] = []
        self._starting = threading.Lock()
        self._closed = False
        # One thread for each child: it talks to that child alone.
        self._threads = ThreadPoolExecutor(num_workers, "weiss-decode")

    def submit(self, paths: Sequence[str | Path], sink: Sink) -> "Future[Decoded]":
        """Decode some files and hand their pixels to a sink, which may run in any thread."""
        return self._threads.submit(self._decode, [os.fspath(path) for path in paths], sink)

    def close(self) -> None:
        """Drop what is not begun, and end the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._starting:  # whoever is not there by now never will be
            self._closed = True
        for child in self._children:
            try:
                child.questions.close()
            except BrokenPipeError:
                continue
        for child in self._children:
            try:
                child.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        self._threads.shutdown(wait=True)
        for child in self._children:
            child.answers.close()
            child.shared.file.close()

    def __enter__(self) -> "Decoders":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        self.close()

    def _child(self) -> _Child:
        """Return the process of this thread; a new one if it has none."""
        if not hasattr(self._mine, "child"):
            with self._starting:
                if self._closed:
                    raise CancelledError
                file = _memory_file()
                number = file.fileno()
                process = start_child(
                    "serve", self._channels, self._short_side or 0, number, pass_fds=[number]
                )
                self._mine.child = _Child(process, Shared(file))
                self._children.append(self._mine.child)
        return cast(_Child, self._mine.child)

    def _decode(self, paths: list[str], sink: Sink) -> Decoded:
        child = self._child()
        say(child.questions, paths)
        line = child.answers.readline()
        if not line:
            raise RuntimeError(
                "a decoding process must answer; it ended with status "
                f"{child.process.wait()}. Its last words, if any, are above; -9 or -7 mean that "
                "memory ran out: use fewer workers, or reduce the images first."
            )
        answers = json.loads(line)
        lengths = [0 if isinstance(a, str) else a[0] * a[1] * self._channels for a in answers]
        start = sink(child.shared.bytes(sum(lengths)))
        starts, sizes, errors = [], [], {}
        for position, (answer, length) in enumerate(zip(answers, lengths, strict=True)):
            if isinstance(answer, str):
                errors[position] = answer
            starts.append(-1 if isinstance(answer, str) else start)
            sizes.append((0, 0) if isinstance(answer, str) else (answer[0], answer[1]))
            start += length
        return Decoded(starts, sizes, errors)


def _memory_file() -> IO[bytes]:
    """Open a file without a name that lives in memory where the system can.

    Unlike those under ``/dev/shm`` it has no limit but the memory itself.
    """
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("weiss"), "w+b", buffering=0)
    return cast(IO[bytes], tempfile.TemporaryFile(buffering=0))

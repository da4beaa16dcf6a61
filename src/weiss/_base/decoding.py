"""A pool of processes that decode images, one for each core.

Why not threads: Pillow holds Python's lock for a sixth of its work, so sixteen threads are not
sixteen times as fast as one. Why not `multiprocessing`: it runs a caller's script again in every
child unless the script is guarded. A child here is a bare interpreter that imports Pillow, and
nothing of the caller (`weiss._base.decoder`).

`Decoders` shares a file in memory with each child. A child is asked for some images, writes their
pixels there one after the other, and answers with their sizes; one JSON line each way. A thread for
each child waits for the answer and hands the bytes to a sink, before it asks for more.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from weiss._base.decoder import SharedFile, send
from weiss._base.images import UNREDUCED, Reduction

T = TypeVar("T")
Sink = Callable[[memoryview], int]
"""Takes the pixels of some images, valid until it returns; returns the byte where it put them."""
CHUNK = 16
"""Images a process decodes for one request: enough that messages cost little beside decoding."""
# With -P a child does not look for modules where it was started; it looks where this process does.
_CHILD = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from weiss._base.parent import end_with; end_with(int(sys.argv[2])); "
    "from weiss._base import decoder; getattr(decoder, sys.argv[3])(*sys.argv[4:])"
)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start_child(function: str, *arguments: object, **options: Any) -> "subprocess.Popen[bytes]":
    """Start a process that calls a function of `weiss._base.decoder`, with pipes to it and from it.

    Ctrl-C reaches all processes of a terminal. The child ignores it from its start, because it
    inherits the signal mask of this thread. It ends with this thread and this process (see
    `weiss._base.parent`). Options are those of `subprocess.Popen`.
    """
    places = [str(Path(__file__).parents[2]), *(place for place in sys.path if place)]
    given = map(str, (os.getpid(), function, *arguments))
    command = [sys.executable, "-P", "-c", _CHILD, json.dumps(places), *given]
    with _interrupts_blocked():
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(eq=False)
class Child:
    """A decoding process and, if it decodes files, the memory shared with it."""

    process: "subprocess.Popen[bytes]"
    shared: SharedFile | None = None

    @property
    def requests(self) -> IO[bytes]:
        """The pipe to the process."""
        return cast(IO[bytes], self.process.stdin)

    @property
    def answers(self) -> IO[bytes]:
        """The pipe from the process."""
        return cast(IO[bytes], self.process.stdout)

    def release(self) -> None:
        """Wait for the process, which has ended or was killed, and close what belongs to it."""
        self.process.wait()
        for pipe in (self.requests, self.answers):
            with suppress(BrokenPipeError):
                pipe.close()
        if self.shared is not None:
            self.shared.file.close()


class PoolClosedError(RuntimeError):
    """The pool was closed before the work was done."""


class ChildPool:
    """Decoding processes, each with a thread that talks to it alone.

    A process starts when a thread first needs it, and is replaced when it has died.

    Args:
        num_workers: how many processes at most.
        start: starts a process.
    """

    def __init__(self, num_workers: int, start: Callable[[], Child]) -> None:
        self._start = start
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(num_workers, "weiss-decode")
        self.children: set[Child] = set()
        self.is_closed = False

    def submit(self, task: Callable[..., T], *arguments: object) -> "Future[T]":
        """Run a task in one of the threads; it calls `child` for its process."""
        return self._threads.submit(task, *arguments)

    def child(self) -> Child:
        """Return the process of this thread.

        Raises:
            PoolClosedError: the pool is closed, so no process is started.
        """
        child: Child | None = getattr(self._of_thread, "child", None)
        if child is not None and child.process.poll() is None:
            return child
        with self._lock:
            if self.is_closed:
                raise PoolClosedError("the pool of decoding processes is closed")
            if child is not None:
                self.children.discard(child)
                child.release()
            child = self._of_thread.child = self._start()
            self.children.add(child)
        return child

    def close(self) -> None:
        """Cancel what has not begun and kill the processes, whatever they are doing."""
        with self._lock:
            self.is_closed = True
        for child in self.children:
            child.process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for child in self.children:
            child.release()


@dataclass
class Decoded:
    """The result of decoding some image files.

    Args:
        starts: for each the first byte of its pixels where the sink put them; -1 if bad.
        sizes: for each its height and width; zeros if bad.
        errors: position among the files -> what is wrong with it.
    """

    starts: list[int] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)


def collect(chunks: "Iterable[Future[Decoded]]") -> Decoded:
    """Wait for chunks of files and return their results as one, in the order of the files."""
    whole = Decoded()
    for chunk in chunks:
        part, first = chunk.result(), len(whole.starts)
        whole.starts += part.starts
        whole.sizes += part.sizes
        whole.errors |= {first + position: error for position, error in part.errors.items()}
    return whole


class Decoders(AbstractContextManager["Decoders"]):
    """Processes that decode image files.

    Args:
        num_workers: how many processes.
        channels: 3 for RGB, 1 for grey.
        reduction: how they make images smaller.
    """

    def __init__(
        self, num_workers: int, *, channels: int = 3, reduction: Reduction = UNREDUCED
    ) -> None:
        self._channels, self._reduction = channels, reduction
        self.pool = ChildPool(num_workers, self._start)

    def submit(self, paths: Sequence[str | Path], sink: Sink) -> "Future[Decoded]":
        """Decode some files and hand their pixels to a sink, which may run in any thread."""
        return self.pool.submit(self._decode, [os.fspath(path) for path in paths], sink)

    def submit_all(self, paths: Sequence[str | Path], sink: Sink) -> "list[Future[Decoded]]":
        """Decode files in chunks of `CHUNK`, by all processes; see `collect`."""
        return [self.submit(paths[i : i + CHUNK], sink) for i in range(0, len(paths), CHUNK)]

    def close(self) -> None:
        """Cancel what has not begun and end the processes."""
        self.pool.close()

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        self.close()

    def _start(self) -> Child:
        file = _memory_file()
        number = file.fileno()
        side, is_scaled = self._reduction.short_side or 0, int(self._reduction.scaled)
        process = start_child(
            "serve_files", self._channels, side, is_scaled, number, pass_fds=[number]
        )
        return Child(process, SharedFile(file))

    def _decode(self, paths: list[str], sink: Sink) -> Decoded:
        child = self.pool.child()
        send(child.requests, paths)
        line = child.answers.readline()
        if not line:
            raise RuntimeError(
                "a decoding process must answer; it ended with status "
                f"{child.process.wait()}. Its error output, if any, is above; -9 or -7 mean that "
                "memory ran out: use fewer workers, or reduce the images first."
            )
        answers = json.loads(line)
        lengths = [0 if isinstance(a, str) else a[0] * a[1] * self._channels for a in answers]
        assert child.shared is not None
        start = sink(child.shared.bytes(sum(lengths)))
        decoded = Decoded()
        for position, (answer, length) in enumerate(zip(answers, lengths, strict=True)):
            is_bad = isinstance(answer, str)
            if is_bad:
                decoded.errors[position] = answer
            decoded.starts.append(-1 if is_bad else start)
            decoded.sizes.append((0, 0) if is_bad else (answer[0], answer[1]))
            start += length
        return decoded


def _memory_file() -> IO[bytes]:
    """Open a file in memory, without the limit of those under ``/dev/shm``."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("weiss"), "w+b", buffering=0)
    return cast(IO[bytes], tempfile.TemporaryFile(buffering=0))

"""Pictures of strangers, decoded in processes of their own that can be ended.

A small file can keep a decoder busy for minutes, or make it ask for all the memory there is. So
nothing of it is decoded here: a few processes do that, each with a deadline and a limit of memory
(`weiss._base.decoder.serve_strangers`). They stay for the next picture; one that came to an end is
replaced when somebody needs it. A child is a bare interpreter with Pillow, started without a copy
of this process.
"""

import io
import json
import math
import os
import signal
import subprocess
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import IO, cast

import numpy as np

from weiss._base.arrays import Array
from weiss._base.decoder import Order, Refused
from weiss._base.decoding import start_child
from weiss.server.batching import ClosedError

Picture = tuple[Array, tuple[int, int]]
"""Pixels, uint8 ``(height, width, channels)``, and width and height as the file says them."""


class Workers:
    """Processes that decode; each has a thread that waits for it.

    Args:
        number: how many at most; they are started when they are needed.
        order: what they make of a picture, and how much it may cost.
    """

    def __init__(self, number: int, order: Order) -> None:
        self._order = order
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._children: set[subprocess.Popen[bytes]] = set()
        self._closed = False
        self._threads = ThreadPoolExecutor(number, thread_name_prefix="decode")

    def warm(self) -> None:
        """Start a process, so that the first picture does not wait for it."""
        self._threads.submit(self._child)

    def decode(self, content: bytes) -> "Future[Picture]":
        """Decode a picture; the future raises `Refused`, or `ClosedError` if there is no time."""
        if self._closed:
            raise ClosedError("the server is being stopped")
        return self._threads.submit(self._decode, content)

    def close(self) -> None:
        """End all processes at once; whatever they were doing is dropped."""
        with self._lock:
            self._closed = True
            children = list(self._children)
        for child in children:
            child.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for child in children:
            self._bury(child)

    def _child(self) -> "subprocess.Popen[bytes]":
        """Return the process of this thread; a new one if it has none that lives."""
        child: subprocess.Popen[bytes] | None = getattr(self._mine, "child", None)
        if child is not None and child.poll() is None:
            return child
        with self._lock:
            if self._closed:
                raise ClosedError("the server is being stopped")
            if child is not None:
                self._bury(child)
            self._mine.child = start_child(
                "serve_strangers",
                json.dumps(asdict(self._order)),
                stderr=subprocess.DEVNULL,  # what a codec says of a stranger's file
                # Idle threads of a linear algebra library would eat the memory that is allowed.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
            self._children.add(self._mine.child)
            return cast("subprocess.Popen[bytes]", self._mine.child)

    def _bury(self, child: "subprocess.Popen[bytes]") -> None:
        child.wait()
        self._children.discard(child)
        for pipe in (child.stdin, child.stdout):
            with suppress(BrokenPipeError):
                cast(IO[bytes], pipe).close()

    def _decode(self, content: bytes) -> Picture:
        child = self._child()
        questions, answers = cast(IO[bytes], child.stdin), cast(IO[bytes], child.stdout)
        with suppress(BrokenPipeError):
            questions.write(b"%d\n" % len(content))
            questions.write(content)
            questions.flush()
        line = answers.readline()
        if not line:
            raise self._ended(child)
        answer = json.loads(line)
        if isinstance(answer[0], str):
            raise Refused(*answer)
        width, height, *shape = answer
        # In memory that can be written to: PyTorch warns of any other.
        pixels = bytearray(math.prod(shape) * self._order.channels)
        if cast(io.BufferedReader, answers).readinto(pixels) != len(pixels):
            raise self._ended(child)
        return np.frombuffer(pixels, np.uint8).reshape(*shape, -1), (width, height)

    def _ended(self, child: "subprocess.Popen[bytes]") -> Exception:
        """Return what to say of a process that has come to an end instead of answering."""
        status = child.wait()
        if self._closed:
            return ClosedError("the server is being stopped")
        return Refused("slow" if status == -signal.SIGALRM else "broken")

"""Untrusted uploads, decoded in processes of their own that can be killed.

A small file can keep a decoder busy for minutes, or make it ask for all the memory there is. So
nothing of it is decoded in this process: a few others do that, each with a deadline and a limit of
memory (`weiss._base.decoder.serve_uploads`). They stay for the next upload; one that died is
replaced when it is needed (`weiss._base.decoding.ChildPool`).

There are two lanes, each with its own processes. Every upload comes to the quick lane, which reads
its header, refuses it or decodes it if it is small. The others go on to the lane of large pictures:
so nobody waits behind them for a refusal, or for a small picture. In both lanes clients take turns.
"""

import asyncio
import io
import json
import math
import os
import signal
import subprocess
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, replace
from typing import cast

import numpy as np

from weiss._base.arrays import Array
from weiss._base.decoder import RefusedUpload, UploadSettings
from weiss._base.decoding import Child, ChildPool, PoolClosedError, start_child
from weiss.server.batching import STOPPED, Slots
from weiss.server.limits import UnavailableError

Picture = tuple[Array, tuple[int, int]]
"""Pixels, uint8 ``(height, width, channels)``, and width and height in the file's header."""
QUICK_COST = 4_000_000
"""Pixels, times scans, of a small picture; to decode it takes about a tenth of a second."""
QUICK_SECONDS = 3.0
"""A picture that takes the quick lane longer goes to the lane of large ones."""


class UploadDecoders:
    """Processes that decode uploads.

    Args:
        number: how many at most in each lane; they are started when they are needed.
        settings: how they decode an upload, and how much it may cost.
        max_large: large pictures that wait or are decoded.
    """

    def __init__(self, number: int, settings: UploadSettings, max_large: int = 32) -> None:
        seconds = min(settings.seconds, QUICK_SECONDS)
        quick = replace(settings, seconds=seconds, max_cost=QUICK_COST)
        self._quick, self._large = _Lane(number, quick), _Lane(number, settings)
        self._places = Slots(max_large, "large pictures")

    def warm(self) -> None:
        """Start a process, so that the first upload does not wait for it."""
        self._quick.warm()

    async def decode(self, content: bytes, client: str, seconds: float) -> Picture:
        """Decode an upload, if a process is free for it within some seconds.

        Raises:
            RefusedUpload: it is not decoded.
            UnavailableError: no process was free in time, or after `close`.
        """
        deadline = time.monotonic() + seconds
        try:
            return await _in_time(self._quick.submit(content, client), deadline)
        except RefusedUpload as error:
            # A slow picture gets the time of a large one.
            if error.kind not in ("costly", "slow"):
                raise
        with self._places.take(client):
            return await _in_time(self._large.submit(content, client), deadline)

    def close(self) -> None:
        """End all processes at once, whatever they are doing."""
        self._quick.close()
        self._large.close()


async def _in_time(future: "Future[Picture]", deadline: float) -> Picture:
    """Return what is decoded, if that has begun in time; its own deadline ends it then."""
    answer = asyncio.wrap_future(future)
    try:
        done, _ = await asyncio.wait({answer}, timeout=deadline - time.monotonic())
        if not done and future.cancel():
            raise UnavailableError("a picture needs a free decoder; all were busy for too long")
        return await answer
    finally:
        answer.cancel()


class _Lane:
    """Some processes, and the uploads that wait for them."""

    def __init__(self, number: int, settings: UploadSettings) -> None:
        self._settings = settings
        self._pool = ChildPool(number, self._start)
        self._lock = threading.Lock()
        # The first client's turn is next; then it comes last.
        self._waiting: dict[str, deque[tuple[bytes, Future[Picture]]]] = {}

    def warm(self) -> None:
        self._pool.submit(self._pool.child)

    def submit(self, content: bytes, client: str) -> "Future[Picture]":
        """Decode an upload; the future can be cancelled until that begins."""
        answer: Future[Picture] = Future()
        with self._lock:
            if self._pool.is_closed:
                raise UnavailableError(STOPPED)
            self._waiting.setdefault(client, deque()).append((content, answer))
            self._pool.submit(self._next)
        return answer

    def _next(self) -> None:
        """Decode an upload of the client whose turn it is."""
        with self._lock:
            client = next(iter(self._waiting))
            uploads = self._waiting.pop(client)
            content, answer = uploads.popleft()
            if uploads:
                self._waiting[client] = uploads
        if answer.set_running_or_notify_cancel():
            try:
                answer.set_result(self._decode(content))
            except Exception as error:
                answer.set_exception(error)

    def close(self) -> None:
        self._pool.close()
        with self._lock:
            for uploads in self._waiting.values():
                for _, answer in uploads:
                    answer.cancel()

    def _start(self) -> Child:
        process = start_child(
            "serve_uploads",
            json.dumps(asdict(self._settings)),
            stderr=subprocess.DEVNULL,  # messages of a codec about an untrusted file
            # Idle threads of a linear algebra library would use the memory that is allowed.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        return Child(process)

    def _decode(self, content: bytes) -> Picture:
        """Decode an upload in the process of this thread."""
        try:
            child = self._pool.child()
        except PoolClosedError as error:
            raise UnavailableError(STOPPED) from error
        with suppress(BrokenPipeError):
            child.requests.write(b"%d\n" % len(content))
            child.requests.write(content)
            child.requests.flush()
        line = child.answers.readline()
        if not line:
            raise self._ended(child)
        answer = json.loads(line)
        if isinstance(answer[0], str):
            raise RefusedUpload(*answer)
        width, height, *shape = answer
        # In memory that can be written to: PyTorch warns of any other.
        pixels = bytearray(math.prod(shape) * self._settings.channels)
        if cast(io.BufferedReader, child.answers).readinto(pixels) != len(pixels):
            raise self._ended(child)
        return np.frombuffer(pixels, np.uint8).reshape(*shape, -1), (width, height)

    def _ended(self, child: Child) -> Exception:
        """Return the error for a process that ended instead of answering."""
        status = child.process.wait()
        if self._pool.is_closed:
            return UnavailableError(STOPPED)
        return RefusedUpload("slow" if status == -signal.SIGALRM else "broken")

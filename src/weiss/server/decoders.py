"""Untrusted uploads, decoded in processes of their own that can be killed.

A small file can keep a decoder busy for minutes, or make it ask for all the memory there is. So
nothing of it is decoded in this process: a few others do that, each with a deadline and a limit of
memory (`weiss._base.decoder.serve_uploads`). They stay for the next upload; one that died is
replaced when it is needed (`weiss._base.decoding.ChildPool`).
"""

import io
import json
import math
import os
import signal
import subprocess
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from typing import cast

import numpy as np

from weiss._base.arrays import Array
from weiss._base.decoder import RefusedUpload, UploadSettings
from weiss._base.decoding import Child, ChildPool, PoolClosedError, start_child
from weiss.server.batching import ClosedError

Picture = tuple[Array, tuple[int, int]]
"""Pixels, uint8 ``(height, width, channels)``, and width and height in the file's header."""


class UploadDecoders:
    """Processes that decode uploads.

    Args:
        number: how many at most; they are started when they are needed.
        settings: how they decode an upload, and how much it may cost.
    """

    def __init__(self, number: int, settings: UploadSettings) -> None:
        self._settings = settings
        self._pool = ChildPool(number, self._start)

    def warm(self) -> None:
        """Start a process, so that the first upload does not wait for it."""
        self._pool.submit(self._pool.child)

    def decode(self, content: bytes) -> "Future[Picture]":
        """Decode an upload; the future raises `RefusedUpload`, or `ClosedError` after `close`."""
        if self._pool.is_closed:
            raise ClosedError("the server is being stopped")
        return self._pool.submit(self._decode, content)

    def close(self) -> None:
        """End all processes at once, whatever they are doing."""
        self._pool.close()

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
        try:
            child = self._pool.child()
        except PoolClosedError as error:
            raise ClosedError("the server is being stopped") from error
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
            return ClosedError("the server is being stopped")
        return RefusedUpload("slow" if status == -signal.SIGALRM else "broken")

"""A worker process of `weiss.comparing.local`, run as a module: units come in, outcomes go out.

The pipe is one of the parent's own: nothing else can write to it.
"""

import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from weiss._base.interrupts import StoppedError, StopRequest
from weiss.comparing.executor import attempt
from weiss.data import reuse_decoded_images


def serve(pipe: "Connection[Any, Any]", out: Path) -> None:
    """Do units until the other end of the pipe is closed, or this process is asked to stop."""
    # One of the workers decodes images for all.
    with StopRequest() as stop, reuse_decoded_images(shared=True):
        pipe.send("up")
        while not stop.wanted:
            try:
                unit = pipe.recv()
            except (EOFError, OSError):
                return
            outcome = attempt(unit, out)
            with suppress(OSError):  # nobody waits for it; the folder has the result
                pipe.send(outcome)


if __name__ == "__main__":
    try:
        serve(Connection(int(sys.argv[1])), Path(sys.argv[2]))
    except StoppedError as stopped:
        sys.exit(stopped.exit_code)

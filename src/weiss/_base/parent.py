"""A process that ends with the one that started it, however that one ends.

    python -m weiss._base.parent PID MODULE ARGUMENTS...

runs a module in a process that ends with its parent, whose number is PID.
"""

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
LOOK_SECONDS = 0.5
_parents: set[int] = set()


def end_with(parent: int) -> None:
    """Kill this process as soon as its parent, which has this number, ends; also by SIGKILL.

    On Linux the system does it, even while code in C holds Python's lock. There the end of the
    thread that started this process counts as the end of the parent: start a process from a thread
    that outlives it. Elsewhere, and if a wrapper of Python lies between the two, a thread looks
    twice a second. Windows is left as it is. Another call for the same parent does nothing.
    """
    if parent in _parents or not hasattr(signal, "SIGKILL"):
        return
    _parents.add(parent)
    is_told = sys.platform == "linux" and not ctypes.CDLL(None).prctl(
        PR_SET_PDEATHSIG, signal.SIGKILL
    )
    is_child = os.getppid() == parent
    _end_without(parent, is_child)  # it may have ended before
    if not (is_told and is_child):
        threading.Thread(target=_watch, args=(parent, is_child), daemon=True).start()


def command_with_parent(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module in a process that ends with this one."""
    return [sys.executable, "-m", __name__, str(os.getpid()), module, *arguments]


def _watch(parent: int, is_child: bool) -> None:
    while True:
        _end_without(parent, is_child)
        time.sleep(LOOK_SECONDS)


def _end_without(parent: int, is_child: bool) -> None:
    # A process that lost its own parent, be it a wrapper, is a child of another, mostly of 1.
    own = os.getppid()
    if own != parent if is_child else own == 1 or not _exists(parent):
        os.kill(os.getpid(), signal.SIGKILL)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

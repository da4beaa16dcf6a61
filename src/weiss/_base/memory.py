"""Memory of a process that computes large layers on the CPU."""

import ctypes

import torch

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Settings of the C library's `mallopt`."""
MOST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the process keep memory that it has freed, to use it again; return whether it does.

    The C library of Linux otherwise gives each large activation of a network back to the system,
    which clears the pages of the next one: with ResNet-50 that takes longer than to compute it.
    For commands that compute and end, not for servers. Elsewhere, and with a GPU, nothing changes.
    """
    if torch.cuda.is_available():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, MOST))

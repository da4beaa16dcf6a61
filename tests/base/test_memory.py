"""Freed memory is used again: its pages are not cleared once more."""

import platform
import subprocess
import sys

import pytest

CODE = """
import resource, torch
from weiss._base.memory import keep_freed_memory
assert {keep}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(16_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this setting")
def test_memory_that_was_freed_is_not_asked_for_again():
    counts = [
        int(subprocess.check_output([sys.executable, "-c", CODE.replace("{keep}", keep)]))
        for keep in ("True", "keep_freed_memory()")
    ]
    assert counts[1] < counts[0] / 5 or counts[0] == 0

"""Kernels in Triton's interpreter, which must be chosen before triton is imported."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from built_once import built_once


@pytest.fixture(scope="module")
def interpreted(request):
    """What the kernels make of every case of the file that asks, run as a program, on the CPU."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")

    def make(folder):
        done = subprocess.run(
            [sys.executable, str(request.path), str(folder / "cases.pt")],
            env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )
        assert done.returncode == 0, done.stderr

    return torch.load(built_once(request.path.stem, make) / "cases.pt")

"""The scripts beside the package run, so that they cannot rot, and leave their picture."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SAID = {
    "convergence": "residual: 5 %",
    "fluctuations": "missed: mean field, corrected",
    "two_attributes": "family: MAP@R",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_an_example_has_a_quick_run(name, tmp_path):
    command = [sys.executable, ROOT / "examples" / f"{name}.py", "--quick", "--out", tmp_path]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # tests may run side by side
    done = subprocess.run(command, capture_output=True, text=True, env=one_thread)
    assert done.returncode == 0, done.stderr
    assert SAID[name] in done.stdout
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")

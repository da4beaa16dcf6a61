"""The example loops run, and what they train has learned."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LOOPS = ["plain_loop", "pml_trainer", "accelerate_loop", "lightning_module", "text_embeddings"]
FOREIGN_TORCHVISION = "operator torchvision::nms does not exist"


def run(*command):
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)


def precision(said):
    found = re.search(r"P@1: ([0-9.]+) before training, ([0-9.]+) after", said)
    assert found, said
    return float(found[1]), float(found[2])


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_learns(name):
    if name == "lightning_module" and importlib.util.find_spec("pytorch_lightning") is None:
        pytest.skip("pytorch-lightning is not installed")
    done = run(EXAMPLES / f"{name}.py", "--quick")
    if FOREIGN_TORCHVISION in done.stderr:
        pytest.skip("Lightning loads torchvision, and the one here is for another torch")
    assert done.returncode == 0, done.stderr
    before, after = precision(done.stdout)
    assert after > before + 0.1


@pytest.mark.dist
@pytest.mark.slow
def test_two_processes_of_accelerate_learn_together():
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", 2]
    launch += ["--num_machines", 1, "--mixed_precision", "no", "--dynamo_backend", "no"]
    done = run(*launch, EXAMPLES / "accelerate_loop.py", "--quick")
    assert done.returncode == 0, done.stderr
    before, after = precision(done.stdout)
    assert done.stdout.count("P@1") == 1
    assert after > before + 0.1


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_short_enough_to_read(name):
    assert (EXAMPLES / f"{name}.py").read_text().count("\n") < 80

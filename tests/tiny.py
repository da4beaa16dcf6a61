"""A tiny but real experiment: coloured stripes in a folder, the small network, seconds on a CPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from weiss.runs import Run, recipe_from

SETTINGS = {
    "backbone.name": "small",
    "backbone.weights": "none",
    "backbone.widths": "[8, 16]",
    "backbone.channels": "3",
    "backbone.embedding_size": "16",
    "backbone.freeze_bn": "none",
    "data.num_workers": "0",
    "data.held_out": "0.4",
    "train.batch_size": "12",
    "train.epochs": "3",
    "train.warmup_epochs": "1",
    "train.patience": "0",
    "train.device": "cpu",
    "optim.lr": "1e-2",
    "optim.class_lr": "0.05",
    "augment.area": "[0.5, 1.0]",
    "schedule.every": "2",
}
TIMES = ("seconds", "seconds_to_best", "images_per_second", "checksums")


def write_stripe(path, label, number, size=32):
    """Write a PNG whose tint and stripes are its class's, with a phase and much noise of its own.

    Hard enough that a few epochs of a small network do not end at 100 %.
    """
    random = np.random.default_rng((label, number))
    tint = np.random.default_rng(1000 + label).integers(-12, 13, 3)
    y, x = np.mgrid[:size, :size]
    angle, phase = np.pi * label / 7, random.uniform(0, 2 * np.pi)
    wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) * (0.3 + 0.08 * label) + phase)
    brightness = 128 + random.normal(0, 25)
    pixels = brightness + tint + 40 * wave[..., None] + random.normal(0, 30, (size, size, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)


def write_stripes(folder, num_classes=10, per_class=6):
    """Write a folder with one subfolder a class."""
    for label in range(num_classes):
        for number in range(per_class):
            write_stripe(Path(folder) / f"class{label}" / f"{number}.png", label, number)
    return Path(folder)


def damage(path):
    """Change one bit of a file."""
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def settings(**changes):
    """Return the overrides of a tiny run; ``loss__name="ms"`` changes ``loss.name``."""
    said = {key.replace("__", "."): str(value) for key, value in changes.items()}
    return [f"{key}={value}" for key, value in {**SETTINGS, **said}.items()]


def tiny_recipe(data, **changes):
    """Return the recipe of a tiny run on a folder or a list."""
    return recipe_from(str(data), settings(**changes))


def command(data, out, *options, **changes):
    """Return the command line of a tiny run."""
    said = [word for line in settings(**changes) for word in ("--set", line)]
    return ["train", str(data), "--out", str(out), *map(str, options), *said]


def environment(**more):
    """Return an environment in which every number is computed by one thread."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **more}


BEGUN = []
"""Processes that a test has begun; whatever is left of them ends with it (see conftest)."""


def begin(command, **options):
    """Start a program that goes on beside the test."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **({"env": environment(), **pipes} | options))
    BEGUN.append(process)
    return process


def wait_until(reached, seconds=300):
    """Wait until something is so; the time is for machines that have much else to do."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def weiss(*arguments, **options):
    """Run the command line to its end."""
    options = {"env": environment(), "timeout": 240, **options}
    return subprocess.run(
        [sys.executable, "-m", "weiss", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def without_times(entry):
    """Return a result or a line of metrics without what no two runs share."""
    return {key: value for key, value in entry.items() if key not in TIMES}


def traces(folder):
    """Return all of a finished run that must not depend on how it came to its end."""
    from weiss._base.tensor_files import read_tensors

    folder = Path(folder)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    tensors, _ = read_tensors(folder / "model.safetensors")
    return {
        "metrics": [without_times(json.loads(line)) for line in lines],
        "result": without_times(json.loads((folder / "result.json").read_text())),
        "model": {name: value.numpy().tobytes() for name, value in sorted(tensors.items())},
    }


def assert_same_run(folder, other):
    """Assert that two runs agree to the last bit."""
    one, two = traces(folder), traces(other)
    assert one["metrics"] == two["metrics"]
    assert one["result"] == two["result"]
    different = [name for name in one["model"] if one["model"][name] != two["model"].get(name)]
    assert not different
    assert one["model"].keys() == two["model"].keys()


def metrics(folder):
    return Run(folder).metrics()


def losses(folder):
    return [line["loss"] for line in metrics(folder)]

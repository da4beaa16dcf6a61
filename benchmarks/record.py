"""What all benchmarks share: their options, the name of the hardware, rows that are kept."""

import argparse
import contextlib
import csv
import os
import platform
import re
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def options_of(about: str | None, *, device: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark; `about` is its docstring."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small sizes, nothing is kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    if device:
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser


def hardware(device: str) -> str:
    """Name the processor, and on a CPU how many threads torch uses."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
        model = names[0] if names else model
    return f"{model}, {torch.get_num_threads()} threads"


def keep(folder: Path, subject: str, device: str, rows: list[dict[str, Any]]) -> None:
    """Write ``<subject>_<hardware>_<date>.csv``, under a temporary name first.

    Times by the clock (``seconds``) are kept for CUDA devices, which others can have; for a CPU
    only ratios.
    """
    versions = {
        "hardware": hardware(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    for package in ("numpy", "faiss-cpu", "pytorch-metric-learning"):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    rows = [row | versions for row in rows]
    if device != "cuda":
        rows = [{key: row[key] for key in row if key != "seconds"} for row in rows]
    machine = re.sub(r"[^a-z0-9]+", "-", hardware(device).lower())
    path = folder / f"{subject}_{machine}_{date.today()}.csv"
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    temporary.replace(path)
    print(f"kept in {path}")

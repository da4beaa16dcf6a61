"""What benchmarks share: options, medians of contenders that take turns, memory, kept rows."""

import argparse
import contextlib
import csv
import os
import platform
import re
import statistics
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
MIB = 2**20


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


def wait_for(device: str) -> None:
    """Wait until the device has done its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def medians(
    contenders: dict[str, Callable[[], Any]],
    rounds: int,
    device: str = "cpu",
    *,
    steps: int = 1,
    untimed: int = 0,
    between: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Return the median seconds of a step of each contender.

    Rounds of the contenders alternate, so that whatever else the machine does happens to all of
    them; the first round warms up and does not count.

    Args:
        contenders: what takes one step, by name.
        rounds: how many count.
        device: is synchronised before and after a round.
        steps: of a round.
        untimed: steps before each round.
        between: called after each round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, step in contenders.items():
            for _ in range(untimed):
                step()
            wait_for(device)
            start = time.perf_counter()
            for _ in range(steps):
                step()
            wait_for(device)
            seconds[name].append((time.perf_counter() - start) / steps)
            between()
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


def extra_mib(act: Callable[[], Any], device: str) -> float:
    """Return the peak of memory while something is done, beyond what was there before, in MiB.

    On the CPU it is the largest resident size of this process, by Linux's count.
    """
    wait_for(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        act()
        wait_for(device)
        return (torch.cuda.max_memory_allocated() - before) / MIB
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _peak_resident()
    act()
    return (_peak_resident() - before) / MIB


def _peak_resident() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def keep(
    arguments: argparse.Namespace, subject: str, rows: list[dict[str, Any]], device: str = "cpu"
) -> None:
    """Name the hardware; write ``<subject>_<hardware>_<date>.csv``, under a temporary name first.

    A smoke run keeps nothing. Times by the clock (``seconds``) are kept for CUDA devices, which
    others can have; for a CPU only ratios.
    """
    print(f"{hardware(device)}; torch {torch.__version__}")
    if arguments.smoke:
        return
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
        clock = ("seconds", "images_per_second")
        rows = [{key: row[key] for key in row if key not in clock} for row in rows]
    machine = re.sub(r"[^a-z0-9]+", "-", hardware(device).lower())
    path = arguments.out / f"{subject}_{machine}_{date.today()}.csv"
    arguments.out.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    temporary.replace(path)
    print(f"kept in {path}")

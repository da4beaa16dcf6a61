"""Train one recipe with several seeds, and summarise the runs by mean and interval."""

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base import checks
from weiss._base.files import replacing
from weiss._base.interrupts import StoppedError, StopRequest
from weiss._base.parent import command_with_parent
from weiss._base.processes import is_main_process, share_of_cores
from weiss.data import reuse_decoded_images
from weiss.evaluation.statistics import t_interval
from weiss.runs import Recipe, Run, to_toml
from weiss.runs.summaries import SCORES, SUMMARY
from weiss.training.trainer import train


def train_seeds(
    recipe: Recipe,
    out: str | Path,
    num_seeds: int,
    *,
    workers: int = 1,
    resume: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train a recipe with several seeds and summarise the results.

    Args:
        recipe: its seed is the first; the others follow.
        out: the folder; each run is a folder ``seed-N`` in it, the summary ``summary.json``.
        num_seeds: how many, at least two.
        workers: how many run at the same time, each in a process of its own with its share of the
            cores; with 1 they run one after the other in this process.
        resume: resume runs that are not finished; finished runs are not changed.
        quiet: print nothing.

    Returns:
        For each metric the values and, as ``mean``, ``low`` and ``high``, the 95 % t-interval;
        empty in processes other than the main one.
    """
    if num_seeds < 2:
        raise ValueError(
            f"--seeds must be at least 2, to measure how results vary; got {num_seeds}."
        )
    if workers != 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            f"--workers must be 1 where several processes share each run; got {workers}. Leave it "
            "out, or start without torchrun."
        )
    workers = min(checks.count("--workers", workers, ""), num_seeds)
    out = Path(out)
    if Run(out).exists():
        raise ValueError(
            f"--out must name a folder for several runs; {out} is a run itself. Choose another."
        )
    seeds = range(recipe.seed, recipe.seed + num_seeds)
    runs = [Run(out / f"seed-{seed}") for seed in seeds]
    begun = [run.folder for run in runs if run.exists()]
    if begun and not resume:
        raise ValueError(
            f"--out must name a folder without runs of these seeds; it holds {begun[0]}. "
            "Resume them: add --resume. Or choose another folder."
        )
    recipes = [recipe.model_copy(update={"seed": seed}) for seed in seeds]
    if workers == 1:
        try:
            with reuse_decoded_images():
                for run, own in zip(runs, recipes, strict=True):
                    train(own, run.folder, resume=run.exists(), quiet=quiet)
        except StoppedError as stopped:
            raise StoppedError(_how_to_resume(out, num_seeds)) from stopped
    else:
        _in_processes(recipes, runs, workers, _how_to_resume(out, num_seeds))
    if not is_main_process():
        return {}
    summary = summarise(runs)
    with replacing(out / SUMMARY) as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Return values, mean and 95 % t-interval of what finished runs measured."""
    results = [run.result() for run in runs]
    summary: dict[str, Any] = {
        "runs": [run.folder.name for run in runs],
        "loss": results[0]["loss"],
        "measured_on": results[0]["measured_on"],
    }
    # A network chosen on held-out classes is judged by its score on the test set.
    tested = [{f"test.{k}": v for k, v in result.get("test", {}).items()} for result in results]
    rows = [{**result, **test} for result, test in zip(results, tested, strict=True)]
    prefixes = []
    for part in ("dimensions", "test_dimensions"):
        for size in results[0].get(part, {}):
            prefixes += [f"{part}.{size}.{name}" for name in SCORES]
            for row, result in zip(rows, results, strict=True):
                of_size = result.get(part, {}).get(size, {})
                row |= {f"{part}.{size}.{name}": value for name, value in of_size.items()}
    tests = [f"test.{name}" for name in SCORES]
    for name in (*SCORES, "epoch", "seconds", *tests, *prefixes):
        if all(name in row for row in rows):
            values = [row[name] for row in rows]
            summary[name] = {"values": values, **asdict(t_interval(np.array(values)))}
    return summary


def _how_to_resume(out: Path, num_seeds: int) -> str:
    return (
        "every run that had begun has saved its state. Resume with: weiss train --resume --out "
        f"{out} --seeds {num_seeds}"
    )


def _in_processes(
    recipes: Sequence[Recipe], runs: Sequence[Run], workers: int, how_to_resume: str
) -> None:
    """Run each in a process of its own, some at a time; one that fails stops no other."""
    environment = {**os.environ, **share_of_cores(workers)}
    at_once = threading.Event()

    def one(recipe: Recipe, run: Run) -> str:
        if stop.wanted:
            return ""
        asked = run.folder.with_name(f".{run.folder.name}.toml")
        with replacing(asked) as temporary:
            temporary.write_text(to_toml(recipe.as_dict()), encoding="utf-8")
        words = ["train", str(asked), "--quiet", "--out", str(run.folder)]
        command = command_with_parent("weiss", *words, *(["--resume"] if run.exists() else []))
        # In a session of its own: Ctrl-C reaches it once, from here, and it saves its state.
        process = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        errors, is_told = None, False
        while errors is None:
            try:
                errors = process.communicate(timeout=0.2)[1]
            except subprocess.TimeoutExpired:
                if at_once.is_set():
                    process.kill()
                elif stop.wanted and not is_told:
                    is_told = True
                    process.terminate()
        asked.unlink(missing_ok=True)
        return "" if process.returncode == 0 else f"{run.folder.name}: {errors.strip()}"

    with StopRequest() as stop, ThreadPoolExecutor(workers) as pool:
        try:
            failures = [line for line in pool.map(one, recipes, runs) if line]
        except KeyboardInterrupt:  # the second signal
            at_once.set()
            raise
    if stop.wanted:
        raise StoppedError(how_to_resume)
    if failures:
        listed = "\n  ".join(failures)
        raise RuntimeError(
            f"every seed must finish; {len(failures)} of {len(runs)} did not:\n  {listed}\nFix "
            "the cause and add --resume: finished runs are not changed."
        )

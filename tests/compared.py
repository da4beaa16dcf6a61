"""Comparisons of seconds, and what of them must not depend on who did the work."""

import json
import sys
from pathlib import Path

from tiny import settings

from weiss.comparing import reality_check

QUICK = {"train__epochs": 1, "train__warmup_epochs": 0, "train__batch_size": 8}
CHECK = ["--losses", "ms", "--trials", 2, "--repeats", 2, "--folds", 2]
"""The options of `small_check`."""


def small_check(recipe, **changes):
    """A reality check of 18 units."""
    return reality_check(recipe, ["ms"], **({"trials": 2, "repeats": 2, "folds": 2} | changes))


def table(summary):
    """What must not depend on how the work was done: every score and every trial, no times."""
    return [
        {
            "name": row["name"],
            "settings": row["settings"],
            "trials": row.get("trials"),
            "scores": {
                name: score["values"]
                for name, score in row["scores"].items()
                if name not in ("seconds", "images_per_second")
            },
        }
        for row in summary["rows"]
    ]


def bench(stripes, out, *options, protocol="traditional", **changes):
    """Return the command line of a bench."""
    cache = {"data__cache": Path(out).parent / "cache"}  # where workers share decoded images
    said = [word for line in settings(**(QUICK | cache | changes)) for word in ("--set", line)]
    return [
        *(sys.executable, "-m", "weiss", "bench", protocol, str(stripes), "--out", str(out)),
        *map(str, options),
        *said,
    ]


def summary_of(out):
    return json.loads((Path(out) / "summary.json").read_text())


def when_done(out):
    """When each result was written: a unit that is done again writes its own again."""
    return {path: path.stat().st_mtime_ns for path in Path(out).rglob("result.json")}

"""Draw MAP@R over the epochs of kept runs: the tables of CUB and Cars, held-out classes of Cars.

    python docs/drawings/learning_curves.py      # cub_curves, cars_curves, cars_held_out

The runs are those of results/cub-resnet50/headline, results/cars-resnet50/headline and
results/one-loss; the pictures, those of docs/images.
"""

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weiss import figures

ROOT = Path(__file__).resolve().parents[2]
ONE_LOSS = ROOT / "results" / "one-loss"
LIMIT = 24.0
"""Per cent, below which the picture of held-out classes is empty: there all curves rise alike."""
LEFT_OUT = {"mf_rest_ms_beta-32_margin-0.1"}
"""Rows without a curve: this one lies on MFRestMS, and a picture has seven colours."""
Lines = Sequence[Mapping[str, Any]]


def draw_table(name: str, path: Path) -> None:
    """Draw the runs of the table of a data set, each row's mean and range."""
    headline = ROOT / "results" / f"{name}-resnet50" / "headline"
    rows = json.loads((headline / "summary.json").read_text())["rows"]
    rows = [row for row in rows if row["name"] not in LEFT_OUT]
    trained = [row for row in rows if row["loss"] != "untrained"]
    runs = {
        row["title"]: [lines_of(headline / run / "metrics.jsonl") for run in row["runs"]]
        for row in trained
    }
    levels = {
        row["title"]: 100 * row["scores"]["map_at_r"]["mean"] for row in rows if row not in trained
    }
    figures.averaged_curves(runs, path, levels=levels)


def draw_held_out(path: Path) -> None:
    """Draw the runs on held-out classes of Cars with images of a shorter side of 384."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for row in read(ONE_LOSS / "curves.csv"):
        if float(row["map_at_r"]) >= LIMIT:
            score = {"map_at_r": float(row["map_at_r"]) / 100}
            curves.setdefault(row["run"], []).append({"epoch": row["epoch"], "evaluation": score})
    runs: dict[str, list[Lines]] = {}
    for row in read(ONE_LOSS / "runs.csv"):
        if (row["data"], row["side"]) == ("cars", "384") and row["keeps"] != "own":
            runs.setdefault(title(row), []).append(curves[row["run"]])
    figures.averaged_curves(runs, path)


def title(row: Mapping[str, str]) -> str:
    """Return what a row of the runs is called in a legend."""
    if row["loss"] != "mf_rest_ms":
        return {"proxy_anchor": "ProxyAnchor", "mf_cwms": "MFCWMS"}[row["loss"]]
    part = ", half" if row["keeps"] == "half" else ""
    return f"MFRestMS{part}, alpha {row['alpha']}"


def lines_of(path: Path) -> Lines:
    """Return the lines of a run's metrics."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    return list(csv.DictReader(path.read_text().splitlines()))


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    arguments = parser.parse_args()
    draw_table("cub", arguments.out / "cub_curves.png")
    draw_table("cars", arguments.out / "cars_curves.png")
    draw_held_out(arguments.out / "cars_held_out.png")
    print("look at cub_curves.png, cars_curves.png, cars_held_out.png")


if __name__ == "__main__":
    main()

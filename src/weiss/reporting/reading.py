"""Reading the folders of a report: comparison folders, folders of seeds, single runs.

Each becomes a `Comparison`: a summary as benches and studies write it, and the folder of its runs.
Single runs on the same data become one comparison.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weiss._base.checks import some, suggestion
from weiss.losses import LOSSES
from weiss.runs.folder import RECIPE, Run
from weiss.runs.summaries import (
    FORMAT,
    KINDS,
    MEASURES,
    SCORES,
    STUDIES,
    SUMMARY,
    UNTRAINED,
    summarised,
)

Summary = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Comparison:
    """A comparison of losses or settings, complete or not.

    Attributes:
        folder: its folder; the summary names runs relative to it.
        summary: of `summary.json`, see `weiss.runs.summaries`.
        is_given: whether a bench or a study made it; False if made here from single runs.
        unfinished: unfinished runs, with their progress.
    """

    folder: Path
    summary: Summary
    is_given: bool = True
    unfinished: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What was compared: one of `KINDS`."""
        return str(self.summary["kind"])

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The rows, untrained networks last."""
        return sorted(self.summary["rows"], key=is_reference)

    @property
    def trained(self) -> list[Mapping[str, Any]]:
        """The rows without untrained networks."""
        return [row for row in self.rows if not is_reference(row)]

    @property
    def main_metric(self) -> str:
        """The score that decides which row is best."""
        return "concatenated.map_at_r" if self.kind == "reality-check" else "map_at_r"

    def label(self, row: Mapping[str, Any]) -> str:
        """Return the full name of a row: its loss, and its values on the axes.

        Example:
            >>> axes = [{"key": "train.batch_size", "label": "batch size", "values": [30]}]
            >>> row = {"loss": "mf_cwms", "title": "MFCWMS", "at": {"train.batch_size": 30}}
            >>> summary = {"kind": "batch-size", "axes": axes, "rows": [row]}
            >>> Comparison(Path(), summary).label(row)
            'MFCWMS, batch size 30'
        """
        axes = self.summary.get("axes", ())
        names = {axis["key"]: axis.get("short") or axis.get("label", axis["key"]) for axis in axes}
        at = row.get("at", {}).items()
        where = [f"{names.get(key, key)} {axis_value(value)}" for key, value in at]
        where += [f"{row['network']} network"] if row.get("network") else []
        return ", ".join([str(row["title"]), *where])

    def runs(self, row: Mapping[str, Any]) -> list[Run]:
        """Return the runs of a row that have started."""
        found = [Run(self.folder / name) for name in row.get("runs", ())]
        return [run for run in found if run.exists()]

    def results(self, row: Mapping[str, Any]) -> list[tuple[Run, dict[str, Any]]]:
        """Return the finished runs of a row, each with its result."""
        return [(run, run.result()) for run in self.runs(row) if run.is_finished()]

    def metrics(self) -> dict[str, list[list[dict[str, Any]]]]:
        """Return by the label of each trained row the metrics of its runs, an entry an epoch.

        Runs in their first epoch are left out, and rows without other runs.
        """
        found = {
            self.label(row): [lines for run in self.runs(row) if (lines := run.metrics())]
            for row in self.trained
        }
        return {label: runs for label, runs in found.items() if runs}

    def name_of(self, run: Run) -> str:
        """Return the path of a run below the comparison's folder; of a single run its folder."""
        place = run.folder.relative_to(self.folder) if self.is_given else run.folder
        return place.as_posix()

    def best_row(self) -> Mapping[str, Any] | None:
        """Return the trained row with the highest mean of the main score; None without scores."""
        scored = [row for row in self.trained if mean_of(row, self.main_metric) is not None]
        return max(scored, key=lambda row: mean_of(row, self.main_metric) or 0.0, default=None)


def axis_value(value: Any) -> str:
    """Return a value of an axis as text."""
    if isinstance(value, (bool, str)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def is_reference(row: Mapping[str, Any]) -> bool:
    """Return whether a row is of an untrained network."""
    return bool(row["loss"] == UNTRAINED)


def mean_of(row: Mapping[str, Any], metric: str) -> float | None:
    """Return the mean of a row's score; None if it is absent or not finite."""
    mean = (row.get("scores", {}).get(metric) or {}).get("mean")
    return None if mean is None or not math.isfinite(mean) else float(mean)


def values_of(row: Mapping[str, Any], metric: str) -> list[float]:
    """Return the single values of a row's score; empty if it is absent."""
    return list((row.get("scores", {}).get(metric) or {}).get("values", ()))


def score_of(result: Mapping[str, Any], metric: str = "map_at_r") -> float | None:
    """Return a score from a run's result: on the test set if it has test scores."""
    found = result.get("test", result).get(metric)
    return None if found is None else float(found)


def read_folders(
    folders: Sequence[Path], summaries: Mapping[Path, Summary] | None = None
) -> list[Comparison]:
    """Read the folders of a report.

    Args:
        folders: comparison folders, folders of seeds and run folders, at least one; duplicates
            count once.
        summaries: newer than those in some of the folders, of unfinished comparisons.

    Returns:
        The comparisons in the order given. Single runs and seeds become one comparison for each
        data set, at the place of the first of them.
    """
    if not folders:
        raise ValueError("RUNS must name at least one folder; got none. Pass runs or comparisons.")
    found: list[Comparison | tuple[str, ...]] = []
    alone: dict[tuple[str, ...], dict[str, list[Run]]] = {}
    for folder in dict.fromkeys(map(Path, folders)):
        newer = (summaries or {}).get(folder)
        runs = _runs_of(folder) if newer is None else None
        if runs is None:
            found.append(_checked(folder, newer or _read_json(folder / SUMMARY)))
            continue
        recipe = runs[0].recipe()
        data, evaluate = recipe.get("data", {}), recipe.get("evaluate", {})
        key = (str(data.get("name", "")), str(evaluate.get("on", "")))
        if key not in alone:
            alone[key] = {}
            found.append(key)
        alone[key][str(folder)] = runs
    return [
        each if isinstance(each, Comparison) else _from_single_runs(each[0], alone[each])
        for each in found
    ]


def _runs_of(folder: Path) -> list[Run] | None:
    """Return the run or the seeds in a folder; None if it holds a comparison."""
    if Run(folder).exists():
        return [Run(folder)]
    if (folder / SUMMARY).is_file() and "format" in _read_json(folder / SUMMARY):
        return None
    seeds = {
        int(found[1]): Run(path)
        for path in folder.glob("seed-*")
        if (found := re.fullmatch(r"seed-(\d+)", path.name)) and Run(path).exists()
    }
    if seeds:
        return [seeds[number] for number in sorted(seeds)]
    what = "it is none of these" if folder.is_dir() else "there is no such folder"
    inside = sorted(str(path.parent) for path in folder.glob(f"*/{RECIPE}"))
    for depth in ("*", "*/*"):
        inside += sorted(str(path.parent) for path in folder.glob(f"{depth}/{SUMMARY}"))
    if inside:
        hint = f" It holds {some(inside, 3)}: pass those."
    else:
        beside = [path.name for path in folder.parent.glob("*") if path.is_dir()]
        hint = suggestion(folder.name, beside) if not folder.is_dir() else ""
        hint += " Pass the --out folder of weiss train, bench or study."
    raise ValueError(
        f"RUNS must be folders of runs ({RECIPE}), of seeds (seed-N) or of comparisons "
        f"({SUMMARY}); got {folder}: {what}.{hint}"
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} must be JSON; it is truncated or changed: {error}. Run the command that wrote "
            "it again: finished units are kept."
        ) from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold an object with names; got {type(found).__name__}.")
    return found


def _checked(folder: Path, summary: Summary) -> Comparison:
    path = folder / SUMMARY
    if summary["format"] != FORMAT:
        raise ValueError(
            f"{path} must have format {FORMAT}; got {summary['format']!r}. Make the report with "
            "the version of Weiss that wrote it."
        )
    if summary.get("kind") not in KINDS or not isinstance(summary.get("rows"), list):
        raise ValueError(
            f"{path} must have rows and a kind, one of {', '.join(KINDS)}; got the kind "
            f"{summary.get('kind')!r}. Make the report with the version of Weiss that wrote it."
        )
    needed = {**dict.fromkeys((*STUDIES, *MEASURES), 1), "beta-delta": 2}.get(summary["kind"], 0)
    lacking = [
        key for row in summary["rows"] for key in ("name", "loss", "title") if key not in row
    ]
    if len(summary.get("axes", ())) < needed or lacking:
        raise ValueError(
            f"{path} must name {needed} axes for the kind {summary['kind']!r}, and for each row "
            f"name, loss and title; got {len(summary.get('axes', ()))} axes and rows without "
            f"{some(lacking) or 'nothing'}. Run the command that wrote it again."
        )
    return Comparison(folder, summary)


def _from_single_runs(data: str, given: Mapping[str, list[Run]]) -> Comparison:
    """Make a comparison of single runs and folders of seeds, all on the same data."""
    titles = _titles({folder: runs[0].recipe() for folder, runs in given.items()})
    rows = [_row(folder, titles[folder], runs) for folder, runs in given.items()]
    every = [run for runs in given.values() for run in runs]
    recipe = every[0].recipe()
    unfinished = {str(run.folder): _progress(run) for run in every if not run.is_finished()}
    done = [run.result() for run in every if run.is_finished()]
    measured = {str(result.get("measured_on", "nothing")) for result in done}
    if done and all("test" in result for result in done):
        measured = {"test"}
    summary = {
        "format": FORMAT,
        "kind": "traditional",
        "title": "Runs",
        "question": "",
        "data": data,
        **_alike("backbone", "name", every),
        **_alike("backbone", "embedding_size", every, "embedding_size"),
        **_alike("train", "batch_size", every, "batch_size"),
        "measured_on": measured.pop() if len(measured) == 1 else None,
        "is_complete": not unfinished,
        "num_units": len(every),
        "num_done": len(done),
        "axes": [],
        "rows": rows,
        "tests": [],
        "protocol": {},
        "recipe": recipe,
        "command": "",
        "made_with": recipe.get("made_with", {}),
    }
    return Comparison(Path(), summary, is_given=False, unfinished=unfinished)


def _alike(section: str, key: str, runs: Sequence[Run], name: str = "") -> dict[str, Any]:
    """Return a setting that all runs share, or its values joined by "and"."""
    found = list(dict.fromkeys(run.recipe().get(section, {}).get(key) for run in runs))
    value = found[0] if len(found) == 1 else " and ".join(map(str, found))
    return {name or section: value}


def _titles(recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Name each row by its loss, and by its folder if a loss occurs twice."""
    names = {folder: str(recipe["loss"]["name"]) for folder, recipe in recipes.items()}
    titles = {
        folder: LOSSES[name].title if name in LOSSES else name for folder, name in names.items()
    }
    last = {folder: Path(folder).resolve().name for folder in titles}
    for folder, title in list(titles.items()):
        twins = [other for other, name in names.items() if name == names[folder]]
        if len(twins) > 1:
            is_unique = len({last[other] for other in twins}) == len(twins)
            titles[folder] = f"{title} ({last[folder] if is_unique else folder})"
    return titles


def _row(folder: str, title: str, runs: Sequence[Run]) -> dict[str, Any]:
    recipe = runs[0].recipe()
    settings = {key: value for key, value in recipe["loss"].items() if key != "name"}
    results = [run.result() for run in runs if run.is_finished()]
    scores: dict[str, Any] = {}
    for name in (*SCORES, "epoch", "seconds"):
        read = score_of if name in SCORES else dict.get
        score = summarised([read(result, name) for result in results])
        if score is not None:
            scores[name] = score
    return {
        "name": folder,
        "loss": recipe["loss"]["name"],
        "title": title,
        "at": {},
        "settings": settings,
        "runs": [str(run.folder) for run in runs],
        "failed": {},
        "scores": scores,
    }


def _progress(run: Run) -> str:
    lines = run.metrics()
    asked = run.recipe().get("train", {}).get("epochs")
    return f"{len(lines)} of at most {asked} epochs" if asked else f"{len(lines)} epochs"

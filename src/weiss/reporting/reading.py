"""Reading the folders of a report: comparison folders, folders of seeds, single runs.

Each becomes a `Comparison`: a summary as benches and studies write it, and the folder of its runs.
Single runs on the same data become one comparison.
"""

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weiss._base.checks import path_suggestion, some
from weiss._base.files import read_json
from weiss.losses import LOSSES
from weiss.runs import recipe_from_dict, records
from weiss.runs.card import not_trained
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
Row = Mapping[str, Any]
HELD_OUT = "held-out training classes"
"""What a score is measured on, or an epoch chosen on, if not on the test set."""
EMPTY: dict[str, Any] = {key: {} for key in ("at", "settings", "changes", "failed", "scores")}
EMPTY |= {"runs": [], "trials": []}
"""What a row holds at least."""
Value = str | bool | int | float
"""Of an axis."""


class _Trial(records.Recorded):
    number: int
    settings: dict[str, Any]


class _Range(records.Recorded):
    low: float
    high: float


class _Row(records.Recorded):
    name: str
    loss: str
    title: str
    at: dict[str, Value] | None = None
    trials: list[_Trial] | None = None
    best_settings: dict[str, Any] | None = None
    search_space: dict[str, _Range] | None = None


class _Axis(records.Recorded):
    key: str
    label: str
    values: list[Value] | None = None


class _Test(records.Recorded):
    metric: str
    first: str
    second: str


class _Shown(records.Recorded):
    """What a report needs of a summary, beyond the kinds of values in `records.Summary`."""

    embedding_size: int | str | None = None
    axes: list[_Axis]
    rows: list[_Row]
    tests: list[_Test]


@dataclass(frozen=True)
class Score:
    """Single values, if any, their mean, and the ends of its 95 % interval if it has one.

    If a row has a median, that is the mean here, and the ends are quartiles.
    """

    values: Sequence[float]
    mean: float
    low: float | None = None
    high: float | None = None


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
    def rows(self) -> list[Row]:
        """The rows, untrained networks last."""
        return sorted(self.summary["rows"], key=is_reference)

    @property
    def trained(self) -> list[Row]:
        """The rows without untrained networks."""
        return [row for row in self.rows if not is_reference(row)]

    @property
    def main_metric(self) -> str:
        """The score that decides which row is best."""
        return "concatenated.map_at_r" if self.kind == "reality-check" else "map_at_r"

    def label(self, row: Row) -> str:
        """Return the full name of a row: its loss, and its values on the axes.

        Example:
            >>> axes = [{"key": "train.batch_size", "label": "batch size"}]
            >>> row = {"title": "MFCWMS", "at": {"train.batch_size": 30}}
            >>> Comparison(Path(), {"axes": axes}).label(row)
            'MFCWMS, batch size 30'
        """
        names = {axis["key"]: axis.get("short", axis["label"]) for axis in self.summary["axes"]}
        where = [f"{names.get(key, key)} {axis_value(value)}" for key, value in row["at"].items()]
        where += [f"{row['network']} network"] if row.get("network") else []
        return ", ".join([str(row["title"]), *where])

    def runs(self, row: Row) -> list[Run]:
        """Return the runs of a row that have started."""
        found = [Run(self.folder / name) for name in row["runs"]]
        return [run for run in found if run.exists()]

    def results(self, row: Row) -> list[tuple[Run, dict[str, Any]]]:
        """Return the finished runs of a row, each with its result; a damaged one is left out."""
        found = [(run, run.whole_result()) for run in self.runs(row)]
        return [(run, result) for run, result in found if result is not None]

    def metrics(self) -> dict[str, list[list[dict[str, Any]]]]:
        """Return for each label of a trained row the metrics of its runs, one entry per epoch.

        Runs in their first epoch are left out, and rows without other runs; those with damaged
        metrics too, with a warning, if a bench or a study made the comparison.
        """
        found = {
            self.label(row): [lines for run in self.runs(row) if (lines := self._metrics(run))]
            for row in self.trained
        }
        return {label: runs for label, runs in found.items() if runs}

    def _metrics(self, run: Run) -> list[dict[str, Any]]:
        try:
            return run.metrics()
        except ValueError as error:
            if not self.is_given:
                raise
            warnings.warn(f"{error} Its curves are left out.", stacklevel=2)
            return []

    def name_of(self, run: Run) -> str:
        """Return the path of a run below the comparison's folder; of a single run its folder."""
        place = run.folder.relative_to(self.folder) if self.is_given else run.folder
        return place.as_posix()

    def best_row(self) -> Row | None:
        """Return the trained row with the highest mean of the main score; None without scores."""
        scored = [row for row in self.trained if mean_of(row, self.main_metric) is not None]
        return max(scored, key=lambda row: mean_of(row, self.main_metric) or 0.0, default=None)


def axis_value(value: Any) -> str:
    """Return a value of an axis as text."""
    if isinstance(value, (bool, str)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def is_reference(row: Row) -> bool:
    """Return whether a row is of an untrained network."""
    return bool(row["loss"] == UNTRAINED)


def folds_of(summary: Summary) -> int:
    """Return the number of folds of a reality check; if it is not said, that of the paper."""
    return int(number((summary.get("protocol") or {}).get("folds")) or 4)


def parts_of(summary: Summary) -> dict[str, str]:
    """Return the two ways in which a reality check uses its networks, each with its dimensions.

    Example:
        >>> parts_of({"embedding_size": 128})["concatenated"], parts_of({})["concatenated"]
        ('concatenated, 512-d', 'concatenated')
    """
    size = number(summary.get("embedding_size"))
    factors = {"separated": 1, "concatenated": folds_of(summary)}
    if size is None:
        return {part: part for part in factors}
    return {part: f"{part}, {factor * size:g}-d" for part, factor in factors.items()}


def number(value: Any) -> float | None:
    """Return a finite number as float; None for anything else, also for True."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def score_of(row: Row, metric: str, factor: float = 1.0) -> Score | None:
    """Return a score of a row times a factor; None if it is absent or not finite."""
    given = row.get("scores", {}).get(metric) or {}
    mean, low, high = (
        None if (known := number(given.get(key))) is None else factor * known
        for key in ("median" if "median" in given else "mean", "low", "high")
    )
    values = [factor * value for value in given.get("values", ()) if number(value) is not None]
    return None if mean is None else Score(values, mean, low, high)


def mean_of(row: Row, metric: str) -> float | None:
    """Return the mean of a row's score; None if it is absent."""
    score = score_of(row, metric)
    return None if score is None else score.mean


def values_of(row: Row, metric: str, factor: float = 1.0) -> list[float]:
    """Return the single values of a row's score; empty if it is absent."""
    score = score_of(row, metric, factor)
    return [] if score is None else list(score.values)


def measured(result: Mapping[str, Any], metric: str) -> float | None:
    """Return a score from a run's result: on the test set if it has test scores."""
    found = result.get("test", result).get(metric)
    return None if found is None else float(found)


def read_folders(
    folders: Sequence[Path], summaries: Mapping[Path, Summary] | None = None
) -> list[Comparison]:
    """Read the folders of a report.

    Args:
        folders: comparison folders, folders of seeds and run folders, at least one; duplicates
            count once. Single runs and seeds become one comparison for each data set, at the place
            of the first of them.
        summaries: newer than those in some of the folders, of unfinished comparisons.
    """
    if not folders:
        raise ValueError("RUNS must name at least one folder; got none. Pass runs or comparisons.")
    found: dict[Any, Comparison | dict[str, list[Run]]] = {}
    for folder in dict.fromkeys(map(Path, folders)):
        newer = (summaries or {}).get(folder)
        runs = _runs_of(folder) if newer is None else None
        if runs is None:
            found[folder] = _checked(folder, newer or _read_json(folder / SUMMARY))
            continue
        recipe = runs[0].recipe()
        data, evaluate = recipe.get("data", {}), recipe.get("evaluate", {})
        key = (str(data.get("name", "")), str(evaluate.get("on", "")))
        alone = found.setdefault(key, {})
        assert isinstance(alone, dict)
        alone[str(folder)] = runs
    return [
        each if isinstance(each, Comparison) else _from_single_runs(key[0], each)
        for key, each in found.items()
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
        hint = path_suggestion(folder.name, beside) if not folder.is_dir() else ""
        hint += " Pass the --out folder of weiss train, bench or study."
    raise ValueError(
        f"RUNS must be folders of runs ({RECIPE}), of seeds (seed-N) or of comparisons "
        f"({SUMMARY}); got {folder}: {what}.{hint}"
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except ValueError as error:
        raise ValueError(
            f"{error} Run the command that wrote it again: finished units are kept."
        ) from error


def _checked(folder: Path, summary: Summary) -> Comparison:
    path = folder / SUMMARY
    if summary.get("format") != FORMAT:
        raise ValueError(
            f"{path} must have format {FORMAT}; got {summary.get('format')!r}. Make the report "
            "with the version of Weiss that wrote it."
        )
    if summary.get("kind") not in KINDS or not isinstance(summary.get("rows"), list):
        raise ValueError(
            f"{path} must have rows and a kind, one of {', '.join(KINDS)}; got the kind "
            f"{summary.get('kind')!r}. Make the report with the version of Weiss that wrote it."
        )
    shown = {key: _present(summary.get(key) or []) for key in ("axes", "rows", "tests")}
    for kind in (records.Summary, _Shown):
        records.checked(kind, {**summary, **shown}, path)
    needed = {**dict.fromkeys((*STUDIES, *MEASURES), 1), "beta-delta": 2}.get(summary["kind"], 0)
    if len(shown["axes"]) < needed:
        raise ValueError(
            f"{path} must name {needed} axes for the kind {summary['kind']!r}; got "
            f"{len(shown['axes'])}. Run the command that wrote it again."
        )
    shown["rows"] = [{**EMPTY, **row} for row in shown["rows"]]
    return Comparison(folder, {**summary, **shown})


def _present(value: Any) -> Any:
    """Return a value of a file without entries that are null: these are absent."""
    if isinstance(value, dict):
        return {key: _present(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_present(each) for each in value if each is not None]
    return value


def _from_single_runs(data: str, given: Mapping[str, list[Run]]) -> Comparison:
    """Make a comparison of single runs and folders of seeds, all on the same data."""
    titles = _titles({folder: runs[0].recipe() for folder, runs in given.items()})
    rows = [_row(folder, titles[folder], runs) for folder, runs in given.items()]
    every = [run for runs in given.values() for run in runs]
    recipe = every[0].recipe()
    unfinished = {}
    for run in every:
        if not run.is_finished():
            asked = run.recipe().get("train", {}).get("epochs")
            most = f" of at most {asked}" if asked else ""
            unfinished[str(run.folder)] = f"{len(run.metrics())}{most} epochs"
    done = [run.result() for run in every if run.is_finished()]
    places = {str(result.get("measured_on", "nothing")) for result in done}
    if done and all("test" in result for result in done):
        places = {"test"}
    summary = {
        "format": FORMAT,
        "kind": "traditional",
        "title": "Runs",
        "data": data,
        "backbone": _alike(every, "name"),
        "embedding_size": _alike(every, "embedding_size"),
        "measured_on": places.pop() if len(places) == 1 else None,
        "selected_on": HELD_OUT if recipe.get("evaluate", {}).get("on") == "held_out" else "test",
        "is_complete": not unfinished,
        "num_units": len(every),
        "num_done": len(done),
        "axes": [],
        "rows": rows,
        "tests": [],
        "recipe": recipe,
    }
    return Comparison(Path(), summary, is_given=False, unfinished=unfinished)


def _alike(runs: Sequence[Run], key: str) -> Any:
    """Return a setting of the network that all runs share, or its values joined by "and"."""
    found: list[Any] = []
    for value in (run.recipe()["backbone"].get(key) for run in runs):
        found += [value] if value not in found else []
    return found[0] if len(found) == 1 else " and ".join(map(str, found))


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
    is_trained = not results or results[0].get("loss") != UNTRAINED
    scores: dict[str, Any] = {}
    for name in (*SCORES, "epoch", "seconds"):
        read = measured if name in SCORES else dict.get
        score = summarised([read(result, name) for result in results])
        if score is not None:
            scores[name] = score
    return {
        **EMPTY,
        "name": folder,
        "loss": recipe["loss"]["name"] if is_trained else UNTRAINED,
        "title": title if is_trained else not_trained(recipe_from_dict(recipe)),
        "settings": settings if is_trained else {},
        "runs": [str(run.folder) for run in runs],
        "scores": scores,
    }

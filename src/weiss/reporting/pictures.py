"""The picture of a comparison, drawn from its summary, and its caption."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weiss import figures
from weiss.evaluation.metrics import TITLES
from weiss.figures import Boxes, Point
from weiss.reporting.published import published
from weiss.reporting.reading import (
    HELD_OUT,
    Row,
    Summary,
    axis_value,
    is_reference,
    mean_of,
    number,
    parts_of,
    score_of,
)

METRIC = "map_at_r"
YLABEL = f"{TITLES[METRIC]} (%)"
PLACES = {"test": " on the test set", HELD_OUT: f" on {HELD_OUT}"}
"""What a score was measured on, in words."""


def draw_picture(summary: Summary, path: Path, *, with_paper: bool = False) -> str | None:
    """Draw the picture of a comparison of any kind, perhaps with the paper's numbers.

    Benches are boxes, studies of one setting lines, of two settings a heat map; costs and the
    breakdown of the approximation have their own. Scores are drawn in per cent. The network before
    training is a dashed level. Rows without a score are left out.

    Returns:
        The caption, in plain text; None if there is nothing to draw yet: then no file is written.
    """
    rows = [row for row in summary["rows"] if row["scores"]]
    axes = [axis["key"] for axis in summary["axes"]]
    if summary["kind"] == "classes":
        draw = _costs
    elif summary["kind"] == "breakdown":
        draw = _breakdown
    elif len(axes) == 2:
        draw = _heat
    elif len(axes) == 1 and any(number(row["at"].get(axes[0])) is not None for row in rows):
        draw = _lines
    else:
        draw = _boxes
    caption = draw(summary, rows, path, with_paper)
    if caption is None:
        return None
    if summary.get("is_complete") is False:
        done, units = summary.get("num_done"), summary.get("num_units")
        caption += f" Not complete: {done} of {units} units are done."
    return caption


def _boxes(summary: Summary, rows: Sequence[Row], path: Path, with_paper: bool) -> str | None:
    """Draw the values of each row as a box.

    Of a reality check those of the concatenated embeddings above those of the separated ones.
    """
    metrics = {"": METRIC}
    if summary["kind"] == "reality-check":
        parts = reversed(parts_of(summary).items())
        metrics = {title: f"{part}.{METRIC}" for part, title in parts}
    panels = {
        name: _boxes_of(summary, rows, metric, with_paper) for name, metric in metrics.items()
    }
    panels = {name: drawn for name, drawn in panels.items() if drawn.values}
    if not panels:
        return None
    figures.box_panels(panels, path, ylabel=YLABEL)
    of = f" of {' and '.join(panels)}" if "" not in panels else ""
    about = _about_boxes(list(panels.values()))
    return f"MAP@R{_where(summary)}{of}, in per cent: {about}"


def _boxes_of(summary: Summary, rows: Sequence[Row], metric: str, with_paper: bool) -> Boxes:
    """Return the values of the trained rows, and the paper's, by a unique label of each row."""
    keys = [axis["key"] for axis in summary["axes"]]
    trained = [row for row in rows if not is_reference(row)]
    has_one_loss = len({row["title"] for row in trained}) == 1
    values: dict[str, list[float]] = {}
    beside: dict[str, tuple[float, float]] = {}
    labels: set[str] = set()
    for row in trained:
        ways = [axis_value(row["at"][key]) for key in keys if key in row["at"]]
        # In a study of one loss, the value of the axis is enough.
        label = ", ".join(ways if has_one_loss and ways else [row["title"], *ways])
        label = f"{label} ({row['name']})" if label in labels else label
        labels.add(label)
        score = score_of(row, metric, 100)
        if score is None:
            continue
        values[label] = list(score.values) or [score.mean]
        paper = published(summary, row, metric) if with_paper else None
        if paper is not None and paper.high is not None:
            beside[label] = (paper.mean, paper.high - paper.mean)
    return Boxes(values, levels_of(rows, metric), beside)


def _about_boxes(panels: Sequence[Boxes]) -> str:
    """Return the meaning of the signs that were drawn."""
    counts = [len(values) for panel in panels for values in panel.values.values()]
    if max(counts) == 1:
        words = "one run each, so there is no interval"
    else:
        words = (
            "dots are single runs, boxes reach from the first to the third quartile with a line "
            "at the median, whiskers over all runs; filled diamonds are means with their 95 % "
            "intervals"
        )
        if 2 in counts and max(counts) > 2:
            words += " (cut off where two runs give a very wide one)"
    if any(panel.published for panel in panels):
        words += "; open diamonds are published means with their 95 % intervals"
    return words + "." + _about_levels([panel.levels for panel in panels])


def _lines(summary: Summary, rows: Sequence[Row], path: Path, with_paper: bool) -> str | None:
    """Draw a score against the one setting that a study varies, a line a loss."""
    axis = summary["axes"][0]
    series = _series(rows, axis["key"], METRIC, factor=100)
    if not series:
        return None
    levels = levels_of(rows, METRIC)
    beside: dict[str, list[Point]] = {}
    for row in rows if with_paper else ():
        for at in row["at"].values():
            if (paper := published(summary, row, at=at)) is not None:
                point = Point(at, paper.mean, paper.low, paper.high)
                beside.setdefault(row["title"], []).append(point)
    label = axis["label"]
    figures.dependence(
        series,
        path,
        xlabel=label,
        ylabel=YLABEL,
        log_x=bool(axis.get("log")),
        levels=levels,
        published=beside,
    )
    has_interval = any(point.low is not None for points in series.values() for point in points)
    words = "bars are 95 % intervals" if has_interval else "one run each, so there is no interval"
    if beside:
        words += "; dashed lines with open markers are published"
    return f"MAP@R{_where(summary)} by {label}, in per cent: {words}.{_about_levels([levels])}"


def _heat(summary: Summary, rows: Sequence[Row], path: Path, with_paper: bool) -> str | None:
    """Draw a score over the two settings that a study varies, a panel a loss."""
    across, up = summary["axes"]
    cells: dict[str, dict[tuple[Any, Any], float]] = {}
    for row in rows:
        score = score_of(row, METRIC, 100)
        place = row["at"].get(across["key"]), row["at"].get(up["key"])
        if score is not None and not is_reference(row) and None not in place:
            cells.setdefault(row["title"], {})[place] = score.mean
    if not cells:
        return None
    found = [place for table in cells.values() for place in table]
    # In the declared order, then other values of rows.
    xs = list(dict.fromkeys([*across.get("values", ()), *(x for x, _ in found)]))
    ys = list(dict.fromkeys([*up.get("values", ()), *(y for _, y in found)]))
    names = [axis["label"] for axis in (across, up)]
    tables = {
        title: [[table.get((x, y)) for x in xs] for y in ys] for title, table in cells.items()
    }
    shown = tables if len(tables) > 1 else {"": next(iter(tables.values()))}
    figures.heat_panels(shown, xs, ys, path, xlabel=names[0], ylabel=names[1], label=YLABEL)
    best = []
    for title, table in cells.items():
        x, y = max(table, key=lambda place: table[place])
        best.append(
            f"{title} {table[x, y]:.1f} at {names[0]} {axis_value(x)}, {names[1]} {axis_value(y)}"
        )
    words = f"MAP@R{_where(summary)}, in per cent; framed is the best: {'; '.join(best)}."
    if len(xs) * len(ys) > min(map(len, cells.values())):
        words += " Hatched: not measured."
    levels = levels_of(rows, METRIC)
    return words + "".join(f" {name}: {value:.1f}." for name, value in levels.items())


def _costs(summary: Summary, rows: Sequence[Row], path: Path, with_paper: bool) -> str | None:
    """Draw time and memory of a step against the number of classes."""
    axis = summary["axes"][0]
    time, memory = (_series(rows, axis["key"], name) for name in ("milliseconds", "megabytes"))
    points = [point for each in (time, memory) for many in each.values() for point in many]
    if not any(point.x > 0 and point.mean > 0 for point in points):
        return None
    label = axis["label"]
    figures.costs(time, memory, path, xlabel=label)
    batch = number(summary.get("batch_size"))
    words = f"What one step of a loss costs by {label}"
    words += f", in a batch of {batch:g}" if batch else ""
    words += ": time, its bars quartiles of the repetitions, and peak memory, on logarithmic axes."
    failed = [row["title"] for row in summary["rows"] if row["failed"]]
    if failed:
        words += f" Without a point where it failed: {', '.join(dict.fromkeys(failed))}."
    return words


def _breakdown(summary: Summary, rows: Sequence[Row], path: Path, with_paper: bool) -> str | None:
    """Draw the excess of the pair loss over its mean field against the spread of classes."""
    axis = summary["axes"][0]
    curves: dict[str, list[tuple[float, float]]] = {}
    networks: dict[str, dict[str, tuple[float, float]]] = {}
    for row in rows:
        asked, spread = number(row["at"].get(axis["key"])), mean_of(row, "spread")
        x, excess = asked if spread is None else spread, mean_of(row, "excess")
        if excess is None or x is None:
            continue
        if asked is None:  # a network: its spread was measured, not given
            networks.setdefault(row.get("network", "other"), {})[row["title"]] = (x, excess)
        else:
            curves.setdefault(row["title"], []).append((x, excess))
    if not curves and not networks:
        return None
    look = {"xlabel": axis["label"], "ylabel": "excess of the pair loss over its mean field"}
    figures.breakdown(curves, path, networks=networks, **look)
    words = (
        "How far each pair loss lies above its mean-field child, less what it does at zero spread, "
        "as samples spread around the mean of their class."
    )
    return words + (" Large marks are networks, as measured." if networks else "")


def _series(rows: Sequence[Row], key: str, metric: str, *, factor: float = 1) -> dict[str, Any]:
    """Return the points of each loss along an axis, those that have a number and a score."""
    found: dict[str, list[Point]] = {}
    for row in rows:
        x, score = number(row["at"].get(key)), score_of(row, metric, factor)
        if x is not None and score is not None and not is_reference(row):
            point = Point(x, score.mean, score.low, score.high)
            found.setdefault(row["title"], []).append(point)
    return found


def levels_of(rows: Sequence[Row], metric: str) -> dict[str, float]:
    """Return the scores of untrained networks by title, in per cent; of several the highest."""
    found: dict[str, list[float]] = {}
    for row in rows:
        score = score_of(row, metric, 100)
        if score is not None and is_reference(row):
            found.setdefault(row["title"], []).append(score.mean)
    return {
        title if len(means) == 1 else f"{title}, highest": max(means)
        for title, means in found.items()
    }


def _about_levels(many: Sequence[Mapping[str, float]]) -> str:
    found: dict[str, list[str]] = {}
    for levels in many:
        for name, value in levels.items():
            found.setdefault(name, []).append(f"{value:.1f}")
    known = [f"{name} {' and '.join(dict.fromkeys(each))}" for name, each in found.items()]
    return f" Before training: {', '.join(known)}." if known else ""


def _where(summary: Summary) -> str:
    return PLACES.get(str(summary.get("measured_on")), "")

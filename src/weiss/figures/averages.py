"""Figures over epochs, several runs beside each other: for each title the mean of its runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from weiss.evaluation.metrics import TITLES
from weiss.figures.drawing import (
    DASHES,
    NOTHING,
    PAPER_TEXT,
    End,
    draw_levels,
    height_for,
    label_ends,
    log_if_helpful,
    marker,
    name_axes,
    paper_figure,
    share_from_zero,
    style,
    whole_epochs,
    write,
)
from weiss.figures.runs import ORDER, Curve, Metrics, curve_of, order_curve

Runs = Mapping[str, Sequence[Metrics]]
"""For each title the runs, each the lines of its metrics.jsonl."""


@dataclass(frozen=True)
class Averaged:
    """A curve over epochs that stands for several runs.

    Attributes:
        epochs: those at which at least one run has a value, in order.
        means: at each of them, over the runs that have a value there.
        lows: the lowest of these values.
        highs: the highest of them.
        num_runs: how many runs have a value at any epoch.
    """

    epochs: list[int]
    means: list[float]
    lows: list[float]
    highs: list[float]
    num_runs: int


def averaged_curves(
    runs: Runs,
    path: Path,
    *,
    metric: str = "map_at_r",
    levels: Mapping[str, float] = NOTHING,
    title: str = "",
) -> None:
    """Draw how retrieval went over the epochs, for each title the mean of its runs.

    The mean is over those runs that were evaluated at an epoch, and the band around it reaches from
    the worst to the best of them: where runs stop early, the end of a curve rests on fewer runs. A
    title without any evaluation is left out; the others look as if it were there.

    Args:
        runs: for each title the runs, each the lines of its metrics.jsonl.
        path: the .png, .svg or .pdf file to write; its folder is made.
        metric: which value of the evaluations to draw, a fraction; shown in per cent.
        levels: for each label the height of a dashed line, in per cent, such as the network's score
            before training.
        title: of the figure.

    Raises:
        ValueError: no run was evaluated.
    """
    curves = _averages(runs, lambda lines: curve_of(lines, "evaluation", metric, factor=100))
    if not curves:
        raise ValueError(
            f"runs must have at least one evaluation with {metric!r}; got {len(runs)} titles "
            "without any. Train for an epoch first, or name a metric that was measured."
        )
    height = max(2.9, height_for([*curves, *levels]))
    figure, [axis] = paper_figure(1, 1, title, width=6.3, height=height)
    _over_epochs(axis, [curves])
    name_axes(axis, "epoch", f"{TITLES.get(metric, metric)} (%)")
    ends = _draw(axis, curves, list(runs))
    label_ends(axis, ends + draw_levels(axis, levels, _reach(curves)), text=PAPER_TEXT)
    write(figure, path, dpi=200)


def order_averages(runs: Runs) -> dict[str, dict[str, Averaged]]:
    """Return the order parameters over the epochs, for each title the mean of its runs.

    Of a run the median over its classes counts, of pairs of fields the share in per cent.

    Args:
        runs: for each title the runs, each the lines of its metrics.jsonl.

    Returns:
        For each order parameter that any run has, by its key, the titles that have it.
    """
    found = {key: _averages(runs, partial(order_curve, key=key)) for key in ORDER}
    return {key: curves for key, curves in found.items() if curves}


def averaged_order(runs: Runs, path: Path, *, title: str = "") -> None:
    """Draw order parameters over the epochs, for each title the mean of its runs.

    Panels one above the other: length of class means and residual of self-consistency, of each run
    the median over classes, and the share of pairs of fields that violate the constraint. A panel
    without any values is left out. Given the same titles, a title looks as in `averaged_curves`.

    Args:
        runs: for each title the runs, each the lines of its metrics.jsonl.
        path: the .png, .svg or .pdf file to write; its folder is made.
        title: of the figure.

    Raises:
        ValueError: no run has an order parameter.
    """
    panels = order_averages(runs)
    if not panels:
        raise ValueError(
            "runs must have at least one line with an entry 'order' that has values; got "
            f"{len(runs)} titles without any. Leave the figure out, or train for an epoch first."
        )
    # Panels are equally high, and each has room for the labels of the fullest.
    height = len(panels) * max(2.0, *(height_for(list(curves)) for curves in panels.values()))
    figure, axes = paper_figure(len(panels), 1, title, width=6.3, height=height + 0.2, sharex=True)
    _over_epochs(axes[-1], list(panels.values()))
    axes[-1].set_xlabel("epoch", fontsize=PAPER_TEXT, color="0.25")
    for axis, (key, curves) in zip(axes, panels.items(), strict=True):
        axis.set_title(ORDER[key], loc="left", fontsize=PAPER_TEXT)
        ends = _draw(axis, curves, list(runs))
        known = _reach(curves)
        if key == "violating_share":
            share_from_zero(axis, known)
        elif not log_if_helpful(axis, known):
            draw_levels(axis, {}, known)
        label_ends(axis, ends, text=PAPER_TEXT)
    write(figure, path, dpi=200)


def _averages(runs: Runs, curve: Callable[[Metrics], Curve]) -> dict[str, Averaged]:
    """Return for each title the curve of its runs; a title without any value is left out.

    Args:
        runs: for each title the runs.
        curve: gives the curve of one run; what is no number in it is left out.
    """
    found: dict[str, Averaged] = {}
    for label, lines_of_runs in runs.items():
        curves = [dict(zip(*curve(lines), strict=True)) for lines in lines_of_runs]
        curves = [{at: value for at, value in each.items() if isfinite(value)} for each in curves]
        curves = [each for each in curves if each]
        epochs = sorted({at for each in curves for at in each})
        there = [[each[at] for each in curves if at in each] for at in epochs]
        if there:
            means = [sum(values) / len(values) for values in there]
            lows, highs = list(map(min, there)), list(map(max, there))
            found[label] = Averaged(epochs, means, lows, highs, len(curves))
    return found


def _over_epochs(axis: Any, panels: Sequence[Mapping[str, Averaged]]) -> None:
    """Let a panel, and those that share its epochs, reach over all epochs of all curves."""
    known = [at for curves in panels for curve in curves.values() for at in curve.epochs]
    axis.set_xlim(min(known) - 0.5, max(known) + 0.5)
    whole_epochs(axis)


def _draw(axis: Any, curves: Mapping[str, Averaged], titles: Sequence[str]) -> list[End]:
    """Draw curves, each with the looks of its place among the titles; return their labels."""
    ends: list[End] = []
    for label, curve in curves.items():
        place = titles.index(label)
        colour = style(place)[0]
        many = len(curve.epochs)
        axis.fill_between(
            curve.epochs, curve.lows, curve.highs, color=colour, alpha=0.16, linewidth=0
        )
        look: dict[str, Any] = {"marker": marker(place), "markersize": 4, "linewidth": 1.5}
        look["clip_on"] = False  # a marker on the edge of its panel is whole
        # A marker now and then: beside the dashes it tells curves apart in grey.
        look |= {"markevery": (place % 3, max(3, many // 8))} if many > 12 else {}
        dashes = DASHES[place % len(DASHES)]
        axis.plot(curve.epochs, curve.means, color=colour, linestyle=dashes, **look)
        ends.append((label, float(curve.epochs[-1]), curve.means[-1], colour))
    return ends


def _reach(curves: Mapping[str, Averaged]) -> list[float]:
    """Return heights between which all values of all curves lie."""
    return [end for curve in curves.values() for end in (*curve.lows, *curve.highs)]

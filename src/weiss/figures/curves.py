"""Figures over the epochs of training: one run, single curves, averages of several runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from weiss.evaluation.metrics import TITLES
from weiss.figures.drawing import (
    COLOURS,
    DASHES,
    NOTHING,
    PAPER_TEXT,
    TEXT,
    End,
    draw_levels,
    dress,
    height_for,
    label_ends,
    log_if_helpful,
    marker,
    name_axes,
    new_figure,
    paper_figure,
    share_from_zero,
    style,
    whole_epochs,
    write,
)

Metrics = Sequence[Mapping[str, Any]]
"""The lines of a run's metrics.jsonl, one for each epoch."""
Curve = tuple[list[int], list[float]]
Curves = dict[str, Curve]
ORDER = {
    "class_mean_length": "Length of class means",
    "residual": "Residual of self-consistency",
    "violating_share": "Violating pairs of fields (%)",
}
"""The order parameters in a line of metrics, and the titles of their panels."""


def learning_curves(
    metrics: Metrics,
    path: Path,
    *,
    best_epoch: int | None = None,
    warmup_epochs: int = 0,
    title: str = "",
) -> None:
    """Draw one run: training loss, retrieval in per cent, learning rates.

    A panel without any values is left out. A learning rate of zero is a gap on its log axis.

    Args:
        metrics: the lines of the run's metrics.jsonl.
        path: the .png, .svg or .pdf file to write; its folder is created.
        best_epoch: the epoch to mark, one that was evaluated.
        warmup_epochs: how many epochs to shade; those whose phase is "warm-up" are shaded anyway.
        title: of the whole figure.
    """
    groups = dict.fromkeys(name for line in metrics for name in line.get("lr") or ())
    retrieval = {
        name: curve_of(metrics, "evaluation", key, factor=100) for key, name in TITLES.items()
    }
    panels = {
        "Training loss": {"": curve_of(metrics, "loss")},
        "Retrieval (%)": retrieval,
        "Learning rate": {name: curve_of(metrics, "lr", name, zero=math.nan) for name in groups},
    }
    panels = {name: _with_values(curves) for name, curves in panels.items()}
    panels = {name: curves for name, curves in panels.items() if curves}
    if not panels:
        raise ValueError(
            f"metrics must have at least one line with values; got {len(metrics)} without any. "
            "Train for an epoch first."
        )
    figure, axes = _panels(list(panels), [line["epoch"] for line in metrics], title)
    warm = [line["epoch"] for line in metrics if line.get("phase") == "warm-up"]
    last_warm = max([warmup_epochs, *warm])
    for name, curves in panels.items():
        if last_warm:
            axes[name].axvspan(-1, last_warm + 0.5, color="0.93", zorder=0, linewidth=0)
        if name == "Learning rate":
            axes[name].set_yscale("log")
        # Some groups have the same rate.
        _draw_curves(axes[name], curves, widen=1.2 if name == "Learning rate" else 0)
    if best_epoch is not None:
        _mark_best(axes.get("Retrieval (%)"), retrieval["MAP@R"], best_epoch)
    for name, curves in panels.items():
        label_ends(axes[name], _ends(curves))
    if last_warm:
        # At the bottom of the first panel, below a loss that starts high.
        axis = next(iter(axes.values()))
        where = {"xycoords": "axes fraction", "fontsize": TEXT - 1}
        axis.annotate("warm-up", (0.02, 0.03), color="0.35", **where)
    write(figure, path, dpi=150)


def order_parameters(metrics: Metrics, path: Path, *, title: str = "") -> None:
    """Draw the order parameters of a run over its epochs.

    Three panels: length of each class's mean embedding and residual of self-consistency, both as
    distributions over classes, and the share of pairs of fields that violate the constraint. A
    panel without any values is left out: a pair loss has no fields.

    Args:
        metrics: the lines of the run's metrics.jsonl.
        path: the .png, .svg or .pdf file to write; its folder is created.
        title: of the whole figure.
    """
    spreads = {ORDER[key]: _spread(metrics, key) for key in ("class_mean_length", "residual")}
    spreads = {name: spread for name, spread in spreads.items() if spread[0]}
    share = _with_values({"": order_curve(metrics, "violating_share")})
    violating = ORDER["violating_share"]
    names = [*spreads, *([violating] if share else [])]
    if not names:
        raise ValueError(
            f"metrics must have an entry 'order' with values in at least one line; none of "
            f"{len(metrics)} has. Draw learning_curves instead, or train with order parameters on."
        )
    figure, axes = _panels(names, [line["epoch"] for line in metrics], title)
    for name, (epochs, quantiles) in spreads.items():
        low, lower, median, upper, high = zip(*quantiles, strict=True)
        style = {"color": COLOURS[0], "linewidth": 0}
        axes[name].fill_between(epochs, low, high, alpha=0.16, label="5 to 95 %", **style)
        axes[name].fill_between(epochs, lower, upper, alpha=0.32, label="25 to 75 %", **style)
        _draw_curves(axes[name], {"median of the classes": (epochs, list(median))})
        log_if_helpful(axes[name], [*low, *high])
    if share:
        _draw_curves(axes[violating], share)
        share_from_zero(axes[violating], share[""][1])
    if spreads:
        handles, labels = axes[names[0]].get_legend_handles_labels()
        order = {"loc": "outside lower center", "ncols": 3, "frameon": False, "fontsize": TEXT}
        figure.legend(handles[::-1], labels[::-1], **order)
    write(figure, path, dpi=150)


def comparison(
    curves: Mapping[str, Sequence[tuple[int, float]]],
    levels: Mapping[str, float],
    path: Path,
    *,
    ylabel: str,
    title: str = "",
) -> None:
    """Draw several curves over epochs beside reference levels, each labelled where it ends.

    Args:
        curves: for each label, points ``(epoch, value)``.
        levels: for each label, the height of a dashed line.
        path: the .png, .svg or .pdf file to write; its folder is created.
        ylabel: the label of the values, with their unit.
        title: of the figure.
    """
    empty = [label for label, points in curves.items() if not len(points)]
    if empty or not curves:
        raise ValueError(
            "curves must be at least one, each with at least one point (epoch, value); got "
            f"{f'none for {empty[0]!r}' if empty else 'no curve'}. Leave out what has no values."
        )
    drawn: Curves = {
        label: ([at for at, _ in points], [value for _, value in points])
        for label, points in curves.items()
    }
    epochs = [at for known, _ in drawn.values() for at in known]
    figure, axes = _panels([ylabel], epochs, title, height=3.6)
    axis = axes[ylabel]
    for height in levels.values():
        axis.axhline(height, color="0.45", linestyle=(0, (5, 4)), linewidth=1.1, zorder=1)
    _draw_curves(axis, drawn)
    right = axis.get_xlim()[1]
    marks = [(label, right, height, "0.35") for label, height in levels.items()]
    label_ends(axis, _ends(drawn) + marks)
    write(figure, path, dpi=150)


def curve_of(metrics: Metrics, *keys: str, factor: float = 1.0, zero: float = 0.0) -> Curve:
    """Return the epochs that have a value under these keys, and the values."""
    epochs, values = [], []
    for line in metrics:
        found: Any = line
        for key in keys:
            found = (found or {}).get(key)
        if found is not None:
            epochs.append(int(line["epoch"]))
            values.append(float(found) * factor or zero)
    return epochs, values


def order_curve(metrics: Metrics, key: str) -> Curve:
    """Return an order parameter as one curve: the median over classes, or a share in per cent.

    Args:
        metrics: the lines of a run's metrics.jsonl; those without it are left out.
        key: which one, of `ORDER`.
    """
    if key == "violating_share":
        return curve_of(metrics, "order", key, factor=100)
    epochs, quantiles = _spread(metrics, key)
    return epochs, [float(values[len(values) // 2]) for values in quantiles]


def _spread(metrics: Metrics, key: str) -> tuple[list[int], list[Sequence[float]]]:
    """Return the epochs that have five quantiles of an order parameter, and those."""
    lines = [line for line in metrics if (line.get("order") or {}).get(key) is not None]
    return [int(line["epoch"]) for line in lines], [line["order"][key] for line in lines]


def _with_values(curves: Curves) -> Curves:
    return {name: curve for name, curve in curves.items() if any(map(math.isfinite, curve[1]))}


def _panels(
    names: Sequence[str], epochs: Sequence[int], title: str, *, height: float = 2.9
) -> tuple[Any, dict[str, Any]]:
    """Return a figure with panels over the same epochs side by side, and the panels by name."""
    width = {1: 6.4, 2: 7.6}.get(len(names), 9.6)
    figure = new_figure(width, height + (0.3 if title else 0))
    figure.get_layout_engine().set(wspace=0.06)
    if title:
        figure.suptitle(title, fontsize=TEXT + 2, fontweight="bold", parse_math=False)
    axes = dict(zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True))
    for name, axis in axes.items():
        axis.set_title(name, loc="left", fontsize=TEXT + 0.5, parse_math=False)
        axis.set_xlabel("epoch", fontsize=TEXT, color="0.25")
        axis.set_xlim(min(epochs) - 0.5, max(epochs) + 0.5)
        whole_epochs(axis)
        dress(axis, text=TEXT)
    return figure, axes


def _draw_curves(axis: Any, curves: Curves, *, widen: float = 0.0) -> None:
    """Draw curves, each wider than the next by ``widen`` points, to show on both sides of it."""
    for place, (label, (epochs, values)) in enumerate(curves.items()):
        colour, dashes = style(place)
        # Dots show the evaluated epochs; many would hide the line.
        size = 3.2 if len(epochs) <= 40 else 0
        width = 1.8 + widen * (len(curves) - 1 - place)
        look = {"color": colour, "linestyle": dashes, "marker": "o", "markersize": size}
        axis.plot(epochs, values, linewidth=width, label=label, **look)


def _mark_best(axis: Any, curve: Curve, best_epoch: int) -> None:
    """Mark the best epoch of a panel and write its number and value at the bottom."""
    values = dict(zip(*curve, strict=True))
    if axis is None or best_epoch not in values:
        known = ", ".join(map(str, values)) or "none"
        raise ValueError(
            f"best_epoch must be an epoch that was evaluated; got {best_epoch}, evaluated: "
            f"{known}. Pass one of these, or None."
        )
    low, high = axis.get_ylim()
    axis.set_ylim(max(low - 0.22 * (high - low), min(low, 0.0)), high)
    axis.axvline(best_epoch, color="0.35", linestyle=":", linewidth=1.1, zorder=1)
    ring = {"markersize": 8, "markerfacecolor": "none", "markeredgecolor": "black"}
    axis.plot(best_epoch, values[best_epoch], "o", markeredgewidth=1.3, **ring)
    is_late = best_epoch > sum(axis.get_xlim()) / 2
    text = f"best: epoch {best_epoch}\nMAP@R {values[best_epoch]:.1f} %"
    where = {"xycoords": axis.get_xaxis_transform(), "textcoords": "offset points"}
    side: dict[str, Any] = {"ha": "right" if is_late else "left", "fontsize": TEXT - 1}
    note = axis.annotate(text, (best_epoch, 0.03), (-4 if is_late else 4, 0), **where, **side)
    note.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1})


def _ends(curves: Curves) -> list[End]:
    """Return label, last finite point and colour of each curve that has them."""
    ends = []
    for place, (label, (epochs, values)) in enumerate(curves.items()):
        finite = [at for at, value in enumerate(values) if math.isfinite(value)]
        if label and finite:
            ends.append((label, float(epochs[finite[-1]]), values[finite[-1]], style(place)[0]))
    return ends


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
    """Draw retrieval over the epochs, for each title the mean of its runs.

    The mean is over those runs that were evaluated at an epoch, and the band around it reaches from
    the worst to the best of them: where runs stop early, the end of a curve has fewer runs. A
    title without any evaluation is left out; the others keep their colours.

    Args:
        runs: for each title the runs, each the lines of its metrics.jsonl.
        path: the .png, .svg or .pdf file to write; its folder is created.
        metric: which value of the evaluations to draw, a fraction; shown in per cent.
        levels: for each label the height of a dashed line, in per cent, such as the network's score
            before training.
        title: of the figure.
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
        path: the .png, .svg or .pdf file to write; its folder is created.
        title: of the figure.
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
        curve: gives the curve of one run; values that are not finite are left out.
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
    """Set the limits of a panel, and of those that share its epochs, to all epochs."""
    known = [at for curves in panels for curve in curves.values() for at in curve.epochs]
    axis.set_xlim(min(known) - 0.5, max(known) + 0.5)
    whole_epochs(axis)


def _draw(axis: Any, curves: Mapping[str, Averaged], titles: Sequence[str]) -> list[End]:
    """Draw curves, each in the style of its place among the titles; return their labels."""
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
        # Some markers: with the dashes they distinguish curves in grey print.
        look |= {"markevery": (place % 3, max(3, many // 8))} if many > 12 else {}
        dashes = DASHES[place % len(DASHES)]
        axis.plot(curve.epochs, curve.means, color=colour, linestyle=dashes, **look)
        ends.append((label, float(curve.epochs[-1]), curve.means[-1], colour))
    return ends


def _reach(curves: Mapping[str, Averaged]) -> list[float]:
    """Return heights between which all values of all curves lie."""
    return [end for curve in curves.values() for end in (*curve.lows, *curve.highs)]

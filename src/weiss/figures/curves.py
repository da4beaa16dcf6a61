"""Figures over the epochs of training: one run, single curves, averages of several runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, nan
from pathlib import Path
from typing import Any

from weiss.evaluation.metrics import TITLES
from weiss.figures.drawing import (
    COLOURS,
    NOTHING,
    TEXT,
    End,
    colour_of,
    draw_levels,
    height_for,
    label_ends,
    legend_below,
    line_look,
    log_if_helpful,
    name_axes,
    paper_figure,
    refuse_nothing,
    share_from_zero,
    whole_epochs,
    write,
)

Metrics = Sequence[Mapping[str, Any]]
"""The lines of a run's metrics.jsonl, one for each epoch."""
Curve = dict[int, float]
"""For each epoch its value."""
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
    title: str = "",
) -> None:
    """Draw one run: training loss, retrieval in per cent, learning rates.

    Epoch 0 is the network before training, if it was measured. A panel without any values is left
    out. A learning rate of zero is a gap on its log axis. Epochs of warm-up are shaded.

    Args:
        metrics: the lines of the run's metrics.jsonl.
        path: the file to write.
        best_epoch: the epoch to mark, one that was evaluated.
        title: of the whole figure.
    """
    groups = dict.fromkeys(name for line in metrics for name in line.get("lr") or ())
    before = (metrics[0].get("before") or {}) if metrics else {}
    retrieval = {
        name: {0: 100 * before[key]} | curve if key in before and curve else curve
        for key, name in TITLES.items()
        for curve in [_curve(metrics, ("evaluation", key), factor=100)]
    }
    panels = {
        "Training loss": {"": _curve(metrics, ("loss",))},
        "Retrieval (%)": retrieval,
        "Learning rate": {name: _curve(metrics, ("lr", name), zero=nan) for name in groups},
    }
    panels = {name: _with_values(curves) for name, curves in panels.items()}
    panels = {name: curves for name, curves in panels.items() if curves}
    refuse_nothing(panels, "metrics must have a line with values", f"{len(metrics)} lines")
    epochs = [*([0] if before else []), *(line["epoch"] for line in metrics)]
    figure, axes = _panels(list(panels), epochs, title)
    warm = [line["epoch"] for line in metrics if line.get("phase") == "warm-up"]
    for name, curves in panels.items():
        if warm:
            axes[name].axvspan(
                min(warm) - 0.5, max(warm) + 0.5, color="0.93", zorder=0, linewidth=0
            )
        if name == "Learning rate":
            axes[name].set_yscale("log")
        for place, curve in enumerate(curves.values()):
            _draw_line(axes[name], place, list(curve), list(curve.values()))
    if best_epoch is not None:
        _mark_best(axes.get("Retrieval (%)"), retrieval["MAP@R"], best_epoch)
    for name, curves in panels.items():
        label_ends(axes[name], _ends(curves))
    if warm:
        # At the bottom of the first panel, below a loss that starts high.
        axis = next(iter(axes.values()))
        where = {"xycoords": "axes fraction", "fontsize": TEXT - 1}
        axis.annotate("warm-up", (0.02, 0.03), color="0.35", **where)
    write(figure, path, dpi=150)


def order_parameters(metrics: Metrics, path: Path, *, title: str = "") -> None:
    """Draw the order parameters of a run over its epochs.

    Length of each class's mean embedding and residual of self-consistency, both as distributions
    over classes, and the share of pairs of fields that violate the constraint. A panel without
    any values is left out: a pair loss has no fields.

    Args:
        metrics: the lines of the run's metrics.jsonl.
        path: the file to write.
        title: of the whole figure.
    """
    spreads = {ORDER[key]: _spread(metrics, key) for key in ("class_mean_length", "residual")}
    spreads = {name: spread for name, spread in spreads.items() if spread}
    share = _with_values({"": _order_curve(metrics, "violating_share")})
    violating = ORDER["violating_share"]
    names = [*spreads, *([violating] if share else [])]
    must_hold = "metrics must have a line with an entry 'order' that has values"
    refuse_nothing(names, must_hold, f"{len(metrics)} lines")
    figure, axes = _panels(names, [line["epoch"] for line in metrics], title)
    for name, spread in spreads.items():
        epochs = list(spread)
        low, lower, median, upper, high = zip(*spread.values(), strict=True)
        style = {"color": COLOURS[0], "linewidth": 0}
        axes[name].fill_between(epochs, low, high, alpha=0.16, label="5 to 95 %", **style)
        axes[name].fill_between(epochs, lower, upper, alpha=0.32, label="25 to 75 %", **style)
        _draw_line(axes[name], 0, epochs, median, label="median of the classes")
        log_if_helpful(axes[name], [*low, *high])
    if share:
        known = list(share[""].values())
        _draw_line(axes[violating], 0, list(share[""]), known)
        share_from_zero(axes[violating], known)
    if spreads:
        handles, _ = axes[names[0]].get_legend_handles_labels()
        legend_below(figure, handles[::-1])
    write(figure, path, dpi=150)


def _curve(
    metrics: Metrics, keys: Sequence[str], *, factor: float = 1.0, zero: float = 0.0
) -> Curve:
    """Return the values under nested keys; ``zero`` takes the place of a zero."""
    curve: Curve = {}
    for line in metrics:
        found: Any = line
        for key in keys:
            found = (found or {}).get(key)
        if found is not None:
            curve[int(line["epoch"])] = float(found) * factor or zero
    return curve


def _order_curve(metrics: Metrics, key: str) -> Curve:
    """Return an order parameter: the median over classes, or a share in per cent."""
    if key == "violating_share":
        return _curve(metrics, ("order", key), factor=100)
    spread = _spread(metrics, key)
    return {at: float(quantiles[len(quantiles) // 2]) for at, quantiles in spread.items()}


def _spread(metrics: Metrics, key: str) -> dict[int, Sequence[float]]:
    """Return the five quantiles of an order parameter over classes."""
    lines = [line for line in metrics if (line.get("order") or {}).get(key) is not None]
    return {int(line["epoch"]): line["order"][key] for line in lines}


def _with_values(curves: Curves) -> Curves:
    return {name: curve for name, curve in curves.items() if any(map(isfinite, curve.values()))}


def _panels(names: Sequence[str], epochs: Sequence[int], title: str) -> tuple[Any, dict[str, Any]]:
    """Return a figure with panels over the same epochs side by side, and the panels by name."""
    width = {1: 6.4, 2: 7.6}.get(len(names), 9.6)
    figure, found = paper_figure(1, len(names), title, width=width, height=2.9)
    figure.get_layout_engine().set(wspace=0.06)
    for name, axis in zip(names, found, strict=True):
        name_axes(axis, "epoch", "", name)
        _over_epochs(axis, epochs)
    return figure, dict(zip(names, found, strict=True))


def _over_epochs(axis: Any, epochs: Sequence[int]) -> None:
    """Set the limits of a panel, and of those that share its epochs, to all epochs."""
    axis.set_xlim(min(epochs) - 0.5, max(epochs) + 0.5)
    whole_epochs(axis)


def _draw_line(
    axis: Any, place: int, epochs: Sequence[int], values: Sequence[float], label: str = ""
) -> None:
    """Draw a line in the style of its place."""
    look = line_look(place) | {"clip_on": False}  # a marker on the edge of its panel is whole
    # Some markers: with the dashes they distinguish curves in grey print.
    many = len(epochs)
    look |= {"markevery": (place % 3, max(3, many // 8))} if many > 12 else {}
    axis.plot(epochs, values, label=label, **look)


def _mark_best(axis: Any, curve: Curve, best_epoch: int) -> None:
    """Mark the best epoch of a panel and write its number and value at the bottom."""
    if axis is None or best_epoch not in curve:
        known = ", ".join(map(str, curve)) or "none"
        raise ValueError(
            f"best_epoch must be an epoch that was evaluated; got {best_epoch}, evaluated: "
            f"{known}. Pass one of these, or None."
        )
    low, high = axis.get_ylim()
    axis.set_ylim(max(low - 0.22 * (high - low), min(low, 0.0)), high)
    axis.axvline(best_epoch, color="0.35", linestyle=":", linewidth=1.1, zorder=1)
    ring = {"markersize": 8, "markerfacecolor": "none", "markeredgecolor": "black"}
    axis.plot(best_epoch, curve[best_epoch], "o", markeredgewidth=1.3, **ring)
    is_late = best_epoch > sum(axis.get_xlim()) / 2
    text = f"best: epoch {best_epoch}\nMAP@R {curve[best_epoch]:.1f} %"
    where = {"xycoords": axis.get_xaxis_transform(), "textcoords": "offset points"}
    side: dict[str, Any] = {"ha": "right" if is_late else "left", "fontsize": TEXT - 1}
    note = axis.annotate(text, (best_epoch, 0.03), (-4 if is_late else 4, 0), **where, **side)
    note.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1})


def _ends(curves: Curves) -> list[End]:
    """Return label, last finite point and colour of each curve that has them."""
    ends = []
    for place, (label, curve) in enumerate(curves.items()):
        finite = [(float(at), value) for at, value in curve.items() if isfinite(value)]
        if label and finite:
            ends.append((label, *finite[-1], colour_of(place)))
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


def averaged_curves(runs: Runs, path: Path, *, levels: Mapping[str, float] = NOTHING) -> None:
    """Draw MAP@R over the epochs, for each title the mean of its runs.

    The mean is over those runs that were evaluated at an epoch, and the band around it reaches from
    the worst to the best of them: where runs stop early, the end of a curve has fewer runs. A
    title without any evaluation is left out; the others keep their colours.

    Args:
        runs: for each title the runs, each the lines of its metrics.jsonl.
        path: the file to write.
        levels: for each label the height of a dashed line, in per cent, such as the network's score
            before training.
    """
    curves = averages(runs).get("map_at_r", {})
    refuse_nothing(curves, "runs must have an evaluation with 'map_at_r'", f"{len(runs)} titles")
    height = max(2.9, height_for([*curves, *levels]))
    figure, [axis] = paper_figure(1, 1, width=6.3, height=height)
    _over_epochs(axis, [at for curve in curves.values() for at in curve.epochs])
    name_axes(axis, "epoch", "MAP@R (%)")
    ends = _draw(axis, curves, list(runs))
    label_ends(axis, ends + draw_levels(axis, levels, _reach(curves)))
    write(figure, path, dpi=200)


def averages(runs: Runs) -> dict[str, dict[str, Averaged]]:
    """Return MAP@R and the order parameters over the epochs, for each title the mean of its runs.

    Of an order parameter of a run the median over its classes counts; MAP@R and the share of pairs
    of fields are in per cent.

    Args:
        runs: for each title the runs, each the lines of its metrics.jsonl.

    Returns:
        For each of ``"map_at_r"`` and the keys of `ORDER` that any run has, the titles that have
        it.
    """
    found = {
        "map_at_r": _averages(runs, partial(_curve, keys=("evaluation", "map_at_r"), factor=100)),
        **{key: _averages(runs, partial(_order_curve, key=key)) for key in ORDER},
    }
    return {key: curves for key, curves in found.items() if curves}


def averaged_order(runs: Runs, path: Path) -> None:
    """Draw order parameters over the epochs, for each title the mean of its runs.

    Panels one above the other: length of class means and residual of self-consistency, of each run
    the median over classes, and the share of pairs of fields that violate the constraint. A panel
    without any values is left out. Given the same titles, a title looks as in `averaged_curves`.

    Args:
        runs: for each title the runs, each the lines of its metrics.jsonl.
        path: the file to write.
    """
    panels = {key: curves for key, curves in averages(runs).items() if key in ORDER}
    must_hold = "runs must have a line with an entry 'order' that has values"
    refuse_nothing(panels, must_hold, f"{len(runs)} titles")
    # Panels are equally high, and each has room for the labels of the fullest.
    height = len(panels) * max(2.0, *(height_for(list(curves)) for curves in panels.values()))
    figure, axes = paper_figure(len(panels), 1, width=6.3, height=height + 0.2, sharex=True)
    every = [curve for curves in panels.values() for curve in curves.values()]
    _over_epochs(axes[-1], [at for curve in every for at in curve.epochs])
    for axis, (key, curves) in zip(axes, panels.items(), strict=True):
        name_axes(axis, "epoch" if axis is axes[-1] else "", "", ORDER[key])
        ends = _draw(axis, curves, list(runs))
        known = _reach(curves)
        if key == "violating_share":
            share_from_zero(axis, known)
        elif not log_if_helpful(axis, known):
            draw_levels(axis, {}, known)
        label_ends(axis, ends)
    write(figure, path, dpi=200)


def _averages(runs: Runs, curve: Callable[[Metrics], Curve]) -> dict[str, Averaged]:
    """Return for each title the finite values of its runs' curves; without empty titles."""
    found: dict[str, Averaged] = {}
    for label, lines_of_runs in runs.items():
        values: dict[int, list[float]] = {}
        num_runs = 0
        for lines in lines_of_runs:
            known = {at: value for at, value in curve(lines).items() if isfinite(value)}
            num_runs += bool(known)
            for at, value in known.items():
                values.setdefault(at, []).append(value)
        epochs = sorted(values)
        there = [values[at] for at in epochs]
        if there:
            means = [sum(each) / len(each) for each in there]
            lows, highs = list(map(min, there)), list(map(max, there))
            found[label] = Averaged(epochs, means, lows, highs, num_runs)
    return found


def _draw(axis: Any, curves: Mapping[str, Averaged], titles: Sequence[str]) -> list[End]:
    """Draw curves, each in the style of its place among the titles; return their labels."""
    ends: list[End] = []
    for label, curve in curves.items():
        place = titles.index(label)
        band = {"color": colour_of(place), "alpha": 0.16, "linewidth": 0}
        axis.fill_between(curve.epochs, curve.lows, curve.highs, **band)
        _draw_line(axis, place, curve.epochs, curve.means)
        ends.append((label, float(curve.epochs[-1]), curve.means[-1], colour_of(place)))
    return ends


def _reach(curves: Mapping[str, Averaged]) -> list[float]:
    """Return heights between which all values of all curves lie."""
    return [end for curve in curves.values() for end in (*curve.lows, *curve.highs)]

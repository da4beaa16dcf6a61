"""Figures of a search for settings: what each trial gave, and the best so far."""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from weiss.figures.drawing import (
    COLOURS,
    NOTHING,
    PAPER_TEXT,
    is_number,
    legend_below,
    name_axes,
    paper_figure,
    whole_epochs,
    write,
)


def search_history(
    trials: Mapping[str, Sequence[float | None]],
    path: Path,
    *,
    pruned: Mapping[str, Collection[int]] = NOTHING,
    title: str = "",
) -> None:
    """Draw how a search for settings went, a panel a loss.

    Dots are trials, the step line is the best so far, a cross at zero is a trial without a value, a
    ring one that was given up and does not count for the best.

    Args:
        trials: for each title the value of each trial in order, a fraction, shown in per cent; None
            for one that failed.
        path: the .png, .svg or .pdf file to write; its folder is made.
        pruned: for each title the numbers of the trials that were given up.
        title: of the figure.

    Raises:
        ValueError: no trials.
    """
    from matplotlib.lines import Line2D

    shown = {name: list(values) for name, values in trials.items() if len(values)}
    if not shown:
        raise ValueError(
            f"trials must hold at least one trial; got {len(trials)} titles without any. Leave the "
            "figure out until a search has begun."
        )
    columns = min(len(shown), 3)
    rows = math.ceil(len(shown) / columns)
    size = {"width": {1: 3.8, 2: 5.4}.get(columns, 7.0), "height": 1.75 * rows + 0.6}
    figure, axes = paper_figure(rows, columns, title, sharey=True, **size)
    most = max(map(len, shown.values()))
    for place, (name, values) in enumerate(shown.items()):
        axis, colour = axes[place], COLOURS[0]
        axis.set_title(name, loc="left", fontsize=PAPER_TEXT, parse_math=False)
        known = [(at, 100 * value) for at, value in enumerate(values) if is_number(value)]
        done = [pair for pair in known if pair[0] not in pruned.get(name, ())]
        given_up = [pair for pair in known if pair[0] in pruned.get(name, ())]
        failed = [at for at, value in enumerate(values) if not is_number(value)]
        if done:
            at, heights = map(list, zip(*done, strict=True))
            best = list(accumulate(heights, max))
            axis.step([*at, most - 0.5], [*best, best[-1]], where="post", color=COLOURS[1])
            axis.scatter(at, heights, s=12, color=colour, zorder=3, linewidths=0)
        if given_up:
            ring: dict[str, Any] = {"facecolors": "none", "edgecolors": colour, "s": 16}
            axis.scatter(*zip(*given_up, strict=True), zorder=3, **ring)
        axis.scatter(failed, [0] * len(failed), s=22, marker="x", color="black", clip_on=False)
        axis.set_xlim(-0.7, most - 0.3)
        whole_epochs(axis)
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    for place, axis in enumerate(axes[: len(shown)]):
        is_lowest = place + columns >= len(shown)
        name_axes(axis, "trial" if is_lowest else "", "" if place % columns else "value (%)")
    handles = [
        Line2D([], [], color=COLOURS[0], marker="o", markersize=4, linewidth=0, label="trial"),
        Line2D([], [], color=COLOURS[1], label="best so far"),
    ]
    if any(not is_number(value) for values in shown.values() for value in values):
        cross: dict[str, Any] = {"color": "black", "marker": "x", "markersize": 5}
        handles.append(Line2D([], [], linewidth=0, label="failed", **cross))
    if any(len(numbers) for numbers in pruned.values()):
        hollow: dict[str, Any] = {"marker": "o", "markersize": 4, "markerfacecolor": "none"}
        line = Line2D([], [], color=COLOURS[0], linewidth=0, label="pruned", **hollow)
        handles.append(line)
    legend_below(figure, handles)
    write(figure, path, dpi=200)

"""Figures of order and spread: corrections over the spread of classes, residuals over epochs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weiss.figures.drawing import (
    End,
    colour_of,
    key,
    label_ends,
    legend_below,
    line_look,
    marker,
    name_axes,
    paper_figure,
    whole_epochs,
    write,
)

Points = Sequence[tuple[float, float]]
RING: dict[str, Any] = {"markersize": 7.5, "markeredgecolor": "black", "linestyle": "none"}
"""The style of a measured network, on top of its colour and marker."""


def corrections(
    drawn: Mapping[str, Mapping[str, Points]],
    trained: Mapping[str, Mapping[str, Points]],
    scores: Mapping[str, Mapping[str, Sequence[float]]],
    path: Path,
    *,
    score_label: str,
    title: str = "",
) -> None:
    """Draw the share of a pair loss that each approximation misses, and scores of networks.

    One row for each family of losses. On the left the missed share over the spread of drawn
    classes, as lines, and of trained networks, as large marks; on the right one dot for each seed.

    Args:
        drawn: for each family and each approximation points ``(spread, missed share in %)``.
        trained: the same of networks.
        scores: for each family and each loss the scores of the seeds, in per cent.
        path: the file to write.
        score_label: what the scores are.
        title: of the figure.
    """
    rows = len(drawn)
    ratios = [1.35, 1]
    figure, axes = paper_figure(rows, 2, title, width=8.6, height=2.4 * rows, width_ratios=ratios)
    for place, (family, curves) in enumerate(drawn.items()):
        _missed(axes[2 * place], family, curves, trained.get(family, {}))
        _dots(axes[2 * place + 1], scores[family])
        name_axes(axes[2 * place + 1], score_label if place == rows - 1 else "", "")
    name_axes(axes[-2], "spread of the classes", axes[-2].get_ylabel())
    grey: dict[str, Any] = {"color": "0.5", "marker": "o"}
    bar: dict[str, Any] = {"color": "0.5", "marker": "|", "markersize": 11, "markeredgewidth": 2}
    handles = [
        key("drawn classes", **grey, markersize=4),
        key("networks trained with mean field", **grey, **RING),
        key("one seed", **grey, markersize=5, linestyle="none"),
        key("mean", **bar, linestyle="none"),
    ]
    legend_below(figure, handles)
    write(figure, path, dpi=150)


def _missed(
    axis: Any, family: str, curves: Mapping[str, Points], trained: Mapping[str, Points]
) -> None:
    name_axes(axis, "", f"{family}: missed (%)")
    axis.axhline(0, color="0.6", linewidth=0.8, zorder=1)
    ends: list[End] = []
    for place, (name, points) in enumerate(curves.items()):
        axis.plot(*zip(*points, strict=True), **line_look(place))
        ends.append((name, *points[-1], colour_of(place)))
        known = trained.get(name, ())
        places, heights = zip(*known, strict=True) if known else ((), ())
        axis.plot(places, heights, marker=marker(place), color=colour_of(place), zorder=4, **RING)
    # Just beyond a margin all of a vanishing cost is missed; this would flatten the rest.
    axis.set_ylim(max(axis.get_ylim()[0], -60), min(axis.get_ylim()[1], 60))
    label_ends(axis, ends)


def _dots(axis: Any, scores: Mapping[str, Sequence[float]]) -> None:
    """Draw the scores of each loss in a row, and their mean as a bar."""
    names = list(scores)
    for place, name in enumerate(names):
        colour = colour_of(place)
        heights = [len(names) - 1 - place] * len(scores[name])
        axis.plot(scores[name], heights, marker(place), color=colour, markersize=5, alpha=0.8)
        mean = sum(scores[name]) / len(scores[name])
        axis.plot([mean, mean], [heights[0] - 0.28, heights[0] + 0.28], color=colour, linewidth=2)
    axis.set_yticks(range(len(names) - 1, -1, -1), names)
    axis.set_ylim(-0.6, len(names) - 0.4)
    axis.grid(visible=False, axis="y")


def residuals(
    runs: Mapping[str, Sequence[tuple[int, Sequence[float]]]],
    scores: Mapping[str, Points],
    path: Path,
    *,
    score_label: str,
    title: str = "",
) -> None:
    """Draw the distance of fields and class means over the epochs, and retrieval scores.

    Args:
        runs: for each title moments ``(epoch, quantiles over classes)``, lowest to highest; the
            band is from the second to the last but one, the line the middle one.
        scores: for each title points ``(epoch, score)``.
        path: the file to write.
        score_label: what the scores are.
        title: of the figure.
    """
    figure, axes = paper_figure(1, 2, title, width=8.6, height=3.0)
    ends: list[End] = []
    for place, (name, moments) in enumerate(runs.items()):
        colour, look = colour_of(place), line_look(place)
        epochs = [epoch for epoch, _ in moments]
        values = [quantiles for _, quantiles in moments]
        low, high = [q[1] for q in values], [q[-2] for q in values]
        axes[0].fill_between(epochs, low, high, color=colour, alpha=0.18, linewidth=0)
        middle = [q[len(q) // 2] for q in values]
        axes[0].plot(epochs, middle, **look)
        axes[1].plot(*zip(*scores[name], strict=True), **look)
        ends.append((name, *scores[name][-1], colour))
    axes[0].set_yscale("log")
    name_axes(axes[0], "epoch", "distance of field and class mean")
    name_axes(axes[1], "epoch", score_label)
    for axis in axes:
        whole_epochs(axis)
    label_ends(axes[1], ends)
    write(figure, path, dpi=150)

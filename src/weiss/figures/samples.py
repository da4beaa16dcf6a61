"""Figures of samples: points and fields on the circle, images in rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from weiss.figures.drawing import new_figure, write


def settling(
    runs: dict[str, Sequence[tuple[int, Tensor, Tensor]]], labels: Tensor, path: Path
) -> None:
    """Draw points and mean fields on the circle at several steps of training, a row a loss.

    Points stand on the unit circle, those of a class in one colour; each field is an arrow of its
    class's colour. The figure is written under a temporary name and renamed.

    Args:
        runs: for each title, moments of ``(step, (N, 2) embeddings, (C, 2) fields)``.
        labels: ``(N,)`` class indices.
        path: where to write the PNG; its folder is made.
    """
    columns = max(len(moments) for moments in runs.values())
    figure = new_figure(2.6 * columns, 2.75 * len(runs) + 0.35)
    axes = figure.subplots(len(runs), columns, squeeze=False)
    colours = _class_colours(int(labels.max()) + 1)
    for row, (title, moments) in zip(axes, runs.items(), strict=True):
        for axis, (step, embeddings, fields) in zip(row, moments, strict=True):
            _circle(axis, embeddings, fields, labels, colours)
            axis.set_title(f"step {step}", fontsize=9)
        row[0].set_ylabel(title, fontsize=10)
    figure.suptitle("Samples (dots) and the mean field of their class (arrows)", fontsize=11)
    write(figure, path)


def _circle(axis: Any, embeddings: Tensor, fields: Tensor, labels: Tensor, colours: Any) -> None:
    from matplotlib.patches import Circle

    axis.add_patch(Circle((0, 0), 1, fill=False, color="0.85", linewidth=1, zorder=0))
    points = embeddings / embeddings.norm(dim=1, keepdim=True)
    # A little off the circle, by sample, so that points on one spot can be told apart.
    points = points * (1 + 0.07 * ((labels.new_ones(len(points)).cumsum(0) % 7)[:, None] - 3) / 3)
    axis.scatter(*points.T.tolist(), c=colours[labels.numpy()], s=12, linewidths=0)
    arrows = 0.8 * fields / fields.norm(dim=1, keepdim=True)
    for tip, colour in zip(arrows.tolist(), colours, strict=True):
        style = {"color": colour, "arrowstyle": "-|>", "linewidth": 2, "mutation_scale": 11}
        axis.annotate("", tip, (0, 0), arrowprops=style)
    axis.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal", xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_visible(False)


def _class_colours(number: int) -> Any:
    from matplotlib import colormaps

    # tab10 keeps its colours apart for most eyes; more classes run around the colour circle.
    if number <= 10:
        return colormaps["tab10"](range(number))
    return colormaps["hsv"]([c / number for c in range(number)])


def contact_sheet(rows: Sequence[tuple[str, Sequence[Any]]], path: Path) -> None:
    """Draw rows of images, each row with its title, and write a PNG.

    Args:
        rows: title and uint8 images ``(height, width, channels)`` of each row.
        path: where to write; its folder is made.
    """
    columns = max(len(shown) for _, shown in rows)
    figure = new_figure(0.9 * columns + 2.4, 0.95 * len(rows))
    axes = figure.subplots(
        len(rows), columns + 1, squeeze=False, width_ratios=[2.5] + [1] * columns
    )
    for row, (title, shown) in zip(axes, rows, strict=True):
        for axis in row:
            axis.set_axis_off()
        row[0].text(0, 0.5, title, fontsize=9, va="center", wrap=True, transform=row[0].transAxes)
        for axis, image in zip(row[1:], shown, strict=False):
            axis.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    write(figure, path)

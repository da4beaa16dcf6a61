"""Figures of samples: points on the circle, images in rows, a sheet of a data set."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from weiss._base import checks, draws, images
from weiss._base.arrays import Array
from weiss.data.sources import Pixels
from weiss.data.table import Table
from weiss.figures.drawing import COLOURS, TEXT, folded, key, legend_below, new_figure, write


def settling(
    runs: dict[str, Sequence[tuple[int, Tensor, Tensor]]], labels: Tensor, path: Path
) -> None:
    """Draw points and mean fields on the circle at several steps, one row for each loss.

    Points stand on the unit circle, those of a class in one colour; each field is an arrow of its
    class's colour.

    Args:
        runs: for each title, moments of ``(step, (N, 2) embeddings, (C, 2) fields)``.
        labels: ``(N,)`` class indices.
        path: the file to write.
    """
    from matplotlib import colormaps

    columns = max(len(moments) for moments in runs.values())
    figure = new_figure(2.6 * columns, 2.75 * len(runs) + 0.35)
    axes = figure.subplots(len(runs), columns, squeeze=False)
    number = int(labels.max()) + 1
    # tab10 for few classes; more classes run around the colour circle.
    few, many = colormaps["tab10"], colormaps["hsv"]
    colours = few(range(number)) if number <= 10 else many([c / number for c in range(number)])
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
    # A little off the circle, so that equal points do not overlap.
    points = points * (1 + 0.07 * ((labels.new_ones(len(points)).cumsum(0) % 7)[:, None] - 3) / 3)
    axis.scatter(*points.T.tolist(), c=colours[labels.numpy()], s=12, linewidths=0)
    arrows = 0.8 * fields / fields.norm(dim=1, keepdim=True)
    for tip, colour in zip(arrows.tolist(), colours, strict=True):
        style = {"color": colour, "arrowstyle": "-|>", "linewidth": 2, "mutation_scale": 11}
        axis.annotate("", tip, (0, 0), arrowprops=style)
    axis.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal", xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_visible(False)


FRAMES = {
    (True, True): COLOURS[2],
    (True, False): COLOURS[0],
    (False, True): COLOURS[4],
    (False, False): "0.8",
}


@dataclass(frozen=True)
class Found:
    """The neighbours of a query.

    Attributes:
        title: of the system that found them.
        query: ``(height, width)`` from 0 to 255.
        images: the neighbours, nearest first, each as the query.
        shares: for each whether it shares the first and the second attribute with the query.
    """

    title: str
    query: Any
    images: Sequence[Any]
    shares: Sequence[tuple[bool, bool]]


def attribute_rows(
    blocks: Sequence[Sequence[Found]], attributes: tuple[str, str], path: Path
) -> None:
    """Draw blocks of rows: a query and its neighbours, framed by the attributes they share.

    Args:
        blocks: one block for each query, with one row for each system.
        attributes: names of the two attributes.
        path: the file to write.
    """
    most = max(len(row.images) for block in blocks for row in block)
    rows = sum(map(len, blocks)) + len(blocks) - 1
    figure = new_figure(0.62 * most + 3.4, 0.6 * (rows - 0.85 * (len(blocks) - 1)) + 0.4)
    widths = [3.2, 1.0, 0.35] + [1.0] * most
    heights = [1.0] * rows
    for gap in list(accumulate(len(block) + 1 for block in blocks))[:-1]:
        heights[gap - 1] = 0.15  # an empty line between queries
    ratios = {"width_ratios": widths, "height_ratios": heights}
    axes = figure.subplots(rows, len(widths), squeeze=False, **ratios)
    for axis in axes.flat:
        axis.set_axis_off()
    place = 0
    for block in blocks:
        for number, row in enumerate(block):
            line = axes[place]
            where = {"transform": line[0].transAxes, "ha": "right", "va": "center"}
            line[0].text(1.0, 0.5, row.title, fontsize=TEXT, parse_math=False, **where)
            if number == 0:
                _image(line[1], row.query, "black")
            for axis, image, shares in zip(line[3:], row.images, row.shares, strict=False):
                _image(axis, image, FRAMES[shares])
            place += 1
        place += 1
    first, second = attributes
    names = (f"same {first} and {second}", f"same {first}", f"same {second}", "neither")
    frames = {"query": "black", **dict(zip(names, FRAMES.values(), strict=True))}
    look: dict[str, Any] = {"marker": "s", "linestyle": "none", "markersize": 9}
    look |= {"markerfacecolor": "none", "markeredgewidth": 2.5}
    handles = [key(name, markeredgecolor=colour, **look) for name, colour in frames.items()]
    legend_below(figure, handles, columns=5)
    write(figure, path, dpi=130)


def _image(axis: Any, image: Any, colour: str) -> None:
    """Draw an image in a frame."""
    axis.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axis.set_axis_on()
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(color=colour, linewidth=2.6)


def draw_sheet(
    table: Table, path: Path, *, num_classes: int = 8, each: int = 10, seed: int = 0
) -> None:
    """Draw some images of some classes, one row for each class, and write a PNG.

    What cannot be read is a grey square.

    Args:
        table: what to draw.
        path: the file to write.
        num_classes: how many classes, or all if there are fewer.
        each: how many images of each, or all it has.
        seed: which classes; of a class the first images are shown.
    """
    checks.count("num_classes", num_classes, "a sheet")
    checks.count("each", each, "a sheet")
    if not len(table):
        raise ValueError(f"{table.name} must have images in the part to show; it has none there.")
    present = table.classes()
    chosen = np.sort(present[draws.permutation(len(present), seed, draws.SHEET)[:num_classes]])
    rows = {}
    for c in chosen:
        of_class = table.labels[:, c] if table.is_multi_label else table.labels == c
        rows[c] = [_shown(table, int(item)) for item in np.flatnonzero(of_class)[:each]]
    columns = max(map(len, rows.values()))
    figure = new_figure(0.9 * columns + 2.4, 0.95 * len(rows))
    widths = [2.5] + [1] * columns
    axes = figure.subplots(len(rows), columns + 1, squeeze=False, width_ratios=widths)
    for row, (c, shown) in zip(axes, rows.items(), strict=True):
        for axis in row:
            axis.set_axis_off()
        where = {"va": "center", "transform": row[0].transAxes, "parse_math": False}
        row[0].text(0, 0.5, folded(table.class_names[c]), fontsize=TEXT, **where)
        for axis, image in zip(row[1:], shown, strict=False):
            axis.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    write(figure, path)


def _shown(table: Table, item: int) -> Array:
    """Return an image as it is drawn; a grey square if it cannot be read."""
    side = None if isinstance(table.source, Pixels) else 128
    try:
        return images.reduced(table.source.read(item), side)
    except images.BadImageError:
        return np.full((8, 8, 1), 128, dtype=np.uint8)

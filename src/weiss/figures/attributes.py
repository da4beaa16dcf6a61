"""Figures of neighbours that share one attribute with a query, the other, or both."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from weiss.figures.drawing import COLOURS, TEXT, legend_below, new_figure, write

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
        title: who found them.
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
    """Draw blocks of rows: a query and its neighbours, framed by what they share with it.

    Args:
        blocks: a block a query, a row each of those who were asked for its neighbours.
        attributes: what the two attributes are called.
        path: the .png, .svg or .pdf file to write; its folder is made.
    """
    from matplotlib.lines import Line2D

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
    handles = [
        Line2D([], [], marker="s", linestyle="none", markersize=9, label=name)
        for name in ("query", *names)
    ]
    for handle, colour in zip(handles, ("black", *FRAMES.values()), strict=True):
        handle.set(markerfacecolor="none", markeredgecolor=colour, markeredgewidth=2.5)
    legend_below(figure, handles, columns=5)
    write(figure, path, dpi=130)


def _image(axis: Any, image: Any, colour: str) -> None:
    """Draw an image in a frame."""
    axis.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axis.set_axis_on()
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(color=colour, linewidth=2.6)

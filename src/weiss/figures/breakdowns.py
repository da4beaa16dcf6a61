"""Figures of where an approximation breaks down, and where networks stand."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from weiss.figures.dependences import Point, check_points, heights, measured, space
from weiss.figures.drawing import (
    DASHES,
    HELPFUL_RANGE,
    LETTER,
    NOTHING,
    PAPER_TEXT,
    End,
    label_ends,
    marker,
    name_axes,
    paper_figure,
    style,
    write,
)

Lines = dict[str, list[Point]]
Box = tuple[float, float, float, float]
"""Middle, width and height of a box, in parts of the panel."""


def breakdown(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    path: Path,
    *,
    networks: Mapping[str, tuple[float, float]] = NOTHING,
    xlabel: str,
    ylabel: str,
    title: str = "",
) -> None:
    """Draw how far an approximation is off, a line a loss, and where networks stand.

    Args:
        curves: for each title its points ``(spread, excess)``.
        path: the .png, .svg or .pdf file to write; its folder is made.
        networks: for each label a measured point. A label such as ``"MFCWMS, trained"``, which
            begins with the title of a curve, makes a large mark like those of the curve, labelled
            with the rest; any other is a black star. One so far off that it would flatten the
            curves is named at the edge, with its value.
        xlabel: what the places are.
        ylabel: what the values are.
        title: of the figure.

    Raises:
        ValueError: no points.
    """
    lines = measured({name: [Point(*pair) for pair in pairs] for name, pairs in curves.items()})
    points = measured({name: [Point(*pair)] for name, pair in networks.items()})
    check_points("curves", lines or points, len(curves))
    points, far = _near_and_far(lines, points)
    figure, [axis] = paper_figure(1, 1, title, width=6.3, height=3.0)
    name_axes(axis, xlabel, ylabel)
    places = [point.x for each in (*lines.values(), *points.values()) for point in each]
    space(axis, "x", places, is_log=False)
    _space_of_different_sizes(axis, heights(lines, points), list(lines.values()))
    axis.axhline(0, color="0.6", linewidth=0.8, zorder=1)
    ends: list[End] = []
    for place, (name, each) in enumerate(lines.items()):
        colour = style(place)[0]
        look: dict[str, Any] = {"marker": marker(place), "markersize": 4, "linewidth": 1.5}
        look |= {"linestyle": DASHES[place % len(DASHES)], "color": colour}
        axis.plot([point.x for point in each], [point.mean for point in each], **look)
        ends.append((name, each[-1].x, each[-1].mean, colour))
    (low, high), right = axis.get_ylim(), axis.get_xlim()[1]
    for name, [point] in far.items():
        arrow, edge = ("↓", low) if point.mean < low else ("↑", high)
        colour = _mark(name, point, list(lines)).colour
        ends.append((f"{arrow} {name}: {point.mean:.3g} at {point.x:.3g}", right, edge, colour))
    label_ends(axis, ends, text=PAPER_TEXT)
    drawn = [[(point.x, point.mean) for point in each] for each in lines.values()]
    drawn.append([(end, 0.0) for end in axis.get_xlim()])
    marks = [_mark(name, each[0], list(lines)) for name, each in points.items()]
    _label_points(axis, marks, drawn)
    write(figure, path, dpi=200)


def _near_and_far(lines: Lines, points: Lines) -> tuple[Lines, Lines]:
    """Part the points that can be drawn beside the lines from those that would flatten them."""
    if not lines:
        return points, {}
    known = [*heights(lines, {}), 0.0]
    low, high = min(known), max(known)
    span = (high - low) or max(abs(high), 1.0)
    near = {
        name: each for name, each in points.items() if low - span <= each[0].mean <= high + span
    }
    return near, {name: each for name, each in points.items() if name not in near}


@dataclass(frozen=True)
class Mark:
    """A measured network as it is drawn."""

    label: str
    point: Point
    colour: str = "black"
    sign: str = "*"


def _mark(name: str, point: Point, curves: Sequence[str]) -> Mark:
    for place, curve in enumerate(curves):
        if name.startswith(f"{curve}, "):
            return Mark(name.removeprefix(f"{curve}, "), point, style(place)[0], marker(place))
    return Mark(name, point)


def _space_of_different_sizes(
    axis: Any, known: Sequence[float], lines: Sequence[Sequence[Point]]
) -> None:
    """Choose the vertical scale: linear, or one on which small and large lines both show."""
    from matplotlib.ticker import FixedLocator, NullLocator

    tops = [max(abs(point.mean) for point in each) for each in lines]
    tops = [top for top in tops if top > 0]
    if not tops or max(tops) <= HELPFUL_RANGE * min(tops):
        space(axis, "y", known, is_log=False)
        return
    # Linear around zero, and from a tenth of the smallest line on logarithmic.
    linear_to = 10.0 ** math.floor(math.log10(min(tops) / 10))
    space(axis, "y", [*known, 0.0], is_log=True, linear_to=linear_to)
    low, high = axis.get_ylim()
    first, last = round(math.log10(linear_to)), math.ceil(math.log10(max(high, -low)))
    powers = [10.0**power for power in range(first, last + 1)]
    ticks = [each for each in (*(-power for power in powers), 0.0, *powers) if low <= each <= high]
    axis.yaxis.set_major_locator(FixedLocator(ticks))
    axis.yaxis.set_minor_locator(NullLocator())


def _label_points(
    axis: Any, marks: Sequence[Mark], drawn: Sequence[Sequence[tuple[float, float]]]
) -> None:
    """Draw marks and write each label near its own, where it hides least.

    Args:
        axis: the panel, its scales and limits set.
        marks: to draw.
        drawn: the corners of each line, which labels should not hide.
    """
    from matplotlib.colors import to_rgb

    in_panel = axis.transScale + axis.transLimits
    width, height = 4.2, axis.figure.get_figheight() - 0.9  # about the panel's, in inches
    taken: list[Box] = []
    for line in drawn:
        for (x, y), (right, above) in pairwise(in_panel.transform(line)):
            steps = [step / 20 for step in range(21)]
            taken += [(x + s * (right - x), y + s * (above - y), 0.02, 0.02) for s in steps]
    places = [in_panel.transform((mark.point.x, mark.point.mean)) for mark in marks]
    taken += [(x, y, 0.03, 0.05) for x, y in places]
    around = [(math.cos(turn), math.sin(turn)) for turn in (math.pi / 8 * k for k in range(16))]
    for mark, (x, y) in zip(marks, places, strict=True):
        wide, high = LETTER * (len(mark.label) + 1) / width, PAPER_TEXT * 1.4 / 72 / height
        boxes = [
            (x + right * (0.03 + wide / 2 + far), y + up * (0.05 + high / 2 + far), wide, high)
            for far in (0.0, 0.06, 0.12, 0.2)
            for right, up in around
        ]
        others = [(*place, 0.02, 0.03) for place in places if (x, y) != tuple(place)]
        best = min(boxes, key=lambda box: _harm(box, (x, y), taken, others))
        taken.append(best)
        at = (mark.point.x, mark.point.mean)
        look = {"color": mark.colour, "markeredgecolor": "black", "markeredgewidth": 1.1}
        axis.plot(*at, mark.sign, markersize=8, zorder=4, **look)
        leader = {"arrowstyle": "-", "color": "0.3", "linewidth": 0.6, "shrinkB": 4}
        where = {"textcoords": axis.transAxes, "arrowprops": leader, "parse_math": False}
        text = {"ha": "center", "va": "center", "fontsize": PAPER_TEXT - 0.5, "zorder": 5}
        dark = [0.72 * part for part in to_rgb(mark.colour)]  # as the labels of the curves
        axis.annotate(mark.label, at, best[:2], color=dark, **where, **text)


def _harm(
    box: Box, point: tuple[float, float], taken: Sequence[Box], others: Sequence[Box]
) -> tuple[float, float]:
    """Return what speaks against a label's place: what it hides, then how far it is away.

    A line to the label that passes another point makes it look like that point's.
    """
    x, y = point
    steps = [step / 40 for step in range(41)]
    way = [(x + s * (box[0] - x), y + s * (box[1] - y), 0.0, 0.0) for s in steps]
    passed = sum(_hidden(each, others) for each in way)
    return _hidden(box, taken) + 5 * passed, abs(box[0] - x) + abs(box[1] - y)


def _hidden(box: Box, taken: Sequence[Box]) -> float:
    """Return how many boxes a box would hide; to reach out of the panel is worse."""
    x, y, wide, high = box
    outside = max(0.0, wide / 2 - x, x + wide / 2 - 1, high / 2 - y, y + high / 2 - 1)
    hits = [
        abs(x - other[0]) < (wide + other[2]) / 2 and abs(y - other[1]) < (high + other[3]) / 2
        for other in taken
    ]
    return sum(hits) + 1000 * outside

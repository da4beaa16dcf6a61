"""Figures of a value against a number: a varied setting, costs, where an approximation fails."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from weiss.figures.drawing import (
    HELPFUL_RANGE,
    LETTER,
    NOTHING,
    End,
    colour_of,
    draw_levels,
    key,
    label_ends,
    legend_below,
    line_look,
    marker,
    name_axes,
    paper_figure,
    refuse_nothing,
    short,
    write,
)

LINE: dict[str, Any] = {"markersize": 4.5, "linewidth": 1.5}
DASHED: dict[str, Any] = {"linestyle": (0, (3, 2)), "linewidth": 1.0, "markerfacecolor": "white"}
"""The look of published lines."""
FILLS = ("full", "bottom", "left", "right")
"""How the marks of each kind of network are filled."""


@dataclass(frozen=True)
class Point:
    """A mean at a place x, and the ends of its interval where there is one."""

    x: float
    mean: float
    low: float | None = None
    high: float | None = None


Series = Mapping[str, Sequence[Point]]


def dependence(
    series: Series,
    path: Path,
    *,
    xlabel: str,
    ylabel: str,
    log_x: bool = False,
    levels: Mapping[str, float] = NOTHING,
    published: Series = NOTHING,
) -> None:
    """Draw values against a setting, one line for each title, with intervals and published values.

    Ticks are at the measured places. Lines are shifted a little, so that intervals of equal values
    do not overlap.

    Args:
        series: for each title its points.
        path: the file to write.
        xlabel: what the places are.
        ylabel: the label of the values, with their unit.
        log_x: whether the places are spaced by their logarithms; zero has its own place, left of
            the smallest.
        levels: for each label the height of a dashed line.
        published: for each title its points, drawn dashed with open markers.
    """
    ours, theirs = _measured(series), _measured(published)
    refuse_nothing(ours or theirs, "series must hold at least one point", f"{len(series)} titles")
    titles = list(dict.fromkeys([*ours, *theirs]))
    height = max(2.9, 0.9 + 0.19 * (len(titles) + len(levels)))
    figure, [axis] = paper_figure(1, 1, width=6.3, height=height)
    name_axes(axis, xlabel, ylabel)
    points = _points(ours, theirs)
    _space(axis, "x", [point.x for point in points], is_log=log_x)
    _ticks_at(axis, [point.x for point in _points(ours or theirs)], panel=4.0)
    ends: list[End] = []
    apart = 6.0 / max(1.0, len(titles) / 3)  # in points; many lines are closer
    for place, name in enumerate(titles):
        beside = apart * (place - (len(titles) - 1) / 2)
        if name in theirs:
            _draw_line(axis, place, theirs[name], beside + apart / 2, is_open=True)
        if name in ours:
            _draw_line(axis, place, ours[name], beside)
        last = (ours.get(name) or theirs[name])[-1]
        label = name if name in ours else f"{name} (published)"
        ends.append((label, last.x, last.mean, colour_of(place)))
    label_ends(axis, ends + draw_levels(axis, levels, _heights(points)))
    if ours and theirs:
        grey: dict[str, Any] = {"color": "0.3", "marker": "o", **LINE}
        legend_below(figure, [key("measured here", **grey), key("published", **grey | DASHED)])
    write(figure, path, dpi=200)


def _measured(series: Series, above: float = -math.inf) -> dict[str, list[Point]]:
    """Return for each title the points whose x and mean are finite and greater than ``above``.

    They are sorted by x. An interval that is not above it is left out, as are empty titles.
    """
    found: dict[str, list[Point]] = {}
    for name, points in series.items():
        kept = [
            each if _interval(each)[0] > above else Point(each.x, each.mean)
            for each in points
            if above < each.x < math.inf and above < each.mean < math.inf
        ]
        if kept:
            found[name] = sorted(kept, key=lambda each: each.x)
    return found


def _points(*many: Series) -> list[Point]:
    return [point for series in many for points in series.values() for point in points]


def _interval(point: Point) -> tuple[float, float]:
    """Return the interval of a point, of no width where it has none."""
    low, high = (point.mean if end is None else end for end in (point.low, point.high))
    low, high = (end if math.isfinite(end) else point.mean for end in (low, high))
    return min(low, point.mean), max(high, point.mean)


def _heights(points: Sequence[Point]) -> list[float]:
    """Return all heights that must be visible: means and ends of intervals."""
    return [end for point in points for end in (*_interval(point), point.mean)]


def _draw_line(
    axis: Any, place: int, points: Sequence[Point], beside: float = 0.0, *, is_open: bool = False
) -> None:
    """Draw points with their intervals and a line through them, ``beside`` points to the right."""
    from matplotlib.transforms import ScaledTranslation

    moved = axis.transData + ScaledTranslation(beside / 72, 0, axis.figure.dpi_scale_trans)
    below = [point.mean - _interval(point)[0] for point in points]
    above = [_interval(point)[1] - point.mean for point in points]
    look = {"color": colour_of(place), "marker": marker(place), **LINE}
    look |= DASHED if is_open else {}
    if any(below) or any(above):
        look |= {"yerr": [below, above], "capsize": 2, "elinewidth": 1}
    xs, means = zip(*((point.x, point.mean) for point in points), strict=True)
    axis.errorbar(xs, means, transform=moved, **look)


def _space(
    axis: Any, which: str, known: Sequence[float], *, is_log: bool, linear_to: float | None = None
) -> None:
    """Choose scale and limits of a panel's x or y axis for the numbers it must show.

    A logarithmic axis that must show zero or less is linear around zero, up to ``linear_to`` or the
    smallest positive number.
    """
    along = {"x": axis.xaxis, "y": axis.yaxis}[which]
    set_scale = {"x": axis.set_xscale, "y": axis.set_yscale}[which]
    positive = [each for each in known if each > 0]
    if is_log and positive and min(known) > 0:
        set_scale("log")
    elif is_log and (positive or linear_to):
        # Zero stands as far from the end of the linear part as that from ten times as much.
        set_scale("symlog", linthresh=linear_to or min(positive), linscale=1.0)
    scale = along.get_transform()
    first, last = (float(scale.transform([end])[0]) for end in (min(known), max(known)))
    margin = 0.05 * (last - first) or 0.5
    if which == "y" and along.get_scale() == "log":
        margin = max(margin, (1 - last + first) / 2)  # less than a decade has hardly a tick
    back = scale.inverted()
    ends = tuple(float(back.transform([end])[0]) for end in (first - margin, last + margin))
    axis.set(**{f"{which}lim": ends})


def _ticks_at(axis: Any, places: Sequence[float], *, panel: float) -> None:
    """Put ticks at these places and nowhere else, with numbers where they do not collide.

    Horizontal scale and limits must be set; `panel` is about how wide the panel is, in inches.
    """
    from matplotlib.ticker import NullLocator

    at = sorted(set(places))
    in_panel = axis.transScale + axis.transLimits
    labels: list[str] = []
    free_to = math.inf
    for place in reversed(at):  # from the right: the largest number must be shown
        text = short(place)
        middle = float(in_panel.transform((place, 1))[0])
        half = LETTER * (len(text) + 1) / 2 / panel
        has_room = middle + half <= free_to
        labels.insert(0, text if has_room else "")
        free_to = middle - half if has_room else free_to
    axis.set_xticks(at, labels)
    axis.xaxis.set_minor_locator(NullLocator())


def costs(milliseconds: Series, megabytes: Series, path: Path, *, xlabel: str) -> None:
    """Draw the time and memory of a step, both axes logarithmic.

    A panel without any values is left out; values that are not positive are left out too.

    Args:
        milliseconds: for each title the points of its time.
        megabytes: for each title the points of its memory.
        path: the file to write.
        xlabel: what grows.
    """
    panels = {"time of a step (ms)": milliseconds, "peak memory of a step (MB)": megabytes}
    shown = {name: _measured(series, above=0) for name, series in panels.items()}
    shown = {name: series for name, series in shown.items() if series}
    given = f"{len(milliseconds) + len(megabytes)} titles"
    refuse_nothing(shown, "milliseconds or megabytes must hold at least one point", given)
    titles = list(dict.fromkeys(name for series in (milliseconds, megabytes) for name in series))
    rows = math.ceil(len(titles) / 4)
    width, height = 7.0 if len(shown) > 1 else 4.2, 2.7 + 0.17 * rows
    figure, axes = paper_figure(1, len(shown), width=width, height=height)
    drawn: dict[str, Any] = {}
    apart = 2.5 / max(1.0, len(titles) / 3)  # in points, so that equal costs show
    for axis, (ylabel, series) in zip(axes, shown.items(), strict=True):
        places = [point.x for point in _points(series)]
        _space(axis, "x", places, is_log=True)
        _space(axis, "y", _heights(_points(series)), is_log=True)
        _ticks_at(axis, places, panel=2.7)
        _decades(axis)
        name_axes(axis, xlabel, ylabel)
        for place, name in enumerate(titles):
            if name in series:
                _draw_line(axis, place, series[name], apart * (place - (len(titles) - 1) / 2))
                drawn[name] = key(name, color=colour_of(place), marker=marker(place), **LINE)
    legend_below(figure, [drawn[name] for name in titles if name in drawn], columns=4)
    write(figure, path, dpi=200)


def _decades(axis: Any) -> None:
    """Put ticks of a logarithmic vertical axis at powers of ten, closer where there are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.yaxis.set_minor_locator(NullLocator())


def breakdown(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    path: Path,
    *,
    networks: Mapping[str, Mapping[str, tuple[float, float]]] = NOTHING,
    xlabel: str,
    ylabel: str,
) -> None:
    """Draw the error of an approximation, one line for each loss, and measured networks.

    Args:
        curves: for each title its points ``(spread, excess)``.
        path: the file to write.
        networks: for each kind of network, such as ``"trained"``, a measured point of each title:
            a large mark in the colour of the title. One so far off that it would flatten the curves
            is named at the edge, with its value.
        xlabel: what the places are.
        ylabel: what the values are.
    """
    lines = _measured({name: [Point(*pair) for pair in pairs] for name, pairs in curves.items()})
    marks = {
        kind: _measured({name: [Point(*pair)] for name, pair in points.items()})
        for kind, points in networks.items()
    }
    marks = {kind: points for kind, points in marks.items() if points}
    refuse_nothing(lines or marks, "curves must hold at least one point", f"{len(curves)} titles")
    titles = list(dict.fromkeys(name for each in (lines, *marks.values()) for name in each))
    low, high = _near(lines)
    near = [point for point in _points(*marks.values()) if low <= point.mean <= high]
    figure, [axis] = paper_figure(1, 1, width=6.3, height=3.0 + (0.2 if marks else 0))
    name_axes(axis, xlabel, ylabel)
    points = [*_points(lines), *near]
    _space(axis, "x", [point.x for point in points], is_log=False)
    _space_of_different_sizes(axis, _heights(points), list(lines.values()))
    axis.axhline(0, color="0.6", linewidth=0.8, zorder=1)
    ends: list[End] = []
    for place, name in enumerate(titles):
        if name in lines:
            xs, means = zip(*((point.x, point.mean) for point in lines[name]), strict=True)
            axis.plot(xs, means, **line_look(place))
            ends.append((name, xs[-1], means[-1], colour_of(place)))
    (low, high), right = axis.get_ylim(), axis.get_xlim()[1]
    handles = []
    for fill, (kind, of_titles) in zip(cycle(FILLS), marks.items(), strict=False):
        look = {"fillstyle": fill, "markersize": 8, "markeredgecolor": "black", "zorder": 4}
        look |= {"markerfacecoloralt": "white", "linestyle": "none"}
        handles.append(key(f"{kind} network", color="0.6", marker="o", **look))
        for name, [point] in of_titles.items():
            place = titles.index(name)
            if point in near:
                sign = {"marker": marker(place), "color": colour_of(place)}
                axis.plot(point.x, point.mean, **sign, **look)
            else:
                arrow, edge = ("↓", low) if point.mean < low else ("↑", high)
                label = f"{arrow} {name}, {kind}: {point.mean:.3g} at {point.x:.3g}"
                ends.append((label, right, edge, colour_of(place)))
    label_ends(axis, ends)
    if handles:
        legend_below(figure, handles)
    write(figure, path, dpi=200)


def _near(lines: Series) -> tuple[float, float]:
    """Return the heights beyond which a point would flatten the lines."""
    if not lines:
        return -math.inf, math.inf
    known = [*_heights(_points(lines)), 0.0]
    low, high = min(known), max(known)
    span = (high - low) or max(abs(high), 1.0)
    return low - span, high + span


def _space_of_different_sizes(
    axis: Any, known: Sequence[float], lines: Sequence[Sequence[Point]]
) -> None:
    """Choose the vertical scale: linear, or one on which small and large lines both show."""
    from matplotlib.ticker import FixedLocator, NullLocator

    tops = [max(abs(point.mean) for point in each) for each in lines]
    tops = [top for top in tops if top > 0]
    if not tops or max(tops) <= HELPFUL_RANGE * min(tops):
        _space(axis, "y", known, is_log=False)
        return
    # Linear around zero, and from a tenth of the smallest line on logarithmic.
    linear_to = 10.0 ** math.floor(math.log10(min(tops) / 10))
    _space(axis, "y", [*known, 0.0], is_log=True, linear_to=linear_to)
    low, high = axis.get_ylim()
    first, last = round(math.log10(linear_to)), math.ceil(math.log10(max(high, -low)))
    powers = [10.0**power for power in range(first, last + 1)]
    ticks = [each for each in (*(-power for power in powers), 0.0, *powers) if low <= each <= high]
    axis.yaxis.set_major_locator(FixedLocator(ticks))
    axis.yaxis.set_minor_locator(NullLocator())

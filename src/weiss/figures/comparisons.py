"""Figures that compare: boxes of losses, heat maps of two settings, the trials of a search."""

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from weiss.evaluation.statistics import t_interval
from weiss.figures.drawing import (
    COLOURS,
    LETTER,
    NOTHING,
    TEXT,
    colour_of,
    draw_levels,
    is_number,
    key,
    label_ends,
    legend_below,
    marker,
    name_axes,
    paper_figure,
    plain,
    refuse_nothing,
    short,
    whole_epochs,
    write,
)


@dataclass(frozen=True)
class Boxes:
    """What a panel of boxes shows.

    Attributes:
        values: for each title the single values; titles without any are left out.
        levels: for each label the height of a dashed line.
        published: for each title of ``values`` a mean and half the width of its interval.
    """

    values: Mapping[str, Sequence[float]]
    levels: Mapping[str, float] = field(default_factory=dict)
    published: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def box_panels(panels: Mapping[str, Boxes], path: Path, *, ylabel: str) -> None:
    """Draw panels of boxes one above the other, the titles in the same places.

    A box reaches from the first to the third quartile, its line is the median, and the whiskers end
    at the smallest and the largest value; the single values are dots. Beside it stand the mean with
    its 95 % interval, a filled diamond, and the published one, an open diamond. A single value is a
    dot alone. The interval of two values is cut where it leaves the picture, if others have more.

    Args:
        panels: for each name of a panel, which may be empty, what it shows.
        path: the file to write.
        ylabel: the label of the values, with their unit.
    """
    from matplotlib.patches import Patch

    shown = {name: _finite(boxes) for name, boxes in panels.items()}
    shown = {name: boxes for name, boxes in shown.items() if boxes.values}
    titles = list(dict.fromkeys(title for boxes in shown.values() for title in boxes.values))
    refuse_nothing(titles, "values must hold at least one number", f"{len(panels)} panels")
    width = min(max(3.5, 1.7 + 0.9 * len(titles)), 7.0)
    has_levels = any(boxes.levels for boxes in shown.values())
    names, is_turned = _names_below(titles, width - (1.6 if has_levels else 0.7))
    height = 2.25 * len(shown) + 0.55 + (0.3 if is_turned else 0)
    figure, axes = paper_figure(len(shown), 1, width=width, height=height, sharex=True)
    axes[0].set_xlim(-0.55, len(titles) - 0.45)
    for axis, (name, boxes) in zip(axes, shown.items(), strict=True):
        axis.grid(visible=False, axis="x")
        name_axes(axis, "", ylabel, name)
        for place, each in enumerate(titles):
            if each in boxes.values:
                _draw_box(axis, place, boxes.values[each], boxes.published.get(each))
        # The interval of two runs is so wide that it would flatten the others: it is cut.
        fewest = 3 if any(len(each) > 2 for each in boxes.values.values()) else 2
        known = [value for each in boxes.values.values() for value in _reach(each, fewest)]
        known += [mean + side * half for mean, half in boxes.published.values() for side in (-1, 1)]
        label_ends(axis, draw_levels(axis, boxes.levels, known))
    look: dict[str, Any] = {"fontsize": TEXT - 0.5, "parse_math": False}
    look |= {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if is_turned else {}
    axes[-1].set_xticks(range(len(titles)), names, **look)
    diamond: dict[str, Any] = {"color": "0.3", "marker": "D", "markersize": 4, "linewidth": 1}
    handles = [key("one run", color="0.3", marker="o", markersize=4, linewidth=0)]
    if any(len(values) > 1 for boxes in shown.values() for values in boxes.values.values()):
        handles.append(Patch(facecolor="0.9", edgecolor="0.3", label="median, quartiles"))
        handles.append(key("mean, 95 % interval", **diamond))
    if any(boxes.published for boxes in shown.values()):
        handles.append(key("published", markerfacecolor="white", **diamond))
    legend_below(figure, handles)
    write(figure, path, dpi=200)


def _finite(boxes: Boxes) -> Boxes:
    """Return boxes without values that are not finite, and without empty titles."""
    values = {name: list(filter(math.isfinite, each)) for name, each in boxes.values.items()}
    values = {name: each for name, each in values.items() if each}
    published = {
        name: pair
        for name, pair in boxes.published.items()
        if name in values and all(map(math.isfinite, pair))
    }
    return Boxes(values, boxes.levels, published)


def _names_below(titles: Sequence[str], room: float) -> tuple[list[str], bool]:
    """Return titles as written below their boxes, and whether they must be rotated to fit."""
    titles = [plain(title) for title in titles]
    letters = max(int(room / len(titles) / LETTER) - 1, 1)
    wrapped = [textwrap.wrap(title, max(letters, 6), break_long_words=False) for title in titles]
    if all(len(lines) <= 3 and len(max(lines, key=len)) <= letters for lines in wrapped):
        return ["\n".join(lines) for lines in wrapped], False
    return [textwrap.fill(title, 24) for title in titles], True


def _reach(values: Sequence[float], fewest: int) -> list[float]:
    """Return the values and, if they are enough of them, the ends of their mean's interval."""
    if len(values) < fewest:
        return list(values)
    interval = t_interval(np.asarray(values))
    return [*values, interval.low, interval.high]


def _draw_box(
    axis: Any, place: int, values: Sequence[float], published: tuple[float, float] | None
) -> None:
    """Draw a box around the place, the mean and what was published to its right."""
    from matplotlib.colors import to_rgb

    colour = colour_of(place)
    is_alone = len(values) == 1
    middle = float(place) if is_alone else place - 0.14
    if not is_alone:
        line = {"color": colour, "linewidth": 1.2}
        parts = {f"{part}props": line for part in ("whisker", "cap")}
        parts |= {"medianprops": {"color": "black", "linewidth": 1.4}}
        face = {"facecolor": (*to_rgb(colour), 0.18), "edgecolor": colour, "linewidth": 1.0}
        look = {"widths": 0.38, "patch_artist": True, "boxprops": face, "manage_ticks": False}
        axis.boxplot([values], positions=[middle], whis=(0, 100), showfliers=False, **look, **parts)
        mean = t_interval(np.asarray(values))
        _diamond(axis, place + 0.18, mean.mean, mean.high - mean.mean, colour, filled=True)
    # Dots of equal values are drawn side by side.
    many = min(len(values), 5)
    at = [middle + 0.04 * (number % many - (many - 1) / 2) for number in range(len(values))]
    dot = {"color": colour, "edgecolors": "white", "linewidths": 0.4, "zorder": 3}
    axis.scatter(at, values, s=32 if is_alone else 13, marker=marker(place), **dot)
    if published is not None:
        _diamond(axis, place + (0.22 if is_alone else 0.37), *published, colour, filled=False)


def _diamond(axis: Any, x: float, mean: float, half: float, colour: str, *, filled: bool) -> None:
    look = {"color": colour, "markerfacecolor": colour if filled else "white", "zorder": 3}
    size = 4 if axis.get_xlim()[1] < 9 else 3  # many boxes are narrow
    axis.errorbar(x, mean, yerr=abs(half), fmt="D", markersize=size, capsize=2, linewidth=1, **look)


def heat_panels(
    panels: Mapping[str, Sequence[Sequence[float | None]]],
    xs: Sequence[Any],
    ys: Sequence[Any],
    path: Path,
    *,
    xlabel: str,
    ylabel: str,
    label: str,
) -> None:
    """Draw heat maps of two settings one above the other, on one scale of colours.

    Each cell has its number, and the best is framed.

    Args:
        panels: for each title of a panel, which may be empty, its table: a row for each of
            ``ys``, in it a number for each of ``xs``; None is absent, drawn as a hatched cell.
        xs: what the columns stand for, from the left.
        ys: what the rows stand for, from the bottom.
        path: the file to write.
        xlabel: what ``xs`` are.
        ylabel: what ``ys`` are.
        label: what the numbers are, with their unit.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    for values in panels.values():
        lengths = [len(row) for row in values]
        if lengths != [len(xs)] * len(ys):
            raise ValueError(
                f"values must be {len(ys)} rows (one for each of ys) of {len(xs)} (one for each of "
                f"xs); got rows of {lengths}. Write None where a value is absent."
            )
    cells = [value for table in panels.values() for row in table for value in row]
    known = list(filter(is_number, cells))
    refuse_nothing(known, "values must hold at least one number", f"{len(cells)} cells")
    low, high = min(known), max(known)
    # With one value for all, the middle of the scale.
    norm = Normalize(low, high) if high > low else Normalize(low - 1, low + 1)
    # Cividis suits colour-blind readers, and its lightness grows: grey print works.
    colours = ScalarMappable(norm, colormaps["cividis"])
    decimals = 1 if high - low >= 1 or high == low else 2
    width = min(max(3.5, 1.7 + 0.55 * len(xs)), 7.0)
    height = (0.34 * len(ys) + 0.75) * len(panels)
    figure, axes = paper_figure(len(panels), 1, width=width, height=max(height, 1.8))
    for axis, (name, values) in zip(axes, panels.items(), strict=True):
        axis.grid(visible=False)
        axis.spines["bottom"].set_visible(False)
        axis.set(xlim=(-0.5, len(xs) - 0.5), ylim=(-0.5, len(ys) - 0.5))
        axis.set_xticks(range(len(xs)), [short(x) for x in xs], parse_math=False)
        axis.set_yticks(range(len(ys)), [short(y) for y in ys], parse_math=False)
        name_axes(axis, xlabel, ylabel, name)
        size = min(TEXT - 0.5, (width - 1.7) / len(xs) * 72 / 3.2)
        _draw_cells(axis, values, colours, decimals, size)
    bar = figure.colorbar(colours, ax=axes, shrink=0.9, aspect=18, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=TEXT - 1, length=0, labelcolor="0.25")
    bar.set_label(plain(label), fontsize=TEXT, color="0.25", parse_math=False)
    if high == low:
        bar.set_ticks([low])
    write(figure, path, dpi=200)


def _draw_cells(
    axis: Any, values: Sequence[Sequence[float | None]], colours: Any, decimals: int, size: float
) -> None:
    from matplotlib.patches import Rectangle

    best = max((each for row in values for each in row if is_number(each)), default=None)
    absent: dict[str, Any] = {"facecolor": "white", "edgecolor": "0.75", "hatch": "////"}
    frame: dict[str, Any] = {"fill": False, "edgecolor": COLOURS[1], "linewidth": 2, "zorder": 3}
    text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": size}
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            corner = (x - 0.5, y - 0.5)
            if not is_number(value):
                axis.add_patch(Rectangle(corner, 1, 1, linewidth=0, **absent))
                continue
            colour = colours.to_rgba(value)[:3]
            cell: dict[str, Any] = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.6}
            axis.add_patch(Rectangle(corner, 1, 1, **cell))
            look = {"color": _readable_on(colour), "weight": "bold" if value == best else "normal"}
            axis.text(x, y, f"{value:.{decimals}f}", **look, **text)
            if value == best:
                axis.add_patch(Rectangle((x - 0.44, y - 0.44), 0.88, 0.88, **frame))


def _readable_on(colour: Sequence[float]) -> str:
    """Return black or white, whichever contrasts more with a colour.

    Luminance as the Web Content Accessibility Guidelines define it; at 0.18 both contrast alike.
    """
    linear = [part / 12.92 if part <= 0.04 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if luminance > 0.18 else "white"


def search_history(
    trials: Mapping[str, Sequence[float | None]],
    path: Path,
    *,
    pruned: Mapping[str, Collection[int]] = NOTHING,
) -> None:
    """Draw how a search for settings went, one panel for each loss.

    Dots are trials, the step line is the best so far, a cross at zero is a trial without a value, a
    ring one that was pruned and does not count for the best.

    Args:
        trials: for each title the value of each trial in order, a fraction, shown in per cent; None
            for one that failed.
        path: the file to write.
        pruned: for each title the numbers of the pruned trials.
    """
    shown = {name: list(values) for name, values in trials.items() if len(values)}
    refuse_nothing(shown, "trials must hold at least one trial", f"{len(trials)} titles")
    columns = min(len(shown), 3)
    rows = math.ceil(len(shown) / columns)
    width, height = {1: 3.8, 2: 5.4}.get(columns, 7.0), 1.75 * rows + 0.6
    figure, axes = paper_figure(rows, columns, sharey=True, width=width, height=height)
    most = max(map(len, shown.values()))
    colour, best_colour = COLOURS[:2]
    for place, (axis, (name, values)) in enumerate(zip(axes, shown.items(), strict=False)):
        is_lowest = place + columns >= len(shown)
        ylabel = "" if place % columns else "value (%)"
        name_axes(axis, "trial" if is_lowest else "", ylabel, name)
        known = [(at, 100 * value) for at, value in enumerate(values) if is_number(value)]
        done = [pair for pair in known if pair[0] not in pruned.get(name, ())]
        abandoned = [pair for pair in known if pair[0] in pruned.get(name, ())]
        failed = [at for at, value in enumerate(values) if not is_number(value)]
        if done:
            at, heights = map(list, zip(*done, strict=True))
            best = list(accumulate(heights, max))
            axis.step([*at, most - 0.5], [*best, best[-1]], where="post", color=best_colour)
            axis.scatter(at, heights, s=12, color=colour, zorder=3, linewidths=0)
        if abandoned:
            ring: dict[str, Any] = {"facecolors": "none", "edgecolors": colour, "s": 16}
            axis.scatter(*zip(*abandoned, strict=True), zorder=3, **ring)
        axis.scatter(failed, [0] * len(failed), s=22, marker="x", color="black", clip_on=False)
        axis.set_xlim(-0.7, most - 0.3)
        whole_epochs(axis)
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    dot: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4, "linewidth": 0}
    handles = [key("trial", **dot), key("best so far", color=best_colour)]
    if any(not is_number(value) for values in shown.values() for value in values):
        handles.append(key("failed", color="black", marker="x", markersize=5, linewidth=0))
    if any(len(numbers) for numbers in pruned.values()):
        handles.append(key("pruned", markerfacecolor="none", **dot))
    legend_below(figure, handles)
    write(figure, path, dpi=200)

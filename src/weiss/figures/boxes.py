"""Figures of losses side by side: a box a loss, the single runs, what was published."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from weiss.evaluation.statistics import t_interval
from weiss.figures.drawing import (
    LETTER,
    NOTHING,
    PAPER_TEXT,
    draw_levels,
    label_ends,
    legend_below,
    marker,
    paper_figure,
    style,
    write,
)


@dataclass(frozen=True)
class Boxes:
    """What a panel of boxes shows.

    Attributes:
        values: for each title the single values.
        levels: for each label the height of a dashed line.
        published: for each title of ``values`` a mean and half the width of its interval.
    """

    values: Mapping[str, Sequence[float]]
    levels: Mapping[str, float] = field(default_factory=dict)
    published: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def box_plots(
    values: Mapping[str, Sequence[float]],
    path: Path,
    *,
    ylabel: str,
    levels: Mapping[str, float] = NOTHING,
    published: Mapping[str, tuple[float, float]] = NOTHING,
    title: str = "",
) -> None:
    """Draw a box a title, with the single values as dots and what was published beside it.

    A box reaches from the first to the third quartile, its line is the median, and the whiskers end
    at the smallest and the largest value. Beside it stand the mean with its 95 % interval, a filled
    diamond, and the published one, an open diamond. A single value is a dot alone. The interval of
    two values is cut where it leaves the picture, if others have more.

    Args:
        values: for each title the single values; titles without any are left out.
        path: the .png, .svg or .pdf file to write; its folder is made.
        ylabel: what the values are, with their unit.
        levels: for each label the height of a dashed line.
        published: for each title a mean and half the width of its interval.
        title: of the figure.

    Raises:
        ValueError: no values.
    """
    box_panels({"": Boxes(values, levels, published)}, path, ylabel=ylabel, title=title)


def box_panels(panels: Mapping[str, Boxes], path: Path, *, ylabel: str, title: str = "") -> None:
    """Draw panels of boxes one above the other, the titles in the same places.

    Args:
        panels: for each name of a panel what it shows, as `box_plots` takes it.
        path: the .png, .svg or .pdf file to write; its folder is made.
        ylabel: what the values are, with their unit.
        title: of the figure.

    Raises:
        ValueError: no values.
    """
    shown = {name: _finite(boxes) for name, boxes in panels.items()}
    shown = {name: boxes for name, boxes in shown.items() if boxes.values}
    titles = list(dict.fromkeys(title for boxes in shown.values() for title in boxes.values))
    if not titles:
        raise ValueError(
            f"values must hold at least one number; got {len(panels)} panels without any. Leave "
            "the figure out until something was measured."
        )
    width = min(max(3.5, 1.7 + 0.9 * len(titles)), 7.0)
    has_levels = any(boxes.levels for boxes in shown.values())
    names, is_turned = _names_below(titles, width - (1.6 if has_levels else 0.7))
    height = 2.25 * len(shown) + 0.55 + (0.3 if is_turned else 0)
    figure, axes = paper_figure(len(shown), 1, title, width=width, height=height, sharex=True)
    axes[0].set_xlim(-0.55, len(titles) - 0.45)
    for axis, (name, boxes) in zip(axes, shown.items(), strict=True):
        axis.grid(visible=False, axis="x")
        if name:
            axis.set_title(name, loc="left", fontsize=PAPER_TEXT, parse_math=False)
        axis.set_ylabel(ylabel, fontsize=PAPER_TEXT, color="0.25", parse_math=False)
        for place, each in enumerate(titles):
            if each in boxes.values:
                _draw_box(axis, place, boxes.values[each], boxes.published.get(each))
        # The interval of two runs is so wide that beside others it would flatten them: it is cut.
        fewest = 3 if any(len(each) > 2 for each in boxes.values.values()) else 2
        known = [value for each in boxes.values.values() for value in _reach(each, fewest)]
        known += [mean + side * half for mean, half in boxes.published.values() for side in (-1, 1)]
        label_ends(axis, draw_levels(axis, boxes.levels, known), text=PAPER_TEXT)
    look: dict[str, Any] = {"fontsize": PAPER_TEXT - 0.5, "parse_math": False}
    look |= {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if is_turned else {}
    axes[-1].set_xticks(range(len(titles)), names, **look)
    legend_below(figure, _box_legend(shown.values()))
    write(figure, path, dpi=200)


def _finite(boxes: Boxes) -> Boxes:
    """Return boxes without what is no number, and without titles that have none."""
    values = {name: list(filter(math.isfinite, each)) for name, each in boxes.values.items()}
    values = {name: each for name, each in values.items() if each}
    published = {
        name: pair
        for name, pair in boxes.published.items()
        if name in values and all(map(math.isfinite, pair))
    }
    return Boxes(values, boxes.levels, published)


def _names_below(titles: Sequence[str], room: float) -> tuple[list[str], bool]:
    """Return titles as they stand below their boxes, and whether they must be turned to fit."""
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
    colour = style(place)[0]
    is_alone = len(values) == 1
    middle = float(place) if is_alone else place - 0.14
    if not is_alone:
        line = {"color": colour, "linewidth": 1.2}
        parts = {f"{part}props": line for part in ("whisker", "cap")}
        parts |= {"medianprops": {"color": "black", "linewidth": 1.4}}
        face = {"facecolor": (*_rgb(colour), 0.18), "edgecolor": colour, "linewidth": 1.0}
        look = {"widths": 0.38, "patch_artist": True, "boxprops": face, "manage_ticks": False}
        axis.boxplot([values], positions=[middle], whis=(0, 100), showfliers=False, **look, **parts)
        mean = t_interval(np.asarray(values))
        _diamond(axis, place + 0.18, mean.mean, mean.high - mean.mean, colour, filled=True)
    # Dots of equal values stand beside each other, not on each other.
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


def _box_legend(shown: Iterable[Boxes]) -> list[Any]:
    """Return handles that say what dots, boxes and diamonds are, those that were drawn."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Line2D([], [], color="0.3", marker="o", markersize=4, linewidth=0, label="one run")
    ]
    diamond: dict[str, Any] = {"color": "0.3", "marker": "D", "markersize": 4, "linewidth": 1}
    if any(len(values) > 1 for boxes in shown for values in boxes.values.values()):
        handles.append(Patch(facecolor="0.9", edgecolor="0.3", label="median, quartiles"))
        handles.append(Line2D([], [], label="mean, 95 % interval", **diamond))
    if any(boxes.published for boxes in shown):
        handles.append(Line2D([], [], label="published", markerfacecolor="white", **diamond))
    return handles


def _rgb(colour: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return float(red), float(green), float(blue)

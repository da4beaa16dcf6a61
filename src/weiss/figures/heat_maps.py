"""Figures of two settings at once: a table in colours, with its numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weiss.figures.drawing import COLOURS, PAPER_TEXT, is_number, name_axes, paper_figure, write


def heat_map(
    xs: Sequence[Any],
    ys: Sequence[Any],
    values: Sequence[Sequence[float | None]],
    path: Path,
    *,
    xlabel: str,
    ylabel: str,
    label: str,
    title: str = "",
) -> None:
    """Draw a table of two settings as colours, each cell with its number and the best framed.

    Args:
        xs: what the columns stand for, from the left.
        ys: what the rows stand for, from the bottom.
        values: a row for each of ``ys``, in it a number for each of ``xs``; None is absent, drawn
            as a hatched cell.
        path: the .png, .svg or .pdf file to write; its folder is made.
        xlabel: what ``xs`` are.
        ylabel: what ``ys`` are.
        label: what the numbers are, with their unit.
        title: of the figure.

    Raises:
        ValueError: no number at all, or another shape than ``len(ys)`` rows of ``len(xs)``.
    """
    names = {"xlabel": xlabel, "ylabel": ylabel, "label": label}
    heat_panels({"": values}, xs, ys, path, title=title, **names)


def heat_panels(
    panels: Mapping[str, Sequence[Sequence[float | None]]],
    xs: Sequence[Any],
    ys: Sequence[Any],
    path: Path,
    *,
    xlabel: str,
    ylabel: str,
    label: str,
    title: str = "",
) -> None:
    """Draw several heat maps over the same settings one above the other, on one scale of colours.

    Args:
        panels: for each name of a panel its table, as `heat_map` takes it.
        xs: what the columns stand for, from the left.
        ys: what the rows stand for, from the bottom.
        path: the .png, .svg or .pdf file to write; its folder is made.
        xlabel: what ``xs`` are.
        ylabel: what ``ys`` are.
        label: what the numbers are, with their unit.
        title: of the figure.

    Raises:
        ValueError: no number at all, or another shape than ``len(ys)`` rows of ``len(xs)``.
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
    known = [
        value for table in panels.values() for row in table for value in row if is_number(value)
    ]
    if not known:
        raise ValueError(
            "values must hold at least one number; all are absent. Leave the figure out until "
            "something was measured."
        )
    low, high = min(known), max(known)
    # With one value for all, the middle of the scale.
    norm = Normalize(low, high) if high > low else Normalize(low - 1, low + 1)
    # Cividis looks the same to most eyes, and its lightness grows along it: grey print works.
    colours = ScalarMappable(norm, colormaps["cividis"])
    decimals = 1 if high - low >= 1 or high == low else 2
    width = min(max(3.5, 1.7 + 0.55 * len(xs)), 7.0)
    height = (0.34 * len(ys) + 0.75) * len(panels)
    figure, axes = paper_figure(len(panels), 1, title, width=width, height=max(height, 1.8))
    for axis, (name, values) in zip(axes, panels.items(), strict=True):
        axis.grid(visible=False)
        axis.spines["bottom"].set_visible(False)
        axis.set(xlim=(-0.5, len(xs) - 0.5), ylim=(-0.5, len(ys) - 0.5))
        axis.set_xticks(range(len(xs)), [_short(x) for x in xs])
        axis.set_yticks(range(len(ys)), [_short(y) for y in ys])
        name_axes(axis, xlabel, ylabel)
        if name:
            axis.set_title(name, loc="left", fontsize=PAPER_TEXT, parse_math=False)
        size = min(PAPER_TEXT - 0.5, (width - 1.7) / len(xs) * 72 / 3.2)
        _draw_cells(axis, values, colours, decimals, size)
    bar = figure.colorbar(colours, ax=axes, shrink=0.9, aspect=18, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=PAPER_TEXT - 1, length=0, labelcolor="0.25")
    bar.set_label(label, fontsize=PAPER_TEXT, color="0.25", parse_math=False)
    if high == low:
        bar.set_ticks([low])
    write(figure, path, dpi=200)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


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

"""What all figures share: colours, lines, panels, labels that do not overlap, writing a file."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard

from weiss._base.files import replacing

# Okabe and Ito's palette for colour-blind readers, without its yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
# Nine and seven have no common divisor: the pair of colour and marker repeats after 63 series.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
TEXT = 8.5
"""Size of text in points; papers print figures at their own size."""
LETTER = 0.56 * TEXT / 72
"""About how wide a letter is, in inches."""
HELPFUL_RANGE = 30.0
"""From this ratio of largest to smallest on, a logarithmic axis shows more than a linear one."""
FLATTENED = 0.3
"""A level may not squeeze the data into less than this share of the height."""
NOTHING: Mapping[str, Any] = MappingProxyType({})
"""The default for an empty mapping; it cannot be changed by mistake."""
KINDS = ("png", "svg", "pdf")

End = tuple[str, float, float, str]
"""A label, the point it belongs to, and its colour."""


def plain(text: str) -> str:
    """Return text without characters that no font can draw and no SVG may hold."""
    return re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)


def short(value: Any) -> str:
    """Return a value as a tick shows it: 0.01, 64, 10k, 2M."""
    if not isinstance(value, int | float):
        return plain(str(value))
    for unit, sign in ((1e6, "M"), (1e3, "k")):
        if value >= max(unit, 1e4) and (10 * value) % unit == 0:
            return f"{value / unit:g}{sign}"
    return f"{value:g}"


def is_number(value: float | None) -> TypeGuard[float]:
    """Return whether there is a value, and a finite one."""
    return value is not None and math.isfinite(value)


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches that lays itself out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write(figure: Any, path: Path, *, dpi: int = 110) -> None:
    """Write a PNG, an SVG or a PDF, by the suffix; the same figure gives the same bytes."""
    from matplotlib import rc_context

    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise ValueError(f"path must end in .png, .svg or .pdf; got {path}. Rename the figure.")
    # By default an SVG and a PDF contain the date, and an SVG has random identifiers.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    # Publishers refuse fonts of type 3, matplotlib's default in a PDF.
    settings: Any = {"svg.hashsalt": "weiss", "pdf.fonttype": 42}
    with replacing(path) as temporary, rc_context(settings):
        figure.savefig(temporary, dpi=dpi, format=kind, metadata=metadata)


def colour_of(place: int) -> str:
    """Return the colour of a series."""
    return COLOURS[place % len(COLOURS)]


def marker(place: int) -> str:
    """Return the marker of a series, which distinguishes it in grey print."""
    return MARKERS[place % len(MARKERS)]


def line_look(place: int) -> dict[str, Any]:
    """Return how the line of a series looks, in colour and in grey print."""
    look = {"color": colour_of(place), "linestyle": DASHES[place % len(DASHES)]}
    return look | {"marker": marker(place), "markersize": 4, "linewidth": 1.5}


def key(label: str, **look: Any) -> Any:
    """Return an entry of a legend: a line or a marker of this look."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=plain(label), **look)


def refuse_nothing(found: Any, must_hold: str, given: str) -> None:
    """Refuse to draw a figure without values; `given` says what was without any."""
    if not found:
        raise ValueError(
            f"{must_hold}; got {given} without any. Draw the figure after a measurement."
        )


def dress(axis: Any) -> None:
    """Give a panel the look of all panels: a light grid, small grey numbers, one spine."""
    axis.tick_params(labelsize=TEXT - 0.5, length=0, which="both", labelcolor="0.25")
    axis.grid(color="0.9", linewidth=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color("0.6")


def paper_figure(
    rows: int, columns: int, title: str = "", *, width: float, height: float, **options: Any
) -> tuple[Any, list[Any]]:
    """Return a figure for a paper and its panels, row by row, dressed.

    `width` and `height`, without that of the title, are in inches; options are those of
    matplotlib's ``subplots``.
    """
    figure = new_figure(width, height + (0.25 if title else 0))
    if title:
        title = textwrap.fill(plain(title), int(width * 72 / (0.62 * (TEXT + 1))))
        figure.suptitle(title, fontsize=TEXT + 1, fontweight="bold", parse_math=False)
    panels = figure.subplots(rows, columns, squeeze=False, **options)
    found = [axis for row in panels for axis in row]
    for axis in found:
        dress(axis)
    return figure, found


def name_axes(
    axis: Any, xlabel: str, ylabel: str, title: str = "", *, parse_math: bool = False
) -> None:
    """Label a panel and its axes, in plain text or with formulas between dollars."""
    look: dict[str, Any] = {"fontsize": TEXT, "parse_math": parse_math}
    axis.set_xlabel(plain(xlabel), color="0.25", **look)
    axis.set_ylabel(plain(ylabel), color="0.25", **look)
    axis.set_title(plain(title), loc="left", **look)


def whole_epochs(axis: Any) -> None:
    """Put ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def log_if_helpful(axis: Any, known: Sequence[float]) -> bool:
    """Make a vertical axis logarithmic if that shows more of these heights; return whether."""
    finite = list(filter(math.isfinite, known))
    is_helpful = bool(finite) and 0 < min(finite) * HELPFUL_RANGE < max(finite)
    if is_helpful:
        axis.set_yscale("log")
    return is_helpful


def share_from_zero(axis: Any, known: Sequence[float]) -> None:
    """Set a vertical axis of shares in per cent to start at zero and end at 1 % or more."""
    axis.set_ylim(0, max(1.08 * max(filter(math.isfinite, known)), 1.0))


def legend_below(figure: Any, handles: Sequence[Any], *, columns: int = 4) -> None:
    """Explain symbols below the figure, outside the data, in as many columns as fit."""
    look = {"frameon": False, "fontsize": TEXT - 0.5, "handlelength": 2.2}
    # Beside its text an entry has its symbol and a gap, about seven letters wide.
    widest = LETTER * (7 + max((len(handle.get_label()) for handle in handles), default=0))
    columns = max(1, min(columns, len(handles), int(figure.get_figwidth() / widest)))
    found = figure.legend(handles=handles, loc="outside lower center", ncols=columns, **look)
    for text in found.get_texts():
        text.set_parse_math(False)


def draw_levels(axis: Any, levels: Mapping[str, float], known: Sequence[float]) -> list[End]:
    """Draw dashed levels and return their labels, for `label_ends`.

    A level so far away that it would flatten the data, whose heights are `known`, is not drawn: its
    label has its height and an arrow. Sets the vertical limits; the horizontal ones must be set.
    """
    low, high = min(known), max(known)
    span = (high - low) or max(abs(high), 1.0) * 0.1
    shown = {name: at for name, at in levels.items() if math.isfinite(at)}
    reach = [*shown.values(), low, high]
    is_far = span < FLATTENED * (max(reach) - min(reach))
    if not is_far:
        low, high = min(reach), max(reach)
        span = max(span, high - low)
    low, high = low - 0.07 * span, high + 0.07 * span
    axis.set_ylim(low, high)
    right = axis.get_xlim()[1]
    ends: list[End] = []
    for name, at in shown.items():
        if low <= at <= high:
            axis.axhline(at, color="0.45", linestyle=(0, (5, 4)), linewidth=1.1, zorder=1)
            ends.append((name, right, at, "0.35"))
        else:
            arrow, edge = ("↓", low) if at < low else ("↑", high)
            ends.append((f"{arrow} {name}: {at:.1f}", right, edge, "0.35"))
    return ends


def height_for(labels: Sequence[str]) -> float:
    """Return about how high a panel must be, in inches, for these labels in a column beside it."""
    return 0.9 + 0.16 * sum(1 + folded(label).count("\n") for label in labels)


def folded(label: str) -> str:
    """Return a label in lines that fit beside a panel."""
    return textwrap.fill(plain(label), 24)


def label_ends(axis: Any, ends: Sequence[End]) -> None:
    """Write labels in a column right of the panel, each as close to its height as room allows."""
    from matplotlib.colors import to_rgb

    axis.set_ylim(axis.get_ylim())  # the labels rely on it
    labels = [folded(label) for label, *_ in ends]
    # Axes take the height of the figure but for about 0.8 inches of titles and ticks.
    rows = axis.get_gridspec().nrows
    line = TEXT * 1.25 / 72 / max(axis.figure.get_figheight() / rows - 0.8, 0.5)
    heights = [line * (1 + label.count("\n")) for label in labels]
    in_panel = axis.transScale + axis.transLimits
    wanted = [float(in_panel.transform((x, value))[1]) for _, x, value, _ in ends]
    look = {"fontsize": TEXT - 0.5, "va": "center", "parse_math": False}
    placed = spread_out(wanted, heights)
    for label, height, (_, x, value, colour) in zip(labels, placed, ends, strict=True):
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "relpos": (0, 0.5)}
        leader |= {"linestyle": (0, (1, 2))}  # dotted: not part of the curve
        where = {"textcoords": axis.transAxes, "arrowprops": leader}
        dark = [0.72 * part for part in to_rgb(colour)]  # text needs more contrast than a line
        axis.annotate(label, (x, value), (1.03, height), color=dark, **where, **look)


def spread_out(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Return centres in [0, 1] near those wanted, boxes overlapping only where room is short."""
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    placed = list(wanted)
    for _ in range(300):  # two that overlap each move by half of it, until none do
        for low, high in pairwise(order):
            overlap = (heights[low] + heights[high]) / 2 - (placed[high] - placed[low])
            placed[low] -= max(overlap, 0.0) / 2
            placed[high] += max(overlap, 0.0) / 2
        for place, half in enumerate(height / 2 for height in heights):
            placed[place] = min(max(placed[place], half), 1 - half)
    return placed

"""Every figure of the package; the only file that imports matplotlib."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor

from weiss.files import replacing

Metrics = Sequence[Mapping[str, Any]]
"""The lines of a run's metrics.jsonl, one an epoch."""
Curve = tuple[list[int], list[float]]
Curves = dict[str, Curve]
# Okabe and Ito's palette, which most colour-blind eyes keep apart; its yellow is lost on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
RETRIEVAL = {"map_at_r": "MAP@R", "r_precision": "R-precision", "precision_at_1": "P@1"}
TEXT = 9.0
"""Size of text in points, for figures about nine inches wide."""
HELPFUL_RANGE = 30.0
"""From this ratio of largest to smallest on, a logarithmic axis shows more than a linear one."""


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
    figure = _figure(2.6 * columns, 2.75 * len(runs) + 0.35)
    axes = figure.subplots(len(runs), columns, squeeze=False)
    colours = _class_colours(int(labels.max()) + 1)
    for row, (title, moments) in zip(axes, runs.items(), strict=True):
        for axis, (step, embeddings, fields) in zip(row, moments, strict=True):
            _circle(axis, embeddings, fields, labels, colours)
            axis.set_title(f"step {step}", fontsize=9)
        row[0].set_ylabel(title, fontsize=10)
    figure.suptitle("Samples (dots) and the mean field of their class (arrows)", fontsize=11)
    _write(figure, path)


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
    figure = _figure(0.9 * columns + 2.4, 0.95 * len(rows))
    axes = figure.subplots(
        len(rows), columns + 1, squeeze=False, width_ratios=[2.5] + [1] * columns
    )
    for row, (title, shown) in zip(axes, rows, strict=True):
        for axis in row:
            axis.set_axis_off()
        row[0].text(0, 0.5, title, fontsize=9, va="center", wrap=True, transform=row[0].transAxes)
        for axis, image in zip(row[1:], shown, strict=False):
            axis.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    _write(figure, path)


def learning_curves(
    metrics: Metrics,
    path: Path,
    *,
    best_epoch: int | None = None,
    warmup_epochs: int = 0,
    title: str = "",
) -> None:
    """Draw how a run went: training loss, retrieval in per cent, learning rates.

    A panel without any values is left out. A learning rate of zero is a gap on its log axis.

    Args:
        metrics: the lines of the run's metrics.jsonl.
        path: the .png or .svg file to write; its folder is made.
        best_epoch: the epoch to mark, one that was evaluated.
        warmup_epochs: how many epochs to shade; those whose phase is "warm-up" are shaded anyway.
        title: of the whole figure.

    Raises:
        ValueError: no values, or a best epoch that was not evaluated.
    """
    groups = dict.fromkeys(name for line in metrics for name in line.get("lr") or ())
    retrieval = {
        name: _curve(metrics, "evaluation", key, factor=100) for key, name in RETRIEVAL.items()
    }
    panels = {
        "Training loss": {"": _curve(metrics, "loss")},
        "Retrieval (%)": retrieval,
        "Learning rate": {name: _curve(metrics, "lr", name, zero=math.nan) for name in groups},
    }
    panels = {name: _with_values(curves) for name, curves in panels.items()}
    panels = {name: curves for name, curves in panels.items() if curves}
    if not panels:
        raise ValueError(
            f"metrics must have at least one line with values; got {len(metrics)} without any. "
            "Train for an epoch first."
        )
    figure, axes = _panels(list(panels), [line["epoch"] for line in metrics], title)
    warm = [line["epoch"] for line in metrics if line.get("phase") == "warm-up"]
    last_warm = max([warmup_epochs, *warm])
    for name, curves in panels.items():
        if last_warm:
            axes[name].axvspan(-1, last_warm + 0.5, color="0.93", zorder=0, linewidth=0)
        if name == "Learning rate":
            axes[name].set_yscale("log")
        # Some groups have the same rate.
        _draw_curves(axes[name], curves, widen=1.2 if name == "Learning rate" else 0)
    if best_epoch is not None:
        _mark_best(axes.get("Retrieval (%)"), retrieval["MAP@R"], best_epoch)
    for name, curves in panels.items():
        _label_ends(axes[name], _ends(curves))
    if last_warm:
        # At the bottom of the first panel, where a loss that starts high leaves room.
        axis = next(iter(axes.values()))
        where = {"xycoords": "axes fraction", "fontsize": TEXT - 1}
        axis.annotate("warm-up", (0.02, 0.03), color="0.35", **where)
    _write(figure, path, dpi=150)


def order_parameters(metrics: Metrics, path: Path, *, title: str = "") -> None:
    """Draw the order parameters of a run over its epochs.

    Three panels: length of each class's mean embedding and residual of self-consistency, both as
    distributions over classes, and the share of pairs of fields that violate the constraint. A
    panel without any values is left out: a pair loss has no fields.

    Args:
        metrics: the lines of the run's metrics.jsonl.
        path: the .png or .svg file to write; its folder is made.
        title: of the whole figure.

    Raises:
        ValueError: no line has an order parameter.
    """
    spreads = {
        "Length of class means": _spread(metrics, "class_mean_length"),
        "Residual of self-consistency": _spread(metrics, "residual"),
    }
    spreads = {name: spread for name, spread in spreads.items() if spread[0]}
    share = _with_values({"": _curve(metrics, "order", "violating_share", factor=100)})
    violating = "Violating pairs of fields (%)"
    names = [*spreads, *([violating] if share else [])]
    if not names:
        raise ValueError(
            f"metrics must have an entry 'order' with values in at least one line; none of "
            f"{len(metrics)} has. Draw learning_curves instead, or train with order parameters on."
        )
    figure, axes = _panels(names, [line["epoch"] for line in metrics], title)
    for name, (epochs, quantiles) in spreads.items():
        low, lower, median, upper, high = zip(*quantiles, strict=True)
        style = {"color": COLOURS[0], "linewidth": 0}
        axes[name].fill_between(epochs, low, high, alpha=0.16, label="5 to 95 %", **style)
        axes[name].fill_between(epochs, lower, upper, alpha=0.32, label="25 to 75 %", **style)
        _draw_curves(axes[name], {"median of the classes": (epochs, list(median))})
        if min(low) > 0 and max(high) > HELPFUL_RANGE * min(low):
            axes[name].set_yscale("log")
    if share:
        _draw_curves(axes[violating], share)
        # From zero, and to more: a share that is nothing throughout is a line at the bottom.
        axes[violating].set_ylim(0, 1.08 * max(filter(math.isfinite, share[""][1])) or 1)
    if spreads:
        handles, labels = axes[names[0]].get_legend_handles_labels()
        order = {"loc": "outside lower center", "ncols": 3, "frameon": False, "fontsize": TEXT}
        figure.legend(handles[::-1], labels[::-1], **order)
    _write(figure, path, dpi=150)


def comparison(
    curves: Mapping[str, Sequence[tuple[int, float]]],
    levels: Mapping[str, float],
    path: Path,
    *,
    ylabel: str,
    title: str = "",
) -> None:
    """Draw several curves over epochs beside reference levels, each labelled where it ends.

    Args:
        curves: for each label, points ``(epoch, value)``.
        levels: for each label, the height of a dashed line.
        path: the .png or .svg file to write; its folder is made.
        ylabel: what the values are, with their unit.
        title: of the figure.

    Raises:
        ValueError: no curve, or a curve without points.
    """
    empty = [label for label, points in curves.items() if not len(points)]
    if empty or not curves:
        raise ValueError(
            "curves must be at least one, each with at least one point (epoch, value); got "
            f"{f'none for {empty[0]!r}' if empty else 'no curve'}. Leave out what has no values."
        )
    drawn: Curves = {
        label: ([at for at, _ in points], [value for _, value in points])
        for label, points in curves.items()
    }
    epochs = [at for known, _ in drawn.values() for at in known]
    figure, axes = _panels([ylabel], epochs, title, height=3.6)
    axis = axes[ylabel]
    for height in levels.values():
        axis.axhline(height, color="0.45", linestyle=(0, (5, 4)), linewidth=1.1, zorder=1)
    _draw_curves(axis, drawn)
    right = axis.get_xlim()[1]
    marks = [(label, right, height, "0.35") for label, height in levels.items()]
    _label_ends(axis, _ends(drawn) + marks)
    _write(figure, path, dpi=150)


def _curve(metrics: Metrics, *keys: str, factor: float = 1.0, zero: float = 0.0) -> Curve:
    """Return the epochs that have a value under these keys, and the values."""
    epochs, values = [], []
    for line in metrics:
        found: Any = line
        for key in keys:
            found = (found or {}).get(key)
        if found is not None:
            epochs.append(int(line["epoch"]))
            values.append(float(found) * factor or zero)
    return epochs, values


def _spread(metrics: Metrics, key: str) -> tuple[list[int], list[Sequence[float]]]:
    """Return the epochs that have five quantiles of an order parameter, and those."""
    lines = [line for line in metrics if (line.get("order") or {}).get(key) is not None]
    return [int(line["epoch"]) for line in lines], [line["order"][key] for line in lines]


def _with_values(curves: Curves) -> Curves:
    return {name: curve for name, curve in curves.items() if any(map(math.isfinite, curve[1]))}


def _panels(
    names: Sequence[str], epochs: Sequence[int], title: str, *, height: float = 2.9
) -> tuple[Any, dict[str, Any]]:
    """Return a figure with panels over the same epochs side by side, and the panels by name."""
    from matplotlib.ticker import MaxNLocator

    width = {1: 6.4, 2: 7.6}.get(len(names), 9.6)
    figure = _figure(width, height + (0.3 if title else 0))
    figure.get_layout_engine().set(wspace=0.06)
    if title:
        figure.suptitle(title, fontsize=TEXT + 2, fontweight="bold", parse_math=False)
    axes = dict(zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True))
    for name, axis in axes.items():
        axis.set_title(name, loc="left", fontsize=TEXT + 0.5, parse_math=False)
        axis.set_xlabel("epoch", fontsize=TEXT, color="0.25")
        axis.set_xlim(min(epochs) - 0.5, max(epochs) + 0.5)
        axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        axis.tick_params(labelsize=TEXT - 0.5, length=0, which="both", labelcolor="0.25")
        axis.grid(color="0.9", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.spines["bottom"].set_color("0.6")
    return figure, axes


def _style(place: int) -> tuple[str, str]:
    """Return colour and dashes of a panel's curve; with the colours used up, other dashes."""
    return COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]


def _draw_curves(axis: Any, curves: Curves, *, widen: float = 0.0) -> None:
    """Draw curves, each wider than the next by ``widen`` points, to show on both sides of it."""
    for place, (label, (epochs, values)) in enumerate(curves.items()):
        colour, dashes = _style(place)
        # Dots tell evaluated epochs from what lies between; many would hide the line.
        size = 3.2 if len(epochs) <= 40 else 0
        width = 1.8 + widen * (len(curves) - 1 - place)
        look = {"color": colour, "linestyle": dashes, "marker": "o", "markersize": size}
        axis.plot(epochs, values, linewidth=width, label=label, **look)


def _mark_best(axis: Any, curve: Curve, best_epoch: int) -> None:
    """Mark the best epoch of a panel and say its number and value at the bottom."""
    values = dict(zip(*curve, strict=True))
    if axis is None or best_epoch not in values:
        known = ", ".join(map(str, values)) or "none"
        raise ValueError(
            f"best_epoch must be an epoch that was evaluated; got {best_epoch}, evaluated: "
            f"{known}. Pass one of these, or None."
        )
    low, high = axis.get_ylim()
    axis.set_ylim(max(low - 0.22 * (high - low), min(low, 0.0)), high)
    axis.axvline(best_epoch, color="0.35", linestyle=":", linewidth=1.1, zorder=1)
    ring = {"markersize": 8, "markerfacecolor": "none", "markeredgecolor": "black"}
    axis.plot(best_epoch, values[best_epoch], "o", markeredgewidth=1.3, **ring)
    is_late = best_epoch > sum(axis.get_xlim()) / 2
    text = f"best: epoch {best_epoch}\nMAP@R {values[best_epoch]:.1f} %"
    where = {"xycoords": axis.get_xaxis_transform(), "textcoords": "offset points"}
    side: dict[str, Any] = {"ha": "right" if is_late else "left", "fontsize": TEXT - 1}
    note = axis.annotate(text, (best_epoch, 0.03), (-4 if is_late else 4, 0), **where, **side)
    note.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1})


def _ends(curves: Curves) -> list[tuple[str, float, float, str]]:
    """Return label, last finite point and colour of each curve that has them."""
    ends = []
    for place, (label, (epochs, values)) in enumerate(curves.items()):
        finite = [at for at, value in enumerate(values) if math.isfinite(value)]
        if label and finite:
            ends.append((label, float(epochs[finite[-1]]), values[finite[-1]], _style(place)[0]))
    return ends


def _label_ends(axis: Any, ends: Sequence[tuple[str, float, float, str]]) -> None:
    """Write labels in a column right of the panel, each as close to its height as room allows."""
    from matplotlib.colors import to_rgb

    axis.set_ylim(axis.get_ylim())  # from here on labels rely on it
    labels = [textwrap.fill(label, 24) for label, *_ in ends]
    # Axes take the height of the figure but for about 0.8 inches of titles and ticks.
    line = TEXT * 1.25 / 72 / (axis.figure.get_figheight() - 0.8)
    heights = [line * (1 + label.count("\n")) for label in labels]
    in_panel = axis.transScale + axis.transLimits
    wanted = [float(in_panel.transform((epoch, value))[1]) for _, epoch, value, _ in ends]
    look = {"fontsize": TEXT - 0.5, "va": "center", "parse_math": False}
    placed = _spread_out(wanted, heights)
    for label, height, (_, epoch, value, colour) in zip(labels, placed, ends, strict=True):
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (0, 0.5)}
        where = {"textcoords": axis.transAxes, "arrowprops": leader}
        dark = [0.72 * part for part in to_rgb(colour)]  # text needs more contrast than a line
        axis.annotate(label, (epoch, value), (1.03, height), color=dark, **where, **look)


def _spread_out(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
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


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _write(figure: Any, path: Path, *, dpi: int = 110) -> None:
    """Write a PNG or an SVG, as the suffix says; the same figure gives the same bytes."""
    from matplotlib import rc_context

    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise ValueError(f"path must end in .png or .svg; got {path}. Rename the figure.")
    # An SVG carries its date, and names its parts at random, unless told not to.
    metadata = {"Date": None} if kind == "svg" else {}
    with replacing(path) as temporary, rc_context({"svg.hashsalt": "weiss"}):
        figure.savefig(temporary, dpi=dpi, format=kind, metadata=metadata)

"""Figures of the magnet: its transition, and spins that order while they are cooled."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weiss._base.files import replacing
from weiss.figures.drawing import (
    COLOURS,
    TEXT,
    colour_of,
    dress,
    key,
    legend_below,
    marker,
    name_axes,
    new_figure,
    paper_figure,
    write,
)

if TYPE_CHECKING:
    from weiss.magnet import Transition

NAMES = {1: "Ising", 2: "XY", 3: "Heisenberg"}
FRAMES_A_SECOND = 12
TEMPERATURE, MAGNETISATION = r"temperature  $T\;/\;JN$", r"magnetisation  $|M|$"
LINGER = 5
"""The last frame stays for one in so many parts of the animation."""
DOT: dict[str, Any] = {"markersize": 4, "markerfacecolor": "white"}


def magnet_name(n: int) -> str:
    """Return the usual name of a magnet of n components."""
    return NAMES[n]


def magnet_transition(found: Sequence["Transition"], path: Path, *, title: str = "") -> None:
    """Draw magnetisation and its fluctuation against temperature, one colour for each magnet.

    Args:
        found: results of `weiss.magnet.transition`, at least one.
        path: the .png, .svg or .pdf file to write; its folder is created.
        title: of the figure.
    """
    import numpy as np

    if not found:
        raise ValueError("found must hold at least one magnet; got none. Measure one first.")
    figure, [left, right] = paper_figure(1, 2, title, width=9.0, height=3.5)
    name_axes(left, TEMPERATURE, MAGNETISATION, parse_math=True)
    fluctuation = r"fluctuation  $N\,\mathrm{Var}|M|\;/\;T$   in $1/JN$"
    name_axes(right, TEMPERATURE, fluctuation, parse_math=True)
    right.set_yscale("log")
    series, all_lines = [], []
    for place, each in enumerate(found):
        lines = _scaled(each.lines, each.magnet.coupling)
        _draw_one(left, right, each, lines, place)
        all_lines.append(lines)
        n = each.magnet.n
        critical = "JN" if n == 1 else f"JN / {n}"
        label = rf"{magnet_name(n)}, $n = {n}$:  $T_c = {critical}$"
        look = {"color": colour_of(place), "marker": marker(place), **DOT}
        series.append(key(label, linewidth=1.6, **look))
    hottest = max(lines["temperature"][-1] for lines in all_lines)
    # Far below the transition the fluctuation of very many spins is nan.
    peak = max(np.nanmax(lines["exact_fluctuation"]) for lines in all_lines)
    least = min(lines["exact_fluctuation"][-1] for lines in all_lines)
    left.set(xlim=(0, 1.02 * hottest), ylim=(0, 1.1))
    right.set(xlim=(0, 1.02 * hottest), ylim=(least / 6, 5 * peak))
    box: dict[str, Any] = {"fontsize": TEXT - 0.5, "loc": "upper right", "framealpha": 0.9}
    left.legend(handles=series, edgecolor="none", **box)
    grey: dict[str, Any] = {"color": "0.3"}
    sizes = sorted({each.num_spins for each in found})
    spins = " and ".join(f"{size:,}" for size in sizes) + " spins"
    handles = [
        key("mean field theory", linewidth=1.6, **grey),
        key(f"exact, {spins}", linewidth=1.3, linestyle=(0, (4, 2)), **grey),
        key(f"simulated, {spins}", marker="o", linestyle="", **DOT, **grey),
    ]
    legend_below(figure, handles, columns=3)
    write(figure, path, dpi=200)


def _scaled(arrays: dict[str, Any], coupling: float) -> dict[str, Any]:
    """Return the same with temperatures over J N, and fluctuations times it."""
    found = {
        name: values * coupling if name.startswith(("theory_f", "exact_f", "fluct")) else values
        for name, values in arrays.items()
    }
    return found | {"temperature": arrays["temperature"] / coupling}


def _draw_one(left: Any, right: Any, each: "Transition", lines: dict[str, Any], place: int) -> None:
    colour = colour_of(place)
    dots = _scaled(each.dots, each.magnet.coupling)
    T, few, critical = lines["temperature"], dots["temperature"], 1.0 / each.magnet.n
    theory = {"color": colour, "linewidth": 1.6, "zorder": 3}
    counted = {"color": colour, "linewidth": 1.3, "linestyle": (0, (4, 2)), "zorder": 3}
    look = {"color": colour, "fmt": marker(place), "markersize": 3.6, "markerfacecolor": "white"}
    look |= {"markeredgewidth": 1.1, "elinewidth": 1.1, "capsize": 1.8, "zorder": 4}
    # The line starts at (0, 1) and has a corner at the transition.
    below = critical > T
    start = [0.0, *T[below], critical, *T[~below]]
    left.plot(start, [1.0, *lines["theory_length"][below], 0.0, *(0.0 * T[~below])], **theory)
    left.plot([0.0, *T], [1.0, *lines["exact_length"]], **counted)
    left.errorbar(few, dots["length"], dots["length_error"], **look)
    for axis in (left, right):
        axis.axvline(critical, color=colour, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
    for side in (below, critical < T):
        right.plot(T[side], lines["theory_fluctuation"][side], **theory)
    right.plot(T, lines["exact_fluctuation"], **counted)
    varied = dots["fluctuation_error"] > 0
    heights, errors = dots["fluctuation"][varied], dots["fluctuation_error"][varied]
    right.errorbar(few[varied], heights, errors, **look)


def magnet_cooling(
    spins: Any,
    temperatures: Any,
    path: Path,
    *,
    theory: tuple[Any, Any],
    critical: float,
    title: str = "",
) -> None:
    """Write an animation of spins in the plane that order while they are cooled.

    Args:
        spins: ``(F, N, 2)``, the spins of each frame.
        temperatures: ``(F,)``, of each frame.
        path: the .gif file to write; its folder is created.
        theory: temperatures and magnetisations of mean field theory.
        critical: the critical temperature.
        title: of the figure.
    """
    import numpy as np
    from PIL import Image

    if path.suffix.lower() != ".gif":
        raise ValueError(f"path must end in .gif; got {path}. Rename the animation.")
    if spins.ndim != 3 or spins.shape[2] != 2 or len(temperatures) != len(spins):
        raise ValueError(
            f"spins must have shape (frames, N, 2), a temperature a frame; got {spins.shape} and "
            f"{len(temperatures)} temperatures. Cool a magnet with n=2."
        )
    figure = new_figure(6.4, 3.3)
    if title:
        figure.suptitle(title, fontsize=TEXT + 1, fontweight="bold", parse_math=False)
    field, curve = figure.subplots(1, 2, width_ratios=(1, 1.05))
    arrows = _draw_spins(field, spins[0])
    lengths = ((spins.mean(axis=1) ** 2).sum(axis=1)) ** 0.5
    trace, head, words = _draw_curve(curve, temperatures, theory, critical)
    frames = []
    for place in [*range(len(spins)), *[len(spins) - 1] * (len(spins) // LINGER)]:
        arrows.set_UVC(*spins[place].T, _angles(spins[place]))
        trace.set_data(temperatures[: place + 1], lengths[: place + 1])
        head.set_data([temperatures[place]], [lengths[place]])
        words.set_text(f"$T$ = {temperatures[place]:.2f}      $|M|$ = {lengths[place]:.2f}")
        figure.canvas.draw()
        if place == 0:
            figure.set_layout_engine("none")  # laid out once: panels do not move with their labels
        frames.append(Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB"))
    with replacing(path) as temporary:
        first, *rest = frames
        duration = 1000 // FRAMES_A_SECOND
        options: dict[str, Any] = {"append_images": rest, "duration": duration, "loop": 0}
        first.save(temporary, format="GIF", save_all=True, **options)


def _angles(spins_ND: Any) -> list[float]:
    return [math.atan2(up, across) for across, up in spins_ND.tolist()]


def _draw_spins(axis: Any, spins_ND: Any) -> Any:
    """Draw spins as arrows in rows; the places have no meaning."""
    from matplotlib.colors import ListedColormap, hsv_to_rgb

    # One colour for each direction, less bright than matplotlib's own circle.
    circle = ListedColormap(hsv_to_rgb([(step / 256, 0.72, 0.82) for step in range(256)]))
    number = len(spins_ND)
    side = math.ceil(math.sqrt(number))
    places = [(spin % side, side - 1 - spin // side) for spin in range(number)]
    arrows = axis.quiver(
        *zip(*places, strict=True), *spins_ND.T, _angles(spins_ND), cmap=circle,
        clim=(-math.pi, math.pi), pivot="mid", angles="xy", scale_units="xy", scale=1.25,
        width=0.085 / max(side, 10), headwidth=4.2, headlength=4.6, headaxislength=4.2,
    )  # fmt: skip
    axis.set(xlim=(-0.8, side - 0.2), ylim=(-0.8, side - 0.2), aspect="equal", xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_color("0.85")
    return arrows


def _draw_curve(axis: Any, temperatures: Any, theory: tuple[Any, Any], critical: float) -> Any:
    dress(axis)
    name_axes(axis, TEMPERATURE, MAGNETISATION, parse_math=True)
    axis.plot(*theory, color="0.45", linewidth=1.6, label="mean field theory")
    axis.axvline(critical, color="0.6", linewidth=1.0, linestyle=(0, (1, 2)))
    (trace,) = axis.plot([], [], color=COLOURS[0], linewidth=1.1, alpha=0.75, label="these spins")
    (head,) = axis.plot([], [], "o", color=COLOURS[1], markersize=6)
    hottest = float(max(temperatures))
    axis.set(xlim=(0, 1.03 * hottest), ylim=(0, 1.06))
    axis.set_title(" ", fontsize=TEXT)
    words = axis.text(0.5, 1.03, "", transform=axis.transAxes, ha="center", fontsize=TEXT)
    look = {"fontsize": TEXT, "color": "0.35"}
    axis.text(critical + 0.015 * hottest, 0.025, "$T_c$", **look)
    axis.legend(frameon=False, fontsize=TEXT - 1, loc="upper right")
    return trace, head, words

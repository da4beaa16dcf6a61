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
    key,
    legend_below,
    marker,
    name_axes,
    paper_figure,
    write,
)

if TYPE_CHECKING:
    from weiss.magnet import Transition

FRAMES_A_SECOND = 12
TEMPERATURE, MAGNETISATION = r"temperature  $T\;/\;JN$", r"magnetisation  $|M|$"
FLUCTUATION = r"fluctuation  $N\,\mathrm{Var}|M|\;/\;T$   in $1/JN$"
LINGER = 5
"""The last frame stays for one in so many parts of the animation."""
THEORY: dict[str, Any] = {"linewidth": 1.6}
EXACT: dict[str, Any] = {"linewidth": 1.3, "linestyle": (0, (4, 2))}
DOT: dict[str, Any] = {"markersize": 4, "markerfacecolor": "white"}


def magnet_transition(found: Sequence["Transition"], path: Path) -> None:
    """Draw magnetisation and its fluctuation against temperature, one colour for each magnet.

    Args:
        found: results of `weiss.magnet.transition`, at least one.
        path: the .png, .svg or .pdf file to write; its folder is created.
    """
    import numpy as np

    if not found:
        raise ValueError("found must hold at least one magnet; got none. Measure one first.")
    figure, [left, right] = paper_figure(1, 2, width=9.0, height=3.5)
    name_axes(left, TEMPERATURE, MAGNETISATION, parse_math=True)
    name_axes(right, TEMPERATURE, FLUCTUATION, parse_math=True)
    right.set_yscale("log")
    series, hottest, peak, least = [], 0.0, 0.0, math.inf
    for place, each in enumerate(found):
        colour, mark, n = colour_of(place), marker(place), each.magnet.n
        lines, dots = (_scaled(arrays, each.magnet.coupling) for arrays in (each.lines, each.dots))
        _draw_one(left, right, lines, dots, 1.0 / n, colour, mark)
        critical = "JN" if n == 1 else f"JN / {n}"
        label = rf"{each.magnet.name}, $n = {n}$:  $T_c = {critical}$"
        series.append(key(label, color=colour, marker=mark, **THEORY, **DOT))
        hottest = max(hottest, lines["temperature"][-1])
        # Far below the transition the fluctuation of very many spins is nan.
        peak = max(peak, np.nanmax(lines["exact_fluctuation"]))
        least = min(least, lines["exact_fluctuation"][-1])
    left.set(xlim=(0, 1.02 * hottest), ylim=(0, 1.1))
    right.set(xlim=(0, 1.02 * hottest), ylim=(least / 6, 5 * peak))
    box: dict[str, Any] = {"fontsize": TEXT - 0.5, "loc": "upper right", "framealpha": 0.9}
    left.legend(handles=series, edgecolor="none", **box)
    sizes = sorted({each.num_spins for each in found})
    spins = " and ".join(f"{size:,}" for size in sizes) + " spins"
    handles = [
        key("mean field theory", color="0.3", **THEORY),
        key(f"exact, {spins}", color="0.3", **EXACT),
        key(f"simulated, {spins}", color="0.3", marker="o", linestyle="", **DOT),
    ]
    legend_below(figure, handles, columns=3)
    write(figure, path, dpi=200)


def _scaled(arrays: dict[str, Any], coupling: float) -> dict[str, Any]:
    """Return the same with temperatures over J N, and fluctuations times it."""
    found = {
        name: values * coupling if "fluctuation" in name else values
        for name, values in arrays.items()
    }
    return found | {"temperature": arrays["temperature"] / coupling}


def _draw_one(
    left: Any,
    right: Any,
    lines: dict[str, Any],
    dots: dict[str, Any],
    critical: float,
    colour: str,
    mark: str,
) -> None:
    T, few = lines["temperature"], dots["temperature"]
    theory, counted = ({"color": colour, "zorder": 3, **look} for look in (THEORY, EXACT))
    look = {"color": colour, "fmt": mark, "markersize": 3.6, "markerfacecolor": "white"}
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


def magnet_cooling(spins: Any, temperatures: Any, path: Path) -> None:
    """Write an animation of spins of the XY magnet that order while they are cooled.

    Args:
        spins: ``(F, N, 2)``, the spins of each frame, as `weiss.magnet.cool` returns them.
        temperatures: ``(F,)``, of each frame, in units of the coupling.
        path: the .gif file to write; its folder is created.
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
    title = f"{spins.shape[1]} spins, cooled: none is told where to point, and they agree"
    figure, [field, curve] = paper_figure(
        1, 2, title, width=6.4, height=3.05, width_ratios=(1, 1.05)
    )
    arrows = _draw_spins(field, spins[0])
    lengths = np.linalg.norm(spins.mean(axis=1), axis=1)
    trace, head, words = _draw_curve(curve, float(max(temperatures)))
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


def _angles(spins_ND: Any) -> Any:
    import numpy as np

    return np.arctan2(spins_ND[:, 1], spins_ND[:, 0])


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
    axis.spines[:].set(visible=True, color="0.85")
    return arrows


def _draw_curve(axis: Any, hottest: float) -> Any:
    """Draw the magnetisation of mean field theory; return what each frame moves."""
    import numpy as np

    from weiss.magnet import Magnet, solve

    planar, fine = Magnet(n=2), np.linspace(0.0, hottest, 201)
    critical = planar.critical_temperature
    name_axes(axis, TEMPERATURE, MAGNETISATION, parse_math=True)
    theory = solve(planar, fine).magnetisation
    axis.plot(fine, theory, color="0.45", linewidth=1.6, label="mean field theory")
    axis.axvline(critical, color="0.6", linewidth=1.0, linestyle=(0, (1, 2)))
    (trace,) = axis.plot([], [], color=COLOURS[0], linewidth=1.1, alpha=0.75, label="these spins")
    (head,) = axis.plot([], [], "o", color=COLOURS[1], markersize=6)
    axis.set(xlim=(0, 1.03 * hottest), ylim=(0, 1.06))
    axis.set_title(" ", fontsize=TEXT)
    words = axis.text(0.5, 1.03, "", transform=axis.transAxes, ha="center", fontsize=TEXT)
    look = {"fontsize": TEXT, "color": "0.35"}
    axis.text(critical + 0.015 * hottest, 0.025, "$T_c$", **look)
    axis.legend(frameon=False, fontsize=TEXT - 1, loc="upper right")
    return trace, head, words

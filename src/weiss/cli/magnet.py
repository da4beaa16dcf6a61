"""The command that shows the magnet. As in `cli`, everything heavy is imported inside."""

import json
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from weiss.magnet import Transition

MOST_SPINS = 10_000
"""More would take hours: each is drawn some hundred times at every temperature."""
MOST_COOLED = 225
"""The most spins in the animation: fifteen rows."""
MAGNET_HELP = "\n\n".join(
    (
        "Draw the magnet that the losses come from: magnetisation and its fluctuation against "
        "temperature, from mean field theory, exactly for N spins, and simulated.",
        "Writes magnet.png, magnet.svg, magnet.gif (spins that order while they are cooled), and "
        "the numbers as magnet.json. It takes about half a minute for 100 spins, and more time for "
        "more spins.",
        "The animation shows XY spins (n = 2) for every --n, since these lie in a plane; as many "
        f"as --spins, at most {MOST_COOLED}.",
    )
)
FRAMES, SWEEPS = 80, 3
HOT, COLD = 1.0, 0.01
BEYOND = 1.6
"""The highest temperature of the plot, in units of the highest critical temperature."""


def magnet(
    out: Annotated[Path, typer.Option(help="The folder to write to; it is created.")],
    n: Annotated[
        str, typer.Option("--n", help="Components of a spin, with commas between: 1, 2 or 3.")
    ] = "1,2,3",
    spins: Annotated[int, typer.Option(min=2, max=MOST_SPINS, help="How many spins.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulations.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer temperatures, sweeps and frames.")
    ] = False,
) -> None:
    """Draw the magnet; the text is `MAGNET_HELP`."""
    import numpy as np

    from weiss.figures import magnet_cooling, magnet_transition
    from weiss.magnet import Magnet, cool, transition

    components = list(dict.fromkeys(word.strip() for word in n.split(",") if word.strip()))
    if not components or not {"1", "2", "3"}.issuperset(components):
        raise ValueError(
            f"--n must be 1, 2 or 3, or several with commas between; got {n!r}. Write --n 1,2,3."
        )
    try:
        out.mkdir(parents=True, exist_ok=True)  # fail before the work, not after it
    except OSError as error:
        raise ValueError(
            f"--out must be a folder that can be created; {error}. Choose another name."
        ) from error
    # All magnets up to the same temperature.
    effort: dict[str, Any] = {"hottest": BEYOND / min(map(int, components))}
    if quick:
        effort |= {"num_lines": 25, "num_dots": 8, "copies": 24, "sweeps": 30}
    found = []
    for number, one in enumerate(map(int, components)):
        each = transition(Magnet(n=one), spins, seed=seed + number, **effort)
        found.append(each)
        # Far below the transition the fluctuation of very many spins is nan.
        peak = each.lines["temperature"][np.nanargmax(each.lines["exact_fluctuation"])]
        print(
            f"{f'{each.magnet.name} (n = {one})':20s} "
            f"T_c = {each.magnet.critical_temperature:.4f} J N; {spins:,} spins fluctuate most at "
            f"{peak:.4f}; simulation and exact differ by at most "
            f"{max(_varied([each]), default=nan):.1f} standard errors"
        )
    print(_comparison(found))
    for suffix in ("png", "svg"):
        magnet_transition(found, out / f"magnet.{suffix}")
    _write_numbers(found, out / "magnet.json")
    temperatures = np.linspace(HOT, COLD, FRAMES // 8 if quick else FRAMES)
    cooled = cool(Magnet(n=2), temperatures, min(spins, MOST_COOLED), sweeps=SWEEPS, seed=seed)
    magnet_cooling(cooled, temperatures, out / "magnet.gif")
    for name in ("magnet.png", "magnet.svg", "magnet.gif", "magnet.json"):
        print(f"Wrote {out / name}")


def _varied(found: list["Transition"]) -> list[float]:
    """Return the size of every deviation, in standard errors, where anything varied."""
    sizes = [abs(size) for each in found for size in each.deviations().tolist()]
    return list(filter(isfinite, sizes))


def _comparison(found: list["Transition"]) -> str:
    """Return how far simulation and exact values differ, and what is to be expected."""
    from statistics import NormalDist

    total, sizes = sum(len(each.deviations()) for each in found), _varied(found)
    said = (
        f"{total} temperatures simulated; the largest deviation of |M| from the exact value is "
        f"{max(sizes, default=nan):.1f} standard errors"
    )
    if not sizes:
        return said
    if still := total - len(sizes):
        said += f" (at {still} of them no spin ever flipped)"
    # The median of the largest absolute value of so many Gaussian numbers.
    typical = NormalDist().inv_cdf(0.5 + 0.5 * 0.5 ** (1.0 / len(sizes)))
    return f"{said}; of {len(sizes)} Gaussian numbers the largest is typically {typical:.1f}"


def _write_numbers(found: list["Transition"], path: Path) -> None:
    from weiss._base.files import replacing

    def plain(arrays: dict[str, Any]) -> dict[str, list[float | None]]:
        # JSON has no infinity and no nan: null stands for both.
        return {
            name: [value if isfinite(value) else None for value in values.tolist()]
            for name, values in arrays.items()
        }

    magnets = [
        {
            "n": each.magnet.n,
            "num_spins": each.num_spins,
            "seed": each.seed,
            "critical_temperature": each.magnet.critical_temperature,
            "lines": plain(each.lines),
            "dots": plain(each.dots),
        }
        for each in found
    ]
    with replacing(path) as temporary:
        text = json.dumps({"coupling": 1.0, "magnets": magnets}, indent=1, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")

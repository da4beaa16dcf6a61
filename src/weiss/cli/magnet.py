"""The command that shows the magnet. As in `cli`, everything heavy is imported inside."""

import csv
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
        "the numbers as magnet.csv and magnet.json. It takes about half a minute for 100 spins, "
        "and more time for more spins.",
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

    from weiss.figures import magnet_name, magnet_transition
    from weiss.magnet import Magnet, transition

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
            f"{f'{magnet_name(one)} (n = {one})':20s} "
            f"T_c = {each.magnet.critical_temperature:.4f} J N; {spins:,} spins fluctuate most at "
            f"{peak:.4f}; simulation and exact differ by at most "
            f"{_largest([each]):.1f} standard errors"
        )
    total = sum(len(each.dots["temperature"]) for each in found)
    print(
        f"{total} temperatures simulated; the largest deviation of |M| from the exact value is "
        f"{_largest(found):.1f} standard errors{_typical(found)}"
    )
    for suffix in ("png", "svg"):
        magnet_transition(found, out / f"magnet.{suffix}")
    _write_numbers(found, out)
    _write_animation(out / "magnet.gif", spins, seed, FRAMES // 8 if quick else FRAMES)
    for name in ("magnet.png", "magnet.svg", "magnet.gif", "magnet.csv", "magnet.json"):
        print(f"Wrote {out / name}")


def _varied(found: list["Transition"]) -> Any:
    """Return the size of every deviation, in standard errors, where anything varied."""
    import numpy as np

    sizes = np.abs(np.concatenate([each.deviations() for each in found]))
    return sizes[np.isfinite(sizes)]


def _largest(found: list["Transition"]) -> float:
    return float(max(_varied(found), default=nan))


def _typical(found: list["Transition"]) -> str:
    """Return what to compare the largest deviation with; nothing if no temperature varied."""
    from statistics import NormalDist

    number = len(_varied(found))
    if not number:
        return ""
    still = sum(len(each.deviations()) for each in found) - number
    where = f" (at {still} of them no spin ever flipped)" if still else ""
    # The median of the largest absolute value of so many Gaussian numbers.
    typical = NormalDist().inv_cdf(0.5 + 0.5 * 0.5 ** (1.0 / number))
    return f"{where}; of {number} Gaussian numbers the largest is typically {typical:.1f}"


def _write_numbers(found: list["Transition"], out: Path) -> None:
    from weiss._base.files import replacing

    rows: list[dict[str, Any]] = []
    magnets = []
    for each in found:
        own: dict[str, Any] = {"n": each.magnet.n, "num_spins": each.num_spins}
        told = own | {"seed": each.seed, "critical_temperature": each.magnet.critical_temperature}
        for kind, arrays in (("line", each.lines), ("dot", each.dots)):
            columns = {name: values.tolist() for name, values in arrays.items()}
            table = zip(*columns.values(), strict=True)
            rows += [own | {"kind": kind} | dict(zip(columns, row, strict=True)) for row in table]
            told[f"{kind}s"] = {
                # JSON has no infinity and no nan: null stands for both.
                name: [value if isfinite(value) else None for value in values]
                for name, values in columns.items()
            }
        magnets.append(told)
    with (
        replacing(out / "magnet.csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        columns = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    with replacing(out / "magnet.json") as temporary:
        text = json.dumps({"coupling": 1.0, "magnets": magnets}, indent=1, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def _write_animation(path: Path, num_spins: int, seed: int, frames: int) -> None:
    import numpy as np

    from weiss.figures import magnet_cooling
    from weiss.magnet import Magnet, cool, solve

    planar, shown = Magnet(n=2), min(num_spins, MOST_COOLED)
    temperatures = np.linspace(HOT, COLD, frames)
    fine = np.linspace(0.0, HOT, 201)
    magnet_cooling(
        cool(planar, temperatures, shown, sweeps=SWEEPS, seed=seed),
        temperatures,
        path,
        theory=(fine, solve(planar, fine).magnetisation),
        critical=planar.critical_temperature,
        title=f"{shown} spins, cooled: none is told where to point, and they agree",
    )

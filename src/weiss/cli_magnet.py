"""The command that shows the magnet. As in `cli`, everything heavy is imported inside."""

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from weiss.magnet import Transition

MAGNET_HELP = "\n\n".join(
    (
        "Draw the magnet that the losses come from: magnetisation and its fluctuation against "
        "temperature, from mean field theory, exactly for N spins, and simulated.",
        "Writes magnet.png, magnet.svg, magnet.gif (spins that order while they are cooled), and "
        "the numbers as magnet.csv and magnet.json. It takes about half a minute.",
    )
)
FRAMES, COOLED_SPINS, SWEEPS = 80, 100, 3
HOT, COLD = 1.0, 0.01
BEYOND = 1.6
"""How far up the picture goes, in the highest of the critical temperatures."""


def magnet(
    out: Annotated[Path, typer.Option(help="The folder to write to; it is made.")],
    n: Annotated[
        str, typer.Option("--n", help="Components of a spin, with commas between: 1, 2 or 3.")
    ] = "1,2,3",
    spins: Annotated[int, typer.Option(help="How many spins.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the simulations.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer temperatures, sweeps and frames.")
    ] = False,
) -> None:
    """Draw the magnet; the text is `MAGNET_HELP`."""
    from weiss.magnet import Magnet, largest_deviation, transition
    from weiss.plots import magnet_name, magnet_transition

    components = _components(n)
    out.mkdir(parents=True, exist_ok=True)  # what cannot be written to is known before the work
    # All magnets to the same temperature, above which nothing happens any more.
    effort: dict[str, Any] = {"hottest": BEYOND / min(components)}
    if quick:
        effort |= {"num_lines": 25, "num_dots": 8, "copies": 24, "sweeps": 30}
    found = []
    for number, one in enumerate(components):
        each = transition(Magnet(n=one), spins, seed=seed + number, **effort)
        found.append(each)
        where = f"T_c = {each.magnet.critical_temperature:.4f} J N"
        far = largest_deviation([each])
        print(
            f"{magnet_name(one) + f' (n = {one})':20s} {where}; {spins:,} spins fluctuate most at "
            f"{_peak(each):.4f}; simulation and exact differ by at most {far:.1f} standard errors"
        )
    total = sum(len(each.dots["temperature"]) for each in found)
    print(
        f"{total} temperatures simulated; the largest deviation of |M| from the exact value is "
        f"{largest_deviation(found):.1f} standard errors"
    )
    for suffix in ("png", "svg"):
        magnet_transition(found, out / f"magnet.{suffix}")
    _write_numbers(found, out)
    _write_animation(out / "magnet.gif", seed, FRAMES // 8 if quick else FRAMES)
    for name in ("magnet.png", "magnet.svg", "magnet.gif", "magnet.csv", "magnet.json"):
        print(f"Wrote {out / name}")


def _components(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or any(word not in ("1", "2", "3") for word in words):
        raise ValueError(
            f"--n must be 1, 2 or 3, or several with commas between; got {text!r}. Write --n 1,2,3."
        )
    return [int(word) for word in dict.fromkeys(words)]


def _peak(each: "Transition") -> float:
    """Return the temperature at which a magnet of finitely many spins fluctuates most."""
    return float(each.lines["temperature"][each.lines["exact_fluctuation"].argmax()])


def _write_numbers(found: list["Transition"], out: Path) -> None:
    from weiss.files import replacing

    rows: list[dict[str, Any]] = []
    for each in found:
        for kind, values in (("line", each.lines), ("dot", each.dots)):
            for place in range(len(values["temperature"])):
                row: dict[str, Any] = {"n": each.magnet.n, "num_spins": each.num_spins}
                row["kind"] = kind
                rows.append(row | {name: float(each[place]) for name, each in values.items()})
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with (
        replacing(out / "magnet.csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    told = [
        {
            "n": each.magnet.n,
            "num_spins": each.num_spins,
            "seed": each.seed,
            "critical_temperature": each.magnet.critical_temperature,
            "lines": {name: _numbers(values) for name, values in each.lines.items()},
            "dots": {name: _numbers(values) for name, values in each.dots.items()},
        }
        for each in found
    ]
    with replacing(out / "magnet.json") as temporary:
        text = json.dumps({"coupling": 1.0, "magnets": told}, indent=1, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def _numbers(values: Any) -> list[float | None]:
    """Return numbers for JSON, which has no infinity: there is None where theory diverges."""
    from math import isfinite

    return [float(value) if isfinite(value) else None for value in values]


def _write_animation(path: Path, seed: int, frames: int) -> None:
    import numpy as np

    from weiss.magnet import Magnet, cool, solve
    from weiss.plots import magnet_cooling

    planar = Magnet(n=2)
    temperatures = np.linspace(HOT, COLD, frames)
    fine = np.linspace(0.0, HOT, 201)
    magnet_cooling(
        cool(planar, temperatures, COOLED_SPINS, sweeps=SWEEPS, seed=seed),
        temperatures,
        path,
        theory=(fine, solve(planar, fine).magnetisation),
        critical=planar.critical_temperature,
        title=f"{COOLED_SPINS} spins, cooled: none is told where to point, and they agree",
    )

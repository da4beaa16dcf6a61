"""The command that shows the magnet. As in `cli`, everything heavy is imported inside."""

import csv
import json
from math import isfinite
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
    spins: Annotated[int, typer.Option(help=f"How many spins, 2 to {MOST_SPINS:,}.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the simulations.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer temperatures, sweeps and frames.")
    ] = False,
) -> None:
    """Draw the magnet; the text is `MAGNET_HELP`."""
    from weiss.figures import magnet_name, magnet_transition
    from weiss.magnet import Magnet, largest_deviation, transition

    components = _components(n)
    _check(out, spins, seed)
    try:
        out.mkdir(parents=True, exist_ok=True)  # fail before the work, not after it
    except OSError as error:
        raise ValueError(f"--out must be a folder that can be created; {error}.") from error
    # All magnets up to the same temperature.
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
        f"{largest_deviation(found):.1f} standard errors{_typical(found)}"
    )
    for suffix in ("png", "svg"):
        magnet_transition(found, out / f"magnet.{suffix}")
    _write_numbers(found, out)
    frames = FRAMES // 8 if quick else FRAMES
    _write_animation(out / "magnet.gif", spins, seed, frames)
    for name in ("magnet.png", "magnet.svg", "magnet.gif", "magnet.csv", "magnet.json"):
        print(f"Wrote {out / name}")


def _components(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or any(word not in ("1", "2", "3") for word in words):
        raise ValueError(
            f"--n must be 1, 2 or 3, or several with commas between; got {text!r}. Write --n 1,2,3."
        )
    return [int(word) for word in dict.fromkeys(words)]


def _check(out: Path, spins: int, seed: int) -> None:
    if spins < 2:
        raise ValueError(f"--spins must be at least 2; got {spins}. One spin has no transition.")
    if spins > MOST_SPINS:
        raise ValueError(
            f"--spins must be at most {MOST_SPINS:,}, since each is drawn again and again; got "
            f"{spins:,}. For more use weiss.magnet.solve and weiss.magnet.exact."
        )
    if seed < 0:
        raise ValueError(f"--seed must be at least 0; got {seed}. Choose another.")
    there = next(path for path in (out, *out.parents) if path.exists())
    if not there.is_dir():
        raise ValueError(f"--out must be a folder; {there} is a file. Choose another name.")


def _peak(each: "Transition") -> float:
    """Return the temperature at which a magnet of finitely many spins fluctuates most."""
    import numpy as np

    # Far below the transition the fluctuation of very many spins is nan.
    return float(each.lines["temperature"][np.nanargmax(each.lines["exact_fluctuation"])])


def _typical(found: list["Transition"]) -> str:
    """Return what to compare the largest deviation with; nothing if no temperature varied."""
    import numpy as np

    deviations = np.concatenate([each.deviations() for each in found])
    number = int(np.isfinite(deviations).sum())
    if not number:
        return ""
    still = len(deviations) - number
    where = f" (at {still} of them no spin ever flipped)" if still else ""
    typical = f"{_typical_largest(number):.1f}"
    return f"{where}; of {number} Gaussian numbers the largest is typically {typical}"


def _typical_largest(number: int) -> float:
    """Return the median of the largest absolute value of so many Gaussian numbers."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(0.5 + 0.5 * 0.5 ** (1.0 / number))


def _write_numbers(found: list["Transition"], out: Path) -> None:
    from weiss._base.files import replacing

    rows: list[dict[str, Any]] = []
    magnets = []
    for each in found:
        own: dict[str, Any] = {"n": each.magnet.n, "num_spins": each.num_spins}
        for kind, values in (("line", each.lines), ("dot", each.dots)):
            table = zip(*(column.tolist() for column in values.values()), strict=True)
            rows += [own | {"kind": kind} | dict(zip(values, row, strict=True)) for row in table]
        own |= {"seed": each.seed, "critical_temperature": each.magnet.critical_temperature}
        for name, values in (("lines", each.lines), ("dots", each.dots)):
            own[name] = {key: _numbers(column) for key, column in values.items()}
        magnets.append(own)
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


def _numbers(values: Any) -> list[float | None]:
    """Return numbers for JSON, which has no infinity and no nan: None stands for both."""
    return [value if isfinite(value) else None for value in values.tolist()]


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

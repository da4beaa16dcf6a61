"""Draw a pair loss beside its mean-field child: ties between samples, ties to fields.

    python docs/drawings/pair_and_field.py      # writes docs/images/pair_and_field.svg

Two classes of four samples. Left every sample is tied to every other, 28 ties; right every sample
is tied to one field a class, 16 ties. The picture is written as SVG text: it needs no library, and
the same program writes the same bytes.
"""

import argparse
import math
from itertools import combinations
from pathlib import Path

WIDTH, HEIGHT, PANEL = 860, 370, 430
COLOURS = ("#1f5a96", "#c2571a")
INK, GREY = "#22303f", "#8a94a0"
CENTRES = ((110.0, 200.0), (320.0, 200.0))
SPREAD = ((-70.0, -38.0), (18.0, -78.0), (-46.0, 66.0), (50.0, 72.0))
Point = tuple[float, float]


def line(start: Point, end: Point, colour: str, *, attracts: bool) -> str:
    """Return one tie: solid where it attracts, dashed where it repels."""
    style = 'stroke-width="2"' if attracts else 'stroke-width="1.1" stroke-dasharray="4 4"'
    ends = f'x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}"'
    return f'<line {ends} stroke="{colour}" {style}/>'


def sample(point: Point, colour: str) -> str:
    """Return the dot of a sample."""
    return f'<circle cx="{point[0]:g}" cy="{point[1]:g}" r="9" fill="{colour}"/>'


def field(point: Point, colour: str, name: str) -> str:
    """Return the star of a field, with its name in it."""
    corners = []
    for corner in range(16):
        radius, angle = (24 if corner % 2 else 19), math.pi * corner / 8
        x, y = point[0] + radius * math.cos(angle), point[1] + radius * math.sin(angle)
        corners.append(f"{x:.1f},{y:.1f}")
    shape = (
        f'<polygon points="{" ".join(corners)}" fill="#fff" stroke="{colour}" stroke-width="3"/>'
    )
    return shape + text((point[0], point[1] + 6), name, size=17, colour=colour)


def text(point: Point, words: str, size: int = 16, colour: str = INK, weight: str = "600") -> str:
    """Return words around a point."""
    place = f'x="{point[0]:g}" y="{point[1]:g}" text-anchor="middle" font-size="{size}"'
    return f'<text {place} font-weight="{weight}" fill="{colour}">{words}</text>'


def panel(left: float, *, with_fields: bool) -> list[str]:
    """Return one half of the picture: ties first, so that samples lie on them."""
    centres = [(left + x, y) for x, y in CENTRES]
    samples = [
        ((x + dx * (1 if side == 0 else -1), y + dy), side)
        for side, (x, y) in enumerate(centres)
        for dx, dy in SPREAD
    ]
    if with_fields:
        ties = [
            (point, centre, side, side == other)
            for point, side in samples
            for other, centre in enumerate(centres)
        ]
    else:
        ties = [
            (point, end, side, side == other)
            for (point, side), (end, other) in combinations(samples, 2)
        ]
    shapes = [
        line(start, end, COLOURS[side] if attracts else GREY, attracts=attracts)
        for start, end, side, attracts in sorted(ties, key=lambda tie: tie[3])
    ]
    shapes += [sample(point, COLOURS[side]) for point, side in samples]
    if with_fields:
        names = ("M", "M\u2032")
        shapes += [field(centres[side], COLOURS[side], names[side]) for side in (0, 1)]
    title, count = (
        ("mean field", "samples \u00d7 classes") if with_fields else ("pairs", "samples\u00b2")
    )
    shapes.append(text((left + PANEL / 2, 42), title, size=22))
    shapes.append(
        text((left + PANEL / 2, 68), f"{len(ties)} ties, of order {count}", 15, INK, "400")
    )
    return shapes


def picture() -> str:
    """Return the whole picture."""
    legend = [
        line((270, 338), (320, 338), INK, attracts=True),
        text((357, 343), "attracts", 15, INK, "400"),
        line((460, 338), (510, 338), GREY, attracts=False),
        text((540, 343), "repels", 15, INK, "400"),
    ]
    divider = f'<line x1="{PANEL}" y1="30" x2="{PANEL}" y2="305" stroke="#d5dae0"/>'
    shapes = [*panel(0, with_fields=False), divider, *panel(PANEL, with_fields=True), *legend]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
    head += 'font-family="system-ui, Segoe UI, DejaVu Sans, sans-serif">'
    ground = f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#fff"/>'
    title = "<title>A pair loss and its mean-field child</title>"
    return "\n".join([head, title, ground, *shapes, "</svg>", ""])


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    images = Path(__file__).resolve().parent.parent / "images"
    parser.add_argument("--out", type=Path, default=images / "pair_and_field.svg")
    arguments = parser.parse_args()
    arguments.out.write_text(picture())
    print(f"look at {arguments.out.name}")


if __name__ == "__main__":
    main()

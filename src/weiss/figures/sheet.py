"""A picture of a data set: a few classes, a few images of each."""

from pathlib import Path

import numpy as np

from weiss._base import checks, draws, images
from weiss._base.arrays import Array
from weiss.data.sources import Pixels
from weiss.data.table import Table
from weiss.figures import contact_sheet


def draw_sheet(
    table: Table, path: Path, *, num_classes: int = 8, each: int = 10, seed: int = 0
) -> None:
    """Draw some images of some classes, a row a class, and write a PNG.

    What cannot be read is a grey square.

    Args:
        table: what to draw.
        path: the file to write.
        num_classes: how many classes, or all if there are fewer.
        each: how many images of each, or all it has.
        seed: which classes; of a class the first images are shown.
    """
    checks.count("num_classes", num_classes, "a sheet")
    checks.count("each", each, "a sheet")
    if not len(table):
        raise ValueError(f"{table.name} must have images in the part to show; it has none there.")
    present = table.classes()
    chosen = np.sort(present[draws.permutation(len(present), seed, draws.SHEET)[:num_classes]])
    side = 128 if not isinstance(table.source, Pixels) else None
    rows = []
    for c in chosen:
        of_class = table.labels[:, c] if table.is_multi_label else table.labels == c
        items = np.flatnonzero(of_class)[:each]
        rows.append((table.class_names[c], _shown(table, items, side)))
    contact_sheet(rows, path)


def _shown(table: Table, items: Array, side: int | None) -> list[Array]:
    """Return the images to draw; a grey square for one that cannot be read."""
    shown = []
    for item in items:
        try:
            shown.append(images.reduced(table.source.read(int(item)), side))
        except images.BadImageError:
            shown.append(np.full((8, 8, 1), 128, dtype=np.uint8))
    return shown

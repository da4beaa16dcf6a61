"""Beyond mean field: what the spread of classes costs, and whether correcting for it helps.

A mean-field loss puts a class's field for all of its samples. `fluctuations="second"` adds the next
order, without forming pairs (docs/fluctuations.md). Here it is held against the pair loss twice:

- on drawn classes, by their spread, their size and the dimensions: which share of what the spread
  costs does each of them miss?
- on a part of the glyphs: a narrow network trained with the pair loss, its mean-field child, and
  the child corrected from the start or from half-way on, on the same batches; the same share for
  its embeddings, and retrieval among characters it has never seen.

    python examples/fluctuations.py --out docs/images --rows results/examples/fluctuations.csv
"""

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from few_glyphs import (
    BATCH_SIZE,
    CWMS,
    EMBEDDING_SIZE,
    Glyphs,
    Row,
    batches_of,
    embed,
    markdown,
    new_network,
    options_from,
    options_of,
    scores,
    seed_by_seed,
    some_glyphs,
    tell,
    train,
)
from torch import Tensor, nn

from weiss import make_loss
from weiss.comparing.breakdown import draw_classes, pair_value, spread_of
from weiss.figures import corrections
from weiss.theory.distances import unit

SETTINGS = {"contrastive": {"pos_margin": 0.02, "neg_margin": 0.3}, "cwms": CWMS}
TITLES = {"contrastive": "Contrastive", "cwms": "CWMS"}
FLUCTUATIONS = {"mean_field": "none", "corrected": "second"}
TRAINED = {
    "pairs": ("", math.inf),
    "mean field": ("mf_", math.inf),
    "corrected": ("mf_", 0.0),
    "corrected late": ("mf_", 0.5),
}
"""What networks train with: the loss, and after which part of the epochs it is corrected."""
SPREADS = (0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
TOLD_SPREADS = (0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Those in the table; the picture has all."""
CLASS_SIZES = (2, 3, 4, 8, 16, 64)
DIMENSIONS = (2, 4, 8, 16, 32)
WIDTHS = (0.1, 0.2)
"""Spreads of the classes that are drawn in each of these dimensions."""
PER_CLASS = 4
"""Images of a character in a batch."""
LABELS = {
    ("contrastive", "mean_field"): "MFCont (0.02, 0.3)",
    ("contrastive", "corrected"): "corrected",
    ("cwms", "mean_field"): "MFCWMS (2, 20, 0.3)",
    ("cwms", "corrected"): "corrected",
}
SCORED = {"contrastive": "Contrastive (0.02, 0.3)", "cwms": "CWMS (2, 20, 0.3)"}
EMBEDDED = {
    ("contrastive", "pairs"): "contrastive, pairs",
    ("contrastive", "mean field"): "MFCont",
    ("cwms", "pairs"): "CWMS, pairs",
    ("cwms", "mean field"): "MFCWMS",
}
"""Of which networks the missed shares are told."""


def rises(family: str, samples: Tensor, labels: Tensor) -> dict[str, float]:
    """Return by how much the pair loss and each mean-field loss exceed those of the class means.

    The fields are these means.
    """
    num_classes = int(labels.max()) + 1
    means = torch.zeros(num_classes, samples.shape[1], dtype=samples.dtype)
    fields = unit(means.index_add(0, labels, samples))
    pair = make_loss(family, num_classes, samples.shape[1], **SETTINGS[family])
    found = {"pairs": pair_value(pair, samples, labels) - pair_value(pair, fields[labels], labels)}
    for name, fluctuations in FLUCTUATIONS.items():
        options = SETTINGS[family] | {"fluctuations": fluctuations, "impl": "reference"}
        child = make_loss(f"mf_{family}", num_classes, samples.shape[1], **options).double()
        with torch.no_grad():
            child.fields.copy_(fields)
            found[name] = float(child(samples, labels) - child(fields[labels], labels))
    return found


def missed(
    family: str, embeddings: Tensor, labels: Tensor, inside: bool = False
) -> dict[str, float]:
    """Return the share of what the spread costs that each mean-field loss misses, in per cent.

    ``100 (rise of the pair loss - rise of the child) / rise of the pair loss``, with `rises`; of
    the attraction ``inside`` the classes alone, where each class is a batch of its own.
    """
    samples = unit(embeddings.double())
    parts = [samples[labels == c] for c in labels.unique()] if inside else [samples]
    total = dict.fromkeys(("pairs", *FLUCTUATIONS), 0.0)
    for part in parts:
        own_labels = labels.new_zeros(len(part)) if inside else labels
        for name, rise in rises(family, part, own_labels).items():
            total[name] += rise
    return {name: 100 * (1 - total[name] / total["pairs"]) for name in FLUCTUATIONS}


def switched_on(loss: nn.Module, after: float) -> Callable[[int], None]:
    """Return what corrects a loss once ``after`` epochs are done."""

    def switch(epoch: int) -> None:
        if epoch >= after:
            loss.fluctuations = "second"

    return switch


def measure_drawn(
    part: str, spread: float, num_classes: int, per_class: int, size: int
) -> list[dict[str, Any]]:
    """Return a row a family for classes drawn with seed 0, and print them."""
    rows = []
    for family, title in TITLES.items():
        shares = missed(family, *draw_classes(spread, num_classes, per_class, size, seed=0))
        row: dict[str, Any] = {"part": part, "loss": family, "spread": spread}
        row |= {"dimensions": size, "classes": num_classes, "samples": per_class}
        rows.append(row | {f"missed_{name}": share for name, share in shares.items()})
        place = {
            "spread": f"spread {spread:4.2f}",
            "samples": f"samples {per_class:3}",
            "dimensions": f"dimensions {size:3}, spread {spread:4.2f}",
        }[part]
        without, corrected = shares.values()
        print(
            f"  {title:11} {place}: mean field {without:6.2f} %, corrected {corrected:6.2f} %",
            flush=True,
        )
    return rows


def on_drawn_classes(quick: bool) -> list[dict[str, Any]]:
    """Return what is missed by spread, by the size of classes and by dimensions."""
    rows = []
    print("Drawn classes (32 of 16 samples, 128 dimensions): missed share of the spread's cost")
    for spread in SPREADS[::4] if quick else SPREADS:
        rows += measure_drawn("spread", spread, 32, 16, 128)
    print("Drawn classes (16 of spread 0.2, 16 dimensions): the same by the size of classes")
    for per_class in CLASS_SIZES:
        rows += measure_drawn("samples", 0.2, 16, per_class, 16)
    print("Drawn classes (as many as dimensions, of 16 samples): the same by dimensions")
    for width in WIDTHS:
        for size in DIMENSIONS:
            rows += measure_drawn("dimensions", width, size, 16, size)
    return rows


def on_glyphs(
    family: str, way: str, seed: int, known: Glyphs, unseen: Glyphs, epochs: int
) -> dict[str, Any]:
    """Train a network one way, print how it does and return a row."""
    prefix, corrected_from = TRAINED[way]
    network = new_network(seed)
    size = (int(known.characters.max()) + 1, EMBEDDING_SIZE)
    loss = make_loss(prefix + family, *size, **SETTINGS[family])
    switch = switched_on(loss, corrected_from * epochs)
    switch(0)
    batches = batches_of(known, seed, per_class=PER_CLASS)
    train(network, loss, known.images, known.characters, batches, epochs, after_epoch=switch)
    map_at_r, p_at_1 = scores(embed(network, unseen.images), unseen.characters)
    embeddings = embed(network, known.images)
    spread = spread_of(embeddings, known.characters)
    shares = missed(family, embeddings, known.characters)
    inside = missed(family, embeddings, known.characters, inside=True)
    told = "  ".join(f"{share:7.1f} %" for share in (*shares.values(), *inside.values()))
    label = f"{TITLES[family]}, {way}"
    print(f"{label:28} {seed:4}  {map_at_r:5.1f}  {p_at_1:5.1f}  {spread:6.3f}  {told}", flush=True)
    row: dict[str, Any] = {"part": "glyphs", "loss": family, "trained_with": way, "seed": seed}
    row |= {"dimensions": EMBEDDING_SIZE, "classes": size[0], "spread": spread}
    row |= {"map_at_r": map_at_r, "precision_at_1": p_at_1}
    row |= {f"missed_{name}": share for name, share in shares.items()}
    return row | {f"inside_{name}": share for name, share in inside.items()}


def percent(value: float, digits: int) -> str:
    """Return a number without the sign of a rounded zero."""
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def drawn_table(rows: Sequence[Row], by: str, shown: Sequence[float]) -> list[str]:
    """Return a table of the classes drawn for a column, one column for each of ``shown``."""
    there = [row for row in rows if row["part"] == by and float(row[by]) in shown]
    heads = sorted({float(row[by]) for row in there})
    spreads = sorted({float(row["spread"]) for row in there}) if by == "dimensions" else [None]
    lines = []
    for spread in spreads:
        for (family, name), label in LABELS.items():
            found = {
                float(row[by]): float(row[f"missed_{name}"])
                for row in there
                if row["loss"] == family and spread in (None, float(row["spread"]))
            }
            digits = 1 if by == "dimensions" or (by, name) == ("spread", "mean_field") else 2
            told = label if spread is None else f"{label}, spread {spread:g}"
            lines.append([told, *(f"{percent(found[head], digits)} %" for head in heads)])
    return markdown([by, *(f"{head:g}" for head in heads)], lines)


def trained_with(rows: Sequence[Row], family: str, way: str) -> list[Row]:
    """Return the rows of networks, seed by seed."""
    return [row for row in rows if (row["loss"], row.get("trained_with")) == (family, way)]


def score_table(rows: Sequence[Row]) -> list[str]:
    """Return a table: MAP@R of networks, seed by seed."""
    lines = []
    for family, label in SCORED.items():
        own = [trained_with(rows, family, way) for way in TRAINED]
        lines.append([label, *(seed_by_seed(each, "map_at_r", "{:.1f}".format) for each in own)])
    return markdown(["loss", *TRAINED], lines)


def missed_table(rows: Sequence[Row]) -> list[str]:
    """Return a table: what is missed on embeddings, seed by seed."""
    columns = {
        "mean field misses": ("missed_mean_field", 0),
        "corrected misses": ("missed_corrected", 0),
        "mean field, inside": ("inside_mean_field", 0),
        "corrected, inside": ("inside_corrected", 1),
    }
    lines = []
    for key, label in EMBEDDED.items():
        own = trained_with(rows, *key)
        cells = [
            seed_by_seed(own, column, partial(percent, digits=digits))
            for column, digits in columns.values()
        ]
        lines.append([label, *(f"{cell} %" for cell in cells)])
    return markdown(["embeddings of networks trained with", *columns], lines)


def tables(rows: Sequence[Row]) -> list[list[str]]:
    """Return the tables of docs/fluctuations.md, in its order."""
    return [
        drawn_table(rows, "spread", TOLD_SPREADS),
        drawn_table(rows, "samples", CLASS_SIZES),
        drawn_table(rows, "dimensions", DIMENSIONS),
        score_table(rows),
        missed_table(rows),
    ]


def draw(rows: Sequence[Row], picture: Path) -> None:
    """Draw missed shares over the spread, and scores."""
    drawn: dict[str, dict[str, list[tuple[float, float]]]] = {}
    trained: dict[str, dict[str, list[tuple[float, float]]]] = {}
    results: dict[str, dict[str, list[float]]] = {}
    for family, title in TITLES.items():
        lines = [row for row in rows if (row["part"], row["loss"]) == ("spread", family)]
        marks = trained_with(rows, family, "mean field")
        for points, there in ((drawn, lines), (trained, marks)):
            points[title] = {
                name.replace("_", " "): [(row["spread"], row[f"missed_{name}"]) for row in there]
                for name in FLUCTUATIONS
            }
        results[title] = {
            way: [row["map_at_r"] for row in trained_with(rows, family, way)] for way in TRAINED
        }
    corrections(
        drawn,
        trained,
        results,
        picture,
        score_label="MAP@R of unseen characters (%)",
        title="What the spread of classes costs: missed by mean field, and corrected",
    )


def read_options() -> argparse.Namespace:
    """Return the options, those that make no sense refused in words."""
    parser = options_of(__doc__ or "", characters=120, epochs=8)
    arguments = options_from(parser, characters=16, epochs=1, seeds=[0])
    together = BATCH_SIZE // PER_CLASS
    if arguments.characters < together:
        parser.error(
            f"argument --characters: a batch has {together} of them; got {arguments.characters}"
        )
    return arguments


def main() -> None:
    """Compare on drawn classes and on glyphs, print the tables and draw the figure."""
    arguments = read_options()
    known = some_glyphs("train", arguments.characters)
    unseen = some_glyphs("test", arguments.characters)
    rows = on_drawn_classes(arguments.quick)
    print(
        f"\nGlyphs: {arguments.characters} characters train ({len(known.images)} images, 16 x 4 "
        f"in a batch, {arguments.epochs} epochs), {arguments.characters} others test"
    )
    print(
        f"{'trained with':28} seed  MAP@R    P@1  spread  missed: mean field, corrected"
        "; inside classes: the same"
    )
    for family in TITLES:
        for way in TRAINED:
            for seed in arguments.seeds:
                rows.append(on_glyphs(family, way, seed, known, unseen, arguments.epochs))
    tell(arguments, rows, tables(rows))
    picture = arguments.out / "fluctuations.png"
    draw(rows, picture)
    print(f"look at {picture}")


if __name__ == "__main__":
    main()

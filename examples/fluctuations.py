"""Beyond mean field: what the spread of classes costs, and whether correcting for it helps.

A mean-field loss puts a class's field for all of its samples. `fluctuations="second"` adds the next
order, without forming pairs (docs/fluctuations.md). Here it is held against the pair loss twice:

- on drawn classes of a given spread: which share of what the spread costs does each of them miss?
- on a part of the glyphs: a narrow network trained with the pair loss, its mean-field child, and
  the child corrected from the start or from half-way on, on the same batches; the same share for
  its embeddings, and retrieval among characters it has never seen.

    python examples/fluctuations.py --out docs/images
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from few_glyphs import (
    EMBEDDING_SIZE,
    batches_of,
    embed,
    new_network,
    scores,
    some_glyphs,
    train,
)
from torch import Tensor, nn

from weiss import make_loss
from weiss.distances import unit
from weiss.plots.spreads import corrections
from weiss.protocols.breakdown import draw_classes, pair_value, spread_of

SETTINGS = {
    "contrastive": {"pos_margin": 0.02, "neg_margin": 0.3},
    "cwms": {"alpha": 2.0, "beta": 20.0, "delta": 0.3},
}
TITLES = {"contrastive": "Contrastive", "cwms": "CWMS"}
FLUCTUATIONS = {"mean field": "none", "corrected": "second"}
TRAINED = {
    "pairs": ("", math.inf),
    "mean field": ("mf_", math.inf),
    "corrected": ("mf_", 0.0),
    "corrected late": ("mf_", 0.5),
}
"""What networks train with: the loss, and after which part of the epochs it is corrected."""
SPREADS = (0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)


def missed(family: str, embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the share of what the spread costs that each mean-field loss misses, in per cent.

    ``100 (rise of the pair loss - rise of the child) / rise of the pair loss``, where a rise is the
    loss of the embeddings less that of their class means, and the fields are these means.
    """
    samples = unit(embeddings.double())
    num_classes = int(labels.max()) + 1
    means = torch.zeros(num_classes, samples.shape[1], dtype=samples.dtype)
    fields = unit(means.index_add(0, labels, samples))
    pair = make_loss(family, num_classes, samples.shape[1], **SETTINGS[family])
    rise = pair_value(pair, samples, labels) - pair_value(pair, fields[labels], labels)
    shares = {}
    for name, fluctuations in FLUCTUATIONS.items():
        options = SETTINGS[family] | {"fluctuations": fluctuations, "impl": "reference"}
        child = make_loss(f"mf_{family}", num_classes, samples.shape[1], **options).double()
        with torch.no_grad():
            child.fields.copy_(fields)
            own = float(child(samples, labels) - child(fields[labels], labels))
        shares[name] = 100 * (rise - own) / rise
    return shares


def switched_on(loss: nn.Module, after: float) -> Callable[[int], None]:
    """Return what corrects a loss once ``after`` epochs are done."""

    def switch(epoch: int) -> None:
        if epoch >= after:
            loss.fluctuations = "second"

    return switch


def main() -> None:
    """Compare on drawn classes and on glyphs, print both tables and draw the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the picture")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--characters", type=int, default=120)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="few of everything: does it run?")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.characters, arguments.epochs, arguments.seeds = 16, 1, arguments.seeds[:1]

    spreads = SPREADS[::4] if arguments.quick else SPREADS
    drawn: dict[str, dict[str, list[tuple[float, float]]]] = {}
    print("Drawn classes (32 of 16 samples, 128 dimensions): missed share of the spread's cost")
    for family, title in TITLES.items():
        lines = drawn[title] = {name: [] for name in FLUCTUATIONS}
        for spread in spreads:
            shares = missed(family, *draw_classes(spread, 32, 16, 128, seed=0))
            for name, share in shares.items():
                lines[name].append((spread, share))
            told = ", ".join(f"{name} {share:6.1f} %" for name, share in shares.items())
            print(f"  {title:11} spread {spread:4.2f}: {told}")

    known = some_glyphs("train", arguments.characters)
    unseen = some_glyphs("test", arguments.characters)
    print(
        f"\nGlyphs: {arguments.characters} characters train ({len(known.images)} images, 16 x 4 "
        f"in a batch, {arguments.epochs} epochs), {arguments.characters} others test"
    )
    print(f"{'trained with':28} seed  MAP@R    P@1  spread  missed: mean field, corrected")
    trained: dict[str, dict[str, list[tuple[float, float]]]] = {}
    results: dict[str, dict[str, list[float]]] = {}
    for family, title in TITLES.items():
        found = results[title] = {row: [] for row in TRAINED}
        marks = trained[title] = {name: [] for name in FLUCTUATIONS}
        for row, (prefix, corrected_from) in TRAINED.items():
            for seed in arguments.seeds:
                network = new_network(seed)
                size = (arguments.characters, EMBEDDING_SIZE)
                loss = make_loss(prefix + family, *size, **SETTINGS[family])
                switch = switched_on(loss, corrected_from * arguments.epochs)
                switch(0)
                batches = batches_of(known, seed, per_class=4)
                data = (known.images, known.characters, batches, arguments.epochs)
                train(network, loss, *data, after_epoch=switch)
                map_at_r, p_at_1 = scores(embed(network, unseen.images), unseen.characters)
                found[row].append(map_at_r)
                embeddings = embed(network, known.images)
                spread = spread_of(embeddings, known.characters)
                shares = missed(family, embeddings, known.characters)
                if row == "mean field":
                    for each, share in shares.items():
                        marks[each].append((spread, share))
                told = "  ".join(f"{share:7.1f} %" for share in shares.values())
                label = f"{title}, {row}"
                print(
                    f"{label:28} {seed:4}  {map_at_r:5.1f}  {p_at_1:5.1f}  {spread:6.3f}  {told}",
                    flush=True,
                )
    picture = arguments.out / "fluctuations.png"
    corrections(
        drawn,
        trained,
        results,
        picture,
        score_label="MAP@R of unseen characters (%)",
        title="What the spread of classes costs: missed by mean field, and corrected",
    )
    print(f"look at {picture}")


if __name__ == "__main__":
    main()

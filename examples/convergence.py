"""Do the fields settle in the middle of their classes? Self-consistency along training.

Theory asks that each field agree with the mean of its class; training only descends a loss. After
every epoch this script embeds the training characters and measures the distance of each field from
the mean embedding of its class, the *residual*, for three ways to train with MFCWMS:

- fields that learn fast (the recipe's rate): they follow their classes;
- fields that learn at an eighth of the network's rate: classes must come to them, and stop short;
- a repulsion that reaches too far (delta 1.2): pushed from all sides, a field leaves the middle.

The picture shows the first seed, the table at the end all of them.

    python examples/convergence.py --seeds 0 1 2 --out docs/images
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from few_glyphs import (
    CWMS,
    EMBEDDING_SIZE,
    FIELD_LR,
    LR,
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

from weiss import make_loss
from weiss.figures import residuals
from weiss.losses.self_consistency import QUANTILES, ClassMeans, order_parameters

WAYS: dict[str, tuple[float, dict[str, float]]] = {
    "fast fields": (FIELD_LR, {}),
    "slow fields": (LR / 8, {}),
    "long reach": (FIELD_LR, {"delta": 1.2}),
}
RESIDUALS = [f"residual_{100 * share:.0f}" for share in QUANTILES]
"""What the quantiles over classes are called in a row, from few per cent to many."""


def follow(way: str, seed: int, known: Glyphs, unseen: Glyphs, epochs: int) -> list[dict[str, Any]]:
    """Train one way and return a row an epoch, the first before any training."""
    field_lr, changed = WAYS[way]
    network = new_network(seed)
    size = (int(known.characters.max()) + 1, EMBEDDING_SIZE)
    loss = make_loss("mf_cwms", *size, **(CWMS | changed))
    rows: list[dict[str, Any]] = []

    def measure(epoch: int) -> None:
        embeddings = embed(network, known.images)
        means = ClassMeans(*size, embeddings.device)
        means.add(embeddings, known.characters)
        order = order_parameters(means, loss)
        found = scores(embed(network, unseen.images), unseen.characters)[0]
        row: dict[str, Any] = {"way": way, "seed": seed, "epoch": epoch}
        row |= dict(zip(RESIDUALS, order["residual"], strict=True))
        row |= {"class_mean_length": order["class_mean_length"][2], "map_at_r": found}
        rows.append(row)
        low, _, median, _, high = order["residual"]
        told = f"{low:8.4f}  {median:8.4f}  {high:8.4f}   {row['class_mean_length']:17.3f}"
        print(f"{way:12} {seed:4} {epoch:5}       {told}   {found:5.1f}", flush=True)

    measure(0)
    train(
        network,
        loss,
        known.images,
        known.characters,
        batches_of(known, seed),
        epochs,
        field_lr=field_lr,
        after_epoch=measure,
    )
    return rows


def tables(rows: Sequence[Row]) -> list[list[str]]:
    """Return the table of docs/convergence.md: median residuals on the way, MAP@R at the end."""
    last = max(int(row["epoch"]) for row in rows)
    shown = sorted({0, 1, max(1, last // 3), max(1, 2 * last // 3), last})
    lines = []
    for way in WAYS:
        cells = [way]
        for epoch in shown:
            there = [row for row in rows if row["way"] == way and int(row["epoch"]) == epoch]
            cells.append(
                seed_by_seed(there, "residual_50", lambda x: f"{x:.2f}" if x >= 0.1 else f"{x:.3f}")
            )
        lines.append([*cells, seed_by_seed(there, "map_at_r", "{:.1f}".format)])
    return [markdown(["residual after epoch", *map(str, shown), "MAP@R"], lines)]


def draw(rows: Sequence[Row], picture: Path) -> None:
    """Draw the residuals and scores of one seed."""
    runs = {
        way: [
            (row["epoch"], [row[name] for name in RESIDUALS]) for row in rows if row["way"] == way
        ]
        for way in WAYS
    }
    retrieval = {
        way: [(row["epoch"], row["map_at_r"]) for row in rows if row["way"] == way] for way in WAYS
    }
    residuals(
        runs,
        retrieval,
        picture,
        score_label="MAP@R of unseen characters (%)",
        title="Self-consistency along training: do fields stand where their classes are?",
    )


def main() -> None:
    """Train three ways, print the residuals and draw them."""
    parser = options_of(__doc__ or "", characters=120, epochs=12)
    arguments = options_from(parser, characters=12, epochs=2, seeds=[0])
    known = some_glyphs("train", arguments.characters)
    unseen = some_glyphs("test", arguments.characters)
    print(f"{'way':12} seed epoch  residual: 5 %    median      95 %   class mean length   MAP@R")
    rows = [
        row
        for seed in arguments.seeds
        for way in WAYS
        for row in follow(way, seed, known, unseen, arguments.epochs)
    ]
    print("\nMedian residual, MAP@R in per cent; seeds", *arguments.seeds)
    tell(arguments, rows, tables(rows))
    picture = arguments.out / "convergence.png"
    draw([row for row in rows if row["seed"] == arguments.seeds[0]], picture)
    print(f"look at {picture}")


if __name__ == "__main__":
    main()

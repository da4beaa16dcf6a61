"""Do the fields settle in the middle of their classes? Self-consistency along training.

Theory asks that each field agree with the mean of its class; training only descends a loss. After
every epoch this script embeds the training characters and measures the distance of each field from
the mean embedding of its class, the *residual*, for three ways to train with MFCWMS:

- fields that learn fast (the recipe's rate): they follow their classes;
- fields that learn at an eighth of the network's rate: classes must come to them, and stop short;
- a repulsion that reaches too far (delta 1.2): pushed from all sides, a field leaves the middle.

    python examples/convergence.py --out docs/images
"""

import argparse
from pathlib import Path

from few_glyphs import (
    EMBEDDING_SIZE,
    FIELD_LR,
    LR,
    batches_of,
    embed,
    new_network,
    scores,
    some_glyphs,
    train,
)

from weiss import make_loss
from weiss.plots.spreads import residuals
from weiss.self_consistency import ClassMeans, order_parameters

SETTINGS = {"alpha": 2.0, "beta": 20.0, "delta": 0.3}
WAYS = {
    "fast fields": (FIELD_LR, {}),
    "slow fields": (LR / 8, {}),
    "long reach": (FIELD_LR, {"delta": 1.2}),
}


def main() -> None:
    """Train three ways, print the residuals and draw them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the picture")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--characters", type=int, default=120)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--quick", action="store_true", help="few of everything: does it run?")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.characters, arguments.epochs = 12, 2

    known = some_glyphs("train", arguments.characters)
    unseen = some_glyphs("test", arguments.characters)
    print(f"{'way':12} epoch  residual: 5 %    median      95 %   class mean length   MAP@R")
    runs, retrieval = {}, {}
    for name, (field_lr, changed) in WAYS.items():
        network = new_network(arguments.seed)
        size = (arguments.characters, EMBEDDING_SIZE)
        loss = make_loss("mf_cwms", *size, **(SETTINGS | changed))
        moments, points = [], []

        def measure(epoch, network=network, loss=loss, name=name, moments=moments, points=points):
            embeddings = embed(network, known.images)
            means = ClassMeans(arguments.characters, EMBEDDING_SIZE, embeddings.device)
            means.add(embeddings, known.characters)
            order = order_parameters(means, loss)
            found = scores(embed(network, unseen.images), unseen.characters)[0]
            moments.append((epoch, order["residual"]))
            points.append((epoch, found))
            low, _, median, _, high = order["residual"]
            length = order["class_mean_length"][2]
            told = f"{low:8.4f}  {median:8.4f}  {high:8.4f}"
            print(f"{name:12} {epoch:5}       {told}   {length:17.3f}   {found:5.1f}", flush=True)

        measure(0)
        batches = batches_of(known, arguments.seed)
        train(
            network,
            loss,
            known.images,
            known.characters,
            batches,
            arguments.epochs,
            field_lr=field_lr,
            after_epoch=measure,
        )
        runs[name], retrieval[name] = moments, points
    picture = arguments.out / "convergence.png"
    residuals(
        runs,
        retrieval,
        picture,
        score_label="MAP@R of unseen characters (%)",
        title="Self-consistency along training: do fields stand where their classes are?",
    )
    print(f"look at {picture}")


if __name__ == "__main__":
    main()

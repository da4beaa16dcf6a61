"""Watch samples and mean fields settle: two losses, a small network, embeddings on a circle.

A network of two layers maps noisy 8-dimensional samples of six classes to two dimensions. Both
mean-field losses pull the samples of a class to its field and push them from the others' until six
groups stand around the circle, each with its field in the middle: the magnet ordering.

On a circle there is no way around: classes must pass through each other, and fields may merge for
good. The soft constraint keeps them apart. Try `--reg-weight 0` with `--seed 2`.

    python examples/settling.py --out demo
"""

import argparse
import csv
from pathlib import Path

import torch
from torch import Tensor, nn

from weiss import (
    MeanFieldClassWiseMultiSimilarityLoss,
    MeanFieldContrastiveLoss,
    figures,
    parameter_groups,
)

NUM_CLASSES, PER_CLASS, INPUT_SIZE = 6, 20, 8
SEEDS, WEIGHTS = range(10), (0.0, 10.0)
LOSSES = {
    "MFCont": MeanFieldContrastiveLoss,
    "MFCWMS": MeanFieldClassWiseMultiSimilarityLoss,
}


def noisy_classes(seed: int) -> tuple[Tensor, Tensor]:
    """Return ``(N, INPUT_SIZE)`` samples scattered around one centre a class, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(NUM_CLASSES).repeat_interleave(PER_CLASS)
    centres = torch.randn(NUM_CLASSES, INPUT_SIZE, generator=generator)
    noise = torch.randn(len(labels), INPUT_SIZE, generator=generator)
    return centres[labels] + 0.35 * noise, labels


def settle(
    loss: nn.Module, inputs: Tensor, labels: Tensor, moments: list[int]
) -> list[tuple[int, Tensor, Tensor]]:
    """Train and return ``(step, embeddings, fields)`` at each of the moments."""
    network = nn.Sequential(nn.Linear(INPUT_SIZE, 64), nn.Tanh(), nn.Linear(64, 2))
    # Two layers trained from nothing in 300 steps want a large rate; 2000 times it would be a leap.
    optimizer = torch.optim.AdamW(parameter_groups(network, loss, lr=5e-3, class_lr=5e-2))
    seen = []
    for step in range(moments[-1] + 1):
        embeddings = network(inputs)
        if step in moments:
            seen.append((step, embeddings.detach(), loss.fields.detach().clone()))
        optimizer.zero_grad()
        loss(embeddings, labels).backward()
        optimizer.step()
    return seen


def nearest_field_share(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose nearest field is that of their own class."""
    return (loss.get_logits(embeddings).argmax(dim=1) == labels).float().mean().item()


def settled(
    name: str, seed: int, reg_weight: float, moments: list[int]
) -> tuple[list[tuple[int, Tensor, Tensor]], Tensor, float]:
    """Return what `settle` saw of a loss, the classes, and the share nearest to their own field."""
    inputs, labels = noisy_classes(seed)
    torch.manual_seed(seed)
    loss = LOSSES[name](NUM_CLASSES, 2, reg_weight=reg_weight, reg_scale="released")
    seen = settle(loss, inputs, labels, moments)
    return seen, labels, nearest_field_share(loss, seen[-1][1], labels)


def write_rows(path: Path, steps: int) -> None:
    """Write the share of each loss for ten seeds, without the constraint and with it."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["loss", "reg_weight", "seed", "nearest_field_share"])
        for name in LOSSES:
            for weight in WEIGHTS:
                for seed in SEEDS:
                    share = settled(name, seed, weight, [steps])[2]
                    writer.writerow([name, f"{weight:g}", seed, f"{share:.4f}"])
    print(f"kept in {path}")


def main() -> None:
    """Train with both losses, say how they ended, and draw the way there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the picture")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument(
        "--reg-weight", type=float, default=10.0, help="lambda, the soft constraint on the fields"
    )
    parser.add_argument(
        "--rows", type=Path, help="a CSV file for the shares of ten seeds, with and without lambda"
    )
    arguments = parser.parse_args()
    if arguments.steps < 4:
        parser.error(f"--steps must be at least 4; got {arguments.steps}.")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out must be a folder that can be written to; {error}.")
    if arguments.rows and (arguments.rows.is_dir() or not arguments.rows.parent.is_dir()):
        parser.error(f"--rows must be a file in an existing folder; got {arguments.rows}.")

    moments = sorted({0, arguments.steps // 30, arguments.steps // 6, arguments.steps})
    runs = {}
    for name in LOSSES:
        runs[name], labels, share = settled(name, arguments.seed, arguments.reg_weight, moments)
        print(f"{name}: {share:.0%} of {len(labels)} samples are nearest to their own field")
    picture = arguments.out / "settling.png"
    figures.settling(runs, labels, picture)
    print(f"look at {picture}")
    if arguments.rows:
        write_rows(arguments.rows, arguments.steps)


if __name__ == "__main__":
    main()

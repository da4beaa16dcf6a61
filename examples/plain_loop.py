"""A training loop in plain PyTorch: nothing of Weiss but the loss, its rates and the measure.

    python examples/plain_loop.py

Glyphs, characters in many fonts: half of the characters train, the others look for their own kind.
"""

import argparse

import torch
from torch import Tensor, nn

from weiss import MeanFieldClassWiseMultiSimilarityLoss, parameter_groups, retrieval_metrics
from weiss.data import Table, glyphs


def pixels_and_labels(table: Table, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return ``(N, 1, 32, 32)`` pixels from 0 to 1 of the first classes, and labels from 0 on."""
    classes, labels = torch.unique(torch.from_numpy(table.labels), return_inverse=True)
    rows = (labels < min(num_classes, len(classes))).nonzero().flatten()
    images = [torch.from_numpy(table.source.read(row)).float() / 255 for row in rows.tolist()]
    return torch.stack(images).reshape(len(rows), 1, 32, 32), labels[rows]


def small_network(embedding_size: int) -> nn.Module:
    """Return three convolutions and a linear layer."""
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, embedding_size))


@torch.no_grad()
def precision(network: nn.Module, pixels: Tensor, labels: Tensor) -> float:
    """Return how often the nearest other image is of the same class."""
    network.eval()
    return retrieval_metrics(network(pixels), labels)["precision_at_1"]


def main() -> None:
    """Train, and measure before and after on characters that did not train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer characters and steps")
    quick = parser.parse_args().quick
    num_classes, epochs = (40, 4) if quick else (200, 10)

    torch.manual_seed(0)
    pixels, labels = pixels_and_labels(glyphs().part("train"), num_classes)
    unseen = pixels_and_labels(glyphs().part("test"), num_classes)
    network = small_network(64)
    loss = MeanFieldClassWiseMultiSimilarityLoss(num_classes, embedding_size=64)
    # A network from nothing wants a large rate; 2000 times it would be a leap for the fields.
    optimizer = torch.optim.AdamW(parameter_groups(network, loss, lr=2e-3, class_lr=0.2))

    before = precision(network, *unseen)
    for epoch in range(epochs):
        network.train()
        total = 0.0
        batches = torch.randperm(len(labels)).split(64)
        for rows in batches:
            value = loss(network(pixels[rows]), labels[rows])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            total += value.item()
        print(f"epoch {epoch + 1:2d}  loss {total / len(batches):.3f}")
    after = precision(network, *unseen)
    print(f"unseen characters, P@1: {before:.2f} before training, {after:.2f} after")


if __name__ == "__main__":
    main()

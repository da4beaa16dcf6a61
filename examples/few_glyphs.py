"""A part of the glyphs, a narrow network and a short training loop, for the scripts beside it.

A run takes seconds on one CPU core, so that a script can afford several losses and seeds. For the
whole set and everything else that training needs there is `weiss train`.
"""

import argparse
import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weiss import parameter_groups, retrieval_metrics
from weiss._base import draws
from weiss.data import PerClass, Shuffled, Table, open_table
from weiss.data.samplers import Sampler
from weiss.runs import build_backbone

EMBEDDING_SIZE = 64
WIDTHS = [16, 32, 64]
LR, FIELD_LR = 8e-3, 0.5
"""Those of the recipe for glyphs."""
BATCH_SIZE = 64
CWMS = {"alpha": 2.0, "beta": 20.0, "delta": 0.3}
"""The settings of MFCWMS and of CWMS in all scripts."""
Row = Mapping[str, Any]
"""What one training or one set of drawn classes gave; read from a CSV file, all of it is text."""


@dataclass(frozen=True)
class Glyphs:
    """Some characters, each as many fonts draw it.

    Attributes:
        images: ``(N, 1, 32, 32)`` from 0 to 255.
        characters: ``(N,)`` which character an image shows, from 0 on.
        fonts: N names of fonts.
        table: the same as a table.
    """

    images: Tensor
    characters: Tensor
    fonts: list[str]
    table: Table


def some_glyphs(split: str, number: int) -> Glyphs:
    """Return ``number`` characters of a split, ``"train"`` or ``"test"``, drawn at random."""
    table = open_table("glyphs").part(split)
    classes = table.classes()
    if number > len(classes):
        raise SystemExit(
            f"there are {len(classes)} characters to {split} with, {number} were asked for; "
            "give --characters a smaller number"
        )
    chosen = classes[draws.permutation(len(classes), 0, draws.SPLITS)[:number]]
    table = table.take(np.flatnonzero(np.isin(table.labels, chosen))).compact()
    pixels = table.source.pixels[:]  # type: ignore[attr-defined]
    images = torch.from_numpy(pixels).float().view(-1, 1, 32, 32)
    fonts = [table.source.name(item).rpartition(" in ")[2] for item in range(len(table))]
    return Glyphs(images, torch.from_numpy(table.labels), fonts, table)


def new_network(seed: int) -> nn.Module:
    """Return an untrained network from images to unit vectors ``(B, EMBEDDING_SIZE)``."""
    torch.manual_seed(seed)
    section = {"name": "small", "embedding_size": EMBEDDING_SIZE, "widths": WIDTHS}
    return build_backbone(section)


@torch.no_grad()
def embed(network: nn.Module, images: Tensor) -> Tensor:
    """Return ``(N, D)`` embeddings, as an evaluation makes them."""
    was_training = network.training
    network.eval()
    embeddings = torch.cat([network(part) for part in images.split(512)])
    network.train(was_training)
    return embeddings


def batches_of(
    glyphs: Glyphs, seed: int, per_class: int | None = None, size: int = BATCH_SIZE
) -> Sampler:
    """Return a sampler: ``per_class`` images of each character in a batch, or shuffled."""
    if per_class is None:
        return Shuffled(len(glyphs.images), size, seed)
    steps = len(glyphs.images) // size
    return PerClass(glyphs.table, size // per_class, per_class, seed, steps)


def train(
    network: nn.Module,
    loss: nn.Module,
    images: Tensor,
    labels: Tensor,
    sampler: Sampler,
    epochs: int,
    *,
    field_lr: float = FIELD_LR,
    after_epoch: Callable[[int], None] = lambda epoch: None,
) -> None:
    """Train a network with a loss; rates rise for a third of the steps, then fall to zero.

    Args:
        network: from images to embeddings.
        loss: any loss of weiss.
        images: ``(N, 1, 32, 32)``.
        labels: ``(N,)`` classes or ``(N, C)`` multi-hot.
        sampler: which images stand in which batch.
        epochs: how many.
        field_lr: the largest learning rate of the fields, if the loss has any.
        after_epoch: called with the number of the epoch, from 1 on.
    """
    optimizer = torch.optim.AdamW(parameter_groups(network, loss, lr=LR, class_lr=field_lr))
    steps = epochs * len(sampler.batches(0))
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, steps, cycle_momentum=False)
    network.train()
    for epoch in range(epochs):
        for rows in sampler.batches(epoch):
            index = torch.from_numpy(rows)
            optimizer.zero_grad()
            loss(network(images[index]), labels[index]).backward()
            optimizer.step()
            schedule.step()
        after_epoch(epoch + 1)


def scores(embeddings: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return MAP@R and P@1 in per cent, every item looking for its like among the others."""
    found = retrieval_metrics(embeddings, labels, progress=False)
    return 100 * found["map_at_r"], 100 * found["precision_at_1"]


def at_least(least: int) -> Callable[[str], int]:
    """Return a reader for an option: a whole number, refused in words where it is too small."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"a whole number, {least} or more; got {text!r}")
        return int(text)

    return read


def options_of(about: str, *, characters: int, epochs: int) -> argparse.ArgumentParser:
    """Return the options that the scripts share, with their own defaults."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the picture")
    parser.add_argument("--rows", type=Path, help="CSV file for every number (default: none)")
    parser.add_argument("--seeds", type=at_least(0), nargs="+", default=[0, 1, 2])
    parser.add_argument("--characters", type=at_least(2), default=characters)
    parser.add_argument("--epochs", type=at_least(1), default=epochs)
    parser.add_argument("--quick", action="store_true", help="few of everything: does it run?")
    return parser


def options_from(parser: argparse.ArgumentParser, **quick: object) -> argparse.Namespace:
    """Read the command line; what makes no sense is refused in words, before any work.

    Args:
        parser: from `options_of`.
        **quick: what options are with ``--quick`` if they are not given.
    """
    arguments = parser.parse_args()
    if arguments.quick:
        parser.set_defaults(**quick)
        arguments = parser.parse_args()
    if len(set(arguments.seeds)) < len(arguments.seeds):
        # It would look like a second measurement.
        parser.error(f"argument --seeds: each once; got {' '.join(map(str, arguments.seeds))}")
    make_folder(parser, "--out", arguments.out)
    if arguments.rows:
        make_folder(parser, "--rows", arguments.rows.parent)
        if arguments.rows.is_dir():
            parser.error(f"argument --rows: the name of a file; {arguments.rows} is a folder")
    return arguments


def make_folder(parser: argparse.ArgumentParser, option: str, folder: Path) -> None:
    """Make a folder, or say that it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return
    except OSError as error:
        parser.error(f"argument {option}: a folder that can be written to; {error}")


def tell(arguments: argparse.Namespace, rows: Sequence[Row], tables: Sequence[list[str]]) -> None:
    """Print tables, and write every row to the CSV file that ``--rows`` names."""
    for lines in tables:
        print("", *lines, sep="\n")
    if arguments.rows:
        with arguments.rows.open("w", newline="") as file:
            columns = list(dict.fromkeys(name for row in rows for name in row))
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            for row in rows:
                writer.writerow(
                    {name: round(x, 6) if isinstance(x, float) else x for name, x in row.items()}
                )
        print(f"kept in {arguments.rows}")


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    return [lines[0], "|---" * len(header) + "|", *lines[1:]]


def seed_by_seed(rows: Sequence[Row], column: str, told: Callable[[float], str]) -> str:
    """Return a cell of a table: a number for each seed."""
    return ", ".join(told(float(row[column])) for row in rows)

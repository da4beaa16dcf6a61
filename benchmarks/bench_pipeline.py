"""Training with real images against the same step on one fixed random batch.

The step is ResNet-50 at 224 pixels, batch 128, bfloat16 autocast, channels last, MFCWMS over 100
classes, AdamW. The rival repeats it on a batch on the device, without any cost of data.
The pipeline draws a random crop of every image, from images kept on the GPU, kept in memory, or
decoded from files each time.

Rounds of the contenders alternate; a round is synchronised, and the median round counts.

    python benchmarks/bench_pipeline.py --device cuda --root FOLDER
    python benchmarks/bench_pipeline.py --smoke                       # CPU, small, keeps nothing
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from bench_decoding import photographs
from record import keep, medians, options_of

from weiss import MeanFieldClassWiseMultiSimilarityLoss, parameter_groups
from weiss.backbones import make_backbone
from weiss.data import Pipeline, RandomCrop, Shuffled
from weiss.data.sources import Files
from weiss.data.table import Table

NUM_CLASSES = 100


def table_of(root: Path, names: list[str]) -> Table:
    labels = np.arange(len(names)) % NUM_CLASSES
    classes = tuple(map(str, range(NUM_CLASSES)))
    return Table("images", Files(root, names), labels, classes, np.full(len(names), "train"))


def make_step(backbone: str, device: str) -> Callable[[torch.Tensor, torch.Tensor], None]:
    torch.manual_seed(0)
    model = make_backbone(backbone, 512, weights="scratch").to(device)
    model = model.to(memory_format=torch.channels_last).train()
    loss = MeanFieldClassWiseMultiSimilarityLoss(NUM_CLASSES, 512, check=False).to(device)
    optimizer = torch.optim.AdamW(parameter_groups(model, loss, lr=1e-4), fused=device == "cuda")

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(device, torch.bfloat16):
            value = loss(model(images), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return step


def batches(keep_in: str, table: Table, arguments: argparse.Namespace) -> Iterator[tuple]:
    """Yield batches without end: one fixed, or those of a pipeline."""
    device, size, batch = arguments.device, arguments.size, arguments.batch
    if keep_in == "fixed batch":
        torch.manual_seed(1)
        images = torch.rand(batch, 3, size, size, device=device) * 255
        images = images.contiguous(memory_format=torch.channels_last)
        labels = torch.randint(NUM_CLASSES, (batch,), device=device)
        yield from itertools.repeat((images, labels))
    pipeline = Pipeline(table, device=device, keep=keep_in)
    print(f"{keep_in}: {pipeline.describe()}")
    sampler = Shuffled(len(table), batch)
    for epoch in itertools.count():
        for given in pipeline.training(sampler, RandomCrop(size), epoch):
            yield given.images, given.labels


def measure(arguments: argparse.Namespace, table: Table, places: list[str]) -> dict[str, float]:
    """Return the median seconds of a step for each contender.

    Untimed steps and a pause come before each round, so that no contender gains from batches
    prepared, or loses by batches being prepared, while another one was timed.
    """
    step = make_step(arguments.backbone, arguments.device)
    streams = {place: batches(place, table, arguments) for place in places}
    seconds = medians(
        {place: lambda stream=stream: step(*next(stream)) for place, stream in streams.items()},
        arguments.rounds,
        arguments.device,
        steps=arguments.steps,
        untimed=0 if arguments.smoke else 10,
        between=lambda: time.sleep(0 if arguments.smoke else 0.5),
    )
    for stream in streams.values():
        stream.close()
    return seconds


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--root", type=Path, help="a folder of images; made of noise by default")
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=30, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.backbone, arguments.batch, arguments.size = "resnet18", 4, 64
        arguments.steps, arguments.rounds = 1, 1
    places = ["fixed batch", "memory", "stream"]
    if arguments.device == "cuda":
        places.insert(1, "gpu")
    with photographs(arguments) as (root, names):
        seconds = measure(arguments, table_of(root, names), places)
    rows = [
        {
            "contender": place,
            "throughput_of_fixed_batch": round(seconds["fixed batch"] / value, 4),
            "seconds": round(value, 5),
            "images_per_second": round(arguments.batch / value),
            "images": len(names),
            "backbone": arguments.backbone,
            "batch": arguments.batch,
            "size": arguments.size,
            "steps": arguments.steps,
            "rounds": arguments.rounds,
        }
        for place, value in seconds.items()
    ]
    for row in rows:
        share = row["throughput_of_fixed_batch"]
        print(f"{row['contender']}: {share:.3f} times the throughput of the fixed batch")
    keep(arguments, "pipeline", rows, arguments.device)


if __name__ == "__main__":
    main()

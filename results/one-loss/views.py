"""Train linear heads where every class is six views of one photograph, and search unseen ones.

    python results/one-loss/views.py CUB_200_2011/images WEIGHTS views.csv   # minutes on a GPU

A stand-in for photographs of many small classes: random crops of photographs of the 100 training
species of CUB, their features by ResNet-50 v1 (computed once), and a linear head of 512 dimensions
that is trained on some of the photographs, with 792 batches of 180 views whatever their number.
Half of the photographs are kept for the search. "species" has the same views with 50 species as
classes; there one view of each photograph of the others is searched. MAP@R and P@1 in per cent,
after each quarter of the batches. Settings that a row of mf_rest_ms does not name are those of the
long reach.
"""

import argparse
import csv
import math
import random
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor, nn

from weiss import make_loss, retrieval_metrics
from weiss.backbones import make_backbone
from weiss.losses.rest_multi_similarity import long_reach

VIEWS, SIDE, EMBEDDING_SIZE, BATCH, EVALUATIONS, STEPS = 6, 160, 512, 180, 4, 792
LR, FIELD_LR, PROXY_LR = 1e-3, 0.2, 1e-2
REST: dict[str, dict[str, float]] = {
    "": {},
    "alpha 2": {"alpha": 2},
    "(2, 20, 0.3, 0)": {"alpha": 2, "beta": 20, "delta": 0.3, "margin": 0},
    "(0.01, 80, 0.2, 0)": {"alpha": 0.01, "beta": 80, "delta": 0.2, "margin": 0},
    "alpha 0.01, delta 0.5, margin 0": {"alpha": 0.01, "delta": 0.5, "margin": 0},
    **{f"delta {each}, margin 0": {"delta": each, "margin": 0} for each in (0.3, 0.5, 0.7, 0.85)},
    "beta 20, margin 0.24": {"beta": 20, "margin": 0.24},
    "beta 20, margin 0.4": {"beta": 20, "margin": 0.4},
    "beta 12, margin 0.24": {"beta": 12, "margin": 0.24},
    "beta 12, margin 0.4": {"beta": 12, "margin": 0.4},
    "alpha 2, beta 12, margin 0.24": {"alpha": 2, "beta": 12, "margin": 0.24},
}
LOSSES = [("mf_cwms", ""), ("proxy_anchor", ""), *(("mf_rest_ms", words) for words in REST)]


class Task(NamedTuple):
    """What is trained: photographs or species as classes, how many of them, a loss, a seed."""

    classes: str
    count: int
    loss: str
    settings: str
    seed: int


def views_of(path: Path) -> np.ndarray[Any, Any]:
    """Return random crops of a photograph, the same in every run: ``(6, 160, 160, 3)`` uint8."""
    drawn = random.Random(path.name)
    views = []
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    width, height = image.size
    for _ in range(VIEWS):
        area, ratio = drawn.uniform(0.12, 0.6) * width * height, drawn.uniform(0.75, 1.333)
        wide, high = min(width, int((area * ratio) ** 0.5)), min(height, int((area / ratio) ** 0.5))
        left, top = drawn.randint(0, width - wide), drawn.randint(0, height - high)
        box = (left, top, left + wide, top + high)
        view = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box)
        for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            view = change(view).enhance(drawn.uniform(0.6, 1.4))
        if drawn.random() < 0.5:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        views.append(np.asarray(view))
    return np.stack(views)


def photographs(folder: Path, count: int) -> list[Path]:
    """Return as many photographs of each training species, drawn once."""
    chosen: list[Path] = []
    for species in sorted(folder.iterdir())[:100]:
        found = sorted(species.iterdir())
        random.Random(0).shuffle(found)
        chosen += found[: count // 100]
    return chosen


@torch.inference_mode()
def features_of(paths: list[Path], weights: str, device: str) -> Tensor:
    """Return the pooled features of all views, ``(N, 6, 2048)``, of mean length 1."""
    network = make_backbone(
        "resnet50_v1", weights=weights, embedding_size=EMBEDDING_SIZE, pooling="avg+max"
    )
    network = network.to(device).eval()
    features = []
    with ProcessPoolExecutor() as pool, torch.autocast(device, torch.bfloat16):
        for views in pool.map(views_of, paths, chunksize=16):
            images = torch.from_numpy(views).to(device).permute(0, 3, 1, 2)
            trunk = network.trunk(network.conversion(images))
            features.append(network.pooling(trunk).float().cpu())
    found = torch.stack(features)
    return found / found.norm(dim=-1).mean()


def divided(
    features: Tensor, species: Tensor, task: Task
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return features and labels to train on, and those to search."""
    generator = torch.Generator().manual_seed(100)
    if task.classes == "photographs":
        order = torch.randperm(len(features), generator=generator)
        parts = order[: task.count], order[len(features) // 2 :]
        labels = [torch.arange(len(part)).repeat_interleave(VIEWS) for part in parts]
        return tuple(
            (features[part].flatten(0, 1), own) for part, own in zip(parts, labels, strict=True)
        )
    rank = torch.randperm(int(species.max()) + 1, generator=generator).argsort()[species]
    train, test = rank < task.count, rank >= task.count
    return (
        (features[train].flatten(0, 1), rank[train].repeat_interleave(VIEWS)),
        (features[test][:, 0], rank[test]),
    )


def trained(task: Task, features: Tensor, species: Tensor) -> list[dict[str, Any]]:
    """Train a head; return its scores, four times."""
    torch.set_num_threads(1)
    (x, y), (searched, labels) = divided(features, species, task)
    torch.manual_seed(task.seed)
    head = nn.Linear(x.shape[1], EMBEDDING_SIZE)
    usual = long_reach(task.count, EMBEDDING_SIZE)._asdict()
    arguments = usual | REST[task.settings] if task.loss == "mf_rest_ms" else {}
    loss = make_loss(task.loss, task.count, EMBEDDING_SIZE, **arguments)
    rates = LR, FIELD_LR if task.loss.startswith("mf_") else PROXY_LR
    groups = [{"params": part.parameters()} for part in (head, loss)]
    optimizer = torch.optim.AdamW(groups, weight_decay=1e-4)
    rounds = math.ceil(STEPS * BATCH / len(x))
    rows = []
    stream = torch.cat([torch.randperm(len(x)) for _ in range(rounds)])
    for step in range(STEPS):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        drawn = stream[step * BATCH : (step + 1) * BATCH]
        optimizer.zero_grad()
        loss(head(x[drawn]), y[drawn]).backward()
        nn.utils.clip_grad_value_(head.parameters(), 10.0)
        optimizer.step()
        if (step + 1) % (STEPS // EVALUATIONS) == 0:
            with torch.no_grad():
                scores = retrieval_metrics(head(searched), labels, progress=False)
            told = {key: f"{100 * scores[key]:.2f}" for key in ("map_at_r", "precision_at_1")}
            rows.append({**task._asdict(), "steps": step + 1, **told})
    return rows


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("weights")
    parser.add_argument("out", type=Path)
    parser.add_argument("--photographs", type=int, default=4000)
    parser.add_argument("--counts", type=int, nargs="+", default=[2000, 500, 100])
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    paths = photographs(asked.images, asked.photographs)
    if max(asked.counts) > len(paths) // 2:
        parser.error(
            f"--counts must be at most {len(paths) // 2}, half of the photographs, since the other "
            f"half is searched; got {max(asked.counts)}. Lower it or raise --photographs."
        )
    names = np.unique([path.parent.name for path in paths], return_inverse=True)[1]
    species = torch.from_numpy(names)
    features = features_of(paths, asked.weights, "cuda" if torch.cuda.is_available() else "cpu")
    sets = [("photographs", count) for count in asked.counts] + [("species", 50)]
    tasks = [
        Task(*which, *loss, seed)
        for seed in range(asked.seeds)
        for which in sets
        for loss in LOSSES
    ]
    train = partial(trained, features=features, species=species)
    with (
        ProcessPoolExecutor(mp_context=get_context("spawn")) as pool,
        asked.out.open("w", newline="") as file,
    ):
        columns = [*Task._fields, "steps", "map_at_r", "precision_at_1"]
        table = csv.DictWriter(file, columns, lineterminator="\n")
        table.writeheader()
        for rows in pool.map(train, tasks):
            table.writerows(rows)


if __name__ == "__main__":
    main()

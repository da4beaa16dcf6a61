"""Fine-tune a small pretrained network on few classes of many images, and on many of few.

    python results/one-loss/characters.py characters.csv   # half an hour on two cores

A whole network in training, on a CPU: the small network learns all 2,292 classes of `glyphs_many`
(letters, digits, symbols), in batches of 64 ("well") or in fewer of 180 ("little"), and is then
trained on 6,000 images of Chinese characters: 100 characters with 60 images each, or 1,000 with 6.
Every run has the same 12 epochs and the same number of batches, so that an image is seen 12 times,
a class 720 or 72 times. 1,500 other characters are searched, six images of each. MAP@R in per cent
after every epoch.

The fonts are Debian's: fonts-arphic-gkai00mp, fonts-arphic-ukai, fonts-arphic-uming,
fonts-babelstone-han, fonts-cns11643-kai, fonts-cns11643-sung, fonts-droid-fallback,
fonts-hanazono, fonts-ipaexfont, fonts-noto-cjk, fonts-noto-cjk-extra, fonts-wqy-microhei,
fonts-wqy-zenhei. A character is one that at least eight of them have.
"""

import argparse
import csv
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fontTools.ttLib import TTFont
from PIL import ImageFont
from torch import Tensor, nn

from weiss import make_loss, retrieval_metrics
from weiss.backbones import make_backbone
from weiss.backbones.embedder import Embedder
from weiss.losses.rest_multi_similarity import SHORT_REACH, long_reach

drawing = import_module("weiss.data.glyphs")  # the package's `glyphs` is the function

FONTS = (
    *(f"truetype/{name}" for name in ("arphic-gkai00mp/gkai00mp.ttf", "arphic/ukai.ttc")),
    *(f"truetype/{name}" for name in ("arphic/uming.ttc", "babelstone/BabelStoneHan.ttf")),
    *(f"truetype/cns11643/TW-{style}-98_1.ttf" for style in ("Kai", "Sung")),
    *(f"truetype/{name}" for name in ("droid/DroidSansFallbackFull.ttf", "hanazono/HanaMinA.ttf")),
    *(f"opentype/ipaexfont-{style}.ttf" for style in ("gothic/ipaexg", "mincho/ipaexm")),
    *(f"opentype/noto/NotoSansCJK-{style}.ttc" for style in ("Regular", "Black", "Thin")),
    *(f"opentype/noto/NotoSerifCJK-{style}.ttc" for style in ("Regular", "Black")),
    *(f"truetype/wqy/wqy-{style}.ttc" for style in ("microhei", "zenhei")),
)
CODES, FEWEST_FONTS = range(0x4E00, 0x9FA6), 8
IMAGES, SEARCHED, SEARCHED_IMAGES = 6000, 1500, 6
COUNTS = (1000, 100)
STARTS = {"well": 64, "little": 180}
EMBEDDING_SIZE, BATCH, EPOCHS, LR = 512, 180, 12, 1e-3
FIELD_SCALE, PROXY_SCALE = 200, 100
LOSSES = (("mf_cwms", ""), ("proxy_anchor", ""), ("mf_rest_ms", "far"), ("mf_rest_ms", "near"))


class Task(NamedTuple):
    """What is trained: from which start, how many characters, a loss, its settings, a seed."""

    pretrained: str
    classes: int
    images_a_class: int
    loss: str
    settings: str
    seed: int


def characters(folder: Path, counts: dict[int, int]) -> dict[int, Tensor]:
    """Return drawings ``(classes, images, 1, 32, 32)`` by the number of classes, and under 0.

    Those under 0 are searched, and are of characters that no other has.
    """
    fonts, known = [], []
    for name in FONTS:
        path = folder / name
        with TTFont(path, lazy=True, fontNumber=0) as tables:
            known.append(set(tables.getBestCmap()) & set(CODES))
        size = drawing.EM * drawing.OVERSAMPLE
        fonts.append(ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC))
    random = np.random.default_rng(0)
    often = [code for code in CODES if sum(code in each for each in known) >= FEWEST_FONTS]
    codes = random.permutation(often)

    def drawn(some: Any, count: int) -> Tensor:
        pixels = np.zeros((len(some), count, 1, drawing.SIDE, drawing.SIDE), dtype=np.uint8)
        for row, code in enumerate(map(int, some)):
            having = random.permutation([i for i, each in enumerate(known) if code in each])
            for number, font in enumerate(np.resize(having, count)):
                tile = drawing._draw(fonts[font], chr(code))
                pixels[row, number] = drawing._small(drawing._moved(tile, 0, code, number))
        return torch.from_numpy(pixels)

    found = {classes: drawn(codes[:classes], count) for classes, count in counts.items()}
    return found | {0: drawn(codes[-SEARCHED:], SEARCHED_IMAGES)}


def moved(images: Tensor) -> Tensor:
    """Return images ``(B, 1, 32, 32)``, each shifted by at most two pixels, as float32."""
    wide = nn.functional.pad(images.float(), (2, 2, 2, 2))
    down, right = torch.randint(0, 5, (2, len(images), 1))
    at = torch.arange(drawing.SIDE)
    rows, columns = (at + down)[:, :, None], (at + right)[:, None, :]
    return wide[torch.arange(len(images))[:, None, None], 0, rows, columns][:, None]


def train(
    model: Embedder,
    loss: nn.Module,
    data: tuple[Tensor, Tensor],
    rates: tuple[float, float],
    batch: int = BATCH,
) -> Iterator[int]:
    """Train a network and class vectors at two rates, and yield after every epoch."""
    images, labels = data
    trunk, own = model.trunk.parameters(), list(loss.parameters())
    rest = [p for name, p in model.named_parameters() if not name.startswith("trunk.")]
    groups = [{"params": part} for part in (trunk, rest, own)]
    optimizer = torch.optim.AdamW(groups, weight_decay=1e-4)
    steps = len(images) // batch
    for epoch in range(EPOCHS):
        model.train()
        order = torch.randperm(len(images))
        for step in range(steps):
            done = (epoch * steps + step) / (EPOCHS * steps)
            factor = 0.5 * (1 + math.cos(math.pi * done))
            # In the first epoch the new head and the class vectors train alone.
            for group, rate in zip(
                optimizer.param_groups, (rates[0] if epoch else 0.0, *rates), strict=True
            ):
                group["lr"] = rate * factor
            rows = order[step * batch : (step + 1) * batch]
            optimizer.zero_grad()
            loss(model(moved(images[rows])), labels[rows]).backward()
            nn.utils.clip_grad_value_(model.parameters(), 10.0)
            optimizer.step()
        yield epoch + 1


def pretrained(batch: int) -> dict[str, Tensor]:
    """Return the trunk of a network that has learnt all characters of `glyphs_many`."""
    torch.manual_seed(0)
    table = drawing.glyphs(many=True)
    images = torch.from_numpy(table.source.pixels).permute(0, 3, 1, 2).contiguous()
    labels = torch.from_numpy(table.labels)
    model = make_backbone("small", EMBEDDING_SIZE)
    loss = make_loss("norm_softmax", len(table.class_names), EMBEDDING_SIZE)
    for _ in train(model, loss, (images, labels), (8e-3, 0.1), batch):
        pass
    return model.trunk.state_dict()


@torch.inference_mode()
def score(model: Embedder, images: Tensor) -> float:
    """Return MAP@R of searched characters ``(classes, images, 1, 32, 32)`` in per cent."""
    model.eval()
    labels = torch.arange(len(images)).repeat_interleave(images.shape[1])
    embeddings = [model(part.float()) for part in images.flatten(0, 1).split(1000)]
    return 100 * retrieval_metrics(torch.cat(embeddings), labels, progress=False)["map_at_r"]


def fine_tuned(
    task: Task, drawn: dict[int, Tensor], trunks: dict[str, dict[str, Tensor]]
) -> list[dict[str, Any]]:
    """Fine-tune once; return the score of every epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(task.seed)
    model = make_backbone("small", EMBEDDING_SIZE)
    model.trunk.load_state_dict(trunks[task.pretrained])
    reach = {"far": long_reach(task.classes, EMBEDDING_SIZE), "near": SHORT_REACH}
    settings = reach[task.settings]._asdict() if task.settings else {}
    loss = make_loss(task.loss, task.classes, EMBEDDING_SIZE, **settings)
    images = drawn[task.classes].flatten(0, 1)
    labels = torch.arange(task.classes).repeat_interleave(task.images_a_class)
    scale = FIELD_SCALE if task.loss.startswith("mf_") else PROXY_SCALE
    return [
        {**task._asdict(), "epoch": epoch, "map_at_r": f"{score(model, drawn[0]):.2f}"}
        for epoch in train(model, loss, (images, labels), (LR, LR * scale))
    ]


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--fonts", type=Path, default=Path("/usr/share/fonts"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    absent = [name for name in FONTS if not (asked.fonts / name).is_file()]
    if absent:
        parser.error(
            f"--fonts must be a folder with {', '.join(absent)}; {asked.fonts} has none of these. "
            "Install the packages that the top of this file names."
        )
    counts = {classes: IMAGES // classes for classes in COUNTS}
    drawn = characters(asked.fonts, counts)
    trunks = {start: pretrained(batch) for start, batch in STARTS.items()}
    before = []
    for start, trunk in trunks.items():
        bare = make_backbone("small", head="none")
        bare.trunk.load_state_dict(trunk)
        before.append({"pretrained": start, "epoch": 0, "map_at_r": f"{score(bare, drawn[0]):.2f}"})
    tasks = [
        Task(start, classes, counts[classes], *loss, seed)
        for seed in range(asked.seeds)
        for start in STARTS
        for classes in COUNTS
        for loss in LOSSES
        if start == "well" or classes == COUNTS[0]
    ]
    with (
        ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool,
        asked.out.open("w", newline="") as file,
    ):
        columns = [*Task._fields, "epoch", "map_at_r"]
        table = csv.DictWriter(file, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(before)
        for rows in pool.map(partial(fine_tuned, drawn=drawn, trunks=trunks), tasks):
            table.writerows(rows)
            file.flush()


if __name__ == "__main__":
    main()

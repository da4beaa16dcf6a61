"""Check a data set before training.

It compares the counts with the official ones and finds files that are missing or cannot be read,
classes too small to search, classes on both sides of the split, and images on both sides: a
photograph that appears twice, perhaps reduced or saved again, improves every score wrongly.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from weiss._base.arrays import Array
from weiss._base.checks import some
from weiss._base.images import LUMA
from weiss.data.cache import build_store
from weiss.data.crops import Windows
from weiss.data.official import OfficialSet
from weiss.data.resample import resample
from weiss.data.sources import Vectors
from weiss.data.store import Storage, Store
from weiss.data.table import TESTING, Table
from weiss.evaluation.neighbours import default_budget, nearest_neighbours

THUMBNAIL = 16
"""Images are compared as grey thumbnails of this side."""
SHORT_SIDE = 32
"""Their shorter side is reduced to this when they are decoded for that."""
NEARLY_SAME = 0.98
"""Correlation of two thumbnails from which they count as nearly the same image. Between the halves
of CUB-200-2011 one photograph is there twice, at 1.00; the next most alike pair, at 0.94, are two
birds."""
AT_ONCE = 4096
"""Images whose thumbnails are computed together."""


@dataclass(frozen=True)
class Pair:
    """Names of a training and a test image that look nearly the same."""

    train: str
    test: str
    correlation: float
    same_class: bool


@dataclass
class Findings:
    """The result of a check.

    Args:
        table: what was checked, without what was left out.
        problems: what must be fixed before training.
        remarks: what is worth knowing.
        unreadable: what is wrong with each image that cannot be read.
        pairs: nearly the same images on both sides of the split, most alike first.
    """

    table: Table
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)


def check_table(
    table: Table,
    official: OfficialSet | None = None,
    *,
    images: bool = True,
    skip_bad: bool = False,
    num_workers: int | None = None,
) -> Findings:
    """Check a table, and its images if wanted.

    Args:
        table: from `open_table`.
        official: the description of a published data set, which it must agree with.
        images: decode every image, and compare those of training and testing.
        skip_bad: check what remains when unreadable images are left out.
        num_workers: decoding processes; by default one for each usable core.

    Returns:
        The findings.
    """
    found = Findings(table)
    if images and not isinstance(table.source, Vectors):
        _check_images(found, skip_bad, num_workers)
    if official is not None:
        found.problems += official.differences(found.table)
    _check_classes(found.table, found)
    return found


def _check_classes(table: Table, found: Findings) -> None:
    if not table.has("test"):
        found.remarks.append("nothing tests: no item is in test, or in query and gallery")
    if not table.has("train"):
        found.remarks.append("nothing trains: no item is in train")
    if table.has("query"):
        queries, gallery = (table.part(split).class_sizes() for split in ("query", "gallery"))
        lost = [table.class_names[c] for c in np.flatnonzero((queries > 0) & (gallery == 0))]
        if lost:
            found.remarks.append(
                f"classes with queries and nothing in the gallery: {len(lost):,} ({some(lost)})"
            )
    shared = table.shared_classes()
    if shared:
        found.remarks.append(
            f"classes that train and test share: {len(shared):,} ({some(shared)}); scores measure "
            "known classes, not new ones"
        )
    for side, splits in (("train", ("train",)), ("test", TESTING)):
        sizes = table.take(np.flatnonzero(np.isin(table.splits, splits))).class_sizes()
        alone = [table.class_names[c] for c in np.flatnonzero(sizes == 1)]
        if alone:
            cost = "no pair of it can be formed" if side == "train" else "nothing to be found"
            found.remarks.append(
                f"classes with one image in {side}: {len(alone):,} ({some(alone)}); {cost}"
            )
    unused = len(table.rows("unused"))
    if unused:
        found.remarks.append(f"items in no split: {unused:,}")


def _check_images(found: Findings, skip_bad: bool, num_workers: int | None) -> None:
    table = found.table
    store, errors = build_store(
        table, Storage("memory", "to check"), short_side=SHORT_SIDE, num_workers=num_workers
    )
    found.unreadable = list(errors.values())
    good = np.setdiff1d(np.arange(len(table)), np.array(list(errors), dtype=int))
    if errors and skip_bad:
        found.table = table.take(good)
    elif errors:
        listed = some(found.unreadable)
        found.problems.append(f"images that cannot be read: {len(errors):,} ({listed})")
    train = np.intersect1d(good, table.rows("train"))
    test = np.intersect1d(good, np.flatnonzero(np.isin(table.splits, TESTING)))
    if not len(train) or not len(test):
        return
    found.pairs = nearly_same(table, thumbnails(store, train), train, thumbnails(store, test), test)
    if found.pairs:
        shown = [f"{pair.test} ~ {pair.train}" for pair in found.pairs]
        found.remarks.append(
            "test images that look nearly the same as a training image: "
            f"{len(found.pairs):,} ({some(shown, 3)})"
        )


def thumbnails(store: Store, items: Array) -> Tensor:
    """Return ``(n, 16 * 16)`` grey thumbnails, each with mean 0 and length 1.

    The inner product of two is their correlation. An image of one colour has none: all zeros.
    """
    parts = []
    for i in range(0, len(items), AT_ONCE):
        part = store.take(items[i : i + AT_ONCE])
        whole = Windows(
            start=np.zeros_like(part.sizes),
            scale=part.sizes / THUMBNAIL,
            low=np.zeros_like(part.sizes),
            high=part.sizes,
            flip=np.zeros(len(part.sizes), dtype=bool),
            size=THUMBNAIL,
        )
        shown = resample(part.pixels, part.starts, part.sizes[:, 1], whole)
        # The weights of Pillow, so that a grey copy of a coloured image is similar to it.
        grey = torch.tensor(LUMA if shown.shape[1] == 3 else (1.0,))
        flat = (shown * grey[:, None, None]).sum(dim=1).flatten(1)
        flat = flat - flat.mean(dim=1, keepdim=True)
        # Ignore images with less contrast than one grey level.
        length = flat.norm(dim=1, keepdim=True)
        parts.append(torch.where(length > THUMBNAIL, flat / length, torch.zeros_like(flat)))
    return torch.cat(parts)


def nearly_same(
    table: Table, train: Tensor, train_items: Array, test: Tensor, test_items: Array
) -> list[Pair]:
    """Return for each test image a nearly same training image, if there is one; best pairs first.

    A mirror image counts: training flips images. `train` ``(n, 256)`` and `test` ``(m, 256)`` are
    the `thumbnails` of these items.
    """
    mirrored = test.view(-1, THUMBNAIL, THUMBNAIL).flip(2).flatten(1)
    straight, turned = _nearest(test, train), _nearest(mirrored, train)
    nearest = torch.where(turned[1] > straight[1], turned[0], straight[0])
    correlation = torch.maximum(turned[1], straight[1])
    pairs = []
    for at in torch.argsort(correlation, descending=True, stable=True).tolist():
        if correlation[at] < NEARLY_SAME:
            break
        one, other = int(train_items[nearest[at]]), int(test_items[at])
        same = table.labels[one] == table.labels[other]
        if table.is_multi_label:
            same = (table.labels[one] & table.labels[other]).any()
        pairs.append(
            Pair(
                table.source.name(one),
                table.source.name(other),
                min(float(correlation[at]), 1.0),
                bool(same),
            )
        )
    return pairs


def _nearest(test: Tensor, train: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest training thumbnail of each test thumbnail, and their correlation."""
    nearest = torch.zeros(len(test), dtype=torch.long)
    for rows, found in nearest_neighbours(
        test,
        train,
        np.ones(len(test), dtype=np.int64),
        distance="cosine",
        leave_one_out=False,
        device=train.device,
        budget=default_budget(train.device),
        rows=np.arange(len(test)),
    ):
        nearest[torch.from_numpy(rows)] = found[:, 0].cpu()
    return nearest, (test * train[nearest]).sum(dim=1)

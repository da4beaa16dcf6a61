"""Check a data set before training.

It compares the counts with the official ones and finds files that are missing or cannot be read,
classes too small to search, the same file in several classes, classes on both sides of the split,
and images on both sides: a photograph that appears twice, perhaps reduced or saved again, improves
every score wrongly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from weiss._base.arrays import Array
from weiss._base.checks import some
from weiss._base.images import LUMA, Reduction
from weiss.data.cache import build_store
from weiss.data.content import digests_of_items, in_several_classes
from weiss.data.crops import Windows
from weiss.data.official import OfficialSet
from weiss.data.resample import resample
from weiss.data.sources import Vectors
from weiss.data.store import Storage, Store
from weiss.data.table import TESTING, Table

THUMBNAIL = 16
"""Images are compared as grey thumbnails of this side."""
REDUCTION = Reduction(32)
"""How images are made smaller when they are decoded for that."""
NEARLY_SAME = 0.98
"""Correlation of two thumbnails from which they count as nearly the same image. Between the halves
of CUB-200-2011 one photograph is there twice, at 1.00; the next most alike pair, at 0.94, are two
birds."""
AT_ONCE = 1024
"""Images whose thumbnails are computed, or compared with all others, together."""


@dataclass
class Findings:
    """The result of a check.

    Args:
        table: what was checked, without what was left out.
        problems: what must be fixed before training.
        remarks: what is worth knowing.
        unreadable: what is wrong with each image that cannot be read.
        pairs: names of a training and a test image that look nearly the same, most alike first.
    """

    table: Table
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)


def check_table(
    table: Table,
    official: OfficialSet | None = None,
    *,
    remarks: Sequence[str] = (),
    images: bool = True,
    skip_bad: bool = False,
) -> Findings:
    """Check a table, and its images if wanted.

    Args:
        table: from `open_table`.
        official: the description of a published data set, which it must agree with.
        remarks: what is known of it already, for example `folder_remarks`.
        images: decode every image, and compare those of training and testing.
        skip_bad: check what remains when unreadable images are left out.
    """
    found = Findings(table, remarks=list(remarks))
    if images and not isinstance(table.source, Vectors):
        _check_images(found, skip_bad)
    if official is not None:
        found.problems += official.differences(found.table)
    _check_classes(found)
    return found


def _check_classes(found: Findings) -> None:
    table = found.table

    def named(classes: Array) -> str:
        """Return a count of classes with some of their names; empty for none."""
        names = [table.class_names[c] for c in np.flatnonzero(classes)]
        return f"{len(names):,} ({some(names)})" if names else ""

    if not table.has("test"):
        found.remarks.append("nothing tests: no item is in test, or in query and gallery")
    if not table.has("train"):
        found.remarks.append("nothing trains: no item is in train")
    queries, gallery, train, test = (
        table.class_sizes(np.isin(table.splits, splits))
        for splits in ("query", "gallery", "train", TESTING)
    )
    for what, which, meaning in (
        ("with queries and nothing in the gallery", (queries > 0) & (gallery == 0), ""),
        (
            "that train and test share",
            (train > 0) & (test > 0),
            "; scores measure known classes, not new ones",
        ),
        ("with one image in train", train == 1, "; no pair of it can be formed"),
        ("with one image in test", test == 1, "; nothing to be found"),
    ):
        if names := named(which):
            found.remarks.append(f"classes {what}: {names}{meaning}")
    unused = len(table.rows("unused"))
    if unused:
        found.remarks.append(f"items in no split: {unused:,}")


def _check_images(found: Findings, skip_bad: bool) -> None:
    table = found.table
    store, errors = build_store(table, Storage("memory", "to check"), reduction=REDUCTION)
    found.unreadable = list(errors.values())
    good = np.setdiff1d(np.arange(len(table)), np.array(list(errors), dtype=int))
    if errors and skip_bad:
        found.table = table.take(good)
    elif errors:
        listed = some(found.unreadable)
        found.problems.append(f"images that cannot be read: {len(errors):,} ({listed})")
    train = np.intersect1d(good, table.rows("train"))
    test = np.intersect1d(good, np.flatnonzero(np.isin(table.splits, TESTING)))
    if len(train) and len(test):
        small = [thumbnails(store, part) for part in (train, test)]
        found.pairs = nearly_same(table, small[0], train, small[1], test)
    if found.pairs:
        shown = [f"{test_name} ~ {train_name}" for train_name, test_name in found.pairs]
        found.remarks.append(
            "test images that look nearly the same as a training image: "
            f"{len(found.pairs):,} ({some(shown, 3)})"
        )
    if not table.is_multi_label:
        _check_copies(found, table.take(good))


def _check_copies(found: Findings, table: Table) -> None:
    """Find images of the same content in different classes."""
    shared = in_several_classes(digests_of_items(table.source), table.labels)
    if shared:
        listed = [" = ".join(table.source.name(int(row)) for row in rows) for rows in shared]
        found.remarks.append(
            f"images that are in more than one class: {len(shared):,} ({some(listed, 3)}); keep "
            "each in one, or give it several labels in a list"
        )


def thumbnails(store: Store, items: Array) -> Tensor:
    """Return ``(n, 16 * 16)`` grey thumbnails, each with mean 0 and length 1.

    The inner product of two is their correlation. An image of one colour has none: all zeros.
    """
    parts = []
    for i in range(0, len(items), AT_ONCE):
        part = store.take(items[i : i + AT_ONCE])
        origin = np.zeros_like(part.sizes)
        whole = Windows.plain(part.sizes, origin, part.sizes / THUMBNAIL, THUMBNAIL)
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
) -> list[tuple[str, str]]:
    """Return for each test image a nearly same training image, if there is one; best pairs first.

    A pair has the names of the training and of the test image. A mirror image counts: training
    flips images. `train` ``(n, 256)`` and `test` ``(m, 256)`` are the `thumbnails` of these items.
    """
    mirrored = test.view(-1, THUMBNAIL, THUMBNAIL).flip(2).flatten(1)
    parts = torch.split(torch.cat([test, mirrored]), AT_ONCE)
    best = [(part @ train.T).max(dim=1) for part in parts]
    correlation, nearest = (torch.cat(each).view(2, -1) for each in zip(*best, strict=True))
    correlation, side = correlation.max(dim=0)
    nearest = nearest.gather(0, side[None])[0]
    order = torch.argsort(correlation, descending=True, stable=True)
    return [
        (table.source.name(train_items[nearest[at]]), table.source.name(test_items[at]))
        for at in order[correlation[order] >= NEARLY_SAME].tolist()
    ]

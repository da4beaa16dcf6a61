"""A table of (item, class, split): the form of every data set.

Dimensions: N items, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weiss._base import checks
from weiss._base.arrays import Array
from weiss.data.sources import Source

SPLITS = ("train", "valid", "test", "query", "gallery", "unused")
TESTING = ("test", "query", "gallery")


def one_entry_each(name: str, source: Source, **columns: Sequence[Any] | Array | None) -> None:
    """Refuse columns that do not have an entry for each item; None is no column."""
    for what, given in columns.items():
        if given is not None and len(given) != len(source):
            raise ValueError(
                f"{what} must have one entry for each of the {len(source):,} items of {name}; got "
                f"{len(given):,}. Pass them in the order of the items."
            )


@dataclass(frozen=True)
class Table:
    """Items with their classes and the part of the experiment they belong to.

    Args:
        name: of the table.
        source: the items; N of them.
        labels: ``(N,)`` int64 class indices, or ``(N, C)`` bool for several classes an item.
        class_names: C names; an index into them is a class.
        splits: ``(N,)`` one of train, valid, test, query, gallery, unused for each item.
    """

    name: str
    source: Source
    labels: Array
    class_names: tuple[str, ...]
    splits: Array

    def __post_init__(self) -> None:
        """Refuse columns that do not agree."""
        one_entry_each(self.name, self.source, labels=self.labels, splits=self.splits)
        if self.labels.ndim == 1 and len(self.labels):
            low, high = int(self.labels.min()), int(self.labels.max())
            checks.labels_in_range(low, high, len(self.class_names), self.name)
        elif self.labels.ndim == 2 and self.labels.shape[1] != len(self.class_names):
            raise ValueError(
                f"multi-hot labels must have one column for each of the {len(self.class_names):,} "
                f"classes of {self.name}; got {self.labels.shape[1]:,}. Name every class."
            )
        for split in np.unique(self.splits):
            checks.one_of("split", str(split), SPLITS, self.name)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.source)

    @property
    def num_classes(self) -> int:
        """The number of classes, those without items included."""
        return len(self.class_names)

    @property
    def is_multi_label(self) -> bool:
        """Whether an item may have several classes."""
        return self.labels.ndim == 2

    def class_sizes(self, items: Array | slice = slice(None)) -> Array:
        """Return ``(C,)``, how many items each class has, of all or of some items."""
        labels = self.labels[items]
        if self.is_multi_label:
            return np.asarray(labels.sum(axis=0))
        return np.bincount(labels, minlength=self.num_classes)

    def classes(self) -> Array:
        """Return the sorted classes that have items."""
        return np.flatnonzero(self.class_sizes())

    def has(self, split: str) -> bool:
        """Return whether any item belongs to a split."""
        return len(self.rows(split)) > 0

    def rows(self, split: str) -> Array:
        """Return the items of a split; of a table with query and gallery, ``test`` is both."""
        checks.one_of("split", split, SPLITS, self.name)
        rows = np.flatnonzero(self.splits == split)
        if split == "test" and not len(rows):
            rows = np.flatnonzero(np.isin(self.splits, TESTING))
        return rows

    def part(self, split: str) -> "Table":
        """Return the items of a split, with the classes of the whole table."""
        return self.take(self.rows(split))

    def take(self, items: Array) -> "Table":
        """Return these items only, in this order, with the same classes."""
        source, labels, splits = self.source.take(items), self.labels[items], self.splits[items]
        return replace(self, source=source, labels=labels, splits=splits)

    def compact(self) -> "Table":
        """Return the same items without the empty classes, counted from 0 in the same order."""
        kept = self.classes()
        names = tuple(self.class_names[c] for c in kept)
        if self.is_multi_label:
            return replace(self, labels=self.labels[:, kept], class_names=names)
        return replace(self, labels=np.searchsorted(kept, self.labels), class_names=names)

    def with_splits(self, splits: Array) -> "Table":
        """Return the same items with other splits."""
        return replace(self, splits=splits)

    def joined(self) -> "Table":
        """Return the same items with query and gallery as one test set, searched in itself."""
        testing = np.isin(self.splits, TESTING)
        return self.with_splits(np.where(testing, "test", self.splits))

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return the number of items and of classes of each split that has any."""
        counted = {}
        for split in SPLITS:
            inside = self.splits == split
            if inside.any():
                counted[split] = (int(inside.sum()), int((self.class_sizes(inside) > 0).sum()))
        return counted

    def shared_classes(self) -> list[str]:
        """Return the names of classes that both training and testing see."""
        train = self.class_sizes(self.splits == "train") > 0
        test = self.class_sizes(np.isin(self.splits, TESTING)) > 0
        return [self.class_names[c] for c in np.flatnonzero(train & test)]

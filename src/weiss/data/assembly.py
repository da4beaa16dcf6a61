"""A table from somebody's own data: classes from labels, splits, and what cannot be meant.

Whatever is wrong is found here, before anything is trained, and named. ``skip_bad`` leaves it out
instead and lists what it left out.
"""

import math
import numbers
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weiss._base import checks
from weiss._base.arrays import Array
from weiss._base.checks import some
from weiss.data.sources import Files, Source
from weiss.data.splits import hold_out_classes, refuse_shared_classes, stratify, train_on_all
from weiss.data.table import SPLITS, Table

HOW_TO_SPLIT = ("auto", "given", "classes", "stratified", "all")
ALIASES = {"val": "valid", "validation": "valid", "training": "train", "testing": "test"}


@dataclass(frozen=True)
class Assembly:
    """How to make a table of raw items.

    Args:
        split: ``"classes"`` holds out a share of the classes; ``"stratified"`` a share of every
            class's items; ``"all"`` trains on everything, for the model to ship; ``"given"`` uses
            the splits that came with the data; ``"auto"`` is given where there are any, else
            classes.
        held_out: the share to hold out.
        seed: what is held out.
        shared_classes: accept given splits whose train and test share classes.
        min_images: a class with fewer items is refused. Retrieval needs two: one to look for the
            other.
        skip_bad: leave out what would be refused, with a warning that lists it.
        on_left_out: called with the names of what is left out and why, instead of a warning.
    """

    split: str = "auto"
    held_out: float = 0.2
    seed: int = 0
    shared_classes: bool = False
    min_images: int = 2
    skip_bad: bool = False
    on_left_out: Callable[[Sequence[str], str], None] | None = field(
        default=None, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        """Refuse what is none of the choices."""
        checks.one_of("split", self.split, HOW_TO_SPLIT, "data")
        checks.count("min_images", self.min_images, "data")

    def table(
        self,
        name: str,
        source: Source,
        labels: Sequence[Any],
        splits: Sequence[Any] | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Table:
        """Make the table.

        Args:
            name: what to call it.
            source: N items.
            labels: N labels, each a string or a number, or a list of them (multi-label).
            splits: N names of splits, if the data have them.
            class_names: names of classes that integer labels count; from the labels by default.

        Returns:
            The table, split.
        """
        if len(source) == 0:
            raise ValueError(f"{name} must hold images; found none. Check the path.")
        for what, column in (("labels", labels), ("splits", splits)):
            if column is not None and len(column) != len(source):
                raise ValueError(
                    f"{what} must have one entry for each of the {len(source):,} items of {name}; "
                    f"got {len(column):,}. Pass them in the order of the items."
                )
        kept = np.arange(len(source))
        labels = list(labels)
        bad = _bad_labels(labels, class_names)
        law = "labels must not be missing or NaN"
        kept = self._without(bad, kept, law, "has no label", name, source)
        law, bad = "each path must be listed once", _repeated(source, kept)
        kept = self._without(bad, kept, law, "is listed more than once", name, source)
        indices, names = _classes([labels[row] for row in kept], class_names)
        given = (
            None if splits is None else np.array([_split_name(splits[int(r)], name) for r in kept])
        )
        table = Table(
            name,
            source.take(kept),
            indices,
            names,
            np.full(len(kept), "train") if given is None else given,
        )
        table = self._without_small_classes(table)
        return self._split(table, given is not None)

    def _split(self, table: Table, has_splits: bool) -> Table:
        how = self.split
        if how == "auto":
            how = "given" if has_splits else "classes"
        if how == "classes":
            return hold_out_classes(table, self.held_out, self.seed)
        if how == "stratified":
            return stratify(table, self.held_out, self.seed)
        if how == "all":
            return train_on_all(table)
        if not has_splits:
            raise ValueError(
                f"split must not be 'given' for {table.name}, which names none. Add a column "
                "'split', or choose 'classes', 'stratified' or 'all'."
            )
        if table.has("query") != table.has("gallery"):
            there, lacks = ("query", "gallery") if table.has("query") else ("gallery", "query")
            raise ValueError(
                f"a query split needs a gallery and the other way round; {table.name} has {there} "
                f"but no {lacks}. Mark both, or use 'test' to search a set in itself."
            )
        if not self.shared_classes:
            refuse_shared_classes(table)
        return table

    def left_out(self, names: Sequence[str], why: str, words: str) -> None:
        """Tell that something is left out: to whoever asked for it, or else by a warning.

        Args:
            names: of what is left out.
            why: for each of them: "has no label".
            words: the same as one sentence.
        """
        if self.on_left_out is not None:
            self.on_left_out(names, why)
        else:
            warnings.warn(words, stacklevel=5)

    def _without(
        self, bad: Array, kept: Array, law: str, why: str, name: str, source: Source
    ) -> Array:
        """Return the kept rows less the bad ones, or refuse the bad ones."""
        bad = np.intersect1d(bad, kept)
        if not len(bad):
            return kept
        names = [source.name(row) for row in bad]
        listed = some(names)
        if not self.skip_bad:
            raise ValueError(
                f"{law} in {name}; {len(bad):,} rows break this: {listed}. Mend them, or leave "
                "them out with skip_bad=True (on the command line: --skip-bad)."
            )
        self.left_out(names, why, f"{law}: {len(bad):,} rows of {name} are left out: {listed}")
        return np.setdiff1d(kept, bad)

    def _without_small_classes(self, table: Table) -> Table:
        law = f"every class must have at least {self.min_images} images"
        left_out: list[str] = []
        # Again and again: an item that leaves with one class may make another class too small.
        while len(small := np.flatnonzero(_too_small(table.class_sizes(), self.min_images))):
            left_out += [f"{table.class_names[c]} ({_an_item_of(table, int(c))})" for c in small]
            if not self.skip_bad:
                raise ValueError(
                    f"{law} in {table.name}, so that one can find another; {len(small):,} have "
                    f"fewer: {some(left_out)}. Add images, remove the class, accept it with "
                    "min_images=1 (--min-images 1), or leave it out with skip_bad=True "
                    "(--skip-bad)."
                )
            if table.is_multi_label:
                labels = table.labels.copy()
                labels[:, small] = False
                table = replace(table, labels=labels).take(np.flatnonzero(labels.any(axis=1)))
            else:
                table = table.take(np.flatnonzero(~np.isin(table.labels, small)))
        if left_out:
            words = f"{len(left_out):,} classes of {table.name} are left out: {some(left_out)}"
            self.left_out(left_out, "has too few images", f"{law}: {words}")
        if not len(table):
            raise ValueError(f"{law} in {table.name}; none has. Add images.")
        return table.compact()


def _too_small(sizes: Array, least: int) -> Array:
    return np.asarray((sizes > 0) & (sizes < least))


def _an_item_of(table: Table, c: int) -> str:
    of_class = table.labels[:, c] if table.is_multi_label else table.labels == c
    return table.source.name(int(of_class.argmax()))


def _bad_labels(labels: list[Any], names: Sequence[str] | None) -> Array:
    def bad(label: Any) -> bool:
        if isinstance(label, (list, tuple, set, np.ndarray)):
            return len(label) == 0 or any(bad(one) for one in label)
        if isinstance(label, numbers.Real):
            # A number that counts names; Hugging Face's -1 means that there is no label.
            known = names is None or 0 <= float(label) < len(names)
            return not math.isfinite(label) or not known
        return label is None or not str(label).strip()

    return np.flatnonzero([bad(label) for label in labels])


def _repeated(source: Source, kept: Array) -> Array:
    """Return the rows whose file an earlier row has already named."""
    if not isinstance(source, Files):
        return np.zeros(0, dtype=int)
    seen: set[str] = set()
    repeated = []
    for row in kept:
        path = str(source.file(row))
        if path in seen:
            repeated.append(row)
        seen.add(path)
    return np.array(repeated, dtype=int)


def _classes(labels: list[Any], names: Sequence[str] | None) -> tuple[Array, tuple[str, ...]]:
    """Return class indices ``(N,)`` or multi-hot ``(N, C)``, and the sorted class names."""
    several = any(isinstance(label, (list, tuple, set, np.ndarray)) for label in labels)
    sets = [
        label if isinstance(label, (list, tuple, set, np.ndarray)) else [label] for label in labels
    ]
    keys = [[_key(one) for one in some_labels] for some_labels in sets]
    if names is not None:
        index = {_key(number): number for number in range(len(names))}
        named = tuple(names)
    else:
        # Numbers in the order of numbers, then words in the order of words.
        ordered = sorted(set().union(*keys), key=lambda key: (isinstance(key, str), key))
        index = {key: number for number, key in enumerate(ordered)}
        named = tuple(str(key) for key in ordered)
    if not several:
        return np.array([index[key] for (key,) in keys], dtype=np.int64), named
    hot = np.zeros((len(labels), len(named)), dtype=bool)
    for row, some_keys in enumerate(keys):
        hot[row, [index[key] for key in some_keys]] = True
    return hot, named


def _key(label: Any) -> int | str:
    """Return a label as a whole number if it is one, else as a word."""
    if isinstance(label, numbers.Integral):
        return int(label)  # not through a float: product numbers are long
    if isinstance(label, numbers.Real) and float(label).is_integer():
        return int(float(label))
    return str(label).strip()


def _split_name(given: Any, name: str) -> str:
    split = str(given).strip().lower()
    return checks.one_of("split", ALIASES.get(split, split), SPLITS, name)

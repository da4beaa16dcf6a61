"""Splits into training and testing: class-disjoint by default, and seeded."""

import numpy as np

from weiss._base import checks, draws
from weiss._base.arrays import Array
from weiss.data.table import Table


def hold_out_classes(table: Table, fraction: float = 0.2, seed: int = 0) -> Table:
    """Return the table with a share of its classes for testing, the others for training.

    At least two classes are held out and two train, if there are four; else one and one. An item
    with classes on both sides (multi-label) is marked ``unused``. The share `fraction` of the
    classes lies in (0, 1).
    """
    fraction = _fraction(fraction, "hold_out_classes")
    classes = table.classes()
    if len(classes) < 2:
        raise ValueError(
            f"{table.name} must have at least two classes to hold some out; got {len(classes)}. "
            "Add classes, or train on all with the split 'all'."
        )
    # Two on each side if there are four: with one class every result of a search is right.
    least, most = (2, len(classes) - 2) if len(classes) > 3 else (1, len(classes) - 1)
    num_held = min(max(round(fraction * len(classes)), least), most)
    held = classes[draws.permutation(len(classes), seed, draws.SPLITS)[:num_held]]
    split = _by_class(table, held, "test")
    if not (split.has("train") and split.has("test")):
        raise ValueError(
            f"{table.name} must have items whose classes are all held out, and items of which none "
            f"is; got {split.sizes()}, since items have classes on both sides. Split by items "
            "(split='stratified'), or give the splits."
        )
    return split


def stratify(table: Table, fraction: float = 0.2, seed: int = 0) -> Table:
    """Return the table with a share of each class's items for testing, the others for training.

    Train and test share all classes: this measures known classes, not retrieval of new ones. A
    class with a single item trains. With several labels an item counts for its rarest class. The
    share `fraction` of the items of a class lies in (0, 1).
    """
    fraction = _fraction(fraction, "stratify")
    labels = table.labels
    if table.is_multi_label:
        sizes = np.where(table.labels, table.class_sizes(), len(table) + 1)
        labels = sizes.argmin(axis=1)
    # Shuffled once, then cut class by class.
    order = draws.permutation(len(table), seed, draws.SPLITS)
    order = order[np.argsort(labels[order], kind="stable")]
    splits = np.full(len(table), "train", dtype=object)
    for rows in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        num_test = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        splits[rows[:num_test]] = "test"
    return table.with_splits(splits.astype(str))


def train_on_all(table: Table) -> Table:
    """Return the table with every item for training: for a model to ship, without a test."""
    return table.with_splits(np.full(len(table), "train"))


def class_folds(classes: Array, num_folds: int, seed: int | None = None) -> list[Array]:
    """Cut classes into folds of nearly the same number of classes.

    Args:
        classes: ``(K,)`` the classes to cut, in any order.
        num_folds: how many folds, at least two and at most K.
        seed: None cuts the sorted classes into contiguous blocks, as the paper's protocol does;
            a number shuffles them first.

    Returns:
        ``num_folds`` sorted arrays of classes; together each class once.

    Example:
        >>> import numpy as np
        >>> from weiss.data import class_folds
        >>> [fold.tolist() for fold in class_folds(np.arange(10), 4)]
        [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    """
    num_folds = checks.count("num_folds", num_folds, "class_folds")
    classes = np.unique(classes)
    if not 2 <= num_folds <= len(classes):
        raise ValueError(
            f"num_folds must lie in [2, {len(classes)}], the number of classes, for class_folds; "
            f"got {num_folds}. Choose fewer folds or add classes."
        )
    if seed is not None:
        classes = classes[draws.permutation(len(classes), seed, draws.FOLDS)]
    return [np.sort(fold) for fold in np.array_split(classes, num_folds)]


def leave_fold_out(table: Table, folds: list[Array], fold: int) -> Table:
    """Return the training part with one fold of its classes for validation.

    Args:
        table: a table with a training part; its test part stays as it is.
        folds: from `class_folds` of the training part's classes.
        fold: the number of the fold whose items are marked ``valid``.
    """
    if not 0 <= fold < len(folds):
        raise ValueError(
            f"fold must lie in [0, {len(folds)}); got {fold}. Folds are counted from 0."
        )
    divided = _by_class(table, folds[fold], "valid").splits
    return table.with_splits(np.where(table.splits == "train", divided, table.splits))


def _by_class(table: Table, held: Array, split: str) -> Table:
    """Mark items by a split if their classes are held, ``unused`` if some are, else ``train``."""
    held_C = np.isin(np.arange(table.num_classes), held)
    if not table.is_multi_label:
        return table.with_splits(np.where(held_C[table.labels], split, "train"))
    inside = (table.labels & held_C).any(axis=1)
    outside = (table.labels & ~held_C).any(axis=1)
    splits = np.where(inside & outside, "unused", np.where(inside, split, "train"))
    return table.with_splits(splits)


def _fraction(fraction: float, owner: str) -> float:
    fraction = checks.number("fraction", fraction, owner, above=0)
    if fraction >= 1:
        raise ValueError(
            f"fraction must lie in (0, 1) for {owner}; got {fraction:g}. A fifth is 0.2; to train "
            "on everything use the split 'all'."
        )
    return fraction

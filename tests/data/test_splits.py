"""Splits: class-disjoint by default, seeded, complete."""

import numpy as np
import pytest
from miniature import toy_table

from weiss.data import class_folds, hold_out_classes, leave_fold_out, stratify, train_on_all


def toy(sizes):
    return toy_table(np.repeat(np.arange(len(sizes)), sizes).tolist(), len(sizes))


@pytest.mark.parametrize(("classes", "held"), [(10, 2), (6, 2), (4, 2), (3, 1), (2, 1), (52, 10)])
def test_a_fifth_of_the_classes_is_held_out_and_none_is_shared(classes, held):
    split = hold_out_classes(toy([3] * classes), seed=classes % 3)
    assert split.sizes() == {
        "train": (3 * (classes - held), classes - held),
        "test": (3 * held, held),
    }
    assert split.shared_classes() == []


def test_the_seed_decides_which_classes():
    first, again, other = (hold_out_classes(toy([2] * 40), seed=s) for s in (1, 1, 2))
    assert (first.splits == again.splits).all()
    assert (first.splits != other.splits).any()


def test_items_with_classes_on_both_sides_are_unused():
    table = toy_table([[0], [1], [0, 1], [2], [2, 3], [3]], 4)
    for seed in range(5):
        split = hold_out_classes(table, 0.5, seed)
        held = {c for row in split.rows("test") for c in np.flatnonzero(table.labels[row])}
        for row, classes in enumerate(table.labels):
            inside = {int(c) in held for c in np.flatnonzero(classes)}
            want = {frozenset({True}): "test", frozenset({False}): "train"}
            assert split.splits[row] == want.get(frozenset(inside), "unused")


def test_stratifying_takes_a_share_of_every_class_and_leaves_single_items_to_train():
    split = stratify(toy([10, 5, 2, 1]), 0.2, seed=3)
    test = split.part("test").class_sizes()
    assert test.tolist() == [2, 1, 1, 0]
    assert stratify(toy([10, 5]), 0.2, seed=4).rows("test").tolist() != split.rows("test").tolist()


def test_stratifying_many_labels_goes_by_the_rarest():
    split = stratify(toy_table([[0], [0], [0], [0], [0, 1], [0, 1]], 2), 0.5)
    assert split.part("test").class_sizes()[1] == 1


def test_the_model_to_ship_trains_on_everything():
    assert train_on_all(hold_out_classes(toy([2, 2]))).sizes() == {"train": (4, 2)}


@pytest.mark.parametrize(
    ("classes", "folds", "seed"), [(100, 4, None), (100, 4, 5), (10, 4, 0), (7, 7, None)]
)
def test_folds_hold_every_class_once_and_are_even(classes, folds, seed):
    made = class_folds(np.arange(classes)[::-1], folds, seed)
    assert sorted(np.concatenate(made)) == list(range(classes))
    assert max(map(len, made)) - min(map(len, made)) <= 1
    contiguous = all((np.diff(fold) == 1).all() for fold in made)
    assert contiguous == (seed is None or classes == folds)


def test_leaving_a_fold_out_validates_on_it_and_leaves_the_test_part_alone():
    table = toy([2] * 6)
    table = table.with_splits(np.where(table.labels < 4, "train", "test"))
    folds = class_folds(table.part("train").classes(), 2)
    left = leave_fold_out(table, folds, 1)
    assert left.sizes() == {"train": (4, 2), "valid": (4, 2), "test": (4, 2)}
    assert left.part("valid").classes().tolist() == [2, 3]


BAD = {
    "fraction 1": (lambda: hold_out_classes(toy([2, 2]), 1.0), r"in \(0, 1\).*split 'all'"),
    "fraction 0": (lambda: stratify(toy([2, 2]), 0), "greater than 0"),
    "one class": (lambda: hold_out_classes(toy([5])), "at least two classes.*got 1"),
    "folds": (lambda: class_folds(np.arange(3), 4), r"\[2, 3\].*got 4"),
    "fold": (lambda: leave_fold_out(toy([2]), [np.array([0])], 1), r"\[0, 1\); got 1"),
    "nothing to test": (
        lambda: hold_out_classes(toy_table([[c, (c + 1) % 4] for c in range(4)] * 3, 4), 0.25),
        "classes on both sides. Split by items",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_impossible_splits_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()

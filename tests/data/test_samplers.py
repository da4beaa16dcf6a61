"""Samplers: what an epoch is, what a batch holds, and the same after every restart."""

import numpy as np
import pytest
from miniature import toy_table

from weiss.data import PerClass, Shuffled, share_of


def toy(sizes):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return toy_table(labels.tolist(), len(sizes))


def test_shuffling_shows_every_item_once_and_drops_the_last_partial_batch():
    batches = Shuffled(103, 10).batches(4)
    assert batches.shape == (10, 10)
    assert len(np.unique(batches)) == 100
    # Over epochs it is not always the same three that sit out.
    out = {
        int(i)
        for e in range(30)
        for i in set(range(103)) - set(Shuffled(103, 10).batches(e).ravel())
    }
    assert len(out) > 40


@pytest.mark.parametrize(("num_classes", "per_class"), [(8, 4), (32, 1), (5, 3)])
def test_a_batch_holds_that_many_classes_and_items_of_each(num_classes, per_class):
    table = toy([7] * 32)
    for epoch in (0, 3):
        batches = PerClass(table, num_classes, per_class).batches(epoch)
        assert batches.shape == (7 * 32 // (num_classes * per_class), num_classes * per_class)
        for batch in batches:
            classes, counts = np.unique(table.labels[batch], return_counts=True)
            assert len(classes) == num_classes
            assert set(counts) == {per_class}
            assert len(np.unique(batch)) == len(batch)


def test_classes_and_items_are_seen_equally_often():
    table = toy([12] * 20)
    seen = np.concatenate([PerClass(table, 5, 4).batches(e).ravel() for e in range(60)])
    per_item = np.bincount(seen, minlength=240)
    assert per_item.max() - per_item.min() <= 1


def test_small_classes_repeat_and_large_ones_come_round():
    table = toy([2, 9, 5, 30])
    sampler = PerClass(table, 2, 4, steps=200)
    seen = sampler.batches(0)
    for batch in seen:
        for c in np.unique(table.labels[batch]):
            items = batch[table.labels[batch] == c]
            assert len(np.unique(items)) == min(4, (table.labels == c).sum())
    assert len(np.unique(seen)) == 46


def test_one_class_that_does_not_fit_a_round_sits_out_in_turn():
    table = toy([4] * 9)
    seen = np.concatenate([PerClass(table, 4, 2, steps=50).batches(e).ravel() for e in range(4)])
    counts = np.bincount(table.labels[seen])
    assert counts.min() > 0.75 * counts.mean()


@pytest.mark.parametrize(
    "make", [lambda s: Shuffled(90, 8, s), lambda s: PerClass(toy([9] * 10), 4, 2, s)]
)
def test_an_epoch_follows_from_seed_and_number_alone(make):
    np.testing.assert_array_equal(make(3).batches(5), make(3).batches(5))
    assert (make(3).batches(5) != make(3).batches(6)).any()
    assert (make(3).batches(5) != make(4).batches(5)).any()


def test_steps_set_the_length_of_an_epoch():
    assert PerClass(toy([3] * 8), 8, 4, steps=100).batches(2).shape == (100, 32)
    assert PerClass(toy([1] * 8), 8, 4).batches(0).shape == (1, 32)


def test_several_processes_share_the_batch_of_one():
    batches = Shuffled(64, 16).batches(0)
    parts = [share_of(batches, rank, 4) for rank in range(4)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), batches)


def test_many_labels_take_items_that_have_the_class():
    table = toy_table([[i % 4, 0] if i % 3 == 0 else [i % 4] for i in range(12)], 4)
    for batch in PerClass(table, 3, 2, steps=20).batches(0):
        assert all((table.labels[a] & table.labels[b]).any() for a, b in batch.reshape(3, 2))


BAD = {
    "batch": (lambda: Shuffled(5, 6), "at most the number of training items, 5.*got 6"),
    "classes": (lambda: PerClass(toy([2] * 4), 5, 2), "number of training classes, 4.*got 5"),
    "zero": (lambda: PerClass(toy([2] * 4), 2, 0), "per_class must be at least 1"),
    "uneven": (lambda: share_of(np.zeros((1, 6)), 0, 4), "multiple of the number of processes, 4"),
    "rank": (lambda: share_of(np.zeros((1, 6)), 3, 3), r"process must lie in \[0, 3\); got 3"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_batches_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()

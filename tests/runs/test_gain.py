"""What training brought: a difference on the same queries, with an interval over classes."""

import numpy as np
import pytest

from weiss.evaluation.retrieval import Retrieval
from weiss.evaluation.statistics import group_interval
from weiss.runs import recipe_from
from weiss.runs.gain import by_class, gain_between, gain_in_words, what_to_try


def found(values, labels):
    values, labels = np.array(values, dtype=float), np.array(labels)
    return Retrieval({"map_at_r": values}, np.arange(len(values)), labels, 0)


def test_the_interval_is_that_of_whole_classes_drawn_with_their_queries():
    random = np.random.default_rng(3)
    groups = [random.normal(size=n) for n in (1, 4, 9, 2, 6)]
    sums, counts = [g.sum() for g in groups], [len(g) for g in groups]
    ends = group_interval(sums, counts, resamples=400, seed=5)
    again, means = np.random.default_rng(5), []
    for drawn in again.integers(5, size=(400, 5)):
        values = [value for which in drawn for value in groups[which]]
        means.append(sum(values) / len(values))
    assert ends.mean == pytest.approx(np.concatenate(groups).mean())
    assert (ends.low, ends.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))


def test_queries_of_one_class_do_not_make_an_interval_narrow():
    """Eight classes of a hundred equal queries know as much as eight queries."""
    few, many = [0.1 * k for k in range(8)], [1] * 8
    one, other = group_interval(few, many), group_interval([100 * f for f in few], [100] * 8)
    assert (one.low, one.high) == pytest.approx((other.low, other.high))


@pytest.mark.parametrize(("sums", "counts"), [([1.0], [1, 2]), ([1.0, 2.0], [0, 1])])
def test_groups_must_have_values(sums, counts):
    with pytest.raises(ValueError, match="counts must be at least 1"):
        group_interval(sums, counts)


def test_a_gain_is_the_mean_difference_of_queries_and_knows_the_unseen_classes():
    labels = [4, 4, 9, 9, 9, 2, 5, 6]
    before, after = [0.2] * 8, [0.5, 0.1, 0.2, 0.9, 0.4, 1.0, 0.0, 0.3]
    gain = gain_between(
        by_class(found(before, labels)), by_class(found(after, labels)), np.array([2, 3])
    )
    assert gain["mean"] == pytest.approx(sum(after) / 8 - 0.2)
    assert gain["low"] < gain["mean"] < gain["high"]
    assert (gain["classes"], gain["unseen"]) == (5, 4)
    # Of few classes there is no interval, of several labels each nothing.
    few = by_class(found([0.2, 0.3], [0, 1]))
    assert "low" not in gain_between(few, few, np.array([]))
    assert by_class(found([0.1], [[1, 0]])) == {}
    assert gain_between({}, few, np.array([])) is None


def result(before, after, **gain):
    gain = {"mean": after - before, "classes": 8, "unseen": 8, **gain}
    return {"start": "pretrained", "before": {"map_at_r": before}, "map_at_r": after, "gain": gain}


def test_one_sentence_says_what_training_brought():
    words = gain_in_words(result(0.695, 0.913, low=0.15, high=0.28))
    assert words == (
        "pretrained 69.5 -> trained 91.3 MAP@R on 8 classes it never saw (+21.8; 95 % interval "
        "over these classes +15.0 to +28.0)."
    )
    assert "which may be chance" in gain_in_words(result(0.6, 0.61, low=-0.02, high=0.04))
    assert "too few classes for an interval" in gain_in_words(result(0.6, 0.7))
    assert "other images of 8 classes it trained on" in gain_in_words(result(0.6, 0.7, unseen=0))
    assert "on 8 classes, 3 of which it never saw" in gain_in_words(result(0.6, 0.7, unseen=3))
    assert gain_in_words({"map_at_r": 0.5}) == ""  # a run of an older version


def test_training_that_made_it_worse_says_so_and_what_to_try():
    worse = result(0.7, 0.6, low=-0.2, high=-0.05)
    assert gain_in_words(worse).endswith("-5.0): training made it worse.")
    words = what_to_try(worse, recipe_from("photos", {"backbone.weights": "net.pth"}))
    assert "--backbone resnet50 --weights net.pth" in words
    assert "--set optim.lr=1e-05" in words
    assert "pretrained network" in what_to_try(worse, recipe_from("glyphs"))
    assert what_to_try(result(0.6, 0.7), recipe_from("photos")) == ""


def test_a_loss_that_may_be_chance_is_not_called_worse():
    unsure = result(0.61, 0.60, low=-0.04, high=0.02)
    assert gain_in_words(unsure).endswith("-4.0 to +2.0, which may be chance).")
    assert "worse" not in gain_in_words(result(0.7, 0.6))  # too few classes to tell


def test_what_to_try_after_a_frozen_training_is_another_thing():
    worse = result(0.7, 0.6, low=-0.2, high=-0.05)
    network = {"backbone.weights": "net.pth", "backbone.pooling": "gem"}
    words = what_to_try(worse, recipe_from("photos", network))
    assert "--weights net.pth --pooling gem." in words
    assert "--frozen" in words
    frozen = {**network, "backbone.train": "frozen", "train.warmup_epochs": 0}
    assert "--frozen" not in what_to_try(worse, recipe_from("photos", frozen))

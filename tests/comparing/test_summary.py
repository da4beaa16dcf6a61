"""Means, intervals and tests of repeated experiments."""

import numpy as np
import pytest

from weiss.comparing.run_table import run_scores
from weiss.comparing.summary import significance_tests
from weiss.evaluation.statistics import holm, paired_t_test, t_interval, wilcoxon_test
from weiss.runs.summaries import summarised


def row(name, values, repetitions=None, at=None, loss=None, **more):
    numbers = list(range(len(values))) if repetitions is None else repetitions
    scores = {"map_at_r": summarised(values)} if values else {}
    named = {"name": name, "loss": loss or name, "at": at or {}}
    return {**named, "repetitions": numbers, "scores": scores, **more}


def test_a_score_has_its_values_and_their_interval_unless_it_is_one():
    interval = t_interval(np.array([0.26, 0.24]))
    ends = {"mean": interval.mean, "low": interval.low, "high": interval.high}
    assert summarised([0.26, None, 0.24]) == {"values": [0.26, 0.24], **ends}
    assert summarised([None, 0.5]) == {"values": [0.5], "mean": 0.5, "low": None, "high": None}
    assert summarised([None, None]) is None


def test_tests_are_paired_by_repetition_and_corrected_together():
    random = np.random.default_rng(0)
    a, b, c = (random.normal(mean, 0.01, 8).tolist() for mean in (0.50, 0.51, 0.60))
    found = significance_tests([row("a", a), row("b", b), row("c", c)], ["map_at_r"])
    assert [(t["first"], t["second"]) for t in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    for test, (one, other) in zip(found, [(a, b), (a, c), (b, c)], strict=True):
        pair = np.array(one), np.array(other)
        student = paired_t_test(*pair)
        for name in ("difference", "low", "high", "p_value"):
            assert test[name] == getattr(student, name)
        assert test["wilcoxon"] == wilcoxon_test(*pair)
    assert [test["corrected"] for test in found] == holm([test["p_value"] for test in found])


def test_rows_with_few_runs_do_not_cost_the_others_their_significance():
    random = np.random.default_rng(0)
    many = [
        row(name, random.normal(at, 0.01, 6).tolist()) for name, at in (("a", 0.5), ("b", 0.52))
    ]
    few = [row(name, random.normal(0.5, 0.01, 2).tolist()) for name in ("c", "d", "e")]
    (alone,) = significance_tests(many, ["map_at_r"])
    with_few = significance_tests([*many, *few], ["map_at_r"])
    assert len(with_few) == 10
    assert with_few[0] == alone
    smallest = min(test["p_value"] for test in with_few[1:])
    assert min(test["corrected"] for test in with_few[1:]) == pytest.approx(min(9 * smallest, 1))


def test_only_repetitions_that_both_have_are_significance_tests():
    first = row("a", [0.1, 0.2, 0.4, 0.7], [0, 1, 2, 3])
    second = row("b", [0.3, 0.3, 0.9], [1, 2, 5])
    (test,) = significance_tests([first, second], ["map_at_r"])
    assert test["num_pairs"] == 2
    assert test["difference"] == pytest.approx((0.2 - 0.3 + 0.4 - 0.3) / 2)


def test_rows_without_scores_or_with_one_common_repetition_are_not_tested():
    rows = [row("a", [0.1, 0.2]), row("b", []), row("c", [0.3, 0.4], [1, 9])]
    assert significance_tests(rows, ["map_at_r"]) == []


def test_rows_of_changed_settings_are_compared_that_differ_in_one_thing():
    delta, batch = {"loss.delta": 0.8}, {"train.per_class": 2}
    rows = [
        row(name, [0.1, 0.2, 0.4], at={"x": at}, loss=loss, changes=changes)
        for name, loss, changes, at in (
            ("x1", "x", {}, 1),
            ("x2", "x", {}, 2),
            ("delta1", "x", delta, 1),
            ("delta2", "x", delta, 2),
            ("delta batch", "x", {**delta, **batch}, 1),
            ("y", "y", {}, 1),
            ("y batch", "y", batch, 1),
        )
    ]
    pairs = {(t["first"], t["second"]) for t in significance_tests(rows, ["map_at_r"])}
    assert pairs == {
        ("x1", "x2"),
        ("delta1", "delta2"),
        ("x1", "delta1"),
        ("x2", "delta2"),
        ("delta1", "delta batch"),
        ("x1", "y"),
        ("delta1", "y"),
        ("delta batch", "y batch"),
        ("y", "y batch"),
    }


def test_scores_are_those_of_the_test_set_wherever_it_was_looked_at():
    result = {"map_at_r": 0.5, "epoch": 3, "seconds": 2.0}
    scores = run_scores([{**result, "test": {"map_at_r": 0.4}}] * 2)
    assert scores["map_at_r"]["mean"] == 0.4
    assert scores["valid.map_at_r"]["mean"] == 0.5
    assert "valid.map_at_r" not in run_scores([result])
    assert run_scores([]) == {}

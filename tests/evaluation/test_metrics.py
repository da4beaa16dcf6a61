"""Metrics on hand-made hits."""

import pytest
import torch

from weiss.evaluation import metrics

HITS = torch.tensor([[True, False, True, True], [False, False, False, True]])
RELEVANT = torch.tensor([3, 1])


def test_metrics_of_a_worked_example():
    assert metrics.precision_at(HITS, 1).tolist() == [1.0, 0.0]
    assert metrics.precision_at(HITS, 4).tolist() == [0.75, 0.25]
    assert metrics.recall_at(HITS, 3).tolist() == [1.0, 0.0]
    assert metrics.recall_at(HITS, 4).tolist() == [1.0, 1.0]
    assert metrics.r_precision(HITS, RELEVANT).tolist() == pytest.approx([2 / 3, 0.0])
    # The fourth neighbour of the first query is a hit beyond R.
    assert metrics.average_precision_at_r(HITS, RELEVANT).tolist() == pytest.approx(
        [(1 + 2 / 3) / 3, 0.0]
    )
    assert metrics.average_precision_at(HITS, RELEVANT, 4).tolist() == pytest.approx(
        [(1 + 2 / 3 + 3 / 4) / 3, 1 / 4]
    )
    assert metrics.average_precision_at(HITS, RELEVANT, 2).tolist() == pytest.approx([1 / 2, 0.0])


def test_neighbours_beyond_the_gallery_are_no_hits():
    assert metrics.recall_at(HITS, 9).tolist() == [1.0, 1.0]
    assert metrics.precision_at(HITS, 10).tolist() == [0.3, 0.1]
    with pytest.raises(ValueError, match="k must be at least 1"):
        metrics.recall_at(HITS, 0)

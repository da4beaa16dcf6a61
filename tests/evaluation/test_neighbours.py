"""Exact selection: chunks, blocks and ties."""

import math

import numpy as np
import pytest
import torch

from weiss.evaluation import neighbours


def found(query, gallery, needs, **options):
    """Blocks of neighbours on the CPU; by default of all queries among themselves, in one block."""
    usual = {"leave_one_out": True, "budget": 2**28, "rows": np.arange(len(query))}
    options = usual | {"device": torch.device("cpu")} | options
    return neighbours.nearest_neighbours(query, gallery, needs, **options)


def expected_order(scores, k):
    """Columns by falling score, equal scores from the left, written as a sort of pairs."""
    rows = []
    for row in scores.tolist():
        rows.append([column for _, column in sorted((-s, c) for c, s in enumerate(row))[:k]])
    return rows


@pytest.mark.parametrize(
    ("values", "width", "k"),
    [
        (2, 1, 1),
        (None, 7, 7),
        (5, 40, 1),
        (2, 1000, 3),
        (1000, 1037, 9),
        (None, 1037, 9),
        (None, 4096, 5),
        (5, 500, 400),
    ],
)
def test_the_largest_scores_come_in_order_with_ties_from_the_left(values, width, k):
    generator = torch.Generator().manual_seed(width)
    if values is None:
        scores = torch.randn(11, width, generator=generator)
    else:
        scores = torch.randint(values, (11, width), generator=generator).float()
    largest, index = neighbours._largest(scores, k)
    assert index[:, :k].tolist() == expected_order(scores, k)
    assert torch.equal(largest, scores.gather(1, index))


@pytest.mark.parametrize(
    ("kind", "budget", "leave_one_out"),
    [
        ("cosine", 2_000, True),
        ("euclidean", 2_000, False),
        ("euclidean", 100_000, True),
        ("cosine", 2**28, False),
        ("euclidean", 2**28, True),
    ],
)
def test_any_budget_finds_the_neighbours_of_the_whole_matrix(kind, budget, leave_one_out):
    torch.manual_seed(0)
    gallery = torch.randn(1500, 6, dtype=torch.float64) + 3.0
    query = gallery if leave_one_out else torch.randn(40, 6, dtype=torch.float64)
    rows = np.arange(len(query))[5:40]
    needs = np.arange(len(query)) % 7 + 1
    if kind == "cosine":
        unit = torch.nn.functional.normalize
        distance = 1 - unit(query) @ unit(gallery).T
    else:
        distance = (query[:, None] - gallery).norm(dim=2)
    if leave_one_out:
        distance.fill_diagonal_(math.inf)
    expected = distance.argsort(dim=1, stable=True)
    seen = []
    options = {"leave_one_out": leave_one_out, "budget": budget, "rows": rows}
    for block, index in found(query, gallery, needs, distance=kind, **options):
        assert index.shape[1] == needs[block].max()
        assert torch.equal(index, expected[block, : index.shape[1]])
        seen.extend(block.tolist())
    assert sorted(seen) == rows.tolist()


def test_missing_neighbours_are_nobody():
    x = torch.randn(3, 2)
    ((_, index),) = found(x, x, np.array([5, 5, 5]), distance="cosine")
    assert index.shape == (3, 3)  # no more than the gallery holds
    assert (index[:, 2] == neighbours.NOBODY).all()
    assert (index[:, :2] >= 0).all()


@pytest.mark.parametrize("gap", [0.0, 1e3, 1e5])
def test_euclidean_neighbours_are_exact_in_float32_however_far_apart_the_groups(gap):
    torch.manual_seed(0)
    side = torch.randint(2, (300, 1)) * 2.0 - 1.0
    items = torch.randn(300, 8) + gap * side
    exact = (items.double()[:, None] - items.double()).norm(dim=2).fill_diagonal_(math.inf)
    ((_, index),) = found(items, items, np.full(300, 5), distance="euclidean")
    assert torch.equal(index, exact.argsort(dim=1, stable=True)[:, :5])

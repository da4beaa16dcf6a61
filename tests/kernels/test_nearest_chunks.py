"""Largest scores of chunks and scores of their items, in Triton's interpreter.

The interpreter must be chosen before triton is imported, so this file is also a program: it
computes every case with the kernels, on the CPU, and saves the results.
"""

import math
import sys

import numpy as np
import pytest
import torch

SHAPES = {
    "one of everything": (1, 1, 3),
    "a tile and a rest": (20, 300, 40),
    "several tiles": (67, 513, 80),
}
SEARCHES = [
    (distance, leave_one_out) for distance in ("cosine", "euclidean") for leave_one_out in (1, 0)
]


def rows_of(shape):
    generator = torch.Generator().manual_seed(0)
    queries, items, size = shape
    return (torch.randn(rows, size, generator=generator).half() for rows in (queries, items))


def searched():
    """Few queries, and items enough to have chunks; some equal."""
    generator = torch.Generator().manual_seed(1)
    items = torch.randn(1400, 16, generator=generator)
    items[700:720] = items[20:40]
    return items


def nearest(distance, leave_one_out):
    from weiss.evaluation import neighbours

    items, in_full = searched(), np.zeros(1400, dtype=bool)
    query = items if leave_one_out else items[:30] + 0.1
    ((rows, index),) = neighbours.nearest_neighbours(
        query, items, np.full(len(query), 3), distance=distance, budget=2**30,
        leave_one_out=bool(leave_one_out), device=items.device, rows=np.arange(20, 28),
        in_full=in_full,
    )  # fmt: skip
    return torch.from_numpy(rows), index, int(in_full.sum())


def _interpret(path):
    from weiss.evaluation import screening
    from weiss.kernels import nearest_chunks

    torch.set_num_threads(1)
    nearest_chunks.TILE |= {"ROWS": 32, "STEP": 32, "BAND": 2}
    screening.WORTHWHILE = {"cpu": 0}
    results = {}
    for name, shape in SHAPES.items():
        query, items = rows_of(shape)
        # What lies behind the items must not matter.
        padded = torch.cat([items, torch.full((256, shape[2]), math.nan).half()])
        maxima = nearest_chunks.maxima(query, padded, len(items))
        chunk = torch.arange(min(maxima.shape[1], 11)).flip(0).expand(len(query), -1)
        own = torch.arange(len(query)) - 1
        for dtype in (torch.float32, torch.float64):
            bias = torch.arange(len(items)).to(dtype)
            given = query.to(dtype), items.to(dtype), bias, own, chunk
            results[name, dtype] = nearest_chunks.exact_scores(*given)
        results[name] = maxima, chunk
    for search in SEARCHES:
        results[search] = nearest(*search)
    torch.save(results, path)


def members(chunk):
    """The items of a chunk: every eighth of a group of 128."""
    return [chunk // 8 * 128 + chunk % 8 + 8 * step for step in range(16)]


@pytest.mark.parametrize("name", SHAPES)
def test_maxima_are_those_of_the_items_of_each_chunk(interpreted, name):
    query, items = (rows.double() for rows in rows_of(SHAPES[name]))
    maxima, _ = interpreted[name]
    assert maxima.shape[1] * 16 >= len(items)
    for chunk in range(maxima.shape[1]):
        inside = [item for item in members(chunk) if item < len(items)]
        if inside:
            expected = torch.stack([(query * items[item]).sum(1) for item in inside]).amax(0)
            assert torch.allclose(maxima[:, chunk].double(), expected, atol=1e-4)
        else:
            assert (maxima[:, chunk] == -math.inf).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_scores_are_exact_and_name_their_items(interpreted, name, dtype):
    query, items = (rows.double() for rows in rows_of(SHAPES[name]))
    scores, found = interpreted[name, dtype]
    _, chunks = interpreted[name]
    for q, chosen in enumerate(chunks.tolist()):
        named = [item for chunk in chosen for item in members(chunk)]
        assert found[q].tolist() == named
        for score, item in zip(scores[q].tolist(), named, strict=True):
            if item >= len(items) or item == q - 1:
                assert score == -math.inf
            else:
                exact = (query[q] * items[item]).sum().item() + item
                assert score == pytest.approx(exact, abs=2e-4 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_neighbours_are_those_of_the_definition(interpreted, search):
    distance, leave_one_out = search
    rows, found, in_full = interpreted[search]
    items = searched().double()
    query = items if leave_one_out else (searched()[:30] + 0.1).double()
    for row, index in zip(rows.tolist(), found, strict=True):
        if distance == "cosine":
            away = -(items @ query[row]) / items.norm(dim=1)
        else:
            away = (items - query[row]).norm(dim=1)
        # Equal items are equally far; rounding must not part them.
        away[700:720] = away[20:40]
        if leave_one_out:
            away[row] = math.inf
        assert index.tolist() == away.sort(stable=True).indices[:3].tolist()
    assert in_full < 5


if __name__ == "__main__":
    _interpret(sys.argv[1])

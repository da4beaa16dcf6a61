"""Hinges over near pairs, in Triton's interpreter.

The interpreter must be chosen before triton is imported, so this file is also a program: it
computes every case with the kernels, on the CPU, and saves the results.
"""

import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent.parent))  # when run as a program
from budgets import (
    assert_within_budget,
    clustered,
    found,
    found_alone,
    refusal,
    same_bits,
    with_fields,
)

from weiss.kernels.problem import Problem
from weiss.theory.distances import cosine_distance

SHAPES = {
    "a few": (9, 20, 8),
    "several blocks": (33, 140, 12),
    "one of everything": (1, 1, 3),
    "one sample": (1, 40, 4),
    "more samples than classes": (34, 3, 20),
    "all classes": (9, 9, 5),
    "zero vectors": (9, 20, 5),
}
CASES = [
    *((shape, "classes") for shape in SHAPES),
    ("a few", "samples"),
    ("more samples than classes", "samples"),
]
MARGIN = 0.45
ON = {"impl": "triton", "skip": "on", "neg_margin": MARGIN}


def batch_of(name):
    special = {"all classes": {"all_classes": True}, "zero vectors": {"zeros": True}}
    return clustered(*SHAPES[name], same=SHAPES[name][0] // 3, **special.get(name, {}))


def computed(batch, precision=torch.float32, broken=False, **options):
    """Value and gradients, and the share that was skipped."""
    embeddings, labels, fields = batch_of(batch)
    if broken:
        fields[next(c for c in range(len(fields)) if c not in labels), 1] = math.nan
    if precision == torch.float64:
        fields = fields.double()
    loss = with_fields("mf_contrastive", fields, **options)
    return [*found(loss, embeddings.to(precision), labels), loss.skipped_share]


def wanted_alone(which, **options):
    embeddings, labels, fields = batch_of("a few")
    loss = with_fields("mf_contrastive", fields, **options)
    return found_alone(loss, embeddings, labels, which)[1 if which == "embeddings" else 2]


def refused(labels_too_large, **options):
    embeddings, labels, fields = batch_of("a few")
    if labels_too_large:
        labels[3] = 20
    else:
        embeddings[4, 1] = math.nan
    return refusal(with_fields("mf_contrastive", fields, **options), embeddings, labels)


def _interpret(path):
    """Take every case with the kernels."""
    from weiss.kernels import near_pairs

    torch.set_num_threads(1)
    # Several blocks, several parts, and tiles as small as they may be.
    near_pairs.MARKED_CLASSES, near_pairs.WORDS_A_PART = 128, 2
    near_pairs.MOST_PARTS, near_pairs.FIELDS = 2, 4
    near_pairs.TILE = {"ROWS": 32, "COLUMNS": 64, "STEP": 16, "num_warps": 4}
    pays = near_pairs.PAYS
    near_pairs.PAYS = dict.fromkeys(pays, math.inf)
    results = {}
    for batch, average in CASES:
        results[batch, average] = computed(batch, average=average, **ON)
    batch = "a few"
    for dtype in (torch.float16, torch.bfloat16):
        results[str(dtype)] = computed(batch, dtype, **ON)
    results["narrow products"] = computed(batch, matmul_dtype="bfloat16", **ON)
    results["no number"] = computed(batch, broken=True, check=False, **ON)
    for which in ("embeddings", "fields"):
        results[which] = wanted_alone(which, **ON)
    for too_large in (True, False):
        results["refused", too_large] = refused(too_large, **ON)
    reach, Problem.reach = Problem.reach, math.inf
    results["every pair"] = computed(batch, **ON)
    Problem.reach = reach
    near_pairs.PAYS = dict.fromkeys(pays, -1.0)
    results["too many"] = computed(batch, **ON)
    results["all pairs"] = computed(batch, **{**ON, "skip": "off"})
    asked, fuse = [], near_pairs.fuse
    near_pairs.fuse = lambda kernel, task: (asked.append(kernel), fuse("small", task))[1]
    computed(batch, matmul_dtype="bfloat16", **ON)
    results["asked"] = asked
    torch.save(results, path)


@pytest.mark.parametrize(("batch", "average"), CASES)
def test_errors_are_those_of_the_plain_formula(interpreted, batch, average):
    plainly = {"impl": "reference", "neg_margin": MARGIN, "average": average}
    *results, skipped = interpreted[batch, average]
    truth = computed(batch, torch.float64, **plainly)[:3]
    plain = computed(batch, **plainly)[:3]
    # Nothing is computed with length 0 in float64 either: its gradient is no number to err from.
    assert all(tensor.isfinite().all() for tensor in results)
    assert_within_budget(results, plain, truth, slack=5e-6)
    assert 0.0 <= skipped < 1.0


@pytest.mark.parametrize("batch", SHAPES)
def test_few_pairs_are_visited_that_are_out_of_reach(interpreted, batch):
    """Those within reach, and samples with their own classes, but for what rounding blurs."""
    embeddings, labels, fields = batch_of(batch)
    dist_BC = cosine_distance(embeddings.double(), fields.double())
    own = torch.nn.functional.one_hot(labels, len(fields)).bool()
    reached, blurred = ((dist_BC < MARGIN + more) | own for more in (0.0, 2e-3))
    visited = (1 - interpreted[batch, "classes"][3]) * dist_BC.numel()
    assert reached.sum() - 0.5 < visited < blurred.sum() + 0.5


def test_a_mark_too_many_changes_no_bit(interpreted):
    few, every = interpreted["a few", "classes"], interpreted["every pair"]
    assert few[3] > 0.4
    assert every[3] == 0.0
    assert same_bits(few[:3], every[:3])
    # Nor do products in half precision.
    assert same_bits(few[:3], interpreted["narrow products"][:3])


def test_a_field_that_is_no_number_is_not_hidden(interpreted):
    assert interpreted["no number"][1].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_embeddings_in_half_precision(interpreted, dtype):
    results = interpreted[str(dtype)]
    embeddings, labels, fields = batch_of("a few")
    exact = with_fields("mf_contrastive", fields.double(), impl="reference", neg_margin=MARGIN)
    truth = found(exact, embeddings.to(dtype).double(), labels)
    assert results[1].dtype == dtype
    torch.testing.assert_close(results[0].double(), truth[0], rtol=1e-5, atol=1e-7)
    scale = truth[1].abs().max().item()
    torch.testing.assert_close(results[1].double(), truth[1], rtol=1e-2, atol=1e-2 * scale)


@pytest.mark.parametrize("which", ["embeddings", "fields"])
def test_either_gradient_may_be_wanted_alone(interpreted, which):
    both = interpreted["a few", "classes"]
    assert interpreted[which].equal(both[1 if which == "embeddings" else 2])


def test_where_too_many_are_near_all_are_taken(interpreted):
    *results, skipped = interpreted["too many"]
    *expected, none = interpreted["all pairs"]
    assert skipped == 0.0
    assert none is None
    assert same_bits(results, expected)
    assert interpreted["asked"] == ["bfloat16"]


@pytest.mark.parametrize("too_large", [True, False])
def test_wrong_values_are_refused_in_the_same_words(interpreted, too_large):
    assert interpreted["refused", too_large] == refused(too_large, impl="reference")


if __name__ == "__main__":
    _interpret(sys.argv[1])

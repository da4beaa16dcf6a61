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
    *((shape, "classes", torch.float32) for shape in SHAPES),
    ("a few", "samples", torch.float32),
    ("more samples than classes", "samples", torch.float32),
    ("a few", "classes", torch.float16),
    ("a few", "classes", torch.bfloat16),
]
MARGIN = 0.45
ON = {"impl": "triton", "skip": "on", "neg_margin": MARGIN}


def batch_of(name):
    special = {"all classes": {"all_classes": True}, "zero vectors": {"zeros": True}}
    return clustered(*SHAPES[name], same=SHAPES[name][0] // 3, **special.get(name, {}))


def computed(batch, dtype=torch.float32, exactly=False, broken=False, **options):
    """Value and gradients of embeddings of a dtype, and the share that was skipped."""
    embeddings, labels, fields = batch_of(batch)
    embeddings = embeddings.to(dtype)
    if broken:
        fields[next(c for c in range(len(fields)) if c not in labels), 1] = math.nan
    if exactly:
        embeddings, fields = embeddings.double(), fields.double()
    loss = with_fields("mf_contrastive", fields, **options)
    return [*found(loss, embeddings, labels), loss.skipped_share]


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
    for batch, average, dtype in CASES:
        results[batch, average, dtype] = computed(batch, dtype, average=average, **ON)
    batch = "a few"
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


@pytest.mark.parametrize(("batch", "average", "dtype"), CASES)
def test_errors_are_those_of_the_plain_formula(interpreted, batch, average, dtype):
    plainly = {"impl": "reference", "neg_margin": MARGIN, "average": average}
    *results, skipped = interpreted[batch, average, dtype]
    truth = computed(batch, dtype, exactly=True, **plainly)[:3]
    plain = computed(batch, dtype, **plainly)[:3]
    # Nothing is computed with length 0 in float64 either: its gradient is no number to err from.
    assert all(tensor.isfinite().all() for tensor in results)
    assert [a.dtype for a in results] == [a.dtype for a in plain]
    # The interpreter cuts bits off a bfloat16, where a GPU rounds.
    cut = torch.finfo(dtype).eps / 2 if dtype == torch.bfloat16 else 0.0
    assert_within_budget(results, plain, truth, slack=5e-6 + cut)
    assert 0.0 <= skipped < 1.0


@pytest.mark.parametrize("batch", SHAPES)
def test_few_pairs_are_visited_that_are_out_of_reach(interpreted, batch):
    """Those within reach, and samples with their own classes, but for what rounding blurs."""
    embeddings, labels, fields = batch_of(batch)
    dist_BC = cosine_distance(embeddings.double(), fields.double())
    own = torch.nn.functional.one_hot(labels, len(fields)).bool()
    reached, blurred = ((dist_BC < MARGIN + more) | own for more in (0.0, 2e-3))
    visited = (1 - interpreted[batch, "classes", torch.float32][3]) * dist_BC.numel()
    assert reached.sum() - 0.5 < visited < blurred.sum() + 0.5


def test_a_mark_too_many_changes_no_bit(interpreted):
    few, every = interpreted["a few", "classes", torch.float32], interpreted["every pair"]
    assert few[3] > 0.4
    assert every[3] == 0.0
    assert same_bits(few[:3], every[:3])
    # Nor do products in half precision.
    assert same_bits(few[:3], interpreted["narrow products"][:3])


def test_a_field_that_is_no_number_is_not_hidden(interpreted):
    assert interpreted["no number"][1].isnan().all()


@pytest.mark.parametrize("which", ["embeddings", "fields"])
def test_either_gradient_may_be_wanted_alone(interpreted, which):
    both = interpreted["a few", "classes", torch.float32]
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

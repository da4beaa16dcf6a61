"""Class-wise binomial deviance: one more pair loss through the derivation."""

import ast
import inspect

import loops
import pytest
import torch
from budgets import with_fields

from weiss import (
    BinomialDevianceLoss,
    ContrastiveLoss,
    MeanFieldBinomialDevianceLoss,
    MeanFieldContrastiveLoss,
)
from weiss.losses import binomial

A, B, DELTA = 2.0, 5.0, 0.7


def attraction(dist):
    return torch.log(1 + torch.exp(A * (dist - DELTA))) / A


def repulsion(dist):
    return torch.log(1 + torch.exp(-B * (dist - DELTA))) / B


def plain(average):
    return average


DEFINITION = (attraction, repulsion, plain, plain)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["cosine", "euclidean"])
def test_both_forms_match_the_nested_loop_of_the_definition(seed, kind):
    embeddings, labels, fields = loops.random_batch(seed, batch=8, num_classes=6)
    pair = BinomialDevianceLoss(A, B, DELTA, distance=kind)
    expected = loops.pair_loss(*DEFINITION, kind, embeddings, labels)
    assert pair(embeddings, labels).item() == pytest.approx(expected.item(), rel=1e-12)

    child = with_fields("mf_binomial", fields, alpha=A, beta=B, delta=DELTA, distance=kind)
    expected = loops.mean_field_loss(*DEFINITION, kind, embeddings, labels, fields)
    assert child(embeddings, labels).item() == pytest.approx(expected.item(), rel=1e-12)


def test_at_large_rates_it_is_the_contrastive_loss():
    embeddings, labels = torch.randn(9, 4).double(), torch.arange(9) % 3
    soft, hard = BinomialDevianceLoss(1e5, 1e5, 0.6), ContrastiveLoss(0.6, 0.6)
    assert soft(embeddings, labels).item() == pytest.approx(
        hard(embeddings, labels).item(), abs=1e-4
    )
    soft = MeanFieldBinomialDevianceLoss(3, 4, 1e5, 1e5, 0.6).double()
    hard = MeanFieldContrastiveLoss(3, 4, 0.6, 0.6).double()
    hard.load_state_dict(soft.state_dict())
    assert soft(embeddings, labels).item() == pytest.approx(
        hard(embeddings, labels).item(), abs=1e-4
    )


def test_a_new_pair_loss_takes_at_most_25_lines_for_both_forms():
    source = inspect.getsource(binomial)
    lines = source.splitlines()
    counted = set()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        counted |= set(range(node.lineno - len(node.decorator_list), node.end_lineno + 1))
        for inner in ast.walk(node):
            if isinstance(inner, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(inner):
                text = inner.body[0]
                counted -= set(range(text.lineno, text.end_lineno + 1))
    code = [number for number in counted if lines[number - 1].strip()]
    assert 10 < len(code) <= 25

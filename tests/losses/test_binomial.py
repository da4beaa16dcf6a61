"""Class-wise binomial deviance: one more pair loss through the derivation."""

import ast
import inspect
import math

import pytest
import torch

from weiss import (
    BinomialDevianceLoss,
    ContrastiveLoss,
    MeanFieldBinomialDevianceLoss,
    MeanFieldContrastiveLoss,
)
from weiss.losses import binomial

A, B, DELTA = 2.0, 5.0, 0.7


def cosine_distance(x, y):
    dot = sum(a * b for a, b in zip(x, y, strict=True))
    return 1 - dot / math.hypot(*x) / math.hypot(*y)


def deviance_pair_loss(embeddings, labels):
    """Mean of log(1 + e^{a (d - delta)}) / a over class pairs, likewise between classes."""
    total, present = 0.0, set(labels)
    for c in present:
        mine = [x for x, y in zip(embeddings, labels, strict=True) if y == c]
        for x in mine:
            for y in mine:
                value = math.log(1 + math.exp(A * (cosine_distance(x, y) - DELTA))) / A
                total += value / len(mine) ** 2 / 2 / len(present)
        for other in present - {c}:
            theirs = [x for x, y in zip(embeddings, labels, strict=True) if y == other]
            for x in mine:
                for y in theirs:
                    value = math.log(1 + math.exp(-B * (cosine_distance(x, y) - DELTA))) / B
                    total += value / len(mine) / len(theirs) / 2 / len(present)
    return total


def deviance_mean_field_loss(embeddings, labels, fields):
    total, present = 0.0, set(labels)
    for x, c in zip(embeddings, labels, strict=True):
        weight = 1 / labels.count(c) / len(present)
        total += weight * math.log(1 + math.exp(A * (cosine_distance(x, fields[c]) - DELTA))) / A
        for other, field in enumerate(fields):
            if other != c:
                value = math.log(1 + math.exp(-B * (cosine_distance(x, field) - DELTA))) / B
                total += weight * value
    return total


@pytest.mark.parametrize("seed", range(5))
def test_both_forms_match_their_own_nested_loop(seed):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (8,), generator=generator)
    pair = BinomialDevianceLoss(A, B, DELTA)
    expected = deviance_pair_loss(embeddings.tolist(), labels.tolist())
    assert pair(embeddings, labels).item() == pytest.approx(expected, rel=1e-12)

    child = MeanFieldBinomialDevianceLoss(6, 3, A, B, DELTA).double()
    expected = deviance_mean_field_loss(embeddings.tolist(), labels.tolist(), child.fields.tolist())
    assert child(embeddings, labels).item() == pytest.approx(expected, rel=1e-12)


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

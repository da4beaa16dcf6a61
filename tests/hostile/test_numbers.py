"""Losses and metrics against nested loops in float64, on shapes and numbers drawn at random."""

import loops
import numpy as np
import pytest
import torch
from budgets import MEAN_FIELD, OURS
from hostile.harm import Failures, called, draws

import weiss

CASES = 150
"""Batches for each loss."""
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# Shares of the largest number: how far a value and a gradient may be from the truth. A gradient in
# 16 bits is rounded to them, and is a sum of a few such.
VALUE = {torch.float64: 1e-9, torch.float32: 5e-5, torch.bfloat16: 5e-5, torch.float16: 5e-5}
GRADIENT = {torch.float64: 1e-6, torch.float32: 2e-3, torch.bfloat16: 2**-6, torch.float16: 4e-3}


def plain(x):
    return x


def definition(name, random):
    """Draw the settings of a loss; return them, and its energies and links from the paper."""
    if name.endswith("contrastive"):
        near, far = random.uniform(-0.1, 0.6), random.uniform(0.05, 1.5)

        def pull(d):
            return torch.relu(d - near)

        def push(d):
            return torch.relu(far - d)

        return {"pos_margin": near, "neg_margin": far}, (pull, push, plain, plain)
    a, b, delta = 10 ** random.uniform(-2, 1), 10 ** random.uniform(0, 1.9), random.uniform(-0.2, 1)
    settings = {"alpha": a, "beta": b, "delta": delta}

    def over(rate):
        return lambda x: torch.log(1 + x) / rate

    if name.endswith(("cwms", "rest_ms")):
        energies = lambda d: torch.exp(a * (d - delta)), lambda d: torch.exp(-b * (d - delta))
        flat = {"margin": 0.0} if name.endswith("rest_ms") else {}
        return settings | flat, (*energies, over(a), over(b))
    assert name.endswith("binomial"), f"the definition of {name} must be written here"
    energies = (
        lambda d: over(a)(torch.exp(a * (d - delta))),
        lambda d: over(b)(torch.exp(-b * (d - delta))),
    )
    return settings, (*energies, plain, plain)


ORACLES = {
    (True, False): loops.mean_field_loss,
    (True, True): loops.mean_field_loss_against_rest,
    (False, False): loops.pair_loss,
    (False, True): loops.pair_loss_against_rest,
}
"""The loops of a loss: with fields or not, one against the rest or not."""


def batch(random, dtype):
    """Draw embeddings with duplicates, labels of one kind or the other, and fields."""
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    number, classes, size = random.randint(1, 9), random.randint(1, 7), random.randint(1, 6)
    scale = 10 ** random.uniform(-2, 0.7)  # far away exponentials of the loops overflow
    x, fields = (
        (scale * torch.randn(rows, size, generator=generator)).to(dtype)
        for rows in (number, classes)
    )
    for row in range(1, number):
        if random.random() < 0.2:
            x[row] = x[random.randrange(row)]
    labels = torch.randint(classes, (number,), generator=generator)
    if random.random() < 0.3 and classes > 1:
        hot = torch.nn.functional.one_hot(labels, classes)
        labels = hot | (torch.rand(hot.shape, generator=generator) < 0.2).long()
    return x, labels, fields


def gradients_of(value, inputs):
    found = torch.autograd.grad(value, inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


@pytest.mark.parametrize("name", OURS)
def test_values_and_gradients_are_those_of_nested_loops(name):
    failures, random = Failures(f"loss {name}"), draws(name)
    for case in range(CASES):
        dtype, kind = random.choice(DTYPES), random.choice(["cosine", "euclidean"])
        settings, terms = definition(name, random)
        x, labels, fields = batch(random, dtype)
        inputs = [x, fields] if name in MEAN_FIELD else [x]
        exact = [each.double().requires_grad_() for each in inputs]
        oracle = ORACLES[name in MEAN_FIELD, name.endswith("rest_ms")]
        truth = oracle(*terms, kind, exact[0], labels, *exact[1:])
        true_gradients = gradients_of(truth, exact) if truth.requires_grad else [None] * 2
        for impl in ("reference", "streaming") if name in MEAN_FIELD else ("reference",):
            options = {"distance": kind, "impl": impl, **settings}
            where = f"case {case}, {dtype}, {tuple(x.shape)}, labels {labels.tolist()}, {options}"
            loss = weiss.make_loss(name, *fields.shape, **options).to(dtype)
            given = [x.clone().requires_grad_()]
            if name in MEAN_FIELD:
                loss.load_state_dict({"fields": fields})
                given.append(loss.fields)
            value = loss(given[0], labels)
            far = (value.double() - truth).abs() / (1 + truth.abs())
            failures.must(bool(far <= VALUE[dtype]), f"{where}: {value.item()}, not {truth.item()}")
            for ours, true in zip(gradients_of(value, given), true_gradients, strict=False):
                if true is None:
                    continue
                scale = true.norm().item()
                gap = (ours.double() - true).norm().item()
                # Where everything cancels, rounding of single terms is left.
                shortest = min(each.norm(dim=1).min().item() for each in exact)
                small = 1e-3 * GRADIENT[dtype] / max(shortest, 1e-9)
                held = gap <= GRADIENT[dtype] * scale + small
                failures.must(held, f"{where}: a gradient is off by {gap:.3g} of {scale:.3g}")
    failures.settle()


@pytest.mark.parametrize("name", weiss.LOSSES)
def test_a_row_that_is_not_finite_never_gives_a_finite_loss(name):
    failures, random = Failures("losses of rows that are not finite"), draws(f"nan {name}")
    ours = [{"impl": impl, "check": check} for impl in ("reference",) for check in (True, False)]
    if name in MEAN_FIELD:
        ours += [{"impl": "streaming", "check": check} for check in (True, False)]
    for _ in range(40):
        dtype = random.choice(DTYPES[1:])
        number, size = random.randint(4, 12), random.randint(2, 8)
        generator = torch.Generator().manual_seed(random.randrange(2**31))
        x = torch.randn(number, size, generator=generator)
        labels = torch.arange(number) % random.randint(2, 3)
        bad = random.choice([float("nan"), float("inf"), -float("inf")])
        row = random.randrange(number)
        x[row, random.randrange(size) if random.random() < 0.5 else slice(None)] = bad
        for options in ours if name in OURS else [{}]:
            loss = weiss.make_loss(name, 3, size, **options)
            outcome = called(lambda: loss(x.to(dtype), labels).item())  # noqa: B023
            if outcome.kind == "refused":
                failures.judge(outcome, None, f"{name}, {options}")
                continue
            held = outcome.kind == "answer" and not np.isfinite(outcome.answer)
            where = f"{name}, {options}, {dtype}, {bad} in row {row} of {number}: {outcome}"
            failures.must(held, where)
    failures.settle()


@pytest.mark.parametrize("kind", ["cosine", "euclidean"])
def test_metrics_are_those_of_nested_loops(kind):
    failures, random = Failures(f"metrics, {kind}"), draws(kind)
    ks = (1, 2, 5, 40)
    for case in range(250):
        points = np.random.default_rng(random.randrange(2**31))

        def some(number, points=points):
            """Few distinct points whose distances are exact, so that many tie exactly."""
            if kind == "euclidean":
                return points.integers(0, 4, (number, 3)).astype(np.float64)
            axes = np.concatenate([np.eye(3), -np.eye(3)])[points.integers(0, 6, number)]
            return axes * 2.0 ** points.integers(-3, 4, (number, 1))

        number, classes = random.randint(4, 40), random.randint(1, 8)
        query, labels = some(number), points.integers(0, classes, number)
        others = () if case % 2 else (some(17), points.integers(0, classes, 17))
        told = []
        for each in (query, labels, *others):
            told.append(each.tolist() if each.ndim == 2 else [{int(c)} for c in each])
        dtype = random.choice([np.float32, np.float64, np.float16])
        given = [each.astype(dtype) if each.dtype == np.float64 else each for each in others]
        options = {"recall_at": ks, "precision_at": ks, "map_at": ks, "distance": kind}
        options["memory_budget"] = random.choice([None, 2_000, 100_000])
        where = f"case {case}, {dtype.__name__}, {number} points of {classes} classes, {options}"
        truth = loops.metrics_by_loops(kind, *told, ks=ks)
        if not truth["queries"]:  # no query has anything to find
            outcome = called(weiss.retrieval_metrics, query.astype(dtype), labels, *given)
            failures.judge(outcome, None, where, must_refuse=True)
            continue
        found = weiss.retrieval_metrics(query.astype(dtype), labels, *given, **options)
        off = {k: (found[k], truth[k]) for k in truth if abs(found[k] - truth[k]) > 1e-9}
        failures.must(not off, f"{where}: {off}")
        query[random.randrange(number), 0] = random.choice([np.nan, np.inf])
        outcome = called(lambda: weiss.retrieval_metrics(query, labels, *others))  # noqa: B023
        failures.judge(outcome, None, f"{where}, a row is not finite", must_refuse=True)
    failures.settle()

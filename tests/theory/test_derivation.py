"""The derivation against one generic nested loop, with descriptions invented here."""

import inspect
from dataclasses import dataclass

import loops
import pytest
import torch
from budgets import OURS, found
from torch import Tensor

import weiss
from weiss import MeanFieldLoss, PairLoss
from weiss.kernels import constraint, streaming
from weiss.losses import Contrastive
from weiss.theory.interactions import Interactions, LogLink, rate

CASES = [
    (seed, kind, average)
    for seed, average in enumerate(["classes", "samples", "none"])
    for kind in ("cosine", "euclidean")
]


@dataclass(frozen=True)
class SquaredHinge(Interactions):
    near: float = 0.1
    far: float = 1.1

    def attraction(self, dist: Tensor) -> Tensor:
        return (dist - self.near).clamp_min(0).square()

    def repulsion(self, dist: Tensor) -> Tensor:
        return (self.far - dist).clamp_min(0).square()


@dataclass(frozen=True)
class Gravity(Interactions):
    """Mixed links: a plain average of distances inside, an exponential between classes."""

    beta: float = rate(3.0)

    @property
    def repulsion_link(self) -> LogLink:
        return LogLink(self.beta)

    def attraction(self, dist: Tensor) -> Tensor:
        return dist

    def repulsion(self, dist: Tensor) -> Tensor:
        return -self.beta * dist


@dataclass(frozen=True)
class Inverted(Interactions):
    """A logarithm of attractions, repulsion without one."""

    @property
    def attraction_link(self) -> LogLink:
        return LogLink(0.5)

    def attraction(self, dist: Tensor) -> Tensor:
        return dist.sin()

    def repulsion(self, dist: Tensor) -> Tensor:
        return 1 / (0.1 + dist)


@dataclass(frozen=True)
class Indifferent(Interactions):
    """Its repulsion does not look at the distance, and so has no slope."""

    def attraction(self, dist: Tensor) -> Tensor:
        return dist

    def repulsion(self, dist: Tensor) -> Tensor:
        return torch.ones_like(dist)


class Doubled:
    def repulsion(self, dist: Tensor) -> Tensor:
        return 2 * super().repulsion(dist)


@dataclass(frozen=True)
class Mixed(Doubled, Contrastive):
    """What changes the energy of a known loss is not in the class itself."""


def plain(x):
    return x


def hinge(x):
    return max(x, x * 0)


INVENTED = [
    (SquaredHinge(), (lambda d: hinge(d - 0.1) ** 2, lambda d: hinge(1.1 - d) ** 2, plain, plain)),
    (Gravity(), (plain, lambda d: torch.exp(-3 * d), plain, lambda x: torch.log(1 + x) / 3)),
    (
        Inverted(),
        (lambda d: torch.exp(d.sin()), lambda d: 1 / (0.1 + d), lambda x: 2 * (1 + x).log(), plain),
    ),
    (Indifferent(), (plain, lambda d: d * 0 + 1, plain, plain)),
    (
        Mixed(0.1, 0.9),
        (lambda d: hinge(d - 0.1), lambda d: 2 * hinge(0.9 - d), plain, plain),
    ),
]
"""Descriptions; and their attraction, repulsion and links as plain functions."""
every_description = pytest.mark.parametrize(
    ("interactions", "oracle"), INVENTED, ids=[type(each).__name__ for each, _ in INVENTED]
)


def with_gradients(function, *inputs):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    value = function(*inputs)
    return value, *torch.autograd.grad(value, inputs)


def assert_equal(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@every_description
@pytest.mark.parametrize("labels_each", [None, 2])
@pytest.mark.parametrize(("seed", "kind", "average"), CASES)
def test_any_description_gives_the_pair_loss_of_the_nested_loop(
    interactions, oracle, seed, kind, average, labels_each
):
    embeddings, labels, _ = loops.random_batch(seed, labels_each=labels_each)
    loss = PairLoss(interactions, distance=kind, average=average)
    assert_equal(
        with_gradients(lambda x: loss(x, labels), embeddings),
        with_gradients(lambda x: loops.pair_loss(*oracle, kind, x, labels, average), embeddings),
    )


@every_description
@pytest.mark.parametrize("labels_each", [None, 2])
@pytest.mark.parametrize(("seed", "kind", "average"), CASES)
def test_any_description_gives_the_mean_field_loss_of_the_nested_loop(
    interactions, oracle, seed, kind, average, labels_each, monkeypatch
):
    monkeypatch.setitem(streaming.ELEMENTS, "cpu", 15)  # blocks of two classes
    monkeypatch.setitem(constraint.WIDTH, "cpu", 2)
    embeddings, labels, fields = loops.random_batch(seed, labels_each=labels_each)
    more = {"distance": kind, "average": average, "reg_weight": 0.7, "reg_scale": "released"}

    def theirs(x, m):
        main = loops.mean_field_loss(*oracle, kind, x, labels, m, average)
        return main + 0.7 * loops.soft_constraint(oracle[1], oracle[3], kind, m)

    expected = with_gradients(theirs, embeddings, fields)
    for impl in ("reference", "streaming"):
        loss = MeanFieldLoss(interactions, 5, 3, impl=impl, **more).double()
        loss.load_state_dict({"fields": fields})
        assert_equal(found(loss, embeddings, labels), expected)


def test_absent_classes_repel_the_batch_but_not_each_other():
    loss = MeanFieldLoss(SquaredHinge(near=5.0, far=1.0), 3, 2)
    apart, close = torch.eye(2), torch.tensor([[1.0, 0.1], [1.0, -0.1]])
    batch, labels = torch.tensor([[-1.0, 0.0]]), torch.tensor([0])
    values = []
    for absent in (apart, close):
        with torch.no_grad():
            loss.fields.copy_(torch.cat([batch, absent]))
        values.append(loss(batch, labels).item())
    assert values == [0.0, 0.0]  # both absent fields are a distance of 1 or more from the sample
    with torch.no_grad():
        loss.fields[1] = batch[0]
    assert loss(batch, labels).item() == pytest.approx(1.0)


def test_no_loss_averages_anything_itself():
    banned = {"mean", "sum", "logsumexp", "segment_sum", "exp", "log", "times", "matmul", "einsum"}
    for module in {inspect.getmodule(type(weiss.make_loss(name, 5, 3))) for name in OURS}:
        names = set()
        for function in _functions(module):
            names |= set(function.__code__.co_names)
        assert not names & banned, f"{module.__name__} averages: {names & banned}"


def _functions(module):
    for _, value in inspect.getmembers(module):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value):
            yield from (f for _, f in inspect.getmembers(value, inspect.isfunction))
        elif inspect.isfunction(value):
            yield value

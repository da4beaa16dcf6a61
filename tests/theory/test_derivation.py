"""The derivation against one generic nested loop, with a description invented here."""

import inspect
from dataclasses import dataclass

import loops
import pytest
import torch
from budgets import OURS
from torch import Tensor

import weiss
from weiss import MeanFieldLoss, PairLoss
from weiss.theory.interactions import Interactions, LogLink, rate

CASES = [
    (seed, kind, average)
    for seed, average in enumerate(["classes", "samples"] * 2)
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


def squared_hinge_loops():
    def attraction(d):
        return max(d - 0.1, d * 0) ** 2

    def repulsion(d):
        return max(1.1 - d, d * 0) ** 2

    return attraction, repulsion, lambda x: x, lambda x: x


def gravity_loops():
    return lambda d: d, lambda d: torch.exp(-3 * d), lambda x: x, lambda x: torch.log(1 + x) / 3


INVENTED = {
    "squared hinge": (SquaredHinge(), squared_hinge_loops()),
    "gravity": (Gravity(), gravity_loops()),
}


def with_gradients(function, *inputs):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    value = function(*inputs)
    return value, *torch.autograd.grad(value, inputs)


def assert_equal(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", INVENTED)
@pytest.mark.parametrize("labels_each", [None, 2])
@pytest.mark.parametrize(("seed", "kind", "average"), CASES)
def test_any_description_gives_the_pair_loss_of_the_nested_loop(
    name, seed, kind, average, labels_each
):
    interactions, oracle = INVENTED[name]
    embeddings, labels, _ = loops.random_batch(seed, labels_each=labels_each)
    loss = PairLoss(interactions, distance=kind, average=average)
    assert_equal(
        with_gradients(lambda x: loss(x, labels), embeddings),
        with_gradients(lambda x: loops.pair_loss(*oracle, kind, x, labels, average), embeddings),
    )


@pytest.mark.parametrize("name", INVENTED)
@pytest.mark.parametrize("labels_each", [None, 2])
@pytest.mark.parametrize(("seed", "kind", "average"), CASES)
def test_any_description_gives_the_mean_field_loss_of_the_nested_loop(
    name, seed, kind, average, labels_each
):
    interactions, oracle = INVENTED[name]
    embeddings, labels, fields = loops.random_batch(seed, labels_each=labels_each)
    more = {"distance": kind, "average": average, "reg_scale": "released"}
    loss = MeanFieldLoss(interactions, 5, 3, reg_weight=0.7, **more).double()

    def ours(x, m):
        return torch.func.functional_call(loss, {"fields": m}, (x, labels))

    def theirs(x, m):
        main = loops.mean_field_loss(*oracle, kind, x, labels, m, average)
        return main + 0.7 * loops.soft_constraint(oracle[1], oracle[3], kind, m)

    assert_equal(
        with_gradients(ours, embeddings, fields), with_gradients(theirs, embeddings, fields)
    )


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

"""Block by block the losses are the plain formula, which autograd differentiates."""

import os
import subprocess
import sys
import warnings
from dataclasses import dataclass

import pytest
import torch
from budgets import (
    GENTLE,
    MEAN_FIELD,
    LargestTensor,
    assert_equal_to,
    assert_within_budget,
    both,
    clustered,
    found,
    found_alone,
    with_fields,
)
from torch.nn.functional import one_hot

from weiss import MeanFieldLoss
from weiss.kernels import constraint, dispatch, plan, streaming
from weiss.losses import BinomialDeviance, ClassWiseMultiSimilarity, Contrastive
from weiss.theory.interactions import Interactions, closed_form_of

KINDS = ["cosine", "euclidean"]
PAPER = {"reg_weight": 0.7}
RELEASED = {"reg_weight": 0.7, "reg_scale": "released"}
WAYS = [
    ("cosine", "classes", {}, 1.0),
    ("cosine", "samples", RELEASED, -2.5),
    ("euclidean", "samples", {}, 1024.0),
    ("euclidean", "classes", PAPER, 1e-3),
]
"""A distance, an average, a constraint, and what the loss is multiplied by."""
LABELS = {
    "indices": {},
    "multi-hot": {},
    "padding": {"max_labels_per_sample": 4, "check": False},
    "indices, unchecked": {"check": False},
    "multi-hot, unchecked": {"check": False},
}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def small_blocks(monkeypatch):
    """Cut everything in many blocks, the last of them not full."""
    monkeypatch.setitem(streaming.ELEMENTS, "cpu", 30)
    monkeypatch.setitem(constraint.WIDTH, "cpu", 4)


def every_loss(names=MEAN_FIELD):
    return pytest.mark.parametrize("name", names)


def double_batch(batch, num_classes, size, labels_each=None, **more):
    """Return `clustered` in float64; with multi-hot labels, of up to so many classes a sample."""
    embeddings, labels, fields = clustered(batch, num_classes, size, **more)
    if labels_each is not None:
        hot = one_hot(labels, num_classes)
        for turn in range(1, labels_each):
            # Every other sample has this many classes, and the rest fewer.
            hot[turn % 2 :: 2] |= one_hot((labels + turn) % num_classes, num_classes)[turn % 2 :: 2]
        labels = hot
    return embeddings.double(), labels, fields.double()


BATCH = double_batch(13, 11, 5, same=4)


def streams(name):
    return with_fields(name, BATCH[2], impl="streaming", **GENTLE[name])


@every_loss()
@pytest.mark.parametrize("given", LABELS)
def test_many_blocks_are_the_plain_formula(name, given, small_blocks):
    labels_each = None if given.startswith("indices") else 3
    batch = double_batch(13, 11, 5, labels_each, same=4)
    for kind, average, reg, factor in WAYS:
        arguments = {**GENTLE[name], "distance": kind, "average": average, **LABELS[given], **reg}
        assert_equal_to(*both(name, *batch, factor, **arguments))


SHAPES = {
    "one sample": (torch.tensor([2]), 5, 3),
    "one class": (torch.tensor([0, 0, 0]), 1, 3),
    "one sample of one class": (torch.tensor([0]), 1, 3),
    "one dimension": (torch.tensor([0, 3, 3]), 5, 1),
    "one number of everything": (torch.tensor([0]), 1, 1),
    "one class present": (torch.full((9,), 3), 6, 4),
    "all classes present": (torch.arange(12) % 6, 6, 4),
    "all classes present once": (torch.arange(6).flip(0), 6, 4),
    "one sample each": (torch.tensor([8, 1, 5, 0]), 9, 4),
    "many samples of one class": (torch.tensor([4] * 50 + [1, 7, 7]), 8, 4),
    "the last class": (torch.tensor([7, 7]), 8, 4),
}


@every_loss()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_awkward_shapes_are_the_plain_formula(name, kind, shape, small_blocks):
    labels, num_classes, size = SHAPES[shape]
    generator = torch.Generator().manual_seed(1)
    fields = torch.randn(num_classes, size, generator=generator).double()
    embeddings = fields[labels] + 0.5 * torch.randn(len(labels), size, generator=generator).double()
    hot, unchecked = one_hot(labels, num_classes), {"check": False, "max_labels_per_sample": 1}
    for given, arguments in (
        (labels, {"average": "classes"}),
        (labels, {"average": "samples", **unchecked}),
        (hot, {"average": "samples"}),
        (hot, {"average": "classes", **unchecked}),
    ):
        more = {"distance": kind, "reg_weight": 0.3, **arguments}
        results = both(name, embeddings, given, fields, **more)
        # In one dimension cosines are 1 or -1, and gradients zero up to rounding.
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@every_loss()
@pytest.mark.parametrize("kind", KINDS)
def test_zero_vectors_and_equal_points_are_the_plain_formula(name, kind, small_blocks):
    embeddings, labels, fields = double_batch(10, 12, 4)
    embeddings[3], fields[labels[5]], fields[11] = 0.0, 0.0, 0.0
    embeddings[7], embeddings[8] = fields[labels[7]], fields[(labels[8] + 1) % 12]
    more = {"distance": kind, "reg_weight": 0.7, **GENTLE[name]}
    assert_equal_to(*both(name, embeddings, labels, fields, **more))


@every_loss()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("shape", "kind"), [((255, 507, 123), "cosine"), ((7, 1000, 33), "euclidean")], ids=str
)
def test_errors_are_those_of_the_plain_formula(name, dtype, shape, kind, monkeypatch):
    monkeypatch.setitem(streaming.ELEMENTS, "cpu", shape[0] * 100)
    embeddings, labels, fields = clustered(*shape, same=5)
    embeddings = embeddings.to(dtype)
    wide = torch.float32
    for dtype_of_fields in {wide, dtype}:
        fields = fields.to(dtype_of_fields)
        more = {**GENTLE[name], "distance": kind, "reg_weight": 0.1}
        exact = with_fields(name, fields.double(), impl="reference", **more)
        truth = found(exact, embeddings.double(), labels)
        assert all(tensor.any() for tensor in truth)
        results, plain = both(name, embeddings, labels, fields, **more)
        assert [r.dtype for r in results] == [wide, dtype, dtype_of_fields]
        # Two parts of a gradient are rounded before they are added.
        slack = 1e-6 if dtype_of_fields == wide else 2 * torch.finfo(dtype).eps
        assert_within_budget(results, plain, truth, slack)


# Closed forms


@pytest.mark.parametrize("known", [Contrastive, ClassWiseMultiSimilarity, BinomialDeviance])
@pytest.mark.parametrize(
    "changed", ["attraction", "repulsion", "attraction_link", "repulsion_link", "sharing"]
)
def test_who_changes_an_energy_or_a_link_has_no_closed_form(known, changed):
    assert closed_form_of(known()) is not None
    child = type("Child", (known,), {changed: getattr(known, changed)})
    assert closed_form_of(child()) is None
    assert closed_form_of(type("Grandchild", (child,), {})()) is None


def test_who_changes_something_else_keeps_the_closed_form():
    child = type("Child", (Contrastive,), {"repulsion_range": 1.0})
    assert closed_form_of(child(0.1, 0.4)) == closed_form_of(Contrastive(0.1, 0.4))


# What autograd may do with it


@every_loss()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wanted", ["embeddings", "fields", "nothing"])
def test_only_the_gradients_that_are_wanted_are_found(name, kind, wanted, small_blocks):
    embeddings, labels, fields = BATCH
    more = {"distance": kind, "reg_weight": 0.7, **GENTLE[name]}
    results = [
        found_alone(with_fields(name, fields, impl=impl, **more), embeddings, labels, wanted)
        for impl in ("streaming", "reference")
    ]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)  # None is None


@every_loss()
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_value_is_the_same(name, mode, small_blocks):
    loss = streams(name)
    expected = loss(*BATCH[:2]).item()
    with mode():
        value = loss(*BATCH[:2])
    assert not value.requires_grad
    assert value.item() == pytest.approx(expected, rel=1e-12)


@every_loss()
def test_a_kept_graph_can_be_gone_back_through_again(name, small_blocks):
    embeddings, labels, _ = BATCH
    loss = streams(name)
    _, *expected = found(loss, embeddings, labels)
    x = embeddings.clone().requires_grad_()
    value = loss(x, labels)
    first = torch.autograd.grad(value, [x, loss.fields], retain_graph=True)
    again = torch.autograd.grad(value, [x, loss.fields], 3 * torch.ones_like(value), True)
    value.backward()
    for a, b, c, d in zip(first, again, (x.grad, loss.fields.grad), expected, strict=True):
        assert a.equal(d)
        assert c.equal(d)
        torch.testing.assert_close(b, 3 * d, rtol=1e-14, atol=0)
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()


@every_loss()
@pytest.mark.parametrize("of", ["the loss", "a function of the loss"])
def test_a_second_derivative_is_refused(name, of, small_blocks):
    """Never wrong without a message, as for a penalty on the gradient beside the loss."""
    loss, (embeddings, labels, _) = streams(name), BATCH
    x = embeddings.clone().requires_grad_()
    value = loss(x, labels)
    if of != "the loss":
        value = value.square()

    def penalised():
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        (loss(x, labels) + gradient.square().sum()).backward()

    with pytest.raises(RuntimeError, match="twice|once|second"):
        penalised()


@pytest.mark.parametrize(("name", "check"), [("mf_cwms", True), ("mf_contrastive", False)])
def test_a_compiled_training_loop_takes_the_same_steps(name, check, monkeypatch):
    monkeypatch.setattr(plan, "COMPILED_DISTANCES", 0)
    monkeypatch.setattr(plan, "REFERENCE_DISTANCES", 0)
    streamed = []

    def stream(*arguments, **more):
        streamed.append(True)
        return streaming.stream(*arguments, **more)

    monkeypatch.setattr(dispatch, "stream", stream)
    images, labels, fields = BATCH
    states = []
    for compiles in (True, False):
        torch.manual_seed(0)
        network = torch.nn.Linear(5, 5).double()
        loss = with_fields(
            name, fields, check=check, impl="auto" if compiles else "reference", **GENTLE[name]
        )

        def step(x, y, network=network, loss=loss):
            return loss(network(x), y)

        optimizer = torch.optim.SGD([*network.parameters(), loss.fields], lr=0.1)
        with warnings.catch_warnings(action="ignore"):  # the compiler's own imports warn
            torch._dynamo.reset()
            taken = torch.compile(step, backend="aot_eager") if compiles else step
            for _ in range(3):
                optimizer.zero_grad()
                taken(images, labels).backward()
                optimizer.step()
        states.append([*network.state_dict().values(), loss.fields.detach()])
    assert len(streamed) == 3
    for a, b in zip(*states, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


# Memory


@every_loss()
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [("cosine", {}), ("euclidean", {"check": False}), ("cosine", {"reg_weight": 1.0})],
    ids=str,
)
def test_nothing_of_size_batch_by_classes_is_formed(name, kind, arguments, monkeypatch):
    monkeypatch.setitem(streaming.ELEMENTS, "cpu", 4096)
    monkeypatch.setitem(constraint.WIDTH, "cpu", 64)
    embeddings, labels, fields = clustered(64, 1100, 4)
    loss = with_fields(name, fields, impl="streaming", distance=kind, **arguments)
    x = embeddings.requires_grad_()
    with LargestTensor() as largest:
        loss(x, labels).backward()
    assert largest.numel == fields.numel()


MEMORY = """
import resource, sys, torch, weiss
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def step(loss, size):
    x = torch.randn(256, size, requires_grad=True)
    loss(x, torch.randint(loss.num_classes, (256,))).backward()
step(weiss.make_loss(sys.argv[1], 5000, 8), 8)  # loads the library's kernels
loss = weiss.make_loss(sys.argv[1], 1_000_000, 128)
loss.fields.data[0] = 0
before = peak()
step(loss, 128)
assert loss.fields.grad.any()
print(peak() - before - loss.fields.grad.numel() * 4)
"""


@pytest.mark.slow
@every_loss()
def test_a_million_classes_need_no_gigabyte_beyond_the_fields_and_their_gradient(name):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, name],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1e9


@every_loss()
def test_a_factor_that_half_precision_cannot_say_reaches_the_gradients(name):
    """As a gradient scaler multiplies the loss: what is small is scaled before it is rounded."""
    embeddings, labels, fields = clustered(64, 500, 16)
    x, factor = (50 * embeddings).half(), 2.0**17
    results = both(name, x, labels, fields, factor, **GENTLE[name])
    (_, x_streamed, fields_streamed), (_, x_plain, fields_plain) = results
    assert fields_streamed.isfinite().all()
    torch.testing.assert_close(fields_streamed, fields_plain, rtol=1e-3, atol=1e-3)
    assert x_streamed.dtype == torch.float16
    assert ((x_streamed == 0) == (x_plain == 0)).float().mean() > 0.99
    torch.testing.assert_close(x_streamed, x_plain, rtol=2e-2, atol=2e-2 * x_plain.abs().max())


class Reaching(Interactions):
    """Not a dataclass: any two of it compare equal."""

    def __init__(self, far):
        object.__setattr__(self, "far", far)

    def attraction(self, dist):
        return dist

    def repulsion(self, dist):
        return (self.far - dist).relu()


def test_a_loss_whose_settings_change_is_described_anew():
    embeddings, labels, fields = clustered(13, 60, 5)
    assert Reaching(0.2) == Reaching(0.9)
    losses = [MeanFieldLoss(Reaching(0.2), 60, 5, impl=i) for i in ("streaming", "reference")]
    values = []
    for far, average, reg_weight in ((0.2, "classes", 0), (0.9, "classes", 0), (0.9, "samples", 1)):
        for loss in losses:
            loss.load_state_dict({"fields": fields})
            loss.interactions, loss.average, loss.reg_weight = Reaching(far), average, reg_weight
        values.append([loss(embeddings, labels).item() for loss in losses])
    assert [a for a, _ in values] == pytest.approx([b for _, b in values])
    assert len({round(a, 3) for a, _ in values}) == 3


def test_a_form_without_its_hyper_parameters_is_refused():
    @dataclass(frozen=True)
    class Nameless(Interactions, form="hinge"):
        def attraction(self, dist):
            return dist

        def repulsion(self, dist):
            return dist

    with pytest.raises(TypeError, match="neg_margin, pos_margin for form='hinge'; it has none"):
        closed_form_of(Nameless())

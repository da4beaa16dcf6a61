"""Hinges skip pairs that are out of reach, on a CPU, and lose nothing."""

import math

import pytest
import torch
from budgets import assert_equal_to, clustered, found, with_fields

from weiss.kernels import streaming
from weiss.kernels.problem import Problem
from weiss.theory.distances import cosine_distance

pytestmark = pytest.mark.usefixtures("one_thread")
ON = {"impl": "streaming", "skip": "on"}
OFF = {"impl": "streaming", "skip": "off"}


@pytest.fixture
def lists(monkeypatch):
    """List near pairs however many they are, in several blocks."""
    monkeypatch.setattr(streaming, "LIST_PAYS", 2.0)
    monkeypatch.setitem(streaming.ELEMENTS, "cpu", 3000)


def hinge(fields, **arguments):
    return with_fields("mf_contrastive", fields, **arguments)


def absent_and_near(loss, embeddings, labels, reach):
    """Count, one by one, the pairs of a sample and an absent class that are within reach."""
    present = set(labels.tolist())
    dist = cosine_distance(embeddings, loss.fields.detach())
    return sum(
        bool(dist[i, c] < reach)
        for i in range(len(labels))
        for c in range(len(loss.fields))
        if c not in present
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("average", ["classes", "samples"])
def test_a_hinge_loses_no_bit_of_its_gradients(seed, dtype, average, lists, monkeypatch):
    embeddings, labels, fields = clustered(37, 230, 11, seed=seed, same=6)
    embeddings, fields = embeddings.to(dtype), fields.to(dtype)
    for margin in (0.15, 0.3, 0.77):
        settings = {"neg_margin": margin, "average": average, **ON}
        with monkeypatch.context() as patched:
            some = hinge(fields, **settings)
            few = found(some, embeddings, labels)
            assert 0.5 < some.skipped_share < 1
            patched.setattr(Problem, "reach", math.inf)
            every = hinge(fields, **settings)
            all_of_them = found(every, embeddings, labels)
            assert every.skipped_share < 0.2  # what is left are present classes
        assert few[1].equal(all_of_them[1])
        assert few[2].equal(all_of_them[2])
        torch.testing.assert_close(few[0], all_of_them[0])


@pytest.mark.parametrize("average", ["classes", "samples"])
@pytest.mark.parametrize("reg_weight", [0.0, 0.7])
def test_a_list_of_near_pairs_is_the_plain_formula(average, reg_weight, lists):
    embeddings, labels, fields = clustered(37, 230, 11, same=6)
    batch = embeddings.double(), labels
    settings = {"average": average, "reg_weight": reg_weight}
    loss = hinge(fields.double(), **ON, **settings)
    plain = hinge(fields.double(), impl="reference", **settings)
    assert_equal_to(found(loss, *batch), found(plain, *batch))
    assert loss.skipped_share > 0


def test_where_too_many_are_near_all_are_computed(monkeypatch):
    embeddings, labels, fields = clustered(37, 230, 11, same=6)
    batch = embeddings.double(), labels
    expected = found(hinge(fields.double(), **OFF), *batch)
    for pays in (0.0, 2.0):
        monkeypatch.setattr(streaming, "LIST_PAYS", pays)
        loss = hinge(fields.double(), **ON)
        assert_equal_to(found(loss, *batch), expected, relative=1e-12)
        assert (loss.skipped_share == 0) == (pays == 0)


def test_the_share_of_what_was_skipped_is_counted(lists):
    embeddings, labels, fields = clustered(9, 60, 5, same=3)
    loss = hinge(fields.double(), **ON)
    found(loss, embeddings.double(), labels)
    near = absent_and_near(loss, embeddings.double(), labels, 0.3)
    visited = near + 9 * len(labels.unique())  # all pairs with present classes are
    assert 0 < visited < 9 * 60
    assert loss.skipped_share == pytest.approx(1 - visited / (9 * 60), abs=1e-12)


def test_a_block_of_which_all_are_computed_counts_whole(monkeypatch):
    """Two blocks: in the first everything is near, in the second nothing is."""
    monkeypatch.setitem(streaming.ELEMENTS, "cpu", 4 * 10)
    fields = torch.eye(2)[[0] * 10 + [1] * 10]
    loss = hinge(fields, **ON)
    found(loss, torch.eye(2)[[0, 0, 0, 0]], torch.tensor([0, 1, 2, 3]))
    assert loss.skipped_share == 0.5


def test_no_share_without_skipping():
    embeddings, labels, fields = clustered(9, 60, 5)
    loss = hinge(fields, **ON)
    assert loss.skipped_share is None
    loss(embeddings, labels)
    assert loss.skipped_share is not None
    for settings in (OFF, {"impl": "reference"}, {"impl": "streaming"}):
        other = hinge(fields, **settings)
        other(embeddings, labels)
        assert other.skipped_share is None


@pytest.mark.parametrize("near", ["no pair", "no absent class"])
def test_a_list_may_be_empty(near, lists):
    fields = torch.eye(6)[:4].double()
    labels = torch.tensor([0, 1]) if near == "no pair" else torch.arange(4)
    results = [
        found(hinge(fields, **way), fields[labels] * 2, labels)
        for way in (ON, {"impl": "reference"})
    ]
    assert_equal_to(*results)


def test_skipping_keeps_what_gradients_may_be_asked_for(lists):
    embeddings, labels, fields = clustered(37, 230, 11, same=6)
    loss = hinge(fields, **ON)
    value, by_embeddings, by_fields = found(loss, embeddings, labels)
    with torch.no_grad():
        assert loss(embeddings, labels).equal(value)
    loss(embeddings, labels).backward()
    assert loss.fields.grad.equal(by_fields)
    x = embeddings.clone().requires_grad_()
    loss.fields.requires_grad_(False)
    (2 * loss(x, labels)).backward()
    assert x.grad.equal(2 * by_embeddings)

"""Leaving out pairs that are out of reach: hinges lose nothing, the others less than rounding."""

import math

import pytest
import torch
from budgets import GENTLE, MEAN_FIELD, assert_equal_to, clustered, found, with_fields
from torch.nn.functional import normalize, one_hot

from weiss import MeanFieldLoss
from weiss.kernels import streaming
from weiss.kernels.problem import Problem
from weiss.losses import Contrastive
from weiss.theory.distances import cosine_distance

pytestmark = pytest.mark.usefixtures("one_thread")
ON = {"impl": "streaming", "skip": "on"}
OFF = {"impl": "streaming", "skip": "off"}


@pytest.fixture
def lists(monkeypatch):
    """List pairs however many they are, in several blocks."""
    monkeypatch.setattr(streaming, "LIST_PAYS", 2.0)
    monkeypatch.setitem(streaming.ELEMENTS, "cpu", 3000)


def reach_everything(monkeypatch):
    monkeypatch.setattr(Problem, "reach", lambda self, num_classes: math.inf)


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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("average", ["classes", "samples"])
def test_a_hinge_loses_no_bit_of_its_gradients(seed, dtype, average, lists, monkeypatch):
    embeddings, labels, fields = clustered(37, 230, 11, seed=seed, same=6)
    embeddings, fields = embeddings.to(dtype), fields.to(dtype)
    for margin in (0.15, 0.3, 0.77):
        settings = {"neg_margin": margin, "average": average, **ON}
        with monkeypatch.context() as patched:
            some = with_fields("mf_contrastive", fields, **settings)
            few = found(some, embeddings, labels)
            assert 0.5 < some.skipped_share < 1
            reach_everything(patched)
            every = with_fields("mf_contrastive", fields, **settings)
            all_of_them = found(every, embeddings, labels)
            assert every.skipped_share < 0.2  # what is left are present classes
        assert few[1].equal(all_of_them[1])
        assert few[2].equal(all_of_them[2])
        torch.testing.assert_close(few[0], all_of_them[0])


@pytest.mark.parametrize("name", MEAN_FIELD)
@pytest.mark.parametrize("average", ["classes", "samples"])
def test_pairs_out_of_reach_are_not_missed(name, average, lists):
    """In float32 the plain formula cannot tell, in float64 it can, at the 24th bit."""
    embeddings, labels, fields = clustered(37, 230, 11, same=6)
    batch = embeddings.double(), labels
    settings = {**GENTLE[name], "average": average}
    loss = with_fields(name, fields.double(), **ON, **settings)
    plain = with_fields(name, fields.double(), impl="reference", **settings)
    assert_equal_to(found(loss, *batch), found(plain, *batch), relative=2**-22)
    assert loss.skipped_share > 0


@pytest.mark.parametrize("name", ["mf_cwms", "mf_binomial"])
@pytest.mark.parametrize("seed", range(3))
def test_what_a_sample_loses_is_below_the_rounding_of_its_largest_coefficient(name, seed, lists):
    """Each pair that is left out has a coefficient below ``2^-24 / C`` times ``1 / |C_B|``.

    With a logarithm those that stay change too, by their share of what their average lacks: also
    less than that. So the C of a sample lose less than ``2^-24 / |C_B|``, and those of a class,
    added up over the samples, ``2^-24 / C``. Vectors of length one pass it on undiminished at most.
    """
    embeddings, labels, fields = clustered(37, 230, 11, seed=seed, same=6)
    embeddings, fields = normalize(embeddings.double()), normalize(fields.double())
    settings = {"alpha": 2.0, "beta": 30.0, "delta": 0.1}
    loss = with_fields(name, fields, **ON, **settings)
    few = found(loss, embeddings, labels)
    every = found(with_fields(name, fields, **OFF, **settings), embeddings, labels)
    assert 0.05 < loss.skipped_share < 0.95
    lost_B, lost_C = ((a - b).norm(dim=1) for a, b in zip(few[1:], every[1:], strict=True))
    rounding = 1e-16
    bound = 2.0**-24 / len(labels.unique())
    assert bound / 1e4 < lost_B.max() <= bound + rounding
    assert lost_C.max() <= 2.0**-24 / 230 + rounding


@pytest.mark.parametrize("name", MEAN_FIELD)
def test_where_too_many_are_near_all_are_taken(name, monkeypatch):
    embeddings, labels, fields = clustered(37, 230, 11, same=6)
    batch = embeddings.double(), labels
    results = {}
    for pays in (0.0, 2.0):
        monkeypatch.setattr(streaming, "LIST_PAYS", pays)
        loss = with_fields(name, fields.double(), **ON, **GENTLE[name])
        results[pays] = found(loss, *batch)
        assert (loss.skipped_share == 0) == (pays == 0)
    expected = found(with_fields(name, fields.double(), **OFF, **GENTLE[name]), *batch)
    assert_equal_to(results[0.0], expected, relative=1e-14)
    assert_equal_to(results[2.0], expected, relative=1e-12 if "contrast" in name else 2**-22)


@pytest.mark.parametrize("name", MEAN_FIELD)
def test_the_share_of_what_was_skipped_is_counted(name, lists):
    embeddings, labels, fields = clustered(9, 60, 5, same=3)
    loss = with_fields(name, fields.double(), **ON, **GENTLE[name])
    found(loss, embeddings.double(), labels)
    settings = GENTLE[name]
    if name == "mf_contrastive":
        reach = 0.3
    else:  # the slope e^{beta (delta - d)} is 2^-24 / C
        beta, delta = settings.get("beta", 50.0), settings.get("delta", 0.5)
        reach = delta + (24 * math.log(2) + math.log(60)) / beta
    near = absent_and_near(loss, embeddings.double(), labels, reach)
    visited = near + 9 * len(labels.unique())  # all pairs with present classes are
    assert 0 < visited < 9 * 60
    assert loss.skipped_share == pytest.approx(1 - visited / (9 * 60), abs=1e-12)


def test_a_block_of_which_all_are_taken_counts_whole(monkeypatch):
    """Two blocks: in the first everything is near, in the second nothing is."""
    monkeypatch.setitem(streaming.ELEMENTS, "cpu", 4 * 10)
    fields = torch.eye(2)[[0] * 10 + [1] * 10]
    loss = with_fields("mf_contrastive", fields, **ON)
    found(loss, torch.eye(2)[[0, 0, 0, 0]], torch.tensor([0, 1, 2, 3]))
    assert loss.skipped_share == 0.5


def test_no_share_without_skipping():
    embeddings, labels, fields = clustered(9, 60, 5)
    loss = with_fields("mf_contrastive", fields, **ON)
    assert loss.skipped_share is None
    loss(embeddings, labels)
    assert loss.skipped_share is not None
    for settings in (OFF, {"impl": "reference"}, {"impl": "streaming"}):
        other = with_fields("mf_contrastive", fields, **settings)
        other(embeddings, labels)
        assert other.skipped_share is None


@pytest.mark.parametrize("near", ["no pair", "no absent class"])
@pytest.mark.parametrize("name", MEAN_FIELD)
def test_a_list_may_be_empty(name, near, lists):
    fields = torch.eye(6)[:4].double()
    labels = torch.tensor([0, 1]) if near == "no pair" else torch.arange(4)
    settings = {} if name == "mf_contrastive" else {"beta": 1e3, "delta": 0.2}
    results = [
        found(with_fields(name, fields, **way, **settings), fields[labels] * 2, labels)
        for way in (ON, {"impl": "reference"})
    ]
    assert_equal_to(*results)


@pytest.mark.parametrize("name", MEAN_FIELD)
def test_skipping_keeps_what_gradients_may_be_asked_for(name, lists):
    embeddings, labels, fields = clustered(37, 230, 11, same=6)
    loss = with_fields(name, fields, **ON, **GENTLE[name])
    value, by_embeddings, by_fields = found(loss, embeddings, labels)
    with torch.no_grad():
        assert loss(embeddings, labels).equal(value)
    loss(embeddings, labels).backward()
    assert loss.fields.grad.equal(by_fields)
    x = embeddings.clone().requires_grad_()
    loss.fields.requires_grad_(False)
    (2 * loss(x, labels)).backward()
    assert x.grad.equal(2 * by_embeddings)


def test_the_soft_constraint_is_not_skipped(lists):
    embeddings, labels, fields = clustered(37, 230, 11, same=6)
    batch, m = (embeddings.double(), labels), fields.double()
    results = [
        found(with_fields("mf_contrastive", m, reg_weight=0.7, **way), *batch)
        for way in (ON, {"impl": "reference"})
    ]
    assert_equal_to(*results)


class Foreign(Contrastive):
    def repulsion(self, dist):
        return super().repulsion(dist).square()


@pytest.mark.parametrize("what", ["euclidean", "multi-hot", "custom"])
def test_skipping_is_refused_where_nobody_knows_the_reach(what):
    embeddings, labels, _ = clustered(9, 60, 5)
    kind = "euclidean" if what == "euclidean" else "cosine"
    interactions = Foreign() if what == "custom" else Contrastive()
    loss = MeanFieldLoss(interactions, 60, 5, distance=kind, **ON)
    words = {
        "euclidean": "it knows the cosine distance, not 'euclidean'",
        "multi-hot": "it takes class indices, not multi-hot labels",
        "custom": "the interactions have no closed form",
    }[what]
    given = one_hot(labels, 60) if what == "multi-hot" else labels
    with pytest.raises(ValueError, match=rf"skip='on' cannot be used for MeanFieldLoss.*{words}"):
        loss(embeddings, given)


MANY = (64, 4096)
AUTO = {
    "a hinge with many pairs": ("mf_contrastive", MANY, {}, True),
    "fewer pairs": ("mf_contrastive", (63, 4096), {}, False),
    "without checks": ("mf_contrastive", MANY, {"check": False}, False),
    "euclidean": ("mf_contrastive", MANY, {"distance": "euclidean"}, False),
    "not if told": ("mf_contrastive", MANY, {"skip": "off"}, False),
    "cwms": ("mf_cwms", MANY, {}, False),
    "binomial": ("mf_binomial", MANY, {}, False),
}


@pytest.mark.parametrize("case", AUTO)
def test_pairs_are_skipped_by_themselves_for_hinges_with_many(case):
    name, (batch, num_classes), arguments, expected = AUTO[case]
    embeddings, labels, fields = clustered(batch, num_classes, 4)
    loss = with_fields(name, fields, **arguments)
    loss(embeddings, labels)
    assert (loss.skipped_share is not None) == expected


def test_multi_hot_labels_never_skip_by_themselves():
    embeddings, labels, fields = clustered(*MANY, 4)
    loss = with_fields("mf_contrastive", fields)
    loss(embeddings, one_hot(labels, MANY[1]))
    assert loss.skipped_share is None

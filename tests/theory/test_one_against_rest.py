"""One class against the rest: both forms against nested loops; ProxyAnchor is a special case."""

import warnings
from dataclasses import dataclass

import loops
import pytest
import torch
from budgets import LargestTensor, both, clustered, found, with_fields
from torch import Tensor

import weiss
from weiss import MeanFieldLoss, PairLoss
from weiss.kernels import constraint, streaming
from weiss.losses import Contrastive, RestMultiSimilarity
from weiss.losses.rest_multi_similarity import PROXY_ANCHOR
from weiss.theory.interactions import Interactions, LogLink, OneAgainstRest, closed_form_of

with warnings.catch_warnings(action="ignore"):
    from pytorch_metric_learning.losses import ProxyAnchorLoss


ALL = "all", "all"  # the sum over c, and what divides it


@dataclass(frozen=True)
class Squares(Interactions):
    """Plain averages: what shares a link is only added."""

    full: float = 1.0

    @property
    def sharing(self) -> OneAgainstRest:
        return OneAgainstRest("full", "present") if self.full else OneAgainstRest("half", *ALL)

    def attraction(self, dist: Tensor) -> Tensor:
        return dist.square()

    def repulsion(self, dist: Tensor) -> Tensor:
        return (1.1 - dist).clamp_min(0).square()


@dataclass(frozen=True)
class Undivided(RestMultiSimilarity):
    """Logarithms that are not divided by their rate, as ProxyAnchor has them."""

    @property
    def attraction_link(self) -> LogLink:
        return LogLink(1.0)

    @property
    def repulsion_link(self) -> LogLink:
        return LogLink(1.0)


@dataclass(frozen=True)
class RestHinge(Contrastive):
    """A hinge whose pairs of classes share a link: no longer what its form says."""

    sharing = OneAgainstRest(over="all")


def plain(x):
    return x


def square_push(d):
    return torch.relu(1.1 - d) ** 2


def exponentials(a, b, delta, margin):
    return (
        lambda d: torch.exp(a * (d - delta + margin)),
        lambda d: torch.exp(b * (delta + margin - d)),
        lambda x: torch.log(1 + x) / a,
        lambda x: torch.log(1 + x) / b,
    )


SQUARES = (lambda d: d**2, square_push, plain, plain)
HINGES = (lambda d: torch.relu(d - 0.1), lambda d: torch.relu(0.9 - d), plain, plain)
DESCRIBED = [
    (Squares(), SQUARES),
    (Squares(0.0), SQUARES),
    (RestHinge(0.1, 0.9), HINGES),
    *(
        (RestMultiSimilarity(2.0, 5.0, 0.6, 0.2, *words), exponentials(2.0, 5.0, 0.6, 0.2))
        for over in (("present", "present"), ("all", "present"), ALL)
        for words in (("full", *over), ("half", *over))
    ),
]
every_description = pytest.mark.parametrize(
    ("interactions", "oracle"), DESCRIBED, ids=[f"{each}" for each, _ in DESCRIBED]
)
every_batch = pytest.mark.parametrize(
    ("seed", "kind", "average", "labels_each"),
    [
        (0, "cosine", "classes", None),
        (1, "euclidean", "samples", None),
        (2, "cosine", "none", 2),
        (3, "euclidean", "classes", 2),
    ],
)


def assert_equal(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@every_description
@every_batch
def test_the_pair_form_is_that_of_the_nested_loop(
    interactions, oracle, seed, kind, average, labels_each
):
    embeddings, labels, _ = loops.random_batch(seed, 6, 4, labels_each=labels_each)
    loss = PairLoss(interactions, distance=kind, average=average)
    x = embeddings.clone().requires_grad_()
    truth = loops.pair_loss_against_rest(*oracle, kind, x, labels, average)
    expected = [truth.detach(), *torch.autograd.grad(truth, [x])]
    assert_equal(found(loss, embeddings, labels), expected)


@every_description
@every_batch
def test_the_mean_field_form_is_that_of_the_nested_loop(
    interactions, oracle, seed, kind, average, labels_each, monkeypatch
):
    monkeypatch.setitem(constraint.WIDTH, "cpu", 2)
    embeddings, labels, fields = loops.random_batch(seed, 6, 4, labels_each=labels_each)
    sharing = interactions.sharing
    words = sharing.keeps, sharing.over, sharing.divides_by
    x, m = embeddings.clone().requires_grad_(), fields.clone().requires_grad_()
    truth = loops.mean_field_loss_against_rest(*oracle, kind, x, labels, m, average, *words)
    truth = truth + 0.7 * loops.soft_constraint(oracle[1], oracle[3], kind, m)
    expected = [truth.detach(), *torch.autograd.grad(truth, [x, m])]
    more = {"distance": kind, "average": average, "reg_weight": 0.7, "reg_scale": "released"}
    # The plain formula; blocks of two classes; one block of all.
    for impl, elements in (("reference", 15), ("streaming", 15), ("streaming", 2**20)):
        monkeypatch.setitem(streaming.ELEMENTS, "cpu", elements)
        loss = MeanFieldLoss(interactions, 4, 3, impl=impl, **more).double()
        loss.load_state_dict({"fields": fields})
        assert_equal(found(loss, embeddings, labels), expected)


def proxy_anchor(fields):
    theirs = ProxyAnchorLoss(*fields.shape, margin=0.1, alpha=32).to(fields.dtype)
    with torch.no_grad():
        theirs.proxies.copy_(fields)
    return theirs


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("impl", ["reference", "streaming"])
def test_proxy_anchor_is_the_special_case_in_value_and_gradients(seed, impl):
    embeddings, labels, fields = loops.random_batch(seed, batch=11, num_classes=6, size=4)
    expected = found(proxy_anchor(fields), embeddings, labels)
    words = (PROXY_ANCHOR[name] for name in ("keeps", "over", "divides_by"))
    numbers = (PROXY_ANCHOR[name] for name in ("alpha", "beta", "delta", "margin"))
    loss = MeanFieldLoss(Undivided(*numbers, *words), 6, 4, average="none", impl=impl).double()
    loss.load_state_dict({"fields": fields})
    assert_equal(found(loss, embeddings, labels), expected)
    # The named loss divides its logarithms by their rate.
    named = with_fields("mf_rest_ms", fields, impl=impl, **PROXY_ANCHOR)
    assert_equal([32 * part for part in found(named, embeddings, labels)], expected)


@pytest.mark.parametrize(
    "changed",
    [
        {"keeps": "full"},
        {"divides_by": "present"},
        {"over": "present", "divides_by": "present"},
        {"average": "classes"},
        {"margin": 0.0},
    ],
    ids=str,
)
def test_every_step_to_proxy_anchor_changes_something(changed):
    embeddings, labels, fields = loops.random_batch(0, batch=11, num_classes=6, size=4)
    labels = labels.clamp_max(4)  # an absent class
    exact, other = (
        with_fields("mf_rest_ms", fields, **settings)(embeddings, labels).item()
        for settings in (PROXY_ANCHOR, PROXY_ANCHOR | changed)
    )
    assert abs(other - exact) > 1e-3 * exact


def test_of_plain_averages_half_is_the_loss_of_class_pairs_and_full_counts_it_twice():
    """A link that only adds cannot tell which averages share it."""
    embeddings, labels, fields = loops.random_batch(4)
    parts = []
    for interactions in (Contrastive(9.0, 0.9), RestHinge(9.0, 0.9)):  # no attraction
        loss = MeanFieldLoss(interactions, 5, 3).double()
        loss.load_state_dict({"fields": fields})
        parts.append(loss(embeddings, labels).item())
    assert parts[1] == pytest.approx(2 * parts[0], rel=1e-12)
    pairs, rest = (PairLoss(kind(9.0, 0.9)) for kind in (Contrastive, RestHinge))
    twice = 2 * pairs(embeddings, labels)
    torch.testing.assert_close(rest(embeddings, labels), twice)


def test_two_classes_have_one_rest_each_and_cwms_as_their_pair_loss():
    """With two classes the rest of a class is the other one; CWMS counts the pair once."""
    embeddings, labels, _ = loops.random_batch(5, num_classes=2)
    settings = {"alpha": 2.0, "beta": 5.0, "delta": 0.6, "margin": 0.0}
    whole = weiss.make_loss("rest_ms", 2, 3, **settings)(embeddings, labels)
    del settings["margin"]
    cwms = weiss.make_loss("cwms", 2, 3, **settings)(embeddings, labels)
    oracle = exponentials(2.0, 5.0, 0.6, 0.0)
    between = loops.pair_loss(lambda d: d * 0, *oracle[1:], "cosine", embeddings, labels)
    torch.testing.assert_close(whole, cwms + between)


def test_the_two_centres_are_part_of_the_closed_form_and_who_changes_the_rest_has_none():
    assert closed_form_of(RestMultiSimilarity(2.0, 5.0, 0.5, 0.25))[1:] == (0.25, 0.75, 2.0, 5.0)
    assert closed_form_of(RestHinge()) is None
    assert closed_form_of(Undivided()) is None
    embeddings, labels, _ = clustered(6, 9, 4)
    with pytest.raises(ValueError, match="sums"):
        weiss.make_loss("mf_cwms", 9, 4, impl="triton", average="none")(embeddings, labels)


def test_the_correction_for_fluctuations_is_refused():
    with pytest.raises(ValueError, match="must have a link of its own .*'second'; got one against"):
        weiss.make_loss("mf_rest_ms", 5, 3, fluctuations="second")


@pytest.mark.parametrize("keeps", ["full", "half"])
@pytest.mark.parametrize("kind", ["cosine", "euclidean"])
def test_in_blocks_nothing_of_batch_by_classes_is_formed(keeps, kind, monkeypatch):
    monkeypatch.setitem(streaming.ELEMENTS, "cpu", 64 * 10)
    embeddings, labels, fields = clustered(64, 1100, 4)
    loss = with_fields("mf_rest_ms", fields, impl="streaming", distance=kind, keeps=keeps)
    with LargestTensor() as largest:
        loss(embeddings.requires_grad_(), labels).backward()
    assert largest.numel == fields.numel() < 64 * 1100


def test_words_that_are_not_known_are_refused():
    with pytest.raises(ValueError, match="keeps must be one of 'full', 'half' for RestMulti"):
        weiss.make_loss("mf_rest_ms", 5, 3, keeps="both")
    with pytest.raises(ValueError, match="divides_by must be one of 'present', 'all' for OneAg"):
        OneAgainstRest(divides_by="none")
    with pytest.raises(ValueError, match="divides_by must be 'present' for over='present', a mean"):
        weiss.make_loss("mf_rest_ms", 5, 3, divides_by="all")


def test_sums_of_many_classes_neither_overflow_nor_lose_the_gradient():
    embeddings, labels, fields = clustered(40, 300, 8)
    settings = {"alpha": 80.0, "beta": 200.0, "delta": 1.2, "margin": 0.5, "average": "none"}
    streamed, plain_formula = both("mf_rest_ms", embeddings, labels, fields, **settings)
    for a, b in zip(streamed, plain_formula, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * b.abs().max().item())

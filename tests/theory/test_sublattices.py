"""Several fields a class: losses against nested loops, limits, kernels, refusals."""

import loops
import pytest
import torch
from budgets import MEAN_FIELD, LargestTensor, clustered, found, soft
from torch import Tensor

import weiss
from weiss.kernels import constraint, streaming
from weiss.theory.sublattices import by_pair, from_pairs, shares, soft_minimum

GAMMA = 6.0


def make(name, num_classes=5, size=3, **arguments):
    torch.manual_seed(0)
    return weiss.make_loss(name, num_classes, size, **arguments).double()


def joined_by_loops(kind, x, fields, gamma):
    """The definition: minus the log of the mean of exponentials, over gamma."""
    total = sum((-gamma * loops.distance(kind, x, field)).exp() for field in fields)
    return -torch.log(total / len(fields)) / gamma


def definition(name, loss, x, labels, fields):
    """The loss of class indices from its definition, one pair at a time."""
    kind, each = loss.distance, loss.interactions
    log_links = name in ("mf_cwms", "mf_rest_ms")

    def plain(energy):
        return energy.exp() if log_links else energy

    def link(value, rate):
        return torch.log(1 + value) / rate if log_links else value

    rate_a, rate_b = getattr(each, "alpha", 1.0), getattr(each, "beta", 1.0)
    members = loops.members_of(labels)
    num_classes = len(fields)

    def dist(i, c):
        return joined_by_loops(kind, x[i], fields[c], GAMMA)

    def mean(energy, own, other):
        return sum(plain(energy(dist(i, other))) for i in members[own]) / len(members[own])

    value = sum(link(mean(each.attraction, c, c), rate_a) for c in members)
    zero = x.new_zeros(())

    def push(own, other):
        return mean(each.repulsion, own, other) if own in members else zero

    pairs = [(a, b) for a in range(num_classes) for b in range(num_classes) if a != b]
    if name == "mf_rest_ms":
        for c in members:
            rest = sum(push(a, b) + push(b, a) for a, b in pairs if a == c)
            value = value + link(rest, rate_b)
    else:
        value = value + sum(link(push(a, b) + push(b, a), rate_b) for a, b in pairs) / 2
    value = value / len(members)
    penalty = zero
    for a, b in pairs:
        total = zero
        for one in fields[a]:
            for other in fields[b]:
                total = total + (-GAMMA * loops.distance(kind, one, other)).exp()
        dist_ab = -torch.log(total / (fields.shape[1] ** 2)) / GAMMA
        penalty = penalty + (link(plain(each.repulsion(dist_ab)), 1.0)) ** 2
    return value + loss.reg_weight / num_classes * penalty


@pytest.mark.parametrize("name", MEAN_FIELD)
@pytest.mark.parametrize("kind", ["cosine", "euclidean"])
@pytest.mark.parametrize("each", [1, 2, 4])
@pytest.mark.parametrize("impl", ["reference", "streaming"])
def test_value_and_gradients_are_those_of_nested_loops(name, kind, each, impl, monkeypatch):
    monkeypatch.setitem(streaming.ELEMENTS, "cpu", 7 * each * 2)  # blocks of two classes
    monkeypatch.setitem(constraint.WIDTH, "cpu", 2 * each)
    x, labels, _ = loops.random_batch(3)
    more = {} if each == 1 else {"fields_per_class": each, "fields_gamma": GAMMA}
    loss = make(name, distance=kind, reg_weight=0.5, impl=impl, **more, **soft(name))
    assert loss.fields.shape == ((5, 3) if each == 1 else (5, each, 3))
    actual = found(loss, x, labels)
    x = x.clone().requires_grad_()
    fields = loss.fields.detach().view(5, each, 3).requires_grad_()
    value = definition(name, loss, x, labels, fields)
    by_x, by_fields = torch.autograd.grad(value, [x, fields])
    torch.testing.assert_close(actual[0], value.detach(), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(actual[1], by_x, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(actual[2], by_fields.view_as(loss.fields), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", MEAN_FIELD)
@pytest.mark.parametrize("each", [2, 4])
def test_gradients_are_those_of_the_value_with_several_labels_too(name, each):
    x, labels, _ = loops.random_batch(3, labels_each=2)
    options = {"fields_per_class": each, "fields_gamma": GAMMA, "reg_weight": 0.5}
    loss = make(name, **options, **soft(name))

    def value(x, fields):
        return torch.func.functional_call(loss, {"fields": fields}, (x, labels))

    fields = loss.fields.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(value, [x.requires_grad_(), fields])
    streamed = make(name, impl="streaming", **options, **soft(name))
    for one, other in zip(found(streamed, x, labels), found(loss, x, labels), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", MEAN_FIELD)
def test_one_field_a_class_is_the_loss_without_the_option_to_the_last_bit(name):
    embeddings, labels, _ = clustered(40, 30, 16)
    for impl in ("reference", "streaming"):
        torch.manual_seed(1)
        plain = weiss.make_loss(name, 30, 16, impl=impl, reg_weight=0.1)
        torch.manual_seed(1)
        one = weiss.make_loss(name, 30, 16, impl=impl, reg_weight=0.1, fields_per_class=1)
        assert one.fields.shape == (30, 16)
        for a, b in zip(
            found(one, embeddings, labels), found(plain, embeddings, labels), strict=True
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("name", MEAN_FIELD)
def test_equal_fields_have_the_value_of_one_and_a_large_gamma_takes_the_nearest(name):
    x, labels, fields = loops.random_batch(4)
    one = make(name, reg_weight=0.5)
    one.load_state_dict({"fields": fields})
    several = make(name, reg_weight=0.5, fields_per_class=3, fields_gamma=GAMMA)
    several.load_state_dict({"fields": fields[:, None].expand(-1, 3, -1)})
    assert several(x, labels).item() == pytest.approx(one(x, labels).item(), rel=1e-12)

    sharp = make(name, fields_per_class=3, fields_gamma=1e8)
    nearest = (sharp.fields[None] * x[:, None, None]).sum(-1)
    nearest = (nearest / sharp.fields.norm(dim=-1) / x.norm(dim=1)[:, None, None]).amax(-1)
    torch.testing.assert_close(sharp.get_logits(x), nearest, rtol=0, atol=1e-7)


def test_the_soft_minimum_lies_between_the_nearest_and_log_s_over_gamma_above_it():
    dist = torch.rand(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for gamma in (1e-6, 1.0, 80.0, 1e9):
        joined, least = soft_minimum(dist, gamma), dist.amin(1)
        assert (joined >= least).all()
        assert (joined <= least + torch.log(torch.tensor(4.0)) / gamma + 1e-12).all()
        assert (joined <= dist.mean(1) + 1e-12).all()
        torch.testing.assert_close(shares(dist, gamma).sum(1), torch.ones(50).double())
    torch.testing.assert_close(soft_minimum(dist, 1e-6), dist.mean(1), rtol=1e-6, atol=0)


def test_with_gamma_beta_the_repulsion_of_cwms_is_the_mean_over_fields():
    loss = make("mf_cwms", fields_per_class=3, fields_gamma=5.0, **soft("mf_cwms"))
    dist = torch.rand(7, 3, dtype=torch.float64)
    joined = loss.interactions.repulsion(soft_minimum(dist, 5.0)).exp()
    torch.testing.assert_close(joined, loss.interactions.repulsion(dist).exp().mean(1))


def test_pairs_of_fields_return_to_where_they_came_from():
    dist = torch.rand(6, 8)
    assert by_pair(dist, 2).shape == (3, 4, 4)
    assert torch.equal(from_pairs(by_pair(dist, 2), 2), dist)


@pytest.mark.parametrize("name", MEAN_FIELD)
def test_streaming_keeps_nothing_of_size_batch_by_fields(name, monkeypatch):
    monkeypatch.setitem(streaming.ELEMENTS, "cpu", 2**10)
    embeddings, labels, _ = clustered(64, 400, 4)
    loss = weiss.make_loss(name, 400, 4, impl="streaming", fields_per_class=4, skip="off")
    with LargestTensor() as largest:
        loss(embeddings.requires_grad_(), labels).backward()
    assert largest.numel < 64 * 400


def test_what_cannot_be_joined_is_refused():
    with pytest.raises(ValueError, match="fields_gamma must be left out"):
        make("mf_cwms", fields_gamma=5.0)
    with pytest.raises(ValueError, match="fields_gamma must be greater than 0"):
        make("mf_cwms", fields_per_class=2, fields_gamma=0.0)
    with pytest.raises(ValueError, match="fields_per_class must be at least 1"):
        make("mf_cwms", fields_per_class=0)
    with pytest.raises(ValueError, match="fields_per_class must be 1"):
        make("mf_cwms", fields_per_class=2, fluctuations="second")
    x, labels, _ = loops.random_batch(0)
    for options in ({"matmul_dtype": "bfloat16"}, {"skip": "on"}):
        with pytest.raises(ValueError, match="one field a class"):
            make("mf_contrastive", fields_per_class=2, **options)(x, labels)


def test_settings_of_a_run_name_the_gamma_that_joins_its_fields():
    assert "fields_gamma" not in weiss.losses.loss_settings("mf_cwms", {})
    settings = weiss.losses.loss_settings("mf_cwms", {"fields_per_class": 2})
    again = weiss.make_loss("mf_cwms", 4, 3, **settings)
    assert again.fields.shape == (4, 2, 3)
    assert again.fields_gamma == settings["fields_gamma"] == 80.0
    assert again.class_vectors is None
    assert isinstance(again.get_logits(torch.randn(5, 3)), Tensor)

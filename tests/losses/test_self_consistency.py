"""Fields against class means: measured as defined, and solved for where they should be."""

import copy
import json

import loops
import numpy as np
import pytest
import torch
from budgets import MEAN_FIELD, RATED

import weiss
from weiss.losses import self_consistency
from weiss.losses.by_name import BASELINES
from weiss.losses.self_consistency import (
    QUANTILES,
    ClassMeans,
    class_means_of,
    follow_class_means,
    order_parameters,
    solve_fields,
)

CPU = torch.device("cpu")
OVER_PAIRS = [name for name, loss in weiss.LOSSES.items() if loss.class_lr_scale is None]
PROXIES = [n for n in BASELINES if weiss.make_loss(n, 5, 4).class_vectors is not None]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def one_seed():
    torch.manual_seed(0)


def means_by_loops(embeddings, labels, num_classes):
    """Return the mean of each class in float32, and how many samples it has."""
    members = loops.members_of(labels)
    means = torch.zeros(num_classes, embeddings.shape[1])
    for c, samples in members.items():
        means[c] = sum(embeddings[i].double() for i in samples) / len(samples)
    return means, [len(members.get(c, [])) for c in range(num_classes)]


def quantiles(values):
    return pytest.approx(np.quantile(values, QUANTILES).tolist(), rel=1e-4, abs=1e-6)


def unit_batch(seed, labels_each=None, **sizes):
    embeddings, labels, fields = loops.random_batch(seed, labels_each=labels_each, **sizes)
    embeddings = (embeddings / embeddings.norm(dim=1, keepdim=True)).float()
    return embeddings, labels, fields.float()


def measured(embeddings, labels, num_classes):
    means = ClassMeans(num_classes, embeddings.shape[1], CPU)
    means.add(embeddings, labels)
    return means


# Class means


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(
    ("labels_each", "kind"),
    [(None, torch.int64), (1, torch.int64), (3, torch.bool), (2, torch.uint8), (2, torch.float32)],
)
def test_class_means_are_means_of_the_members_in_single_precision(
    labels_each, kind, dtype, autocast
):
    embeddings, labels, _ = unit_batch(2, labels_each, batch=11, num_classes=6)
    embeddings, labels = embeddings.to(dtype), labels.to(kind)
    means = ClassMeans(6, 3, CPU)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for rows in (slice(0, 4), slice(4, 5), slice(5, 11)):
            means.add(embeddings[rows], labels[rows])
        at_once = class_means_of(embeddings, labels, 6)
    expected, counts = means_by_loops(embeddings, labels, 6)
    assert means.counts_C.tolist() == counts
    assert means.seen().tolist() == [count > 0 for count in counts]
    for found in (means.means(), at_once):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected)


def test_cleared_means_have_seen_nothing():
    embeddings, labels, _ = unit_batch(0)
    means = measured(embeddings.requires_grad_(), labels, 5)
    sums = means.sums_CD
    assert not sums.requires_grad
    means.clear()
    assert not means.seen().any()
    assert not means.means().any()
    means.add(embeddings, labels)
    assert means.sums_CD is sums  # a state that is saved by reference stays the same tensor
    torch.testing.assert_close(means.means(), means_by_loops(embeddings, labels, 5)[0])


# Order parameters


@pytest.mark.parametrize("labels_each", [None, 2])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("name", MEAN_FIELD)
def test_order_parameters_are_those_of_the_definition(name, distance, labels_each, monkeypatch):
    monkeypatch.setattr(self_consistency, "DISTANCE_ROWS", 3)
    embeddings, labels, fields = unit_batch(3, labels_each, batch=9, num_classes=11, size=4)
    between = [
        loops.distance(distance, fields[c], fields[other]).item()
        for c in range(11)
        for other in range(c + 1, 11)
    ]
    # So close to a distance that bfloat16 cannot tell on which side it is.
    reach, margin = sorted(between)[21] + 1e-4, "delta" if name in RATED else "neg_margin"
    settings = {margin: reach} | ({"margin": 0.0} if name == "mf_rest_ms" else {})
    loss = weiss.make_loss(name, 11, 4, distance=distance, **settings)
    loss.fields.data.copy_(fields)
    means = measured(embeddings, labels, 11)
    before = copy.deepcopy((loss.fields, means.sums_CD, means.counts_C))
    found = order_parameters(means, loss)
    with torch.autocast("cpu", torch.bfloat16):
        assert order_parameters(means, loss) == found
    expected, counts = means_by_loops(embeddings, labels, 11)
    present = [c for c in range(11) if counts[c]]
    assert 0 < len(present) < 11
    lengths = [expected[c].norm().item() for c in present]
    residuals = [loops.distance(distance, expected[c], fields[c]).item() for c in present]
    assert found == {
        "class_mean_length": quantiles(lengths),
        "residual": quantiles(residuals),
        "violating_share": pytest.approx(22 / 55, rel=1e-12),
    }
    assert json.loads(json.dumps(found)) == found  # plain numbers
    for a, b in zip(before, (loss.fields, means.sums_CD, means.counts_C), strict=True):
        assert a.equal(b)


@pytest.mark.parametrize("name", OVER_PAIRS)
def test_a_loss_over_pairs_has_lengths_only(name):
    embeddings, labels, _ = unit_batch(0)
    found = order_parameters(measured(embeddings, labels, 5), weiss.make_loss(name, 5, 3))
    assert set(found) == {"class_mean_length"}


@pytest.mark.parametrize("sizes", [(4, 7), (5, 5)])
@pytest.mark.parametrize("name", PROXIES)
def test_class_vectors_of_a_baseline_are_a_class_a_row(name, sizes):
    loss = weiss.make_loss(name, *sizes)
    vectors = loss.class_vectors.detach()
    assert tuple(vectors.shape) == sizes
    if name == "center":
        return  # its logits are those of a classifier with vectors of its own
    x = torch.nn.functional.normalize(torch.randn(6, sizes[1]))
    logits = loss.get_logits(x).detach()
    for i in range(6):
        cosines = [-float(loops.distance("cosine", x[i], v)) for v in vectors]
        ranked = sorted(range(sizes[0]), key=lambda c: cosines[c])
        assert logits[i].argsort().tolist() == ranked


@pytest.mark.parametrize("name", PROXIES)
def test_a_proxy_is_compared_by_angle_and_has_no_reach(name):
    loss = weiss.make_loss(name, 7, 4)
    x, labels = torch.nn.functional.normalize(torch.randn(9, 4)), torch.arange(9) % 6
    found = order_parameters(measured(x, labels, 7), loss)  # one class is absent
    means, _ = means_by_loops(x, labels, 7)
    vectors = loss.class_vectors.detach()
    residuals = [loops.distance("cosine", means[c], vectors[c]).item() for c in range(6)]
    assert set(found) == {"class_mean_length", "residual"}
    assert found["residual"] == quantiles(residuals)


def test_before_anything_was_seen_there_is_no_order_and_a_single_class_has_no_pairs():
    assert order_parameters(ClassMeans(5, 3, CPU), weiss.make_loss("mf_cwms", 5, 3)) == {}
    found = order_parameters(
        measured(torch.eye(2), torch.zeros(2, dtype=torch.long), 1),
        weiss.make_loss("mf_contrastive", 1, 2),
    )
    assert set(found) == {"class_mean_length", "residual"}


# Fields that follow


@pytest.mark.parametrize(("momentum", "labels_each"), [(0.0, None), (0.25, 2), (1.0, None)])
def test_fields_follow_the_means_of_a_batch(momentum, labels_each):
    embeddings, labels, fields = unit_batch(5, labels_each, batch=3, num_classes=9)
    loss = weiss.make_loss("mf_cwms", 9, 3)
    loss.fields.data.copy_(fields)
    parameter = loss.fields
    follow_class_means(loss, embeddings, labels, momentum)
    means, counts = means_by_loops(embeddings, labels, 9)
    assert 0 in counts
    for c in range(9):
        if not counts[c]:
            assert torch.equal(loss.fields[c], fields[c])  # untouched, to the last bit
            continue
        for d in range(3):
            moved = momentum * float(fields[c, d]) + (1 - momentum) * float(means[c, d])
            assert loss.fields[c, d].item() == pytest.approx(moved, rel=1e-5, abs=1e-6)
    assert loss.fields is parameter  # the optimiser still holds it
    assert loss.fields.requires_grad
    assert loss.fields.grad is None


# Fields that are solved for


def separated(seed=0, num_classes=6, each=20, size=16, spread=0.5):
    """Classes around orthogonal directions, lopsided so that their middle is not their centre."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_classes).repeat_interleave(each)
    noise = torch.randn(len(labels), size, generator=generator).abs() * spread / size**0.5
    return torch.nn.functional.normalize(torch.eye(size)[labels] + noise), labels


def shuffled(number, batch, passes, seed=0):
    random = np.random.default_rng(seed)
    for _ in range(passes):
        order = random.permutation(number)
        yield from (order[i : i + batch] for i in range(0, number, batch))


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("name", MEAN_FIELD)
def test_solving_lowers_the_loss_and_moves_nothing_else(name, distance):
    embeddings, labels = separated()
    loss = weiss.make_loss(name, 6, 16, distance=distance)
    embeddings.requires_grad_()
    fixed, before = embeddings.detach().clone(), float(loss(embeddings, labels).detach())
    parameter = loss.fields
    solve_fields(loss, embeddings, labels, shuffled(120, 40, 20), lr=0.1)
    assert float(loss(embeddings, labels).detach()) < before - 0.05
    assert torch.equal(embeddings.detach(), fixed)
    assert embeddings.grad is None
    assert loss.fields is parameter
    assert loss.fields.grad is None


@pytest.mark.parametrize("multi_hot", [False, True])
def test_solving_is_adam_with_a_rate_that_falls_to_zero(multi_hot):
    embeddings, labels = separated(num_classes=3, each=4)
    loss = weiss.make_loss("mf_cwms", 3, 16)
    other = copy.deepcopy(loss)
    batches = list(shuffled(12, 6, 3))
    given = torch.eye(3, dtype=torch.long)[labels] if multi_hot else labels
    solve_fields(loss, embeddings, given, iter(batches), lr=0.1)
    fields = other.fields.detach().clone()
    first, second = torch.zeros_like(fields), torch.zeros_like(fields)
    for number, rows in enumerate(batches):
        other.fields.data.copy_(fields)
        other.fields.grad = None
        other(embeddings[rows], labels[rows]).backward()
        gradient = other.fields.grad
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        step = (first / (1 - 0.9 ** (number + 1))) / (
            (second / (1 - 0.999 ** (number + 1))).sqrt() + 1e-8
        )
        fields = fields - 0.1 * (1 - number / len(batches)) * step
    torch.testing.assert_close(loss.fields.detach(), fields, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trained", [True, False])
def test_fields_that_do_not_learn_are_solved_for_and_stay_so(trained):
    embeddings, labels = separated()
    loss = weiss.make_loss("mf_cwms", 6, 16)
    loss.fields.requires_grad_(trained)
    before = loss.fields.detach().clone()
    solve_fields(loss, embeddings, labels, [], lr=0.1)
    assert torch.equal(loss.fields, before)
    solve_fields(loss, embeddings, labels, shuffled(120, 40, 1), lr=0.1)
    assert not torch.equal(loss.fields, before)
    assert loss.fields.requires_grad == trained

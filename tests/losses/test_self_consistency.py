"""Fields against class means: measured as defined, and solved for where they should be."""

import copy
import json
import math

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


@pytest.fixture(autouse=True)
def one_thread_and_one_seed():
    """Tensors this small are quicker on one core, and much quicker if the other is busy."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def means_by_loops(embeddings, labels, num_classes):
    classes = loops.classes_of(labels)
    sums = [[0.0] * embeddings.shape[1] for _ in range(num_classes)]
    counts = [0] * num_classes
    for i, row in enumerate(embeddings.tolist()):
        for c in classes[i]:
            counts[c] += 1
            for d, value in enumerate(row):
                sums[c][d] += value
    means = [[x / max(counts[c], 1) for x in sums[c]] for c in range(num_classes)]
    return torch.tensor(means), counts


def quantiles_by_hand(values):
    """Linear between the two ranks around (n - 1) q."""
    ranked, found = sorted(values), []
    for q in QUANTILES:
        place = (len(ranked) - 1) * q
        low = math.floor(place)
        high = min(low + 1, len(ranked) - 1)
        found.append(ranked[low] + (place - low) * (ranked[high] - ranked[low]))
    return found


def unit_batch(seed, labels_each=None, **sizes):
    embeddings, labels, fields = loops.random_batch(seed, labels_each=labels_each, **sizes)
    embeddings = (embeddings / embeddings.norm(dim=1, keepdim=True)).float()
    return embeddings, labels, fields.float()


def measured(embeddings, labels, num_classes):
    means = ClassMeans(num_classes, embeddings.shape[1], CPU)
    means.add(embeddings, labels)
    return means


# Class means


@pytest.mark.parametrize(("seed", "labels_each"), [(0, None), (1, 1), (2, 3)])
def test_class_means_are_means_of_the_members(seed, labels_each):
    embeddings, labels, _ = unit_batch(seed, labels_each, batch=11, num_classes=6)
    means = ClassMeans(6, 3, CPU)
    for rows in (slice(0, 4), slice(4, 5), slice(5, 11)):
        means.add(embeddings[rows], labels[rows])
    expected, counts = means_by_loops(embeddings, labels, 6)
    torch.testing.assert_close(means.means(), expected)
    assert means.seen().tolist() == [count > 0 for count in counts]
    assert means.counts_C.tolist() == counts
    torch.testing.assert_close(class_means_of(embeddings, labels, 6), expected)


def test_multi_hot_labels_may_be_of_any_kind():
    embeddings, labels, _ = unit_batch(0, 2)
    expected, _ = means_by_loops(embeddings, labels, 5)
    for dtype in (torch.bool, torch.int64, torch.uint8, torch.float32):
        torch.testing.assert_close(class_means_of(embeddings, labels.to(dtype), 5), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_sums_are_taken_in_single_precision(dtype):
    embeddings, labels, _ = unit_batch(1, batch=200)
    expected, _ = means_by_loops(embeddings.to(dtype), labels, 5)
    found = class_means_of(embeddings.to(dtype), labels, 5)
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
    reach, margin = 0.7 if distance == "cosine" else 2.0, "delta" if name in RATED else "neg_margin"
    loss = weiss.make_loss(name, 11, 4, distance=distance, **{margin: reach})
    loss.fields.data.copy_(fields)
    found = order_parameters(measured(embeddings, labels, 11), loss)
    means, counts = means_by_loops(embeddings, labels, 11)
    present = [c for c in range(11) if counts[c]]
    assert 0 < len(present) < 11
    lengths = [math.sqrt(sum(x * x for x in means[c].tolist())) for c in present]
    residuals = [float(loops.distance(distance, means[c], fields[c])) for c in present]
    pairs = [
        float(loops.distance(distance, fields[c], fields[other])) < reach
        for c in range(11)
        for other in range(c + 1, 11)
    ]
    assert set(found) == {"class_mean_length", "residual", "violating_share"}
    assert found["class_mean_length"] == pytest.approx(quantiles_by_hand(lengths), rel=1e-5)
    assert found["residual"] == pytest.approx(quantiles_by_hand(residuals), rel=1e-4)
    assert 0 < sum(pairs) < 55
    assert found["violating_share"] == pytest.approx(sum(pairs) / 55, rel=1e-12)


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
    x = torch.nn.functional.normalize(torch.randn(6, sizes[1]))
    logits = loss.get_logits(x).detach()
    for i in range(6):
        cosines = [-float(loops.distance("cosine", x[i], v)) for v in vectors]
        ranked = sorted(range(sizes[0]), key=lambda c: cosines[c])
        assert logits[i].argsort().tolist() == ranked


@pytest.mark.parametrize("name", PROXIES)
def test_a_proxy_is_compared_by_angle_and_has_no_reach(name):
    sizes = (7, 4)
    loss = weiss.make_loss(name, *sizes)
    x = torch.nn.functional.normalize(torch.randn(9, sizes[1]))
    labels = torch.arange(9) % (sizes[0] - 1)  # one class is absent
    found = order_parameters(measured(x, labels, sizes[0]), loss)
    means, counts = means_by_loops(x, labels, sizes[0])
    residuals = [
        float(loops.distance("cosine", means[c], loss.class_vectors[c].detach()))
        for c in range(sizes[0])
        if counts[c]
    ]
    assert set(found) == {"class_mean_length", "residual"}
    assert found["residual"] == pytest.approx(quantiles_by_hand(residuals), rel=1e-4, abs=1e-6)


def test_before_anything_was_seen_there_is_no_order_and_a_single_class_has_no_pairs():
    assert order_parameters(ClassMeans(5, 3, CPU), weiss.make_loss("mf_cwms", 5, 3)) == {}
    found = order_parameters(
        measured(torch.eye(2), torch.zeros(2, dtype=torch.long), 1),
        weiss.make_loss("mf_contrastive", 1, 2),
    )
    assert set(found) == {"class_mean_length", "residual"}


def test_measuring_changes_nothing_and_gives_plain_numbers():
    embeddings, labels, _ = unit_batch(0)
    loss, means = weiss.make_loss("mf_cwms", 5, 3), measured(embeddings, labels, 5)
    before = copy.deepcopy((loss.fields, means.sums_CD, means.counts_C))
    found = order_parameters(means, loss)
    assert json.loads(json.dumps(found)) == found
    after = (loss.fields, means.sums_CD, means.counts_C)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert loss.fields.requires_grad


# Limits


def lengths_of(embeddings, labels, num_classes):
    loss = weiss.make_loss("contrastive", num_classes, embeddings.shape[1])
    return order_parameters(measured(embeddings, labels, num_classes), loss)["class_mean_length"]


def test_a_class_in_one_point_has_length_one_and_opposite_points_have_zero():
    points = torch.nn.functional.normalize(torch.randn(3, 8))
    labels = torch.arange(3).repeat(6)
    assert lengths_of(points[labels], labels, 3) == pytest.approx([1.0] * 5, rel=1e-6)
    signs = torch.tensor([1.0, -1.0]).repeat_interleave(9)[:, None]
    found = lengths_of(signs * points[labels], labels, 3)
    assert found == pytest.approx([0.0] * 5, abs=1e-6)


def test_orthogonal_fields_violate_nothing_and_equal_fields_everything():
    loss = weiss.make_loss("mf_contrastive", 6, 6, neg_margin=0.3)
    means = measured(torch.eye(6), torch.arange(6), 6)
    loss.fields.data.copy_(torch.eye(6))
    assert order_parameters(means, loss)["violating_share"] == 0.0
    loss.fields.data.copy_(torch.ones(6, 6))
    assert order_parameters(means, loss)["violating_share"] == 1.0
    loss.fields.data.copy_(torch.eye(6))
    loss.fields.data[1] = loss.fields.data[0]
    assert order_parameters(means, loss)["violating_share"] == 1 / 15


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


def test_with_a_soft_attraction_the_solution_is_the_class_means():
    """An attraction linear in the cosine distance has its minimum in the mean's direction."""
    embeddings, labels = separated()
    loss = weiss.make_loss("mf_contrastive", 6, 16, pos_margin=-1.0, neg_margin=0.2)
    means, _ = means_by_loops(embeddings, labels, 6)
    loss.fields.data.copy_(means + 0.3 * torch.randn(6, 16))

    def furthest():
        return max(
            float(loops.distance("cosine", means[c], loss.fields[c].detach())) for c in range(6)
        )

    begun = furthest()
    solve_fields(loss, embeddings, labels, shuffled(120, 120, 200), lr=0.05)
    assert begun > 0.1
    assert furthest() < 1e-3
    # The mean, not a member of the class: those are further away.
    nearest = min(
        float(loops.distance("cosine", means[int(c)], x))
        for x, c in zip(embeddings, labels, strict=True)
    )
    assert nearest > 5e-3


def test_solving_is_adam_with_a_rate_that_falls_to_zero():
    embeddings, labels = separated(num_classes=3, each=4)
    loss = weiss.make_loss("mf_cwms", 3, 16)
    other = copy.deepcopy(loss)
    batches = list(shuffled(12, 6, 3))
    solve_fields(loss, embeddings, labels, iter(batches), lr=0.1)
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


def test_solving_takes_multi_hot_labels():
    embeddings, labels = separated()
    one, other = (weiss.make_loss("mf_cwms", 6, 16) for _ in range(2))
    other.load_state_dict(one.state_dict())
    batches = list(shuffled(120, 40, 3))
    solve_fields(one, embeddings, labels, batches, lr=0.1)
    solve_fields(other, embeddings, torch.eye(6, dtype=torch.long)[labels], batches, lr=0.1)
    torch.testing.assert_close(one.fields, other.fields)

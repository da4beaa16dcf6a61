"""The physics behind the losses: what the mean-field step keeps, drops and converges to."""

import math

import numpy as np
import pytest
import torch
from budgets import PAIR, RATED, with_fields

import weiss
from weiss import ClassWiseMultiSimilarityLoss, ContrastiveLoss, MeanFieldContrastiveLoss
from weiss.losses.self_consistency import solve_fields
from weiss.theory.distances import cosine_distance, unit
from weiss.theory.interactions import LogLink

RATES = {"alpha": 1.3, "beta": 4.0, "delta": 0.5}
NEVER_CLIPPED = {"pos_margin": -1.0, "neg_margin": 3.0}
SMOOTH = [(name, kind) for name in PAIR for kind in ("attraction", "repulsion")]


def smooth(name, kind):
    """Return the energy of a pair, not its logarithm, where it is smooth."""
    settings = RATES if name in RATED else NEVER_CLIPPED
    given = weiss.make_loss(name, 1, 1, **settings).interactions
    energy, link = getattr(given, kind), getattr(given, f"{kind}_link")
    return (lambda dist: energy(dist).exp()) if isinstance(link, LogLink) else energy


EPSILONS = torch.logspace(-1.5, -2.5, 5, dtype=torch.float64)


def remainder(interaction, epsilon, *, fields_are_means):
    """R of <g(F_i, F_j)> = <g(F_i, M')> + <g(M, F_j)> - g(M, M') + R, fluctuations of epsilon."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    centre, other_centre = draw(1, 6), draw(1, 6)
    samples, others = centre + epsilon * draw(9, 6), other_centre + epsilon * draw(7, 6)
    field, other_field = centre, other_centre
    if fields_are_means:
        field, other_field = samples.mean(0, keepdim=True), others.mean(0, keepdim=True)

    def average(x, y):
        return interaction(cosine_distance(x, y)).mean()

    kept = average(samples, other_field) + average(field, others) - average(field, other_field)
    return (average(samples, others) - kept).abs()


@pytest.mark.parametrize(("name", "kind"), SMOOTH)
@pytest.mark.parametrize(("fields_are_means", "order"), [(False, 2), (True, 4)])
def test_what_is_dropped_falls_with_the_square_or_fourth_power_of_the_spread(
    name, kind, fields_are_means, order
):
    energy = smooth(name, kind)
    dropped = [remainder(energy, e, fields_are_means=fields_are_means) for e in EPSILONS]
    dropped = torch.stack(dropped)
    steps = dropped.log().diff() / EPSILONS.log().diff()
    assert steps[-1].item() == pytest.approx(order, abs=0.1)


def test_the_cosine_attraction_drops_the_square_of_one_less_the_order_parameter():
    spins = unit(one_cloud())
    mean = spins.mean(0, keepdim=True)
    pairs = cosine_distance(spins, spins).mean()
    kept = 2 * cosine_distance(spins, mean).mean() - cosine_distance(mean, mean).mean()
    # Pairs are kept + R, so that R is minus this.
    assert (kept - pairs).item() == pytest.approx((1 - mean.norm().item()) ** 2, rel=1e-12)


def test_between_two_clusters_the_child_rests_where_its_parent_still_pulls():
    angle = torch.tensor(0.4, dtype=torch.float64)
    clusters = torch.stack([angle.cos(), angle.sin()]).repeat(2, 1)
    clusters[1, 1] *= -1
    labels = torch.zeros(2, dtype=torch.long)
    child = with_fields("mf_contrastive", torch.eye(2).double()[:1], pos_margin=0.1)
    assert child(clusters, labels).item() == 0.0
    assert ContrastiveLoss(pos_margin=0.1)(clusters, labels).item() > 0.01


def two_tight_classes(spread):
    generator = torch.Generator().manual_seed(1)
    centres = unit(torch.randn(2, 5, generator=generator, dtype=torch.float64))
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    noise = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    for c in (0, 1):  # exact class means, so that the fields are self-consistent
        noise[labels == c] -= noise[labels == c].mean(0)
    return centres[labels] + spread * noise, labels, centres


STEEP = {"alpha": 0.7, "beta": 30.0, "delta": 0.1}


def gap_of_cwms(spread):
    """By how much the mean-field loss of two classes is larger than the pair loss."""
    embeddings, labels, centres = two_tight_classes(spread)
    child, pair = with_fields("mf_cwms", centres, **STEEP), ClassWiseMultiSimilarityLoss(**STEEP)
    return (child(embeddings, labels) - pair(embeddings, labels)).item()


def test_at_zero_spread_cwms_and_its_child_differ_by_a_known_constant():
    alpha, beta, delta = STEEP.values()
    _, _, centres = two_tight_classes(0.0)
    gap = gap_of_cwms(0.0)
    pull = math.exp(-alpha * delta)
    inside = math.log((1 + pull) / (1 + pull / 2)) / alpha
    push = math.exp(-beta * (cosine_distance(centres[:1], centres[1:]).item() - delta))
    between = math.log((1 + 2 * push) / (1 + push)) / (2 * beta)
    assert gap == pytest.approx(inside + between, rel=1e-12)
    assert between < 1e-8 * inside  # the constraint holds here: the gap is the constant


def test_at_zero_spread_contrastive_and_its_child_agree_once_the_constraint_holds():
    embeddings, labels, centres = two_tight_classes(0.0)
    child = with_fields("mf_contrastive", centres)
    assert child(embeddings, labels).item() == 0.0
    # 1 - cos of a vector with itself is not exactly 0 in floating point, but below the margin.
    assert ContrastiveLoss()(embeddings, labels).item() == 0.0


def test_the_gap_beyond_the_constant_vanishes_with_the_spread():
    gaps = [gap_of_cwms(spread) for spread in (0.0, 0.05, 0.1, 0.2)]
    beyond = [abs(gap - gaps[0]) for gap in gaps[1:]]
    assert beyond[0] < beyond[1] < beyond[2]
    assert beyond[0] < 1e-3


def settled(loss, embeddings, labels, steps):
    """Return the field that minimises the loss of these samples."""
    solve_fields(loss, embeddings, labels, [np.arange(len(labels))] * steps, lr=0.1)
    return loss.fields.detach()


def one_cloud():
    generator = torch.Generator().manual_seed(2)
    centre = torch.randn(1, 4, generator=generator, dtype=torch.float64)
    return centre + 0.8 * torch.randn(11, 4, generator=generator, dtype=torch.float64)


def test_under_cosine_the_best_field_is_the_direction_of_the_class_mean():
    torch.manual_seed(0)
    embeddings, labels = one_cloud(), torch.zeros(11, dtype=torch.long)
    loss = MeanFieldContrastiveLoss(1, 4, pos_margin=-0.5).double()
    field = settled(loss, embeddings, labels, steps=200)
    mean = unit(embeddings).mean(0, keepdim=True)
    assert cosine_distance(field, mean).item() < 1e-6
    loss.load_state_dict({"fields": 3.0 * mean})
    loss.zero_grad()
    loss(embeddings, labels).backward()
    assert loss.fields.grad.norm().item() < 1e-14


def test_under_euclidean_distance_the_best_field_is_the_geometric_median():
    torch.manual_seed(0)
    embeddings, labels = one_cloud(), torch.zeros(11, dtype=torch.long)
    loss = MeanFieldContrastiveLoss(1, 4, pos_margin=-0.5, distance="euclidean").double()
    field = settled(loss, embeddings, labels, steps=200)
    median = embeddings.mean(0)
    for _ in range(500):  # Weiszfeld's iteration
        weight = 1 / (embeddings - median).norm(dim=1, keepdim=True)
        median = (weight * embeddings).sum(0) / weight.sum()
    assert (field[0] - median).norm().item() < 1e-4
    assert (field[0] - embeddings.mean(0)).norm().item() > 1e-2  # which is not the mean

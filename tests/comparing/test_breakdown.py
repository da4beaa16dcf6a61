"""A pair loss against its mean-field child: what the child misses, and in which order."""

import itertools
import math

import loops
import numpy as np
import pytest
import torch
from budgets import LargestTensor

from weiss.comparing.breakdown import draw_classes, gap_at, gap_of, pair_value, spread_of
from weiss.losses import make_loss
from weiss.losses.by_name import FAMILIES
from weiss.theory.random_directions import random_directions

SMALL = {"num_classes": 6, "per_class": 5, "embedding_size": 12}
# All pairs on the smooth side of both hinges: the loss of the magnet.
MAGNET = {"pos_margin": -1.0, "neg_margin": 0.0}


def cloud(sizes=(1, 4, 2, 3), size=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    embeddings = torch.randn(len(labels), size, generator=generator, dtype=torch.float64)
    shuffled = torch.randperm(len(labels), generator=generator)
    return embeddings[shuffled], labels[shuffled]


SETTINGS = {
    "contrastive": {"pos_margin": 0.1, "neg_margin": 0.9},
    "cwms": {"alpha": 1.5, "beta": 6.0, "delta": 0.4},
    "binomial": {"alpha": 2.0, "beta": 7.0, "delta": 0.5},
}


@pytest.mark.parametrize("family", SETTINGS)
def test_the_gap_is_that_of_the_two_losses_with_fields_at_the_class_means(family):
    embeddings, labels = cloud()
    pair = make_loss(family, 4, 3, **SETTINGS[family])
    child = make_loss(f"mf_{family}", 4, 3, **SETTINGS[family]).double()
    means = []
    for c in range(4):
        members = [
            row / row.norm() for row, own in zip(embeddings, labels, strict=True) if own == c
        ]
        means.append(sum(members) / len(members))
    at_means = torch.stack([means[own] for own in labels])
    with torch.no_grad():
        child.fields.copy_(torch.stack(means))
        energy, energy_at_zero = (pair(x, labels).item() for x in (embeddings, at_means))
        value, value_at_zero = (child(x, labels).item() for x in (embeddings, at_means))
    spread = [loops.distance("cosine", *rows) for rows in zip(embeddings, at_means, strict=True)]
    expected = {
        "spread": float(sum(spread)) / len(spread),
        "pair": energy,
        "mean_field": value,
        "gap": energy - value,
        "excess": (energy - value) - (energy_at_zero - value_at_zero),
        "pair_at_zero": energy_at_zero,
    }
    assert gap_of(embeddings, labels, family, SETTINGS[family]) == pytest.approx(
        expected, rel=1e-11
    )


@pytest.mark.parametrize(
    ("family", "distance", "average"),
    [
        ("contrastive", "cosine", "classes"),
        ("contrastive", "euclidean", "samples"),
        ("cwms", "euclidean", "classes"),
        ("binomial", "cosine", "samples"),
    ],
)
def test_in_blocks_the_pair_loss_is_the_pair_loss(family, distance, average):
    embeddings, labels = cloud(sizes=(1, 7, 3, 1, 12, 2, 5), size=4)
    settings = SETTINGS[family] | {"distance": distance, "average": average}
    loss = make_loss(family, 7, 4, **settings)
    plain = loss(embeddings, 10 * labels).item()
    for cells in (1, 100, 300, 10**6):
        assert pair_value(loss, embeddings, 10 * labels, cells=cells) == pytest.approx(
            plain, rel=1e-12
        )


@pytest.mark.parametrize(
    ("num_classes", "spread"), [(6, 0.0), (40, 1e-4), (6, 0.03), (40, 0.2), (6, 0.5)]
)
def test_the_spread_is_the_one_asked_for(num_classes, spread):
    embeddings, labels = draw_classes(spread, num_classes, 8, 12, seed=3)
    assert spread_of(embeddings, labels) == pytest.approx(spread, rel=1e-9, abs=1e-14)
    assert torch.allclose(embeddings.norm(dim=1), torch.ones_like(embeddings[:, 0]))
    assert labels.bincount().tolist() == [8] * num_classes


def test_a_spread_beyond_that_of_random_directions_is_refused():
    with pytest.raises(ValueError, match=r"spread must be at most 0\.\d+ for 4 samples a class"):
        draw_classes(0.9, 5, 4, 16, seed=0)


def test_classes_are_orthogonal_where_dimensions_suffice_and_apart_where_not():
    few, _ = draw_classes(0.0, 12, 1, 12, seed=0)
    assert torch.allclose(few @ few.T, torch.eye(12, dtype=torch.float64), atol=1e-12)

    def closest(directions):
        return (directions @ directions.T).fill_diagonal_(-1.0).max().item()

    many, _ = draw_classes(0.0, 60, 1, 6, seed=0)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(60, 6, generator=generator, dtype=torch.float64)
    assert closest(many) < closest(drawn / drawn.norm(dim=1, keepdim=True)) - 0.1


@pytest.mark.parametrize("settings", [{}, {"beta": "auto"}])
def test_both_losses_have_what_the_child_finds_by_classes_and_dimensions(settings):
    embeddings, labels = cloud((3,) * 10, 8)
    rule = random_directions(10, 8)._asdict()
    for most in (30, 9):  # the rule is that of all classes, as in a training
        found = gap_of(embeddings, labels, "rest_ms", settings, most=most)
        assert found == gap_of(embeddings, labels, "rest_ms", settings | rule, most=most)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_spread_there_is_no_excess(family):
    for num_classes in (6, 40):  # apart, and in each other's reach
        sizes = {"num_classes": num_classes, "per_class": 5, "embedding_size": 12}
        found = gap_at(family, 0.0, **sizes)
        assert found["excess"] == pytest.approx(0.0, abs=1e-12)
        assert found["pair"] == pytest.approx(found["pair_at_zero"], abs=1e-12)


def test_for_the_magnet_the_excess_is_half_the_squared_spread_of_each_class():
    embeddings, labels = draw_classes(0.3, **SMALL, seed=1)
    expected = 0.0
    for c in range(6):
        order = embeddings[labels == c].mean(dim=0).norm().item()
        expected -= (1 - order) ** 2 / 2 / 6
    found = gap_of(embeddings, labels, "contrastive", MAGNET)
    assert found["excess"] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("family", "settings", "order"),
    [("contrastive", MAGNET, 2), ("binomial", {}, 2), ("cwms", {}, 1), ("cwms", {"alpha": 3.0}, 1)],
)
def test_small_spreads_cost_a_plain_average_the_second_order_and_a_logarithm_the_first(
    family, settings, order
):
    small, large = (
        gap_at(family, spread, **SMALL, settings=settings)["excess"] for spread in (1e-4, 2e-4)
    )
    assert math.log2(large / small) == pytest.approx(order, abs=0.02)


@pytest.mark.parametrize(("alpha", "delta"), [(0.01, 0.2), (2.0, 0.3)])
def test_the_child_of_cwms_pulls_less_than_its_parent_by_the_constant_it_drops(alpha, delta):
    settings = {"alpha": alpha, "delta": delta}
    found = gap_at("cwms", 1e-4, **SMALL, settings=settings)
    at_zero = math.exp(-alpha * delta)
    share = found["excess"] / (found["pair"] - found["pair_at_zero"])
    assert share == pytest.approx(1 - (1 + at_zero / 2) / (1 + at_zero), rel=1e-3)


def test_what_the_docstring_says_of_the_papers_settings():
    shares = {}
    for family in SETTINGS:
        for spread in (0.02, 0.1, 0.3, 0.5):
            found = gap_at(family, spread)
            share = found["excess"] / (found["pair"] - found["pair_at_zero"])
            shares.setdefault(family, []).append(round(share, 2))
    assert shares == {
        "contrastive": [0.95, 0.07, -0.14, -0.31],
        "cwms": [0.24, 0.21, 0.12, 0.0],
        "binomial": [0.01, 0.02, 0.0, -0.12],
    }


def test_the_same_seed_gives_the_same_and_nobody_elses_numbers_change():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    once = gap_at("cwms", 0.2, **SMALL, seed=1)
    assert gap_at("cwms", 0.2, **SMALL, seed=1) == once
    assert gap_at("cwms", 0.2, **SMALL, seed=2) != once
    assert torch.rand(1) == expected


def test_what_only_the_child_has_is_left_out_and_what_neither_has_is_refused():
    plain = gap_at("cwms", 0.2, **SMALL)
    both = {"reg_weight": 5.0, "reg_scale": "released", "class_lr": 0.5}
    assert gap_at("cwms", 0.2, **SMALL, settings=both) == plain
    assert gap_at("cwms", 0.2, **SMALL, settings={"beta": 3.0}) != plain
    with pytest.raises(TypeError, match="has no argument 'gamma'"):
        gap_at("cwms", 0.2, **SMALL, settings={"gamma": 1.0})


def test_neither_the_order_nor_the_names_of_classes_matter_nor_how_embeddings_are_kept():
    embeddings, labels = cloud()
    plain = gap_of(embeddings, labels, "cwms")
    order = torch.randperm(len(labels))
    for changed in (
        gap_of(embeddings[order], labels[order], "cwms"),
        gap_of(embeddings, 100 - 7 * labels, "cwms"),
        gap_of(embeddings.numpy(), labels.numpy().astype(np.int16), "cwms"),
        gap_of(3.0 * embeddings, labels, "cwms"),
    ):
        assert changed == pytest.approx(plain, rel=1e-10)
    assert gap_of(embeddings.float(), labels, "cwms") == pytest.approx(plain, rel=1e-5)


def test_of_too_many_samples_whole_classes_are_kept():
    embeddings, labels = draw_classes(0.3, 6, 4, 16, seed=0)
    few = gap_of(embeddings, labels, "contrastive", most=11, seed=2)
    assert gap_of(embeddings, labels, "contrastive", most=11, seed=2) == few
    # Two classes of four fit into eleven: it is one of the ways to choose them.
    ways = []
    for a, b in itertools.combinations(range(6), 2):
        kept = torch.isin(labels, torch.tensor([a, b]))
        ways.append(gap_of(embeddings[kept], labels[kept], "contrastive")["pair"])
    assert few["pair"] in ways
    assert gap_of(embeddings, labels, "contrastive", most=1)["spread"] > 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gap_at("ms", 0.1), ValueError, "family must be one of 'contrastive', 'cwms'"),
        (lambda: gap_at("cwms", -0.1), ValueError, "spread must be zero or more for gap_at"),
        (lambda: gap_at("cwms", 0.1, per_class=1), ValueError, "per_class must be at least 2"),
        (lambda: gap_of(torch.ones(3), torch.zeros(3), "cwms"), ValueError, "must have shape"),
        (
            lambda: gap_of(torch.ones(3, 2), torch.zeros(2).long(), "cwms"),
            ValueError,
            r"one class for each of the 3 embeddings, shape \(3,\), for gap_of; got \(2,\)",
        ),
        (
            lambda: gap_of(torch.ones(3, 2), torch.zeros(3), "cwms"),
            TypeError,
            "labels must be whole numbers for gap_of; got torch.float32",
        ),
        (
            lambda: gap_of(torch.full((3, 2), math.nan), torch.zeros(3).long(), "cwms"),
            ValueError,
            "embeddings must be finite for gap_of",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("average", ["classes", "none"])
def test_in_blocks_classes_that_share_a_link_have_the_value_of_the_pair_loss(average):
    embeddings, labels = cloud(sizes=(1, 7, 3, 1, 12, 2, 5), size=4)
    loss = make_loss("rest_ms", 7, 4, alpha=2.0, beta=5.0, delta=0.6, average=average)
    plain = loss(embeddings, labels).item()
    for cells in (1, 100, 300, 10**6):
        value = pair_value(loss, embeddings, labels, cells=cells)
        assert value == pytest.approx(plain, rel=1e-10)


def test_thousands_of_samples_never_need_all_pairs_at_once():
    embeddings, labels = draw_classes(0.2, 100, 10, 16, seed=0)
    loss = make_loss("cwms", 100, 16)
    with LargestTensor() as largest:
        pair_value(loss, embeddings, labels, cells=90_000)
    assert 80_000 < largest.numel < 1000**2 / 8

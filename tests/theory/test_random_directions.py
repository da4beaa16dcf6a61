"""The distances of random directions, drawn; and the loss that takes its settings from them."""

import math

import pytest
import torch

import weiss
from weiss.losses import loss_settings
from weiss.losses.rest_multi_similarity import MANY_CLASSES, SHORT_REACH
from weiss.theory.random_directions import random_directions


def cosines(num_classes, size, seed):
    """Cosines of a direction with C others, ``(64, C)``."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(64, size, generator=generator, dtype=torch.float64)
    b = torch.randn(num_classes, size, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(a) @ torch.nn.functional.normalize(b).T


@pytest.mark.parametrize("num_classes", [50, 573, 11_318])
@pytest.mark.parametrize("size", [128, 512])
def test_the_settings_have_the_scale_of_directions_that_are_drawn(num_classes, size):
    beta, margin = random_directions(num_classes, size)
    drawn = cosines(num_classes, size, 0)
    weights = torch.softmax(beta * drawn, 1)
    sharing = (1 / weights.square().sum(1)).mean().item()
    assert 1.8 < sharing / math.sqrt(num_classes) < 2.8  # at twice the rate 4.5 to 12
    nearest = drawn.amax(1).mean().item()  # the cosine of the nearest field, on average
    assert margin + 0.005 < nearest < margin + 0.075


def test_beta_is_half_of_the_rate_at_which_the_random_energy_model_freezes():
    """There the entropy of N(0, 1/D) energies, ``ln C - beta^2 / 2 D``, is zero."""
    beta, margin = random_directions(300, 64)
    assert math.log(300) - (2 * beta) ** 2 / (2 * 64) == pytest.approx(0.0)
    assert margin == pytest.approx(math.sqrt(math.log(300) / 64))


def test_the_default_takes_its_beta_and_margin_from_the_numbers_of_classes_and_dimensions():
    loss = weiss.make_loss("mf_rest_ms", 300, 64)
    beta, margin = random_directions(300, 64)
    assert (loss.interactions.beta, loss.interactions.margin) == (beta, margin)
    given = weiss.make_loss("mf_rest_ms", 300, 64, beta=20.0, margin=0.0).interactions
    assert (given.beta, given.margin) == (20.0, 0.0)
    assert weiss.make_loss("mf_rest_ms", 1, 8).interactions.beta > 0  # one class


def test_from_many_classes_on_the_repulsion_has_a_short_reach():
    few, many = (
        weiss.make_loss("mf_rest_ms", MANY_CLASSES - 1 + n, 8).interactions for n in (0, 1)
    )
    assert (few.alpha, few.delta) == (8.0, 1.0)
    assert (few.beta, few.margin) == random_directions(MANY_CLASSES - 1, 8)
    assert (many.alpha, many.beta, many.delta, many.margin) == SHORT_REACH
    own = weiss.make_loss("mf_rest_ms", MANY_CLASSES, 8, alpha=8.0, delta=1.0).interactions
    assert (own.alpha, own.beta, own.delta, own.margin) == (8.0, 80.0, 1.0, 0.0)
    # What a field of a random direction feels: much with few classes, nothing with many.
    apart = torch.tensor([1.0])
    assert few.repulsion(apart).exp() > 1
    assert many.repulsion(apart).exp() < 1e-20


def test_settings_with_sizes_hold_numbers_and_build_the_same_loss():
    assert set(loss_settings("mf_rest_ms", {}).values()) >= {"auto"}
    many = loss_settings("mf_rest_ms", {}, (MANY_CLASSES, 64))
    assert SHORT_REACH._asdict().items() <= many.items()
    settings = loss_settings("mf_rest_ms", {"margin": 0.2}, (300, 64))
    assert settings["margin"] == 0.2
    own = weiss.make_loss("mf_rest_ms", 300, 64, margin=0.2).interactions
    assert settings["beta"] == own.beta
    assert weiss.make_loss("mf_rest_ms", 5, 3, **settings).interactions == own


def test_settings_leave_the_word_to_a_loss_that_does_not_know_it():
    for name, given in (("rest_ms", {"margin": "auto"}), ("mf_cwms", {"beta": "auto"})):
        settings = loss_settings(name, given, (300, 64))
        assert given.items() <= settings.items()
        with pytest.raises(TypeError, match="must be a number; got 'auto'"):
            weiss.make_loss(name, 300, 64, **settings)


@pytest.mark.parametrize("name", ["alpha", "beta", "delta", "margin"])
def test_a_word_that_is_not_auto_is_refused(name):
    with pytest.raises(TypeError, match=f"{name} must be a number; got 'much'"):
        weiss.make_loss("mf_rest_ms", 300, 64, **{name: "much"})

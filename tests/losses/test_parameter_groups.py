"""Parameter groups: every kind of parameter at its own learning rate, once."""

import pytest
import torch
from torch import nn

import weiss
from weiss import MeanFieldContrastiveLoss, parameter_groups


def rates(groups):
    return {group["name"]: group["lr"] for group in groups}


def test_the_papers_rates_follow_from_the_networks():
    model = nn.Linear(8, 4)
    groups = parameter_groups(model, MeanFieldContrastiveLoss(9, 4), lr=1e-4)
    assert rates(groups) == pytest.approx({"network": 1e-4, "fields": 2e-1})
    assert all(group["weight_decay"] == 1e-4 for group in groups)
    groups = parameter_groups(model, weiss.make_loss("proxy_anchor", 9, 4), lr=1e-4)
    assert rates(groups) == pytest.approx({"network": 1e-4, "proxies": 1e-2})
    assert rates(parameter_groups(model, weiss.ContrastiveLoss(), lr=1e-4)) == {"network": 1e-4}


def test_a_searched_rate_replaces_the_scaled_one():
    groups = parameter_groups(nn.Linear(8, 4), MeanFieldContrastiveLoss(9, 4), 1e-6, class_lr=0.03)
    assert rates(groups) == {"network": 1e-6, "fields": 0.03}


def test_a_model_that_holds_its_loss_does_not_train_the_fields_twice():
    model = nn.Module()
    model.body, model.loss = nn.Linear(8, 4), MeanFieldContrastiveLoss(9, 4)
    groups = parameter_groups(model, model.loss, lr=1e-4)
    assert rates(groups) == pytest.approx({"network": 1e-4, "fields": 0.2})
    assert sum(len(group["params"]) for group in groups) == 3
    torch.optim.AdamW(groups)  # refuses parameters that stand in two groups


def test_a_field_that_other_modules_of_the_loss_hold_too_is_in_one_group():
    loss = nn.Module()
    loss.inner, loss.after_it = MeanFieldContrastiveLoss(9, 4), nn.Module()
    loss.same = loss.after_it.same = loss.inner.fields
    groups = parameter_groups(nn.Linear(8, 4), loss, lr=1e-4)
    assert rates(groups) == pytest.approx({"network": 1e-4, "fields": 0.2})
    torch.optim.AdamW(groups)


def test_frozen_parameters_are_left_out():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    model[0].requires_grad_(False)
    groups = parameter_groups(model, MeanFieldContrastiveLoss(9, 4), lr=1e-4)
    assert len(groups[0]["params"]) == 2
    model.requires_grad_(False)
    assert [g["name"] for g in parameter_groups(model, MeanFieldContrastiveLoss(9, 4), 1e-4)] == [
        "fields"
    ]
    with pytest.raises(ValueError, match="a parameter that requires a gradient"):
        parameter_groups(model, weiss.ContrastiveLoss(), lr=1e-4)


def test_a_loss_or_parameters_in_the_place_of_the_model_are_refused():
    model, loss = nn.Linear(8, 4), MeanFieldContrastiveLoss(9, 4)
    with pytest.raises(ValueError, match="model must be the network .*got the loss MeanField"):
        parameter_groups(loss, model, lr=1e-4)
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module .*generator"):
        parameter_groups(model.parameters(), loss, lr=1.0)


def test_parameters_of_a_loss_that_are_no_class_vectors_learn_like_the_network():
    loss = nn.Module()
    loss.temperature, loss.inner = nn.Parameter(torch.ones(())), MeanFieldContrastiveLoss(9, 4)
    groups = parameter_groups(nn.Linear(8, 4), loss, lr=1e-4, class_lr=0.5)
    assert rates(groups) == {"network": 1e-4, "loss": 1e-4, "fields": 0.5}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"lr": 0.0}, ValueError, "lr must be greater than 0 .*0.0"),
        ({"lr": 1e-3, "weight_decay": -1.0}, ValueError, "weight_decay must be zero or more"),
        ({"lr": 1e-3, "class_lr": -1.0}, ValueError, "class_lr must be greater than 0"),
        ({"lr": "fast"}, TypeError, "lr must be a number .*'fast'"),
    ],
)
def test_bad_rates_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        parameter_groups(nn.Linear(2, 2), MeanFieldContrastiveLoss(3, 2), **arguments)

"""The mean of the losses of an epoch, and an error that tells which of them is not finite."""

import math

import pytest
import torch

from weiss.runs.evaluator import NotFiniteError
from weiss.training.loss_watch import LossWatch

CPU = torch.device("cpu")
WHERE = {"step": 7, "epoch": 3, "rates": {"trunk": 1e-5, "head": 0.001, "fields": 0.2}}


@pytest.mark.parametrize("number", [1, 2, 100])
def test_the_mean_is_that_of_all_losses(number):
    watch = LossWatch(CPU)
    assert math.isnan(watch.finish())
    values = [math.sin(i) for i in range(number)]
    for value in values:
        watch.add(torch.tensor(value, dtype=torch.float64), **WHERE)
    assert watch.finish() == pytest.approx(sum(values) / number, rel=1e-12)
    assert watch.count == number
    assert watch.finish() == watch.finish()


def test_a_mean_of_a_resumed_epoch_is_that_of_the_whole():
    whole, first = LossWatch(CPU), LossWatch(CPU)
    losses = torch.rand(10, generator=torch.Generator().manual_seed(0))
    for number, value in enumerate(losses):
        whole.add(value, **WHERE)
        if number < 4:
            first.add(value, **WHERE)
    second = LossWatch(CPU, first.total, first.count)
    for value in losses[4:]:
        second.add(value, **WHERE)
    assert second.finish() == whole.finish()  # to the last bit
    assert (second.total, second.count) == (whole.total, whole.count)


def test_a_loss_keeps_nothing_of_its_graph():
    parameter = torch.ones(1, requires_grad=True)
    watch = LossWatch(CPU)
    watch.add((2 * parameter).sum().detach(), **WHERE)
    watch.add(torch.tensor(3, dtype=torch.bfloat16), **WHERE)
    assert watch.finish() == 2.5
    assert isinstance(watch.total, float)


@pytest.mark.parametrize(
    ("value", "said"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_a_loss_that_is_no_number_is_reported_with_step_epoch_and_rates(value, said):
    watch = LossWatch(CPU)
    watch.add(torch.tensor(1.0), **WHERE)
    facts = f"it was {said} at step 7 of epoch 3, .* trunk 1e-05, head 0.001, fields 0.2"
    with pytest.raises(NotFiniteError, match=facts):
        watch.add(torch.tensor(value), **WHERE)
    assert (watch.total, watch.count) == (1.0, 1)

"""The mean of the losses of an epoch, and an error that tells which of them is not finite."""

import math

import pytest
import torch

from weiss.runs.evaluator import NotFiniteError
from weiss.training.loss_watch import LossWatch

pytestmark = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.mark.parametrize("number", [1, 2, 200])
def test_the_mean_is_that_of_all_losses_also_of_a_resumed_epoch(device, number):
    watch = LossWatch(torch.device(device))
    assert math.isnan(watch.finish())
    for step in range(number):
        if step == number // 3:
            watch.finish()
            watch = LossWatch(torch.device(device), watch.total, watch.count)
        watch.add(torch.tensor(step / 4, device=device), step, 1)
    assert watch.finish() == watch.finish() == (number - 1) / 8
    assert watch.count == number


def test_a_loss_keeps_nothing_of_its_graph(device):
    parameter = torch.ones(1, requires_grad=True, device=device)
    watch = LossWatch(torch.device(device))
    watch.add((2 * parameter).sum().detach(), 1, 1)
    watch.add(torch.tensor(3, dtype=torch.bfloat16, device=device), 2, 1)
    assert watch.finish() == 2.5
    assert isinstance(watch.total, float)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_reported_with_step_and_epoch_also_behind_others(device, value):
    watch = LossWatch(torch.device(device))

    def add_all():
        for step in range(1, 100):
            watch.add(torch.tensor(value if step == 7 else 1.0, device=device), step, 3)
        watch.finish()

    with pytest.raises(NotFiniteError, match=f"it was {value} at step 7 of epoch 3"):
        add_all()
    assert (watch.total, watch.count) == (6.0, 6)

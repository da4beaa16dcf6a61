"""The mean of the losses of an epoch, and an error that tells which of them is not finite."""

import math

import pytest
import torch

from weiss.runs.evaluator import NotFiniteError
from weiss.training.loss_watch import LossWatch

CPU = torch.device("cpu")


@pytest.mark.parametrize("number", [1, 2, 100])
def test_the_mean_is_that_of_all_losses_also_of_a_resumed_epoch(number):
    watch = LossWatch(CPU)
    assert math.isnan(watch.finish())
    values = [math.sin(i) for i in range(number)]
    for step, value in enumerate(values):
        if step == number // 3:
            watch = LossWatch(CPU, watch.total, watch.count)
        watch.add(torch.tensor(value, dtype=torch.float64), step, 1)
    assert (watch.total, watch.count) == (sum(values), number)  # to the last bit
    assert watch.finish() == watch.finish() == sum(values) / number


def test_a_loss_keeps_nothing_of_its_graph():
    parameter = torch.ones(1, requires_grad=True)
    watch = LossWatch(CPU)
    watch.add((2 * parameter).sum().detach(), 1, 1)
    watch.add(torch.tensor(3, dtype=torch.bfloat16), 2, 1)
    assert watch.finish() == 2.5
    assert isinstance(watch.total, float)


@pytest.mark.parametrize(
    ("value", "said"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_a_loss_that_is_no_number_is_reported_with_step_and_epoch(value, said):
    watch = LossWatch(CPU)
    watch.add(torch.tensor(1.0), 6, 3)
    with pytest.raises(NotFiniteError, match=f"it was {said} at step 7 of epoch 3"):
        watch.add(torch.tensor(value), 7, 3)
    assert (watch.total, watch.count) == (1.0, 1)

"""A loss that is no number ends a run with a word on where; a wish to stop waits for the loop."""

import math
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

from weiss._base.interrupts import StopRequest
from weiss.runs.evaluator import NotFiniteError
from weiss.training.loss_watch import LossWatch

CPU = torch.device("cpu")
WHERE = {"step": 7, "epoch": 3, "rates": {"trunk": 1e-5, "head": 0.001, "fields": 0.2}}


@pytest.mark.parametrize("number", [1, 2, 100])
def test_the_mean_is_that_of_all_losses(number):
    watch = LossWatch(CPU)
    values = [math.sin(i) for i in range(number)]
    for value in values:
        watch.add(torch.tensor(value, dtype=torch.float64), **WHERE)
    assert watch.finish() == pytest.approx(sum(values) / number, rel=1e-12)
    assert watch.count == number
    assert watch.finish() == watch.finish()


def test_without_a_loss_there_is_no_mean():
    assert math.isnan(LossWatch(CPU).finish())


def test_a_mean_is_taken_up_where_it_was_left():
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
    with pytest.raises(NotFiniteError) as caught:
        watch.add(torch.tensor(value), **WHERE)
    assert str(caught.value) == (
        f"the loss must stay finite; it was {said} at step 7 of epoch 3, with the learning rates "
        "trunk 1e-05, head 0.001, fields 0.2."
    )
    assert (watch.total, watch.count) == (1.0, 1)


def test_a_loss_too_large_for_half_precision_is_reported():
    with pytest.raises(NotFiniteError, match="it was inf at step 7"):
        LossWatch(CPU).add(torch.tensor(1e6).half(), **WHERE)


# Signals

BOTH = [signal.SIGINT, signal.SIGTERM]


def handlers():
    return [signal.getsignal(number) for number in BOTH]


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_is_a_wish(number):
    with StopRequest() as stop:
        assert not stop.wanted
        os.kill(os.getpid(), number)
        assert stop.wanted


@pytest.mark.parametrize("first", BOTH)
@pytest.mark.parametrize("second", BOTH)
def test_the_second_signal_is_not_waited_for(first, second):
    before = handlers()
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:  # noqa: PT012
        os.kill(os.getpid(), first)
        assert stop.wanted
        os.kill(os.getpid(), second)
        pytest.fail("a second signal must interrupt")
    assert handlers() == before


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_signals_are_left_to_those_who_had_them(error):
    before = [signal.signal(signal.SIGINT, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)]
    try:
        try:
            with StopRequest():
                assert signal.SIG_IGN not in handlers()
                if error:
                    raise error
        except (RuntimeError, KeyboardInterrupt) as caught:
            assert type(caught) is error  # noqa: PT017
        assert handlers() == [signal.SIG_IGN, before[1]]
    finally:
        signal.signal(signal.SIGINT, before[0])


def test_one_inside_another_takes_the_signal_and_gives_it_back():
    before = handlers()
    with StopRequest() as outer:
        with StopRequest() as inner:
            os.kill(os.getpid(), signal.SIGINT)
        assert (inner.wanted, outer.wanted) == (True, False)
        os.kill(os.getpid(), signal.SIGTERM)
        assert outer.wanted
    assert handlers() == before


def test_in_a_thread_it_listens_to_nothing_and_disturbs_nobody():
    before, seen = handlers(), []

    def work():
        with StopRequest() as stop:
            seen.append((stop.wanted, handlers() == before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, True)]
    assert handlers() == before


PROGRAM = """
import os, signal, sys
from weiss._base.interrupts import StopRequest
with StopRequest() as stop:
    os.kill(os.getpid(), signal.SIGTERM)
    print("wanted", stop.wanted, flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print("not reached")
"""


def test_after_it_a_signal_ends_the_program_as_ever():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "wanted True\n"
    assert done.returncode == -signal.SIGTERM

"""The lines that a run prints."""

import pytest

from weiss.runs import Train
from weiss.training.console import epoch_line, seconds_left


def lines(*seconds):
    return [{"seconds": each} for each in seconds]


@pytest.mark.parametrize(
    ("done", "epochs", "warmup", "left"),
    [
        ((), 5, 1, 0),  # nothing is known yet
        ((10,), 5, 0, 4 * 10),
        ((10, 20), 6, 0, 4 * 15),
        ((2,), 6, 2, 2 + 4 * 2),  # no other epochs to count the others by
        ((2, 4, 20, 30), 6, 2, 2 * 25),  # warm-up epochs are of another kind
        ((900, *[10] * 10), 13, 0, 2 * 10),  # before a resume, on another machine
        ((10, 10), 2, 1, 0),
    ],
)
def test_the_rest_takes_as_long_as_the_epochs_of_its_kind_took(done, epochs, warmup, left):
    settings = Train(epochs=epochs, warmup_epochs=warmup)
    assert seconds_left(lines(*done), settings) == pytest.approx(left)


def test_a_line_says_what_is_left_if_it_is_worth_a_word():
    line = {"epoch": 1, "loss": 0.5, "seconds": 3.0, "images_per_second": 9.0, "phase": "training"}
    assert "left" not in epoch_line(line, 9, 0.0, is_best=False, left=59)
    assert epoch_line(line, 9, 0.0, is_best=True, left=750).endswith("  12 min left  best so far")

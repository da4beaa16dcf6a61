"""What an error suggests in place of what was given."""

import pytest

from weiss._base.checks import suggestion

NAMES = ["cub", "cars", "Photos", "runs/photos", "mf_cwms", "train.epochs"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [("cup", "cub"), ("CUB", "cub"), ("photo", "Photos"), ("mf_cmws", "mf_cwms")],
)
def test_the_nearest_word_is_suggested_whatever_its_case(given, meant):
    assert suggestion(given, NAMES) == f" Did you mean {meant!r}?"


@pytest.mark.parametrize("given", ["runs/photos", "./runs/photos", "runs/photos/", "runs//photos"])
def test_the_same_word_and_the_same_path_are_never_suggested(given):
    assert suggestion(given, ["runs/photos"]) == ""


@pytest.mark.parametrize("given", ["bus", "resnet", "", "my holiday in Rome.txt"])
def test_a_word_that_is_not_near_is_not_suggested(given):
    assert suggestion(given, NAMES) == ""

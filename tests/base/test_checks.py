"""What an error suggests in place of what was given."""

from pathlib import Path

import pytest

from weiss._base.checks import path_suggestion, suggestion

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


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("phots/", "photos/"),  # a folder, though a name is as near
        ("phots", "photos"),
        ("./phots/", "photos/"),
        ("fotos.csv", "photos.csv"),
        ("glyps", "glyphs"),
        ("glyps/", "glyphs"),  # where no folder is near
        ("nowhere.index", ""),  # a suffix in common makes no path near
        ("on.index", "one.index"),
        ("one.indx", "one.index"),
    ],
)
def test_a_near_path_is_suggested_without_what_all_paths_share(tmp_path, monkeypatch, given, meant):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    paths = [Path("one.index"), Path("photos"), Path("photos.csv")]
    hint = f" Did you mean {meant!r}?" if meant else ""
    assert path_suggestion(given, paths, ["photos", "glyphs"]) == hint


def test_the_folder_in_common_makes_no_path_near():
    paths = ["runs/winter/abc", "runs/winter/lamp"]
    assert path_suggestion("runs/winter/xyz", paths) == ""
    assert path_suggestion("runs/winter/lmp", paths) == " Did you mean 'runs/winter/lamp'?"
    assert path_suggestion("runs/wintr/abc", paths) == " Did you mean 'runs/winter/abc'?"

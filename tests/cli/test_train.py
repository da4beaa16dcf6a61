"""`weiss train` as somebody types it: short options, and JSON for programs."""

import json

import pytest
from tiny import settings, write_stripes
from typed import refused, weiss

from weiss.runs import Run

SHORT = ("loss.name", "backbone.name", "train.epochs", "train.batch_size", "optim.lr")


@pytest.fixture(scope="module")
def stripes(tmp_path_factory):
    return write_stripes(tmp_path_factory.mktemp("stripes"), num_classes=6, per_class=4)


def others():
    """Return the settings of a tiny run that have no short option here."""
    return [word for line in settings() if not line.startswith(SHORT) for word in ("--set", line)]


def test_short_options_are_settings_and_json_is_all_that_is_on_standard_output(stripes, tmp_path):
    out = tmp_path / "run"
    short = ["--loss", "proxy_anchor", "--backbone", "small", "--epochs", 1, "--lr", "2e-3"]
    short += ["--batch-size", 8]
    done = weiss("train", stripes, "--out", out, *short, *others(), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("folder") == str(out)
    assert found == Run(out).result()
    assert "epoch 1/1" in done.stderr
    recipe = Run(out).recipe()
    kept = [recipe[key.partition(".")[0]][key.partition(".")[2]] for key in SHORT]
    assert kept == ["proxy_anchor", "small", 1, 8, 2e-3]


def test_an_option_and_a_setting_of_the_same_key_must_agree(stripes, tmp_path):
    said = ["train", stripes, "--out", tmp_path / "run"]
    message = refused(*said, "--epochs", 3, "--set", "train.epochs=4")
    assert "train.epochs must have one value; got 3 by its own option and 4 by --set" in message
    assert "data.split must have one value" in refused(
        *said, "--split", "all", "--set", "data.split=classes"
    )
    # They agree: what is refused is the next thing.
    message = refused(*said, "--batch-size", "auto", "--set", "train.batch_size=auto", "--lr", "-1")
    assert "optim.lr must be a number greater than 0; got -1.0" in message
    assert not (tmp_path / "run").exists()


def test_a_wrong_value_of_an_option_is_named_by_the_key_of_the_recipe(stripes, tmp_path):
    said = ["train", stripes, "--out", tmp_path / "run"]
    assert "train.batch_size must be a whole number" in refused(*said, "--batch-size", "many")
    assert "Did you mean 'resnet50'" in refused(*said, "--backbone", "resnet500")

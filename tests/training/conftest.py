"""A folder to train on, and a trainer that draws no pictures: they take longer than training."""

import pytest
from tiny import tiny_recipe, write_stripes


@pytest.fixture(autouse=True, scope="module")
def always_one_thread(one_thread):
    """Compute with one thread in every test here."""


@pytest.fixture(scope="session")
def stripes(tmp_path_factory):
    """A folder of 10 classes with 6 images each; of 4 classes to test on."""
    return write_stripes(tmp_path_factory.mktemp("data") / "stripes")


@pytest.fixture
def undrawn(monkeypatch):
    """Leave the pictures out."""
    from weiss.training import outputs

    monkeypatch.setattr(outputs, "_draw", lambda *_: None)


@pytest.fixture
def run(stripes, tmp_path, undrawn):
    """Train a tiny run in a folder of this test, and return the folder."""
    from weiss.training import train

    def one(name="run", *, data=stripes, resume=False, quiet=True, **changes):
        train(tiny_recipe(data, **changes), tmp_path / name, resume=resume, quiet=quiet)
        return tmp_path / name

    return one


@pytest.fixture(scope="module")
def finished(stripes, tmp_path_factory, one_thread):
    """A finished run, pictures and all; only to be read."""
    from weiss.training import train

    folder = tmp_path_factory.mktemp("runs") / "finished"
    train(tiny_recipe(stripes, train__epochs=5), folder, quiet=True)
    return folder

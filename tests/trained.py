"""Fixtures for tests of runs: a folder to train on, a tiny run, and one that is finished."""

import pytest
import torch
from tiny import tiny_recipe, write_stripes

from weiss.training import results, train


@pytest.fixture(autouse=True, scope="module")
def always_one_thread(one_thread):
    """Compute with one thread in every test."""


@pytest.fixture(scope="session")
def stripes(tmp_path_factory):
    """A folder of 10 classes with 6 images each; of 4 classes to test on."""
    return write_stripes(tmp_path_factory.mktemp("data") / "stripes")


@pytest.fixture
def undrawn(monkeypatch):
    """Leave the pictures out, which take longer than training."""
    monkeypatch.setattr(results, "draw", lambda *_: None)


@pytest.fixture
def run(stripes, tmp_path, undrawn):
    """Train a tiny run in a folder of this test, and return the folder."""

    def one(name="run", *, data=stripes, resume=False, quiet=True, **changes):
        train(tiny_recipe(data, **changes), tmp_path / name, resume=resume, quiet=quiet)
        return tmp_path / name

    return one


@pytest.fixture(scope="session")
def finished(stripes, tmp_path_factory):
    """A finished run of 5 epochs, pictures and all; only to be read."""
    folder, threads = tmp_path_factory.mktemp("runs") / "finished", torch.get_num_threads()
    torch.set_num_threads(1)
    train(tiny_recipe(stripes, train__epochs=5), folder, quiet=True)
    torch.set_num_threads(threads)
    return folder

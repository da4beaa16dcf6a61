"""Examples, run in this process: to start another and load torch takes longer than most of them."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def example(monkeypatch):
    """An example by its name, as a module."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module


@pytest.fixture
def run_example(example, monkeypatch, capsys):
    """Call the main function of an example with words of a command line; return what it printed."""

    def run(name, *words, **replaced):
        for attribute, value in replaced.items():
            monkeypatch.setattr(example(name), attribute, value)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        capsys.readouterr()
        example(name).main()
        return capsys.readouterr().out

    return run

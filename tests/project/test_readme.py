"""The README's code runs and prints what it says; its commands exist."""

import contextlib
import importlib
import io
import re
import sys
from pathlib import Path

import pytest

from weiss.runs import recipe_from

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```python\n(?P<code>.*?)```(\n+```text\n(?P<output>.*?)```)?", re.DOTALL)
BLOCKS = [
    pytest.param(match["code"], match["output"], id=f"{path.stem}-{number}")
    for path in DOCUMENTS
    for number, match in enumerate(BLOCK.finditer(path.read_text()), start=1)
]


@pytest.mark.parametrize(("code", "output"), BLOCKS)
def test_a_code_block_runs_and_prints_what_follows_it(code, output):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "block", "exec"), {"__name__": "block"})
    if output is not None:
        assert printed.getvalue() == output


def test_the_readme_has_code_with_output():
    assert any(parameter.values[1] for parameter in BLOCKS)


def test_every_make_target_the_readme_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"`?make ([a-z-]+)", README)) - {"it"}
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


@pytest.fixture
def run_example(monkeypatch, capsys):
    """Call an example's main function with words of a command line; return what it printed.

    In this process: to start another and load torch takes longer than most examples.
    """

    def run(name, *words, **replaced):
        monkeypatch.syspath_prepend(ROOT / "examples")
        module = importlib.import_module(name)
        for attribute, value in replaced.items():
            monkeypatch.setattr(module, attribute, value)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        capsys.readouterr()
        module.main()
        return capsys.readouterr().out

    return run


def test_fields_settling_are_drawn(run_example, tmp_path):
    said = run_example("settling", "--out", tmp_path, "--steps", 30)
    assert (tmp_path / "settling.png").stat().st_size > 10_000
    assert str(tmp_path / "settling.png") in said


def test_the_demo_trains_measures_and_writes_its_page(run_example, one_thread, tmp_path):
    def small_network(name, overrides):
        # What is asked here does not depend on the network, which takes most of the time; a page
        # trains the recipe as it is (docs/training.md).
        return recipe_from(name, [*overrides, "backbone.widths=[4, 8]"])

    said = run_example("demo", "--out", tmp_path, "--epochs", 1, recipe_from=small_network)
    rows = [line.split() for line in said.split("unseen characters, per cent")[1].splitlines()]
    found = {row[0]: row[-4:] for row in rows if len(row) > 4 and row[0] != "MAP@R,"}
    assert found.keys() == {"raw", "untrained", "MFCWMS", "ProxyAnchor"}
    assert found["raw"] == ["12.7", "48.6", "38.0", "83.3"]
    page = (tmp_path / "index.html").read_text()
    assert "Characters nobody has shown" in page
    assert f"look at {tmp_path / 'index.html'}" in said
    assert f"weiss serve {tmp_path / 'index'}" in said
    assert (tmp_path / "index" / "index.json").exists()
    assert (tmp_path / "mf_cwms" / "result.json").exists()

"""The README's code runs and prints what it says; its commands exist."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
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


def run_example(name, *words):
    command = [sys.executable, ROOT / "examples" / name, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_fields_settling_are_drawn(tmp_path):
    said = run_example("settling.py", "--out", tmp_path, "--steps", 30)
    assert (tmp_path / "settling.png").stat().st_size > 10_000
    assert str(tmp_path / "settling.png") in said


def test_the_demo_trains_measures_and_writes_its_page(tmp_path):
    said = run_example("demo.py", "--out", tmp_path, "--epochs", 1)
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

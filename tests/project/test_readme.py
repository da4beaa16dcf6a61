"""The code of the documents runs and prints what follows it; links and make targets exist."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```python\n(?P<code>.*?)```(\n+```text\n(?P<output>.*?)```)?", re.DOTALL)
# A block that trains or optimises takes seconds: it runs with the slow tests.
LONG = re.compile(r"\b(train|measure_untrained|suggest)\(")
BLOCKS = [
    pytest.param(
        match["code"],
        match["output"],
        id=f"{path.stem}-{number}",
        marks=pytest.mark.slow if LONG.search(match["code"]) else (),
    )
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
    here = [each for each in BLOCKS if each.id.startswith("README")]
    assert any(each.values[1] for each in here)
    assert not any(each.marks for each in here)


def test_the_readme_is_short():
    assert README.count("\n") <= 130


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

"""ARCHITECTURE.md shows the tree as it is, and its table names files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
TREE = re.search(r"^src/weiss/\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
TABLE = PAGE[PAGE.index("## Where to make a change") : PAGE.index("## How data flow")]
FILES = sorted(set(re.findall(r"`([\w./-]+(?:/[\w.-]+|\.py|\.toml))`", TABLE)))


def test_the_tree_lists_every_package_with_one_sentence():
    lines = TREE.splitlines()
    named = [re.match(r"  (\w+)/ +\w", line)[1] for line in lines]
    found = {path.parent.name for path in (ROOT / "src" / "weiss").glob("*/__init__.py")}
    assert sorted(named) == sorted(found)


def test_the_tree_has_the_order_that_imports_follow():
    code = (ROOT / "tests" / "project" / "test_architecture.py").read_text()
    layers = re.findall(r'"(\w+)"', re.search(r"^LAYERS = \[(.*?)\]", code, re.M | re.S)[1])
    assert re.findall(r"^  (\w+)/", TREE, re.MULTILINE) == layers


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_table_exists(name):
    assert (ROOT / name).exists() or (ROOT / "src" / "weiss" / name).exists()


def test_the_table_names_files():
    assert len(FILES) > 25

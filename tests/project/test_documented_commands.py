"""Every command that a document shows exists, with the options it is shown with.

Documents are the README and the pages, code blocks and running text alike, the Makefile, and what
scripts say about themselves. Commands are those of `weiss` and of the scripts beside the package;
scripts are read, not run.
"""

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import typer

from weiss.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = [
    path
    for folder in ("examples", "benchmarks", "docs/drawings", "results/cub-resnet50")
    for path in sorted((ROOT / folder).glob("*.py"))
]
FENCE = re.compile(
    r"^(?P<margin> *)```(?P<kind>\w*)\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE
)
INLINE = re.compile(r"(?<!`)`(?P<text>[^`]+)`(?!`)")
SHELLS = {"", "bash", "console", "sh", "shell"}
# Before a command: a prompt, an environment, a launcher.
COMMAND = re.compile(
    r"^(?:\$ )?(?:[A-Z][A-Z0-9_]*=\S* )*"
    r"(?:(?:torchrun|accelerate launch)\b.*? (?=-m |\S+\.py\b))?"
    r"(?:\$\(BIN\)/)?(?:python3? )?(?:-m )?"
    r"(?P<name>weiss(?= )|(?:examples|benchmarks|docs/drawings|results/cub-resnet50)/\S+\.py)"
    r"(?: +(?P<words>.*))?$"
)
NEXT = re.compile(r" (?:&&|\|\||[;|]) ")


def commands_of(line):
    """Yield the name and the words of every command in a line, without comments."""
    for part in NEXT.split(line.strip()):
        if found := COMMAND.match(part):
            try:
                words = shlex.split(found["words"] or "", comments=True)
            except ValueError:  # words about a command, with an apostrophe in them
                words = (found["words"] or "").split()
            yield found["name"], words


def lines_of_page(text):
    """Yield what may be commands in a page: lines of its blocks, and code in its sentences."""
    for fence in FENCE.finditer(text):
        if fence["kind"] in SHELLS:
            yield from fence["text"].replace("\\\n", " ").splitlines()
    for paragraph in FENCE.sub("\n\n", text).split("\n\n"):
        for code in INLINE.finditer(paragraph):
            yield " ".join(code["text"].split())


def lines_of(path):
    """Yield what may be commands in a page, a script's own words, or a Makefile."""
    text = path.read_text()
    if path.suffix == ".md":
        yield from lines_of_page(text)
    elif path.suffix == ".py":
        yield from (ast.get_docstring(ast.parse(text)) or "").splitlines()
    else:
        yield from re.findall(r"^\t@?(.*)$", text, re.MULTILINE)


def shown():
    """Return every command of every document once: where it stands, its name, its words."""
    found = {}
    for path in [*PAGES, *SCRIPTS, ROOT / "Makefile"]:
        for line in lines_of(path):
            for name, words in commands_of(line):
                found[f"{path.stem}: {name} {' '.join(words)}"] = (name, words)
    return [pytest.param(*command, id=place) for place, command in found.items()]


@cache
def weiss_command():
    return typer.main.get_command(app)


@cache
def options_of(script):
    """Return the options that a script, or one beside it that it imports, gives to its parser."""
    tree = ast.parse(script.read_text())
    found = {"-h", "--help"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            names = [each.value for each in node.args if isinstance(each, ast.Constant)]
            found.update(name for name in names if str(name).startswith("-"))
        if isinstance(node, ast.ImportFrom) and node.module:
            beside = script.with_name(f"{node.module}.py")
            found |= options_of(beside) if beside.is_file() else set()
    return frozenset(found)


def options_in(words):
    words = [word.strip("[]") for word in words]  # in brackets: what may be left out
    return {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}


def check(name, words):
    """Raise AssertionError unless the command exists and knows its options."""
    if name != "weiss":
        assert (ROOT / name).is_file(), f"there is no script {name}"
        assert options_in(words) <= options_of(ROOT / name)
        return
    command, left = weiss_command(), [*words]
    while hasattr(command, "commands") and left and not left[0].startswith("-"):
        word = left.pop(0)
        assert word in command.commands, f"there is no command {word}"
        command = command.commands[word]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    assert options_in(left) <= known | {"-h", "--help"}


COMMANDS = shown()


@pytest.mark.parametrize(("name", "words"), COMMANDS)
def test_a_command_of_a_document_exists_with_its_options(name, words):
    check(name, words)


def test_documents_show_commands():
    names = [each.values[0] for each in COMMANDS]
    assert names.count("weiss") > 80
    assert sum(name.startswith("examples/") for name in names) > 12
    assert sum(name.startswith("benchmarks/") for name in names) > 20


PAGE = """
Say `weiss train --quickly` or `FAST=1 weiss data lsit`, or write

    not this: weiss tarin

```
$ THREADS=1 CORES=2 weiss study --no-such    # with words
torchrun --nproc-per-node 4 -m weiss bench traditionally && weiss reports
accelerate launch --num_processes 2 examples/no_such_script.py
python examples/settling.py --reg-wait 0 \\
  --seed 2
```

`OMP_NUM_THREADS=1 python
benchmarks/bench_step.py --divice cuda`; `weiss.data`, `weiss`.

```text
weiss does not do this
```
"""


def test_wrong_commands_are_seen_wherever_they_stand():
    found = [each for line in lines_of_page(PAGE) for each in commands_of(line)]
    assert [(name, words[:2]) for name, words in found] == [
        ("weiss", ["study", "--no-such"]),
        ("weiss", ["bench", "traditionally"]),
        ("weiss", ["reports"]),
        ("examples/no_such_script.py", []),
        ("examples/settling.py", ["--reg-wait", "0"]),
        ("weiss", ["train", "--quickly"]),
        ("weiss", ["data", "lsit"]),
        ("benchmarks/bench_step.py", ["--divice", "cuda"]),
    ]
    for name, words in found:
        with pytest.raises(AssertionError):
            check(name, words)

"""Every `weiss` command that a document shows exists, with the options it is shown with."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from weiss.cli import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
# Before it: a prompt, a launcher, or a shell's environment.
COMMAND = re.compile(r"^(?:\$ )?(?:(?:torchrun|accelerate launch)\b.* -m )?weiss (?P<words>.+)$")


def shown(path):
    """Yield the words of every command of a document, without comments."""
    for fence in FENCE.finditer(path.read_text()):
        for line in fence["text"].replace("\\\n", " ").splitlines():
            if not fence["kind"] and (found := COMMAND.match(line)):
                yield shlex.split(found["words"], comments=True)


COMMANDS = [
    pytest.param(words, id=f"{path.stem}: weiss {' '.join(words)}")
    for path in DOCUMENTS
    for words in shown(path)
]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_of_a_document_exists_with_its_options(words):
    command = typer.main.get_command(app)
    left = [*words]
    while hasattr(command, "commands") and left:
        name = left.pop(0)
        assert name in command.commands, f"there is no command {name}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    asked = {word.split("=")[0] for word in left if re.match(r"--?[a-z]", word)}
    assert asked <= known | {"--help"}


def test_documents_show_commands():
    assert len(COMMANDS) > 40

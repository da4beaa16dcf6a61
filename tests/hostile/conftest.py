"""Attacks on files, processes, servers and numbers: `make test-hostile`.

Everything here has the marker `hostile`; what was tried is printed as JSON at the end.
"""

import json
import shutil
from pathlib import Path

import pytest
from built_once import built_once
from glyph_catalogue import add, glyph_catalogue, photos
from hostile.harm import COUNTS, SEED
from shipped import exports
from tiny import tiny_recipe, write_stripes
from trained import always_one_thread, undrawn

__all__ = ["always_one_thread", "undrawn"]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.hostile)


def pytest_terminal_summary(terminalreporter):
    if COUNTS:
        counts = {name: dict(found) for name, found in sorted(COUNTS.items())}
        terminalreporter.write_line(json.dumps({"seed": SEED, "attacks": counts}, indent=1))


@pytest.fixture(scope="session")
def pictures():
    return glyph_catalogue() / "characters"


def make_index(folder):
    """Copy an index, then add to it and remove from it, so that it has every kind of file."""
    from weiss.catalogue import remove_items

    shutil.copytree(glyph_catalogue() / "index", folder / "index")
    more = photos(folder / "photos")
    (more / "class1" / "bad.jpg").write_bytes(b"no picture")
    add(folder / "index", more)
    remove_items(folder / "index", ["class0/0.jpg", 7], quiet=True)


@pytest.fixture(scope="session")
def whole_index():
    return built_once("hostile_index", make_index) / "index"


@pytest.fixture
def index(whole_index, tmp_path):
    """A copy of the index, to be damaged."""
    return Path(shutil.copytree(whole_index, tmp_path / "index"))


@pytest.fixture(scope="session")
def exported():
    return exports()


class Killed(BaseException):
    """The process ends here."""


def make_runs(folder):
    """Write ``stripes``, and two runs of four epochs: ``finished`` and ``killed`` in the third."""
    from weiss.runs import Run
    from weiss.training import train

    stripes = write_stripes(folder / "stripes")
    recipe = tiny_recipe(stripes, train__epochs=4, train__checkpoint_seconds=0)
    train(recipe, folder / "finished", quiet=True, pictures=False)
    real = Run.write_metrics

    def write(run, lines):
        real(run, lines)
        if len(lines) == 3:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "write_metrics", write)
        with pytest.raises(Killed):
            train(recipe, folder / "killed", quiet=True, pictures=False)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder with a finished run, one that was killed, and their data."""
    folder = tmp_path_factory.mktemp("runs")
    make_runs(folder)
    return folder

"""A run on glyphs, a folder of pictures, and an index of it; made once, and only to be read."""

import shutil

import pytest
from glyph_catalogue import glyph_catalogue, opened, without_data
from shipped import exports

from weiss.runs import Run


@pytest.fixture(autouse=True, scope="module")
def always_one_thread(one_thread):
    """Compute with one thread in every test here."""


@pytest.fixture(scope="session")
def run():
    return Run(exports() / "run")


@pytest.fixture(scope="session")
def glyph_run():
    return glyph_catalogue() / "run"


@pytest.fixture(scope="session")
def glyph_folder():
    return glyph_catalogue() / "characters"


@pytest.fixture(scope="session")
def glyph_index():
    return glyph_catalogue() / "index"


@pytest.fixture(scope="session")
def lost_run(glyph_run, tmp_path_factory):
    return without_data(glyph_run, tmp_path_factory.mktemp("lost") / "run")


@pytest.fixture
def index(glyph_index, tmp_path):
    """A copy of the index, to be changed."""
    return shutil.copytree(glyph_index, tmp_path / "index")


@pytest.fixture(scope="session")
def catalogue(glyph_index):
    return opened(glyph_index)

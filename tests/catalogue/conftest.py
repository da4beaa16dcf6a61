"""A small network trained on glyphs for seconds, a folder of pictures, and an index of it.

All of them are made once and only to be read; a test that changes an index copies it first.
"""

import shutil

import pytest
from glyph_catalogue import train_on_glyphs, without_data, write_glyphs


@pytest.fixture(autouse=True, scope="module")
def always_one_thread(one_thread):
    """Compute with one thread in every test here."""


@pytest.fixture(scope="session")
def glyph_run(tmp_path_factory):
    """A finished run on glyphs: 32 dimensions, mean fields."""
    return train_on_glyphs(tmp_path_factory.mktemp("runs") / "glyphs")


@pytest.fixture(scope="session")
def lost_run(glyph_run, tmp_path_factory):
    """The same run, its data gone: an index then has no threshold unless its own items give one."""
    return without_data(glyph_run, tmp_path_factory.mktemp("lost") / "run")


@pytest.fixture(scope="session")
def glyph_folder(tmp_path_factory):
    """PNG files of 40 characters that the run has not seen, one subfolder a character."""
    return write_glyphs(tmp_path_factory.mktemp("pictures") / "characters")


@pytest.fixture(scope="session")
def glyph_index(glyph_run, glyph_folder, tmp_path_factory):
    """An index of the folder; only to be read."""
    from weiss.catalogue import build_index

    folder = tmp_path_factory.mktemp("indexes") / "characters"
    build_index(glyph_run, glyph_folder, folder, device="cpu", quiet=True)
    return folder


@pytest.fixture
def index(glyph_index, tmp_path):
    """A copy of the index, to be changed."""
    return shutil.copytree(glyph_index, tmp_path / "index")


@pytest.fixture(scope="session")
def catalogue(glyph_index):
    """The index, opened; only to be read."""
    from weiss.catalogue import Catalogue

    return Catalogue.open(glyph_index, device="cpu")

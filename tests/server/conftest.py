"""A real index of characters, and a server of it; both made once and only to be asked."""

import pytest
from glyph_catalogue import train_on_glyphs, write_glyphs
from server.served import serving


@pytest.fixture(autouse=True, scope="module")
def always_one_thread(one_thread):
    """Compute with one thread in every test here."""


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """PNG files of 40 characters, 8 of each, one subfolder a character."""
    return write_glyphs(tmp_path_factory.mktemp("served") / "characters")


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A network that was trained for seconds: the one that tests of catalogues have."""
    return train_on_glyphs(tmp_path_factory.mktemp("served_run") / "run")


@pytest.fixture(scope="session")
def index(run, pictures, tmp_path_factory):
    """An index of these files by that network."""
    from weiss.catalogue import build_index

    folder = tmp_path_factory.mktemp("served_index") / "characters"
    build_index(run, pictures, folder, device="cpu", quiet=True)
    return folder


@pytest.fixture(scope="session")
def catalogue(index):
    from weiss.catalogue import Catalogue

    return Catalogue.open(index, device="cpu")


@pytest.fixture(scope="module")
def site(catalogue):
    with serving(catalogue) as site:
        yield site


@pytest.fixture(scope="session")
def picture(pictures):
    """The bytes of one of the files."""
    return (pictures / "U+0041" / "3.png").read_bytes()

"""An index of characters, and a server of it; both made once, and only to be read."""

import pytest
from glyph_catalogue import glyph_catalogue, opened
from server.served import serving


@pytest.fixture(autouse=True, scope="module")
def always_one_thread(one_thread):
    """Compute with one thread in every test here."""


@pytest.fixture(scope="session")
def pictures():
    """PNG files of 40 characters, 8 of each, one subfolder for each character."""
    return glyph_catalogue() / "characters"


@pytest.fixture(scope="session")
def run():
    return glyph_catalogue() / "run"


@pytest.fixture(scope="session")
def index():
    return glyph_catalogue() / "index"


@pytest.fixture(scope="session")
def catalogue(index):
    return opened(index)


@pytest.fixture(scope="module")
def site(catalogue):
    with serving(catalogue) as site:
        yield site


@pytest.fixture(scope="session")
def picture(pictures):
    """The bytes of one of the files."""
    return (pictures / "U+0041" / "3.png").read_bytes()

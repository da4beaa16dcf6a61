"""An index of characters, and a server of it; both made once, and only to be read."""

import threading

import pytest
from browser import chromium
from glyph_catalogue import glyph_catalogue, opened
from server.pages import wait_for
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


@pytest.fixture
def held_search(catalogue, monkeypatch):
    """An event that searches with an item wait for, where they read its vector from a file."""
    is_free, read = threading.Event(), catalogue.vector
    monkeypatch.setattr(catalogue, "vector", lambda id: is_free.wait(60) and read(id))
    yield is_free
    is_free.set()


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def look(browser, site):
    """A function that opens the page; whatever it complains of fails the test."""
    opened = []

    def open_page(hash="", address=site.address, **options):
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 860}} | options))
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on(
            "request",
            lambda asked: (
                said.append(f"asked {asked.url}")
                if not asked.url.startswith((address, "blob:"))
                else None
            ),
        )
        opened.append((context, said))
        page.goto(f"{address}/{hash}")
        wait_for(page, "document.getElementById('name').textContent !== 'Catalogue'")
        return page

    yield open_page
    for context, said in opened:
        context.close()
        # What is refused on purpose is named by Chromium itself.
        assert [
            text for text in said if "the server responded with a status of 4" not in text
        ] == []

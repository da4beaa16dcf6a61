"""A page as Chromium shows it: what cannot be seen in its source."""

import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium():
    """Start headless Chromium."""
    from playwright.sync_api import sync_playwright

    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.fail("browser tests need Chromium: install the package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


def check_page(path, width):
    """Check that a page stands alone, shows every picture, and fits the window; return its text."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": width, "height": 900})
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("requestfailed", lambda request: said.append(f"failed: {request.url[:80]}"))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        assert said == []
        assert [url[:80] for url in asked if not url.startswith(("data:", path.as_uri()))] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        broken = "[...document.images].filter(i => !i.complete || !i.naturalWidth).length"
        assert page.evaluate(broken) == 0
        assert page.evaluate("document.images.length") > 0
        # Whatever is wider than the window scrolls by itself, and can be reached by keyboard.
        wide = """[...document.querySelectorAll('table, img')].filter(each => {
            const box = each.getBoundingClientRect();
            return box.right > window.innerWidth + 1 && !each.closest('.scroll');
        }).length"""
        assert page.evaluate(wide) == 0
        empty = "[...document.querySelectorAll('td, th')].filter(c => !c.innerText.trim()).length"
        assert page.evaluate(empty) <= page.evaluate("document.querySelectorAll('table').length")
        return page.evaluate("document.body.innerText")

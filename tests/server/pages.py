"""The page in a browser: opened, looked at, pointed at. What both files of browser tests need."""

from contextlib import contextmanager

import numpy as np
from tiny import wait_until

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
MARGIN = 56
"""CSS pixels that the map leaves around its points, both sides together."""
FILE_EVENT = """async ([source, kind]) => {
    const blob = await (await fetch(source)).blob();
    const data = new DataTransfer();
    data.items.add(new File([blob], "photo.png", {type: blob.type}));
    const options = {bubbles: true, cancelable: true};
    const event = kind === "paste" ? new ClipboardEvent("paste", {...options, clipboardData: data})
        : new DragEvent("drop", {...options, dataTransfer: data});
    document.body.dispatchEvent(event);
}"""


def wait_for(page, expression, argument=None):
    """Wait until something holds; Playwright's own way is what the page's policy forbids."""
    wait_until(lambda: page.evaluate(expression, argument), 60)


@contextmanager
def counting(page, method):
    asked = []
    page.on("request", lambda request: asked.append(request.url) if request.method == method else 0)
    yield asked


def choose(page, path):
    page.set_input_files("#file", path)
    page.wait_for_selector("#results:not([aria-busy]) ol.cards a")


def places(page, site):
    """Where every item of the map lies on the screen, from what the map promises to show."""
    answer = site.get("/map").json
    xy = np.stack([answer["x"], answer["y"]], 1)
    fields = np.stack([answer["fields"]["x"], answer["fields"]["y"]], 1)
    everything = np.concatenate([xy, fields])
    low, high = everything.min(0), everything.max(0)
    box = page.locator("#canvas").bounding_box()
    size = np.array([box["width"], box["height"]])
    scale = ((size - MARGIN) / (high - low)).min()
    shown = size / 2 + (xy - (low + high) / 2) * scale * [1, -1]
    return answer, shown + np.array([box["x"], box["y"]])


def loneliest(shown):
    """The point that is farthest from all others: nothing else can be meant by pointing at it."""
    apart = np.linalg.norm(shown[:, None] - shown[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    return int(apart.min(1).argmax())


def open_map(page):
    page.locator("#map-words", has_text="Every mark").wait_for()
    page.locator("#canvas").scroll_into_view_if_needed()
    page.evaluate("new Promise(requestAnimationFrame)")


def look_at_map(look, site, **options):
    """Open the map; return the page, the map's answer, the places of items, and the loneliest."""
    page = look("#map", **options)
    open_map(page)
    answer, shown = places(page, site)
    return page, answer, shown, loneliest(shown)

"""Pictures of a served catalogue: what is nearest to an item, and the map.

    python docs/drawings/page_pictures.py photos.index --item 1264

It writes docs/images/catalogue_search.png and catalogue_map.png. The index is that of
docs/catalogue.md. Needs Chromium and the extras `serve` and `browser`.
"""

import argparse
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

SIZE = {"width": 1100, "height": 640}


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(address: str, server: "subprocess.Popen[bytes]") -> None:
    """Return when the server answers."""
    for _ in range(300):
        if server.poll() is not None:
            raise SystemExit("the server has stopped; see above")
        try:
            urllib.request.urlopen(f"{address}/healthz").close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server does not answer")


def main() -> None:
    """Serve the index, look at it, write what is seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("index", type=Path)
    parser.add_argument("--item", type=int, default=0, help="the item to search with")
    images = Path(__file__).resolve().parent.parent / "images"
    parser.add_argument("--out", type=Path, default=images)
    arguments = parser.parse_args()
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "weiss", "serve", str(arguments.index), "--port", str(port)]
    server = subprocess.Popen(command)
    try:
        wait_for(address, server)
        with sync_playwright() as playwright:
            program = shutil.which("chromium")  # without one, Playwright's own
            options = ["--no-sandbox", "--disable-gpu"]
            browser = playwright.chromium.launch(executable_path=program, args=options)
            page = browser.new_page(viewport=SIZE, device_scale_factor=1.5)
            page.goto(f"{address}/#item={arguments.item}")
            page.wait_for_selector(".card img")
            page.wait_for_load_state("networkidle")
            page.screenshot(path=arguments.out / "catalogue_search.png")
            page.goto(f"{address}/#map")
            page.wait_for_selector("canvas")
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(500)
            box = page.locator("canvas").first.bounding_box()
            assert box is not None
            page.mouse.move(box["x"] + 0.42 * box["width"], box["y"] + 0.4 * box["height"])
            page.wait_for_timeout(500)
            page.screenshot(path=arguments.out / "catalogue_map.png")
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()

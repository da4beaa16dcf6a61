"""A server whose index changes while it runs: it shows the new one, and never half of one."""

import shutil
import signal
import threading

from glyph_catalogue import add, opened, remove, write_glyphs
from server.served import CODE, serving, start
from tiny import wait_until

from weiss.server import state

QUICK = "import weiss.server.state as s; s.POLL_SECONDS = 0.02; s.RETRY_SECONDS = 0.05; "


def items(site):
    return site.get("/healthz").json["items"]


def test_a_running_server_shows_what_was_removed_and_added(index, tmp_path):
    folder = shutil.copytree(index, tmp_path / "index")
    process, _, site = start(folder, QUICK + CODE)
    before, about = site.get("/items/5").json, site.get("/about").json
    remove(folder, before["name"])
    wait_until(lambda: items(site) == 319)
    assert site.get("/items/5").status == 404
    assert site.get("/classes").json["items"] == len(site.get("/map").json["ids"]) == 319
    assert before["id"] not in site.get("/map").json["ids"]
    now = site.get("/about").json
    assert (now["outdated"], now["items"]) == (False, 319)
    assert now["version"] != about["version"]
    # The address of a thumbnail that a browser may keep is another one now.
    assert site.get("/items/6").json["thumbnail"].endswith(now["version"])
    assert site.get(f"/items/6/thumbnail?v={about['version']}").headers["cache-control"] == (
        "no-store"
    )
    add(folder, write_glyphs(tmp_path / "more", num_classes=1, per_class=3, first=60))
    wait_until(lambda: items(site) == 322)
    (new,) = (tmp_path / "more").iterdir()
    found = site.search((new / "0.png").read_bytes()).json["results"][0]
    assert (found["classes"], found["id"]) == ([new.name], 320)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 0
    assert errors.splitlines() == [
        "The index has changed: 319 items are served now.",
        "The index has changed: 322 items are served now.",
    ]


def test_a_damaged_change_keeps_the_old_index_and_is_logged_once(index, tmp_path, picture):
    folder = shutil.copytree(index, tmp_path / "index")
    process, _, site = start(folder, QUICK + CODE)
    good = (folder / "index.json").read_bytes()
    (tmp_path / "damaged").write_bytes(good[:-40])
    (tmp_path / "damaged").replace(folder / "index.json")
    wait_until(lambda: site.get("/about").json["outdated"])
    line = process.stderr.readline().decode()
    assert "old one is still served: index.json" in line
    for _ in range(20):  # it is tried again all the time
        assert site.search(picture).json["results"][0]["name"] == "U+0041/3.png"
    # The next whole one is shown; half of it never stands there.
    (tmp_path / "whole").write_bytes(good)
    (tmp_path / "whole").replace(folder / "index.json")
    remove(folder, site.get("/items/5").json["name"])
    wait_until(lambda: items(site) == 319)
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[1].decode()
    assert rest.splitlines() == ["The index has changed: 319 items are served now."]


def test_a_request_under_way_finishes_on_the_old_index(index, tmp_path, monkeypatch):
    monkeypatch.setattr(state, "POLL_SECONDS", 0.02)
    folder = shutil.copytree(index, tmp_path / "index")
    old, is_free = opened(folder), threading.Event()
    read, asked = old.vector, threading.Event()
    monkeypatch.setattr(old, "vector", lambda id: asked.set() or (is_free.wait(60) and read(id)))
    with serving(old, folder=folder, reopen=lambda: opened(folder)) as site:
        answers = []
        request = threading.Thread(
            target=lambda: answers.append(site.get("/items/5/neighbours?k=100"))
        )
        request.start()
        assert asked.wait(60)
        gone = old.search(read(5)[None], 1, leave_out=[5])[0][0].item
        remove(folder, gone.name)
        wait_until(lambda: items(site) == 319)
        is_free.set()
        request.join(60)
        assert answers[0].status == 200
        assert answers[0].json["results"][0]["id"] == gone.id
        later = site.get("/items/5/neighbours?k=100").json["results"]
        assert gone.id not in [hit["id"] for hit in later]

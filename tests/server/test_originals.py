"""The photos themselves: only of items, only unchanged, only where the owner has named a folder."""

import hashlib
import os
import shutil

import pytest
from server.served import BEARER, TOKEN, serving

from weiss.catalogue import Item
from weiss.server import Limits
from weiss.server.originals import OTHER, original


@pytest.fixture
def folder(pictures, tmp_path):
    return shutil.copytree(pictures, tmp_path / "photos")


def test_a_photo_is_the_file_that_was_indexed(catalogue, folder, pictures, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with serving(catalogue, originals=[empty, folder]) as site:
        name = site.get("/items/5").json["name"]
        answer = site.get("/items/5/original")
        assert (answer.status, answer.headers["content-type"]) == (200, "image/png")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.body == (pictures / name).read_bytes()
        assert site.get("/about").json["originals"] is True
        assert site.get("/items/99999/original").status == 404
        # Another picture under its name is not the item, and is not shown.
        shutil.copyfile(folder / site.get("/items/6").json["name"], folder / name)
        answer = site.get("/items/5/original")
        assert (answer.status, "unchanged" in answer.detail) == (404, True)
        (folder / name).unlink()
        os.mkfifo(folder / name)  # opening it would wait for ever
        assert site.get("/items/5/original").status == 404


def test_without_a_folder_there_are_no_photos_and_with_a_secret_they_need_it(
    catalogue, folder, site
):
    assert site.get("/items/5/original").status == 404
    assert site.get("/about").json["originals"] is False
    with serving(catalogue, token=TOKEN, originals=[folder]) as secret:
        assert secret.get("/items/5/original").status == 401
        assert secret.get("/items/5/original", **BEARER).status == 200


def test_a_photo_beyond_the_limit_of_bytes_is_refused(catalogue, folder):
    with serving(catalogue, Limits(max_bytes=50), originals=[folder]) as site:
        answer = site.get("/items/5/original")
        assert answer.status == 404
        assert "0.00005 MB" in answer.detail or "5e-05 MB" in answer.detail


class HostileIndex:
    """Names files at will, with their right checksums."""

    def __init__(self, name, content):
        self._name, self._content = name, content

    def item(self, id):
        return Item(id, self._name, ())

    def digest(self, id):
        return hashlib.blake2b(self._content, digest_size=16).digest()


def test_no_name_leads_out_of_the_folder(tmp_path):
    inside = tmp_path / "photos"
    inside.mkdir()
    for path in (tmp_path / "secret.jpg", inside / "a.jpg", inside / "b.tiff"):
        path.write_bytes(b"some bytes")

    def found(name):
        return original(HostileIndex(name, b"some bytes"), 0, [inside], 1000)

    assert found("a.jpg") == (b"some bytes", "image/jpeg")
    assert found("b.tiff") == (b"some bytes", OTHER)
    names = ["../secret.jpg", str(tmp_path / "secret.jpg"), "x/../../secret.jpg", "", ".", "a\0b"]
    assert [found(name) for name in names] == [None] * len(names)


def test_a_folder_that_is_none_is_refused(catalogue, tmp_path):
    with (
        pytest.raises(ValueError, match="--originals must name a folder of photos; .*gone is not"),
        serving(catalogue, originals=[tmp_path / "gone"]),
    ):
        pass

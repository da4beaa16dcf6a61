"""An index whose items are in a Milvus file: found as in faiss, and gone when they are gone."""

import json

import numpy as np
import pytest
from glyph_catalogue import build, names_of, opened, write_glyphs

from weiss.catalogue import add_items, remove_items
from weiss.catalogue.index_folder import MANIFEST, IndexFolder
from weiss.catalogue.index_store import open_store

pytest.importorskip("pymilvus")


@pytest.fixture
def small(lost_run, tmp_path):
    """An index of twelve glyphs, its items in a file of Milvus Lite."""
    data = write_glyphs(tmp_path / "few", num_classes=3, per_class=4)
    build(lost_run, data, tmp_path / "small", store="milvus:items.db")
    return tmp_path / "small"


def number_of_items(folder):
    index = IndexFolder(folder)
    store = open_store(index, index.manifest())
    try:
        return len(store)
    finally:
        store.close()


def test_milvus_finds_what_faiss_finds(glyph_run, glyph_folder, glyph_index, tmp_path):
    folder = tmp_path / "index"
    build(glyph_run, glyph_folder, folder, store="milvus:items.db")
    faiss, milvus = opened(glyph_index), opened(folder)
    queries = np.stack([faiss.vector(id) for id in range(0, 320, 40)])
    for one, two in zip(faiss.search(queries, 5), milvus.search(queries, 5), strict=True):
        assert [hit.item.id for hit in one] == [hit.item.id for hit in two]
    assert str(tmp_path) not in milvus.facts["store"]
    milvus.close()
    remove_items(folder, ["class:U+0041"], quiet=True)
    more = write_glyphs(tmp_path / "more", num_classes=2, per_class=2, first=40)
    add_items(folder, more, device="cpu", quiet=True)
    again = opened(folder)
    assert len(again) == 316
    found = {hit.item.id for hit in again.search(queries[:1], 400)[0]}
    assert found == set(names_of(again).values())
    again.close()


def test_items_that_are_removed_leave_the_database_and_the_words(small):
    remove_items(small, ["class:U+0022"], quiet=True)
    assert number_of_items(small) == 8
    assert ": 8 items" in IndexFolder(small).manifest().store["says"]
    assert ": 8 items" in (small / "card.md").read_text()


def test_an_index_that_is_replaced_leaves_no_collection_behind(small, lost_run, tmp_path):
    from pymilvus import MilvusClient

    old = IndexFolder(small).manifest().store["collection"]
    build(lost_run, tmp_path / "few", small, store="milvus:items.db", replace_old=True)
    new = IndexFolder(small).manifest().store["collection"]
    client = MilvusClient(str(small / "items.db"))
    try:
        assert client.list_collections() == [new]
    finally:
        client.close()
    assert new != old
    assert number_of_items(small) == 12


def test_an_addition_that_breaks_off_before_the_switch_can_be_made_again(
    small, tmp_path, monkeypatch
):
    def no_room(*_):
        raise OSError(28, "No space left on device")

    more = write_glyphs(tmp_path / "more", num_classes=2, per_class=2, first=40)
    with monkeypatch.context() as patched:
        patched.setattr(IndexFolder, "switch", no_room)
        with pytest.raises(OSError, match="No space left"):
            add_items(small, more, device="cpu", quiet=True)
    assert number_of_items(small) == 16  # the database has them, the index not
    found = opened(small)
    assert len(found.search(found.vector(0)[None], 50)[0]) == 12
    found.close()
    add_items(small, more, device="cpu", quiet=True)
    assert number_of_items(small) == 16
    assert json.loads((small / MANIFEST).read_text())["num_items"] == 16


def test_a_collection_of_an_index_that_was_never_finished_is_deleted(
    lost_run, tmp_path, monkeypatch
):
    from pymilvus import MilvusClient

    def no_room(*_):
        raise OSError(28, "No space left on device")

    data = write_glyphs(tmp_path / "few", num_classes=1, per_class=3)
    folder = tmp_path / "index"
    with monkeypatch.context() as patched:
        patched.setattr(IndexFolder, "switch", no_room)
        with pytest.raises(OSError, match="No space left"):
            build(lost_run, data, folder, store="milvus:items.db")
    build(lost_run, data, folder, store="milvus:items.db")
    client = MilvusClient(str(folder / "items.db"))
    try:
        assert client.list_collections() == [IndexFolder(folder).manifest().store["collection"]]
    finally:
        client.close()
    remove_items(folder, [0], quiet=True)
    assert number_of_items(folder) == 2


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("milvus:../items.db", "must lie in the index folder"),
        ("milvus:/elsewhere/bob/items.db", "must lie in the index folder"),
        ("milvus:me:secret@host:19530", "neither name nor password"),
    ],
)
def test_an_address_that_must_not_be_written_down_is_refused(lost_run, tmp_path, store, message):
    with pytest.raises(ValueError, match=message) as refused:
        build(lost_run, "glyphs", tmp_path / "index", store=store)
    assert "secret" not in str(refused.value)
    assert "bob" not in str(refused.value)
    assert not (tmp_path / "index").exists()


def test_a_database_is_counted_from_the_index_folder(lost_run, small, tmp_path, monkeypatch):
    assert IndexFolder(small).manifest().store["address"] == "milvus:items.db"
    monkeypatch.chdir(tmp_path)
    data = write_glyphs(tmp_path / "one", num_classes=1, per_class=2)
    build(lost_run, data, "other", store="milvus:other/deep.db")
    assert IndexFolder("other").manifest().store["address"] == "milvus:deep.db"
    assert (tmp_path / "other" / "deep.db").exists()
    assert number_of_items("other") == 2

"""An index whose items are in a Milvus file: found as in faiss, and gone when they are gone."""

import json
from contextlib import closing

import numpy as np
import pytest
from glyph_catalogue import (
    add,
    build,
    contents,
    full_disk,
    names_of,
    opened,
    remove,
    write_glyphs,
)

from weiss.catalogue import compact_index, milvus_store
from weiss.catalogue import search as searching
from weiss.catalogue.index_folder import IndexFolder
from weiss.catalogue.index_store import open_store
from weiss.catalogue.manifest import MANIFEST
from weiss.catalogue.milvus_store import MilvusStore

pytest.importorskip("pymilvus")


@pytest.fixture(autouse=True)
def connections(monkeypatch):
    """Whatever connects to a database closes the connection: no other process could open it."""
    connect, left = milvus_store._connected, []

    def connected(*given):
        client = connect(*given)
        close = client.close
        left.append(client)
        monkeypatch.setattr(client, "close", lambda: [close(), left.remove(client)])
        return client

    monkeypatch.setattr(milvus_store, "_connected", connected)
    yield
    assert not left


@pytest.fixture
def small(lost_run, tmp_path):
    """An index of twelve glyphs, its items in a file of Milvus Lite."""
    data = write_glyphs(tmp_path / "few", num_classes=3, per_class=4)
    build(lost_run, data, tmp_path / "small", store="milvus:items.db")
    return tmp_path / "small"


def number_of_items(folder):
    index = IndexFolder(folder)
    with closing(open_store(index, index.manifest())) as store:
        return len(store)


def collections(folder):
    from pymilvus import MilvusClient

    with closing(MilvusClient(str(folder / "items.db"))) as client:
        return client.list_collections()


def test_milvus_finds_what_faiss_finds(glyph_run, glyph_folder, glyph_index, tmp_path):
    folder = tmp_path / "index"
    build(glyph_run, glyph_folder, folder, store="milvus:items.db")
    faiss, milvus = opened(glyph_index), opened(folder)
    queries = np.stack([faiss.vector(id) for id in range(0, 320, 40)])
    for one, two in zip(faiss.search(queries, 5), milvus.search(queries, 5), strict=True):
        assert [hit.item.id for hit in one] == [hit.item.id for hit in two]
    assert str(tmp_path) not in milvus.facts["store"]
    milvus.close()
    remove(folder, "class:U+0041")
    more = write_glyphs(tmp_path / "more", num_classes=2, per_class=2, first=40)
    add(folder, more)
    again = opened(folder)
    assert len(again) == 316
    found = {hit.item.id for hit in again.search(queries[:1], 400)[0]}
    assert found == set(names_of(again).values())
    again.close()


def test_items_that_are_removed_leave_the_database_after_the_manifest(small, monkeypatch):
    with opened(small) as found:
        vector = found.vector(5).tobytes()
    with full_disk(monkeypatch):
        remove(small, "class:U+0022")
    assert number_of_items(small) == 12
    assert any(vector in content for content in contents(small).values())
    remove(small, "class:U+0022")
    assert number_of_items(small) == 8
    assert not any(vector in content for content in contents(small).values())
    store = IndexFolder(small).manifest().store
    assert collections(small) == [store["collection"]]
    assert ": 8 items" in store["says"]
    assert ": 8 items" in (small / "card.md").read_text()


@pytest.mark.filterwarnings("ignore:the items of few are outside")
def test_what_a_killed_removal_has_left_on_a_server_goes_with_the_next_change(small, monkeypatch):
    # Milvus Lite plays the server, whose collection stays when items are removed.
    monkeypatch.setattr(MilvusStore, "elsewhere", classmethod(lambda cls, address: "a server"))
    before = IndexFolder(small).manifest().store["collection"]
    with monkeypatch.context() as patched:
        patched.setattr(MilvusStore, "keep_only", lambda *_: None)
        remove(small, 1, 5, 6, 11)
    assert number_of_items(small) == 12
    compact_index(small, quiet=True)
    assert number_of_items(small) == 8
    remove(small, 0)
    assert number_of_items(small) == 7
    found = opened(small)
    hits = found.search(found.vector(2)[None], 50)[0]
    assert sorted(hit.item.id for hit in hits) == [2, 3, 4, 7, 8, 9, 10]
    found.close()
    assert IndexFolder(small).manifest().store["collection"] == before


@pytest.mark.parametrize("kept", [[3, 17], [0, 1, 2, 3, 4, 5, 6, 19], [30]])
def test_a_collection_keeps_only_what_it_must(tmp_path, monkeypatch, kept):
    monkeypatch.setattr(milvus_store, "ITEMS_AT_ONCE", 3)
    monkeypatch.setattr(milvus_store, "MOST_FOUND", 4)  # pages are full: there are more
    store = MilvusStore(str(tmp_path / "items.db"), "weiss_x", 2)
    ids = np.array([*range(20), 30])
    store.add(ids, np.tile(np.eye(1, 2, dtype=np.float32), (21, 1)))
    store.keep_only(np.array(kept))
    assert store._known(ids).tolist() == kept
    store.close()


def test_an_index_that_is_replaced_leaves_no_collection_behind(small, lost_run, tmp_path):
    old = IndexFolder(small).manifest().store["collection"]
    build(lost_run, tmp_path / "few", small, store="milvus:items.db", replace_old=True)
    new = IndexFolder(small).manifest().store["collection"]
    assert collections(small) == [new]
    assert new != old
    assert number_of_items(small) == 12


def test_an_index_whose_collection_is_gone_can_be_replaced(small, lost_run, tmp_path):
    collection = IndexFolder(small).manifest().store["collection"]
    MilvusStore(str(small / "items.db"), collection, 32).drop()
    build(lost_run, tmp_path / "few", small, replace_old=True)
    with opened(small) as found:
        assert len(found.search(found.vector(12)[None], 50)[0]) == 12


def test_an_addition_that_breaks_off_before_the_switch_can_be_made_again(
    small, tmp_path, monkeypatch
):
    more = write_glyphs(tmp_path / "more", num_classes=2, per_class=2, first=40)
    with full_disk(monkeypatch):
        add(small, more)
    assert number_of_items(small) == 16  # the database has them, the index not
    found = opened(small)
    assert len(found.search(found.vector(0)[None], 50)[0]) == 12
    found.close()
    add(small, more)
    assert number_of_items(small) == 16
    assert json.loads((small / MANIFEST).read_text())["num_items"] == 16


def test_a_collection_of_an_index_that_was_never_finished_is_deleted(
    lost_run, tmp_path, monkeypatch
):
    data = write_glyphs(tmp_path / "few", num_classes=1, per_class=3)
    folder = tmp_path / "index"
    with full_disk(monkeypatch):
        build(lost_run, data, folder, store="milvus:items.db")
    build(lost_run, data, folder, store="milvus:items.db")
    assert collections(folder) == [IndexFolder(folder).manifest().store["collection"]]
    remove(folder, 0)
    assert number_of_items(folder) == 2


def test_a_server_that_only_the_note_names_is_not_contacted(index, monkeypatch):
    asked = []

    def absent(home, facts, dimension):
        asked.append((facts, dimension))
        raise ValueError

    monkeypatch.setattr(MilvusStore, "open", absent)
    with (index / ".written").open("a") as note:
        note.write("weiss_0000000a 32 milvus:127.0.0.1:1\nweiss_0000000b 32 milvus:items.db\n")
        note.write("weiss_0000000c 32 milvus:../items.db\nweiss_0000000d 32 other:items.db\n")
        note.write("weiss_0000000e 32 faiss\n")
    remove(index, 0)
    assert asked == [({"address": "milvus:items.db", "collection": "weiss_0000000b"}, 32)]


def test_a_collection_is_noted_until_its_server_answers(lost_run, tmp_path, monkeypatch):
    def unreachable(*_):
        raise ConnectionError("a Milvus server must answer")

    monkeypatch.setattr(MilvusStore, "open", unreachable)
    (tmp_path / "index").mkdir()
    note = tmp_path / "index" / ".written"
    note.write_text("weiss_0000000a 32 milvus:127.0.0.1:1\n")
    before = note.read_text()
    with pytest.raises(ConnectionError, match="must answer"):
        build(lost_run, "glyphs", tmp_path / "index", store="milvus:127.0.0.1:1")
    assert note.read_text() == before


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


def test_conditions_filter_what_milvus_finds(lost_run, tmp_path, monkeypatch):
    data = write_glyphs(tmp_path / "few", num_classes=3, per_class=4)
    names = sorted(path.relative_to(data).as_posix() for path in data.rglob("*.png"))
    rows = [f"{name},{name.split('/')[0]},{at}" for at, name in enumerate(names)]
    (data / "list.csv").write_text("\n".join(["path,label,price", *rows]))
    build(lost_run, data / "list.csv", tmp_path / "index", store="milvus:items.db")
    for compared in (100_000, 0):  # all by their vectors; then by more and more items of Milvus
        monkeypatch.setattr(searching, "COMPARED", compared)
        with closing(opened(tmp_path / "index")) as catalogue:
            query = catalogue.vector(0)[None]
            (every,) = catalogue.search(query, 12)
            (cheap,) = catalogue.search(query, 4, where="price<6")
            assert [hit.item.id for hit in cheap] == [
                hit.item.id for hit in every if hit.item.columns["price"] < 6
            ][:4]
            assert catalogue.search(query, 4, where="price>11") == [[]]

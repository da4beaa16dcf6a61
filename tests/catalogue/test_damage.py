"""A damaged index gives no wrong answer: bits that flipped, files that were cut off or forged."""

import hashlib
import io
import json
import logging
import os
import re
import shutil

import numpy as np
import pytest
from glyph_catalogue import OLD_INDEX, change_manifest, file_of, opened, put, remove
from server.served import serving

import weiss.server
from weiss.catalogue import DamagedIndexError, faiss_store, index_folder
from weiss.catalogue.faiss_store import FaissStore
from weiss.catalogue.index_folder import IndexFolder
from weiss.catalogue.manifest import MANIFEST
from weiss.catalogue.stores import best_first

REPAIR = "weiss index [RUN] IMAGES --out INDEX --replace"


@pytest.fixture
def old(tmp_path):
    """A copy of an index of an older version, to be changed."""
    return shutil.copytree(OLD_INDEX, tmp_path / "index")


@pytest.fixture
def large(index, monkeypatch):
    """An index that is treated as if all its files were large."""
    path = file_of(index, "store")
    store = FaissStore.load(path)
    monkeypatch.setattr(index_folder, "SMALL", 0)
    monkeypatch.setattr(faiss_store, "IN_MEMORY", 0)
    monkeypatch.setattr(faiss_store, "CHUNK", 64)
    store.save(path)
    put(index, path, path.read_bytes())
    return index


def saved(save, *arrays, **named):
    """Return what a function of numpy writes to a file."""
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


def flip(path, at, bit):
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("wrong", [1e37, 1.0011, -1.0011, -5.0, np.inf, np.nan])
def test_a_similarity_that_no_cosine_has_is_damage(wrong):
    ids, similarities = np.array([[3, 4, -1]]), np.array([[0.5, wrong, -np.inf]], np.float32)
    with pytest.raises(
        DamagedIndexError, match=f"item 4 has a similarity of .*{re.escape(REPAIR)}"
    ):
        best_first(ids, similarities, 3)


def test_rounding_is_no_damage():
    similarities = np.array([[1.0009, -1.0009, -1e38]], np.float32)
    found = best_first(np.array([[3, 4, -1]]), similarities, 3)
    assert [each.tolist() for each in found] == [[[3, 4, -1]], [[1.0, -1.0, -np.inf]]]


def test_a_flipped_bit_of_a_large_store_makes_no_match(large):
    index = large
    store, vectors = file_of(index, "store"), np.load(file_of(index, "vectors"))
    queries = np.array(vectors[::60])
    entry = int(np.abs(vectors[17]).argmax())
    at = store.read_bytes().index(vectors[17].tobytes()) + 4 * entry
    flip(store, at + 3, 6)  # the highest bit of the exponent: about 1e38 times as large
    is_same_side = queries[:, entry] * vectors[17, entry] > 0
    assert is_same_side.any()
    with opened(index) as catalogue:
        for query in queries[is_same_side]:
            with pytest.raises(
                DamagedIndexError, match=f"item 17 has a similarity of .*{re.escape(REPAIR)}"
            ):
                catalogue.search(query[None], 3)
        for query in queries[~is_same_side]:
            assert 17 not in [hit.item.id for hit in catalogue.search(query[None], 3)[0]]


def test_a_vector_that_is_none_of_the_network_is_damage(large):
    path = file_of(large, "vectors")
    flip(path, path.stat().st_size - 1, 6)  # the exponent of the last number
    with opened(large) as catalogue, serving(catalogue) as site:
        with pytest.raises(
            DamagedIndexError, match=f"vector of item 319 .* length .*{re.escape(REPAIR)}"
        ):
            catalogue.vector(319)
        assert site.get("/items/319/neighbours").status == 503
        assert site.get("/items/318/neighbours").status == 200


@pytest.mark.parametrize("kind", ["store", "vectors", "thumbnails"])
def test_a_server_does_not_start_with_a_large_file_that_has_changed(large, kind, monkeypatch):
    index, path = large, file_of(large, kind)
    flip(path, path.stat().st_size // 2, 0)
    opened(index).close()  # a search does not read gigabytes first
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: pytest.fail("it has started"))
    message = f"{path.name} of the index is damaged: its content does not match its checksum"
    with pytest.raises(DamagedIndexError, match=message):
        weiss.server.serve(index, port=0, device="cpu")


@pytest.mark.parametrize(
    ("size", "damage", "kind"),
    [
        ("index", "cut", "vectors"),
        ("index", "cut", "model"),
        ("index", "changed", "store"),
        ("index", "missing", "map"),
        ("index", "missing", "model"),
        # What is read whole is compared whatever its size.
        ("large", "changed", "items"),
        ("large", "changed", "places"),
        ("large", "changed", "digests"),
        ("large", "changed", "map"),
    ],
)
def test_a_damaged_file_is_named(request, size, damage, kind):
    index = request.getfixturevalue(size)
    path = file_of(index, kind)
    if damage == "changed":
        flip(path, path.stat().st_size // 2, 0)
    elif damage == "cut":
        os.truncate(path, path.stat().st_size - 7)
    else:
        path.unlink()
    said = {"cut": "must have [0-9,]+ bytes", "changed": "is damaged", "missing": "is missing"}
    with pytest.raises(DamagedIndexError, match=f"{path.name} of the index {said[damage]}"):
        opened(index)


def test_an_index_that_nobody_could_open_is_not_written(index, monkeypatch):
    before = (index / MANIFEST).read_bytes()
    wrong = {"similarity": 3.0, "false_match_rate": 0.0, "true_match_rate": 1.0, "basis": "b"}
    wrong |= {"wanted": 0.05, "source": "this index"}
    found = "weiss.catalogue.building.index_threshold"
    monkeypatch.setattr(found, lambda *_: (wrong, "b"))
    with pytest.raises(DamagedIndexError, match="threshold.similarity"):
        remove(index, 0)
    assert (index / MANIFEST).read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda words: words["model"].update(embedding_size=7), "must hold f4 of shape"),
        (
            lambda words: [
                words["segments"][0].update(count=7),
                words.update(next_id=7, num_items=7),
            ],
            "does not fit the manifest",
        ),
        (
            lambda words: words.update(removed="removed-12345678.npy", num_items=318),
            "318 items must be left; 319 are",
        ),
    ],
)
def test_a_manifest_that_does_not_fit_its_files_is_refused(index, change, message):
    change_manifest(index, change)
    if "318" in message:
        put(index, index / "removed-12345678.npy", saved(np.save, np.array([3])))
    with pytest.raises(DamagedIndexError, match=message):
        opened(index)


def test_an_index_of_an_older_version_opens_with_a_warning_until_it_is_checked(old):
    with pytest.warns(UserWarning, match="has no checksum. Add one: weiss index --check --out"):
        before = opened(old)
    folder = IndexFolder(old)
    assert folder.verify() == (
        "11 files are as they were written; index.json, of an older version, had no checksum, and "
        "has one now."
    )
    after = opened(old)
    assert after.facts == before.facts
    assert folder.verify() == "11 files are as they were written, and index.json."
    flip(file_of(old, "store"), 300, 0)
    with pytest.raises(DamagedIndexError, match="store-.* is damaged"):
        folder.verify()


def test_an_older_index_that_cannot_be_written_is_checked_all_the_same(old, monkeypatch):
    before = (old / MANIFEST).read_bytes()

    def read_only(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(index_folder, "alone", read_only)
    said = IndexFolder(old).verify()
    assert said.endswith("and none could be added (Read-only file system).")
    assert (old / MANIFEST).read_bytes() == before


def test_what_has_changed_since_it_was_compared_gets_no_checksum(old, monkeypatch):
    words = json.loads((old / MANIFEST).read_text())
    words["files"][words["map"]]["sha256"] = "0" * 64
    changed, lock = json.dumps(words), index_folder.alone

    def changed_before_the_lock(*given, **options):
        (old / MANIFEST).write_text(changed)
        return lock(*given, **options)

    monkeypatch.setattr(index_folder, "alone", changed_before_the_lock)
    with pytest.raises(DamagedIndexError, match="map-.* does not match its checksum"):
        IndexFolder(old).verify()
    assert (old / MANIFEST).read_text() == changed


def test_a_server_outlives_files_that_are_cut_off_under_it(large, caplog):
    index = large
    cut = {"store": "/items/0/neighbours", "vectors": "/items/1/neighbours"}
    cut["thumbnails"] = "/items/318/thumbnail"
    with opened(index) as catalogue, serving(catalogue) as site:
        assert [site.get(path).status for path in cut.values()] == [200, 200, 200]
        whole = {kind: file_of(index, kind).read_bytes() for kind in cut}
        for kind, path in cut.items():
            name, size = file_of(index, kind).name, len(whole[kind])
            os.truncate(index / name, 100)
            caplog.clear()
            with caplog.at_level(logging.ERROR):
                answers = [site.get(path) for _ in range(3)]
            assert [answer.status for answer in answers] == [503, 503, 503]
            words = f"{name} of the index must have {size:,} bytes; it has 100."
            assert all(answer.detail.startswith(words) for answer in answers)
            assert REPAIR in answers[0].detail
            assert [record.getMessage() for record in caplog.records] == [answers[0].detail]
            (index / name).write_bytes(whole[kind])
            assert site.get(path).status == 200
        assert site.get("/healthz").status == 200


def claiming(*shape):
    """Return a function that writes an array with another shape in its header."""

    def forge(content):
        header = {"descr": np.load(io.BytesIO(content)).dtype.str, "fortran_order": False}
        write = np.lib.format.write_array_header_1_0
        return saved(write, {**header, "shape": shape}) + bytes(5120)

    return forge


@pytest.mark.parametrize("kind", ["digests", "places", "vectors"])
@pytest.mark.parametrize(
    "forge",
    [
        lambda content: content.replace(b"}", b" ", 1),
        lambda content: saved(np.savez, a=np.zeros(3)),
        claiming(10**13, 16),
        claiming(10**30, 16),
        claiming(0, 16),
        claiming(320),
    ],
)
def test_an_array_that_cannot_be_is_damage_although_the_checksums_agree(index, kind, forge):
    path = file_of(index, kind)
    put(index, path, forge(path.read_bytes()))
    with pytest.raises(DamagedIndexError, match=f"{path.name} of the index is damaged"):
        opened(index)


@pytest.mark.parametrize(
    "change",
    [
        lambda words: b"[" * 10**6,
        lambda words: b'{"names":' * 10**5,
        lambda words: words["labels"][3].append(-99),
        lambda words: words["labels"][3].append(10**30),
        lambda words: words["labels"][3].append(0.5),
        lambda words: words["names"].__setitem__(5, 7),
        lambda words: words["classes"].__setitem__(0, None),
        lambda words: words["names"].pop(),
        lambda words: words.update(labels={}),
        lambda words: words.pop("classes"),
    ],
)
def test_items_that_cannot_be_are_damage_although_the_checksums_agree(index, change):
    path = file_of(index, "items")
    words = json.loads(path.read_text())
    content = change(words)
    put(index, path, content if isinstance(content, bytes) else json.dumps(words).encode())
    with pytest.raises(DamagedIndexError, match=f"{path.name} of the index is damaged"):
        opened(index)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids, facts: (ids, b'{"kind":' * 10**5), "must be a store written by Weiss"),
        (lambda ids, facts: (ids, b"[]"), "must be a store written by Weiss"),
        (lambda ids, facts: (ids, b'{"kind": "flat"}'), "must be a store written by Weiss"),
        (lambda ids, facts: (ids, b"\xff"), "must be a store written by Weiss"),
        (lambda ids, facts: (ids, facts.replace(b"flat", b"ivf", 1)), "must be ivf; it is Index"),
        (lambda ids, facts: (ids[:80], facts), "the store .* has a vector without an id"),
    ],
)
def test_a_store_that_cannot_be_is_damage_although_the_checksums_agree(index, change, message):
    path = file_of(index, "store")
    whole = path.read_bytes()
    size, num_tail, *_ = faiss_store.END.unpack(whole[-faiss_store.END.size :])
    own, rest = whole[:size], whole[size : -faiss_store.END.size]
    ids, facts = change(rest[:num_tail], rest[num_tail:])
    of_all = hashlib.sha256(own + ids + facts).digest()
    of_facts = hashlib.sha256(own[: faiss_store.CHUNK] + ids + facts + of_all).digest()
    lengths = size, len(ids), len(facts)
    end = faiss_store.END.pack(*lengths, of_all, of_facts, faiss_store.MARK)
    put(index, path, own + ids + facts + end)
    with pytest.raises(DamagedIndexError, match=message):
        opened(index).search(np.eye(1, 32, dtype=np.float32), 320)


@pytest.mark.parametrize("sides", [(16, 0), (0, 16), (-4, -4), (16, 32)])
def test_a_thumbnail_of_no_size_is_damage_although_the_checksums_agree(index, sides):
    places = np.load(file_of(index, "places"))
    places[0, 2:4] = sides
    put(index, file_of(index, "places"), saved(np.save, places))
    with pytest.raises(DamagedIndexError, match="thumbnail 0 of the index is damaged"):
        opened(index).thumbnail(0)


@pytest.mark.parametrize(
    "change", [{"ids": np.arange(1, 321)}, {"points": np.zeros((320, 3))}, {"points": ["x"] * 640}]
)
def test_a_map_that_cannot_be_is_damage_although_the_checksums_agree(index, change):
    with np.load(file_of(index, "map")) as arrays:
        content = saved(np.savez, **{**arrays, **change})
    put(index, file_of(index, "map"), content)
    with pytest.raises(DamagedIndexError, match="map-.* of the index is damaged"):
        opened(index)


def test_names_of_a_forged_index_do_not_move_the_cursor(index):
    path = file_of(index, "items")
    words = json.loads(path.read_text())
    words["names"][3] = words["classes"][0] = "a\x1b[2J"
    put(index, path, json.dumps(words).encode())
    with opened(index) as found:
        assert found.item(3).name == found.classes()[-1][0] == "a\ufffd[2J"

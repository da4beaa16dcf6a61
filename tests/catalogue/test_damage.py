"""A damaged index gives no wrong answer: bits that flipped, and files cut off under a server."""

import hashlib
import io
import json
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from glyph_catalogue import opened
from server.served import serving

import weiss.server
from weiss.catalogue import DamagedIndexError, faiss_store, index_folder, remove_items
from weiss.catalogue.faiss_store import FaissStore
from weiss.catalogue.index_folder import IndexFolder
from weiss.catalogue.manifest import MANIFEST, Manifest, sealed
from weiss.catalogue.stores import best_first

REPAIR = "weiss index RUN IMAGES --out INDEX --replace"
OLD = Path(__file__).parents[1] / "compatibility" / "index"


@pytest.fixture
def large(index, monkeypatch):
    """An index that is treated as if all its files were large."""
    path = file_of(index, "store")
    store = FaissStore.load(path)
    monkeypatch.setattr(index_folder, "SMALL", 0)
    monkeypatch.setattr(faiss_store, "IN_MEMORY", 0)
    monkeypatch.setattr(faiss_store, "CHUNK", 64)
    store.save(path)
    facts = IndexFolder(index).file_facts(path.name)
    change_manifest(index, lambda words: words["files"].update({path.name: facts}))
    return index


def change_manifest(index, change):
    """Change index.json, with the right checksum."""
    words = json.loads((index / MANIFEST).read_text())
    del words["checksum"]
    change(words)
    (index / MANIFEST).write_text(sealed(words))


def file_of(index, kind):
    names = IndexFolder(index).manifest().files
    return index / next(name for name in names if name.startswith(f"{kind}-"))


def put(index, path, content):
    """Write a file of an index, with the right checksum in the manifest."""
    path.write_bytes(content)
    facts = IndexFolder(index).file_facts(path.name)
    change_manifest(index, lambda words: words["files"].update({path.name: facts}))


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
    with pytest.raises(DamagedIndexError, match=f"item 4 has a similarity of .*{REPAIR}"):
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
            with pytest.raises(DamagedIndexError, match=f"item 17 has a similarity of .*{REPAIR}"):
                catalogue.search(query[None], 3)
        for query in queries[~is_same_side]:
            assert 17 not in [hit.item.id for hit in catalogue.search(query[None], 3)[0]]


def test_a_vector_that_is_none_of_the_network_is_damage(large):
    path = file_of(large, "vectors")
    flip(path, path.stat().st_size - 1, 6)  # the exponent of the last number
    with opened(large) as catalogue, serving(catalogue) as site:
        with pytest.raises(DamagedIndexError, match=f"vector of item 319 .* length .*{REPAIR}"):
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


@pytest.mark.parametrize("kind", ["items", "places", "digests", "map"])
def test_what_is_read_whole_is_compared_whatever_its_size(large, kind):
    path = file_of(large, kind)
    flip(path, path.stat().st_size // 2, 0)
    with pytest.raises(DamagedIndexError, match=f"{path.name} of the index is damaged"):
        opened(large)


@pytest.fixture(scope="module")
def manifest(glyph_index):
    """An index.json with a threshold and a list of removed items, for `Manifest.from_json`."""
    words = json.loads((glyph_index / MANIFEST).read_text())
    del words["checksum"]
    with_removed(words, {"bytes": 136, "sha256": "0" * 64}, 319)
    return sealed(words).encode()


def with_removed(words, facts, num_items):
    words.update(removed="removed-12345678.npy", num_items=num_items)
    words["files"]["removed-12345678.npy"] = facts


def test_a_flipped_byte_of_the_manifest_is_refused_wherever_it_is(manifest):
    assert json.loads(manifest)["threshold"]["similarity"] < 1
    for at in range(len(manifest)):
        for mask in (1 << at % 8, 0x5A):
            content = manifest[:at] + bytes([manifest[at] ^ mask]) + manifest[at + 1 :]
            with pytest.raises(DamagedIndexError, match=r"index\.json (of the index|must have)"):
                Manifest.from_json(content)
    for end in (*range(0, len(manifest), 97), len(manifest) - 1):
        with pytest.raises(DamagedIndexError):
            Manifest.from_json(manifest[:end])


def changes(*path):
    """Return a function that sets an entry of a manifest."""
    *outer, last, value = path

    def change(words):
        for key in outer:
            words = words[key]
        words[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            changes("segments", 0, "first", 1),
            r"segments end before ids \[321\], but \[320\] come next",
        ),
        (changes("segments", 0, "first", -1), "segments.0.first: .* greater than or equal to 0"),
        (changes("segments", 0, "first", True), "segments.0.first: .* valid integer"),
        (changes("segments", 0, "count", 10**30), "segments.0.count: .*"),
        (changes("segments", []), "segments: List should have at least 1 item"),
        (lambda words: words["segments"].extend(2 * words["segments"]), "names a file twice"),
        (changes("next_id", 319), r"segments end before ids \[320\], but \[319\] come next"),
        (changes("num_items", 320), "num_items is 320, of 320 in its segments"),
        (changes("removed", None), "it names 'removed-.*', which is no file of an index"),
        (changes("threshold", "similarity", float("nan")), "threshold.similarity: .* finite"),
        (changes("threshold", "similarity", 1.5), "threshold.similarity: .* less than"),
        (changes("threshold", "similarity", "0.9"), "threshold.similarity: .* valid number"),
        (changes("threshold", "true_match_rate", 2), "threshold.true_match_rate"),
        (changes("threshold", "more", 1), "threshold.more: Extra inputs are not permitted"),
        (changes("settings", "false_match_rate", 0), "settings.false_match_rate"),
        (changes("scores", "map_at_r", float("inf")), "scores.map_at_r"),
        (changes("model", "embedding_size", 0), "model.embedding_size"),
        (changes("model", "fingerprint", "x"), "model.fingerprint"),
        (changes("made", "yesterday"), "made: String should match"),
        (lambda words: words.pop("skipped"), "skipped: Field required"),
        (lambda words: words["files"][words["map"]].update(bytes=-1), "greater than or equal to 0"),
        (lambda words: words["files"][words["map"]].update(sha256="A" * 64), "should match"),
    ],
)
def test_entries_that_cannot_be_are_refused_in_any_format(manifest, change, message):
    words = json.loads(manifest)
    del words["checksum"]
    change(words)
    old = json.dumps({**words, "format": 2}).encode()
    contents = [old] if b"NaN" in old or b"Infinity" in old else [old, sealed(words).encode()]
    for content in contents:
        with pytest.raises(
            DamagedIndexError, match=f"index.json of the index is damaged: .*{message}"
        ):
            Manifest.from_json(content)


def test_scores_are_numbers_and_those_of_the_test_are_inside(manifest):
    words = json.loads(manifest)
    del words["checksum"]
    words["scores"]["test"] = {"map_at_r": 0.5, "queries": 12}
    old = json.dumps({**words, "format": 2}).encode()
    for content in (old, sealed(words).encode()):
        assert Manifest.from_json(content).scores["test"]["queries"] == 12
    for wrong in ({"map_at_r": {}}, {"test": 0.5}, {"test": {"map_at_r": "0.5"}}):
        changed = {**words, "scores": {**words["scores"], **wrong}}
        with pytest.raises(DamagedIndexError, match=f"scores.{next(iter(wrong))}"):
            Manifest.from_json(sealed(changed).encode())


def test_ids_may_be_missing_only_where_an_index_says_that_it_is_whole(manifest):
    words = json.loads(manifest)
    del words["checksum"]
    words["next_id"] = 400
    assert Manifest.from_json(sealed(words).encode()).next_id == 400
    with pytest.raises(DamagedIndexError, match=r"ids \[320\], but \[400\] come next"):
        Manifest.from_json(json.dumps({**words, "format": 2}).encode())


def test_an_index_that_nobody_could_open_is_not_written(index, monkeypatch):
    before = (index / MANIFEST).read_bytes()
    wrong = {"similarity": 3.0, "false_match_rate": 0.0, "true_match_rate": 1.0, "basis": "b"}
    wrong |= {"wanted": 0.05, "source": "this index"}
    found = "weiss.catalogue.building.index_threshold"
    monkeypatch.setattr(found, lambda *_: (wrong, "b"))
    with pytest.raises(DamagedIndexError, match="threshold.similarity"):
        remove_items(index, [0], quiet=True)
    assert (index / MANIFEST).read_bytes() == before


def test_files_must_hold_as_many_items_as_the_manifest_says(index):
    np.save(index / "removed-12345678.npy", np.array([3]))
    facts = IndexFolder(index).file_facts("removed-12345678.npy")
    change_manifest(index, lambda words: with_removed(words, facts, 318))
    with pytest.raises(DamagedIndexError, match="318 items must be left; 319 are"):
        opened(index)


def test_an_index_of_an_older_version_opens_with_a_warning_until_it_is_checked(tmp_path):
    index = shutil.copytree(OLD, tmp_path / "index")
    with pytest.warns(UserWarning, match="has no checksum. Add one: weiss index --check --out"):
        before = opened(index)
    folder = IndexFolder(index)
    assert folder.verify() == (
        "11 files are as they were written; index.json, of an older version, had no checksum, and "
        "has one now."
    )
    after = opened(index)
    assert after.facts == before.facts
    assert folder.verify() == "11 files are as they were written, and index.json."
    flip(file_of(index, "store"), 300, 0)
    with pytest.raises(DamagedIndexError, match="store-.* is damaged"):
        folder.verify()


def test_an_older_index_that_cannot_be_written_is_checked_all_the_same(tmp_path, monkeypatch):
    index = shutil.copytree(OLD, tmp_path / "index")
    folder, before = IndexFolder(index), (index / MANIFEST).read_bytes()

    def read_only(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(index_folder, "alone", read_only)
    assert folder.verify().endswith("and none could be added (Read-only file system).")
    assert (index / MANIFEST).read_bytes() == before


def test_what_has_changed_since_it_was_compared_gets_no_checksum(tmp_path, monkeypatch):
    index = shutil.copytree(OLD, tmp_path / "index")
    folder, words = IndexFolder(index), json.loads((index / MANIFEST).read_text())
    words["files"][words["map"]]["sha256"] = "0" * 64
    changed, lock = json.dumps(words), index_folder.alone

    def changed_before_the_lock(*given, **options):
        (index / MANIFEST).write_text(changed)
        return lock(*given, **options)

    monkeypatch.setattr(index_folder, "alone", changed_before_the_lock)
    with pytest.raises(DamagedIndexError, match="map-.* does not match its checksum"):
        folder.verify()
    assert (index / MANIFEST).read_text() == changed


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


@pytest.mark.parametrize("kind", ["digests", "places", "vectors"])
def test_a_header_that_is_none_is_damage_although_the_checksums_agree(index, kind):
    path = file_of(index, kind)
    put(index, path, path.read_bytes().replace(b"}", b" ", 1))
    with pytest.raises(DamagedIndexError, match=f"{path.name} of the index is damaged"):
        opened(index)


@pytest.mark.parametrize("kind", ["digests", "places", "vectors"])
@pytest.mark.parametrize("shape", [(10**13, 16), (10**30, 16), (0, 16), (320,)])
def test_a_header_that_claims_more_than_there_is_is_damage(index, kind, shape):
    path, file = file_of(index, kind), io.BytesIO()
    descr = np.load(path, mmap_mode="r").dtype.str
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    put(index, path, file.getvalue() + bytes(5120))
    with pytest.raises(DamagedIndexError, match=f"{path.name} of the index is damaged"):
        opened(index)


def test_an_archive_in_place_of_an_array_is_damage(index):
    put(index, path := file_of(index, "digests"), saved(np.savez, a=np.zeros(3)))
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

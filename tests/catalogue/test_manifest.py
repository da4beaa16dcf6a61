"""index.json: every entry has its type and range, nothing leads out of the folder, a checksum."""

import json

import pytest

from weiss.catalogue import DamagedIndexError
from weiss.catalogue.manifest import MANIFEST, Manifest, sealed

GONE = object()


@pytest.fixture(scope="module")
def whole(glyph_index):
    """The entries of an index.json with a threshold and, as in version 0.1, removed items."""
    words = json.loads((glyph_index / MANIFEST).read_text())
    del words["checksum"]
    words.update(removed="removed-12345678.npy", num_items=319)
    words["files"]["removed-12345678.npy"] = {"bytes": 136, "sha256": "0" * 64}
    return words


def both_formats(words):
    """Return a manifest without a checksum, as version 0.1 wrote it, and one with a checksum."""
    old = json.dumps({**words, "format": 2}).encode()
    return [old] if b"NaN" in old or b"Infinity" in old else [old, sealed(words).encode()]


def changed(whole, path, value):
    """Return a manifest with another value, or without it; a function gives it from the old one."""
    words = json.loads(json.dumps(whole))
    *outer, last = path.format(map=words["map"], model=words["model"]["folder"]).split("|")
    inside = words
    for key in outer:
        inside = inside[int(key) if isinstance(inside, list) else key]
    if value is GONE:
        del inside[last]
    else:
        inside[last] = value(inside[last]) if callable(value) else value
    return words


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("segments|0|first", 1, r"segments end before ids \[321\], but \[320\] come next"),
        ("segments|0|first", -1, "segments.0.first: .* greater than or equal to 0"),
        ("segments|0|first", True, "segments.0.first: .* valid integer"),
        ("segments|0|count", 10**30, "segments.0.count: .*"),
        ("segments", [], "segments: List should have at least 1 item"),
        ("segments", GONE, "segments: Field required"),
        ("segments", lambda segments: 3 * segments, "names a file twice"),
        ("next_id", 319, r"segments end before ids \[320\], but \[319\] come next"),
        ("num_items", 320, "num_items is 320, of 320 in its segments"),
        ("removed", None, "it names 'removed-.*', which is no file of an index"),
        ("skipped", GONE, "skipped: Field required"),
        ("made", "yesterday", "made: String should match"),
        ("extra", 1, "extra: Extra inputs are not permitted"),
        ("map", "/etc/passwd", "map: String should match"),
        ("map", "model-12345678/../../x.npz", "map: String should match"),
        ("map", "items-12345678.json\n", "map: String should match"),
        ("map", "", "map: String should match"),
        ("map", 5, "map: .* valid string"),
        ("map", ["a"], "map: .* valid string"),
        ("files|/etc/passwd", {"bytes": 1, "sha256": "0" * 64}, "names '/etc/passwd', which is no"),
        ("files|{map}", GONE, "which is no file of an index"),
        ("files|{map}|bytes", -1, "greater than or equal to 0"),
        ("files|{map}|sha256", "A" * 64, "should match"),
        ("files|{model}/recipe.toml", GONE, "recipe.toml', which is no file"),
        ("files|{model}/model.safetensors", GONE, "model.safetensors', which is no file"),
        ("model|folder", "../runs/g", "model.folder: String should match"),
        ("model|folder", ".", "model.folder: String should match"),
        ("model|folder", "model-12345678/..", "model.folder: String should match"),
        ("model|embedding_size", 0, "model.embedding_size"),
        ("model|fingerprint", "x", "model.fingerprint"),
        ("model|fingerprint", GONE, "model.fingerprint: Field required"),
        ("scores|map_at_r", float("inf"), "scores.map_at_r"),
        ("scores|map_at_r", {}, "scores.map_at_r"),
        ("scores|test", 0.5, "scores.test"),
        ("scores|test", {"map_at_r": "0.5"}, "scores.test"),
        ("settings|false_match_rate", 0, "settings.false_match_rate"),
        ("store|file", GONE, "it names no store"),
        ("store|address", "redis:x", "store must be .*got 'redis:x'"),
        ("store|address", "milvus:host:1", "it names no store"),
        ("store|address", "milvus:../elsewhere/items.db", "must lie in the index folder"),
        ("store|address", "milvus:/elsewhere/items.db", "must lie in the index folder"),
        ("store|address", "milvus:C:items.db", "must lie in the index folder"),
        ("store|address", "milvus:http://me:secret@host:19530", "neither name nor password"),
        ("store|collection", "others", "store.collection: String should match"),
        ("store|says", GONE, "store.says: Field required"),
        ("threshold|similarity", float("nan"), "threshold.similarity: .* finite"),
        ("threshold|similarity", 1.5, "threshold.similarity: .* less than"),
        ("threshold|similarity", "0.9", "threshold.similarity: .* valid number"),
        ("threshold|true_match_rate", 2, "threshold.true_match_rate"),
        ("threshold|more", 1, "threshold.more: Extra inputs are not permitted"),
        ("threshold|basis", GONE, "threshold.basis: Field required"),
    ],
)
def test_entries_that_cannot_be_are_refused_in_any_format(whole, path, value, message):
    message = f"index.json of the index is damaged: .*{message}"
    for content in both_formats(changed(whole, path, value)):
        with pytest.raises(DamagedIndexError, match=message) as refused:
            Manifest.from_json(content)
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"{}", b"[" * 10**6])
def test_what_is_no_manifest_is_refused(content):
    with pytest.raises(DamagedIndexError, match="index.json of the index is damaged"):
        Manifest.from_json(content)


def test_a_manifest_of_another_version_is_told_so(whole):
    with pytest.raises(DamagedIndexError, match="must have format 3; it is of another version"):
        Manifest.from_json(sealed({**whole, "format": 99}).encode())


def test_a_flipped_byte_of_the_manifest_is_refused_wherever_it_is(whole):
    content = sealed(whole).encode()
    assert Manifest.from_json(content).is_sealed
    for at in range(len(content)):
        for mask in (1 << at % 8, 0x5A):
            flipped = content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]
            with pytest.raises(DamagedIndexError, match=r"index\.json (of the index|must have)"):
                Manifest.from_json(flipped)
    for end in (*range(0, len(content), 97), len(content) - 1):
        with pytest.raises(DamagedIndexError):
            Manifest.from_json(content[:end])


def test_scores_on_test_data_are_inside_the_others(whole):
    scores = {"map_at_r": 0.5, "queries": 12}
    for content in both_formats(changed(whole, "scores|test", scores)):
        assert Manifest.from_json(content).scores["test"] == scores


def test_ids_may_be_missing_only_where_an_index_says_that_it_is_whole(whole):
    old, new = both_formats({**whole, "next_id": 400})
    assert Manifest.from_json(new).next_id == 400
    with pytest.raises(DamagedIndexError, match=r"ids \[320\], but \[400\] come next"):
        Manifest.from_json(old)

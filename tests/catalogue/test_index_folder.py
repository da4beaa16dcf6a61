"""The index folder: complete or absent, one writer, nothing read outside of it."""

import json
import shutil
import threading

import pytest

from weiss._base.files import alone
from weiss.catalogue import Catalogue, DamagedIndexError, remove_items
from weiss.catalogue.index_folder import IndexFolder
from weiss.catalogue.manifest import MANIFEST, sealed
from weiss.runs.folder import MODEL, RECIPE


def files(folder):
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def change_manifest(folder, change):
    path = folder / MANIFEST
    words = json.loads(path.read_text())
    del words["checksum"]
    change(words)
    path.write_text(sealed(words))


def of_model(words, name):
    return f"{words['model']['folder']}/{name}"


def refused(folder, change, message):
    """Return the error of opening an index whose manifest was changed."""
    change_manifest(folder, change)
    with pytest.raises(DamagedIndexError, match=message) as error:
        Catalogue.open(folder, device="cpu")
    return str(error.value)


def test_every_file_is_named_with_its_size_and_checksum(glyph_index):
    folder = IndexFolder(glyph_index)
    manifest = folder.manifest()
    assert set(manifest.named()) == set(manifest.files)
    folder.check(manifest, everything=True)
    tops = {name.partition("/")[0] for name in manifest.files}
    assert files(glyph_index) == tops | {MANIFEST, "card.md", "skipped.txt"}


def test_files_that_are_replaced_are_deleted_at_the_end_of_the_change(index):
    before = {name for name in IndexFolder(index).manifest().files if "/" not in name}
    remove_items(index, ["U+0041/0.png"], quiet=True)
    after = {name.partition("/")[0] for name in IndexFolder(index).manifest().files}
    assert not before & after
    assert files(index) == after | {MANIFEST, "card.md", "skipped.txt"}


def test_a_reader_whose_files_have_gone_reads_the_manifest_again(index):
    folder = IndexFolder(index)
    read = []

    def slowly(manifest):
        read.append(manifest.num_items)
        if len(read) == 1:  # a change while this one was about to open its files
            remove_items(index, ["U+0041/0.png"], quiet=True)
        return folder.path(manifest.map).read_bytes()

    manifest, content = folder.reading(slowly)
    assert read == [320, 319]
    assert manifest.num_items == 319
    assert content == folder.path(manifest.map).read_bytes()


def test_an_open_catalogue_is_not_disturbed_by_changes(index):
    opened = Catalogue.open(index, device="cpu")
    vector, picture = opened.vector(0).copy(), opened.thumbnail(0)
    name = opened.item(0).name
    assert not opened.is_outdated()
    remove_items(index, [name], quiet=True)
    remove_items(index, [opened.item(1).name], quiet=True)
    assert opened.is_outdated()
    assert len(opened) == 320
    assert opened.search(vector[None], 1)[0][0].item.name == name
    assert opened.thumbnail(0) == picture


def test_whoever_opens_an_index_while_it_changes_sees_a_whole_one(index):
    sizes, done = [], threading.Event()

    def change():
        for number in range(6):
            remove_items(index, [number], quiet=True)
        done.set()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        while not done.is_set():
            opened = Catalogue.open(index, device="cpu")
            first = opened.items_of(None, 0, 1)[0].id
            assert len(opened) == 320 - first == len(opened.map().ids)
            assert opened.search(opened.vector(first)[None], 1)[0][0].item.id == first
            sizes.append(len(opened))
    finally:
        thread.join()
    assert sizes == sorted(sizes, reverse=True)
    assert len(Catalogue.open(index, device="cpu")) == 314


def test_a_device_that_is_not_there_is_no_damage(glyph_index):
    with pytest.raises(ValueError, match="device") as refused:
        Catalogue.open(glyph_index, device="gpu")
    assert not isinstance(refused.value, DamagedIndexError)


def test_one_program_at_a_time_may_change_an_index(index):
    with alone(index / MANIFEST), pytest.raises(ValueError, match="another one changes it now"):
        remove_items(index, ["U+0041/0.png"], quiet=True)
    remove_items(index, ["U+0041/0.png"], quiet=True)


def path_of(index, kind):
    found = next(path for path in sorted(index.iterdir()) if path.name.startswith(f"{kind}-"))
    return found / "model.safetensors" if found.is_dir() else found


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("cut", "vectors"),
        ("cut", "model"),
        ("changed", "items"),
        ("changed", "store"),
        ("missing", "map"),
        ("missing", "model"),
    ],
)
def test_a_damaged_file_is_named(index, damage, kind):
    path = path_of(index, kind)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x5A
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content if damage == "changed" else content[:-7])
    message = {
        "cut": f"{path.name} of the index must have [0-9,]+ bytes",
        "changed": f"{path.name} of the index is damaged",
        "missing": f"{path.name} of the index is missing",
    }
    with pytest.raises(DamagedIndexError, match=message[damage]):
        Catalogue.open(index, device="cpu")


def test_a_large_file_is_compared_when_that_is_asked_for(index, monkeypatch):
    from weiss.catalogue import index_folder as module

    monkeypatch.setattr(module, "SMALL", 0)
    path = path_of(index, "thumbnails")
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    Catalogue.open(index, device="cpu")
    folder = IndexFolder(index)
    with pytest.raises(DamagedIndexError, match="does not match its checksum"):
        folder.check(folder.manifest(), everything=True)


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "model-12345678/../../x.npz", "items-12345678.json\n", "", 5, ["a"]],
)
def test_a_manifest_leads_nowhere_outside_of_its_folder(index, name):
    def change(words):
        if isinstance(name, str):
            words["files"][name] = words["files"][words["map"]]
        words["map"] = name

    refused(index, change, "is damaged: map: .* should (match pattern|be a valid string)")


@pytest.mark.parametrize("folder", ["../runs/g", ".", "model-12345678/.."])
def test_a_manifest_takes_no_model_from_outside_of_its_folder(index, glyph_run, folder):
    shutil.copytree(glyph_run, index.parent / "runs" / "g")
    change = lambda words: words["model"].update(folder=folder)  # noqa: E731
    refused(index, change, "model.folder: String should match pattern")


def in_milvus(address):
    def change(words):
        del words["files"][words["store"]["file"]]
        words["store"] = {"address": address, "collection": "weiss_12345678", "says": "b"}

    return change


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("../elsewhere/items.db", "must lie in the index folder"),
        ("/elsewhere/items.db", "must lie in the index folder"),
        ("C:items.db", "must lie in the index folder"),
        ("http://me:secret@host:19530", "neither name nor password"),
    ],
)
def test_a_manifest_takes_no_items_from_files_outside_of_its_folder(index, address, message):
    assert "secret" not in refused(index, in_milvus(f"milvus:{address}"), message)


def test_a_link_to_a_database_outside_of_the_folder_is_not_followed(index, tmp_path):
    (tmp_path / "elsewhere.db").mkdir()
    (index / "items.db").symlink_to(tmp_path / "elsewhere.db")
    refused(index, in_milvus("milvus:items.db"), "a link that leads out of it")


def test_a_store_outside_of_the_folder_is_named_when_it_is_opened(index):
    change_manifest(index, in_milvus("milvus:127.0.0.1:1"))
    message = "outside of the index folder, in Milvus at 127.0.0.1:1"
    with pytest.warns(UserWarning, match=message), pytest.raises(ConnectionError):
        Catalogue.open(index, device="cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda words: words.pop("segments"), "segments: Field required"),
        (lambda words: words.update(extra=1), "extra: Extra inputs are not permitted"),
        (lambda words: words.update(format=99), "must have format 3"),
        (lambda words: words.pop("format"), "is damaged: KeyError 'format'"),
        (lambda words: words["files"].pop(words["map"]), "which is no file of an index"),
        (lambda words: words["files"].pop(of_model(words, RECIPE)), f"{RECIPE}', which is no file"),
        (lambda words: words["files"].pop(of_model(words, MODEL)), f"{MODEL}', which is no file"),
        (
            lambda words: [
                words["segments"][0].update(count=7),
                words.update(next_id=7, num_items=7),
            ],
            "does not fit the manifest",
        ),
        (lambda words: words["model"].pop("fingerprint"), "model.fingerprint: Field required"),
        (lambda words: words["model"].update(embedding_size=7), "must hold f4 of shape"),
        (lambda words: words["store"].pop("file"), "it names no store"),
        (lambda words: words["store"].update(address="redis:x"), "store must be .*got 'redis:x'"),
        (lambda words: words["store"].update(address="milvus:host:1"), "it names no store"),
        (lambda words: words["store"].update(collection="others"), "store.collection: .* pattern"),
        (lambda words: words["store"].pop("says"), "store.says: Field required"),
        (lambda words: words["threshold"].pop("basis"), "threshold.basis: Field required"),
    ],
)
def test_a_manifest_that_is_not_whole_is_refused(index, change, message):
    refused(index, change, message)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null"])
def test_what_is_no_manifest_is_refused(index, content):
    (index / MANIFEST).write_bytes(content)
    with pytest.raises(DamagedIndexError, match="index.json of the index is damaged"):
        Catalogue.open(index, device="cpu")


def test_a_folder_without_an_index_is_told_with_the_nearest_name(index):
    with pytest.raises(FileNotFoundError, match="Did you mean 'index'?"):
        Catalogue.open(index.with_name("indx"), device="cpu")
    (index.parent / "begun" / ".building").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="One was started there"):
        Catalogue.open(index.parent / "begun", device="cpu")
    file = shutil.copy(index / "card.md", index.parent / "card.md")
    with pytest.raises(FileNotFoundError, match="INDEX must be the folder of an index"):
        Catalogue.open(file, device="cpu")

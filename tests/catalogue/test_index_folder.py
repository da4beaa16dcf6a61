"""The index folder: complete or absent, one writer, nothing read outside of it."""

import os
import shutil

import pytest
from glyph_catalogue import change_manifest, file_of, opened, remove

from weiss._base.files import alone
from weiss.catalogue import Catalogue, DamagedIndexError
from weiss.catalogue.index_folder import RETRIES, IndexFolder
from weiss.catalogue.manifest import MANIFEST


def test_every_file_is_named_with_its_size_and_checksum_and_others_are_deleted(index):
    folder, before = IndexFolder(index), set[str]()
    for gone in range(2):
        manifest = folder.manifest()
        assert set(manifest.named()) == set(manifest.files)
        folder.check(manifest, everything=True)
        tops = {name.partition("/")[0] for name in manifest.files}
        assert {*os.listdir(index)} == tops | {MANIFEST, "card.md", "skipped.txt", ".written"}
        assert not before & {name for name in manifest.files if "/" not in name}
        before = set(manifest.files)
        remove(index, gone)


@pytest.mark.parametrize(("given", "hint"), [("nowhere", ""), ("on", " Did you mean 'one.index'?")])
def test_an_index_that_is_not_there_suggests_a_near_one(tmp_path, given, hint):
    (tmp_path / "one.index").mkdir()
    (tmp_path / "one.index" / MANIFEST).touch()
    with pytest.raises(FileNotFoundError) as caught:
        IndexFolder(tmp_path / f"{given}.index").manifest()
    assert f"{given}.index is not.{hint} Make one: " in str(caught.value)


def test_an_index_that_changes_all_the_time_is_no_endless_wait(index):
    read = []

    def slowly(manifest):
        read.append(manifest.num_items)
        remove(index, len(read))
        return (index / manifest.map).read_bytes()

    with pytest.raises(DamagedIndexError, match="changes faster than it can be read"):
        IndexFolder(index).reading(slowly)
    assert read == [320 - number for number in range(RETRIES)]


def test_an_open_catalogue_is_not_disturbed_by_changes(index):
    found = opened(index)
    vector, picture, name = found.vector(0).copy(), found.thumbnail(0), found.item(0).name
    assert not found.is_outdated()
    remove(index, name)
    remove(index, found.item(1).name)
    assert found.is_outdated()
    assert len(found) == 320
    assert found.search(vector[None], 1)[0][0].item.name == name
    assert found.thumbnail(0) == picture
    shutil.rmtree(index)
    assert found.is_outdated()


def test_a_device_that_is_not_there_is_no_damage(glyph_index):
    with pytest.raises(ValueError, match="device") as refused:
        Catalogue.open(glyph_index, device="gpu")
    assert not isinstance(refused.value, DamagedIndexError)


def test_one_program_at_a_time_may_change_an_index(index):
    with alone(index / MANIFEST), pytest.raises(ValueError, match="another one changes it now"):
        remove(index, "U+0041/0.png")
    remove(index, "U+0041/0.png")


def in_milvus(index, address):
    """Let the manifest of an index name a Milvus store."""
    store = {"address": address, "collection": "weiss_12345678", "says": "b"}
    file = file_of(index, "store").name
    change_manifest(index, lambda words: [words["files"].pop(file), words.update(store=store)])


def test_a_link_to_a_database_outside_of_the_folder_is_not_followed(index, tmp_path):
    (tmp_path / "elsewhere.db").mkdir()
    (index / "items.db").symlink_to(tmp_path / "elsewhere.db")
    in_milvus(index, "milvus:items.db")
    with pytest.raises(DamagedIndexError, match="a link that leads out of it"):
        opened(index)


def test_a_store_outside_of_the_folder_is_named_when_it_is_opened(index):
    in_milvus(index, "milvus:127.0.0.1:1")
    message = "outside of the index folder, in Milvus at 127.0.0.1:1"
    with pytest.warns(UserWarning, match=message), pytest.raises(ConnectionError):
        opened(index)


def test_a_folder_without_an_index_is_told_with_the_nearest_name(index):
    (index.parent / "begun" / ".building").mkdir(parents=True)
    file = shutil.copy(index / "card.md", index.parent / "card.md")
    for folder, message in {
        index.with_name("indx"): "Did you mean 'index'?",
        index.parent / "begun": "One was started there",
        file: "INDEX must be the folder of an index",
    }.items():
        with pytest.raises(FileNotFoundError, match=message):
            opened(folder)

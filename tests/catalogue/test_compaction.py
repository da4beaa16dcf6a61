"""Removed means gone: no file has a trace of a removed item, and small changes leave few files."""

import json
import math
import os
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from glyph_catalogue import (
    OLD_INDEX,
    add,
    build,
    contents,
    full_disk,
    names_of,
    opened,
    photos,
    remove,
)
from tiny import damage

from weiss.catalogue import (
    DamagedIndexError,
    UnknownItemError,
    compact_index,
    embedding,
    index_folder,
)
from weiss.catalogue.index_folder import IndexFolder
from weiss.catalogue.item_map import read_map, write_map
from weiss.catalogue.segments import Block, Items, compacted, write_segment


@pytest.fixture(scope="module")
def photo_index(lost_run, tmp_path_factory):
    """An index of twelve photos of three classes, only to be read."""
    folder = tmp_path_factory.mktemp("photos")
    build(lost_run, photos(folder / "photos", 12), folder / "index")
    return folder / "index"


@pytest.fixture
def no_fsync(monkeypatch):
    """Save time: a disk that loses power is no part of the test."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def small(photo_index, tmp_path):
    return shutil.copytree(photo_index, tmp_path / "small")


def traces(folder, name):
    """Return what the files of an index have of an item, each as bytes."""
    found = opened(folder)
    segment, row = found._items.find(names_of(found)[name])
    marks = [name.encode(), segment._kept(row), segment.vectors[row], segment.digests[row]]
    found.close()
    return [bytes(memoryview(each).cast("B")) for each in marks]


def files_with(folder, marks):
    """Return the files below a folder that hold one of some byte strings."""
    found = contents(folder).items()
    return {path.name for path, content in found if any(mark in content for mark in marks)}


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw", "int8", "binary"])
def test_no_file_has_a_trace_of_a_removed_item(lost_run, tmp_path, kind):
    folder, name = tmp_path / "index", "class1/4.jpg"
    build(lost_run, photos(tmp_path / "photos", 12), folder, kind=kind)
    marks = traces(folder, name)
    assert len(files_with(folder, marks)) == 5  # one for each, and the store
    kept = {item: traces(folder, item) for item in ("class1/1.jpg", "class2/5.jpg")}
    remove(folder, name)
    assert files_with(folder, marks) == set()
    for item, same in kept.items():
        assert traces(folder, item) == same
    assert len(opened(folder).search(np.eye(1, 32, dtype=np.float32), 50)[0]) == 11


def test_a_class_without_items_leaves_its_name_in_no_file(small):
    remove(small, "class:class2")
    assert files_with(small, [b"class2"]) == set()
    assert [name for name, _ in opened(small).classes()] == ["class0", "class1"]


def test_an_index_that_is_replaced_leaves_nothing_of_the_old_one(small, lost_run, tmp_path):
    marks = traces(small, "class1/4.jpg")
    build(lost_run, photos(tmp_path / "other", 1, first=77), small, replace_old=True)
    assert files_with(small, marks) == set()
    named = {name.partition("/")[0] for name in IndexFolder(small).manifest().files}
    assert {*os.listdir(small)} == named | {"index.json", "card.md", "skipped.txt", ".written"}


def test_an_item_keeps_its_id_and_its_content_when_segments_become_one(small, tmp_path):
    before = names_of(opened(small))
    for number in range(4):
        add(small, photos(tmp_path / f"more{number}", 1, first=12 + number))
        remove(small, number)
    assert len(IndexFolder(small).manifest().segments) <= 3
    found = opened(small)
    expected = {name: id for name, id in before.items() if id >= 4}
    assert names_of(found) == expected | {f"class{id % 3}/{id}.jpg": id for id in range(12, 16)}
    for name, id in names_of(found).items():
        assert found.item(id).name == name
        assert found.search(found.vector(id)[None], 1)[0][0].item.id == id
    assert found.thumbnail(7) == opened(small).thumbnail(7)
    assert 2 not in found._items
    with pytest.raises(UnknownItemError):
        found.item(2)


def segment_of(folder, first, count, size=4):
    """Write a segment of items that are told apart by their ids."""
    ids = first + np.arange(count)
    vectors = np.repeat(ids[:, None], size, 1).astype(np.float32)
    places = np.stack([np.arange(count) * 3, np.full(count, 3), *np.ones((2, count))], 1)
    pictures = np.repeat(ids % 256, 3).astype(np.uint8)
    digests = np.repeat(ids[:, None] % 256, 16, 1).astype(np.uint8)
    block = Block(ids, vectors, pictures, places.astype(np.int64), digests, {})
    classes = [(f"class{id % 3}",) for id in ids]
    names, columns = [f"item {id}" for id in ids], {"number": ids.tolist()}
    return write_segment(folder, ids, size, names, classes, columns, [block])


def test_a_hundred_small_changes_leave_few_segments_and_write_little(small, tmp_path, no_fsync):
    folder = IndexFolder(tmp_path)
    manifest = replace(IndexFolder(small).manifest(), next_id=0, segments=(), files={})
    manifest = replace(manifest, model={**manifest.model, "embedding_size": 4})
    draws, known, written = np.random.default_rng(0), set(), 0
    for change in range(100):
        count = int(draws.integers(1, 6))
        segments = (*manifest.segments, segment_of(folder, manifest.next_id, count))
        known |= {manifest.next_id + number for number in range(count)}
        manifest = replace(manifest, segments=segments, next_id=manifest.next_id + count)
        gone = draws.choice(sorted(known), 1) if change % 5 == 4 else np.zeros(0, dtype=np.int64)
        known -= set(gone.tolist())
        after = compacted(folder, manifest, Items(folder, manifest), gone)
        written += sum(each.count for each in after if each not in segments)
        manifest = replace(manifest, segments=after)
        assert len(after) <= math.log2(len(known)) + 1
        assert sum(each.count for each in after) == len(known)
    items = Items(folder, manifest)
    assert items.ids.tolist() == sorted(known)
    # Additions write an item at most log2(n) times; each removal at most all of them.
    assert written <= (math.log2(len(known)) + 20) * manifest.next_id
    for id, segment, row in items:
        assert segment.item(row).name == f"item {id}"
        assert segment.item(row).class_names == (f"class{id % 3}",)
        assert segment.item(row).columns == {"number": id}
        assert segment.vectors[row].tolist() == [id] * 4
        assert segment.digests[row].tolist() == [id % 256] * 16
        assert segment._kept(row) == bytes([id % 256]) * 3
        assert items.find(id) == (segment, row)


def test_compacting_an_index_without_remains_changes_nothing(small, tmp_path, monkeypatch):
    more = photos(tmp_path / "more", 1, first=50)
    with full_disk(monkeypatch):
        add(small, more)
    before = contents(small / ".building")
    assert before
    folder = IndexFolder(small)
    with opened(small) as catalogue:
        compact_index(small, quiet=True)
        assert not catalogue.is_outdated()
    named = {*folder.manifest().files, "index.json", "card.md", "skipped.txt", ".written"}
    found = contents(small)
    compact_index(small, quiet=True)
    assert contents(small) == found
    assert {str(path.relative_to(small)) for path in found.keys() - before.keys()} == named
    assert before.items() <= found.items()
    monkeypatch.setattr(embedding.BatchEmbedder, "embed", lambda *_: pytest.fail("it embeds"))
    assert "embedded earlier" in add(small, more).lines[0]


def test_a_removal_deletes_what_a_killed_addition_has_kept(small, tmp_path, monkeypatch):
    with full_disk(monkeypatch):
        add(small, photos(tmp_path / "more", 1, first=50))
    assert (small / ".building").is_dir()
    remove(small, 0)
    assert not (small / ".building").exists()


class Steps:
    """Calls something at one of the file operations below a folder; counts them."""

    def __init__(self):
        self.events, self.folder, self.at, self.act, self.count = (), "", -1, None, 0
        sys.addaudithook(self)  # stays for ever, and does nothing without a folder

    def __call__(self, event, arguments):
        if not self.folder or event not in self.events:
            return
        path = str(arguments[0])
        if not path.startswith(self.folder) or path.endswith(".lock"):
            return
        self.count += 1
        if self.count == self.at + 1:
            self.folder = ""
            self.act()

    def run(self, folder, events, change, at=-1, act=None):
        self.events, self.at, self.act, self.count = events, at, act, 0
        self.folder = str(folder)
        try:
            change()
        finally:
            self.folder = ""
        return self.count


STEPS = Steps()


def no_power():
    raise SystemError("no power")


def test_a_change_that_breaks_off_at_any_step_leaves_the_index_before_or_after(
    small, tmp_path, no_fsync
):
    name, events = "class1/4.jpg", ("os.rename", "os.remove")
    marks = traces(small, name)
    change = lambda folder: remove(folder, name)  # noqa: E731
    trial = shutil.copytree(small, tmp_path / "trial")
    number = STEPS.run(trial, events, lambda: change(trial))
    assert number > 15
    sizes, remains = [], set()
    for step in range(number):
        trial = shutil.copytree(small, tmp_path / f"trial{step}")
        with pytest.raises(SystemError, match="no power"):
            STEPS.run(trial, events, lambda: change(trial), step, no_power)  # noqa: B023
        found = IndexFolder(trial)
        manifest, items = found.reading(lambda m: Items(IndexFolder(trial), m))  # noqa: B023
        found.check(manifest, everything=True)
        sizes.append(len(items.ids))
        assert sizes[-1] == manifest.num_items
        if sizes[-1] == 11 or step % 5 == 0:
            remains |= files_with(trial, marks) if sizes[-1] == 11 else set()
            compact_index(trial, quiet=True)
            assert bool(files_with(trial, marks)) == (sizes[-1] == 12)
    assert sizes == sorted(sizes, reverse=True)
    assert set(sizes) == {11, 12}
    assert remains  # the files of the old index are deleted last


def test_a_reader_sees_the_old_index_or_the_new_one_whenever_a_removal_comes(
    small, tmp_path, no_fsync
):
    number = STEPS.run(small, ("open",), lambda: opened(small))
    assert number > 10
    sizes = set()
    for step in range(0, number, 3):
        trial = shutil.copytree(small, tmp_path / f"trial{step}")
        found = []
        STEPS.run(
            trial,
            ("open",),
            lambda: found.append(opened(trial)),  # noqa: B023
            step,
            lambda: remove(trial, 4),  # noqa: B023
        )
        sizes.add(len(found[0]))
        ids = set(names_of(found[0]).values())
        hits = found[0].search(np.eye(1, 32, dtype=np.float32), 50)[0]
        assert {hit.item.id for hit in hits} == ids == set(found[0].map().ids.tolist())
        assert all(found[0].thumbnail(id) for id in ids)
    assert sizes <= {11, 12}


@pytest.mark.filterwarnings("ignore:index.json of old is of an older version")
def test_an_index_in_which_an_older_version_has_removed_items_is_compacted(tmp_path):
    old = shutil.copytree(OLD_INDEX, tmp_path / "old")
    folder = IndexFolder(old)
    before = folder.manifest()
    name = names_of(opened(old))
    gone = next(each for each, id in name.items() if id == 5)
    marks = traces(old, gone)
    removed = folder.new_name("removed")
    np.save(folder.path(removed), np.array([5], dtype="<i8"))
    words = json.loads((old / "index.json").read_text())
    made = read_map(path := folder.path(before.map))
    left = made.ids != 5
    write_map(path, replace(made, ids=made.ids[left], points=made.points[left]))
    words["files"] |= {name: folder.file_facts(name) for name in (removed, before.map)}
    words.update(removed=removed, num_items=before.num_items - 1)
    (old / "index.json").write_text(json.dumps(words))
    assert len(opened(old)) == before.num_items - 1
    assert files_with(old, marks)
    compact_index(old, quiet=True)
    assert files_with(old, marks) == set()
    assert names_of(opened(old)) == {each: id for each, id in name.items() if id != 5}
    assert folder.manifest().removed is None
    assert folder.manifest().next_id == before.next_id


@pytest.mark.parametrize(("kind", "gone"), [("thumbnails", 0), ("vectors", 12)])
def test_damage_is_not_copied_under_a_new_checksum(small, tmp_path, monkeypatch, kind, gone):
    """Neither into a segment that is written anew nor, of one that stays, into the store."""
    add(small, photos(tmp_path / "more", 2, first=50))
    monkeypatch.setattr(index_folder, "SMALL", 0)  # such files are not read when opened
    damage(small / getattr(IndexFolder(small).manifest().segments[0], kind))
    before = (small / "index.json").read_bytes()
    with pytest.raises(DamagedIndexError, match=f"{kind}-.* does not match its checksum"):
        remove(small, gone)
    assert (small / "index.json").read_bytes() == before


def test_ids_that_do_not_ascend_are_refused(small):
    folder = IndexFolder(small)
    manifest = folder.manifest()
    path = folder.path(manifest.segments[0].places)
    places = np.load(path)
    for wrong in (places[5, 4], -1, manifest.next_id):
        changed = places.copy()
        changed[11 if wrong > 5 else 0, 4] = wrong
        np.save(path, changed)
        with pytest.raises(DamagedIndexError, match="must ascend"):
            Items(folder, manifest)

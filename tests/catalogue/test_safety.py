"""Files of others beside an index, runs and photos are never changed, and no path is shown."""

import os
import shutil
from pathlib import Path

import pytest
from glyph_catalogue import (
    OLD_INDEX,
    add,
    build,
    contents,
    names_of,
    opened,
    photos,
    remove,
    write_photo,
)

from weiss.catalogue import DamagedIndexError, building, compact_index
from weiss.catalogue.index_folder import IndexFolder

MINE = (
    "trip-20230405/photo.txt",
    "notes-20240101.txt",
    "items-20240101.json",
    "model-20240101/mine.txt",
    "map-20240101.npz",
)


def put(folder):
    for name in MINE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")


def test_a_folder_that_somebody_has_filled_is_refused_and_stays_as_it_was(lost_run, tmp_path):
    folder = tmp_path / "mine"
    put(folder)
    before = contents(folder)
    with pytest.raises(ValueError, match="--out must be new, empty or an index"):
        build(lost_run, photos(tmp_path / "photos"), folder)
    assert contents(folder) == before
    (folder / "index.json").write_text("{}")
    with pytest.raises(ValueError, match="--out must be new, empty or an index"):
        build(lost_run, tmp_path / "photos", folder, replace_old=True)
    assert contents(folder).keys() - before.keys() == {folder / "index.json"}


def test_what_somebody_puts_into_an_index_folder_outlives_every_change(index, lost_run, tmp_path):
    put(index)
    (index / ".building").mkdir()
    (index / ".building" / "mine.txt").write_text("mine")
    remove(index, 0)
    add(index, photos(tmp_path / "photos", 2))
    build(lost_run, tmp_path / "photos", index, replace_old=True)
    remove(index, "class0/0.jpg")
    for name in (*MINE, ".building/mine.txt"):
        assert (index / name).read_text() == "mine"


def test_a_note_that_was_tampered_with_deletes_nothing_of_others(index, tmp_path):
    (tmp_path / "vectors-12345678.npy").write_text("mine")
    (index / "letters.txt").write_text("mine")
    (index / "map-12345678.npz").symlink_to(tmp_path / "vectors-12345678.npy")
    with (index / ".written").open("a") as note:
        note.write("../vectors-12345678.npy\nletters.txt\nmap-12345678.npz\n..\n.\n")
    remove(index, 0)
    assert (tmp_path / "vectors-12345678.npy").read_text() == "mine"
    assert (index / "letters.txt").read_text() == "mine"


@pytest.mark.parametrize("name", [".index.json.lock", ".written", ".building"])
def test_no_change_writes_through_a_link_of_a_forged_index(index, lost_run, tmp_path, name):
    mine, old = tmp_path / "mine", shutil.copytree(OLD_INDEX, tmp_path / "old")
    more = photos(tmp_path / "photos", 2)
    mine.mkdir()
    (mine / "plan.json").write_text("mine")
    for folder in (index, old):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(mine if name == ".building" else mine / "plan.json")
    changes = [
        lambda: add(index, more),
        lambda: remove(index, 0),
        lambda: compact_index(index, quiet=True),
        lambda: build(lost_run, more, index, replace_old=True),
        lambda: IndexFolder(old).verify(),
    ]
    for change in changes:
        with pytest.raises(DamagedIndexError, match=f"{name} of the index must not be a link"):
            change()
    assert {path.name: path.read_text() for path in mine.iterdir()} == {"plan.json": "mine"}


def test_a_model_whose_copy_was_killed_leaves_nothing(index):
    name = IndexFolder(index).new_name("model")
    (index / name).mkdir()
    (index / name / ".model.safetensors.0123abcd.tmp").write_bytes(b"half")
    compact_index(index, quiet=True)
    assert not (index / name).exists()


def test_a_name_is_on_the_disk_before_its_file(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda file: sizes.append(os.fstat(file).st_size))
    assert len(IndexFolder(tmp_path).new_name("map")) + 1 == sizes[0]


def test_an_index_is_never_its_run_or_its_images_nor_in_or_around_them(lost_run, tmp_path):
    folder = photos(tmp_path / "photos")
    (tmp_path / "link").symlink_to(folder)
    outs = [lost_run, lost_run / "index", lost_run.parent, folder, folder / "index", tmp_path]
    for out in [*outs, tmp_path / "link" / "index"]:
        before = contents(tmp_path) | contents(lost_run)
        with pytest.raises(ValueError, match="--out must be a folder of its own"):
            build(lost_run, folder, out, replace_old=out is folder)
        assert contents(tmp_path) | contents(lost_run) == before


def test_an_out_that_is_a_file_is_refused_in_words(lost_run, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="--out must be a folder; .*file is a file"):
        build(lost_run, photos(tmp_path / "photos"), tmp_path / "file")


def test_what_was_refused_leaves_no_folder_and_an_empty_one_may_be_used(lost_run, tmp_path):
    (tmp_path / "photos" / "a").mkdir(parents=True)
    (tmp_path / "photos" / "a" / "1.jpg").write_bytes(b"x")
    with pytest.raises(ValueError, match="at least one image"):
        build(lost_run, tmp_path / "photos", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="at least one image"):
        build(lost_run, tmp_path / "photos", tmp_path / "empty")
    assert not os.listdir(tmp_path / "empty")
    write_photo(tmp_path / "photos" / "a" / "2.jpg", 0)
    assert build(lost_run, tmp_path / "photos", tmp_path / "empty").num_items == 1


def test_an_index_that_another_makes_in_the_meantime_is_not_replaced(
    lost_run, tmp_path, monkeypatch
):
    ours, theirs = photos(tmp_path / "ours", 3), photos(tmp_path / "theirs", 5)
    real = building.open_collection

    def slowly(data, **options):
        if data == ours:
            build(lost_run, theirs, tmp_path / "index")
        return real(data, **options)

    monkeypatch.setattr(building, "open_collection", slowly)
    with pytest.raises(ValueError, match="must not hold an index yet; it does"):
        build(lost_run, ours, tmp_path / "index")
    assert len(opened(tmp_path / "index")) == 5


def listed(folder):
    """Write images and a list of them: two of nine rows can be indexed."""
    for name in ("nearby_1/a.jpg", "nearby_1/b.jpg", "nearby_2/c.jpg"):
        whole = write_photo(folder / name, len(name)).read_bytes()
    for name, content in {"bad": b"?", "empty": b"", "half": whole[: len(whole) // 2]}.items():
        (folder / "nearby_1" / f"{name}.jpg").write_bytes(content)
    rows = [
        ("a.jpg", "one"),
        ("a.jpg", "two"),
        ("b.jpg", ""),
        ("nowhere.jpg", "one"),
        ("bad.jpg", "one"),
        ("empty.jpg", "one"),
        ("half.jpg", "one"),
        (str(folder / "nearby_2" / "c.jpg"), "two"),
        (str(folder / "nearby_2" / "gone.jpg"), "two"),
    ]
    lines = ["path,label", *(f"{path},{label}" for path, label in rows)]
    (folder / "nearby_1" / "list.csv").write_text("\n".join(lines))
    return folder / "nearby_1" / "list.csv"


def test_every_row_that_is_left_out_is_listed_by_its_name_and_no_place_is_told(
    lost_run, tmp_path, capsys
):
    index = tmp_path / "index"
    done = building.build_index(lost_run, listed(tmp_path), index, device="cpu", num_workers=0)
    assert sorted(line.partition(" (image file")[0] for line in done.skipped) == [
        "a.jpg: is listed more than once",
        "b.jpg: has no label",
        "bad.jpg: is no image that Pillow can read",
        "empty.jpg: is empty (zero bytes)",
        "gone.jpg: does not exist",
        "half.jpg: cannot be decoded",
        "nowhere.jpg: does not exist",
    ]
    assert (index / "skipped.txt").read_text().splitlines() == list(done.skipped)
    said = capsys.readouterr().out
    assert "7 could not be read and are left out" in said
    assert "empty.jpg: is empty" in said
    assert "- 7 files could not be read" in (index / "card.md").read_text()
    assert sorted(names_of(opened(index)).values()) == [0, 1]
    places = ("nearby_1", "nearby_2", "/gone", tmp_path, tmp_path.parent, Path.home())
    for path, content in contents(index).items():
        assert not [place for place in places if str(place).encode() in content], path


def test_what_is_left_out_is_remembered_through_every_change(lost_run, tmp_path):
    index = tmp_path / "index"
    build(lost_run, listed(tmp_path), index)
    more = photos(tmp_path / "more", 2)
    (more / "class1" / "half.jpg").write_bytes(b"?")
    done = add(index, more)
    assert done.skipped == ("class1/half.jpg: is no image that Pillow can read",)
    remove(index, "class0/0.jpg")
    lines = (index / "skipped.txt").read_text().splitlines()
    assert len(lines) == 8
    assert lines[-1] == done.skipped[0]
    assert "- 8 files could not be read" in (index / "card.md").read_text()
    # Repaired, it is no longer skipped.
    write_photo(more / "class1" / "half.jpg", 4)
    add(index, more)
    assert "class1/half.jpg" in names_of(opened(index))
    assert (index / "skipped.txt").read_text().splitlines() == lines[:-1]

"""Images in object storage: in memory, and in an S3 server of this machine."""

import errno
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny import write_stripes

from weiss._base.checks import UntrustedError
from weiss._base.images import BadImageError
from weiss.data import Assembly, BadImagesError, folder_remarks, open_table
from weiss.data.object_storage import Objects, is_address, kept_copy, open_storage
from weiss.data.sources import Files
from weiss.runs import Run, evaluate_run, recipe_from, to_toml
from weiss.runs.experiment import open_data, refuse_addresses

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def memory():
    """An empty storage in memory."""
    storage = fsspec.filesystem("memory")
    storage.store.clear()
    yield storage
    storage.store.clear()


def put(storage, folder, place):
    """Copy the files of a folder into a storage."""
    for path in sorted(folder.rglob("*.*")):
        storage.pipe(f"{place}/{path.relative_to(folder).as_posix()}", path.read_bytes())


@pytest.fixture
def stripes(tmp_path):
    return write_stripes(tmp_path / "stripes", num_classes=4, per_class=3)


def facts(table):
    names = [table.class_names[label] for label in table.labels]
    items = [table.source.name(row) for row in range(len(table))]
    return sorted(zip(items, names, table.splits, strict=True))


def test_a_folder_there_is_the_folder_here(memory, stripes):
    put(memory, stripes, "bucket/photos")
    for nested in (False, True):
        how = Assembly(nested=nested)
        here, there = open_table(stripes, how=how), open_table("memory://bucket/photos", how=how)
        assert facts(here) == facts(there)
        for row in range(0, len(here), 5):
            np.testing.assert_array_equal(here.source.read(row), there.source.read(row))
    streamed = open_table("memory://bucket/photos", copy=False)
    assert isinstance(streamed.source, Objects)
    assert isinstance(there.source, Files)
    np.testing.assert_array_equal(streamed.source.read(4), there.source.read(4))


def test_splits_depth_and_what_is_not_taken_are_as_in_a_folder(memory, stripes, tmp_path):
    for split, few in (("train", "class0"), ("Testing", "class1")):
        (tmp_path / "parts" / split).mkdir(parents=True)
        (stripes / few).rename(tmp_path / "parts" / split / few)
    (tmp_path / "parts" / "train" / "class0" / "deep").mkdir()
    (tmp_path / "parts" / "train" / "class0" / "0.png").rename(
        tmp_path / "parts" / "train" / "class0" / "deep" / "0.png"
    )
    (tmp_path / "parts" / "notes.txt").write_text("no image")
    (tmp_path / "parts" / ".hidden.png").write_text("no image")
    put(memory, tmp_path / "parts", "parts")
    for nested in (False, True):
        how = Assembly(nested=nested, min_images=1)
        here = open_table(tmp_path / "parts", how=how)
        assert facts(here) == facts(open_table("memory://parts", how=how))
    remarks = folder_remarks("memory://parts")
    assert remarks == folder_remarks(tmp_path / "parts", nested=True)
    assert remarks[0].endswith("no images: 1 hidden, 1 .txt")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_lists_there_or_here_name_objects_by_path_or_address(memory, stripes, tmp_path, kind):
    put(memory, stripes, "bucket/photos")
    names = sorted(path.relative_to(stripes).as_posix() for path in stripes.rglob("*.png"))
    full = [f"memory://bucket/photos/{name}" for name in names]
    labels = [name.split("/")[0] for name in names]
    tables = []
    for number, paths in enumerate((names, full)):
        place = tmp_path / f"list{number}.{kind}"
        if kind == "csv":
            rows = [f"{path},{label}" for path, label in zip(paths, labels, strict=True)]
            place.write_text("\n".join(["path,label", *rows]))
        else:
            pa = pytest.importorskip("pyarrow")
            pytest.importorskip("pyarrow.parquet").write_table(
                pa.table({"path": paths, "label": labels}), place
            )
        memory.pipe(f"bucket/photos/{place.name}", place.read_bytes())
        tables.append(open_table(f"memory://bucket/photos/{place.name}"))
        tables.append(open_table(place, root="memory://bucket/photos"))
    assert all(facts(table) == facts(open_table(stripes)) for table in tables)
    with pytest.raises(FileNotFoundError, match="--root s3://bucket"):
        open_table(tmp_path / f"list1.{kind}")
    with pytest.raises(ValueError, match="must lie below memory://bucket/other, by a plain name"):
        open_table(tmp_path / f"list1.{kind}", root="memory://bucket/other")


def test_a_copy_is_kept_until_an_object_changes(memory, stripes, monkeypatch):
    put(memory, stripes, "photos")
    first = open_table("memory://photos")
    place = first.source.file(0)
    read = type(memory).cat_file
    asked = []

    def counted(self, path, *rest, **options):
        asked.append(path)
        return read(self, path, *rest, **options)

    monkeypatch.setattr(type(memory), "cat_file", counted)
    again = open_table("memory://photos")
    assert (again.source.root, asked) == (first.source.root, [])
    place.unlink()  # as if the copy had been interrupted
    assert open_table("memory://photos").source.file(0).is_file()
    assert len(asked) == 1
    Image.new("RGB", (40, 30), "red").save(stripes / "class0" / "0.png")
    put(memory, stripes / "class0", "photos/class0")
    changed = open_table("memory://photos")
    assert changed.source.root != first.source.root
    assert changed.source.read(0).shape == (30, 40, 3)


def test_what_is_not_there_or_leads_out_is_named(memory, stripes, tmp_path):
    put(memory, stripes, "photos")
    source = Objects("memory://photos", ["class0/0.png", "class0/gone.png"])
    files, errors = kept_copy(source)
    assert files.file(0).is_file()
    assert errors == {1: "class0/gone.png: does not exist"}
    with pytest.raises(BadImageError, match="gone.png: does not exist"):
        source.read(1)
    for name in (
        "../x.png",
        "/x.png",
        "a//x.png",
        "",
        "file:///etc/x.png",
        "memory://photos/" * 2 + "x.png",
    ):
        with pytest.raises(ValueError, match="by a plain name"):
            Objects("memory://photos", [name])
    names = [f"class{c}/{n}.png" for c in range(4) for n in range(3)]
    rows = "\n".join(f"{name},{name[:6]}" for name in [*names, "class0/gone.png"])
    (tmp_path / "list.csv").write_text(f"path,label\n{rows}")
    with pytest.raises(BadImagesError, match="1 of 13 are not"):
        open_table(tmp_path / "list.csv", root="memory://photos")
    left_out = []
    how = Assembly(skip_bad=True, on_left_out=lambda names, why: left_out.extend(names))
    assert len(open_table(tmp_path / "list.csv", root="memory://photos", how=how)) == 12
    assert left_out == ["class0/gone.png"]
    with pytest.raises(FileNotFoundError, match="it holds nothing"):
        open_table("memory://nowhere/photos")
    with pytest.raises(FileNotFoundError, match="a list of images must exist"):
        open_table("memory://nowhere/list.csv")
    memory.pipe("loose/1.png", b"")
    with pytest.raises(ValueError, match="one subfolder a class below memory://loose"):
        open_table("memory://loose")


def test_a_storage_that_does_not_answer_stops_and_leaves_no_image_out(
    memory, stripes, tmp_path, monkeypatch
):
    put(memory, stripes, "photos")

    def broken(self, path, *rest, **options):
        raise TimeoutError("no answer")

    monkeypatch.setattr(type(memory), "cat_file", broken)
    with pytest.raises(ConnectionError, match="the storage of memory://photos must answer"):
        open_table("memory://photos", how=Assembly(skip_bad=True))


@pytest.mark.parametrize("call", ["cat_file", "find", "info", "open"])
def test_a_storage_that_refuses_stops_and_leaves_no_image_out(
    memory, stripes, tmp_path, monkeypatch, call
):
    put(memory, stripes, "photos")
    rows = "\n".join(f"class{c}/{n}.png,{c}" for c in range(4) for n in range(3))
    memory.pipe("photos/list.csv", f"path,label\n{rows}\n".encode())
    real, asked = getattr(type(memory), call), []

    def expired(self, path, *rest, **options):
        asked.append(path)
        if len(asked) > 1 or call in ("find", "open"):
            raise PermissionError("The provided token has expired.")
        return real(self, path, *rest, **options)

    monkeypatch.setattr(type(memory), call, expired)
    data = "memory://photos" if call == "find" else "memory://photos/list.csv"
    with pytest.raises(ConnectionError, match="must answer; it did not: PermissionError: The prov"):
        open_table(data, how=Assembly(skip_bad=True))
    if call == "cat_file":
        with pytest.raises(ConnectionError, match="The provided token has expired"):
            Objects("memory://photos", ["class0/0.png"]).read(0)


def test_a_full_disk_stops_and_a_name_that_no_file_can_have_is_left_out(
    memory, stripes, tmp_path, monkeypatch
):
    put(memory, stripes, "photos")
    # Storages have no folders: a name may begin with the whole of another one.
    memory.pipe("photos/class9/0.png/below.png", b"")
    memory.store["/photos/class9/0.png"] = memory.store["/photos/class0/0.png"]
    long, names = "class0/" + "x" * 300, ["class9/0.png", "class9/0.png/below.png", "class0/1.png"]
    memory.pipe(f"photos/{long}.png", b"")
    files, errors = kept_copy(Objects("memory://photos", [*names, f"{long}.png"]))
    assert sorted(errors) in ([0, 3], [1, 3])  # one of both can be here
    assert errors[3].startswith(f"{long}.png: OSError: [Errno {errno.ENAMETOOLONG}]")
    assert files.file(2).is_file()

    def full(self, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left on device"):
        open_table("memory://photos", how=Assembly(skip_bad=True, min_images=1, nested=True))


def test_other_addresses_and_a_missing_library_are_refused(monkeypatch):
    assert is_address("ftp://host/photos")
    for address in ("ftp://host/a", "file:///etc", "s3:/bucket", "s3://", "memory://a::s3://b"):
        with pytest.raises(ValueError, match="an address must be one of s3://NAME/"):
            open_storage(address)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ImportError, match=r"pip install 'weiss\[storage\]'"):
        open_table("s3://bucket/photos")


def test_a_run_of_others_opens_no_address_without_trust(memory, stripes, tmp_path):
    put(memory, stripes, "photos")
    recipe = recipe_from("memory://photos", ["train.device=cpu"])
    assert recipe.data.name == "memory://photos"
    assert len(open_data(recipe)) == 12  # training opens what its recipe names
    theirs = Run(tmp_path / "run")
    memory.store.clear()  # whoever asked there would find nothing, and say so
    for data in ({"name": "memory://photos"}, {"name": "a.csv", "root": "memory://photos"}):
        theirs.write_recipe(to_toml({**recipe.as_dict(), "data": data}))
        with pytest.raises(UntrustedError, match="must not open addresses by itself"):
            evaluate_run(theirs.folder, device="cpu", overrides=["evaluate.size=16"])
        with pytest.raises(UntrustedError, match="--trust"):
            refuse_addresses(theirs)
        refuse_addresses(Run(theirs.folder, trust=True))
        refuse_addresses(theirs, recipe_from("glyphs"))  # whose data the caller has named

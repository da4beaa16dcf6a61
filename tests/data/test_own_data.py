"""Your own data: folders, lists, arrays, Hugging Face data sets; and what can be wrong."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from miniature import write_image

from weiss.data import (
    Assembly,
    BadImagesError,
    Pipeline,
    folder_remarks,
    from_arrays,
    from_folder,
    from_hub,
    from_list,
    open_table,
    own_data,
)
from weiss.data.content import digest_of_source
from weiss.data.sources import Files, HubImages

ALL = Assembly(split="all")


@pytest.fixture
def photos(tmp_path):
    root = tmp_path / "photos"
    for c, name in enumerate(["b10", "b2", "a", "ä", "e"]):
        for i in range(3):
            write_image(root / name / ("deep" if i == 2 else "") / f"{i}.JPG", c, i)
    (root / "a" / "notes.txt").write_text("no image")
    (root / "a" / ".hidden.jpg").write_text("no image")
    (root / ".git").mkdir()
    return root


def listed(folder, *lines, name="l.csv", encoding="utf-8"):
    """Write a list of images, line by line."""
    path = folder / name
    path.write_text("\n".join(lines), encoding=encoding)
    return path


def write_parquet(path, /, **columns):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_a_folder_has_one_class_a_subfolder_and_a_fifth_of_them_tests(photos, monkeypatch):
    table = from_folder(photos)
    monkeypatch.chdir(photos)
    assert table.name == from_folder(".").name == "photos"
    assert table.class_names == ("a", "b10", "b2", "e", "ä")
    assert table.sizes() == {"train": (9, 3), "test": (6, 2)}
    assert table.shared_classes() == []
    assert table.source.file(2) == photos / "a" / "deep" / "2.JPG"


def test_nested_folders_are_classes_named_by_their_path(photos, tmp_path):
    for i in range(2):
        write_image(photos / "a" / "deep" / f"more{i}.jpg", 2, 5 + i)
    table = from_folder(photos / "..", replace(ALL, nested=True, min_images=1))
    by_path = {"photos/a", "photos/a/deep", "photos/b10", "photos/b10/deep"}
    assert by_path < set(table.class_names)
    assert dict(zip(table.class_names, table.class_sizes(), strict=True))["photos/a/deep"] == 3
    (photos / "a" / "deep").rename(photos / "a" / "deeper")
    root = tmp_path / "split"
    for split, name in {"train": "a", "test": "b10"}.items():
        (root / split).mkdir(parents=True)
        (photos / name).rename(root / split / name)
    split = from_folder(root, Assembly(nested=True, min_images=1))
    assert split.class_names == ("a", "a/deeper", "b10", "b10/deep")
    assert split.sizes() == {"train": (5, 2), "test": (3, 2)}


def test_files_that_are_not_taken_are_counted_by_kind_and_finer_folders_are_mentioned(photos):
    for name in ("clip.MOV", "clip2.mov", "Thumbs.db", "README", "b10/list.csv", ".git/config"):
        (photos / name).write_text("no image")
    others, depth = folder_remarks(photos)
    assert "2 .mov" in others
    for kind in ("1 .txt", "1 .db", "1 .csv", "1 hidden", "1 without a suffix"):
        assert kind in others
    assert "5 uppermost" in depth
    assert "10 folders" in depth
    assert "--nested" in depth
    assert folder_remarks(photos, nested=True) == [others]
    taken = map(str, from_folder(photos, ALL).source.paths)
    assert all(name.endswith(".JPG") for name in taken)


def test_a_folder_without_anything_else_has_no_remarks(tmp_path):
    for split, name in (("train", "a"), ("test", "b")):
        write_image(tmp_path / split / name / "1.jpg", 0, 0)
    assert folder_remarks(tmp_path) == []


def test_folders_named_like_splits_are_splits(photos, tmp_path):
    root = tmp_path / "split"
    for split, names in {"train": ["b10", "b2", "a"], "val": ["ä"], "test": ["e"]}.items():
        for name in names:
            (root / split).mkdir(parents=True, exist_ok=True)
            (photos / name).rename(root / split / name)
    assert from_folder(root).sizes() == {"train": (9, 3), "valid": (3, 1), "test": (3, 1)}


def test_classes_may_be_called_train_or_nan(tmp_path):
    for c, name in enumerate(["train", "test", "Nan"]):
        for i in range(2):
            write_image(tmp_path / name / f"{i}.jpg", c, i)
    assert from_folder(tmp_path, ALL).class_names == ("Nan", "test", "train")


def test_links_are_followed_but_not_in_circles(photos):
    (photos / "z").symlink_to(photos / "a")
    (photos / "a" / "again").symlink_to(photos / "a")
    (photos / "a" / "beside").symlink_to(photos / "a" / "deep")
    table = from_folder(photos, ALL)
    assert "z" in table.class_names
    assert [table.source.name(row) for row in range(3)] == ["a/0.JPG", "a/1.JPG", "a/beside/2.JPG"]
    assert table.class_sizes()[0] == 3
    (photos / "e" / "nowhere.jpg").symlink_to(photos / "gone")
    with pytest.raises(BadImagesError, match=r"(?s)1 of 19.*nowhere.jpg: cannot be opened"):
        Pipeline(from_folder(photos, ALL), num_workers=0)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_lists_agree_whatever_their_format(photos, tmp_path, suffix):
    paths = [f"photos/{name}/{i}.JPG" for i in (0, 1) for name in "ae"]
    columns = {"path": paths, "label": ["a", "e"] * 2, "split": ["train", "test"] * 2}
    if suffix == "parquet":
        path = write_parquet(tmp_path / "l.parquet", **columns)
    else:
        rows = [("Path", "label ", "split"), *zip(*columns.values(), strict=True)]
        lines = map(("\t" if suffix == "tsv" else ",").join, rows)
        path = listed(tmp_path, *lines, name=f"l.{suffix}")
    table = from_list(path)
    assert table.sizes() == {"train": (2, 1), "test": (2, 1)}
    assert table.class_names == ("a", "e")
    assert table.source.file(0) == photos / "a" / "0.JPG"
    assert from_list(path, Assembly(split="stratified", held_out=0.5)).sizes()["test"] == (2, 2)


def test_lists_of_other_programs_are_read(tmp_path):
    # Excel's byte order mark, quotes, a comma in a name, an absolute path, another root.
    write_image(tmp_path / "x" / "red, blue.jpg", 0)
    write_image(tmp_path / "y.jpg", 0)
    rows = ('"red, blue.jpg",1', f"{tmp_path}/y.jpg,1")
    path = listed(tmp_path, "path,label", *rows, encoding="utf-8-sig")
    table = from_list(path, ALL, root=tmp_path / "x")
    assert table.class_names == ("1",)
    assert [table.source.file(i).name for i in range(2)] == ["red, blue.jpg", "y.jpg"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_several_labels_make_a_multi_label_table(photos, tmp_path, suffix):
    paths = [f"photos/{name}/{i}.JPG" for name in "ae" for i in range(2)]
    labels = [["red", "bird"], ["bird"], ["red"], ["blue", "red"]]
    if suffix == "parquet":
        path = write_parquet(tmp_path / "l.parquet", path=paths, labels=labels)
    else:
        rows = (f"{one},{' | '.join(some)}" for one, some in zip(paths, labels, strict=True))
        path = listed(tmp_path, "path,labels", *rows)
    table = from_list(path, Assembly(split="all", min_images=1))
    assert table.class_names == ("bird", "blue", "red")
    assert table.labels.astype(int).tolist() == [[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]]


def test_query_and_gallery_may_share_classes_with_each_other(photos, tmp_path):
    rows = ["photos/a/0.JPG,a,query", "photos/a/1.JPG,a,gallery"]
    rows += [f"photos/e/{i}.JPG,e,train" for i in range(2)]
    table = from_list(listed(tmp_path, "path,label,split", *rows))
    assert set(table.sizes()) == {"train", "query", "gallery"}


LONG = [2**53] * 2 + [2**53 + 1] * 2  # different, but the same as floats


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([10, 9, 9, 10, 2, 2], ("2", "9", "10")),
        (LONG, (str(2**53), str(2**53 + 1))),
        (["a", "a", "b", "a"], ("a", "b")),
    ],
)
def test_numbers_sort_as_numbers(labels, names):
    how = Assembly(split="all", min_images=1)
    table = from_arrays(np.zeros((len(labels), 4, 4), np.uint8), np.array(labels), how)
    assert table.class_names == names
    assert [names[c] for c in table.labels] == [str(label) for label in labels]


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("10", "9", ("9", "10")),
        ("010", "09", ("010", "09")),  # codes, not numbers
        ("9" * 5000, "10", ("10", "9" * 5000)),  # text, far too long for a number
    ],
)
def test_text_that_is_numbers_sorts_as_numbers(photos, tmp_path, first, second, names):
    labels = {"a": first, "e": second}
    rows = [f"photos/{name}/{i}.JPG,{label}" for name, label in labels.items() for i in range(2)]
    assert from_list(listed(tmp_path, "path,label", *rows), ALL).class_names == names


def test_arrays_and_tensors_of_any_layout_agree():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
    labels = np.array(["x", "y", "y", "x"])
    first = from_arrays(pixels, labels, ALL)
    second = from_arrays(torch.from_numpy(pixels).permute(0, 3, 1, 2), labels.tolist(), ALL)
    np.testing.assert_array_equal(first.source.pixels, second.source.pixels)
    assert first.labels.tolist() == second.labels.tolist() == [0, 1, 1, 0]
    assert open_table((pixels, labels), how=ALL).class_names == ("x", "y")


def hub(images, labels, names, column="image"):
    """Return a Hugging Face data set of image files, or of their bytes."""
    from datasets import ClassLabel, Dataset, Features, Image

    features = Features({column: Image(), "label": ClassLabel(names=names)})
    return Dataset.from_dict({column: images, "label": labels}, features=features)


def test_a_hugging_face_data_set_is_read_with_its_class_names(photos):
    from datasets import DatasetDict

    paths = [str(photos / name / f"{i}.JPG") for name in "ae" for i in range(2)]
    dataset = hub(paths, [2, 2, 0, 0], ["cat", "dog", "cow"], "photo")
    table = open_table(dataset.with_format("torch"), how=ALL)  # as another library uses it
    assert table.class_names == ("cat", "cow")
    assert table.labels.tolist() == [1, 1, 0, 0]
    np.testing.assert_array_equal(table.source.read(3), np.asarray(dataset[3]["photo"]))
    assert table.source.take(np.array([3])).name(0) == "row 3"
    parts = DatasetDict(train=dataset.select([0, 1]), test=dataset.select([2, 3]))
    assert from_hub(parts).sizes() == {"train": (2, 1), "test": (2, 1)}
    with pytest.raises(ValueError, match="label_column must be one of .*Did you mean 'label'"):
        from_hub(dataset, label_column="lable")
    with pytest.raises(ValueError, match="image_column must be named .*since 0 columns qualify"):
        from_hub(dataset.remove_columns("photo"))
    with pytest.raises(ValueError, match="every row of hub .* NaN; 1 of 4 does not: row 1"):
        from_hub(hub(paths, [0, -1, 0, 0], ["cat"]), ALL)
    with pytest.raises(TypeError, match="streaming=False"):
        open_table(dataset.to_iterable_dataset(), how=ALL)


def test_the_digest_of_hub_data_is_that_of_their_files_and_decodes_nothing(photos, monkeypatch):
    from datasets import Image

    def refuse(*_):
        raise AssertionError("an image was decoded")

    monkeypatch.setattr(Image, "decode_example", refuse)
    files = Files(photos, ["a/0.JPG", "e/0.JPG", "a/1.JPG"])
    paths = [files.file(row) for row in range(3)]

    def digest(images, items=None):
        return digest_of_source(HubImages(hub(images, [0, 0, 0], ["x"]), "image", items))

    found = digest([str(path) for path in paths])
    encoded = [{"bytes": path.read_bytes(), "path": None} for path in paths]
    assert found == digest(encoded) == digest_of_source(files)
    assert digest([str(paths[0]), None, str(paths[2])]) != found
    rows = np.array([2, 0])
    assert digest(encoded, rows) == digest_of_source(files.take(rows))


BAD_LISTS = {
    "columns": ("file,label\na.jpg,1", "columns path and label.*has file, label"),
    "typo": ("path,lable\na.jpg,1", "label is missing. Rename 'lable'"),
    "nan": ("path,label\na.jpg,1\nb.jpg, ", "missing one or NaN; 1 of 2 does not: b.jpg"),
    "twice": ("path,label\na.jpg,1\na.jpg,1", "a path of its own; 1 of 2 does not: a.jpg"),
    "again": ("path,label\na.jpg,1\nb/../a.jpg,1", "a path of its own; .*: b/../a.jpg"),
    "gone": ("path,label\nz.jpg,1", "1 of 1 does not: z.jpg.*--root DIR"),
    "ragged": ("path,label\na.jpg,1,2", "line 2: every row must have the 2"),
    "alone": ("path,label\na.jpg,1\nb.jpg,2", r"2 of 2 do not: 1 \(a.jpg\)"),
    "empty": ("path,label", "l must hold images; found none"),
    "two paths": ("path,label,path\na.jpg,1,b.jpg", "one column 'path'; it has 2"),
    "two labels": ("path,label, Label\na.jpg,1,2", "one column 'label'"),
    "long name": (f"path,label\n{'a' * 9000},1", r"1 of 1 does not: a{200}\.\.\.\. Give"),
    "null": ("path,label\na\0.jpg,1", "1 of 1 does not"),
    "device": ("path,label\n/dev/zero,1", "1 of 1 does not: /dev/zero"),
    "long field": (f"path,label\n{'a' * 200_000},1", "field larger than field limit"),
    "cell": ("path,labels\na.jpg,red|blue\nb.jpg,nan", "row of l .*; 1 of 2 does not: b.jpg"),
    "bytes": ("path,label\n\udcff\udcfe,1", "must be a CSV file in UTF-8"),
}


@pytest.mark.parametrize(("text", "message"), BAD_LISTS.values(), ids=BAD_LISTS)
def test_bad_lists_are_refused_by_row_and_name(tmp_path, text, message):
    for c, name in enumerate(("a.jpg", "b.jpg", "b/c.jpg")):
        write_image(tmp_path / name, c)
    (tmp_path / "l.csv").write_bytes(os.fsencode(text))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        from_list(tmp_path / "l.csv", ALL)


def test_a_parquet_list_takes_no_more_memory_than_it_has_different_values(tmp_path, monkeypatch):
    import pyarrow

    same = pyarrow.DictionaryArray.from_arrays(np.zeros(2000, dtype=np.int32), ["a" * 10**5])
    labels = [None] * 1999 + ["x"]
    bomb = write_parquet(tmp_path / "bomb.parquet", path=same, label=labels)
    columns = own_data._parquet(bomb)  # 200 MB, if each were a copy
    assert len({id(value) for value in columns["path"]}) == 1
    assert columns["label"] == labels
    monkeypatch.setattr(own_data, "MOST_ROWS", 1999)
    with pytest.raises(ValueError, match="at most 1,999 images; it has 2,000 rows"):
        from_list(bomb, ALL)


def test_a_list_that_is_damaged_or_missing_is_refused(tmp_path):
    twice = write_parquet(tmp_path / "l.parquet", path=["a.jpg"], label=["x"], Path=["b.jpg"])
    with pytest.raises(ValueError, match="must have one column 'path'; it has 2"):
        from_list(twice, ALL)
    twice.write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match="must be a Parquet file"):
        open_table(twice)
    with pytest.raises(FileNotFoundError, match="a list of images must exist; .*none.csv"):
        open_table(tmp_path / "none.csv")


def test_splits_that_share_classes_are_refused_unless_allowed(photos, tmp_path):
    path = listed(tmp_path, "path,label,split", "photos/a/0.JPG,a,train", "photos/a/1.JPG,a,test")
    with pytest.raises(ValueError, match="share classes in l.*1 are shared: a.*--shared-classes"):
        from_list(path)
    assert from_list(path, Assembly(shared_classes=True)).shared_classes() == ["a"]


BAD_COLUMNS = [
    ([np.nan, 1.0], None, "not a missing one or NaN"),
    ([1], None, "labels must have one entry for each of the 2 items"),
    ([[0.5, 1], [1, 0]], None, "must be 0 or 1"),
    ([[0, 0], [1, 0]], None, "must have a label"),
    (np.zeros((2, 1, 1)), None, r"shape \(N,\) or \(N, C\)"),
    ([0, 0], ["train", "tset"], "Did you mean 'test'"),
    ([0, 0], ["query", "query"], "has query but no gallery"),
    ([0, 0], ["train"], "splits must have one entry for each of the 2.*got 1"),
    ([0, 0], None, "names none. Add a column 'split'"),
]


@pytest.mark.parametrize(("labels", "splits", "message"), BAD_COLUMNS)
def test_labels_and_splits_without_a_meaning_are_refused(labels, splits, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(np.zeros((2, 4, 4), np.uint8), labels, Assembly(split="given"), splits=splits)


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ([], "one subfolder a class; it has none"),
        (["a", "void/"], "must have images; 1 of 2 does not: void"),
        (["a", ""], "1 lie in .* itself: 0.jpg"),
        (["train/a", "train/b", "val"], "outside of class folders in: val"),
        (["train/a", "test/b", "extra/c"], "these are no splits: extra"),
        (["train/a", "train", "test/b"], "outside of class folders in: train"),
    ],
)
def test_bad_folders_are_refused_with_what_to_do(tmp_path, folders, message):
    for name in folders:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            write_image(tmp_path / name / "0.jpg", 0)
    with pytest.raises(ValueError, match=message):
        from_folder(tmp_path)


def test_a_class_with_one_image_is_refused_accepted_or_left_out(photos):
    for i in (1, 2):
        next((photos / "e").rglob(f"{i}.JPG")).unlink()
    with pytest.raises(
        ValueError, match=r"1 of 5 does not: e \(e/0.JPG\).*min_images=1.*--skip-bad"
    ):
        from_folder(photos)
    assert "e" in from_folder(photos, Assembly(min_images=1)).class_names
    with pytest.warns(UserWarning, match="photos must have at least 2 images; .* left out: e"):
        table = from_folder(photos, Assembly(skip_bad=True))
    assert "e" not in table.class_names


def test_skipping_the_bad_lists_what_it_skipped(tmp_path):
    for name in "abcd":
        write_image(tmp_path / f"{name}.jpg", 0)
    rows = ("a.jpg,1", "b.jpg,1", "c.jpg,", "a.jpg,1", "d.jpg,nan", "gone.jpg,1")
    path = listed(tmp_path, "path,label", *rows)
    with pytest.warns(UserWarning, match="left out") as caught:
        table = from_list(path, Assembly(split="all", skip_bad=True))
    assert len(table) == 2
    said = " ".join(str(warning.message) for warning in caught)
    assert "1 of 6 does not and is left out: gone.jpg" in said
    assert "c.jpg, d.jpg" in said
    assert "path of its own; 1 of 3 does not and is left out: a.jpg" in said


HERE = Path(__file__).parent
NO_DATA = [
    (lambda: open_table("glyph"), "Did you mean 'glyphs'"),
    (lambda: from_folder(HERE / "nowhere"), "a folder of photos must exist"),
    (lambda: open_table([1, 2]), "pair .images, labels.*got list"),
    (lambda: open_table("cub"), "root must be the folder of cub.*weiss data prepare cub"),
    (lambda: open_table("glyphs", how=Assembly("stratified")), "split must not be given for glyph"),
    (lambda: Assembly(split="stratify"), "split must be one of .*Did you mean 'stratified'"),
    (lambda: open_table(HERE, root=HERE), "root must be left out for a folder"),
    (lambda: open_table(HERE, allow_missing=True), "allow_missing is for data sets that have a na"),
]


@pytest.mark.parametrize(("make", "message"), NO_DATA)
def test_anything_else_is_no_data(make, message):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        make()


def test_leaving_out_a_rare_label_keeps_the_item(tmp_path):
    labels = [["a", "r"], ["a", "b"], ["b", "c"], ["b", "c"], ["c"], ["q"]]
    table_of = Assembly(split="all", skip_bad=True).table
    source = from_arrays(np.zeros((6, 4, 4), np.uint8), [0] * 6, ALL).source
    with pytest.warns(UserWarning, match=r"class of toy .*2 of 5 .* left out: q \(image 5\), r"):
        table = table_of("toy", source, labels)
    assert (table.class_names, table.class_sizes().tolist()) == (("a", "b", "c"), [2, 3, 3])
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(ValueError, match="none has. Add images"),
    ):
        table_of("toy", source, list("abcdef"))

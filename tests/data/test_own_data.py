"""Your own data: folders, lists, arrays, Hugging Face data sets; and what can be wrong."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from miniature import write_image

from weiss.data import (
    Assembly,
    BadImagesError,
    Pipeline,
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


def write_csv(path, header, rows, **options):
    with path.open("w", newline="", encoding=options.pop("encoding", "utf-8")) as file:
        writer = csv.writer(file, **options)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def test_a_folder_has_one_class_a_subfolder_and_a_fifth_of_them_tests(photos):
    table = from_folder(photos)
    assert table.name == "photos"
    assert table.class_names == ("a", "b10", "b2", "e", "ä")
    assert table.sizes() == {"train": (9, 3), "test": (6, 2)}
    assert table.shared_classes() == []
    assert table.source.file(2) == photos / "a" / "deep" / "2.JPG"


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


def write_parquet(path, header, rows):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    pq.write_table(pa.table({key: list(value) for key, value in columns.items()}), path)
    return path


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_lists_agree_whatever_their_format(photos, tmp_path, suffix):
    pairs = [("a", "train"), ("e", "test")]
    rows = [(f"photos/{n}/{i}.JPG", n, split) for i in (0, 1) for n, split in pairs]
    path = tmp_path / f"list.{suffix}"
    if suffix == "parquet":
        write_parquet(path, ("path", "label", "split"), rows)
    else:
        delimiter = "\t" if suffix == "tsv" else ","
        write_csv(path, ("Path", "label ", "split"), rows, delimiter=delimiter)
    table = from_list(path)
    assert table.sizes() == {"train": (2, 1), "test": (2, 1)}
    assert table.class_names == ("a", "e")
    assert table.source.file(0) == photos / "a" / "0.JPG"
    assert from_list(path, Assembly(split="stratified", held_out=0.5)).sizes()["test"] == (2, 2)


def test_lists_of_other_programs_are_read(photos, tmp_path):
    # Excel's byte order mark, quotes, a comma in a name, an absolute path, another root.
    write_image(tmp_path / "x" / "red, blue.jpg", 0)
    write_image(tmp_path / "y.jpg", 0)
    rows = [("red, blue.jpg", "1"), (str(tmp_path / "y.jpg"), "1")]
    path = write_csv(tmp_path / "l.csv", ("path", "label"), rows, encoding="utf-8-sig")
    table = from_list(path, ALL, root=tmp_path / "x")
    assert table.class_names == ("1",)
    assert [table.source.file(i).name for i in range(2)] == ["red, blue.jpg", "y.jpg"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_several_labels_make_a_multi_label_table(photos, tmp_path, suffix):
    paths = [f"photos/a/{i}.JPG" for i in range(2)] + [f"photos/e/{i}.JPG" for i in range(2)]
    labels = [["red", "bird"], ["bird"], ["red"], ["blue", "red"]]
    header, is_csv = ("path", "labels"), suffix == "csv"
    cells = map(" | ".join, labels) if is_csv else labels
    write = write_csv if is_csv else write_parquet
    path = write(tmp_path / f"list.{suffix}", header, zip(paths, cells, strict=True))
    table = from_list(path, Assembly(split="all", min_images=1))
    assert table.class_names == ("bird", "blue", "red")
    assert table.labels.astype(int).tolist() == [[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]]


def test_query_and_gallery_may_share_classes_with_each_other(photos, tmp_path):
    rows = [("photos/a/0.JPG", "a", "query"), ("photos/a/1.JPG", "a", "gallery")]
    rows += [(f"photos/e/{i}.JPG", "e", "train") for i in range(2)]
    table = from_list(write_csv(tmp_path / "l.csv", ("path", "label", "split"), rows))
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


def test_text_that_is_numbers_sorts_as_numbers(photos, tmp_path):
    rows = [(f"photos/{n}/{i}.JPG", k) for k, n in ((10, "a"), (9, "e")) for i in range(2)]
    path = write_csv(tmp_path / "l.csv", ("path", "label"), rows)
    assert from_list(path, ALL).class_names == ("9", "10")
    path = write_csv(tmp_path / "m.csv", ("path", "label"), [(p, f"0{k}") for p, k in rows])
    assert from_list(path, ALL).class_names == ("010", "09")  # codes, not numbers


def test_arrays_and_tensors_of_any_layout_agree():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
    labels = np.array(["x", "y", "y", "x"])
    first = from_arrays(pixels, labels, ALL)
    second = from_arrays(torch.from_numpy(pixels).permute(0, 3, 1, 2), labels.tolist(), ALL)
    np.testing.assert_array_equal(first.source.pixels, second.source.pixels)
    assert first.labels.tolist() == second.labels.tolist() == [0, 1, 1, 0]
    assert open_table((pixels, labels), how=ALL).class_names == ("x", "y")


def test_a_hugging_face_data_set_is_read_with_its_class_names(photos):
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Image

    paths = [str(photos / "a" / f"{i}.JPG") for i in range(2)]
    paths += [str(photos / "e" / f"{i}.JPG") for i in range(2)]
    features = Features({"photo": Image(), "label": ClassLabel(names=["cat", "dog", "cow"])})
    rows = {"photo": paths, "label": [2, 2, 0, 0]}
    dataset = Dataset.from_dict(rows, features=features)
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


def test_the_digest_of_hub_data_is_that_of_their_files_and_decodes_nothing(photos, monkeypatch):
    from datasets import Dataset, Features, Image, Value

    def refuse(*_):
        raise AssertionError("an image was decoded")

    monkeypatch.setattr(Image, "decode_example", refuse)
    paths = [photos / "a" / "0.JPG", photos / "e" / "0.JPG", photos / "a" / "1.JPG"]
    images = {
        "paths": [str(path) for path in paths],
        "bytes": [{"bytes": path.read_bytes(), "path": None} for path in paths],
        "missing": [str(paths[0]), None, str(paths[2])],
    }
    features = Features({"image": Image(), "label": Value("int64")})
    rows = {
        name: Dataset.from_dict({"image": each, "label": [0, 0, 0]}, features=features)
        for name, each in images.items()
    }
    found = {name: digest_of_source(HubImages(each, "image")) for name, each in rows.items()}
    files = Files(photos, ["a/0.JPG", "e/0.JPG", "a/1.JPG"])
    assert found["paths"] == found["bytes"] == digest_of_source(files)
    assert found["missing"] != found["paths"]
    turned = HubImages(rows["bytes"], "image", np.array([2, 0]))
    assert digest_of_source(turned) == digest_of_source(files.take(np.array([2, 0])))


BAD_LISTS = {
    "columns": ((("file", "label"), ("a.jpg", "1")), "columns path and label.*has file, label"),
    "typo": ((("path", "lable"), ("a.jpg", "1")), "label is missing. Rename 'lable'"),
    "nan": (
        (("path", "label"), ("a.jpg", "1"), ("b.jpg", " ")),
        "missing one or NaN; 1 of 2 .*b.jpg",
    ),
    "twice": (
        (("path", "label"), ("a.jpg", "1"), ("a.jpg", "1")),
        "a path of its own; 1 of 2 do not: a.jpg",
    ),
    "again": ((("path", "label"), ("a.jpg", "1"), ("b/../a.jpg", "1")), "of its own; .*b/../a.jpg"),
    "gone": ((("path", "label"), ("z.jpg", "1")), "1 of 1 do not: z.jpg.*--root DIR"),
    "ragged": ((("path", "label"), ("a.jpg", "1", "2")), "line 2: every row must have the 2"),
    "alone": ((("path", "label"), ("a.jpg", "1"), ("b.jpg", "2")), r"2 of 2 do not: 1 \(a.jpg\)"),
    "empty": ((("path", "label"),), "l must hold images; found none"),
    "two paths": (
        (("path", "label", "path"), ("a.jpg", "1", "b.jpg")),
        "one column 'path'; it has 2",
    ),
    "two labels": ((("path", "label", " Label"), ("a.jpg", "1", "2")), "one column 'label'"),
    "long name": ((("path", "label"), ("a" * 9000, "1")), r"1 of 1 do not: a{200}\.\.\.\. Give"),
    "null": ((("path", "label"), ("a\0.jpg", "1")), "1 of 1 do not"),
    "device": ((("path", "label"), ("/dev/zero", "1")), "1 of 1 do not: /dev/zero"),
    "long field": ((("path", "label"), ("a" * 200_000, "1")), "field larger than field limit"),
    "cell": (
        (("path", "labels"), ("a.jpg", "red|blue"), ("b.jpg", "nan")),
        "every row of l .* NaN; 1 of 2 do not: b.jpg",
    ),
}


@pytest.mark.parametrize(("rows", "message"), BAD_LISTS.values(), ids=BAD_LISTS)
def test_bad_lists_are_refused_by_row_and_name(tmp_path, rows, message):
    for c, name in enumerate(("a.jpg", "b.jpg", "b/c.jpg")):
        write_image(tmp_path / name, c)
    header, *rest = rows
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        from_list(write_csv(tmp_path / "l.csv", header, rest), ALL)


def test_labels_of_thousands_of_digits_are_text(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        write_image(tmp_path / name, 0)
    rows = [(name, "9" * 5000) for name in ("a.jpg", "b.jpg")]
    table = from_list(write_csv(tmp_path / "l.csv", ("path", "label"), rows), ALL)
    assert table.class_names == ("9" * 5000,)


def test_a_parquet_list_takes_no_more_memory_than_it_has_different_values(tmp_path, monkeypatch):
    import pyarrow
    import pyarrow.parquet

    same = pyarrow.DictionaryArray.from_arrays(np.zeros(2000, dtype=np.int32), ["a" * 10**5])
    table = pyarrow.table({"path": same, "label": [None] * 1999 + ["x"]})
    pyarrow.parquet.write_table(table, tmp_path / "bomb.parquet")
    columns = own_data._parquet(tmp_path / "bomb.parquet")  # 200 MB, if each were a copy
    assert len({id(value) for value in columns["path"]}) == 1
    assert columns["label"] == table["label"].to_pylist()
    monkeypatch.setattr(own_data, "MOST_ROWS", 1999)
    with pytest.raises(ValueError, match="at most 1,999 images; it has 2,000 rows"):
        from_list(tmp_path / "bomb.parquet", ALL)
    columns = pyarrow.table([["a.jpg"], ["x"], ["b.jpg"]], names=["path", "label", "Path"])
    pyarrow.parquet.write_table(columns, tmp_path / "twice.parquet")
    with pytest.raises(ValueError, match="must have one column 'path'; it has 2"):
        from_list(tmp_path / "twice.parquet", ALL)


NO_LISTS = [
    ("l.parquet", b"PAR1 no", ValueError, "must be a Parquet file"),
    ("l.csv", b"path,label\n\xff\xfe,1\n", ValueError, "must be a CSV file in UTF-8"),
    ("none.csv", None, FileNotFoundError, "a list of images must exist; .*none.csv"),
]


@pytest.mark.parametrize(("name", "content", "error", "message"), NO_LISTS)
def test_a_list_that_is_none_is_refused(tmp_path, name, content, error, message):
    if content:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        open_table(tmp_path / name)


def test_splits_that_share_classes_are_refused_unless_allowed(photos, tmp_path):
    rows = [(f"photos/a/{i}.JPG", "a", s) for i, s in enumerate(["train", "test"])]
    path = write_csv(tmp_path / "l.csv", ("path", "label", "split"), rows)
    with pytest.raises(ValueError, match="share classes in l.*1 are shared: a.*--shared-classes"):
        from_list(path)
    assert from_list(path, Assembly(shared_classes=True)).shared_classes() == ["a"]


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (["train", "tset"], "Did you mean 'test'"),
        (["query", "query"], "has query but no gallery"),
        (["train"], "splits must have one entry for each of the 2.*got 1"),
        (None, "names none. Add a column 'split'"),
    ],
)
def test_splits_without_a_meaning_are_refused(splits, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(np.zeros((2, 4, 4), np.uint8), [0, 0], Assembly(split="given"), splits=splits)


def test_bad_folders_are_refused_with_what_to_do(photos, tmp_path):
    with pytest.raises(FileNotFoundError, match="must exist"):
        from_folder(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="one subfolder a class; it has none"):
        from_folder(tmp_path / "empty")
    (photos / "void").mkdir()
    with pytest.raises(ValueError, match="must have images; 1 of 6 do not: void"):
        from_folder(photos)
    write_image(photos / "loose.jpg", 0)
    with pytest.raises(ValueError, match="1 lie in .* itself: loose.jpg"):
        from_folder(photos)


def test_a_class_with_one_image_is_refused_accepted_or_left_out(photos):
    for i in (1, 2):
        next((photos / "e").rglob(f"{i}.JPG")).unlink()
    with pytest.raises(ValueError, match=r"1 of 5 do not: e \(e/0.JPG\).*min_images=1.*--skip-bad"):
        from_folder(photos)
    assert "e" in from_folder(photos, Assembly(min_images=1)).class_names
    with pytest.warns(UserWarning, match="photos must have at least 2 images; .* left out: e"):
        table = from_folder(photos, Assembly(skip_bad=True))
    assert "e" not in table.class_names


def test_skipping_the_bad_lists_what_it_skipped(tmp_path):
    for name in "abcd":
        write_image(tmp_path / f"{name}.jpg", 0)
    rows = [("a.jpg", 1), ("b.jpg", 1), ("c.jpg", ""), ("a.jpg", 1), ("d.jpg", "nan")]
    rows.append(("gone.jpg", 1))
    path = write_csv(tmp_path / "l.csv", ("path", "label"), rows)
    with pytest.warns(UserWarning, match="left out") as caught:
        table = from_list(path, Assembly(split="all", skip_bad=True))
    assert len(table) == 2
    said = " ".join(str(warning.message) for warning in caught)
    assert "1 of 6 do not and are left out: gone.jpg" in said
    assert "c.jpg, d.jpg" in said
    assert "path of its own; 1 of 3 do not and are left out: a.jpg" in said


BAD_LABELS = [
    ([np.nan, 1.0], "not a missing one or NaN"),
    ([1], "one entry for each of the 2 items"),
    ([[0.5, 1], [1, 0]], "must be 0 or 1"),
    ([[0, 0], [1, 0]], "must have a label"),
    (np.zeros((2, 1, 1)), r"shape \(N,\) or \(N, C\)"),
]


@pytest.mark.parametrize(("labels", "message"), BAD_LABELS)
def test_bad_labels_of_arrays_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(np.zeros((2, 4, 4), np.uint8), labels, ALL)


HERE = Path(__file__).parent
NO_DATA = [
    (lambda: open_table("glyph"), "Did you mean 'glyphs'"),
    (lambda: open_table([1, 2]), "pair .images, labels.*got list"),
    (lambda: open_table("cub"), "root must be the folder of cub.*weiss data prepare cub"),
    (lambda: open_table("glyphs", how=Assembly("stratified")), "split must not be given for glyph"),
    (lambda: Assembly(split="stratify"), "split must be one of .*Did you mean 'stratified'"),
    (lambda: open_table(HERE, root=HERE), "root must be left out for a folder"),
    (lambda: open_table(HERE, allow_missing=True), "allow_missing is for data sets that have a na"),
]


@pytest.mark.parametrize(("make", "message"), NO_DATA)
def test_anything_else_is_no_data(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["train/a", "train/b", "val"], "outside of class folders in: val"),
        (["train/a", "test/b", "extra/c"], "these are no splits: extra"),
        (["train/a", "train", "test/b"], "outside of class folders in: train"),
    ],
)
def test_a_folder_that_is_half_split_is_refused(tmp_path, folders, message):
    for name in folders:
        write_image(tmp_path / name / "0.jpg", 0)
    with pytest.raises(ValueError, match=message):
        from_folder(tmp_path)


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


def test_unlabelled_rows_and_streams_of_the_hub_are_refused(photos):
    from datasets import ClassLabel, Dataset, Features, Image

    features = Features({"image": Image(), "label": ClassLabel(names=["cat"])})
    paths = [str(photos / "a" / f"{i}.JPG") for i in range(2)]
    dataset = Dataset.from_dict({"image": paths, "label": [0, -1]}, features=features)
    with pytest.raises(ValueError, match="every row of hub .* NaN; 1 of 2 do not: row 1"):
        from_hub(dataset, ALL)
    with pytest.raises(TypeError, match="streaming=False"):
        open_table(dataset.to_iterable_dataset(), how=ALL)

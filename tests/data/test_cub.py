"""CUB-200-2011, in miniature and in full."""

import numpy as np
import pytest
from miniature import write_cub, write_lines

from weiss.data.official import missing_files
from weiss.data.official_sets import CUB


def test_the_first_half_of_the_classes_trains(tmp_path):
    table = CUB.read(write_cub(tmp_path, num_classes=4, per_class=3).parent)
    assert table.name == "cub"
    assert table.class_names == tuple(f"00{c + 1}.Bird_{c}" for c in range(4))
    assert table.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert table.labels.dtype == np.int64
    assert table.sizes() == {"train": (6, 2), "test": (6, 2)}
    assert table.shared_classes() == []
    assert table.source.name(4) == "002.Bird_1/Bird_1_1.jpg"
    assert table.source.read(4).shape == (18, 24, 3)


def test_the_official_folder_and_the_one_above_are_the_same(tmp_path):
    folder = write_cub(tmp_path)
    assert CUB.locate(folder) == CUB.locate(tmp_path) == folder


def test_classes_come_in_the_order_of_their_numbers_not_of_their_lines(tmp_path):
    folder = write_cub(tmp_path, num_classes=12, per_class=1)
    lines = (folder / "classes.txt").read_text().splitlines()
    write_lines(folder / "classes.txt", *reversed(lines))
    assert CUB.read(tmp_path).labels.tolist() == list(range(12))


def test_a_folder_without_the_lists_is_told_what_was_looked_for_and_where(tmp_path):
    with pytest.raises(FileNotFoundError, match="weiss data prepare cub --root") as caught:
        CUB.read(tmp_path / "none")
    for said in ("images.txt", "classes.txt", str(tmp_path / "none" / "CUB_200_2011")):
        assert said in str(caught.value)


def remove(folder, count):
    for path in sorted((folder / "images").rglob("*.jpg"))[:count]:
        path.unlink()


def test_missing_images_are_counted_named_and_refused(tmp_path):
    remove(write_cub(tmp_path), 4)
    message = r"all 12 images .* 4 are not there: 001.Bird_0/Bird_0_0.jpg, .*--allow-missing"
    with pytest.raises(FileNotFoundError, match=message):
        CUB.read(tmp_path)


def test_missing_images_can_be_left_out(tmp_path):
    remove(write_cub(tmp_path), 4)
    table = CUB.read(tmp_path, allow_missing=True)
    assert len(table) == 8
    assert table.num_classes == 4, "a class without images keeps its number"
    assert table.labels.tolist() == [1] * 2 + [2] * 3 + [3] * 3
    for item in range(len(table)):
        table.source.read(item)


def test_images_that_are_all_missing_cannot_be_left_out(tmp_path):
    remove(write_cub(tmp_path), 12)
    with pytest.raises(FileNotFoundError, match="none of the 12 is there"):
        CUB.read(tmp_path, allow_missing=True)


def test_files_are_found_as_a_look_at_each_would_find_them(tmp_path):
    paths = ["a/x", "a/y", "b/x", "a", "top", "none/x", "top/x", "a/z/deep"]
    for path in ("a/x", "b/x", "top", "a/z/other"):
        write_lines(tmp_path / path)
    expected = [i for i, path in enumerate(paths) if not (tmp_path / path).exists()]
    assert missing_files(tmp_path, paths).tolist() == expected


DAMAGE = {
    "short line": ("images.txt", 1, "2", r"images.txt line 2 must read 'image_id image_name'"),
    "long line": ("classes.txt", 1, "2 a b", "classes.txt line 2 must read 'class_id class_name'"),
    "no number": ("images.txt", 0, "x a/b.jpg", "line 1 must read 'a whole number .* got 'x'"),
    "number twice": ("images.txt", 1, "1 a/b.jpg", "line 2 must read 'a new image_id'; got '1'"),
    "image twice": ("images.txt", 1, "2 001.Bird_0/Bird_0_0.jpg", "each image once; 1 are named"),
    "outside": ("images.txt", 0, "1 ../../secret.jpg", "below .*; got ../../secret.jpg"),
    "absolute": ("images.txt", 0, "1 /etc/passwd", "below .*; got /etc/passwd"),
    "unknown class": ("image_class_labels.txt", 2, "3 9", "line 3 must read 'a class_id of cl"),
    "unknown image": ("image_class_labels.txt", 2, "99 1", "line 3 must read 'an image_id of im"),
    "labelled twice": ("image_class_labels.txt", 2, "2 1", "image_id of images.txt, once'"),
    "no label": ("image_class_labels.txt", 2, "", "each of the 12 images .* 1 have none.* is 3"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_lists_are_refused_with_file_and_line(tmp_path, case):
    name, line, text, message = DAMAGE[case]
    path = write_cub(tmp_path) / name
    lines = path.read_text().splitlines()
    lines[line] = text
    write_lines(path, *lines)
    with pytest.raises(ValueError, match=message):
        CUB.read(tmp_path)


def test_lists_that_are_no_text_or_empty_are_refused(tmp_path):
    folder = write_cub(tmp_path)
    (folder / "classes.txt").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ValueError, match="classes.txt must be text"):
        CUB.read(tmp_path)
    for name in ("classes.txt", "images.txt", "image_class_labels.txt"):
        write_lines(folder / name)
    with pytest.raises(ValueError, match="must name images; .* name none"):
        CUB.read(tmp_path)


def test_windows_line_ends_blank_lines_and_marks_do_no_harm(tmp_path):
    folder = write_cub(tmp_path)
    before = CUB.read(tmp_path)
    text = (folder / "images.txt").read_text().replace("\n", "\r\n\r\n")
    (folder / "images.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    after = CUB.read(tmp_path)
    assert after.source.paths.tolist() == before.source.paths.tolist()


def test_differences_name_each_split_that_is_not_as_published(tmp_path):
    table = CUB.read(write_cub(tmp_path))
    assert CUB.differences(table) == [
        "test must hold 5,924 images of 100 classes; got 6 of 2",
        "train must hold 5,864 images of 100 classes; got 6 of 2",
    ]


@pytest.mark.data
def test_the_real_one_has_the_published_counts(cub_root):
    table = CUB.read(cub_root)
    assert table.sizes() == {"train": (5_864, 100), "test": (5_924, 100)}
    assert len(table) == CUB.num_images == 11_788
    assert CUB.differences(table) == []
    assert table.class_names[0] == "001.Black_footed_Albatross"
    assert table.class_names[-1] == "200.Common_Yellowthroat"
    for item in range(0, len(table), 1000):
        assert table.source.read(item).shape[2] == 3

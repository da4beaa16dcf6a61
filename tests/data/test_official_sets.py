"""The published data sets in miniature: splits, layouts, missing and damaged files."""

import shutil

import numpy as np
import pytest
from miniature import (
    car_box,
    car_names,
    write_cars_new,
    write_cars_old,
    write_cub,
    write_inshop,
    write_lines,
    write_mat,
    write_sop,
)

from weiss.data import open_table
from weiss.data.official import missing_files
from weiss.data.official_sets import CARS, CUB, INSHOP, INSHOP_JOINED, OFFICIAL, SOP


def test_cub_trains_on_the_first_half_of_the_classes(tmp_path):
    table = open_table("cub", root=write_cub(tmp_path, num_classes=4, per_class=3).parent)
    assert table.name == "cub"
    assert table.class_names == tuple(f"00{c + 1}.Bird_{c}" for c in range(4))
    assert table.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert table.labels.dtype == np.int64
    assert table.sizes() == {"train": (6, 2), "test": (6, 2)}
    assert table.shared_classes() == []
    assert table.source.name(4) == "002.Bird_1/Bird_1_1.jpg"
    assert table.source.read(4).shape == (18, 24, 3)
    assert CUB.differences(table) == [
        "test must hold 5,924 images of 100 classes; got 6 of 2",
        "train must hold 5,864 images of 100 classes; got 6 of 2",
    ]


def test_lists_may_come_in_any_order_with_windows_line_ends_and_byte_order_marks(tmp_path):
    folder = write_cub(tmp_path, num_classes=12, per_class=1)
    before = CUB.read(tmp_path)
    for name, lines in {
        name: (folder / name).read_text().splitlines() for name in ("classes.txt", "images.txt")
    }.items():
        ordered = reversed(lines) if name == "classes.txt" else lines
        text = "".join(f"{line}\r\n\r\n" for line in ordered)
        (folder / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    after = CUB.read(tmp_path)
    assert after.source.paths.tolist() == before.source.paths.tolist()
    assert after.labels.tolist() == before.labels.tolist() == list(range(12))


@pytest.mark.parametrize("labels_in", [".", "devkit"])
def test_both_forms_of_cars_hold_the_same_images_in_the_same_classes(tmp_path, labels_in):
    old = CARS.read(write_cars_old(tmp_path / "a"))
    new = CARS.read(write_cars_new(tmp_path / "b", labels_in=labels_in))

    def images(table):
        return sorted((int(c), table.source.read(i).tobytes()) for i, c in enumerate(table.labels))

    assert images(old) == images(new)
    assert old.class_names == new.class_names == tuple(car_names(4))
    assert old.sizes() == new.sizes() == {"train": (6, 2), "test": (6, 2)}
    assert old.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert old.source.name(0) == "car_ims/000001.jpg"
    assert set(new.source.paths) == {
        f"cars_{p}/0000{i}.jpg" for p in ("train", "test") for i in range(1, 7)
    }


def test_the_copy_of_cars_with_each_folder_twice_is_read_too(tmp_path):
    write_cars_new(tmp_path)
    before = CARS.read(tmp_path)
    for name in ("cars_train", "cars_test"):
        (tmp_path / name).rename(tmp_path / "moved")
        (tmp_path / name).mkdir()
        (tmp_path / "moved").rename(tmp_path / name / name)
    (tmp_path / "car_devkit").mkdir()
    (tmp_path / "devkit").rename(tmp_path / "car_devkit" / "devkit")
    after = CARS.read(tmp_path)
    assert after.labels.tolist() == before.labels.tolist()
    assert after.source.name(0) == "cars_train/cars_train/00001.jpg"


def test_the_old_list_of_cars_beside_the_new_folders_does_not_mislead(tmp_path):
    write_cars_old(tmp_path)
    shutil.rmtree(tmp_path / "car_ims")
    with pytest.raises(FileNotFoundError, match="12 are not there: car_ims/000001.jpg"):
        CARS.read(tmp_path)
    write_cars_new(tmp_path)
    assert CARS.read(tmp_path).source.name(0).startswith("cars_train/")


def test_a_list_of_one_car_is_a_list(tmp_path):
    write_cars_old(tmp_path, num_classes=1, per_class=1)
    assert CARS.read(tmp_path).labels.tolist() == [0]


def test_the_two_lists_of_sop_are_the_two_splits(tmp_path):
    write_sop(tmp_path, num_classes=12, per_class=2)
    table = SOP.read(tmp_path)
    assert table.class_names == tuple(str(c) for c in range(1, 13)), "in the order of numbers"
    assert table.labels.tolist() == [c for c in range(12) for _ in range(2)]
    assert table.sizes() == {"train": (12, 6), "test": (12, 6)}
    assert table.source.name(2) == "chair_final/111000001_0.JPG"
    assert table.source.read(2).shape == (18, 24, 3)


@pytest.mark.parametrize("list_in", ["Eval", "Anno", "."])
def test_query_and_gallery_of_inshop_come_from_the_partition(tmp_path, list_in):
    table = INSHOP.read(write_inshop(tmp_path, list_in=list_in))
    assert table.class_names == tuple(f"id_0000000{c + 1}" for c in range(4))
    assert table.sizes() == {"train": (8, 2), "query": (4, 2), "gallery": (4, 2)}
    assert table.splits.tolist()[8:12] == ["query", "gallery", "query", "gallery"]
    assert table.labels.tolist() == [c for c in range(4) for _ in range(4)]
    assert table.source.read(9).shape == (18, 24, 3)


def test_joined_inshop_is_the_same_with_one_test_set(tmp_path):
    write_inshop(tmp_path)
    joined, plain = INSHOP_JOINED.read(tmp_path), INSHOP.read(tmp_path)
    assert joined.splits.tolist() == plain.joined().splits.tolist()
    assert joined.sizes() == {"train": (8, 2), "test": (8, 2)}
    assert joined.source.paths.tolist() == plain.source.paths.tolist()
    # The images may be unpacked beside their archive.
    (tmp_path / "Img").mkdir()
    (tmp_path / "img").rename(tmp_path / "Img" / "img")
    assert INSHOP.read(tmp_path).source.read(0).shape == (18, 24, 3)


@pytest.mark.parametrize(
    ("official", "write", "folder"),
    [
        (CUB, write_cub, "CUB_200_2011"),
        (SOP, write_sop, "Stanford_Online_Products"),
        (CARS, write_cars_new, "stanford_cars"),
        (CARS, write_cars_new, "cars196"),
        (INSHOP, write_inshop, "In-shop Clothes Retrieval Benchmark"),
    ],
)
def test_the_official_folder_is_found_in_the_one_above(tmp_path, official, write, folder):
    makes_it = official in (CUB, SOP)
    write(tmp_path if makes_it else tmp_path / folder)
    assert official.locate(tmp_path) == official.locate(tmp_path / folder) == tmp_path / folder


# What is missing


MISSING_LISTS = {
    "cub": (CUB, write_cub, "*", "images.txt.*classes.txt.*weiss data prepare cub --root"),
    "cars": (CARS, write_cars_new, "*", "cars_annos.mat, or devkit/cars_train_annos.mat"),
    "cars test": (
        CARS,
        write_cars_new,
        "cars_test_annos_withlabels.mat",
        "in cars_test_annos_withlabels.mat; .*only cars_test_annos.mat is there.*Fetch that",
    ),
    "cars meta": (CARS, write_cars_new, "cars_meta.mat", "cars_meta.mat.*part of car_devkit.tgz"),
    "sop": (SOP, write_sop, "Ebay_test.txt", "Ebay_train.txt with Ebay_test.txt"),
}


@pytest.mark.parametrize(
    ("official", "write", "name", "message"), MISSING_LISTS.values(), ids=MISSING_LISTS
)
def test_missing_lists_are_named(tmp_path, official, write, name, message):
    write(tmp_path)
    for path in list(tmp_path.rglob(name)):
        if path.is_file():
            path.unlink()
    with pytest.raises(FileNotFoundError, match=message) as caught:
        official.read(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_missing_images_are_refused_or_left_out_unless_all_are_missing(tmp_path):
    paths = sorted((write_cub(tmp_path) / "images").rglob("*.jpg"))
    for path in paths[:4]:
        path.unlink()
    message = r"all 12 images .* 4 are not there: 001.Bird_0/Bird_0_0.jpg, .*--allow-missing"
    with pytest.raises(FileNotFoundError, match=message):
        CUB.read(tmp_path)
    table = CUB.read(tmp_path, allow_missing=True)
    assert len(table) == 8
    assert table.num_classes == 4, "a class without images keeps its number"
    assert table.labels.tolist() == [1] * 2 + [2] * 3 + [3] * 3
    for path in paths[4:]:
        path.unlink()
    with pytest.raises(FileNotFoundError, match="none of the 12 is there"):
        CUB.read(tmp_path, allow_missing=True)


def test_missing_files_are_those_that_do_not_exist(tmp_path):
    paths = ["a/x", "a/y", "b/x", "a", "top", "none/x", "top/x", "a/z/deep"]
    for path in ("a/x", "b/x", "top", "a/z/other"):
        write_lines(tmp_path / path)
    expected = [i for i, path in enumerate(paths) if not (tmp_path / path).exists()]
    assert missing_files(tmp_path, paths).tolist() == expected


# What is damaged


CLASSES, LABELS, EBAY = "classes.txt", "image_class_labels.txt", "Ebay_train.txt"
PARTITION = "Eval/list_eval_partition.txt"
TWICE = "each image once; 1 are named again"
DAMAGE = [
    (CUB, "images.txt", 1, "2", r"images.txt line 2 must read 'image_id image_name'"),
    (CUB, CLASSES, 1, "2 a b", "classes.txt line 2 must read 'class_id class_name'"),
    (CUB, "images.txt", 0, "x a/b.jpg", "line 1 must read 'a whole number .* got 'x'"),
    (CUB, "images.txt", 1, "1 a/b.jpg", "line 2 must read 'a new image_id'; got '1'"),
    (CUB, "images.txt", 1, "2 001.Bird_0/Bird_0_0.jpg", TWICE),
    (CUB, "images.txt", 0, "1 ../../secret.jpg", "below .*; got ../../secret.jpg"),
    (CUB, "images.txt", 0, "1 /etc/passwd", "below .*; got /etc/passwd"),
    (CUB, LABELS, 2, "3 9", "line 3 must read 'a class_id of cl"),
    (CUB, LABELS, 2, "99 1", "line 3 must read 'an image_id of im"),
    (CUB, LABELS, 2, "2 1", "image_id of images.txt, once'"),
    (CUB, LABELS, 2, "", "each of the 12 images .* 1 have none.* is 3"),
    (SOP, EBAY, 0, "1 1 1 a.JPG", "line 1 must read 'image_id class_id super_class_id path'"),
    (SOP, EBAY, 2, "2 1 1", "Ebay_train.txt line 3 must read 'image_id class_id super"),
    (SOP, EBAY, 2, "2 0 1 a.JPG", "line 3 must read 'a whole number above 0 as class_id'"),
    (SOP, EBAY, 2, "2 -1 1 a.JPG", "line 3 .* as class_id'; got '-1'"),
    (SOP, EBAY, 2, "b 1 1 a.JPG", "line 3 .* as image_id'; got 'b'"),
    (INSHOP, PARTITION, 0, "many", "line 1 must read 'a whole number above 0 as number of im"),
    (INSHOP, PARTITION, 0, "17", "as its first line states, 17; got 16"),
    (INSHOP, PARTITION, 1, "a b c", "line 2 must read 'image_name item_id evaluation_status'"),
    (INSHOP, PARTITION, 4, "img/x.jpg id_1", "partition.txt line 5 must read 'image_name"),
    (INSHOP, PARTITION, 4, "img/x.jpg id_1 test", "line 5 must read 'train, query or gallery at"),
]
WRITERS = {"cub": write_cub, "sop": write_sop, "inshop": write_inshop}


@pytest.mark.parametrize(("official", "name", "line", "text", "message"), DAMAGE)
def test_damaged_lists_are_refused_with_file_and_line(
    tmp_path, official, name, line, text, message
):
    path = WRITERS[official.name](tmp_path) / name
    lines = path.read_text().splitlines()
    lines[line] = text
    write_lines(path, *lines)
    with pytest.raises(ValueError, match=message):
        official.read(tmp_path)


def test_lists_that_are_no_text_or_empty_are_refused(tmp_path):
    folder = write_cub(tmp_path)
    (folder / CLASSES).write_bytes(b"\xff\xfe\0")
    with pytest.raises(ValueError, match="classes.txt must be text"):
        CUB.read(tmp_path)
    for name in (CLASSES, "images.txt", LABELS):
        write_lines(folder / name)
    with pytest.raises(ValueError, match="must name images; .* name none"):
        CUB.read(tmp_path)


def row(name="car_ims/1.jpg", label=1):
    return {"relative_im_path": name, **car_box(), "class": label}


BAD_CARS = {
    "label 0": ({"annotations": [row(label=0)]}, "must have classes 1 to 2, not 0"),
    "label too large": ({"annotations": [row(label=3)]}, "classes 1 to 2, not 3 .car_ims/1.jpg"),
    "no label": ({"annotations": [row(), row("b", [])]}, "a class in annotation 2, not"),
    "fraction": ({"annotations": [row(label=1.5)]}, "a class in annotation 1, not 1.5"),
    "no field": ({"annotations": [{"class": 1}]}, "must have the field 'relative_im_path'"),
    "no structs": ({"annotations": ["a", "b"]}, "must have the field 'relative_im_path'"),
    "no variable": ({"something": ["a"]}, "must hold the variable 'annotations'"),
}


@pytest.mark.parametrize(("variables", "message"), BAD_CARS.values(), ids=BAD_CARS)
def test_damaged_annotations_are_refused(tmp_path, variables, message):
    path = tmp_path / "cars_annos.mat"
    write_mat(path, class_names=["a", "b"], **variables)
    with pytest.raises(ValueError, match=message):
        CARS.read(tmp_path)
    for share in (0.6, 0.0):
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
        with pytest.raises(ValueError, match="cars_annos.mat must .*Restore the official file"):
            CARS.read(tmp_path)


def test_every_set_has_its_published_counts_and_what_a_person_must_know():
    counts = {name: official.num_images for name, official in OFFICIAL.items()}
    inshop = {"inshop": 52_712, "inshop_joined": 52_712}
    assert counts == {"cub": 11_788, "cars": 16_185, "sop": 120_053, **inshop}
    for name, official in OFFICIAL.items():
        assert official.name == name
        assert official.home.startswith("https://")
        assert "{root}" in official.by_hand
        for archive in official.archives:
            assert archive.checksum is None or archive.checksum.source

"""Checking: what is wrong is found, counted and named; what is right is not."""

import dataclasses
import shutil

import numpy as np
import pytest
from miniature import write_cub
from PIL import Image

from weiss.data import OFFICIAL, Assembly, check_table, from_arrays, open_table
from weiss.data.content import in_several_classes

RNG = np.random.default_rng(0)


def photo(seed, height=60, width=80):
    """A picture of its own: smooth random colours."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path):
    for split, classes in {"train": range(3), "test": range(3, 6)}.items():
        for c in classes:
            for i in range(4):
                path = tmp_path / "photos" / split / f"c{c}" / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                photo(10 * c + i).save(path)
    return tmp_path / "photos"


def test_good_data_give_no_findings(folder):
    found = check_table(open_table(folder))
    assert (found.problems, found.remarks, found.unreadable, found.pairs) == ([], [], [], [])


COPIES = {
    "same": lambda image: (image, "png", {}),
    "saved again": lambda image: (image, "jpg", {"quality": 60}),
    "reduced": lambda image: (image.resize((40, 30)), "png", {}),
    "brighter": lambda image: (image.point(lambda v: min(255, int(v * 0.8 + 30))), "png", {}),
    "mirrored": lambda image: (image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), "png", {}),
    "grey": lambda image: (image.convert("L"), "png", {}),
}


@pytest.mark.parametrize("kind", list(COPIES))
def test_a_copy_on_the_other_side_of_the_split_is_found(folder, kind):
    copy, suffix, options = COPIES[kind](photo(12))  # train/c1/2.png
    copy.save(folder / "test" / "c4" / f"copy.{suffix}", **options)
    found = check_table(open_table(folder))
    assert found.pairs == [("train/c1/2.png", f"test/c4/copy.{suffix}")]
    assert "test images that look nearly the same as a training image: 1 (" in found.remarks[0]
    assert found.problems == []


def test_the_same_file_in_several_classes_is_found(folder):
    for copy in ("train/c2/again.png", "test/c5/again.png"):
        shutil.copy(folder / "train" / "c0" / "1.png", folder / copy)
    shutil.copy(folder / "train" / "c1" / "3.png", folder / "train" / "c1" / "again.png")
    (folder / "train" / "c1" / "0.png").write_bytes(b"broken")
    found = check_table(open_table(folder))
    assert (
        "images that are in more than one class: 1 (test/c5/again.png = train/c0/1.png = "
        "train/c2/again.png); keep each in one, or give it several labels in a list"
    ) in found.remarks
    assert check_table(open_table(folder), images=False).remarks == []


@pytest.mark.parametrize("seed", range(3))
def test_contents_in_several_classes_are_those_of_nested_loops(seed):
    random = np.random.default_rng(seed)
    contents, labels = random.integers(0, 8, 20), random.integers(-1, 3, 20)
    digests = random.integers(0, 256, (8, 16), dtype=np.uint8)[contents]
    digests[:, 3:] = 0  # which differ in few bytes
    expected = []
    for content in dict.fromkeys(contents[labels >= 0].tolist()):
        rows = [i for i in range(20) if contents[i] == content and labels[i] >= 0]
        if any(labels[i] != labels[j] for i in rows for j in rows):
            expected.append(rows)
    assert [rows.tolist() for rows in in_several_classes(digests, labels)] == expected
    assert expected
    assert in_several_classes(digests[:0], labels[:0]) == []


def test_copies_on_one_side_and_plain_images_are_not_reported(folder):
    photo(12).save(folder / "train" / "c0" / "copy.png")
    for split in ("train/c0", "test/c3"):
        Image.new("RGB", (50, 50), "white").save(folder / split / "white.png")
    assert check_table(open_table(folder)).pairs == []


def test_broken_images_are_problems_and_the_rest_is_still_compared(folder):
    (folder / "train" / "c0" / "0.png").write_bytes(b"")
    photo(12).save(folder / "test" / "c4" / "copy.png")
    found = check_table(open_table(folder))
    assert "images that cannot be read: 1 (" in found.problems[0]
    assert "c0/0.png: is empty" in found.unreadable[0]
    assert len(found.pairs) == 1


REMARKS = {
    "aabcba": ("train train test test test unused", "with one image in test: 1 (c); nothing to be"),
    "bbaaba": ("train train test test test unused", "items in no split: 1"),
    "aabbaa": ("train train train train test test", "train and test share: 1 (a)"),
    "aabbcc": ("train train query gallery query query", "nothing in the gallery: 1 (c)"),
    "abbbbb": ("train train train train train train", "with one image in train: 1 (a); no pair of"),
    "bbbbbb": ("train train train train train train", "nothing tests: no item is in test"),
    "cccccc": ("test test test test test test", "nothing trains: no item is in train"),
}


@pytest.mark.parametrize(("labels", "case"), REMARKS.items())
def test_what_is_worth_knowing_about_classes_is_remarked(labels, case):
    pixels, (splits, remark) = RNG.integers(0, 256, (6, 8, 8), dtype=np.uint8), case
    how = Assembly(shared_classes=True, min_images=1)
    table = from_arrays(pixels, list(labels), how, splits=splits.split())
    assert any(remark in found for found in check_table(table).remarks)


def test_official_counts_must_agree(tmp_path):
    write_cub(tmp_path)
    cub = OFFICIAL["cub"]
    found = check_table(cub.read(tmp_path), cub, images=False)
    assert any("train must hold 5,864 images of 100 classes; got" in p for p in found.problems)
    small = dataclasses.replace(cub, counts=cub.read(tmp_path).sizes())
    assert check_table(cub.read(tmp_path), small).problems == []


def test_vectors_are_checked_for_their_classes_alone():
    table = from_arrays(RNG.normal(size=(6, 3)), [0, 0, 1, 1, 2, 2])
    assert check_table(table).problems == []


def test_what_is_left_is_what_is_checked(folder):
    for i in range(3):
        (folder / "test" / "c4" / f"{i}.png").write_bytes(b"")
    found = check_table(open_table(folder), skip_bad=True)
    assert found.problems == []
    assert len(found.table) == 21
    assert any("one image in test: 1 (c4)" in remark for remark in found.remarks)


@pytest.mark.data
def test_the_real_birds_pass_and_hold_one_photograph_twice(cub_root):
    table = open_table("cub", root=cub_root)
    assert table.class_names[0] == "001.Black_footed_Albatross"
    assert table.class_names[-1] == "200.Common_Yellowthroat"
    found = check_table(table, OFFICIAL["cub"])
    assert found.problems == []
    assert found.pairs == [
        (
            "022.Chuck_will_Widow/Chuck_Will_Widow_0042_796983.jpg",
            "105.Whip_poor_Will/Whip_Poor_Will_0002_796427.jpg",
        )
    ]

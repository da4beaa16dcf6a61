"""Checking: what is wrong is found, counted and named; what is right is not."""

import dataclasses

import numpy as np
import pytest
from miniature import write_cub
from PIL import Image

from weiss.data import OFFICIAL, Assembly, check_table, from_arrays, open_table

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
    assert [(pair.train, pair.test) for pair in found.pairs] == [
        ("train/c1/2.png", f"test/c4/copy.{suffix}")
    ]
    assert not found.pairs[0].same_class
    assert "test images that look nearly the same as a training image: 1 (" in found.remarks[0]
    assert found.problems == []


def test_copies_on_one_side_are_not_reported(folder):
    photo(12).save(folder / "train" / "c0" / "copy.png")
    assert check_table(open_table(folder)).pairs == []


def test_plain_images_are_not_taken_for_copies(folder):
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


def test_single_images_and_shared_classes_are_remarked():
    pixels = RNG.integers(0, 256, (6, 8, 8), dtype=np.uint8)
    how = Assembly(shared_classes=True, min_images=1)
    splits = ["train", "train", "test", "test", "query", "unused"]
    table = from_arrays(pixels, list("aabcba"), how, splits=[*splits[:4], "test", splits[5]])
    remarks = check_table(table).remarks
    assert any("classes with one image in test: 1 (c); nothing to be found" in r for r in remarks)
    assert any("items in no split: 1" in r for r in remarks)
    shared = from_arrays(pixels, list("aabbaa"), how, splits=["train"] * 4 + ["test"] * 2)
    assert any("train and test share: 1 (a)" in r for r in check_table(shared).remarks)


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


def test_queries_without_anything_to_find_are_remarked():
    pixels = RNG.integers(0, 256, (6, 8, 8), dtype=np.uint8)
    splits = ["train", "train", "query", "gallery", "query", "query"]
    table = from_arrays(pixels, list("aabbcc"), splits=splits)
    remarks = check_table(table).remarks
    assert "classes with queries and nothing in the gallery: 1 (c)" in remarks


def test_what_is_left_is_what_is_checked(folder):
    for i in range(3):
        (folder / "test" / "c4" / f"{i}.png").write_bytes(b"")
    found = check_table(open_table(folder), skip_bad=True)
    assert found.problems == []
    assert len(found.table) == 21
    assert any("one image in test: 1 (c4)" in remark for remark in found.remarks)


def test_an_empty_part_is_remarked():
    pixels = RNG.integers(0, 256, (4, 8, 8), dtype=np.uint8)
    table = from_arrays(pixels, [0, 0, 1, 1], Assembly(split="all"))
    assert any(remark.startswith("nothing tests") for remark in check_table(table).remarks)


@pytest.mark.data
def test_the_real_birds_pass_and_hold_one_photograph_twice(cub_root):
    table = open_table("cub", root=cub_root)
    found = check_table(table, OFFICIAL["cub"])
    assert found.problems == []
    assert [(pair.train, pair.test) for pair in found.pairs] == [
        (
            "022.Chuck_will_Widow/Chuck_Will_Widow_0042_796983.jpg",
            "105.Whip_poor_Will/Whip_Poor_Will_0002_796427.jpg",
        )
    ]

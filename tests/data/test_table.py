"""Tables: parts, classes, and what does not fit together."""

import numpy as np
import pytest
from miniature import toy_table

from weiss._base.checks import some
from weiss.data.sources import Files, Pixels, Vectors
from weiss.data.table import Table

TOY = toy_table([0, 2, 2, 0, 2], 3, ["train", "query", "gallery", "train", "gallery"])


def test_a_part_keeps_classes_names_and_order():
    part = TOY.part("gallery")
    assert part.labels.tolist() == [2, 2]
    assert part.num_classes == 3
    assert [part.source.name(i) for i in range(2)] == ["image 2", "image 4"]
    assert part.part("gallery").source.name(1) == "image 4"


def test_test_means_query_and_gallery_where_there_is_no_test():
    assert TOY.rows("test").tolist() == [1, 2, 4]
    assert TOY.joined().sizes() == {"train": (2, 1), "test": (3, 1)}
    assert not TOY.has("valid")


def test_compacting_leaves_out_empty_classes_and_keeps_their_order():
    compact = TOY.compact()
    assert compact.class_names == ("c0", "c2")
    assert compact.labels.tolist() == [0, 1, 1, 0, 1]
    several = toy_table([[0], [0, 2]], 3)
    assert several.compact().labels.tolist() == [[True, False], [True, True]]
    assert several.class_sizes().tolist() == [2, 0, 1]
    assert several.is_multi_label


def test_shared_classes_are_named():
    assert TOY.shared_classes() == []
    assert toy_table([0, 0, 1], 2, ["train", "query", "gallery"]).shared_classes() == ["c0"]


BAD = {
    "labels": (lambda: toy_table([0, 3], 3), r"labels must lie in \[0, 3\) for toy; got 3"),
    "length": (lambda: toy_table([0, 1], 2, ["train"]), "splits must have one entry for each of"),
    "split": (lambda: toy_table([0], 1, ["trian"]), "split must be one of .* Did you mean 'train'"),
    "columns": (
        lambda: Table("toy", TOY.source, np.ones((5, 2), bool), ("a", "b", "c"), TOY.splits),
        "one column for each of the 3 classes",
    ),
    "ask": (lambda: TOY.part("tests"), "Did you mean 'test'"),
    "floats": (lambda: Pixels(np.zeros((2, 4, 4))), "images must be uint8.*float64.*0..255"),
    "first": (lambda: Pixels(np.zeros((2, 3, 9, 9), np.uint8)), "move the channels last"),
    "vector": (lambda: Vectors(np.array([[1.0], [np.nan]])), "must be finite; 1 rows.*row 1"),
    "integer": (lambda: Vectors(np.array([[1]])), "floating point of shape .N, features."),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_files_know_where_they_lie(tmp_path):
    files = Files(tmp_path, ["x/a.jpg", "/elsewhere/b.jpg"]).take(np.array([1, 0]))
    assert [str(files.file(i)) for i in range(2)] == ["/elsewhere/b.jpg", f"{tmp_path}/x/a.jpg"]
    assert files.name(1) == "x/a.jpg"


def test_vectors_are_no_images():
    with pytest.raises(TypeError, match="backbone 'features'"):
        Vectors(np.ones((1, 2))).read(0)


def test_some_names_the_first_and_counts_the_rest():
    assert some(["a", "b"]) == "a, b"
    assert some([str(i) for i in range(1205)], 2) == "0, 1 and 1,203 more"

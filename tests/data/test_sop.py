"""Stanford Online Products, in miniature."""

import pytest
from miniature import write_lines, write_sop

from weiss.data.official_sets import SOP


def test_the_two_lists_are_the_two_splits(tmp_path):
    folder = write_sop(tmp_path, num_classes=12, per_class=2)
    table = SOP.read(tmp_path)
    assert table.class_names == tuple(str(c) for c in range(1, 13)), "in the order of numbers"
    assert table.labels.tolist() == [c for c in range(12) for _ in range(2)]
    assert table.sizes() == {"train": (12, 6), "test": (12, 6)}
    assert table.source.name(2) == "chair_final/111000001_0.JPG"
    assert table.source.read(2).shape == (18, 24, 3)
    assert SOP.read(folder).labels.tolist() == table.labels.tolist()


def test_missing_images_are_refused_or_left_out(tmp_path):
    (write_sop(tmp_path) / "chair_final" / "111000003_2.JPG").unlink()
    with pytest.raises(FileNotFoundError, match="1 are not there: chair_final/111000003_2.JPG"):
        SOP.read(tmp_path)
    assert len(SOP.read(tmp_path, allow_missing=True)) == 11


def test_both_lists_must_be_there(tmp_path):
    (write_sop(tmp_path) / "Ebay_test.txt").unlink()
    with pytest.raises(FileNotFoundError, match="Ebay_train.txt with Ebay_test.txt"):
        SOP.read(tmp_path)


DAMAGE = {
    "no header": (0, "1 1 1 a.JPG", "line 1 must read 'image_id class_id super_class_id path'"),
    "short line": (2, "2 1 1", "Ebay_train.txt line 3 must read 'image_id class_id super"),
    "class 0": (2, "2 0 1 a.JPG", "line 3 must read 'a whole number above 0 as class_id'"),
    "negative": (2, "2 -1 1 a.JPG", "line 3 .* as class_id'; got '-1'"),
    "no number": (2, "b 1 1 a.JPG", "line 3 .* as image_id'; got 'b'"),
    "image twice": (2, "2 1 1 bicycle_final/111000000_0.JPG", "each image once; 1 are named again"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_lists_are_refused_with_file_and_line(tmp_path, case):
    line, text, message = DAMAGE[case]
    path = write_sop(tmp_path) / "Ebay_train.txt"
    lines = path.read_text().splitlines()
    lines[line] = text
    write_lines(path, *lines)
    with pytest.raises(ValueError, match=message):
        SOP.read(tmp_path)


def test_the_published_counts_add_up():
    assert SOP.num_images == 120_053

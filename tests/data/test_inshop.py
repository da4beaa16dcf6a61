"""In-Shop Clothes Retrieval, in miniature: with query and gallery, and with both joined."""

import pytest
from miniature import write_inshop, write_lines

from weiss.data.official_sets import INSHOP, INSHOP_JOINED


@pytest.mark.parametrize("list_in", ["Eval", "Anno", "."])
def test_query_and_gallery_come_from_the_partition(tmp_path, list_in):
    table = INSHOP.read(write_inshop(tmp_path, list_in=list_in))
    assert table.class_names == tuple(f"id_0000000{c + 1}" for c in range(4))
    assert table.sizes() == {"train": (8, 2), "query": (4, 2), "gallery": (4, 2)}
    assert table.splits.tolist()[8:12] == ["query", "gallery", "query", "gallery"]
    assert table.labels.tolist() == [c for c in range(4) for _ in range(4)]
    assert table.source.read(9).shape == (18, 24, 3)


def test_joined_is_the_same_with_one_test_set(tmp_path):
    write_inshop(tmp_path)
    joined, plain = INSHOP_JOINED.read(tmp_path), INSHOP.read(tmp_path)
    assert joined.splits.tolist() == plain.joined().splits.tolist()
    assert joined.sizes() == {"train": (8, 2), "test": (8, 2)}
    assert joined.source.paths.tolist() == plain.source.paths.tolist()


@pytest.mark.parametrize("folder", ["", "In-shop Clothes Retrieval Benchmark", "inshop"])
def test_it_is_found_in_the_folders_people_use(tmp_path, folder):
    write_inshop(tmp_path / folder)
    assert len(INSHOP.read(tmp_path)) == 16


def test_images_may_be_unpacked_where_their_archive_lay(tmp_path):
    write_inshop(tmp_path)
    (tmp_path / "Img").mkdir()
    (tmp_path / "img").rename(tmp_path / "Img" / "img")
    assert INSHOP.read(tmp_path).source.read(0).shape == (18, 24, 3)


DAMAGE = {
    "no count": (0, "many", "line 1 must read 'a whole number above 0 as number of images'"),
    "wrong count": (0, "17", "must list the 17 images that its first line says; got 16"),
    "no header": (1, "a b c", "line 2 must read 'image_name item_id evaluation_status'; got 'a"),
    "short line": (4, "img/x.jpg id_1", "list_eval_partition.txt line 5 must read 'image_name"),
    "unknown split": (4, "img/x.jpg id_1 test", "line 5 must read 'train, query or gallery at"),
    "image twice": (
        4,
        "img/WOMEN/Dresses/id_00000001/01_1_front.jpg id_1 train",
        "each image once; 1 are named again",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_partition_is_refused_with_its_line(tmp_path, case):
    line, text, message = DAMAGE[case]
    path = write_inshop(tmp_path) / "Eval" / "list_eval_partition.txt"
    lines = path.read_text().splitlines()
    lines[line] = text
    write_lines(path, *lines)
    with pytest.raises(ValueError, match=message):
        INSHOP.read(tmp_path)


def test_the_published_counts_add_up():
    assert INSHOP.num_images == INSHOP_JOINED.num_images == 52_712

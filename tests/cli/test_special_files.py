"""A FIFO, a socket or a device in place of a file is refused: opening it would wait for ever."""

import os
import shutil
import socket
import threading
from pathlib import Path

import pytest
from glyph_catalogue import build, glyph_catalogue, opened, photos, without_data, write_glyphs
from typed import refused

from weiss._base.files import special_file
from weiss._base.images import BadImageError, decode, stored_size
from weiss._base.tensor_files import read_tensors
from weiss.backbones.weights import read_weights
from weiss.catalogue import Catalogue, DamagedIndexError
from weiss.catalogue.export import export_run
from weiss.catalogue.networks import network_of_file
from weiss.data import Assembly, open_table
from weiss.runs import recipe_from

SECONDS = 5.0
"""Until a test counts as waiting for ever."""
FIFOS: list[Path] = []


@pytest.fixture(autouse=True)
def deadline(run):
    """Let a test fail that waits for a writer: after a while there is one, which writes nothing."""
    late = []

    def write_nothing():
        for path in FIFOS:
            late.append(path)
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    FIFOS.clear()
    timer = threading.Timer(SECONDS, write_nothing)
    timer.start()
    yield
    timer.cancel()
    assert not late, "it waits for ever"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return without_data(glyph_catalogue() / "run", tmp_path_factory.mktemp("run") / "run")


def fifo(path):
    os.mkfifo(path)
    FIFOS.append(path)
    return path


def test_the_kind_of_a_file_that_is_no_file_is_told(tmp_path):
    assert special_file(fifo(tmp_path / "a.jpg")) == "a FIFO"
    assert special_file(Path(os.devnull)) == "a device"
    place = socket.socket(socket.AF_UNIX)
    place.bind(str(tmp_path / "s"))
    assert special_file(tmp_path / "s") == "a socket"
    place.close()
    (tmp_path / "link").symlink_to(tmp_path / "a.jpg")
    assert special_file(tmp_path / "link") == "a FIFO"
    (tmp_path / "file").touch()
    assert [special_file(tmp_path / name) for name in ("file", ".", "absent")] == ["", "", ""]


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("image.jpg", decode),
        ("list.csv", open_table),
        ("list.parquet", open_table),
        ("recipe.toml", recipe_from),
        ("list.csv", recipe_from),
        ("weights.pth", read_weights),
        ("weights.safetensors", read_tensors),
        ("export.onnx", network_of_file),
        ("export.safetensors", network_of_file),
    ],
)
def test_it_is_refused_wherever_a_file_is_expected(tmp_path, name, use):
    with pytest.raises(ValueError, match="a FIFO, not a regular file"):
        use(str(fifo(tmp_path / name)))


def test_an_export_does_not_read_what_it_would_replace(run, tmp_path):
    with pytest.raises(ValueError, match="is something else"):
        export_run(run, fifo(tmp_path / "export.onnx"))


def test_a_search_for_it_ends_before_the_index_is_opened(tmp_path):
    for path, kind in ((fifo(tmp_path / "query.jpg"), "FIFO"), (os.devnull, "device")):
        message = refused("search", tmp_path / "no-index", path)
        assert f"{path}: is a {kind}, not a regular file" in message


@pytest.mark.parametrize("classes", [True, False])
def test_in_a_folder_it_is_skipped_and_listed(run, tmp_path, classes):
    folder = photos(tmp_path / "photos")
    folder = folder if classes else folder / "class1"
    name = "class1/pipe.jpg" if classes else "pipe.jpg"
    fifo(folder / name)
    done = build(run, folder, tmp_path / "index")
    assert done.skipped == (f"{name}: is a FIFO, not a regular file",)
    assert done.num_items == (6 if classes else 2)


def test_in_a_folder_and_in_a_list_it_is_no_training_image(tmp_path):
    folder = write_glyphs(tmp_path / "few", num_classes=2, per_class=2)
    pipe = fifo(folder / "U+0021" / "pipe.png")
    assert stored_size(pipe, None) == 0
    table = open_table(folder, how=Assembly(split="all"))
    row = next(row for row in range(len(table)) if table.source.file(row) == pipe)
    with pytest.raises(BadImageError, match=r"pipe\.png: is a FIFO"):
        table.source.read(row)
    (tmp_path / "list.csv").write_text("path,label\nfew/U+0021/pipe.png,a\nfew/U+0021/0.png,a\n")
    with pytest.raises(FileNotFoundError, match=r"1 of 2 does not: few/U\+0021/pipe\.png"):
        open_table(tmp_path / "list.csv", how=Assembly(split="all"))


@pytest.mark.parametrize("kind", ["index.json", "thumbnails-*"])
def test_in_an_index_it_is_damage(tmp_path, kind):
    index = shutil.copytree(glyph_catalogue() / "index", tmp_path / "index")
    assert len(opened(index)) == 320
    path = next(index.glob(kind))
    path.unlink()
    fifo(path)
    with pytest.raises(DamagedIndexError, match="a FIFO, not a regular file"):
        Catalogue.open(index, device="cpu")


@pytest.mark.parametrize(
    "name", ["index.json", ".written", ".index.json.lock", ".building/plan.json"]
)
def test_no_index_is_made_where_it_lies_under_a_name_of_an_index(run, tmp_path, name):
    folder = write_glyphs(tmp_path / "few", num_classes=2, per_class=2)
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    fifo(path)
    with pytest.raises(ValueError, match=f"{name} must be a file; it is a FIFO"):
        build(run, folder, tmp_path / "out")
    assert list(path.parent.iterdir()) == [path]

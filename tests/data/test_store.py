"""Stores: the same pixels wherever they are kept, chosen by what fits, and bad images by name."""

import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from miniature import write_image

from weiss._base import images
from weiss._base.devices import available_memory
from weiss.data import CentreCrop
from weiss.data import cache as caches
from weiss.data.cache import build_store, choose_storage, estimated_bytes
from weiss.data.pipeline import Pipeline
from weiss.data.sources import Files, HubImages, Pixels
from weiss.data.store import BadImagesError, Memory, Storage
from weiss.data.table import Table

CPU = torch.device("cpu")


def table_of(folder, count=6, source=None):
    for i in range(count):
        write_image(folder / f"{i}.jpg", i % 2, i, size=(40 + i, 30))
    source = source or Files(folder, [f"{i}.jpg" for i in range(count)])
    return Table("toy", source, np.arange(count) % 2, ("a", "b"), np.full(count, "train"))


def image_of(store, row):
    height, width = store.sizes[row]
    start = store.starts[row]
    return store.pixels[start : start + height * width].view(height, width, -1).cpu().numpy()


@pytest.mark.parametrize(
    ("storage", "num_workers", "channels"),
    [("memory", 0, 1), ("memory", 2, 3), ("disk", 0, 3), ("disk", 2, 1)],
)
def test_a_store_holds_what_decoding_gives(tmp_path, storage, num_workers, channels):
    files = Files(tmp_path, [f"{i}.jpg" for i in range(6)], channels)
    table = table_of(tmp_path, source=files)
    store, errors = build_store(
        table,
        Storage(storage, ""),
        short_side=24,
        num_workers=num_workers,
        cache=tmp_path / "cache",
    )
    assert errors == {}
    for row in range(6):
        np.testing.assert_array_equal(
            image_of(store, row), images.decode(files.file(row), channels, 24)
        )
    part = store.take(np.array([4, 1]))
    np.testing.assert_array_equal(image_of(part, 1), image_of(store, 1))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_images_are_collected_and_the_others_kept(tmp_path, num_workers):
    table = table_of(tmp_path)
    (tmp_path / "2.jpg").write_bytes(b"")
    (tmp_path / "4.jpg").unlink()
    store, errors = build_store(table, Storage("memory", ""), num_workers=num_workers)
    assert list(errors) == [2, 4]
    assert "2.jpg: is empty" in errors[2]
    np.testing.assert_array_equal(image_of(store, 5), images.decode(tmp_path / "5.jpg"))
    with pytest.raises(BadImagesError, match=r"(?s)2 of 6 are not:.*2.jpg.*4.jpg.*--skip-bad"):
        raise BadImagesError(errors, 6)


def test_a_long_list_of_bad_images_is_cut_but_counted():
    errors = {i: f"{i}.jpg: is empty" for i in range(40)}
    with pytest.raises(BadImagesError, match=r"(?s)40 of 99.*9.jpg.*and 30 more") as caught:
        raise BadImagesError(errors, 99)
    assert caught.value.errors == errors


def test_a_store_on_disk_is_decoded_once_and_again_when_a_file_changes(tmp_path, monkeypatch):
    table, cache = table_of(tmp_path), tmp_path / "cache"
    build_store(table, Storage("disk", ""), cache=cache)
    decoded = []
    real = caches.decode_table
    monkeypatch.setattr(caches, "decode_table", lambda *a: decoded.append(1) or real(*a))
    build_store(table, Storage("disk", ""), cache=cache)
    assert decoded == []
    write_image(tmp_path / "3.jpg", 1, 99, size=(50, 50))
    os.utime(tmp_path / "3.jpg", ns=(1, 1))
    store, _ = build_store(table, Storage("disk", ""), cache=cache)
    assert decoded == [1]
    assert store.sizes[3].tolist() == [50, 50]


def test_an_interrupted_store_on_disk_is_made_again(tmp_path, monkeypatch):
    table, cache = table_of(tmp_path), tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setattr(json, "dumps", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_store(table, Storage("disk", ""), cache=cache, num_workers=0)
    store, errors = build_store(table, Storage("disk", ""), cache=cache)
    assert errors == {}
    assert len(store.starts) == 6


def test_a_store_without_a_readable_image_is_empty(tmp_path):
    source = Files(tmp_path, ["none.jpg"])
    table = Table("toy", source, np.array([0]), ("a",), np.array(["train"]))
    store, errors = build_store(table, Storage("memory", ""))
    assert store.sizes.tolist() == [[0, 0]]
    assert list(errors) == [0]


def test_memory_grows_when_images_are_larger_than_expected():
    memory = Memory(0)
    rng = np.random.default_rng(0)
    pieces = [rng.integers(0, 256, 700_000 + i, dtype=np.uint8) for i in range(12)]
    with ThreadPoolExecutor(4) as threads:
        starts = list(threads.map(lambda piece: memory.add(piece.data), pieces))
    flat = memory.pixels(1)[:, 0].numpy()
    for start, piece in zip(starts, pieces, strict=True):
        np.testing.assert_array_equal(flat[start : start + len(piece)], piece)


def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path, monkeypatch):
    table, cache = table_of(tmp_path), tmp_path / "cache"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caches.os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        build_store(table, Storage("disk", ""), cache=cache, num_workers=1)
    assert [p for p in cache.rglob("*") if p.is_file()] == []


def test_images_in_memory_are_not_copied():
    pixels = np.zeros((3, 4, 4, 3), dtype=np.uint8)
    table = Table("toy", Pixels(pixels), np.zeros(3, int), ("a",), np.full(3, "train"))
    store, _ = build_store(table, Storage("memory", ""))
    pixels[2] = 7
    assert (image_of(store, 2) == 7).all()


def test_the_estimate_is_close_to_the_size(tmp_path):
    table = table_of(tmp_path, count=20)
    store, _ = build_store(table, Storage("memory", ""), short_side=24)
    real = int(store.num_pixels().sum()) * 3
    assert abs(estimated_bytes(table, 24) - real) < 0.05 * real


class Fits:
    """A machine with this much free memory and disk."""

    def __init__(self, monkeypatch, memory, disk):
        monkeypatch.setattr(caches, "available_memory", lambda: memory)
        monkeypatch.setattr(caches.shutil, "disk_usage", lambda _: type("U", (), {"free": disk}))


@pytest.mark.parametrize(
    ("memory", "disk", "want"),
    [(10**9, 10**9, "memory"), (10_000, 10**9, "disk"), (10_000, 10_000, "stream")],
)
def test_the_fastest_storage_that_fits_is_chosen_with_a_reason(
    tmp_path, monkeypatch, memory, disk, want
):
    Fits(monkeypatch, memory, disk)
    place = choose_storage(table_of(tmp_path), None, CPU, tmp_path)
    assert place.name == want
    assert place.why.startswith("needs about 0.0 MB")


def test_available_memory_is_positive_and_no_more_than_there_is():
    import psutil

    assert 0 < available_memory() <= psutil.virtual_memory().total


def test_only_files_are_kept_on_disk(tmp_path):
    pixels = Pixels(np.zeros((1, 2, 2), np.uint8))
    table = Table("toy", pixels, np.zeros(1, int), ("a",), np.full(1, "train"))
    with pytest.raises(ValueError, match="must be files to be kept on disk"):
        caches.fingerprint(table, None)


def test_several_builders_of_one_store_on_disk_decode_it_once_and_right(tmp_path, monkeypatch):
    table, cache, decoded = table_of(tmp_path, count=12), tmp_path / "cache", []
    real = caches.decode_table
    monkeypatch.setattr(caches, "decode_table", lambda *a: decoded.append(1) or real(*a))
    with ThreadPoolExecutor(4) as threads:
        place = Storage("disk", "")
        built = list(threads.map(lambda _: build_store(table, place, cache=cache)[0], range(4)))
    assert decoded == [1]
    for store in built:
        for row in range(12):
            want = images.decode(tmp_path / f"{row}.jpg")
            np.testing.assert_array_equal(image_of(store, row), want)


def test_an_index_is_good_for_its_own_pixels_only(tmp_path, monkeypatch):
    # Without a lock, as on a file system that has none: another builder comes in between.
    monkeypatch.setattr(caches, "alone", lambda _: contextlib.nullcontext())
    table, cache = table_of(tmp_path), tmp_path / "cache"
    real, inside = caches.decode_table, []

    def interrupted(*arguments):
        found = real(*arguments)
        if not inside:
            inside.append(1)
            build_store(table.take(np.arange(6)), Storage("disk", ""), cache=cache, num_workers=0)
        return found

    monkeypatch.setattr(caches, "decode_table", interrupted)
    store, _ = build_store(table, Storage("disk", ""), cache=cache, num_workers=2)
    for row in range(6):
        np.testing.assert_array_equal(image_of(store, row), images.decode(tmp_path / f"{row}.jpg"))


def test_a_hub_data_set_that_does_not_fit_memory_is_streamed(monkeypatch):
    Fits(monkeypatch, 1, 10**12)
    table = hub_table()
    assert choose_storage(table, None, CPU).name == "stream"


def hub_table(broken=()):
    class Rows(list):
        pass

    from PIL import Image

    rows = Rows({"image": None if i in broken else Image.new("RGB", (9, 7))} for i in range(4))
    return Table("hub", HubImages(rows, "image"), np.zeros(4, int), ("a",), np.full(4, "train"))


@pytest.mark.parametrize("keep", ["memory", "stream"])
def test_a_broken_row_of_a_hub_data_set_is_a_bad_image(keep):
    with pytest.raises(BadImagesError, match="1 of 4 are not:\n  row 2: cannot be decoded"):
        Pipeline(hub_table(broken=[2]), keep=keep)
    with pytest.warns(UserWarning, match="1 unreadable images are left out"):
        pipeline = Pipeline(hub_table(broken=[2]), keep=keep, skip_bad=True)
    (batch,) = pipeline.evaluation(CentreCrop(4, 7))
    assert batch.images.shape == (3, 3, 4, 4)
    assert not batch.images.any()


@pytest.mark.parametrize("damage", ["pixels", "index", "no pixels"])
def test_a_damaged_store_on_disk_is_made_again(tmp_path, damage):
    table, cache = table_of(tmp_path), tmp_path / "cache"
    build_store(table, Storage("disk", ""), cache=cache)
    (pixels,), (index,) = cache.rglob("pixels-*.bin"), cache.rglob("index.json")
    if damage == "pixels":
        os.truncate(pixels, 1000)
    elif damage == "index":
        index.write_text('{"pixels": 1')
    else:
        pixels.unlink()
    store, _ = build_store(table, Storage("disk", ""), cache=cache)
    for row in range(6):
        np.testing.assert_array_equal(image_of(store, row), images.decode(tmp_path / f"{row}.jpg"))


def test_an_image_that_could_not_be_read_once_is_tried_again(tmp_path, monkeypatch):
    table, cache = table_of(tmp_path), tmp_path / "cache"
    real = images.read

    def failing(path, *arguments, **options):
        return real(b"" if path.name == "2.jpg" else path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(images, "read", failing)
        _, errors = build_store(table, Storage("disk", ""), cache=cache, num_workers=0)
        assert list(errors) == [2]
        _, errors = build_store(table, Storage("disk", ""), cache=cache, num_workers=0)
        assert list(errors) == [2]
    store, errors = build_store(table, Storage("disk", ""), cache=cache, num_workers=0)
    assert errors == {}
    np.testing.assert_array_equal(image_of(store, 2), images.decode(tmp_path / "2.jpg"))


def test_names_that_are_no_text_can_be_kept_on_disk(tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    write_image(tmp_path / "a.png", 0)
    os.rename(tmp_path / "a.png", tmp_path / name)
    table = Table("toy", Files(tmp_path, [name]), np.array([0]), ("a",), np.array(["train"]))
    for workers in (0, 1):
        _, errors = build_store(
            table, Storage("disk", ""), cache=tmp_path / f"c{workers}", num_workers=workers
        )
        assert errors == {}

"""Stores: the same pixels wherever they are kept, chosen by what fits, and bad images by name."""

import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from miniature import toy_table, write_image
from PIL import Image

from weiss._base import images
from weiss._base.devices import available_memory
from weiss._base.images import UNREDUCED, Reduction
from weiss.data import CentreCrop
from weiss.data import cache as caches
from weiss.data.cache import build_store, choose_storage, estimated_bytes
from weiss.data.pipeline import Pipeline
from weiss.data.sources import Files, HubImages, Pixels
from weiss.data.store import BadImagesError, Memory, Storage


def table_of(folder, count=6, channels=3):
    for i in range(count):
        write_image(folder / f"{i}.jpg", i % 2, i, size=(40 + i, 30))
    files = Files(folder, [f"{i}.jpg" for i in range(count)], channels)
    return toy_table([i % 2 for i in range(count)], 2, source=files)


def on_disk(table, cache, **options):
    return build_store(table, Storage("disk", ""), reduction=UNREDUCED, cache=cache, **options)


def image_of(store, row):
    height, width = store.sizes[row]
    start = store.starts[row]
    return store.pixels[start : start + height * width].view(height, width, -1).cpu().numpy()


def assert_decoded(store, table, reduction=UNREDUCED):
    """Assert that a store holds what decoding its files gives."""
    assert len(store.starts) == len(table)
    side, scaled = reduction.short_side, reduction.scaled
    for row in range(len(table)):
        file, channels = table.source.file(row), table.source.channels
        want = images.decode(file, channels, side, scaled=scaled)
        np.testing.assert_array_equal(image_of(store, row), want)


@pytest.mark.parametrize(
    ("storage", "num_workers", "channels", "reduction"),
    [
        ("memory", 0, 1, Reduction(24)),
        ("memory", 2, 3, Reduction(24)),
        ("memory", 0, 3, Reduction(15, scaled=True)),
        ("disk", 0, 3, Reduction(24)),
        ("disk", 2, 1, Reduction(15, scaled=True)),
    ],
)
def test_a_store_holds_what_decoding_gives(tmp_path, storage, num_workers, channels, reduction):
    table, options = table_of(tmp_path, channels=channels), {"cache": tmp_path / "cache"}
    store, errors = build_store(
        table, Storage(storage, ""), reduction=reduction, num_workers=num_workers, **options
    )
    assert errors == {}
    assert_decoded(store, table, reduction)
    part = store.take(np.array([4, 1]))
    np.testing.assert_array_equal(image_of(part, 1), image_of(store, 1))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_images_are_collected_and_the_others_kept(tmp_path, num_workers):
    table = table_of(tmp_path)
    (tmp_path / "2.jpg").write_bytes(b"")
    (tmp_path / "4.jpg").unlink()
    store, errors = build_store(
        table, Storage("memory", ""), reduction=UNREDUCED, num_workers=num_workers
    )
    assert list(errors) == [2, 4]
    assert "2.jpg: is empty" in errors[2]
    np.testing.assert_array_equal(image_of(store, 5), images.decode(tmp_path / "5.jpg"))


def test_a_long_list_of_bad_images_is_cut_but_counted():
    errors = {i: f"{i}.jpg: is empty" for i in range(40)}
    with pytest.raises(BadImagesError, match=r"(?s)40 of 99.*9.jpg.*and 30 more.*--skip") as caught:
        raise BadImagesError(errors, 99)
    assert caught.value.errors == errors


def test_a_store_without_a_readable_image_is_empty(tmp_path):
    table = toy_table([0], 1, source=Files(tmp_path, ["none.jpg"]))
    store, errors = build_store(table, Storage("memory", ""), reduction=UNREDUCED)
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
        on_disk(table, cache, num_workers=1)
    assert [p for p in cache.rglob("*") if p.is_file()] == []


def test_images_in_memory_are_not_copied():
    pixels = np.zeros((3, 4, 4, 3), dtype=np.uint8)
    table = toy_table([0] * 3, 1, source=Pixels(pixels))
    store, _ = build_store(table, Storage("memory", ""), reduction=UNREDUCED)
    pixels[2] = 7
    assert (image_of(store, 2) == 7).all()


def test_the_estimate_is_close_to_the_size(tmp_path):
    table = table_of(tmp_path, count=20)
    store, _ = build_store(table, Storage("memory", ""), reduction=Reduction(24))
    real = int(store.num_pixels().sum()) * 3
    assert abs(estimated_bytes(table, 24) - real) < 0.05 * real


@pytest.mark.parametrize(
    ("memory", "disk", "source", "want"),
    [
        (10**9, 10**9, "files", "memory"),
        (10_000, 10**9, "files", "disk"),
        (10_000, 10_000, "files", "stream"),
        (1, 10**12, "hub", "stream"),
    ],
)
def test_the_fastest_storage_that_fits_is_chosen_with_a_reason(
    tmp_path, monkeypatch, memory, disk, source, want
):
    monkeypatch.setattr(caches, "available_memory", lambda: memory)
    monkeypatch.setattr(caches.shutil, "disk_usage", lambda _: type("U", (), {"free": disk}))
    table = hub_table() if source == "hub" else table_of(tmp_path)
    place = choose_storage(table, None, torch.device("cpu"), tmp_path)
    assert place.name == want
    # Of kept images the pipeline says what they take.
    assert place.why.startswith("needs about 0.0 MB") is (want == "stream")
    assert place.why.endswith(" free")


def test_available_memory_is_positive_and_no_more_than_there_is():
    import psutil

    assert 0 < available_memory() <= psutil.virtual_memory().total


def test_only_files_are_kept_on_disk():
    with pytest.raises(ValueError, match="must be files to be kept on disk"):
        caches.fingerprint(toy_table([0], 1), UNREDUCED)


def test_an_index_is_good_for_its_own_pixels_only(tmp_path, monkeypatch):
    # Without a lock, as on a file system that has none: another builder comes in between.
    monkeypatch.setattr(caches, "alone", lambda _: contextlib.nullcontext())
    table, cache = table_of(tmp_path), tmp_path / "cache"
    real, inside = caches.decode_table, []

    def interrupted(*arguments):
        found = real(*arguments)
        if not inside:
            inside.append(1)
            on_disk(table.take(np.arange(6)), cache, num_workers=0)
        return found

    monkeypatch.setattr(caches, "decode_table", interrupted)
    store, _ = on_disk(table, cache, num_workers=2)
    assert_decoded(store, table)


def hub_table(broken=()):
    rows = [{"image": None if i in broken else Image.new("RGB", (9, 7))} for i in range(4)]
    return toy_table([0] * 4, 1, source=HubImages(rows, "image"))


@pytest.mark.parametrize("keep", ["memory", "stream"])
def test_a_broken_row_of_a_hub_data_set_is_a_bad_image(keep):
    with pytest.raises(BadImagesError, match="1 of 4 are not:\n  row 2: cannot be decoded"):
        Pipeline(hub_table(broken=[2]), keep=keep)
    with pytest.warns(UserWarning, match="1 unreadable images are left out"):
        pipeline = Pipeline(hub_table(broken=[2]), keep=keep, skip_bad=True)
    (batch,) = pipeline.evaluation(CentreCrop(4, 7))
    assert batch.images.shape == (3, 3, 4, 4)
    assert not batch.images.any()


DAMAGE = {
    "cut pixels": lambda pixels, index: os.truncate(pixels, 1000),
    "no pixels": lambda pixels, index: pixels.unlink(),
    "no index": lambda pixels, index: index.unlink(),  # which is written last
    "cut index": lambda pixels, index: os.truncate(index, 100),
    **{
        f"index with {changed}": lambda pixels, index, changed=changed: index.write_text(
            json.dumps(json.loads(index.read_text()) | changed)
        )
        for changed in ({"errors": None}, {"errors": {"6": "is empty"}}, {"starts": [0, 1]})
    },
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_store_on_disk_is_made_again(tmp_path, damage):
    table, cache = table_of(tmp_path), tmp_path / "cache"
    on_disk(table, cache)
    (pixels,), (index,) = cache.rglob("pixels-*.bin"), cache.rglob("index.json")
    damage(pixels, index)
    store, _ = on_disk(table, cache)
    assert_decoded(store, table)


def test_pixels_that_another_process_replaces_at_once_are_already_open(tmp_path, monkeypatch):
    table, cache = table_of(tmp_path), tmp_path / "cache"
    real = caches.alone

    @contextlib.contextmanager
    def replaced_afterwards(index):
        with real(index):
            yield
        for path in cache.rglob("pixels-*.bin"):
            path.unlink()

    monkeypatch.setattr(caches, "alone", replaced_afterwards)
    store, _ = on_disk(table, cache)
    assert_decoded(store, table)


def test_names_that_are_no_text_can_be_kept_on_disk(tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    write_image(tmp_path / "a.png", 0)
    os.rename(tmp_path / "a.png", tmp_path / name)
    table = toy_table([0], 1, source=Files(tmp_path, [name]))
    for workers in (0, 1):
        assert on_disk(table, tmp_path / f"c{workers}", num_workers=workers)[1] == {}

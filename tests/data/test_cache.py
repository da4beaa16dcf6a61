"""Reused images: runs on the same files decode once and see the same bits, never outdated ones."""

import contextlib
import gc
import hashlib
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from miniature import assert_same_batches, toy_table, write_image

from weiss._base import images
from weiss._base.images import UNREDUCED, Reduction
from weiss.data import (
    BadImagesError,
    CentreCrop,
    Pipeline,
    RandomCrop,
    Shuffled,
    from_arrays,
    reuse_decoded_images,
)
from weiss.data import cache as caches
from weiss.data.cache import build_store
from weiss.data.sources import Files
from weiss.data.store import Storage

COUNT = 12


@pytest.fixture
def table(tmp_path):
    """Twelve photographs of a few sizes, in two classes."""
    folder = tmp_path / "photos"
    for i in range(COUNT):
        write_image(folder / f"{i}.jpg", i % 2, i, size=(40 + i, 34 + i % 3))
    files = Files(folder, [f"{i}.jpg" for i in range(COUNT)])
    return toy_table([i % 2 for i in range(COUNT)], 2, source=files)


def pipeline(table, **options):
    return Pipeline(table, **{"keep": "memory", "short_side": 32, "num_workers": 0} | options)


def batches(served):
    training = served.training(Shuffled(len(served.table), 4, 5), RandomCrop(24, seed=2), 1)
    return [*training, *served.evaluation(CentreCrop(24, 28), batch_size=5)]


def spoil(table, row):
    table.source.file(row).write_bytes(b"")


@pytest.mark.parametrize(
    ("keep", "shared"), [("auto", False), ("memory", True), ("disk", False), ("disk", True)]
)
def test_pipelines_on_the_same_files_decode_once_and_serve_the_same_bits(
    table, decoded, keep, shared, tmp_path
):
    want = batches(pipeline(table, cache=tmp_path / "other"))
    decoded.clear()
    with reuse_decoded_images(shared=shared):
        for _ in range(3):
            # The name and the splits of a table do not matter.
            again = replace(table, name="again", splits=np.full(COUNT, "test"))
            served = pipeline(again, keep=keep, cache=tmp_path / "cache")
            assert served.storage.name == {"auto": "memory"}.get(keep, keep)
            assert_same_batches(batches(served), want)
    assert decoded == [COUNT]


def test_a_part_of_the_files_is_found_among_them(table, decoded):
    rows = np.array([7, 2, 9, 4, 3])
    want = batches(pipeline(table.take(rows)))
    decoded.clear()
    with reuse_decoded_images():
        pipeline(table)
        assert_same_batches(batches(pipeline(table.take(rows))), want)
        pipeline(table)  # the whole is still there
        assert decoded == [COUNT]
    with reuse_decoded_images():
        pipeline(table.take(rows))
        pipeline(table)
    assert decoded == [COUNT, 5, COUNT]


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_that_changes_is_decoded_again(table, decoded, shared, tmp_path):
    with reuse_decoded_images(shared=shared):
        pipeline(table, cache=tmp_path / "cache")
        write_image(table.source.file(3), 1, 99, size=(33, 32))
        os.utime(table.source.file(3), ns=(1, 1))
        served = pipeline(table, cache=tmp_path / "cache")
    assert decoded == [COUNT, COUNT]
    assert served._store.sizes[3].tolist() == [32, 33]
    want = images.decode(table.source.file(3), 3, 32).reshape(-1, 3)
    start = served._store.starts[3]
    np.testing.assert_array_equal(served._store.pixels[start : start + len(want)], want)


@pytest.mark.parametrize(
    "other", [{"short_side": 30}, {"short_side": None}, {"keep": "disk"}, {"files": 1}]
)
def test_another_store_replaces_the_kept_one_which_is_gone_before_that_decodes(
    table, other, tmp_path, monkeypatch
):
    extra = tmp_path / "photos" / "new.jpg"
    write_image(extra, 0, 50)
    files = other.pop("files", 0)
    grown = Files(table.source.root, [*table.source.paths, "new.jpg"])
    larger = toy_table([i % 2 for i in range(COUNT + 1)], 2, source=grown)
    real, there = caches.decode_table, []
    with reuse_decoded_images():
        first = weakref.ref(pipeline(table)._store.pixels)
        gc.collect()
        assert first() is not None

        def decode(*arguments):
            there.append(first() is not None)
            return real(*arguments)

        monkeypatch.setattr(caches, "decode_table", decode)
        pipeline(larger if files else table, cache=tmp_path / "cache", **other)
        assert there == [False]
        pipeline(table)  # at most one is kept
        assert there == [False, False]


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_nothing_is_kept_outside_also_after_a_failure(table, decoded, error):
    with contextlib.suppress(RuntimeError), reuse_decoded_images():
        kept = weakref.ref(pipeline(table)._store.pixels)
        assert kept() is not None
        if error:
            raise error
    gc.collect()
    assert kept() is None
    for _ in range(2):
        pipeline(table)
    assert len(decoded) == 3


def test_one_inside_of_another_changes_nothing(table, decoded, tmp_path):
    with reuse_decoded_images():
        pipeline(table)
        with reuse_decoded_images(shared=True):
            pipeline(table, cache=tmp_path / "cache")
        pipeline(table, cache=tmp_path / "cache")
    assert len(decoded) == 2  # one for each cache folder
    assert not (tmp_path / "cache").exists()


def test_images_that_fitted_are_not_moved_for_the_room_they_take(
    table, decoded, monkeypatch, tmp_path
):
    with reuse_decoded_images():
        first = pipeline(table, keep="auto", cache=tmp_path / "cache")
        monkeypatch.setattr(caches, "available_memory", lambda: 1)
        second = pipeline(table, keep="auto", cache=tmp_path / "cache")
        assert second.storage == first.storage == Storage("memory", first.storage.why)
        assert "it has" in second.storage.why
        asked = pipeline(table, keep="memory", cache=tmp_path / "cache")
        assert asked.storage == Storage("memory", "as asked")
        assert decoded == [COUNT]
    with reuse_decoded_images():
        assert pipeline(table, keep="auto", cache=tmp_path / "cache").storage.name == "disk"


def test_a_place_that_is_asked_for_is_where_images_are(table, decoded, tmp_path):
    with reuse_decoded_images():
        assert pipeline(table, keep="auto", cache=tmp_path).storage.name == "memory"
        assert pipeline(table, keep="disk", cache=tmp_path).storage.name == "disk"
        assert pipeline(table, keep="stream", cache=tmp_path).storage.name == "stream"
        assert pipeline(table, keep="disk", cache=tmp_path).storage.name == "disk"
        assert pipeline(table, keep="memory", cache=tmp_path).storage.name == "memory"
    assert len(decoded) == 3


@pytest.mark.parametrize("shared", [False, True])
def test_bad_images_are_refused_and_left_out_as_ever(table, decoded, shared, tmp_path):
    spoil(table, 4)
    spoil(table, 7)

    def left():
        with pytest.warns(UserWarning, match=r"(?s)2 unreadable images.*4.jpg.*7.jpg"):
            served = pipeline(table, skip_bad=True, cache=tmp_path / "cache")
        return served, batches(served)

    alone, want = left()
    decoded.clear()
    with reuse_decoded_images(shared=shared):
        for _ in range(2):
            with pytest.raises(BadImagesError, match=r"(?s)2 of 12.*4.jpg: is empty") as caught:
                pipeline(table, cache=tmp_path / "cache")
            assert list(caught.value.errors) == [4, 7]
            served, found = left()
            assert_same_batches(found, want)
            assert served.skipped == alone.skipped
            assert len(served.table) == COUNT - 2
        with pytest.raises(BadImagesError) as caught:
            pipeline(table.take(np.array([1, 7, 0])), cache=tmp_path / "cache")
        assert list(caught.value.errors) == [1]
        good = table.take(np.array([1, 2, 0, 3]))
        assert not pipeline(good, cache=tmp_path / "cache").skipped
    assert decoded == [COUNT]


def test_scaled_decoding_never_shares_pixels_with_usual_decoding(table, decoded, tmp_path):
    def pixels(keep, scaled):
        served = pipeline(
            table, keep=keep, short_side=16, scaled_decoding=scaled, cache=tmp_path / "cache"
        )
        store = served._store
        return np.concatenate(
            [
                store.pixels[start : start + count].numpy().ravel()
                for start, count in zip(store.starts, store.num_pixels(), strict=True)
            ]
        )

    for keep in ("memory", "disk"):
        with reuse_decoded_images():
            found = [pixels(keep, scaled) for scaled in (False, True, True, False)]
        assert found[0].shape == found[1].shape
        assert (found[0] != found[1]).any()
        np.testing.assert_array_equal(found[1], found[2])
        np.testing.assert_array_equal(found[0], found[3])
    # Both stores stay on disk, in memory there is room for one.
    assert len(decoded) == 3 + 2


def test_the_name_of_a_store_is_that_of_earlier_versions_without_scaled_decoding(table):
    for side in (32, None):
        digest = hashlib.sha256(f"1 {side} 3".encode())
        for row in range(COUNT):
            path = table.source.file(row)
            state = path.stat()
            digest.update(f"{path} {state.st_size} {state.st_mtime_ns}\n".encode())
        assert caches.fingerprint(table, Reduction(side)) == digest.hexdigest()[:24]
    names = {caches.fingerprint(table, Reduction(32, scaled)) for scaled in (False, True)}
    assert len(names) == 2


@pytest.mark.parametrize("keep", ["memory", "disk"])
def test_an_image_that_could_not_be_read_once_is_tried_again(
    table, decoded, monkeypatch, keep, tmp_path
):
    real = images.read

    def failing(path, *arguments, **options):
        return real(b"" if path.name == "2.jpg" else path, *arguments, **options)

    with reuse_decoded_images() if keep == "memory" else contextlib.nullcontext():
        with monkeypatch.context() as patch:
            patch.setattr(images, "read", failing)
            for _ in range(2):
                with pytest.raises(BadImagesError, match="1 of 12"):
                    pipeline(table, keep=keep, cache=tmp_path / "cache")
            assert len(decoded) == 1
        pipeline(table, keep=keep, cache=tmp_path / "cache")
    assert len(decoded) == 2


def test_arrays_stay_as_they_are_and_replace_nothing(table, tmp_path):
    pixels = np.zeros((6, 30, 30, 3), np.uint8)
    with reuse_decoded_images(shared=True):
        kept = weakref.ref(pipeline(table, cache=tmp_path / "cache")._store.pixels)
        served = pipeline(from_arrays(pixels, np.arange(6) // 2), keep="auto")
        assert served.storage.why == "the images are in memory already"
        vectors = pipeline(from_arrays(np.ones((6, 5), np.float32), np.arange(6) // 2))
        assert vectors.storage.why == "vectors need no decoding"
        assert kept() is not None


def test_what_one_process_has_decoded_others_find(table, decoded, tmp_path):
    def worker(_):
        # A thread has a context of its own, and waits for the same lock as a process does.
        with reuse_decoded_images(shared=True):
            return batches(pipeline(table, keep="auto", cache=tmp_path / "cache"))

    want = batches(pipeline(table))
    decoded.clear()
    with ThreadPoolExecutor(3) as threads:
        served = list(threads.map(worker, range(3)))
    assert decoded == [COUNT]
    assert len(list((tmp_path / "cache" / "images").glob("*/pixels-*.bin"))) == 1
    for each in [*served, worker(3)]:
        assert_same_batches(each, want)
    assert decoded == [COUNT]


@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_shared_images_are_brought_to_the_gpu(table, decoded, tmp_path, device):
    place = Storage("gpu", "it fits")
    for _ in range(2):
        store, errors = build_store(
            table,
            place,
            reduction=UNREDUCED,
            device=torch.device(device),
            cache=tmp_path / "cache",
            shared=True,
        )
        assert (store.storage, errors) == (place, {})
        assert store.pixels.device.type == device
    assert decoded == [COUNT]


@pytest.mark.parametrize("why", ["no folder", "read-only", "no room", "full"])
def test_without_a_disk_to_share_each_decodes_for_itself(
    table, decoded, why, tmp_path, monkeypatch
):
    cache = tmp_path / "cache"
    if why == "no folder":
        cache.write_text("a file")
    elif why == "read-only":
        monkeypatch.setattr(caches.os, "access", lambda *_: False)
    elif why == "no room":
        monkeypatch.setattr(caches.shutil, "disk_usage", lambda _: type("U", (), {"free": 9999}))
    else:

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(caches.os, "write", full)
    want = batches(pipeline(table))
    decoded.clear()
    for _ in range(2):
        with reuse_decoded_images(shared=True):
            for _ in range(2):
                served = pipeline(table, cache=cache / "below")
                assert served.storage == Storage("memory", "as asked")
                assert_same_batches(batches(served), want)
    # Once for each of the two; where a disk turns out to be full it has been tried before.
    assert decoded == [COUNT] * (4 if why == "full" else 2)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_disk_without_room_for_more_still_gives_what_it_has(
    table, decoded, tmp_path, monkeypatch
):
    with reuse_decoded_images(shared=True):
        pipeline(table, cache=tmp_path / "cache")
    monkeypatch.setattr(caches.shutil, "disk_usage", lambda _: type("U", (), {"free": 0}))
    with reuse_decoded_images(shared=True):
        pipeline(table, cache=tmp_path / "cache")
    assert decoded == [COUNT]


def test_what_killed_processes_left_in_the_cache_is_removed_when_it_is_old(table, tmp_path):
    place = Storage("disk", "as asked")
    store, _ = build_store(table, place, reduction=UNREDUCED, cache=tmp_path / "cache")
    (folder,) = (tmp_path / "cache" / "images").iterdir()
    (used,) = folder.glob("pixels-*.bin")
    names = (".pixels-0123abcd.bin.0123abcd.tmp", "pixels-0123abcd.bin")
    for name in names:
        (folder / name).write_bytes(b"half of it")
    (folder / "index.json").unlink()  # so that it is written again
    build_store(table, place, reduction=UNREDUCED, cache=tmp_path / "cache")
    assert all((folder / name).exists() for name in names)  # somebody may be writing them
    assert used.exists()
    (folder / "index.json").unlink()
    for path in folder.glob("*pixels-*"):
        os.utime(path, (0, 0))
    again, _ = build_store(table, place, reduction=UNREDUCED, cache=tmp_path / "cache")
    assert len(list(folder.glob("*pixels-*"))) == 1
    # A store that is in use stays readable without its file.
    assert torch.equal(store.pixels[: len(again.pixels)].sum(), again.pixels.sum())


@pytest.mark.gpu
def test_a_kept_store_on_the_gpu_is_found_there_and_its_room_is_given_back(table, decoded):
    def free():
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    # Enough that the GPU's blocks of some megabytes do not hide it.
    many = table.take(np.arange(COUNT).repeat(600))
    with reuse_decoded_images():
        first = pipeline(many, device="cuda", keep="auto")
        second = pipeline(many, device="cuda", keep="auto")
        assert second.storage == first.storage
        assert second._store.pixels.data_ptr() == first._store.pixels.data_ptr()
        assert len(decoded) == 1
        size = first._store.pixels.nbytes
        del first, second
        gc.collect()
        before = free()
    assert free() - before > 0.9 * size

"""The pipeline: the same batches for every storage, process and starting step."""

import gc
import shutil
import threading

import numpy as np
import psutil
import pytest
import torch
from miniature import assert_same_batches, write_photos

from weiss._base.images import BadImageError
from weiss.data import (
    BadImagesError,
    CentreCrop,
    PerClass,
    Pipeline,
    RandomCrop,
    Shuffled,
    from_arrays,
    open_table,
)
from weiss.data.own_data import Assembly

CROP = RandomCrop(24, seed=2)
CENTRE = CentreCrop(24, 28)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"), 5, 6, lambda c, i: (40 + 2 * c, 36 + i))


@pytest.fixture(scope="module")
def table(folder):
    return open_table(folder, how=Assembly(split="all"))


def epoch_of(pipeline, epoch=1, **options):
    sampler = options.pop("sampler", Shuffled(len(pipeline.table), 8, 5))
    return list(pipeline.training(sampler, CROP, epoch, **options))


@pytest.mark.parametrize("keep", ["disk", "stream"])
def test_batches_do_not_depend_on_where_images_are_kept(table, keep, tmp_path):
    memory = Pipeline(table, keep="memory", short_side=32)
    other = Pipeline(table, keep=keep, short_side=32, cache=tmp_path, num_workers=2)
    assert_same_batches(epoch_of(memory), epoch_of(other))
    shown = (kept.evaluation(CENTRE, batch_size=7) for kept in (memory, other))
    assert_same_batches(*shown)


def test_scaled_decoding_does_not_depend_on_where_images_are_kept_either(tmp_path):
    photos = write_photos(tmp_path, 2, 6, lambda c, i: (64 + 2 * c, 58 + i))
    table = open_table(photos, how=Assembly(split="all"))
    options = {"short_side": 28, "scaled_decoding": True}
    memory = Pipeline(table, keep="memory", num_workers=0, **options)
    stream = Pipeline(table, keep="stream", num_workers=1, **options)
    assert_same_batches(epoch_of(memory), epoch_of(stream))
    (usual,) = Pipeline(table, keep="memory", num_workers=0, short_side=28).evaluation(CENTRE)
    (scaled,) = memory.evaluation(CENTRE)
    assert 0 < (usual.images - scaled.images).abs().mean() < 12  # of photos that are noise


def test_a_pipeline_refuses_scaled_decoding_of_images_at_their_own_size(table):
    with pytest.raises(ValueError, match="short_side must be a number of pixels for scaled"):
        Pipeline(table, short_side=None, scaled_decoding=True)
    with pytest.raises(TypeError, match="scaled_decoding must be True or False for Pipeline"):
        Pipeline(table, scaled_decoding="no")


def test_gathering_images_first_changes_nothing(table):
    # What a GPU is served from main memory: a small store of the batch's images alone.
    pipeline = Pipeline(table, keep="memory", short_side=32)
    (batch,) = pipeline.evaluation(CENTRE, rows=np.array([7, 3, 29]))
    gathered = pipeline._store.gather(batch.items)
    assert len(gathered.starts) == 3
    assert torch.equal(
        pipeline._cropped(gathered, batch.items, CENTRE.windows).images, batch.images
    )


def test_a_batch_has_images_labels_and_where_they_come_from(table):
    pipeline = Pipeline(table, keep="memory")
    batch = epoch_of(pipeline)[0]
    assert batch.images.shape == (8, 3, 24, 24)
    assert batch.images.dtype == torch.float32
    assert 0 <= batch.images.min() < batch.images.max() <= 255
    assert batch.labels.tolist() == table.labels[batch.items].tolist()
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    items = np.concatenate([b.items for b in pipeline.evaluation(CENTRE, batch_size=7)])
    assert items.tolist() == list(range(30))


def test_an_epoch_resumes_at_any_step_and_processes_share_it(table):
    pipeline = Pipeline(table, keep="memory")
    whole = epoch_of(pipeline)
    for start in (1, 3):
        assert_same_batches(epoch_of(pipeline, start=start), whole[start:])
    parts = [epoch_of(pipeline, process=p, num_processes=4) for p in range(4)]
    for step, batch in enumerate(whole):
        joined = torch.cat([part[step].images for part in parts])
        assert torch.equal(joined, batch.images)
    assert not torch.equal(epoch_of(pipeline, 4)[0].images, whole[0].images)


def test_an_image_that_comes_twice_in_an_epoch_is_cropped_otherwise(table):
    sampler = PerClass(table, 5, 8, steps=1)
    batch = epoch_of(Pipeline(table, keep="memory"), sampler=sampler)[0]
    first, again = np.flatnonzero(batch.items == batch.items[0])[:2]
    assert not torch.equal(batch.images[first], batch.images[again])


def test_rows_are_what_the_items_of_a_sampler_index(table):
    pipeline = Pipeline(table, keep="memory")
    rows = np.flatnonzero(table.labels == 3)
    batches = epoch_of(pipeline, sampler=Shuffled(len(rows), 3), rows=rows)
    assert {int(i) for b in batches for i in b.items} == set(rows)
    assert all((b.labels == 3).all() for b in batches)


def test_vectors_pass_through():
    vectors = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    pipeline = Pipeline(from_arrays(vectors, np.arange(10) // 2))
    batch = next(pipeline.training(Shuffled(10, 4), CROP, 0))
    np.testing.assert_array_equal(batch.images.numpy(), vectors[batch.items])
    assert pipeline.describe() == "10 vectors on cpu"


def test_many_labels_come_as_rows_of_zeros_and_ones():
    hot = np.array([[1, 0], [1, 1], [0, 1], [1, 0]])
    table = from_arrays(np.zeros((4, 8, 8), np.uint8), hot, Assembly(split="all"))
    batch = next(Pipeline(table).evaluation(CentreCrop(8, 8)))
    assert batch.labels.tolist() == hot.tolist()
    assert batch.images.shape == (4, 1, 8, 8)


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "photos")


@pytest.fixture
def spoiled(copy):
    (copy / "class 1" / "2.jpg").write_bytes(b"")
    whole = (copy / "class 3" / "0.jpg").read_bytes()
    (copy / "class 3" / "0.jpg").write_bytes(whole[: len(whole) // 2])
    return open_table(copy, how=Assembly(split="all"))


@pytest.mark.parametrize("keep", ["memory", "disk", "stream"])
def test_bad_images_are_refused_or_left_out_and_listed(spoiled, keep, tmp_path):
    with pytest.raises(
        BadImagesError, match=r"(?s)2 of 30.*class 1/2.jpg: is empty.*class 3/0.jpg"
    ):
        Pipeline(spoiled, keep=keep, cache=tmp_path)
    with pytest.warns(UserWarning, match=r"(?s)2 unreadable images are left out:.*2.jpg.*0.jpg"):
        pipeline = Pipeline(spoiled, keep=keep, cache=tmp_path, skip_bad=True)
    assert len(pipeline.table) == 28
    assert len(pipeline.skipped) == 2
    good = [spoiled.source.name(i) for i in range(30) if i not in (8, 18)]
    assert [pipeline.table.source.name(i) for i in range(28)] == good
    shown = torch.cat([b.images for b in pipeline.evaluation(CENTRE)])
    assert len(shown) == 28


def test_nothing_but_bad_images_is_refused_even_so(tmp_path):
    for c in "ab":
        (tmp_path / c).mkdir()
        for i in range(2):
            (tmp_path / c / f"{i}.jpg").write_bytes(b"no")
    with pytest.raises(BadImagesError, match="4 of 4"):
        Pipeline(open_table(tmp_path), skip_bad=True)


def test_an_image_that_breaks_during_a_run_is_named(copy):
    pipeline = Pipeline(open_table(copy, how=Assembly(split="all")), keep="stream", num_workers=1)
    (copy / "class 0" / "0.jpg").write_bytes(b"")
    with pytest.raises(BadImageError, match="must not change.*0.jpg: is empty"):
        list(pipeline.evaluation(CENTRE))


def test_streaming_leaves_no_process_and_no_thread_behind(table):
    before, threads = set(psutil.Process().children()), threading.active_count()
    pipeline = Pipeline(table, keep="stream", num_workers=2)
    for batch in pipeline.evaluation(CENTRE, batch_size=4):
        assert len(set(psutil.Process().children()) - before) == 2
        if batch.items[0] > 8:
            break
    del batch
    gc.collect()
    assert set(psutil.Process().children()) == before
    assert threading.active_count() == threads


def test_it_describes_where_the_images_are(table):
    line = Pipeline(table).describe()
    assert line.startswith("30 images, 0.2 MB decoded in memory (it has ")
    assert line.count("0.2 MB") == 1
    stream = Pipeline(table, keep="stream", num_workers=1)
    assert stream.describe() == "30 images, decoded each time (as asked)"


def test_an_impossible_storage_is_refused(table):
    with pytest.raises(ValueError, match="keep must be one of .*Did you mean 'memory'"):
        Pipeline(table, keep="memry")
    with pytest.raises(ValueError, match="keep must not be 'gpu'.*on cpu.*CUDA"):
        Pipeline(table, keep="gpu")


@pytest.mark.parametrize("keep", ["auto", "disk", "stream"])
def test_arrays_are_served_as_they_are_wherever_they_should_be_kept(keep):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 60, 80, 3), dtype=np.uint8)
    table = from_arrays(pixels, [0, 0, 1, 1], Assembly(split="all"))
    want = next(Pipeline(table, keep="memory", short_side=32).evaluation(CENTRE))
    pipeline = Pipeline(table, keep=keep, short_side=32)
    assert torch.equal(next(pipeline.evaluation(CENTRE)).images, want.images)
    assert pipeline.storage.name == "memory"


def test_rows_of_another_table_are_refused(spoiled):
    with pytest.warns(UserWarning, match="left out"):
        pipeline = Pipeline(spoiled, skip_bad=True)
    with pytest.raises(ValueError, match="28 items of pipeline.table; .* for 30.*rows=table"):
        pipeline.training(Shuffled(30, 30), CROP, 0)
    with pytest.raises(ValueError, match=r"\[0, 28\).*pipeline.table, 2 having been .*; got 29"):
        pipeline.training(Shuffled(30, 30), CROP, 0, rows=np.arange(30))
    with pytest.raises(ValueError, match="got -1"):
        pipeline.evaluation(CENTRE, rows=np.array([-1]))


@pytest.mark.parametrize("start", [-1, 4])
def test_a_start_outside_of_the_epoch_is_refused(table, start):
    with pytest.raises(ValueError, match=rf"start must lie in \[0, 3\].*got {start}"):
        Pipeline(table, keep="memory").training(Shuffled(30, 8), CROP, 0, start=start)


def test_crops_from_images_that_were_kept_too_small_are_warned_of(table):
    with pytest.warns(UserWarning, match="at most 20 pixels and will be enlarged to 28"):
        next(Pipeline(table, keep="memory", short_side=20).evaluation(CENTRE))

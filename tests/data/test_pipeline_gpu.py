"""The pipeline on a GPU: the same batches as on the CPU, from wherever the images are kept."""

import gc
import threading

import numpy as np
import pytest
import torch
from miniature import write_photos

from weiss.backbones import make_backbone
from weiss.data import Assembly, CentreCrop, Pipeline, RandomCrop, Shuffled, open_table

pytestmark = pytest.mark.gpu
CROP = RandomCrop(48, seed=2)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    write_photos(root, 5, 8, lambda c, i: (80 + 9 * c, 66 + 7 * i))
    return open_table(root, how=Assembly(split="all"))


def batches(pipeline):
    training = list(pipeline.training(Shuffled(len(pipeline.table), 8, 5), CROP, 3))
    return training + list(pipeline.evaluation(CentreCrop(48, 56), batch_size=7))


@pytest.mark.parametrize("keep", ["gpu", "memory", "disk", "stream"])
def test_batches_are_those_of_the_cpu(table, keep, tmp_path):
    on_gpu = Pipeline(table, device="cuda", keep=keep, short_side=64, cache=tmp_path, num_workers=2)
    on_cpu = Pipeline(table, keep="memory", short_side=64)
    for mine, want in zip(batches(on_gpu), batches(on_cpu), strict=True):
        assert mine.images.device.type == mine.labels.device.type == "cuda"
        np.testing.assert_array_equal(mine.items, want.items)
        torch.testing.assert_close(mine.labels.cpu(), want.labels)
        # Products in float16 there, in float32 here; a grey level is 1.
        torch.testing.assert_close(mine.images.cpu(), want.images, atol=0.25, rtol=0)


def test_places_give_the_same_bits(table):
    gpu, memory = (
        batches(Pipeline(table, device="cuda", keep=keep, short_side=64))
        for keep in ("gpu", "memory")
    )
    for one, other in zip(gpu, memory, strict=True):
        assert torch.equal(one.images, other.images)


def test_images_that_fit_the_gpu_are_kept_there(table):
    pipeline = Pipeline(table, device="cuda")
    assert pipeline.storage.name == "gpu"
    assert "decoded on the GPU" in pipeline.describe()
    assert "the GPU has" in pipeline.describe()


def test_batches_do_not_follow_autocast_or_gradients(table):
    pipeline = Pipeline(table, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        batch = next(pipeline.training(Shuffled(40, 8), CROP, 0))
    assert batch.images.dtype == torch.float32
    assert not batch.images.requires_grad
    assert batch.images.is_contiguous(memory_format=torch.channels_last)


def test_memory_stays_flat_over_epochs(table):
    pipeline = Pipeline(table, device="cuda", keep="memory")
    peaks = []
    for epoch in range(6):
        torch.cuda.reset_peak_memory_stats()
        for _ in pipeline.training(Shuffled(40, 8), CROP, epoch):
            pass
        peaks.append(torch.cuda.max_memory_allocated())
    assert max(peaks[3:]) <= max(peaks[:3]) * 1.05


@pytest.mark.parametrize("name", ["resnet50_v1", "bn_inception", "resnet18"])
def test_a_backbone_in_bfloat16_is_near_its_float32_self(table, name):
    torch.manual_seed(0)
    model = make_backbone(name, 64, weights="scratch").eval()
    images = torch.cat([b.images for b in Pipeline(table).evaluation(CentreCrop(64, 72))])[:8]
    with torch.no_grad():
        want = model(images)
        fast = model.cuda().to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            got = fast(images.cuda())
    assert got.dtype == torch.float32
    assert (got.cpu() * want).sum(dim=1).min() > 0.99


@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_a_compiled_backbone_trains(table):
    torch.manual_seed(0)
    model = make_backbone("resnet18", 64, weights="scratch", freeze_bn="statistics").cuda()
    compiled = torch.compile(model)
    images = next(Pipeline(table, device="cuda").evaluation(CentreCrop(64, 72))).images[:8]
    plain = model(images)
    torch.testing.assert_close(compiled(images), plain, atol=2e-3, rtol=0)
    compiled(images).sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_leaving_an_epoch_early_leaves_no_thread_behind(table):
    pipeline = Pipeline(table, device="cuda", keep="stream", num_workers=2)
    before = threading.active_count()
    for _ in pipeline.training(Shuffled(40, 8), CROP, 0):
        break
    gc.collect()
    assert threading.active_count() == before

"""Crops: torchvision's distribution, Pillow's pixels, and the same box at the same place."""

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from weiss.data import CentreCrop, RandomCrop
from weiss.data.crops import Windows
from weiss.data.resample import resample

RNG = np.random.default_rng(0)
SIZES = [(256, 341), (300, 256), (400, 500), (90, 120), (257, 256), (256, 1000)]


def photo(height, width):
    small = RNG.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height)))


PHOTOS = [photo(*size) for size in SIZES]


def cropped(photos, windows, *, behind=None):
    """Crop photos that lie one after the other in memory, perhaps with something behind them."""
    sizes = np.array([photo.shape[:2] for photo in photos])
    laid_out = photos if behind is None else [*photos, behind]
    pixels = torch.from_numpy(np.concatenate([p.reshape(-1, p.shape[2]) for p in laid_out]))
    lengths = sizes.prod(axis=1)
    starts = np.cumsum(lengths) - lengths
    return resample(pixels, starts, sizes[:, 1], windows).permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize(("size", "resize"), [(227, 256), (64, 72)])
def test_evaluation_agrees_with_torchvision(torchvision_transforms, size, resize):
    t = torchvision_transforms
    reference = t.Compose([t.Resize(resize), t.CenterCrop(size)])
    sizes = np.array(SIZES)
    got = cropped(PHOTOS, CentreCrop(size, resize).windows(sizes))
    for mine, photo in zip(got, PHOTOS, strict=True):
        theirs = np.asarray(reference(Image.fromarray(photo))).astype(float)
        assert np.abs(mine - theirs).mean() < 0.5  # of 255: both round, we do not
        assert np.abs(mine - theirs).max() < 2


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_a_random_crop_is_that_box_cut_out_and_resized_by_pillow(flip):
    windows = RandomCrop(96, flip=flip, seed=4).windows(np.array(SIZES), 2, np.arange(len(SIZES)))
    got = cropped(PHOTOS, windows)
    for i, photo in enumerate(PHOTOS):
        (top, left), (bottom, right) = windows.low[i], windows.high[i]
        box = Image.fromarray(photo).crop((left, top, right, bottom))
        want = np.asarray(box.resize((96, 96), Image.Resampling.BILINEAR)).astype(float)
        want = want[:, ::-1] if flip else want
        assert np.abs(got[i] - want).mean() < 0.5


@pytest.mark.parametrize("size", [(256, 341), (400, 256), (60, 600)])
def test_boxes_follow_torchvisions_distribution(torchvision_transforms, size):
    num, (height, width) = 2000, size
    windows = RandomCrop(seed=1).windows(np.tile(size, (num, 1)), 0, np.arange(num))
    torch.manual_seed(0)
    image = torch.zeros(3, height, width)
    theirs = np.array(
        [
            torchvision_transforms.RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3))
            for _ in range(num)
        ]
    )
    mine = np.concatenate([windows.low, windows.high - windows.low], axis=1)
    area = lambda box: box[:, 2] * box[:, 3]  # noqa: E731
    ratio = lambda box: box[:, 3] / box[:, 2]  # noqa: E731
    for measure in (area, ratio, *(lambda box, k=k: box[:, k] for k in range(4))):
        assert stats.ks_2samp(measure(mine), measure(theirs)).pvalue > 1e-3
    assert 0.45 < windows.flip.mean() < 0.55


def test_boxes_lie_inside_the_image():
    sizes = RNG.integers(3, 400, (3000, 2))
    windows = RandomCrop().windows(sizes, 0, np.arange(3000))
    assert (windows.low >= 0).all()
    assert (windows.high <= sizes).all()
    assert (windows.high > windows.low).all()


def test_a_box_depends_on_seed_epoch_and_place_alone():
    crop, sizes = RandomCrop(seed=3), np.tile((200, 300), (10, 1))
    whole = crop.windows(sizes, 1, np.arange(10))
    part = crop.windows(sizes[4:7], 1, np.arange(4, 7))
    np.testing.assert_array_equal(whole.start[4:7], part.start)
    for other in (
        crop.windows(sizes, 2, np.arange(10)),
        RandomCrop(seed=4).windows(sizes, 1, np.arange(10)),
    ):
        assert (whole.start != other.start).any()


def test_resizing_first_draws_boxes_in_the_resized_image():
    # An image of twice the size, resized to one, shows the same boxes as the one itself.
    small, large = np.array([[128, 160]]), np.array([[256, 320]])
    once = RandomCrop(64, resize=None).windows(small, 0, np.arange(1))
    twice = RandomCrop(64, resize=128).windows(large, 0, np.arange(1))
    np.testing.assert_allclose(twice.start, 2 * once.start)
    np.testing.assert_allclose(twice.scale, 2 * once.scale)


def test_a_crop_of_the_same_size_is_the_image_itself():
    glyphs = RNG.integers(0, 256, (5, 32, 32, 1), dtype=np.uint8)
    got = cropped(list(glyphs), CentreCrop(32, 32).windows(np.full((5, 2), 32)))
    np.testing.assert_array_equal(got, glyphs)


@pytest.mark.parametrize("crop", [CentreCrop(64, 72), None])
def test_what_lies_behind_the_pixels_does_not_matter(crop):
    place = () if crop else (0, np.arange(len(SIZES)))
    windows = (crop or RandomCrop(64)).windows(np.array(SIZES), *place)
    noise = RNG.integers(0, 256, (40, 2000, 3), dtype=np.uint8)
    padded = cropped(PHOTOS, windows, behind=noise)
    np.testing.assert_array_equal(padded, cropped(PHOTOS, windows))


def test_memory_stays_within_a_budget_however_large_the_images(monkeypatch):
    windows = CentreCrop(64, 72).windows(np.array(SIZES))
    whole = cropped(PHOTOS, windows)
    monkeypatch.setattr("weiss.data.resample.CPU_BYTES", 1)
    np.testing.assert_array_equal(cropped(PHOTOS, windows), whole)


BAD = {
    "large": (lambda: CentreCrop(257, 256), "size must be at most resize, 256.*got 257"),
    "area": (lambda: RandomCrop(area=(0.5, 0.2)), "area must be a range.*smaller one first"),
    "more": (lambda: RandomCrop(area=(0.5, 1.2)), "area must end at 1.*got 1.2"),
    "ratio": (lambda: RandomCrop(ratio=(0, 1)), "ratio must be a range"),
    "number": (lambda: RandomCrop(area=0.5), "area must be a range.*got 0.5. Pass two numbers"),
    "resize": (lambda: RandomCrop(resize=0), "resize must be at least 1"),
    "flip": (lambda: RandomCrop(flip=2), "flip must be a probability.*got 2"),
    "size": (lambda: RandomCrop(0), "size must be at least 1"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_crops_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


TALL_AND_WIDE = [*PHOTOS, photo(3000, 40), photo(40, 3000)]


def test_whole_images_are_resized_as_by_pillow():
    sizes = np.array([p.shape[:2] for p in TALL_AND_WIDE])
    got = cropped(TALL_AND_WIDE, Windows.plain(sizes, np.zeros(sizes.shape), sizes / 32, 32))
    for mine, one in zip(got, TALL_AND_WIDE, strict=True):
        want = np.asarray(Image.fromarray(one).resize((32, 32), Image.Resampling.BILINEAR))
        assert np.abs(mine - want).mean() < 0.6


# Tall and wide ones are done in parts; a narrow last one must not be read beyond the pixels.
@pytest.mark.parametrize("photos", [TALL_AND_WIDE, [photo(40, 90), photo(30, 36)]])
def test_images_together_are_what_each_is_alone(photos):
    sizes = np.array([p.shape[:2] for p in photos])
    crop = CentreCrop(24, 24)
    together = cropped(photos, crop.windows(sizes))
    for i, one in enumerate(photos):
        alone = cropped([one], crop.windows(sizes[i : i + 1]))
        np.testing.assert_allclose(together[i], alone[0], atol=1e-3)

"""Decoding: every kind of file becomes 8-bit pixels, upright, or a word why not."""

import io
import struct
import threading
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from weiss._base import images
from weiss._base.images import BadImageError, decode

RNG = np.random.default_rng(0)
# Smooth, so that lossy formats keep it nearly as it is.
PIXELS = np.asarray(
    Image.fromarray(RNG.integers(0, 256, (4, 6, 3), dtype=np.uint8)).resize((60, 40))
)


def saved(image, name, folder, **options):
    path = folder / name
    image.save(path, **options)
    return path


@pytest.mark.parametrize("suffix", ["png", "bmp", "ppm", "tif", "webp", "jpg"])
def test_formats_agree(tmp_path, suffix):
    options = {"webp": {"lossless": True}, "jpg": {"quality": 95}}.get(suffix, {})
    got = decode(saved(Image.fromarray(PIXELS), f"a.{suffix}", tmp_path, **options))
    assert got.shape == PIXELS.shape
    assert got.dtype == np.uint8
    assert np.abs(got.astype(int) - PIXELS).mean() < (2 if suffix == "jpg" else 1e-9)


def test_photos_of_a_phone_are_read_upright_or_refused_with_what_to_install(tmp_path, monkeypatch):
    pytest.importorskip("pillow_heif").register_heif_opener()
    exif = Image.Exif()
    exif[images.ORIENTATION] = 6
    path = saved(Image.fromarray(PIXELS), "a.heic", tmp_path, quality=95, exif=exif.tobytes())
    assert decode(path).shape == (60, 40, 3)  # turned
    assert images.stored_size(path, 20) == 20 * 30
    turned = np.rot90(PIXELS, -1).astype(int)
    assert np.abs(decode(path) - turned).mean() < 8  # the other way: 68
    with pytest.raises(BadImageError):  # never of an upload
        decode(path.read_bytes(), formats=images.FORMATS)
    monkeypatch.setattr(images, "find_spec", lambda name: None)
    monkeypatch.delitem(Image.OPEN, "HEIF")
    for source in (path, path.read_bytes()):
        with pytest.raises(BadImageError, match=r"HEIC.*weiss\[heic\]"):
            decode(source)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    # What a camera held that way would have stored; the oracle is the standard's own table.
    undo = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: np.rot90(a, -1),
    }[orientation]
    stored = Image.fromarray(np.ascontiguousarray(undo(PIXELS)))
    np.testing.assert_array_equal(decode(saved(stored, "a.png", tmp_path, exif=exif)), PIXELS)


def test_orientation_of_a_jpeg_swaps_its_sides(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(Image.fromarray(PIXELS), "a.jpg", tmp_path, exif=exif)
    assert decode(path).shape == (60, 40, 3)


def test_grey_becomes_three_equal_channels(tmp_path):
    grey = Image.fromarray(PIXELS[:, :, 0])
    got = decode(saved(grey, "a.png", tmp_path))
    np.testing.assert_array_equal(got, PIXELS[:, :, :1].repeat(3, axis=2))
    np.testing.assert_array_equal(
        decode(saved(grey, "a.png", tmp_path), channels=1), PIXELS[:, :, :1]
    )


def test_transparent_pixels_are_laid_over_white(tmp_path):
    alpha = np.zeros((40, 60), dtype=np.uint8)
    alpha[:, 30:] = 255
    image = Image.fromarray(np.dstack([PIXELS, alpha]))
    got = decode(saved(image, "a.png", tmp_path))
    assert (got[:, :30] == 255).all()
    np.testing.assert_array_equal(got[:, 30:], PIXELS[:, 30:])
    pixels = PIXELS.copy()
    pixels[:, :30] = (255, 0, 255)  # a colour that stands for transparent
    path = saved(Image.fromarray(pixels), "b.png", tmp_path, transparency=(255, 0, 255))
    assert (decode(path)[:, :30] == 255).all()


@pytest.mark.parametrize("mode", ["P", "LA", "1", "CMYK", "YCbCr", "LAB", "HSV"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_colour_space_is_read(tmp_path, mode, channels):
    image = Image.fromarray(PIXELS)
    image = image.convert("L").convert(mode) if mode in ("LA", "1") else image.convert(mode)
    if mode == "P":
        image = Image.fromarray(PIXELS).quantize(256)
    suffix = {"CMYK": "jpg", "YCbCr": "tif", "LAB": "tif"}.get(mode, "png")
    if mode == "HSV":  # no format stores it, but a data set may hand it over
        got = images.upright(image, channels)
    else:
        got = decode(saved(image, f"a.{suffix}", tmp_path), channels)
    assert got.shape == (40, 60, channels)
    if mode in ("P", "CMYK", "YCbCr"):
        want = PIXELS if channels == 3 else np.asarray(Image.fromarray(PIXELS).convert("L"))
        assert np.abs(got.squeeze().astype(int) - want).mean() < 12


def test_floats_of_a_known_range_are_read_and_others_refused(tmp_path):
    unit = Image.fromarray((PIXELS[:, :, 0] / 255).astype(np.float32))
    got = decode(saved(unit, "a.tif", tmp_path), channels=1)[:, :, 0]
    np.testing.assert_array_equal(got, PIXELS[:, :, 0])
    wild = Image.fromarray(np.full((4, 4), -3.5, dtype=np.float32))
    with pytest.raises(BadImageError, match="values from -3.5 to -3.5 in mode F.*8 or 16 bits"):
        decode(saved(wild, "b.tif", tmp_path))


def test_of_an_animation_the_first_frame_is_read(tmp_path):
    red, blue = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
    for suffix in ("gif", "webp", "png"):
        path = saved(red, f"a.{suffix}", tmp_path, save_all=True, append_images=[blue])
        got = decode(path)
        assert got.shape == (8, 8, 3)
        assert (got.reshape(-1, 3).mean(axis=0) > [200, -1, -1]).all()
        assert got[..., 2].max() < 60


@pytest.mark.parametrize(("size", "want"), [((500, 333), (384, 256)), ((100, 300), (100, 300))])
def test_only_larger_images_are_reduced(tmp_path, size, want):
    path = saved(Image.new("RGB", size), "a.png", tmp_path)
    assert decode(path, short_side=256).shape == (want[1], want[0], 3)
    assert images.stored_size(path, 256) == want[0] * want[1]


def test_reducing_an_array_is_reducing_its_file(tmp_path):
    path = saved(Image.fromarray(PIXELS), "a.png", tmp_path)
    for channels in (1, 3):
        np.testing.assert_array_equal(
            images.reduced(decode(path, channels), 16), decode(path, channels, short_side=16)
        )


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


JPEG, PNG = (encoded(Image.fromarray(PIXELS), kind) for kind in ("JPEG", "PNG"))
BAD = {
    "empty": (b"", r"empty \(zero bytes\)"),
    "truncated jpeg": (JPEG[: len(JPEG) // 2], "cannot be decoded .*[Tt]runcated"),
    "truncated png": (PNG[: len(PNG) // 2], "cannot be decoded"),
    "damaged png": (PNG[:60] + b"\0" * 40 + PNG[100:], "cannot be decoded"),
    "text": (b"<html>not found</html>", "is no image that Pillow can read"),
    "header only": (JPEG[:20], "cannot be decoded|no image"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_named_with_the_reason(tmp_path, kind):
    data, message = BAD[kind]
    path = tmp_path / "bad.jpg"
    path.write_bytes(data)
    with pytest.raises(BadImageError, match=f"bad.jpg: .*({message})"):
        decode(path)
    assert images.stored_size(path, 256) >= 0


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(BadImageError, match="gone.jpg: cannot be opened .No such file"):
        decode(tmp_path / "gone.jpg")
    with pytest.raises(BadImageError, match="cannot be opened .Is a directory"):
        decode(tmp_path)
    with pytest.raises(BadImageError, match="cannot be decoded .embedded null byte"):
        decode("a\0b.jpg")


@pytest.mark.parametrize("side", [13_500, 20_000])
def test_a_decompression_bomb_is_refused_before_it_is_unpacked(tmp_path, side):
    # A tiny file that claims a huge image: one row of a real PNG with its header rewritten.
    buffer = io.BytesIO()
    Image.new("L", (side, 1)).save(buffer, "PNG")
    data = bytearray(buffer.getvalue())
    data[20:24] = struct.pack(">I", side)
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    path = tmp_path / "bomb.png"
    path.write_bytes(data)
    with pytest.raises(BadImageError, match=r"bomb.png: has .*178,956,970"):
        decode(path)


# Scaled decoding: a smooth photo, large enough for 1/8.
PHOTO = Image.fromarray(PIXELS).resize((403, 301), Image.Resampling.BICUBIC)


def usual_and_scaled(content, channels, short_side):
    usual = decode(content, channels, short_side)
    scaled = decode(content, channels, short_side, scaled=True)
    assert usual.shape == scaled.shape
    return usual.astype(int), scaled.astype(int)


def test_without_scaled_decoding_pixels_are_those_of_pillow():
    content = encoded(PHOTO, "JPEG")
    with Image.open(io.BytesIO(content)) as file:
        whole = file.convert("RGB")
    np.testing.assert_array_equal(decode(content), np.asarray(whole))
    want = whole.resize((133, 100), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(decode(content, 3, 100), np.asarray(want))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_scaled_decoding_gives_the_same_size_and_nearly_the_same_pixels(mode, progressive):
    content = encoded(PHOTO.convert(mode), "JPEG", quality=92, progressive=progressive)
    for channels in (1, 3):
        for side in (150, 100, 75, 40, 9):
            usual, scaled = usual_and_scaled(content, channels, side)
            assert 0 < np.abs(usual - scaled).mean() < 1


@pytest.mark.parametrize(
    ("short_side", "scale"), [(301, 1), (151, 1), (150, 2), (76, 2), (75, 4), (38, 4), (37, 8)]
)
def test_the_scale_is_the_smallest_that_is_not_below_the_target(monkeypatch, short_side, scale):
    loaded = []
    real = images._scaled

    def scaled(image, side):
        found = real(image, side)
        loaded.append(image.size)
        return found

    monkeypatch.setattr(images, "_scaled", scaled)
    decode(encoded(PHOTO, "JPEG"), 3, short_side, scaled=True)
    assert loaded == [(-(-403 // scale), -(-301 // scale))]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_scaled_decoding_turns_a_photo_upright(orientation):
    exif = Image.Exif()
    exif[images.ORIENTATION] = orientation
    usual, scaled = usual_and_scaled(encoded(PHOTO, "JPEG", quality=92, exif=exif), 3, 37)
    assert scaled.shape[:2] == ((37, 49) if orientation < 5 else (49, 37))
    assert np.abs(usual - scaled).mean() < 1


def test_a_photo_of_several_pictures_is_scaled_too():
    options = {"save_all": True, "append_images": [PHOTO.transpose(Image.Transpose.ROTATE_180)]}
    usual, scaled = usual_and_scaled(encoded(PHOTO, "MPO", quality=92, **options), 3, 75)
    assert 0 < np.abs(usual - scaled).mean() < 1


@pytest.mark.parametrize(
    ("image", "kind", "short_side"),
    [
        *((PHOTO, "JPEG", side) for side in (151, 301, 500, None)),  # not twice as large
        *((PHOTO, kind, 40) for kind in ("PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")),
    ],
)
def test_what_cannot_be_scaled_is_decoded_as_usual(image, kind, short_side):
    usual, scaled = usual_and_scaled(encoded(image, kind), 3, short_side)
    np.testing.assert_array_equal(usual, scaled)


def test_scaled_decoding_refuses_what_usual_decoding_refuses():
    whole = encoded(PHOTO, "JPEG")
    for content in (whole[: len(whole) // 2], whole[:20], b"", b"words"):
        messages = []
        for scaled in (False, True):
            with pytest.raises(BadImageError) as caught:
                decode(content, 3, 40, scaled=scaled)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


def test_scaled_decoding_needs_a_size_to_reduce_to():
    with pytest.raises(ValueError, match="short_side must be a number of pixels for scaled.*None"):
        images.Reduction(None, scaled=True)


def test_a_look_gives_the_size_that_decoding_gives():
    assert images.look(PNG, max_pixels=2400, max_side=60) == (60, 40)
    np.testing.assert_array_equal(decode(PNG), PIXELS)


@pytest.mark.parametrize(
    ("content", "limits", "why"),
    [
        (PNG, {"max_pixels": 2399}, "has 60 x 40 pixels"),
        (PNG, {"max_side": 59}, "has 60 x 40 pixels"),
        (b"", {}, "is empty"),
        (b"words", {}, "is no image"),
    ],
)
def test_a_look_refuses_what_is_too_large_or_no_image(content, limits, why):
    with pytest.raises(BadImageError, match=why) as caught:
        images.look(content, **({"max_pixels": 10**6, "max_side": 1000} | limits))
    assert isinstance(caught.value, images.TooLargeImageError) == bool(limits)


def test_a_format_that_was_not_asked_for_is_no_image():
    content = encoded(Image.fromarray(PIXELS), "BMP")
    assert decode(content, formats=("BMP",)).shape == PIXELS.shape
    with pytest.raises(BadImageError, match="is no image that Pillow can read"):
        decode(content, formats=("PNG", "JPEG"))


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("strip", [images.STRIP, 120, 10])  # at once, two rows, less than one
def test_sixteen_bits_keep_their_range_at_once_and_in_strips(monkeypatch, tmp_path, strip, suffix):
    deep = np.random.default_rng(0).integers(0, 65536, (37, 50)).astype(np.uint16)
    monkeypatch.setattr(images, "STRIP", strip)
    got = decode(saved(Image.fromarray(deep), f"a.{suffix}", tmp_path), 1)
    assert np.array_equal(got[:, :, 0], np.rint(deep / 257))


def test_one_number_that_is_none_is_found_in_any_strip(monkeypatch, tmp_path):
    monkeypatch.setattr(images, "STRIP", 4)
    values = np.zeros((6, 4), np.float32)
    for row, value in ((0, np.nan), (5, np.inf), (3, -np.inf)):
        broken = values.copy()
        broken[row, 1] = value
        with pytest.raises(BadImageError, match="no numbers .NaN or infinity"):
            decode(saved(Image.fromarray(broken), f"{row}.tif", tmp_path))


def test_pixels_of_16_bits_take_little_more_memory_than_they_have():
    content = encoded(Image.fromarray(np.zeros((3000, 3000), np.uint16)), "PNG")
    tracemalloc.start()  # it sees arrays, and not what Pillow holds
    try:
        decode(content, short_side=32)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 3000 * 3000  # as floats of 64 bits they have twice that


def test_threads_that_decode_leave_the_warnings_of_others_as_they_were():
    before = list(warnings.filters)
    first, second = threading.Event(), threading.Event()

    def decode_until(mine, other):
        with images._quiet():
            mine.set()
            other.wait(30)

    thread = threading.Thread(target=decode_until, args=(first, second))
    thread.start()
    first.wait(30)
    # The second one begins while the first is at it, and ends after it.
    with images._quiet():
        second.set()
        thread.join(30)
        with pytest.raises(UserWarning, match="of somebody else"):  # here they are errors
            warnings.warn("of somebody else", stacklevel=1)
        warnings.warn_explicit("of Pillow", UserWarning, "Image.py", 1, "PIL.Image")
    assert list(warnings.filters) == before

"""Image files as arrays: upright, RGB or grey, 8 bits, or an error with the reason.

Little more than Pillow is imported, so that a decoding process starts fast; NumPy only where an
array is made.
"""

import io
import math
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, UnidentifiedImageError

from weiss._base.files import special_file

if TYPE_CHECKING:
    from weiss._base.arrays import Array

SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".avif"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".heic", ".heif"),
)
FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP")
"""Formats accepted in untrusted uploads: those that browsers show. Pillow has others that start
another program (EPS), whose tiles may be far larger than the image (TIFF), or that it reads byte by
byte in Python (PPM)."""
OWN_FORMATS = (*FORMATS, "TIFF", "PPM", "HEIF")
"""Formats accepted in trusted files: those of `SUFFIXES`, whatever the file name is.
HEIF, the format of phones, needs pillow-heif."""
HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
MAX_SCANS = 100
"""Scans of an untrusted JPEG file: a progressive one has about ten, and each of them goes over the
whole image, however few bytes it takes."""
MAX_PIXELS = 178_956_970
"""Larger images are refused as decompression bombs: Pillow's own limit for an error."""
LUMA = (0.299, 0.587, 0.114)
"""Red, green and blue in grey: ITU-R 601, as Pillow turns RGB into "L"."""
ORIENTATION = 0x0112
DEPTH_16 = 257.0
"""65535 / 255: one step of 8 bits in 16 bits."""
STRIP = 2**20
"""Pixels of more than 8 bits that are converted at a time."""
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_MARKER_AFTER_DATA = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})


class BadImageError(ValueError):
    """An image that cannot be read; the message says which and why."""


class TooLargeImageError(BadImageError):
    """An image of more pixels than the caller allows."""


@dataclass(frozen=True)
class Reduction:
    """How image files are made smaller when they are decoded.

    Its text is part of the name under which decoded images are kept on disk.

    Args:
        short_side: reduce the shorter side of larger images to this many pixels; None keeps them.
        scaled: decode a JPEG file at 1/2, 1/4 or 1/8 of its size before that, see `decode`.

    Example:
        >>> str(Reduction(256)), str(Reduction(256, scaled=True))
        ('256', '256 scaled')
    """

    short_side: int | None = None
    scaled: bool = False

    def __post_init__(self) -> None:
        """Check that scaled decoding has a size to reduce to."""
        if self.scaled and self.short_side is None:
            raise ValueError(
                "short_side must be a number of pixels for scaled decoding, which makes images "
                "smaller; got None. Pass a shorter side, or decode as usual."
            )

    def __str__(self) -> str:
        """Return the text by which kept pixels are found."""
        return f"{self.short_side} scaled" if self.scaled else f"{self.short_side}"


UNREDUCED = Reduction()
"""Images at their own size."""


class _Quiet:
    """Hides Pillow's warnings while any thread decodes.

    Pillow warns at half its limit and about odd metadata. Filters of warnings belong to the whole
    process, and `warnings.catch_warnings` in several threads restore them in the wrong order: so
    the first thread that decodes hides the warnings, and the last one restores them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: warnings.catch_warnings[None] | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._before = warnings.catch_warnings()
                self._before.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside and self._before is not None:
                    self._before.__exit__(None, None, None)


_quiet = _Quiet()


def decode(
    source: str | Path | bytes,
    channels: int = 3,
    short_side: int | None = None,
    *,
    scaled: bool = False,
    formats: tuple[str, ...] = OWN_FORMATS,
) -> "Array":
    """Read an image as uint8 ``(height, width, channels)``.

    EXIF orientation is applied; transparent pixels become white; CMYK, palettes and other colour
    spaces become RGB; 16 bits a channel become 8; of an animation the first frame is read.

    Args:
        source: a file, or the bytes of one.
        channels: 3 for RGB, 1 for grey.
        short_side: reduce the shorter side to this many pixels if it is longer, as torchvision's
            ``Resize(short_side)`` does. Never enlarges.
        scaled: decode a JPEG file at the smallest of 1/2, 1/4 and 1/8 of its size that is not below
            what it is reduced to: much faster for large photos, with slightly different pixels. The
            size of the result is the same. Other files, and those that are not twice as large, are
            decoded as usual.
        formats: the accepted formats, by Pillow's names.

    Raises:
        BadImageError: empty, truncated, no image, larger than `MAX_PIXELS`, or not readable.
    """
    return _array(read(source, channels, short_side, scaled=scaled, formats=formats))


def read(
    source: str | Path | bytes,
    channels: int = 3,
    short_side: int | None = None,
    *,
    scaled: bool = False,
    formats: tuple[str, ...] = OWN_FORMATS,
) -> Image.Image:
    """Do what `decode` does, and return an image in mode RGB or L."""
    name = "image" if isinstance(source, bytes) else str(source)
    try:
        with _quiet():
            file = io.BytesIO(source) if isinstance(source, bytes) else source
            if not isinstance(source, bytes) and (kind := special_file(source)):
                raise BadImageError(f"is {kind}, not a regular file")
            with Image.open(file, formats=_known(formats)) as image:
                if image.width * image.height > MAX_PIXELS:  # whatever Pillow's own limit is now
                    raise Image.DecompressionBombError
                opened = _scaled(image, short_side) if scaled else image
                opened.load()
                return _upright(opened, channels, short_side)
    # Decoders raise many kinds of errors: OSError, SyntaxError, struct.error, zlib.error.
    except Exception as error:
        raise BadImageError(f"{name}: {_reason(source, error)}") from error


def look(content: bytes, *, max_pixels: int, max_side: int) -> tuple[int, int]:
    """Return width and height of an untrusted image from its header; nothing is decoded.

    Raises:
        TooLargeImageError: width, height or their product is larger than allowed.
        BadImageError: it is empty or no image of `FORMATS`.
    """
    try:
        with _quiet(), Image.open(io.BytesIO(content), formats=FORMATS) as image:
            width, height = image.size
    except Image.DecompressionBombError as error:
        raise TooLargeImageError(f"has more than {MAX_PIXELS:,} pixels") from error
    except Exception as error:
        raise BadImageError("is empty" if not content else "is no image") from error
    if width * height > max_pixels or max(width, height) > max_side:
        raise TooLargeImageError(f"has {width:,} x {height:,} pixels")
    return width, height


def _reason(source: str | Path | bytes, error: Exception) -> str:
    """Return why an image could not be read."""
    if isinstance(error, BadImageError):
        return str(error)
    if isinstance(error, Image.DecompressionBombError):
        return f"has more than {MAX_PIXELS:,} pixels; reduce it"
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot be opened ({error.strerror})"
    if isinstance(error, UnidentifiedImageError):
        size = len(source) if isinstance(source, bytes) else Path(source).stat().st_size
        if not size:
            return "is empty (zero bytes)"
        if _is_heif(source):
            return "is a HEIC image; install its decoder with: pip install 'weiss[heic]'"
        return "is no image that Pillow can read"
    return f"cannot be decoded ({error})"


def _known(formats: tuple[str, ...]) -> tuple[str, ...]:
    """Return the formats that Pillow can read; pillow-heif is registered where it is there."""
    if "HEIF" not in formats:
        return formats
    if "HEIF" not in Image.OPEN and find_spec("pillow_heif") is not None:
        import pillow_heif

        pillow_heif.register_heif_opener()
    return tuple(each for each in formats if each != "HEIF" or each in Image.OPEN)


def _is_heif(source: str | Path | bytes) -> bool:
    """Return whether a file claims a brand of HEIF in its first box (ISO/IEC 23008-12)."""
    if isinstance(source, bytes):
        start = source[:12]
    else:
        with Path(source).open("rb") as file:
            start = file.read(12)
    return start[4:8] == b"ftyp" and start[8:] in HEIF_BRANDS


def upright(image: Image.Image, channels: int = 3) -> "Array":
    """Return a Pillow image as uint8 ``(height, width, channels)``, turned by its EXIF data."""
    return _array(_upright(image, channels, None))


def _upright(image: Image.Image, channels: int, short_side: int | None) -> Image.Image:
    # For a JPEG file, looking for absent metadata costs a twentieth of the decoding.
    plain = image.format == "JPEG" and not {"exif", "xmp"} & image.info.keys()
    if not plain and image.getexif().get(ORIENTATION, 1) != 1:
        from PIL import ImageOps

        image = ImageOps.exif_transpose(image)
    image = _eight_bits(image, "RGB" if channels == 3 else "L")
    return _reduced(image, short_side)


def _scaled(image: Image.Image, short_side: int | None) -> Image.Image:
    """Return a JPEG image, decoded at a fraction of its size and reduced; others as they are given.

    It is reduced before it is turned upright. The last row and column of scaled pixels may lie
    partly outside of the image; that part is left out, and before the turn it is always at the
    right and the bottom.
    """
    whole = image.size
    size = reduced_size(*whole, short_side)
    drafted = image.draft(None, size)  # for other formats it does nothing
    if drafted is None or image.size == whole:
        return image
    return image.resize(size, Image.Resampling.BILINEAR, box=drafted[1])


def _reduced(image: Image.Image, short_side: int | None) -> Image.Image:
    size = reduced_size(*image.size, short_side)
    return image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)


def _array(image: Image.Image) -> "Array":
    import numpy as np

    return np.asarray(image).reshape(image.height, image.width, -1)


def reduced(pixels: "Array", short_side: int | None) -> "Array":
    """Return uint8 ``(height, width, channels)`` with a longer shorter side reduced to this."""
    height, width, channels = pixels.shape
    if reduced_size(width, height, short_side) == (width, height):
        return pixels
    image = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    return _array(_reduced(image, short_side))


def encode_png(pixels: "Array") -> bytes:
    """Return uint8 ``(height, width, 1 or 3)`` as the bytes of a PNG file."""
    if str(pixels.dtype) != "uint8" or pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
        raise ValueError(
            "pixels must be uint8 of shape (height, width, 1 or 3); got "
            f"{pixels.dtype} {tuple(pixels.shape)}. Convert them, for example with images.decode."
        )
    if 0 in pixels.shape:
        raise ValueError(
            f"pixels must be at least one; got shape {tuple(pixels.shape)}. Leave the image out."
        )
    file = io.BytesIO()
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def reduced_size(width: int, height: int, short_side: int | None) -> tuple[int, int]:
    """Return width and height with a longer shorter side reduced; the longer side rounds down.

    Example:
        >>> reduced_size(500, 333, 256), reduced_size(100, 80, 256)
        ((384, 256), (100, 80))
    """
    if short_side is None or min(width, height) <= short_side:
        return width, height
    if width <= height:
        return short_side, int(short_side * height / width)
    return int(short_side * width / height), short_side


def stored_size(source: Path, short_side: int | None) -> int:
    """Return how many pixels `decode` will give for a file, from its header alone; 0 if unknown."""
    if special_file(source):
        return 0
    try:
        with _quiet(), Image.open(source, formats=_known(OWN_FORMATS)) as image:
            return math.prod(reduced_size(*image.size, short_side))
    except Exception:
        return 0


def _eight_bits(image: Image.Image, mode: str) -> Image.Image:
    """Return the image in mode RGB or L, whatever it was."""
    if image.mode == mode and not image.has_transparency_data:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        image = _from_deep(image)
    # Colours under full transparency are arbitrary; a page shows white there.
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    # Some modes (LAB, HSV to L) convert through RGB only.
    if mode == "L" and image.mode not in ("1", "L", "P", "RGB", "RGBA"):
        image = image.convert("RGB")
    return image.convert(mode)


def _from_deep(image: Image.Image) -> Image.Image:
    """Return an image of 16 or 32 bits, or of floats, as 8-bit grey."""
    low, high = math.inf, -math.inf
    for _, values in _strips(image):
        low, high = min(low, float(values.min())), max(high, float(values.max()))
        if not math.isfinite(float(values.min()) + float(values.max())):
            raise BadImageError("has pixels that are no numbers (NaN or infinity)")
    factor = divisor = 1.0
    if image.mode == "F" and low >= 0 and high <= 1:
        factor = 255.0
    elif image.mode.startswith("I;16") or (image.mode == "I" and 255 < high <= 65535 and low >= 0):
        divisor = DEPTH_16
    elif low < 0 or high > 255:
        raise BadImageError(
            f"has values from {low:g} to {high:g} in mode {image.mode}, and no known range; "
            "save it with 8 or 16 bits"
        )
    import numpy as np

    made = Image.new("L", image.size)
    for top, values in _strips(image):
        rows = np.rint(values.astype(np.float64) * factor / divisor).astype(np.uint8)
        made.paste(Image.fromarray(rows), (0, top))
    return made


def _strips(image: Image.Image) -> Iterator[tuple[int, "Array"]]:
    """Yield an image some rows at a time, each with its first row, to save memory."""
    import numpy as np

    step = max(1, STRIP // image.width)
    for top in range(0, image.height, step):
        bottom = min(top + step, image.height)
        yield top, np.asarray(image.crop((0, top, image.width, bottom)))


def scans(content: bytes) -> int:
    """Return how many scans a JPEG file has; 0 if it is none. Nothing is decoded."""
    if not content.startswith(b"\xff\xd8"):
        return 0
    found, at = 0, 2
    while marker := (_MARKER_AFTER_DATA if found else _MARKER).search(content, at):
        kind, at = content[marker.start() + 1], marker.end()
        if kind == _END_OF_IMAGE:
            break
        found += kind == _START_OF_SCAN
        if kind not in _WITHOUT_LENGTH:
            at += int.from_bytes(content[at : at + 2], "big")
    return found

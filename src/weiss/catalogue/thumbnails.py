"""Small pictures of items, made from pixels that are decoded already (Pillow only here).

Most become JPEG. What is tiny anyway is kept as it is: to encode 20,000 glyphs of 1,024 bytes each
takes a second, which is a good part of what their network takes, and saves 14 MB. They become PNG
when somebody wants to see them.
"""

import io

import numpy as np

from weiss._base.arrays import Array
from weiss._base.images import encode_png

SIDE = 160
"""The longer side is reduced to this; nothing is enlarged."""
QUALITY = 85
TINY = 4096
"""Bytes up to which pixels are kept as they are."""


def small_picture(pixels: Array) -> tuple[bytes, int, int]:
    """Return the small picture of an image.

    Args:
        pixels: uint8 ``(height, width, 1 or 3)``.

    Returns:
        The bytes to keep; and if they are pixels their height and width, 0 and 0 for a JPEG file.
    """
    height, width, channels = pixels.shape
    if pixels.nbytes <= TINY and max(height, width) <= SIDE:
        return pixels.tobytes(), height, width
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    if max(height, width) > SIDE:
        scale = SIDE / max(height, width)
        size = max(round(width * scale), 1), max(round(height * scale), 1)
        image = image.resize(size, Image.Resampling.BILINEAR)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return file.getvalue(), 0, 0


def picture_file(kept: bytes, height: int, width: int) -> bytes:
    """Return what `small_picture` kept as the bytes of a PNG or JPEG file."""
    if not height:
        return kept
    return encode_png(np.frombuffer(kept, dtype=np.uint8).reshape(height, width, -1))


def media_type(height: int) -> str:
    """Return the media type of what `picture_file` gives."""
    return "image/png" if height else "image/jpeg"

"""Small files that cost a decoder dearly, or say so."""

import io
import struct
import zlib

from PIL import Image


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png_of(width, height):
    """A PNG file whose header claims a size, with hardly anything behind it."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    rest = chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + header + rest


def scanned(side: int, scans: int) -> bytes:
    """A grey progressive JPEG file whose last scan comes again and again.

    Each of them is a walk over the whole picture, and takes a few bytes.
    """
    content = encoded(Image.new("L", (side, side), 128), "JPEG", progressive=True)
    last = content.rindex(b"\xff\xda")
    own = content.count(b"\xff\xda")
    return content[:-2] + content[last:-2] * (scans - own) + content[-2:]


def tiled(side: int) -> bytes:
    """A TIFF file of one pixel, in a tile of very many."""
    packer = zlib.compressobj(9)
    row = bytes(side)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    short, long = 3, 4
    tags = [(256, short, 1), (257, short, 1), (258, short, 8), (259, short, 8), (262, short, 1)]
    tags += [(277, short, 1), (322, long, side), (323, long, side), (324, long, None)]
    tags += [(325, long, len(data))]
    start = 8 + 2 + 12 * len(tags) + 4
    head = b"II*\0" + struct.pack("<IH", 8, len(tags))
    for name, kind, value in tags:
        value = start if value is None else value
        packed = struct.pack("<HH", value, 0) if kind == short else struct.pack("<I", value)
        head += struct.pack("<HHI", name, kind, 1) + packed
    return head + struct.pack("<I", 0) + data

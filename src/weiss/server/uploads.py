"""An untrusted upload: read from a request in pieces, and refused as soon as it breaks a limit.

The file stays in memory: nothing is written to disk, and its name is ignored. fastapi itself would
read the whole request first.
"""

import asyncio
import re
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from fastapi import HTTPException, Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from weiss._base import images
from weiss._base.decoder import RefusedUpload
from weiss.server.decoders import Picture, UploadDecoders
from weiss.server.limits import ENVELOPE, MAX_PARTS, Limits

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FIELD = "file"
SEND = (
    "Send the picture as multipart/form-data in a field named file, "
    "for example: curl -F file=@photo.jpg ADDRESS/search"
)
FORM = {
    "type": "object",
    "required": [FIELD],
    "properties": {FIELD: {"type": "string", "format": "binary"}},
}
UPLOAD_BODY = {
    "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM}}}
}
"""The body of POST /search for the OpenAPI schema; fastapi cannot know it."""


def client_of(request: Request) -> str:
    """Return who asks: an IPv4 address, or the network of an IPv6 address, which one client has.

    A connection from this machine may be one of many clients of a proxy; each counts as a client.
    """
    host, port = request.client or ("", 0)
    with suppress(ValueError):
        address = ip_address(host)
        # A socket for both versions shows IPv4 addresses as ::ffff:192.0.2.7.
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_loopback:
            return f"{host}:{port}"
        if address.version == 6:
            return str(ip_network((address, 64), strict=False))
    return host


class _Form:
    """Keeps the first part with the right name, and ignores all others; there may be few."""

    def __init__(self, boundary: bytes, limits: Limits) -> None:
        self._parser = MultipartParser(boundary, self._callbacks())
        self._limits = limits
        self.content: bytearray | None = None
        self.is_whole = False
        self._parts = self._boundaries = self._size = 0
        self._header, self._value = bytearray(), bytearray()
        self._name: bytes | None = None
        self._is_file = False

    def _callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add,
            "on_end": self._end,
        }

    def write(self, data: bytes) -> None:
        """Parse some more bytes."""
        # To the parser, a boundary inside of a file costs as much as a part.
        self._boundaries += data.count(self._parser.boundary)
        if self._boundaries > 2 * MAX_PARTS:
            raise FormParserError("the boundary is in the file")
        self._size += len(data)
        self._parser.write(data)
        file_size = len(self.content or b"")
        if file_size > self._limits.max_bytes:
            raise _too_large(self._limits)
        if self._size - file_size > ENVELOPE:
            raise HTTPException(
                413,
                f"the form must have at most {ENVELOPE // 1024} KiB beside the file; this one has "
                f"more. {SEND}.",
            )

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise HTTPException(
                413, f"the form must have at most {MAX_PARTS} parts; this one has more. {SEND}."
            )

    def _end_header(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            self._name = options.get(b"name")
        self._header.clear()
        self._value.clear()

    def _end_headers(self) -> None:
        self._is_file = self._name == FIELD.encode() and self.content is None
        self._name = None
        if self._is_file:
            self.content = bytearray()

    def _add(self, data: bytes, start: int, end: int) -> None:
        if self._is_file and self.content is not None:
            self.content += data[start:end]

    def _end(self) -> None:
        self.is_whole = True


async def read_file(request: Request, limits: Limits) -> bytes:
    """Return the uploaded file of a request.

    Raises:
        HTTPException: 408 too slow, 413 too large, 415 no form, 400 no file in it, an empty one, or
            cut short.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        # Only a plain media type is repeated.
        given = kind.decode() if re.fullmatch(rb"[A-Za-z0-9/-]{1,59}", kind) else "none"
        raise HTTPException(415, f"the request must be a form with a file; got {given}. {SEND}.")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limits.max_bytes + ENVELOPE:
        raise _too_large(limits)
    try:
        form = _Form(options[b"boundary"], limits)
        async with asyncio.timeout(limits.seconds):
            async for piece in request.stream():
                form.write(piece)
    except TimeoutError:
        raise HTTPException(
            408,
            f"the upload must be finished within {limits.seconds:g} seconds; it was not. "
            "Send a smaller picture.",
        ) from None
    except ClientDisconnect:
        raise HTTPException(400, "the upload must be whole; it broke off. Send it again.") from None
    except FormParserError:
        raise HTTPException(400, f"the form must be well-formed; it is not. {SEND}.") from None
    if form.content is None:
        raise HTTPException(400, f"the form must have a field named file; it has none. {SEND}.")
    if not form.is_whole:
        raise HTTPException(400, "the upload must be whole; it is cut short. Send it again.")
    if not form.content:
        raise HTTPException(400, "file must be a picture; it is empty. Choose another one.")
    return bytes(form.content)


async def decode_picture(
    content: bytes, decoders: UploadDecoders, limits: Limits, client: str
) -> Picture:
    """Return the pixels of an uploaded picture, and its width and height in the file.

    Raises:
        HTTPException: 413 too large, 415 no image, 400 damaged, 408 too slow to decode.
        UnavailableError: no decoder was free in time.
    """
    try:
        return await decoders.decode(content, client, limits.seconds)
    except RefusedUpload as error:
        raise _refusal(error, limits) from None


def _refusal(error: RefusedUpload, limits: Limits) -> HTTPException:
    """Return the answer for a picture that was not decoded."""
    megabytes = f"{limits.decoder_memory / 1e6:,.0f} MB"
    refusals = {
        "large": (
            413,
            f"file must have at most {limits.max_pixels / 1e6:g} megapixels, and at most "
            f"{limits.max_side:,} a side; this one {error}. Reduce it.",
        ),
        "scans": (
            413,
            f"a JPEG file must have at most {images.MAX_SCANS} scans; this one {error}. "
            "Save it again.",
        ),
        "memory": (
            413,
            f"file must be decoded in {megabytes} of memory; this one needs more. Reduce it.",
        ),
        "slow": (
            408,
            f"file must be decoded within {limits.seconds:g} seconds; this one was not. "
            "Save it again, or reduce it.",
        ),
        "kind": (
            415,
            f"file must be an image ({', '.join(images.FORMATS)}); this one is not. "
            "Choose a photo.",
        ),
    }
    # The decoder's own message may contain more than the picture: it is not repeated.
    damaged = "file must be a whole image; this one is damaged or cut short. "
    return HTTPException(
        *refusals.get(error.kind, (400, f"{damaged}Save it again, or choose another one."))
    )


def _too_large(limits: Limits) -> HTTPException:
    return HTTPException(
        413,
        f"file must have at most {limits.max_bytes / 1e6:g} MB; this one has more. Reduce it.",
    )

"""The limits of what a server accepts: hosts, sizes, times, numbers at once."""

from dataclasses import dataclass, fields

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names of this machine in Host headers of local clients."""
MAX_K = 100
"""The most neighbours one request may ask for."""
ENVELOPE = 64 * 1024
"""Bytes of a form beside its file: boundaries, headers, other fields."""
MAX_PARTS = 16
"""Parts of a form."""


class UnavailableError(RuntimeError):
    """The request was fine, but the server is busy or stops; answered with 503 and the reason."""


@dataclass(frozen=True)
class Limits:
    """What a server accepts; everything beyond is refused with the reason.

    Args:
        max_bytes: the size of an uploaded file.
        max_pixels: width times height of a picture, checked before it is decoded.
        max_side: the longer side of a picture.
        seconds: the time limit of an upload, of its decoding, and of the search; each. A connection
            whose client neither sends nor reads for this time is closed.
        max_uploads: pictures that are sent or decoded at once; one more is answered with 503. One
            client may have three quarters of them. At most half of them may be large ones.
        max_waiting: searches under way at once, with decoded pictures or with items; one more is
            answered with 503. One client may have three quarters of them.
        max_connections: open connections, at most half of the file descriptors that are free. One
            more closes the one that has waited longest for its client, or is answered with 503.
        max_batch: pictures in one forward pass.
        gather_seconds: how long a forward pass waits for announced pictures.
    """

    max_bytes: int = 20_000_000
    max_pixels: int = 40_000_000
    max_side: int = 20_000
    seconds: float = 30.0
    max_uploads: int = 64
    max_waiting: int = 64
    max_connections: int = 1000
    max_batch: int = 32
    gather_seconds: float = 0.005

    @property
    def decoder_memory(self) -> int:
        """Bytes of memory of a decoding process: itself, and all its copies of a picture."""
        return 512 * 2**20 + 24 * self.max_pixels

    def __post_init__(self) -> None:
        """Check that all limits are positive."""
        for field in fields(self):
            value = getattr(self, field.name)
            may_be_zero = field.name == "gather_seconds"
            if not (value > 0 or (may_be_zero and value == 0)):
                raise ValueError(
                    f"{field.name} must be positive; got {value!r}. Leave it out for the default."
                )

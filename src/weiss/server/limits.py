"""What a server takes from strangers: by which name, how large, how long, how many at once."""

from dataclasses import dataclass, fields

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Host headers of somebody who asks for this machine from this machine."""
MAX_K = 100
"""The most neighbours one request may ask for."""
ENVELOPE = 64 * 1024
"""Bytes of a request that may surround its file: boundaries, headers, other fields."""


@dataclass(frozen=True)
class Limits:
    """What a server accepts; whatever goes beyond is refused with a word why.

    Args:
        max_bytes: the size of an uploaded file.
        max_pixels: width times height of a picture, known before any of it is decoded.
        max_side: the longer side of a picture.
        seconds: how long an upload may take, how long it may take to decode, and how long the
            answer.
        max_uploads: pictures that are sent or decoded at once; one more is sent away and told to
            come back.
        max_waiting: searches that are under way at once, with pictures that are decoded or with
            items; one more is sent away as well.
        max_batch: pictures in one forward pass.
        gather_seconds: how long a forward pass waits for pictures that are on their way.
    """

    max_bytes: int = 20_000_000
    max_pixels: int = 40_000_000
    max_side: int = 20_000
    seconds: float = 30.0
    max_uploads: int = 64
    max_waiting: int = 64
    max_batch: int = 32
    gather_seconds: float = 0.005

    @property
    def decoder_memory(self) -> int:
        """Bytes that a decoding process may ask for: itself, and all its copies of a picture."""
        return 512 * 2**20 + 24 * self.max_pixels

    def __post_init__(self) -> None:
        """Refuse what nothing could pass."""
        for field in fields(self):
            value = getattr(self, field.name)
            may_be_zero = field.name == "gather_seconds"
            if not (value > 0 or (may_be_zero and value == 0)):
                raise ValueError(
                    f"{field.name} must be positive; got {value!r}. Leave it out for the default."
                )

"""From pixels of any size to the input of a network, by the numbers of an evaluation.

Legend: B pictures, c channels, S side of the crop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from weiss._base import checks, images
from weiss._base.arrays import Array
from weiss.data import CentreCrop
from weiss.data.resample import resample
from weiss.data.store import store_of


@dataclass(frozen=True)
class Preprocessing:
    """From pixels of any size to the input of a network: what an evaluation does.

    Args:
        channels: 3 for colour (red, green, blue), 1 for grey.
        size: height and width of the centre that is cut out, S.
        resize: length of the shorter side before that; at least ``size``.
        short_side: a picture whose shorter side is longer is first reduced to it, in 8 bits, as
            pictures are kept while a network trains.
    """

    channels: int
    size: int
    resize: int
    short_side: int

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        if self.channels not in (1, 3):
            raise ValueError(
                f"channels must be 1 (grey) or 3 (colour) for Preprocessing; got {self.channels}."
            )
        CentreCrop(self.size, self.resize)
        checks.count("short_side", self.short_side, "Preprocessing")

    def as_dict(self) -> dict[str, Any]:
        """Return numbers and words, as JSON can say them."""
        return {
            "channels": self.channels,
            "colours": "red, green, blue" if self.channels == 3 else "grey",
            "values": "float32 from 0 to 255, not normalised: mean and std are in the network",
            "layout": "batch, channels, height, width",
            "short_side": self.short_side,
            "resize": self.resize,
            "size": self.size,
            "interpolation": "bilinear, antialiased where it shrinks (Pillow's BILINEAR)",
            "steps": self.steps(),
        }

    def steps(self) -> list[str]:
        """Return what is done, one sentence a step."""
        kind = "RGB" if self.channels == 3 else "grey"
        first = f"decode upright to 8-bit {kind}, transparent pixels over white"
        reduce = f"reduce the shorter side to {self.short_side} if it is longer, to 8 bits"
        resize = f"resize the shorter side to {self.resize}; the longer rounds down"
        crop = f"cut out the central {self.size} x {self.size}"
        return [first, *([reduce] if self.short_side != self.resize else []), resize, crop]

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Preprocessing":
        """Return what `as_dict` described."""
        names = ("channels", "size", "resize", "short_side")
        lacking = [name for name in names if name not in given]
        if lacking:
            raise ValueError(f"preprocessing must say {', '.join(names)}; it lacks {lacking}.")
        return cls(*(checks.count(name, given[name], "Preprocessing") for name in names))

    def prepare(self, pixels: Sequence[Array]) -> Array:
        """Resize and crop pictures, by the numbers of `weiss.data.Pipeline.evaluation`.

        Args:
            pixels: B pictures, uint8 ``(height, width, 1 or 3)`` of any sizes. Colour becomes grey
                for a grey network, and grey is repeated for one of colour.

        Returns:
            float32 ``(B, c, S, S)`` in 0..255.
        """
        for one in pixels:
            _check_picture(one)
        if not len(pixels):
            return np.zeros((0, self.channels, self.size, self.size), dtype=np.float32)
        shown = [images.reduced(one, self.short_side) for one in pixels]
        has_colour = any(one.shape[2] == 3 for one in shown)
        if has_colour:
            shown = [np.repeat(one, 3, axis=2) if one.shape[2] == 1 else one for one in shown]
        store = store_of(shown)
        windows = CentreCrop(self.size, self.resize).windows(store.sizes)
        batch = resample(store.pixels, store.starts, store.sizes[:, 1], windows)
        if has_colour and self.channels == 1:
            # After resizing and in floating point, as the network itself would do it.
            luma = torch.tensor(images.LUMA).view(-1, 1, 1)
            batch = (batch * luma).sum(dim=1, keepdim=True)
        elif self.channels == 3:
            batch = batch.expand(-1, 3, -1, -1)
        return np.ascontiguousarray(batch.numpy())


def _check_picture(given: Any) -> None:
    if not isinstance(given, np.ndarray) or given.dtype != np.uint8:
        kind = given.dtype if isinstance(given, np.ndarray) else type(given).__name__
        raise TypeError(
            f"pixels must be arrays of uint8 for prepare; got {kind}. "
            "Read files with weiss._base.images.decode."
        )
    if given.ndim != 3 or given.shape[2] not in (1, 3) or 0 in given.shape:
        raise ValueError(
            f"pixels must have shape (height, width, 1 or 3) for prepare; got {given.shape}. "
            "Put channels last, and leave empty pictures out."
        )

"""The part of each image in a batch: random resized crops to train, centre crops to evaluate.

A crop is two intervals, one for each axis: output pixel t covers source coordinates
``[start + t * scale, start + (t + 1) * scale)``, and only source pixels in ``[low, high)`` are
read. That is all `resample` needs; a resize followed by a crop is one interval too.

Dimensions: B images; axis 0 is rows, axis 1 columns.
"""

from dataclasses import dataclass, replace

import numpy as np

from weiss._base import checks, draws
from weiss._base.arrays import Array

ATTEMPTS = 10
"""How often torchvision tries a random box before it uses the largest central one."""


@dataclass(frozen=True)
class Windows:
    """The window of each image of a batch, and the output size."""

    start: Array  # (B, 2) source coordinate of the output's first edge, rows and columns
    scale: Array  # (B, 2) source pixels for an output pixel
    low: Array  # (B, 2) the first source pixel that may be read
    high: Array  # (B, 2) one past the last
    flip: Array  # (B,) whether left and right are exchanged
    size: int  # height and width of the output

    @classmethod
    def plain(cls, sizes: Array, start: Array, scale: Array, size: int) -> "Windows":
        """Return windows that may read all of their images and are not flipped."""
        return cls(start, scale, np.zeros_like(sizes), sizes, np.zeros(len(sizes), bool), size)

    def take(self, items: Array) -> "Windows":
        """Return the windows of some images."""
        names = ("start", "scale", "low", "high", "flip")
        return replace(self, **{name: getattr(self, name)[items] for name in names})


@dataclass(frozen=True)
class CentreCrop:
    """Evaluation: shorter side to ``resize``, then the central ``size`` x ``size``.

    Agrees with torchvision's ``Resize(resize)`` and ``CenterCrop(size)``, their rounding included.

    Args:
        size: height and width of the output.
        resize: length of the shorter side before the crop; at least ``size``.
    """

    size: int = 224
    resize: int = 256

    def __post_init__(self) -> None:
        """Refuse a crop that is larger than the resized image."""
        checks.count("size", self.size, "CentreCrop")
        checks.count("resize", self.resize, "CentreCrop")
        if self.size > self.resize:
            raise ValueError(
                f"size must be at most resize, {self.resize}, for CentreCrop; got {self.size}. "
                "Resize to a longer side."
            )

    def windows(self, sizes: Array) -> Windows:
        """Return the windows of images of these sizes, ``(B, 2)`` height and width."""
        resized = _resized(sizes, self.resize)
        # Python's round, as torchvision has it: halves go to the even neighbour.
        offset = np.rint((resized - self.size) / 2.0)
        scale = sizes / resized
        return Windows.plain(sizes, offset * scale, scale, self.size)


@dataclass(frozen=True)
class RandomCrop:
    """Training: a random box, resized to ``size`` x ``size``, sometimes flipped.

    Boxes follow the distribution of torchvision's ``RandomResizedCrop``: the share of the area is
    uniform in ``area``, the logarithm of width / height uniform in the logarithms of ``ratio``; if
    ten boxes in a row do not fit, the largest central box of an allowed ratio is taken.

    Args:
        size: height and width of the output.
        area: least and greatest share of the image's area.
        ratio: least and greatest width / height.
        flip: probability that left and right are exchanged.
        resize: length of the shorter side for which the box is drawn, for protocols that resize
            first; None draws it in the pixels of the image.
        seed: of the random numbers.
    """

    size: int = 224
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    resize: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse wrong ranges."""
        checks.count("size", self.size, "RandomCrop")
        if self.resize is not None:
            checks.count("resize", self.resize, "RandomCrop")
        for name, given in (("area", self.area), ("ratio", self.ratio)):
            is_pair = isinstance(given, (tuple, list)) and len(given) == 2
            if not is_pair or not 0 < given[0] <= given[1]:
                raise ValueError(
                    f"{name} must be a range (least, greatest) with 0 < least <= greatest for "
                    f"RandomCrop; got {given}. Pass two numbers, the smaller one first."
                )
        if self.area[1] > 1:
            raise ValueError(
                f"area must end at 1 or below for RandomCrop; got {self.area[1]:g}. "
                "A crop cannot be larger than the image."
            )
        if not 0 <= self.flip <= 1:
            raise ValueError(
                f"flip must be a probability for RandomCrop; got {self.flip:g}. Pass 0 to 1."
            )

    def windows(self, sizes: Array, epoch: int, positions: Array) -> Windows:
        """Draw the windows of images of these sizes, ``(B, 2)`` height and width.

        `positions` ``(B,)`` are the positions of the images in the epoch, over all batches and
        processes; an image at the same position gets the same box every time.
        """
        draw = np.arange(2 * ATTEMPTS + 3)
        drawn = draws.uniform(self.seed, draws.CROPS, epoch, positions[:, None], draw)
        resized = sizes if self.resize is None else _resized(sizes, self.resize)
        # All attempts at once, then the first that fits.
        extents = self._draw(resized, drawn[:, :ATTEMPTS], drawn[:, ATTEMPTS : 2 * ATTEMPTS])
        fits = np.asarray(((extents > 0) & (extents <= resized[:, None])).all(axis=2))
        extent = extents[np.arange(len(sizes)), fits.argmax(axis=1)]
        # The corner is uniform over 0 .. room, both included.
        corner = np.floor(drawn[:, -3:-1] * (resized - extent + 1))
        box = np.concatenate([corner, extent], axis=1)
        none = ~fits.any(axis=1)
        box[none] = self._largest_central(resized[none])
        per_pixel = sizes / resized
        corner, extent = box[:, :2] * per_pixel, box[:, 2:] * per_pixel
        low = np.floor(corner + 1e-6).astype(np.int64)
        high = np.maximum(np.ceil(corner + extent - 1e-6).astype(np.int64), low + 1)
        return Windows(
            start=corner,
            scale=extent / self.size,
            low=low,
            high=np.minimum(high, sizes),
            flip=drawn[:, -1] < self.flip,
            size=self.size,
        )

    def _draw(self, sizes: Array, area_draw: Array, ratio_draw: Array) -> Array:
        """Return ``(B, attempts, 2)`` heights and widths of boxes."""
        area = sizes.prod(axis=1)[:, None] * (
            self.area[0] + area_draw * (self.area[1] - self.area[0])
        )
        low, high = np.log(self.ratio)
        ratio = np.exp(low + ratio_draw * (high - low))
        sides = np.sqrt(np.stack([area / ratio, area * ratio], axis=2))
        return np.asarray(np.rint(sides))

    def _largest_central(self, sizes: Array) -> Array:
        """Return ``(B, 4)`` top, left, height, width of the box if no random one fits."""
        height, width = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
        ratio = width / height
        box_height = np.where(ratio < self.ratio[0], np.rint(width / self.ratio[0]), height)
        box_width = np.where(ratio > self.ratio[1], np.rint(height * self.ratio[1]), width)
        top, left = (height - box_height) // 2, (width - box_width) // 2
        return np.stack([top, left, box_height, box_width], axis=1)


def _resized(sizes: Array, side: int) -> Array:
    """Return ``(B, 2)`` sizes with the shorter side at ``side``; the longer rounds down."""
    short = sizes.min(axis=1, keepdims=True)
    return np.where(sizes == short, side, (side * sizes) // short)

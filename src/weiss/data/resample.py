"""Crops of many images at once: two batched matrix products on the device that holds the pixels.

Resizing is linear and separable: an output row is a weighted mean of a few source rows, an output
column of a few columns. With the weights of B crops as matrices ``rows_BSH`` and ``cols_BSW`` the
batch is ``rows @ pixels @ cols^T``. Weights are Pillow's: a triangle as wide as the reduction, so
shrinking averages (antialiasing) and enlarging interpolates.

On a GPU the products are in float16 with sums in float32: pixels are exact in it, weights good to
1 in 2048, so a result is off by less than a quarter of a grey level. On the CPU all is float32.

An eager training step is limited by Python, not by the GPU, so the number of calls matters, about
thirty: both axes share them, and all numbers are copied in one transfer.

Dimensions: B images, S output side, H and W rows and columns of the largest window, L the larger
of the two, c channels; A the two axes.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from weiss._base.arrays import Array
from weiss.data.crops import Windows

CPU_BYTES = 256 * 2**20
GPU_BYTES = 2 * 2**30
WASTE = 8
"""A batch is done in parts if more than this many times the needed pixels would be read."""


def resample(pixels: Tensor, starts: Array, widths: Array, windows: Windows) -> Tensor:
    """Cut and resize a window of each image.

    Args:
        pixels: uint8 ``(P, c)``, the pixels of all images one after the other, row by row.
        starts: ``(B,)`` int64, the first pixel of each image.
        widths: ``(B,)`` int64, how many pixels a row of each image has.
        windows: the windows.

    Returns:
        float32 ``(B, c, S, S)`` in 0..255, on the pixels' device, channels last in memory.
    """
    device, size, channels = pixels.device, windows.size, pixels.shape[1]
    reach = np.maximum(windows.scale, 1.0)
    # Source pixels outside have weight zero, so they are neither read nor multiplied.
    first = np.maximum(windows.low, np.floor(windows.start - reach))
    last = np.minimum(windows.high, np.ceil(windows.start + size * windows.scale + reach))
    extent = last - first
    height, width = (int(n) for n in extent.max(axis=0))
    if len(starts) > 1 and height * width * len(starts) > WASTE * extent.prod(axis=1).sum():
        return _in_halves(pixels, starts, widths, windows, extent)
    origins = starts + (first[:, 0] * widths + first[:, 1]).astype(np.int64)
    ends = origins + (extent[:, 0].astype(np.int64) - 1) * widths + width
    overruns = bool((ends > len(pixels)).any())
    # A flip counts the columns from the other end.
    start, scale = windows.start - first, windows.scale.copy()
    start[windows.flip, 1] += size * scale[windows.flip, 1]
    scale[windows.flip, 1] *= -1
    # Whole numbers up to any memory size are exact in float64.
    packed = np.stack([start, scale, 1 / reach, extent, np.stack([origins, widths], axis=1)])
    packed_5AB = to_device(torch.from_numpy(packed.transpose(0, 2, 1)), device)
    origins_B, widths_B = packed_5AB[4].long().unbind()
    # Relative to the window the others are small enough for float32.
    numbers_4AB = packed_5AB[:4].float()
    out = torch.empty((len(starts), size, size, channels), device=device, dtype=torch.float32)
    budget = CPU_BYTES if device.type == "cpu" else GPU_BYTES
    step = max(budget // (16 * (height * width * channels + 2 * size * max(height, width))), 1)
    with torch.autocast(device.type, enabled=False), torch.no_grad():
        for i in range(0, len(starts), step):
            part = slice(i, i + step)
            weights_ABSL = _weights(numbers_4AB[:, :, part], max(height, width), size)
            window_BHW = _rows(pixels, origins_B[part], widths_B[part], height, width, overruns)
            rows_BSH, cols_BSW = weights_ABSL[0, :, :, :height], weights_ABSL[1, :, :, :width]
            out[part] = _products(rows_BSH, window_BHW, cols_BSW, channels)
    return out.permute(0, 3, 1, 2)


def _in_halves(
    pixels: Tensor, starts: Array, widths: Array, windows: Windows, extent: Array
) -> Tensor:
    """Do tall windows and wide ones separately: together each would be read as tall and as wide."""
    order = np.argsort(extent[:, 0] / extent[:, 1], kind="stable")
    middle = len(order) // 2
    halves = [
        resample(pixels, starts[half], widths[half], windows.take(half))
        for half in (order[:middle], order[middle:])
    ]
    # In the original order, channels last in memory.
    back = torch.from_numpy(np.argsort(order)).to(pixels.device)
    return torch.cat([half.permute(0, 2, 3, 1) for half in halves])[back].permute(0, 3, 1, 2)


def to_device(given: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device, without waiting."""
    if device.type == "cuda":
        return given.pin_memory().to(device, non_blocking=True)
    return given.to(device)


def _weights(numbers_4AB: Tensor, extent: int, size: int) -> Tensor:
    """Return ``(A, B, S, L)``: the weight of each source pixel in each output pixel."""
    device = numbers_4AB.device
    start, scale, inverse_reach, end = numbers_4AB[..., None, None].unbind()
    source = _counts(extent, device)
    # The centre of the first pixel is at 0.5.
    centre = torch.addcmul(start - 0.5, _counts(size, device)[:, None] + 0.5, scale)
    weights = (source - centre).abs_().mul_(inverse_reach)
    weights = (1 - weights).clamp_(min=0).masked_fill_(source >= end, 0.0)
    weights = weights.div_(weights.sum(dim=-1, keepdim=True))
    return weights.to(torch.float16) if weights.is_cuda else weights


@lru_cache(maxsize=1024)
def _counts(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device, dtype=torch.float32)


def _rows(
    pixels: Tensor, origins: Tensor, widths: Tensor, height: int, width: int, overruns: bool
) -> Tensor:
    """Return ``(B, H, W * c)`` bytes: a window of the largest size at each origin.

    Pixels outside a smaller window have weight zero: those to its right, the rows below it, another
    image. Only the end of all pixels must not be exceeded.
    """
    channels = pixels.shape[1]
    row_BH = origins[:, None] + torch.arange(height, device=pixels.device) * widths[:, None]
    if overruns:
        where_BHW = row_BH[:, :, None] + torch.arange(width, device=pixels.device)
        return pixels[where_BHW.clamp(max=len(pixels) - 1)].flatten(2)
    # Overlapping rows of this length, one for each first pixel: a view, no copy. One index for a
    # row moves an eighth of the bytes of one index for each pixel.
    view = pixels.as_strided((len(pixels) - width + 1, width * channels), (channels, 1))
    return view[row_BH.clamp_(max=len(view) - 1)]


def _products(rows_BSH: Tensor, window_BHW: Tensor, cols_BSW: Tensor, channels: int) -> Tensor:
    """Return ``(B, S, S, c)``: the weighted means of rows, then of columns."""
    batch, size = rows_BSH.shape[:2]
    reduced = torch.bmm(rows_BSH, window_BHW.to(rows_BSH.dtype))
    # Channels before columns, so that one product does all of them.
    reduced = reduced.view(batch, size, -1, channels).transpose(2, 3)
    out = torch.bmm(reduced.reshape(batch, size * channels, -1), cols_BSW.transpose(1, 2))
    return out.view(batch, size, channels, size).transpose(2, 3)

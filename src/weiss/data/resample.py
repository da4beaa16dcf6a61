"""Crops of many images at once: two batched matrix products on the device that holds the pixels.

Resizing is linear and separable: an output row is a weighted mean of a few source rows, an output
column of a few columns. With the weights of B crops as matrices ``rows_BSH`` and ``cols_BSW`` the
batch is ``rows @ pixels @ cols^T``. Weights are Pillow's: a triangle as wide as the reduction, so
shrinking averages (antialiasing) and enlarging interpolates.

On a GPU the products are in float16 with sums in float32: pixels are exact in it, weights good to
1 in 2048, so a result is off by less than a quarter of a grey level. On the CPU all is float32.

Dimensions: B images, S output side, H and W rows and columns of the largest window, c channels.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weiss.data.crops import Windows

Array = np.ndarray[Any, Any]
CPU_BYTES = 256 * 2**20
GPU_BYTES = 2 * 2**30


def resample(pixels: Tensor, starts: Array, widths: Array, windows: Windows) -> Tensor:
    """Cut and resize a window of each image.

    Args:
        pixels: uint8 ``(P, c)``, the pixels of all images one after the other, row by row.
        starts: ``(B,)`` int64, where among the pixels each image begins.
        widths: ``(B,)`` int64, how many pixels a row of each image has.
        windows: what to cut.

    Returns:
        float32 ``(B, c, S, S)`` in 0..255, on the pixels' device, channels last in memory.
    """
    device, size, channels = pixels.device, windows.size, pixels.shape[1]
    reach = np.maximum(windows.scale, 1.0)
    # Source pixels beyond these have weight zero, so they are neither fetched nor multiplied.
    first = np.maximum(windows.low, np.floor(windows.start - reach))
    last = np.minimum(windows.high, np.ceil(windows.start + size * windows.scale + reach))
    extent = last - first
    height, width = (int(n) for n in extent.max(axis=0))
    origins = starts + (first[:, 0] * widths + first[:, 1]).astype(np.int64)
    ends = origins + (extent[:, 0].astype(np.int64) - 1) * widths + width
    overruns = bool((ends > len(pixels)).any())
    # All numbers travel at once; whole ones are exact in float64 as far as memory goes.
    columns = [windows.start - first - 0.5, windows.scale, reach, extent]
    columns += [np.stack([origins, widths], axis=1), np.stack([windows.flip] * 2, axis=1)]
    numbers_6B2 = to_device(torch.from_numpy(np.stack(columns)), device)
    origins_B, widths_B = numbers_6B2[4].long().unbind(1)
    flip_B11 = numbers_6B2[5, :, 0].bool()[:, None, None]
    # Relative to the window the others are small enough for float32.
    numbers_4B2 = numbers_6B2[:4].float()
    out = torch.empty((len(starts), size, size, channels), device=device, dtype=torch.float32)
    budget = CPU_BYTES if device.type == "cpu" else GPU_BYTES
    step = max(budget // (height * width * channels * 16), 1)
    with torch.autocast(device.type, enabled=False), torch.no_grad():
        for i in range(0, len(starts), step):
            part = slice(i, i + step)
            rows_BSH = _weights(numbers_4B2[:, part, 0], height, size)
            cols_BSW = _weights(numbers_4B2[:, part, 1], width, size)
            cols_BSW = torch.where(flip_B11[part], cols_BSW.flip(1), cols_BSW)
            window_BHW = _rows(pixels, origins_B[part], widths_B[part], height, width, overruns)
            out[part] = _products(rows_BSH, window_BHW, cols_BSW, channels)
    return out.permute(0, 3, 1, 2)


def to_device(given: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device, without waiting for the copy."""
    if device.type == "cuda":
        return given.pin_memory().to(device, non_blocking=True)
    return given.to(device)


def _weights(numbers_4B: Tensor, extent: int, size: int) -> Tensor:
    """Return ``(B, S, extent)``: the weight of each source pixel in each output pixel."""
    start, scale, reach, end = numbers_4B[:, :, None, None]
    device = numbers_4B.device
    target = torch.arange(size, device=device, dtype=torch.float32)[None, :, None]
    source = torch.arange(extent, device=device, dtype=torch.float32)
    centre = start + (target + 0.5) * scale
    weights: Tensor = (1 - (source - centre).abs_().div_(reach)).clamp_(min=0)
    weights.masked_fill_(source >= end, 0.0)
    return weights.div_(weights.sum(dim=2, keepdim=True))


def _rows(
    pixels: Tensor, origins: Tensor, widths: Tensor, height: int, width: int, overruns: bool
) -> Tensor:
    """Return ``(B, H, W * c)`` bytes: a window of the largest size at each origin.

    What a smaller window does not need has weight zero, whatever it is: the pixels to its right,
    the rows below it, another image. Only the end of all pixels must not be overrun.
    """
    channels = pixels.shape[1]
    row_BH = origins[:, None] + torch.arange(height, device=pixels.device) * widths[:, None]
    if overruns:
        where_BHW = row_BH[:, :, None] + torch.arange(width, device=pixels.device)
        return pixels[where_BHW.clamp(max=len(pixels) - 1)].flatten(2)
    # Overlapping rows of this length, one for each pixel they may begin with: a view, no copy. One
    # index for a row moves an eighth of the bytes that one for each pixel would.
    view = pixels.as_strided((len(pixels) - width + 1, width * channels), (channels, 1))
    return view[row_BH.clamp(max=len(view) - 1)]


def _products(rows_BSH: Tensor, window_BHW: Tensor, cols_BSW: Tensor, channels: int) -> Tensor:
    """Return ``(B, S, S, c)``: the weighted means of rows, then of columns."""
    dtype = torch.float16 if window_BHW.is_cuda else torch.float32
    reduced = torch.bmm(rows_BSH.to(dtype), window_BHW.to(dtype))
    batch, size = rows_BSH.shape[:2]
    # Channels in front of columns, so that one product does all of them.
    reduced = reduced.view(batch, size, -1, channels).transpose(2, 3)
    reduced = reduced.reshape(batch, size * channels, -1)
    out = torch.bmm(reduced, cols_BSW.to(dtype).transpose(1, 2))
    return out.view(batch, size, channels, size).transpose(2, 3)

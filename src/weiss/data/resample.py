"""Crops of many images at once: two batched matrix products on the device that holds the pixels.

Resizing is linear and separable: an output row is a weighted mean of a few source rows, an output
column of a few columns. With the weights of B crops as matrices ``rows_BSH`` and ``cols_BSW`` the
batch is ``rows @ pixels @ cols^T``. Weights are Pillow's: a triangle as wide as the reduction, so
shrinking averages (antialiasing) and enlarging interpolates.

Dimensions: B images, S output side, H and W rows and columns of the largest window, c channels.
"""

import torch
from torch import Tensor

from weiss.data.crops import Windows

CPU_BYTES = 256 * 2**20
GPU_BYTES = 2 * 2**30


def resample(pixels: Tensor, starts: Tensor, widths: Tensor, windows: Windows) -> Tensor:
    """Cut and resize a window of each image.

    Args:
        pixels: uint8 ``(P, c)``, the pixels of all images one after the other, row by row.
        starts: ``(B,)`` int64, where among the pixels each image begins; on the pixels' device.
        widths: ``(B,)`` int64, how many pixels a row of each image has; likewise.
        windows: what to cut.

    Returns:
        float32 ``(B, c, S, S)`` in 0..255, on the pixels' device, channels last in memory.
    """
    device = pixels.device
    # All numbers of the windows travel in one transfer.
    packed = torch.stack(
        [
            torch.as_tensor(part, dtype=torch.float64)
            for part in (windows.start, windows.scale, windows.low, windows.high)
        ]
    )
    flip = torch.as_tensor(windows.flip)
    reach = packed[1].clamp(min=1.0)
    # Source pixels beyond these have weight zero, so they are neither fetched nor multiplied.
    first = torch.maximum(packed[2], (packed[0] - reach).floor())
    last = packed[0] + windows.size * packed[1] + reach
    last = torch.minimum(packed[3], last.ceil())
    height, width = (int(n) for n in (last - first).amax(dim=0).tolist())
    packed = torch.cat([packed, first[None], last[None]])
    if device.type == "cuda":
        packed = packed.pin_memory().to(device, non_blocking=True)
        flip = flip.pin_memory().to(device, non_blocking=True)
    out = torch.empty(
        (len(starts), windows.size, windows.size, pixels.shape[1]),
        device=device,
        dtype=torch.float32,
    ).permute(0, 3, 1, 2)
    budget = CPU_BYTES if device.type == "cpu" else GPU_BYTES
    step = max(budget // (height * width * pixels.shape[1] * 16), 1)
    with torch.autocast(device.type, enabled=False), torch.no_grad():
        for i in range(0, len(starts), step):
            part = slice(i, i + step)
            out[part] = _resample(
                pixels,
                starts[part],
                widths[part],
                packed[:, part],
                flip[part],
                (height, width),
                windows.size,
            )
    return out


def _resample(
    pixels: Tensor,
    starts: Tensor,
    widths: Tensor,
    packed: Tensor,
    flip: Tensor,
    extent: tuple[int, int],
    size: int,
) -> Tensor:
    rows_BSH = _weights(packed[..., 0], extent[0], size)
    cols_BSW = _weights(packed[..., 1], extent[1], size)
    cols_BSW = torch.where(flip[:, None, None], cols_BSW.flip(1), cols_BSW)
    first, last = packed[4].long(), packed[5].long()
    row_BH = first[:, :1] + torch.arange(extent[0], device=pixels.device)
    col_BW = first[:, 1:] + torch.arange(extent[1], device=pixels.device)
    # A smaller window than the largest is filled with its last row or column, at weight zero.
    row_BH = torch.minimum(row_BH, last[:, :1] - 1)
    col_BW = torch.minimum(col_BW, last[:, 1:] - 1)
    where_BHW = (starts[:, None] + row_BH * widths[:, None])[:, :, None] + col_BW[:, None, :]
    window_BHcW = pixels[where_BHW].permute(0, 1, 3, 2).to(torch.float32)
    batch, height, channels, width = window_BHcW.shape
    reduced = torch.bmm(rows_BSH, window_BHcW.reshape(batch, height, channels * width))
    reduced = reduced.view(batch, size * channels, width)
    out = torch.bmm(reduced, cols_BSW.transpose(1, 2)).view(batch, size, channels, size)
    return out.permute(0, 2, 1, 3)


def _weights(packed_6B: Tensor, extent: int, size: int) -> Tensor:
    """Return ``(B, S, extent)``: the weight of each source pixel in each output pixel."""
    start, scale, _, _, first, last = packed_6B[:, :, None, None]
    device = packed_6B.device
    target = torch.arange(size, device=device, dtype=torch.float64)[None, :, None]
    source = first + torch.arange(extent, device=device, dtype=torch.float64)[None, None, :]
    centre = start + (target + 0.5) * scale
    weights = 1 - (source + 0.5 - centre).abs() / scale.clamp(min=1.0)
    weights = weights.clamp(min=0) * (source < last)
    normalised: Tensor = weights / weights.sum(dim=2, keepdim=True)
    return normalised.to(torch.float32)

"""RoIAlign: torchvision's where it is installed, else this one, which gives the same values.

He et al. 2017, "Mask R-CNN", Section 3; with the half-pixel shift that torchvision calls `aligned=True`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    from torchvision.ops import roi_align as torchvision_roi_align
except (ImportError, RuntimeError):  # RuntimeError: a torchvision built for another torch
    torchvision_roi_align = None


def roi_align(
    features: Tensor, boxes: Sequence[Tensor], size: int, scale: float = 1.0, sampling: int = 0
) -> Tensor:
    """Features under boxes, bilinearly sampled: (R, C, size, size) for all R boxes, image by image.

    Args:
        features: (N, C, H, W).
        boxes: N tensors (R_i, 4) of x1, y1, x2, y2, which times `scale` are pixels of the feature map.
        size: bins per side.
        scale: pixels of the feature map per unit of `boxes`.
        sampling: points per bin and direction; 0: one per pixel, as Mask R-CNN.
    """
    if torchvision_roi_align is None:
        return own_roi_align(features, boxes, size, scale, sampling)
    alike = [box.to(features) for box in boxes]
    looks: Tensor = torchvision_roi_align(features, alike, size, scale, sampling, aligned=True)
    return looks


def own_roi_align(
    features: Tensor, boxes: Sequence[Tensor], size: int, scale: float, sampling: int
) -> Tensor:
    """As `roi_align` (R, C, size, size), without torchvision: one `grid_sample` per image and number of samples."""
    total = sum(len(of_image) for of_image in boxes)
    out = features.new_zeros(total, features.shape[1], size, size)
    first = 0
    for image, of_image in zip(features, boxes, strict=True):
        corners = of_image.to(features) * scale - 0.5  # the centre of the first pixel is at 0
        spans = corners[:, 2:] - corners[:, :2]
        here = slice(first, first + len(of_image))
        first = here.stop
        if not len(of_image):
            continue
        if sampling:
            out[here] = _sample(image, corners, spans, size, sampling, sampling)
        else:
            out[here] = _one_per_pixel(image, corners, spans, size)
    return out


def _one_per_pixel(image: Tensor, corners: Tensor, spans: Tensor, size: int) -> Tensor:
    """(R, C, size, size) with as many samples per bin as it has pixels; boxes of as many are sampled together."""
    out = image.new_zeros(len(corners), len(image), size, size)
    counts = (spans / size).ceil()
    for pair in counts.unique(dim=0):
        chosen = (counts == pair).all(1).nonzero().squeeze(1)
        wide, high = pair.long().tolist()
        if wide > 0 and high > 0:
            out[chosen] = _sample(image, corners[chosen], spans[chosen], size, wide, high)
    return out


def _sample(
    image: Tensor, corners: Tensor, spans: Tensor, size: int, wide: int, high: int
) -> Tensor:
    """(C, H, W) under (R, 4) corners, with `wide` x `high` samples per bin: (R, C, size, size)."""
    x, counts_x = _axis(corners[:, 0], spans[:, 0], size, wide, image.shape[2])
    y, counts_y = _axis(corners[:, 1], spans[:, 1], size, high, image.shape[1])
    shape = (len(corners), size * high, size * wide)
    columns = x[:, None].expand(shape)
    rows = y[:, :, None].expand(shape)
    grid = torch.stack([columns, rows], -1)  # (R, size * high, size * wide, 2)
    # One image and all its boxes below each other: no copy of the features per box.
    stacked = grid.view(1, -1, shape[2], 2)
    values = F.grid_sample(image[None], stacked, padding_mode="border", align_corners=False)
    values = values[0].view(-1, *shape)  # (C, R, size * high, size * wide)
    values = values * (counts_y[:, :, None] & counts_x[:, None])
    bins = values.view(-1, shape[0], size, high, size, wide)
    return bins.mean((3, 5)).transpose(0, 1)


def _axis(low: Tensor, span: Tensor, size: int, each: int, limit: int) -> tuple[Tensor, Tensor]:
    """Positions (R, size * each) of samples in -1..1 as `grid_sample` counts, and which count at all (others are zero).

    A sample counts from -1 to `limit`, both included. Sums are in torchvision's order, or rounding would take another
    side of these ends in some boxes.
    """
    bins = torch.arange(size, device=low.device)[:, None]
    middles = torch.arange(each, device=low.device) + 0.5
    span_of_bin = (span / size)[:, None, None]
    place = low[:, None, None] + bins * span_of_bin + middles * span_of_bin / each
    place = place.flatten(1)
    counts = (place >= -1) & (place <= limit)
    return (2 * place + 1) / limit - 1, counts

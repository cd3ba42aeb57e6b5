"""RoIAlign: torchvision's where it is installed, else this one, which gives the same values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    from torchvision.ops import roi_align as fast
except (ImportError, RuntimeError):  # RuntimeError: a torchvision built for another torch
    fast = None


def roi_align(
    features: Tensor, boxes: Sequence[Tensor], size: int, scale: float = 1.0, sampling: int = 0
) -> Tensor:
    """Features under boxes, bilinearly sampled: (R, C, size, size) for all R boxes, image by image.

    `features` (N, C, H, W); `boxes` holds N tensors (R_i, 4) of x1, y1, x2, y2, which times `scale` are pixels of the
    feature map; `sampling` points per bin and direction, 0: one per pixel (as Mask R-CNN, `aligned=True`).
    """
    if fast is None:
        return own_roi_align(features, boxes, size, scale, sampling)
    return fast(features, [b.to(features) for b in boxes], size, scale, sampling, aligned=True)


def own_roi_align(
    features: Tensor, boxes: Sequence[Tensor], size: int, scale: float, sampling: int
) -> Tensor:
    """The same without torchvision: one `grid_sample` per image and number of samples."""
    out = features.new_zeros(sum(map(len, boxes)), features.shape[1], size, size)
    first = 0
    for image, own in zip(features, boxes, strict=True):
        corners = own.to(features) * scale - 0.5  # the centre of the first pixel is at 0
        spans = corners[:, 2:] - corners[:, :2]
        each = torch.full_like(spans, sampling) if sampling else (spans / size).ceil()
        for wide, high in each.unique(dim=0).long().tolist():
            chosen = (each == each.new_tensor([wide, high])).all(1).nonzero().squeeze(1)
            if wide > 0 and high > 0:
                out[first + chosen] = _sample(
                    image, corners[chosen], spans[chosen], size, wide, high
                )
        first += len(own)
    return out


def _sample(
    image: Tensor, corners: Tensor, spans: Tensor, size: int, wide: int, high: int
) -> Tensor:
    """(C, H, W) under (R, 4) corners, with `wide` x `high` samples per bin: (R, C, size, size)."""
    x, seen_x = _axis(corners[:, 0], spans[:, 0], size * wide, image.shape[2])
    y, seen_y = _axis(corners[:, 1], spans[:, 1], size * high, image.shape[1])
    shape = len(corners), size * high, size * wide
    grid = torch.stack([x[:, None].expand(shape), y[:, :, None].expand(shape)], -1)
    # One image and all its boxes below each other: no copy of the features per box.
    seen = F.grid_sample(
        image[None], grid.view(1, -1, shape[2], 2), padding_mode="border", align_corners=False
    )[0]
    seen = seen.view(-1, *shape) * (seen_y[:, :, None] & seen_x[:, None])
    return seen.view(-1, shape[0], size, high, size, wide).mean((3, 5)).transpose(0, 1)


def _axis(low: Tensor, span: Tensor, count: int, limit: int) -> tuple[Tensor, Tensor]:
    """Sample positions (R, count) in -1..1 as `grid_sample` counts, and which count at all (others are zero)."""
    at = low[:, None] + span[:, None] * (torch.arange(count, device=low.device) + 0.5) / count
    return (2 * at + 1) / limit - 1, (at >= -1) & (at <= limit)

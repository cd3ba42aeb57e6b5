"""Contrast between two sets of features: CLIP's own objective, and the pieces that distillation shares with it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from groundling.batch import Batch, Encoded, Sizes
from groundling.objectives import Objective


class _Everyone(torch.autograd.Function):
    """All ranks' rows, with gradients summed back to the rank that owns them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, most: int) -> Tensor:
        ctx.size = len(rows)
        ctx.most = most
        padded = F.pad(rows, (0, 0, 0, most - len(rows)))
        parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, padded.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].contiguous()
        dist.all_reduce(total)
        start = dist.get_rank() * ctx.most
        return total[start : start + ctx.size], None


def everyone(rows: Tensor) -> tuple[Tensor, int]:
    """Rows (n, D) of every process in rank order, differentiably, and where this process's own rows start."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return rows, 0
    sizes = [
        torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(dist.get_world_size())
    ]
    dist.all_gather(sizes, torch.tensor([len(rows)], device=rows.device))
    counts = [int(s) for s in sizes]
    shape = rows.unsqueeze(-1) if rows.ndim == 1 else rows
    padded = (
        _Everyone.apply(shape, max(counts))
        if rows.is_floating_point()
        else _gather_plain(shape, max(counts))
    )
    kept = torch.cat([padded[r * max(counts) : r * max(counts) + n] for r, n in enumerate(counts)])
    return kept.view(-1, *rows.shape[1:]), sum(counts[: dist.get_rank()])


def _gather_plain(rows: Tensor, most: int) -> Tensor:
    padded = F.pad(rows, (0, 0, 0, most - len(rows)))
    parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, padded.contiguous())
    return torch.cat(parts)


def info_nce(
    anchors: Tensor, others: Tensor, same: Tensor, own: int, scale: Tensor | float
) -> Tensor:
    """InfoNCE of unit-length anchors (n, E), whose positives are `others[own : own + n]` (m, E), summed over anchors.

    `same` (n, m) marks pairs that are not true negatives (the same word or text); all but the positive are left out.
    """
    n = len(anchors)
    logits = scale * anchors @ others.T
    target = torch.arange(n, device=anchors.device) + own
    ignore = same.clone()
    ignore[torch.arange(n, device=anchors.device), target] = False
    return F.cross_entropy(
        logits.float().masked_fill(ignore, float("-inf")), target, reduction="sum"
    )


class Contrast(Objective):
    """CLIP's symmetric contrastive loss between captions and images of a batch (Radford et al. 2021, Figure 3).

    Negatives come from all processes but from one micro-batch only: accumulation does not enlarge them. Two captions
    of one image in a batch are not each other's negatives.
    """

    name = "contrast"
    needs = ("clip", "pixels", "labels.image")

    def __init__(
        self, sizes: Sizes, *, max_scale: float = 100.0, weight: float = 1.0, warmup: int = 0
    ) -> None:
        """`max_scale`: CLIP's bound on the learned inverse temperature."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        self.max_scale = max_scale

    def count(self, batch: Batch) -> dict[str, int]:
        """Pairs."""
        return {"clip": len(batch)}

    def forward(self, encoded: Encoded, batch: Batch) -> dict[str, Tensor]:
        """Mean of both directions' cross-entropy, summed over pairs, as `clip`."""
        text, image, scale = encoded.text_embedding, encoded.image_embedding, encoded.scale
        assert text is not None and image is not None and scale is not None
        scale = scale.clamp(max=self.max_scale)
        texts, own = everyone(text)
        images, _ = everyone(image)
        numbers, _ = everyone(batch.labels["image"])
        same = batch.labels["image"][:, None] == numbers[None]
        loss = info_nce(text, images, same, own, scale) + info_nce(image, texts, same, own, scale)
        return {"clip": loss / 2}

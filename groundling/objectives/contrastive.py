"""CLIP's contrastive loss, and what contrastive objectives share: rows of all processes, InfoNCE, sentence vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, require
from groundling.objectives import Objective


class _GatherRows(torch.autograd.Function):
    """Gathers the rows of all ranks; in backward, sums each row's gradients at its own rank."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, max_rows: int) -> Tensor:
        ctx.size = len(rows)
        ctx.max_rows = max_rows
        return _gather_padded(rows, max_rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].contiguous()
        dist.all_reduce(total)
        start = dist.get_rank() * ctx.max_rows
        return total[start : start + ctx.size], None


def _gather_padded(rows: Tensor, max_rows: int) -> Tensor:
    """Rows (n, D) of all ranks, padded to `max_rows` each, in rank order: (ranks * max_rows, D)."""
    padded = F.pad(rows, (0, 0, 0, max_rows - len(rows)))
    parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, padded.contiguous())
    return torch.cat(parts)


class GatheredRows(NamedTuple):
    """What one call of `gather_across_processes` returns to each of a step's micro-batches."""

    table: Tensor
    """(m, D) or (m,): the rows of all micro-batches and processes."""
    starts: Sequence[int]
    """The offset of each micro-batch's own rows."""


class RowsAreMissing(Exception):
    """Ends a pass that gathers rows which the other micro-batches have not given yet."""


class JoinedPass:
    """One micro-batch's pass through an objective whose rows are gathered with those of a step's other micro-batches.

    The pass may run several times: its random numbers are the same each time.
    """

    def __init__(self, place: int, seed: int, gathered: Sequence[GatheredRows]) -> None:
        """`gathered`: the results of the calls of `gather_across_processes`; one more call ends the pass."""
        self.place = place
        self.seed = seed
        self.gathered = gathered
        self.rows: list[Tensor] = []
        """What it gave in each call."""
        self.gradients: list[Tensor | None] = []
        """The gradients of these rows, from the losses of all micro-batches and processes."""

    @contextmanager
    def run(self) -> Iterator[None]:
        """Within this context, `gather_across_processes` joins the micro-batches."""
        torch.manual_seed(self.seed)
        self.rows = []
        token = _JOINED.set(self)
        try:
            yield
        finally:
            _JOINED.reset(token)

    def gather(self, rows: Tensor) -> tuple[Tensor, int]:
        """See `gather_across_processes`; raises RowsAreMissing."""
        self.rows.append(rows)
        if len(self.rows) > len(self.gathered):
            raise RowsAreMissing
        table, starts = self.gathered[len(self.rows) - 1]
        return table, starts[self.place]

    def cached_gradients(self) -> list[tuple[Tensor, Tensor]]:
        """The rows of the last run that depend on weights, each with its gradient."""
        pairs = zip(self.rows, self.gradients, strict=False)
        return [(rows, one) for rows, one in pairs if one is not None and rows.requires_grad]


_JOINED: ContextVar[JoinedPass | None] = ContextVar("joined", default=None)


def gather_across_processes(rows: Tensor) -> tuple[Tensor, int]:
    """Gather rows (n, D) or (n,) of all processes, differentiably; returns them and the offset of the own rows.

    With `cached_negatives` they are of all micro-batches of the optimizer step too. In-batch negatives come from here
    alone.
    """
    joined = _JOINED.get()
    if joined is not None:
        return joined.gather(rows)
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return rows, 0
    own = torch.tensor([len(rows)], device=rows.device)
    sizes = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, own)
    counts = [int(size) for size in sizes]
    max_rows = max(counts)
    table = rows.unsqueeze(-1) if rows.ndim == 1 else rows
    gather_rows: Callable[[Tensor, int], Tensor] = _GatherRows.apply
    gather = gather_rows if table.is_floating_point() else _gather_padded
    padded = gather(table, max_rows).view(len(counts), max_rows, table.shape[-1])
    unpadded = torch.cat([part[:count] for part, count in zip(padded, counts, strict=True)])
    return unpadded.view(-1, *rows.shape[1:]), sum(counts[: dist.get_rank()])


def info_nce(
    anchors: Tensor,
    candidates: Tensor,
    start: int,
    scale: Tensor | float,
    is_same: Tensor | None = None,
) -> Tensor:
    """Summed InfoNCE of unit-length anchors (n, E), whose positives are `candidates[start : start + n]` (m, E).

    `is_same` (n, m) marks false negatives (the same word, text or image), which are masked out.
    """
    number = torch.arange(len(anchors), device=anchors.device)
    logits = (scale * anchors @ candidates.T).float()
    target = number + start
    if is_same is not None:
        # Assigning False to elements would wait for the GPU.
        ignore = is_same.scatter(1, target[:, None], value=False)
        logits = logits.masked_fill(ignore, float("-inf"))
    return F.cross_entropy(logits, target, reduction="sum")


class ClipContrastiveLoss(Objective):
    """CLIP's symmetric contrastive loss between captions and images of a batch (Radford et al. 2021, Figure 3).

    Negatives are the micro-batch's of all processes; gradient accumulation adds more with `cached_negatives` alone.
    Captions of the same image are not negatives.
    """

    name = "contrast"
    arm_name = ""
    required_fields = ("labels.image",)
    in_batch_negatives = True

    def __init__(
        self, sizes: OutputSizes, *, max_scale: float = 100.0, weight: float = 1.0
    ) -> None:
        """`max_scale`: CLIP's upper bound of the learned inverse temperature."""
        super().__init__(sizes, weight=weight)
        self.max_scale = max_scale

    def count(self, batch: Batch) -> dict[str, int]:
        """Image-text pairs."""
        return {"clip": len(batch)}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """Mean of both directions' cross-entropy, summed over image-text pairs to (), as `clip`."""
        text = require(encoded.text_embeds, "text_embeds", self.name)
        image = require(encoded.image_embeds, "image_embeds", self.name)
        scale = require(encoded.scale, "scale", self.name).clamp(max=self.max_scale)
        texts, start = gather_across_processes(text)
        images, _ = gather_across_processes(image)
        numbers, _ = gather_across_processes(batch.labels["image"])
        is_same = batch.labels["image"][:, None] == numbers[None]
        to_image = info_nce(text, images, start, scale, is_same)
        to_text = info_nce(image, texts, start, scale, is_same)
        return {"clip": (to_image + to_text) / 2}


class SigmoidContrastiveLoss(ClipContrastiveLoss):
    """SigLIP's loss: each caption and image of a batch are a pair or not (Zhai et al. 2023, 2303.15343, Section 3.2).

    The negative log-sigmoid of z (s x y + b), with z = 1 for a pair and -1 otherwise, is summed over the images of all
    processes. Captions of the same image are not negatives.
    """

    name = "sigmoid_contrast"
    arm_name = ""

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The losses of all pairs, summed to (), as `clip`; divided by the number of captions as in the paper."""
        text = require(encoded.text_embeds, "text_embeds", self.name)
        images, start = gather_across_processes(
            require(encoded.image_embeds, "image_embeds", self.name)
        )
        numbers, _ = gather_across_processes(batch.labels["image"])
        bias = require(encoded.bias, "bias", self.name)
        scale = require(encoded.scale, "scale", self.name)
        logits = (scale * text @ images.T + bias).float()
        is_same = batch.labels["image"][:, None] == numbers[None]
        return {"clip": sigmoid_pairs(logits, start, is_same)}


def sigmoid_pairs(logits: Tensor, start: int, is_same: Tensor) -> Tensor:
    """The summed -log sigmoid of logits (n, m), whose pairs are row i and column `start + i`, negated for all others.

    `is_same` (n, m) marks pairs and false negatives, which are left out.
    """
    place = torch.arange(len(logits), device=logits.device)
    is_pair = torch.zeros_like(is_same)
    is_pair[place, place + start] = True
    loss = -F.logsigmoid(torch.where(is_pair, logits, -logits))
    return loss[is_pair | ~is_same].sum()


def hash_rows(values: Tensor) -> Tensor:
    """A number (N,) of each row of integers (N, K); equal for equal rows, whatever number of zeros ends them."""
    place = torch.arange(1, values.shape[1] + 1, device=values.device)
    return (values * (place * 0x9E3779B1 % 0x7FFFFFFF)).sum(1)  # may overflow, equally everywhere


PoolingMode = Literal["own", "cls", "last", "mean"]
"""The values of `PoolingSettings.pooling`, which explains them."""


def sentence_width(sizes: OutputSizes, pool: PoolingMode) -> int:
    """Width S of the vectors of `pool_sentences`."""
    if pool == "own" and sizes.sentence_embedding:
        return sizes.sentence_embedding
    return sizes.text


def pool_sentences(
    encoded: EncoderOutput, batch: Batch, sizes: OutputSizes, pool: PoolingMode, who: str
) -> Tensor:
    """The student's vector (N, S) of each text as the model read it, masked tokens included.

    Raises InputError, in the name of `who`, for an output that the model lacks.
    """
    if pool == "own" and sizes.sentence_embedding:
        return require(encoded.sentence_embedding, "sentence_embedding", who)
    return pool_states(require(encoded.text, "text", who), batch, pool, who, sizes.causal)


def pool_states(
    states: Tensor, batch: Batch, pool: PoolingMode, who: str, causal: bool = False
) -> Tensor:
    """The first state, the last, or the mean state without special tokens and padding: (N, D) of (N, T, D).

    `own` is the first state, in a `causal` model the last.
    """
    is_last = pool == "last" or (pool == "own" and causal)
    if pool != "mean" and not is_last:
        return states[:, 0]
    tokens = require(batch.text, "text", who)
    if is_last:
        return tokens.last(states)
    inside = tokens.ordinary.unsqueeze(-1)
    return (states * inside).sum(1) / inside.sum(1).clamp(min=1)

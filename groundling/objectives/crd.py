"""VidLanKD's second distillation: contrastive representation distillation."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.core.errors import InputError
from groundling.objectives.clip_contrastive import gather_across_processes
from groundling.objectives.state_distillation import StateDistillation


class ContrastiveRepresentationDistillation(StateDistillation):
    """Tell the teacher's state of a token from its states of other sentences (Tian et al. 2020).

        h(t, s) = e^(t.s/tau) / (e^(t.s/tau) + N/M)
        loss of a token = -log h(t, s) - sum over its N negatives t' of log(1 - h(t', s))

    averaged over tokens; t and s have unit length. Padding and special tokens are excluded. The formula is
    from a public summary of the paper; that VidLanKD uses it is from memory, not checked.

    CRD's code (HobbitLong/RepDistiller, crd/) draws N = 16384 negatives from a memory of the whole data set (M
    = its size, momentum 0.5), uses tau = 0.07 and 128 dimensions, adds the same loss with the teacher as
    anchor, and divides the scores by a constant Z = M times their mean in the first batch, which the formula
    lacks (`partition="first_batch"`). VidLanKD's last commit has no CRD; its first (vlm/crd.py, not called)
    has tau = 0.07, M = 1,000,000 and B - 1 negatives, position by position.

    Ours: negatives are the teacher's states at the same position of the next N sentences of the batch
    (cyclically; by default all others, of all processes), as no memory holds all tokens of a corpus. A
    frozen teacher without a head needs no momentum. By default M is the number of sentences with a token at that
    position, so that N/M is near 1. If M is much larger, log(N/M) is so low that h is near 1 for all pairs.
    Then use `partition="first_batch"`. The student alone is the anchor: over a whole batch, both anchors
    give the same pairs. A token without negatives has a loss of 0, and a repeated sentence is a negative.
    """

    name = "crd"
    in_batch_negatives = True
    log_partition: Tensor

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        """Raises InputError if `crd_negatives`, N, is larger than `crd_cardinality`, M."""
        super().__init__(sizes, **options)
        self.temperature = self.settings.crd_temperature
        self.negatives = self.settings.crd_negatives
        self.cardinality = self.settings.crd_cardinality
        if self.cardinality and self.negatives > self.cardinality:
            raise InputError(
                f"crd_negatives={self.negatives}: above crd_cardinality={self.cardinality}"
            )
        self.has_partition = self.settings.crd_partition == "first_batch"
        self.is_estimated = False
        if self.has_partition:
            self.register_buffer("log_partition", torch.tensor(math.nan))

    def count(self, batch: Batch) -> dict[str, int]:
        """Tokens."""
        return {"crd": int(self.token_mask(batch).sum())}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The loss () summed over tokens, as `crd`."""
        student, teacher = self.unit_states(encoded, batch)
        inside = self.token_mask(batch)
        teachers, insides, start = gather_positions(teacher, inside)
        scores = torch.einsum("nte,mte->tnm", student, teachers.to(student)) / self.temperature
        rows = torch.arange(len(student), device=student.device)
        pairs = inside.T[:, :, None] & insides.T[:, None]  # (T, N, M)
        others = pairs.clone()
        others[:, rows, rows + start] = False
        chosen = self._first_negatives(others, start)
        count = chosen.sum(-1)  # (T, N): N of the formula
        drawn_from = count.new_tensor(self.cardinality) if self.cardinality else others.sum(-1) + 1
        offset = (count.clamp(min=1) / drawn_from).log()
        if self.has_partition:
            offset = offset + self._log_mean_score(scores, chosen, start, inside) + drawn_from.log()
        logits = scores - offset.unsqueeze(-1)  # h is the sigmoid of this
        positive = F.softplus(-logits[:, rows, rows + start])
        negative = (F.softplus(logits) * chosen).sum(-1)
        return {"crd": ((positive + negative) * (inside.T & (count > 0))).sum()}

    def _first_negatives(self, others: Tensor, start: int) -> Tensor:
        """The first N pairs of `others` (T, N, M) after each row's own sentence, cyclically; all if N is 0."""
        if not self.negatives:
            return others
        rows, total = others.shape[1:]
        own = torch.arange(rows, device=others.device)[:, None] + start
        column = (own + torch.arange(1, total + 1, device=others.device)) % total
        column = column.expand_as(others)
        turned = others.gather(-1, column)
        turned = turned & (turned.cumsum(-1) <= self.negatives)
        return torch.zeros_like(others).scatter(-1, column, turned)

    def _log_mean_score(self, scores: Tensor, chosen: Tensor, start: int, inside: Tensor) -> Tensor:
        """Log () of the mean of e^(t.s/tau) over the pairs of the first training batch, which is kept.

        Z of CRD's code is M times that mean.
        """
        if not self.is_estimated and not bool(self.log_partition.isnan()):  # an earlier run's
            self.is_estimated = True
        if self.is_estimated:
            return self.log_partition
        rows = torch.arange(scores.shape[1], device=scores.device)
        used = chosen.clone()
        used[:, rows, rows + start] = inside.T
        largest = 1 / self.temperature  # subtracted, so that no sum overflows
        shares = (scores.detach() - largest).exp() * used
        parts = torch.stack([shares.sum(), used.sum().to(scores)])
        total, pairs = gather_across_processes(parts[None])[0].sum(0)
        found: Tensor = (total / pairs.clamp(min=1)).clamp(min=1e-30).log() + largest
        if self.training:
            self.log_partition.copy_(found)
            self.is_estimated = True
        return found


def gather_positions(states: Tensor, inside: Tensor) -> tuple[Tensor, Tensor, int]:
    """States (N, T, E) and masks (N, T) of the sentences of all processes, and the offset of the own sentences.

    Positions are those of this process: longer texts of others are cut, as nothing here compares with
    their end, and shorter ones are padded.
    """
    here = inside.shape[1]
    lengths, _ = gather_across_processes(torch.tensor([here], device=inside.device))
    longest = int(lengths.max()) if len(lengths) > 1 else here
    wide = F.pad(states, (0, 0, 0, longest - here))
    rows, start = gather_across_processes(wide.flatten(1))
    masks, _ = gather_across_processes(F.pad(inside, (0, longest - here)).long())
    every = rows.view(len(rows), longest, -1)
    return every[:, :here], masks[:, :here].bool(), start

"""Distillation of a text encoder's token states (VidLanKD, Tang et al. 2021, Section 3.3): NST, CRD and NT-Xent."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, require
from groundling.core.errors import InputError
from groundling.objectives import Objective
from groundling.objectives.contrastive import gather_across_processes
from groundling.settings.objectives import StateDistillationSettings


class StudentHead(nn.Module):
    """The student's distillation head: Linear, GELU, LayerNorm, Linear, and each token to unit length.

    Each objective has its own; the teacher has none (vlm/model.py at the last commit of
    zinengtang/VidLanKD; the paper's supplement, Table 1, removes the student's heads). The last Linear maps
    to the teacher's width, which is the student's in the paper.
    """

    def __init__(self, sizes: OutputSizes) -> None:
        """From the width of the text states to that of the teacher's."""
        super().__init__()
        self.dense = nn.Linear(sizes.text, sizes.text)
        self.norm = nn.LayerNorm(sizes.text, eps=sizes.epsilon)
        self.project = nn.Linear(sizes.text, sizes.teacher)

    def forward(self, states: Tensor) -> Tensor:
        """Unit-length states (N, T, E) from states (N, T, D)."""
        projected = self.project(self.norm(F.gelu(self.dense(states))))
        return F.normalize(projected.float(), dim=-1)


class StateDistillation(Objective):
    """Base of the objectives that compare a student's token states with those of another text encoder."""

    required_fields = ("text", "features.teacher_states")
    Settings = StateDistillationSettings
    settings: StateDistillationSettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        self.weight *= self.settings.kd_weight
        self.head = StudentHead(sizes)

    @classmethod
    def needed_teacher(cls) -> str:
        """A text encoder."""
        return "kd_teacher"

    def token_mask(self, batch: Batch) -> Tensor:
        """Mask (N, T) of the distilled tokens: all ordinary ones, masked or not, as the teacher reads the same mask."""
        return require(batch.text, "text", self.name).ordinary

    def unit_states(self, encoded: EncoderOutput, batch: Batch) -> tuple[Tensor, Tensor]:
        """Unit-length states (N, T, E) of the student, after its head, and of the teacher."""
        student = self.head(require(encoded.text, "text", self.name))
        teacher = F.normalize(batch.features["teacher_states"].float(), dim=-1)
        return student, teacher


class NeuronSelectivityTransfer(StateDistillation):
    """Match which tokens of a sentence excite the teacher's and the student's channels (Huang & Wang 2017).

    Channel c of the student is a vector s_c over the sentence's tokens, of unit length; t_c is the teacher's.
    The loss of a sentence is the squared maximum mean discrepancy of both sets of channels, with the
    polynomial kernel k(x, y) = (x.y)^2:

        MMD^2 = mean_{c,c'} (s_c.s_c')^2 + mean_{c,c'} (t_c.t_c')^2 - 2 mean_{c,c'} (s_c.t_c')^2

    averaged over sentences. It is computed as |S S^T - T T^T|^2 / E^2, where the E columns of S and T (tokens, E) are
    the channels: the same number, without E x E kernels. Which positions count, the paper's body may say, but it was
    not read: padding and special tokens are excluded here, masked tokens are not. With `released` it is as in
    zinengtang/VidLanKD (vteacher/loss.py, vlm/model.py): no teacher term, over all positions of the micro-batch,
    padding included, summed over its B sentences and divided by their padded length.
    """

    name = "nst"

    def count(self, batch: Batch) -> dict[str, int]:
        """Sentences with a token; with `released` the padded length."""
        if self.settings.kd_variant == "released":
            return {"nst": require(batch.text, "text", self.name).input_ids.shape[1]}
        return {"nst": int(self.token_mask(batch).any(1).sum())}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The squared discrepancy () summed over sentences, as `nst`."""
        student, teacher = self.unit_states(encoded, batch)
        if self.settings.kd_variant == "released":
            own, other = _token_products(student), _token_products(teacher)
            return {"nst": (own.square() - 2 * own * other).sum()}
        inside = self.token_mask(batch).unsqueeze(-1)
        gap = _token_products(student * inside) - _token_products(teacher * inside)
        return {"nst": gap.square().sum()}


def _token_products(states: Tensor) -> Tensor:
    """Products (N, T, T) of tokens, averaged over the channels of states (N, T, D), each of unit length."""
    channels = F.normalize(states, dim=1)
    return channels @ channels.transpose(1, 2) / states.shape[-1]


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
        self.is_estimated = self.is_estimated or not bool(self.log_partition.isnan())  # resumed
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


class NTXent(StateDistillation):
    """Find a token's other view, student's or teacher's, among both views of all sentences at its position.

    zinengtang/VidLanKD (vteacher/loss.py, vlm/model.py) trains this in place of CRD. Each of the 2B states at
    a position, s_1..s_B and t_1..t_B of unit length, is an anchor; its candidates are the 2B - 1 others:

        loss of an anchor z with its counterpart z' = -log e^(z.z'/tau) / sum_{y != z} e^(z.y/tau),  tau = 1

    averaged over anchors, without padding and special tokens, with the candidates of all processes. With
    `released`, padding and special tokens are included, the sum over a position's 2B anchors is divided by
    2B twice, positions are averaged, and candidates are the process's own.
    """

    name = "nt_xent"
    in_batch_negatives = True

    def count(self, batch: Batch) -> dict[str, int]:
        """Anchors: two per token; with `released` the padded length."""
        if self.settings.kd_variant == "released":
            return {"nt_xent": require(batch.text, "text", self.name).input_ids.shape[1]}
        return {"nt_xent": 2 * int(self.token_mask(batch).sum())}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The cross-entropy () summed over anchors, as `nt_xent`."""
        student, teacher = self.unit_states(encoded, batch)
        if self.settings.kd_variant == "released":
            everywhere = torch.ones(student.shape[:2], dtype=torch.bool, device=student.device)
            views = torch.stack([student, teacher.to(student)])
            total = self._cross_entropy(views, everywhere, views, everywhere, 0)
            return {"nt_xent": total / (2 * len(student)) ** 2}
        inside = self.token_mask(batch)
        students, insides, start = gather_positions(student, inside)
        teachers, _, _ = gather_positions(teacher.to(student), inside)
        views = torch.stack([student, teacher.to(student)])
        every = torch.stack([students, teachers])
        return {"nt_xent": self._cross_entropy(views, inside, every, insides, start)}

    def _cross_entropy(
        self, views: Tensor, inside: Tensor, every: Tensor, insides: Tensor, start: int
    ) -> Tensor:
        """Summed over the anchors `views` (2, N, T, E) with candidates `every` (2, M, T, E); masks (N, T), (M, T)."""
        rows, total = views.shape[1], every.shape[1]
        scores = torch.einsum("ate,bte->tab", views.flatten(0, 1), every.flatten(0, 1))
        own = torch.arange(rows, device=scores.device) + start
        anchor = torch.arange(2 * rows, device=scores.device)
        hidden = ~insides.T.repeat(1, 2)[:, None].expand_as(scores)
        hidden = hidden.clone()
        hidden[:, anchor, torch.cat([own, own + total])] = True
        target = torch.cat([own + total, own]).expand(len(scores), -1)
        scored = inside.T.repeat(1, 2)
        # An anchor in padding has no candidates: it gets a finite row and no weight.
        scores = scores.masked_fill(hidden & scored[..., None], float("-inf"))
        losses = F.cross_entropy(scores.transpose(1, 2), target, reduction="none")
        return (losses * scored).sum()

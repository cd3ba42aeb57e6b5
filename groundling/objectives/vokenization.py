"""Vokenization (Tan and Bansal 2020): token-image matching for the vokenizer, then classification of its vokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import IGNORE, Batch, EncoderOutput, OutputSizes, Sample, require, select
from groundling.core.rng import derive_seed
from groundling.models.heads import MATCHING_HEADS, TokenImageMatchingHeads, concatenated_layers
from groundling.objectives import NegativeSampler, Objective
from groundling.objectives.contrastive import gather_across_processes
from groundling.settings.objectives import VokenizerSettings, VokenSettings

IMAGE = "token_image_matching_image"
"""Label: a number that is equal for equal images."""
DRAW = "token_image_matching_draw"
"""Label: the random number that chooses the negative image."""
FLAG = "vokenizer_layers"


class TokenImageMatching(Objective):
    """A hinge that pulls each token of a caption towards its image and away from one other image.

    Vokenization, Section 3.2 (the section is from the README of its code, not checked in the paper): with unit
    vectors t_bi of token i of caption b, v_b of its image and v_n of a negative image, the loss is the mean over
    tokens of max(0, m - t_bi . v_b + t_bi . v_n). t is a head on the text encoder's last layers, concatenated; v is
    a head on an image feature. The image feature is the teacher's `clip_image`, where the paper has a frozen ResNeXt's.

    `vokenizer_hinge="paper"`: the negative is a random image among the others of the micro-batch of all processes
    (the paper draws one at random; that it comes from the batch is ours); other captions of the same image are no
    candidates, a caption without a candidate adds 0, and special tokens are not scored. `vokenizer_hinge="released"` is
    airsplay/vokenization (xmatching/loss.py): the negative is the item half a batch away, whatever its image, and
    special tokens are scored as well (for an odd batch, which that code refuses, half is rounded down). Padding is
    never scored. A token that masked LM hides is scored from its context, as in VidLanKD's teacher.

    With `vokenizer_frozen`, as in the paper, only the heads are trained.
    """

    name = MATCHING_HEADS
    required_fields = ("text", "features.clip_image", f"labels.{IMAGE}", f"labels.{DRAW}")
    in_batch_negatives = True
    reads_layers = True
    Settings = VokenizerSettings
    settings: VokenizerSettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        self.heads = TokenImageMatchingHeads(
            sizes.text * self.settings.vokenizer_layers,
            sizes.teacher_image,
            width=self.settings.vokenizer_width,
            has_text_head=self.settings.vokenizer_head == "mlp",
        )

    def saved_modules(self) -> dict[str, torch.nn.Module]:
        """Both heads, from which `voken_classification` computes vokens."""
        return {self.name: self.heads}

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: NegativeSampler
    ) -> Sample:
        """A copy with the number of its image and a random number as labels; inputs are unchanged."""
        rows = sample.rows
        images = rows[0].example.images if rows[0].example is not None else ()
        # A sample that does not tell its image has one of its own.
        key = ("image", *images) if images else ("sample", sample.id)
        sample = sample.with_label(IMAGE, np.array(derive_seed(*key)))
        return sample.with_label(DRAW, np.array(rng.integers(1 << 62)))

    def scored(self, batch: Batch) -> Tensor:
        """(N, T) bool: tokens in the loss."""
        tokens = require(batch.text, "text", self.name)
        is_released = self.settings.vokenizer_hinge == "released"
        return tokens.attention_mask if is_released else tokens.ordinary

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The hinge () summed over tokens, as `token_image_matching`."""
        states = concatenated_layers(encoded, self.settings.vokenizer_layers, FLAG)
        if self.settings.vokenizer_frozen:
            states = states.detach()
        places = batch.flat_indices(self.scored)
        row = places // states.shape[1]
        tokens = self.heads.token_vectors(select(states, places))
        own = self.heads.image_vectors(batch.features["clip_image"])
        every, start = gather_across_processes(own)
        negative, has_negative = self._negatives(batch, len(every), start)
        near = (tokens * own[row]).sum(-1)
        far = (tokens * every[negative][row]).sum(-1)
        loss = (self.settings.vokenizer_margin - near + far).clamp(min=0) * has_negative[row]
        return {self.name: loss.sum()}

    def _negatives(self, batch: Batch, images: int, start: int) -> tuple[Tensor, Tensor]:
        """Index (N,) of each row's negative among all processes' `images`, and whether it has one (N,) bool.

        `start`: index of this process's first row.
        """
        number = torch.arange(batch.rows, device=batch.device)
        if self.settings.vokenizer_hinge == "released":
            return (number + start + images // 2) % images, torch.ones_like(
                number, dtype=torch.bool
            )
        own = batch.labels[IMAGE].repeat_interleave(batch.choices)
        draw = batch.labels[DRAW].repeat_interleave(batch.choices)
        every, _ = gather_across_processes(own)
        is_other = own[:, None] != every[None]
        candidates = is_other.sum(1)
        # The number of the chosen one among the candidates, and its place among all images.
        chosen = draw % candidates.clamp(min=1)
        is_chosen = is_other & (is_other.cumsum(1) == chosen[:, None] + 1)
        return is_chosen.int().argmax(1), candidates > 0


LABELLED = {"random", "shuffled", "reversed"}
"""Controls that give each token a voken, or the position of one, as a label."""


class VokenClassification(Objective):
    """Predict the voken of every token: the image that the vokenizer finds for it, among M images.

    Vokenization, Section 2 (the section is from the README of its code, not checked in the paper): with a head of
    Linear(D, D), GELU, LayerNorm and Linear(D, M), the cross-entropy to each token's voken, averaged over tokens. Every
    ordinary token is scored, masked or not, while the encoder reads the text that masked LM corrupted; special tokens
    and padding are not scored. The paper adds it to masked LM's loss with weight 1: `--arm mlm+voken_classification`.

    Needs the teacher's `voken` (N, T), computed from the uncorrupted text (`teachers/vokens.py`).

    `voken_control` replaces vokens as the authors' ablations do (airsplay/vokenization, vlm/data.py): "random" draws
    each anew in every epoch, "shuffled" permutes the vokens of a text among its ordinary tokens, anew in every epoch,
    "reversed" gives them to these tokens in reverse order. For "token_id" the teacher returns the token's own id. That
    code shuffles and reverses the vokens of a block of text; here a text is one sample.
    """

    name = "voken_classification"
    required_fields: tuple[str, ...] = ("text", "features.voken")
    Settings = VokenSettings
    settings: VokenSettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        """`sizes.teacher` is M, the number of different vokens."""
        super().__init__(sizes, **options)
        self.weight *= self.settings.voken_weight
        self.control = self.settings.voken_control
        self.vokens = sizes.teacher
        self.head = nn.Sequential(
            nn.Linear(sizes.text, sizes.text),
            nn.GELU(),
            nn.LayerNorm(sizes.text, eps=sizes.epsilon),
            nn.Linear(sizes.text, self.vokens),
        )
        if self.control in LABELLED:
            self.required_fields = (*self.required_fields, f"labels.{self.name}")

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: NegativeSampler
    ) -> Sample:
        """A copy with what its control gives each token as labels (T,); inputs are unchanged."""
        if self.control not in LABELLED:
            return sample
        return sample.each_row(lambda row: row.with_label(self.name, self._draw(row, rng)))

    def _draw(self, sample: Sample, rng: np.random.Generator) -> np.ndarray:
        """A random voken (T,), or the position (T,) whose voken each token gets; IGNORE at special tokens."""
        special = require(sample.text, "text", self.name).special_tokens_mask
        places = np.flatnonzero(~special)
        labels = np.full(len(special), IGNORE, np.int64)
        if self.control == "random":
            labels[places] = rng.integers(self.vokens, size=len(places))
        elif self.control == "reversed":
            labels[places] = places[::-1]
        else:
            labels[places] = rng.permutation(places)
        return labels

    def scored(self, batch: Batch) -> Tensor:
        """(N, T) bool: ordinary tokens."""
        return require(batch.text, "text", self.name).ordinary

    def _targets(self, batch: Batch) -> Tensor:
        """(n,) long: the voken of each ordinary token."""
        vokens = batch.features["voken"].long()
        if self.control in LABELLED:
            drawn = batch.labels[self.name]
            vokens = drawn if self.control == "random" else vokens.gather(1, drawn.clamp(min=0))
        return self.select_scored(vokens, batch)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy () summed over ordinary tokens, as `voken_classification`."""
        states = require(encoded.text, "text", self.name)
        logits = self.head(self.select_scored(states, batch))
        loss = F.cross_entropy(logits.float(), self._targets(batch), reduction="sum")
        return {self.name: loss}

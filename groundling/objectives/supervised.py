"""Fine-tuning on a task's labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from groundling.batch import Batch, Encoded, Sizes
from groundling.errors import InputError
from groundling.models.heads import PairPooler, Pooler
from groundling.objectives import Objective

if TYPE_CHECKING:
    from groundling.forms import Form


HEAD = 64
"""Width of an attention head of every BERT."""


def layers(between: str, width: int) -> nn.Sequential:
    """What `Readout.between` names, for states (B, `width`)."""
    wide = 2 * width if between.startswith("double") else width
    parts: list[nn.Module] = []
    if between:
        parts = [nn.Linear(width, wide), nn.ReLU() if between.endswith("relu") else nn.GELU()]
    if between not in {"", "gelu"}:
        parts.append(nn.LayerNorm(wide, eps=1e-12))
    for part in parts:
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)
    return nn.Sequential(*parts)


class Supervised(Objective):
    """A task's own loss on the first position (Devlin et al. 2019): the encoder's pooler if it has one, else a new one.

    A cross-modal model is read after its last cross-modal layer (XDBERT Appendix C.3). Other places and layers in
    between are those of `tasks/readouts.py`.

    XDBERT's released script reads the raw first position without pooler or dropout; Section 2.4 says "follows BERT".
    """

    name = "supervised"
    needs = ("labels.label",)

    def __init__(
        self,
        sizes: Sizes,
        *,
        form: Form,
        at: str = "form",
        between: str = "",
        dropout: float = 0.1,
        weight: float = 1.0,
        warmup: int = 0,
    ) -> None:
        """`form` gives the head's width and the loss; `at` and `between` as in `Readout`."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        self.form, self.at, self.mask_id = form, at, -1
        width = sizes.text if "mask" in at else sizes.pooled or sizes.text
        self.pooler = (
            None if sizes.pooled or form.reads != "first" or at != "form" else Pooler(sizes.text)
        )
        self.pair = PairPooler(sizes.text, dropout) if at == "pair" else None
        self.between, self.dropout = layers(between, width), nn.Dropout(dropout)
        if between.startswith("double") or at == "pair":
            width *= 2
        # VisualBERT grounds phrases by one attention head of 64 dimensions, whose weights are the scores (code).
        self.query = nn.Linear(width, HEAD) if form.reads == "phrase" else None
        self.classify = nn.Linear(width, HEAD if form.reads == "phrase" else form.outputs)
        nn.init.normal_(self.classify.weight, std=0.02)
        nn.init.zeros_(self.classify.bias)

    def starts(self) -> list[tuple[nn.Module, str]]:
        """Layers that an earlier run may have trained, and what its file of heads calls them."""
        if self.pooler is not None:  # a cross-modal model's, trained by `Match`
            return [(self.pooler, "match.pooler")]
        if self.at == "second mask" and len(self.between) > 2:
            return [
                (self.between[0], "masked_lm.head.dense"),
                (self.between[2], "masked_lm.head.norm"),
            ]
        if self.form.reads == "regions" and len(self.between):
            return [(self.between[0], "masked_regions.head.0")]
        return []

    def outputs(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Outputs of the head: (B, outputs), (B, C) where every sample has C choices, (B, R) where it reads regions."""
        if self.form.reads != "first":
            encoded.require(self.name, "visual")
            assert (
                encoded.visual is not None
                and encoded.text is not None
                and batch.regions is not None
            )
            found = self.classify(self.dropout(self.between(encoded.visual)))
            if self.query is not None:
                ends = encoded.text[
                    torch.arange(len(batch), device=found.device), batch.labels["query"]
                ]
                found = found @ self.query(self.dropout(ends)).unsqueeze(-1) / HEAD**0.5
            return found.squeeze(-1).float().masked_fill(~batch.regions.mask, -torch.inf)
        return (
            self.classify(self.dropout(self.between(self._read(encoded, batch))))
            .float()
            .view(len(batch), -1)
        )

    def _read(self, encoded: Encoded, batch: Batch) -> Tensor:
        """The states (rows, width) that answer."""
        if self.pair is not None:
            encoded.require(self.name, "visual")
            assert encoded.text is not None and encoded.visual is not None
            assert batch.text is not None and batch.regions is not None
            mask = torch.cat([batch.text.mask, batch.regions.mask], 1)
            return self.pair(torch.cat([encoded.text, encoded.visual], 1), mask)
        if "mask" in self.at:
            assert encoded.text is not None and batch.text is not None
            here = batch.text.ids == self.mask_id
            if not here.any(1).all():
                raise InputError(
                    "a text was cut before its [MASK], where the answer is read; raise --max-length"
                )
            last = here.shape[1] - 1 - here.flip(1).int().argmax(1)
            return encoded.text[torch.arange(len(last), device=last.device), last]
        if self.pooler is not None:
            states = encoded.joint_text if encoded.joint_text is not None else encoded.text
            assert states is not None
            return self.pooler(states)
        assert encoded.pooled is not None
        return encoded.pooled

    def count(self, batch: Batch) -> dict[str, int]:
        """Samples."""
        return {"task": len(batch)}

    def forward(self, encoded: Encoded, batch: Batch) -> dict[str, Tensor]:
        """The form's loss, summed over samples, as `task`."""
        return {
            "task": self.form.loss(
                self.outputs(encoded, batch), torch.as_tensor(batch.labels["label"])
            )
        }

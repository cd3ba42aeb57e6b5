"""A sentence encoder as it was before training, as the teacher of what it is to keep."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Batch, Row, Sample, needed
from groundling.core.errors import InputError
from groundling.models.text import TextEncoder
from groundling.models.weights import weights_sha256
from groundling.teachers import Teacher


class Itself(Teacher):
    """The pooled sentence vectors of a student's texts, as it gave them before it was trained: a frozen copy."""

    name = "itself"
    called = "the student as it was"  # a run without a teacher has it, too
    counts = False  # it reads what the student reads, whose own cut pieces are counted

    def __init__(self, text: TextEncoder) -> None:
        """Copies the encoder as it stands. Raises InputError if it pools no sentence vector."""
        if text.sentence is None:
            raise InputError(f"{text.tokenizer.name_or_path}: no sentence vectors to retain")
        self.text = TextEncoder(copy.deepcopy(text.encoder), text.tokenizer)
        self.text.speaks(text.sentence)
        self.text.eval().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        """Where the copy is."""
        return next(self.text.parameters()).device

    def to(self, device: torch.device | str) -> Itself:
        """Move the copy."""
        self.text.to(device)
        return self

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """Each row's own pieces, which nothing has masked yet; equal ones have equal ids."""
        texts = [needed(row.text, "text", self.name) for row in rows]
        return [Sample(_identity(text), text=text) for text in texts]

    def key(self) -> dict[str, Any]:
        """Its weights, and how it pools."""
        sentence = needed(self.text.sentence, "sentence", self.name)
        return {
            "weights": weights_sha256(self.text.encoder),
            "pooling": list(sentence.pooling.modes),
        }

    @torch.no_grad()
    def features(self, batch: Batch) -> Mapping[str, Tensor]:
        """`as_it_was` (U, S), of unit length."""
        encoded = self.text(batch.to(self.device))
        return {"as_it_was": F.normalize(needed(encoded.sentence, "sentence", self.name), dim=-1)}

    def known(self, batch: Batch, features: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Nothing: no objective counts by these."""
        return {}


def _identity(text: Row) -> str:
    """Equal for texts of the same pieces."""
    return hashlib.blake2b(text.ids.tobytes(), digest_size=16).hexdigest()

"""A sentence encoder as it was before training, as the teacher of what it is to keep."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.batch import Batch, Example, Sample, needed
from groundling.data.samples import TextInput, TextSamples
from groundling.errors import InputError
from groundling.models.text import TextEncoder
from groundling.models.weights import weights_sha256
from groundling.teachers import Teacher


class Itself(Teacher):
    """The pooled sentence vectors of a student's texts, as it gave them before it was trained: a frozen copy."""

    name = "itself"
    counts = False  # it reads what the student reads, whose own cut pieces are counted

    def __init__(self, text: TextEncoder, max_length: int) -> None:
        """Copies the encoder as it stands; texts are cut at `max_length` pieces, as for the student.

        Raises InputError for an encoder that pools no sentence vector.
        """
        if text.sentence is None:
            raise InputError(f"{text.tokenizer.name_or_path}: no sentence vectors to retain")
        self.text = TextEncoder(copy.deepcopy(text.encoder), text.tokenizer)
        self.text.speaks(text.sentence)
        self.text.eval().requires_grad_(False)
        self.max_length = max_length

    @property
    def device(self) -> torch.device:
        """Where the copy is."""
        return next(self.text.parameters()).device

    def to(self, device: torch.device | str) -> Itself:
        """Move the copy."""
        self.text.to(device)
        return self

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """Each row's own text, unmasked; equal ones have equal ids."""
        examples = [needed(row.example, "example", "a teacher of texts") for row in rows]
        texts = [Example(str(n), one.text, one.pair) for n, one in enumerate(examples)]
        samples = TextSamples(texts, TextInput(self.text.tokenizer, self.max_length))
        return [replace(one, id=_identity(one)) for one in samples.get(range(len(texts)))]

    def key(self) -> dict[str, Any]:
        """Its weights, how it pools, and where texts are cut."""
        sentence = needed(self.text.sentence, "sentence", self.name)
        return {
            "weights": weights_sha256(self.text.encoder),
            "pooling": list(sentence.pooling.modes),
            "max_length": self.max_length,
        }

    @torch.no_grad()
    def features(self, batch: Batch) -> Mapping[str, Tensor]:
        """`as_it_was` (U, S), of unit length."""
        encoded = self.text(batch.to(self.device))
        return {"as_it_was": F.normalize(needed(encoded.sentence, "sentence", self.name), dim=-1)}


def _identity(sample: Sample) -> str:
    """Equal for texts of the same pieces."""
    row = needed(sample.text, "text", "a teacher of texts")
    return hashlib.blake2b(row.ids.tobytes(), digest_size=16).hexdigest()

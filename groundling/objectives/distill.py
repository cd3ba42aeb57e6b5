"""Feature distillation from a frozen CLIP text tower into a text encoder."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.batch import IGNORE, Batch, Encoded, Sizes
from groundling.objectives import Objective
from groundling.objectives.contrast import everyone, info_nce


class Distill(Objective):
    """Bring the text encoder's own states close to a frozen teacher's features, through throw-away projections.

    Needs a teacher (`train(..., teachers=[...])`) whose features are `sentence` (B, E) and `words` (B, K, E). Kinds:
    "l1" is CLIP-TD's naive text term (Eq. 3-4: summed over dimensions, averaged over items; both sides of unit
    length with `targets="unit"`, or the teacher's standardised features as they are); "contrastive" is InfoNCE
    against the teacher's features of the other sentences and words of the batch, equal words not being negatives.
    The student's sentence feature is its first position (or the mean), its word feature the mean of the word's
    pieces; words with a masked piece, and special positions, take no part.
    """

    name = "distill"
    needs = ("text", "words", "features.sentence", "features.words", "features.has")

    def __init__(
        self,
        sizes: Sizes,
        *,
        kind: Literal["contrastive", "l1"] = "contrastive",
        sentence: float = 1.0,
        word: float = 1.0,
        temperature: float = 0.07,
        pool: Literal["cls", "mean"] = "cls",
        targets: Literal["standard", "unit"] = "standard",
        weight: float = 1.0,
        warmup: int = 0,
    ) -> None:
        """`sentence` and `word` weigh the two terms against each other; `temperature` of the contrastive kind."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        self.name = kind  # type: ignore[misc]  # two of them in one run have two heads
        self.kind, self.shares, self.temperature = (
            kind,
            {"sentence": sentence, "word": word},
            temperature,
        )
        self.pool, self.targets = pool, targets
        self.project = nn.ModuleDict(
            {part: nn.Linear(sizes.text, sizes.teacher) for part in self.shares}
        )

    def count(self, batch: Batch) -> dict[str, int]:
        """Sentences and words that take part."""
        counts = {"sentence": len(batch), "word": int(self._taught(batch).sum())}
        return {f"{self.kind}_{part}": counts[part] for part, share in self.shares.items() if share}

    def _taught(self, batch: Batch) -> Tensor:
        """(B, K) bool: words with a teacher feature and all of whose pieces the student sees unmasked."""
        assert batch.text is not None and batch.words is not None
        width = batch.words.shape[1]
        seen = _per_word(batch.text.word >= 0, batch.text.word, width)
        masked = torch.zeros_like(seen)
        if "masked_lm" in batch.labels:
            masked = _per_word(batch.labels["masked_lm"] != IGNORE, batch.text.word, width)
        return (seen > 0) & (masked == 0) & batch.features["has"].bool() & (batch.words >= 0)

    def forward(self, encoded: Encoded, batch: Batch) -> dict[str, Tensor]:
        """The summed loss of each part, as `contrastive_sentence`, `contrastive_word`, `l1_sentence`, `l1_word`."""
        assert encoded.text is not None and batch.text is not None and batch.words is not None
        terms = {}
        if self.shares["sentence"]:
            inside = (batch.text.mask & ~batch.text.special).unsqueeze(-1)
            mean = (encoded.text * inside).sum(1) / inside.sum(1).clamp(min=1)
            student = encoded.text[:, 0] if self.pool == "cls" else mean
            terms["sentence"] = self._compare(
                "sentence", student, batch.features["sentence"], _text_numbers(batch)
            )
        if self.shares["word"]:
            taught = self._taught(batch)
            width = batch.words.shape[1]
            places = F.one_hot(batch.text.word + 1, width + 1)[..., 1:].to(
                encoded.text.dtype
            )  # (B, T, K)
            words = (
                places.transpose(1, 2) @ encoded.text / places.sum(1).clamp(min=1).unsqueeze(-1)
            )  # (B, K, D)
            terms["word"] = self._compare(
                "word", words[taught], batch.features["words"][taught], batch.words[taught]
            )
        return {f"{self.kind}_{part}": self.shares[part] * loss for part, loss in terms.items()}

    def _compare(self, part: str, student: Tensor, teacher: Tensor, number: Tensor) -> Tensor:
        """Summed loss of student (n, D) against teacher (n, E) features; equal `number` (n,) means the same item."""
        student = self.project[part](student)
        if self.kind == "contrastive":
            keys, own = everyone(F.normalize(teacher, dim=-1))
            numbers, _ = everyone(number)
            same = number[:, None] == numbers[None]
            return info_nce(F.normalize(student, dim=-1), keys, same, own, 1 / self.temperature)
        if self.targets == "unit":
            student, teacher = F.normalize(student, dim=-1), F.normalize(teacher, dim=-1)
        return (student - teacher).abs().sum()


def _per_word(flags: Tensor, word: Tensor, width: int) -> Tensor:
    """How many flagged pieces (B, T) each word has: (B, K)."""
    counts = torch.zeros(len(flags), width + 1, dtype=torch.long, device=flags.device)
    return counts.scatter_add(1, word + 1, flags.long())[:, 1:]


def _text_numbers(batch: Batch) -> Tensor:
    """A number per sample, equal for equal texts (their words' numbers, hashed): (B,)."""
    assert batch.words is not None
    place = torch.arange(1, batch.words.shape[1] + 1, device=batch.words.device)
    mixed = (batch.words + 1) * (place * 0x9E3779B1 % 0x7FFFFFFF)  # padding is -1, so it adds 0
    return mixed.sum(1)

"""Same-sentence prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.batch import Batch, Encoded, Sample, Sizes
from groundling.models.heads import Pooler
from groundling.objectives import Objective


class Match(Objective):
    """Do the text encoder and CLIP's text tower read the same text? (XDBERT Section 2.3.2; label 1 = same.)

    With probability `negatives` the CLIP side is another text of the corpus. With `hard` > 0 that many others are
    drawn and the one sharing most CLIP pieces is taken, so that no single common word gives the answer away. Words
    and teacher features stay those of the sample's own text.
    """

    name = "match"
    needs = ("text", "clip", "labels.match")
    swaps = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        negatives: float = 0.5,
        hard: int = 0,
        weight: float = 1.0,
        warmup: int = 0,
    ) -> None:
        """`hard`: candidates per negative, 0 takes the first one drawn."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        self.negatives, self.hard = negatives, hard
        self.pooler = Pooler(sizes.text)
        self.classify = nn.Linear(sizes.text, 2)

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, other: Callable[[], Sample]
    ) -> Sample:
        """Exchange the CLIP side of some samples."""
        if rng.random() >= self.negatives:
            return sample.with_label(self.name, np.array(1))
        candidates = [other() for _ in range(max(1, self.hard))]
        different = [c for c in candidates if c.clip is not None and c.id != sample.id]
        if not different:  # a corpus of one text has no negatives
            return sample.with_label(self.name, np.array(1))
        chosen = max(different, key=lambda c: _shared(c, sample)) if self.hard else different[0]
        same = (
            np.array_equal(chosen.clip.ids, sample.clip.ids)
            if chosen.clip and sample.clip
            else False
        )
        return replace(sample, clip=chosen.clip).with_label(self.name, np.array(int(same)))

    def count(self, batch: Batch) -> dict[str, int]:
        """Samples."""
        return {"match": len(batch)}

    def forward(self, encoded: Encoded, batch: Batch) -> dict[str, Tensor]:
        """Two-way cross-entropy on the pooled first position after the cross-modal encoder, as `match`."""
        encoded.require(self.name, "joint_text")
        assert encoded.joint_text is not None
        logits = self.classify(self.pooler(encoded.joint_text)).float()
        return {"match": F.cross_entropy(logits, batch.labels[self.name], reduction="sum")}


def _shared(a: Sample, b: Sample) -> float:
    """Share of distinct CLIP pieces two samples have in common (Jaccard); equal texts count as sharing nothing."""
    assert a.clip is not None and b.clip is not None
    if np.array_equal(a.clip.ids, b.clip.ids):
        return -1.0
    return len(np.intersect1d(a.clip.ids, b.clip.ids)) / len(np.union1d(a.clip.ids, b.clip.ids))

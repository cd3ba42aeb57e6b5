"""A frozen CLIP-like text tower as a teacher of sentence and word features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from groundling.batch import Batch, Sample, Windows, collate
from groundling.data.samples import Samples
from groundling.models.clip import ClipText

CALIBRATION = 2048
"""Samples from which the features' mean and spread are estimated."""


class ClipTextTeacher:
    """Sentence and word features of a text, as the teacher sees it; never trained, never saved, always in eval mode.

    A word's feature is that of its last piece (the tower is causal, so only that piece has seen the whole word); a
    text of several windows has the mean of their end-token features. Features are standardised per dimension over
    the first samples of the data (`fit`), because CLIP's share a large common part that hides what differs.
    """

    def __init__(self, clip: ClipText, standardise: bool = True) -> None:
        self.clip = clip.eval().requires_grad_(False)
        self.width = clip.width
        self.standardise = standardise
        self.stats: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def device(self) -> torch.device:
        """Where the tower is."""
        return self.clip.logit_scale.device

    def to(self, device: torch.device | str) -> ClipTextTeacher:
        """Move the tower."""
        self.clip.to(device)
        self.stats = {k: (m.to(device), s.to(device)) for k, (m, s) in self.stats.items()}
        return self

    def fit(self, samples: Samples, batch: int = 64) -> ClipTextTeacher:
        """Estimate the features' mean and spread on the data's first samples; the same data gives the same numbers."""
        if not self.standardise or self.stats:
            return self
        found: dict[str, list[Tensor]] = {"sentence": [], "words": []}
        for some in _batches(samples, range(min(CALIBRATION, len(samples))), batch):
            features = self.features(some.to(self.device))
            found["sentence"].append(features["sentence"])
            found["words"].append(features["words"][features["has"]])
        for part, values in found.items():
            every = torch.cat(values)
            self.stats[part] = every.mean(0), every.std(0).clamp(min=1e-6)
        return self

    @torch.no_grad()
    def features(self, batch: Batch) -> dict[str, Tensor]:
        """`sentence` (B, E), `words` (B, K, E) and `has` (B, K), which says where a word has a feature."""
        assert batch.clip is not None and batch.words is not None, (
            "the teacher reads batch.clip and batch.words"
        )
        windows: Windows = batch.clip
        states, pooled = self.clip(windows)
        b, k = batch.words.shape
        number = torch.bincount(windows.row, minlength=b).unsqueeze(-1)
        sentence = pooled.new_zeros(b, pooled.shape[1]).index_add(0, windows.row, pooled) / number
        flat = windows.join(states)  # (B, V, E)
        # The last piece of word w is the last place where w stands: later writes of a larger index win by amax.
        place = torch.arange(flat.shape[1], device=flat.device).expand(b, -1)
        last = torch.full((b, k + 1), -1, device=flat.device).scatter_reduce(
            1, windows.word + 1, place, "amax"
        )[:, 1:]
        has = last >= 0
        words = flat.gather(1, last.clamp(min=0).unsqueeze(-1).expand(-1, -1, flat.shape[-1]))
        found = {"sentence": sentence, "words": words}
        for part, (mean, std) in self.stats.items():
            found[part] = (found[part] - mean) / std
        return {**found, "has": has}

    def __call__(self, batch: Batch) -> Batch:
        """The batch with this teacher's features."""
        return replace(batch, features={**batch.features, **self.features(batch)})


def _batches(samples: Samples, indices: Sequence[int] | range, size: int) -> Iterator[Batch]:
    for start in range(0, len(indices), size):
        yield collate(samples.get(indices[start : start + size], ()))


class Taught:
    """Samples that carry a teacher's features, computed once for all of them; the CLIP side is then not needed."""

    def __init__(
        self, samples: Samples, teacher: ClipTextTeacher, keep_clip: bool = False, batch: int = 64
    ) -> None:
        """`keep_clip`: leave the CLIP side in the samples, for a model that reads it (`CrossModal`)."""
        teacher.fit(samples)
        self.samples, self.keep_clip = samples, keep_clip
        self.ids, self.lengths = samples.ids, samples.lengths
        places: dict[bytes, int] = {}  # a text that stands in the data twice is read once
        self.place: list[int] = []
        first: list[int] = []
        for start in range(0, len(samples), batch):
            for i, sample in enumerate(
                samples.get(range(start, min(start + batch, len(samples))), ()), start
            ):
                assert sample.clip is not None and sample.words is not None
                key = b"".join((sample.clip.ids.tobytes(), b"|", sample.words.tobytes()))
                if key not in places:
                    places[key] = len(first)
                    first.append(i)
                self.place.append(places[key])
        self.store: list[dict[str, np.ndarray]] = []
        for some in _batches(samples, first, batch):
            found = {
                name: value.cpu()
                for name, value in teacher.features(some.to(teacher.device)).items()
            }
            assert some.words is not None
            for i, words in enumerate((some.words >= 0).sum(1).tolist()):
                self.store.append(
                    {
                        "sentence": found["sentence"][i].numpy(),
                        "words": found["words"][i, :words].numpy(),
                        "has": found["has"][i, :words].numpy(),
                    }
                )

    def __len__(self) -> int:
        return len(self.samples)

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator]) -> list[Sample]:
        """Samples with features, in the order of `indices`."""
        return [
            replace(
                s,
                features={**s.features, **self.store[self.place[i]]},
                clip=s.clip if self.keep_clip else None,
            )
            for i, s in zip(indices, self.samples.get(indices, rngs), strict=True)
        ]

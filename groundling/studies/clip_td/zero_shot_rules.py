"""What a similarity of image and text decides without any training: the rules alone, no models.

CLIP-TD Section 4.1: VCR's choice is the one whose text matches the image best, read as question + answer (IQA) or as
answer alone (IA), and the same for rationales. Section 4.2: SNLI-VE's classes are three clusters of the similarities of
image and hypothesis. For VQA the paper lists a zero-shot setting and gives no protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.data.clusters import Clusters
from groundling.data.samples import rows_of

Protocol = Literal["iqa", "ia"]
"""Whether an image is compared with question and choice, or with the choice alone; of rationales IQR and IR."""
RISING = ("contradiction", "neutral", "entailment")
"""Classes in the order of their clusters' centres; the paper does not say which cluster is which class."""


def asked(example: Example, protocol: Protocol) -> Iterator[Example]:
    """One row for each choice of an example, told apart by their ids: its question and the choice, or that alone."""
    for number, row in enumerate(rows_of(example)):
        name = f"{example.id}/{number}"
        if protocol == "iqa":
            yield replace(row, id=name)
            continue
        (tags,) = example.choice_tags[number : number + 1] or ((),)
        alone = replace(row, id=name, text=example.choices[number], pair=None)
        yield replace(alone, tags=tags, choice_tags=(), breaks=())


def same_for_same(scores: np.ndarray, read: Sequence[Sequence[bytes]]) -> np.ndarray:
    """Scores (N, C) in which choices whose texts were read alike, (N, C) digests, have the first one's score.

    Texts that differ only beyond what a model reads would otherwise differ by rounding, and the choice be arbitrary.
    """
    first = np.array([[texts.index(text) for text in texts] for texts in read])
    return np.take_along_axis(scores, first, 1)


def classify(similarities: np.ndarray, clusters: Clusters, labels: Sequence[str]) -> np.ndarray:
    """Logits (N, 3) of the classes `labels`, the best one's centre being the nearest: the highest is entailment."""
    columns = [RISING.index(label) for label in labels]
    return clusters.logits(similarities)[:, columns]


def finite(similarities: np.ndarray) -> np.ndarray:
    """The similarities (N, C) themselves; raises InputError where one is not finite."""
    faults = np.flatnonzero(~np.isfinite(similarities).all(1))
    if len(faults):
        raise InputError(
            f"row {faults[0]}: a similarity is not a finite number ({len(faults):,} such)"
        )
    return similarities


def choose(similarities: np.ndarray) -> np.ndarray:
    """The best choice (N,) of similarities (N, C), the first of equals; raises InputError where one is not finite."""
    return finite(similarities).argmax(1)

"""Text-to-image and image-to-text retrieval: recall, median rank, chance level, and comparison of two models.

A query's rank is 1 plus the number of wrong answers with at least the right answer's score: ties count against the
right answer, so constant embeddings retrieve nothing. An image query is scored by the best of its texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from groundling.core.batch import collate, require
from groundling.core.resampling import bootstrap_sums, interval
from groundling.core.rng import generator
from groundling.data.image_samples import CaptionDraws
from groundling.data.samples import SampleDataset
from groundling.models.adapters import LockedDualEncoder
from groundling.models.clip import ClipDualEncoder
from groundling.runs.progress import track

RANKS = (1, 5, 10)
"""Recall is reported at these ranks."""
TO_IMAGE = "text_to_image"
TO_TEXT = "image_to_text"
MEAN = "mean_recall"
TIE = 1e-6
"""Cosines closer than this are equal: single-precision rounding depends on the batches."""
CELLS = 1 << 24
"""Number of cosines in memory at once."""

RanksByDirection = Mapping[str, np.ndarray]
"""Rank, from 1, of each text's image (C,), and of each image's best text among it and other images' texts (I,)."""
RecallScores = Mapping[str, float]
"""`r@1`, `r@5` and `r@10` in per cent, and `median_rank`."""


def image_of_text(first: np.ndarray) -> np.ndarray:
    """Image number of every text (C,), from the first text of each image: `first` (I + 1,), whose last value is C."""
    return np.repeat(np.arange(len(first) - 1), np.diff(first))


def retrieval_ranks(texts: np.ndarray, images: np.ndarray, first: np.ndarray) -> RanksByDirection:
    """Ranks of texts (C, E) and images (I, E) of unit length; image i has the texts `first[i]` to `first[i + 1]`."""
    own_image = image_of_text(first)
    own = np.einsum("ce,ce->c", texts, images[own_image])
    best = np.maximum.reduceat(own, first[:-1])
    text_ranks = np.ones(len(texts), np.int64)
    image_ranks = np.ones(len(images), np.int64)
    rows = max(1, CELLS // len(images))
    for start in range(0, len(texts), rows):
        block = slice(start, start + rows)
        scores = texts[block] @ images.T
        is_wrong = np.ones(scores.shape, bool)
        is_wrong[np.arange(len(scores)), own_image[block]] = False
        # Not `>=`: NaN must not count as a right answer.
        text_ranks[block] += (is_wrong & ~(scores < own[block, None] - TIE)).sum(1)
        image_ranks += (is_wrong & ~(scores < best - TIE)).sum(0)
    return {TO_IMAGE: text_ranks, TO_TEXT: image_ranks}


def recall_scores(ranks: np.ndarray) -> dict[str, float]:
    """Recall at 1, 5 and 10 in percent, and the median rank, of ranks (Q,)."""
    numbers = {f"r@{rank}": round(100 * float((ranks <= rank).mean()), 2) for rank in RANKS}
    return numbers | {"median_rank": float(np.median(ranks))}


def chance_recall(first: np.ndarray) -> dict[str, dict[str, float]]:
    """Expected recall and median rank of a random order, by direction; `first` (I + 1,) as in `image_of_text`.

    An image with m of the C texts is retrieved among the first k with probability 1 - C(C-m, k) / C(C, k).
    """
    images = len(first) - 1
    within = np.arange(1, images + 1) / images
    texts = int(first[-1])
    missed = np.zeros(texts)
    for own, number in zip(*np.unique(np.diff(first), return_counts=True), strict=True):
        place = np.arange(texts)
        missed += number * np.cumprod(np.maximum(texts - own - place, 0) / (texts - place))
    return {TO_IMAGE: _expected(within), TO_TEXT: _expected(1 - missed / images)}


def _expected(within: np.ndarray) -> dict[str, float]:
    """Recall and median rank, from the cumulative probabilities (R,) of ranks 1 to R."""
    ranks = {f"r@{rank}": within[min(rank, len(within)) - 1] for rank in RANKS}
    numbers = {name: round(100 * float(share), 2) for name, share in ranks.items()}
    # A probability of one half may be a rounding error below 0.5.
    return numbers | {"median_rank": float(np.argmax(within >= 0.5 - 1e-9) + 1)}


def compare_recall(
    ranks: np.ndarray, other_ranks: np.ndarray, image: np.ndarray, seed: int = 0
) -> dict[str, Any]:
    """Difference in recall between two models on the same queries, and their ratio at 10, with 95 % intervals.

    The paired bootstrap resamples images, each with all of its queries (`image` (Q,) of ranks (Q,)). The ratio is None
    if the other model's recall is 0; its interval is None if that happens in any resample.
    """
    _, own = np.unique(image, return_inverse=True)
    hits = [each[:, None] <= np.array(RANKS) for each in (ranks, other_ranks)]
    columns = np.concatenate([*hits, np.ones((len(own), 1), bool)], axis=1)
    sums = np.stack([np.bincount(own, weights=column) for column in columns.T], axis=1)
    rng = generator(seed, "retrieval", "bootstrap")
    drawn = np.concatenate([bootstrap_sums(sums, rng), sums.sum(0, keepdims=True)])
    shares = 100 * drawn[:, :-1] / drawn[:, -1:]
    shares_of_model, shares_of_other = np.split(shares, 2, axis=1)
    differences = shares_of_model - shares_of_other
    result = {
        f"r@{rank}": _value_with_interval(differences[:, number], 2)
        for number, rank in enumerate(RANKS)
    }
    return result | {f"r@{RANKS[-1]}_ratio": _ratio(shares_of_model[:, -1], shares_of_other[:, -1])}


def _value_with_interval(values: np.ndarray, digits: int) -> dict[str, Any]:
    """The last value, from the data, with the interval of the other values, from resamples."""
    ends = interval(values[:-1])
    return {
        "value": round(float(values[-1]), digits),
        "interval": [round(float(end), digits) for end in ends],
    }


def _ratio(shares: np.ndarray, other_shares: np.ndarray) -> dict[str, Any]:
    if other_shares.all():
        return _value_with_interval(shares / other_shares, 3)
    value = round(float(shares[-1] / other_shares[-1]), 3) if other_shares[-1] else None
    return {"value": value, "interval": None}


def retrieval(
    model: ClipDualEncoder | LockedDualEncoder, samples: CaptionDraws, batch: int = 128
) -> dict[str, float]:
    """Text-to-image and image-to-text recall at 1, 5 and 10 in percent, with the numbers of images and captions.

    For an image, any of its captions is right. `mean_recall` is the mean of all six, the common criterion for model
    selection (salesforce/ALBEF, Retrieval.py, `r_mean`).
    """
    texts, images = _embedded(model, samples, batch)
    result = {"images": float(len(images)), "captions": float(len(texts))}
    for direction, ranks in retrieval_ranks(texts, images, samples.first).items():
        numbers = recall_scores(ranks)
        result |= {f"{direction}_r@{rank}": numbers[f"r@{rank}"] for rank in RANKS}
    recalls = [value for name, value in result.items() if "_r@" in name]
    return result | {MEAN: round(sum(recalls) / len(recalls), 2)}


@torch.no_grad()
def _embedded(
    model: ClipDualEncoder | LockedDualEncoder, samples: CaptionDraws, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Unit-length embeddings of every caption (C, E) and every image (I, E)."""
    was_training = model.training
    model.eval()

    def embed(of: SampleDataset, name: str, field: str) -> np.ndarray:
        found = []
        for start in track(range(0, len(of), batch), name, "batch"):
            some = of.get(range(start, min(start + batch, len(of))), ())
            encoded = model(collate(some).to(model.device))
            found.append(require(getattr(encoded, field), field, "retrieval").cpu())
        return torch.cat(found).numpy()

    texts = embed(samples.texts, "captions", "text_embeds")
    images = embed(samples, "images", "image_embeds")
    model.train(was_training)
    return texts, images

"""Evaluation of an adapted encoder: each objective beside a baseline, and sentence similarities before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import entropy

from groundling.core.batch import IGNORE, Batch, Sample, collate, require
from groundling.core.errors import InputError, convert_errors
from groundling.core.metrics import SPEARMAN
from groundling.data.samples import SampleDataset, subsample
from groundling.data.tables import lines_of
from groundling.data.text import TELLING, length_auc
from groundling.models.loading import Encoder
from groundling.models.sentence_modules import SentenceModules
from groundling.models.text_encoder import TextEncoder
from groundling.objectives import Objective
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.xdbert import ClipTokenClassification, SameSentencePrediction
from groundling.prediction.similarity import sentence_vectors
from groundling.training.batch_sampler import corrupt_samples
from groundling.training.fit import HELD_OUT_EPOCH

LENGTH_TEXTS = 512
"""Maximum number of texts whose lengths are compared."""
MIN_TEXTS = 20
"""Minimum number of texts for an area under the ROC curve."""
REPORT_TEXTS = 256
"""Maximum number of texts for the evaluation of a trained model."""
BATCH = 16
"""Texts per forward pass."""


def match_by_length(
    objectives: Sequence[Objective], samples: SampleDataset, seed: int
) -> float | None:
    """AUC of MATCH predicted from token counts alone (0.5 is chance); None without MATCH, and for too few texts."""
    found = [one for one in objectives if isinstance(one, SameSentencePrediction)]
    if not found or len(samples) < MIN_TEXTS:
        return None
    places = subsample(range(len(samples)), LENGTH_TEXTS)
    paired = corrupt_samples(samples, places, seed, 0, found)
    texts = [len(require(one.text, "text", "match").input_ids) for one in paired]
    clips = [len(require(one.clip, "clip", "match").input_ids) for one in paired]
    same = np.array([int(one.labels["match"]) == 1 for one in paired])
    return length_auc(np.array(texts), np.array(clips), same)


def length_note(auc: float | None, text_layout: str) -> list[str]:
    """Note on `match_by_length`, if the AUC is far above chance."""
    if auc is None or not auc >= TELLING:
        return []
    blocks = "text_layout=blocks, or " if text_layout == "lines" else ""
    return [
        f"MATCH can be solved from text lengths alone (AUC {auc:.2f}, chance 0.5); {blocks}"
        "match_negatives=length prevents this"
    ]


@torch.no_grad()
def evaluate_objectives(
    model: Encoder, objectives: Sequence[Objective], samples: SampleDataset, seed: int
) -> dict[str, float]:
    """Scores of a trained model's objectives, in eval mode on its own device, with new masks and pairs.

    `match_accuracy`: half of the pairs match. `clip_tokens_loss` in nats per CLIP token, and
    `clip_tokens_entropy` of the unigram baseline. `mlm_loss` in nats per masked token, also without the
    CLIP side (only start and end tokens) and with another text's.
    """
    places = subsample(range(len(samples)), REPORT_TEXTS)
    report: dict[str, float] = {"texts": len(places)}
    was_training = model.training
    model.eval()
    for one in objectives:
        drawn = corrupt_samples(samples, places, seed, HELD_OUT_EPOCH, [one])
        if isinstance(one, SameSentencePrediction):
            right = [
                one.logits(model(batch)).argmax(-1) == batch.labels[one.name]
                for batch in _batches(model, drawn)
            ]
            report["match_accuracy"] = int(torch.cat(right).sum()) / len(drawn)
        elif isinstance(one, ClipTokenClassification):
            report["clip_tokens_loss"] = _loss(model, one, drawn)
            report["clip_tokens_entropy"] = _entropy(drawn)
        elif isinstance(one, MaskedLM) and one.joint:
            others = [drawn[place - 1].clip for place in range(len(drawn))]
            swapped = [replace(s, clip=clip) for s, clip in zip(drawn, others, strict=True)]
            report["mlm_loss"] = _loss(model, one, drawn)
            report["mlm_loss_without_clip"] = _loss(model, one, [_without_clip(s) for s in drawn])
            report["mlm_loss_with_other_clip"] = _loss(model, one, swapped)
    model.train(was_training)
    return report


def _batches(model: Encoder, samples: Sequence[Sample]) -> Iterator[Batch]:
    device = next(model.parameters()).device
    for start in range(0, len(samples), BATCH):
        yield collate(samples[start : start + BATCH]).to(device)


def _loss(model: Encoder, objective: Objective, samples: Sequence[Sample]) -> float:
    total = 0.0
    count = 0
    for batch in _batches(model, samples):
        total += sum(float(value) for value in objective(model(batch), batch).values())
        count += sum(objective.count(batch).values())
    return total / max(1, count)


def _entropy(samples: Sequence[Sample]) -> float:
    """Unigram entropy of the scored CLIP tokens in nats; padding that the release scores counts as token 0."""
    scored = np.concatenate([sample.labels["clip_tokens"] for sample in samples])
    counts = np.bincount(scored[scored != IGNORE], minlength=1)
    counts[0] += sum(int(sample.labels.get("clip_padding", 0)) for sample in samples)
    return float(entropy(counts))


def _without_clip(sample: Sample) -> Sample:
    row = require(sample.clip, "clip", "a cross-modal model")
    kept = row.special_tokens_mask & (
        require(row.window_index, "window_index", "a cross-modal model") == 0
    )
    return replace(sample, clip=row.take(np.flatnonzero(kept)))


# Sentence similarity: Spearman correlation of cosines with human similarity scores, on pairs of texts.

MIN_PAIRS = 3
"""Minimum number of pairs for a rank correlation."""


class SimilarityPairs(NamedTuple):
    """Pairs of texts with human similarity scores."""

    texts: list[tuple[str, str]]
    """P pairs."""
    similarities: np.ndarray
    """(P,) on any scale."""


def read_pairs(path: str | Path) -> SimilarityPairs:
    """Pairs of a GLUE or STS-B folder (dev.tsv), or of a tsv of text, text, number without a header."""
    path = Path(path)
    if path.is_dir():
        from groundling.tasks.texts import STSB

        examples = STSB.read(path, "dev")
        texts = [(example.text, example.text_pair or "") for example in examples]
        numbers = [float(example.label) for example in examples if isinstance(example.label, float)]
    else:
        texts, numbers = [], []
        for line, content in enumerate(lines_of(path), 1):
            with convert_errors(f"{path}, line {line}: expected text<TAB>text<TAB>number"):
                first, second, similarity = content.split("\t")
                numbers.append(float(similarity))
            texts.append((first, second))
    if len(texts) < MIN_PAIRS or not np.ptp(numbers) > 0:
        raise InputError(f"{path}: expected at least {MIN_PAIRS} pairs, of different similarities")
    return SimilarityPairs(texts, np.array(numbers))


def retention_report(
    text: TextEncoder, sentence: SentenceModules, pairs: SimilarityPairs, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Spearman correlation with human similarities `before` and after training; `sentence`: the pooling before."""
    report = {"pairs": len(pairs.texts), "before": before["spearman"]}
    report["after"] = similarity_agreement(text, sentence, pairs)["spearman"]
    if text.sentence is not None and text.sentence is not sentence:
        report["projected"] = similarity_agreement(text, text.sentence, pairs)["spearman"]
    return {**report, "pooling": "+".join(sentence.modes), "cut_tokens": before["cut"]}


def similarity_agreement(
    text: TextEncoder, sentence: SentenceModules, pairs: SimilarityPairs
) -> dict[str, Any]:
    """`spearman` of cosines with the pairs' similarities, as sentence-transformers encodes; `cut` truncated tokens."""
    firsts, seconds = zip(*pairs.texts, strict=True)
    left, cut_left = sentence_vectors(text, sentence, firsts)
    right, cut_right = sentence_vectors(text, sentence, seconds)
    cosines = F.cosine_similarity(left, right).double().numpy()
    return {
        "spearman": round(SPEARMAN.compute(cosines, pairs.similarities), 4),
        "cut": int(cut_left.sum() + cut_right.sum()),
    }

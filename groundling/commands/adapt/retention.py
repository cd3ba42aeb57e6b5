"""What a sentence encoder still knows: Spearman of its cosines with people's similarities, on pairs of texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F

from groundling.core.errors import InputError
from groundling.core.metrics import SPEARMAN
from groundling.data.tables import lines_of
from groundling.models.sentence import Sentence
from groundling.models.text import TextEncoder
from groundling.prediction.sentences import sentence_vectors
from groundling.tasks.glue import STSB

FEWEST = 3
"""Fewer pairs have no rank correlation worth a number."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts, and how similar people say they are."""

    source: str
    """What messages call them."""
    texts: list[tuple[str, str]]
    """P pairs."""
    similarities: np.ndarray
    """(P,) on any scale."""


def read_pairs(path: str | Path) -> Pairs:
    """GLUE's folder or STS-B's, of which dev.tsv is read, or a tsv of text, text, number, with a header or without.

    Raises InputError, naming the line, for anything else, and for fewer than 3 pairs or equal similarities.
    """
    path = Path(path)
    if path.is_dir():
        examples = STSB.read(path, "dev")
        texts = [(example.text, example.pair or "") for example in examples]
        numbers = [float(example.label) for example in examples if isinstance(example.label, float)]
    else:
        texts, numbers = _own_pairs(path)
    if len(texts) < FEWEST or len(set(numbers)) < 2:
        raise InputError(
            f"{path}: {len(texts)} pairs with {len(set(numbers))} different similarities; expected at least {FEWEST} "
            "pairs that differ"
        )
    return Pairs(str(path), texts, np.array(numbers))


def _own_pairs(path: Path) -> tuple[list[tuple[str, str]], list[float]]:
    texts = []
    numbers = []
    for line, content in enumerate(lines_of(path), 1):
        fields = content.split("\t")
        where = f"{path}, line {line}"
        if len(fields) != 3:
            raise InputError(
                f"{where}: {len(fields)} fields, expected text, tab, text, tab, number"
            )
        similarity = _number(fields[2])
        if not math.isfinite(similarity):
            if line == 1:
                continue  # a header
            raise InputError(f"{where}: {fields[2]!r}, expected a number")
        texts.append((fields[0], fields[1]))
        numbers.append(similarity)
    return texts, numbers


def _number(field: str) -> float:
    try:
        return float(field)
    except ValueError:
        return math.nan


class Retention:
    """Agreement with people before a training and after it."""

    def __init__(self, pairs: Pairs, text: TextEncoder, sentence: Sentence) -> None:
        """`text` as it is before, and how its sentence vectors are made."""
        self.pairs = pairs
        self.sentence = sentence
        self.before = agreement(text, sentence, pairs)

    def report(self, text: TextEncoder) -> dict[str, Any]:
        """`before` and `after` (Spearman), ready for JSON.

        `projected` is that of the vectors that the encoder's folder now says, if it says others than before.
        """
        report = {"pairs": len(self.pairs.texts), "before": self.before["spearman"]}
        report["after"] = agreement(text, self.sentence, self.pairs)["spearman"]
        if text.sentence is not None and text.sentence is not self.sentence:
            report["projected"] = agreement(text, text.sentence, self.pairs)["spearman"]
        pooling = "+".join(self.sentence.pooling.modes)
        return {**report, "pooling": pooling, "cut_pieces": self.before["cut"]}

    def line(self, report: Mapping[str, Any]) -> str:
        """The report in one line."""
        line = f"Spearman on {report['pairs']:,} pairs of {self.pairs.source}: {report['before']:.3f} before, "
        line += f"{report['after']:.3f} after"
        return line + (f", {report['projected']:.3f} projected" if "projected" in report else "")


def agreement(text: TextEncoder, sentence: Sentence, pairs: Pairs) -> dict[str, Any]:
    """`spearman` of cosines with the pairs' similarities, ready for JSON; `cut` counts pieces that did not fit.

    Texts are encoded as sentence-transformers does: whole, up to the folder's own length, with its default prompt. The
    encoder is put into evaluation mode.
    """
    firsts, seconds = zip(*pairs.texts, strict=True)
    left, cut_left = sentence_vectors(text, sentence, firsts)
    right, cut_right = sentence_vectors(text, sentence, seconds)
    cosines = F.cosine_similarity(left, right).double().numpy()
    return {
        "spearman": round(SPEARMAN.compute(cosines, pairs.similarities), 4),
        "cut": int(cut_left.sum() + cut_right.sum()),
    }

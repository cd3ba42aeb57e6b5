"""Linear probe: do a noun's own states tell its looks? Fitted on train nouns, its strength chosen on dev nouns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifier
from sklearn.preprocessing import StandardScaler

from groundling.batch import Example, collate, needed
from groundling.data.samples import TextSamples
from groundling.data.tables import read_tsv
from groundling.data.words import spans
from groundling.models.kinds import Student

VISUAL = ("colour", "shape", "size", "texture")
STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Ridge penalties tried on the dev nouns."""


@dataclass(frozen=True)
class LinearProbe:
    """A question put to frozen states."""

    name: str
    """By which it is found, `linear/...`."""
    column: str
    """Of `attribute.tsv`: what is asked for."""
    version: int = 1
    """Raised whenever scores stop being comparable with earlier ones."""

    def score(self, features: np.ndarray, rows: list[dict[str, str]]) -> dict[str, float]:
        """Accuracy on dev and test nouns, and the chance of guessing.

        Args:
            features: (nouns, D).
            rows: of `attribute.tsv`, one per noun.
        """
        split = np.array([row["split"] for row in rows])
        labels = np.array([row[self.column] for row in rows])
        train = split == "train"
        scaler = StandardScaler()
        scaler.fit(features[train])
        scaled = scaler.transform(features)

        def accuracy(strength: float, part: str) -> float:
            asked = split == part
            classifier = RidgeClassifier(alpha=strength)
            classifier.fit(scaled[train], labels[train])
            return float(classifier.score(scaled[asked], labels[asked]))

        best = max(STRENGTHS, key=lambda strength: accuracy(strength, "dev"))
        return {
            "dev": accuracy(best, "dev"),
            "test": accuracy(best, "test"),
            "chance": 1 / len(set(labels)),
        }


ATTRIBUTES = tuple(LinearProbe(f"linear/{column}", column) for column in (*VISUAL, "category"))
"""One probe per attribute, and the text-only category as their counterpart."""


def read_nouns(folder: Path) -> list[dict[str, str]]:
    """Rows of a world's `probes/attribute.tsv`: noun, split, attributes, and the sentence that holds the noun."""
    columns = ("noun", "split", *VISUAL, "category", "sentence")
    return [row for _, row in read_tsv(Path(folder) / "probes" / "attribute.tsv", columns)]


@torch.no_grad()
def noun_states(model: Student, rows: list[dict[str, str]], max_length: int = 32) -> np.ndarray:
    """The model's last states at each noun, averaged over its pieces: (nouns, D).

    Raises InputError for a model without states of the text's pieces.
    """
    model.eval()
    examples = [Example(row["noun"], row["sentence"]) for row in rows]
    samples = TextSamples(examples, *model.inputs(max_length))
    batch = collate(samples.get(range(len(rows))))
    tokens = needed(batch.text, "text", "the linear probe")
    device = next(model.parameters()).device
    encoded = model(batch.to(device))
    states = needed(encoded.text, "text", "the linear probe").cpu()
    at_nouns = []
    for number, row in enumerate(rows):
        sentence = row["sentence"]
        words = [sentence[start:stop] for start, stop in spans(sentence)]
        pieces = tokens.word[number] == words.index(row["noun"])
        at_nouns.append(states[number, pieces].mean(0))
    return torch.stack(at_nouns).numpy()

"""Linear probe: do a noun's own states tell its looks? Fitted on train nouns, its strength chosen on dev nouns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifier
from sklearn.preprocessing import StandardScaler

from groundling.batch import Example, collate
from groundling.data.samples import TextInput, TextSamples
from groundling.data.tables import read_tsv
from groundling.data.words import spans
from groundling.models.text import TextEncoder

VISUAL = ("colour", "shape", "size", "texture")
STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Ridge penalties tried on the dev nouns."""


@dataclass(frozen=True)
class LinearProbe:
    """A question put to frozen states; `chance` is that of guessing."""

    name: str
    column: str
    version: int = 1

    def score(self, features: np.ndarray, rows: list[dict[str, str]]) -> dict[str, float]:
        """Accuracy on dev and test nouns, and chance; `features` (nouns, D) belong to `rows` of `attribute.tsv`."""
        split = np.array([row["split"] for row in rows])
        labels = np.array([row[self.column] for row in rows])
        scaled = StandardScaler().fit(features[split == "train"]).transform(features)

        def accuracy(strength: float, on: str) -> float:
            fitted = RidgeClassifier(alpha=strength).fit(
                scaled[split == "train"], labels[split == "train"]
            )
            return float(fitted.score(scaled[split == on], labels[split == on]))

        best = max(STRENGTHS, key=lambda s: accuracy(s, "dev"))
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
def noun_states(text: TextEncoder, rows: list[dict[str, str]], max_length: int = 32) -> np.ndarray:
    """The encoder's last states at each noun, averaged over its pieces: (nouns, D)."""
    text.eval()
    samples = TextSamples(
        [Example(r["noun"], r["sentence"]) for r in rows], TextInput(text.tokenizer, max_length)
    )
    batch = collate(samples.get(range(len(rows))))
    assert batch.text is not None
    states = text(batch.to(next(text.parameters()).device)).text.cpu()
    out = []
    for i, row in enumerate(rows):
        words = [row["sentence"][start:stop] for start, stop in spans(row["sentence"])]
        out.append(states[i, batch.text.word[i] == words.index(row["noun"])].mean(0))
    return torch.stack(out).numpy()

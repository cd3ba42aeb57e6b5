"""Linear probes of nouns' attributes from a text encoder's frozen states, and the readout of questions from them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from groundling.core.batch import Example, collate, require
from groundling.core.errors import InputError
from groundling.data.samples import TextDataset
from groundling.data.tables import read_header, read_rows
from groundling.data.text import words_of
from groundling.models.loading import Encoder

SPLITS = ("train", "dev", "test")
"""Splits of the nouns."""
FIXED = ("noun", "split", "sentence")
"""Columns of `attribute.tsv` that are no attributes; all others are attributes."""
TEXTUAL = "category"
"""The attribute that is not visual: only a rendered world's text shows it."""
STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Ridge penalties, compared on dev nouns."""
AttributeRows = Sequence[dict[str, str]]
"""Rows of `attribute.tsv`, one per noun."""


# -- linear probes -----------------------------------------------------------------------------------------------------
class LinearProbe:
    """A linear probe of one attribute on frozen states, with the ridge penalty that is best on dev nouns."""

    def __init__(self, column: str, features: np.ndarray, rows: AttributeRows) -> None:
        """`column` of the rows of `attribute.tsv`, one per noun, is predicted from `features` (nouns, D)."""
        from sklearn.linear_model import RidgeClassifier  # scikit-learn is slow to import
        from sklearn.preprocessing import StandardScaler

        self.column = column
        self.split = np.array([row["split"] for row in rows])
        self.labels = np.array([row[column] for row in rows])
        train = self.split == "train"
        dev = self.split == "dev"
        scaler = StandardScaler()
        scaler.fit(features[train])
        self.scaled = np.asarray(scaler.transform(features))
        classifiers = [RidgeClassifier(alpha=strength) for strength in STRENGTHS]
        for one in classifiers:
            one.fit(self.scaled[train], self.labels[train])
        self.classifier = max(
            classifiers, key=lambda one: float(one.score(self.scaled[dev], self.labels[dev]))
        )

    def score(self) -> dict[str, float]:
        """Accuracy on dev and test nouns, and the majority-class accuracy on test nouns."""
        is_right = self.classifier.predict(self.scaled) == self.labels
        test = self.split == "test"
        majority = Counter(self.labels[test].tolist()).most_common(1)[0][1]
        accuracy = {part: float(is_right[self.split == part].mean()) for part in ("dev", "test")}
        return accuracy | {"chance": majority / int(test.sum())}

    def shares(self) -> np.ndarray:
        """Predicted share of each value for each noun, (nouns, values); shares sum to 1 over values.

        Ridge regression on indicators preserves their sum, so shares need no scaling; some are below 0.
        """
        # scikit-learn regresses to -1 and 1
        indicators = (self.classifier.decision_function(self.scaled) + 1) / 2
        if indicators.ndim == 1:  # with two values, scores are those of the second
            indicators = np.stack([1 - indicators, indicators], axis=1)
        return np.asarray(indicators)

    def cross_validate(self, folds: int) -> float:
        """Accuracy on train nouns that the probe was not fitted on, in `folds` folds, with the same penalty."""
        from sklearn.model_selection import PredefinedSplit, cross_val_predict

        train = np.flatnonzero(self.split == "train")
        split = PredefinedSplit(np.arange(len(train)) % folds)
        predicted = cross_val_predict(
            self.classifier, self.scaled[train], self.labels[train], cv=split
        )
        return float((predicted == self.labels[train]).mean())


def score_readout(
    probes: Sequence[LinearProbe], names: Sequence[str], examples: Sequence[Example]
) -> float:
    """Odd-one-out accuracy from the predictions of linear probes, without further training.

    A question names three nouns: is the first one more similar to the second than to the third? The similarity of two
    nouns is their expected number of common attributes: the sum over attributes and values of the product of shares.
    `probes` are of the visual attributes of the nouns `names`; label 1: yes. Raises InputError for other questions.
    """
    similarity = sum(one @ one.T for one in (probe.shares() for probe in probes))
    number = {name: place for place, name in enumerate(names)}
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)")
    right = []
    for example in examples:
        mentioned = pattern.findall(example.text)
        if len(set(mentioned)) != 3 or len(mentioned) != 3:
            raise InputError(f"{example.id}: expected three different nouns")
        subject, first, second = (number[name] for name in mentioned)
        is_first = similarity[subject, first] > similarity[subject, second]
        right.append(is_first == bool(example.label))
    return float(np.mean(right))


# -- attribute.tsv -----------------------------------------------------------------------------------------------------
def read_nouns(folder: Path, columns: Sequence[str] = ()) -> list[dict[str, str]]:
    """Rows of a folder's `probes/attribute.tsv`: noun, split, a sentence with the noun, and (all) attributes."""
    path = Path(folder) / "probes" / "attribute.tsv"
    header = read_header(path)
    attributes = list(columns) or [name for name in header if name not in FIXED]
    rows: list[dict[str, str]] = []
    nouns: set[str] = set()
    for where, row in read_rows(path, (*FIXED, *attributes)):
        has_values = all(row[column].strip() for column in attributes)
        if row["split"] not in SPLITS or row["noun"] in nouns or not has_values:
            expected = (
                f"a split of {', '.join(SPLITS)}, a noun that is not repeated, and all attributes"
            )
            raise InputError(f"{where}: expected {expected}")
        nouns.add(row["noun"])
        rows.append(row)
    for column in attributes:
        train, dev, test = ({row[column] for row in rows if row["split"] == s} for s in SPLITS)
        if not (len(train) > 1 and dev and test and train & (dev | test)):
            expected = "two values or more among train nouns, some of them among dev or test nouns"
            raise InputError(f"{path}: column {column!r} cannot be probed: expected {expected}")
    return rows


def fit_probes(features: np.ndarray, rows: AttributeRows) -> dict[str, LinearProbe]:
    """A linear probe of each attribute by its name in results, `linear/...`."""
    attributes = [name for name in rows[0] if name not in FIXED]
    return {f"linear/{name}": LinearProbe(name, features, rows) for name in attributes}


def _places_of(sentence: str, noun: str) -> range:
    words, noun_words = words_of(sentence), words_of(noun)
    for start in range(len(words) - len(noun_words) + 1):
        if words[start : start + len(noun_words)] == noun_words:
            return range(start, start + len(noun_words))
    return range(0)


@torch.no_grad()
def noun_states(model: Encoder, rows: AttributeRows, max_length: int = 32) -> np.ndarray:
    """The model's last hidden states at each noun, averaged over its tokens, of a decoder at the last: (nouns, D)."""
    model.eval()
    examples = [Example(row["noun"], row["sentence"]) for row in rows]
    samples = TextDataset(examples, *model.inputs(max_length))
    batch = collate(samples.get(range(len(rows))))
    tokens = require(batch.text, "text", "the linear probe")
    device = next(model.parameters()).device
    encoded = model(batch.to(device))
    states = require(encoded.text, "text", "the linear probe").cpu()
    at_nouns = []
    for number, row in enumerate(rows):
        words = _places_of(row["sentence"], row["noun"])
        is_noun = torch.isin(tokens.word_ids[number], torch.tensor(list(words)))
        if not is_noun.any():
            raise InputError(
                f"{row['noun']!r} is not in the first {max_length} tokens of {row['sentence']!r}"
            )
        own = states[number, is_noun]
        at_nouns.append(own[-1] if model.sizes.causal else own.mean(0))
    return torch.stack(at_nouns).numpy()

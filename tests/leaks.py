"""How far a written world's text gives away what only its images should show."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np

from groundling.core.errors import InputError
from groundling.core.rng import generator
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.families import find_family


def leaks(folder: str | os.PathLike, captions: bool = False) -> dict[str, float]:
    """How far the text gives the nouns' attributes away, from the files alone; all but the null should be near 0.

    Reads the corpus, or the `captions` of the training images.

    `adjacent`: share of noun mentions next to an attribute word; `predicated`: share of lines that begin as
    the probe "truth";
    `cooccurrence`: accuracy above the majority's, mean of the attributes, of a ridge classifier that reads how often a
    noun shares a sentence with each attribute word, one noun left out at a time; `cooccurrence_null`: 95th percentile
    of the same with the nouns' attributes permuted.
    """
    path = Path(folder) / "world.json"
    if not path.is_file():
        raise InputError(f"{path} is missing; expected a folder written by World.write")
    about = json.loads(path.read_text(encoding="utf-8"))
    nouns = about["nouns"]
    attributes = about["attributes"]
    if captions:
        content = json.loads((Path(folder) / "captions_train.json").read_text(encoding="utf-8"))
        lines = [annotation["caption"] for annotation in content["annotations"]]
    else:
        lines = (Path(folder) / "corpus" / "train.txt").read_text(encoding="utf-8").splitlines()
    index = {noun["name"]: i for i, noun in enumerate(nouns)}
    words = {word: i for i, word in enumerate(itertools.chain(*attributes.values()))}
    truth = find_family(about["config"].get("family", WorldConfig.family)).truth
    statements = {
        tuple(truth.format(noun=noun, value=word).removesuffix(" .").split())
        for noun, word in itertools.product(index, words)
    }
    length = len(next(iter(statements)))
    counts = np.zeros((len(nouns), len(words)))
    mentions = 0
    adjacent = 0
    predicated = 0
    for tokens in map(str.split, lines):
        predicated += tuple(tokens[:length]) in statements
        told = [words[token] for token in tokens if token in words]
        for i, token in enumerate(tokens):
            if token in index:
                mentions += 1
                adjacent += any(word in words for word in tokens[max(i - 1, 0) : i + 2])
                np.add.at(counts[index[token]], told, 1)
    labels = []
    for attribute, values in attributes.items():
        labels.append(np.array([values.index(noun[attribute]) for noun in nouns]))
    hat = _hat(counts)
    null = []
    for i in range(200):
        null.append(_gain(hat, labels, generator("leaks", i).permutation(len(nouns))))
    return {
        "adjacent": adjacent / max(mentions, 1),
        "predicated": predicated / max(len(lines), 1),
        "cooccurrence": _gain(hat, labels, np.arange(len(nouns))),
        "cooccurrence_null": float(np.quantile(null, 0.95)),
    }


def _hat(counts: np.ndarray) -> np.ndarray:
    """The matrix (N, N) by which a ridge regression on the counts (N, W) turns targets into predictions."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    scaled = (shares - shares.mean(axis=0)) / (shares.std(axis=0) + 1e-9)
    x = np.c_[np.ones(len(scaled)), scaled]
    penalty = np.diag([1e-6] + [1.0] * counts.shape[1])
    return x @ np.linalg.solve(x.T @ x + penalty, x.T)


def _gain(hat: np.ndarray, labels: list[np.ndarray], order: np.ndarray) -> float:
    """Leave-one-out accuracy above the majority's, mean of the attributes, with the nouns' labels in this order."""
    own = np.diag(hat)[:, None]
    gains = []
    for label in labels:
        target = np.eye(label.max() + 1)[label[order]]
        # A ridge fit without noun i predicts for i what the full fit does, less i's own part.
        score = (hat @ target - own * target) / (1 - own)
        right = score.argmax(axis=1) == label[order]
        gains.append(right.mean() - target.mean(axis=0).max())
    return float(np.mean(gains))

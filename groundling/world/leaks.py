"""How far a written world's text gives away what only its images should show."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np

from groundling.errors import InputError
from groundling.keyed import generator
from groundling.world.language import ATTRIBUTES


def leaks(folder: str | os.PathLike) -> dict[str, float]:
    """How far the text gives the nouns' attributes away, from the files alone; all but the null should be near 0.

    `adjacent`: share of noun mentions next to an attribute word; `predicated`: share of lines `the NOUN is ATTRIBUTE`;
    `cooccurrence`: accuracy above the majority's, mean of the attributes, of a ridge classifier that reads how often a
    noun shares a sentence with each attribute word, one noun left out at a time; `cooccurrence_null`: 95th percentile
    of the same with the nouns' attributes permuted.
    """
    path = Path(folder) / "world.json"
    if not path.is_file():
        raise InputError(f"{path} is missing; expected a folder written by World.write")
    nouns = json.loads(path.read_text(encoding="utf-8"))["nouns"]
    index = {noun["name"]: i for i, noun in enumerate(nouns)}
    words = {word: i for i, word in enumerate(itertools.chain(*ATTRIBUTES.values()))}
    counts, mentions, adjacent, predicated = np.zeros((len(nouns), len(words))), 0, 0, 0
    lines = (Path(folder) / "corpus" / "train.txt").read_text(encoding="utf-8").splitlines()
    for tokens in map(str.split, lines):
        match tokens:
            case ["the", noun, "is", word, *_]:
                predicated += noun in index and word in words
        found = [words[token] for token in tokens if token in words]
        for i, token in enumerate(tokens):
            if token in index:
                mentions += 1
                adjacent += any(word in words for word in tokens[max(i - 1, 0) : i + 2])
                np.add.at(counts[index[token]], found, 1)
    x = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    x = np.c_[np.ones(len(x)), (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9)]
    hat = x @ np.linalg.solve(x.T @ x + np.diag([1e-6] + [1.0] * len(words)), x.T)
    labels = [
        np.array([values.index(noun[kind]) for noun in nouns])
        for kind, values in ATTRIBUTES.items()
    ]

    def gain(order: np.ndarray) -> float:
        gains = []
        for label in labels:
            target = np.eye(label.max() + 1)[label[order]]
            # A ridge fit without noun i predicts for i what the full fit does, less i's own part.
            score = (hat @ target - np.diag(hat)[:, None] * target) / (1 - np.diag(hat)[:, None])
            gains.append((score.argmax(axis=1) == label[order]).mean() - target.mean(axis=0).max())
        return float(np.mean(gains))

    null = [gain(generator("leaks", i).permutation(len(nouns))) for i in range(200)]
    return {
        "adjacent": adjacent / max(mentions, 1),
        "predicated": predicated / max(len(lines), 1),
        "cooccurrence": gain(np.arange(len(nouns))),
        "cooccurrence_null": float(np.quantile(null, 0.95)),
    }

"""Does a model use the photographs? Its answers to held-out questions about its own and about exchanged photographs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.metrics import Metric
from groundling.core.output_types import RegionSelection, Regression
from groundling.core.resampling import bootstrap_sums, derangement, interval
from groundling.core.rng import generator
from groundling.data.samples import texts_of
from groundling.data.text import normalize
from groundling.tasks import Task
from groundling.training.evaluation import EvaluationOutput, labels_of

EXCHANGED = "{} with exchanged photographs"
"""Name of a split whose photographs were exchanged."""


def exchange_images(task: Task, examples: Sequence[Example]) -> list[Example]:
    """The examples, each image of the split (a pair counts as one) replaced by another one, all by a keyed cycle.

    Empty where that says nothing: without labels, with an example without images, with one image only, and where the
    question or the answer names boxes of its image.
    """
    if labels_of(examples) is None:
        return []
    return _exchanged(task, examples, generator("exchanged photographs", task.name))


def shuffle_images(
    task: Task, splits: Mapping[str, Sequence[Example]], seed: int
) -> dict[str, list[Example]]:
    """The examples of a control, in whose splits each image is replaced by another one, drawn from `seed`.

    Raises InputError for a split where `exchange_images` would say nothing.
    """
    shuffled = {
        split: _exchanged(task, some, generator(seed, "shuffled images", split))
        for split, some in splits.items()
    }
    for split, some in shuffled.items():
        if not some:
            names = {one.images for one in splits[split]}
            reason = "a question or an answer names boxes of its image"
            if () in names or not names:
                reason = "an example has no image" if names else "no examples"
            elif len(names) == 1:
                reason = f"expected two images or more, found only {' '.join(*names)}"
            raise InputError(f"shuffle_images: {split} of {task.name}: {reason}")
    return shuffled


def _exchanged(task: Task, examples: Sequence[Example], rng: np.random.Generator) -> list[Example]:
    names = sorted({one.images for one in examples})
    names_boxes = isinstance(task.form, RegionSelection) or any(
        one.object_count or one.region_tags for one in examples
    )
    if names_boxes or len(names) < 2 or () in names:
        return []
    moved = derangement(len(names), rng)
    other = {name: names[there] for name, there in zip(names, moved, strict=True)}
    return [replace(one, images=other[one.images]) for one in examples]


def image_use(
    task: Task,
    examples: Sequence[Example],
    own: EvaluationOutput,
    exchanged: EvaluationOutput,
    train: Sequence[Example] = (),
) -> dict[str, Any]:
    """The main score with the right and with exchanged photographs, and the interval of the difference.

    Both outputs are of the N `examples`, in their order. The 95 % interval resamples photographs with all of
    their questions (percentile bootstrap). With labelled `train` examples, also the score of the most common training
    answer to each question.
    """
    metric = task.metrics[0]
    labels = own.labels
    assert labels is not None  # `exchange_images` makes no examples without labels
    names = [one.images for one in examples]
    photographs = {name: place for place, name in enumerate(dict.fromkeys(names))}
    places = [photographs[name] for name in names]
    sums = []
    for answers in (own, exchanged):
        terms = metric.example_terms(answers.predictions, labels).astype(float)
        sums.append(np.zeros((len(photographs), *terms.shape[1:])))
        np.add.at(sums[-1], places, terms)
    right, other = (float(metric.from_sums(one.sum(0))) for one in sums)
    low, high = _interval(metric, *sums)
    result = {
        "metric": metric.name,
        "higher_is_better": metric.higher_is_better,
        "right": right,
        "exchanged": other,
        "difference": right - other,
        "interval": [low, high],
        "changed": float(np.mean(own.predictions != exchanged.predictions)),
        "n": len(names),
        "photographs": len(photographs),
    }
    if not isinstance(task.form, Regression) and any(one.label is not None for one in train):
        majority = majority_per_question(train, examples)
        result["majority_per_question"] = metric.compute(majority, labels)
    return result


def _interval(metric: Metric, own: np.ndarray, exchanged: np.ndarray) -> tuple[float, float]:
    pairs = np.stack([own, exchanged], 1)
    sums = bootstrap_sums(pairs.reshape(len(pairs), -1), generator("image use"))
    mine, other = np.moveaxis(sums.reshape(-1, *pairs.shape[1:]), 1, 0)
    low, high = interval(metric.from_sums(mine) - metric.from_sums(other)).tolist()
    return low, high


def credit_of_answers(labels: Iterable[Any]) -> dict[int, float]:
    """The credit of every answer over labels: classes, or pairs (K, 2) of class and score."""
    credit: defaultdict[int, float] = defaultdict(float)
    for label in labels:
        pairs = np.array([[label, 1.0]]) if np.ndim(label) == 0 else np.asarray(label)
        for number, score in pairs:
            credit[int(number)] += float(score)
    return credit


def majority_per_question(train: Sequence[Example], held: Sequence[Example]) -> np.ndarray:
    """The most common training answer (N,) to each of N questions, by its texts; to a new question, of all."""
    labels: defaultdict[tuple[str, ...], list[Any]] = defaultdict(list)
    for one in train:
        if one.label is not None:
            labels[_question(one)].append(one.label)
            labels[()].append(one.label)
    best = {question: _most_credited(some) for question, some in labels.items()}
    return np.array([best.get(_question(one), best[()]) for one in held], float)


def _most_credited(labels: Sequence[Any]) -> int:
    credit = {answer: value for answer, value in credit_of_answers(labels).items() if answer >= 0}
    return min(credit, key=lambda answer: (-credit[answer], answer), default=-1)


def _question(example: Example) -> tuple[str, ...]:
    return tuple(normalize(text) for text in (*texts_of(example), *example.choices))


def image_use_note(
    split: str, use: Mapping[str, Any], of: str = "", without: float | None = None
) -> str:
    """The answer in one line; `of`: which run it is of; `without`: the score of training without photographs."""
    low, high = use["interval"]
    higher = use.get("higher_is_better", True)
    used = low > 0 if higher else high < 0
    verdict = "yes" if used else "that is not shown"
    baseline = use.get("majority_per_question")
    against = ""
    if baseline is not None:
        gain = use["right"] - baseline if higher else baseline - use["right"]
        better = "above" if gain > 0 else "NOT above"
        against = f"; {better} the majority per question ({baseline:.3f})"
    blind = "" if without is None else f"; trained without any: {without:.3f}"
    return (
        f"{split}: does it use the photographs? {verdict}: {use['metric']} {use['right']:.3f} with the right ones, "
        f"{use['exchanged']:.3f} with exchanged ones (difference {use['difference']:+.3f}, 95 % interval {low:+.3f} to "
        f"{high:+.3f}{of}), {use['changed']:.0%} of {use['n']} answers about {use['photographs']} photographs "
        f"change{blind}{against}"
    )

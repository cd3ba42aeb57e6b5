"""What does a text encoder know of how things look? Scores of its answers to visual facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax
from scipy.stats import kendalltau

from groundling.core.metrics import SPEARMAN
from groundling.studies.knowledge.answers import Answers
from groundling.studies.knowledge.visual_facts import VisualFact

NAN = float("nan")


def measure(
    facts: Sequence[VisualFact], scores: Sequence[np.ndarray], logs: bool = False
) -> dict[str, float]:
    """Top-1 accuracy, mean rank correlation with people, and divergence; NaN where undefined.

    Any of several equally frequent answers is right. Correlations (`spearman`, `kendall`) are of facts whose target is
    not one-hot and whose scores differ. The Jensen-Shannon divergence (`js`), in bits, is of `scores` that are
    log-probabilities, normalised over the options.

    Args:
        facts: F facts.
        scores: The model's number for each option (options,), by fact.
        logs: Whether these are log-probabilities; `js` is NaN otherwise.
    """
    right = []
    spearman = []
    kendall = []
    divergence = []
    for fact, score in zip(facts, scores, strict=True):
        right.append(_best(fact)[score.argmax()])
        if (fact.target > 0).sum() > 1:
            spearman.append(SPEARMAN.compute(score, fact.target))
            kendall.append(float(kendalltau(score, fact.target).statistic))
        if logs:
            divergence.append(float(jensenshannon(softmax(score), fact.target, base=2) ** 2))
    return {
        "accuracy": float(np.mean(right)),
        "spearman": _mean_of_defined(spearman),
        "kendall": _mean_of_defined(kendall),
        "js": _mean_of_defined(divergence),
    }


def summary(facts: Sequence[VisualFact], answers: Answers, logs: bool = False) -> dict[str, Any]:
    """`measure` of one relation: by template, their mean, the best of them (chosen on these facts), averaged scores.

    `chance` guesses among each fact's options. `majority` always answers what is right most often; NaN where facts
    differ in their options. `logs` as in `measure`.
    """
    names: dict[str, None] = {}  # in order, each once
    for by_template in answers:
        names.update(dict.fromkeys(by_template))
    templates = {}
    for name in names:
        having = [i for i, by_template in enumerate(answers) if name in by_template]
        templates[name] = measure(
            [facts[i] for i in having], [answers[i][name] for i in having], logs
        )
    best = max(templates, key=lambda name: templates[name]["accuracy"])
    mean = {}
    for measured in templates[best]:
        mean[measured] = float(np.mean([values[measured] for values in templates.values()]))
    return {
        "facts": len(facts),
        "chance": float(np.mean([_best(fact).mean() for fact in facts])),
        "majority": _majority(facts),
        "averaged_scores": measure(facts, averaged(answers), logs),
        "mean": mean,
        "best": {"template": best, **templates[best]},
        "templates": templates,
    }


def averaged(answers: Answers) -> list[np.ndarray]:
    """Per fact, its scores averaged over templates (options,)."""
    return [np.mean(list(by_template.values()), axis=0) for by_template in answers]


def _best(fact: VisualFact) -> np.ndarray:
    """(options,) bool: the most frequent answers."""
    return fact.target == fact.target.max()


def _majority(facts: Sequence[VisualFact]) -> float:
    different = {fact.options for fact in facts}
    if len(different) > 1:
        return NAN
    return float(np.mean([_best(fact) for fact in facts], axis=0).max())


def _mean_of_defined(values: Sequence[float]) -> float:
    if not np.isfinite(values).any():
        return NAN
    return float(np.nanmean(values))

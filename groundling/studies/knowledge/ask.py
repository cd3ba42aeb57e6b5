"""What an encoder says things look like, scored: Memory Colors, CoDa, ViComTe, or a rendered world's nouns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax
from scipy.stats import kendalltau

from groundling.core.errors import InputError
from groundling.core.metrics import SPEARMAN
from groundling.runs.run import Run
from groundling.studies.knowledge.answers import (
    Answers,
    Notes,
    embedding,
    fill_mask,
    noun_states,
    stroop,
)
from groundling.studies.knowledge.commands import AskConfig
from groundling.studies.knowledge.linear import compared
from groundling.studies.knowledge.visual_facts import VisualFact, open_visual_facts
from groundling.training.evaluation import Scores

ALL = "all"
"""The group of all of a relation's facts."""

STATE = "state"
"""What the linear mode calls the noun's state, among what it reads from."""
Untrained = Callable[[str | Path, Sequence[VisualFact], int], tuple[Answers, Notes]]
"""Asks a model for its answers by template, without anything being fitted."""
NAN = float("nan")


class Asked(NamedTuple):
    """What a mode found."""

    result: dict[str, Any]
    """For `result.json`: notes, and by relation and group the scores."""
    outputs: list[np.ndarray]
    """Per fact, a number for each of its options (options,)."""


def ask(config: AskConfig, run: Run) -> dict[str, Any]:
    """Probe an encoder; writes `result.json` (returned) and, by mode, `predictions_MODE.jsonl` of its scores.

    There `prediction` and `label` number the fact's options; the label is the first of the most frequent answers.
    Raises InputError for a missing setting, a mode that does not exist or that the model cannot do, and bad data.
    """
    if not config.modes or not set(config.modes) <= MODES.keys():
        raise InputError(f"--modes {' '.join(config.modes)}: expected some of {', '.join(MODES)}")
    facts, left_out, _ = open_visual_facts(config.data)
    result: dict[str, Any] = {"facts": len(facts), "left_out": left_out}
    for mode in config.modes:
        asked = MODES[mode](config, facts)
        _predictions(facts, asked.outputs).write(run.folder / f"predictions_{mode}.jsonl")
        result[mode] = asked.result
    return result


def _untrained(
    answer: Untrained, config: AskConfig, facts: Sequence[VisualFact], logs: bool = False
) -> Asked:
    """Answers as they come, averaged over templates; `logs`: they are log-probabilities."""
    answers, notes = answer(config.model, facts, config.max_length)
    return Asked({**notes, "relations": _summaries(facts, answers, logs)}, averaged(answers))


def _linear(config: AskConfig, facts: Sequence[VisualFact]) -> Asked:
    """What ridge regressions read from the nouns' states, beside word embeddings alone and random numbers."""
    nouns = [fact.subject for fact in facts]
    found = noun_states(config.model, nouns, config.frames, config.layer, config.max_length)
    kinds = {STATE: found.state, "words": found.words}
    relations: dict[str, dict[str, Any]] = {}
    outputs: dict[int, np.ndarray] = {}
    for relation in dict.fromkeys(fact.relation for fact in facts):
        numbers = [number for number, fact in enumerate(facts) if fact.relation == relation]
        own = [facts[number] for number in numbers]
        scores, said = compared(own, kinds, config.folds, config.seed)
        relations[relation] = {ALL: scores}
        outputs |= dict(zip(numbers, said[STATE], strict=True))
    result = {"unknown_pieces": found.unknown, "relations": relations}
    return Asked(result, [outputs[number] for number in range(len(facts))])


MODES: dict[str, Callable[[AskConfig, Sequence[VisualFact]], Asked]] = {
    "fill-mask": partial(_untrained, fill_mask, logs=True),
    "embedding": partial(_untrained, embedding),
    "stroop": partial(_untrained, stroop),
    "linear": _linear,
}
"""Ways of asking, by name."""


def _summaries(
    facts: Sequence[VisualFact], answers: Answers, logs: bool
) -> dict[str, dict[str, dict[str, Any]]]:
    """The summary of each relation's facts, all together and by group."""
    members: dict[str, dict[str, list[int]]] = {}
    for number, fact in enumerate(facts):
        groups = members.setdefault(fact.relation, {})
        groups.setdefault(ALL, []).append(number)
        if fact.group and fact.group != ALL:
            groups.setdefault(fact.group, []).append(number)
    summaries: dict[str, dict[str, dict[str, Any]]] = {}
    for relation, groups in members.items():
        summaries[relation] = {}
        for group, numbers in groups.items():
            summaries[relation][group] = summary(
                [facts[i] for i in numbers], [answers[i] for i in numbers], logs
            )
    return summaries


def _predictions(facts: Sequence[VisualFact], outputs: Sequence[np.ndarray]) -> Scores:
    ragged = np.empty(len(facts), object)  # facts may differ in how many options they have
    ragged[:] = outputs
    return Scores(
        ids=[fact.id for fact in facts],
        outputs=ragged,
        predictions=np.array([output.argmax() for output in outputs]),
        labels=np.array([fact.target.argmax() for fact in facts]),
        metrics={},
    )


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

"""What does a text encoder know of how things look? Scores of its answers, and the whole run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax
from scipy.stats import kendalltau

from groundling.analysis.answers import Answers, embedding, fill_mask, stroop
from groundling.config import AskConfig
from groundling.data.visual_facts import VisualFact, read_visual_facts
from groundling.errors import InputError
from groundling.evaluate import Scores
from groundling.metrics import SPEARMAN
from groundling.runs import finished, open_run, write_json

MODES = {"fill-mask": fill_mask, "embedding": embedding, "stroop": stroop}


def measure(
    facts: Sequence[VisualFact], scores: Sequence[np.ndarray], logs: bool = False
) -> dict[str, float]:
    """Top-1 accuracy, mean rank correlation with people, and divergence; NaN where undefined.

    Any of several equally frequent answers is right. Correlations are of facts whose target is not one-hot and whose
    scores differ. The Jensen-Shannon divergence, in bits, is of `scores` that are log-probabilities, normalised over
    the options.
    """
    pairs = list(zip(facts, scores, strict=True))
    graded = [(fact.target, own) for fact, own in pairs if (fact.target > 0).sum() > 1]
    ranks = {
        "spearman": [SPEARMAN.compute(own, target) for target, own in graded],
        "kendall": [float(kendalltau(own, target).statistic) for target, own in graded],
        "js": [float(jensenshannon(softmax(own), fact.target, base=2) ** 2) for fact, own in pairs]
        if logs
        else [],
    }
    means = {
        name: float(np.nanmean(v)) if np.isfinite(v).any() else float("nan")
        for name, v in ranks.items()
    }
    return {"accuracy": float(np.mean([_best(fact)[own.argmax()] for fact, own in pairs])), **means}


def _best(fact: VisualFact) -> np.ndarray:
    return fact.target == fact.target.max()  # (options,) bool


def summary(facts: Sequence[VisualFact], answers: Answers, logs: bool = False) -> dict[str, Any]:
    """`measure` of one relation: by template, their mean, the best of them (chosen on these facts), averaged scores.

    `majority` always answers what is right most often; NaN where facts differ in their options.
    """
    names = list(dict.fromkeys(name for own in answers for name in own))
    templates = {}
    for name in names:
        having = [i for i, own in enumerate(answers) if name in own]
        templates[name] = measure(
            [facts[i] for i in having], [answers[i][name] for i in having], logs
        )
    alike = len({fact.options for fact in facts}) == 1
    best = max(names, key=lambda name: templates[name]["accuracy"])
    return {
        "facts": len(facts),
        "chance": float(np.mean([_best(fact).mean() for fact in facts])),
        "majority": float(np.mean([_best(fact) for fact in facts], axis=0).max())
        if alike
        else float("nan"),
        "averaged_scores": measure(facts, averaged(answers), logs),
        "mean": {
            m: float(np.mean([own[m] for own in templates.values()])) for m in templates[best]
        },
        "best": {"template": best, **templates[best]},
        "templates": templates,
    }


def averaged(answers: Answers) -> list[np.ndarray]:
    """Per fact, its scores averaged over templates (options,)."""
    return [np.mean(list(own.values()), axis=0) for own in answers]


def ask(config: AskConfig, out: str | Path) -> dict[str, Any]:
    """Probe an encoder; writes `out/result.json` and, by mode, `predictions_MODE.jsonl` of averaged scores.

    There `prediction` and `label` number the fact's options; the label is the first of the most frequent answers.
    """
    if not config.model or not config.data:
        raise InputError("ask needs --model and --data FILE")
    if not config.modes or not set(config.modes) <= MODES.keys():
        raise InputError(f"--modes {' '.join(config.modes)}: expected some of {', '.join(MODES)}")
    facts = read_visual_facts(config.data)
    folder = open_run(out, "ask", asdict(config), {"model": config.model, "data": config.data})
    if (done := finished(folder)) is not None:
        return done
    parts: dict[str, dict[str, list[int]]] = {}
    for i, fact in enumerate(facts):
        for group in dict.fromkeys(("all", fact.group or "all")):
            parts.setdefault(fact.relation, {}).setdefault(group, []).append(i)
    result: dict[str, Any] = {"facts": len(facts)}
    for mode in config.modes:
        answers, notes = MODES[mode](config.model, facts, config.max_length)
        relations = {
            relation: {
                g: summary([facts[i] for i in own], [answers[i] for i in own], mode == "fill-mask")
                for g, own in groups.items()
            }
            for relation, groups in parts.items()
        }
        outputs = averaged(answers)
        ragged = np.empty(len(facts), object)  # facts may differ in how many options they have
        ragged[:] = outputs
        predictions, labels = (
            np.array([o.argmax() for o in outputs]),
            np.array([f.target.argmax() for f in facts]),
        )
        Scores([f.id for f in facts], ragged, predictions, labels, {}).write(
            folder / f"predictions_{mode}.jsonl"
        )
        result[mode] = {**notes, "relations": relations}
    write_json(folder / "result.json", result)
    return result

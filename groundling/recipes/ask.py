"""What an encoder says things look like, as a command: Memory Colors, CoDa, ViComTe, or a rendered world's nouns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from groundling.analysis.answers import Answers, Notes, embedding, fill_mask, stroop
from groundling.analysis.knowledge import averaged, summary
from groundling.config import AskConfig, need
from groundling.data.visual_facts import VisualFact, read_visual_facts
from groundling.errors import InputError
from groundling.evaluate import Scores
from groundling.recipes.lifecycle import Run

FILL_MASK = "fill-mask"
"""The mode whose scores are log-probabilities."""

Mode = Callable[[str | Path, Sequence[VisualFact], int], tuple[Answers, Notes]]

MODES: dict[str, Mode] = {FILL_MASK: fill_mask, "embedding": embedding, "stroop": stroop}
"""Ways of asking, by name."""

ALL = "all"
"""The group of all of a relation's facts."""


def ask(config: AskConfig, out: str | Path) -> dict[str, Any]:
    """Probe an encoder; writes `out/result.json` (returned) and, by mode, `predictions_MODE.jsonl` of averaged scores.

    There `prediction` and `label` number the fact's options; the label is the first of the most frequent answers.
    Raises InputError for a missing setting, a mode that does not exist or that the model cannot do, and bad data.
    """
    need(config, "ask", "model", "data")
    if not config.modes or not set(config.modes) <= MODES.keys():
        raise InputError(f"--modes {' '.join(config.modes)}: expected some of {', '.join(MODES)}")
    facts = read_visual_facts(config.data)
    inputs = {"model": config.model, "data": config.data}
    run = Run(out, "ask", asdict(config), inputs)
    if run.result is not None:
        return run.result
    result: dict[str, Any] = {"facts": len(facts)}
    for mode in config.modes:
        answers, notes = MODES[mode](config.model, facts, config.max_length)
        relations = _summaries(facts, answers, logs=mode == FILL_MASK)
        _predictions(facts, answers).write(run.folder / f"predictions_{mode}.jsonl")
        result[mode] = {**notes, "relations": relations}
    return run.finish(result)


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


def _predictions(facts: Sequence[VisualFact], answers: Answers) -> Scores:
    outputs = averaged(answers)
    ragged = np.empty(len(facts), object)  # facts may differ in how many options they have
    ragged[:] = outputs
    return Scores(
        ids=[fact.id for fact in facts],
        outputs=ragged,
        predictions=np.array([output.argmax() for output in outputs]),
        labels=np.array([fact.target.argmax() for fact in facts]),
        metrics={},
    )

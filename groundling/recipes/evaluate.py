"""A fine-tuned model's scores on labelled data, as its training run would have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundling.batch import Example
from groundling.config import EvaluateConfig, need
from groundling.errors import InputError
from groundling.evaluate import Scores, joined
from groundling.predicting.fitted import Fitted, such
from groundling.predicting.sight import Sight
from groundling.recipes.finetuning.result import scored
from groundling.recipes.lifecycle import say_notes
from groundling.recipes.saved import labelled_parts, opened, sight_of
from groundling.tasks import Task


def evaluate(config: EvaluateConfig) -> dict[str, Any]:
    """The model's scores by split and metric, 0..1 as in `result.json`; nothing is written.

    Raises InputError if the data has no labels, others than the model knows, or a row that cannot be asked.
    """
    need(config, "evaluate", "model", "data")
    model = opened(config.saved)
    sight = sight_of(model, config.saved, decode=False)
    data = Path(config.data)
    task, parts = labelled_parts(model, config)
    scores = {}
    counts = {}
    dropped = 0
    for split, examples in parts.items():
        answers = _answers(model, examples, sight, task)
        scores[split] = scored(answers, task, split, data)
        counts[split] = len(examples)
        dropped += answers.dropped
    say_notes(model.notes)
    result: dict[str, Any] = {"task": task.name, "model": str(model.folder), "scores": scores}
    result |= {"examples": counts, "dropped_pieces": dropped}
    return result | ({"notes": model.notes} if model.notes else {})


def _answers(model: Fitted, examples: list[Example], sight: Sight, task: Task) -> Scores:
    parts = []
    for part in model.ask(examples, sight, task, task.mark):
        for fault in part.faults.values():
            raise InputError(f"{fault}{such(len(part.faults))}")
        if part.scores is not None:
            parts.append(part.scores)
    return joined(parts, task)

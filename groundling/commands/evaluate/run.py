"""A fine-tuned model's scores on labelled data, as a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundling.commands.evaluate import EvaluateConfig
from groundling.prediction.fitted import opened, sight_of
from groundling.prediction.scoring import scores_on
from groundling.runs.work import Work


def evaluate(config: EvaluateConfig, work: Work) -> dict[str, Any]:
    """What `scores_on` says of the model that the settings name; nothing is written.

    Raises InputError as it does.
    """
    model = opened(config.saved)
    sight = sight_of(model, config.saved, decode=False)
    data = Path(config.data)
    result = scores_on(model, data, config.split, config.asking, config.label, sight)
    work.note(*model.notes)
    return result

"""Implicit mitigation (CLIP-TD's IM): items that a model answers from the text alone, and is sure of, are left out.

CLIP-TD Sections 4.1.2 and 8.4, threshold 0.90. The paper calls `language_biased` what the text-only model gets right
with at least that probability and `image_biased` what it gets wrong; right answers below it belong to neither. The IM
evaluation set is everything but the language-biased items, the reading that fits the paper's numbers (76.02 to 70.64
for VL-BERT); Table 9's rows "IM = Y" fit the language-biased group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from groundling.core.errors import InputError, refuse
from groundling.prediction.predictions import read_predictions, scores_of_choices, told_of
from groundling.runs.folder import finished, read_json
from groundling.studies.clip_td.lines import Line
from groundling.tasks.vcr import ANSWER, CHOICES


@dataclass
class Groups:
    """The items of a split by what a text-only model makes of them."""

    language_biased: list[Line] = field(default_factory=list)
    """Right, with at least the threshold's probability."""
    image_biased: list[Line] = field(default_factory=list)
    """Wrong, however sure."""
    unsure: list[Line] = field(default_factory=list)
    """Right, but below the threshold."""
    kept: list[Line] = field(default_factory=list)
    """The IM evaluation set: all but the language-biased ones, in file order."""

    def sizes(self) -> dict[str, int]:
        """How many items each group has."""
        return {name: len(lines) for name, lines in self.__dict__.items()}


def groups(lines: Sequence[Line], scores: Mapping[str, np.ndarray], threshold: float) -> Groups:
    """The items by group, from the scores (4,) of their answers before a softmax, by annot_id.

    Raises:
        InputError: An item without scores, scores of another number or not finite, or a threshold outside 0..1.
    """
    if not 0 < threshold <= 1:
        raise InputError(f"--confident {threshold}: expected a probability above 0, at most 1")
    refuse([f"no prediction for {line.item.id}" for line in lines if line.item.id not in scores])
    out = Groups()
    for line in lines:
        of_item = scores[line.item.id]
        if of_item.shape != (CHOICES,) or not np.isfinite(of_item).all():
            raise InputError(f"{line.item.id}: expected {CHOICES} finite scores")
        chances = softmax(of_item)
        if chances.argmax() != line.right("answer"):
            out.image_biased.append(line)
        elif chances.max() < threshold:
            out.unsure.append(line)
        else:
            out.language_biased.append(line)
            continue
        out.kept.append(line)
    return out


def read_scores(path: Path) -> dict[str, np.ndarray]:
    """The scores (4,) of every item's answers, by annot_id, of a text-only run's file of predictions.

    Raises InputError as `read_predictions`, or for other outputs than one or two scores a choice.
    """
    scores = {}
    for name, said in read_predictions(path, ANSWER.form).items():
        with told_of(f"{path}, {name}"):
            scores[name] = scores_of_choices(said, CHOICES)
    return scores


def text_only_run(path: Path) -> dict[str, Any]:
    """What is known of the run that predicted; raises InputError if it is of another task, or saw regions."""
    done = finished(path.parent)
    if done is None:
        return {"text-only run": "unknown: no result.json beside the predictions"}
    if done.get("task") != ANSWER.name:
        raise InputError(f"{path}: predictions of {done.get('task')}, expected {ANSWER.name}")
    settings = path.parent.parent / "config.json"
    about = read_json(settings) if settings.is_file() else {}
    config = about.get("config", {}) if isinstance(about, dict) else None
    regions = config.get("regions", {}) if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(regions, dict):
        raise InputError(f"{settings}: not the settings of a run")
    if regions.get("regions"):
        raise InputError(
            f"{path}: its model saw regions ({regions['regions']}); IM wants one of the text alone"
        )
    return {"text-only run": {"model": config.get("model"), "seed": done.get("seed")}}

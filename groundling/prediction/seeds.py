"""Which of a run's seeds answer: the best one on the development split, one by its number, or all by vote."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import softmax

from groundling.core.errors import InputError
from groundling.core.forms import Form, Pick, Regress
from groundling.core.metrics import METRICS
from groundling.prediction.predictions import Said, probabilities
from groundling.runs.folder import finished
from groundling.tasks import Task
from groundling.training.evaluation import MANY, Scores, most_likely

SEED = re.compile(r"seed-(\d+)")
Which = Literal["best", "all"]
"""Which of several seeds answer if nobody names one."""


class Chosen(NamedTuple):
    """The saved models that answer."""

    folder: Path
    """The only one, or the first of them, the best."""
    others: tuple[Path, ...] = ()
    """Those that vote with it."""
    note: str = ""
    """Which of several they are, in words."""


def model_folder(source: Path) -> Path:
    """The model that a run holds, of several seeds the best one; any other folder, or a hub id, as it is.

    Raises InputError as `chosen`.
    """
    is_run = (source / "model").is_dir() or (
        source.is_dir() and any(SEED.fullmatch(one.name) for one in source.iterdir())
    )
    return chosen(source).folder if is_run else source


def chosen(source: Path, seed: int | None = None, seeds: Which = "best") -> Chosen:
    """The saved models in what `source` names that answer: that of a `seed`, of the best one on dev, or of `all`.

    Raises InputError if there is none, or no such seed.
    """
    if not source.is_dir():
        raise InputError(f"{source}: no such folder; expected what `groundling finetune` wrote")
    if seed is not None and seeds == "all":
        raise InputError(
            f"--seed {seed} names one seed, --seeds all asks all; leave one of them out"
        )
    saved = {
        int(match[1]): folder / "model"
        for folder in sorted(source.iterdir())
        if (match := SEED.fullmatch(folder.name)) and (folder / "model").is_dir()
    }
    if not saved:
        if seed is not None or seeds == "all":
            raise InputError(f"{source}: holds no seeds with a saved model; leave the seed out")
        return Chosen(_only_model(source))
    numbers = sorted(saved)
    every = ", ".join(map(str, numbers))
    if seed is not None and seed not in saved:
        raise InputError(f"{source}: no saved model of seed {seed}; there are: {every}")
    if len(saved) == 1:
        return Chosen(saved[numbers[0]])
    if seed is not None:
        return Chosen(saved[seed], note=f"{source}: seed {seed} answers, of {every}")
    # A folder keeps the seeds of an earlier command that asked for more.
    told = (finished(source) or {}).get("seeds")
    numbers = [one for one in numbers if one in told] if isinstance(told, list) else numbers
    numbers = numbers or sorted(saved)
    every = ", ".join(map(str, numbers))
    best, why = _best({number: saved[number].parent for number in numbers})
    if seeds == "all":
        others = tuple(saved[number] for number in numbers if number != best)
        note = f"{source}: seeds {every} vote; of equal votes the higher mean probability wins, and probabilities are"
        return Chosen(saved[best], others, f"{note} means over the seeds")
    return Chosen(saved[best], note=f"{source}: seed {best} answers, {why} of {every}")


def _only_model(source: Path) -> Path:
    """A model's own folder, or the one beside a run's result."""
    if (source / "model").is_dir():
        return source / "model"
    if (source / "result.json").exists() or any(source.glob("seed-*")):
        raise InputError(
            f"{source}: holds no saved model; fine-tune once more, without --no-save-model"
        )
    return source


def _best(folders: Mapping[int, Path]) -> tuple[int, str]:
    """The seed with the best score on held-out data, the first of equals, and what it is in words.

    The first one where results do not tell, as of seeds that learned from all splits.
    """
    told = {seed: _score(finished(folder) or {}) for seed, folder in folders.items()}
    if not any(told.values()):
        return min(folders), "the first"
    known = {seed: score for seed, score in told.items() if score is not None}
    best = min(known, key=lambda seed: (-known[seed].worth, seed))
    score = known[best]
    return best, f"the best on {score.split} ({score.metric} {score.value:.3g})"


class _Score(NamedTuple):
    """What a seed reached."""

    split: str
    metric: str
    value: float
    worth: float
    """More is better, whatever the metric."""


def _score(result: Mapping[str, Any]) -> _Score | None:
    """A seed's main score on its first split that it did not learn from; None if its result has none."""
    learned = result.get("trained_on", ())
    try:
        metric = str(result["metrics"][0])
        split = next(one for one in result["splits"] if one not in learned)
        value = float(result["scores"][split][metric])
    except (KeyError, TypeError, ValueError, IndexError, StopIteration):
        return None
    if math.isnan(value):
        return None
    lower = any(one.name == metric and not one.higher_is_better for one in METRICS)
    lower = not result.get("higher_is_better", not lower)
    return _Score(split, metric, value, -value if lower else value)


# -- votes -------------------------------------------------------------------------------------------------------------


def voted(scores: Sequence[Scores], form: Form, task: Task) -> Scores:
    """What several seeds say of the same examples: the answer of most, of equals that of higher mean probability.

    Outputs are logarithms of mean probabilities; of numbers, prediction and output are the mean.
    """
    said = [
        _vote([_said(one, place) for one in scores], form) for place in range(len(scores[0].ids))
    ]
    first = scores[0]
    predictions = np.array([one.prediction for one in said])
    outputs = np.array([one.outputs for one in said])
    metrics = {} if first.labels is None else task.score(predictions, first.labels, outputs)
    return Scores(
        first.ids,
        outputs,
        predictions,
        first.labels,
        metrics,
        first.officials,
        [one.likely for one in said],
        first.dropped,
        first.left_out,
    )


def _said(scores: Scores, place: int) -> Said:
    likely = tuple(scores.likely[place]) if scores.likely else ()
    return Said(float(scores.predictions[place]), scores.outputs[place], likely)


def _vote(every: Sequence[Said], form: Form) -> Said:
    """What several seeds say of one example together."""
    if isinstance(form, Regress):
        mean = float(np.mean([said.prediction for said in every]))
        return Said(mean, np.array([mean]))
    shares = np.mean([_shares(said, form) for said in every], axis=0)
    votes = Counter(int(said.prediction) for said in every)
    best = min(votes, key=lambda answer: (-votes[answer], -shares[answer], answer))
    with np.errstate(divide="ignore"):
        outputs = np.log(shares)  # -inf of a region that is not there
    if len(shares) <= MANY or isinstance(form, Pick):
        return Said(best, outputs)
    return Said(best, outputs[best : best + 1], tuple(most_likely(outputs[None])[0]))


def _shares(said: Said, form: Form) -> np.ndarray:
    """Probabilities of a seed's answers."""
    if isinstance(form, Pick):
        return np.asarray(softmax(said.outputs))
    return probabilities(said, form)

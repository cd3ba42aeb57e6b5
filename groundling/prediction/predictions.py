"""Finished runs' predictions of one split, by what the data set's own files call its examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from groundling.core.errors import InputError, refuse
from groundling.core.forms import Answer, Choose, Classify, Form, Regress
from groundling.data.tables import read_json_lines
from groundling.prediction.agreement import Agreement

FILE = "predictions_{}.jsonl"
"""File of a seed's answers to one split."""


@dataclass(frozen=True)
class Said:
    """What a run says of one example."""

    prediction: float
    """The class, choice, answer or number."""
    outputs: np.ndarray
    """(outputs,): what the head said, or the best of them alone where there are many (VQA)."""
    likely: tuple[tuple[int, float], ...] = ()
    """Where there are many: the most likely classes and their probabilities."""


@contextmanager
def told_of(place: str | Path) -> Iterator[None]:
    """An InputError inside gets the file, or file and example, that it is about before it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def read_predictions(path: Path, form: Form) -> dict[str, Said]:
    """The lines of a file that `finetune` wrote, by official id, or by our own where there is none.

    Raises:
        InputError: No such file, a line of another kind, an id twice, a number that is NaN, or a prediction that is not
            what its outputs say to a task of this form.
    """
    agreement = Agreement(form)
    out: dict[str, Said] = {}
    repeated = []
    for where, row in read_json_lines(path, ("id",)):
        official = row.get("official")
        name = official if isinstance(official, str) and official else row["id"]
        if name in out:
            repeated.append(f"{where}: {name} stands there before")
        out[name] = _said(where, row)
        agreement.check(where, row, out[name].prediction)
    refuse(repeated)
    agreement.end()
    return out


def _said(where: str, row: Mapping[str, Any]) -> Said:
    try:
        prediction = float(row["prediction"])
        outputs = np.array(row["outputs"], float)
        likely = tuple((int(place), float(share)) for place, share in row.get("likely", ()))
    except (KeyError, OverflowError, TypeError, ValueError):
        raise InputError(
            f"{where}: expected a number in 'prediction' and numbers in 'outputs'"
        ) from None
    if outputs.ndim != 1 or not len(outputs):
        raise InputError(f"{where}: expected a list of numbers in 'outputs'")
    shares = np.array([share for _, share in likely])
    if np.isnan(prediction) or np.isnan(outputs).any() or np.isnan(shares).any():
        raise InputError(f"{where}: a prediction or score is NaN")
    return Said(prediction, outputs, likely)


def scores_of_choices(said: Said, choices: int) -> np.ndarray:
    """Scores (choices,) before a softmax; of two scores a choice (UNITER's wrong and right) the second.

    Raises:
        InputError: There are neither as many scores nor twice as many.
    """
    if len(said.outputs) not in (choices, 2 * choices):
        raise InputError(f"{len(said.outputs)} scores, expected {choices} or {2 * choices}")
    return said.outputs.reshape(choices, -1)[:, -1]


def probabilities(said: Said, form: Form) -> np.ndarray:
    """Probabilities (K,) of the classes, choices or answers of a form; of a number (Regress), (1,), itself.

    A softmax whatever the loss was (CLIP-TD leaves its sigma undefined). Of many answers what the file leaves out
    counts as 0.

    Raises:
        InputError: The scores do not fit the form.
    """
    if isinstance(form, Regress):
        return np.array([said.prediction])
    if isinstance(form, Choose):
        return np.asarray(softmax(scores_of_choices(said, len(form.labels))))
    if not isinstance(form, Classify | Answer):
        raise InputError("answers of this form cannot be averaged")
    count = len(form.labels)
    if len(said.outputs) == count:
        return np.asarray(softmax(said.outputs))
    if not said.likely:
        raise InputError(
            f"{len(said.outputs)} scores and no 'likely' answers, expected {count}; predict again with this version"
        )
    out = np.zeros(count)
    for place, share in said.likely:
        if not 0 <= place < count:
            raise InputError(f"answer {place}, expected 0 to {count - 1}")
        out[place] = share
    return out

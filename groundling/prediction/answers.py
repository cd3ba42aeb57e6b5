"""From a head's outputs to answers that people read: words, probabilities, the next best, boxes in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.forms import Answer, Choose, Classify, Form, Pick, Regress
from groundling.prediction.predictions import Said, probabilities
from groundling.training.evaluation import LIKELY, MANY, Scores

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Candidate:
    """One answer that a model might give."""

    answer: str | float
    """The class, the answer, the number of the choice or region as the task's files spell it; or the number itself."""
    probability: float | None = None
    """Its share of a softmax over all answers, choices or regions, whatever the loss was; None of a number."""
    choice: str | None = None
    """The text of the choice, of a multiple choice."""
    box: Box | None = None
    """x1, y1, x2, y2 of the region in pixels of its image, origin at the top left; None where no region is picked."""


@dataclass(frozen=True)
class Prediction(Candidate):
    """A model's answer to one example."""

    best: tuple[Candidate, ...] = ()
    """The most likely answers, this one first: as many as were asked for, where there are as many."""


class Wording:
    """How the outputs of one form are put into words."""

    def __init__(self, form: Form, best: int, called: str = "--best") -> None:
        """`best`: how many answers of each example, `called` so in messages.

        Raises InputError for none, or more than are kept.
        """
        if best < 1:
            raise InputError(f"{called} {best}, expected at least 1")
        if isinstance(form, Answer) and len(form.labels) > MANY and best > LIKELY:
            raise InputError(
                f"{called} {best}: of {len(form.labels):,} answers the {LIKELY} most likely are kept"
            )
        self.form = form
        self.best = best
        if isinstance(form, Classify | Answer):
            self.best = min(best, len(form.labels))

    def predictions(
        self,
        scores: Scores,
        examples: Sequence[Example],
        boxes: Sequence[np.ndarray] | None = None,
    ) -> list[Prediction]:
        """An answer to each example; `boxes` (R, 4) in pixels of each one's regions, where one is picked."""
        out = []
        for number, example in enumerate(examples):
            likely = tuple(scores.likely[number]) if scores.likely else ()
            said = Said(float(scores.predictions[number]), scores.outputs[number], likely)
            ranked = self._ranked(said)
            candidates = tuple(
                self._candidate(place, share, example, None if boxes is None else boxes[number])
                for place, share in ranked
            )
            first = vars(candidates[0])
            out.append(Prediction(**first, best=candidates))
        return out

    def _ranked(self, said: Said) -> list[tuple[float, float | None]]:
        """The most likely predictions and their probabilities, what the form predicts first."""
        if isinstance(self.form, Pick):
            shares = np.asarray(softmax(said.outputs))
            scores = said.outputs
        elif isinstance(self.form, Classify | Answer):
            shares = probabilities(said, self.form)
            scores = shares if said.likely else _raw(said, self.form)
        else:
            return [(said.prediction, None)]
        never = self.form.never if isinstance(self.form, Answer) else ()
        order = [int(said.prediction)]
        for place in np.argsort(-scores, kind="stable")[: self.best + 1 + len(never)]:
            barred = bool(never) and self.form.spell(place) in never
            if place != order[0] and shares[place] > 0 and not barred:
                order.append(int(place))
        return [(place, float(shares[place])) for place in order[: self.best]]

    def _candidate(
        self, place: float, share: float | None, example: Example, boxes: np.ndarray | None
    ) -> Candidate:
        answer: str | float = place if isinstance(self.form, Regress) else self.form.spell(place)
        choice = None
        if isinstance(self.form, Choose):
            choice = example.choices[int(place)]
        box = None
        if boxes is not None:
            x1, y1, x2, y2 = (round(float(side), 2) for side in boxes[int(place)])
            box = (x1, y1, x2, y2)
        return Candidate(answer, share, choice, box)


def _raw(said: Said, form: Classify | Answer) -> np.ndarray:
    """Scores by which answers are ranked: a softmax of close ones may make them equal."""
    if isinstance(form, Choose):
        return said.outputs.reshape(len(form.labels), -1)[:, -1]
    return said.outputs


# -- columns -----------------------------------------------------------------------------------------------------------

CORNERS = ("x1", "y1", "x2", "y2")
DIGITS = 6
"""Significant digits of a number in a file, as many as predictions of two processors agree in; Python has all."""


def columns_of(form: Form, best: int) -> list[str]:
    """The columns that answers of a form fill: those of the best one, then `..._2` of the second best, and so on."""
    names = ["answer"]
    if isinstance(form, Choose):
        names.append("choice")
    if isinstance(form, Pick):
        names += CORNERS
    if not isinstance(form, Regress):
        names.append("probability")
    ranks = range(1, (1 if isinstance(form, Regress) else best) + 1)
    return [name if rank == 1 else f"{name}_{rank}" for rank in ranks for name in names]


def cells_of(prediction: Prediction | None, names: Sequence[str]) -> dict[str, str | float | None]:
    """What a prediction fills these columns with; None where there is no answer, or not as many."""
    cells: dict[str, str | float | None] = dict.fromkeys(names)
    for rank, one in enumerate(() if prediction is None else prediction.best, 1):
        ending = "" if rank == 1 else f"_{rank}"
        answer = one.answer if isinstance(one.answer, str) else float(f"{one.answer:.{DIGITS}g}")
        share = None if one.probability is None else float(f"{one.probability:.{DIGITS}g}")
        values = {"answer": answer, "choice": one.choice, "probability": share}
        if one.box is not None:
            values |= dict(zip(CORNERS, one.box, strict=True))
        for name, value in values.items():
            if f"{name}{ending}" in cells:
                cells[f"{name}{ending}"] = value
    return cells

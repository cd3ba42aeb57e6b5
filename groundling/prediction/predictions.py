"""Predictions of finished runs: read and verified, put into words, and those of several seeds combined."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import softmax

from groundling.core.batch import Example
from groundling.core.errors import InputError, raise_first, require_known
from groundling.core.metrics import METRICS
from groundling.core.output_types import (
    Classification,
    MultipleChoice,
    OpenAnswer,
    OutputType,
    RegionSelection,
    Regression,
)
from groundling.data.tables import read_json_lines
from groundling.runs.folder import read_result
from groundling.tasks import Task
from groundling.training.evaluation import LIKELY, MANY, EvaluationOutput, find_top_classes

# Whether the predictions in a run's file are what the outputs beside them say; edited or mixed files are told so.

ROUNDED = 1.1e-5
"""By so much two outputs may differ that were written with five digits and were equal."""


class PredictionChecker:
    """Checks one file, line by line, and then as a whole."""

    def __init__(self, form: OutputType | None, classes: bool = True) -> None:
        """`form`: of the task's answers; where nobody knows it, None, and `classes` says whether they are classes."""
        self.form = form
        self.classes = classes if form is None else not isinstance(form, Regression)
        self.predicted: set[int] = set()
        self.outdone: dict[int, str] = {}
        """Of classes that were not predicted although their outputs are higher: the first line, in words."""

    def check(self, where: str, row: Mapping[str, Any], prediction: float) -> None:
        """Raises InputError, which begins with `where`, for a prediction that is none or not its outputs'."""
        if self.classes and not (prediction >= 0 and float(prediction).is_integer()):
            raise InputError(
                f"{where}: 'prediction' is {prediction}, expected the number of a class"
            )
        outputs = row.get("outputs")
        if outputs is None:  # a file of others
            return
        try:
            values = np.array([-math.inf if one is None else one for one in outputs], float)
            likely = [int(place) for place, _ in row.get("likely", ())]
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"{where}: expected numbers in 'outputs'") from None
        if values.ndim != 1 or not len(values) or np.isnan(values).any():
            raise InputError(f"{where}: expected a list of numbers in 'outputs'")
        if not self.classes:
            self._check_number(where, prediction, values)
        elif likely:
            if int(prediction) not in likely:
                raise InputError(f"{where}: 'prediction' {int(prediction)} is none of the 'likely'")
        elif len(values) > 1:
            self._check_class(where, int(prediction), values)

    def finish(self) -> None:
        """Raises InputError for a class that is predicted in some lines, and in others not, where its output is best.

        One that is never predicted may be barred, as VQA's `<unk>` is.
        """
        for best, told in self.outdone.items():
            if best in self.predicted:
                raise InputError(told)

    def _check_number(self, where: str, prediction: float, values: np.ndarray) -> None:
        size = max(1.0, abs(prediction))
        if len(values) == 1 and not abs(values[0] - prediction) <= ROUNDED * size:
            raise InputError(
                f"{where}: 'prediction' is {prediction}, but its 'outputs' say {values[0]}"
            )

    def _check_class(self, where: str, prediction: int, values: np.ndarray) -> None:
        self.predicted.add(prediction)
        best = 0
        is_class = False
        for scores in self._readings(values):
            best = int(scores.argmax())
            if prediction >= len(scores):
                continue
            is_class = True
            if prediction == best or scores[prediction] >= scores[best] - ROUNDED:
                return
        told = f"{where}: 'prediction' is {prediction}, but its 'outputs' are highest at {best}"
        if not is_class or not (self.form is None or isinstance(self.form, OpenAnswer)):
            raise InputError(told)
        self.outdone.setdefault(best, told)

    def _readings(self, values: np.ndarray) -> list[np.ndarray]:
        """Scores of the classes; where each may have two, wrong and right (UNITER's on VCR), the right ones, too."""
        if isinstance(self.form, MultipleChoice):
            in_pairs = len(values) == 2 * len(self.form.labels)
            return [values[1::2] if in_pairs else values]
        if self.form is None and len(values) > 2 and len(values) % 2 == 0:
            return [values[1::2], values]
        return [values]


FILE = "predictions_{}.jsonl"
"""File of a seed's answers to one split."""


@dataclass(frozen=True)
class ExamplePrediction:
    """What a run says of one example."""

    prediction: float
    """The class, choice, answer or number."""
    outputs: np.ndarray
    """(outputs,): what the head said, or the best of them alone where there are many (VQA)."""
    likely: tuple[tuple[int, float], ...] = ()
    """Where there are many: the most likely classes and their probabilities."""


def read_predictions(path: Path, form: OutputType) -> dict[str, ExamplePrediction]:
    """The lines of a file that `finetune` wrote, by official id, or by our own where there is none.

    Raises:
        InputError: No such file, a line of another kind, an id twice, a number that is NaN, or a prediction that is not
            what its outputs say to a task of this form.
    """
    agreement = PredictionChecker(form)
    out: dict[str, ExamplePrediction] = {}
    repeated = []
    for where, row in read_json_lines(path, ("id",)):
        official = row.get("official")
        name = official if isinstance(official, str) and official else row["id"]
        if name in out:
            repeated.append(f"{where}: {name} stands there before")
        out[name] = _parse_prediction(where, row)
        agreement.check(where, row, out[name].prediction)
    raise_first(repeated)
    agreement.finish()
    return out


def _parse_prediction(where: str, row: Mapping[str, Any]) -> ExamplePrediction:
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
    return ExamplePrediction(prediction, outputs, likely)


def choice_scores(said: ExamplePrediction, choices: int) -> np.ndarray:
    """Scores (choices,) before a softmax; of two scores a choice (UNITER's wrong and right) the second.

    Raises:
        InputError: There are neither as many scores nor twice as many.
    """
    if len(said.outputs) not in (choices, 2 * choices):
        raise InputError(f"{len(said.outputs)} scores, expected {choices} or {2 * choices}")
    return said.outputs.reshape(choices, -1)[:, -1]


def probabilities(said: ExamplePrediction, form: OutputType) -> np.ndarray:
    """Probabilities (K,) of the classes, choices or answers of a form; of a number (Regression), (1,), itself.

    A softmax whatever the loss was (CLIP-TD leaves its sigma undefined). Of many answers what the file leaves out
    counts as 0.

    Raises:
        InputError: The scores do not fit the form.
    """
    if isinstance(form, Regression):
        return np.array([said.prediction])
    if isinstance(form, MultipleChoice):
        return np.asarray(softmax(choice_scores(said, len(form.labels))))
    if not isinstance(form, Classification | OpenAnswer):
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


# From a head's outputs to answers that people read: words, probabilities, the next best, boxes in pixels.

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


class PredictionFormatter:
    """How the outputs of one form are put into words."""

    def __init__(self, form: OutputType, best: int, called: str = "--top-k") -> None:
        """`best`: how many answers of each example, `called` so in messages.

        Raises InputError for none, or more than are kept.
        """
        if best < 1:
            raise InputError(f"{called} {best}, expected at least 1")
        if isinstance(form, OpenAnswer) and len(form.labels) > MANY and best > LIKELY:
            raise InputError(
                f"{called} {best}: of {len(form.labels):,} answers the {LIKELY} most likely are kept"
            )
        self.form = form
        self.best = best
        if isinstance(form, Classification | OpenAnswer):
            self.best = min(best, len(form.labels))

    def predictions(
        self,
        scores: EvaluationOutput,
        examples: Sequence[Example],
        boxes: Sequence[np.ndarray] | None = None,
    ) -> list[Prediction]:
        """An answer to each example; `boxes` (R, 4) in pixels of each one's regions, where one is picked."""
        out = []
        for number, example in enumerate(examples):
            likely = tuple(scores.top_classes[number]) if scores.top_classes else ()
            said = ExamplePrediction(
                float(scores.predictions[number]), scores.outputs[number], likely
            )
            ranked = self._ranked(said)
            candidates = tuple(
                self._candidate(place, share, example, None if boxes is None else boxes[number])
                for place, share in ranked
            )
            first = vars(candidates[0])
            out.append(Prediction(**first, best=candidates))
        return out

    def _ranked(self, said: ExamplePrediction) -> list[tuple[float, float | None]]:
        """The most likely predictions and their probabilities, what the form predicts first."""
        if isinstance(self.form, RegionSelection):
            shares = np.asarray(softmax(said.outputs))
            scores = said.outputs
        elif isinstance(self.form, Classification | OpenAnswer):
            shares = probabilities(said, self.form)
            scores = shares if said.likely else _raw(said, self.form)
        else:
            return [(said.prediction, None)]
        never = self.form.excluded_answers if isinstance(self.form, OpenAnswer) else ()
        order = [int(said.prediction)]
        for place in np.argsort(-scores, kind="stable")[: self.best + 1 + len(never)]:
            barred = bool(never) and self.form.format_prediction(place) in never
            if place != order[0] and shares[place] > 0 and not barred:
                order.append(int(place))
        return [(place, float(shares[place])) for place in order[: self.best]]

    def _candidate(
        self, place: float, share: float | None, example: Example, boxes: np.ndarray | None
    ) -> Candidate:
        answer: str | float = (
            place if isinstance(self.form, Regression) else self.form.format_prediction(place)
        )
        choice = None
        if isinstance(self.form, MultipleChoice):
            choice = example.choices[int(place)]
        box = None
        if boxes is not None:
            x1, y1, x2, y2 = (round(float(side), 2) for side in boxes[int(place)])
            box = (x1, y1, x2, y2)
        return Candidate(answer, share, choice, box)


def _raw(said: ExamplePrediction, form: Classification | OpenAnswer) -> np.ndarray:
    """Scores by which answers are ranked: a softmax of close ones may make them equal."""
    if isinstance(form, MultipleChoice):
        return said.outputs.reshape(len(form.labels), -1)[:, -1]
    return said.outputs


# -- columns -----------------------------------------------------------------------------------------------------------

CORNERS = ("x1", "y1", "x2", "y2")
DIGITS = 6
"""Significant digits of a number in a file, as many as predictions of two processors agree in; Python has all."""


def prediction_columns(form: OutputType, best: int) -> list[str]:
    """The columns that answers of a form fill: those of the best one, then `..._2` of the second best, and so on."""
    names = ["answer"]
    if isinstance(form, MultipleChoice):
        names.append("choice")
    if isinstance(form, RegionSelection):
        names += CORNERS
    if not isinstance(form, Regression):
        names.append("probability")
    ranks = range(1, (1 if isinstance(form, Regression) else best) + 1)
    return [name if rank == 1 else f"{name}_{rank}" for rank in ranks for name in names]


def prediction_cells(
    prediction: Prediction | None, names: Sequence[str]
) -> dict[str, str | float | None]:
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


# Which of a run's seeds answer: the best one on the development split, one by its number, or all by vote.

SEED = re.compile(r"seed-(\d+)")
SeedChoice = Literal["best", "all"]
"""Which of several seeds answer if nobody names one."""


class SeedModels(NamedTuple):
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
    return choose_seed_models(source).folder if is_run else source


def choose_seed_models(
    source: Path, seed: int | None = None, seeds: SeedChoice = "best"
) -> SeedModels:
    """The saved models in what `source` names that answer: that of a `seed`, of the best one on dev, or of `all`.

    Raises InputError if there is none, or no such seed.
    """
    if not source.is_dir():
        raise InputError(f"{source}: no such folder; expected what `groundling finetune` wrote")
    if seed is not None and seeds == "all":
        raise InputError(
            f"--model-seed {seed} names one seed, --all-seeds asks all; leave one of them out"
        )
    saved = {
        int(match[1]): folder / "model"
        for folder in sorted(source.iterdir())
        if (match := SEED.fullmatch(folder.name)) and (folder / "model").is_dir()
    }
    if not saved:
        if seed is not None or seeds == "all":
            raise InputError(f"{source}: holds no seeds with a saved model; leave the seed out")
        return SeedModels(_only_model(source))
    numbers = sorted(saved)
    every = ", ".join(map(str, numbers))
    if seed is not None:
        require_known(str(seed), map(str, numbers), f"{source}: no saved model of seed {seed}")
    if len(saved) == 1:
        return SeedModels(saved[numbers[0]])
    if seed is not None:
        return SeedModels(saved[seed], note=f"{source}: seed {seed} answers, of {every}")
    # A folder keeps the seeds of an earlier command that asked for more.
    told = (read_result(source) or {}).get("seeds")
    numbers = [one for one in numbers if one in told] if isinstance(told, list) else numbers
    numbers = numbers or sorted(saved)
    every = ", ".join(map(str, numbers))
    best, why = _best({number: saved[number].parent for number in numbers})
    if seeds == "all":
        others = tuple(saved[number] for number in numbers if number != best)
        note = f"{source}: seeds {every} vote; of equal votes the higher mean probability wins, and probabilities are"
        return SeedModels(saved[best], others, f"{note} means over the seeds")
    return SeedModels(saved[best], note=f"{source}: seed {best} answers, {why} of {every}")


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
    told = {seed: _score(read_result(folder) or {}) for seed, folder in folders.items()}
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


def combine_seeds(
    scores: Sequence[EvaluationOutput], form: OutputType, task: Task
) -> EvaluationOutput:
    """What several seeds say of the same examples: the answer of most, of equals that of higher mean probability.

    Outputs are logarithms of mean probabilities; of numbers, prediction and output are the mean.
    """
    said = [
        _vote([_said_at(one, place) for one in scores], form) for place in range(len(scores[0].ids))
    ]
    first = scores[0]
    predictions = np.array([one.prediction for one in said])
    outputs = np.array([one.outputs for one in said])
    metrics = {} if first.labels is None else task.score(predictions, first.labels, outputs)
    return EvaluationOutput(
        first.ids,
        outputs,
        predictions,
        first.labels,
        metrics,
        first.official_ids,
        [one.likely for one in said],
        first.truncated_tokens,
        first.truncated_regions,
    )


def _said_at(scores: EvaluationOutput, place: int) -> ExamplePrediction:
    likely = tuple(scores.top_classes[place]) if scores.top_classes else ()
    return ExamplePrediction(float(scores.predictions[place]), scores.outputs[place], likely)


def _vote(every: Sequence[ExamplePrediction], form: OutputType) -> ExamplePrediction:
    """What several seeds say of one example together."""
    if isinstance(form, Regression):
        mean = float(np.mean([said.prediction for said in every]))
        return ExamplePrediction(mean, np.array([mean]))
    shares = np.mean([_shares(said, form) for said in every], axis=0)
    votes = Counter(int(said.prediction) for said in every)
    best = min(votes, key=lambda answer: (-votes[answer], -shares[answer], answer))
    with np.errstate(divide="ignore"):
        outputs = np.log(shares)  # -inf of a region that is not there
    if len(shares) <= MANY or isinstance(form, RegionSelection):
        return ExamplePrediction(best, outputs)
    return ExamplePrediction(
        best, outputs[best : best + 1], tuple(find_top_classes(outputs[None])[0])
    )


def _shares(said: ExamplePrediction, form: OutputType) -> np.ndarray:
    """Probabilities of a seed's answers."""
    if isinstance(form, RegionSelection):
        return np.asarray(softmax(said.outputs))
    return probabilities(said, form)

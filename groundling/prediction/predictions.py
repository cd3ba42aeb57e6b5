"""Predictions of finished runs: reading, formatting, and votes of several seeds."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import softmax

from groundling.core.batch import Example
from groundling.core.errors import InputError, convert_errors, raise_first, require_known
from groundling.core.metrics import METRICS
from groundling.core.output_types import (
    Classification,
    MultipleChoice,
    OpenAnswer,
    OutputType,
    RegionSelection,
    Regression,
)
from groundling.data.tables import lines_of
from groundling.runs.folder import read_result
from groundling.tasks import Task
from groundling.tasks.splits import name_of
from groundling.training.evaluation import (
    MAX_OUTPUTS,
    TOP_CLASSES,
    EvaluationOutput,
    find_top_classes,
)

FILE = "predictions_{}.jsonl"
"""File name of a seed's predictions on one split."""


@dataclass(frozen=True)
class PredictionRow:
    """One run's prediction for one example."""

    prediction: float
    """The class, choice, answer or number."""
    outputs: np.ndarray
    """(outputs,) of the head; where there are many (VQA), only the highest."""
    likely: tuple[tuple[int, float], ...] = ()
    """For many classes (VQA): the most likely ones with their probabilities."""
    id: str = ""
    """The package's id of the example."""
    official: str = ""
    """Its id in the data set's own files; empty if there is none."""
    label: np.ndarray | None = None
    """The right answer: a number, or (R,) by region, or (K, 2) pairs of class and score; None if unknown."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """The example's group by kind, see `group_examples`."""

    @property
    def name(self) -> str:
        """The official id, or the package's where there is none."""
        return self.official or self.id


def read_predictions(path: Path, scores: bool = False) -> list[PredictionRow]:
    """Read a prediction file of `finetune`; `scores` states whether the outputs are used, so that all must be numbers.

    Raises:
        InputError: No such file, an invalid line, a repeated example, or a number that is not finite.
    """
    lines: dict[str, str] = {}
    rows = []
    for number, line in enumerate(lines_of(path), 1):
        where = f"{path}, line {number}"
        with convert_errors(f"{where}: expected a line that `groundling finetune` writes"):
            row = _parse_row(json.loads(line))
        label = 0.0 if row.label is None else row.label
        if not (math.isfinite(row.prediction) and np.isfinite(label).all()):
            raise InputError(f"{where}: a prediction or label is not finite; run this seed again")
        # Files hold null where a region is padding.
        if scores and not (len(row.outputs) and np.isfinite(row.outputs).all()):
            raise InputError(f"{where}: 'outputs' are empty, or not all finite")
        if row.name in lines:
            raise InputError(f"{where}: example {row.name} is repeated, first in {lines[row.name]}")
        lines[row.name] = f"line {number}"
        rows.append(row)
    return rows


def _parse_row(row: Any) -> PredictionRow:
    label = row.get("label")
    return PredictionRow(
        float(row["prediction"]),
        np.array(row.get("outputs", ()), float),
        tuple((int(place), float(share)) for place, share in row.get("likely", ())),
        str(row["id"]),
        str(row.get("official", "")),
        None if label is None else np.asarray(label, float),
        dict(row.get("groups", {})),
    )


def predictions_of(path: Path, examples: Sequence[Example]) -> list[PredictionRow]:
    """A file's prediction for every example, in the examples' order, by official id or else by the package's id.

    Raises InputError as `read_predictions`, or if the file lacks an example or has one of other data.
    """
    found = {row.name: row for row in read_predictions(path, scores=True)}
    names = [one.official_id if one.official_id in found else one.id for one in examples]
    absent = [name_of(one) for one, name in zip(examples, names, strict=True) if name not in found]
    raise_first(
        [f"{path}: no prediction for {name}" for name in absent],
        "; the file is incomplete or of other data",
    )
    surplus = sorted(found.keys() - set(names))
    raise_first([f"{path}: a prediction for {name}, which is not in the data" for name in surplus])
    return [found[name] for name in names]


def choice_scores(prediction: PredictionRow, choices: int) -> np.ndarray:
    """Scores (choices,) before a softmax; with two scores per choice (UNITER: wrong and right), the second.

    Raises:
        InputError: The number of scores is neither `choices` nor twice that.
    """
    if len(prediction.outputs) not in (choices, 2 * choices):
        raise InputError(f"{len(prediction.outputs)} scores, expected {choices} or {2 * choices}")
    return prediction.outputs.reshape(choices, -1)[:, -1]


def probabilities(prediction: PredictionRow, form: OutputType) -> np.ndarray:
    """Probabilities (K,) of the classes, choices or answers; for a regression the number itself, (1,).

    Always a softmax, whatever the loss was (CLIP-TD leaves its sigma undefined). Answers that the file omits have
    probability 0.

    Raises:
        InputError: The scores do not fit the output type.
    """
    if isinstance(form, Regression):
        return np.array([prediction.prediction])
    if isinstance(form, MultipleChoice):
        return np.asarray(softmax(choice_scores(prediction, len(form.labels))))
    if not isinstance(form, Classification | OpenAnswer):
        raise InputError("answers of this output type cannot be averaged")
    count = len(form.labels)
    if len(prediction.outputs) == count:
        return np.asarray(softmax(prediction.outputs))
    if not prediction.likely:
        raise InputError(
            f"{len(prediction.outputs)} scores and no 'likely' answers, expected {count} scores; predict again with "
            "this version"
        )
    out = np.zeros(count)
    for place, share in prediction.likely:
        if not 0 <= place < count:
            raise InputError(f"answer {place}, expected 0 to {count - 1}")
        out[place] = share
    return out


# From head outputs to readable answers: labels, probabilities, ranked alternatives, boxes in pixels.

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Candidate:
    """One possible answer."""

    answer: str | float
    """The class, open answer, or number of the choice or region, as spelt in the task's files; or a number."""
    probability: float | None = None
    """Softmax probability over all answers, choices or regions, whatever the loss was; None for a number."""
    choice: str | None = None
    """The text of the choice, in multiple choice."""
    box: Box | None = None
    """x1, y1, x2, y2 of the region in pixels, origin at the top left; None without region selection."""


@dataclass(frozen=True)
class Prediction(Candidate):
    """A model's answer for one example."""

    best: tuple[Candidate, ...] = ()
    """The most likely answers, this one first; at most the requested number."""


class PredictionFormatter:
    """Converts the outputs of one output type into `Prediction` objects."""

    def __init__(self, form: OutputType, best: int, flag: str = "top_k") -> None:
        """`best` is the number of ranked answers per example; `flag` is its name in messages.

        Raises InputError if `best` is below 1 or above the number of stored answers.
        """
        if best < 1:
            raise InputError(f"{flag} {best}, expected at least 1")
        if isinstance(form, OpenAnswer) and len(form.labels) > MAX_OUTPUTS and best > TOP_CLASSES:
            raise InputError(
                f"{flag} {best}: expected at most {TOP_CLASSES}; only these are stored of {len(form.labels):,} answers"
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
        """A prediction for each example; `boxes` has each example's region boxes (R, 4) in pixels."""
        out = []
        for number, example in enumerate(examples):
            likely = tuple(scores.top_classes[number]) if scores.top_classes else ()
            prediction = PredictionRow(
                float(scores.predictions[number]), scores.outputs[number], likely
            )
            ranked = self._ranked(prediction)
            candidates = tuple(
                self._candidate(place, share, example, None if boxes is None else boxes[number])
                for place, share in ranked
            )
            first = vars(candidates[0])
            out.append(Prediction(**first, best=candidates))
        return out

    def _ranked(self, prediction: PredictionRow) -> list[tuple[float, float | None]]:
        """The most likely predictions with their probabilities, the output type's own prediction first."""
        if isinstance(self.form, RegionSelection):
            shares = np.asarray(softmax(prediction.outputs))
            scores = prediction.outputs
        elif isinstance(self.form, Classification | OpenAnswer):
            shares = probabilities(prediction, self.form)
            scores = shares if prediction.likely else _raw(prediction, self.form)
        else:
            return [(prediction.prediction, None)]
        never = self.form.excluded_answers if isinstance(self.form, OpenAnswer) else ()
        order = [int(prediction.prediction)]
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


def _raw(prediction: PredictionRow, form: Classification | OpenAnswer) -> np.ndarray:
    """Scores that rank the answers: a softmax may make close scores equal."""
    if isinstance(form, MultipleChoice):
        return prediction.outputs.reshape(len(form.labels), -1)[:, -1]
    return prediction.outputs


# -- columns -----------------------------------------------------------------------------------------------------------

CORNERS = ("x1", "y1", "x2", "y2")
DIGITS = 6
"""Significant digits of numbers in files, as many as agree between processors; Python returns full precision."""


def prediction_columns(form: OutputType, best: int) -> list[str]:
    """Output columns of an output type: those of the best answer, then `..._2` for the second best, and so on."""
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
    """A prediction's values for these columns; None for missing answers."""
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


# Which of a run's seeds predict: the best one on the development split, a chosen one, or all by vote.

SEED = re.compile(r"seed-(\d+)")
SeedChoice = Literal["best", "all"]
"""Which seeds predict without a seed."""


class SeedModels(NamedTuple):
    """The saved models that predict."""

    folder: Path
    """The only or best model."""
    others: tuple[Path, ...] = ()
    """Models that vote with it."""
    note: str = ""
    """A sentence that names the seeds if there are several."""


def model_folder(source: Path) -> Path:
    """The model folder of a run, of several seeds the best one; any other folder or a hub id unchanged.

    Raises InputError as `choose_seed_models`.
    """
    is_run = (source / "model").is_dir() or (
        source.is_dir() and any(SEED.fullmatch(one.name) for one in source.iterdir())
    )
    return choose_seed_models(source).folder if is_run else source


def choose_seed_models(
    source: Path, seed: int | None = None, seeds: SeedChoice = "best"
) -> SeedModels:
    """The saved models below `source` that predict: of one `seed`, of the best seed on dev, or of `all` seeds.

    Raises InputError if there is no saved model, or none of this seed.
    """
    if not source.is_dir():
        raise InputError(
            f"{source}: no such folder; expected a run folder of `groundling finetune`"
        )
    if seed is not None and seeds == "all":
        raise InputError(
            f"model_seed={seed} and all_seeds exclude each other; leave one of them out"
        )
    saved = {
        int(match[1]): folder / "model"
        for folder in sorted(source.iterdir())
        if (match := SEED.fullmatch(folder.name)) and (folder / "model").is_dir()
    }
    if not saved:
        if seed is not None or seeds == "all":
            raise InputError(f"{source}: contains no seed with a saved model; leave the seed out")
        return SeedModels(_only_model(source))
    numbers = sorted(saved)
    every = ", ".join(map(str, numbers))
    if seed is not None:
        require_known(str(seed), map(str, numbers), f"{source}: no saved model of seed {seed}")
    if len(saved) == 1:
        return SeedModels(saved[numbers[0]])
    if seed is not None:
        return SeedModels(saved[seed], note=f"{source}: predictions of seed {seed}, one of {every}")
    # The folder may still hold seeds of an earlier command with more seeds.
    finished = (read_result(source) or {}).get("seeds")
    if isinstance(finished, list):
        numbers = [one for one in numbers if one in finished]
    numbers = numbers or sorted(saved)
    every = ", ".join(map(str, numbers))
    best, why = _best({number: saved[number].parent for number in numbers})
    if seeds == "all":
        others = tuple(saved[number] for number in numbers if number != best)
        note = f"{source}: majority vote of seeds {every}; ties go to the higher mean probability; probabilities are"
        return SeedModels(saved[best], others, f"{note} means over the seeds")
    return SeedModels(saved[best], note=f"{source}: predictions of seed {best}, {why} of {every}")


def _only_model(source: Path) -> Path:
    """The `model` folder below `source` if there is one, else `source`, a model's own folder."""
    if (source / "model").is_dir():
        return source / "model"
    if (source / "result.json").exists() or any(source.glob("seed-*")):
        raise InputError(
            f"{source}: contains no saved model; fine-tune again without save_model=False"
        )
    return source


def _best(folders: Mapping[int, Path]) -> tuple[int, str]:
    """The seed with the best score on held-out data (ties go to the first), and a phrase that describes it.

    The first seed if no result has a held-out score, as when all splits were trained on.
    """
    scores = {seed: _score(read_result(folder) or {}) for seed, folder in folders.items()}
    if not any(scores.values()):
        return min(folders), "the first"
    known = {seed: score for seed, score in scores.items() if score is not None}
    best = min(known, key=lambda seed: (-known[seed].rank_value, seed))
    score = known[best]
    return best, f"the best on {score.split} ({score.metric} {score.value:.3g})"


class _SeedScore(NamedTuple):
    """A seed's main score."""

    split: str
    metric: str
    value: float
    rank_value: float
    """The value, negated if lower is better."""


def _score(result: Mapping[str, Any]) -> _SeedScore | None:
    """A seed's main metric on its first held-out split; None if its result has none."""
    trained_on = result.get("trained_on", ())
    try:
        metric = str(result["metrics"][0])
        split = next(one for one in result["splits"] if one not in trained_on)
        value = float(result["scores"][split][metric])
    except (KeyError, TypeError, ValueError, IndexError, StopIteration):
        return None
    if math.isnan(value):
        return None
    lower = any(one.name == metric and not one.higher_is_better for one in METRICS)
    lower = not result.get("higher_is_better", not lower)
    return _SeedScore(split, metric, value, -value if lower else value)


# -- votes -------------------------------------------------------------------------------------------------------------


def combine_seeds(
    scores: Sequence[EvaluationOutput], form: OutputType, task: Task
) -> EvaluationOutput:
    """Majority vote of several seeds on the same examples; ties go to the higher mean probability.

    Outputs are logarithms of mean probabilities; for a regression, prediction and output are the mean.
    """
    combined = [
        _vote([_example_prediction(one, place) for one in scores], form)
        for place in range(len(scores[0].ids))
    ]
    first = scores[0]
    predictions = np.array([one.prediction for one in combined])
    outputs = np.array([one.outputs for one in combined])
    metrics = {} if first.labels is None else task.score(predictions, first.labels, outputs)
    return EvaluationOutput(
        first.ids,
        outputs,
        predictions,
        first.labels,
        metrics,
        first.official_ids,
        [one.likely for one in combined],
        first.truncated_tokens,
        first.truncated_regions,
        first.groups,
    )


def _example_prediction(scores: EvaluationOutput, place: int) -> PredictionRow:
    likely = tuple(scores.top_classes[place]) if scores.top_classes else ()
    return PredictionRow(float(scores.predictions[place]), scores.outputs[place], likely)


def _vote(every: Sequence[PredictionRow], form: OutputType) -> PredictionRow:
    """Majority vote of several seeds on one example."""
    if isinstance(form, Regression):
        mean = float(np.mean([one.prediction for one in every]))
        return PredictionRow(mean, np.array([mean]))
    shares = np.mean([_shares(one, form) for one in every], axis=0)
    votes = Counter(int(one.prediction) for one in every)
    best = min(votes, key=lambda answer: (-votes[answer], -shares[answer], answer))
    with np.errstate(divide="ignore"):
        outputs = np.log(shares)  # -inf for a padded region
    if len(shares) <= MAX_OUTPUTS or isinstance(form, RegionSelection):
        return PredictionRow(best, outputs)
    return PredictionRow(best, outputs[best : best + 1], tuple(find_top_classes(outputs[None])[0]))


def _shares(prediction: PredictionRow, form: OutputType) -> np.ndarray:
    """Probabilities of one seed's answers."""
    if isinstance(form, RegionSelection):
        return np.asarray(softmax(prediction.outputs))
    return probabilities(prediction, form)

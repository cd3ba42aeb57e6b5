"""Predictions: of files and of a model's outputs, as readable answers, and the votes of several seeds."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import softmax

from groundling.core.batch import Example
from groundling.core.errors import (
    InputError,
    convert_errors,
    duplicates,
    raise_first,
    require_known,
)
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


def read_predictions(path: Path) -> list[PredictionRow]:
    """Read a prediction file of `finetune`; raises InputError for an invalid line or a repeated example."""
    rows = []
    for number, line in enumerate(lines_of(path), 1):
        where = f"{path}, line {number}"
        with convert_errors(f"{where}: expected a line that `groundling finetune` writes"):
            rows.append(_parse_row(json.loads(line)))
    repeated = duplicates(row.name for row in rows)
    raise_first([f"{path}: example {name} is repeated" for name in repeated])
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

    Raises InputError as `read_predictions`, if the file is not of exactly these examples, or for outputs that are
    not finite.
    """
    rows = {row.name: row for row in read_predictions(path)}
    names = [one.official_id if one.official_id in rows else one.id for one in examples]
    absent = [name_of(one) for one, name in zip(examples, names, strict=True) if name not in rows]
    raise_first(
        [f"{path}: no prediction for {name}" for name in absent],
        "; the file is incomplete or of other data",
    )
    surplus = sorted(rows.keys() - set(names))
    raise_first([f"{path}: a prediction for {name}, which is not in the data" for name in surplus])
    diverged = [name for name in names if not np.isfinite(rows[name].outputs).all()]
    raise_first([f"{path}: outputs of {name} are not finite" for name in diverged])
    return [rows[name] for name in names]


def choice_scores(prediction: PredictionRow, choices: int) -> np.ndarray:
    """Scores (choices,) before a softmax; with two scores per choice (UNITER: wrong and right), the second.

    Raises InputError if the number of scores is neither `choices` nor twice that.
    """
    if len(prediction.outputs) not in (choices, 2 * choices):
        raise InputError(f"{len(prediction.outputs)} scores, expected {choices} or {2 * choices}")
    return prediction.outputs.reshape(choices, -1)[:, -1]


def probabilities(prediction: PredictionRow, form: OutputType) -> np.ndarray:
    """Probabilities (K,) of the classes, choices, answers or regions; for a regression the number itself, (1,).

    Always a softmax, whatever the loss was (CLIP-TD leaves its sigma undefined). Answers that the file omits have
    probability 0.

    Raises InputError if the scores do not fit the output type.
    """
    if isinstance(form, Regression):
        return np.array([prediction.prediction])
    if isinstance(form, RegionSelection):
        return np.asarray(softmax(prediction.outputs))
    if isinstance(form, MultipleChoice):
        return np.asarray(softmax(choice_scores(prediction, len(form.labels))))
    if not isinstance(form, Classification | OpenAnswer):
        raise InputError("answers of this output type cannot be averaged")
    count = len(form.labels)
    if len(prediction.outputs) == count:
        return np.asarray(softmax(prediction.outputs))
    places = [place for place, _ in prediction.likely]
    if not places or max(places) >= count:
        raise InputError(
            f"{len(prediction.outputs)} scores and {len(places)} likely answers, expected those of {count} answers"
        )
    out = np.zeros(count)
    out[places] = [share for _, share in prediction.likely]
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


def make_predictions(
    scores: EvaluationOutput,
    form: OutputType,
    examples: Sequence[Example],
    top_k: int = 1,
    boxes: Sequence[np.ndarray] | None = None,
) -> list[Prediction]:
    """A prediction for each example, with its `top_k` most likely answers; `boxes`: region boxes (R, 4) in pixels."""
    out = []
    for number, example in enumerate(examples):
        ranked = _ranked(_row(scores, number), form, top_k)
        candidates = []
        for place, share in ranked:
            box = None if boxes is None else boxes[number][int(place)]
            candidates.append(_candidate(place, share, form, example, box))
        out.append(Prediction(**vars(candidates[0]), best=tuple(candidates)))
    return out


def _row(scores: EvaluationOutput, number: int) -> PredictionRow:
    likely = tuple(scores.top_classes[number]) if scores.top_classes else ()
    return PredictionRow(float(scores.predictions[number]), scores.outputs[number], likely)


def _ranked(
    prediction: PredictionRow, form: OutputType, top_k: int
) -> list[tuple[float, float | None]]:
    """The most likely predictions with their probabilities, the output type's own prediction first."""
    if not isinstance(form, Classification | OpenAnswer | RegionSelection):
        return [(prediction.prediction, None)]
    shares = probabilities(prediction, form)
    excluded = form.excluded_answers if isinstance(form, OpenAnswer) else ()
    order = [int(prediction.prediction)]
    for place in np.argsort(-shares, kind="stable")[: top_k + 1 + len(excluded)].tolist():
        is_excluded = bool(excluded) and form.format_prediction(place) in excluded
        if place != order[0] and shares[place] > 0 and not is_excluded:
            order.append(place)
    return [(place, float(shares[place])) for place in order[:top_k]]


def _candidate(
    place: float, share: float | None, form: OutputType, example: Example, box: np.ndarray | None
) -> Candidate:
    answer = place if isinstance(form, Regression) else form.format_prediction(place)
    choice = example.choices[int(place)] if isinstance(form, MultipleChoice) else None
    if box is None:
        return Candidate(answer, share, choice)
    x1, y1, x2, y2 = (round(float(side), 2) for side in box)
    return Candidate(answer, share, choice, (x1, y1, x2, y2))


# -- columns -----------------------------------------------------------------------------------------------------------

CORNERS = ("x1", "y1", "x2", "y2")
DIGITS = 6
"""Significant digits of numbers in files, as many as agree between processors; Python returns full precision."""


def prediction_columns(form: OutputType, top_k: int) -> list[str]:
    """Output columns of an output type: those of the best answer, then `..._2` for the second best, and so on.

    At most as many answers as there are classes or, of very many, as are kept.
    """
    names = ["answer"]
    if isinstance(form, MultipleChoice):
        names.append("choice")
    if isinstance(form, RegionSelection):
        names += CORNERS
    if isinstance(form, Regression):
        return names
    if isinstance(form, Classification | OpenAnswer):
        classes = len(form.labels)
        top_k = min(top_k, classes if classes <= MAX_OUTPUTS else TOP_CLASSES)
    names.append("probability")
    endings = ["", *(f"_{rank}" for rank in range(2, top_k + 1))]
    return [f"{name}{ending}" for ending in endings for name in names]


def prediction_cells(
    prediction: Prediction | None, names: Sequence[str]
) -> dict[str, str | float | None]:
    """A prediction's values for these columns; None for missing answers."""
    cells: dict[str, str | float | None] = dict.fromkeys(names)
    for rank, one in enumerate(() if prediction is None else prediction.best, 1):
        values: dict[str, str | float | None] = {
            "answer": one.answer if isinstance(one.answer, str) else _rounded(one.answer),
            "choice": one.choice,
            "probability": None if one.probability is None else _rounded(one.probability),
            **dict(zip(CORNERS, one.box or (), strict=False)),
        }
        for name, value in values.items():
            column = name if rank == 1 else f"{name}_{rank}"
            if column in cells:
                cells[column] = value
    return cells


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


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
    is_run = source.is_dir() and any([(source / "model").is_dir(), *source.glob("seed-*")])
    return choose_seed_models(source).folder if is_run else source


def choose_seed_models(
    source: Path, seed: int | None = None, seeds: SeedChoice = "best"
) -> SeedModels:
    """The saved models below `source` that predict: of one `seed`, of the best seed on dev, or of `all` seeds.

    `source` itself if it has none. Raises InputError if there is no such seed.
    """
    if seed is not None and seeds == "all":
        raise InputError(
            f"model_seed={seed} and all_seeds exclude each other; leave one of them out"
        )
    saved = {
        int(match[1]): folder / "model"
        for folder in source.iterdir()
        if (match := SEED.fullmatch(folder.name)) and (folder / "model").is_dir()
    }
    if seed is not None:
        every = list(map(str, sorted(saved)))
        require_known(str(seed), every, f"{source}: no saved model of seed {seed}")
        note = f"{source}: predictions of seed {seed}, one of {', '.join(every)}"
        return SeedModels(saved[seed], note=note if len(saved) > 1 else "")
    if not saved:
        return SeedModels(source / "model" if (source / "model").is_dir() else source)
    # The folder may still hold seeds of an earlier command with more seeds.
    finished = (read_result(source) or {}).get("seeds") or saved
    numbers = [number for number in sorted(saved) if number in finished] or sorted(saved)
    return _best_or_all(source, {number: saved[number].parent for number in numbers}, seeds)


def _best_or_all(source: Path, folders: Mapping[int, Path], seeds: SeedChoice) -> SeedModels:
    """The seed with the best score on held-out data (ties go to the first), and for `all` the others too.

    The first seed if no result has a held-out score, as when all splits were trained on.
    """
    scores = {seed: _held_out_score(read_result(folder) or {}) for seed, folder in folders.items()}
    best = min(scores, key=lambda seed: (-scores[seed][0], seed))
    folder = folders[best] / "model"
    if len(folders) == 1:
        return SeedModels(folder)
    every = ", ".join(map(str, folders))
    if seeds == "all":
        others = tuple(folders[seed] / "model" for seed in folders if seed != best)
        note = f"majority vote of seeds {every}; ties go to the higher mean probability; probabilities are means"
        return SeedModels(folder, others, f"{source}: {note} over the seeds")
    reason = scores[best][1]
    return SeedModels(folder, note=f"{source}: predictions of seed {best}, {reason} of {every}")


def _held_out_score(result: Mapping[str, Any]) -> tuple[float, str]:
    """A seed's main metric on its first held-out split, higher is better, and its description; -inf without one."""
    try:
        metric = result["metrics"][0]
        split = next(one for one in result["splits"] if one not in result.get("trained_on", ()))
        value = float(result["scores"][split][metric])
    except (KeyError, TypeError, StopIteration):  # unfinished, undefined, or trained on all splits
        return -np.inf, "the first"
    height = value if result.get("higher_is_better", True) else -value
    return height, f"the best on {split} ({metric} {value:.3g})"


# -- votes -------------------------------------------------------------------------------------------------------------


def combine_seeds(
    scores: Sequence[EvaluationOutput], form: OutputType, task: Task
) -> EvaluationOutput:
    """Majority vote of several seeds on the same examples; ties go to the higher mean probability.

    Outputs are logarithms of mean probabilities; for a regression, prediction and output are the mean.
    """
    first = scores[0]
    voted = [_vote([_row(one, number) for one in scores], form) for number in range(len(first.ids))]
    predictions = np.array([one.prediction for one in voted])
    outputs = np.array([one.outputs for one in voted])
    return replace(
        first,
        outputs=outputs,
        predictions=predictions,
        metrics={} if first.labels is None else task.score(predictions, first.labels, outputs),
        top_classes=[one.likely for one in voted],
    )


def _vote(every: Sequence[PredictionRow], form: OutputType) -> PredictionRow:
    """Majority vote of several seeds on one example."""
    shares = np.mean([probabilities(one, form) for one in every], axis=0)
    if isinstance(form, Regression):
        return PredictionRow(float(shares[0]), shares)
    votes = Counter(int(one.prediction) for one in every)
    best = min(votes, key=lambda answer: (-votes[answer], -shares[answer], answer))
    with np.errstate(divide="ignore"):
        outputs = np.log(shares)  # -inf for a padded region
    if len(shares) <= MAX_OUTPUTS or isinstance(form, RegionSelection):
        return PredictionRow(best, outputs)
    return PredictionRow(best, outputs[best : best + 1], tuple(find_top_classes(outputs[None])[0]))

"""What is predicted, predictions as readable answers and in files, and which of several seeds predicts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
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
from groundling.data.images import ImageInput, image_id
from groundling.data.regions.samples import ImageSampleBuilder
from groundling.data.tables import (
    lines_of,
    read_all_columns,
    row_texts,
    split_columns,
    text_columns,
)
from groundling.runs.folder import read_result
from groundling.settings.input_settings import PredictionColumns
from groundling.training.evaluation import EvaluationOutput

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
    """Read a prediction file of `finetune`."""
    rows = []
    for number, line in enumerate(lines_of(path), 1):
        where = f"{path}, line {number}"
        with convert_errors(f"{where}: expected a line that `groundling finetune` writes"):
            row = json.loads(line)
            label = row.get("label")
            rows.append(
                PredictionRow(
                    float(row["prediction"]),
                    np.array(row.get("outputs", ()), float),
                    tuple((int(place), float(share)) for place, share in row.get("likely", ())),
                    str(row["id"]),
                    str(row.get("official", "")),
                    None if label is None else np.asarray(label, float),
                    dict(row.get("groups", {})),
                )
            )
    repeated = duplicates(row.name for row in rows)
    raise_first([f"{path}: example {name} is repeated" for name in repeated])
    return rows


def predictions_of(path: Path, examples: Sequence[Example]) -> list[PredictionRow]:
    """A file's prediction for every example, in the examples' order, by official id or else by the package's id."""
    rows = {row.name: row for row in read_predictions(path)}
    names = [one.official_id if one.official_id in rows else one.id for one in examples]
    others = sorted(rows.keys() ^ set(names))
    raise_first([f"{path}: predictions are not of the same examples: {name}" for name in others])
    diverged = [name for name in names if not np.isfinite(rows[name].outputs).all()]
    raise_first([f"{path}: outputs of {name} are not finite" for name in diverged])
    return [rows[name] for name in names]


def choice_scores(prediction: PredictionRow, choices: int) -> np.ndarray:
    """Scores (choices,) before a softmax; with two scores per choice (UNITER: wrong and right), the second."""
    with convert_errors(f"{len(prediction.outputs)} scores for {choices} choices"):
        return prediction.outputs.reshape(choices, -1)[:, -1]


def probabilities(prediction: PredictionRow, form: OutputType) -> np.ndarray:
    """Probabilities (K,) of the classes, choices, answers or regions; for a regression the number itself, (1,).

    Always a softmax, whatever the loss was (CLIP-TD leaves its sigma undefined); 0 for answers that the file omits.
    """
    if isinstance(form, Regression):
        return np.array([prediction.prediction])
    if isinstance(form, RegionSelection):
        return np.asarray(softmax(prediction.outputs))
    if isinstance(form, MultipleChoice):
        return np.asarray(softmax(choice_scores(prediction, len(form.labels))))
    with convert_errors("outputs that cannot be averaged"):
        out = np.zeros(len(form.labels))  # type: ignore[attr-defined]
        if len(prediction.outputs) == len(out):
            return np.asarray(softmax(prediction.outputs))
        places, shares = zip(*prediction.likely, strict=True)
        out[list(places)] = shares
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
        likely = tuple(scores.top_classes[number]) if scores.top_classes else ()
        row = PredictionRow(float(scores.predictions[number]), scores.outputs[number], likely)
        candidates = []
        for place, share in _ranked(row, form, top_k):
            answer = place if isinstance(form, Regression) else form.format_prediction(place)
            choice = example.choices[int(place)] if isinstance(form, MultipleChoice) else None
            box = None
            if boxes is not None:
                x1, y1, x2, y2 = (round(float(side), 2) for side in boxes[number][int(place)])
                box = (x1, y1, x2, y2)
            candidates.append(Candidate(answer, share, choice, box))
        out.append(Prediction(**vars(candidates[0]), best=tuple(candidates)))
    return out


def _ranked(
    prediction: PredictionRow, form: OutputType, top_k: int
) -> list[tuple[float, float | None]]:
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


# -- columns -----------------------------------------------------------------------------------------------------------
CORNERS = ("x1", "y1", "x2", "y2")
DIGITS = 6
"""Significant digits of numbers in files, as many as agree between processors; Python returns full precision."""


def prediction_columns(form: OutputType, top_k: int) -> list[str]:
    """Output columns: those of the best answer, then `..._2` for the second best, and so on."""
    names = ["answer"]
    if isinstance(form, MultipleChoice):
        names.append("choice")
    if isinstance(form, RegionSelection):
        names += CORNERS
    if isinstance(form, Regression):
        return names
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
            "answer": one.answer,
            "choice": one.choice,
            "probability": one.probability,
        }
        for name, value in values.items():
            values[name] = float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
        values |= dict(zip(CORNERS, one.box or (), strict=False))
        ending = "" if rank == 1 else f"_{rank}"
        cells |= {f"{name}{ending}": value for name, value in values.items()}
    return {name: cells[name] for name in names}


# What is predicted: rows of a file, examples of a task, and texts and images passed from Python.


@dataclass
class InputRow:
    """A row of a file, an example of a split, or a question from Python; a model adds its prediction."""

    where: str
    """File and line, or another place, for messages."""
    cells: Mapping[str, object]
    """Values by column."""
    example: Example
    """Empty if the row is invalid."""
    fault: str = ""
    """Reason why the row cannot be predicted."""
    prediction: Prediction | None = None


def make_row(where: str, cells: Mapping[str, object], make: Callable[[], Example]) -> InputRow:
    """A row with the example of `make`, or with the reason why that raises InputError."""
    try:
        return InputRow(where, cells, make())
    except InputError as error:
        return InputRow(where, cells, Example("", ""), str(error))


def raise_first_fault(rows: Sequence[InputRow], advice: str = "") -> None:
    """Raises InputError for the first row that cannot be predicted."""
    raise_first([f"{row.where}: {row.fault}" for row in rows if row.fault], advice)


def read_file_rows(
    path: Path,
    columns: PredictionColumns,
    fit: Callable[[Example], Example],
    images: ImageSampleBuilder,
) -> list[InputRow]:
    """The rows of a file, with their examples as `fit` changes them; an invalid row only gets a `fault`."""
    header, rows = read_all_columns(path)
    texts = text_columns(columns.text, "text")
    for name in [*texts, *split_columns(columns.choices), *split_columns(columns.image)]:
        require_known(name, header, f"{path}: no column {name!r}")

    def example_of(number: int, cells: Mapping[str, Any]) -> Example:
        first, *second = row_texts(cells, texts)
        files = row_texts(cells, split_columns(columns.image))
        example = Example(
            f"{path.stem}-{number}",
            first,
            second[0] if second else None,
            choices=tuple(row_texts(cells, split_columns(columns.choices))),
            images=tuple(_id_of(file, images) for file in files),
        )
        return fit(example)

    return [
        make_row(where, cells, partial(example_of, number, cells))
        for number, (where, cells) in enumerate(rows)
    ]


def _id_of(file: str, images: ImageSampleBuilder) -> str:
    file = file.strip().removeprefix("./")
    image = image_id(file)
    ending = file[len(image) :].lower()
    photos = images.files.get(image, ())
    if ending and photos and all(photo.suffix.lower() != ending for photo in photos):
        folder = images.settings.images
        raise InputError(f"{file}: no such file; {folder} contains {photos[0].name}")
    return image


def example_row(example: Example, where: str) -> InputRow:
    """The row of an official example, with columns made from its fields."""
    cells: dict[str, object] = {"id": example.official_id or example.id, "text": example.text}
    if example.text_pair is not None:
        cells["pair"] = example.text_pair
    for start, stop, _ in example.region_tags[:1] if example.gold_boxes is not None else ():
        cells["phrase"] = example.text[start:stop]
    for number, choice in enumerate(example.choices):
        cells[f"option_{number}"] = choice
    for number, image in enumerate(example.images):
        cells["image" if len(example.images) == 1 else f"image_{number}"] = image
    return InputRow(f"{where}, {cells['id']}", cells, example)


ImageFile = str | Path | Image.Image
"""An image: a file path or a PIL image."""
ImageFiles = ImageFile | Sequence[ImageFile]
"""One image of an input, or several."""


def python_examples(
    texts: Sequence[str], pairs: Any, images: Any, choices: Any, *, stored: bool
) -> tuple[list[Example], dict[str, ImageInput]]:
    """Examples, and all images by id: files' paths, or (`stored`) the ids of a region store."""
    if any(isinstance(one, str) for one in (texts, pairs, images, choices)):
        raise InputError("expected lists of one length, not one text; predict takes one question")
    columns = [[None] * len(texts) if one is None else one for one in (pairs, images, choices)]
    photos: dict[str, ImageInput] = {}
    examples = []
    with convert_errors("expected lists of one length, and images as paths or PIL images"):
        for number, (text, pair, files, options) in enumerate(zip(texts, *columns, strict=True)):
            ids: list[str] = []
            for file in [files] if isinstance(files, ImageFile) else files or ():
                name = f"image {len(ids)} of question {number}"
                image = file if isinstance(file, Image.Image) else Path(file)
                if isinstance(image, Path):
                    image = image if stored else _with_ending(image)
                    name = image_id(str(image)) if stored else str(image)
                photos[name] = image
                ids.append(name)
            choice_texts = tuple(options or ())
            examples.append(
                Example(str(number), text, pair, choices=choice_texts, images=tuple(ids))
            )
    return examples, photos


def _with_ending(file: Path) -> Path:
    """The only image beside it that a file without an ending names, as in tables; else the file itself."""
    if file.exists() or not file.parent.is_dir():
        return file
    found = [one for one in file.parent.iterdir() if image_id(one.name) == file.name != one.name]
    return found[0] if len(found) == 1 else file


# Which of a run's seeds predicts: the best one on the development split, or a chosen one.

SEED = re.compile(r"seed-(\d+)")


def model_folder(source: Path) -> Path:
    """The model folder of a run, of several seeds the best one; any other folder or a hub id unchanged."""
    return choose_seed_model(source)[0] if source.is_dir() else source


def choose_seed_model(source: Path, seed: int | None = None) -> tuple[Path, str]:
    """The saved model below `source`, or itself, that predicts, and a note on the choice.

    It is that of the `seed` or, without one, of the best on dev.
    """
    saved = {
        int(match[1]): folder
        for folder in source.iterdir()
        if (match := SEED.fullmatch(folder.name)) and (folder / "model").is_dir()
    }
    if seed is not None:
        require_known(
            str(seed), map(str, sorted(saved)), f"{source}: no saved model of seed {seed}"
        )
    elif not saved:
        return source / "model" if (source / "model").is_dir() else source, ""
    numbers = [number for number in sorted(saved) if is_listed(source, number)] or sorted(saved)
    # The best score on held-out data; ties go to the first, as when all splits were trained on.
    # A seed that always gives one answer is the last of those with equal scores.
    scores = {number: _held_out_score(read_result(saved[number]) or {}) for number in numbers}
    best = max(numbers, key=lambda number: scores[number][0])
    chosen = best if seed is None else seed
    folder = saved[chosen] / "model"
    if len(saved) == 1:
        return folder, ""
    every = ", ".join(map(str, numbers))
    reason = scores[best][1] if seed is None else "one"
    return folder, f"{source}: predictions of seed {chosen}, {reason} of {every}"


def is_listed(run: Path, seed: int) -> bool:
    """Whether a seed counts: the folder may hold seeds of an earlier command that the run's result does not list."""
    listed = (read_result(run) or {}).get("seeds")
    return not listed or seed in listed


def _held_out_score(result: Mapping[str, Any]) -> tuple[tuple[float, float], str]:
    """A seed's main metric on its first held-out split, higher is better, and its description; -inf without one."""
    try:
        metric = result["metrics"][0]
        split = next(one for one in result["splits"] if one not in result.get("trained_on", ()))
        scores = result["scores"][split]
        value = float(scores[metric])
    except (KeyError, TypeError, StopIteration):  # unfinished, undefined, or trained on all splits
        return (-np.inf, 0), "the first"
    height = value if result.get("higher_is_better", True) else -value
    return (height, -scores.get("constant", 0)), f"the best on {split} ({metric} {value:.3g})"

"""Prediction and evaluation with a saved fine-tuned model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, Example, collate, require
from groundling.core.errors import (
    InputError,
    convert_read_errors,
    prefix_errors,
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
from groundling.data.images import ImageInput
from groundling.data.regions.inputs import ImageInputs, SettingNames
from groundling.data.samples import SampleDataset
from groundling.data.tables import check_no_label, row_texts
from groundling.models.adapters import ClipFeatureAdapter
from groundling.prediction.inputs import (
    ImageFiles,
    ImageLookup,
    InputColumns,
    InputRow,
    PredictionInput,
    PythonInput,
    example_row,
    input_example,
    python_inputs,
    read_input_rows,
)
from groundling.prediction.loaded_model import (
    DETECTION_BATCH,
    LoadedModel,
    VisionModelPaths,
    images_of,
)
from groundling.prediction.model_description import read_description
from groundling.prediction.predictions import (
    Prediction,
    PredictionFormatter,
    SeedChoice,
    choose_seed_models,
)
from groundling.runs.jobs import use_cpu
from groundling.runs.progress import track
from groundling.settings.input_settings import (
    PredictionColumns,
    SavedModelSettings,
    TableTaskSettings,
)
from groundling.tasks import Task
from groundling.tasks.table import example_of, held_out, read_table
from groundling.training.evaluation import EvaluationOutput, concatenate_outputs, score_split

# Input data: your own table file, or a folder with the official files of the model's task.


def columns_for(model: LoadedModel, settings: PredictionColumns) -> InputColumns | None:
    """Columns of your own file: those of `settings`, else those of the training file; None if neither names any."""
    own = model.description.own
    text = settings.text or ("" if own is None else own.text)
    if not text:
        return None
    image = settings.image or ("" if own is None else own.image)
    columns = InputColumns(text, image if model.reads_images else "", settings.choices)
    model.note_pairs(len(columns.texts))
    return columns


def is_own_file(model: LoadedModel, data: Path, columns: InputColumns | None) -> bool:
    """Whether data is a table, not official files of the task; raises InputError if it is neither."""
    if not data.exists():
        raise InputError(f"{data}: no such file or folder")
    if data.is_dir():
        if model.description.own is not None:
            raise InputError(f"{data}: this model was trained on a table file; pass a file")
        return False
    if columns is not None:
        return True
    task = model.task()
    if task.file(data, task.dev[0]) != data:
        raise InputError(
            f"{data}: name the input columns (text=COLUMN, image=COLUMN, choices=COLUMNS), or pass a folder with "
            f"the official files of {task.name}"
        )
    return False


def read_data_rows(
    model: LoadedModel, data: Path, split: str, settings: PredictionColumns, lookup: ImageLookup
) -> tuple[Task, list[str], list[InputRow]]:
    """The task, the column names of the data, and an `InputRow` for each row or example."""
    columns = columns_for(model, settings)
    if is_own_file(model, data, columns) and columns is not None:
        if split:
            raise InputError(
                f"split={split}: {data} is a file and has no splits; leave the split out"
            )
        header, lines = read_file_rows(model, data, columns, lookup)
        return model.unscored_task, header, lines
    task = model.task()
    split = split or next(iter(task.test), task.dev[0])
    check_answers(task, data, split)
    examples = task.read(data, split)
    lines = [example_row(example, f"{data}, {split}") for example in examples]
    return task, list(dict.fromkeys(name for line in lines for name in line.cells)), lines


def read_file_rows(
    model: LoadedModel, data: Path, columns: InputColumns, lookup: ImageLookup
) -> tuple[list[str], list[InputRow]]:
    """As `read_input_rows`; adds notes about the file to the model's notes."""
    header, lines = read_input_rows(data, columns, model.form, model.description.reads, lookup)
    for note in lookup.notes:
        model.note(note)
    return header, lines


def check_answers(task: Task, data: Path, split: str) -> None:
    """Raises InputError if the folder's answer list differs from the model's; test splits may lack a list."""
    if task.read_form is None or not isinstance(task.form, OpenAnswer | Classification):
        return
    try:
        form = task.read_form(data)
    except InputError:
        if split in task.test:
            return
        raise
    if isinstance(form, OpenAnswer | Classification) and form.labels != task.form.labels:
        raise InputError(
            f"{data}: its {len(form.labels):,} answers and the {len(task.form.labels):,} of the model differ, or their "
            "order does; use the folder of the training run"
        )


# Scores of a saved model on labelled data, equal to those of its training run.

ALL = "all rows"
"""Split name for the scores of a whole file."""


def evaluate_on(
    model: LoadedModel,
    data: Path,
    split: str,
    settings: PredictionColumns,
    label: str,
    lookup: ImageLookup,
) -> dict[str, Any]:
    """Scores by split and metric, 0..1 as in `result.json`, and the number of examples of each split.

    Raises InputError if the data has no labels, labels unknown to the model, or an invalid row.
    """
    task, parts = labelled_splits(model, data, split, settings, label, lookup)
    scores = {}
    counts = {}
    dropped = 0
    for name, examples in parts.items():
        answers = _answers(model, examples, lookup, task)
        scores[name] = score_split(answers, task, name, data)
        counts[name] = len(examples)
        dropped += answers.truncated_tokens
    result: dict[str, Any] = {"task": task.name, "model": str(model.folder), "scores": scores}
    result |= {"n": counts, "truncated_tokens": dropped}
    return result | ({"notes": model.notes} if model.notes else {})


def labelled_splits(
    model: LoadedModel,
    data: Path,
    split: str,
    settings: PredictionColumns,
    label: str,
    lookup: ImageLookup,
) -> tuple[Task, dict[str, list[Example]]]:
    """The model's task, and labelled examples by split from official files or your own file.

    Raises InputError as `evaluate_on`.
    """
    task = model.task()
    columns = columns_for(model, settings)
    if is_own_file(model, data, columns) and columns is not None:
        # The `extra` scores need the official files of the data set.
        task = replace(task, official_scores=None)
        return task, {split or ALL: _own(model, data, split, columns, label, lookup)}
    return task, {name: _labelled(task, data, name) for name in _splits(task, split)}


def _splits(task: Task, split: str) -> tuple[str, ...]:
    return (split,) if split else task.dev


def _labelled(task: Task, data: Path, split: str) -> list[Example]:
    """The examples of an official split; raises InputError if they have no labels."""
    check_answers(task, data, split)
    examples = task.read(data, split)
    if examples[0].label is None and task.label_regions is None:
        raise InputError(f"{data}: {split!r} of {task.name} has no labels; use `predict` for it")
    return examples


def _own(
    model: LoadedModel,
    data: Path,
    split: str,
    columns: InputColumns,
    label: str,
    lookup: ImageLookup,
) -> list[Example]:
    """The labelled rows of your own file: all, or the train or dev rows of the training run."""
    own = model.description.own or TableTaskSettings()
    label = label or own.label
    if not label:
        raise InputError(f"{data}: name the column of the labels ({lookup.names.prefix}label)")
    check_no_label(columns.texts, label, f"{lookup.names.prefix}text {columns.text}")
    if split:
        return _split_rows(model, replace(own, label=label), data, split)
    header, lines = read_file_rows(model, data, columns, lookup)
    require_known(label, header, f"{data}: no column {label!r}")
    examples = []
    for line in lines:
        if line.example is None:
            raise InputError(f"{line.where}: {line.fault}")
        with prefix_errors(line.where):
            (text,) = row_texts(line.cells, [label])
        answer = _label(model.form, text.strip(), str(line.where))
        examples.append(replace(line.example, label=answer))
    return examples


def _label(form: OutputType, text: str, where: str) -> Any:
    """The label's value in the output type, for open answers a pair of class and credit 1.

    Raises InputError for an unknown label.
    """
    number = form.parse_label(text, where)
    return np.array([[number, 1.0]], np.float32) if isinstance(form, OpenAnswer) else number


def _split_rows(
    model: LoadedModel, own: TableTaskSettings, data: Path, split: str
) -> list[Example]:
    """The train or dev rows of the training run, from the same file."""
    if split not in ("train", "dev"):
        raise InputError(f"split={split}: your own file has only the splits train and dev")
    rows = read_table(data, own)
    held_out_groups = held_out(data, [row.group for row in rows])
    sides = [row for row in rows if (row.group in held_out_groups) == (split == "dev")]
    return [example_of(row, model.form, data, split) for row in sides]


def _answers(
    model: LoadedModel, examples: list[Example], lookup: ImageLookup, task: Task
) -> EvaluationOutput:
    parts = []
    for part in model.predict_examples(examples, lookup, task, task.label_regions):
        raise_first(list(part.faults.values()))
        if part.scores is not None:
            parts.append(part.scores)
    return concatenate_outputs(parts, task)


BATCH = 64
"""Texts per forward pass of `encode`."""


class FineTunedModel(LoadedModel):
    """A fine-tuned model for use from Python, returned by `load`.

    `notes` lists the caveats of its predictions, one line each.
    """

    def __repr__(self) -> str:
        """Folder, task, possible answers, inputs and device."""
        fields = [
            repr(str(self.folder)),
            f"task={self.description.task!r}",
            f"answers={describe_answers(self.form)}",
        ]
        images = (
            "regions of images"
            if self.description.reads.regions
            else "images"
            if self.reads_images
            else ""
        )
        fields.append(f"reads={(f'text and {images}' if images else 'text')!r}")
        return f"FineTunedModel({', '.join([*fields, f'device={str(self.device)!r}'])})"

    @overload
    def predict(
        self,
        text: str,
        pair: str | None = ...,
        image: ImageFiles | None = ...,
        choices: Sequence[str] = ...,
        *,
        top_k: int = ...,
        regions: str | Path = ...,
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        text: list[str] | tuple[str, ...],
        pair: Sequence[str] | None = ...,
        image: Sequence[ImageFiles] | None = ...,
        choices: Sequence[Sequence[str]] = ...,
        *,
        top_k: int = ...,
        regions: str | Path = ...,
        skip_bad: bool = ...,
    ) -> list[Prediction | None]: ...

    def predict(
        self,
        text: str | list[str] | tuple[str, ...],
        pair: Any = None,
        image: Any = None,
        choices: Any = (),
        *,
        top_k: int = 1,
        regions: str | Path = "",
        skip_bad: bool = False,
    ) -> Prediction | list[Prediction | None]:
        """Predict the answer for one input, or for each input of a list, in order.

        Args:
            text: a text, or a list of texts.
            pair: the second text; for tasks that locate a phrase of the text, the phrase.
            image: the image as a file path or PIL image, or several images if the task has several; for a list of
                texts, a list of these.
            choices: the choices of a multiple-choice task; for a list of texts, a list of these.
            top_k: number of answers to rank, see `Prediction.best`.
            regions: a region store with the images; empty: regions are detected now, with the settings of the
                training store.
            skip_bad: return None for an invalid input of a list, such as one with a broken photo.

        Raises:
            InputError: an input is invalid, or lists differ in length.
        """
        if isinstance(text, str) or text is None:
            inputs = python_inputs(
                [text],
                None if pair is None else [pair],
                None if image is None else [image],
                [choices],
            )
            (only,) = self._answers(inputs, top_k, str(regions), False)
            return require(only, "answer", "a question")
        inputs = python_inputs(text, pair, image, choices or None)
        return self._answers(inputs, top_k, str(regions), skip_bad)

    def _answers(
        self, inputs: Sequence[PythonInput], top_k: int, regions: str, skip_bad: bool
    ) -> list[Prediction | None]:
        if any(one.pair is not None for one in inputs):
            self.note_pairs(2)
        formatter = PredictionFormatter(self.form, top_k, "top_k =")
        faults: dict[int, str] = {}
        examples: dict[int, Example] = {}
        photos: dict[str, ImageInput] = {}
        for number, one in enumerate(inputs):
            ids = one.ids(bool(regions))
            photos |= dict(zip(ids, one.pictures, strict=True))
            question = PredictionInput(one.text, one.pair, one.choices, ids)
            try:
                examples[number] = input_example(
                    str(number), question, self.form, self.description.reads, self.reads_images
                )
            except InputError as error:
                faults[number] = str(error)
        answers: list[Prediction | None] = [None] * len(inputs)
        numbers = list(examples)
        lookup = self._photo_lookup(photos, regions, "image=FILE")
        for part in self.predict_examples(list(examples.values()), lookup, self.unscored_task):
            faults |= {numbers[place]: fault for place, fault in part.faults.items()}
            if part.scores is None:
                continue
            some = [examples[numbers[place]] for place in part.numbers]
            predictions = formatter.predictions(part.scores, some, part.boxes)
            for place, prediction in zip(part.numbers, predictions, strict=True):
                answers[numbers[place]] = prediction
        if faults and not skip_bad:
            raise_first([f"question {number}: {faults[number]}" for number in sorted(faults)])
        return answers

    def _photo_lookup(
        self, photos: Mapping[str, ImageInput], regions: str, argument: str
    ) -> ImageLookup:
        """The image lookup for the photos of some inputs; `argument` names the photos in messages."""
        if photos and not self.reads_images:
            raise InputError(f"{self.folder}: this model reads only text; leave the image out")
        store = regions if self.description.reads.regions else ""
        reads_files = self.reads_pixels or not store
        read = photos if reads_files and self.reads_images else ""
        return self.image_lookup(
            store, read, decode=True, names=SettingNames("regions=STORE", argument)
        )

    def evaluate(
        self,
        data: str | Path,
        split: str = "",
        *,
        text: str = "",
        image: str = "",
        choices: str = "",
        label: str = "",
        images: str | Path = "",
        regions: str | Path = "",
        allow_region_mismatch: bool = False,
    ) -> dict[str, Any]:
        """Score the model on labelled data; returns what `groundling evaluate` prints.

        Args:
            data: a folder with the task's official files, or your own csv, tsv, json or jsonl file.
            split: split name; empty: all labelled dev splits, or all rows of the file (`dev`: the held-out rows).
            text: text columns of the file, separated by commas; empty, here and below: those of the training file.
            image: columns with image file names.
            choices: columns with the choices of a multiple-choice task.
            label: column of the label.
            images: folder of the photos, for a model that reads them, or to detect regions now.
            regions: region store with the images.
            allow_region_mismatch: accept regions that were made differently from the training regions.

        Raises:
            InputError: the data has no labels, labels unknown to the model, or an invalid row.
        """
        names = SettingNames("regions=STORE", "images=FOLDER", "allow_region_mismatch=True")
        lookup = self.image_lookup(
            str(regions),
            str(images),
            allow_region_mismatch=allow_region_mismatch,
            names=names,
        )
        columns = PredictionColumns(text, image, choices)
        return evaluate_on(self, Path(data), split, columns, label, lookup)

    def encode(
        self,
        texts: str | Sequence[str],
        images: Any = None,
        pool: Literal["first", "mean"] = "first",
        regions: str | Path = "",
    ) -> np.ndarray:
        """Embeddings of texts, or of texts with images, before the head: (N, H) float32, or (H,) of one text.

        Args:
            texts: a text, or a list of N texts.
            images: the image of each text, as a file path or PIL image, or its images; None: text only.
            pool: the last hidden state of the first position, or the mean over the text's tokens; a model with one
                vector per text (a CLIP text tower, an adapter over CLIP) returns that vector.
            regions: a region store with the images; empty: regions are detected now.

        Raises:
            InputError: an image cannot be read, or lists differ in length.
        """
        if isinstance(texts, str):
            image_list = None if images is None else [images]
            vector: np.ndarray = self.encode([texts], image_list, pool, regions)[0]
            return vector
        if images is None and isinstance(self.student, ClipFeatureAdapter):
            raise InputError(f"{self.folder}: an adapter over CLIP needs an image for each text")
        examples = []
        photos: dict[str, ImageInput] = {}
        for number, one in enumerate(python_inputs(texts, None, images, None)):
            ids = one.ids(bool(regions))
            photos |= dict(zip(ids, one.pictures, strict=True))
            examples.append(Example(str(number), one.text, images=ids))
        if not photos:
            return self._states(self.make_samples(examples, ImageInputs()), pool)
        lookup = self._photo_lookup(photos, str(regions), "images=FILES")
        found = []
        for start in range(0, len(examples), DETECTION_BATCH):
            some = examples[start : start + DETECTION_BATCH]
            sources = lookup.load_images(images_of(some))
            raise_first([f"{image}: {fault}" for image, fault in sources.faults.items()])
            found.append(self._states(self.make_samples(some, sources), pool))
        return np.concatenate(found)

    @torch.no_grad()
    def _states(self, samples: SampleDataset, pool: Literal["first", "mean"]) -> np.ndarray:
        """Embeddings (N, H) of N samples."""
        found: list[np.ndarray] = []
        for start in track(range(0, len(samples), BATCH), "encoding", "batch"):
            places = range(start, min(start + BATCH, len(samples)))
            batch = collate(samples.get(places, ())).to(self.device)
            found.append(_pooled(self.student(batch), batch, pool).float().cpu().numpy())
        return np.concatenate(found)


QUOTED = 4
"""Maximum number of answers in a model's repr."""


def describe_answers(form: OutputType) -> str:
    """Short description of a model's possible answers."""
    if isinstance(form, RegionSelection):
        return "a region"
    if isinstance(form, Regression):
        return "a number"
    if isinstance(form, MultipleChoice):
        return "one of the question's choices"
    labels = form.labels if isinstance(form, Classification | OpenAnswer) else ()
    if not labels:
        return type(form).__name__
    more = f" and {len(labels) - QUOTED:,} more" if len(labels) > QUOTED else ""
    return f"{list(labels[:QUOTED])}{more}"


def _pooled(encoded: EncoderOutput, batch: Batch, pool: Literal["first", "mean"]) -> Tensor:
    """Pooled embeddings (N, H)."""
    states = encoded.text if encoded.joint_text is None else encoded.joint_text
    if states is None:
        return require(encoded.pooler_output, "pooler_output", "encode")
    if pool == "first":
        return states[:, 0]
    mask = require(batch.text, "text", "encode").attention_mask.unsqueeze(-1)
    return (states * mask).sum(1) / mask.sum(1)


# -- loading -----------------------------------------------------------------------------------------------------------


def load(
    source: str | Path,
    seed: int | None = None,
    *,
    seeds: SeedChoice = "best",
    detector: str = "",
    backbone: str = "",
    device: str = "",
    trust: str | Sequence[str] = (),
) -> FineTunedModel:
    """Load a fine-tuned model that `groundling finetune` saved.

    Args:
        source: a run's folder, the folder of one of its seeds, or the `model` folder inside.
        seed: the seed of a run; None: `seeds` decides, and `notes` names the choice.
        seeds: `best`, the best seed on the development split, or `all`, the majority vote of all seeds; ties go to
            the answer with the higher mean probability. Probabilities and numbers are means over the seeds.
        detector: hub id or folder of the region detector, if the training run's is not available.
        backbone: hub id or folder of the backbone, likewise.
        device: such as cuda; empty: an accelerator if there is one.
        trust: your own objects, MODULE:NAME each, that the folder may import; nothing else is imported.

    Raises:
        InputError: there is no saved model, its description is missing or damaged, or it needs code that `trust` does
            not name.
    """
    with convert_read_errors(source):
        models = choose_seed_models(Path(source), seed, seeds)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    trust = (trust,) if isinstance(trust, str) else trust
    local_models = VisionModelPaths(detector, backbone)
    model, *others = (
        FineTunedModel(folder, read_description(folder), device, local_models, trust)
        for folder in (models.folder, *models.others)
    )
    model.vote_with(others)
    model.notes[:0] = [models.note] if models.note else []
    return model


def load_saved(saved: SavedModelSettings) -> FineTunedModel:
    """Load the model named by a command's settings, on this process's device."""
    device = str(PartialState(cpu=use_cpu(saved.cpu)).device)
    seed = None if saved.model_seed < 0 else saved.model_seed
    return load(
        saved.model,
        seed,
        seeds="all" if saved.all_seeds else "best",
        detector=saved.detector,
        backbone=saved.backbone,
        device=device,
        trust=saved.trust,
    )


def image_lookup(model: LoadedModel, saved: SavedModelSettings, decode: bool) -> ImageLookup:
    """The image lookup for a command's settings; raises InputError as `ImageLookup`."""
    return model.image_lookup(
        saved.regions,
        saved.images,
        allow_region_mismatch=saved.allow_region_mismatch,
        decode=decode,
    )

"""A saved fine-tuned model: loading, prediction, evaluation on labelled data, and hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from groundling.core.batch import FORWARD_BATCH, Batch, EncoderOutput, Example, collate, require
from groundling.core.errors import (
    InputError,
    convert_read_errors,
    prefix_errors,
    raise_first,
    require_known,
    require_nonempty,
)
from groundling.core.output_types import MultipleChoice, OpenAnswer, OutputType, RegionSelection
from groundling.core.registry import check_trust, files_of_object, is_import_path, resolve
from groundling.data.image_samples import PixelDataset
from groundling.data.images import ImageInput
from groundling.data.regions.samples import (
    ImageSampleBuilder,
    ImageSources,
    RegionDataset,
    RegionLabeler,
    RegionOptions,
)
from groundling.data.samples import SampleDataset, TextDataset
from groundling.data.tables import check_no_label, row_texts, split_columns
from groundling.models.adapters import IMAGE, TEXT
from groundling.models.heads import HEADS, load_head
from groundling.models.loading import Encoder
from groundling.objectives.contrastive import PoolingMode, pool_states
from groundling.objectives.supervised import SupervisedObjective
from groundling.prediction.answers import AnswerRow, answer_rows, write_answers
from groundling.prediction.model_description import FILE, detection_settings, read_description
from groundling.prediction.predictions import (
    ImageFiles,
    InputRow,
    Prediction,
    choose_seed_model,
    example_row,
    make_predictions,
    make_row,
    python_examples,
    raise_first_fault,
    read_file_rows,
)
from groundling.runs.folder import sha256_of
from groundling.runs.jobs import process_state
from groundling.runs.progress import is_main_process, track
from groundling.settings.input_settings import (
    PredictionColumns,
    SavedModelSettings,
    TableTaskSettings,
)
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.tasks import Task
from groundling.tasks.table import example_of, held_out, metrics_of, positive_class, read_table
from groundling.teachers.clip import ClipTeacher
from groundling.teachers.feature_cache import FeatureCache, TeacherSet
from groundling.training.evaluation import (
    EvaluationOutput,
    concatenate_outputs,
    evaluate,
    score_split,
)
from groundling.training.image_use import exchange_images, image_use, image_use_note
from groundling.vision import StoreRegionExtractor
from groundling.vision_language import RegionEncoder
from groundling.vision_language.loading import load_encoder, make_task_head

DETECTION_BATCH = 256
"""Number of examples whose detected regions are in memory at once."""
FIRST = 5
"""Number of skipped images named in a result."""
ALL = "all rows"
"""Split name for the scores of a whole file."""


class FineTunedModel:
    """A fine-tuned model with its head, returned by `load`; `notes` lists the caveats of its predictions."""

    def __init__(
        self,
        folder: Path,
        device: str,
        *,
        detector: str = "",
        backbone: str = "",
        trust: Sequence[str] = (),
    ) -> None:
        """Load the model in a folder; arguments as in `load`."""
        self.folder = folder
        self.description = description = read_description(folder)
        self.device = device
        self.detector = detector
        self.backbone = backbone
        self.trust = tuple(trust)
        self.notes: list[str] = []
        self._check_code(description.model_format, description.architecture)
        self.student: Encoder = load_encoder(
            str(folder), description.model_format, description.architecture
        )
        self.form: OutputType = self.task.form if description.form is None else description.form
        if isinstance(self.student, RegionEncoder):
            self.student.add_images(description.images)
            if description.is_prepared:
                self.student.prepare((), False)
        with prefix_errors(folder / FILE):
            head = make_task_head(self.student, self.form, description.head)
            self.objective = SupervisedObjective(
                self.student.sizes, output_type=self.form, head=head, loss=description.loss
            )
        if not load_head(folder, self.objective, self.objective.name):
            raise InputError(f"{folder / HEADS}: lacks the head that {FILE} beside it names")
        self.student.to(device).eval()
        self.objective.to(device).eval()

    # -- task ----------------------------------------------------------------------------------------------------------

    @cached_property
    def task(self) -> Task:
        """The task with the model's own answers."""
        description = self.description
        if description.own is not None and description.form is not None:
            return replace(self.unscored_task, metrics=metrics_of(description.form))
        if is_import_path(description.task):
            self._check_code(description.task)
        with prefix_errors(self.folder / FILE):
            task = resolve("tasks", Task, description.task)
        if task.version != description.version:
            self.notes.append(
                f"{description.task} now has version {task.version}; the model was trained on version "
                f"{description.version}"
            )
        return task if description.form is None else replace(task, form=description.form)

    @property
    def unscored_task(self) -> Task:
        """A task with the model's output type, without files and metrics."""
        name = self.description.task
        return Task(name, self.form, lambda folder, split: [], (), source=name)

    def _check_code(self, *names: str) -> None:
        check_trust(names, self.trust, self.folder / FILE)
        for name in filter(None, names):
            for file in files_of_object(name).values():
                if self.description.modules.get(name) not in (None, sha256_of(file)):
                    self.notes.append(
                        f"{file}: changed since the model was trained; its predictions may differ"
                    )

    # -- images --------------------------------------------------------------------------------------------------------

    @property
    def _reads_pixels(self) -> bool:
        """Whether the model reads pixels; one trained with zeros in place of image features does not."""
        about = self.description
        sees = self._computes_features and not about.zero_region_features
        return self.student.clip_backbone is not None or (sees and about.reads_regions)

    @property
    def _computes_features(self) -> bool:
        return isinstance(self.student, RegionEncoder) and self.student.region_source == "pixels"

    @property
    def reads_images(self) -> bool:
        """Whether the model reads images, as regions or pixels."""
        return self.description.reads_regions or self._reads_pixels

    @property
    def inputs(self) -> ImageSampleBuilder:
        """Region inputs with the settings of the training run's evaluation."""
        about = self.description
        return ImageSampleBuilder(about.region_settings, zero_features=about.zero_region_features)

    @cached_property
    def finder(self) -> StoreRegionExtractor:
        """Finds regions on photos with the settings of the training store."""
        settings = detection_settings(self.description.regions)
        settings = replace(
            settings,
            detector=self.detector or settings.detector,
            backbone=self.backbone or settings.backbone,
        )
        features = not self._computes_features
        return StoreRegionExtractor(settings, self.description.regions, self.device, features)

    def image_inputs(
        self,
        regions: str = "",
        images: str | Mapping[str, ImageInput] = "",
        *,
        allow_region_mismatch: bool = False,
        decode: bool = False,
    ) -> ImageSampleBuilder:
        """Where images come from: a region store, or a folder or images by id (which `decode` opens at once)."""
        about = self.description
        self._check_sources(bool(regions), bool(images))
        settings = replace(
            about.region_settings,
            regions=regions,
            images=images if isinstance(images, str) else "",
            allow_region_mismatch=allow_region_mismatch,
        )
        inputs = ImageSampleBuilder(
            settings,
            features=not self._computes_features,
            zero_features=about.zero_region_features,
            region_finder=self.finder if about.reads_regions and not regions else None,
            decode=decode,
        )
        if isinstance(self.student, RegionEncoder):
            inputs.check(self.student, provenance=self.description.regions)
        return inputs

    def _check_sources(self, regions: bool, images: bool) -> None:
        if self._reads_pixels:
            expected = "pixels; pass images=FOLDER, with regions=STORE if it reads boxes from there"
            fits = images and (self.description.reads_regions or not regions)
        elif self.reads_images:
            expected = "image regions; pass either regions=STORE, or images=FOLDER to detect them"
            fits = images != regions
        else:
            expected = "only text; leave images and regions out"
            fits = not (images or regions)
        if not fits:
            raise InputError(f"{self.folder}: this model reads {expected}")

    def _parts(
        self,
        examples: Sequence[Example],
        inputs: ImageSampleBuilder,
        photos: Mapping[str, ImageInput] | None = None,
    ) -> Iterator[tuple[slice, ImageSources]]:
        size = DETECTION_BATCH if inputs.region_finder is not None else max(1, len(examples))
        for start in range(0, len(examples), size):
            part = slice(start, start + size)
            names = dict.fromkeys(image for one in examples[part] for image in one.images)
            yield part, inputs.image_sources(list(names), photos)

    # -- samples and scores --------------------------------------------------------------------------------------------

    def _fit(self, example: Example) -> Example:
        """An example as the model's head reads it: `text_pair` may be a phrase, which is tagged in the text."""
        texts = [example.text, *([] if example.text_pair is None else [example.text_pair])]
        choices = len(self.form.labels) if isinstance(self.form, MultipleChoice) else 0
        most = self.description.images
        images = len(example.images)
        has_images = images <= most and self.reads_images == bool(images)
        if not (all(map(str.strip, texts)) and len(example.choices) == choices and has_images):
            raise InputError(
                f"a text is empty, or there are other than {choices} choices and {most} images"
            )
        own = self.description.own
        if example.text_pair is None and own and len(split_columns(own.text)) == 2:
            raise InputError("no second text, but the model was trained on pairs")
        if self.form.head_input != "phrase":
            return example
        phrase = example.text_pair or ""
        start = example.text.find(phrase)
        if start < 0 or not phrase:
            raise InputError(f"the phrase {phrase!r} is not in the text {example.text!r:.60}")
        return replace(example, text_pair=None, region_tags=((start, start + len(phrase), 0),))

    def samples(
        self, examples: Sequence[Example], sources: ImageSources, mark: RegionLabeler | None = None
    ) -> SampleDataset:
        """Samples of the examples, exactly as in the training run's evaluation; `mark` labels the right regions."""
        head = self.objective.head
        tagged = self.inputs.select_tags(examples)
        return self.make_samples(
            [head.prepare_example(example) for example in tagged],
            sources,
            mark,
            head.separates_images,
        )

    def make_samples(
        self,
        examples: Sequence[Example],
        sources: ImageSources,
        mark: RegionLabeler | None = None,
        separate_images: bool = False,
    ) -> SampleDataset:
        """Samples of the examples with their regions, pixels or CLIP features."""
        text, clip = self.student.inputs(self.description.max_length)
        samples: SampleDataset = TextDataset(examples, text, clip)
        if self.student.clip_backbone is not None:
            asked = TargetedDistillationSettings()
            teacher = ClipTeacher(
                self.student.clip_backbone, {IMAGE, TEXT}, asked, images=sources.images
            )
            return TeacherSet([teacher.to(self.device)], FeatureCache()).wrap(samples)[0]
        if not isinstance(self.student, RegionEncoder):
            return samples
        options = RegionOptions(
            label_regions=mark,
            phrases=self.form.head_input == "phrase",
            separate_images=separate_images,
        )
        return self.inputs.samples(samples, self.student, sources, options)

    def scores(
        self, examples: Sequence[Example], sources: ImageSources, task: Task
    ) -> EvaluationOutput:
        """Outputs and predictions on examples with valid images."""
        samples = self.samples(examples, sources, task.label_regions)
        return evaluate(self.student, self.objective, task, samples)

    def _boxes(self, examples: Sequence[Example], sources: ImageSources) -> list[np.ndarray] | None:
        """Region boxes (R, 4) in pixels of each example, in the model's order; None without region selection."""
        if not isinstance(self.form, RegionSelection):
            return None
        samples = self.samples(examples, sources)
        regions = samples.samples if isinstance(samples, PixelDataset) else samples
        assert isinstance(regions, RegionDataset)  # no other model selects regions
        boxes = []
        for example in examples:
            (image,) = example.images
            size = regions.store.size(image)
            if not all(size) and example.gold_boxes is not None:
                size = example.gold_boxes.image_size
            if not all(size):
                raise InputError(f"{image}: its region store lacks the image's size in pixels")
            boxes.append(regions.regions(example.images).boxes * np.array([*size, *size]))
        return boxes

    # -- prediction ----------------------------------------------------------------------------------------------------

    def read_rows(
        self, data: Path, split: str, columns: PredictionColumns, inputs: ImageSampleBuilder
    ) -> list[InputRow]:
        """The rows of your own file, or the examples of a split of the task's official files."""
        own_columns = self._own_columns(data, columns)
        if own_columns is not None:
            if split:
                raise InputError(f"split={split}: {data} is a file and has no splits")
            return read_file_rows(data, own_columns, self._fit, inputs)
        split = split or next(iter(self.task.test), self.task.dev[0])
        _check_answers(self.task, data, split)
        return [example_row(one, f"{data}, {split}") for one in self.task.read(data, split)]

    def _own_columns(self, data: Path, given: PredictionColumns) -> PredictionColumns | None:
        """The columns of your own file: those given, else those of the training file; None for official files."""
        own = self.description.own or TableTaskSettings()
        text = given.text or own.text
        if not text and (data.is_dir() or self.task.file(data, self.task.dev[0]) == data):
            return None
        image = (given.image or own.image) if self.reads_images else ""
        return PredictionColumns(text, image, given.choices)

    def predict_rows(
        self,
        rows: Sequence[InputRow],
        inputs: ImageSampleBuilder,
        top_k: int = 1,
        skip_bad: bool = False,
        photos: Mapping[str, ImageInput] | None = None,
    ) -> int:
        """Add to each row its prediction or, with `skip_bad`, its fault; returns the number of truncated tokens."""
        advice = "; correct it, or set skip_bad to leave its answer empty"
        if not skip_bad:
            raise_first_fault(rows, advice)
        asked = [row for row in rows if not row.fault]
        truncated = 0
        for part, sources in self._parts([row.example for row in asked], inputs, photos):
            for row in asked[part]:
                faulty = [image for image in row.example.images if image in sources.faults]
                row.fault = f"{faulty[0]}: {sources.faults[faulty[0]]}" if faulty else ""
            if not skip_bad:
                raise_first_fault(asked[part], advice)
            valid = [row for row in asked[part] if not row.fault]
            if not valid:
                continue
            examples = [row.example for row in valid]
            scores = self.scores(examples, sources, self.unscored_task)
            boxes = self._boxes(examples, sources)
            predictions = make_predictions(scores, self.form, examples, top_k, boxes)
            for row, prediction in zip(valid, predictions, strict=True):
                row.prediction = prediction
            truncated += scores.truncated_tokens
        return truncated

    def predict(
        self,
        text: str,
        pair: str | None = None,
        image: ImageFiles | None = None,
        choices: Sequence[str] | None = None,
        *,
        top_k: int = 1,
        regions: str | Path = "",
    ) -> Prediction:
        """Predict the answer for one input; arguments as in `predict_many`, without lists of inputs."""
        columns = ([text], [pair], [image], [choices])
        (answer,) = self.predict_many(*columns, top_k=top_k, regions=regions)
        return answer

    def predict_many(
        self,
        texts: Sequence[str],
        pairs: Sequence[str | None] | None = None,
        images: Sequence[ImageFiles | None] | None = None,
        choices: Sequence[Sequence[str] | None] | None = None,
        *,
        top_k: int = 1,
        regions: str | Path = "",
    ) -> list[Prediction]:
        """Predict the answer for each input, in order.

        Args:
            texts: the texts.
            pairs: their second texts; for tasks that locate a phrase of the text, the phrases.
            images: their images as file paths or PIL images; a list for each if the task has several.
            choices: the choices of a multiple-choice task.
            top_k: number of answers to rank, see `Prediction.best`.
            regions: a region store with the images; empty: regions are detected now, as for the training store.
        """
        examples, photos, inputs = self._from_python(regions, texts, pairs, images, choices)
        rows = [make_row(f"question {one.id}", {}, partial(self._fit, one)) for one in examples]
        self.predict_rows(rows, inputs, top_k, photos=photos)
        return [row.prediction for row in rows if row.prediction is not None]

    def _from_python(
        self, regions: str | Path, texts: Any, pairs: Any, images: Any, choices: Any = None
    ) -> tuple[list[Example], Mapping[str, ImageInput] | None, ImageSampleBuilder]:
        examples, photos = python_examples(texts, pairs, images, choices, stored=bool(regions))
        read = None if regions and not self._reads_pixels else photos
        return examples, read, self.image_inputs(str(regions), read or "", decode=True)

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
            pool: the last hidden state of the first position (of a decoder, of the last token), or the mean over the
                text's tokens without special ones; a model with one vector per text (a CLIP text tower, an adapter
                over CLIP) returns that vector.
            regions: a region store with the images; empty: regions are detected now.
        """
        if isinstance(texts, str):
            image_list = None if images is None else [images]
            vector: np.ndarray = self.encode([texts], image_list, pool, regions)[0]
            return vector
        if images is None and self.student.clip_backbone is None:
            examples = [Example(str(number), text) for number, text in enumerate(texts)]
            return self._states(self.make_samples(examples, ImageSources()), pool)
        examples, photos, inputs = self._from_python(regions, texts, None, images)
        states = []
        for part, sources in self._parts(examples, inputs, photos):
            raise_first([f"{image}: {fault}" for image, fault in sources.faults.items()])
            states.append(self._states(self.make_samples(examples[part], sources), pool))
        return np.concatenate(states)

    @torch.no_grad()
    def _states(self, samples: SampleDataset, pool: Literal["first", "mean"]) -> np.ndarray:
        states: list[np.ndarray] = []
        for start in track(range(0, len(samples), FORWARD_BATCH), "encoding", "batch"):
            places = range(start, min(start + FORWARD_BATCH, len(samples)))
            batch = collate(samples.get(places, ())).to(self.device)
            states.append(_pooled(self.student(batch), batch, pool, self.student.sizes.causal))
        return np.concatenate(states)

    # -- evaluation ----------------------------------------------------------------------------------------------------

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
        skip_bad: bool = False,
        answers: str | Path = "",
    ) -> dict[str, Any]:
        """Score the model on labelled data; arguments and result are those of `groundling evaluate`."""
        inputs = self.image_inputs(
            str(regions),
            str(images),
            allow_region_mismatch=allow_region_mismatch,
            decode=skip_bad,
        )
        columns = PredictionColumns(text, image, choices)
        task, splits = self.labelled_splits(Path(data), split, columns, label, inputs)
        train: Sequence[Example] = ()
        if split == "dev" and self._own_columns(Path(data), columns) is not None:
            train = self.labelled_splits(Path(data), "train", columns, label, inputs)[1]["train"]
        scores = {}
        uses = {}
        table: list[AnswerRow] = []
        truncated = 0
        skipped: dict[str, str] = {}
        for name, every in splits.items():
            examples, output, faults = self._outputs(every, inputs, task, skip_bad)
            scores[name] = score_split(output, task, name, Path(data), len(examples) == len(every))
            truncated += output.truncated_tokens
            skipped |= faults
            splits[name] = examples
            table += answer_rows(output, self.form, examples) if answers else []
            sees = self.reads_images and not self.description.zero_region_features
            exchanged = exchange_images(task, examples) if sees else []
            if exchanged:
                _, other, _ = self._outputs(exchanged, inputs, task)
                uses[name] = image_use(task, examples, output, other, train)
                self.notes.append(image_use_note(name, uses[name]))
        if answers and is_main_process():
            write_answers(Path(answers), table, inputs.files, f"{task.name}: held-out answers")
        result = {
            "task": task.name,
            "model": str(self.folder),
            "scores": scores,
            "n": {name: len(examples) for name, examples in splits.items()},
            "truncated_tokens": truncated,
        }
        result |= {"image_use": uses} if uses else {}
        if skip_bad:
            first = [f"{image}: {fault}" for image, fault in skipped.items()][:FIRST]
            result |= {"skipped_images": len(skipped), "skipped_first": first}
        result |= positive_class(self.form) if self.description.own is not None else {}
        return result | ({"notes": self.notes} if self.notes else {})

    def _outputs(
        self,
        examples: Sequence[Example],
        inputs: ImageSampleBuilder,
        task: Task,
        skip_bad: bool = False,
    ) -> tuple[list[Example], EvaluationOutput, dict[str, str]]:
        """The examples whose images can be read, the model's outputs for them, and the faults of the other images."""
        valid: list[Example] = []
        faults: dict[str, str] = {}
        parts = []
        for part, sources in self._parts(examples, inputs):
            faults |= sources.faults
            if not skip_bad:
                raise_first([f"{one}: {fault}" for one, fault in faults.items()])
            some = [one for one in examples[part] if not faults.keys() & set(one.images)]
            if some:
                parts.append(self.scores(some, sources, task))
            valid += some
        require_nonempty(valid, f"{inputs.settings.images}: no image of the data can be read")
        return valid, concatenate_outputs(parts, task), faults

    def labelled_splits(
        self,
        data: Path,
        split: str,
        columns: PredictionColumns,
        label: str,
        inputs: ImageSampleBuilder,
    ) -> tuple[Task, dict[str, list[Example]]]:
        """The model's task, and labelled examples by split from official files or your own file."""
        task = self.task
        own_columns = self._own_columns(data, columns)
        if own_columns is None:
            parts = {}
            for name in (split,) if split else task.dev:
                _check_answers(task, data, name)
                parts[name] = task.read(data, name)
                if parts[name][0].label is None and task.label_regions is None:
                    raise InputError(f"{data}: {name!r} of {task.name} has no labels")
            return task, parts
        own = self.description.own or TableTaskSettings()
        own = replace(
            own,
            text=columns.text or own.text,
            image=columns.image or own.image,
            label=label or own.label,
        )
        check_no_label(split_columns(own_columns.text), own.label, f"text {own_columns.text}")
        # The `extra` scores need the official files of the data set.
        task = replace(task, official_scores=None)
        if split:
            require_known(split, ("train", "dev"), f"{data}: no split {split!r} of your own file")
            if own.dev:
                raise InputError(
                    f"split={split}: {own.dev} was held out, and every row of the other file trained on; pass it as "
                    "data, without split"
                )
            rows = read_table(data, own)
            held = held_out(data, [row.group for row in rows])
            sides = [row for row in rows if (row.group in held) == (split == "dev")]
            return task, {split: [example_of(row, self.form, data, split) for row in sides]}
        return task, {ALL: self._labelled_rows(data, own_columns, own.label, inputs)}

    def _labelled_rows(
        self, data: Path, columns: PredictionColumns, label: str, inputs: ImageSampleBuilder
    ) -> list[Example]:
        """All rows of your own file; the label of an open answer is a pair of class and credit 1."""
        rows = read_file_rows(data, columns, self._fit, inputs)
        raise_first_fault(rows)
        examples = []
        for row in rows:
            with prefix_errors(row.where):
                (text,) = row_texts(row.cells, [label])
            answer: Any = self.form.parse_label(text.strip(), row.where)
            if isinstance(self.form, OpenAnswer):
                answer = np.array([[answer, 1.0]], np.float32)
            examples.append(replace(row.example, label=answer))
        return examples


def _check_answers(task: Task, data: Path, split: str) -> None:
    if split not in task.test and not task.has_answers_of(data):
        raise InputError(f"{data}: its answers and those of the model differ, or their order")


def _pooled(
    encoded: EncoderOutput, batch: Batch, pool: Literal["first", "mean"], causal: bool
) -> np.ndarray:
    states = encoded.text if encoded.joint_text is None else encoded.joint_text
    if states is None:
        pooled = require(encoded.pooler_output, "pooler_output", "encode")
    else:
        mode: PoolingMode = "mean" if pool == "mean" else "own"
        pooled = pool_states(states, batch, mode, "encode", causal)
    vectors: np.ndarray = pooled.float().cpu().numpy()
    return vectors


# -- loading -----------------------------------------------------------------------------------------------------------
def load(
    source: str | Path,
    seed: int | None = None,
    *,
    detector: str = "",
    backbone: str = "",
    device: str = "",
    trust: str | Sequence[str] = (),
) -> FineTunedModel:
    """Load a fine-tuned model that `groundling finetune` saved.

    Args:
        source: a run's folder, the folder of one of its seeds, or the `model` folder inside.
        seed: the seed of a run; None: the best one on the development split, which `notes` names.
        detector: hub id or folder of the region detector, if the training run's is not available.
        backbone: hub id or folder of the backbone, likewise.
        device: such as cuda; empty: an accelerator if there is one.
        trust: your own objects, MODULE:NAME each, that the folder may import; nothing else is imported.
    """
    with convert_read_errors(source):
        folder, note = choose_seed_model(Path(source), seed)
    device = device or str(torch.accelerator.current_accelerator() or "cpu")
    trust = (trust,) if isinstance(trust, str) else trust
    model = FineTunedModel(folder, device, detector=detector, backbone=backbone, trust=trust)
    model.notes[:0] = [note] if note else []
    return model


def load_saved(saved: SavedModelSettings) -> FineTunedModel:
    """Load the model named by a command's settings, on this process's device."""
    return load(
        saved.model,
        None if saved.model_seed < 0 else saved.model_seed,
        detector=saved.detector,
        backbone=saved.backbone,
        device=str(process_state(saved.cpu).device),
        trust=saved.trust,
    )

"""A fine-tuned model loaded from its folder, and its predictions on examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from groundling.core.batch import Example
from groundling.core.errors import InputError, prefix_errors
from groundling.core.output_types import OutputType, RegionSelection
from groundling.core.registry import (
    check_trust,
    files_of_object,
    is_import_path,
    resolve,
    resolve_builtin,
)
from groundling.data.image_samples import PixelDataset
from groundling.data.images import ImageInput
from groundling.data.regions.inputs import (
    COMMAND_TERMS,
    ImageCollection,
    ImageInputs,
    ImageSampleBuilder,
    SettingNames,
)
from groundling.data.regions.samples import RegionDataset, RegionLabeler, RegionOptions
from groundling.data.samples import SampleDataset, TextDataset
from groundling.models.adapters import IMAGE, TEXT, ClipFeatureAdapter
from groundling.models.clip import FrozenClip
from groundling.models.formats import Encoder
from groundling.models.heads import HEADS, load_head
from groundling.objectives.supervised import SupervisedObjective
from groundling.prediction.inputs import ImageLookup, reads_pixels, split_columns
from groundling.prediction.model_description import (
    CONFIG,
    FILE,
    TOKENIZER,
    ModelDescription,
    detection_settings,
    sha256_of_files,
)
from groundling.prediction.predictions import combine_seeds
from groundling.runs.hashing import sha256_of
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.tasks import Task
from groundling.tasks.table import metrics_of
from groundling.teachers.clip import ClipTeacher
from groundling.teachers.feature_cache import FeatureCache, TeacherSet
from groundling.training.evaluation import EvaluationOutput, evaluate
from groundling.vision.extract import StoreRegionExtractor
from groundling.vision_language.end_to_end import EndToEndModel
from groundling.vision_language.loading import find_architecture, load_encoder, make_task_head
from groundling.vision_language.single_stream import SingleStreamModel

DETECTION_BATCH = 256
"""Number of examples whose detected regions are in memory at once."""


@dataclass(frozen=True)
class ValidExampleScores:
    """Scores of a part of the examples."""

    numbers: Sequence[int]
    """Numbers of the valid examples."""
    scores: EvaluationOutput | None
    """Scores of the valid examples; None if there are none."""
    boxes: Sequence[np.ndarray] | None
    """(R, 4) region boxes in pixels of each valid example, for region selection."""
    faults: Mapping[int, str]
    """Reasons why the other examples are invalid, by number."""


@dataclass(frozen=True)
class VisionModelPaths:
    """Places of detector and backbone, if not where the training run had them."""

    detector: str = ""
    """Hub id or folder."""
    backbone: str = ""
    """Hub id or folder."""


class LoadedModel:
    """A fine-tuned model with its head and description.

    `notes` lists the caveats of its predictions, one line each.
    """

    def __init__(
        self,
        folder: Path,
        description: ModelDescription,
        device: str,
        local_models: VisionModelPaths | None = None,
        trust: Sequence[str] = (),
    ) -> None:
        """`trust`: your own objects, MODULE:NAME, that the folder may import; the folder cannot add any.

        Raises InputError if the folder is damaged, or needs a module of yours that is missing or not trusted.
        """
        self.folder = folder
        self.description = description
        self.device = device
        self.local_models = local_models or VisionModelPaths()
        self.trust = tuple(trust)
        self.notes: list[str] = []
        self.other_seeds: Sequence[LoadedModel] = ()
        self._compare_code(description.kind, description.design)
        for trained_with, names, changed in (
            (description.tokenizer, TOKENIZER, "tokenizer files"),
            (description.config, CONFIG, "configuration files"),
        ):
            if trained_with and trained_with != sha256_of_files(folder, names):
                self.note(
                    f"{folder}: its {changed} changed after training; predictions may be wrong"
                )
        self.student: Encoder = load_encoder(str(folder), description.kind, description.design)
        self.form: OutputType = self.task().form if description.form is None else description.form
        if isinstance(self.student, SingleStreamModel):
            self.student.add_images(description.reads.images)
            if description.ready:
                find_architecture(self.student, description.design).prepare_model(
                    self.student, (), False
                )
        with prefix_errors(self.folder / FILE):
            head = make_task_head(self.student, self.form, description.head, description.design)
            self.objective = SupervisedObjective(
                self.student.sizes, output_type=self.form, head=head, loss=description.loss
            )
        if not load_head(folder, self.objective, self.objective.name):
            raise InputError(
                f"{folder / HEADS}: lacks the head that {FILE} beside it names; fine-tune again"
            )
        self.student.to(device).eval()
        self.objective.to(device).eval()

    def vote_with(self, others: Sequence[LoadedModel]) -> None:
        """Add other seeds of the same run to a majority vote; raises InputError if their task or answers differ."""
        for other in others:
            if (other.description.task, other.form) != (self.description.task, self.form):
                raise InputError(
                    f"{other.folder}: task or answers differ from those of {self.folder}; choose one "
                    "seed (model_seed)"
                )
        self.other_seeds = others

    # -- task and notes ------------------------------------------------------------------------------------------------

    @property
    def reads_images(self) -> bool:
        """Whether the model reads images."""
        return self.description.reads.regions or isinstance(self.student, ClipFeatureAdapter)

    def task(self) -> Task:
        """The task with the model's own answers; raises InputError if its module of yours is missing."""
        description = self.description
        if description.own is not None and description.form is not None:
            return Task(
                description.task,
                description.form,
                _no_layout,
                metrics_of(description.form),
                description.task,
            )
        if is_import_path(description.task):
            self._compare_code(description.task)
            task = resolve("tasks", Task, description.task)
        else:
            with prefix_errors(self.folder / FILE):
                task = resolve_builtin("tasks", Task, description.task)
        if task.version != description.version:
            self.note(
                f"{description.task} now has version {task.version}; the model was trained on version "
                f"{description.version}"
            )
        return task if description.form is None else replace(task, form=description.form)

    def _compare_code(self, *names: str) -> None:
        """Note which of your own modules' files changed since training, before importing any.

        Raises InputError if an object is not trusted.
        """
        check_trust(names, self.trust, self.folder / FILE)
        files: dict[str, Path] = {}
        for name in names:
            files |= files_of_object(name) if name else {}
        hashes = [sha256_of(file) for file in files.values()]
        for (name, file), sha256 in zip(files.items(), hashes, strict=True):
            if self.description.modules.get(name, sha256) != sha256:
                self.note(
                    f"{file}: changed since the model was trained; its predictions may differ"
                )

    def note_pairs(self, columns: int) -> None:
        """Note that inputs have text pairs although the training file had one text per row."""
        own = self.description.own
        if own is not None and columns > len(split_columns(own.text)):
            self.note(
                f"this model was trained on single texts (column {own.text!r}), not on text pairs"
            )

    def note(self, note: str) -> None:
        """Add a caveat to `notes`, once."""
        if note not in self.notes:
            self.notes.append(note)

    # -- prediction ----------------------------------------------------------------------------------------------------

    @cached_property
    def finder(self) -> StoreRegionExtractor:
        """Finds regions on photos with the settings of the training store; raises InputError if these are unknown."""
        settings = detection_settings(self.description.regions)
        settings = replace(
            settings,
            detector=self.local_models.detector or settings.detector,
            backbone=self.local_models.backbone or settings.backbone,
        )
        features = not isinstance(self.student, EndToEndModel)
        return StoreRegionExtractor(settings, self.description.regions, self.device, features)

    @property
    def inputs(self) -> ImageSampleBuilder:
        """Region inputs with the settings of the training run's evaluation."""
        return ImageSampleBuilder(
            self.description.reads.settings(),
            zero_features=self.description.reads.zero_region_features,
        )

    def image_lookup(
        self,
        regions: str = "",
        photos: ImageCollection = "",
        *,
        allow_region_mismatch: bool = False,
        decode: bool = False,
        names: SettingNames = COMMAND_TERMS,
    ) -> ImageLookup:
        """An image lookup for this model; arguments and errors as of `ImageLookup`."""
        return ImageLookup(
            self.student,
            self.description,
            lambda: self.finder,
            regions,
            photos,
            allow_region_mismatch=allow_region_mismatch,
            decode=decode,
            names=names,
        )

    def predict_examples(
        self,
        examples: Sequence[Example],
        images: ImageLookup,
        task: Task,
        mark: RegionLabeler | None = None,
    ) -> Iterator[ValidExampleScores]:
        """Predict examples part by part, in order; `mark` labels the right regions of a labelled split.

        An example whose image cannot be read is in `faults` instead of `numbers`.
        """
        batch = DETECTION_BATCH if images.finds_regions else max(1, len(examples))
        for start in range(0, len(examples), batch):
            numbers = range(start, min(start + batch, len(examples)))
            sources = images.load_images(images_of([examples[number] for number in numbers]))
            faults: dict[int, str] = {}
            for number in numbers:
                for image in examples[number].images:
                    if image in sources.faults:
                        faults.setdefault(number, f"{image}: {sources.faults[image]}")
            valid = [number for number in numbers if number not in faults]
            if not valid:
                yield ValidExampleScores(valid, None, None, faults)
                continue
            some = [examples[number] for number in valid]
            samples = self.samples(some, sources, mark)
            every = [one.scores(some, sources, task, mark) for one in (self, *self.other_seeds)]
            scores = combine_seeds(every, self.form, task) if self.other_seeds else every[0]
            yield ValidExampleScores(valid, scores, self._boxes(some, samples), faults)

    def scores(
        self,
        examples: Sequence[Example],
        sources: ImageInputs,
        task: Task,
        mark: RegionLabeler | None = None,
    ) -> EvaluationOutput:
        """Scores of this model alone, without the vote of other seeds, on valid examples."""
        samples = self.samples(examples, sources, mark)
        return evaluate(self.student, self.objective, task, samples)

    def samples(
        self, examples: Sequence[Example], sources: ImageInputs, mark: RegionLabeler | None = None
    ) -> SampleDataset:
        """Samples of the examples, exactly as in the training run's evaluation."""
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
        sources: ImageInputs,
        mark: RegionLabeler | None = None,
        separate_images: bool = False,
    ) -> SampleDataset:
        """Samples of the examples with their regions, pixels or CLIP features."""
        text, clip = self.student.inputs(self.description.reads.max_length)
        samples: SampleDataset = TextDataset(examples, text, clip)
        if isinstance(self.student, ClipFeatureAdapter):
            return _with_clip_features(samples, self.student, sources.images, self.device)
        if not isinstance(self.student, SingleStreamModel):
            return samples
        options = RegionOptions(
            label_regions=mark,
            phrases=self.form.head_input == "phrase",
            separate_images=separate_images,
        )
        return self.inputs.samples(samples, self.student, sources, options)

    def _boxes(
        self, examples: Sequence[Example], samples: SampleDataset
    ) -> list[np.ndarray] | None:
        """Region boxes (R, 4) in pixels of each example, in the model's order; None without region selection.

        Raises InputError if an image's size is unknown.
        """
        if not isinstance(self.form, RegionSelection):
            return None
        inner = samples.samples if isinstance(samples, PixelDataset) else samples
        if not isinstance(inner, RegionDataset):
            raise InputError("region selection needs a model that reads regions")
        boxes = []
        for example in examples:
            (image,) = example.images
            size = inner.store.size(image)
            if not all(size) and example.gold_boxes is not None:
                size = example.gold_boxes.image_size
            if not all(size):
                raise InputError(
                    f"{image}: its region store lacks the image size, so boxes cannot be given in pixels; make a store "
                    "with `groundling regions`, or pass the photos to detect regions"
                )
            boxes.append(inner.regions(example.images).boxes * np.array([*size, *size]))
        return boxes

    @property
    def reads_pixels(self) -> bool:
        """Whether the model reads pixels."""
        return reads_pixels(self.student, self.description)

    @property
    def unscored_task(self) -> Task:
        """A task with the model's output type, without files and metrics."""
        return Task(self.description.task, self.form, _no_layout, (), self.description.task)


def _with_clip_features(
    samples: SampleDataset,
    student: ClipFeatureAdapter,
    photos: Mapping[str, ImageInput],
    device: str,
) -> SampleDataset:
    """Samples with the features of photos and texts from the CLIP below an adapter."""
    base = student.base
    clip = FrozenClip(base.image, base.text, base.tokenizer)
    teacher = ClipTeacher(clip, {IMAGE, TEXT}, TargetedDistillationSettings(), images=photos).to(
        device
    )
    return TeacherSet([teacher], FeatureCache()).wrap(samples)[0]


def images_of(examples: Sequence[Example]) -> list[str]:
    """The image ids of some examples, without repeats."""
    return list(dict.fromkeys(image for example in examples for image in example.images))


def _no_layout(folder: Path, split: str) -> list[Example]:
    raise InputError(
        f"{folder}: this model was trained on a table file, so it has no official split {split!r}; pass a file"
    )

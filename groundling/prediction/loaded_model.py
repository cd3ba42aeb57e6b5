"""A fine-tuned model as its folder tells of it, and examples put before it."""

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
from groundling.data.image_samples import ImageDataset
from groundling.data.images import Picture
from groundling.data.regions.inputs import FLAGS, ImageSources, MessageTerms, Photos, RegionInputs
from groundling.data.regions.samples import Mark, RegionDataset, RegionOptions
from groundling.data.samples import SampleDataset, TextDataset
from groundling.models.adapters import IMAGE, TEXT, ClipAdapter
from groundling.models.clip import FrozenClip
from groundling.models.formats import Encoder
from groundling.models.heads import HEADS, load_head
from groundling.objectives.supervised import SupervisedObjective
from groundling.prediction.inputs import ImageLookup, reads_pixels, split_columns
from groundling.prediction.model_description import (
    FILE,
    ModelDescription,
    finding_settings,
    tokenizer_sha256,
)
from groundling.prediction.predictions import combine_seeds
from groundling.runs.hashing import hashes_of
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.tasks import Task
from groundling.tasks.table import metrics_of
from groundling.teachers.clip import ClipTeacher
from groundling.teachers.feature_cache import FeatureCache, TeacherSet
from groundling.training.evaluation import EvaluationOutput, evaluate
from groundling.vision.extract import RegionFinder
from groundling.vision_language.end_to_end import EndToEndModel
from groundling.vision_language.loading import find_architecture, load_encoder, make_task_head
from groundling.vision_language.single_stream import SingleStreamModel

AT_ONCE = 256
"""Examples whose photos' regions are in memory at a time."""


@dataclass(frozen=True)
class PartialScores:
    """Some examples after the model was asked."""

    numbers: Sequence[int]
    """Numbers of those that it could be asked."""
    scores: EvaluationOutput | None
    """What it said to them; None if there are none."""
    boxes: Sequence[np.ndarray] | None
    """(R, 4) in pixels of each one's regions, where one is picked."""
    faults: Mapping[int, str]
    """Why the others could not be asked, by number."""


@dataclass(frozen=True)
class LocalModels:
    """Where models that find regions lie on this machine, if not where the training run had them."""

    detector: str = ""
    """Hub id or folder."""
    backbone: str = ""
    """Hub id or folder."""


class LoadedModel:
    """A fine-tuned model, its head, and what it must know to be asked.

    `notes` has what a reader of its answers must know, a line each.
    """

    def __init__(
        self,
        folder: Path,
        about: ModelDescription,
        device: str,
        elsewhere: LocalModels | None = None,
        trust: Sequence[str] = (),
    ) -> None:
        """`trust`: the objects of modules of yours that the folder may ask for, MODULE:NAME; it decides on none itself.

        Raises InputError if the folder is damaged, or needs a module of yours that is not there, or not trusted.
        """
        self.folder = folder
        self.about = about
        self.device = device
        self.elsewhere = elsewhere or LocalModels()
        self.trust = tuple(trust)
        self.notes: list[str] = []
        self.others: Sequence[LoadedModel] = ()
        self._compare_code(about.kind, about.design)
        if about.tokenizer and about.tokenizer != tokenizer_sha256(folder):
            self.note(
                f"{folder}: its tokenizer is not the one that the model learned with; its answers may be of other words"
            )
        self.student: Encoder = load_encoder(str(folder), about.kind, about.design)
        self.form: OutputType = self.task().form if about.form is None else about.form
        if isinstance(self.student, SingleStreamModel):
            self.student.add_images(about.reads.images)
            if about.ready:
                find_architecture(self.student, about.design).prepare_model(self.student, (), False)
        with prefix_errors(self.folder / FILE):
            head = make_task_head(self.student, self.form, about.head, about.design)
            self.objective = SupervisedObjective(
                self.student.sizes, output_type=self.form, head=head, loss=about.loss
            )
        if not load_head(folder, self.objective, self.objective.name):
            raise InputError(
                f"{folder / HEADS}: does not hold the head that {FILE} beside it tells of; fine-tune once more"
            )
        self.student.to(device).eval()
        self.objective.to(device).eval()

    def vote_with(self, others: Sequence[LoadedModel]) -> None:
        """Let other seeds of the same run answer, too; raises InputError if they answer something else."""
        for other in others:
            if (other.about.task, other.form) != (self.about.task, self.form):
                raise InputError(
                    f"{other.folder}: answers something else than {self.folder}; name one of them (--model-seed)"
                )
        self.others = others

    # -- what it is asked of -------------------------------------------------------------------------------------------

    @property
    def reads_images(self) -> bool:
        """Whether it looks at images."""
        return self.about.reads.regions or isinstance(self.student, ClipAdapter)

    def task(self) -> Task:
        """Its task, with its own answers; raises InputError if that is of a module of yours that is not there."""
        about = self.about
        if about.own is not None and about.form is not None:
            return Task(about.task, about.form, _no_layout, metrics_of(about.form), about.task)
        if is_import_path(about.task):
            self._compare_code(about.task)
            task = resolve("tasks", Task, about.task)
        else:
            with prefix_errors(self.folder / FILE):
                task = resolve_builtin("tasks", Task, about.task)
        if task.version != about.version:
            self.note(
                f"{about.task} is of version {task.version} now, the model learned version {about.version}"
            )
        return task if about.form is None else replace(task, form=about.form)

    def _compare_code(self, *names: str) -> None:
        """Note, before any is imported, which files behind objects of yours are not what they were in training.

        Raises InputError if one of the objects is not trusted.
        """
        check_trust(names, self.trust, self.folder / FILE)
        files: dict[str, Path] = {}
        for name in names:
            files |= files_of_object(name) if name else {}
        hashes = hashes_of(list(files.values()))
        for (name, file), sha256 in zip(files.items(), hashes, strict=True):
            if self.about.modules.get(name, sha256) != sha256:
                self.note(f"{file}: changed since the model was trained; its answers may have, too")

    def note_pairs(self, columns: int) -> None:
        """Note that texts are asked in pairs of a model that learned from one a row."""
        own = self.about.own
        if own is not None and columns > len(split_columns(own.text)):
            self.note(f"this model learned from {own.text!r} alone, and never from pairs of texts")

    def note(self, note: str) -> None:
        """Tell readers of its answers something, once."""
        if note not in self.notes:
            self.notes.append(note)

    # -- asking --------------------------------------------------------------------------------------------------------

    @cached_property
    def finder(self) -> RegionFinder:
        """What finds regions on photos as the store's were that it learned from; raises InputError if none can be."""
        learned = finding_settings(self.about.regions)
        finding = replace(
            learned,
            detector=self.elsewhere.detector or learned.detector,
            backbone=self.elsewhere.backbone or learned.backbone,
        )
        features = not isinstance(self.student, EndToEndModel)
        return RegionFinder(finding, self.about.regions, self.device, features)

    @property
    def inputs(self) -> RegionInputs:
        """How it is shown images, wherever these are: as its training run's evaluation showed them."""
        return RegionInputs(self.about.reads.settings(), blind=self.about.reads.blind)

    def image_lookup(
        self,
        regions: Sequence[str] = (),
        photos: Photos = "",
        *,
        allow_region_mismatch: bool = False,
        decode: bool = False,
        names: MessageTerms = FLAGS,
    ) -> ImageLookup:
        """Where it looks at images; arguments and errors as of `ImageLookup`."""
        return ImageLookup(
            self.student,
            self.about,
            lambda: self.finder,
            regions,
            photos,
            allow_region_mismatch=allow_region_mismatch,
            decode=decode,
            names=names,
        )

    def predict_examples(
        self, examples: Sequence[Example], sight: ImageLookup, task: Task, mark: Mark | None = None
    ) -> Iterator[PartialScores]:
        """The answers to examples, in parts, in their order; `mark` tells which regions are right, of a labelled split.

        An example whose image cannot be looked at is none of the `kept`, and its fault is told.
        """
        at_once = AT_ONCE if sight.finds_regions else max(1, len(examples))
        for start in range(0, len(examples), at_once):
            numbers = range(start, min(start + at_once, len(examples)))
            seen = sight.load_images(images_of([examples[number] for number in numbers]))
            faults: dict[int, str] = {}
            for number in numbers:
                for image in examples[number].images:
                    if image in seen.faults:
                        faults.setdefault(number, f"{image}: {seen.faults[image]}")
            kept = [number for number in numbers if number not in faults]
            if not kept:
                yield PartialScores(kept, None, None, faults)
                continue
            some = [examples[number] for number in kept]
            samples = self.samples(some, seen, mark)
            every = [one.scores(some, seen, task, mark) for one in (self, *self.others)]
            scores = combine_seeds(every, self.form, task) if self.others else every[0]
            yield PartialScores(kept, scores, self._boxes(some, samples), faults)

    def scores(
        self, examples: Sequence[Example], seen: ImageSources, task: Task, mark: Mark | None = None
    ) -> EvaluationOutput:
        """What this model alone says of examples that can be looked at."""
        samples = self.samples(examples, seen, mark)
        return evaluate(self.student, self.objective, task, samples)

    def samples(
        self, examples: Sequence[Example], seen: ImageSources, mark: Mark | None = None
    ) -> SampleDataset:
        """Examples as the model reads them, exactly as in its training run's evaluation."""
        head = self.objective.head
        told = self.inputs.select_tags(examples)
        return self.make_samples(
            [head.prepare_example(example) for example in told], seen, mark, head.separates_images
        )

    def make_samples(
        self,
        examples: Sequence[Example],
        seen: ImageSources,
        mark: Mark | None = None,
        apart: bool = False,
    ) -> SampleDataset:
        """Examples with what the model sees beside their texts."""
        text, clip = self.student.inputs(self.about.reads.max_length)
        samples: SampleDataset = TextDataset(examples, text, clip)
        if isinstance(self.student, ClipAdapter):
            return _with_clip_features(samples, self.student, seen.photos, self.device)
        if not isinstance(self.student, SingleStreamModel):
            return samples
        asked = RegionOptions(
            mark=mark, phrases=self.form.head_input == "phrase", separate_images=apart
        )
        return self.inputs.samples(samples, self.student, seen, asked)

    def _boxes(
        self, examples: Sequence[Example], samples: SampleDataset
    ) -> list[np.ndarray] | None:
        """Boxes (R, 4) in pixels of each example's regions, as the model numbers them; None if it picks none.

        Raises InputError if nobody says how large an image is.
        """
        if not isinstance(self.form, RegionSelection):
            return None
        inner = samples.samples if isinstance(samples, ImageDataset) else samples
        if not isinstance(inner, RegionDataset):
            raise InputError("a region can only be picked by a model that looks at regions")
        boxes = []
        for example in examples:
            (image,) = example.images
            size = inner.store.size(image)
            if not all(size) and example.gold_boxes is not None:
                size = example.gold_boxes.image_size
            if not all(size):
                raise InputError(
                    f"{image}: its region store does not say how large the image is, so no box can be told in pixels; "
                    "make a store with `groundling regions`, or have the regions found in the photos"
                )
            boxes.append(inner.regions(example.images).boxes * np.array([*size, *size]))
        return boxes

    @property
    def reads_pixels(self) -> bool:
        """Whether photos themselves go into it."""
        return reads_pixels(self.student, self.about)

    @property
    def unscored_task(self) -> Task:
        """A task that knows what answers look like, and nothing to score them by."""
        return Task(self.about.task, self.form, _no_layout, (), self.about.task)


def _with_clip_features(
    samples: SampleDataset, student: ClipAdapter, photos: Mapping[str, Picture], device: str
) -> SampleDataset:
    """Samples with what the CLIP under an adapter says of their photos and texts."""
    base = student.base
    clip = FrozenClip(base.image, base.text, base.tokenizer)
    teacher = ClipTeacher(clip, {IMAGE, TEXT}, TargetedDistillationSettings(), images=photos).to(
        device
    )
    return TeacherSet([teacher], FeatureCache()).wrap(samples)[0]


def images_of(examples: Sequence[Example]) -> list[str]:
    """The images of some examples, each once."""
    return list(dict.fromkeys(image for example in examples for image in example.images))


def _no_layout(folder: Path, split: str) -> list[Example]:
    raise InputError(
        f"{folder}: this model learned from a file of one's own, so {split!r} names no file of its data; pass a file"
    )

"""A fine-tuned model, ready to be asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from groundling.batch import Batch, Encoded, Example, collate, needed
from groundling.config import Targeted
from groundling.data.paired import Mark, RegionSamples
from groundling.data.pictures import Pictured
from groundling.data.samples import Samples, TextSamples, untagged
from groundling.errors import InputError
from groundling.evaluate import Scores, evaluate
from groundling.find import is_outside, named, source_of
from groundling.forms import Form, Pick
from groundling.joins.end_to_end import EndToEnd
from groundling.models.adapters import IMAGE, TEXT, ClipAdapter
from groundling.models.kinds import Student
from groundling.models.saved_heads import HEADS, load_head
from groundling.models.single_stream import SingleStream
from groundling.objectives.supervised import Supervised
from groundling.predicting.answers import Prediction, Wording
from groundling.predicting.description import FILE, Described, described, settings_of
from groundling.predicting.examples import Asked, Files, Question, asked_of, example_of
from groundling.predicting.sight import Photos, Seen, Sight, reads_pixels
from groundling.runs import sha256_of
from groundling.students import design_of, load_student, new_head, seeing_of
from groundling.tasks import Task
from groundling.tasks.table import metrics_of
from groundling.teachers.clip import ClipTeacher
from groundling.teachers.taught import Taught
from groundling.teachers.towers import Towers
from groundling.vision.photos import Finder

AT_ONCE = 256
"""Examples whose photos' regions are in memory at a time."""
BATCH = 64
"""Texts that are encoded together."""
SEED = re.compile(r"seed-(\d+)")


@dataclass(frozen=True)
class Part:
    """Some examples after the model was asked."""

    kept: Sequence[int]
    """Numbers of those that it could be asked."""
    scores: Scores | None
    """What it said to them; None if there are none."""
    boxes: Sequence[np.ndarray] | None
    """(R, 4) in pixels of each one's regions, where one is picked."""
    faults: Mapping[int, str]
    """Why the others could not be asked, by number."""


@dataclass(frozen=True)
class Elsewhere:
    """Where models that find regions lie on this machine, if not where the training run had them."""

    detector: str = ""
    """Hub id or folder."""
    backbone: str = ""
    """Hub id or folder."""


class Fitted:
    """A fine-tuned model, its head, and what it must know to be asked; `load` makes one.

    `notes` has what a reader of its answers must know, a line each.
    """

    def __init__(
        self, folder: Path, about: Described, device: str, elsewhere: Elsewhere | None = None
    ) -> None:
        """Raises InputError if the folder is damaged, or needs a module of yours that is not there."""
        self.folder = folder
        self.about = about
        self.device = device
        self.elsewhere = elsewhere or Elsewhere()
        self.notes: list[str] = []
        for name in (about.kind, about.design):
            self._compare_module(name)
        self.student: Student = load_student(str(folder), about.kind, about.design)
        self.form: Form = self.task().form if about.form is None else about.form
        if isinstance(self.student, SingleStream):
            self.student.see(about.reads.images)
            if about.ready:
                design_of(self.student, about.design).ready(self.student, (), False)
        head = new_head(self.student, self.form, about.head, about.design)
        self.objective = Supervised(self.student.sizes, form=self.form, head=head, loss=about.loss)
        if not load_head(folder, self.objective, self.objective.name):
            raise InputError(
                f"{folder / HEADS}: does not hold the head that {FILE} beside it tells of; fine-tune once more"
            )
        self.student.to(device).eval()
        self.objective.to(device).eval()

    # -- what it is asked of -------------------------------------------------------------------------------------------

    @property
    def sees(self) -> bool:
        """Whether it looks at images."""
        return self.about.reads.regions or isinstance(self.student, ClipAdapter)

    def task(self) -> Task:
        """Its task, with its own answers; raises InputError if that is of a module of yours that is not there."""
        about = self.about
        if about.own is not None and about.form is not None:
            return Task(about.task, about.form, _no_layout, metrics_of(about.form), about.task)
        self._compare_module(about.task)
        task = named("tasks", Task, about.task)
        if task.version != about.version:
            self._note(
                f"{about.task} is of version {task.version} now, the model learned version {about.version}"
            )
        return task if about.form is None else replace(task, form=about.form)

    def _compare_module(self, name: str) -> None:
        """Note that a module of yours is not what it was when the model was trained."""
        before = self.about.modules.get(name, "")
        if not is_outside(name) or not before:
            return
        file = source_of(name)
        if file and sha256_of(Path(file)) != before:
            self._note(f"{file}: changed since the model was trained; its answers may have, too")

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    # -- asking --------------------------------------------------------------------------------------------------------

    @cached_property
    def finder(self) -> Finder:
        """What finds regions on photos as the store's were that it learned from; raises InputError if none can be."""
        config = settings_of(self.about.regions)
        config = replace(
            config,
            detector=self.elsewhere.detector or config.detector,
            backbone=self.elsewhere.backbone or config.backbone,
        )
        features = not isinstance(self.student, EndToEnd)
        return Finder(config, self.about.regions, self.device, features)

    def sight(
        self,
        regions: Sequence[str] = (),
        photos: Photos = "",
        *,
        other_regions: bool = False,
        decode: bool = False,
    ) -> Sight:
        """Where it looks at images; arguments and errors as of `Sight`."""
        return Sight(
            self.student,
            self.about,
            lambda: self.finder,
            regions,
            photos,
            other_regions=other_regions,
            decode=decode,
        )

    def ask(
        self, examples: Sequence[Example], sight: Sight, task: Task, mark: Mark | None = None
    ) -> Iterator[Part]:
        """The answers to examples, in parts, in their order; `mark` tells which regions are right, of a labelled split.

        An example whose image cannot be looked at is none of the `kept`, and its fault is told.
        """
        at_once = AT_ONCE if sight.is_live else max(1, len(examples))
        for start in range(0, len(examples), at_once):
            numbers = range(start, min(start + at_once, len(examples)))
            seen = sight.look(_images_of([examples[number] for number in numbers]))
            faults: dict[int, str] = {}
            for number in numbers:
                for image in examples[number].images:
                    if image in seen.faults:
                        faults.setdefault(number, f"{image}: {seen.faults[image]}")
            kept = [number for number in numbers if number not in faults]
            if not kept:
                yield Part(kept, None, None, faults)
                continue
            some = [examples[number] for number in kept]
            samples = self.samples(some, seen, mark)
            scores = evaluate(self.student, self.objective, task, samples)
            yield Part(kept, scores, self._boxes(some, samples), faults)

    def samples(self, examples: Sequence[Example], seen: Seen, mark: Mark | None = None) -> Samples:
        """Examples as the model reads them, exactly as in its training run's evaluation."""
        head = self.objective.head
        told = examples if self.about.reads.tags else [untagged(example) for example in examples]
        return self._put([head.ask(example) for example in told], seen, mark, head.apart)

    def _put(
        self,
        examples: Sequence[Example],
        seen: Seen,
        mark: Mark | None = None,
        apart: bool = False,
    ) -> Samples:
        """Examples with what the model sees beside their texts."""
        reads = self.about.reads
        text, clip = self.student.inputs(reads.max_length)
        samples: Samples = TextSamples(examples, text, clip)
        if isinstance(self.student, ClipAdapter):
            return _told_by_clip(samples, self.student, seen.photos, self.device)
        if seen.store is None or not isinstance(self.student, SingleStream):
            return samples
        seeing = seeing_of(
            self.student,
            self.form,
            most=reads.most_regions,
            budget=reads.budget,
            apart=apart,
            blind=reads.blind,
        )
        samples = RegionSamples(samples, seen.store, replace(seeing, mark=mark))
        if isinstance(self.student, EndToEnd) and not reads.blind:
            return Pictured(samples, seen.photos, self.student.side, self.student.long_side)
        return samples

    def _boxes(self, examples: Sequence[Example], samples: Samples) -> list[np.ndarray] | None:
        """Boxes (R, 4) in pixels of each example's regions, as the model numbers them; None if it picks none.

        Raises InputError if nobody says how large an image is.
        """
        if not isinstance(self.form, Pick):
            return None
        inner = samples.samples if isinstance(samples, Pictured) else samples
        if not isinstance(inner, RegionSamples):
            raise InputError("a region can only be picked by a model that looks at regions")
        boxes = []
        for example in examples:
            (image,) = example.images
            size = inner.store.size(image)
            if not all(size) and example.gold is not None:
                size = example.gold.size
            if not all(size):
                raise InputError(
                    f"{image}: its region store does not say how large the image is, so no box can be told in pixels; "
                    "make a store with `groundling regions`, or pass --images FOLDER in its place"
                )
            boxes.append(inner.regions(example.images).boxes * np.array([*size, *size]))
        return boxes

    # -- from Python ---------------------------------------------------------------------------------------------------

    @overload
    def predict(
        self,
        text: str,
        pair: str | None = ...,
        image: Files | None = ...,
        choices: Sequence[str] = ...,
        *,
        best: int = ...,
        regions: str | Path = ...,
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        text: list[str] | tuple[str, ...],
        pair: Sequence[str] | None = ...,
        image: Sequence[Files] | None = ...,
        choices: Sequence[Sequence[str]] = ...,
        *,
        best: int = ...,
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
        best: int = 1,
        regions: str | Path = "",
        skip_bad: bool = False,
    ) -> Prediction | list[Prediction | None]:
        """The answer to one question, or to each of a list of them, in their order.

        Args:
            text: a text, or a list of them.
            pair: its second text; where the task looks for a phrase of the text, the phrase.
            image: file of its image, or of its images if the task has several; of each, if texts are a list.
            choices: what it chooses among, in a multiple choice; of each, if texts are a list.
            best: how many answers to rank, see `Prediction.best`.
            regions: a region store that has the images; empty: their regions are found now, as its own store's were.
            skip_bad: None in place of an answer where a question of a list cannot be asked, such as for a broken photo.

        Raises:
            InputError: a question cannot be asked, or lists differ in length.
        """
        if isinstance(text, str) or text is None:
            asked = asked_of(
                [text],
                None if pair is None else [pair],
                None if image is None else [image],
                [choices],
            )
            (only,) = self._answers(asked, best, str(regions), False)
            return needed(only, "answer", "a question")
        asked = asked_of(text, pair, image, choices or None)
        return self._answers(asked, best, str(regions), skip_bad)

    def _answers(
        self, asked: Sequence[Asked], best: int, regions: str, skip_bad: bool
    ) -> list[Prediction | None]:
        wording = Wording(self.form, best)
        faults: dict[int, str] = {}
        examples: dict[int, Example] = {}
        photos: dict[str, Path] = {}
        for number, one in enumerate(asked):
            ids = one.ids(bool(regions))
            photos |= dict(zip(ids, map(Path, one.files), strict=True))
            question = Question(one.text, one.pair, one.choices, ids)
            try:
                examples[number] = example_of(
                    str(number), question, self.form, self.about.reads, self.sees
                )
            except InputError as error:
                faults[number] = str(error)
        answers: list[Prediction | None] = [None] * len(asked)
        numbers = list(examples)
        sight = self._sight_of(photos, regions, skip_bad)
        for part in self.ask(list(examples.values()), sight, self.form_alone):
            faults |= {numbers[place]: fault for place, fault in part.faults.items()}
            if part.scores is None:
                continue
            some = [examples[numbers[place]] for place in part.kept]
            said = wording.predictions(part.scores, some, part.boxes)
            for place, prediction in zip(part.kept, said, strict=True):
                answers[numbers[place]] = prediction
        if faults and not skip_bad:
            first = min(faults)
            raise InputError(f"question {first}: {faults[first]}{such(len(faults))}")
        return answers

    def _sight_of(self, photos: Mapping[str, Path], regions: str, decode: bool) -> Sight:
        """Where the photos of some questions are looked at."""
        if photos and not self.sees:
            raise InputError(f"{self.folder}: this model reads texts alone; leave the image out")
        stores = (regions,) if regions and self.about.reads.regions else ()
        reads_files = self.reads_pixels or not stores
        return self.sight(stores, photos if reads_files and self.sees else "", decode=decode)

    @property
    def reads_pixels(self) -> bool:
        """Whether photos themselves go into it."""
        return reads_pixels(self.student, self.about)

    @property
    def form_alone(self) -> Task:
        """A task that knows what answers look like, and nothing to score them by."""
        return Task(self.about.task, self.form, _no_layout, (), self.about.task)

    def encode(
        self,
        texts: str | Sequence[str],
        images: Any = None,
        pool: Literal["first", "mean"] = "first",
        regions: str | Path = "",
    ) -> np.ndarray:
        """What the model makes of texts, or of texts and their images, before its head: (N, H) float32, or (H,) of one.

        Args:
            texts: a text, or a list of N of them.
            images: file of each one's image, or of its images; None: the texts are read alone.
            pool: the last state of the first position, or the mean of the states of the text's pieces; a model of one
                vector a text (a CLIP's text tower, an adapter over CLIP) gives that.
            regions: a region store that has the images; empty: their regions are found now.

        Raises:
            InputError: an image cannot be looked at, or lists differ in length.
        """
        if isinstance(texts, str):
            together = None if images is None else [images]
            vector: np.ndarray = self.encode([texts], together, pool, regions)[0]
            return vector
        if images is None and isinstance(self.student, ClipAdapter):
            raise InputError(f"{self.folder}: an adapter over CLIP reads a text with its image")
        examples = []
        photos: dict[str, Path] = {}
        for number, one in enumerate(asked_of(texts, None, images, None)):
            ids = one.ids(bool(regions))
            photos |= dict(zip(ids, map(Path, one.files), strict=True))
            examples.append(Example(str(number), one.text, images=ids))
        if not photos:
            return self._states(self._put(examples, Seen()), pool)
        sight = self._sight_of(photos, str(regions), decode=True)
        found = []
        for start in range(0, len(examples), AT_ONCE):
            some = examples[start : start + AT_ONCE]
            seen = sight.look(_images_of(some))
            for image, fault in seen.faults.items():
                raise InputError(f"{image}: {fault}{such(len(seen.faults))}")
            found.append(self._states(self._put(some, seen), pool))
        return np.concatenate(found)

    @torch.no_grad()
    def _states(self, samples: Samples, pool: Literal["first", "mean"]) -> np.ndarray:
        """Vectors (N, H) of N samples of one row each."""
        found: list[np.ndarray] = []
        for start in range(0, len(samples), BATCH):
            places = range(start, min(start + BATCH, len(samples)))
            batch = collate(samples.get(places, ())).to(self.device)
            found.append(_pooled(self.student(batch), batch, pool).float().cpu().numpy())
        return np.concatenate(found)


def _pooled(encoded: Encoded, batch: Batch, pool: Literal["first", "mean"]) -> Tensor:
    """One vector (N, H) of each row."""
    states = encoded.text if encoded.joint_text is None else encoded.joint_text
    if states is None:
        return needed(encoded.pooled, "pooled", "encode")
    if pool == "first":
        return states[:, 0]
    mask = needed(batch.text, "text", "encode").mask.unsqueeze(-1)
    return (states * mask).sum(1) / mask.sum(1)


def _told_by_clip(
    samples: Samples, student: ClipAdapter, photos: Mapping[str, Path], device: str
) -> Samples:
    """Samples with what the CLIP under an adapter says of their photos and texts."""
    base = student.base
    towers = Towers(base.image, base.text, base.tokenizer)
    teacher = ClipTeacher(towers, {IMAGE, TEXT}, Targeted(), pictures=photos).to(device)
    for part in teacher.parts():
        samples = Taught(samples, part)
    return samples


def _images_of(examples: Sequence[Example]) -> list[str]:
    """The images of some examples, each once."""
    return list(dict.fromkeys(image for example in examples for image in example.images))


def such(count: int) -> str:
    """What follows the first of several mistakes."""
    return f" ({count:,} such)" if count > 1 else ""


def _no_layout(folder: Path, split: str) -> list[Example]:
    raise InputError(
        f"{folder}: this model learned from a file of one's own, so {split!r} names no file of its data; pass a file"
    )


# -- loading -----------------------------------------------------------------------------------------------------------


def load(
    source: str | Path,
    seed: int | None = None,
    *,
    detector: str = "",
    backbone: str = "",
    device: str = "",
) -> Fitted:
    """A fine-tuned model, ready to be asked, from what `groundling finetune` wrote.

    Args:
        source: the run's folder, that of one of its seeds, or the `model` folder inside.
        seed: which seed of a run; None: the first that was saved, which `notes` name.
        detector: where the detector lies that found the regions of its images, if not where the run had it.
        backbone: the same of the backbone.
        device: such as cuda; empty: an accelerator if there is one.

    Raises:
        InputError: there is no saved model, the folder does not say what it answers, or it is damaged.
    """
    folder, note = model_folder(Path(source), seed)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    fitted = Fitted(folder, described(folder), device, Elsewhere(detector, backbone))
    fitted.notes[:0] = [note] if note else []
    return fitted


def model_folder(source: Path, seed: int | None = None) -> tuple[Path, str]:
    """The folder of the model in what `source` names, and which of several it is, in words.

    Raises InputError if there is none, or no such seed.
    """
    if not source.is_dir():
        raise InputError(f"{source}: no such folder; expected what `groundling finetune` wrote")
    seeds = {
        int(match[1]): folder / "model"
        for folder in sorted(source.iterdir())
        if (match := SEED.fullmatch(folder.name)) and (folder / "model").is_dir()
    }
    if not seeds:
        if seed is not None:
            raise InputError(f"{source}: holds no seeds with a saved model; leave --seed out")
        return _only_model(source), ""
    if seed is None:
        seed = min(seeds)
    if seed not in seeds:
        raise InputError(
            f"{source}: no saved model of seed {seed}; there are: {', '.join(map(str, sorted(seeds)))}"
        )
    if len(seeds) == 1:
        return seeds[seed], ""
    return seeds[seed], f"{source}: seed {seed} answers, of {', '.join(map(str, sorted(seeds)))}"


def _only_model(source: Path) -> Path:
    """A model's own folder, or the one beside a run's result."""
    if (source / "model").is_dir():
        return source / "model"
    is_run = (source / "result.json").exists() or any(source.glob("seed-*"))
    if is_run:
        raise InputError(
            f"{source}: holds no saved model; fine-tune once more, without --no-save-model"
        )
    return source

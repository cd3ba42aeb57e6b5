"""Data of a pre-training: captions or a task's texts, with regions, pixels and teachers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from accelerate import PartialState

from groundling.commands.pretrain import EvalTexts, TrainTexts
from groundling.core.batch import Example
from groundling.core.errors import InputError, raise_first
from groundling.core.output_types import Classification, MultipleChoice, OpenAnswer
from groundling.data.captions.captions import (
    CaptionedImage,
    CaptionReadOptions,
    has_splits,
    images_in_store,
    keep_listed,
    read_captions,
)
from groundling.data.corpora.token_stores import corpus_samples
from groundling.data.regions.inputs import ImageSampleBuilder
from groundling.data.regions.samples import CaptionSampleDataset
from groundling.data.regions.store import RegionStore
from groundling.data.samples import (
    MultiVersionTextDataset,
    SampleDataset,
    SampleSubset,
    TextDataset,
    TextRowEncoder,
    concatenate_splits,
    subsample,
    with_choice,
)
from groundling.objectives import Objective
from groundling.settings.input_settings import (
    WeightedFile,
    parse_weighted_file,
    parse_weighted_files,
)
from groundling.tasks import Task
from groundling.tasks.splits import hidden_versions, select_partition
from groundling.teachers import Teacher
from groundling.teachers.feature_cache import TeacherSet
from groundling.training.batch_sampler import DataSource, split_by_file
from groundling.vision_language import PretrainingPhase
from groundling.vision_language.single_stream import SingleStreamModel

# Texts of a task for pre-training: with the right answer, with any answer, or labelled right or wrong.


def task_texts(
    task: Task,
    folder: Path,
    tags: bool = False,
    partition: str = "",
    splits: Sequence[str] = (),
) -> list[Example]:
    """A task's training texts with the right answers, for masked LM on its own images (VisualBERT
    Appendix A).

    A question is followed by its best answer (the release splits the answer into letters), a choice
    by the right one; a statement stands alone. With `tags`, texts keep their object tags; with
    `partition`, only that file's examples are used; `splits` default to the training split. Raises
    InputError if a multiple choice has no label.
    """
    texts = []
    for example in _within(task, folder, partition, _read(task, folder, splits)):
        if example.choices and not isinstance(example.label, int):
            raise InputError(
                f"{example.id}: a multiple choice without a label cannot be used for pre-training"
            )
        if isinstance(example.label, int) and example.choices:
            example = with_choice(example, example.label)
        elif isinstance(task.form, OpenAnswer):
            example = replace(example, text_pair=task.form.best_answer(example.label) or None)
        texts.append(_as_text(example, tags))
    return _once(texts, task)


def _once(texts: Sequence[Example], task: Task) -> list[Example]:
    """The texts; where examples are phrases of captions, every caption once (release: Flickr30k)."""
    if task.form.head_input != "phrase":
        return list(texts)
    return list({(text.text, text.images): text for text in reversed(texts)}.values())[::-1]


def judged_texts(
    task: Task,
    folder: Path,
    tags: bool = False,
    partition: str = "",
    splits: Sequence[str] = (),
) -> list[Example]:
    """A task's training texts, labelled right or wrong: choices, or true and false statements.

    As VisualBERT's code pre-trains on VCR and NLVR2. Raises InputError for other tasks.
    """
    form = task.form
    has_right_and_wrong = isinstance(form, MultipleChoice) or (
        isinstance(form, Classification) and len(form.labels) == 2
    )
    if not has_right_and_wrong or task.label_regions is not None:
        raise InputError(
            f"task_answers=judged: {task.name} has no right and wrong texts; expected a multiple choice "
            "(vcr) or true and false statements (nlvr2)"
        )
    examples = _within(task, folder, partition, _read(task, folder, splits))
    without = [example.id for example in examples if example.label is None]
    raise_first([f"{name}: no label, expected right or wrong" for name in without])
    return [replace(_as_text(example, tags), label=example.label) for example in examples]


def unlabelled_texts(
    task: Task,
    folder: Path,
    tags: bool = False,
    partition: str = "",
    splits: Sequence[str] = (),
) -> list[tuple[Example, ...]]:
    """All versions of each of a task's training texts that can be written without the labels.

    A question with choices is an example with all of them; a question without choices stands alone.
    `partition` and `splits` as for `task_texts`.
    """
    examples = _read(task, folder, splits)
    inside = {example.id for example in _within(task, folder, partition, examples)}
    pairs = zip(examples, hidden_versions(examples, task, folder, splits), strict=True)
    selected = [versions for example, versions in pairs if example.id in inside]
    texts = [tuple(_as_text(example, tags) for example in versions) for versions in selected]
    first = {text.id for text in _once([versions[0] for versions in texts], task)}
    return [versions for versions in texts if versions[0].id in first]


def _read(task: Task, folder: Path, splits: Sequence[str]) -> list[Example]:
    return concatenate_splits(
        {split: task.read(folder, split) for split in splits or (task.train,)}
    )


def _within(
    task: Task, folder: Path, partition: str, examples: Sequence[Example]
) -> Sequence[Example]:
    return select_partition(examples, Path(partition), task, folder) if partition else examples


def _as_text(example: Example, tags: bool) -> Example:
    """The example without its label and, without `tags`, without object and phrase tags."""
    text = replace(example, label=None, gold_boxes=None, official_id="")
    if tags and example.object_count:
        return text
    return replace(
        text,
        region_tags=(),
        choice_region_tags=(),
        object_count=0,
        object_names=(),
        mentioned_objects=(),
    )


TaskAnswers = Literal["right", "any", "judged"]
"""Which answers a task's texts contain."""
BASELINE_SAMPLES = 256
"""Samples per source in the check whether an objective is better than guessing."""
BASELINE_PIXEL_SAMPLES = 32
"""The same for a model that reads pixels, which takes a hundred times as long."""


@dataclass(frozen=True)
class WeightedCaptionFile:
    """A caption file with its sampling weight."""

    name: str
    """Name in messages: the file without its ending."""
    file: str
    """Empty for a task's own texts."""
    weight: float = 0.0
    """Sampling weight among all files; 0: its number of samples."""


def corpora_of(texts: TrainTexts, other_captions: Sequence[str]) -> list[WeightedCaptionFile]:
    """The files of `--captions`, each FILE or FILE=WEIGHT; a task's own texts are one corpus
    without a file.

    `other_captions`: the held-out files if these are for training, and vice versa; if two of all files
    share a name, corpora are named by their paths. Raises InputError for an invalid weight, or if only
    some files have one.
    """
    if not texts.captions:
        return [WeightedCaptionFile(texts.task, "")]
    parts = parse_weighted_files(texts.captions, "captions")
    files = [file for file, _ in parts]
    every = dict.fromkeys([*files, *_eval_files(other_captions)])
    alike = len({Path(file).stem for file in every}) < len(every)
    names = files if alike else [Path(file).stem for file in files]
    if len(set(files)) < len(files):
        raise InputError(f"captions={' '.join(texts.captions)}: a file is given twice; remove one")
    return [
        WeightedCaptionFile(name, file, weight)
        for name, (file, weight) in zip(names, parts, strict=True)
    ]


def _eval_files(captions: Sequence[str]) -> list[str]:
    """Held-out caption files, without weights."""
    return [parse_weighted_file(word, "eval_captions").file for word in captions]


@dataclass(frozen=True)
class PretrainingData:
    """Training or held-out data of a pre-training."""

    corpora: Sequence[WeightedCaptionFile]
    samples: list[SampleDataset]
    """By corpus."""
    left_out: int
    """Number of captioned images that the store lacks."""
    notes: list[str]
    """Notes for the result."""
    teachers: Sequence[Teacher] = ()
    """Teachers that the training loop runs."""

    def images(self) -> list[str]:
        """Ids of all images."""
        every = (image for some in self.samples for images in some.images for image in images)
        return list(dict.fromkeys(every))


def versions_of(
    task: Task, texts: TrainTexts, answers: TaskAnswers, tags: bool
) -> list[tuple[Example, ...]]:
    """A task's texts with such answers: one version each, or all that may be drawn."""
    folder = Path(texts.data)
    splits = task.splits_to_train(texts.train_splits)
    if answers == "any":
        return unlabelled_texts(task, folder, tags, texts.partition, splits)
    read = judged_texts if answers == "judged" else task_texts
    return [(text,) for text in read(task, folder, tags, texts.partition, splits)]


@dataclass(frozen=True)
class PretrainingReader:
    """Reads texts and images of a run, for training and held-out data alike."""

    model: SingleStreamModel
    caption_pairs: bool
    """Whether two captions of an image are read together."""
    answers: TaskAnswers
    """A task's texts: which answers they contain."""
    object_tags: bool
    """A task's texts: whether they keep object tags."""
    grounded: bool
    """Whether captions are read with their images."""
    text: TextRowEncoder
    inputs: ImageSampleBuilder
    teacher_set: TeacherSet

    @property
    def store(self) -> RegionStore:
        """The region store."""
        assert self.inputs.store is not None  # --regions is required
        return self.inputs.store

    def data(
        self,
        train_texts: TrainTexts,
        versions: Sequence[Sequence[Example]],
        corpora: Sequence[WeightedCaptionFile],
        mirrored: bool,
    ) -> PretrainingData:
        """Samples with regions or pixels, and with teachers.

        `versions`: the texts of a task, empty for captions. `mirrored`: mirror
        half of the images (--flip).
        """
        texts, left_out, notes = self._texts(train_texts, versions, corpora)
        notes += _shared_images(corpora, texts)
        with_images: list[SampleDataset] = []
        teachers: list[Teacher] = []
        for samples in texts:
            # Features of texts that change in every epoch cannot be cached: the loop runs their teacher.
            samples, teachers = self.teacher_set.wrap(
                samples, fixed=isinstance(samples, TextDataset)
            )
            if self.grounded:
                # The release does not change captions of mirrored images.
                mirror = samples if mirrored else None
                images = self.inputs.all_images()
                samples = self.inputs.samples(samples, self.model, images, mirror=mirror)
            with_images.append(samples)
        return PretrainingData(corpora, with_images, left_out, notes, teachers)

    def _texts(
        self,
        train_texts: TrainTexts,
        versions: Sequence[Sequence[Example]],
        corpora: Sequence[WeightedCaptionFile],
    ) -> tuple[list[SampleDataset], int, list[str]]:
        """The texts of every corpus, the number of captioned images that the store lacks, and
        notes.
        """
        if train_texts.task and self.answers != "right":
            return (
                [
                    MultiVersionTextDataset(
                        versions, self.text, labels_correctness=self.answers == "judged"
                    )
                ],
                0,
                [],
            )
        if train_texts.task:
            return [TextDataset([examples[0] for examples in versions], self.text)], 0, []
        texts: list[SampleDataset] = []
        left_out = 0
        notes: list[str] = []
        every_caption = train_texts.epoch_unit == "captions"
        for images, lacking, remarks in _read_captioned_images(train_texts, corpora, self.store):
            texts.append(CaptionSampleDataset(images, self.text, self.caption_pairs, every_caption))
            left_out += lacking
            notes += remarks
        return texts, left_out, notes


def eval_texts_of(train_texts: TrainTexts, eval_texts: EvalTexts) -> TrainTexts | None:
    """The held-out texts as `TrainTexts`, with the settings of the training texts; None if there are none."""
    if eval_texts == EvalTexts():
        return None
    if train_texts.task:
        return replace(train_texts, train_splits=eval_texts.eval_splits, partition="")
    captions = eval_texts.eval_captions or train_texts.captions
    splits = eval_texts.eval_splits
    train_splits = train_texts.caption_settings.caption_splits
    if train_splits and not splits and any(map(has_splits, _eval_files(captions))):
        splits = train_splits
    return replace(
        train_texts,
        captions=captions,
        caption_settings=replace(train_texts.caption_settings, caption_splits=splits),
        image_list=eval_texts.eval_image_list,
    )


def eval_data(
    reader: PretrainingReader,
    train_texts: TrainTexts,
    eval_texts: TrainTexts | None,
    corpora: Sequence[WeightedCaptionFile],
    task: Task | None,
) -> PretrainingData | None:
    """Held-out data; None if `eval_texts` is None. Raises InputError for an unknown split, or a training split."""
    if eval_texts is None:
        return None
    versions = []
    if task is not None:
        _check_eval_splits(task, train_texts.train_splits, eval_texts.train_splits)
        versions = versions_of(task, eval_texts, reader.answers, reader.object_tags)
    return reader.data(eval_texts, versions, corpora, mirrored=False)


def _check_eval_splits(task: Task, train_splits: Sequence[str], eval_splits: Sequence[str]) -> None:
    for split in eval_splits:
        task.check_labelled(split, "eval_splits")
        if split in task.splits_to_train(train_splits):
            raise InputError(f"eval_splits={split}: is also a training split; leave it out")


def _read_captioned_images(
    train_texts: TrainTexts, corpora: Sequence[WeightedCaptionFile], store: RegionStore
) -> Iterator[tuple[list[CaptionedImage], int, list[str]]]:
    """For each file: the captioned images in the store, the number that the store lacks, and
    notes.
    """
    files = [each.file for each in corpora]
    selections = CaptionReadOptions(
        train_texts.caption_settings.caption_splits, train_texts.caption_settings.columns
    ).for_files(files)
    for file, own in zip(files, selections, strict=True):
        captions = read_captions(file, own.splits, own.columns)
        images = captions.images
        if train_texts.image_list:
            images = keep_listed(images, train_texts.image_list)
        found = images_in_store(images, store, captions.path)
        images = found.select_images(train_texts.skip_missing, store.folder)
        yield images, len(found.missing), list(captions.notes)


def _shared_images(
    corpora: Sequence[WeightedCaptionFile], texts: Sequence[SampleDataset]
) -> list[str]:
    """Notes on image ids of several corpora, which are one image only if their names say so."""
    notes = []
    earlier: set[str] = set()
    for each, samples in zip(corpora, texts, strict=True):
        images = list(dict.fromkeys(image for some in samples.images for image in some))
        shared = [image for image in images if image in earlier]
        if shared:
            notes.append(
                f"{len(shared):,} images of {each.name}, such as {shared[0]!r}, are also in an earlier file and share "
                "its regions"
            )
        earlier.update(images)
    return notes


def sources_of(
    data: PretrainingData,
    phase: PretrainingPhase,
    objectives: Sequence[Objective],
    auxiliary: Sequence[Objective],
) -> list[DataSource]:
    """Every corpus once for each kind of step; auxiliary objectives take part in every step.

    A step draws a corpus and a kind together, as UNITER's release does (ChenRocks/UNITER,
    data/loader.py).
    """
    names = {objective.name for objective in objectives}
    always = tuple(objective.name for objective in auxiliary)
    mix = phase.step_mix or [(1.0, tuple(sorted(names)))]
    sources = []
    for each, samples in zip(data.corpora, data.samples, strict=True):
        weight = each.weight or float(len(samples))
        for ratio, mixed in mix:
            present = tuple(name for name in mixed if name in names)
            if present:
                name = f"{each.name}: {'+'.join(present)}"
                sources.append(DataSource(samples, ratio * weight, (*present, *always), name))
    return sources


def sample_sources(sources: Sequence[DataSource], pixels: bool) -> list[DataSource]:
    """A few samples of every source, evenly spaced; fewer with `pixels`."""
    limit = BASELINE_PIXEL_SAMPLES if pixels else BASELINE_SAMPLES
    world = PartialState().num_processes  # each process gets a share
    return [
        replace(one, samples=SampleSubset(one.samples, subsample(range(len(one.samples)), limit)))
        for one in sources
        if len(one.samples) >= world
    ]


def text_only_sources(
    files: Sequence[WeightedFile], text: TextRowEncoder, sources: Sequence[DataSource], folder: Path
) -> list[DataSource]:
    """Texts without images, drawn as often as all captions (VL-BERT, final version, Section 3.3);
    not counted in epochs.

    Tokenised texts are stored below `folder`.
    """
    if not files:
        return []
    share = sum(source.ratio for source in sources)
    texts = corpus_samples([each.file for each in files], "blocks", text, folder)
    source = DataSource(texts, share, ("masked_lm",), "text alone", counts_towards_epoch=False)
    return split_by_file(source, texts.bounds, files)

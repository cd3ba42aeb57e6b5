"""What a model is pre-trained on, or measured on: captions or a task's texts, with regions, pixels and teachers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accelerate import PartialState

from groundling.commands.pretrain import PretrainConfig
from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.output_types import Answer, Choose, Classify
from groundling.data.captions.captions import (
    Captioned,
    Wanted,
    has_splits,
    in_store,
    keep_listed,
    read_captions,
)
from groundling.data.corpora.prepared import corpus_samples
from groundling.data.regions.inputs import RegionInputs
from groundling.data.regions.samples import CaptionTexts
from groundling.data.regions.stores import SeveralStores
from groundling.data.samples import (
    DrawnTexts,
    Samples,
    TextInput,
    TextSamples,
    thinned,
    together,
    with_choice,
)
from groundling.objectives import Objective
from groundling.settings.fields import changed
from groundling.settings.inputs import Weighted, weighted, weighted_files
from groundling.tasks import Task
from groundling.tasks.splits import Chosen, hidden_versions, taken
from groundling.teachers import Teacher
from groundling.teachers.dataset import TeacherSet
from groundling.training.batch_sampler import Source, sectioned
from groundling.vision_language import Phase
from groundling.vision_language.single_stream import SingleStream

# The texts of a task that a model is pre-trained on, with what is right, with any answer, or judged.


def task_texts(
    task: Task,
    folder: Path,
    tags: bool = False,
    partition: str = "",
    splits: Sequence[str] = (),
) -> list[Example]:
    """A task's training texts with what is right, for masked LM on its own images (VisualBERT Appendix A).

    A question is followed by its best answer (the release takes the answer apart into letters), a choice by the right
    one, a statement stands alone. With `tags` texts keep the places that name objects, and what these are; with
    `partition` they are those of that file's examples; `splits` are those of the task, if not its training split alone.
    Raises InputError if a multiple choice has no label.
    """
    texts = []
    for example in _within(task, folder, partition, _read(task, folder, splits)):
        if example.choices and not isinstance(example.label, int):
            raise InputError(
                f"{example.id}: a multiple choice without a label cannot be pre-trained on"
            )
        if isinstance(example.label, int) and example.choices:
            example = with_choice(example, example.label)
        elif isinstance(task.form, Answer):
            example = replace(example, pair=task.form.best(example.label) or None)
        texts.append(_as_text(example, tags))
    return _once(texts, task)


def _once(texts: Sequence[Example], task: Task) -> list[Example]:
    """The texts; where examples are phrases of captions, every caption stands there once (release: Flickr30k)."""
    if task.form.reads != "phrase":
        return list(texts)
    return list({(text.text, text.images): text for text in reversed(texts)}.values())[::-1]


def judged_texts(
    task: Task,
    folder: Path,
    tags: bool = False,
    partition: str = "",
    splits: Sequence[str] = (),
) -> list[Example]:
    """A task's training texts with labels that say whether they are right: choices, or statements, true or false.

    As VisualBERT's code pre-trains on VCR and NLVR2. Raises InputError for a task of another form.
    """
    form = task.form
    says_it = isinstance(form, Choose) or (isinstance(form, Classify) and len(form.labels) == 2)
    if not says_it or task.mark is not None:
        raise InputError(
            f"--task-answers judged: texts of {task.name} are neither right nor wrong; expected a multiple choice "
            "(vcr) or statements that are true or false (nlvr2)"
        )
    examples = _within(task, folder, partition, _read(task, folder, splits))
    without = [example.id for example in examples if example.label is None]
    if without:
        raise InputError(f"{without[0]}: nobody says whether it is right ({len(without)} such)")
    return [replace(_as_text(example, tags), label=example.label) for example in examples]


def unlabelled_texts(
    task: Task,
    folder: Path,
    tags: bool = False,
    partition: str = "",
    splits: Sequence[str] = (),
) -> list[tuple[Example, ...]]:
    """All versions of each of a task's training texts that somebody could write who has not seen the labels.

    A question with choices is an example with all of them; a question without stands alone. With `partition` they are
    those of that file's examples; `splits` as for `task_texts`.
    """
    examples = _read(task, folder, splits)
    inside = {example.id for example in _within(task, folder, partition, examples)}
    pairs = zip(examples, hidden_versions(examples, task, folder, splits), strict=True)
    kept = [versions for example, versions in pairs if example.id in inside]
    texts = [tuple(_as_text(example, tags) for example in versions) for versions in kept]
    first = {text.id for text in _once([versions[0] for versions in texts], task)}
    return [versions for versions in texts if versions[0].id in first]


def _read(task: Task, folder: Path, splits: Sequence[str]) -> list[Example]:
    return together({split: task.read(folder, split) for split in splits or (task.train,)})


def _within(
    task: Task, folder: Path, partition: str, examples: Sequence[Example]
) -> Sequence[Example]:
    return taken(examples, Path(partition), task, folder) if partition else examples


def _as_text(example: Example, tags: bool) -> Example:
    """The example without its label, and, but with `tags`, without the places that name objects or phrases."""
    text = replace(example, label=None, gold=None, official="")
    if tags and example.objects:
        return text
    return replace(text, tags=(), choice_tags=(), objects=0, names=(), mentioned=())


ASKED = 256
"""Samples of every source by which a trained model's parts are told from guessing."""
ASKED_PIXELS = 32
"""The same of a model that reads pixels, which takes a hundred times as long."""


@dataclass(frozen=True)
class Corpus:
    """One file of captions and how often it is drawn."""

    name: str
    """What `--regions NAME=STORE` and messages call it: the file without its ending."""
    file: str
    """Empty for a task's own texts."""
    weight: float = 0.0
    """Of its steps among those of all files; 0: its number of samples."""


def corpora_of(config: PretrainConfig) -> list[Corpus]:
    """The files of `--captions`, each FILE or FILE=WEIGHT; a task's own texts are one without a file.

    Raises InputError for a weight that is none, or if some files have one and others have not.
    """
    if not config.captions:
        return [Corpus(config.task, "")]
    parts = weighted_files(config.captions, "--captions")
    files = [file for file, _ in parts]
    every = dict.fromkeys([*files, *_held_files(config.eval_captions)])
    alike = len({Path(file).stem for file in every}) < len(every)
    names = files if alike else [Path(file).stem for file in files]
    if len(set(files)) < len(files):
        raise InputError(f"--captions {' '.join(config.captions)}: a file is there twice")
    return [Corpus(name, file, weight) for name, (file, weight) in zip(names, parts, strict=True)]


def names_of(corpora: Sequence[Corpus]) -> list[str]:
    """What the corpora are called."""
    return [each.name for each in corpora]


def _held_files(captions: Sequence[str]) -> list[str]:
    """Files of captions that are measured on, of which weights say nothing."""
    return [weighted(word, "--eval-captions").file for word in captions]


@dataclass(frozen=True)
class Data:
    """What a model is pre-trained on, or what is held out."""

    corpora: Sequence[Corpus]
    samples: list[Samples]
    """Of every corpus."""
    stores: list[SeveralStores]
    """Of every corpus."""
    left_out: int
    """Captioned images that the stores lack."""
    notes: list[str]
    """What a reader must know of them."""
    teachers: Sequence[Teacher] = ()
    """Those that the loop must ask."""

    def places(self) -> list[str]:
        """Where the regions of all images are: two data sets may call different images alike."""
        pairs = zip(self.samples, self.stores, strict=True)
        places = (
            f"{store.holder(image).folder}: {image}"
            for samples, store in pairs
            for images in samples.images
            for image in images
        )
        return list(dict.fromkeys(places))


def versions_of(task: Task, config: PretrainConfig, phase: Phase) -> list[tuple[Example, ...]]:
    """What a task's training texts are, one version each or all that may be drawn."""
    folder = Path(config.data)
    tags = phase.tags and config.regions.tags
    splits = task.learned(config.train_splits)
    if config.phase.task_answers == "any":
        return unlabelled_texts(task, folder, tags, config.partition, splits)
    if config.phase.task_answers == "judged":
        if not phase.judged:
            raise InputError(
                f"--task-answers judged: only VisualBERT predicts what is right, not {config.model}; pass right or any"
            )
        return [(text,) for text in judged_texts(task, folder, tags, config.partition, splits)]
    return [(text,) for text in task_texts(task, folder, tags, config.partition, splits)]


def data_of(
    config: PretrainConfig,
    phase: Phase,
    versions: Sequence[Sequence[Example]],
    model: SingleStream,
    corpora: Sequence[Corpus],
    inputs: RegionInputs,
    teacher_set: TeacherSet,
) -> Data:
    """Samples with regions, and pixels for a model that reads them, and a teacher beside their texts."""
    text, _ = model.inputs(config.max_length)
    stores = [inputs.stores(each.name) for each in corpora]
    texts: list[Samples] = []
    left_out = 0
    notes: list[str] = []
    if config.phase.task_answers != "right":
        texts.append(DrawnTexts(versions, text, judged=config.phase.task_answers == "judged"))
    elif config.task:
        texts.append(TextSamples([examples[0] for examples in versions], text))
    else:
        every_caption = config.epoch_of == "captions"
        for images, lacking, remarks in _captioned(config, corpora, stores):
            texts.append(CaptionTexts(images, text, phase.pairs, every_caption))
            left_out += lacking
            notes += remarks
    notes += _shared_images(corpora, texts, stores)
    seen: list[Samples] = []
    teachers: list[Teacher] = []
    for each, samples in zip(corpora, texts, strict=True):
        # Texts that are drawn anew in every epoch have a teacher that is asked in the loop.
        samples, teachers = teacher_set.wrap(samples, fixed=isinstance(samples, TextSamples))
        if config.grounded:
            # In pictures that are learned from and mirrored, the release leaves captions as they are.
            mirror = samples if config.pixels.flip else None
            samples = inputs.samples(samples, model, inputs.at(each.name), mirror=mirror)
        seen.append(samples)
    return Data(corpora, seen, stores, left_out, notes, teachers)


def held_config(config: PretrainConfig) -> PretrainConfig | None:
    """The run with what is held out in place of what is learned from, so that both are read alike; None without."""
    if not (config.eval_captions or config.eval_listing or config.eval_splits):
        return None
    if config.task:
        return changed(config, train_splits=config.eval_splits, partition="", flip=False)
    captions = config.eval_captions or config.captions
    files = _held_files(captions)
    splits = config.caption_splits if any(map(has_splits, files)) else ()
    return changed(
        config,
        captions=captions,
        eval_captions=config.captions,  # files are called as they are in the run
        caption_splits=config.eval_splits or splits,
        listing=config.eval_listing,
        flip=False,
    )


def held_data(
    config: PretrainConfig,
    phase: Phase,
    task: Task | None,
    model: SingleStream,
    inputs: RegionInputs,
    teacher_set: TeacherSet,
) -> Data | None:
    """What is held out; None without such. Raises InputError for a split that there is not, or is learned from."""
    held = held_config(config)
    if held is None:
        return None
    versions = []
    if task is not None:
        _check_held_splits(task, config)
        versions = versions_of(task, held, phase)
    return data_of(held, phase, versions, model, corpora_of(held), inputs, teacher_set)


def _check_held_splits(task: Task, config: PretrainConfig) -> None:
    offered = (task.train, *task.dev)
    for split in config.eval_splits:
        if split not in offered:
            raise InputError(
                f"--eval-splits: {task.name} has no labelled split {split!r}; there are: {', '.join(offered)}"
            )
        if split in task.learned(config.train_splits):
            raise InputError(f"--eval-splits {split}: is learned from, too; leave it out")


def _captioned(
    config: PretrainConfig, corpora: Sequence[Corpus], stores: Sequence[SeveralStores]
) -> Iterator[tuple[list[Captioned], int, list[str]]]:
    """Of each file, the captioned images that its stores hold, by their ids there, how many they lack, and notes."""
    files = [each.file for each in corpora]
    wanted = Wanted(config.caption_splits, config.columns).of(files)
    for file, own, store in zip(files, wanted, stores, strict=True):
        told = read_captions(file, own.splits, own.columns)
        images = keep_listed(told.images, config.listing) if config.listing else told.images
        found = in_store(images, store, store.name, told.path)
        if found.missing and not (config.skip_missing and found.images):
            raise InputError(found.fault)
        yield found.images, len(found.missing), [*told.guess, *told.notes]


def _shared_images(
    corpora: Sequence[Corpus], texts: Sequence[Samples], stores: Sequence[SeveralStores]
) -> list[str]:
    """Notes on images that several stores hold, or that several corpora name.

    Raises InputError if two corpora name an image that two stores hold: whose regions are whose is not known.
    """
    notes = []
    first: dict[str, int] = {}
    for number, (each, samples) in enumerate(zip(corpora, texts, strict=True)):
        store = stores[number]
        images = list(dict.fromkeys(image for some in samples.images for image in some))
        # Corpora with stores of their own read their own regions, whatever their images are called.
        shared = [
            image
            for image in images
            if image in first and stores[first[image]].holder(image) is store.holder(image)
        ]
        repeated = store.repeated(images)
        mixed = sorted(set(repeated) & set(shared))
        if mixed:
            other = corpora[first[mixed[0]]]
            raise InputError(
                f"--regions: image {mixed[0]!r} is in several stores, and both {other.file} and {each.file} name it "
                f"({len(mixed):,} such); say whose store is whose: --regions {other.name}=STORE {each.name}=STORE"
            )
        if repeated:
            notes.append(
                f"{len(repeated):,} images of {each.name} are in several stores, of which the first counts, such as "
                f"{repeated[0]!r}"
            )
        if shared:
            notes.append(
                f"{len(shared):,} images of {each.name} are named by an earlier file, too, and share its regions, "
                f"such as {shared[0]!r}"
            )
        for image in images:
            first.setdefault(image, number)
    return notes


def sources_of(
    data: Data,
    phase: Phase,
    objectives: Sequence[Objective],
    beside: Sequence[Objective],
) -> list[Source]:
    """Every corpus once for each kind of step; objectives beside the model's own score every step.

    A step draws a corpus and a kind together, as UNITER's release does (ChenRocks/UNITER, data/loader.py).
    """
    names = {objective.name for objective in objectives}
    always = tuple(objective.name for objective in beside)
    mix = phase.mix or [(1.0, tuple(sorted(names)))]
    sources = []
    for each, samples in zip(data.corpora, data.samples, strict=True):
        weight = each.weight or float(len(samples))
        for ratio, mixed in mix:
            present = tuple(name for name in mixed if name in names)
            if present:
                name = f"{each.name}: {'+'.join(present)}"
                sources.append(Source(samples, ratio * weight, (*present, *always), name))
    return sources


def some_of(sources: Sequence[Source], pixels: bool) -> list[Source]:
    """A few samples of every source, evenly spaced: fewer of those with `pixels`."""
    most = ASKED_PIXELS if pixels else ASKED
    world = PartialState().num_processes  # each of which has a share
    return [
        replace(one, samples=Chosen(one.samples, thinned(range(len(one.samples)), most)))
        for one in sources
        if len(one.samples) >= world
    ]


def text_alone(
    files: Sequence[Weighted], text: TextInput, sources: Sequence[Source], place: Path
) -> list[Source]:
    """Texts without images, as often as all the rest (VL-BERT, final version, Section 3.3), which no epoch counts.

    They are kept tokenised below the folder `place`.
    """
    if not files:
        return []
    share = sum(source.ratio for source in sources)
    alone = corpus_samples([each.file for each in files], "blocks", text, place)
    source = Source(alone, share, ("masked_lm",), "text alone", counts=False)
    return sectioned(source, alone.bounds, files)

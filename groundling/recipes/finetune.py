"""Fine-tune a model on a task, over seeds, and report medians."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accelerate import PartialState

from groundling.batch import Example, Sizes
from groundling.config import FinetuneConfig, Targeted, TrainConfig, check_training, need
from groundling.data.mirror import Mirror
from groundling.data.paired import RegionSamples
from groundling.data.pictures import Mirrored, Pictured
from groundling.data.samples import Samples, TextSamples, thinned, together, untagged
from groundling.data.several_stores import SeveralStores
from groundling.data.unlabelled import Chosen, Unlabelled
from groundling.errors import InputError
from groundling.evaluate import Scores, evaluate, write_answers
from groundling.feed import Source
from groundling.find import is_outside, named, source_of
from groundling.forms import Answer, Classify, Form
from groundling.joins import Design
from groundling.joins.end_to_end import EndToEnd, reading_pixels
from groundling.keyed import generator, seed_of
from groundling.load import (
    ADAPTER,
    PLAIN,
    design_of,
    head_of,
    join_to,
    load_student,
    seeing_of,
)
from groundling.metrics import collapsed
from groundling.models.adapters import (
    ClipAdapter,
    check_adapter,
    is_adapter,
    load_base,
)
from groundling.models.kinds import Student
from groundling.models.saved_heads import start_layer
from groundling.models.single_stream import SingleStream
from groundling.models.task_heads import TaskHead
from groundling.objectives import Given, Objective
from groundling.objectives.supervised import Supervised
from groundling.predicting.description import Described, Reads, facts_of
from groundling.recipes.lifecycle import Run, say_notes, write_result
from groundling.recipes.regions_of import Shelf, check_regions, made_by, manifests
from groundling.recipes.teaching import (
    Classroom,
    base_room,
    check_parts,
    classroom,
    inner_step,
    make_objectives,
    save_objectives,
    teacher_inputs,
    text_encoder_of,
    vocabulary,
    watched_terms,
    with_teachers,
)
from groundling.runs import finished, sha256_of
from groundling.shift.beside import with_others
from groundling.shift.partitions import left_over, taken
from groundling.tasks import Task
from groundling.tasks.glue import from_hub
from groundling.tasks.table import OwnReader, own_notes, own_task
from groundling.teachers import Teacher
from groundling.train import train

Splits = Mapping[str, Sequence[Example]]


def finetune(
    config: FinetuneConfig,
    training: TrainConfig,
    out: str | Path,
    task: Task | None = None,
) -> dict[str, Any]:
    """Fine-tune once per seed in `out/seed-N`, evaluate, and write medians to `out/result.json`; returns the result.

    `task` is an object of your own in place of `config.task`. Raises InputError for settings that do not fit.
    """
    _check(config, training, task)
    if task is None:
        task = _task(config)
    own = task.read
    task = with_others(task, config.also)
    learned = trained_on(task, config)
    _shelf(config, task)  # a mistake in --regions is told before any data is read
    run = Run(out, "finetune", _settings(config, training), _inputs(config), training.cpu)
    notes = own_notes(own) if isinstance(own, OwnReader) else []
    notes += [f"{split} was learned from: its scores are not of held-out data" for split in learned]
    say_notes(notes)
    splits: dict[str, list[Example]] = {}
    room: Classroom | None = None  # its teachers are the same for all seeds
    runs = []
    for seed in range(training.seed, training.seed + config.seeds):
        folder = run.folder / f"seed-{seed}"
        folder.mkdir(exist_ok=True)
        done = finished(folder)
        if done is None:
            splits = splits or _read(task, config)
            student = _student(config, seed, task)
            room = room or _room(student, task, config, run, training.seed)
            training_of_seed = replace(training, seed=seed)
            done = one_run(student, task, splits, training_of_seed, folder, config, room)
        runs.append(done)
    result = summary(task, runs, config)
    notes += [f"seed {run['seed']}: {note}" for run in runs for note in run.get("notes", ())]
    if notes:
        result["notes"] = notes
    result = run.finish(result)
    if room is not None:
        room.clear()
    return result


def _check(config: FinetuneConfig, training: TrainConfig, task: Task | None) -> None:
    need(config, "finetune", "model", "data")
    if not (config.task or config.own.label or task):
        raise InputError("finetune needs --task (or --text and --label for your own file)")
    if config.own.label and (config.task or task):
        raise InputError(
            f"finetune: --label {config.own.label} makes a task of your own file; leave it or --task out"
        )
    _check_regions_given(config)
    if config.seeds < 1:
        raise InputError(f"finetune: --seeds {config.seeds}, expected at least 1")
    if config.max_train < 0:
        raise InputError(f"--max-train {config.max_train}, expected at least 0; 0 means all")
    if config.teacher and not (config.objectives or config.inner):
        raise InputError(
            f"finetune: nothing reads --teacher {config.teacher}; name an objective that does, such as "
            "--objectives contrastive"
        )
    _check_unlabelled(config)
    _check_adapter(config, training)
    check_parts(config.objectives, config.teacher, "finetune")
    check_training(training)
    inner_step(config.inner, config.adversarial)  # a mistake is told before anything is written


def _check_unlabelled(config: FinetuneConfig) -> None:
    """Raises InputError if nothing is without a label, or no objective could score it."""
    flag = f"--unlabelled {config.unlabelled}"
    if config.unlabelled < 0:
        raise InputError(f"{flag}: expected at least 0")
    if not config.unlabelled:
        return
    if not config.partition:
        raise InputError(
            f"{flag} is about training examples outside a partition; pass --partition FILE, too"
        )
    if not config.objectives:
        raise InputError(
            f"{flag}: no objective scores what has no label; name one that does, such as --objectives td_text"
        )
    if config.targeted.td_choices == "right":
        raise InputError(
            f"{flag}: nobody knows the right choice of what has no label; leave --td-choices out"
        )


def _check_adapter(config: FinetuneConfig, training: TrainConfig) -> None:
    """Raises InputError for settings that say something of what an adapter over CLIP has not."""
    check_adapter(config.adapting)
    is_new = config.adapting.adapter != "none"
    there = is_adapter(config.model)
    if not (is_new or there):
        return
    if is_new and there:
        raise InputError(f"{config.model}: an adapter over CLIP already; leave --adapter out")
    flag = f"--adapter {config.adapting.adapter}" if is_new else f"--model {config.model}"
    if not config.targeted.teacher_images:
        raise InputError(f"{flag} needs --teacher-images FOLDER, the pictures that CLIP sees")
    without = {
        "--regions": config.regions.regions,
        "--join": config.join,
        "--kind": config.kind,
        "--teacher": config.teacher,
        "--objectives": config.objectives,
        "--inner": config.inner,
        "--batch-tokens": training.batch_tokens,
    }
    for other, given in without.items():
        if given:
            raise InputError(
                f"{flag} reads CLIP's features of whole pictures and texts alone; leave {other} out"
            )
    kept = Targeted(
        teacher_images=config.targeted.teacher_images, teacher_cache=config.targeted.teacher_cache
    )
    if config.targeted != kept:
        raise InputError(
            f"{flag}: nothing is distilled, so CLIP-TD's other settings say nothing; leave them out"
        )


def _check_regions_given(config: FinetuneConfig) -> None:
    """Raises InputError for settings that say something of regions where there are none."""
    if config.regions.regions:
        return
    if config.regions.images:
        raise InputError(
            f"--images {config.regions.images}: pass --regions STORE, too, which says where to look"
        )
    for flag, given in (("--blind", config.blind), ("--most-regions", config.regions.most_regions)):
        if given:
            raise InputError(f"{flag} is about regions; pass --regions STORE or leave it out")


def _task(config: FinetuneConfig) -> Task:
    if config.own.label:
        return own_task(Path(config.data), config.own)
    return named("tasks", Task, config.task).at(Path(config.data))


def trained_on(task: Task, config: FinetuneConfig) -> list[str]:
    """The splits that are evaluated although they are learned from; raises InputError for a split there is not."""
    offered = (task.train, *task.dev)
    for split in config.train_splits:
        if split not in offered:
            raise InputError(
                f"--train-splits: {task.name} has no labelled split {split!r}; there are: {', '.join(offered)}"
            )
    if len(set(config.train_splits)) < len(config.train_splits):
        raise InputError(f"--train-splits {' '.join(config.train_splits)}: a split is there twice")
    return [split for split in task.dev if split in config.train_splits]


def _settings(config: FinetuneConfig, training: TrainConfig) -> dict[str, Any]:
    """What tells this run from others; more seeds later are the same run, continued."""
    settings = {**asdict(config), "train": asdict(training)}
    settings.pop("seeds")
    settings["train"].pop("seed")
    return settings


def _inputs(config: FinetuneConfig) -> dict[str, str | Path]:
    return {
        "model": config.model,
        "data": config.data,
        "dev": config.own.dev,
        "partition": config.partition,
        **{f"also {other}": other.partition("=")[2] for other in config.also},
        **manifests(config.regions.regions),
        "images": config.regions.images,
        "backbone": config.pixels.backbone if config.regions.images and config.join else "",
        **teacher_inputs(config.teacher, config.targeted),
    }


def one_run(
    student: Student,
    task: Task,
    splits: Splits,
    training: TrainConfig,
    folder: Path,
    config: FinetuneConfig,
    room: Classroom | None = None,
) -> dict[str, Any]:
    """One seed: train, evaluate on every dev split, write predictions; returns scores by split and metric.

    `room`: the teachers of the objectives beside the task's own; without one there are none.
    """
    room = room or Classroom()
    torch.manual_seed(seed_of(training.seed, "init", task.name))
    head = _head(student, task, splits, config)
    loss = "" if config.head_loss == "paper" else config.head_loss
    objective = Supervised(student.sizes, form=task.form, head=head, loss=loss)
    asked = {split: [head.ask(example) for example in some] for split, some in splits.items()}
    student.word_embeddings().requires_grad_(not config.freeze_words)
    samples, teachers = _samples(asked, student, task, config, head.apart, room)
    if config.pixels.flip and _looks(student, config):
        mirror = samples
        if head.turns_words:
            turned = {task.train: _of_mirrored(asked[task.train], task.form)}
            mirror, _ = _samples(turned, student, task, config, head.apart, room)
        samples[task.train] = Mirrored(samples[task.train], mirror[task.train])
    notes = _lacking(head, student, task, config)
    say_notes(notes)
    objectives = [objective, *_beside(student, task, objective.form, config, room, training.seed)]
    if student.sizes.visual:
        for layer, name in [start for one in objectives for start in one.starts()]:
            start_layer(layer, config.model, name, "bert")
    inner = inner_step(config.inner, config.adversarial)
    learning = _learning(samples[task.train], splits[task.train], objectives, config)
    trained = train(
        student, objectives, [learning], training, folder, teachers=teachers, inner=inner
    )
    held_out = {split: some for split, some in samples.items() if split != task.train}
    scores = _evaluated(student, objective, task, held_out, folder, config)
    done = {"seed": training.seed, "task": task.name if not config.task else config.task}
    if config.called:
        done["called"] = config.called
    done |= {"metrics": [metric.name for metric in task.metrics], "splits": list(task.dev)}
    watched, remarks = watched_terms(objectives, folder, trained)
    say_notes(remarks)
    notes = [*notes, *remarks]
    learned = trained_on(task, config)
    done |= {"objectives": [one.name for one in objectives], "scores": scores, **trained}
    done |= {"trained_on": learned} if learned else {}
    done |= {"watched": watched} if watched else {}
    if learning.beside is not None:
        done["unlabelled"] = {"examples": len(learning.beside), "beside_each": learning.each}
    done |= {"notes": notes} if notes else {}

    def save(where: Path) -> None:
        if config.save_model:
            student.export(where / "model")
            save_objectives(where / "model", objectives)
            about = _about(student, task, splits, config)
            about.write(where / "model")

    write_result(folder, done, save)
    return done


def _about(student: Student, task: Task, splits: Splits, config: FinetuneConfig) -> Described:
    """What the model's folder must say of itself, for `predict` and `evaluate`."""
    modules = {}
    for name in (config.task, config.join, config.kind):
        if is_outside(name) and source_of(name):
            modules[name] = sha256_of(Path(source_of(name)))
    reads = Reads(
        max_length=config.max_length,
        images=_most_images(splits),
        regions=bool(config.regions.regions),
        most_regions=config.regions.most_regions,
        budget=config.regions.budget,
        tags=config.regions.tags,
        blind=config.blind,
    )
    return Described(
        task=config.task or task.name,
        form=task.form,
        version=task.version,
        head=_head_name(student, task, config),
        loss="" if config.head_loss == "paper" else config.head_loss,
        reads=reads,
        own=replace(config.own, dev="") if config.own.label else None,
        design=config.join if is_outside(config.join) else "",
        kind=config.kind,
        modules=modules,
        regions=facts_of(_boxes(task, config)) if reads.regions else {},
    )


def _evaluated(
    student: Student,
    objective: Supervised,
    task: Task,
    samples: Mapping[str, Samples],
    folder: Path,
    config: FinetuneConfig,
) -> dict[str, dict[str, float]]:
    """Answers of every split, written to `folder`; the scores of those with labels."""
    scores = {}
    for split, some in samples.items():
        answers = evaluate(student, objective, task, some)
        if PartialState().is_main_process:
            write_answers(answers, task, split, folder)
        if answers.labels is not None:
            scores[split] = _scored(answers, task, split, Path(config.data))
    return scores


def _learning(
    samples: Samples,
    examples: Sequence[Example],
    objectives: Sequence[Objective],
    config: FinetuneConfig,
) -> Source:
    """What is learned from: training samples of these examples, those without labels beside the others.

    Raises InputError if there are some, and no objective that needs no label.
    """
    if not config.unlabelled:
        return Source(samples)
    if all("labels.label" in objective.needs for objective in objectives):
        raise InputError(
            f"--unlabelled {config.unlabelled}: all of --objectives {' '.join(config.objectives)} need labels"
        )
    known = [number for number, one in enumerate(examples) if one.label is not None]
    others = [number for number, one in enumerate(examples) if one.label is None]
    labelled = Chosen(samples, known)
    (first,) = labelled.get([0], [generator(examples[0].id)])
    rest = Unlabelled(Chosen(samples, others), first.labels["label"])
    return Source(labelled, beside=rest, each=config.unlabelled)


def _room(student: Student, task: Task, config: FinetuneConfig, run: Run, seed: int) -> Classroom:
    """The teachers of the objectives beside the task's own, or the CLIP that an adapter stands on."""
    if isinstance(student, ClipAdapter):
        return base_room(student.base, config.targeted, run.state.device, run.folder)
    given = _given(student, task, config, task.form)
    return classroom(config.teacher, config.objectives, given, run.state.device, run.folder, seed)


def _given(student: Student, task: Task, config: FinetuneConfig, form: Form) -> Given:
    """What the objectives beside the task's own are made from, but for the teachers' widths."""
    text = text_encoder_of(student)
    return Given(
        _sizes(student, task, config),
        vocabulary(text) if text is not None and config.objectives else None,
        config.masking,
        distilling=config.distilling,
        targeted=config.targeted,
        form=form,
    )


def _scored(answers: Scores, task: Task, split: str, folder: Path) -> dict[str, float]:
    """The task's metrics and the benchmark's own scores; a run that collapsed to one answer is marked."""
    official = task.official(folder, split, answers.officials, answers.predictions)
    scores = answers.metrics | official
    if collapsed(answers.predictions):
        scores["constant"] = 1.0  # reported, never dropped
    return scores


def _student(config: FinetuneConfig, seed: int, task: Task) -> Student:
    """The model, with a new join or adapter if one is asked for."""
    if config.adapting.adapter != "none":
        torch.manual_seed(seed_of(seed, "init", "adapter"))
        return ClipAdapter(load_base(config.model), config.adapting)
    student = load_student(config.model, config.kind, config.join)
    if not config.join:
        looks = isinstance(student, EndToEnd)
        return reading_pixels(student, config.pixels) if looks else student
    if isinstance(student, SingleStream):
        kind = student.join.kind
        # A design of one's own is named again in order to load its model.
        if not is_outside(config.join) or named("joins", Design, config.join).name != kind:
            raise InputError(
                f"--join {config.join}: {config.model} is a {kind} model already; leave --join out"
            )
        return student
    torch.manual_seed(seed_of(seed, "init", "join"))
    if not config.regions.regions:
        return join_to(student, config.join, 1)
    store = _learned_from(_shelf(config, task), task, config)
    model: SingleStream
    if config.regions.images and config.join == "vlbert":
        model = reading_pixels(student, config.pixels)
    else:
        model = join_to(student, config.join, store.width)
    model.regions_from = made_by(store)
    return model


def _head(student: Student, task: Task, splits: Splits, config: FinetuneConfig) -> TaskHead:
    """The paper's head for this task, or the plain one; the model is made ready for as many images as there are."""
    name = _head_name(student, task, config)
    if isinstance(student, SingleStream):
        student.see(_most_images(splits))
        if not config.plain_head:
            design_of(student, config.join).ready(student, splits[task.train], False)
    return head_of(student, task.form, name, config.join)


def _head_name(student: Student, task: Task, config: FinetuneConfig) -> str:
    """The head that answers: the adapter's, the paper's for this task, or the plain one; as `head_of` names them."""
    if isinstance(student, ClipAdapter):
        return ADAPTER
    if config.plain_head or not isinstance(student, SingleStream):
        return PLAIN
    name = task.like or task.name
    kind = design_of(student, config.join).heads.get(name)
    if kind is None or (kind.apart and not config.regions.regions):
        return PLAIN
    return name


def _most_images(splits: Splits) -> int:
    return max(len(example.images) for some in splits.values() for example in some)


def _looks(student: Student, config: FinetuneConfig) -> bool:
    """Whether the model sees pictures: a blind one reads the zeros that stand for their features."""
    return isinstance(student, EndToEnd) and bool(config.regions.regions) and not config.blind


def _of_mirrored(examples: Sequence[Example], form: Form) -> list[Example]:
    """Examples as they are asked of mirrored pictures, with other sides in their words and answers."""
    mirror = Mirror(form.labels if isinstance(form, Answer | Classify) else ())
    return [mirror(example) for example in examples]


def _lacking(head: TaskHead, student: Student, task: Task, config: FinetuneConfig) -> list[str]:
    """What a reader must know of the run: what the head's paper sees and the store does not hold."""
    if not head.segments or not _looks(student, config):
        return []
    stores = _boxes(task, config)
    if stores.covers:
        return []
    note = (
        f"{stores.name}: no segments of objects, so whole boxes are seen; the paper's model sees what "
        "objects fill of them, which `groundling regions --boxes vcr1images` stores"
    )
    return [note]


def _boxes(task: Task, config: FinetuneConfig) -> SeveralStores:
    """The stores of the regions that are learned from, without their features."""
    return _learned_from(_shelf(config, task, features=False), task, config)


def _sizes(student: Student, task: Task, config: FinetuneConfig) -> Sizes:
    """The model's sizes, and the classes of the regions it reads."""
    if not config.regions.regions:
        return student.sizes
    store = _boxes(task, config)
    return student.sizes._replace(classes=store.classes, background=store.background)


def _beside(
    student: Student,
    task: Task,
    form: Form,
    config: FinetuneConfig,
    room: Classroom,
    seed: int,
) -> list[Objective]:
    """Objectives beside the task's own loss: those of the paper, where its head is used, and those asked for."""
    own: tuple[str, ...] = ()
    is_paper = config.beside and not config.plain_head and config.regions.regions
    if is_paper and isinstance(student, SingleStream):
        own = design_of(student, config.join).beside.get(task.name, ())
    names = tuple(dict.fromkeys([*own, *config.objectives]))
    given = with_teachers(_given(student, task, config, form), room)
    return make_objectives(names, given, seed)


def _samples(
    splits: Splits,
    student: Student,
    task: Task,
    config: FinetuneConfig,
    apart: bool,
    room: Classroom,
) -> tuple[dict[str, Samples], list[Teacher]]:
    """Every split as the model reads it: text, and regions and pixels where it has them; the teachers to be asked.

    A teacher stands beside the training split alone; the CLIP that an adapter stands on beside every split.
    """
    text, clip = student.inputs(config.max_length)
    samples: dict[str, Samples] = {
        split: TextSamples(examples, text, clip) for split, examples in splits.items()
    }
    taught = samples if isinstance(student, ClipAdapter) else [task.train]
    wrapped = {split: room.wrap(samples[split]) for split in taught}
    samples |= {split: some for split, (some, _) in wrapped.items()}
    _, teachers = wrapped[task.train]
    if config.regions.regions:
        return seen(samples, student, task, config, apart), teachers
    if task.mark is not None:
        raise InputError(f"{task.name} asks for regions; pass --regions STORE")
    return samples, teachers


def _shelf(config: FinetuneConfig, task: Task, features: bool = True) -> Shelf:
    splits = (task.train, *task.dev, *task.test)
    return Shelf(config.regions.regions, splits, f"split of {task.name}", features)


def _learned_from(shelf: Shelf, task: Task, config: FinetuneConfig) -> SeveralStores:
    """The stores of all splits that are learned from."""
    return shelf.of(*(config.train_splits or (task.train,)))


def _check_one_store(
    samples: Samples, shelf: Shelf, store: SeveralStores, config: FinetuneConfig
) -> None:
    """Raises InputError if two splits that are learned from have different regions of one image.

    Which of them an example means could not be told once the splits are one.
    """
    parts = [shelf.of(split) for split in config.train_splits]
    if len(parts) < 2:
        return
    for image in dict.fromkeys(image for images in samples.images for image in images):
        for split, part in zip(config.train_splits, parts, strict=True):
            if image in part and part.holder(image) is not store.holder(image):
                raise InputError(
                    f"--regions: image {image!r} is in {store.holder(image).folder}, but also in "
                    f"{part.holder(image).folder}, the store of {split}; splits that are learned from together need "
                    "stores that share no image, or one for all"
                )


def seen(
    samples: Mapping[str, Samples],
    student: Student,
    task: Task,
    config: FinetuneConfig,
    apart: bool = False,
) -> dict[str, Samples]:
    """The same samples with their images' regions, and pixels for a model that reads these.

    Raises InputError if the model reads no regions, or other ones, or if --images is missing or not wanted.
    """
    options = config.regions
    reads_pixels = isinstance(student, EndToEnd)
    if not isinstance(student, SingleStream):
        raise InputError(
            f"--regions {' '.join(options.regions)}: this model reads no regions; expected a single-stream model"
        )
    if reads_pixels and not options.images:
        raise InputError(
            f"{config.model}: this model reads pixels; pass --images FOLDER beside --regions"
        )
    if options.images and not reads_pixels:
        raise InputError(
            f"--images {options.images}: this model reads stored features, no pixels; leave it out"
        )
    shelf = _shelf(config, task, features=not reads_pixels)
    stores = {}
    for split, some in samples.items():
        stores[split] = shelf.of(split)
        if split == task.train:
            stores[split] = _learned_from(shelf, task, config)
            _check_one_store(some, shelf, stores[split], config)
        if not reads_pixels:
            check_regions(stores[split], student, options.other_regions)
    seeing = seeing_of(
        student,
        task.form,
        most=options.most_regions,
        budget=options.budget,
        apart=apart,
        blind=config.blind,
    )
    seeing = replace(seeing, mark=task.mark)
    learning = replace(seeing, mark=task.mark_to_learn or task.mark)
    out: dict[str, Samples] = {
        split: RegionSamples(some, stores[split], learning if split == task.train else seeing)
        for split, some in samples.items()
    }
    # A blind model sees no pixels either: it reads the zeros that stand for its features.
    if isinstance(student, EndToEnd) and not config.blind:
        sides = (student.side, student.long_side)
        out = {split: Pictured(some, options.images, *sides) for split, some in out.items()}
    return out


def summary(task: Task, runs: list[dict[str, Any]], config: FinetuneConfig) -> dict[str, Any]:
    """Every seed's scores and their medians, by split and metric; NaN where a median is undefined.

    Medians of the benchmark's own scores (`Task.extra`) stand apart, as `official`.
    """
    medians: dict[str, dict[str, float]] = {}
    every: dict[str, dict[str, list[float]]] = {}
    official: dict[str, dict[str, float]] = {}
    for split in task.dev:
        present = [run["scores"][split] for run in runs if split in run["scores"]]
        names = [metric.name for metric in task.metrics]
        every[split] = {name: [scores[name] for scores in present] for name in names}
        # No seed is left out: where a metric is undefined (constant labels), so is its median.
        medians[split] = {name: _median(values) for name, values in every[split].items() if values}
        more = dict.fromkeys(name for scores in present for name in scores)
        own = [name for name in more if name not in (*names, "constant")]
        official[split] = {name: _median([scores[name] for scores in present]) for name in own}
    collapsed_seeds = [
        run["seed"]
        for run in runs
        if any("constant" in scores for scores in run["scores"].values())
    ]
    mixed = [run["unlabelled"] for run in runs[:1] if "unlabelled" in run]
    result: dict[str, Any] = {
        "task": task.name,
        "version": task.version,
        "model": config.model,
        "headline": task.metrics[0].name,
        "seeds": [run["seed"] for run in runs],
        "scores": every,
        "median": medians,
        "official": official,
        "collapsed_seeds": collapsed_seeds,
        "dropped_pieces": sum(run["dropped_pieces"] for run in runs),
        "dropped_regions": sum(run.get("dropped_regions", 0) for run in runs),
        **({"unlabelled": mixed[0]} if mixed else {}),
    }
    if trained_on(task, config):
        result["trained_on"] = trained_on(task, config)
    return result


def _median(values: Sequence[float]) -> float:
    return median(values) if all(isfinite(value) for value in values) else float("nan")


def _read(task: Task, config: FinetuneConfig) -> dict[str, list[Example]]:
    """Every split that is wanted, the training one cut to `max_train`."""
    folder = Path(config.data)
    if config.data != "hub" and not folder.exists():
        raise InputError(f"{config.data}: no such folder or file of data")
    learned = config.train_splits or (task.train,)
    wanted = [*learned, *task.dev]
    if config.submit:
        wanted += task.test
    parts = {}
    for split in dict.fromkeys(wanted):
        parts[split] = from_hub(task, split) if config.data == "hub" else task.read(folder, split)
    examples = together({split: parts[split] for split in learned})
    few = examples
    if config.partition:
        few = taken(examples, Path(config.partition), task, folder)
    rest = _unlabelled(examples, few, task, config) if config.unlabelled else []
    parts[task.train] = [*thinned(few, config.max_train), *rest]
    if config.regions.tags:
        return parts
    return {split: [untagged(example) for example in some] for split, some in parts.items()}


def _unlabelled(
    examples: Sequence[Example], few: Sequence[Example], task: Task, config: FinetuneConfig
) -> list[Example]:
    """The training examples outside the partition, which keep no label; raises InputError if there are none."""
    if task.mark is not None:
        raise InputError(
            f"--unlabelled {config.unlabelled}: the labels of {task.name} come with the regions and cannot be withheld"
        )
    rest = left_over(examples, few, task, Path(config.data))
    if not rest:
        raise InputError(
            f"--unlabelled {config.unlabelled}: {config.partition} takes all {len(examples)} training examples of "
            f"{task.name}, so that none is left without a label"
        )
    return rest

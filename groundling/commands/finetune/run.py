"""Fine-tune a model on a task, over seeds, and report medians."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from groundling.commands.finetune import COMMAND, FinetuneConfig
from groundling.commands.finetune.data import (
    Splits,
    bad_photos_note,
    check_regions_read,
    dev_splits_trained_on,
    missing_segments_note,
    read_splits,
    readable_photos,
    samples_of,
    task_of,
    training_source,
)
from groundling.commands.finetune.result import (
    degenerate_seeds_note,
    describe_seed,
    few_steps_note,
    image_use_notes,
    majority_baseline,
    majority_note,
    model_card,
    seed_notes,
    summary,
    without_images,
)
from groundling.core.errors import InputError
from groundling.core.output_types import OutputType
from groundling.core.registry import files_of_object, is_import_path, resolve
from groundling.core.rng import derive_seed
from groundling.data.regions import RegionStore
from groundling.data.regions.samples import ImageSampleBuilder
from groundling.data.samples import SampleDataset
from groundling.models.adapters import ClipFeatureAdapter, load_adapter_backbone
from groundling.models.heads import init_layer
from groundling.models.hub import is_adapter
from groundling.models.loading import Encoder
from groundling.models.lora import LoraAdapters, add_lora
from groundling.models.task_heads import TaskHead
from groundling.objectives import Objective, ObjectiveContext, unused_settings_note
from groundling.objectives.supervised import SupervisedObjective
from groundling.prediction.model_description import ModelDescription, region_facts
from groundling.runs.folder import sha256_of
from groundling.runs.run import Run, RunFolder
from groundling.settings.fields import refuse_settings, replace_settings
from groundling.settings.training import TrainingArguments
from groundling.stats.verdict_report import BASELINE
from groundling.tasks import Task, list_oddities
from groundling.tasks.splits import with_extra_splits
from groundling.tasks.table import TableReader, positive_class, table_notes
from groundling.teachers.feature_cache import TeacherSet
from groundling.teachers.loading import load_adapter_teacher_set, load_teacher_set
from groundling.training.evaluation import Evaluator, evaluate, score_split, write_predictions
from groundling.training.fit import fit, save_trained, taught_objectives
from groundling.training.image_use import EXCHANGED, exchange_images, image_use, shuffle_images
from groundling.vision_language import Architecture, RegionEncoder
from groundling.vision_language.loading import (
    ADAPTER,
    PLAIN,
    RAW,
    load_encoder,
    make_task_head,
    make_vision_language_model,
    new_vision_language_model,
)

# The model, the head of its task, and the description saved with it.


def student_of(config: FinetuneConfig, seed: int, store: RegionStore | None) -> Encoder:
    """The model; new multimodal embeddings get the feature width of the training `store`, if there is one."""
    name, images, pixels = config.architecture, config.regions.images, config.pixels
    if config.adapter_settings.adapter != "none":
        torch.manual_seed(derive_seed(seed, "init", "adapter"))
        return ClipFeatureAdapter(load_adapter_backbone(config.model), config.adapter_settings)
    student = load_encoder(config.model, config.model_format, name)
    if name and student.sizes.causal:
        raise InputError(f"architecture={name}: expected a BERT, but {config.model} is a decoder")
    if name and not isinstance(student, RegionEncoder):
        torch.manual_seed(derive_seed(seed, "init", "join"))
        if store is None:
            return make_vision_language_model(student, name, 1)
        model = new_vision_language_model(student, name, store, images, pixels, config.visualbert)
        model.regions_provenance = store.provenance
        return model
    refuse_settings(config.visualbert, "applies only to a new VisualBERT")
    if isinstance(student, RegionEncoder):
        own = student.architecture_name
        if name and resolve("vision_language", Architecture, name).name != own:
            raise InputError(f"architecture={name}: {config.model} is a {own}")
        student.resize(pixels.shortest_edge, pixels.longest_edge)
    return student


def head_of(student: Encoder, task: Task, splits: Splits, name: str, is_prepared: bool) -> TaskHead:
    """The task head of this name; prepares the model for its images and, if `is_prepared`, for the task's texts."""
    if isinstance(student, RegionEncoder):
        student.add_images(most_images(splits))
        if is_prepared:
            student.prepare(splits[task.train], False)
    return make_task_head(student, task.form, name)


def head_name(student: Encoder, task: Task, config: FinetuneConfig) -> str:
    """Name of the head for `make_task_head`: the paper's, or a plain one."""
    if student.clip_backbone is not None:
        return ADAPTER
    if config.cls_without_pooler:
        return RAW
    if config.linear_head or not isinstance(student, RegionEncoder):
        return PLAIN
    name = task.head_task or task.name
    head = student.architecture.heads.get(name)
    if head is None or (head.separates_images and not config.regions.regions):
        return PLAIN
    return name


def most_images(splits: Splits) -> int:
    """Largest number of images of an example."""
    return max(len(example.images) for some in splits.values() for example in some)


def describe_model(
    task: Task,
    splits: Splits,
    config: FinetuneConfig,
    head: str,
    store: RegionStore | None,
) -> ModelDescription:
    """Task, head, columns and input settings, saved with the model; `store`: the training regions."""
    files: dict[str, Path] = {}
    for name in filter(is_import_path, (config.task, config.architecture, config.model_format)):
        files |= files_of_object(name)
    return ModelDescription(
        task=config.task or task.name,
        form=task.form,
        version=task.version,
        head=head,
        loss="" if config.head_loss == "paper" else config.head_loss,
        max_length=config.max_length,
        images=most_images(splits),
        reads_regions=store is not None,
        region_settings=replace(config.regions, regions="", images="", allow_region_mismatch=False),
        zero_region_features=config.zero_region_features,
        is_prepared=not config.linear_head,
        own=replace(config.own, dev=Path(config.own.dev).name) if config.own.label else None,
        architecture=config.architecture if is_import_path(config.architecture) else "",
        model_format=config.model_format,
        modules={name: sha256_of(file) for name, file in files.items()},
        regions={} if store is None else region_facts(store),
    )


def finetune(config: FinetuneConfig, training: TrainingArguments, run: Run) -> dict[str, Any]:
    """Fine-tune once per seed in `seed-N`, evaluate, and return every seed's scores and medians.

    The result also has the majority baseline, and with `text_only_baseline` that baseline.
    """
    task = task_of(config)
    reader = task.read
    task = with_extra_splits(task, config.extra_eval)
    trained_on = dev_splits_trained_on(task, config.train_splits)
    run.note(*(table_notes(reader) if isinstance(reader, TableReader) else []))
    run.note(*task.identical_split_notes(Path(config.data)))
    settings, step = config.objective_settings, config.training_step.training_step
    if config.adapter_settings.adapter != "none" or is_adapter(config.model):
        settings = replace_settings(settings, teacher_images="")  # an adapter reads them
    extra = config.extra_objectives
    run.note(*unused_settings_note(extra.objectives, settings, step, teacher=extra.teacher))
    if config.shuffle_images:
        run.note(
            "shuffle_images: a control, in which each photograph's rows have another photograph"
        )
    for one in trained_on:
        run.note(f"{one} is a training split, so its scores are not on held-out data")

    tuning = FineTuning(task, config, training, run)
    seeds = range(training.seed, training.seed + config.seeds)
    runs = [run.part(f"seed-{seed}", partial(tuning.run_seed, seed)) for seed in seeds]
    result = summary(task, runs, config.model, trained_on)
    result |= positive_class(task.form) if isinstance(reader, TableReader) else {}
    run.note(*degenerate_seeds_note(result), *majority_note(task, result))
    if config.text_only_baseline:
        other = COMMAND(without_images(config, task), training, run.folder / BASELINE)
        kept = ("scores", "median", "degenerate_seeds")
        result["text_alone"] = {name: other[name] for name in kept}
    run.note(*image_use_notes(result), *few_steps_note(config, runs))
    run.notes += seed_notes(runs)
    return result


class FineTuning:
    """A task's fine-tunings: seeds share examples, regions and teachers, which the first unfinished one loads."""

    def __init__(
        self,
        task: Task,
        config: FinetuneConfig,
        training: TrainingArguments,
        run: Run,
        splits: Splits | None = None,
    ) -> None:
        """`splits`: the task's examples, by default those of `config.data`."""
        self.task = task
        self.config = config
        self.training = training
        self.run = run
        # With `images`, only boxes, classes and segments of the stores are read.
        self.inputs = ImageSampleBuilder(
            config.regions,
            train_regions=config.train_regions,
            zero_features=config.zero_region_features,
            flip=config.pixels.flip,
        )
        self._teacher_set: TeacherSet | None = None
        self.bad_photos: dict[str, str] = {}
        if splits is not None:
            self.splits = splits

    @cached_property
    def splits(self) -> Splits:
        """Examples of every split; with `skip_bad`, those whose photos can be read."""
        splits: Splits = read_splits(self.task, self.config)
        config = self.config
        targeted = config.objective_settings.targeted_distillation
        if config.skip_bad or config.adapter_settings.adapter != "none":
            folder = config.regions.images or targeted.teacher_images
            splits, self.bad_photos = readable_photos(splits, folder, config.skip_bad)
        return splits

    def run_seed(self, seed: int, part: RunFolder) -> dict[str, Any]:
        """Train with one seed, evaluate on every dev split, write predictions; returns scores by split and metric."""
        task, config, splits = self.task, self.config, self.splits
        self.run.counts |= {split: len(examples) for split, examples in splits.items()}
        student = student_of(config, seed, self.inputs.training_store)
        if student.sizes.causal and most_images(splits):
            raise InputError(
                f"{config.model}: a decoder reads texts alone, but {task.name} has images"
            )
        teacher_set = self._teachers(student)
        check_regions_read(student, task, self.inputs, config.model)
        torch.manual_seed(derive_seed(seed, "init", task.name))
        name = head_name(student, task, config)
        head = head_of(student, task, splits, name, not config.linear_head)
        student.word_embeddings().requires_grad_(not config.freeze_word_embeddings)
        if config.shuffle_images:
            splits = shuffle_images(task, splits, seed)
        read = {**splits, **self._exchanged(student)}
        samples, teachers = samples_of(
            read, head, student, task, self.inputs, teacher_set, config.max_length
        )
        if isinstance(student, ClipFeatureAdapter) and config.adapter_settings.adapter == "linear":
            student.standardise(samples[task.train])
        supervised, auxiliary = self._objectives(student, head, teacher_set, seed)
        objectives = [supervised, *auxiliary]
        part.note(*missing_segments_note(student, head, self.inputs), *self._notes())
        source = training_source(samples[task.train], splits[task.train], objectives, config)
        held = {split: some for split, some in splits.items() if split != task.train}
        majority = majority_baseline(task, splits[task.train], held)
        metric = task.metrics[0]
        adapters = add_lora(student, config.lora, seed, config.model)

        def measure() -> dict[str, float]:
            return evaluate(student, supervised, task, samples[task.dev[0]]).metrics

        trained = fit(
            student,
            objectives,
            ([source], teachers),
            replace(self.training, seed=seed),
            part,
            training_step=config.training_step,
            evaluator=Evaluator(
                config.examining, task.dev[0], metric.name, measure, metric.higher_is_better
            ),
        )
        result = describe_seed(task, config, seed, objectives, source)
        if adapters is not None:
            result["lora_parameters"] = adapters.merge()
        result |= self._evaluate(student, supervised, samples, part.folder) | majority
        result |= trained
        if config.save_model:
            description = describe_model(task, splits, config, name, self.inputs.training_store)
            part.save(partial(self._save, student, objectives, description, adapters, result))
        return result

    def _save(
        self,
        student: Encoder,
        objectives: Sequence[Objective],
        description: ModelDescription,
        adapters: LoraAdapters | None,
        result: Mapping[str, Any],
        folder: Path,
    ) -> None:
        save_trained(folder / "model", student, objectives)
        description.write(folder / "model")
        card = model_card(self.config, result)
        (folder / "model/README.md").write_text(card, encoding="utf-8")
        if adapters is not None:
            adapters.write(folder / "adapter", self.config.model)

    def _notes(self) -> list[str]:
        """Photos that were skipped, and what is odd in the examples."""
        notes = bad_photos_note(self.bad_photos)
        for split, examples in self.splits.items():
            notes += list_oddities(self.task.file(Path(self.config.data), split), examples)
        return notes

    def _exchanged(self, student: Encoder) -> Splits:
        """The labelled held-out examples with exchanged images, by split; empty for a model that reads no images."""
        config = self.config
        sees = config.regions.regions and not config.zero_region_features
        if config.shuffle_images or (student.clip_backbone is None and not sees):
            return {}
        held = {split: some for split, some in self.splits.items() if split != self.task.train}
        others = {split: exchange_images(self.task, some) for split, some in held.items()}
        return {EXCHANGED.format(split): some for split, some in others.items() if some}

    def _teachers(self, student: Encoder) -> TeacherSet:
        if self._teacher_set is None:
            device, folder = self.run.state.device, self.run.folder
            extra = self.config.extra_objectives
            if student.clip_backbone is not None:
                targeted = self.config.objective_settings.targeted_distillation
                self._teacher_set = load_adapter_teacher_set(
                    student.clip_backbone, targeted, device, folder
                )
            else:
                context = self._context(student, self.task.form)
                seed = self.training.seed
                self._teacher_set = load_teacher_set(
                    extra.teacher, extra.objectives, context, device, folder, seed
                )
        return self._teacher_set

    def _objectives(
        self, student: Encoder, head: TaskHead, teacher_set: TeacherSet, seed: int
    ) -> tuple[SupervisedObjective, list[Objective]]:
        """The task's loss; and the auxiliary objectives of the paper, if its head is used, and of the settings."""
        task, config = self.task, self.config
        loss = "" if config.head_loss == "paper" else config.head_loss
        supervised = SupervisedObjective(student.sizes, output_type=task.form, head=head, loss=loss)
        paper_objectives: tuple[str, ...] = ()
        is_paper = config.auxiliary_losses and not config.linear_head and config.regions.regions
        if is_paper and isinstance(student, RegionEncoder):
            paper_objectives = student.architecture.auxiliary_objectives.get(task.name, ())
        names = tuple(dict.fromkeys([*paper_objectives, *config.extra_objectives.objectives]))
        context = self._context(student, supervised.output_type)
        auxiliary = taught_objectives(names, context, teacher_set, seed)
        if student.sizes.visual:
            for objective in (supervised, *auxiliary):
                for layer, name in objective.pretrained_layers():
                    init_layer(layer, config.model, name)
        return supervised, auxiliary

    def _context(self, student: Encoder, form: OutputType) -> ObjectiveContext:
        sizes = student.sizes
        store = self.inputs.training_store
        if store is not None:
            sizes = sizes._replace(classes=store.classes, background=store.background)
        settings = self.config.objective_settings
        return ObjectiveContext(sizes, student.text_tokenizer, settings, output_type=form)

    def _evaluate(
        self,
        student: Encoder,
        objective: SupervisedObjective,
        samples: Mapping[str, SampleDataset],
        out: Path,
    ) -> dict[str, Any]:
        task, data = self.task, Path(self.config.data)
        splits = [split for split in self.splits if split != task.train]
        answers = {split: evaluate(student, objective, task, samples[split]) for split in splits}
        uses = {}
        for split in splits:
            others = samples.get(EXCHANGED.format(split))
            if others is not None:
                exchanged = evaluate(student, objective, task, others)
                train = self.splits[task.train]
                uses[split] = image_use(task, self.splits[split], answers[split], exchanged, train)
        if PartialState().is_main_process:
            for split, some in answers.items():
                write_predictions(some, task, split, out)
        labelled = {split: some for split, some in answers.items() if some.labels is not None}
        scores = {split: score_split(some, task, split, data) for split, some in labelled.items()}
        counts = {split: len(some.examples) for split, some in labelled.items()}
        result: dict[str, Any] = {"scores": scores, "n": counts}
        return result | ({"image_use": uses} if uses else {})

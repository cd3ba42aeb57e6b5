"""Steps of a sweep: commands with their settings, in order. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from groundling.command_line.registered_names import TASKS_WITH_ANSWERS
from groundling.commands.sweep.schema import (
    PRETRAIN_OF,
    PRETRAININGS,
    CommandSettings,
    FineTuningTask,
    Notes,
    Sweep,
    SweepInput,
    Variant,
    agrees,
    check_folders,
    format_setting,
    references,
    slug,
)
from groundling.core.errors import InputError
from groundling.settings.fields import replace_settings, setting_values


@dataclass(frozen=True)
class SweepStep:
    """One command of a sweep."""

    name: str
    """Unique name."""
    command: str
    """adapt, pretrain, finetune, or a command that makes data."""
    settings: CommandSettings
    """Its settings and training settings, with references as in the file."""
    out: Path
    """Its run folder or output file."""
    after: tuple[str, ...] = ()
    """Steps that must finish first."""
    notes: Notes = field(default_factory=dict)
    """The paper's values of the settings."""
    variant: str = ""
    """Variant that it belongs to; empty if it is shared."""
    task: str = ""
    """Fine-tuning: the task's name in reports."""

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """Data and weights that its settings refer to."""
        return tuple(dict.fromkeys(references(self.settings[0])))

    @cached_property
    def values(self) -> dict[str, Any]:
        """Every setting by name, including training settings."""
        return setting_values(*self.settings)


def steps_of(sweep: Sweep, out: Path) -> list[SweepStep]:
    """Every command in starting order: data, models, then task by task.

    An interrupted sweep has whole columns. Raises InputError for variants or tasks that would share
    a folder.
    """
    check_folders(sweep)
    rounds = [one for variant in sweep.variants for one in _rounds(sweep, variant, out)]
    models = _pretrainings(sweep, out)
    for one in rounds:
        if not one.variant.model:
            models.append(_adaptation(one, out))
    fine_tunings = []
    for task in sweep.tasks:
        fine_tunings += [
            _fine_tuning(sweep, task, one, out) for one in rounds if _is_needed(sweep, task, one)
        ]
    needed = _needed_models(fine_tunings, models)
    steps = [*(step for step in models if step.name in needed), *fine_tunings]
    return _after_data(_data_steps(sweep, steps, out), steps, sweep)


def _needed_models(fine_tunings: Sequence[SweepStep], models: Sequence[SweepStep]) -> set[str]:
    """Steps that the fine-tunings depend on; with few rows, these may be few."""
    before = {step.name: step.after for step in models}
    waiting = [name for step in fine_tunings for name in step.after]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting += before[name]
    return found


def _after_data(
    data_steps: Sequence[SweepStep], others: Sequence[SweepStep], sweep: Sweep
) -> list[SweepStep]:
    """All steps, each after those that make its data."""
    by_source = {step.name: step.name for step in data_steps}
    ordered = []
    for step in [*data_steps, *others]:
        made = [_data_step_name(name) for name in step.needs if sweep.sources[name].command]
        after = [name for name in made if name in by_source and name != step.name]
        ordered.append(replace(step, after=(*step.after, *after)))
    return ordered


def _data_step_name(reference: str) -> str:
    return f"{reference}: make"


def _data_steps(sweep: Sweep, steps: Sequence[SweepStep], out: Path) -> list[SweepStep]:
    """Steps that make the data of other steps, and the data that these need in turn."""
    made: dict[str, SweepInput] = {}
    waiting = [name for step in steps for name in step.needs]
    while waiting:
        source = sweep.sources[waiting.pop(0)]
        if source.command and source.name not in made:
            made[source.name] = source
            waiting += references(source.settings[0])
    return [
        SweepStep(_data_step_name(one.name), one.command, one.settings, Path(one.path))
        for one in reversed(made.values())
    ]


def _pretrainings(sweep: Sweep, out: Path) -> list[SweepStep]:
    steps = []
    for one in sweep.pretrainings:
        config, training = one.settings
        after: tuple[str, ...] = ()
        if config.model.startswith(PRETRAIN_OF):
            before = config.model.removeprefix(PRETRAIN_OF)
            config = replace_settings(config, model=_pretrained_model(before, out))
            after = (_pretraining_name(before),)
        folder = out / PRETRAININGS / slug(one.name)
        steps.append(
            SweepStep(
                _pretraining_name(one.name),
                "pretrain",
                (config, training),
                folder,
                after,
                one.notes,
            )
        )
    return steps


def _pretraining_name(name: str) -> str:
    return f"pretrain {name}"


def _pretrained_model(name: str, out: Path) -> str:
    return str(out / PRETRAININGS / slug(name) / "model")


@dataclass(frozen=True)
class _VariantAdaptation:
    """One adaptation of a variant and its fine-tunings."""

    variant: Variant
    folder: Path
    seed: int
    """Seed of the adaptation, and of the fine-tuning if every seed adapts anew."""


def _rounds(sweep: Sweep, variant: Variant, out: Path) -> list[_VariantAdaptation]:
    """One adaptation with all fine-tuning seeds, or one adaptation per seed."""
    folder = out / slug(variant.name)
    first = variant.train.seed
    if not sweep.adapt_every_seed:
        return [_VariantAdaptation(variant, folder, first)]
    seeds = max(sweep.seeds_of(task) for task in sweep.tasks)
    return [
        _VariantAdaptation(variant, folder / f"seed-{s}", s) for s in range(first, first + seeds)
    ]


def _adaptation(one: _VariantAdaptation, out: Path) -> SweepStep:
    settings = (one.variant.adapt, replace(one.variant.train, seed=one.seed))
    name = _adaptation_name(one.folder, out)
    folder = one.folder / "adapt"
    notes = one.variant.notes
    return SweepStep(name, "adapt", settings, folder, notes=notes, variant=one.variant.name)


def _is_needed(sweep: Sweep, task: FineTuningTask, one: _VariantAdaptation) -> bool:
    """Whether a table contains this round; with several adaptations, as many as the task has seeds."""
    if not sweep.has_cell(one.variant, task):
        return False
    return not sweep.adapt_every_seed or one.seed - one.variant.train.seed < sweep.seeds_of(task)


def _fine_tuning(
    sweep: Sweep, task: FineTuningTask, one: _VariantAdaptation, out: Path
) -> SweepStep:
    config, training = task.settings_for(one.variant)
    if sweep.adapt_every_seed:
        config = replace(config, seeds=1)
        training = replace(training, seed=one.seed)
    else:
        config = replace(config, seeds=sweep.seeds_of(task))
    model, after = _model_of(one, out)
    return SweepStep(
        f"{one.folder.relative_to(out)}: {task.name}",
        "finetune",
        (replace(config, model=model), training),
        one.folder / slug(task.name),
        after,
        task.notes_for(one.variant),
        one.variant.name,
        task.name,
    )


def _model_of(one: _VariantAdaptation, out: Path) -> tuple[str, tuple[str, ...]]:
    """The model to fine-tune, and the step that makes it."""
    variant = one.variant
    if variant.joint_of:
        source = out / slug(variant.joint_of) / one.folder.relative_to(out / slug(variant.name))
        return str(source / "adapt" / "joint"), (_adaptation_name(source, out),)
    if variant.pretrain_of:
        name = variant.pretrain_of
        return _pretrained_model(name, out), (_pretraining_name(name),)
    if variant.model:
        return variant.model, ()
    return str(one.folder / "adapt" / "model"), (_adaptation_name(one.folder, out),)


def _adaptation_name(folder: Path, out: Path) -> str:
    return f"{folder.relative_to(out)}: adapt"


def check_notes(steps: Sequence[SweepStep], sweep: Sweep) -> None:
    """Raises InputError for a note on an unknown setting, or a value that differs without a reason."""
    titles = sweep.titles
    for step in steps:
        values = step.values
        for name, note in step.notes.items():
            if name not in values:
                raise InputError(
                    f"{note.where}: unknown key {name!r}; `{step.command}` has no setting of this name"
                )
            if not note.reason and not agrees(note.printed, values[name], titles):
                raise InputError(
                    f"{note.where}: {name} = {format_setting(values[name], titles)} for {step.name}, but the paper has "
                    f"{note.printed} ({note.source}); use the paper's value, or add the reason as a third string"
                )


OWN_SPLIT = ("train",)
"""Default training split of every task."""


@dataclass(frozen=True)
class ContaminationSource:
    """Answers that a model has read in earlier training: data, splits and examples."""

    model: str
    """The step or the weights that read them."""
    data: tuple[str, ...]
    """References to the data."""
    splits: tuple[str, ...] = ()
    """Splits; empty: the task's own training split."""
    partition: str = ""
    """The partition file, if only its examples were read; empty: all of the splits."""


def exposure_notes(steps: Sequence[SweepStep], sources: Mapping[str, SweepInput]) -> list[str]:
    """A line for each fine-tuning that starts from a model which has read answers that the
    fine-tuning hides.

    These are answers of training examples outside its partition, and of splits that it is not
    trained on.
    """
    return [
        f"{step.name}: {exposure.model} has read the right answers of {data}, which this row holds out"
        for step in steps
        if step.command == "finetune"
        for exposure in _start_exposures(step, steps, sources)
        for data in _hidden_data(exposure, step)
    ]


def _hidden_data(exposure: ContaminationSource, step: SweepStep) -> list[str]:
    """The data of an exposure that a fine-tuning is not trained on; empty if the data sets differ."""
    values = step.values
    data = references(values["data"])
    if not set(exposure.data) & set(data):
        return []
    found = []
    learned = values["train_splits"] or OWN_SPLIT
    more = [split for split in exposure.splits or OWN_SPLIT if split not in learned]
    if more:
        found.append(f"{' and '.join(more)} of {data[0]}")
    if values["partition"] and exposure.partition != values["partition"]:
        found.append(f"{data[0]} outside {values['partition']}")
    if values["limit_train"] and not exposure.partition:
        found.append(f"{data[0]} beyond {values['limit_train']:,} examples")
    return found


def _start_exposures(
    step: SweepStep, steps: Sequence[SweepStep], sources: Mapping[str, SweepInput]
) -> list[ContaminationSource]:
    """Every exposure to answers of a step's starting model, and of the models before it."""
    start = str(step.values["student" if step.command == "adapt" else "model"])
    found = []
    for name in references(start):
        source = sources[name]
        found += [
            ContaminationSource(source.title, (data,))
            for data in references(source.trained_on_labels)
        ]
        if source.command == "finetune":
            made = SweepStep(name, source.command, source.settings, Path(source.path))
            found += [_exposure(made), *_start_exposures(made, steps, sources)]
    for before in steps:
        if start.startswith(f"{before.out}/") and before.command in ("adapt", "pretrain"):
            if before.command == "pretrain" and _reads_answers(before):
                found.append(_exposure(before))
            found += _start_exposures(before, steps, sources)
    return found


def _reads_answers(step: SweepStep) -> bool:
    """Whether a pre-training reads right answers."""
    answers = step.values["task_answers"]
    return answers == "judged" or (answers == "right" and step.values["task"] in TASKS_WITH_ANSWERS)


def _exposure(step: SweepStep) -> ContaminationSource:
    values = step.values
    data = tuple(references(values["data"]))
    return ContaminationSource(step.name, data, tuple(values["train_splits"]), values["partition"])

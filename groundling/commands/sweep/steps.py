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
    Filled,
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
    settings: Filled
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


def steps_of(what: Sweep, out: Path) -> list[SweepStep]:
    """Every command in starting order: data, models, then task by task.

    An interrupted sweep has whole columns. Raises InputError for variants or tasks that would share
    a folder.
    """
    check_folders(what)
    rounds = [one for variant in what.variants for one in _rounds(what, variant, out)]
    models = _pretrainings(what, out)
    for one in rounds:
        if not one.variant.model:
            models.append(_adaptation(one, out))
    tunings = []
    for tuning in what.tunings:
        tunings += [
            _fine_tuning(what, tuning, one, out) for one in rounds if _wanted(what, tuning, one)
        ]
    used = _needed_models(tunings, models)
    kept = [*(step for step in models if step.name in used), *tunings]
    return _after_data(_makings(what, kept, out), kept, what)


def _needed_models(tunings: Sequence[SweepStep], models: Sequence[SweepStep]) -> set[str]:
    """Steps that the fine-tunings depend on; with few rows, these may be few."""
    before = {step.name: step.after for step in models}
    waiting = [name for step in tunings for name in step.after]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting += before[name]
    return found


def _after_data(
    makings: Sequence[SweepStep], others: Sequence[SweepStep], what: Sweep
) -> list[SweepStep]:
    """All steps, each after those that make its data."""
    by_source = {step.name: step.name for step in makings}
    ordered = []
    for step in [*makings, *others]:
        made = [_making(name) for name in step.needs if what.sources[name].command]
        after = [name for name in made if name in by_source and name != step.name]
        ordered.append(replace(step, after=(*step.after, *after)))
    return ordered


def _making(reference: str) -> str:
    return f"{reference}: make"


def _makings(what: Sweep, steps: Sequence[SweepStep], out: Path) -> list[SweepStep]:
    """Steps that make the data of other steps, and the data that these need in turn."""
    wanted: dict[str, SweepInput] = {}
    waiting = [name for step in steps for name in step.needs]
    while waiting:
        source = what.sources[waiting.pop(0)]
        if source.command and source.name not in wanted:
            wanted[source.name] = source
            waiting += references(source.settings[0])
    return [
        SweepStep(_making(one.name), one.command, one.settings, Path(one.path))
        for one in reversed(wanted.values())
    ]


def _pretrainings(what: Sweep, out: Path) -> list[SweepStep]:
    steps = []
    for one in what.pretrainings:
        config, training = one.settings
        after: tuple[str, ...] = ()
        if config.model.startswith(PRETRAIN_OF):
            before = config.model.removeprefix(PRETRAIN_OF)
            config = replace_settings(config, model=_pretrained(before, out))
            after = (_pretraining(before),)
        folder = out / PRETRAININGS / slug(one.name)
        steps.append(
            SweepStep(
                _pretraining(one.name), "pretrain", (config, training), folder, after, one.notes
            )
        )
    return steps


def _pretraining(name: str) -> str:
    return f"pretrain {name}"


def _pretrained(name: str, out: Path) -> str:
    return str(out / PRETRAININGS / slug(name) / "model")


@dataclass(frozen=True)
class _AdaptationRound:
    """One adaptation of a variant and its fine-tunings."""

    variant: Variant
    folder: Path
    seed: int
    """Seed of the adaptation, and of the fine-tuning if every seed adapts anew."""


def _rounds(what: Sweep, variant: Variant, out: Path) -> list[_AdaptationRound]:
    """One adaptation with all fine-tuning seeds, or one adaptation per seed."""
    folder = out / slug(variant.name)
    first = variant.train.seed
    if not what.adapt_every_seed:
        return [_AdaptationRound(variant, folder, first)]
    most = max(what.seeds_of(tuning) for tuning in what.tunings)
    return [_AdaptationRound(variant, folder / f"seed-{s}", s) for s in range(first, first + most)]


def _adaptation(one: _AdaptationRound, out: Path) -> SweepStep:
    settings = (one.variant.adapt, replace(one.variant.train, seed=one.seed))
    name = _adapting(one.folder, out)
    folder = one.folder / "adapt"
    notes = one.variant.notes
    return SweepStep(name, "adapt", settings, folder, notes=notes, variant=one.variant.name)


def _wanted(what: Sweep, tuning: FineTuningTask, one: _AdaptationRound) -> bool:
    """Whether a table contains this round; with several adaptations, as many as the task has seeds."""
    if not what.runs(one.variant, tuning):
        return False
    return not what.adapt_every_seed or one.seed - one.variant.train.seed < what.seeds_of(tuning)


def _fine_tuning(
    what: Sweep, tuning: FineTuningTask, one: _AdaptationRound, out: Path
) -> SweepStep:
    config, training = tuning.of(one.variant)
    if what.adapt_every_seed:
        config = replace(config, seeds=1)
        training = replace(training, seed=one.seed)
    else:
        config = replace(config, seeds=what.seeds_of(tuning))
    model, after = _model_of(one, out)
    return SweepStep(
        f"{one.folder.relative_to(out)}: {tuning.name}",
        "finetune",
        (replace(config, model=model), training),
        one.folder / slug(tuning.name),
        after,
        tuning.notes_of(one.variant),
        one.variant.name,
        tuning.name,
    )


def _model_of(one: _AdaptationRound, out: Path) -> tuple[str, tuple[str, ...]]:
    """The model to fine-tune, and the step that makes it."""
    variant = one.variant
    if variant.joint_of:
        source = out / slug(variant.joint_of) / one.folder.relative_to(out / slug(variant.name))
        return str(source / "adapt" / "joint"), (_adapting(source, out),)
    if variant.pretrain_of:
        name = variant.pretrain_of
        return _pretrained(name, out), (_pretraining(name),)
    if variant.model:
        return variant.model, ()
    return str(one.folder / "adapt" / "model"), (_adapting(one.folder, out),)


def _adapting(folder: Path, out: Path) -> str:
    return f"{folder.relative_to(out)}: adapt"


def check_notes(steps: Sequence[SweepStep], what: Sweep) -> None:
    """Raises InputError for a note on an unknown setting, or a value that differs without a reason."""
    titles = what.titles
    for step in steps:
        values = step.values
        for name, note in step.notes.items():
            if name not in values:
                raise InputError(
                    f"{note.where}: unknown key {name!r}; `{step.command}` has no setting of this name"
                )
            if not note.reason and not agrees(note.printed, values[name], titles):
                raise InputError(
                    f"{note.where}: deviation without reason: {name} = "
                    f"{format_setting(values[name], titles)} for {step.name}, "
                    f"the paper has {note.printed} ({note.source}); use it, or add the reason as a third text"
                )


OWN_SPLIT = ("train",)
"""Default training split of every task."""


@dataclass(frozen=True)
class PriorExposure:
    """Answers that a model has read in earlier training: data, splits and examples."""

    by: str
    """The step, or the weights, that read them."""
    data: tuple[str, ...]
    """References to the data."""
    splits: tuple[str, ...] = ()
    """Splits; empty: the task's own training split."""
    only: str = ""
    """The partition file whose examples alone were read; empty: all of the splits."""


def exposure_notes(steps: Sequence[SweepStep], sources: Mapping[str, SweepInput]) -> list[str]:
    """A line for each fine-tuning that starts from a model which has read answers that the
    fine-tuning hides.

    These are answers of training examples outside its partition, and of splits that it is not
    trained on.
    """
    return [
        f"{step.name}: {read.by} has read the right answers of {told}, which this row hides"
        for step in steps
        if step.command == "finetune"
        for read in _read_by_the_start(step, steps, sources)
        for told in _beyond(read, step)
    ]


def _beyond(read: PriorExposure, step: SweepStep) -> list[str]:
    """What was read beyond a fine-tuning's own training data; empty if the data differ."""
    values = step.values
    data = references(values["data"])
    if not set(read.data) & set(data):
        return []
    found = []
    learned = values["train_splits"] or OWN_SPLIT
    more = [split for split in read.splits or OWN_SPLIT if split not in learned]
    if more:
        found.append(f"{' and '.join(more)} of {data[0]}")
    if values["partition"] and read.only != values["partition"]:
        found.append(f"{data[0]} outside {values['partition']}")
    if values["limit_train"] and not read.only:
        found.append(f"{data[0]} beyond {values['limit_train']:,} examples")
    return found


def _read_by_the_start(
    step: SweepStep, steps: Sequence[SweepStep], sources: Mapping[str, SweepInput]
) -> list[PriorExposure]:
    """Every exposure to answers of a step's starting model, and of the models before it."""
    start = str(step.values["student" if step.command == "adapt" else "model"])
    found = []
    for name in references(start):
        source = sources[name]
        found += [PriorExposure(source.title, (data,)) for data in references(source.answers)]
        if source.command == "finetune":
            made = SweepStep(name, source.command, source.settings, Path(source.path))
            found += [_read(made), *_read_by_the_start(made, steps, sources)]
    for before in steps:
        if start.startswith(f"{before.out}/") and before.command in ("adapt", "pretrain"):
            if before.command == "pretrain" and _tells(before):
                found.append(_read(before))
            found += _read_by_the_start(before, steps, sources)
    return found


def _tells(step: SweepStep) -> bool:
    """Whether a pre-training reads right answers."""
    answers = step.values["task_answers"]
    return answers == "judged" or (answers == "right" and step.values["task"] in TASKS_WITH_ANSWERS)


def _read(step: SweepStep) -> PriorExposure:
    values = step.values
    data = tuple(references(values["data"]))
    return PriorExposure(step.name, data, tuple(values["train_splits"]), values["partition"])

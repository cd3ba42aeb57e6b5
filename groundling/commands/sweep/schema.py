"""Parts of a sweep: data, models, tasks, tables, and the paper's values. Imports nothing heavy."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundling.command_line import COMMANDS, Command
from groundling.commands.adapt import AdaptConfig
from groundling.commands.finetune import FinetuneConfig
from groundling.core.errors import InputError, require_known
from groundling.settings.fields import fill_settings as fill
from groundling.settings.fields import replace_settings, setting_values
from groundling.settings.training import TrainingArguments

CommandSettings = tuple[Any, Any]
"""A command's settings and its training settings; the second is None for a command that trains \
nothing."""
DATA = "data "
"""Prefix of the names of commands that make data; a sweep file uses the rest of the name."""
OTHER_DATA_COMMANDS = ("regions", "finetune")
"""Other commands that may make a `[data.NAME]`."""


def find_command(word: str) -> Command:
    """The command of a name in a sweep file: `adapt`, or `partition`, which makes data."""
    return COMMANDS.get(DATA + word) or COMMANDS[word]


def data_commands() -> Sequence[str]:
    """Names in a sweep file of the commands that may make a `[data.NAME]`."""
    data = [name.removeprefix(DATA) for name, one in COMMANDS.items() if _makes_data(one)]
    return [*OTHER_DATA_COMMANDS, *data]


def _makes_data(command: Command) -> bool:
    """Whether a command writes data and has only settings of its own."""
    writes = command.has_out and not command.file
    return command.name.startswith(DATA) and writes and set(command.settings) == {"_own"}


def default_settings(word: str) -> CommandSettings:
    """A command's default settings."""
    settings = find_command(word).settings
    own = settings["_own"]
    if word == "finetune":
        own = replace_settings(own, save_model=False)  # hundreds of models would fill a disk
    return own, settings.get("_train")


def command_arguments(settings: CommandSettings, out: Path) -> list[Any]:
    """The arguments of a command."""
    return [*(group for group in settings if group is not None), out]


def require_table(value: object, where: str) -> dict[str, Any]:
    """A copy of a table; raises InputError, which begins with `where`, for anything else."""
    if not isinstance(value, dict):
        raise InputError(f"{where}: {value!r}, expected a table")
    return dict(value)


def fill_command_settings(defaults: CommandSettings, values: object, where: str) -> CommandSettings:
    """Settings with the values of one table; each key goes to the configuration that has it."""
    groups = [group for group in defaults if group is not None]
    own, *training = fill(groups, require_table(values, where), where)
    return own, training[0] if training else None


EXPECTED = (
    '["value as printed", "section or table"], and the reason as a third string where ours differs'
)
YES_OR_NO = {"yes": True, "no": False}
REFERENCE = re.compile(r"\b(?:data|weights):[\w+-]+")
"""A setting's reference to `[data.NAME]` or `[weights.NAME]` of the file."""
NUMBER = re.compile(r"([-+]?[\d.]+(?:e[-+]?\d+)?)(%?)")
"""A number without thousands separators and spaces; `7.0e - 5` is one number."""


@dataclass(frozen=True)
class PaperSetting:
    """Value of one setting in a paper or in its authors' code."""

    printed: str
    """The value as printed."""
    source: str
    """Section or table, or the file of the authors' code."""
    reason: str = ""
    """Why this sweep differs; empty where it must not."""
    where: str = ""
    """The table of the sweep file that holds the note."""


def read_notes(table: object, where: str) -> dict[str, PaperSetting]:
    """The notes of a `paper` table by setting; raises InputError naming a malformed one."""
    notes = {}
    for key, value in require_table(table, f"{where}.paper").items():
        texts = isinstance(value, list) and all(isinstance(one, str) and one for one in value)
        if not texts or len(value) not in (2, 3):
            raise InputError(f"{where}.paper: {key} = {value!r}, expected {EXPECTED}")
        printed, source, *reason = value
        notes[key] = PaperSetting(printed, source, "".join(reason), f"{where}.paper")
    return notes


def agrees(printed: str, value: object, titles: Mapping[str, str]) -> bool:
    """Whether a printed value equals a setting: as numbers (`8,000`, `10 %`), as yes or no, or as
    texts.
    """
    if isinstance(value, bool):
        return YES_OR_NO.get(printed.strip().lower()) is value
    if isinstance(value, int | float):
        return _equal(_numbers(printed), (value,))
    if isinstance(value, tuple) and value and not isinstance(value[0], str):
        return _equal(_numbers(printed), value)
    return _plain(printed) == _plain(format_setting(value, titles))


def _equal(printed: Sequence[float] | None, values: Sequence[float]) -> bool:
    if printed is None or len(printed) != len(values):
        return False
    return all(math.isclose(one, other) for one, other in zip(printed, values, strict=True))


def _plain(text: str) -> str:
    return " ".join(text.replace(",", " ").lower().split())


def _numbers(printed: str) -> list[float] | None:
    """The numbers of a printed value; None if it contains anything else."""
    text = re.sub(r"(\d),(?=\d{3}\b)", r"\1", printed.lower())
    text = re.sub(r"e\s*([-+])\s*(\d)", r"e\1\2", text).replace(" %", "%")
    numbers = []
    for word in text.replace(",", " ").split():
        match = NUMBER.fullmatch(word)
        if match is None:
            return None
        try:
            number = float(match[1])
        except ValueError:
            return None
        numbers.append(number / 100 if match[2] else number)
    return numbers


def format_setting(value: Any, titles: Mapping[str, str]) -> str:
    """A setting's value in a table; `titles` gives printed names of references such as
    `weights:NAME`.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(format_setting(one, titles) for one in value)
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    return REFERENCE.sub(lambda match: titles.get(match[0], match[0]), str(value))


def paper_mark(note: PaperSetting | None, value: object, titles: Mapping[str, str]) -> str:
    """Relation of a setting to the paper: the same, different for a reason, ours where the paper
    has none, or an input.
    """
    if note is None:
        return "input" if REFERENCE.search(str(value)) else "ours"
    if agrees(note.printed, value, titles):
        return f"same; {note.reason}" if note.reason else "same"
    return f"differs: {note.reason or 'changed on the command line'}"


PRETRAININGS = "pretrain"
VERDICTS = "tables"
"""Folders of a sweep that do not belong to a variant."""
JOINT_OF = "joint of "
PRETRAIN_OF = "pretrain of "
SEEDS = 5
"""Default number of runs per task."""
Notes = Mapping[str, PaperSetting]
"""A paper's values of settings, by name."""


@dataclass(frozen=True)
class SweepInput:
    """Data or weights that runs need."""

    name: str
    """Reference in settings: `data:NAME` or `weights:NAME`."""
    path: str
    """File or folder; for weights also a hub id."""
    title: str
    """Name in papers."""
    available_from: str = ""
    """Where to obtain it; empty if the sweep makes it, and for a hub id, which is downloaded."""
    kind: str = ""
    """The kind of its stand-in in a miniature; empty if the sweep makes it."""
    size: str = ""
    """Weights: base or large, for the estimate of hours."""
    examples: int = 0
    """Data: number of training examples, for the estimate of steps; 0: unknown."""
    tokens: int = 0
    """Data: average tokens and regions per row, for the estimate of hours; 0: unknown."""
    trained_on_labels: str = ""
    """Weights: the data on whose labels they were trained, such as `data:vcr`; empty: none."""
    command: str = ""
    """Command that makes it, if it does not exist."""
    settings: CommandSettings = (None, None)
    """Settings of that command."""


@dataclass(frozen=True)
class PretrainingSpec:
    """A pre-training of the sweep, from which variants start."""

    name: str
    """Name in the file."""
    settings: CommandSettings
    """`PretrainConfig` and its training settings; its model may be `pretrain of NAME`."""
    notes: Notes = field(default_factory=dict)
    """The paper's values."""


@dataclass(frozen=True)
class Variant:
    """A model of the sweep: adapted, or an existing one."""

    name: str
    """Name in reports."""
    adapt: AdaptConfig
    """Adaptation settings."""
    train: TrainingArguments
    """Training settings of the adaptation."""
    model: str = ""
    """Model to fine-tune without adaptation: a hub id, a folder, `pretrain of NAME`, or `joint of \
NAME`, another variant's whole model."""
    published: str = ""
    """Published system that it reproduces, see `published.py`."""
    tune_settings: tuple[tuple[str, Any], ...] = ()
    """Its own settings for every fine-tuning, such as no regions."""
    notes: Notes = field(default_factory=dict)
    """The paper's values of its adaptation."""
    tune_notes: Notes = field(default_factory=dict)
    """The paper's values of `tune`."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Scores in the paper, in the metric's own units, by task name in reports."""

    @property
    def joint_of(self) -> str:
        """The variant whose whole model is fine-tuned; empty if none."""
        return self.model.removeprefix(JOINT_OF) if self.model.startswith(JOINT_OF) else ""

    @property
    def pretrain_of(self) -> str:
        """The pre-training that it starts from; empty if none."""
        return self.model.removeprefix(PRETRAIN_OF) if self.model.startswith(PRETRAIN_OF) else ""


@dataclass(frozen=True)
class FineTuningTask:
    """A task of the sweep and its fine-tuning settings."""

    finetune: FinetuneConfig
    """The task, its data and its settings."""
    train: TrainingArguments
    """Training settings."""
    seeds: int = 0
    """Runs of this task (XDBERT has 9 of RTE, 5 of the rest); 0: the sweep's number."""
    notes: Notes = field(default_factory=dict)
    """The paper's values of these settings."""

    @property
    def name(self) -> str:
        """Name in folders and reports."""
        return self.finetune.display_name or self.finetune.task

    def settings_for(self, variant: Variant) -> tuple[FinetuneConfig, TrainingArguments]:
        """The settings for a variant, including the variant's own."""
        where = f'[variants."{variant.name}".tune]'
        return fill_command_settings(
            (self.finetune, self.train), dict(variant.tune_settings), where
        )

    def notes_for(self, variant: Variant) -> Notes:
        """The paper's values of the settings for a variant."""
        return {**self.notes, **variant.tune_notes}


@dataclass(frozen=True)
class TableSpec:
    """A table of the paper: variants and tasks to run; the first variant is the control."""

    name: str
    """Number in the paper; empty if the file has no tables."""
    rows: tuple[str, ...]
    """Variants."""
    columns: tuple[str, ...]
    """Tasks."""


@dataclass(frozen=True)
class Sweep:
    """All runs of a sweep; the first variant is the control."""

    variants: tuple[Variant, ...]
    """The models."""
    tasks: tuple[FineTuningTask, ...]
    """The tasks."""
    seeds: int = SEEDS
    """Runs of every task without its own number."""
    adapt_every_seed: bool = False
    """Adapt anew for every fine-tuning seed; otherwise one adaptation is fine-tuned once per seed \
(as in the paper)."""
    pretrainings: tuple[PretrainingSpec, ...] = ()
    """Pre-trainings that come first."""
    sources: Mapping[str, SweepInput] = field(default_factory=dict)
    """Data and weights by reference."""
    tables: tuple[TableSpec, ...] = ()
    """Empty: every variant on every task."""
    title: str = ""
    """Title of the paper."""

    def seeds_of(self, task: FineTuningTask) -> int:
        """Runs of a task."""
        return task.seeds or self.seeds

    def verdict_tables(self) -> tuple[TableSpec, ...]:
        """The file's tables, or one table with everything."""
        if self.tables:
            return self.tables
        variants = tuple(variant.name for variant in self.variants)
        return (TableSpec("", variants, tuple(task.name for task in self.tasks)),)

    def has_cell(self, variant: Variant, task: FineTuningTask) -> bool:
        """Whether a table contains this cell."""
        return any(
            variant.name in table.rows and task.name in table.columns
            for table in self.verdict_tables()
        )

    @property
    def titles(self) -> dict[str, str]:
        """Printed names of references."""
        return {name: source.title for name, source in self.sources.items()}


def slug(name: str) -> str:
    """A name as a folder name."""
    letters = (letter if letter.isalnum() or letter in "+-." else "-" for letter in name)
    return "".join(letters).strip("-")


def references(value: object) -> list[str]:
    """Every `data:NAME` and `weights:NAME` in a text, or in the texts of settings, lists and
    tables.
    """
    if isinstance(value, str):
        return REFERENCE.findall(value)
    if isinstance(value, Mapping):
        return references(list(value.values()))
    if isinstance(value, Sequence):
        return [found for one in value for found in references(one)]
    values = setting_values(value).values()
    # Most settings are numbers and contain no references.
    return [found for one in values if isinstance(one, str | tuple) for found in references(one)]


def resolve_references(value: Any, sources: Mapping[str, SweepInput]) -> Any:
    """Settings, or a text, with every reference replaced by its path."""
    if isinstance(value, str):
        return REFERENCE.sub(lambda match: sources[match[0]].path, value)
    if isinstance(value, tuple):
        return tuple(resolve_references(one, sources) for one in value)
    new = {name: resolve_references(one, sources) for name, one in setting_values(value).items()}
    return replace_settings(value, **new) if new else value


# Consistency of a sweep: references and folders. Imports nothing heavy.


def check_fits(sweep: Sweep, path: str | Path) -> None:
    """Raises InputError naming the table of the file with a reference, row, column, score or start
    that does not exist.
    """
    _check_references(sweep, path)
    for table in sweep.tables:
        _check_table(sweep, table, path)
    tasks = [task.name for task in sweep.tasks]
    for variant in sweep.variants:
        for column in variant.scores:
            message = f'{path}, [variants."{variant.name}"]: scores: no task is called {column!r}'
            require_known(re.sub(r" \(\w+\)$", "", column), tasks, message, ", or `NAME (SPLIT)`")
    _check_chains(sweep, path)


def _check_references(sweep: Sweep, path: str | Path) -> None:
    """Raises InputError for a reference to data or weights without a table, and for an unused
    table.
    """
    found = set(references([*_settings_of(sweep), [one.model for one in sweep.variants]]))
    for name in sorted(found):
        if name not in sweep.sources:
            raise InputError(f"{path}: {name} refers to [{_table(name)}], which does not exist")
    for name in sweep.sources:
        if name not in found:
            raise InputError(f"{path}, [{_table(name)}]: no setting refers to {name}")


def _table(reference: str) -> str:
    return reference.replace(":", ".")


def _settings_of(sweep: Sweep) -> list[object]:
    """All settings that may refer to data and weights."""
    settings: list[object] = [one.settings[0] for one in sweep.sources.values()]
    settings += [one.trained_on_labels for one in sweep.sources.values()]
    settings += [one.settings[0] for one in sweep.pretrainings]
    for variant in sweep.variants:
        settings += [variant.adapt, dict(variant.tune_settings)]
    return [*settings, *(task.finetune for task in sweep.tasks)]


def _check_table(sweep: Sweep, table: TableSpec, path: str | Path) -> None:
    """Raises InputError for a row that is not a variant, or a column that is not a task."""
    variants = [variant.name for variant in sweep.variants]
    tasks = [task.name for task in sweep.tasks]
    for key, kind, names, offered in (
        ("rows", "variants", table.rows, variants),
        ("columns", "tasks", table.columns, tasks),
    ):
        for name in names:
            require_known(
                name, offered, f'{path}, [tables."{table.name}"]: {key}: no [{kind}."{name}"]'
            )


def _check_chains(sweep: Sweep, path: str | Path) -> None:
    """Raises InputError for a `pretrain of` that does not exist or is circular."""
    models = {one.name: one.settings[0].model for one in sweep.pretrainings}
    starts = {f'[variants."{one.name}"]': one.model for one in sweep.variants}
    starts |= {f'[pretrain."{name}"]': model for name, model in models.items()}
    for where, start in starts.items():
        chain: list[str] = []
        while start.startswith(PRETRAIN_OF):
            name = start.removeprefix(PRETRAIN_OF)
            require_known(name, models, f'{path}, {where}: no [pretrain."{name}"]')
            if name in chain:
                circle = " of ".join([*chain, name])
                raise InputError(f"{path}, {where}: pretrain of {circle} is circular")
            chain.append(name)
            start = models[name]


def check_folders(sweep: Sweep) -> None:
    """Raises InputError for variants, tasks or pre-trainings with the same folder, and for a
    missing joint model.

    Also for a name that leads out of the sweep's folder (`..`), or to the folder itself.
    """
    for kind, names, reserved in (
        ("variants", [one.name for one in sweep.variants], [PRETRAININGS, VERDICTS]),
        ("tasks", [one.name for one in sweep.tasks], []),
        ("pre-trainings", [one.name for one in sweep.pretrainings], []),
    ):
        folders = [*reserved, *(slug(name) for name in names)]
        for name in names:
            _check_inside(kind, name)
            if folders.count(slug(name)) > 1:
                raise InputError(f"two {kind} would share the folder {slug(name)}; rename {name!r}")
    for table in sweep.tables:
        if table.name or len(sweep.tables) > 1:  # a file without tables has one without a name
            _check_inside("tables", table.name)
    _check_joints(sweep.variants)


def _check_inside(kind: str, name: str) -> None:
    """Raises InputError for a name whose folder would not be inside the sweep's."""
    if not slug(name).strip("."):
        raise InputError(
            f"{kind}: {name!r} cannot name a folder inside the sweep's folder; rename it"
        )


def _check_joints(variants: Sequence[Variant]) -> None:
    """Raises InputError for the joint model of a variant that saves none."""
    with_joint = [variant.name for variant in variants if variant.adapt.cross_modal.save_joint]
    for variant in variants:
        if variant.joint_of and variant.joint_of not in with_joint:
            raise InputError(
                f"{variant.name}: model is the joint of {variant.joint_of!r}; expected a variant with save_joint = true"
            )

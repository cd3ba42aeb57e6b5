"""What a sweep consists of: data, models, tasks, tables, and what a paper says of them. Imports nothing heavy."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundling.command_line import COMMANDS, Command
from groundling.command_line.registered_names import check_name
from groundling.commands.adapt import AdaptConfig
from groundling.commands.finetune import FinetuneConfig
from groundling.core.errors import InputError, prefix_errors, require_known
from groundling.settings.fields import fill_settings as fill
from groundling.settings.fields import replace_settings, setting_values
from groundling.settings.training import TrainConfig

Filled = tuple[Any, Any]
"""A command's settings, and those of its training; None in the second place of a command that trains nothing."""
DATA = "data "
"""What commands' names begin with that make data; a sweep's file has the rest of the name."""
MAKERS = ("regions", "finetune")
"""Other commands that a `[data.NAME]` may be made by."""


def command_of(word: str) -> Command:
    """The command that a sweep's file calls so: `adapt`, or `partition`, which makes data."""
    return COMMANDS.get(DATA + word) or COMMANDS[word]


def makers() -> Sequence[str]:
    """What a sweep's file calls the commands that a `[data.NAME]` may be made by."""
    data = [name.removeprefix(DATA) for name, one in COMMANDS.items() if _makes_data(one)]
    return [*MAKERS, *data]


def _makes_data(command: Command) -> bool:
    """Whether it writes data, from settings of no other command."""
    writes = command.has_out and not command.file
    return command.name.startswith(DATA) and writes and set(command.settings) == {"_own"}


def defaults_of(word: str) -> Filled:
    """A command's settings as they are if nobody says anything."""
    settings = command_of(word).settings
    own = settings["_own"]
    if word == "finetune":
        own = replace_settings(own, save_model=False)  # hundreds of runs would fill a disk
    return own, settings.get("_train")


def values_of(settings: Filled, out: Path) -> list[Any]:
    """What a command is called with."""
    return [*(group for group in settings if group is not None), out]


def table_of(value: object, where: str) -> dict[str, Any]:
    """A copy of what must be a table; raises InputError, which begins with `where`, for anything else."""
    if not isinstance(value, dict):
        raise InputError(f"{where}: {value!r}, expected a table")
    return dict(value)


def fill_command_settings(defaults: Filled, values: object, where: str) -> Filled:
    """Two configurations with the values of one table; a key belongs to the one that has a setting of its name."""
    groups = [group for group in defaults if group is not None]
    own, *training = fill(groups, table_of(values, where), where)
    return own, training[0] if training else None


EXPECTED = (
    '["value as printed", "section or table"], and a third text, the reason, where ours differs'
)
YES_OR_NO = {"yes": True, "no": False}
REFERENCE = re.compile(r"\b(?:data|weights):[\w+-]+")
"""How settings refer to a file's own `[data.NAME]` and `[weights.NAME]`."""
NUMBER = re.compile(r"([-+]?[\d.]+(?:e[-+]?\d+)?)(%?)")
"""With a thousand's commas and spaces gone; `7.0e - 5` is one number."""


@dataclass(frozen=True)
class SettingNote:
    """What a paper, or its authors' code, says of one setting."""

    printed: str
    """The value as it is printed."""
    source: str
    """Section or table, or the file of the authors' code."""
    reason: str = ""
    """Why ours differs; empty where it must not."""
    where: str = ""
    """The table of the sweep's file that says all this."""


def read_notes(table: object, where: str) -> dict[str, SettingNote]:
    """The notes of a `paper` table by setting; raises InputError naming the one that is malformed."""
    notes = {}
    for key, value in table_of(table, f"{where}.paper").items():
        texts = isinstance(value, list) and all(isinstance(one, str) and one for one in value)
        if not texts or len(value) not in (2, 3):
            raise InputError(f"{where}.paper: {key} = {value!r}, expected {EXPECTED}")
        printed, source, *reason = value
        notes[key] = SettingNote(printed, source, "".join(reason), f"{where}.paper")
    return notes


def agrees(printed: str, value: object, titles: Mapping[str, str]) -> bool:
    """Whether a printed value is a setting's: equal as numbers (`8,000`, `10 %`), as yes or no, or as texts."""
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
    """The numbers that a printed value consists of; None if there is anything else in it."""
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
    """A setting's value as a table shows it; `titles` is what references such as `weights:NAME` are called in print."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(format_setting(one, titles) for one in value)
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    return REFERENCE.sub(lambda match: titles.get(match[0], match[0]), str(value))


def paper_mark(note: SettingNote | None, value: object, titles: Mapping[str, str]) -> str:
    """How a setting stands to the paper: the same, different for a reason, ours where it says nothing, or an input."""
    if note is None:
        return "input" if REFERENCE.search(str(value)) else "ours"
    if agrees(note.printed, value, titles):
        return f"same; {note.reason}" if note.reason else "same"
    return f"differs: {note.reason or 'changed on the command line'}"


PRETRAININGS = "pretrain"
VERDICTS = "tables"
"""Folders of a sweep that are no variant's."""
JOINT_OF = "joint of "
PRETRAIN_OF = "pretrain of "
SEEDS = 5
"""Runs of every task, where nothing says how many."""
Notes = Mapping[str, SettingNote]
"""What a paper says of settings, by their names."""


@dataclass(frozen=True)
class SweepSource:
    """Data or weights that runs need."""

    name: str
    """How settings refer to it: `data:NAME` or `weights:NAME`."""
    path: str
    """File or folder; of weights also a hub id."""
    title: str
    """What papers call it."""
    get: str = ""
    """Where to obtain it; empty for what is made here, and for a hub id, which is fetched when it is read."""
    kind: str = ""
    """What stands in for it in a miniature; empty for what is made here."""
    size: str = ""
    """Of weights: base or large, for the estimate of hours."""
    examples: int = 0
    """Of data: training examples, for the estimate of steps; 0: not known."""
    tokens: int = 0
    """Of data: pieces and regions of a row on average, for the estimate of hours; 0: not known."""
    answers: str = ""
    """Of weights: the data whose right answers they were trained on, such as `data:vcr`; empty: none."""
    command: str = ""
    """What makes it, if it is not there: the name of a command."""
    settings: Filled = (None, None)
    """Of that command."""


@dataclass(frozen=True)
class PretrainingSpec:
    """A pre-training of the sweep, from which variants start."""

    name: str
    """What the file calls it."""
    settings: Filled
    """`PretrainConfig` and its training; a student may be `pretrain of NAME`."""
    notes: Notes = field(default_factory=dict)
    """What the paper says of them."""


@dataclass(frozen=True)
class Variant:
    """A model of the sweep: adapted as told, or one that is there already."""

    name: str
    """What reports call it."""
    adapt: AdaptConfig
    """How it is adapted."""
    train: TrainConfig
    """How that is optimised."""
    model: str = ""
    """Fine-tuned without adaptation: a hub id, a folder, `pretrain of NAME`, or `joint of NAME`, which is another \
variant's whole model."""
    published: str = ""
    """Which published system it stands for, see `published.py`."""
    tune_settings: tuple[tuple[str, Any], ...] = ()
    """Settings of its own for every fine-tuning, such as regions it does not see."""
    notes: Notes = field(default_factory=dict)
    """What the paper says of its adaptation."""
    tune_notes: Notes = field(default_factory=dict)
    """What the paper says of `tune`."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """What the paper reports, in the metric's own units, by task as reports call it."""

    @property
    def joint_of(self) -> str:
        """The variant whose whole model is fine-tuned; empty if none is."""
        return self.model.removeprefix(JOINT_OF) if self.model.startswith(JOINT_OF) else ""

    @property
    def pretrain_of(self) -> str:
        """The pre-training that it starts from; empty if there is none."""
        return self.model.removeprefix(PRETRAIN_OF) if self.model.startswith(PRETRAIN_OF) else ""


@dataclass(frozen=True)
class FineTuningTask:
    """A task of the sweep and how it is fine-tuned."""

    finetune: FinetuneConfig
    """The task, its data and its settings."""
    train: TrainConfig
    """How that is optimised."""
    seeds: int = 0
    """Runs of this task (XDBERT has 9 of RTE, 5 of the rest); 0: as many as the sweep says."""
    notes: Notes = field(default_factory=dict)
    """What the paper says of these settings."""

    @property
    def name(self) -> str:
        """What folders and reports call it."""
        return self.finetune.display_name or self.finetune.task

    def of(self, variant: Variant) -> tuple[FinetuneConfig, TrainConfig]:
        """The settings for a variant, with its own."""
        where = f'[variants."{variant.name}".tune]'
        return fill_command_settings(
            (self.finetune, self.train), dict(variant.tune_settings), where
        )

    def notes_of(self, variant: Variant) -> Notes:
        """What the paper says of the settings for a variant."""
        return {**self.notes, **variant.tune_notes}


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: which variants are run on which tasks; the first variant is the control."""

    name: str
    """As the paper numbers it; empty for the whole of a file that has no tables."""
    rows: tuple[str, ...]
    """Variants."""
    columns: tuple[str, ...]
    """Tasks."""


@dataclass(frozen=True)
class Sweep:
    """Everything to run; the first variant is the control."""

    variants: tuple[Variant, ...]
    """The models."""
    tunings: tuple[FineTuningTask, ...]
    """The tasks."""
    seeds: int = SEEDS
    """Runs of every task that has no number of its own."""
    adapt_every_seed: bool = False
    """A seed adapts anew and fine-tunes; otherwise one adaptation, fine-tuned once per seed (the paper's way)."""
    pretrainings: tuple[PretrainingSpec, ...] = ()
    """What comes before adaptation and fine-tuning."""
    sources: Mapping[str, SweepSource] = field(default_factory=dict)
    """Data and weights by reference."""
    tables: tuple[PaperTable, ...] = ()
    """None: every variant is run on every task."""
    title: str = ""
    """The paper."""

    def seeds_of(self, tuning: FineTuningTask) -> int:
        """Runs of a task."""
        return tuning.seeds or self.seeds

    def verdict_tables(self) -> tuple[PaperTable, ...]:
        """The tables, or all as one."""
        if self.tables:
            return self.tables
        variants = tuple(variant.name for variant in self.variants)
        return (PaperTable("", variants, tuple(tuning.name for tuning in self.tunings)),)

    def runs(self, variant: Variant, tuning: FineTuningTask) -> bool:
        """Whether a table asks for this cell."""
        return any(
            variant.name in table.rows and tuning.name in table.columns
            for table in self.verdict_tables()
        )

    @property
    def titles(self) -> dict[str, str]:
        """What references are called in print."""
        return {name: source.title for name, source in self.sources.items()}


def slug(name: str) -> str:
    """A name as a folder's name."""
    letters = (letter if letter.isalnum() or letter in "+-." else "-" for letter in name)
    return "".join(letters).strip("-")


def references(value: object) -> list[str]:
    """Every `data:NAME` and `weights:NAME` in a text, or in the texts of settings, lists and tables."""
    if isinstance(value, str):
        return REFERENCE.findall(value)
    if isinstance(value, Mapping):
        return references(list(value.values()))
    if isinstance(value, Sequence):
        return [found for one in value for found in references(one)]
    held = setting_values(value).values()
    # Most settings are numbers, which there is no need to look into.
    return [found for one in held if isinstance(one, str | tuple) for found in references(one)]


def resolve_references(value: Any, sources: Mapping[str, SweepSource]) -> Any:
    """Settings, or a text, with every reference replaced by the path it stands for."""
    if isinstance(value, str):
        return REFERENCE.sub(lambda match: sources[match[0]].path, value)
    if isinstance(value, tuple):
        return tuple(resolve_references(one, sources) for one in value)
    new = {name: resolve_references(one, sources) for name, one in setting_values(value).items()}
    return replace_settings(value, **new) if new else value


# Whether the parts of a sweep fit together: what they call each other, and their folders. Imports nothing heavy.


def check_fits(what: Sweep, path: str | Path) -> None:
    """Raises InputError naming the table of the file whose reference, row, column, score or start does not exist."""
    _check_references(what, path)
    _check_tasks(what, path)
    for table in what.tables:
        _check_table(what, table, path)
    tasks = [tuning.name for tuning in what.tunings]
    for variant in what.variants:
        for column in variant.scores:
            told = f'{path}, [variants."{variant.name}"]: scores: no task is called {column!r}'
            require_known(re.sub(r" \(\w+\)$", "", column), tasks, told, ", or `NAME (SPLIT)`")
    _check_chains(what, path)


def _check_references(what: Sweep, path: str | Path) -> None:
    """Raises InputError for a reference to data or weights that no table describes, and for a table in vain."""
    found = set(references([*_settings_of(what), [one.model for one in what.variants]]))
    for name in sorted(found):
        if name not in what.sources:
            raise InputError(f"{path}: {name}, but there is no [{_table(name)}] table")
    for name in what.sources:
        if name not in found:
            raise InputError(f"{path}, [{_table(name)}]: no setting refers to {name}")


def _check_tasks(what: Sweep, path: str | Path) -> None:
    """Raises InputError for settings of a task that there is not; whether your own is there, only its import tells."""
    holders = {f'[tasks."{one.name}"]': one.finetune for one in what.tunings}
    holders |= {f'[pretrain."{one.name}"]': one.settings[0] for one in what.pretrainings}
    holders |= {f"[{_table(one.name)}]": one.settings[0] for one in what.sources.values()}
    for where, config in holders.items():
        with prefix_errors(f"{path}, {where}"):
            check_name("tasks", "Task", setting_values(config).get("task", ""))


def _table(reference: str) -> str:
    return reference.replace(":", ".")


def _settings_of(what: Sweep) -> list[object]:
    """All that may refer to data and weights."""
    held: list[object] = [one.settings[0] for one in what.sources.values()]
    held += [one.answers for one in what.sources.values()]
    held += [one.settings[0] for one in what.pretrainings]
    for variant in what.variants:
        held += [variant.adapt, dict(variant.tune_settings)]
    return [*held, *(tuning.finetune for tuning in what.tunings)]


def _check_table(what: Sweep, table: PaperTable, path: str | Path) -> None:
    """Raises InputError for a row that is no variant, or a column that is no task."""
    variants = [variant.name for variant in what.variants]
    tasks = [tuning.name for tuning in what.tunings]
    for key, kind, names, offered in (
        ("rows", "variants", table.rows, variants),
        ("columns", "tasks", table.columns, tasks),
    ):
        for name in names:
            require_known(
                name, offered, f'{path}, [tables."{table.name}"]: {key}: no [{kind}."{name}"]'
            )


def _check_chains(what: Sweep, path: str | Path) -> None:
    """Raises InputError for a `pretrain of` that does not exist or comes round to itself."""
    before = {one.name: one.settings[0].model for one in what.pretrainings}
    starts = {f'[variants."{one.name}"]': one.model for one in what.variants}
    starts |= {f'[pretrain."{name}"]': student for name, student in before.items()}
    for where, start in starts.items():
        seen: list[str] = []
        while start.startswith(PRETRAIN_OF):
            name = start.removeprefix(PRETRAIN_OF)
            require_known(name, before, f'{path}, {where}: no [pretrain."{name}"]')
            if name in seen:
                circle = " of ".join([*seen, name])
                raise InputError(f"{path}, {where}: pretrain of {circle} comes round to itself")
            seen.append(name)
            start = before[name]


def check_folders(what: Sweep) -> None:
    """Raises InputError for two variants, tasks or pre-trainings with one folder, and for a joint of nothing.

    So it does for a name that leaves the sweep's folder (`..`), or is that folder itself.
    """
    for kind, names, taken in (
        ("variants", [one.name for one in what.variants], [PRETRAININGS, VERDICTS]),
        ("tasks", [one.name for one in what.tunings], []),
        ("pre-trainings", [one.name for one in what.pretrainings], []),
    ):
        folders = [*taken, *(slug(name) for name in names)]
        for name in names:
            _check_inside(kind, name)
            if folders.count(slug(name)) > 1:
                raise InputError(f"two {kind} would share the folder {slug(name)}; rename {name!r}")
    for table in what.tables:
        if table.name or len(what.tables) > 1:  # a file without tables has one of no name
            _check_inside("tables", table.name)
    _check_joints(what.variants)


def _check_inside(kind: str, name: str) -> None:
    """Raises InputError for a name whose folder would not be one inside the sweep's."""
    if not slug(name).strip("."):
        raise InputError(f"{kind}: {name!r} names no folder inside the sweep's; rename it")


def _check_joints(variants: Sequence[Variant]) -> None:
    """Raises InputError for the joint of a variant that keeps none."""
    with_joint = [variant.name for variant in variants if variant.adapt.cross_modal.save_joint]
    for variant in variants:
        if variant.joint_of and variant.joint_of not in with_joint:
            raise InputError(
                f"{variant.name}: model is the joint of {variant.joint_of!r}, which is no variant with save_joint"
            )

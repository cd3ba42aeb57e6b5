"""A sweep's file: variants, tasks, data, and what a paper says of their settings. Imports nothing heavy."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from groundling.config import (
    PRETRAINING,
    TUNING,
    AdaptConfig,
    FinetuneConfig,
    PartitionConfig,
    PretrainConfig,
    RegionsConfig,
    ShiftConfig,
    TrainConfig,
    changed,
    flat,
)
from groundling.data.tables import read_text
from groundling.errors import InputError
from groundling.published import PUBLISHED
from groundling.recipes.sweep_paper import REFERENCE, Note, read_notes

JOINT_OF = "joint of "
PRETRAIN_OF = "pretrain of "
SEEDS = 5
"""Runs of every task, where nothing says how many."""

Filled = tuple[Any, Any]
"""A command's settings, and those of its training; None in the second place of a command that trains nothing."""
Notes = Mapping[str, Note]
"""What a paper says of settings, by their names."""


@dataclass(frozen=True)
class Source:
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
    command: str = ""
    """What makes it, if it is not there: the name of a command."""
    settings: Filled = (None, None)
    """Of that command."""


@dataclass(frozen=True)
class Pretraining:
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
    tune: tuple[tuple[str, Any], ...] = ()
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
class Tuning:
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
        return self.finetune.called or self.finetune.task

    def of(self, variant: Variant) -> tuple[FinetuneConfig, TrainConfig]:
        """The settings for a variant, with its own."""
        where = f'[variants."{variant.name}".tune]'
        return filled((self.finetune, self.train), dict(variant.tune), where)

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
    tunings: tuple[Tuning, ...]
    """The tasks."""
    seeds: int = SEEDS
    """Runs of every task that has no number of its own."""
    adapt_every_seed: bool = False
    """A seed adapts anew and fine-tunes; otherwise one adaptation, fine-tuned once per seed (the paper's way)."""
    pretrainings: tuple[Pretraining, ...] = ()
    """What comes before adaptation and fine-tuning."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Data and weights by reference."""
    tables: tuple[PaperTable, ...] = ()
    """None: every variant is run on every task."""
    title: str = ""
    """The paper."""

    def seeds_of(self, tuning: Tuning) -> int:
        """Runs of a task."""
        return tuning.seeds or self.seeds

    def judged(self) -> tuple[PaperTable, ...]:
        """The tables, or all as one."""
        if self.tables:
            return self.tables
        variants = tuple(variant.name for variant in self.variants)
        return (PaperTable("", variants, tuple(tuning.name for tuning in self.tunings)),)

    def runs(self, variant: Variant, tuning: Tuning) -> bool:
        """Whether a table asks for this cell."""
        return any(
            variant.name in table.rows and tuning.name in table.columns for table in self.judged()
        )

    @property
    def titles(self) -> dict[str, str]:
        """What references are called in print."""
        return {name: source.title for name, source in self.sources.items()}


TABLES = {
    "seeds": int,
    "adapt_every_seed": bool,
    "paper": dict,
    "data": dict,
    "weights": dict,
    "with": dict,
    "pretrain": dict,
    "adapt": dict,
    "tune": dict,
    "tasks": dict,
    "variants": dict,
    "tables": dict,
}
"""What a sweep's file may hold."""
KINDS = {int: "a whole number", bool: "true or false", dict: "a table"}
MADE_BY: dict[str, Filled] = {
    "regions": (RegionsConfig(), None),
    "partition": (PartitionConfig(), None),
    "shift": (ShiftConfig(), None),
    "finetune": (FinetuneConfig(), TUNING),
}
"""Commands that a `[data.NAME]` may be made by, with their defaults."""
OF_SOURCE = {"path": str, "title": str, "get": str, "kind": str}
OF_DATA = {**OF_SOURCE, "examples": int, "tokens": int}
OF_WEIGHTS = {**OF_SOURCE, "size": str}


@dataclass(frozen=True)
class _Layer:
    """Settings of one table of the file."""

    where: str
    values: Mapping[str, Any]
    notes: Notes


class _File:
    """A sweep's file while it is read."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.content = _content(path)
        self.shared: dict[str, _Layer] = {}
        """Settings that several tables share, by the name after `with.`."""
        self.used: set[str] = set()
        for name, table in self.content.get("with", {}).items():
            self.shared[name] = self._layer(table, f'[with."{name}"]')

    def where(self, table: str) -> str:
        return f"{self.path}, {table}"

    def _layer(self, table: object, name: str) -> _Layer:
        where = self.where(name)
        if not isinstance(table, dict):
            raise InputError(f"{where}: {table!r}, expected a table")
        rest = dict(table)
        notes = read_notes(rest.pop("paper", {}), where)
        if notes and "paper" not in self.content:
            raise InputError(f"{self.path}: notes of a paper, but no [paper] table with its title")
        return _Layer(where, rest, notes)

    def layers(self, table: object, name: str) -> list[_Layer]:
        """A table's settings, behind those of the shared ones that its `with` names."""
        own = self._layer(table, name)
        values = dict(own.values)
        wanted = values.pop("with", [])
        if not isinstance(wanted, list):
            raise InputError(f"{own.where}: with = {wanted!r}, expected a list of [with.NAME]")
        for one in wanted:
            if one not in self.shared:
                offered = ", ".join(self.shared) or "none"
                raise InputError(f"{own.where}: with: no [with.{one}] table; there are: {offered}")
        self.used.update(wanted)
        return [*(self.shared[one] for one in wanted), replace(own, values=values)]

    def sweep(self) -> Sweep:
        content = self.content
        sources = self._sources()
        pretrainings = [self._pretraining(*item) for item in content.get("pretrain", {}).items()]
        adapting = self._layer(content.get("adapt", {}), "[adapt]")
        adapted = filled((AdaptConfig(), TrainConfig()), adapting.values, adapting.where)
        variants = [
            self._variant(name, table, adapted, adapting.notes)
            for name, table in content["variants"].items()
        ]
        tuning = self._layer(content.get("tune", {}), "[tune]")
        _check_no_model(tuning.values, tuning.where)
        tuned = filled((FinetuneConfig(), TUNING), tuning.values, tuning.where)
        tunings = [
            self._tuning(name, table, tuned, tuning.notes)
            for name, table in content["tasks"].items()
        ]
        default = _seeds(tuning.values, tuning.where) or _seeds(content, str(self.path)) or SEEDS
        unused = [name for name in self.shared if name not in self.used]
        if unused:
            raise InputError(f"{self.where(f'[with.{unused[0]}]')}: no table has it in its `with`")
        what = Sweep(
            tuple(variants),
            tuple(tunings),
            default,
            content.get("adapt_every_seed", False),
            tuple(pretrainings),
            sources,
            tuple(self._table(*item) for item in content.get("tables", {}).items()),
            self._title(),
        )
        self._check_references(what)
        self._check_tables(what)
        _check_chains(what, self.path)
        return what

    def _title(self) -> str:
        about = self.content.get("paper")
        if about is None:
            return ""
        where = self.where("[paper]")
        _check_keys(about, {"title": str}, where)
        if not about.get("title"):
            raise InputError(f"{where}: no title, which says what is reproduced")
        return str(about["title"])

    def _sources(self) -> dict[str, Source]:
        sources = {}
        for family, known in (("data", OF_DATA), ("weights", OF_WEIGHTS)):
            for name, table in self.content.get(family, {}).items():
                reference = f"{family}:{name}"
                if not REFERENCE.fullmatch(reference):
                    raise InputError(
                        f"{self.path}: [{family}.{name}], expected letters, digits, - and _"
                    )
                sources[reference] = self._source(reference, table, known)
        return sources

    def _source(self, name: str, table: object, known: Mapping[str, type]) -> Source:
        where = self.where(f"[{name.replace(':', '.')}]")
        if not isinstance(table, dict):
            raise InputError(f"{where}: {table!r}, expected a table")
        rest = dict(table)
        command = next((one for one in MADE_BY if one in rest and name.startswith("data:")), "")
        settings: Filled = (None, None)
        if command:
            settings = filled(MADE_BY[command], rest.pop(command), f"{where}.{command}")
        _check_keys(rest, known, where, also=MADE_BY if name.startswith("data:") else ())
        if not rest.get("path"):
            raise InputError(f"{where}: no path")
        is_made_or_hub = bool(command) or name.startswith("weights:")
        if not rest.get("get") and not is_made_or_hub:
            raise InputError(f"{where}: no `get`, which says where to obtain it")
        rest.setdefault("title", name.partition(":")[2])
        return Source(name=name, command=command, settings=settings, **rest)

    def _pretraining(self, name: str, table: object) -> Pretraining:
        layers = self.layers(table, f'[pretrain."{name}"]')
        settings: Filled = (PretrainConfig(), PRETRAINING)
        return Pretraining(name, *_filled_by(layers, settings, {}))

    def _variant(self, name: str, table: object, adapting: Filled, adapt_notes: Notes) -> Variant:
        own = self._layer(table, f'[variants."{name}"]')
        where = own.where
        rest = dict(own.values)
        model = str(rest.pop("model", ""))
        published = str(rest.pop("published", ""))
        tune = rest.pop("tune", {})
        if not isinstance(tune, dict):
            raise InputError(f"{where}: tune = {tune!r}, expected a table")
        layers = self.layers({"with": rest.pop("with", []), **tune}, f'[variants."{name}"].tune')
        merged: dict[str, Any] = {}
        tune_notes: dict[str, Note] = {}
        for layer in layers:
            # A mistake is told now, not after hours.
            filled((FinetuneConfig(), TUNING), layer.values, layer.where)
            _check_no_model(layer.values, layer.where)
            _check_no_seeds(layer)
            merged |= layer.values
            tune_notes |= layer.notes
        if published and published not in PUBLISHED:
            raise InputError(
                f"{where}: published = {published!r}, expected one of {', '.join(PUBLISHED)}"
            )
        scores = _scores(rest.pop("scores", {}), where)
        config, training = filled(adapting, rest, where)
        notes = {**adapt_notes, **own.notes}
        given = tuple(merged.items())
        return Variant(name, config, training, model, published, given, notes, tune_notes, scores)

    def _tuning(self, name: str, table: object, tuning: Filled, notes: Notes) -> Tuning:
        layers = self.layers(table, f'[tasks."{name}"]')
        own = layers[-1]
        _check_no_model(own.values, own.where)
        task = str(own.values.get("task", name))
        called = name if task != name else ""
        base = (replace(tuning[0], task=name, called=called), tuning[1])
        (config, training), notes = _filled_by(layers, base, notes)
        return Tuning(config, training, _seeds(own.values, own.where), notes)

    def _table(self, name: str, table: object) -> PaperTable:
        where = self.where(f'[tables."{name}"]')
        if not isinstance(table, dict):
            raise InputError(f"{where}: {table!r}, expected a table")
        _check_keys(table, {"rows": list, "columns": list}, where)
        for key in ("rows", "columns"):
            texts = table.get(key)
            if not texts or not all(isinstance(one, str) for one in texts):
                raise InputError(f"{where}: {key} = {texts!r}, expected a list of texts")
        return PaperTable(name, tuple(table["rows"]), tuple(table["columns"]))

    def _check_tables(self, what: Sweep) -> None:
        """Raises InputError for a table's row or column, or a variant's score, that nothing is called."""
        tasks = [tuning.name for tuning in what.tunings]
        variants = [variant.name for variant in what.variants]
        for table in what.tables:
            for key, names, offered in (
                ("rows", table.rows, variants),
                ("columns", table.columns, tasks),
            ):
                for name in names:
                    if name not in offered:
                        kind = "variants" if key == "rows" else "tasks"
                        raise InputError(
                            f'{self.where(f"""[tables."{table.name}"]""")}: {key}: no '
                            f'[{kind}."{name}"]; there are: {", ".join(offered)}'
                        )
        for variant in what.variants:
            for column in variant.scores:
                if re.sub(r" \(\w+\)$", "", column) not in tasks:
                    raise InputError(
                        f"{self.where(f'[variants.{variant.name!r}.scores]')}: no task is called {column!r}; "
                        f"there are: {', '.join(tasks)}, each also as `NAME (SPLIT)`"
                    )

    def _check_references(self, what: Sweep) -> None:
        """Raises InputError for a reference to data or weights that no table describes, and for one in vain."""
        found = set(references([*_settings_of(what), [one.model for one in what.variants]]))
        for name in sorted(found):
            if name not in what.sources:
                table = name.replace(":", ".")
                raise InputError(f"{self.path}: {name}, but there is no [{table}] table")
        unused = [name for name in what.sources if name not in found]
        if unused:
            table = unused[0].replace(":", ".")
            raise InputError(f"{self.where(f'[{table}]')}: no setting refers to {unused[0]}")


def read_sweep(path: str | Path) -> Sweep:
    """A sweep from TOML: `seeds`, `[adapt]`, `[tune]`, `[tasks."name"]`, `[variants."name"]` (and `.tune`).

    Keys are the flags' names. `seeds` may stand above all tables, in `[tune]`, and in a task's own table; the most
    special one counts. A paper's experiments also have `[paper]`, `[data.NAME]`, `[weights.NAME]`, `[pretrain.NAME]`,
    `[with.NAME]` (settings that several tables share), `[tables."name"]`, and a `paper` table beside settings; see
    docs/reproduce.md. Raises InputError naming the table and key that is unknown or of a wrong type.
    """
    return _File(path).sweep()


def references(value: object) -> list[str]:
    """Every `data:NAME` and `weights:NAME` in a text, or in the texts of settings, lists and tables."""
    if isinstance(value, str):
        return REFERENCE.findall(value)
    if isinstance(value, Mapping):
        return references(list(value.values()))
    if isinstance(value, Sequence):
        return [found for one in value for found in references(one)]
    return [found for group, one in flat(value) for found in references(vars(group)[one.name])]


def _settings_of(what: Sweep) -> list[object]:
    """All that may refer to data and weights."""
    held: list[object] = [one.settings[0] for one in what.sources.values()]
    held += [one.settings[0] for one in what.pretrainings]
    for variant in what.variants:
        held += [variant.adapt, dict(variant.tune)]
    return [*held, *(tuning.finetune for tuning in what.tunings)]


def _check_chains(what: Sweep, path: str | Path) -> None:
    """Raises InputError for a `pretrain of` that does not exist or comes round to itself."""
    before = {one.name: one.settings[0].student for one in what.pretrainings}
    starts = {f'[variants."{one.name}"]': one.model for one in what.variants}
    starts |= {f'[pretrain."{name}"]': student for name, student in before.items()}
    for where, start in starts.items():
        seen: list[str] = []
        while start.startswith(PRETRAIN_OF):
            name = start.removeprefix(PRETRAIN_OF)
            if name not in before:
                offered = ", ".join(before) or "none"
                raise InputError(f"{path}, {where}: no [pretrain.{name!r}]; there are: {offered}")
            if name in seen:
                circle = " of ".join([*seen, name])
                raise InputError(f"{path}, {where}: pretrain of {circle} comes round to itself")
            seen.append(name)
            start = before[name]


def _filled_by(
    layers: Sequence[_Layer], defaults: Filled, notes: Notes
) -> tuple[Filled, dict[str, Note]]:
    """Settings and notes with those of several tables, of which the last one counts."""
    settings = defaults
    said = dict(notes)
    for layer in layers:
        settings = filled(settings, layer.values, layer.where)
        said |= layer.notes
    return settings, said


def _seeds(table: Mapping[str, Any], where: str) -> int:
    """A table's `seeds`, 0 if it has none; raises InputError if they are fewer than 1."""
    if "seeds" not in table:
        return 0
    seeds = int(table["seeds"])
    if seeds < 1:
        raise InputError(f"{where}: seeds = {seeds}, expected at least 1")
    return seeds


def _content(path: str | Path) -> dict[str, Any]:
    """The file, with tables where tables belong."""
    try:
        content = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML ({error})") from None
    for key, value in content.items():
        if key not in TABLES:
            raise InputError(f"{path}: unknown key {key!r}; expected {', '.join(sorted(TABLES))}")
        if type(value) is not TABLES[key]:
            raise InputError(f"{path}: {key} = {value!r}, expected {KINDS[TABLES[key]]}")
    for key in ("tasks", "variants"):
        tables = content.get(key)
        if not tables or not all(isinstance(table, dict) for table in tables.values()):
            raise InputError(f"{path}: no [{key}.NAME] table")
    return content


def _check_keys(
    table: Mapping[str, Any],
    known: Mapping[str, type],
    where: str,
    also: Sequence[str] | Mapping = (),
) -> None:
    """Raises InputError for a key that a table does not have, or a value of another type."""
    for key, value in table.items():
        if key not in known:
            expected = ", ".join([*known, *also])
            raise InputError(f"{where}: unknown key {key!r}; expected {expected}")
        if type(value) is not known[key]:
            kind = {str: "a text", int: "a whole number", list: "a list"}[known[key]]
            raise InputError(f"{where}: {key} = {value!r}, expected {kind}")


def _check_no_model(table: Mapping[str, Any], where: str) -> None:
    """Raises InputError for a model among the settings of a fine-tuning: it would be replaced by each variant's."""
    if "model" in table:
        raise InputError(
            f"{where}: model = {table['model']!r}; a model belongs in the table of a variant"
        )


def _check_no_seeds(layer: _Layer) -> None:
    if "seeds" in layer.values:
        raise InputError(
            f"{layer.where}: seeds = {layer.values['seeds']}; every variant has the same seeds, "
            "which belong above all tables, in [tune] or in a task's own table"
        )


def _scores(table: object, where: str) -> dict[str, float]:
    if not isinstance(table, dict) or not all(
        type(value) in (int, float) for value in table.values()
    ):
        raise InputError(f"{where}: scores = {table!r}, expected a number for each task")
    return table


def filled(defaults: Filled, values: object, where: str) -> Filled:
    """Two configurations with the values of one table; a key belongs to the one that has a setting of its name."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: {values!r}, expected a table")
    holders = {
        one.name: (place, group)
        for place, config in enumerate(defaults)
        for group, one in flat(config)
    }
    new: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for key, value in values.items():
        if key not in holders:
            names = ", ".join(sorted(holders))
            raise InputError(f"{where}: unknown key {key!r}; expected one of {names}")
        place, group = holders[key]
        new[place][key] = tuple(value) if isinstance(value, list) else value
        _check_value(group, key, new[place][key], where)
    first, second = defaults
    return changed(first, **new[0]), changed(second, **new[1]) if new[1] else second


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _check_value(group: object, key: str, value: object, where: str) -> None:
    """Raises InputError for a value of another type than the setting's default, or none of its choices."""
    before = vars(group)[key]
    kinds = (int, float) if isinstance(before, float) else (type(before),)
    wrong_bool = isinstance(value, bool) and not isinstance(before, bool)
    if not isinstance(value, kinds) or wrong_bool:
        raise InputError(f"{where}: {key} = {value!r}, expected a value like {before!r}")
    kind: Any = type(group)
    hint = _hints(kind)[key]
    if isinstance(value, tuple):
        _check_members(get_args(hint), key, value, where)
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise InputError(f"{where}: {key} = {value!r}, expected one of {', '.join(get_args(hint))}")


def _check_members(
    members: Sequence[object], key: str, value: tuple[object, ...], where: str
) -> None:
    """Raises InputError for a list of others than the texts or numbers that belong there, or too many or few."""
    kinds = (str,) if members[0] is str else (int, float)
    word = "texts" if members[0] is str else "numbers"
    if Ellipsis not in members:
        word = f"{len(members)} {word}"
    fits = all(isinstance(one, kinds) and not isinstance(one, bool) for one in value)
    if not fits or (Ellipsis not in members and len(value) != len(members)):
        raise InputError(f"{where}: {key} = {list(value)!r}, expected a list of {word}")

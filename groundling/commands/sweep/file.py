"""Sweep files: variants, tasks, data, and the paper's values of their settings. Imports nothing
heavy.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groundling.command_line.registered_names import published_scores as reported
from groundling.commands.sweep.schema import (
    REFERENCE,
    SEEDS,
    CommandSettings,
    FineTuningTask,
    Notes,
    PaperSetting,
    PretrainingSpec,
    Sweep,
    SweepInput,
    TableSpec,
    Variant,
    check_fits,
    data_commands,
    default_settings,
    fill_command_settings,
    read_notes,
    require_table,
)
from groundling.core.errors import InputError, convert_errors, require_known
from groundling.data.tables import read_text

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
"""Top-level keys of a sweep file."""
TYPE_NAMES = {
    int: "a whole number",
    bool: "true or false",
    dict: "a table",
    list: "a list",
    str: "a text",
}
MAX_KEY_PARTS = 32
"""Maximum parts of a key: the parser's time grows with their square."""
TOO_MANY_KEY_PARTS = re.compile(
    r"""(?:^|[\[{,])\s*+(?:(?:[\w-]++|"[^"]*+"|'[^']*+')\s*+\.\s*+)"""
    f"{{{MAX_KEY_PARTS}}}"
)
INPUT_KEYS = {"path": str, "title": str, "available_from": str, "kind": str}
DATA_KEYS = {**INPUT_KEYS, "examples": int, "tokens": int}
WEIGHTS_KEYS = {**INPUT_KEYS, "size": str, "trained_on_labels": str}


@dataclass(frozen=True)
class _TomlTable:
    """Settings of one table of the file."""

    where: str
    values: Mapping[str, Any]
    notes: Notes


class _SweepFile:
    """Reads a sweep file."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.content = _content(path)
        self.shared: dict[str, _TomlTable] = {}
        """Settings shared by several tables, by the name after `with.`."""
        self.used: set[str] = set()
        for name, table in self.content.get("with", {}).items():
            self.shared[name] = self._layer(table, f'[with."{name}"]')

    def where(self, heading: str) -> str:
        return f"{self.path}, {heading}"

    def _layer(self, table: object, heading: str) -> _TomlTable:
        where = self.where(heading)
        rest = require_table(table, where)
        notes = read_notes(rest.pop("paper", {}), where)
        if notes and "paper" not in self.content:
            raise InputError(f"{self.path}: has `paper` notes but no [paper] table with the title")
        return _TomlTable(where, rest, notes)

    def layers(self, table: object, heading: str) -> list[_TomlTable]:
        """A table's settings, preceded by the shared settings that its `with` names."""
        own = self._layer(table, heading)
        values = dict(own.values)
        names = values.pop("with", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(
                f"{own.where}: with = {names!r}, expected a list of names of [with.NAME] tables"
            )
        for name in names:
            require_known(name, self.shared, f"{own.where}: with: no [with.{name}] table")
        self.used.update(names)
        return [*(self.shared[name] for name in names), replace(own, values=values)]

    def sweep(self) -> Sweep:
        content = self.content
        sources = self._sources()
        pretrainings = [self._pretraining(*item) for item in content.get("pretrain", {}).items()]
        adapt_layer = self._layer(content.get("adapt", {}), "[adapt]")
        adapt_settings = fill_command_settings(
            default_settings("adapt"), adapt_layer.values, adapt_layer.where
        )
        variants = [
            self._variant(name, table, adapt_settings, adapt_layer.notes)
            for name, table in content["variants"].items()
        ]
        tune_layer = self._layer(content.get("tune", {}), "[tune]")
        _check_no_model(tune_layer.values, tune_layer.where)
        tune_settings = fill_command_settings(
            default_settings("finetune"), tune_layer.values, tune_layer.where
        )
        tasks = [
            self._task(name, table, tune_settings, tune_layer.notes)
            for name, table in content["tasks"].items()
        ]
        default = (
            _seeds(tune_layer.values, tune_layer.where) or _seeds(content, str(self.path)) or SEEDS
        )
        unused = [name for name in self.shared if name not in self.used]
        if unused:
            raise InputError(
                f"{self.where(f'[with.{unused[0]}]')}: no table's `with` names it; remove it"
            )
        sweep = Sweep(
            tuple(variants),
            tuple(tasks),
            default,
            content.get("adapt_every_seed", False),
            tuple(pretrainings),
            sources,
            tuple(self._table(*item) for item in content.get("tables", {}).items()),
            self._title(),
        )
        check_fits(sweep, self.path)
        return sweep

    def _title(self) -> str:
        about = self.content.get("paper")
        if about is None:
            return ""
        where = self.where("[paper]")
        _check_keys(about, {"title": str}, where)
        if not about.get("title"):
            raise InputError(f"{where}: has no title; give the paper's title")
        return str(about["title"])

    def _sources(self) -> dict[str, SweepInput]:
        sources = {}
        for family, known in (("data", DATA_KEYS), ("weights", WEIGHTS_KEYS)):
            for name, table in self.content.get(family, {}).items():
                reference = f"{family}:{name}"
                if not REFERENCE.fullmatch(reference):
                    raise InputError(
                        f"{self.path}: [{family}.{name}], expected letters, digits, - and _"
                    )
                sources[reference] = self._source(reference, table, known)
        return sources

    def _source(self, name: str, table: object, known: Mapping[str, type]) -> SweepInput:
        where = self.where(f"[{name.replace(':', '.')}]")
        rest = require_table(table, where)
        commands = data_commands() if name.startswith("data:") else ()
        command = next((one for one in commands if one in rest), "")
        settings: CommandSettings = (None, None)
        if command:
            settings = fill_command_settings(
                default_settings(command), rest.pop(command), f"{where}.{command}"
            )
        _check_keys(rest, known, where, other_keys=commands)
        if not rest.get("path"):
            raise InputError(f"{where}: has no `path`")
        is_made_or_hub = bool(command) or name.startswith("weights:")
        if not rest.get("available_from") and not is_made_or_hub:
            raise InputError(f"{where}: has no `available_from`; say where to obtain it")
        rest.setdefault("title", name.partition(":")[2])
        return SweepInput(name=name, command=command, settings=settings, **rest)

    def _pretraining(self, name: str, table: object) -> PretrainingSpec:
        layers = self.layers(table, f'[pretrain."{name}"]')
        return PretrainingSpec(name, *_fill_from_layers(layers, default_settings("pretrain"), {}))

    def _variant(
        self, name: str, table: object, defaults: CommandSettings, adapt_notes: Notes
    ) -> Variant:
        own = self._layer(table, f'[variants."{name}"]')
        where = own.where
        rest = dict(own.values)
        texts = {key: rest.pop(key, "") for key in ("model", "published")}
        _check_keys(texts, dict.fromkeys(texts, str), where)
        model, published = texts["model"], texts["published"]
        tune = require_table(rest.pop("tune", {}), f"{where}.tune")
        if "with" in tune:
            raise InputError(f"{where}.tune: `with` belongs beside `tune`, not inside")
        layers = self.layers({"with": rest.pop("with", []), **tune}, f'[variants."{name}"].tune')
        merged: dict[str, Any] = {}
        tune_notes: dict[str, PaperSetting] = {}
        for layer in layers:
            # Report a mistake now, not after hours.
            fill_command_settings(default_settings("finetune"), layer.values, layer.where)
            _check_no_model(layer.values, layer.where)
            _check_no_seeds(layer)
            merged |= layer.values
            tune_notes |= layer.notes
        if published:
            require_known(published, reported(), f"{where}: published = {published!r}")
        scores = _scores(rest.pop("scores", {}), where)
        config, training = fill_command_settings(defaults, rest, where)
        notes = {**adapt_notes, **own.notes}
        tune_settings = tuple(merged.items())
        return Variant(
            name, config, training, model, published, tune_settings, notes, tune_notes, scores
        )

    def _task(
        self, name: str, table: object, defaults: CommandSettings, notes: Notes
    ) -> FineTuningTask:
        layers = self.layers(table, f'[tasks."{name}"]')
        own = layers[-1]
        _check_no_model(own.values, own.where)
        named = [layer.values["task"] for layer in layers if "task" in layer.values]
        task = str(named[-1]) if named else name
        display_name = name if task != name else ""
        base = (replace(defaults[0], task=name, display_name=display_name), defaults[1])
        (config, training), notes = _fill_from_layers(layers, base, notes)
        if config.own.label and "task" not in own.values:  # the user's own file makes the task
            config = replace(config, task="", display_name=name)
        return FineTuningTask(config, training, _seeds(own.values, own.where), notes)

    def _table(self, name: str, table: object) -> TableSpec:
        where = self.where(f'[tables."{name}"]')
        table = require_table(table, where)
        _check_keys(table, {"rows": list, "columns": list}, where)
        for key in ("rows", "columns"):
            texts = table.get(key)
            if not texts or not all(isinstance(one, str) for one in texts):
                raise InputError(f"{where}: {key} = {texts!r}, expected a list of strings")
        return TableSpec(name, tuple(table["rows"]), tuple(table["columns"]))


def read_sweep(path: str | Path) -> Sweep:
    """A sweep from TOML: `seeds`, `[adapt]`, `[tune]`, `[tasks."name"]`, `[variants."name"]` (and
    `.tune`).

    Keys are the flags' names. `seeds` may stand at the top level, in `[tune]`, and in a task's own
    table; the most specific one counts. A paper's experiments also have `[paper]`, `[data.NAME]`,
    `[weights.NAME]`, `[pretrain.NAME]`, `[with.NAME]` (settings shared by several tables),
    `[tables."name"]`, and a `paper` table beside settings; see docs/reproduce.md. Raises InputError
    naming the table and the key that is unknown or of a wrong type.
    """
    return _SweepFile(path).sweep()


def _fill_from_layers(
    layers: Sequence[_TomlTable], defaults: CommandSettings, notes: Notes
) -> tuple[CommandSettings, dict[str, PaperSetting]]:
    """Settings and notes with those of several tables; later tables override earlier ones."""
    settings = defaults
    merged = dict(notes)
    for layer in layers:
        settings = fill_command_settings(settings, layer.values, layer.where)
        merged |= layer.notes
    return settings, merged


def _seeds(table: Mapping[str, Any], where: str) -> int:
    """A table's `seeds`, 0 if it has none; raises InputError if they are fewer than 1."""
    if "seeds" not in table:
        return 0
    seeds = int(table["seeds"])
    if seeds < 1:
        raise InputError(f"{where}: seeds = {seeds}, expected at least 1")
    return seeds


def _content(path: str | Path) -> dict[str, Any]:
    """The parsed file; raises InputError for unknown keys and for values of the wrong type."""
    text = read_text(path)
    for number, line in enumerate(text.split("\n"), 1):
        if TOO_MANY_KEY_PARTS.search(line):
            raise InputError(f"{path}, line {number}: a key has more than {MAX_KEY_PARTS} parts")
    with convert_errors(f"{path}: not valid TOML, nested too deep, or a number of too many digits"):
        content = tomllib.loads(text)
    _check_keys(content, dict(sorted(TABLES.items())), str(path))
    for key in ("tasks", "variants"):
        tables = content.get(key)
        if not tables or not all(isinstance(table, dict) for table in tables.values()):
            raise InputError(f"{path}: no [{key}.NAME] table")
    return content


def _check_keys(
    table: Mapping[str, Any],
    known: Mapping[str, type],
    where: str,
    other_keys: Iterable[str] = (),
) -> None:
    """Raises InputError for an unknown key, or a value of the wrong type."""
    for key, value in table.items():
        require_known(key, [*known, *other_keys], f"{where}: unknown key {key!r}")
        if type(value) is not known[key]:
            raise InputError(f"{where}: {key} = {value!r}, expected {TYPE_NAMES[known[key]]}")


def _check_no_model(table: Mapping[str, Any], where: str) -> None:
    """Raises InputError for a model among fine-tuning settings: each variant's model would replace
    it.
    """
    if "model" in table:
        raise InputError(
            f"{where}: model = {table['model']!r}; put the model into the table of a variant"
        )


def _check_no_seeds(layer: _TomlTable) -> None:
    if "seeds" in layer.values:
        raise InputError(
            f"{layer.where}: seeds = {layer.values['seeds']}; all variants have the same seeds; "
            "put them at the top level, in [tune] or in a task's own table"
        )


def _scores(table: object, where: str) -> dict[str, float]:
    if not isinstance(table, dict) or not all(
        type(value) in (int, float) and math.isfinite(value) for value in table.values()
    ):
        raise InputError(f"{where}: scores = {table!r}, expected a number for each task")
    return table

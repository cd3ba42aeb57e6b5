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
    Filled,
    FineTuningTask,
    Notes,
    PaperValue,
    PretrainingSpec,
    Sweep,
    SweepInput,
    TableSpec,
    Variant,
    check_fits,
    defaults_of,
    fill_command_settings,
    makers,
    read_notes,
    table_of,
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
KINDS = {
    int: "a whole number",
    bool: "true or false",
    dict: "a table",
    list: "a list",
    str: "a text",
}
MOST_PARTS = 32
"""Maximum parts of a key: the parser's time grows with their square."""
MANY_PARTS = re.compile(
    r"""(?:^|[\[{,])\s*+(?:(?:[\w-]++|"[^"]*+"|'[^']*+')\s*+\.\s*+)"""
    f"{{{MOST_PARTS}}}"
)
OF_SOURCE = {"path": str, "title": str, "get": str, "kind": str}
OF_DATA = {**OF_SOURCE, "examples": int, "tokens": int}
OF_WEIGHTS = {**OF_SOURCE, "size": str, "answers": str}


@dataclass(frozen=True)
class _TableSettings:
    """Settings of one table of the file."""

    where: str
    values: Mapping[str, Any]
    notes: Notes


class _SweepFile:
    """A sweep file while it is read."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.content = _content(path)
        self.shared: dict[str, _TableSettings] = {}
        """Settings shared by several tables, by the name after `with.`."""
        self.used: set[str] = set()
        for name, table in self.content.get("with", {}).items():
            self.shared[name] = self._layer(table, f'[with."{name}"]')

    def where(self, table: str) -> str:
        return f"{self.path}, {table}"

    def _layer(self, table: object, name: str) -> _TableSettings:
        where = self.where(name)
        rest = table_of(table, where)
        notes = read_notes(rest.pop("paper", {}), where)
        if notes and "paper" not in self.content:
            raise InputError(
                f"{self.path}: has notes of a paper but no [paper] table with its title"
            )
        return _TableSettings(where, rest, notes)

    def layers(self, table: object, name: str) -> list[_TableSettings]:
        """A table's settings, preceded by the shared settings that its `with` names."""
        own = self._layer(table, name)
        values = dict(own.values)
        wanted = values.pop("with", [])
        if not isinstance(wanted, list) or not all(isinstance(one, str) for one in wanted):
            raise InputError(f"{own.where}: with = {wanted!r}, expected a list of [with.NAME]")
        for one in wanted:
            require_known(one, self.shared, f"{own.where}: with: no [with.{one}] table")
        self.used.update(wanted)
        return [*(self.shared[one] for one in wanted), replace(own, values=values)]

    def sweep(self) -> Sweep:
        content = self.content
        sources = self._sources()
        pretrainings = [self._pretraining(*item) for item in content.get("pretrain", {}).items()]
        adapting = self._layer(content.get("adapt", {}), "[adapt]")
        adapted = fill_command_settings(defaults_of("adapt"), adapting.values, adapting.where)
        variants = [
            self._variant(name, table, adapted, adapting.notes)
            for name, table in content["variants"].items()
        ]
        tuning = self._layer(content.get("tune", {}), "[tune]")
        _check_no_model(tuning.values, tuning.where)
        tuned = fill_command_settings(defaults_of("finetune"), tuning.values, tuning.where)
        tunings = [
            self._tuning(name, table, tuned, tuning.notes)
            for name, table in content["tasks"].items()
        ]
        default = _seeds(tuning.values, tuning.where) or _seeds(content, str(self.path)) or SEEDS
        unused = [name for name in self.shared if name not in self.used]
        if unused:
            raise InputError(
                f"{self.where(f'[with.{unused[0]}]')}: not used by the `with` of any table"
            )
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
        check_fits(what, self.path)
        return what

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
        for family, known in (("data", OF_DATA), ("weights", OF_WEIGHTS)):
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
        rest = table_of(table, where)
        made_by = makers() if name.startswith("data:") else ()
        command = next((one for one in made_by if one in rest), "")
        settings: Filled = (None, None)
        if command:
            settings = fill_command_settings(
                defaults_of(command), rest.pop(command), f"{where}.{command}"
            )
        _check_keys(rest, known, where, also=made_by)
        if not rest.get("path"):
            raise InputError(f"{where}: has no `path`")
        is_made_or_hub = bool(command) or name.startswith("weights:")
        if not rest.get("get") and not is_made_or_hub:
            raise InputError(f"{where}: has no `get`; say where to obtain it")
        rest.setdefault("title", name.partition(":")[2])
        return SweepInput(name=name, command=command, settings=settings, **rest)

    def _pretraining(self, name: str, table: object) -> PretrainingSpec:
        layers = self.layers(table, f'[pretrain."{name}"]')
        return PretrainingSpec(name, *_filled_by(layers, defaults_of("pretrain"), {}))

    def _variant(self, name: str, table: object, adapting: Filled, adapt_notes: Notes) -> Variant:
        own = self._layer(table, f'[variants."{name}"]')
        where = own.where
        rest = dict(own.values)
        texts = {key: rest.pop(key, "") for key in ("model", "published")}
        _check_keys(texts, dict.fromkeys(texts, str), where)
        model, published = texts["model"], texts["published"]
        tune = table_of(rest.pop("tune", {}), f"{where}.tune")
        if "with" in tune:
            raise InputError(f"{where}.tune: `with` belongs beside `tune`, not inside")
        layers = self.layers({"with": rest.pop("with", []), **tune}, f'[variants."{name}"].tune')
        merged: dict[str, Any] = {}
        tune_notes: dict[str, PaperValue] = {}
        for layer in layers:
            # Report a mistake now, not after hours.
            fill_command_settings(defaults_of("finetune"), layer.values, layer.where)
            _check_no_model(layer.values, layer.where)
            _check_no_seeds(layer)
            merged |= layer.values
            tune_notes |= layer.notes
        if published:
            require_known(published, reported(), f"{where}: published = {published!r}")
        scores = _scores(rest.pop("scores", {}), where)
        config, training = fill_command_settings(adapting, rest, where)
        notes = {**adapt_notes, **own.notes}
        given = tuple(merged.items())
        return Variant(name, config, training, model, published, given, notes, tune_notes, scores)

    def _tuning(self, name: str, table: object, tuning: Filled, notes: Notes) -> FineTuningTask:
        layers = self.layers(table, f'[tasks."{name}"]')
        own = layers[-1]
        _check_no_model(own.values, own.where)
        named = [layer.values["task"] for layer in layers if "task" in layer.values]
        task = str(named[-1]) if named else name
        called = name if task != name else ""
        base = (replace(tuning[0], task=name, display_name=called), tuning[1])
        (config, training), notes = _filled_by(layers, base, notes)
        if config.own.label and "task" not in own.values:  # the user's own file makes the task
            config = replace(config, task="", display_name=name)
        return FineTuningTask(config, training, _seeds(own.values, own.where), notes)

    def _table(self, name: str, table: object) -> TableSpec:
        where = self.where(f'[tables."{name}"]')
        table = table_of(table, where)
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


def _filled_by(
    layers: Sequence[_TableSettings], defaults: Filled, notes: Notes
) -> tuple[Filled, dict[str, PaperValue]]:
    """Settings and notes with those of several tables; later tables override earlier ones."""
    settings = defaults
    said = dict(notes)
    for layer in layers:
        settings = fill_command_settings(settings, layer.values, layer.where)
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
    """The parsed file; raises InputError for unknown keys and for values of the wrong type."""
    text = read_text(path)
    for number, line in enumerate(text.split("\n"), 1):
        if MANY_PARTS.search(line):
            raise InputError(f"{path}, line {number}: a key has more than {MOST_PARTS} parts")
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
    also: Iterable[str] = (),
) -> None:
    """Raises InputError for an unknown key, or a value of the wrong type."""
    for key, value in table.items():
        require_known(key, [*known, *also], f"{where}: unknown key {key!r}")
        if type(value) is not known[key]:
            raise InputError(f"{where}: {key} = {value!r}, expected {KINDS[known[key]]}")


def _check_no_model(table: Mapping[str, Any], where: str) -> None:
    """Raises InputError for a model among fine-tuning settings: each variant's model would replace
    it.
    """
    if "model" in table:
        raise InputError(
            f"{where}: model = {table['model']!r}; put the model into the table of a variant"
        )


def _check_no_seeds(layer: _TableSettings) -> None:
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

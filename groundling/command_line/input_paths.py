"""The files, folders and models that settings name: whether they exist, and which of them identify a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from groundling.core.errors import InputError, prefix_errors
from groundling.core.registry import is_import_path
from groundling.data.tables import read_rows, user_columns
from groundling.settings.fields import InputKind, Setting, setting_values, settings_of
from groundling.settings.input_settings import (
    TableTaskSettings,
    parse_named_folder,
    parse_weighted_file,
    region_manifest,
)

NAMES = (None, InputKind.OBJECT, InputKind.COLUMN)
"""Kinds of texts that name no file, folder or model."""


def _named_inputs(config: object) -> Iterator[tuple[Setting, int, str]]:
    """Setting, number and path of each file, folder and model; the user's own modules are none."""
    for one in settings_of(config):
        words = [one.value] if isinstance(one.value, str) else one.value
        for number, word in enumerate(filter(None, words if one.input not in NAMES else ())):
            if one.input is InputKind.WEIGHTED:
                word = parse_weighted_file(word, one.name).file
            elif one.input is InputKind.NAMED:
                word = parse_named_folder(word)[1] or word
            if not (one.input is InputKind.MODEL and is_import_path(word)):
                yield one, number, word


def input_paths(*configs: object) -> dict[str, str]:
    """Each file, folder and model by the name of its setting, and its number from the second one."""
    found = {}
    for one, number, path in (each for config in configs for each in _named_inputs(config)):
        is_store = one.name in ("regions", "train_regions")
        name = f"{one.name}:{number}" if number else one.name
        found[name] = region_manifest(path) if is_store else path
    return found


def check_inputs(
    config: object, prefix: str = "", skip: Callable[[str], bool] = lambda path: False
) -> None:
    """Raises InputError for files, folders and models that do not exist, which would end a run or a recipe late.

    `prefix` stands before a setting's name; `skip` decides which paths are not checked yet.
    """
    from groundling.models.hub import check_model

    has_own_format = setting_values(config).get("model_format")  # it may load anything
    for one, _, path in _named_inputs(config):
        if skip(path) or one.value == one.default:  # a default is not always read
            continue
        if one.input is InputKind.MODEL:
            with prefix_errors(f"{prefix}{one.name}"):
                if not has_own_format and path != "random":
                    check_model(path)
        elif not Path(path).exists() and not (one.input is InputKind.DATA and path == "hub"):
            raise InputError(f"{prefix}{one.name}={path}: no such file or folder")
    own, data = vars(config).get("own"), str(setting_values(config).get("data", ""))
    if isinstance(own, TableTaskSettings) and own.label and data and not skip(data):
        for table in filter(None, (data, own.dev)):  # of `compare`, read hours later
            next(read_rows(table, tuple(user_columns(own)[1])), None)

"""Checks that the files, folders, models and columns that settings name exist. Imports nothing
heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from groundling.core.errors import InputError
from groundling.core.registry import is_import_path
from groundling.data.tables import (
    read_rows,
    user_columns,
)
from groundling.models.hub import check_model
from groundling.runs.folder import RESULT
from groundling.settings.fields import InputKind, setting_values, settings_of
from groundling.settings.input_settings import (
    TableTaskSettings,
    parse_named_folder,
    parse_weighted_file,
)

MODELS = (InputKind.MODEL, InputKind.WEIGHTS, InputKind.MODEL_OR_RANDOM)
"""Kinds of hub ids and model folders."""
NOT_INPUTS = (
    None,
    InputKind.COLUMN,
    InputKind.TASK,
    InputKind.ARCHITECTURE,
    InputKind.TRAINING_STEP,
)
"""Kinds of names, which are resolved when the command begins."""


def check_model_exists(setting: str, word: str) -> None:
    """Raises InputError for a hub id or folder without a model; MODULE:NAME is checked only when it
    is imported.
    """
    if is_import_path(word):
        return
    try:
        check_model(word)
    except InputError as error:
        raise InputError(f"{setting}={error}") from None


def _check_input(kind: InputKind, setting: str, word: str) -> None:
    if kind is InputKind.OBJECT:
        if not is_import_path(word):
            raise InputError(f"{setting}={word}: expected MODULE:NAME, an object of your own")
    elif kind in MODELS:
        inside = Path(word) / "model"
        if kind is InputKind.WEIGHTS and (Path(word) / RESULT).is_file() and inside.is_dir():
            raise InputError(f"{setting}={word}: is a run folder; pass its model, {inside}")
        if not (kind is InputKind.MODEL_OR_RANDOM and word == "random"):
            check_model_exists(setting, word)
    elif not (kind is InputKind.DATA and word == "hub"):
        _check_path(kind, setting, word)


def _check_path(kind: InputKind, setting: str, word: str) -> None:
    path = Path(word)
    if kind is InputKind.WEIGHTED:
        path = Path(parse_weighted_file(word, setting).file)
    elif kind is InputKind.NAMED:
        path = Path(parse_named_folder(word).folder or word)
    if not path.exists():
        what = "folder" if kind is InputKind.FOLDER else "file or folder"
        raise InputError(f"{setting}={path}: no such {what}")
    if kind is InputKind.FOLDER and not path.is_dir():
        raise InputError(f"{setting}={path}: is a file; expected a folder")
    if kind is InputKind.FILE and path.is_dir():
        raise InputError(f"{setting}={path}: is a folder; expected a file")


def check_inputs(
    settings: object, prefix: str = "", skip: Callable[[str], bool] = lambda word: False
) -> None:
    """Raises InputError, which begins with the setting, for inputs that do not exist.

    Checks files, folders, models, and table columns as far as headers show them. `prefix` stands
    before a setting's name; `skip` decides which words are not checked yet.
    """
    has_own_format = bool(setting_values(settings).get("model_format"))
    for one in settings_of(settings):
        # A user's own `ModelFormat` may load anything.
        if one.input in NOT_INPUTS or (one.input in MODELS and has_own_format):
            continue
        setting = f"{prefix}{one.name}"
        for word in _words(one.value):
            if one.input and not skip(word):
                _check_input(one.input, setting, word)
    if not skip(str(setting_values(settings).get("data", ""))):
        _check_task_table(settings)


def _words(value: object) -> list[str]:
    return [word for word in (value if isinstance(value, tuple) else (value,)) if word]


def _check_task_table(settings: object) -> None:
    options, data = (vars(settings).get(name) for name in ("own", "data"))
    if isinstance(options, TableTaskSettings) and options.label and data:
        _, columns = user_columns(options)
        for table in filter(None, (data, options.dev)):
            next(read_rows(table, tuple(columns)), None)

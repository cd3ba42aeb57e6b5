"""Checks that the files, folders, models and columns that settings name exist. Imports nothing
heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groundling.core.errors import InputError
from groundling.core.registry import is_import_path
from groundling.data.captions.files import choose_columns
from groundling.data.tables import (
    ROWS,
    TABLES,
    check_named_columns,
    read_header,
    read_rows,
    user_columns,
)
from groundling.models.hub import check_model
from groundling.runs.folder import RESULT, read_json
from groundling.settings.fields import InputKind, flag_name, setting_values, settings_of
from groundling.settings.input_settings import (
    CaptionColumns,
    PredictionColumns,
    SavedModelSettings,
    TableTaskSettings,
    parse_named_folder,
    parse_weighted_file,
)

Check = Callable[[str, str], None]
"""Takes a flag and one word of its value."""


def check_path_exists(flag: str, word: str) -> None:
    """Raises InputError if there is no such file or folder."""
    if not Path(word).exists():
        raise InputError(f"{flag} {word}: no such file or folder")


def check_file_exists(flag: str, word: str) -> None:
    """Raises InputError if there is no such file."""
    check_path_exists(flag, word)
    if Path(word).is_dir():
        raise InputError(f"{flag} {word}: is a folder; expected a file")


def check_folder_exists(flag: str, word: str) -> None:
    """Raises InputError if there is no such folder."""
    if not Path(word).exists():
        raise InputError(f"{flag} {word}: no such folder")
    if not Path(word).is_dir():
        raise InputError(f"{flag} {word}: is a file; expected a folder")


def check_weighted_path(flag: str, word: str) -> None:
    """Raises InputError as `check_path_exists`, for FILE or FILE=WEIGHT."""
    check_path_exists(flag, parse_weighted_file(word, flag).file)


def check_named_path(flag: str, word: str) -> None:
    """Raises InputError as `check_path_exists`, for FOLDER or NAME=FOLDER."""
    check_path_exists(flag, parse_named_folder(word).folder or word)


def check_data_exists(flag: str, word: str) -> None:
    """Raises InputError as `check_path_exists`; `hub` is allowed and downloads GLUE."""
    if word != "hub" and not Path(word).exists():
        raise InputError(f"{flag} {word}: no such file or folder")


def check_model_exists(flag: str, word: str) -> None:
    """Raises InputError for a hub id or folder without a model; MODULE:NAME is checked only when it
    is imported.
    """
    if is_import_path(word):
        return
    try:
        check_model(word)
    except InputError as error:
        raise InputError(f"{flag} {error}") from None


def check_weights_exist(flag: str, word: str) -> None:
    """Raises InputError as `check_model_exists`, and for a run folder, which holds its model in a subfolder."""
    inside = Path(word) / "model"
    if (Path(word) / RESULT).is_file() and inside.is_dir():
        raise InputError(f"{flag} {word}: is a run folder; pass its model, {inside}")
    check_model_exists(flag, word)


def check_model_or_random(flag: str, word: str) -> None:
    """Raises InputError as `check_model_exists`; `random` is allowed."""
    if word != "random":
        check_model_exists(flag, word)


def check_own_object(flag: str, word: str) -> None:
    """Raises InputError for a word that is not MODULE:NAME; the object is checked only when it is
    imported.
    """
    if not is_import_path(word):
        raise InputError(f"{flag} {word}: expected MODULE:NAME, an object of your own")


CHECKS: Mapping[InputKind | None, Check] = {
    InputKind.FILE: check_file_exists,
    InputKind.FOLDER: check_folder_exists,
    InputKind.PATH: check_path_exists,
    InputKind.WEIGHTED: check_weighted_path,
    InputKind.NAMED: check_named_path,
    InputKind.DATA: check_data_exists,
    InputKind.MODEL: check_model_exists,
    InputKind.WEIGHTS: check_weights_exist,
    InputKind.MODEL_OR_RANDOM: check_model_or_random,
    InputKind.OBJECT: check_own_object,
}
"""Check of each kind of input."""


def check_inputs(
    settings: object, prefix: str = "", skip: Callable[[str], bool] = lambda word: False
) -> None:
    """Raises InputError, which begins with the flag, for inputs that do not exist.

    Checks files, folders, models, and table columns as far as headers show them. `prefix` stands
    before a flag's name; `skip` decides which words are not checked yet.
    """
    has_own_format = bool(setting_values(settings).get("model_format"))
    for one in settings_of(settings):
        # A user's own `ModelFormat` may load anything.
        is_model = one.input in (InputKind.MODEL, InputKind.WEIGHTS)
        if one.input not in CHECKS or (is_model and has_own_format):
            continue
        flag = f"--{prefix}{flag_name(one.name)}"
        for word in _words(one.value):
            if not skip(word):
                CHECKS[one.input](flag, word)
    if not skip(str(setting_values(settings).get("data", ""))):
        _check_task_table(settings)
    _check_prediction_columns(settings)
    _check_caption_columns(settings)


def _words(value: object) -> list[str]:
    return [word for word in (value if isinstance(value, tuple) else (value,)) if word]


def _check_task_table(settings: object) -> None:
    """Raises InputError if a task table of the user's own lacks a column."""
    options, data = (vars(settings).get(name) for name in ("own", "data"))
    if isinstance(options, TableTaskSettings) and options.label and data:
        _, columns = user_columns(options)
        for table in filter(None, (data, options.dev)):
            next(read_rows(table, tuple(columns)), None)


def _check_prediction_columns(settings: object) -> None:
    """Raises InputError if a table for a saved model lacks a column, whether named by a flag or
    taken from training.

    Any seed of the run will do: all were trained on the same columns.
    """
    groups = vars(settings)
    saved, columns = groups.get("saved_model"), groups.get("columns")
    if not (isinstance(saved, SavedModelSettings) and isinstance(columns, PredictionColumns)):
        return
    table = Path(groups["data"])
    if not table.is_file() or table.suffix not in TABLES:
        return
    folder = Path(saved.model)
    files = (file for part in ("", "model/", "seed-*/model/") for file in folder.glob(part + TASK))
    file = next(files, None)
    description: Any = {} if file is None else read_json(file)
    trained = description.get("own") if isinstance(description, dict) else None
    names = {**vars(columns), "label": groups.get("label", "")}
    if isinstance(trained, dict) and not names["text"]:
        names = {**names, "text": str(trained.get("text", ""))}
    if names["text"]:
        check_named_columns(table, read_header(table), names, "--")


TASK = "groundling_task.json"
"""File beside a fine-tuned model that describes its task, see \
`groundling.prediction.model_description`."""


def _check_caption_columns(settings: object) -> None:
    """Raises InputError if a caption table lacks a named column."""
    values = setting_values(settings)
    if "caption_column" not in values:
        return
    columns = CaptionColumns(values["caption_column"], values["image_column"])
    if columns == CaptionColumns():
        return
    for name in ("captions", "text", "eval_captions"):
        for word in _words(values.get(name, ())):
            table = Path(parse_weighted_file(str(word), "").file)
            if table.suffix in ROWS:
                choose_columns(table, read_header(table), columns)

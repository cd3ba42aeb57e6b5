"""Files, folders, models and columns that settings name: whether they are there. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groundling.command_line.registered_names import check_name
from groundling.core.errors import InputError
from groundling.core.registry import is_import_path
from groundling.data.captions.files import check_named_captions, header_of
from groundling.data.tables import (
    ROWS,
    TABLES,
    check_columns,
    check_named_columns,
    read_header,
    user_columns,
)
from groundling.models.hub import check_model
from groundling.runs.folder import RESULT, read_json
from groundling.settings.fields import InputKind, flag_name, flatten_settings, setting_values
from groundling.settings.input_settings import (
    CaptionColumns,
    PredictionColumns,
    SavedModelSettings,
    TableTaskSettings,
    named_folder,
    weighted,
)

Check = Callable[[str, str], None]
"""Of a flag and one word of its value."""


def check_path_exists(flag: str, word: str) -> None:
    """Raises InputError if there is neither such a file nor such a folder."""
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
    """Raises InputError as `path`, for FILE or FILE=WEIGHT."""
    check_path_exists(flag, weighted(word, flag).file)


def check_named_path(flag: str, word: str) -> None:
    """Raises InputError as `path`, for FOLDER or NAME=FOLDER."""
    check_path_exists(flag, named_folder(word).folder or word)


def check_data_exists(flag: str, word: str) -> None:
    """Raises InputError as `path`; `hub` is where GLUE comes from."""
    if word != "hub" and not Path(word).exists():
        raise InputError(f"{flag} {word}: no such folder or file of data")


def check_model_exists(flag: str, word: str) -> None:
    """Raises InputError for a hub id or folder of no model; what MODULE:NAME means, only its import tells."""
    if is_import_path(word):
        return
    try:
        check_model(word)
    except InputError as error:
        raise InputError(f"{flag} {error}") from None


def check_weights_exist(flag: str, word: str) -> None:
    """Raises InputError as `model`, and for the folder of a run, which has its model inside."""
    inside = Path(word) / "model"
    if (Path(word) / RESULT).is_file() and inside.is_dir():
        raise InputError(f"{flag} {word}: a run's folder; its model is {inside}")
    check_model_exists(flag, word)


def check_model_or_random(flag: str, word: str) -> None:
    """Raises InputError as `model`; `random` is none."""
    if word != "random":
        check_model_exists(flag, word)


def check_own_object(flag: str, word: str) -> None:
    """Raises InputError for what is no MODULE:NAME; whether it is there, only its import tells."""
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
    InputKind.TASK: lambda flag, word: check_name("tasks", "Task", word),
    InputKind.DESIGN: lambda flag, word: check_name("vision_language", "Architecture", word),
    InputKind.INNER: lambda flag, word: check_name(
        "training.training_steps", "TrainingStepSpec", word
    ),
}
"""How to ask whether what a setting names is there."""


NAMES = (InputKind.TASK, InputKind.DESIGN, InputKind.INNER)
"""What is known by name, and no file."""


def check_inputs(
    settings: object, prefix: str = "", later: Callable[[str], bool] = lambda word: False
) -> None:
    """Raises InputError, which begins with the flag, for what settings name and what is not there.

    Files, folders, models, and columns of tables as far as their headers tell. `prefix` stands before a flag's name;
    `later` says of which words it is too early to ask.
    """
    # What is wrong with a name is told without a look at the disk.
    for group, one in sorted(
        flatten_settings(settings), key=lambda pair: pair[1].input not in NAMES
    ):
        # What a `ModelFormat` of your own loads may be anything.
        is_model = one.input in (InputKind.MODEL, InputKind.WEIGHTS)
        if one.input not in CHECKS or (is_model and vars(group).get("model_format")):
            continue
        flag = f"--{prefix}{flag_name(one.name)}"
        for word in _words(vars(group)[one.name]):
            if not later(word):
                CHECKS[one.input](flag, word)
    if not later(str(setting_values(settings).get("data", ""))):
        _check_own(settings)
    _check_asked(settings)
    _check_captions(settings)


def _words(value: object) -> list[str]:
    return [word for word in (value if isinstance(value, tuple) else (value,)) if word]


def _check_own(settings: object) -> None:
    """Raises InputError if a file of one's own that makes a task lacks a column."""
    own, data = (vars(settings).get(name) for name in ("own", "data"))
    if isinstance(own, TableTaskSettings) and own.label and data:
        _, columns = user_columns(own)
        for table in filter(None, (data, own.dev)):
            check_columns(Path(table), list(columns))


def _check_asked(settings: object) -> None:
    """Raises InputError if a table that a saved model is asked about lacks a column, told or learned from.

    Which of a run's seeds answers makes no difference: they learned from the same columns.
    """
    held = vars(settings)
    saved, asking = held.get("saved_model"), held.get("columns")
    if not (isinstance(saved, SavedModelSettings) and isinstance(asking, PredictionColumns)):
        return
    table = Path(held["data"])
    if not table.is_file() or table.suffix not in TABLES:
        return
    folder = Path(saved.model)
    files = (file for part in ("", "model/", "seed-*/model/") for file in folder.glob(part + TASK))
    about = next(files, None)
    learned: Any = {} if about is None else read_json(about)
    own = learned.get("own") if isinstance(learned, dict) else None
    asked = {**vars(asking), "label": held.get("label", "")}
    if isinstance(own, dict) and not asked["text"]:
        asked = {**asked, "text": str(own.get("text", ""))}
    if asked["text"]:
        check_named_columns(table, read_header(table), asked, "--")


TASK = "groundling_task.json"
"""Beside a fine-tuned model: what it answers, see `groundling.prediction.model_description`."""


def _check_captions(settings: object) -> None:
    """Raises InputError if a table of captions lacks a column that was named."""
    given = setting_values(settings)
    if "caption_column" not in given:
        return
    told = CaptionColumns(given["caption_column"], given["image_column"])
    if told == CaptionColumns():
        return
    for name in ("captions", "text", "eval_captions"):
        for word in _words(given.get(name, ())):
            table = Path(weighted(str(word), "").file)
            header = header_of(table) if table.suffix in ROWS else []
            if header:
                check_named_captions(table, header, told)

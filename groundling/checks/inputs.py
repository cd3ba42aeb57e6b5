"""Files, folders, models and columns that settings name: whether they are there. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groundling.commands.adapt import AdaptConfig
from groundling.commands.compare import CompareConfig
from groundling.commands.data_check import CheckConfig
from groundling.commands.data_partition import PartitionConfig
from groundling.commands.data_show import ShowConfig
from groundling.commands.evaluate import EvaluateConfig
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.predict import PredictConfig
from groundling.commands.pretrain import PretrainConfig
from groundling.commands.push import PushConfig
from groundling.commands.regions import RegionsConfig
from groundling.commands.retrieve import RetrieveConfig
from groundling.commands.sweep import SweepConfig
from groundling.commands.teach import TeachConfig
from groundling.commands.verdict import VerdictConfig
from groundling.core.errors import InputError
from groundling.core.find import is_outside
from groundling.data.captions.tables import check_told, header_of
from groundling.data.corpora.weighted_files import named_folder, weighted
from groundling.data.tables.own_rows import check_asked, check_columns, own_columns
from groundling.data.tables.tables import TABLES, columns_of
from groundling.models.folders import check_model
from groundling.runs.folder import RESULT, read_json
from groundling.settings.fields import flat
from groundling.settings.inputs import CaptionColumns, OwnFile, RegionInput, Saved
from groundling.settings.objectives import Targeted
from groundling.studies.attention.commands import (
    FiguresConfig,
    HeadsConfig,
    LookConfig,
    ModalityConfig,
    SyntaxConfig,
)
from groundling.studies.attention.settings import Attending
from groundling.studies.clip_td.commands import (
    EnsembleConfig,
    ShiftConfig,
    VcrConfig,
    ZeroShotConfig,
)
from groundling.studies.knowledge.commands import AskConfig, PairsConfig, WinogroundConfig
from groundling.studies.worlds.commands import ProbeConfig
from groundling.studies.xdbert.commands import (
    AttentionConfig,
    CountsConfig,
    GroundedConfig,
    SimilarityConfig,
)
from groundling.vision.settings import Extraction

Check = Callable[[str, str], None]
"""Of a flag and one word of its value."""


def path(flag: str, word: str) -> None:
    """Raises InputError if there is neither such a file nor such a folder."""
    if not Path(word).exists():
        raise InputError(f"{flag} {word}: no such file or folder")


def file(flag: str, word: str) -> None:
    """Raises InputError if there is no such file."""
    path(flag, word)
    if Path(word).is_dir():
        raise InputError(f"{flag} {word}: is a folder; expected a file")


def folder(flag: str, word: str) -> None:
    """Raises InputError if there is no such folder."""
    if not Path(word).exists():
        raise InputError(f"{flag} {word}: no such folder")
    if not Path(word).is_dir():
        raise InputError(f"{flag} {word}: is a file; expected a folder")


def weighted_path(flag: str, word: str) -> None:
    """Raises InputError as `path`, for FILE or FILE=WEIGHT."""
    path(flag, weighted(word, flag).file)


def named_path(flag: str, word: str) -> None:
    """Raises InputError as `path`, for FOLDER or NAME=FOLDER."""
    path(flag, named_folder(word).folder or word)


def data(flag: str, word: str) -> None:
    """Raises InputError as `path`; `hub` is where GLUE comes from."""
    if word != "hub" and not Path(word).exists():
        raise InputError(f"{flag} {word}: no such folder or file of data")


def model(flag: str, word: str) -> None:
    """Raises InputError for a hub id or folder of no model; what MODULE:NAME means, only its import tells."""
    if is_outside(word):
        return
    try:
        check_model(word)
    except InputError as error:
        raise InputError(f"{flag} {error}") from None


def weights(flag: str, word: str) -> None:
    """Raises InputError as `model`, and for the folder of a run, which has its model inside."""
    inside = Path(word) / "model"
    if (Path(word) / RESULT).is_file() and inside.is_dir():
        raise InputError(f"{flag} {word}: a run's folder; its model is {inside}")
    model(flag, word)


def model_or_random(flag: str, word: str) -> None:
    """Raises InputError as `model`; `random` is none."""
    if word != "random":
        model(flag, word)


REGIONS: Mapping[str, Check] = {"regions": named_path, "images": folder}

INPUTS: Mapping[type, Mapping[str, Check]] = {
    TeachConfig: {
        **{"start": weights, "captions": path, "images": folder, "listing": file},
        **{"eval_listing": file, "eval_captions": path},
    },
    AdaptConfig: {
        **{"student": weights, "teacher": weights, "text": weighted_path, "held": path},
        "retention": path,
    },
    Targeted: {"teacher_images": folder, "teacher_text": model, "teacher_scorer": model},
    RegionInput: REGIONS,
    PretrainConfig: {
        **{"student": weights, "captions": weighted_path, "listing": file, "data": path},
        **{"eval_captions": weighted_path, "eval_listing": file, "partition": file},
        **{"text": weighted_path, "teacher": weights},
    },
    FinetuneConfig: {
        **{"model": weights, "data": data, "partition": file, "also": named_path},
        "teacher": weights,
    },
    OwnFile: {"dev": file},
    RegionsConfig: {"imports": path, "ids": file},
    Extraction: {"images": folder, "boxes": path},
    Saved: {**REGIONS, "model": folder, "detector": model, "backbone": model},
    PredictConfig: {"data": path},
    EvaluateConfig: {"data": path},
    PushConfig: {"run": folder},
    ProbeConfig: {"model": model, "data": folder},
    AskConfig: {"model": model, "data": path},
    PairsConfig: {"model": model, "data": path, "other": model},
    WinogroundConfig: {**REGIONS, "model": model, "data": path, "other": model},
    CompareConfig: {"data": data},
    SweepConfig: {"file": file},
    VerdictConfig: {"runs": named_path},
    VcrConfig: {"answers": folder, "rationales": folder, "data": folder, "both": folder},
    EnsembleConfig: {"runs": folder, "data": path},
    ZeroShotConfig: {**REGIONS, "model": model, "data": path, "also": named_path},
    RetrieveConfig: {
        **{"model": model, "captions": path, "images": folder, "listing": file},
        "student": model,
    },
    SimilarityConfig: {"a": model_or_random, "b": model_or_random},
    GroundedConfig: {
        **{"base": folder, "other": folder, "data": path, "counts": file},
        "tokenizer": model,
    },
    AttentionConfig: {"a": folder, "b": folder, "text": path, "data": path},
    Attending: {**REGIONS, "model": model},
    HeadsConfig: {"data": path},
    SyntaxConfig: {"data": folder},
    ModalityConfig: {
        **{"other": model, "data": path, "teacher": model},
        "teacher_images": folder,
    },
    CountsConfig: {"captions": path, "tokenizer": model},
    ShiftConfig: {
        **{"data": folder, "attack": folder, "attack_rationale": folder, "losses": file},
        **{"wordnet": folder, "predictions": file},
    },
    PartitionConfig: {"data": path},
    FiguresConfig: {"results": folder},
    CheckConfig: {"folder": folder},
    ShowConfig: {"store": folder, "images": folder},
    LookConfig: {
        **REGIONS,
        **{"model": model, "image": file, "data": path, "detector": model, "backbone": model},
        **{"heads": path, "predictions": file},
    },
}
"""What must be there, where a setting names it, by the class of the settings."""


def check_inputs(
    settings: object, prefix: str = "", later: Callable[[str], bool] = lambda word: False
) -> None:
    """Raises InputError, which begins with the flag, for what settings name and what is not there.

    Files, folders, models, and columns of tables as far as their headers tell. `prefix` stands before a flag's name;
    `later` says of which words it is too early to ask.
    """
    for group, one in flat(settings):
        check = INPUTS.get(type(group), {}).get(one.name)
        # What a `Kind` of your own loads may be anything.
        if check is None or (check in (model, weights) and vars(group).get("kind")):
            continue
        flag = f"--{prefix}{one.name.replace('_', '-')}"
        for word in _words(vars(group)[one.name]):
            if not later(word):
                check(flag, word)
    _check_backbones(settings)
    if not later(str(vars(settings).get("data", ""))):
        _check_own(settings)
    _check_asked(settings)
    _check_captions(settings)


def _words(value: object) -> list[str]:
    return [word for word in (value if isinstance(value, tuple) else (value,)) if word]


def _check_backbones(settings: object) -> None:
    """Raises InputError for models that have a default, and are read in some settings alone."""
    if isinstance(settings, RegionsConfig) and not settings.imports:
        extraction, finding = settings.extraction, settings.extraction.finding
        if not finding.grid and (extraction.also_detected or not extraction.boxes):
            model("--detector", finding.detector)
        model("--backbone", finding.backbone)
    if isinstance(settings, PretrainConfig | FinetuneConfig):
        new = isinstance(settings, PretrainConfig) or settings.join
        if settings.regions.images and new:
            model("--backbone", settings.pixels.backbone)


def _check_own(settings: object) -> None:
    """Raises InputError if a file of one's own that makes a task lacks a column."""
    if isinstance(settings, FinetuneConfig | CompareConfig) and settings.own.label:
        _, columns = own_columns(settings.own)
        for table in filter(None, (settings.data, settings.own.dev)):
            check_columns(Path(table), list(columns))


def _check_asked(settings: object) -> None:
    """Raises InputError if a table that a saved model is asked about lacks a column, told or learned from.

    Which of a run's seeds answers makes no difference: they learned from the same columns.
    """
    if not isinstance(settings, PredictConfig | EvaluateConfig):
        return
    table = Path(settings.data)
    if not table.is_file() or table.suffix not in TABLES:
        return
    folder = Path(settings.saved.model)
    files = (file for part in ("", "model/", "seed-*/model/") for file in folder.glob(part + TASK))
    about = next(files, None)
    learned: Any = {} if about is None else read_json(about)
    own = learned.get("own") if isinstance(learned, dict) else None
    asked = vars(settings.asking)
    if isinstance(settings, EvaluateConfig):
        asked = {**asked, "label": settings.label}
    if isinstance(own, dict) and not asked["text"]:
        asked = {**asked, "text": str(own.get("text", ""))}
    if asked["text"]:
        check_asked(table, columns_of(table), asked, "--")


TASK = "groundling_task.json"
"""Beside a fine-tuned model: what it answers, see `groundling.prediction.description`."""


def _check_captions(settings: object) -> None:
    """Raises InputError if a table of captions lacks a column that was named."""
    told = vars(settings).get("columns")
    if not isinstance(told, CaptionColumns) or not (told.caption_column or told.image_column):
        return
    for name in ("captions", "text", "eval_captions"):
        for word in _words(vars(settings).get(name, ())):
            table = Path(weighted(str(word), "").file)
            header = header_of(table) if table.suffix in (".csv", ".tsv", ".jsonl") else []
            if header:
                check_told(table, header, told)

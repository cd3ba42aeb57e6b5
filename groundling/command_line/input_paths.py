"""The files, folders and models that a command's settings name, whose sizes and times identify a run."""

from __future__ import annotations

from groundling.command_line.input_checks import MODELS, NOT_INPUTS
from groundling.core.registry import is_import_path
from groundling.settings.fields import InputKind, settings_of
from groundling.settings.input_settings import (
    parse_named_folder,
    parse_weighted_file,
    region_manifest,
)

DEFAULT_MODELS = ("backbone", "detector")
"""Settings that name a model by default, and so are checked only where a command reads it."""


def input_paths(*configs: object) -> dict[str, str]:
    """Each file, folder and model by the name of its setting, and its number from the second one."""
    found = {}
    for one in (one for config in configs for one in settings_of(config)):
        if one.input in (*NOT_INPUTS, InputKind.OBJECT) and one.name not in DEFAULT_MODELS:
            continue
        words = [one.value] if isinstance(one.value, str) else one.value
        for number, word in enumerate(filter(None, words)):
            if not (one.input in MODELS and is_import_path(word)):
                name = f"{one.name}:{number}" if number else one.name
                found[name] = _path_of(one.input, one.name, word)
    return found


def _path_of(kind: InputKind | None, name: str, word: str) -> str:
    if kind is InputKind.WEIGHTED:
        return parse_weighted_file(word, name).file
    if name in ("regions", "train_regions"):
        return region_manifest(word)
    return parse_named_folder(word)[1] if kind is InputKind.NAMED else word

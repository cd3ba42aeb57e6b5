"""Local paths of a saved model: its folder names none, because it is shared; a file beside it has them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from groundling.runs.folder import read_object, write_json

PIXELS = re.compile(r"(.*?)( at (?:short side )?\d.* pixels \(weights \w*\))?", re.DOTALL)
"""A model's path or hub id, and perhaps its image size and weights."""


def keep_path(folder: Path, role: str, source: str) -> str:
    """The name of a model that another one needs, for a file in `folder`: of a local path, `./` and its last part.

    The path itself is kept in `NAME.paths.json` beside the folder. A hub id stays as it is.
    """
    if not (os.path.isabs(source) or os.path.exists(source)):
        return source
    path = os.path.abspath(source)
    write_json(_file(folder), {**_paths(folder), role: path})
    return f"./{os.path.basename(path)}"


def kept_path(folder: str | Path, role: str, name: Any) -> Any:
    """The path for a name that `keep_path` made; anything else unchanged, as is a name without a known path."""
    is_kept = isinstance(name, str) and name.startswith("./")
    return _paths(folder).get(role, name) if is_kept else name


def _file(folder: str | Path) -> Path:
    path = Path(os.path.abspath(folder))
    return path.with_name(f"{path.name}.paths.json")


def _paths(folder: str | Path) -> dict[str, Any]:
    return read_object(_file(folder)) if _file(folder).exists() else {}


def without_folders(value: Any) -> Any:
    """A value for json, in which local paths are shown by their last part only."""
    if isinstance(value, dict):
        return {name: without_folders(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(one) for one in value]
    if not isinstance(value, str):
        return value
    return " + ".join(_last_part(part) for part in value.split(" + "))


def _last_part(text: str) -> str:
    path, size = PIXELS.fullmatch(text).groups("")  # type: ignore[union-attr]
    is_local = path.startswith(("/", "~", ".."))
    return (os.path.basename(path.rstrip("/")) if is_local else path) + size

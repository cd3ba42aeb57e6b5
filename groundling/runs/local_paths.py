"""Other models that a saved model needs: a local one is named by its path from the model's folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def keep_path(folder: Path, source: str) -> str:
    """The name of a model that another one needs, for a file in `folder`; a hub id stays as it is."""
    if not os.path.exists(source):
        return source
    # A folder is written inside of `.partial`, from which it is moved up (`whole_folder`).
    parts = [part for part in Path(os.path.abspath(folder)).parts if part != ".partial"]
    return os.path.relpath(source, Path(*parts))


def kept_path(folder: str | Path, name: Any) -> Any:
    """The path for a name that `keep_path` made; anything else unchanged."""
    is_path = isinstance(name, str) and name.startswith("..")
    return os.path.normpath(os.path.join(os.path.abspath(folder), name)) if is_path else name

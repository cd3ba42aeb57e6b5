"""Whether a hub id or a folder of a model is there, told by names of files alone. Imports nothing heavy."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.file_download import repo_folder_name

from groundling.core.errors import InputError
from groundling.models.hub import WAIT, fault, is_there

ADAPTER = "adapter.json"
"""In the folder of an adapter over a CLIP."""
CNN = "cnn"
"""In the folder of a vision-language model that reads pixels, the folder of its CNN."""
HUB_ID = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*")
"""NAME or OWNER/NAME."""


def is_adapter(source: str) -> bool:
    """Whether a folder was written by `ClipAdapter.export`."""
    return (Path(source) / ADAPTER).exists()


def has_cnn(source: str) -> bool:
    """Whether a folder holds a vision-language model that reads pixels by a CNN of its own."""
    return (Path(source) / CNN).is_dir()


def check_model(source: str) -> None:
    """Raises InputError if a source is no folder with a model's settings, and no model of the hub, nor of its cache."""
    folder = Path(source)
    if folder.is_file():
        raise InputError(f"{source}: is a file; expected a model's folder, or its id on the hub")
    if folder.is_dir():
        # A whole cross-modal model (`adapt --save-joint`) has its parts in folders of their own.
        if not any(folder.glob("*.json")) and not any(folder.glob("*/*.json")):
            raise InputError(f"{source}: not a model folder, config.json is missing")
        return
    if HUB_ID.fullmatch(source) is None:
        raise InputError(f"{source}: no model found there (no such folder)")
    if is_there():
        if _is_unknown(source):
            raise InputError(
                f"{source}: no model found there (no such folder, and the hub knows no model of this name, or none "
                "that you may see)"
            )
    elif not _cached(source):
        raise InputError(f"{source}: no model found there ({fault(source, OSError())})")


def _cached(source: str) -> bool:
    """Whether the hub's cache on this machine has something of a model."""
    name = repo_folder_name(repo_id=source, repo_type="model")
    return any((Path(constants.HF_HUB_CACHE) / name / "snapshots").glob("*"))


def _is_unknown(source: str) -> bool:
    """Whether the hub says that it has no such model, and the cache has none."""
    try:
        HfApi().model_info(source, timeout=WAIT)
    except RepositoryNotFoundError:
        return not _cached(source)
    except Exception:  # of the HTTP client: whoever loads the model will say more
        return False
    return False

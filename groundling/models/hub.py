"""Hugging Face's hub and folders of models: whether a model is there, told without loading it. No torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, get_session, is_offline_mode
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.file_download import repo_folder_name

from groundling.core.errors import InputError, convert_errors, first_line
from groundling.settings.fields import Settings
from groundling.settings.training import HubSettings

NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""OWNER/NAME."""
WAIT = 2.0
"""Seconds for an answer."""
ADVICE = ". If you were trying to load it from"
"""With which transformers goes on to speak of folders that nobody has meant."""


@cache  # once for a process
def is_hub_reachable() -> bool:
    """Whether the hub answers; not asked where `HF_HUB_OFFLINE` forbids it."""
    if is_offline_mode():
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=WAIT)
    except Exception:  # of the HTTP client, which is another one from version to version
        return False
    return True


def local_only(source: str | Path) -> dict[str, Any]:
    """Options of a `from_pretrained`: a hub id that nobody answers for is looked for in the cache alone."""
    if Path(source).exists() or is_hub_reachable():
        return {}
    return {"local_files_only": True}


def describe_load_error(source: str | Path, error: BaseException) -> str:
    """Why a hub id or folder could not be loaded, in a few words."""
    if not local_only(source):
        return first_line(error).partition(ADVICE)[0]
    reason = (
        "HF_HUB_OFFLINE forbids asking the hub" if is_offline_mode() else "the hub does not answer"
    )
    return f"no such folder, not in the hub's cache, and {reason}"


def check_sharing(sharing: HubSettings, settings: Sequence[object]) -> None:
    """Raises InputError, before a run of some settings begins, for what would only be seen after hours."""
    check_repository(sharing.push_to_hub)
    if not all(vars(one).get("save_model", True) for one in settings if isinstance(one, Settings)):
        raise InputError("--push-to-hub: --no-save-model leaves nothing to push")
    if not is_hub_reachable():
        raise InputError(
            "--push-to-hub: the hub does not answer, or HF_HUB_OFFLINE is set; leave it out and use "
            "`groundling push` later"
        )
    # Of the HTTP client, which is another one from version to version.
    with convert_errors(
        "--push-to-hub: the hub does not know you",
        advice="; log in with `hf auth login`",
        errors=Exception,
    ):
        HfApi().whoami()


def check_repository(name: str) -> None:
    """Raises InputError for what is no OWNER/NAME."""
    if not NAME.fullmatch(name):
        raise InputError(
            f"{name}: no name on the hub; expected OWNER/NAME of letters, digits, - _ ."
        )


# Whether a hub id or a folder of a model is there, told by names of files alone. Imports nothing heavy.

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
    if is_hub_reachable():
        if _is_unknown(source):
            raise InputError(
                f"{source}: no model found there (no such folder, and the hub knows no model of this name, or none "
                "that you may see)"
            )
    elif not _is_cached(source):
        raise InputError(
            f"{source}: no model found there ({describe_load_error(source, OSError())})"
        )


def _is_cached(source: str) -> bool:
    """Whether the hub's cache on this machine has something of a model."""
    name = repo_folder_name(repo_id=source, repo_type="model")
    return any((Path(constants.HF_HUB_CACHE) / name / "snapshots").glob("*"))


def _is_unknown(source: str) -> bool:
    """Whether the hub says that it has no such model, and the cache has none."""
    try:
        HfApi().model_info(source, timeout=WAIT)
    except RepositoryNotFoundError:
        return not _is_cached(source)
    except Exception:  # of the HTTP client: whoever loads the model will say more
        return False
    return False

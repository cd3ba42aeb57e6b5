"""Hugging Face's hub, asked once whether it is there: its client retries for half a minute a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, get_session, is_offline_mode

from groundling.core.errors import InputError, first_line
from groundling.settings.fields import Settings
from groundling.settings.training import Sharing

NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""OWNER/NAME."""
WAIT = 2.0
"""Seconds for an answer."""
ADVICE = ". If you were trying to load it from"
"""With which transformers goes on to speak of folders that nobody has meant."""


@cache  # once for a process
def is_there() -> bool:
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
    if Path(source).exists() or is_there():
        return {}
    return {"local_files_only": True}


def fault(source: str | Path, error: BaseException) -> str:
    """Why a hub id or folder could not be loaded, in a few words."""
    if not local_only(source):
        return first_line(error).partition(ADVICE)[0]
    reason = (
        "HF_HUB_OFFLINE forbids asking the hub" if is_offline_mode() else "the hub does not answer"
    )
    return f"no such folder, not in the hub's cache, and {reason}"


def check_sharing(sharing: Sharing, settings: Sequence[object]) -> None:
    """Raises InputError, before a run of some settings begins, for what would only be seen after hours."""
    check_repository(sharing.push_to_hub)
    if not all(vars(one).get("save_model", True) for one in settings if isinstance(one, Settings)):
        raise InputError("--push-to-hub: --no-save-model leaves nothing to push")
    if not is_there():
        raise InputError(
            "--push-to-hub: the hub does not answer, or HF_HUB_OFFLINE is set; leave it out and use "
            "`groundling push` later"
        )
    try:
        HfApi().whoami()
    except Exception as error:  # of the HTTP client, which is another one from version to version
        raise InputError(
            f"--push-to-hub: the hub does not know you ({first_line(error)}); log in with `hf auth login`"
        ) from None


def check_repository(name: str) -> None:
    """Raises InputError for what is no OWNER/NAME."""
    if not NAME.fullmatch(name):
        raise InputError(
            f"{name}: no name on the hub; expected OWNER/NAME of letters, digits, - _ ."
        )

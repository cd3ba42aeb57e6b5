"""Whether what a run saves can go to Hugging Face's hub, asked before the run begins. Imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Sequence

from huggingface_hub import HfApi

from groundling.commands.finetune import FinetuneConfig
from groundling.core.errors import InputError, first_line
from groundling.models.hub import is_there
from groundling.settings.training import Sharing

NAME = re.compile(r"[\w.-]+/[\w.-]+")


def check_sharing(sharing: Sharing, settings: Sequence[object]) -> None:
    """Raises InputError, before a run of some settings begins, for what would only be seen after hours."""
    check_repository(sharing.push_to_hub)
    if any(isinstance(one, FinetuneConfig) and not one.save_model for one in settings):
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

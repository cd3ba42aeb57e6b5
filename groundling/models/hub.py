"""Hugging Face's hub and model folders: whether a model exists, without loading it. Does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, get_session, is_offline_mode
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.file_download import repo_folder_name

from groundling.core.errors import InputError, flatten_message
from groundling.runs.folder import read_object

WAIT = 2.0
"""Seconds to wait for an answer."""
ADVICE = ". If you were trying to load it from"
"""Where transformers' messages begin to discuss local folders, which the user did not mean."""


@cache  # once for a process
def is_hub_reachable() -> bool:
    """Whether the hub answers; False, without a request, if `HF_HUB_OFFLINE` is set."""
    if is_offline_mode():
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=WAIT)
    except Exception:  # the HTTP client, and so its errors, differ between versions
        return False
    return True


def local_only(source: str | Path) -> dict[str, Any]:
    """Options for `from_pretrained`: only the cache is searched if the hub does not answer."""
    if Path(source).exists() or is_hub_reachable():
        return {}
    return {"local_files_only": True}


def find_file(source: str | Path, name: str) -> Path | None:
    """A file of a hub id or folder, in the folder or in the hub's cache; None if it does not exist."""
    from transformers.utils.hub import cached_file

    path = cached_file(
        str(source),
        name,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **local_only(source),
    )
    return Path(path) if path else None


@contextmanager
def library_errors(source: str | Path, message: str) -> Iterator[None]:
    """Within the context, turn any error of transformers, tokenizers and huggingface_hub into an InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # the libraries raise many types
        reason = flatten_message(error).partition(ADVICE)[0]
        if str(source).startswith(VECTORS):
            reason = "these are vectors, and a model is read here"
        elif local_only(source):
            why = (
                "HF_HUB_OFFLINE forbids requests"
                if is_offline_mode()
                else "the hub does not answer"
            )
            reason = f"no such folder, not in the hub's cache, and {why}"
        raise InputError(f"{source}: {message} ({reason})") from None


# Whether a hub id or a model folder exists, decided by file names alone.

ADAPTER = "adapter.json"
"""Settings file in the folder of an adapter over CLIP."""
CNN = "cnn"
"""Subfolder of the CNN in the folder of a vision-language model that reads pixels."""
HUB_ID = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*")
"""NAME or OWNER/NAME."""


OPEN_CLIP = "open_clip:"
"""Prefix of a checkpoint of open_clip's list."""
LISTED = re.compile(r"open_clip:([\w.-]+)/([\w.-]+)")
"""open_clip:NAME/TAG."""
OPEN_CLIP_CONFIG = "open_clip_config.json"


def parse_open_clip(source: str) -> tuple[str, str]:
    """NAME and TAG of open_clip:NAME/TAG; raises InputError for another form."""
    parts = LISTED.fullmatch(source)
    if parts is None:
        raise InputError(
            f"{source}: expected {OPEN_CLIP}NAME/TAG, e.g. {OPEN_CLIP}ViT-B-32/laion2b_s34b_b79k"
        )
    return parts[1], parts[2]


def is_open_clip(source: str | Path) -> bool:
    """Whether a source is open_clip:NAME/TAG, or a folder in open_clip's format alone.

    Many folders on the hub have Hugging Face's format too, which is then used.
    """
    if str(source).startswith(OPEN_CLIP):
        return True
    folder = Path(source)
    if not (folder / OPEN_CLIP_CONFIG).is_file():
        return False
    config = folder / "config.json"  # timm writes one, too
    return not config.is_file() or "model_type" not in read_object(config)


VECTORS = "vectors:"
"""Prefix of a folder of vectors that were computed elsewhere."""
VECTOR_FILES = ("images*.npy", "texts*.npy", "*_emb/*.npy")
"""Names in a folder of vectors."""
TIMM = "timm:"
"""Prefix of an image encoder of timm: a name of its list, or a folder."""


def is_timm(source: str | Path) -> bool:
    """Whether a source is timm:NAME, or a folder in timm's format alone."""
    if str(source).startswith(TIMM):
        return True
    config = Path(source) / "config.json"
    if is_open_clip(source) or not config.is_file():
        return False
    content = read_object(config)
    return "architecture" in content and "model_type" not in content


def is_adapter(source: str) -> bool:
    """Whether a folder was written by `ClipFeatureAdapter.export`."""
    return (Path(source) / ADAPTER).exists()


def check_model(source: str) -> None:
    """Raises InputError if a source is no model folder, and no model on the hub or in its cache."""
    if source.startswith(OPEN_CLIP):
        parse_open_clip(source)
    elif source.startswith(VECTORS):
        if not Path(source.removeprefix(VECTORS)).is_dir():
            raise InputError(f"{source}: no such folder")
    elif source.startswith(TIMM):
        return
    elif any(file for files in VECTOR_FILES for file in Path(source).glob(files)):
        raise InputError(f"{source}: holds vectors; call it {VECTORS}{source}")
    elif not Path(source).is_dir() and not (HUB_ID.fullmatch(source) and _has_files(source)):
        raise InputError(
            f"{source}: no model found (no such folder, not in the hub's cache, and not found on the hub)"
        )


def _has_files(hub_id: str) -> bool:
    name = repo_folder_name(repo_id=hub_id, repo_type="model")
    if any((Path(constants.HF_HUB_CACHE) / name / "snapshots").glob("*")):
        return True
    if not is_hub_reachable():
        return False
    try:
        HfApi().model_info(hub_id, timeout=WAIT)
    except RepositoryNotFoundError:
        return False
    except Exception:  # of the HTTP client: loading the model gives a better message
        pass
    return True

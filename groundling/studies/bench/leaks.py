"""Checks of what a method read, changed and exported, by files and hashes.

They find what leaves a trace: changed or foreign files, a model that is not plain, and files of the world's answers
that Python opened. Code that a user passes can still do anything that the user can.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModel, AutoTokenizer

from groundling.core.errors import InputError
from groundling.runs.folder import read_object
from groundling.runs.run import MODULES

_WATCHED: list[tuple[str, set[str]]] = []
"""Folders watched now, each with the files below it that were opened."""
READING = ("open", "os.listdir", "os.scandir", "os.link", "os.symlink", "os.rename")
"""Audit events after which the content of a file, their first argument, can be read."""
_installed = False


@contextmanager
def watch_files(*folders: Path) -> Iterator[set[str]]:
    """The set of files below some folders that Python code of this process opens, lists or links meanwhile."""
    _install_hook()
    opened: set[str] = set()
    entries = [(os.path.realpath(folder) + os.sep, opened) for folder in folders]
    _WATCHED.extend(entries)
    try:
        yield opened
    finally:
        for entry in entries:
            _WATCHED.remove(entry)


def _install_hook() -> None:
    """Add the process's audit hook, which cannot be removed, once."""
    global _installed
    if not _installed:
        sys.addaudithook(_on_event)
        _installed = True


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in READING or not _WATCHED:
        return
    path = arguments[0]
    if not isinstance(path, str | bytes | os.PathLike):
        return
    place = os.path.realpath(os.fsdecode(path)) + os.sep
    for folder, opened in _WATCHED:
        if place.startswith(folder):
            opened.add(place.removesuffix(os.sep))


def check_inputs(run: Path, allowed: Mapping[str, str], own: Path) -> None:
    """Raises InputError for an input of a finished `adapt` run that was not handed over.

    `allowed`: hashes of the handed-over paths. Outputs of the method's earlier stages, below `own`, are allowed too,
    and so are the files of modules that its settings name.
    """
    for name, entry in read_object(run / "config.json")["inputs"].items():
        path = os.path.abspath(entry["path"])
        if name.partition(":")[0] in MODULES and ":" in name:
            continue
        if path in allowed:
            if entry["sha256"] != allowed[path]:
                raise InputError(f"{run}: {name} {path} differs from what was handed over")
        elif not Path(path).is_relative_to(own.resolve()) and not Path(path).is_relative_to(
            os.path.abspath(own)
        ):
            raise InputError(
                f"{run}: trained with {name} {path}, which was not handed over; a method reads the bench's files only"
            )


def plain_faults(model: Path, encoder: Path) -> list[str]:
    """Why an exported model is no plain encoder like the handed-over one; empty if it is."""
    faults: list[str] = []
    own, handed = (AutoTokenizer.from_pretrained(one) for one in (model, encoder))
    if own.get_vocab() != handed.get_vocab():
        faults.append("another vocabulary")
    elif own.backend_tokenizer.to_str() != handed.backend_tokenizer.to_str():
        faults.append("another tokenizer")
    if getattr(AutoConfig.from_pretrained(model), "auto_map", None):
        faults.append("code of its own")
    more = parameters_of(model) - parameters_of(encoder)
    if more > 0:
        faults.append(f"{more:,} more parameters")
    return faults


def parameters_of(model: Path) -> int:
    """Number of parameters of an encoder, as `AutoModel` loads it."""
    return sum(one.numel() for one in AutoModel.from_pretrained(model).parameters())


def answers_opened(opened: Sequence[str], private: Path) -> list[str]:
    """Names of opened files with the world's answers, relative to its private folder."""
    root = os.path.realpath(private)
    return sorted(os.path.relpath(path, root) for path in opened)

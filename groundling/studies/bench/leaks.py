"""Checks of what a method read, changed and exported, by files and hashes.

They find what leaves a trace: changed or foreign files, a model that is not plain, files of the world's answers that
Python opened, and results of other runs that it wrote. Code that a user passes can still do anything that the user can.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoConfig, AutoModel, AutoTokenizer

from groundling.core.errors import InputError
from groundling.runs.folder import read_object
from groundling.runs.hashing import data_hash
from groundling.runs.outputs import MODULE


class _Watch(NamedTuple):
    """A folder that is watched now."""

    folder: str
    is_written: bool
    """Whether files that are written are seen, or those that can be read."""
    seen: set[str]
    """Files below it."""


_WATCHED: list[_Watch] = []
READING = ("open", "os.listdir", "os.scandir", "os.link", "os.symlink", "os.rename")
"""Audit events after which the content of a file, their first argument, can be read."""
WRITING = {"os.link": 2, "os.symlink": 2, "os.rename": 2, "os.remove": 1, "os.truncate": 1}
"""Audit events after which files can be others, and how many of their first arguments are such files.

A file can be changed under another name by a link to it.
"""
NOT_COMPARED = {"auto_map", "architectures", "dtype", "transformers_version", "_name_or_path"}
"""Settings of a model's configuration that do not change its states, or are compared apart."""
WRITABLE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
"""Flags of `open`, one of which every opening for writing has."""
_installed = False


@contextmanager
def watch_files(*folders: Path) -> Iterator[set[str]]:
    """The set of files below some folders that Python code of this process opens, lists or links meanwhile."""
    with _watch(folders, is_written=False) as opened:
        yield opened


@contextmanager
def watch_writes(*folders: Path) -> Iterator[set[str]]:
    """The set of files below some folders that Python code of this process writes, moves or removes meanwhile."""
    with _watch(folders, is_written=True) as written:
        yield written


@contextmanager
def _watch(folders: Sequence[Path], is_written: bool) -> Iterator[set[str]]:
    _install_hook()
    seen: set[str] = set()
    watches = [_Watch(os.path.realpath(one) + os.sep, is_written, seen) for one in folders]
    _WATCHED.extend(watches)
    try:
        yield seen
    finally:
        for one in watches:
            _WATCHED.remove(one)


def _install_hook() -> None:
    """Add the process's audit hook, which cannot be removed, once."""
    global _installed
    if not _installed:
        sys.addaudithook(_on_event)
        _installed = True


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    # Python raises many other events, such as every import.
    if not _WATCHED or (event not in READING and event not in WRITING):
        return
    counts = {False: int(event in READING), True: WRITING.get(event, 0)}
    if event == "open":
        flags = arguments[2]
        counts[True] = int(isinstance(flags, int) and bool(flags & WRITABLE))
    for number, path in enumerate(arguments[: max(counts.values())]):
        if not isinstance(path, str | bytes | os.PathLike):
            continue
        name = os.fsdecode(path)
        if event == "os.symlink" and number == 0:  # relative to the link's folder
            name = os.path.join(os.path.dirname(os.fsdecode(arguments[1])), name)
        place = os.path.realpath(name) + os.sep
        for one in _WATCHED:
            is_below = place.startswith(one.folder)
            # Another name for all files of the folder, under which they are not watched.
            is_above = event == "os.rename" and number == 0 and one.folder.startswith(place)
            if number < counts[one.is_written] and (is_below or is_above):
                one.seen.add(place.removesuffix(os.sep))


def check_inputs(run: Path, allowed: Mapping[str, str], own: Path) -> None:
    """Raises InputError for an input of a finished `adapt` run that was not handed over.

    `allowed`: hashes of the handed-over paths. Outputs of the method's earlier stages, below `own`, are allowed too,
    and so are the files of modules that its settings name.
    """
    for name, entry in read_object(run / "config.json")["inputs"].items():
        path = os.path.abspath(entry["path"])
        if name.startswith(MODULE):
            continue
        if path in allowed:
            if data_hash(path) != allowed[path]:
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
    changed, config = (AutoConfig.from_pretrained(one).to_dict() for one in (model, encoder))
    if changed.get("auto_map"):
        faults.append("code of its own")
    names = sorted(
        name for name in {*changed, *config} - NOT_COMPARED if changed.get(name) != config.get(name)
    )
    if names:
        faults.append(f"another configuration ({', '.join(names)})")
    more = parameters_of(model) - parameters_of(encoder)
    if more > 0:
        faults.append(f"{more:,} more parameters")
    return faults


def parameters_of(model: Path) -> int:
    """Number of parameters of an encoder, as `AutoModel` loads it."""
    return sum(one.numel() for one in AutoModel.from_pretrained(model).parameters())


def relative_names(files: Iterable[str], folder: Path) -> list[str]:
    """Names of watched files relative to a folder, in order, without characters that cannot be printed."""
    root = os.path.realpath(folder)
    names = sorted(os.path.relpath(path, root) for path in files)
    return ["".join(one if one.isprintable() else "?" for one in name) for name in names]

"""Files of text, cut and tokenised once: a store for each file, which every later run opens as it is.

A store's records are its shards: each holds some thousand texts one after the other, so that what is read into memory
does not grow with their number. Its arrays are `text` (UTF-8), `words` (a number for each raw word), `pieces` and
`pieces_word` (the raw word of each), where there is a CLIP side `clip` and `clip_word` likewise, `characters` of every
text, and `ends` (texts, 3 or 4): where each text's part of `text`, `words`, `pieces` and `clip` ends. Texts that are
lines have `line`, the number of each one's in the file, which several have if it is cut, and captions `image` (UTF-8)
and `image_ends`, where each text's part of that ends.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tokenizers
from accelerate import PartialState
from tokenizers import Tokenizer

from groundling.core.errors import InputError
from groundling.data.captions.captions import Wanted
from groundling.data.corpora.corpora import CHUNK, Line, batched, fitting, full_blocks, texts_in
from groundling.data.corpora.plain_text import PACKED
from groundling.data.shards import (
    Facts,
    Index,
    Part,
    Record,
    ShardStore,
    ShardWriter,
    alone,
    load_json,
    read_index,
    shard_file,
)
from groundling.data.text.lexicon import Lexicon
from groundling.runs.folder import PREPARED, json_text
from groundling.runs.hashing import CACHE, cache_folder, data_hash, hashes_of, remember
from groundling.runs.jobs import cores, side_by_side
from groundling.runs.progress import Progress

FOLDER = "texts"
"""Where stores are, in the cache or in a run's folder."""
SHARDS = 32
"""Shards of a file of middling size: enough for every process to have some, and few enough to stay open."""
SMALLEST, LARGEST = 1 << 22, 1 << 26
"""Characters of a shard; a killed run tokenises as many again at most, per process."""
LARGE = 1 << 26
"""Bytes of a file from which on several processes are worth their start."""
WAIT = 0.2
"""Seconds between two looks for what another process makes."""
SIDES = ("pieces", "clip")
"""Arrays of ids, by tokenizer."""
FORMAT = 2
"""Of the arrays; a new one makes all stores anew."""


@dataclass(frozen=True)
class Making:
    """What texts are made into; can be sent to another process."""

    form: Literal["lines", "blocks"]
    """Every line by itself (`fitting`), or a file's lines joined and cut (`full_blocks`)."""
    most: int
    """Pieces of a text at most, special ones not counted."""
    engine: str
    """The text encoder's tokenizer, as JSON, without padding and truncation."""
    clip: str = ""
    """The same of a CLIP text tower's; empty: there is none."""

    def engines(self) -> list[str]:
        """The tokenizers, by side."""
        return [self.engine, self.clip] if self.clip else [self.engine]

    def key(self) -> Facts:
        """What a store depends on beside its file."""
        short = replace(self, engine=_digest(self.engine), clip=_digest(self.clip))
        return {**asdict(short), "tokenizers": tokenizers.__version__, "format": FORMAT}


class Some(NamedTuple):
    """What becomes one shard; can be sent to another process."""

    first: int
    """The number of the first of its texts in the file."""
    texts: list[str]
    images: list[str]
    """Of every text, see `Line`."""


def place_of_stores(run: Path) -> Path:
    """Where stores are kept: in the cache, for all runs on the same text, or without one in the run's own folder."""
    cache = cache_folder()
    return (run / PREPARED if cache is None else cache) / FOLDER


def prepared(path: str | Path, wanted: Wanted, making: Making, place: Path) -> ShardStore:
    """The store of a file's texts below the folder `place`, made or made whole first, if it must be.

    One process of each machine reads the file; machines that share the folder share the shards. A killed run goes on
    at the shards that are missing, and what is damaged is named and made anew.

    Raises:
        InputError: the file cannot be read, or the folder cannot be written to or read.
    """
    path = Path(path)
    content = {"sha256": data_hash(path), "ending": _ending(path)}
    key = {**content, "wanted": asdict(wanted), **making.key()}
    folder = place / _digest(json_text(key, sort_keys=True))[:32]
    state = PartialState()
    part = _part(folder, state)
    leads = state.is_local_main_process
    first = leads and part.rank == 0
    with _at(folder), alone(folder, "tokenising these texts") if first else nullcontext():
        if first:
            _mend(folder, key)
        state.wait_for_everyone()
        if leads and not _manifest(folder).is_file():
            _check_writable(folder)  # before the work
            _make(path, wanted, making, folder, key, part)
        # No barrier: those of a process group give up after some minutes.
        while not _manifest(folder).is_file():
            time.sleep(WAIT)
        state.wait_for_everyone()
    return ShardStore(folder, "shard of texts")


@contextmanager
def _at(folder: Path) -> Iterator[None]:
    """Raises InputError for a folder of the cache that cannot be used, as another user's cannot."""
    try:
        yield
    except OSError as error:
        if not Path(error.filename or folder).is_relative_to(folder.parent):
            raise
        raise InputError(
            f"{error.filename or folder}: cannot be written or read ({error.strerror}), but tokenised texts are kept "
            f"there; mend that, or let {CACHE} name another folder (empty: none)"
        ) from None


def _check_writable(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def _ending(path: Path) -> str:
    """What of a file's name says how it is read: equal content may be a table's rows or lines of text."""
    if path.is_dir():
        return ""
    if path.name.endswith("token.txt"):
        return "token.txt"
    return "".join(path.suffixes[-2:] if path.suffix in PACKED else path.suffixes[-1:])


def _manifest(folder: Path) -> Path:
    return folder / "manifest.json"


# -- who makes what ----------------------------------------------------------------------------------------------------


def _part(folder: Path, state: PartialState) -> Part:
    """Which shards this process's machine makes: its share, where all machines see the folder, or else all.

    torchrun says how many processes each machine has, and numbers them machine by machine.
    """
    on_each = int(os.environ.get("LOCAL_WORLD_SIZE", state.num_processes))
    machines = max(1, state.num_processes // max(1, on_each))
    if machines == 1:
        return Part()
    number = state.process_index // on_each
    marks = [folder / f"machine-{one}" for one in range(machines)]
    if state.is_local_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        marks[number].touch()
    state.wait_for_everyone()
    shared = all(mark.exists() for mark in marks)
    state.wait_for_everyone()
    if state.is_local_main_process:
        marks[number].unlink()
    return Part(number, machines) if shared else Part()


def _mend(folder: Path, key: Facts) -> None:
    """Remove what is damaged, with a line for each, so that it is made anew."""
    manifest: dict[str, Any] = {}
    if _manifest(folder).is_file():
        try:
            manifest = load_json(_manifest(folder))
            if not isinstance(manifest.get("sha256"), dict):
                raise InputError(f"{_manifest(folder)}: not the manifest of a store")
        except InputError as error:
            _remove(_manifest(folder), str(error))
    told: dict[str, str] = manifest.get("sha256", {})
    indices = sorted(folder.glob("index-*.json"))
    for path in indices:
        fault = _fault(path, key, told)
        if fault:
            _remove(path, fault)
            _manifest(folder).unlink(missing_ok=True)
    if manifest and len(indices) != manifest.get("shards"):
        _remove(_manifest(folder), f"{folder}: lacks shards")


def _remove(path: Path, fault: str) -> None:
    print(f"note: {fault}; its texts are tokenised again", file=sys.stderr)
    path.unlink(missing_ok=True)


def _fault(path: Path, key: Facts, told: Facts) -> str:
    """What is wrong with a shard, by its index; files that stay as they are are read once."""
    try:
        index = read_index(path)
        if index.key != json.loads(json_text(key)):
            return f"{path}: of another store"
        number = int(path.stem.partition("-")[2])
        expected = _recorded(path.parent, number, index)
        expected[path] = str(told.get(path.name, "")) if told else ""
        found = hashes_of(list(expected))
    except InputError as error:
        return str(error)
    for file, sha256 in zip(expected, found, strict=True):
        if expected[file] and sha256 != expected[file]:
            return f"{file}: changed since it was written (SHA-256)"
    return ""


def _make(path: Path, wanted: Wanted, making: Making, folder: Path, key: Facts, part: Part) -> None:
    """Write the shards of this machine that are missing; the first machine's ends the store."""
    writer = ShardWriter(folder, key, part)
    size = sum(f.stat().st_size for f in ([path] if path.is_file() else path.rglob("*")))
    each = min(max(size // SHARDS, SMALLEST), LARGEST)
    progress = Progress(f"tokenising {path.name}", max(1, size // each), "shard")
    shards = 0

    def calls() -> Iterator[tuple[Path, Facts, int, Some, Making]]:
        nonlocal shards
        for some in _grouped(_units(path, wanted, making), each):
            if shards % part.world == part.rank and not writer.done(shards):
                yield folder, key, shards, some, making
            else:
                progress.step()
            shards += 1

    processes = cores() if size >= LARGE else 1
    for _ in side_by_side(write_shard, calls(), processes):
        progress.step()
    progress.close()
    if part.rank == 0:
        while not all(writer.done(number) for number in range(shards)):
            time.sleep(WAIT)
        _end(path, writer, shards)


def _end(path: Path, writer: ShardWriter, shards: int) -> None:
    """Write the manifest, if the file is still what the shards were made of."""
    folder = writer.folder
    if data_hash(path) != writer.key["sha256"]:
        for index in folder.glob("index-*.json"):
            index.unlink()
        raise InputError(f"{path}: changed while it was tokenised; run the same command again")
    writer.close({"texts_of": path.name}, summary=_summary)
    written: dict[Path, str] = {}
    for number in range(shards):
        written |= _recorded(folder, number, read_index(shard_file(folder, "index", number)))
    remember(written)


def _recorded(folder: Path, number: int, index: Index) -> dict[Path, str]:
    """The SHA-256 of every array of a shard, as its index has it."""
    return {shard_file(folder, name, number): one.sha256 for name, one in index.columns.items()}


def _summary(indices: Sequence[Index]) -> Facts:
    return {"texts": sum(sum(index.lengths["characters"]) for index in indices)}


def _units(path: Path, wanted: Wanted, making: Making) -> Iterator[Line]:
    """What can be tokenised each by itself: lines, or blocks, each of which begins where the one before ends."""
    read = texts_in(path, wanted)
    if making.form == "lines":
        yield from read
    else:
        texts = (line.text for line in read)
        yield from map(Line, full_blocks(texts, _lexicon(*making.engines()), making.most))


def _grouped(lines: Iterable[Line], size: int) -> Iterator[Some]:
    """Texts of about `size` characters together."""
    some: list[Line] = []
    first = 0
    count = 0
    for line in lines:
        some.append(line)
        count += len(line.text)
        if count >= size:
            yield _some(first, some)
            first += len(some)
            some = []
            count = 0
    if some:
        yield _some(first, some)


def _some(first: int, lines: Sequence[Line]) -> Some:
    images = [line.image for line in lines]
    return Some(first, [line.text for line in lines], images)


# -- tokenising --------------------------------------------------------------------------------------------------------


@lru_cache(1)
def _lexicon(*described: str) -> Lexicon:
    """Of one text after another: what is found for one shard serves the next."""
    return Lexicon(*map(Tokenizer.from_str, described))


def write_shard(folder: Path, key: Facts, number: int, some: Some, making: Making) -> None:
    """Tokenise some texts and write them as one shard."""
    arrays = tokenised(some, making)
    ShardWriter(folder, key).write(number, [Record(f"{number:05}", arrays)])


def tokenised(some: Some, making: Making) -> dict[str, np.ndarray]:
    """The arrays of a shard."""
    lexicon = _lexicon(*making.engines())
    own: Iterable[tuple[int, str]] = enumerate(some.texts)
    if making.form == "lines":
        own = fitting(some.texts, lexicon, making.most)
    parts = []
    places: list[int] = []
    for few in batched(own, CHUNK):
        places += [place for place, _ in few]
        parts.append(_tokenised([text for _, text in few], lexicon))
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    arrays["ends"] = np.cumsum(arrays["ends"], 0)
    if making.form == "lines":
        arrays["line"] = some.first + np.array(places, np.int64)
        images = [some.images[place].encode() for place in places]
        arrays["image"] = np.frombuffer(b"".join(images), np.uint8)
        arrays["image_ends"] = np.cumsum([len(image) for image in images], dtype=np.int64)
    return arrays


def _tokenised(texts: Sequence[str], lexicon: Lexicon) -> dict[str, np.ndarray]:
    """The arrays of some texts, with every text's lengths in place of `ends`."""
    raw = [text.encode() for text in texts]
    read = lexicon.read(texts)
    arrays: dict[str, np.ndarray] = {
        "text": np.frombuffer(b"".join(raw), np.uint8),
        "words": read.words,
        "characters": np.array([len(text) for text in texts], np.uint32),
    }
    lengths = [np.array([len(one) for one in raw]), read.word_counts]
    for name, engine, pieces in zip(SIDES, lexicon.engines, read.pieces, strict=False):
        arrays[name] = pieces.ids.astype(_id_type(engine))
        arrays[f"{name}_word"] = pieces.word
        lengths.append(pieces.counts)
    return {**arrays, "ends": np.stack(lengths, 1).astype(np.int64)}


@lru_cache(2)
def _id_type(engine: Tokenizer) -> np.dtype:
    """The smallest type that holds all ids of a tokenizer."""
    largest = max(engine.get_vocab(with_added_tokens=True).values(), default=0)
    return np.dtype(np.uint16 if largest < 1 << 16 else np.uint32)

"""Files of text, cut and tokenised once: a store for each file, which every later run opens as it is.

A store's records are its shards: each holds some thousand texts one after the other, so that what is read into memory
does not grow with their number. Its arrays are `text` (UTF-8), `words` (a number for each raw word), `pieces` and
`pieces_word` (the raw word of each), where there is a CLIP side `clip` and `clip_word` likewise, `characters` of every
text, and `ends` (texts, 3 or 4): where each text's part of `text`, `words`, `pieces` and `clip` ends. Texts that are
lines have `line`, the number of each one's in the file, which several have if it is cut, and captions `image` (UTF-8)
and `image_ends`, where each text's part of that ends. Samples are made from mapped files as they are read: memory holds
the length of each alone.
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
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tokenizers
from accelerate import PartialState
from tokenizers import Tokenizer

from groundling.core.batch import Example, Sample
from groundling.core.errors import InputError
from groundling.data.captions.captions import CaptionFilter
from groundling.data.corpora.files import (
    CHUNK,
    EVERYTHING,
    PACKED,
    CorpusLine,
    batched,
    caption_filters,
    full_blocks,
    iterate_texts,
    line_id,
    max_text_tokens,
    names_of,
    split_long_texts,
)
from groundling.data.samples import (
    AT_ONCE,
    ClipRowEncoder,
    LazySequence,
    TextRowEncoder,
    size_of,
    thinned,
)
from groundling.data.shards import (
    Facts,
    ProcessRank,
    Record,
    ShardIndex,
    ShardStore,
    ShardWriter,
    lock_folder,
    read_index,
    shard_file,
)
from groundling.data.text.words import Lexicon
from groundling.runs.folder import PREPARED, json_text, read_object
from groundling.runs.hashing import CACHE, cache_folder, data_hash, hashes_of, remember_hashes
from groundling.runs.jobs import cores, run_parallel
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
class CorpusSpec:
    """What texts are made into; can be sent to another process."""

    form: Literal["lines", "blocks"]
    """Every line by itself (`fitting`), or a file's lines joined and cut (`full_blocks`)."""
    max_tokens: int
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


class CorpusShard(NamedTuple):
    """What becomes one shard; can be sent to another process."""

    first: int
    """The number of the first of its texts in the file."""
    texts: list[str]
    images: list[str]
    """Of every text, see `CorpusLine`."""


def stores_folder(run: Path) -> Path:
    """Where stores are kept: in the cache, for all runs on the same text, or without one in the run's own folder."""
    cache = cache_folder()
    return (run / PREPARED if cache is None else cache) / FOLDER


def prepare_store(
    path: str | Path, wanted: CaptionFilter, making: CorpusSpec, place: Path
) -> ShardStore:
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
    with _at(folder), lock_folder(folder, "tokenising these texts") if first else nullcontext():
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


def _part(folder: Path, state: PartialState) -> ProcessRank:
    """Which shards this process's machine makes: its share, where all machines see the folder, or else all.

    torchrun says how many processes each machine has, and numbers them machine by machine.
    """
    on_each = int(os.environ.get("LOCAL_WORLD_SIZE", state.num_processes))
    machines = max(1, state.num_processes // max(1, on_each))
    if machines == 1:
        return ProcessRank()
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
    return ProcessRank(number, machines) if shared else ProcessRank()


def _mend(folder: Path, key: Facts) -> None:
    """Remove what is damaged, with a line for each, so that it is made anew."""
    manifest: dict[str, Any] = {}
    if _manifest(folder).is_file():
        try:
            manifest = read_object(_manifest(folder))
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


def _make(
    path: Path,
    wanted: CaptionFilter,
    making: CorpusSpec,
    folder: Path,
    key: Facts,
    part: ProcessRank,
) -> None:
    """Write the shards of this machine that are missing; the first machine's ends the store."""
    writer = ShardWriter(folder, key, part)
    size = sum(f.stat().st_size for f in ([path] if path.is_file() else path.rglob("*")))
    each = min(max(size // SHARDS, SMALLEST), LARGEST)
    progress = Progress(f"tokenising {path.name}", max(1, size // each), "shard")
    shards = 0

    def calls() -> Iterator[tuple[Path, Facts, int, CorpusShard, CorpusSpec]]:
        nonlocal shards
        for some in _grouped(_units(path, wanted, making), each):
            if shards % part.world == part.rank and not writer.is_complete(shards):
                yield folder, key, shards, some, making
            else:
                progress.step()
            shards += 1

    processes = cores() if size >= LARGE else 1
    for _ in run_parallel(write_shard, calls(), processes):
        progress.step()
    progress.close()
    if part.rank == 0:
        while not all(writer.is_complete(number) for number in range(shards)):
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
    remember_hashes(written)


def _recorded(folder: Path, number: int, index: ShardIndex) -> dict[Path, str]:
    """The SHA-256 of every array of a shard, as its index has it."""
    return {shard_file(folder, name, number): one.sha256 for name, one in index.columns.items()}


def _summary(indices: Sequence[ShardIndex]) -> Facts:
    return {"texts": sum(sum(index.lengths["characters"]) for index in indices)}


def _units(path: Path, wanted: CaptionFilter, making: CorpusSpec) -> Iterator[CorpusLine]:
    """What can be tokenised each by itself: lines, or blocks, each of which begins where the one before ends."""
    read = iterate_texts(path, wanted)
    if making.form == "lines":
        yield from read
    else:
        texts = (line.text for line in read)
        yield from map(
            CorpusLine, full_blocks(texts, _lexicon(*making.engines()), making.max_tokens)
        )


def _grouped(lines: Iterable[CorpusLine], size: int) -> Iterator[CorpusShard]:
    """Texts of about `size` characters together."""
    some: list[CorpusLine] = []
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


def _some(first: int, lines: Sequence[CorpusLine]) -> CorpusShard:
    images = [line.image for line in lines]
    return CorpusShard(first, [line.text for line in lines], images)


# -- tokenising --------------------------------------------------------------------------------------------------------


@lru_cache(1)
def _lexicon(*described: str) -> Lexicon:
    """Of one text after another: what is found for one shard serves the next."""
    return Lexicon(*map(Tokenizer.from_str, described))


def write_shard(
    folder: Path, key: Facts, number: int, some: CorpusShard, making: CorpusSpec
) -> None:
    """Tokenise some texts and write them as one shard."""
    arrays = tokenise(some, making)
    ShardWriter(folder, key).write(number, [Record(f"{number:05}", arrays)])


def tokenise(some: CorpusShard, making: CorpusSpec) -> dict[str, np.ndarray]:
    """The arrays of a shard."""
    lexicon = _lexicon(*making.engines())
    own: Iterable[tuple[int, str]] = enumerate(some.texts)
    if making.form == "lines":
        own = split_long_texts(some.texts, lexicon, making.max_tokens)
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


# -- samples of stores -------------------------------------------------------------------------------------------------


CLOSED_AFTER = 1024
"""Samples read until files are unmapped, since each read maps some 64 KB of every array beside its own."""
PIECES = 2
"""The column of a store's `ends` where those of the text's pieces are; bytes, words and the CLIP side have others."""


class CorpusDataset:
    """Samples of the texts of several files, in order; ids and images as `corpora.corpus` has them."""

    def __init__(
        self,
        files: Sequence[tuple[str, ShardStore]],
        text: TextRowEncoder,
        clip: ClipRowEncoder | None = None,
        limit: int = 0,
    ) -> None:
        """`files`: names and stores; `text` and `clip` make rows of their pieces; `limit` as in `corpus`."""
        self.files = files
        self.text = text
        self.clip = clip
        shards = [(store, number) for _, store in files for number in range(len(store))]
        self._shards = shards
        counts = [store.length(number, "characters") for store, number in shards]
        self._starts = np.cumsum([0, *counts])
        of_files = [store.rows["characters"] for _, store in files]
        self._file_starts = np.cumsum([0, *of_files])
        total = int(self._starts[-1])
        self._read = 0
        self._places = np.array(thinned(range(total), limit)) if 0 < limit < total else None
        count = total if self._places is None else len(self._places)
        self.ids = LazySequence(count, self._id)
        self.images: Sequence[Sequence[str]] = LazySequence(count, self._images)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def bounds(self) -> list[int]:
        """Where the samples of each file begin, and the end."""
        if self._places is None:
            return self._file_starts.tolist()
        return self._places.searchsorted(self._file_starts).tolist()

    @cached_property
    def lengths(self) -> np.ndarray:
        """(len(self),) pieces of every text, special ones left out."""
        ends = (store.array_views(number)["ends"][:, PIECES] for store, number in self._shards)
        lengths = np.concatenate([np.diff(some, prepend=0).astype(np.int32) for some in ends])
        return lengths if self._places is None else lengths[self._places]

    @cached_property
    def sizes(self) -> np.ndarray:
        """(len(self), 3): one row, pieces of the text and of the CLIP side."""
        sizes = np.ones((len(self), 3), np.int64)
        for start in range(0, len(self), AT_ONCE):
            some = range(start, min(start + AT_ONCE, len(self)))
            sizes[start : start + AT_ONCE] = [size_of(sample) for sample in self.get(some)]
        return sizes

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
        """Samples in the order of `indices`."""
        self._read += len(indices)
        if self._read > CLOSED_AFTER:
            self._read = 0
            for _, store in self.files:
                store.close_files()
        return [self._made(int(index)) for index in indices]

    def _place(self, index: int) -> int:
        """Which of all files' texts it is."""
        return index if self._places is None else int(self._places[index])

    def _at(self, index: int) -> tuple[dict[str, np.ndarray], int]:
        """The arrays of the shard that a sample is in, and its place there."""
        place = self._place(index)
        shard = int(self._starts.searchsorted(place, side="right")) - 1
        store, number = self._shards[shard]
        return store.array_views(number), place - int(self._starts[shard])

    def _id(self, index: int) -> str:
        return self._name(index, *self._at(index))

    def _images(self, index: int) -> tuple[str, ...]:
        return _images_of(*self._at(index))

    def _name(self, index: int, arrays: dict[str, np.ndarray], here: int) -> str:
        """The id of a sample, whose shard has these arrays, and whose place there is `here`."""
        place = self._place(index)
        file = int(self._file_starts.searchsorted(place, side="right")) - 1
        name = self.files[file][0]
        if "line" not in arrays:
            return line_id(name, place - int(self._file_starts[file]))
        lines = arrays["line"]
        number = int(lines[here])
        first, last = lines.searchsorted([number, number + 1]).tolist()
        return line_id(name, number, here - first if last - first > 1 else None)

    def _made(self, index: int) -> Sample:
        arrays, here = self._at(index)
        stops = arrays["ends"][here]
        starts = arrays["ends"][here - 1] if here else np.zeros_like(stops)
        name = self._name(index, arrays, here)
        text = arrays["text"][starts[0] : stops[0]].tobytes().decode()
        row, dropped = self.text.row_of(_slice_of(arrays, "pieces", starts[PIECES], stops[PIECES]))
        clip = None
        if self.clip is not None:
            clip, left_out = self.clip.row_of(_slice_of(arrays, "clip", starts[3], stops[3]))
            dropped += left_out
        words = arrays["words"][starts[1] : stops[1]].astype(np.int64)
        example = Example(name, text, images=_images_of(arrays, here))
        return Sample(name, row, clip, words, truncated_tokens=dropped, example=example)


def _images_of(arrays: dict[str, np.ndarray], here: int) -> tuple[str, ...]:
    """The images of the text at a place of a shard, which has at most one."""
    if "line" not in arrays:
        return ()
    ends = arrays["image_ends"]
    start = ends[here - 1] if here else 0
    image = arrays["image"][start : ends[here]].tobytes().decode()
    return (image,) if image else ()


def _slice_of(
    arrays: dict[str, np.ndarray], name: str, start: int, stop: int
) -> tuple[np.ndarray, np.ndarray]:
    return arrays[name][start:stop], arrays[f"{name}_word"][start:stop]


def corpus_samples(
    paths: Sequence[str | Path],
    form: Literal["lines", "blocks"],
    text: TextRowEncoder,
    place: Path,
    clip: ClipRowEncoder | None = None,
    limit: int = 0,
    wanted: CaptionFilter = EVERYTHING,
) -> CorpusDataset:
    """Samples of text files, which are tokenised first where no run has done so; see `corpora.corpus`.

    Stores are kept below the folder `place`.
    """
    making = CorpusSpec(
        form,
        max_text_tokens(text.engine, text.max_length),
        text.engine.to_str(),
        "" if clip is None else clip.engine.to_str(),
    )
    own = caption_filters(paths, wanted)
    stores = [
        prepare_store(path, each, making, place) for path, each in zip(paths, own, strict=True)
    ]
    return CorpusDataset(list(zip(names_of(paths), stores, strict=True)), text, clip, limit)

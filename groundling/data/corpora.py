"""Text to adapt on: a sentence per line, captions, or documents in blocks; cut and tokenised once, in a store per file.

Plain text is streamed: files of any size, packed by gzip or Zstandard, and parquet.

A store's records are its shards: each holds some thousand texts, concatenated, so the memory for
its index does not grow with their number. Its arrays are `text`, `name` and `image` (UTF-8; the name
is the number of a line or block in the file, and of its part if it was cut; only captions have an
image), `words` (a number for each raw word), `tokens` (token ids) and `tokens_word` (the raw word of
each token), with a CLIP side also `clip` and `clip_word`, `characters` of every text, and `ends`
(texts, 5 or 6): the end of each text's part of the arrays in `PARTS`.

Samples are made as they are read: memory holds only each text's length.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import tokenizers
from tokenizers import Tokenizer

from groundling.core.batch import Example, Sample
from groundling.core.errors import InputError, convert_read_errors, require_known
from groundling.data.captions import (
    EVERYTHING,
    captions_of_images,
    is_captions,
    settings_by_file,
    tar_captions,
)
from groundling.data.images import image_id
from groundling.data.samples import (
    ClipRowEncoder,
    LazySequence,
    SampleDataset,
    SampleSubset,
    TextRowEncoder,
    sizes_of,
    subsample,
)
from groundling.data.shards import MANIFEST, Facts, Record, ShardStore, ShardWriter
from groundling.data.tables import (
    DATA_FILES,
    PARQUET,
    hub_dataset_identity,
    hub_dataset_texts,
    is_hub_dataset,
    iterate_lines,
    parquet_rows,
    read_header,
)
from groundling.data.tars import identity_of, tars_in
from groundling.data.text import TokenizationCache
from groundling.runs.folder import (
    PREPARED,
    cache_folder,
    data_hash,
    disk_errors,
    json_text,
    wait_for_folder,
)
from groundling.runs.jobs import cores, run_parallel
from groundling.runs.progress import Progress
from groundling.settings.input_settings import CaptionSettings

Item = TypeVar("Item")

CHUNK = 2000
"""Number of texts tokenised at a time."""


class CorpusText(NamedTuple):
    """A line of plain text, or a caption."""

    text: str
    image: str = ""
    """The caption's image, by its path without the ending; empty for plain text, and without an image."""


def iterate_texts(
    path: str | Path, selection: CaptionSettings = EVERYTHING
) -> Iterator[CorpusText]:
    """Non-empty lines of a text file, held in memory only in part, or selected captions with their images."""
    empty = True
    for text in _texts_in(path, selection):
        empty = False
        yield text
    if empty:
        raise InputError(f"{path}: no text found")


def _texts_in(path: str | Path, selection: CaptionSettings) -> Iterator[CorpusText]:
    if is_hub_dataset(path):
        for text in hub_dataset_texts(path, selection.columns.caption_column):
            lines = (line.strip() for line in text.split("\n"))
            yield from (CorpusText(line) for line in lines if line)
    elif tars_in(Path(path)):  # of any size
        rows = tar_captions(Path(path), selection)
        yield from (CorpusText(row.caption, image_id(row.file)) for row in rows if row.caption)
    elif is_captions(Path(path)):
        yield from (CorpusText(*each) for each in captions_of_images(path, selection))
    elif selection.caption_splits:
        raise InputError(f"{path}: plain text has no splits, as caption_splits selects")
    else:
        yield from map(CorpusText, plain_lines(path))


def full_blocks(
    texts: Iterable[str], lexicon: TokenizationCache, tokens: int, whole_words: bool = False
) -> Iterator[str]:
    """Texts joined in order and cut into strings of exactly `tokens` tokens, inside a word if necessary.

    Therefore blocks cannot be distinguished by their lengths. The last block is the rest; with a tokenizer that does
    not split at spaces, a block may be a token short. With `whole_words`, only words longer than a block are cut.

    Source: XDBERT, Appendix B: "a fixed sequence length of 512"; release (Splend1d/XDBERT):
    510 and two special tokens.
    """
    words = ([word for text in some for word in text.split()] for some in batched(texts, CHUNK))
    return _blocks(((some, _counts(some, lexicon)) for some in words), lexicon, tokens, whole_words)


def _counts(words: Sequence[str], lexicon: TokenizationCache) -> np.ndarray:
    return lexicon.counts([f" {word}" for word in words])


def _blocks(
    counted: Iterable[tuple[Sequence[str], np.ndarray]],
    lexicon: TokenizationCache,
    tokens: int,
    whole_words: bool,
) -> Iterator[str]:
    """The blocks of words, which come in several lists, each with their numbers of tokens after a space."""
    block: list[str] = []
    room = tokens
    for words, counts in counted:
        ends = np.cumsum(counts)
        place = 0
        while place < len(words):
            word = words[place]
            count = int(counts[place]) if block else lexicon.count(word)
            while word and count > room:
                head = ""
                if not (block and whole_words):
                    head, word = _cut(word, lexicon, room, " " if block else "")
                if not (head or block):  # a letter with more tokens than a block has
                    head, word = word[:1], word[1:]
                yield " ".join([*block, head] if head else block)
                block = []
                room = tokens
                count = lexicon.count(word)
            if word:
                room -= count
                block.append(word)
            # All further words that fit, at once.
            done = int(ends[place])
            place += 1
            if block:
                stop = int(ends.searchsorted(done + room, side="right"))
                block += words[place:stop]
                room -= int(ends[stop - 1]) - done
                place = stop
    if block:
        yield " ".join(block)


def _cut(word: str, lexicon: TokenizationCache, room: int, before: str) -> tuple[str, str]:
    """The longest beginning of a word with at most `room` tokens after the text `before`, and the rest."""
    if not room:
        return "", word
    engine = lexicon.engines[0]
    offsets = engine.encode(before + word, add_special_tokens=False).offsets
    end = min(offsets[room - 1][1] - len(before), len(word) - 1)
    while end > 0 and lexicon.count(before + word[:end]) > room:
        end -= 1
    return word[: max(0, end)], word[max(0, end) :]


def split_long_texts(
    texts: Iterable[str], lexicon: TokenizationCache, tokens: int
) -> Iterator[tuple[int, str]]:
    """Each text with its number; a long one becomes several parts of at most `tokens` tokens, so nothing is lost."""
    number = 0
    for some in batched(texts, CHUNK):
        counts = lexicon.counts_by_text(some)
        words = [
            text.split() if int(own.sum()) > tokens else []
            for text, own in zip(some, counts, strict=True)
        ]
        # Words that were not counted one by one are counted together: new ones are costly to learn text by text.
        uncounted = [
            place for place, own in enumerate(words) if own and len(own) != len(counts[place])
        ]
        ends = np.cumsum([len(words[place]) for place in uncounted], dtype=np.int64)
        of_all = _counts([word for place in uncounted for word in words[place]], lexicon)
        for place, end in zip(uncounted, ends.tolist(), strict=True):
            counts[place] = of_all[end - len(words[place]) : end]
        for place, text in enumerate(some):
            own = words[place]
            for part in _blocks([(own, counts[place])], lexicon, tokens, True) if own else [text]:
                yield number, part
            number += 1


def batched(items: Iterable[Item], count: int) -> Iterator[list[Item]]:
    """Lists of `count` items each; the last may be shorter."""
    every = iter(items)
    while some := list(islice(every, count)):
        yield some


def max_text_tokens(engine: Tokenizer, max_length: int) -> int:
    """Number of tokens of a text besides special tokens."""
    tokens = max_length - len(engine.encode("").ids)
    if tokens < 1:
        raise InputError(f"max_length {max_length} leaves no room for text")
    return tokens


def names_of(paths: Sequence[str | Path]) -> list[str]:
    """The files' names; a repeated name gets its position, because ids key every random choice."""
    names: list[str] = []
    for place, path in enumerate(paths):
        name = Path(path).name
        names.append(f"{name}#{place}" if name in names else name)
    return names


# -- plain text of any size, compressed or in parquet ------------------------------------------------------------------


COLUMN = "text"
"""The text column of a parquet file with several columns."""
PACKED = (".gz", ".zst")
"""Endings of compressed text."""
STRUCTURED = (*DATA_FILES, ".xml", ".tar", PARQUET)
"""Endings of files whose lines are not texts, before the ending of the compression."""


def plain_lines(path: str | Path) -> Iterator[str]:
    """Non-empty lines of a text file, stripped; for a parquet file, those of its texts."""
    path = Path(path)
    if path.suffix in PACKED and Path(path.stem).suffix in STRUCTURED:
        raise InputError(f"{path}: only plain text can be read compressed; unpack this file")
    empty = True
    for line in _texts_of(path) if path.suffix == PARQUET else iterate_lines(path):
        stripped = line.strip()
        if stripped:
            empty = False
            yield stripped
    if empty:
        raise InputError(f"{path}: the file is empty")


def _texts_of(path: Path) -> Iterator[str]:
    names = read_header(path)
    column = names[0] if len(names) == 1 else COLUMN
    require_known(column, names, f"{path}: no column {COLUMN!r}")
    for where, row in parquet_rows(path, [column]):
        with convert_read_errors(where):
            lines = (row[column] or "").split("\n")
        yield from lines


# -- stores of tokens --------------------------------------------------------------------------------------------------

VERSION = 3
"""Raised when texts are read or cut in another way, so that stores are made again."""
FOLDER = "texts"
"""Name of the folder of stores, in the cache or in a run's folder."""
SHARDS = 32
"""Number of shards of a file of medium size: enough for every process."""
SMALLEST, LARGEST = 1 << 22, 1 << 26
"""Minimum and maximum number of characters of a shard; a killed run repeats at most as many per process."""
LARGE = 1 << 26
"""Size in bytes from which a file is tokenised by several processes."""
SIDES = ("tokens", "clip")
"""Names of the arrays of ids, by tokenizer."""
PARTS = ("text", "name", "image", "words", *SIDES)
"""The arrays of which each text has a part, in the order of the columns of `ends`."""


@dataclass(frozen=True)
class TokenizationSpec:
    """How texts are cut and tokenised; can be sent to another process."""

    form: Literal["lines", "blocks"]
    """Every line by itself (`split_long_texts`), or a file's lines joined and cut (`full_blocks`)."""
    max_tokens: int
    """Maximum number of tokens of a text, without special tokens."""
    engine: str
    """The text encoder's tokenizer, as JSON, without padding and truncation."""
    clip: str = ""
    """The CLIP text tower's tokenizer, likewise; empty without a CLIP side."""
    end_of_text: str = ""
    """A token after each line of a block, which ends the text for a decoder; empty: none."""

    def engines(self) -> list[str]:
        """The tokenizers, by side."""
        return [self.engine, self.clip] if self.clip else [self.engine]

    def key(self) -> Facts:
        """Everything that a store depends on, except its file."""
        short = replace(self, engine=_digest(self.engine), clip=_digest(self.clip))
        return {**asdict(short), "tokenizers": tokenizers.__version__}


def stores_folder(run: Path) -> Path:
    """The folder of stores: in the cache, shared by all runs on the same text, or without one in the run's folder."""
    cache = cache_folder()
    return (run / PREPARED if cache is None else cache) / FOLDER


def prepare_store(
    path: str | Path, selection: CaptionSettings, spec: TokenizationSpec, place: Path
) -> ShardStore:
    """The store of a file's texts below the folder `place`; it is made, or completed, if necessary."""
    path = Path(path)
    if is_hub_dataset(path):
        digest = hub_dataset_identity(path)
    else:
        tars = tars_in(path)
        digest = identity_of(tars) if tars else data_hash(path)
    content = {"version": VERSION, "sha256": digest, "ending": path.suffixes[-2:]}
    key = {**content, "wanted": asdict(selection), **spec.key()}
    folder = place / _digest(json_text(key, sort_keys=True))[:32]
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MANIFEST).is_file():
        with wait_for_folder(folder, "tokenising these texts"):
            if not (folder / MANIFEST).is_file():
                _make(path, selection, spec, ShardWriter(folder, key))
    return ShardStore(folder, "shard of texts")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def _make(
    path: Path, selection: CaptionSettings, spec: TokenizationSpec, writer: ShardWriter
) -> None:
    size = sum(f.stat().st_size for f in ([path] if path.is_file() else path.rglob("*")))
    shard_size = min(max(size // SHARDS, SMALLEST), LARGEST)
    name = f"tokenising {path.name}"
    progress = Progress(name, max(1, size // shard_size), "shard", reads_inputs=True)

    def calls() -> Iterator[tuple[Path, Facts, int, int, list[CorpusText], TokenizationSpec]]:
        lines_read = iterate_texts(path, selection)
        if spec.form == "blocks":
            after = f" {spec.end_of_text}" if spec.end_of_text else ""
            texts = (line.text + after for line in lines_read)
            blocks = full_blocks(texts, _lexicon(*spec.engines()), spec.max_tokens)
            lines_read = map(CorpusText, blocks)
        groups = _grouped(lines_read, shard_size)
        for number, (first, lines) in enumerate(groups):
            if writer.is_complete(number):
                progress.update()
            else:
                yield writer.folder, writer.key, number, first, lines, spec

    processes = cores() if size >= LARGE else 1
    for _ in run_parallel(write_shard, calls(), processes):
        progress.update()
    progress.close()
    writer.close({"texts_of": path.name})


def _grouped(lines: Iterable[CorpusText], size: int) -> Iterator[tuple[int, list[CorpusText]]]:
    """Groups of texts with about `size` characters in total, each with the number of its first."""
    group: list[CorpusText] = []
    first = 0
    room = size
    for line in lines:
        if room <= 0:
            yield first, group
            first += len(group)
            group = []
            room = size
        group.append(line)
        room -= len(line.text)
    if group:
        yield first, group


# -- tokenising --------------------------------------------------------------------------------------------------------


@lru_cache(1)
def _lexicon(*engines: str) -> TokenizationCache:
    return TokenizationCache(*map(Tokenizer.from_str, engines))


def write_shard(
    folder: Path,
    key: Facts,
    number: int,
    first: int,
    lines: Sequence[CorpusText],
    spec: TokenizationSpec,
) -> None:
    """Tokenise some texts, of which the first is number `first` of its file, and write them as one shard."""
    lexicon = _lexicon(*spec.engines())
    texts = [line.text for line in lines]
    own: Iterable[tuple[int, str]] = enumerate(texts)
    if spec.form == "lines":
        own = split_long_texts(texts, lexicon, spec.max_tokens)
    places, parts = zip(*own, strict=True)
    images = [lines[place].image for place in places]
    strings = {"text": parts, "name": _names(places, first), "image": images}
    encoded = {name: [one.encode() for one in some] for name, some in strings.items()}
    arrays = {name: np.frombuffer(b"".join(some), np.uint8) for name, some in encoded.items()}
    arrays["characters"] = np.array([len(text) for text in parts], np.uint32)
    lengths = {name: np.array([len(one) for one in some]) for name, some in encoded.items()}
    read = [lexicon.read(some) for some in batched(parts, CHUNK)]
    arrays["words"] = np.concatenate([some.words for some in read])
    lengths["words"] = np.concatenate([some.word_counts for some in read])
    for side, engine in enumerate(lexicon.engines):
        name = SIDES[side]
        largest = max(engine.get_vocab(with_added_tokens=True).values(), default=0)
        ids = np.concatenate([some.ids[side] for some in read])
        arrays[name] = ids.astype(np.uint16 if largest < 1 << 16 else np.uint32)
        arrays[f"{name}_word"] = np.concatenate([some.word[side] for some in read])
        lengths[name] = np.concatenate([some.counts[side] for some in read])
    columns = [lengths[name] for name in PARTS if name in lengths]
    arrays["ends"] = np.cumsum(np.stack(columns, 1), 0, np.int64)
    ShardWriter(folder, key).write(number, [Record(f"{number:05}", arrays)])


def _names(places: Sequence[int], first: int) -> Iterator[str]:
    counts = Counter(places)
    seen: Counter[int] = Counter()
    for place in places:
        yield f"{first + place}" if counts[place] == 1 else f"{first + place}.{seen[place]}"
        seen[place] += 1


# -- samples of stores -------------------------------------------------------------------------------------------------


class CorpusDataset:
    """Samples of the texts of several files, in order; ids are `FILE:NUMBER`, or `FILE:NUMBER.PART` of a cut line."""

    def __init__(
        self,
        files: Sequence[tuple[str, ShardStore]],
        text: TextRowEncoder,
        clip: ClipRowEncoder | None = None,
        limit: int = 0,
    ) -> None:
        """`files`: names and stores; `text` and `clip` make rows; at most `limit` texts (0: all)."""
        self.files = files
        self.text = text
        self.clip = clip
        self._shards = [
            (name, store, number) for name, store in files for number in range(len(store))
        ]
        counts = [store.length(number, "characters") for _, store, number in self._shards]
        self._starts = np.cumsum([0, *counts])
        total = int(self._starts[-1])
        self._places = np.array(subsample(range(total), limit)) if 0 < limit < total else None
        count = total if self._places is None else len(self._places)
        self.ids = LazySequence(count, self._id)
        self.images: Sequence[Sequence[str]] = LazySequence(count, self._images)
        self.other_images: Mapping[str, str] = {}
        """Images that samples have in place of the stored ones."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def key(self) -> list[Any]:
        """The stores, which are named by their content, and the maximum number of texts.

        Not which images are exchanged: no image is added.
        """
        return [*(store.folder.name for _, store in self.files), len(self)]

    @cached_property
    def bounds(self) -> list[int]:
        """The first sample of each file, and the end."""
        counts = [store.manifest["counts"].get("characters", 0) for _, store in self.files]
        ends = np.cumsum([0, *counts])
        return (ends if self._places is None else self._places.searchsorted(ends)).tolist()

    @cached_property
    def lengths(self) -> np.ndarray:
        """(len(self),) number of tokens of every text, without special tokens."""
        return self._lengths_of("tokens")

    @cached_property
    def has_image(self) -> np.ndarray:
        """(len(self),) bool."""
        return self._lengths_of("image") > 0

    def _lengths_of(self, part: str) -> np.ndarray:
        column = PARTS.index(part)
        ends = (
            store.rows(number, "ends", 0, store.length(number, "ends"))[:, column]
            for _, store, number in self._shards
        )
        lengths = np.concatenate([np.diff(some, prepend=0).astype(np.int32) for some in ends])
        return lengths if self._places is None else lengths[self._places]

    def strings(self, part: Literal["text", "image"], numbers: range) -> Iterator[str]:
        """The text or the image of consecutive samples, a hundred times faster than one by one."""
        if self._places is not None:
            yield from (self._at(number).string(part) for number in numbers)
            return
        column = PARTS.index(part)
        for shard, (_, store, number) in enumerate(self._shards):
            first, last = self._starts[shard : shard + 2].tolist()
            stop = min(numbers.stop, last) - first
            for begin in range(max(numbers.start, first) - first, stop, CHUNK):
                rows = store.rows(number, "ends", max(0, begin - 1), min(begin + CHUNK, stop))
                ends = [*([] if begin else [0]), *rows[:, column].tolist()]
                text = store.rows(number, part, ends[0], ends[-1]).tobytes()
                for start, end in pairwise(end - ends[0] for end in ends):
                    yield text[start:end].decode()

    @cached_property
    def sizes(self) -> np.ndarray:
        """(len(self), 3): one row, text tokens, CLIP tokens."""
        return sizes_of(self)

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
        """Samples in the order of `indices`."""
        return [self._made(int(index)) for index in indices]

    def _at(self, index: int) -> _TextPlace:
        place = index if self._places is None else int(self._places[index])
        shard = int(self._starts.searchsorted(place, side="right")) - 1
        file, store, number = self._shards[shard]
        position = place - int(self._starts[shard])
        ends = store.rows(number, "ends", max(0, position - 1), position + 1)
        stops = ends[-1].tolist()
        starts = ends[0].tolist() if position else [0] * len(stops)
        return _TextPlace(file, store, number, starts, stops)

    def _id(self, index: int) -> str:
        return self._at(index).id()

    def _images(self, index: int) -> tuple[str, ...]:
        return self._images_at(self._at(index))

    def _images_at(self, at: _TextPlace) -> tuple[str, ...]:
        return tuple(self.other_images.get(image, image) for image in at.images())

    def _made(self, index: int) -> Sample:
        at = self._at(index)
        row, dropped = self.text.row_of((at.rows("tokens"), at.rows("tokens_word")))
        clip = None
        if self.clip is not None:
            clip, left_out = self.clip.row_of((at.rows("clip"), at.rows("clip_word")))
            dropped += left_out
        words = at.rows("words").astype(np.int64)
        example = Example(at.id(), at.string("text"), images=self._images_at(at))
        return Sample(example.id, row, clip, words, truncated_tokens=dropped, example=example)


def corpus_of(samples: SampleDataset) -> tuple[CorpusDataset, range] | None:
    """The stored texts that samples are, in their order; None if they are anything else."""
    if isinstance(samples, CorpusDataset):
        return samples, range(len(samples))
    if isinstance(samples, SampleSubset) and isinstance(samples.numbers, range):
        inner = samples.samples
        return (inner, samples.numbers) if isinstance(inner, CorpusDataset) else None
    return None


class _TextPlace(NamedTuple):
    file: str
    store: ShardStore
    shard: int
    starts: list[int]
    stops: list[int]

    def rows(self, name: str) -> np.ndarray:
        """Its rows of an array."""
        column = PARTS.index(name.removesuffix("_word"))
        return self.store.rows(self.shard, name, self.starts[column], self.stops[column])

    def string(self, name: str) -> str:
        """Its part of an array of UTF-8."""
        return self.rows(name).tobytes().decode()

    def id(self) -> str:
        """Its file and number."""
        return f"{self.file}:{self.string('name')}"

    def images(self) -> tuple[str, ...]:
        """Its images: one for a caption, otherwise none."""
        return tuple(filter(None, [self.string("image")]))


def corpus_samples(
    paths: Sequence[str | Path],
    form: Literal["lines", "blocks"],
    text: TextRowEncoder,
    place: Path,
    clip: ClipRowEncoder | None = None,
    limit: int = 0,
    selection: CaptionSettings = EVERYTHING,
) -> CorpusDataset:
    """Samples of text files, which are tokenised first, into stores below `place`, if no earlier run has done so.

    `form`: see `TokenizationSpec`. `clip` adds rows for a CLIP text tower; at most `limit` texts are read (0: all).
    """
    spec = TokenizationSpec(
        form,
        max_text_tokens(text.engine, text.max_length),
        text.engine.to_str(),
        "" if clip is None else clip.engine.to_str(),
        text.end_of_text,
    )
    if not paths:
        raise InputError("no text to adapt on; set text to one file or more")
    own = settings_by_file(paths, selection)
    stores = [prepare_store(path, each, spec, place) for path, each in zip(paths, own, strict=True)]
    return CorpusDataset(list(zip(names_of(paths), stores, strict=True)), text, clip, limit)

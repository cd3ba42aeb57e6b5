"""Text to adapt on: one sentence per line, captions of a caption file, or
documents cut into blocks.

Plain text is streamed: files of any size, packed by gzip or Zstandard, and parquet.
"""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple, TypeVar, cast

from tokenizers import Tokenizer

from groundling.core.errors import (
    InputError,
    convert_errors,
    convert_read_errors,
    first_line,
    require_known,
)
from groundling.data.captions.captions import CaptionReadOptions, captions_of_images, is_captions
from groundling.data.tables import DATA_FILES, describe_bad_utf8
from groundling.data.text.words import TokenizationCache

Item = TypeVar("Item")

CHUNK = 2000
"""Number of texts tokenised at a time."""
LONG = 1 << 13
"""Length in characters from which a word, such as a text without spaces, is cut
from its beginning alone.
"""
EVERYTHING = CaptionReadOptions()
"""All captions of files without splits; columns are detected."""


class CorpusText(NamedTuple):
    """A line of plain text, or a caption."""

    text: str
    image: str = ""
    """The caption's image, by its path without the ending.

    Empty for plain text, and without an image.
    """


def corpus_lines(path: str | Path, selection: CaptionReadOptions = EVERYTHING) -> list[str]:
    """Non-empty lines of a text file, or the selected captions of a file or folder (`selection`).

    Captions are `.json`, `.jsonl`, `.csv`, `.tsv`, `*token.txt`, and folders.

    Raises:
        InputError: the file is missing, empty, not UTF-8, or has a caption
            file's name but no captions.
    """
    return [line.text for line in iterate_texts(path, selection)]


def iterate_texts(
    path: str | Path, selection: CaptionReadOptions = EVERYTHING
) -> Iterator[CorpusText]:
    """The same with the captions' images, as an iterator; plain text is held in memory only in part."""
    path = Path(path)
    if is_captions(path):
        yield from (
            CorpusText(*each)
            for each in captions_of_images(path, selection.splits, selection.columns)
        )
        return
    if selection != EVERYTHING:
        raise InputError(
            f"{path}: plain text has neither splits nor columns; leave --caption-splits, --caption-column and "
            "--image-column out"
        )
    yield from map(CorpusText, plain_lines(path))


def blocks(texts: Iterable[str], lexicon: TokenizationCache, tokens: int) -> Iterator[str]:
    """Texts joined in order and cut between words into strings of at most `tokens` tokens each.

    Only space is lost.

    Args:
        texts: lines of the documents, in order.
        lexicon: of the tokenizer.
        tokens: maximum number of tokens of a block, without special tokens.

    The last block is the shorter rest.
    """
    block: list[str] = []
    room = tokens
    for word, later in _counted_words(texts, lexicon):
        if block and later <= room:
            room -= later
            block.append(word)
            continue
        if block:
            yield " ".join(block)
        *whole_blocks, rest = _halves(word, lexicon, tokens)
        yield from whole_blocks
        room = tokens - lexicon.count(rest)
        block = [rest]
    if block:
        yield " ".join(block)


def full_blocks(texts: Iterable[str], lexicon: TokenizationCache, tokens: int) -> Iterator[str]:
    """Texts joined in order and cut into strings of exactly `tokens` tokens,
    inside a word if necessary.

    Therefore blocks cannot be distinguished by their lengths. Arguments and the last block are as
    in `blocks`. With a tokenizer that does not split at spaces, a block may be a token short.

    Source: XDBERT, Appendix B: "a fixed sequence length of 512"; release (Splend1d/XDBERT):
    510 and two special tokens.
    """
    block: list[str] = []
    room = tokens
    for word, count in _counted_words(texts, lexicon):
        if not block:
            count = lexicon.count(word)
        while word and count > room:
            head, word = _cut(word, lexicon, room, lexicon.blank if block else "")
            if not (head or block):  # a letter with more tokens than a block has
                head, word = word[:1], word[1:]
            yield " ".join([*block, head] if head else block)
            block = []
            room = tokens
            count = _count(word, lexicon, room)
        if word:
            room -= count
            block.append(word)
    if block:
        yield " ".join(block)


def _counted_words(texts: Iterable[str], lexicon: TokenizationCache) -> Iterator[tuple[str, int]]:
    """Every word of some texts with its number of tokens after another word."""
    for some in batched(texts, CHUNK):
        words = [word for text in some for word in text.split()]
        counts = lexicon.counts(
            [lexicon.blank + word for word in words] if lexicon.blank else words
        )
        yield from zip(words, counts.tolist(), strict=True)


def _cut(word: str, lexicon: TokenizationCache, room: int, before: str) -> tuple[str, str]:
    """The longest beginning of a word with at most `room` tokens after the text `before`, which
    may be empty; and the rest.
    """
    if not room:
        return "", word
    engine = lexicon.engines[0]
    offsets = engine.encode(before + word[:LONG], add_special_tokens=False).offsets
    if len(word) > LONG and len(offsets) <= 2 * room:
        offsets = engine.encode(before + word, add_special_tokens=False).offsets
    end = min(offsets[room - 1][1] - len(before), len(word) - 1)
    while end > 0 and lexicon.count(before + word[:end]) > room:
        end -= 1
    return word[: max(0, end)], word[max(0, end) :]


def _count(word: str, lexicon: TokenizationCache, limit: int) -> int:
    """The number of tokens of a word.

    For a long word with more than `limit` tokens, some number above `limit`.
    """
    if len(word) > LONG:
        count = lexicon.count(word[:LONG])
        # The cut may add some tokens that the word does not have.
        if count > 2 * limit:
            return count
    return lexicon.count(word)


def _halves(word: str, lexicon: TokenizationCache, tokens: int) -> list[str]:
    """A word longer than a block, halved until every part fits (a single letter is always a part)."""
    if len(word) < 2 or lexicon.count(word) <= tokens:
        return [word]
    middle = len(word) // 2
    return _halves(word[:middle], lexicon, tokens) + _halves(word[middle:], lexicon, tokens)


def split_long_texts(
    texts: Iterable[str], lexicon: TokenizationCache, tokens: int
) -> Iterator[tuple[int, str]]:
    """Each text by itself; a long one becomes several parts of at most `tokens`
    tokens, so nothing is lost.

    Each part comes with the number of its text. Arguments are as in `blocks`.
    """
    number = 0
    for some in batched(texts, CHUNK):
        for text, count in zip(some, lexicon.counts_in(some).tolist(), strict=True):
            for part in [text] if count <= tokens else blocks([text], lexicon, tokens):
                yield number, part
            number += 1


def line_id(name: str, number: int, part: int | None = None) -> str:
    """The id of a file's line or caption, numbered from 0, or of one of the
    parts into which it is cut.
    """
    return f"{name}:{number}" if part is None else f"{name}:{number}.{part}"


def batched(items: Iterable[Item], count: int) -> Iterator[list[Item]]:
    """Lists of `count` items each; the last may be shorter."""
    every = iter(items)
    while some := list(islice(every, count)):
        yield some


def max_text_tokens(engine: Tokenizer, max_length: int) -> int:
    """Number of tokens of a text besides special tokens.

    Raises InputError if there is no room for any.
    """
    tokens = max_length - len(engine.encode("").ids)
    if tokens < 1:
        raise InputError(f"--max-length {max_length} leaves no room for text")
    return tokens


def caption_filters(
    paths: Sequence[str | Path], selection: CaptionReadOptions
) -> list[CaptionReadOptions]:
    """The selection for each file; raises InputError if there are no files."""
    if not paths:
        raise InputError("no text to adapt on; pass --text FILE [FILE ...]")
    return [selection] if len(paths) == 1 else selection.for_files(paths)


def names_of(paths: Sequence[str | Path]) -> list[str]:
    """The files' names; a repeated name gets its position appended, because
    ids key every random choice.
    """
    names: list[str] = []
    for place, path in enumerate(paths):
        name = Path(path).name
        names.append(f"{name}#{place}" if name in names else name)
    return names


# -- plain text of any size, compressed or in parquet ------------------------------------------------------------------


READ = 1 << 23
"""Number of bytes read at a time."""
LONGEST = 1 << 26
"""Length in bytes from which a line is read as several, cut at blanks."""
ROWS = 4096
"""Number of rows of a parquet file read at a time."""
COLUMN = "text"
"""The text column of a parquet file with several columns."""
PACKED = (".gz", ".zst")
"""Endings of compressed text."""
STRUCTURED = (*DATA_FILES, ".xml", ".tar", ".parquet")
"""Endings of files whose lines are not texts, before the ending of the compression."""
PARQUET = ".parquet"


def plain_lines(path: str | Path) -> Iterator[str]:
    """Non-empty lines of a text file, stripped; for a parquet file, those of its texts.

    Lines end at newlines only (other separators occur inside sentences). A
    byte-order mark is dropped.

    Raises:
        InputError: the file is missing, empty, damaged or not UTF-8; its lines end in carriage
            returns alone, which would make it one line; a package to decompress it is missing; or a
            parquet file has no texts.
    """
    path = Path(path)
    if path.suffix == PARQUET:
        texts = _texts_of(path)
        yield from (line.strip() for text in texts for line in text.split("\n") if line.strip())
        return
    if path.suffix in PACKED and Path(path.stem).suffix in STRUCTURED:
        raise InputError(f"{path}: only plain text can be read compressed; unpack this file")
    empty = True
    for text in _decoded(path):
        for line in text.split("\n"):
            stripped = line.strip()
            if stripped:
                empty = False
                yield stripped
    if empty:
        raise InputError(f"{path}: the file is empty")


def _decoded(path: Path) -> Iterator[str]:
    """A file's text in chunks of whole lines."""
    rest = b""
    before = 0
    first = True
    with _opened(path) as stream:
        while True:
            with _unpacking(path):
                read = stream.read(READ)
            end = read.rfind(b"\n") + 1
            if read and not end:
                rest += read
                if len(rest) < LONGEST:
                    continue
                # A file of one line must not fill the memory; without a blank to cut at, the chunk
                # keeps growing.
                read = rest
                rest = b""
                end = read.rfind(b" ") + 1
            raw, rest = rest + read[:end], read[end:]
            text = _utf8(raw.removeprefix(b"\xef\xbb\xbf") if first else raw, path, before)
            if before == 0 and not read and "\r" in text.rstrip("\r"):
                raise InputError(
                    f"{path}: lines end in carriage returns alone (old Mac); convert the file to newlines"
                )
            yield text
            if not read:
                return
            before += raw.count(b"\n")
            first = first and not raw


def _utf8(raw: bytes, path: Path, before: int) -> str:
    """Raises InputError naming the line; `before` is the number of lines before `raw`."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise describe_bad_utf8(path, raw, error.start, before) from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with convert_read_errors(path):
        stream = path.open("rb")
    with stream:
        if path.suffix == ".gz":
            yield cast(IO[bytes], gzip.GzipFile(fileobj=stream))
        elif path.suffix == ".zst":
            yield cast(IO[bytes], _ZstandardReader(stream, _optional("zstandard", path)))
        else:
            yield stream


@contextmanager
def _unpacking(path: Path) -> Iterator[None]:
    """Raises InputError for a file that is damaged, or not compressed as its name says."""
    try:
        yield
    except Exception as error:  # gzip, zlib and zstandard each have their own exceptions
        advice = "copy it again, or rename it with the ending of its format"
        raise InputError(f"{path}: cannot be read ({first_line(error)}); {advice}") from None


class _ZstandardReader:
    """The contents of a file of Zstandard frames.

    The library's own reader accepts a truncated frame as complete.
    """

    def __init__(self, stream: IO[bytes], library: ModuleType) -> None:
        self.stream = stream
        self.library = library
        self.frame: Any = None

    def read(self, size: int) -> bytes:
        """The contents of about `size` compressed bytes, empty at the end.

        Raises EOFError if the file is truncated.
        """
        while packed := self.stream.read(size):
            if read := self._unpacked(packed):
                return read
        if self.frame is not None:
            raise EOFError("the file is cut off")
        return b""

    def _unpacked(self, packed: bytes) -> bytes:
        read = []
        while packed:
            if self.frame is None:
                self.frame = self.library.ZstdDecompressor().decompressobj()
            read.append(self.frame.decompress(packed))
            packed = b""
            if self.frame.eof:
                packed = self.frame.unused_data
                self.frame = None
        return b"".join(read)


def _optional(name: str, path: Path) -> ModuleType:
    """A library that only some files need; raises InputError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"{path}: reading {path.suffix} needs {name.partition('.')[0]}; pip install 'groundling[corpora]'"
        ) from None


def _texts_of(path: Path) -> Iterator[str]:
    """The texts of a parquet file's column, row group by row group, without nulls."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    parquet: Any = _optional("pyarrow.parquet", path)
    arrow: Any = _optional("pyarrow", path)
    empty = True
    with convert_errors(
        f"{path}: cannot be read",
        advice="; copy it again",
        errors=(OSError, UnicodeDecodeError, arrow.ArrowException),
    ):
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        column = names[0] if len(names) == 1 else COLUMN
        require_known(column, names, f"{path}: no column {COLUMN!r}")
        if not arrow.types.is_string(file.schema_arrow.field(column).type) and not (
            arrow.types.is_large_string(file.schema_arrow.field(column).type)
        ):
            raise InputError(f"{path}: column {column!r} does not contain text")
        for batch in file.iter_batches(ROWS, columns=[column]):
            for text in batch.column(0).to_pylist():
                empty = empty and not (text and text.strip())
                if text:
                    yield text
    if empty:
        raise InputError(f"{path}: the file is empty")

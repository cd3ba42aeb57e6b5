"""A corpus as one reads it without stores, all in memory: what tokenised ones are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Literal

from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Example
from groundling.data.captions import settings_by_file
from groundling.data.corpora import (
    EVERYTHING,
    full_blocks,
    iterate_texts,
    max_text_tokens,
    names_of,
    split_long_texts,
)
from groundling.data.samples import backend_tokenizer, subsample
from groundling.data.text import TokenizationCache
from groundling.settings.input_settings import CaptionSettings


def corpus_lines(path: str | Path, selection: CaptionSettings = EVERYTHING) -> list[str]:
    """The texts of a file, all in memory."""
    return [line.text for line in iterate_texts(path, selection)]


def corpus(
    paths: Sequence[str | Path],
    form: Literal["lines", "blocks"],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    limit: int = 0,
    wanted: CaptionSettings = EVERYTHING,
) -> list[Example]:
    """Examples of one or more text files, captions with their images.

    The ids are `file:number` of a line, a caption or a block, counted from 0, and `file:number.part` where a line or a
    caption is cut: however others are cut, a line keeps its number. A block is of several captions, and has no image.

    Args:
        paths: text files or caption files, see `lines`.
        form: every line by itself (`fitting`), or a file's lines joined and cut (`full_blocks`).
        tokenizer: the text encoder's, a fast one.
        max_length: most tokens of an example, special tokens counted.
        limit: keep at most so many examples, evenly spaced; 0: all.
        wanted: which captions of caption files.

    Raises:
        InputError: no file is given, one cannot be read, or `max_length` leaves no room beside special tokens.
    """
    each = settings_by_file(paths, wanted)
    engine = backend_tokenizer(tokenizer)
    tokens = max_text_tokens(engine, max_length)
    lexicon = TokenizationCache(engine)
    examples: list[Example] = []
    for name, path, own in zip(names_of(paths), paths, each, strict=True):
        read = list(iterate_texts(path, own))
        texts = [line.text for line in read]
        if form == "blocks":
            blocks_of_it = enumerate(full_blocks(texts, lexicon, tokens))
            examples += [Example(f"{name}:{number}", text) for number, text in blocks_of_it]
            continue
        for number, parts in groupby(split_long_texts(texts, lexicon, tokens), key=itemgetter(0)):
            image = read[number].image
            own_parts = [text for _, text in parts]
            for part, text in enumerate(own_parts):
                name_of_it = f"{name}:{number}" + (f".{part}" if len(own_parts) > 1 else "")
                examples.append(Example(name_of_it, text, images=(image,) if image else ()))
    return subsample(examples, limit)

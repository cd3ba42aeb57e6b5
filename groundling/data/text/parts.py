"""Texts of several parts: question, answer and rationale, each closed by a separator (UNITER's VCR)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Example, Row, Tags
from groundling.core.errors import InputError
from groundling.data.samples import Pieces, TextInput, texts_of
from groundling.data.text.words import word_of


class PartInput(TextInput):
    """Rows `[CLS] question [SEP] answer [SEP] rationale [SEP]`: of a text's parts, and of the second text.

    A piece's part is the number of what it stands in; [CLS] belongs to the first. A [SEP] belongs to the part that
    follows it, the last one to its own, or, with `follows` off, to the part that it closes. A person that a tag names
    is one word, by the number of its tag, whatever its name is in the text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        persons: Mapping[int, int],
        most: int,
        follows: bool = True,
    ) -> None:
        """`persons`: from the number of a tag to an id of the tokenizer's; `most`: parts that the model knows.

        Raises InputError for a tokenizer that does not begin a text and end its parts with a token.
        """
        super().__init__(tokenizer, max_length)
        if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None:
            raise InputError(
                f"{tokenizer.name_or_path}: the tokenizer has no [CLS] or no [SEP], which stand around parts of a text"
            )
        self.first = int(tokenizer.cls_token_id)
        self.separator = int(tokenizer.sep_token_id)
        self.persons = persons
        self.most = most
        self.follows = follows

    def rows(
        self, examples: Sequence[Example], words: Sequence[tuple[np.ndarray, ...]]
    ) -> list[tuple[Row, int]]:
        """A row for each example and the number of pieces cut off the ends of its longest parts.

        `words` (K, 2) are each text's spans. Raises InputError for a text of more parts than the model knows, or
        where `max_length` leaves no piece for one of them.
        """
        every = [text for example in examples for text in texts_of(example)]
        encodings = iter(self.engine.encode_batch(every, add_special_tokens=False))
        rows = []
        for example, spans_of_texts in zip(examples, words, strict=True):
            texts = [next(encodings) for _ in spans_of_texts]
            parts = self._parts(example, texts, spans_of_texts)
            first = len(example.breaks) + 1  # parts of the first text
            rows.append(self._closed(example.id, parts, first))
        return rows

    def row_of(self, pieces: Pieces) -> tuple[Row, int]:
        """The row of one text of one part, and how many pieces are cut off."""
        return self._closed("a text", [pieces], 1)

    def _parts(
        self, example: Example, texts: Sequence[Encoding], words: Sequence[np.ndarray]
    ) -> list[Pieces]:
        """The pieces of every part."""
        parts = []
        before = 0
        tags_of_texts = [example.tags, *(example.choice_tags or [()])]
        breaks = [example.breaks, ()]
        for text, spans_of_text, tags, begins in zip(
            texts, words, tags_of_texts, breaks, strict=False
        ):
            offsets = np.array(text.offsets, np.int64).reshape(-1, 2)
            here = word_of(offsets, spans_of_text)
            word = np.where(here >= 0, here + before, -1)
            before += len(spans_of_text)
            ids, kept = self._named(np.array(text.ids, np.int64), offsets, tags, example.names)
            part = np.searchsorted(begins, offsets[:, 0], side="right")
            for number in range(len(begins) + 1):
                inside = kept & (part == number)
                parts.append((ids[inside], word[inside]))
        return parts

    def _named(
        self, ids: np.ndarray, offsets: np.ndarray, tags: Tags, names: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids (P,) in which the first piece of a tagged person is that person's word, and which pieces stay."""
        kept = np.ones(len(ids), bool)
        for start, stop, number in tags:
            if number not in self.persons or names[number : number + 1] != ("person",):
                continue
            inside = np.flatnonzero((offsets[:, 0] < stop) & (offsets[:, 1] > start))
            ids[inside[:1]] = self.persons[number]
            kept[inside[1:]] = False
        return ids, kept

    def _closed(self, name: str, parts: list[Pieces], first: int) -> tuple[Row, int]:
        """A row of [CLS] and parts, each with its [SEP], of which the `first` are of the first text."""
        if len(parts) > self.most:
            raise InputError(
                f"{name}: its texts have {len(parts)} parts; this model has segments for {self.most}"
            )
        lengths = np.array([len(ids) for ids, _ in parts])
        room = self.max_length - 1 - len(parts)
        if room < len(parts):
            raise InputError(
                f"{name}: {self.max_length} pieces leave no room for {len(parts)} parts; raise --max-length"
            )
        dropped = max(0, int(lengths.sum()) - room)
        for _ in range(dropped):
            lengths[lengths.argmax()] -= 1
        ids = [np.array([self.first])]
        word = [np.array([-1])]
        part = [np.array([0])]
        for number, (length, (pieces, words)) in enumerate(zip(lengths, parts, strict=True)):
            ids += [pieces[:length], np.array([self.separator])]
            word += [words[:length], np.array([-1])]
            owner = min(number + 1, len(parts) - 1) if self.follows else number
            part += [np.full(length, number), np.array([owner])]
        # The parts as they stand, each with its own [SEP], tell the first text from the second.
        stands_in = np.repeat(np.arange(len(parts)), lengths + 1)
        types = np.concatenate([[0], stands_in >= first])
        special = np.concatenate([[True], *(np.arange(length + 1) == length for length in lengths)])
        row = Row(
            ids=np.concatenate(ids).astype(np.int64),
            special=special,
            word=np.concatenate(word).astype(np.int64),
            types=types.astype(np.int64),
            pad=self.pad,
            part=np.concatenate(part).astype(np.int64),
        )
        return row, dropped

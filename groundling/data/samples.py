"""From examples (raw strings) to samples (tokenised once, kept), for any two fast tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from groundling.batch import Example, Row, Sample
from groundling.data.words import numbers, spans, word_of
from groundling.errors import InputError


class Samples(Protocol):
    """What `train` and `evaluate` read: ids, relative lengths for bucketing, and samples by index."""

    @property
    def ids(self) -> Sequence[str]:
        """Every sample's id."""
        ...

    @property
    def lengths(self) -> np.ndarray:
        """Every sample's length, on any scale; (len(self),)."""
        ...

    def __len__(self) -> int: ...

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator]) -> list[Sample]:
        """Samples in order; a data set that chooses (one of five captions) does so with the sample's own generator."""
        ...


def backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """The tokenizer's own copy of its Rust engine, without padding and truncation; slow tokenizers are refused."""
    if not tokenizer.is_fast:
        raise InputError(
            f"{tokenizer.name_or_path}: a fast tokenizer is needed (character offsets); this one is slow"
        )
    engine = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    engine.no_padding()
    engine.no_truncation()
    return engine


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    # The value never matters (masks decide); a tokenizer without a padding token lends its first id.
    return 0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)


class TextInput:
    """Rows for a text encoder: special tokens, segment ids, truncation to what the encoder can read."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        """`max_length` in pieces, special tokens included."""
        self.engine, self.max_length, self.pad = backend(tokenizer), max_length, _pad_id(tokenizer)
        self.cutter = Tokenizer.from_str(self.engine.to_str())
        self.cutter.enable_truncation(max_length)
        if len(self.engine.encode("a").ids) < 1:
            raise InputError(f"{tokenizer.name_or_path}: the tokenizer makes no pieces of 'a'")

    def rows(
        self, examples: Sequence[Example], words: Sequence[tuple[np.ndarray, ...]]
    ) -> list[tuple[Row, int]]:
        """A row for each example and the number of pieces cut off its end."""
        texts: list[Any] = [e.text if e.pair is None else (e.text, e.pair) for e in examples]
        out = []
        for text, own, encoding in zip(texts, words, self.engine.encode_batch(texts), strict=True):
            dropped = max(0, len(encoding.ids) - self.max_length)
            kept = (
                self.cutter.encode(*((text,) if isinstance(text, str) else text))
                if dropped
                else encoding
            )
            out.append((self._row(kept, own), dropped))
        return out

    def _row(self, encoding: Encoding, words: tuple[np.ndarray, ...]) -> Row:
        segment = np.array([-1 if s is None else s for s in encoding.sequence_ids], np.int64)
        special = segment < 0
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        word = np.full(len(segment), -1, np.int64)
        before = 0
        for number, own in enumerate(words):
            here = segment == number
            found = word_of(offsets[here], own)
            word[here] = np.where(found >= 0, found + before, -1)
            before += len(own)
        types = np.array(encoding.type_ids, np.int64)
        return Row(np.array(encoding.ids, np.int64), special, word, types, self.pad)


class WindowInput:
    """Rows for a CLIP text tower: each text in as many windows as it needs, each with its start and end tokens.

    Two texts of a pair never share a window (XDBERT, Appendix B). A window ends before a word it cannot hold whole, if
    it can; XDBERT's released code cuts inside words.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, limit: int, max_windows: int = 0
    ) -> None:
        """`limit` in pieces per window, special ones included; at most `max_windows` per text (0: no bound)."""
        self.engine, self.limit, self.max_windows, self.pad = (
            backend(tokenizer),
            limit,
            max_windows,
            _pad_id(tokenizer),
        )
        probe = self.engine.encode("a")
        inner = [i for i, s in enumerate(probe.sequence_ids) if s is not None]
        if not inner or inner[-1] == len(probe.ids) - 1:
            raise InputError(
                f"{tokenizer.name_or_path}: the tokenizer adds no end token, but CLIP-like text towers read it"
            )
        self.start, self.end = probe.ids[: inner[0]], probe.ids[inner[-1] + 1 :]
        self.room = limit - len(self.start) - len(self.end)

    def rows(
        self, examples: Sequence[Example], words: Sequence[tuple[np.ndarray, ...]]
    ) -> list[tuple[Row, int]]:
        """A row for each example and the number of pieces dropped because `max_windows` was reached."""
        flat = [t for e in examples for t in ((e.text,) if e.pair is None else (e.text, e.pair))]
        encodings = iter(self.engine.encode_batch(flat, add_special_tokens=False))
        return [self._row([next(encodings) for _ in own], own) for own in words]

    def _row(self, encodings: Sequence[Encoding], words: tuple[np.ndarray, ...]) -> tuple[Row, int]:
        ids: list[np.ndarray] = []
        word: list[np.ndarray] = []
        special: list[np.ndarray] = []
        window: list[np.ndarray] = []
        types: list[np.ndarray] = []
        dropped = before = 0
        for text, (encoding, own) in enumerate(zip(encodings, words, strict=True)):
            pieces = np.array(encoding.ids, np.int64)
            of = word_of(np.array(encoding.offsets, np.int64).reshape(-1, 2), own)
            of = np.where(of >= 0, of + before, -1)
            before += len(own)
            cuts = self._cuts(of)
            if self.max_windows and len(cuts) > self.max_windows:
                dropped += len(pieces) - cuts[self.max_windows - 1][1]
                cuts = cuts[: self.max_windows]
            for start, stop in cuts:
                content = stop - start
                ids.append(
                    np.concatenate([self.start, pieces[start:stop], self.end]).astype(np.int64)
                )
                edge = np.ones(len(self.start), bool), np.ones(len(self.end), bool)
                special.append(np.concatenate([edge[0], np.zeros(content, bool), edge[1]]))
                word.append(
                    np.pad(of[start:stop], (len(self.start), len(self.end)), constant_values=-1)
                )
                window.append(np.full(len(ids[-1]), len(window), np.int64))
                types.append(np.full(len(ids[-1]), text, np.int64))
        total = np.concatenate(ids)
        row = Row(
            total,
            np.concatenate(special),
            np.concatenate(word),
            np.concatenate(types),
            self.pad,
            np.concatenate(window),
        )
        return row, dropped

    def _cuts(self, word: np.ndarray) -> list[tuple[int, int]]:
        cuts, start = [], 0
        while True:
            stop = min(start + self.room, len(word))
            if stop < len(word) and word[stop] >= 0 and word[stop] == word[stop - 1]:
                whole = stop - int(
                    np.argmax(word[start:stop][::-1] != word[stop])
                )  # the split word's first piece
                stop = whole if whole > start and word[start] != word[stop] else stop
            cuts.append((start, stop))
            if stop >= len(word):
                return cuts
            start = stop


class TextSamples:
    """Samples of texts; each text is converted once, however often it stands in the data, and kept."""

    def __init__(
        self,
        examples: Sequence[Example],
        text: TextInput | None,
        clip: WindowInput | None = None,
        *,
        keep: int = 500_000,
    ) -> None:
        """`text` and `clip` say which sides are made; at most `keep` converted samples stay in memory."""
        self.examples, self.text, self.clip, self.keep = examples, text, clip, keep
        self.ids = [e.id for e in examples]
        # Characters are close enough; every choice is padded to the longest.
        self.lengths = np.array(
            [len(e.text) + max(map(len, e.choices or (e.pair or "",))) for e in examples]
        )
        seen: dict[Any, int] = {}
        self.first = [
            seen.setdefault((e.text, e.pair, e.choices, e.tags, e.choice_tags), i)
            for i, e in enumerate(examples)
        ]
        self.kept: dict[int, Sample] = {}

    def __len__(self) -> int:
        return len(self.examples)

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
        """Samples in the order of `indices`."""
        missing = [i for i in dict.fromkeys(self.first[i] for i in indices) if i not in self.kept]
        fresh = (
            dict(zip(missing, self._convert([self.examples[i] for i in missing]), strict=True))
            if missing
            else {}
        )
        out = []
        for i in indices:
            sample, label = (
                fresh.get(self.first[i]) or self.kept[self.first[i]],
                self.examples[i].label,
            )
            labels = {} if label is None else {"label": np.array(label)}
            out.append(replace(sample, id=self.ids[i], labels=labels))
        for i in missing[: max(0, self.keep - len(self.kept))]:
            self.kept[i] = fresh[i]
        return out

    def _convert(self, examples: Sequence[Example]) -> list[Sample]:
        if any(e.choices for e in examples):
            flat = [
                Example(e.id, e.text, choice, tags=e.tags, choice_tags=e.choice_tags[n : n + 1])
                for e in examples
                for n, choice in enumerate(e.choices)
            ]
            rows = iter(self._convert(flat))
            several = [tuple(next(rows) for _ in e.choices) for e in examples]
            return [
                Sample(e.id, choices=own, dropped=sum(row.dropped for row in own))
                for e, own in zip(examples, several, strict=True)
            ]
        words = [
            (spans(e.text),) if e.pair is None else (spans(e.text), spans(e.pair)) for e in examples
        ]
        samples = []
        for e, own in zip(examples, words, strict=True):
            raw = [
                numbers(text, part) for text, part in zip((e.text, e.pair or ""), own, strict=False)
            ]
            samples.append(Sample(e.id, words=np.concatenate(raw)))
        if self.text is not None:
            texts = self.text.rows(examples, words)
            samples = [
                replace(s, text=r, dropped=s.dropped + d)
                for s, (r, d) in zip(samples, texts, strict=True)
            ]
            if any(e.tags or e.choice_tags for e in examples):
                samples = [
                    _tagged(s, e, own) for s, e, own in zip(samples, examples, words, strict=True)
                ]
        if self.clip is not None:
            windows = self.clip.rows(examples, words)
            samples = [
                replace(s, clip=r, dropped=s.dropped + d)
                for s, (r, d) in zip(samples, windows, strict=True)
            ]
        return samples


def _tagged(sample: Sample, example: Example, words: Sequence[np.ndarray]) -> Sample:
    """A copy whose text says which object or phrase each piece names."""
    row = sample.text
    assert row is not None
    named, before = (
        np.full(sum(map(len, words)) + 1, -1, np.int64),
        0,
    )  # the last one: of pieces outside all words
    for spans_, tags in zip(words, (example.tags, *example.choice_tags), strict=False):
        for start, stop, number in tags:
            inside = (spans_[:, 0] < stop) & (spans_[:, 1] > start)
            named[before + np.flatnonzero(inside)] = number
        before += len(spans_)
    return replace(sample, text=replace(row, region=named[row.word]))

"""Converts examples (raw strings) to samples (tokenised once and cached), for any two fast tokenizers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from tokenizers import AddedToken, Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import IGNORE, Example, Sample, TextRow
from groundling.core.errors import InputError
from groundling.data.text import align_words, word_spans, word_type_ids

Item = TypeVar("Item")


def subsample(items: Sequence[Item], limit: int) -> list[Item]:
    """At most `limit` of the items, evenly spaced, with the first and the last; 0: all."""
    if not limit or limit >= len(items):
        return list(items)
    places = np.linspace(0, len(items) - 1, limit).round().astype(int)
    return [items[place] for place in places]


def without_region_tags(example: Example) -> Example:
    """The example without region tags (VCR); its words stay unchanged."""
    if not example.object_count:
        return example
    return replace(
        example,
        region_tags=(),
        choice_region_tags=(),
        object_count=0,
        object_names=(),
        mentioned_objects=(),
    )


def concatenate_splits(splits: Mapping[str, Sequence[Example]]) -> list[Example]:
    """The examples of several splits, concatenated; raises InputError if two have the same id.

    Soft targets (K, 2) need the same K throughout: shorter ones are padded with pairs of `IGNORE`.
    """
    examples = [example for some in splits.values() for example in some]
    if len(splits) == 1:
        return examples
    for name, count in Counter(example.id for example in examples).most_common(1):
        if count > 1:
            raise InputError(f"{' and '.join(splits)}: {count} examples are called {name!r}")
    length = max((len(e.label) for e in examples if isinstance(e.label, np.ndarray)), default=0)
    for place, example in enumerate(examples):
        if isinstance(example.label, np.ndarray) and len(example.label) < length:
            rows = ((0, length - len(example.label)), (0, 0))
            label = np.pad(example.label, rows, constant_values=IGNORE)
            examples[place] = replace(example, label=label)
    return examples


class SampleDataset(Protocol):
    """The data set that training reads; wrappers (regions, pixels, teachers) take one and are one, in any order."""

    @property
    def ids(self) -> Sequence[str]:
        """The id of each sample."""

    @property
    def lengths(self) -> np.ndarray:
        """The length of each sample, (len(self),), in any unit."""

    @property
    def sizes(self) -> np.ndarray:
        """Upper bounds, (len(self), 3): rows, text tokens of a row, and other inputs of a row (regions, CLIP tokens).

        Computed only where batches are counted in tokens.
        """

    @property
    def images(self) -> Sequence[Sequence[str]]:
        """The image ids of each sample; empty for a sample without images."""

    def __len__(self) -> int: ...

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator]) -> list[Sample]:
        """Samples in the order of `indices`; random choices use the sample's own generator."""


class LazySequence(Sequence[Item], Generic[Item]):
    """A sequence whose items are computed on access, so it takes no memory."""

    def __init__(self, length: int, call: Callable[[int], Item]) -> None:
        self.length = length
        self.call = call

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        places = range(self.length)[index]
        if isinstance(places, range):
            return [self.call(place) for place in places]
        return self.call(places)


class SampleSubset:
    """Some samples of another data set, by number."""

    def __init__(self, samples: SampleDataset, numbers: Sequence[int]) -> None:
        """Samples are in the order of `numbers`; a range takes no memory."""
        self.samples = samples
        self.numbers = numbers
        count = len(numbers)
        self.ids: Sequence[str] = LazySequence(count, lambda place: samples.ids[numbers[place]])
        self.images: Sequence[Sequence[str]] = LazySequence(
            count, lambda place: samples.images[numbers[place]]
        )
        self._rows: slice | np.ndarray
        if isinstance(numbers, range):
            self._rows = slice(numbers.start, numbers.stop)
        else:
            self._rows = np.array(numbers, np.int64)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def lengths(self) -> np.ndarray:
        """(len(self),)."""
        return self.samples.lengths[self._rows]

    @property
    def sizes(self) -> np.ndarray:
        """(len(self), 3)."""
        return self.samples.sizes[self._rows]

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
        """Samples in the order of `indices`."""
        return self.samples.get([int(self.numbers[index]) for index in indices], rngs)


class SampleWrapper:
    """Base of data sets that change the samples of another one: by `change`, or by a `get` of their own."""

    def __init__(self, samples: SampleDataset) -> None:
        self.samples = samples
        self.ids = samples.ids
        self.lengths = samples.lengths
        self.images = samples.images

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def sizes(self) -> np.ndarray:
        """(len(self), 3), those of the wrapped samples."""
        return self.samples.sizes

    def change(self, sample: Sample, index: int) -> Sample:
        """What a sample becomes; `index` is its position."""
        raise NotImplementedError

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
        """Changed samples in the order of `indices`."""
        each = zip(self.samples.get(indices, rngs), indices, strict=True)
        return [self.change(sample, index) for sample, index in each]


class MappedDataset(SampleWrapper):
    """Samples that a function changes as they are read, one by one."""

    def __init__(self, samples: SampleDataset, function: Callable[[Sample], Sample]) -> None:
        super().__init__(samples)
        self.function = function

    def change(self, sample: Sample, index: int) -> Sample:
        """What the function makes of a sample."""
        return self.function(sample)


def backend_tokenizer(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """A copy of the tokenizer's Rust engine without padding and truncation."""
    if not tokenizer.is_fast:
        raise InputError(f"{tokenizer.name_or_path}: expected a fast tokenizer")
    engine = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    engine.no_padding()
    engine.no_truncation()
    return engine


def mask_id_of(tokenizer: PreTrainedTokenizerBase, why: str = "") -> int:
    """The id of a tokenizer's mask token."""
    if tokenizer.mask_token_id is None:
        raise InputError(f"{tokenizer.name_or_path}: the tokenizer has no mask token{why}")
    return int(tokenizer.mask_token_id)


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, table: Sized) -> None:
    """Raises InputError if a tokenizer has more tokens than a model's word embeddings (V, ...) have rows."""
    if len(tokenizer) > len(table):
        raise InputError(
            f"{tokenizer.name_or_path}: {len(tokenizer)} tokens, but {len(table)} word embeddings"
        )


Tokens = tuple[np.ndarray, np.ndarray]
"""Ids (P,) of tokens and the raw words (P,) that they belong to, -1 for none; no special tokens."""


def texts_of(example: Example) -> tuple[str, ...]:
    """The one or two texts of an example."""
    return (example.text,) if example.text_pair is None else (example.text, example.text_pair)


def _offsets(encoding: Encoding) -> np.ndarray:
    return np.array(encoding.offsets, np.int64).reshape(-1, 2)


def _special_tokens(engine: Tokenizer) -> tuple[Encoding, slice, slice]:
    probe = engine.encode("a")
    inner = [place for place, part in enumerate(probe.sequence_ids) if part is not None]
    first = inner[0] if inner else len(probe.ids)
    return probe, slice(first), slice(first + len(inner), None)


def _enclose(start: list[int], tokens: Tokens, end: list[int]) -> dict[str, np.ndarray]:
    """Tokens between special ones, as fields of a `TextRow`."""
    ids, word = tokens
    edges = (len(start), len(end))
    return {
        "input_ids": np.concatenate([start, ids, end]).astype(np.int64),
        "special_tokens_mask": np.pad(np.zeros(len(ids), bool), edges, constant_values=True),
        "word_ids": np.pad(word.astype(np.int64), edges, constant_values=-1),
    }


class TextRowEncoder:
    """Makes rows for a text encoder: special tokens, token types, truncation to its maximum length."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int, end_of_text: str = ""
    ) -> None:
        """`max_length` in tokens, special tokens included; `end_of_text`: a token that stands after joined texts."""
        self.engine = backend_tokenizer(tokenizer)
        self.end_of_text = end_of_text
        if end_of_text:  # a space before it is no token
            own = AddedToken(end_of_text, lstrip=True, special=True, normalized=False)
            self.engine.add_special_tokens([own])
        self.max_length = max_length
        if max_length < 1:
            raise InputError(f"max_length {max_length}: no room for any text")
        # The value never matters (the attention mask does).
        self.pad = int(tokenizer.pad_token_id or 0)
        self.cutter = Tokenizer.from_str(self.engine.to_str())
        self.cutter.enable_truncation(max_length, direction=tokenizer.truncation_side)
        probe, before, after = _special_tokens(self.engine)
        self.start = probe.ids[before]
        self.end = probe.ids[after]
        self.start_types = probe.type_ids[before]
        self.end_types = probe.type_ids[after]

    def rows(
        self, examples: Sequence[Example], words: Sequence[tuple[np.ndarray, ...]]
    ) -> list[tuple[TextRow, int]]:
        """A row for each example, and its number of truncated tokens; `words` (K, 2) are each text's word spans."""
        texts = [texts_of(example) for example in examples]
        plain = [parts if len(parts) == 2 else parts[0] for parts in texts]
        out = []
        for parts, spans_of_parts, encoding in zip(
            texts, words, self.engine.encode_batch(plain), strict=True
        ):
            truncated_tokens = max(0, len(encoding.ids) - self.max_length)
            kept = self._cut(parts) if truncated_tokens else encoding
            out.append((self._row(kept, spans_of_parts), truncated_tokens))
        return out

    def row_of(self, tokens: Tokens) -> tuple[TextRow, int]:
        """The row of one text without tags as from `rows`, made of its tokens, and its number of truncated tokens."""
        ids, word = tokens
        room = self.max_length - len(self.start) - len(self.end)
        dropped = max(0, len(ids) - room)
        count = len(ids) - dropped
        arrays = _enclose(self.start, (ids[:count], word[:count]), self.end)
        types = np.array([*self.start_types, *[0] * count, *self.end_types], np.int64)
        return TextRow(**arrays, token_type_ids=types, pad_token_id=self.pad), dropped

    def _cut(self, parts: tuple[str, ...]) -> Encoding:
        truncated = self.cutter.encode(parts[0], parts[1] if len(parts) == 2 else None)
        # Without room for a token besides the special ones, the engine may not truncate the text.
        if len(truncated.ids) > self.max_length or set(truncated.sequence_ids) == {None}:
            raise InputError(f"max_length {self.max_length}: no room for {parts[0][:40]!r}")
        return truncated

    def _row(self, encoding: Encoding, words: tuple[np.ndarray, ...]) -> TextRow:
        segment = np.array([-1 if s is None else s for s in encoding.sequence_ids], np.int64)
        offsets = _offsets(encoding)
        word = np.full(len(segment), -1, np.int64)
        before = 0
        for number, spans_of_part in enumerate(words):
            inside = segment == number
            word[inside] = align_words(offsets[inside], spans_of_part, before)
            before += len(spans_of_part)
        return TextRow(
            input_ids=np.array(encoding.ids, np.int64),
            special_tokens_mask=segment < 0,
            word_ids=word,
            token_type_ids=np.array(encoding.type_ids, np.int64),
            pad_token_id=self.pad,
        )


class ClipRowEncoder:
    """Makes rows for a CLIP text tower: each text in as many windows as needed, each with its start and end tokens.

    The two texts of a pair never share a window (XDBERT, Appendix B). A window ends before a word
    that does not fit whole, if possible; XDBERT's released code cuts inside words.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, limit: int, max_windows: int = 0
    ) -> None:
        """`limit` in tokens per window, special tokens included; at most `max_windows` per text (0: no limit)."""
        self.engine = backend_tokenizer(tokenizer)
        self.limit = limit
        self.max_windows = max_windows
        self.pad = int(tokenizer.pad_token_id or 0)
        probe, before, after = _special_tokens(self.engine)
        self.start = probe.ids[before]
        self.end = probe.ids[after]
        self.room = limit - len(self.start) - len(self.end)
        if not self.end or self.room < 1:
            raise InputError(
                f"{tokenizer.name_or_path}: expected an end token, as CLIP has, and room for text in {limit} tokens"
            )

    def rows(
        self, examples: Sequence[Example], words: Sequence[tuple[np.ndarray, ...]]
    ) -> list[tuple[TextRow, int]]:
        """A row for each example, and its number of tokens truncated because of `max_windows`."""
        every = [text for example in examples for text in texts_of(example)]
        encodings = iter(self.engine.encode_batch(every, add_special_tokens=False))
        return [self._row([next(encodings) for _ in parts], parts) for parts in words]

    def row_of(self, tokens: Tokens) -> tuple[TextRow, int]:
        """The row of one text as from `rows`, made of its tokens, and its number of truncated tokens."""
        return self._of_parts([tokens])

    def _row(
        self, encodings: Sequence[Encoding], words: tuple[np.ndarray, ...]
    ) -> tuple[TextRow, int]:
        parts = []
        before = 0
        for encoding, spans_of_part in zip(encodings, words, strict=True):
            word = align_words(_offsets(encoding), spans_of_part, before)
            parts.append((np.array(encoding.ids, np.int64), word))
            before += len(spans_of_part)
        return self._of_parts(parts)

    def _of_parts(self, parts: Sequence[Tokens]) -> tuple[TextRow, int]:
        windows: list[dict[str, np.ndarray]] = []
        dropped = 0
        for number, (tokens, word) in enumerate(parts):
            cuts = self._cuts(word)
            if self.max_windows and len(cuts) > self.max_windows:
                dropped += len(tokens) - cuts[self.max_windows - 1][1]
                cuts = cuts[: self.max_windows]
            for start, stop in cuts:
                part = (tokens[start:stop], word[start:stop])
                window = _enclose(self.start, part, self.end)
                length = len(window["input_ids"])
                window["token_type_ids"] = np.full(length, number, np.int64)
                window["window_index"] = np.full(length, len(windows), np.int64)
                windows.append(window)
        joined = {name: np.concatenate([one[name] for one in windows]) for name in windows[0]}
        return TextRow(pad_token_id=self.pad, **joined), dropped

    def _cuts(self, word: np.ndarray) -> list[tuple[int, int]]:
        cuts = []
        start = 0
        while True:
            stop = min(start + self.room, len(word))
            if stop < len(word) and word[stop] >= 0 and word[stop] == word[stop - 1]:
                backwards = word[start:stop][::-1]
                first = stop - int(np.argmax(backwards != word[stop]))
                # A word that fills the window is cut.
                stop = first if first > start and word[start] != word[stop] else stop
            cuts.append((start, stop))
            if stop >= len(word):
                return cuts
            start = stop


class TextDataset:
    """Samples of texts; each distinct text is converted once and cached."""

    def __init__(
        self,
        examples: Sequence[Example],
        text: TextRowEncoder | None,
        clip: ClipRowEncoder | None = None,
        *,
        max_cached: int = 500_000,
    ) -> None:
        """`text` and `clip` select the sides to make; at most `max_cached` converted samples stay in memory."""
        self.examples = examples
        self.text = text
        self.clip = clip
        self.max_cached = max_cached
        self.ids = [example.id for example in examples]
        self.images = [example.images for example in examples]
        place: dict[object, int] = {}
        self.first_of_equal = [
            place.setdefault(_key(e), number) for number, e in enumerate(examples)
        ]
        self.cache: dict[int, Sample] = {}

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def lengths(self) -> np.ndarray:
        """(len(self),), see `lengths_of`."""
        side = self.text or self.clip
        return lengths_of(self.examples, None if side is None else side.engine)

    @cached_property
    def sizes(self) -> np.ndarray:
        """(len(self), 3): rows, text tokens and CLIP tokens, counted by converting every text."""
        return sizes_of(self)

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
        """Samples in the order of `indices`."""
        firsts = dict.fromkeys(self.first_of_equal[index] for index in indices)
        missing = [first for first in firsts if first not in self.cache]
        converted = self._convert([self.examples[first] for first in missing]) if missing else []
        converted_samples = dict(zip(missing, converted, strict=True))
        out = []
        for index in indices:
            first = self.first_of_equal[index]
            sample = converted_samples.get(first) or self.cache[first]
            out.append(_labelled(sample, self.examples[index]))
        for first in missing[: max(0, self.max_cached - len(self.cache))]:
            self.cache[first] = converted_samples[first]
        return out

    def _convert(self, examples: Sequence[Example]) -> list[Sample]:
        rows = iter(self._rows([row for example in examples for row in rows_of(example)]))
        samples = []
        for example in examples:
            if not example.choices:
                samples.append(next(rows))
                continue
            choices = tuple(next(rows) for _ in example.choices)
            dropped = sum(row.truncated_tokens for row in choices)
            samples.append(
                Sample(example.id, choices=choices, truncated_tokens=dropped, example=example)
            )
        return samples

    def _rows(self, examples: Sequence[Example]) -> list[Sample]:
        words = [tuple(word_spans(text) for text in texts_of(example)) for example in examples]
        missing: list[tuple[TextRow | None, int]] = [(None, 0)] * len(examples)
        texts = missing if self.text is None else self.text.rows(examples, words)
        clips = missing if self.clip is None else self.clip.rows(examples, words)
        samples = []
        for example, parts, (text, dropped), (clip, clip_dropped) in zip(
            examples, words, texts, clips, strict=True
        ):
            if text is not None and (example.region_tags or example.choice_region_tags):
                text = _tagged(text, example, parts)
            raw = map(word_type_ids, texts_of(example), parts)
            types = np.concatenate(list(raw))
            lost = dropped + clip_dropped
            samples.append(
                Sample(example.id, text, clip, types, truncated_tokens=lost, example=example)
            )
        return samples


TEXTS_PER_BATCH = 1024
"""Texts that are converted together while sizes are counted."""


def sizes_of(samples: SampleDataset) -> np.ndarray:
    """(N, 3) for N samples, by converting every text: rows, and the most text tokens and CLIP tokens in one of them."""
    counts: list[tuple[int, int, int]] = []
    for start in range(0, len(samples), TEXTS_PER_BATCH):
        some = range(start, min(start + TEXTS_PER_BATCH, len(samples)))
        counts += [_size_of(sample) for sample in samples.get(some, ())]
    return np.array(counts, np.int64).reshape(-1, 3)


def _size_of(sample: Sample) -> tuple[int, int, int]:
    tokens = [0 if row.text is None else len(row.text.input_ids) for row in sample.rows]
    windows = [0 if row.clip is None else len(row.clip.input_ids) for row in sample.rows]
    return len(sample.rows), max(tokens), max(windows)


class MultiVersionTextDataset:
    """Samples of texts that have several versions; each epoch draws one at random, so nothing is cached."""

    def __init__(
        self,
        versions: Sequence[Sequence[Example]],
        text: TextRowEncoder,
        labels_correctness: bool = False,
    ) -> None:
        """All versions of each text; the first gives the id. Of a multiple choice, one choice is drawn as well.

        With `labels_correctness`, the label `sentence_image` is 1 if the drawn choice or statement is right.
        """
        self.versions = versions
        self.text = text
        self.labels_correctness = labels_correctness
        self.ids = [examples[0].id for examples in versions]
        self.images = [examples[0].images for examples in versions]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def lengths(self) -> np.ndarray:
        """(len(self),) of the first version of each text, see `lengths_of`."""
        return lengths_of([examples[0] for examples in self.versions], self.text.engine)

    @cached_property
    def sizes(self) -> np.ndarray:
        """(len(self), 3): one row, the tokens of the longest version with its longest choice, nothing else."""
        rows = [[row for one in versions for row in rows_of(one)] for versions in self.versions]
        every = [row for some in rows for row in some]
        tokens = TextDataset(every, self.text, max_cached=0).sizes[:, 1]
        ends = np.cumsum([len(some) for some in rows])
        longest = [part.max() for part in np.split(tokens, ends[:-1])]
        return np.array([(1, most, 0) for most in longest], np.int64)

    def draw(self, index: int, rng: np.random.Generator) -> tuple[Example, bool]:
        """A version of a text, without its label, and whether it is right."""
        versions = self.versions[index]
        example = versions[int(rng.integers(len(versions)))]
        is_right = example.label == 1
        if example.choices:
            number = int(rng.integers(len(example.choices)))
            is_right = example.label == number
            example = with_choice(example, number)
        return replace(example, id=self.ids[index], label=None), is_right

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator]) -> list[Sample]:
        """Samples in the order of `indices`, each drawn with its own generator."""
        drawn = [self.draw(index, rng) for index, rng in zip(indices, rngs, strict=True)]
        samples = TextDataset([example for example, _ in drawn], self.text).get(range(len(drawn)))
        if not self.labels_correctness:
            return samples
        return [
            sample.with_label("sentence_image", np.array(int(is_right)))
            for sample, (_, is_right) in zip(samples, drawn, strict=True)
        ]


def lengths_of(examples: Sequence[Example], engine: Tokenizer | None) -> np.ndarray:
    """Tokens (N,) that `engine` makes of each example's texts, or characters without one; the longest choice counts.

    Characters predict padding badly: in batches of 32 sorted by tokens, padding is .02 of RTE's and .01 of MRPC's
    tokens; sorted by characters, .17 and .33.
    """
    counts: list[int] = []
    for start in range(0, len(examples), TEXTS_PER_BATCH):
        batch = examples[start : start + TEXTS_PER_BATCH]
        seconds = [one.choices or texts_of(one)[1:] for one in batch]
        every = [
            text for one, more in zip(batch, seconds, strict=True) for text in (one.text, *more)
        ]
        # Without offsets, which are slow to compute.
        units = (
            every if engine is None else engine.encode_batch_fast(every, add_special_tokens=False)
        )
        sizes = map(len, units)
        counts += [next(sizes) + max((next(sizes) for _ in more), default=0) for more in seconds]
    return np.array(counts, np.int64)


def _key(example: Example) -> object:
    texts = (example.text, example.text_pair, example.choices)
    tags = (example.region_tags, example.choice_region_tags, example.object_names)
    return texts, tags, example.part_starts


def _labelled(sample: Sample, example: Example) -> Sample:
    if sample.choices and sample.example is not example:
        rows = zip(sample.choices, rows_of(example), strict=True)
        sample = replace(sample, choices=tuple(replace(row, example=own) for row, own in rows))
    labels = {} if example.label is None else {"label": np.array(example.label)}
    return replace(sample, id=example.id, labels=labels, example=example)


def rows_of(example: Example) -> Iterator[Example]:
    """One example per row that a model reads: the example itself, or one for each of its choices."""
    if not example.choices:
        yield example
        return
    for number in range(len(example.choices)):
        yield with_choice(example, number)


def with_choice(example: Example, number: int) -> Example:
    """A multiple-choice example with one of its choices as second text, and without a label."""
    return replace(
        example,
        text_pair=example.choices[number],
        label=None,
        choices=(),
        choice_region_tags=example.choice_region_tags[number : number + 1],
        tag_lists=(),
    )


def _tagged(row: TextRow, example: Example, words: Sequence[np.ndarray]) -> TextRow:
    # The extra last entry is for tokens outside all words.
    named = np.full(sum(len(part) for part in words) + 1, -1, np.int64)
    before = 0
    for part, tags in zip(words, (example.region_tags, *example.choice_region_tags), strict=False):
        for start, stop, number in tags:
            inside = (part[:, 0] < stop) & (part[:, 1] > start)
            named[before + np.flatnonzero(inside)] = number
        before += len(part)
    return replace(row, region_index=named[row.word_ids])

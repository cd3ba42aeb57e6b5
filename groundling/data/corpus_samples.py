"""Samples of tokenised corpora, made from mapped files as they are read: memory holds the length of each alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from groundling.batch import Example, Sample
from groundling.data.captions import Wanted
from groundling.data.corpora import EVERYTHING, names_of, room_of, wanted_of
from groundling.data.prepared import Making, prepared
from groundling.data.samples import AT_ONCE, Each, TextInput, WindowInput, size_of, thinned
from groundling.data.shards import ShardStore


class CorpusSamples:
    """Samples of the texts of several files, in order, with the ids `file:number`."""

    def __init__(
        self,
        files: Sequence[tuple[str, ShardStore]],
        text: TextInput,
        clip: WindowInput | None = None,
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
        self._places = np.array(thinned(range(total), limit)) if 0 < limit < total else None
        count = total if self._places is None else len(self._places)
        self.ids = Each(count, self._id)
        self.images: Sequence[Sequence[str]] = Each(count, _none)

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
        """(len(self),) characters of every text."""
        every = [store.views(number)["characters"] for store, number in self._shards]
        lengths = np.concatenate(every)
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
        return [self._made(int(index)) for index in indices]

    def _place(self, index: int) -> int:
        """Which of all files' texts it is."""
        return index if self._places is None else int(self._places[index])

    def _id(self, index: int) -> str:
        place = self._place(index)
        file = int(self._file_starts.searchsorted(place, side="right")) - 1
        return f"{self.files[file][0]}:{place - int(self._file_starts[file])}"

    def _made(self, index: int) -> Sample:
        place = self._place(index)
        shard = int(self._starts.searchsorted(place, side="right")) - 1
        store, number = self._shards[shard]
        arrays = store.views(number)
        here = place - int(self._starts[shard])
        stops = arrays["ends"][here]
        starts = arrays["ends"][here - 1] if here else np.zeros_like(stops)
        name = self._id(index)
        text = arrays["text"][starts[0] : stops[0]].tobytes().decode()
        row, dropped = self.text.row_of(_part(arrays, "pieces", starts[2], stops[2]))
        clip = None
        if self.clip is not None:
            clip, left_out = self.clip.row_of(_part(arrays, "clip", starts[3], stops[3]))
            dropped += left_out
        words = arrays["words"][starts[1] : stops[1]].astype(np.int64)
        example = Example(name, text)
        return Sample(name, row, clip, words, dropped=dropped, example=example)


def _none(index: int) -> tuple[str, ...]:
    return ()


def _part(
    arrays: dict[str, np.ndarray], name: str, start: int, stop: int
) -> tuple[np.ndarray, np.ndarray]:
    return arrays[name][start:stop], arrays[f"{name}_word"][start:stop]


def corpus_samples(
    paths: Sequence[str | Path],
    form: Literal["lines", "blocks"],
    text: TextInput,
    place: Path,
    clip: WindowInput | None = None,
    limit: int = 0,
    wanted: Wanted = EVERYTHING,
) -> CorpusSamples:
    """Samples of text files, which are tokenised first where no run has done so; see `corpora.corpus`.

    Stores are kept below the folder `place`.
    """
    making = Making(
        form,
        room_of(text.engine, text.max_length),
        text.engine.to_str(),
        "" if clip is None else clip.engine.to_str(),
    )
    own = wanted_of(paths, wanted)
    stores = [prepared(path, each, making, place) for path, each in zip(paths, own, strict=True)]
    return CorpusSamples(list(zip(names_of(paths), stores, strict=True)), text, clip, limit)

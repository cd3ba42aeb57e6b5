"""Samples of tokenised corpora, made from mapped files as they are read: memory holds the length of each alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from groundling.core.batch import Example, Sample
from groundling.data.captions.captions import Wanted
from groundling.data.corpora.corpora import EVERYTHING, line_id, names_of, room_of, wanted_of
from groundling.data.corpora.prepared import Making, prepared
from groundling.data.samples import AT_ONCE, Each, TextInput, WindowInput, size_of, thinned
from groundling.data.shards import ShardStore

CLOSED_AFTER = 1024
"""Samples read until files are unmapped, since each read maps some 64 KB of every array beside its own."""
PIECES = 2
"""The column of a store's `ends` where those of the text's pieces are; bytes, words and the CLIP side have others."""


class CorpusSamples:
    """Samples of the texts of several files, in order; ids and images as `corpora.corpus` has them."""

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
        self._read = 0
        self._places = np.array(thinned(range(total), limit)) if 0 < limit < total else None
        count = total if self._places is None else len(self._places)
        self.ids = Each(count, self._id)
        self.images: Sequence[Sequence[str]] = Each(count, self._images)

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
        ends = (store.views(number)["ends"][:, PIECES] for store, number in self._shards)
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
        return store.views(number), place - int(self._starts[shard])

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
        row, dropped = self.text.row_of(_part(arrays, "pieces", starts[PIECES], stops[PIECES]))
        clip = None
        if self.clip is not None:
            clip, left_out = self.clip.row_of(_part(arrays, "clip", starts[3], stops[3]))
            dropped += left_out
        words = arrays["words"][starts[1] : stops[1]].astype(np.int64)
        example = Example(name, text, images=_images_of(arrays, here))
        return Sample(name, row, clip, words, dropped=dropped, example=example)


def _images_of(arrays: dict[str, np.ndarray], here: int) -> tuple[str, ...]:
    """The images of the text at a place of a shard, which has at most one."""
    if "line" not in arrays:
        return ()
    ends = arrays["image_ends"]
    start = ends[here - 1] if here else 0
    image = arrays["image"][start : ends[here]].tobytes().decode()
    return (image,) if image else ()


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

"""Inputs of objectives, processes that gather each other's rows, and runs of `adapt` on captions with photos."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from groundling.commands.adapt import AdaptConfig
from groundling.core.batch import Sample, Tokens
from groundling.core.rng import generator
from groundling.settings.fields import make_settings
from tiny import homes, toys

T = TypeVar("T")


def tokens_of(kinds: Tensor) -> Tokens:
    """Tokens of texts without words: `kinds` (N, T) are 0 padding, 1 the text's own tokens, 2 special ones."""
    zeros = torch.zeros(kinds.shape, dtype=torch.long)
    return Tokens(zeros, kinds > 0, kinds != 1, zeros, zeros)


def in_processes(module: ModuleType, *calls: Callable[[], T]) -> list[T]:
    """What calls return, each in a process of its own (here a thread), whose `gather_across_processes` joins rows."""
    barrier = threading.Barrier(len(calls), timeout=60)
    given: list[Tensor] = [torch.zeros(0)] * len(calls)
    own = threading.local()

    def gather(rows: Tensor) -> tuple[Tensor, int]:
        given[own.rank] = rows
        barrier.wait()
        every = list(given)
        barrier.wait()
        return torch.cat(every), sum(map(len, every[: own.rank]))

    def call(rank: int) -> T:
        own.rank = rank
        try:
            return calls[rank]()
        except BaseException:
            barrier.abort()
            raise

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(calls)) as pool:
        patch.setattr(module, "gather_across_processes", gather)
        return list(pool.map(call, range(len(calls))))


class TokenStates:
    """Samples with the feature `teacher_states` (T, 24) in each row."""

    def __init__(self, samples: Any, width: int = 24) -> None:
        self.samples, self.width = samples, width
        self.ids, self.lengths, self.images = samples.ids, samples.lengths, samples.images

    def __len__(self) -> int:
        return len(self.samples)

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
        return [sample.each_row(self._with_states) for sample in self.samples.get(indices, rngs)]

    def _with_states(self, row: Sample) -> Sample:
        assert row.text is not None
        shape = (len(row.text.input_ids), self.width)
        drawn = generator("states", row.text.input_ids.tobytes().hex()).normal(size=shape)
        return replace(row, features={**row.features, "teacher_states": drawn.astype(np.float32)})


def captioned_run(folder: Path, arm: str, *, texts: int = 0, **settings: Any) -> AdaptConfig:
    """An `adapt` run on 16 captions of 8 photos, and beside them, drawn as often, on so many texts without photos."""
    sentences = toys.sentences()
    for number in range(8):
        homes.noise(folder / "photos" / f"{number}.png", (16, 16), seed=number)
    images = [(number, f"{number}.png") for number in range(8)]
    captions = [(number % 8, sentences[number]) for number in range(16)]
    files = [str(homes.coco(folder / "captions.json", images, captions))]
    if texts:
        files = [f"{files[0]}=1", f"{homes.text(folder / 'text.txt', texts)}=1"]
    settings.setdefault("student", str(homes.student(folder / "student")))
    return make_settings(
        AdaptConfig,
        teacher=str(homes.seeing_clip(folder / "clip")),
        teacher_images=str(folder / "photos"),
        arm=arm,
        text=tuple(files),
        **settings,
    )


def pictured_captions(folder: Path, each: int = 3) -> AdaptConfig:
    """The settings of a run on 12 images with `each` captions, and one image with a single caption."""
    texts = toys.sentences()
    images = [(number, f"{number}.png") for number in range(13)]
    for number, name in images:
        homes.noise(folder / "images" / name, (16, 16), number)
    captions = [(number // each, texts[number]) for number in range(12 * each + 1)]
    return make_settings(
        AdaptConfig,
        student=str(homes.student(folder / "student")),
        teacher=str(homes.seeing_clip(folder / "clip")),
        text=(str(homes.coco(folder / "captions.json", images, captions)),),
        teacher_images=str(folder / "images"),
        max_length=48,
    )

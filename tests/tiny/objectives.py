"""Inputs of objectives, processes that gather each other's rows, and runs of `adapt` on captions with photos."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from groundling.commands.adapt import AdaptConfig
from groundling.core.batch import Example, Sample, Tokens
from groundling.core.output_types import Classification
from groundling.core.rng import generator
from groundling.data.regions.samples import RegionDataset
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.text_encoder import TextEncoder
from groundling.objectives import Objective
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.fields import make_settings
from groundling.training.loop import ModelWithObjectives
from groundling.vision_language.uniter import uniter
from groundling.vision_language.visualbert import visualbert
from groundling.vision_language.vlbert import vlbert
from tiny import homes, toys

T = TypeVar("T")


def tokens_of(kinds: Tensor) -> Tokens:
    """Tokens of texts without words: `kinds` (N, T) are 0 padding, 1 the text's own tokens, 2 special ones."""
    zeros = torch.zeros(kinds.shape, dtype=torch.long)
    return Tokens(zeros, kinds > 0, kinds != 1, zeros, zeros)


def still(module: Any) -> Any:
    """The module itself, without dropout."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        for name in ("dropout", "attention_dropout"):
            if isinstance(vars(part).get(name), float):
                setattr(part, name, 0.0)
    return module


def weights(model: nn.Module, objectives: Sequence[Objective]) -> dict[str, Tensor]:
    """Copies of all parameters."""
    named = ModelWithObjectives(model, objectives).named_parameters()
    return {name: value.detach().clone() for name, value in named}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Equal weights, but for rounding."""
    for name, value in found.items():
        # A key's bias cannot change attention: its gradient is rounding noise, which Adam's division blows up.
        if not name.endswith(("key.bias", "k_proj.bias")):
            torch.testing.assert_close(value, expected[name], rtol=0, atol=tolerance, msg=name)


def three_choices(count: int = 24) -> RegionDataset:
    """Questions of three choices of different lengths, with 2 to 7 regions."""
    made = toys.sentences()
    store = toys.RegionDict({f"image{n}": toys.regions(n, 2 + n % 6) for n in range(count)})
    examples = [
        Example(
            f"s{n}", made[n], label=n % 3, choices=tuple(made[n : n + 3]), images=(f"image{n}",)
        )
        for n in range(count)
    ]
    return RegionDataset(TextDataset(examples, TextRowEncoder(toys.bert_words(), 60)), store)


JOINS = {"visualbert": visualbert, "vlbert": vlbert, "uniter": uniter}


def two_classes(name: str) -> tuple[nn.Module, SupervisedObjective, Any]:
    """A model with a plain head of two classes: one of the joins, or a BERT of text alone."""
    words = toys.bert_words()
    torch.manual_seed(9)
    bert = toys.bert(len(words))
    if name == "bert":
        model: Any = TextEncoder(bert, words)
        data: Any = TextDataset(toys.examples(24), TextRowEncoder(words, 40))
    else:
        model = JOINS[name](bert, words, width=12)
        data = toys.seen(24)
    if name == "vlbert":  # its gains start at 0: nothing seen would come through
        nn.init.normal_(model.join.norm_text.weight)
        nn.init.normal_(model.join.norm_region.weight)
        data.options = replace(data.options, whole_image=True)
    return model, SupervisedObjective(model.sizes, output_type=Classification(("no", "yes"))), data


def in_processes(modules: Iterable[str], *calls: Callable[[], T]) -> list[T]:
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
        for module in map(sys.modules.get, modules):
            if hasattr(module, "gather_across_processes"):
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
    given: dict[str, Any] = {
        "student": str(homes.student(folder / "student")),
        "teacher": str(homes.seeing_clip(folder / "clip")),
        "teacher_images": str(folder / "photos"),
    }
    return make_settings(AdaptConfig, arm=arm, text=tuple(files), **{**given, **settings})


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

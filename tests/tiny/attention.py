"""A model that gives maps of its own making, and what it is shown; what a page holds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from groundling.core.batch import Batch, EncoderOutput, Example, RegionRow
from groundling.data.regions import ImageRegions, RegionWriter
from groundling.data.regions.samples import RegionDataset, RegionOptions
from groundling.data.samples import SampleDataset, TextDataset, TextRowEncoder
from groundling.models.attention import (
    AttentionMap,
    PositionKind,
    SequencePositions,
    region_positions,
    text_positions,
)
from tiny import toys
from tiny.homes import put

LAYERS, HEADS = 3, 5


class StubAttention(nn.Module):
    """Gives maps of its own making, in place of a model's; counts how often it is run."""

    def __init__(self, layers: int = LAYERS, heads: int = HEADS) -> None:
        super().__init__()
        self.layers, self.heads = layers, heads
        self.anything = nn.Parameter(torch.zeros(1))
        self.runs = 0

    def weights(self, name: str, layer: int, size: int) -> np.ndarray:
        """(heads, size, size), the same for a sample whatever its batch."""
        rng = np.random.default_rng([layer, *name.encode()])
        return rng.random((self.heads, size, size), dtype=np.float32) ** 8

    def forward(self, batch: Batch, attention: Any) -> EncoderOutput:
        self.runs += 1
        places = SequencePositions.concatenate(
            text_positions(batch.text), region_positions(batch.regions)
        )
        inside = (places.kinds != PositionKind.PADDING).numpy()
        for layer in range(self.layers):
            every = np.zeros((len(batch), self.heads, *inside.shape[1:] * 2), np.float32)
            for row, name in enumerate(batch.ids):
                own = np.flatnonzero(inside[row])
                made = self.weights(name, layer, len(own))
                every[np.ix_([row], range(self.heads), own, own)] = made / made.sum(
                    -1, keepdims=True
                )
            attention(AttentionMap("self", layer, torch.from_numpy(every), places, places))
            del every
        return EncoderOutput()


def samples_of(
    examples: list[Example], store: dict[str, RegionRow], text: TextRowEncoder, **seeing: Any
) -> SampleDataset:
    return RegionDataset(
        TextDataset(examples, text), toys.RegionDict(store), RegionOptions(**seeing)
    )


TEXT = "a red doghouse runs"
"""Of which the third word is of several tokens."""


def content_of(html: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    content: dict[str, Any] = json.loads(text)
    return content


def entities(folder: Path, captions: Sequence[str]) -> Path:
    """Flickr30k Entities' files of three images with these captions, a store of their regions, a model.

    Chain 1 has the box of the first region, which is the most confident, chain 2 that of the second;
    chain 3 is a scene.
    """
    box = "<bndbox><xmin>{}</xmin><ymin>1</ymin><xmax>{}</xmax><ymax>50</ymax></bndbox>"
    objects = [(1, box.format(1, 50)), (2, box.format(51, 100)), (3, "<scene>1</scene>")]
    inner = "".join(f"<object><name>{name}</name>{how}</object>" for name, how in objects)
    size = "<size><width>100</width><height>100</height></size>"
    for n in range(3):
        put(folder / f"data/Sentences/{n}.txt", "".join(f"{text}\n" for text in captions))
        put(folder / f"data/Annotations/{n}.xml", f"<annotation>{size}{inner}</annotation>")
    put(folder / "data/val.txt", "0\n1\n2\n")
    three_regions(folder / "store", [str(n) for n in range(3)])
    toys.seer().export(folder / "model")
    return folder


def three_regions(
    folder: Path, images: Sequence[str], features: Mapping[str, np.ndarray] | None = None
) -> None:
    """A store of three regions of each image, with features of their own or those given."""
    boxes = np.array([[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 1, 1]], np.float32)
    writer = RegionWriter(folder)
    confidence = np.float32([0.9, 0.8, 0.7])
    for n, image in enumerate(images):
        looks = np.random.default_rng(n).normal(size=(3, 12)).astype(np.float32)
        if features is not None:
            looks = features[image]
        writer.write(n, [ImageRegions(image, (100, 100), boxes, confidence, looks)])
    writer.close({"source": "test"})

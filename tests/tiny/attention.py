"""A model that gives maps of its own making, and what it is shown; what a page holds."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import torch
from torch import nn

from groundling.core.batch import Batch, EncoderOutput, Example, RegionRow
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

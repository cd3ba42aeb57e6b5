"""What an encoder makes of a noun: its state in neutral sentences, and its word embedding alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Row, Sample, collate, needed
from groundling.core.errors import InputError
from groundling.data.samples import WindowInput
from groundling.models.clip import CLIP_LIKE, load_clip_text
from groundling.models.loading import load_config
from groundling.models.text import load_text_encoder
from groundling.studies.knowledge.parts import Part, batches, filled, pieces_of, samples_of

SLOT = "{}"
"""The place of the noun in a frame."""

LAST = -1
"""The layer whose output the encoder gives."""


class States(NamedTuple):
    """Vectors of nouns, by noun."""

    state: dict[str, np.ndarray]
    """(D,): the mean over frames of the noun's state in each."""
    words: dict[str, np.ndarray]
    """(E,): the mean of its pieces' word embeddings, before any layer and without a sentence."""
    unknown: list[str]
    """Nouns with pieces that the tokenizer does not know."""


class _Reader(NamedTuple):
    """How a model's nouns are read."""

    samples: Callable[[Sequence[Part]], list[Sample]]
    row: Callable[[Sample], Row]
    """The pieces that the model itself reads."""
    states: Callable[[Sequence[Part], Sequence[Sample]], list[Tensor]]
    """A state (D,) on the CPU of each part."""
    table: Tensor
    """Word embeddings (vocabulary, E)."""
    unknown: int | None
    """The piece that stands for what the tokenizer does not know."""


@torch.no_grad()
def noun_states(
    source: str | Path,
    nouns: Sequence[str],
    frames: Sequence[str],
    layer: int = LAST,
    max_length: int = 64,
) -> States:
    """States of nouns, each in every frame (a sentence with one `{}`).

    Of a text encoder, the mean over the noun's own pieces of what `layer` puts out: 0 the embeddings before the first
    layer, k the k-th layer, -1 the last. Of a CLIP-like tower always the text feature of the whole frame.

    Raises InputError for a frame without a place for the noun, a layer that does not exist, a noun of which the
    tokenizer makes no pieces, and a text of more than `max_length` pieces.
    """
    for frame in frames:
        if frame.count(SLOT) != 1:
            raise InputError(
                f"--frames {frame!r}: expected a sentence with one {SLOT} for the noun"
            )
    if not frames:
        raise InputError("--frames: expected at least one sentence with {} for the noun")
    is_tower = load_config(source).model_type in CLIP_LIKE
    reader = _tower(source, layer) if is_tower else _encoder(source, layer, max_length)
    distinct = list(dict.fromkeys(nouns))
    found = States({}, {}, [])
    for some in batches(distinct):
        by_frame = [_read(reader, [filled(frame, SLOT, noun) for noun in some]) for frame in frames]
        _words(reader, some, frames[0], found)
        for noun, *vectors in zip(some, *by_frame, strict=True):
            found.state[noun] = torch.stack(vectors).mean(0).numpy()
    return found


def _read(reader: _Reader, parts: Sequence[Part]) -> list[Tensor]:
    return reader.states(parts, reader.samples(parts))


def _words(reader: _Reader, nouns: Sequence[str], frame: str, found: States) -> None:
    """Add the nouns' word embeddings; of pieces as they are inside a sentence, where a space may be part of them."""
    parts = [filled(frame, SLOT, noun) for noun in nouns]
    for noun, part, sample in zip(nouns, parts, reader.samples(parts), strict=True):
        row = reader.row(sample)
        pieces = row.ids[pieces_of(part, row)]
        found.words[noun] = reader.table[torch.from_numpy(pieces)].mean(0).numpy()
        if reader.unknown in pieces:
            found.unknown.append(noun)


def _encoder(source: str | Path, layer: int, max_length: int) -> _Reader:
    device = PartialState().device
    model = load_text_encoder(source).to(device).eval()
    text_input, _ = model.inputs(max_length)
    count = model.encoder.config.num_hidden_layers
    if not LAST <= layer <= count:
        raise InputError(
            f"--layer {layer}: {source} has layers 0 to {count}, or {LAST} for the last"
        )

    def row(sample: Sample) -> Row:
        return needed(sample.text, "text", "a noun's state")

    def states(parts: Sequence[Part], samples: Sequence[Sample]) -> list[Tensor]:
        batch = collate(samples).to(device)
        if layer == LAST:
            out = needed(model(batch).text, "text", "a noun's state")
        else:
            out = model.layers(batch)[layer]
        means = []
        for part, sample, padded in zip(parts, samples, out.float().cpu(), strict=True):
            own = row(sample)
            inside = torch.from_numpy(pieces_of(part, own))
            means.append(padded[: len(own.ids)][inside].mean(0))
        return means

    return _Reader(
        samples=lambda parts: samples_of(parts, text_input),
        row=row,
        states=states,
        table=model.word_embeddings().weight.float().cpu(),
        unknown=model.tokenizer.unk_token_id,
    )


def _tower(source: str | Path, layer: int) -> _Reader:
    if layer != LAST:
        raise InputError(
            f"--layer {layer}: {source} is a CLIP-like tower, read at its end; leave --layer out"
        )
    device = PartialState().device
    tower, tokenizer = load_clip_text(source)
    tower.to(device).eval()
    windows = WindowInput(tokenizer, tower.window, max_windows=1)

    def states(_: Sequence[Part], samples: Sequence[Sample]) -> list[Tensor]:
        batch = collate(samples).to(device)
        _, features = tower(needed(batch.clip, "clip", "a noun's state"))
        return list(features.float().cpu())

    return _Reader(
        samples=lambda parts: samples_of(parts, None, windows),
        row=lambda sample: needed(sample.clip, "clip", "a noun's state"),
        states=states,
        table=tower.table.float().cpu(),
        unknown=_unknown(tokenizer),
    )


def _unknown(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The piece for what a tower's tokenizer does not know; None if that is its end token, as OpenAI's CLIP has it."""
    unknown: int | None = tokenizer.unk_token_id
    return None if unknown == tokenizer.eos_token_id else unknown

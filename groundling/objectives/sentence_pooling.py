"""The student's vector of each text, which objectives on whole sentences read."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, require

PoolingMode = Literal["own", "cls", "mean"]
"""own: as the student's sentence-transformers folder defines, else the first position; cls: the
first position; mean: the mean over tokens without special tokens.
"""


def sentence_width(sizes: OutputSizes, pool: PoolingMode) -> int:
    """Width S of the vectors of `pool_sentences`."""
    if pool == "own" and sizes.sentence_embedding:
        return sizes.sentence_embedding
    return sizes.text


def pool_sentences(
    encoded: EncoderOutput, batch: Batch, sizes: OutputSizes, pool: PoolingMode, who: str
) -> Tensor:
    """The student's vector (N, S) of each text as the model read it, masked tokens included.

    Raises InputError, in the name of `who`, for an output that the model lacks.
    """
    if pool == "own" and sizes.sentence_embedding:
        return require(encoded.sentence_embedding, "sentence_embedding", who)
    return pool_states(require(encoded.text, "text", who), batch, pool, who)


def pool_states(states: Tensor, batch: Batch, pool: PoolingMode, who: str) -> Tensor:
    """The first state, or the mean state without special tokens and padding: (N, D) of (N, T, D)."""
    if pool != "mean":
        return states[:, 0]
    tokens = require(batch.text, "text", who)
    inside = (tokens.attention_mask & ~tokens.special_tokens_mask).unsqueeze(-1)
    return (states * inside).sum(1) / inside.sum(1).clamp(min=1)

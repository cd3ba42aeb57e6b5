"""Sentence vectors of texts, as sentence-transformers would make them of the same folder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from groundling.core.batch import Example, collate, needed
from groundling.data.samples import TextInput, TextSamples
from groundling.models.sentence import Sentence
from groundling.models.text import TextEncoder
from groundling.runs.progress import followed

BATCH = 64
"""Texts in one forward pass."""


def reads(text: TextEncoder, sentence: Sentence) -> int:
    """Most pieces of a text that are read: the folder's own length, as far as the encoder goes."""
    return min(text.max_length, sentence.max_length or text.max_length)


@torch.no_grad()
def sentence_vectors(
    text: TextEncoder, sentence: Sentence, texts: Sequence[str], max_length: int = 0
) -> tuple[Tensor, np.ndarray]:
    """Vectors (N, E) of texts on the CPU, and how many pieces were cut off the end of each, (N,).

    Args:
        text: Put into evaluation mode; its device is used.
        sentence: How vectors are made of its states; its default prompt stands before every text.
        texts: N texts.
        max_length: Pieces of a text that are read, in place of `reads(text, sentence)`.
    """
    text.eval()
    length = min(max_length, text.max_length) if max_length else reads(text, sentence)
    examples = [Example(str(number), sentence.prompt + one) for number, one in enumerate(texts)]
    samples = TextSamples(examples, TextInput(text.tokenizer, length))
    device = next(text.parameters()).device
    order = np.argsort(samples.lengths, kind="stable")  # equal lengths need little padding
    dropped = np.zeros(len(order), np.int64)
    found = []
    for start in followed(range(0, len(order), BATCH), "sentences", "batch"):
        places = order[start : start + BATCH]
        some = samples.get([int(place) for place in places])
        dropped[places] = [sample.dropped for sample in some]
        batch = collate(some).to(device)
        tokens = needed(batch.text, "text", "a sentence encoder")
        states = needed(text(batch).text, "text", "a sentence encoder")
        found.append(sentence.vectors(states, tokens.mask).cpu())
    return torch.cat(found)[np.argsort(order, kind="stable")], dropped

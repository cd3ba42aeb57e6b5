"""Likelihoods of texts under a masked or causal language model, given the context before the scored words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from groundling.core.batch import Example, Sample, TextRow, collate, require
from groundling.core.errors import InputError, prefix_errors
from groundling.data.samples import TextDataset, mask_id_of
from groundling.data.text import word_spans
from groundling.models.heads import LMHead, init_lm_head
from groundling.models.loading import check_finite
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.runs.progress import track

Masking = Literal["within-word", "original"]
"""What is masked to score a token: it and the later tokens of its word, or it alone."""

MAX_BATCH_TOKENS = 8192
"""Tokens per batch, padding included, of a masked model on a GPU."""
SMALL_BATCH_TOKENS = 1024
"""The same for a causal model, whose head gives a vocabulary of logits at every token, and on a processor, which is
faster while the states of a batch fit its caches."""

NO_LANGUAGE_MODEL = (
    "expected a masked language model, such as `groundling adapt --arm mlm` writes, or a causal one"
)


class TextWithContext(NamedTuple):
    """A text, and the character where scoring begins."""

    text: str
    """The text that the model reads."""
    scored_from: int = 0
    """Words from this character on are scored; the text before it is context."""


class ScoringInput(NamedTuple):
    """A text as the model reads it to score some of its tokens."""

    text: int
    """Index of the text."""
    row: TextRow
    """T tokens, some replaced by masks."""
    places: np.ndarray
    """(K,) int64: the positions whose states predict the targets."""
    targets: np.ndarray
    """(K,) int64: the ids of the tokens to predict."""


class LanguageModel:
    """A masked or causal language model; its head is called only where a token is scored."""

    def __init__(self, source: str | Path, device: torch.device, max_length: int = 0) -> None:
        """`max_length`: most tokens of a text, special ones included; 0: the model's limit.

        Raises InputError for a model without a language-model head or, if it is masked, without a
        mask token.
        """
        with prefix_errors(NO_LANGUAGE_MODEL):
            self.text = load_text_encoder(source).to(device).eval()
            self.head, _ = load_lm_head(self.text, source)
        self.causal = self.text.sizes.causal
        tokenizer = self.text.tokenizer
        self.mask = -1 if self.causal else mask_id_of(tokenizer)
        self.start = _start(tokenizer) if self.causal else []
        self.device = device
        limit = self.text.max_length - len(self.start)
        self.window = min(max_length, limit) if max_length else limit

    @torch.no_grad()
    def score(
        self, texts: Sequence[TextWithContext], masking: Masking = "within-word"
    ) -> tuple[np.ndarray, np.ndarray]:
        """The (pseudo-)log-likelihood of every text's scored words, given the context before them.

        Returns (N,) float64, natural logarithm, summed over scored tokens, NaN without any; and (N,) int64, the number
        of scored tokens, 0 for a text that is too long or has none.

        For a masked model, the sum over tokens of the log-probability of the masked token (Salazar
        et al. 2020, Eq. 1). Unless `masking` is `original`, the later tokens of its word are masked
        too (Kauf and Ivanova 2023, PLL-word-l2r), because they reveal the word's beginning. For a
        causal model, the log-likelihood; the first token is scored if the tokenizer has a start or
        end token to put before it.
        """
        rows = self._rows(texts)
        # Texts with equal tokens are scored once, so that their scores are equal.
        first: dict[tuple[bytes, ...], int] = {}
        same = np.arange(len(texts))
        for number, (row, scored) in enumerate(rows):
            parts = (row.input_ids, row.word_ids, scored)
            tokens_read = tuple(part.tobytes() for part in parts)
            same[number] = first.setdefault(tokens_read, number)
        sums = np.zeros(len(texts))
        tokens = np.zeros(len(texts), np.int64)
        lengths = [len(row.input_ids) for row, _ in rows]
        order = sorted(first.values(), key=lengths.__getitem__)
        copies = (
            copy
            for number in track(order, "texts", "text")
            for copy in self._copies(number, *rows[number], masking)
        )
        is_small = self.causal or self.device.type == "cpu"
        room = SMALL_BATCH_TOKENS if is_small else MAX_BATCH_TOKENS
        for batch in _fill_batches(copies, room):
            for copy, log_probabilities in zip(batch, self._log_probabilities(batch), strict=True):
                sums[copy.text] += log_probabilities.sum()
                tokens[copy.text] += len(log_probabilities)
        sums[tokens == 0] = np.nan
        return sums[same], tokens[same]

    def _rows(self, texts: Sequence[TextWithContext]) -> list[tuple[TextRow, np.ndarray]]:
        """Each text's tokens, and which are scored (T,) bool; none of a text that is too long."""
        text_input, _ = self.text.inputs(self.window)
        examples = [Example(str(number), text.text) for number, text in enumerate(texts)]
        samples = TextDataset(examples, text_input).get(range(len(texts)))
        rows = []
        for text, sample in zip(texts, samples, strict=True):
            row = _with_words(require(sample.text, "text", "a language model"))
            is_scored = ~row.special_tokens_mask & (sample.truncated_tokens == 0)
            if text.scored_from:
                starts = word_spans(text.text)[:, 0]
                context = int((starts < text.scored_from).sum())
                is_scored &= row.word_ids >= context
            rows.append((row, is_scored))
        return rows

    def _copies(
        self, number: int, row: TextRow, is_scored: np.ndarray, masking: Masking
    ) -> Iterator[ScoringInput]:
        """The inputs that score tokens (T,) of a text: one, or one for each masked token."""
        places = np.flatnonzero(is_scored)
        if not len(places):
            return
        every = np.arange(len(row.input_ids))
        if self.causal:
            # Each token is predicted from the one before it; without one, it is not scored.
            before = len(self.start)
            start = np.array(self.start, np.int64)
            ids = np.concatenate([start, row.input_ids])
            longer = row.take(np.concatenate([np.zeros_like(start), every]))
            places = places[places + before > 0] + before
            if len(places):
                longer = replace(longer, input_ids=ids)
                yield ScoringInput(number, longer, places - 1, ids[places])
            return
        for place in places:
            is_masked = every == place
            if masking == "within-word":
                is_masked |= is_scored & (row.word_ids == row.word_ids[place]) & (every > place)
            masked = replace(row, input_ids=np.where(is_masked, self.mask, row.input_ids))
            places_of_copy = np.array([place])
            yield ScoringInput(number, masked, places_of_copy, row.input_ids[places_of_copy])

    def _log_probabilities(self, copies: Sequence[ScoringInput]) -> list[np.ndarray]:
        """The log-probabilities (K,) float64 of each copy's targets."""
        samples = [Sample(str(copy.text), copy.row) for copy in copies]
        batch = collate(samples).to(self.device)
        sizes = [len(copy.places) for copy in copies]
        numbers = (
            np.repeat(np.arange(len(copies)), sizes),
            np.concatenate([copy.places for copy in copies]),
            np.concatenate([copy.targets for copy in copies]),
        )
        rows, places, targets = (torch.from_numpy(one).to(self.device) for one in numbers)
        encoded = self.text(batch)
        states = require(encoded.text, "text", "a language model")[rows, places]
        logits = self.head(states, encoded.input_embeddings).float()
        every = logits.log_softmax(-1)
        logs = every.gather(1, targets[:, None])[:, 0].double()
        ends = np.cumsum(sizes)[:-1]
        return np.split(logs.cpu().numpy(), ends)


def _with_words(row: TextRow) -> TextRow:
    """A row in which a token without a raw word (a space) belongs to the next word."""
    none = row.word_ids < 0
    following = np.where(none, row.word_ids.max(initial=-1) + 1, row.word_ids)
    next_word = np.minimum.accumulate(following[::-1])[::-1]
    return replace(row, word_ids=np.where(none, next_word, row.word_ids))


def _fill_batches(copies: Iterator[ScoringInput], room: int) -> Iterator[list[ScoringInput]]:
    """Copies, sorted by length, in batches of at most `room` tokens, or of one copy."""
    batch: list[ScoringInput] = []
    for copy in copies:
        if batch and (len(batch) + 1) * len(copy.row.input_ids) > room:
            yield batch
            batch = []
        batch.append(copy)
    if batch:
        yield batch


def _start(tokenizer: Any) -> list[int]:
    """The start token for a tokenizer that adds none itself; empty if it has none."""
    ids = tokenizer("a")["input_ids"]
    if ids and ids[0] in tokenizer.all_special_ids:
        return []
    tokens = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    return [int(token) for token in tokens if token is not None][:1]


def load_lm_head(text: TextEncoder, source: str | Path) -> tuple[LMHead, str]:
    """The language-model head that is saved with a text encoder, on its device, and its origin (see `init_lm_head`).

    Raises InputError without such a head, or for a masked one without a mask token.
    """
    if not text.sizes.causal:
        mask_id_of(text.tokenizer)
    head = LMHead(text.sizes.text, text.sizes.input_embeddings, text.sizes.config)
    origin = init_lm_head(head, source)
    if origin == "new":
        # A head trained on states after cross-modal layers does not fit these states.
        kind = "causal-LM" if text.sizes.causal else "masked-LM"
        raise InputError(f"{source}: no {kind} head of this encoder is saved there")
    check_finite(head, source)
    return head.to(text.word_embeddings().weight.device).eval(), origin

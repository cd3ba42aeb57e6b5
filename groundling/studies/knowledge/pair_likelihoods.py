"""Likelihoods of texts under a masked or causal language model, given the context before the scored words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from groundling.core.batch import Batch, Example, Sample, TextRow, collate, require
from groundling.core.errors import InputError
from groundling.data.samples import TextDataset, mask_id_of
from groundling.data.text import word_spans
from groundling.models.heads import HEADS, LM_HEAD, LMHead, load_head
from groundling.models.loading import load_config, load_tokenizer, load_weights
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.runs.progress import track

Masking = Literal["within-word", "original"]
"""What is masked to score a token: it and the later tokens of its word, or it alone."""

MAX_BATCH_TOKENS = 8192
"""Tokens per batch, padding included."""
MAX_CAUSAL_BATCH_TOKENS = 1024
"""The same for a causal model, whose head gives a vocabulary of logits at every token."""

NO_LANGUAGE_MODEL = (
    "expected a masked language model, such as `groundling adapt --arm mlm` writes, or a causal one"
)


class TextWithContext(NamedTuple):
    """A text, and the character where scoring begins."""

    text: str
    """The text that the model reads."""
    scored_from: int = 0
    """Words from this character on are scored; the text before it is context."""


class Likelihoods(NamedTuple):
    """Likelihoods of N texts."""

    sums: np.ndarray
    """(N,) float64, natural logarithm, summed over scored tokens; NaN without any."""
    tokens: np.ndarray
    """(N,) int64: number of scored tokens; 0 for a text that is too long or has none."""


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


Logits = Callable[[Batch, Tensor, Tensor], Tensor]
"""Logits (K, vocabulary) at rows (K,) and positions (K,) of a batch (N, T)."""


class LanguageModel:
    """A masked or causal language model; its head is called only where a token is scored."""

    def __init__(self, source: str | Path, device: torch.device, max_length: int = 0) -> None:
        """`max_length`: most tokens of a text, special ones included; 0: the model's limit.

        Raises InputError for a model without a language-model head or, if it is masked, without a
        mask token.
        """
        config = load_config(source)
        if config.is_encoder_decoder:
            raise InputError(f"{source}: an encoder-decoder model; {NO_LANGUAGE_MODEL}")
        self.causal = is_causal(config)
        self.text, self.logits = _load(source, self.causal, device)
        tokenizer = self.text.tokenizer
        self.mask = -1 if self.causal else mask_id_of(tokenizer, f"; {NO_LANGUAGE_MODEL}")
        self.start = [] if not self.causal else _start(tokenizer)
        self.device = device
        limit = self.text.max_length - len(self.start)
        self.window = min(max_length, limit) if max_length else limit

    @torch.no_grad()
    def score(
        self, texts: Sequence[TextWithContext], masking: Masking = "within-word"
    ) -> Likelihoods:
        """The (pseudo-)log-likelihood of every text's scored words, given the context before them.

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
            tokens_read = tuple(part.tobytes() for part in (row.input_ids, row.word_ids, scored))
            same[number] = first.setdefault(tokens_read, number)
        sums = np.zeros(len(texts))
        tokens = np.zeros(len(texts), np.int64)
        order = sorted(first.values(), key=lambda number: len(rows[number][0].input_ids))
        copies = (
            copy
            for number in track(order, "texts", "text")
            for copy in self._copies(number, *rows[number], masking)
        )
        for batch in _fill_batches(
            copies, MAX_CAUSAL_BATCH_TOKENS if self.causal else MAX_BATCH_TOKENS
        ):
            for copy, log_probabilities in zip(batch, self._log_probabilities(batch), strict=True):
                sums[copy.text] += log_probabilities.sum()
                tokens[copy.text] += len(log_probabilities)
        sums[tokens == 0] = np.nan
        return Likelihoods(sums[same], tokens[same])

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
                context = int((word_spans(text.text)[:, 0] < text.scored_from).sum())
                is_scored &= row.word_ids >= context
            rows.append((row, is_scored))
        return rows

    def _copies(
        self, number: int, row: TextRow, is_scored: np.ndarray, masking: Masking
    ) -> Iterator[ScoringInput]:
        """The inputs that score tokens (T,) of a text: one, or one for each masked token."""
        places = np.flatnonzero(is_scored)
        every = np.arange(len(row.input_ids))
        if (
            self.causal
        ):  # each token is predicted from the one before it; without one, it is not scored
            before = len(self.start)
            ids = np.concatenate([np.array(self.start, np.int64), row.input_ids])
            longer = row.take(np.r_[np.zeros(before, np.int64), every])
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
            yield ScoringInput(number, masked, np.array([place]), row.input_ids[[place]])

    def _log_probabilities(self, copies: Sequence[ScoringInput]) -> list[np.ndarray]:
        """The log-probabilities (K,) float64 of each copy's targets."""
        batch = collate([Sample(str(copy.text), copy.row) for copy in copies]).to(self.device)
        sizes = [len(copy.places) for copy in copies]
        rows = torch.from_numpy(np.repeat(np.arange(len(copies)), sizes)).to(self.device)
        places = torch.from_numpy(np.concatenate([copy.places for copy in copies])).to(self.device)
        targets = torch.from_numpy(np.concatenate([copy.targets for copy in copies]))
        logits = self.logits(batch, rows, places).float()
        logs = logits.log_softmax(-1).gather(1, targets.to(self.device)[:, None])[:, 0]
        values = logs.double().cpu().numpy()
        if not np.isfinite(values).all():
            raise InputError(
                "the model gives probabilities of NaN or infinity; its weights may be damaged"
            )
        return np.split(values, np.cumsum(sizes)[:-1])


def _with_words(row: TextRow) -> TextRow:
    """A row in which a token without a raw word (a space) belongs to the next word."""
    none = row.word_ids < 0
    following = np.where(none, row.word_ids.max() + 1, row.word_ids)
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


def is_causal(config: Any) -> bool:
    """Whether a configuration is of a causal model; model types of both kinds have `is_decoder`."""
    if config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return bool(config.to_dict().get("is_decoder"))
    return config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def _start(tokenizer: Any) -> list[int]:
    """The start token for a tokenizer that adds none itself; empty if it has none."""
    ids = tokenizer("a")["input_ids"]
    if ids and ids[0] in tokenizer.all_special_ids:
        return []
    tokens = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    return [int(token) for token in tokens if token is not None][:1]


def _load(source: str | Path, causal: bool, device: torch.device) -> tuple[TextEncoder, Logits]:
    """The encoder with its tokenizer, and the logits of an earlier run's or transformers' head."""
    if not causal:
        adapted = _load_adapted(source, device)
        if adapted is not None:
            return adapted
    try:
        model = load_weights(AutoModelForCausalLM if causal else AutoModelForMaskedLM, source)
    except InputError as error:
        raise InputError(f"{error}; {NO_LANGUAGE_MODEL}") from None
    model.to(device).eval()
    text = TextEncoder(model.base_model, load_tokenizer(source))

    def logits(batch: Batch, rows: Tensor, places: Tensor) -> Tensor:
        tokens = require(batch.text, "text", "a language model")

        def select_positions(module: Any, inputs: Any, out: Any) -> Any:
            out.last_hidden_state = out.last_hidden_state[rows, places].unsqueeze(1)
            return out

        # The hook passes only the states of these positions to the head, whatever its type.
        hook = model.base_model.register_forward_hook(select_positions)
        try:
            out = model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask.long())
        finally:
            hook.remove()
        selected: Tensor = out.logits[:, 0]
        return selected

    return text, logits


def _load_adapted(source: str | Path, device: torch.device) -> tuple[TextEncoder, Logits] | None:
    """A student with the masked-LM head that `adapt` saved with it; None if there is none."""
    if not (Path(source) / HEADS).exists():
        return None
    text = load_text_encoder(source)
    sizes = text.sizes
    head = LMHead(sizes.text, sizes.input_embeddings, sizes.config)
    if not load_head(Path(source), head, LM_HEAD):
        return None
    text.to(device).eval()
    head.to(device).eval()

    def logits(batch: Batch, rows: Tensor, places: Tensor) -> Tensor:
        encoded = text(batch)
        states = require(encoded.text, "text", "a language model")[rows, places]
        logits_of_tokens: Tensor = head(states, encoded.input_embeddings)
        return logits_of_tokens

    return text, logits

"""How likely a masked or a causal language model finds texts: pseudo-log-likelihood, or log-likelihood."""

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

from groundling.core.batch import Batch, Example, Row, Sample, collate, needed
from groundling.core.errors import InputError
from groundling.data.samples import TextSamples
from groundling.data.text.words import spans
from groundling.models.clip import CLIP_LIKE
from groundling.models.heads import LMHead
from groundling.models.loading import load_config, load_tokenizer, load_weights
from groundling.models.saved_heads import HEADS, LM_HEAD, load_head
from groundling.models.text import TextEncoder, load_text_encoder
from groundling.runs.progress import followed
from groundling.studies.knowledge.minimal_pairs import Text

Masking = Literal["within-word", "original"]
"""What is masked while a piece is scored: it and the later pieces of its word, or it alone."""

ROOM = 8192
"""Pieces read at a time, padding included."""
CAUSAL_ROOM = 1024
"""The same of a causal model, whose head is called at every piece: a vocabulary of numbers each."""

NO_HEAD = (
    "expected a masked language model, such as `groundling adapt --arm mlm` writes, or a causal one"
)


class Likelihoods(NamedTuple):
    """How likely N texts are."""

    sums: np.ndarray
    """(N,) float64, natural logarithm, summed over scored pieces; NaN where there are none."""
    pieces: np.ndarray
    """(N,) int64: how many pieces were scored; 0 of a text too long for the model, or without anything to score."""


class Copy(NamedTuple):
    """A text as it is read for the sake of some of its pieces."""

    text: int
    """Which text."""
    row: Row
    """T pieces, those that must not be seen replaced by masks."""
    places: np.ndarray
    """(K,) int64: the positions whose states predict."""
    targets: np.ndarray
    """(K,) int64: the pieces that they should predict."""


Logits = Callable[[Batch, Tensor, Tensor], Tensor]
"""Of a batch (N, T), rows (K,) and positions (K,), what stands at these positions: (K, vocabulary)."""


class LanguageModel:
    """A masked or causal language model from a folder or hub id, whose head is only called where a piece is scored."""

    def __init__(self, source: str | Path, device: torch.device, max_length: int = 0) -> None:
        """Texts may have `max_length` pieces with special ones, 0: what the model can take.

        Raises InputError for a model without such a head, or one without a mask token.
        """
        config = load_config(source)
        if config.model_type in CLIP_LIKE:
            raise InputError(f"{source}: a CLIP-like model is no language model; {NO_HEAD}")
        if config.is_encoder_decoder:
            raise InputError(f"{source}: an encoder with a decoder; {NO_HEAD}")
        self.causal = is_causal(config)
        self.text, self.logits = _loaded(source, self.causal, device)
        tokenizer = self.text.tokenizer
        if not self.causal and tokenizer.mask_token_id is None:
            raise InputError(f"{source}: the tokenizer has no mask token; {NO_HEAD}")
        self.mask = tokenizer.mask_token_id
        self.start = [] if not self.causal else _start(tokenizer)
        self.device = device
        most = self.text.max_length - len(self.start)
        self.window = min(max_length, most) if max_length else most

    @torch.no_grad()
    def score(self, texts: Sequence[Text], masking: Masking = "within-word") -> Likelihoods:
        """The (pseudo-)log-likelihood of every text's scored words; what stands before them is given.

        Of a masked model: the sum over pieces of the log-probability of the piece where it is masked (Salazar et al.
        2020, Eq. 1), and with it, unless `masking` is `original`, the later pieces of its word (Kauf and Ivanova 2023,
        PLL-word-l2r), for a word's end gives its beginning away. Of a causal model: its log-likelihood, from the first
        piece on where the tokenizer has a start or end token to begin with.
        """
        rows = self._rows(texts)
        # What reads alike is read once, so that it scores alike, too.
        first: dict[tuple[bytes, ...], int] = {}
        same = np.arange(len(texts))
        for number, (row, scored) in enumerate(rows):
            read = tuple(part.tobytes() for part in (row.ids, row.word, scored))
            same[number] = first.setdefault(read, number)
        sums = np.zeros(len(texts))
        pieces = np.zeros(len(texts), np.int64)
        order = sorted(first.values(), key=lambda number: len(rows[number][0].ids))
        copies = (
            copy
            for number in followed(order, "texts", "text")
            for copy in self._copies(number, *rows[number], masking)
        )
        for batch in _filled(copies, CAUSAL_ROOM if self.causal else ROOM):
            for copy, found in zip(batch, self._log_probabilities(batch), strict=True):
                sums[copy.text] += found.sum()
                pieces[copy.text] += len(found)
        sums[pieces == 0] = np.nan
        return Likelihoods(sums[same], pieces[same])

    def _rows(self, texts: Sequence[Text]) -> list[tuple[Row, np.ndarray]]:
        """Each text's pieces and which of them are scored (T,); none of a text that is too long."""
        text_input, _ = self.text.inputs(self.window)
        examples = [Example(str(number), text.whole) for number, text in enumerate(texts)]
        samples = TextSamples(examples, text_input).get(range(len(texts)))
        rows = []
        for text, sample in zip(texts, samples, strict=True):
            row = _with_words(needed(sample.text, "text", "a language model"))
            scored = ~row.special & (sample.dropped == 0)
            if text.start:
                context = int((spans(text.whole)[:, 0] < text.start).sum())
                scored &= row.word >= context
            rows.append((row, scored))
        return rows

    def _copies(
        self, number: int, row: Row, scored: np.ndarray, masking: Masking
    ) -> Iterator[Copy]:
        """What must be read to score some pieces (T,) of a text: it once, or once with each of them masked."""
        scored_places = np.flatnonzero(scored)
        if self.causal:
            copy = self._read_on(number, row, scored_places)
            if len(copy.places):
                yield copy
            return
        every = np.arange(len(row.ids))
        for place in scored_places:
            hidden = every == place
            if masking == "within-word":
                hidden |= scored & (row.word == row.word[place]) & (every > place)
            masked = replace(row, ids=np.where(hidden, self.mask, row.ids))
            yield Copy(number, masked, np.array([place]), row.ids[[place]])

    def _read_on(self, number: int, row: Row, places: np.ndarray) -> Copy:
        """The text once, each piece predicted at the one before it; a first piece with nothing before is not scored."""
        before = len(self.start)
        ids = np.concatenate([np.array(self.start, np.int64), row.ids])
        longer = row.take(np.r_[np.zeros(before, np.int64), np.arange(len(row.ids))])
        places = places[places + before > 0] + before
        return Copy(number, replace(longer, ids=ids), places - 1, ids[places])

    def _log_probabilities(self, copies: Sequence[Copy]) -> list[np.ndarray]:
        """Of each copy the log-probabilities of its targets, (K,) float64."""
        batch = collate([Sample(str(copy.text), copy.row) for copy in copies]).to(self.device)
        sizes = [len(copy.places) for copy in copies]
        rows = torch.from_numpy(np.repeat(np.arange(len(copies)), sizes)).to(self.device)
        places = torch.from_numpy(np.concatenate([copy.places for copy in copies])).to(self.device)
        targets = torch.from_numpy(np.concatenate([copy.targets for copy in copies]))
        logits = self.logits(batch, rows, places).float()
        logs = logits.log_softmax(-1).gather(1, targets.to(self.device)[:, None])[:, 0]
        found = logs.double().cpu().numpy()
        if not np.isfinite(found).all():
            raise InputError("the model gives probabilities that are no numbers; is it damaged?")
        return np.split(found, np.cumsum(sizes)[:-1])


def _with_words(row: Row) -> Row:
    """A row in which a piece without a raw word (a space by itself) belongs to the word after it, as tokenizers say."""
    none = row.word < 0
    following = np.where(none, row.word.max() + 1, row.word)
    next_word = np.minimum.accumulate(following[::-1])[::-1]
    return replace(row, word=np.where(none, next_word, row.word))


def _filled(copies: Iterator[Copy], room: int) -> Iterator[list[Copy]]:
    """Copies, whose lengths rise, in batches of at most `room` pieces, or of one copy."""
    batch: list[Copy] = []
    for copy in copies:
        if batch and (len(batch) + 1) * len(copy.row.ids) > room:
            yield batch
            batch = []
        batch.append(copy)
    if batch:
        yield batch


# -- models ------------------------------------------------------------------------------------------------------------


def is_causal(config: Any) -> bool:
    """Whether a configuration is of a model that reads from left to right; families of both kinds say so themselves."""
    if config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return bool(config.to_dict().get("is_decoder"))
    return config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def _start(tokenizer: Any) -> list[int]:
    """The piece to read before a text whose tokenizer puts none there; none if it has none."""
    ids = tokenizer("a")["input_ids"]
    if ids and ids[0] in tokenizer.all_special_ids:
        return []
    for piece in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if piece is not None:
            return [int(piece)]
    return []


def _loaded(source: str | Path, causal: bool, device: torch.device) -> tuple[TextEncoder, Logits]:
    """The encoder with its tokenizer, and what gives logits: the head of an earlier run, or transformers' own."""
    if not causal:
        adapted = _adapted(source, device)
        if adapted is not None:
            return adapted
    try:
        model = load_weights(AutoModelForCausalLM if causal else AutoModelForMaskedLM, source)
    except InputError as error:
        raise InputError(f"{error}; {NO_HEAD}") from None
    model.to(device).eval()
    text = TextEncoder(model.base_model, load_tokenizer(source))

    def logits(batch: Batch, rows: Tensor, places: Tensor) -> Tensor:
        tokens = needed(batch.text, "text", "a language model")

        def only_these(module: Any, given: Any, out: Any) -> Any:
            out.last_hidden_state = out.last_hidden_state[rows, places].unsqueeze(1)
            return out

        # Of a family's own head, whatever it is made of: it gets the states of these positions in place of all.
        hook = model.base_model.register_forward_hook(only_these)
        try:
            out = model(input_ids=tokens.ids, attention_mask=tokens.mask.long())
        finally:
            hook.remove()
        found: Tensor = out.logits[:, 0]
        return found

    return text, logits


def _adapted(source: str | Path, device: torch.device) -> tuple[TextEncoder, Logits] | None:
    """A student with the head that `adapt` trained and left beside it; None if there is none."""
    if not (Path(source) / HEADS).exists():
        return None
    text = load_text_encoder(source)
    sizes = text.sizes
    head = LMHead(sizes.text, sizes.word_table, sizes.activation, sizes.epsilon)
    if not load_head(Path(source), head, LM_HEAD):
        return None
    text.to(device).eval()
    head.to(device).eval()

    def logits(batch: Batch, rows: Tensor, places: Tensor) -> Tensor:
        encoded = text(batch)
        states = needed(encoded.text, "text", "a language model")[rows, places]
        found: Tensor = head(states, encoded.word_table)
        return found

    return text, logits

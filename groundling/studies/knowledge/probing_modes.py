"""An encoder's answers about visual attributes: by masked LM, by embedding, by Stroop probing.

They use the states of words in sentences, and their word embeddings, which are computed here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor

from groundling.core.batch import FORWARD_BATCH, Example, Sample, TextRow, collate, require
from groundling.core.errors import InputError, prefix_errors
from groundling.data.samples import ClipRowEncoder, TextDataset, TextRowEncoder, mask_id_of
from groundling.data.text import word_spans
from groundling.models.clip import CLIP_LIKE, load_clip_text_tower
from groundling.models.heads import LMHead, init_lm_head
from groundling.models.loading import Encoder, load_config
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.models.visual_token import (
    ClipBertExplicit,
    is_visual_token_encoder,
    load_visual_token_encoder,
)
from groundling.runs.progress import track
from groundling.studies.knowledge.visual_facts import MASK, VisualFact

FRAMES = ("{}", "there is a {} .")
"""Contexts of a word in the embedding mode: none, and a sentence without visual attributes."""

NO_MLM_HEAD = "expected a text encoder with a masked-LM head; modes embedding stroop need none"
"""The advice for a model that cannot fill a mask."""

OptionScores = list[dict[str, np.ndarray]]
"""By fact and template, a score for each option (options,); the highest is the model's answer."""

ProbeNotes = dict[str, str | list[str]]
"""Notes on the answers by name: `head`, `several_tokens`, `unknown_tokens` of `fill_mask`."""
PORTION = 50_000
"""Number of filled prompts that are in memory at once; feature norms have hundreds of options."""
T = TypeVar("T")
LAST_LAYER = -1
"""The last layer."""
OUTPUT = "output"
"""The name of a CLIP-like tower's only layer."""


# -- by embedding ------------------------------------------------------------------------------------------------------


def score_by_embedding(
    source: str | Path, facts: Sequence[VisualFact], max_length: int = 64
) -> tuple[OptionScores, ProbeNotes]:
    """Cosine similarity of the subject's and each option's embedding; the frames are the templates.

    `source` is a hub id or folder of a text encoder or CLIP-like model. Raises InputError if it is
    neither, or a text has more than `max_length` tokens.
    """
    words: dict[str, None] = {}  # in order, each once
    for fact in facts:
        words.update(dict.fromkeys((fact.subject, *fact.options)))
    spans = [fill_slot(frame, "{}", word) for frame in FRAMES for word in words]
    vectors = make_embedder(source, max_length)(spans)
    answers = []
    for fact in facts:
        by_frame = {}
        for frame in FRAMES:
            subject = vectors[fill_slot(frame, "{}", fact.subject)]
            options = [vectors[fill_slot(frame, "{}", option)] for option in fact.options]
            by_frame[frame] = np.stack(options) @ subject
        answers.append(by_frame)
    return answers, {}


def score_by_stroop(
    source: str | Path, facts: Sequence[VisualFact], max_length: int = 64
) -> tuple[OptionScores, ProbeNotes]:
    """Cosine similarity of the prompt with an option and the prompt without its slot.

    Stroop probing is from "Is BERT Blind?" (Alper et al., CVPR 2023). `source`, `max_length` and
    errors are those of `score_by_embedding`.
    """
    embed = make_embedder(source, max_length)
    answers = []
    for some in _in_portions(facts):
        vectors = embed(
            fill_prompt(prompt, word)
            for fact in some
            for prompt in fact.prompts.values()
            for word in ("", *fact.options)
        )
        for fact in some:
            by_template = {}
            for name, prompt in fact.prompts.items():
                without = vectors[fill_prompt(prompt, "")]
                with_option = [vectors[fill_prompt(prompt, option)] for option in fact.options]
                by_template[name] = np.stack(with_option) @ without
            answers.append(by_template)
    return answers, {}


def make_embedder(
    source: str | Path, max_length: int = 64
) -> Callable[[Iterable[CharSpan]], dict[CharSpan, np.ndarray]]:
    """A function from spans to their states (see `load_word_state_encoder`) as unit vectors (D,)."""
    reader = load_word_state_encoder(source, max_length=max_length)

    @torch.no_grad()
    def embed(spans: Iterable[CharSpan]) -> dict[CharSpan, np.ndarray]:
        distinct = list(dict.fromkeys(spans))
        embedded = {}
        for batch in iterate_texts(distinct):
            for span, vector in zip(batch, reader.span_states(batch), strict=True):
                embedded[span] = (vector / vector.norm()).numpy()
        return embedded

    return embed


# -- by masked LM ------------------------------------------------------------------------------------------------------


class _MaskedPrompt(NamedTuple):
    """A prompt with masks in place of an option, as the model reads it."""

    fact: int
    template: str
    option: int
    row: TextRow
    """The filled prompt, the option's tokens replaced by masks."""
    tokens: np.ndarray
    """(masks,) int64: the option's token ids."""
    clip: TextRow | None
    """The prompt as a CLIP-BERT's CLIP reads it, in which `[MASK]` is as written."""


@torch.no_grad()
def score_by_fill_mask(
    source: str | Path,
    facts: Sequence[VisualFact],
    max_length: int = 64,
    visual_token_clip: str | Path = "",
) -> tuple[OptionScores, ProbeNotes]:
    """Mean log-probability per token of each option, with one mask per token in the prompt.

    An option's tokens are those in the filled prompt, so a byte-level tokenizer's leading space is
    included. Notes give the origin of the `head`, and the options with `several_tokens` or
    `unknown_tokens`. `source` may be a CLIP-BERT, whose visual token is the text vector of each
    prompt, with its `[MASK]`, by the CLIP-like model `visual_token_clip`; without one it has none.

    Raises InputError if `source` is not a text encoder with a masked-LM head, or a text has more
    than `max_length` tokens.
    """
    model, text, head, origin = _load_with_head(source, visual_token_clip)
    windows = model.inputs(max_length)[1]
    mask_id = mask_id_of(text.tokenizer)
    answers: OptionScores = []
    several: set[str] = set()
    unknown: set[str] = set()
    for some in _in_portions(facts):
        masked = _mask_options(some, text, max_length, windows)
        scores: OptionScores = [
            {template: np.empty(len(fact.options)) for template in fact.prompts} for fact in some
        ]
        for sharing, logs in _log_probabilities(model, head, masked, mask_id):
            for one in sharing:
                mean = logs[np.arange(len(one.tokens)), one.tokens].mean()
                scores[one.fact][one.template][one.option] = mean
        answers += scores
        for one in masked:
            option = some[one.fact].options[one.option]
            if len(one.tokens) > 1:
                several.add(option)
            if text.tokenizer.unk_token_id in one.tokens:
                unknown.add(option)
    notes = {"several_tokens": sorted(several), "unknown_tokens": sorted(unknown)}
    return answers, {"head": origin, **notes}


def _in_portions(facts: Sequence[VisualFact]) -> Iterator[Sequence[VisualFact]]:
    """The facts in order, in portions of at most `PORTION` filled prompts, or of one fact."""
    start = 0
    count = 0
    for number, fact in enumerate(facts):
        own = len(fact.prompts) * len(fact.options)
        if number > start and count + own > PORTION:
            yield facts[start:number]
            start, count = number, 0
        count += own
    yield facts[start:]


def _load_with_head(
    source: str | Path, clip: str | Path = ""
) -> tuple[Encoder, TextEncoder, LMHead, str]:
    """The model, the text encoder in it, and its masked-LM head, in evaluation mode; the head's origin."""
    model: Encoder
    if is_visual_token_encoder(source):
        visual = load_visual_token_encoder(source)
        model = ClipBertExplicit(visual, *load_clip_text_tower(clip)) if clip else visual
        text = visual.text
    else:
        if clip:
            raise InputError(f"visual_token_clip={clip}: {source} is no CLIP-BERT; leave it out")
        with prefix_errors(f"{source}: {NO_MLM_HEAD}"):
            model = text = load_text_encoder(source)
            mask_id_of(text.tokenizer)
    sizes = text.sizes
    head = LMHead(sizes.text, sizes.input_embeddings, sizes.config)
    origin = init_lm_head(head, source)
    if origin == "new":
        # A head trained on states after cross-modal layers does not fit these states.
        raise InputError(
            f"{source}: no masked-LM head of this encoder is saved there; {NO_MLM_HEAD}"
        )
    device = PartialState().device
    return model.to(device).eval(), text, head.to(device).eval(), origin


def _mask_options(
    facts: Sequence[VisualFact], text: TextEncoder, max_length: int, windows: ClipRowEncoder | None
) -> list[_MaskedPrompt]:
    """Every prompt of every fact with every option; raises InputError for a prompt that CLIP cannot read whole."""
    places = [
        (number, template, option)
        for number, fact in enumerate(facts)
        for template in fact.prompts
        for option in range(len(fact.options))
    ]
    prompts = [facts[number].prompts[template] for number, template, _ in places]
    spans = [
        fill_slot(prompt, MASK, facts[number].options[option])
        for prompt, (number, _, option) in zip(prompts, places, strict=True)
    ]
    clip_rows: dict[str, TextRow | None] = {}
    if windows is not None:
        examples = [Example(prompt, prompt) for prompt in dict.fromkeys(prompts)]
        clip_rows = {one.id: one.clip for one in _whole_texts(examples, None, windows)}
    text_input, _ = text.inputs(max_length)
    masked = []
    samples = tokenize_spans(spans, text_input)
    for place, prompt, span, sample in zip(places, prompts, spans, samples, strict=True):
        row = require(sample.text, "text", "masked LM")
        inside = tokens_of_span(span, row)
        ids = np.where(inside, text.tokenizer.mask_token_id, row.input_ids)
        masked_row = replace(row, input_ids=ids)
        tokens = row.input_ids[inside]
        masked.append(_MaskedPrompt(*place, masked_row, tokens, clip_rows.get(prompt)))
    return masked


def _log_probabilities(
    model: Encoder, head: LMHead, masked: Sequence[_MaskedPrompt], mask: int
) -> Iterator[tuple[list[_MaskedPrompt], np.ndarray]]:
    """Prompts that read alike, as of options of equal length; their log-probabilities (masks, vocabulary)."""
    same: dict[tuple[bytes, ...], list[_MaskedPrompt]] = {}
    for one in masked:
        rows = [one.row] if one.clip is None else [one.row, one.clip]
        same.setdefault(tuple(row.input_ids.tobytes() for row in rows), []).append(one)
    device = PartialState().device
    for some in iterate_texts(list(same.values())):
        samples = [
            Sample(str(place), first.row, first.clip) for place, (first, *_) in enumerate(some)
        ]
        batch = collate(samples).to(device)
        encoded = model(batch)
        states = require(encoded.text, "text", "masked LM")
        is_mask = require(batch.text, "text", "masked LM").input_ids == mask
        for place, sharing in enumerate(some):
            logits = head(states[place, is_mask[place]], encoded.input_embeddings)
            yield sharing, logits.float().log_softmax(-1).cpu().numpy()


# -- words and their states --------------------------------------------------------------------------------------------


class CharSpan(NamedTuple):
    """A span of a text, in characters."""

    text: str
    start: int
    stop: int

    @property
    def words(self) -> str:
        """The text of the span."""
        return self.text[self.start : self.stop]


def fill_slot(frame: str, slot: str, word: str) -> CharSpan:
    """A frame with the word in its slot; the span is the word."""
    if frame.count(slot) != 1:
        raise InputError(f"template {frame!r}: expected a text with one {slot} for the word")
    start = frame.index(slot)
    return CharSpan(frame.replace(slot, word), start, start + len(word))


def fill_prompt(prompt: str, word: str) -> CharSpan:
    """A prompt with a word or, if it is empty, without its slot; the span is the whole text."""
    text = " ".join(prompt.replace(MASK, word).split())
    return CharSpan(text, 0, len(text))


def tokenize_spans(
    spans: Sequence[CharSpan], text: TextRowEncoder | None, clip: ClipRowEncoder | None = None
) -> list[Sample]:
    """The spans' texts, tokenised for a text encoder or CLIP; raises InputError if too long."""
    return _whole_texts([Example(span.text, span.text) for span in spans], text, clip)


def _whole_texts(
    examples: Sequence[Example], text: TextRowEncoder | None, clip: ClipRowEncoder | None
) -> list[Sample]:
    samples = TextDataset(examples, text, clip).get(range(len(examples)))
    for one in samples:
        if one.truncated_tokens:
            raise InputError(f"{one.id!r} is {one.truncated_tokens} tokens too long (max_length)")
    return samples


def tokens_of_span(span: CharSpan, row: TextRow) -> np.ndarray:
    """Which tokens (T,) of a row belong to a span's words; raises InputError if none does."""
    words = word_spans(span.text)
    overlaps = (words[:, 0] < span.stop) & (words[:, 1] > span.start)
    inside = np.isin(row.word_ids, np.flatnonzero(overlaps))
    if not inside.any():
        raise InputError(f"{span.text!r}: the tokenizer gives no tokens for {span.words!r}")
    return inside


def iterate_texts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The values in order, in batches of `FORWARD_BATCH`."""
    for start in track(range(0, len(values), FORWARD_BATCH), "texts", "batch"):
        yield values[start : start + FORWARD_BATCH]


class WordStates(NamedTuple):
    """States and word embeddings of words."""

    states: dict[str, np.ndarray]
    """(D,) of each word, the mean over frames; of all layers (L, D)."""
    word_embeddings: dict[str, np.ndarray]
    """(E,): the mean of its tokens' input embeddings, without context."""
    unknown: list[str]
    """Words with unknown tokens."""
    layers: list[str]
    """Names of L layers: 0 the embeddings, k the k-th layer; `output` for a CLIP-like tower."""


class WordStateExtractor(NamedTuple):
    """A model's functions to compute the states of words in sentences."""

    samples: Callable[[Sequence[CharSpan]], list[Sample]]
    row: Callable[[Sample], TextRow]
    """The tokens that the model reads."""
    states: Callable[[Sequence[CharSpan], Sequence[Sample]], list[Tensor]]
    """The state of each span, on the CPU: (D,), of all layers (L, D)."""
    table: Tensor
    """Input embeddings (vocabulary, E)."""
    unknown: int | None
    """Id of the unknown token; None without one."""
    layers: list[str]
    """Names of the layers."""

    def span_states(self, spans: Sequence[CharSpan]) -> list[Tensor]:
        """The state of each span; raises InputError for long texts and empty spans."""
        return self.states(spans, self.samples(spans))


@torch.no_grad()
def word_states(
    source: str | Path,
    words: Sequence[str],
    frames: Sequence[str],
    layer: int | None = LAST_LAYER,
    max_length: int = 64,
) -> WordStates:
    """States of words, each the mean over all frames (sentences with one `{}`).

    For a text encoder, the mean over the word's tokens of the output of `layer`: 0 the embeddings,
    k the k-th layer, -1 the last, None all. For a CLIP-like tower, the text feature of the whole frame.

    Raises InputError for a frame without a slot, a layer that does not exist, a word without
    tokens, and a text of more than `max_length` tokens.
    """
    reader = load_word_state_encoder(source, layer, max_length)
    result = WordStates({}, {}, [], reader.layers)
    for batch in iterate_texts(list(dict.fromkeys(words))):
        by_frame = []
        for frame in frames:
            spans = [fill_slot(frame, "{}", word) for word in batch]
            samples = reader.samples(spans)
            by_frame.append(reader.states(spans, samples))
            if frame == frames[0]:
                _add_word_embeddings(reader, spans, samples, result)
        for word, *vectors in zip(batch, *by_frame, strict=True):
            result.states[word] = torch.stack(vectors).mean(0).numpy()
    return result


def _add_word_embeddings(
    reader: WordStateExtractor,
    spans: Sequence[CharSpan],
    samples: Sequence[Sample],
    result: WordStates,
) -> None:
    """Add the words' embeddings, of their tokens inside a sentence (with leading space)."""
    for span, sample in zip(spans, samples, strict=True):
        row = reader.row(sample)
        tokens = row.input_ids[tokens_of_span(span, row)]
        result.word_embeddings[span.words] = reader.table[torch.from_numpy(tokens)].mean(0).numpy()
        if reader.unknown in tokens:
            result.unknown.append(span.words)


def load_word_state_encoder(
    source: str | Path, layer: int | None = LAST_LAYER, max_length: int = 64
) -> WordStateExtractor:
    """The `WordStateExtractor` of a text encoder's `layer` (None: of all) or of a CLIP-like tower, a hub id or folder.

    A text encoder gives the mean state of a span's tokens without special ones; a CLIP-like tower,
    the text feature of the whole text (its end token). Raises InputError for a layer that does not
    exist.
    """
    if is_visual_token_encoder(source):
        raise InputError(
            f"{source}: a CLIP-BERT, which only modes fill-mask reads; pass its encoder, {Path(source) / 'text'}"
        )
    is_tower = load_config(source).model_type in CLIP_LIKE
    return _tower(source, layer) if is_tower else _encoder(source, layer, max_length)


def _encoder(source: str | Path, layer: int | None, max_length: int) -> WordStateExtractor:
    device = PartialState().device
    model = load_text_encoder(source).to(device).eval()
    text_input, _ = model.inputs(max_length)
    count = model.encoder.config.num_hidden_layers
    if layer is not None and not LAST_LAYER <= layer <= count:
        raise InputError(
            f"layer={layer}: {source} has layers 0 to {count}, or {LAST_LAYER} for the last"
        )

    def row(sample: Sample) -> TextRow:
        return require(sample.text, "text", "a state")

    def states(spans: Sequence[CharSpan], samples: Sequence[Sample]) -> list[Tensor]:
        batch = collate(samples).to(device)
        if layer == LAST_LAYER:
            layers = [require(model(batch).text, "text", "a state")]
        else:
            every = list(model.hidden_states(batch))
            layers = every if layer is None else [every[layer]]
        padded = torch.stack([one.float().cpu() for one in layers])
        means = []
        for place, (span, sample) in enumerate(zip(spans, samples, strict=True)):
            inside = torch.from_numpy(tokens_of_span(span, row(sample)))
            means.append(padded[:, place, : len(inside)][:, inside].mean(1))
        return means if layer is None else [mean[0] for mean in means]

    return WordStateExtractor(
        samples=lambda spans: tokenize_spans(spans, text_input),
        row=row,
        states=states,
        table=model.word_embeddings().weight.float().cpu(),
        unknown=model.tokenizer.unk_token_id,
        layers=[str(number) for number in range(count + 1)],
    )


def _tower(source: str | Path, layer: int | None) -> WordStateExtractor:
    if layer not in (LAST_LAYER, None):
        raise InputError(
            f"layer={layer}: {source} is a CLIP-like tower, whose output is always used; leave layer out"
        )
    device = PartialState().device
    tower, tokenizer = load_clip_text_tower(source)
    tower.to(device).eval()
    windows = ClipRowEncoder(tokenizer, tower.context_length, max_windows=1)

    def states(_: Sequence[CharSpan], samples: Sequence[Sample]) -> list[Tensor]:
        batch = collate(samples).to(device)
        _, features = tower(require(batch.clip, "clip", "a state"))
        states = features.float().cpu()
        return list(states[:, None] if layer is None else states)

    return WordStateExtractor(
        samples=lambda spans: tokenize_spans(spans, None, windows),
        row=lambda sample: require(sample.clip, "clip", "a state"),
        states=states,
        table=tower.token_embedding.weight.float().cpu(),
        # OpenAI's CLIP has its end token as unknown token, which says nothing.
        unknown=None
        if tokenizer.unk_token_id == tokenizer.eos_token_id
        else tokenizer.unk_token_id,
        layers=[OUTPUT],
    )

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


# -- by embedding ------------------------------------------------------------------------------------------------------


def score_by_embedding(
    source: str | Path, facts: Sequence[VisualFact], max_length: int = 64
) -> tuple[OptionScores, ProbeNotes]:
    """Cosine similarity of the subject's and each option's embedding; the frames are the templates.

    `source` is a hub id or folder of a text encoder or CLIP-like model. Raises InputError if it is
    neither, or a text has more than `max_length` tokens.
    """

    def spans_of(fact: VisualFact) -> dict[str, list[CharSpan]]:
        words = (fact.subject, *fact.options)
        return {frame: [fill_slot(frame, "{}", word) for word in words] for frame in FRAMES}

    return _cosines(make_embedder(source, max_length), [facts], spans_of), {}


def score_by_stroop(
    source: str | Path, facts: Sequence[VisualFact], max_length: int = 64
) -> tuple[OptionScores, ProbeNotes]:
    """Cosine similarity of the prompt with an option and the prompt without its slot.

    Stroop probing is from "Is BERT Blind?" (Alper et al., CVPR 2023). `source`, `max_length` and
    errors are those of `score_by_embedding`.
    """

    def spans_of(fact: VisualFact) -> dict[str, list[CharSpan]]:
        words = ("", *fact.options)
        return {
            name: [fill_prompt(prompt, word) for word in words]
            for name, prompt in fact.prompts.items()
        }

    return _cosines(make_embedder(source, max_length), _in_portions(facts), spans_of), {}


def _cosines(
    embed: Callable[[Iterable[CharSpan]], dict[CharSpan, np.ndarray]],
    portions: Iterable[Sequence[VisualFact]],
    spans_of: Callable[[VisualFact], dict[str, list[CharSpan]]],
) -> OptionScores:
    """The cosine of a template's first span with each of the others, which are the options."""
    answers = []
    for some in portions:
        vectors = embed(
            span for fact in some for spans in spans_of(fact).values() for span in spans
        )
        for fact in some:
            answers.append(
                {
                    name: np.stack([vectors[option] for option in options]) @ vectors[first]
                    for name, (first, *options) in spans_of(fact).items()
                }
            )
    return answers


def make_embedder(
    source: str | Path, max_length: int = 64
) -> Callable[[Iterable[CharSpan]], dict[CharSpan, np.ndarray]]:
    """A function from spans to their states (see `load_word_reader`) as unit vectors (D,)."""
    reader = load_word_reader(source, max_length=max_length)

    @torch.no_grad()
    def embed(spans: Iterable[CharSpan]) -> dict[CharSpan, np.ndarray]:
        embedded = {}
        for batch in iterate_texts(list(dict.fromkeys(spans))):
            states = reader.states(batch, reader.samples(batch))
            for span, vector in zip(batch, states, strict=True):
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
        model = visual = load_visual_token_encoder(source)
        if clip:
            visual.fill_from_text(*load_clip_text_tower(clip))
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
    clip_rows: dict[str, TextRow | None] = {}
    if windows is not None:
        prompts = dict.fromkeys(prompt for fact in facts for prompt in fact.prompts.values())
        clip_rows = {one.id: one.clip for one in whole_texts(list(prompts), None, windows)}
    places = [
        (number, template, option)
        for number, fact in enumerate(facts)
        for template in fact.prompts
        for option in range(len(fact.options))
    ]
    spans = [
        fill_slot(facts[number].prompts[template], MASK, facts[number].options[option])
        for number, template, option in places
    ]
    samples = whole_texts([span.text for span in spans], text.inputs(max_length)[0])
    masked = []
    for (number, template, option), span, sample in zip(places, spans, samples, strict=True):
        row = require(sample.text, "text", "masked LM")
        inside = tokens_of_span(span, row)
        ids = np.where(inside, text.tokenizer.mask_token_id, row.input_ids)
        tokens = row.input_ids[inside]
        clip = clip_rows.get(facts[number].prompts[template])
        row = replace(row, input_ids=ids)
        masked.append(_MaskedPrompt(number, template, option, row, tokens, clip))
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


def whole_texts(
    texts: Sequence[str], text: TextRowEncoder | None, clip: ClipRowEncoder | None = None
) -> list[Sample]:
    """Texts, tokenised for a text encoder or CLIP; raises InputError for one that is too long."""
    examples = [Example(one, one) for one in texts]
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
        raise InputError(
            f"{span.text!r}: the tokenizer gives no tokens for {span.text[span.start : span.stop]!r}"
        )
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


class WordReader(NamedTuple):
    """How a model reads words in sentences."""

    inputs: tuple[TextRowEncoder | None, ClipRowEncoder | None]
    """What tokenises texts for it: one of the two."""
    states: Callable[[Sequence[CharSpan], Sequence[Sample]], list[Tensor]]
    """The state of each span, on the CPU: (D,), of all layers (L, D)."""
    table: Tensor
    """Input embeddings (vocabulary, E)."""
    unknown: int | None
    """Id of the unknown token; None without one."""
    layers: list[str]
    """Names of the layers."""

    def samples(self, spans: Sequence[CharSpan]) -> list[Sample]:
        """The tokens of each span's text; raises InputError for a long one."""
        return whole_texts([span.text for span in spans], *self.inputs)


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
    Word embeddings are of the tokens in the first frame (with leading space).

    Raises InputError for a frame without a slot, a layer that does not exist, a word without
    tokens, and a text of more than `max_length` tokens.
    """
    reader = load_word_reader(source, layer, max_length)
    result = WordStates({}, {}, [], reader.layers)
    for batch in iterate_texts(list(dict.fromkeys(words))):
        by_frame = []
        for frame in frames:
            spans = [fill_slot(frame, "{}", word) for word in batch]
            samples = reader.samples(spans)
            by_frame.append(reader.states(spans, samples))
            if frame != frames[0]:
                continue
            for word, span, sample in zip(batch, spans, samples, strict=True):
                row = require(sample.text or sample.clip, "text", "a word")
                tokens = row.input_ids[tokens_of_span(span, row)]
                embedded = reader.table[torch.from_numpy(tokens)].mean(0)
                result.word_embeddings[word] = embedded.numpy()
                if reader.unknown in tokens:
                    result.unknown.append(word)
        for word, *vectors in zip(batch, *by_frame, strict=True):
            result.states[word] = torch.stack(vectors).mean(0).numpy()
    return result


def load_word_reader(
    source: str | Path, layer: int | None = LAST_LAYER, max_length: int = 64
) -> WordReader:
    """The reader of a text encoder's `layer` (None: of all) or of a CLIP-like tower, a hub id or folder.

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


def _encoder(source: str | Path, layer: int | None, max_length: int) -> WordReader:
    device = PartialState().device
    model = load_text_encoder(source).to(device).eval()
    model.return_layers()
    count = model.encoder.config.num_hidden_layers
    if layer is not None and not LAST_LAYER <= layer <= count:
        raise InputError(
            f"layer={layer}: {source} has layers 0 to {count}, or {LAST_LAYER} for the last"
        )

    def states(spans: Sequence[CharSpan], samples: Sequence[Sample]) -> list[Tensor]:
        batch = collate(samples).to(device)
        if layer == LAST_LAYER:
            layers = [require(model(batch).text, "text", "a state")]
        else:
            every = list(require(model(batch).layers, "layers", "a state"))
            layers = every if layer is None else [every[layer]]
        padded = torch.stack([one.float().cpu() for one in layers])
        means = []
        for place, (span, sample) in enumerate(zip(spans, samples, strict=True)):
            row = require(sample.text, "text", "a state")
            inside = torch.from_numpy(tokens_of_span(span, row))
            means.append(padded[:, place, : len(inside)][:, inside].mean(1))
        return means if layer is None else [mean[0] for mean in means]

    return WordReader(
        inputs=model.inputs(max_length),
        states=states,
        table=model.word_embeddings().weight.float().cpu(),
        unknown=model.tokenizer.unk_token_id,
        layers=[str(number) for number in range(count + 1)],
    )


def _tower(source: str | Path, layer: int | None) -> WordReader:
    if layer not in (LAST_LAYER, None):
        raise InputError(
            f"layer={layer}: {source} is a CLIP-like tower, whose output is always used; leave layer out"
        )
    device = PartialState().device
    tower, tokenizer = load_clip_text_tower(source)
    tower.to(device).eval()

    def states(_: Sequence[CharSpan], samples: Sequence[Sample]) -> list[Tensor]:
        batch = collate(samples).to(device)
        _, features = tower(require(batch.clip, "clip", "a state"))
        states = features.float().cpu()
        return list(states[:, None] if layer is None else states)

    # OpenAI's CLIP has its end token as unknown token, which says nothing.
    unknown = tokenizer.unk_token_id
    return WordReader(
        inputs=(None, ClipRowEncoder(tokenizer, tower.context_length, max_windows=1)),
        states=states,
        table=tower.token_embedding.weight.float().cpu(),
        unknown=None if unknown == tokenizer.eos_token_id else unknown,
        layers=["output"],
    )

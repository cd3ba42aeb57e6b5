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
from groundling.models.heads import LMHead
from groundling.models.loading import Encoder, load_config
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.models.visual_token import is_visual_token_encoder, load_visual_token_encoder
from groundling.runs.progress import track
from groundling.studies.knowledge.pair_likelihoods import load_lm_head
from groundling.studies.knowledge.visual_facts import MASK, VisualFact

FRAMES = ("{}", "there is a {} .")
"""Contexts of a word in the embedding mode: none, and a sentence without visual attributes."""

NO_MLM_HEAD = (
    "expected a text encoder with a masked-LM head; modes linear embedding stroop need none"
)
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

    return _cosines(source, facts, max_length, spans_of)


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

    return _cosines(source, facts, max_length, spans_of)


def _cosines(
    source: str | Path,
    facts: Sequence[VisualFact],
    max_length: int,
    spans_of: Callable[[VisualFact], dict[str, list[CharSpan]]],
) -> tuple[OptionScores, ProbeNotes]:
    """The cosine of a template's first span with each of the others, which are the options."""
    reader = load_word_reader(source, max_length=max_length)
    answers: OptionScores = []
    for some in _in_portions(facts):
        spans = [spans_of(fact) for fact in some]
        vectors = embed_spans(
            reader, (span for of_fact in spans for one in of_fact.values() for span in one)
        )
        for of_fact in spans:
            scores = {}
            for name, (first, *options) in of_fact.items():
                of_options = np.stack([vectors[option] for option in options])
                scores[name] = of_options @ vectors[first]
            answers.append(scores)
    return answers, {}


@torch.no_grad()
def embed_spans(reader: WordReader, spans: Iterable[CharSpan]) -> dict[CharSpan, np.ndarray]:
    """The states of different spans as unit vectors (D,)."""
    embedded = {}
    for batch in iterate_texts(list(dict.fromkeys(spans))):
        states = reader.states(batch, reader.samples(batch))
        for span, vector in zip(batch, states, strict=True):
            embedded[span] = (vector / vector.norm()).numpy()
    return embedded


# -- by masked LM ------------------------------------------------------------------------------------------------------
class _MaskedPrompt(NamedTuple):
    """A prompt with masks in place of an option, as the model reads it."""

    option: str
    sample: Sample
    """The filled prompt, the option's tokens replaced by masks; for a CLIP-BERT's CLIP the prompt as written."""
    tokens: np.ndarray
    """(masks,) int64: the option's token ids."""


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
    answers: OptionScores = []
    several: set[str] = set()
    unknown: set[str] = set()
    for some in _in_portions(facts):
        masked = _mask_options(some, text, max_length, windows)
        means = iter(_mean_log_probabilities(model, head, masked, mask_id_of(text.tokenizer)))
        for fact in some:
            answers.append({})
            for template in fact.prompts:
                of_options = [next(means) for _ in fact.options]
                answers[-1][template] = np.array(of_options)
        several.update(one.option for one in masked if len(one.tokens) > 1)
        unknown.update(one.option for one in masked if text.tokenizer.unk_token_id in one.tokens)
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
    source: str | Path, clip: str | Path
) -> tuple[Encoder, TextEncoder, LMHead, str]:
    """The model, the text encoder in it, and its masked-LM head, in evaluation mode; the head's origin."""
    model: Encoder
    with prefix_errors(NO_MLM_HEAD):
        if is_visual_token_encoder(source):
            model = visual = load_visual_token_encoder(source)
            if clip:
                visual.fill_from_text(*load_clip_text_tower(clip))
            text = visual.text
        elif clip:
            raise InputError(f"visual_token_clip={clip}: {source} is no CLIP-BERT; leave it out")
        else:
            model = text = load_text_encoder(source)
        model.to(PartialState().device).eval()
        if text.sizes.causal:  # it may have a mask token, but predicts the token after it
            raise InputError(f"{source}: a {text.encoder.config.model_type} model fills no masks")
        head, origin = load_lm_head(text, source)
    return model, text, head, origin


def _mask_options(
    facts: Sequence[VisualFact], text: TextEncoder, max_length: int, windows: ClipRowEncoder | None
) -> list[_MaskedPrompt]:
    """Each fact's prompts, each with every option; raises InputError for a prompt that CLIP cannot read whole."""
    filled = [
        (prompt, option)
        for fact in facts
        for prompt in fact.prompts.values()
        for option in fact.options
    ]
    spans = [fill_slot(prompt, MASK, option) for prompt, option in filled]
    samples = whole_texts([span.text for span in spans], text.inputs(max_length)[0])
    clip_rows: dict[str, TextRow | None] = {}
    if windows is not None:
        prompts = list(dict.fromkeys(prompt for prompt, _ in filled))
        clip_rows = {one.id: one.clip for one in whole_texts(prompts, None, windows)}
    masked = []
    for (prompt, option), span, sample in zip(filled, spans, samples, strict=True):
        row = require(sample.text, "text", "masked LM")
        inside = tokens_of_span(span, row)
        ids = np.where(inside, text.tokenizer.mask_token_id, row.input_ids)
        read = Sample(sample.id, replace(row, input_ids=ids), clip_rows.get(prompt))
        masked.append(_MaskedPrompt(option, read, row.input_ids[inside]))
    return masked


def _mean_log_probabilities(
    model: Encoder, head: LMHead, masked: Sequence[_MaskedPrompt], mask: int
) -> np.ndarray:
    """The mean log-probability of each option's tokens, (prompts,).

    Prompts that read alike, as with options of equal length, share a forward pass.
    """
    same: dict[tuple[bytes, ...], list[int]] = {}
    for number, one in enumerate(masked):
        rows = (row for row in (one.sample.text, one.sample.clip) if row is not None)
        key = tuple(row.input_ids.tobytes() for row in rows)
        same.setdefault(key, []).append(number)
    means = np.empty(len(masked))
    for some in iterate_texts(list(same.values())):
        samples = [masked[first].sample for first, *_ in some]
        batch = collate(samples).to(PartialState().device)
        encoded = model(batch)
        states = require(encoded.text, "text", "masked LM")
        is_mask = require(batch.text, "text", "masked LM").input_ids == mask
        for place, sharing in enumerate(some):
            logits = head(states[place, is_mask[place]], encoded.input_embeddings)
            logs = logits.float().log_softmax(-1).cpu().numpy()
            for number in sharing:
                tokens = masked[number].tokens
                means[number] = logs[np.arange(len(tokens)), tokens].mean()
    return means


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
    starts, stops = words.T
    overlaps = (starts < span.stop) & (stops > span.start)
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

    For a text encoder, the mean over the word's tokens (of a causal model its last) of the output of `layer`: 0 the
    embeddings, k the k-th layer, -1 the last, None all. For a CLIP-like tower, the text feature of the whole frame.
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

    A text encoder gives the mean state of a span's tokens without special ones; a CLIP-like tower, the text feature of
    the whole text (its end token). Raises InputError for a layer that does not exist.
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
            if model.sizes.causal:  # the span's last token alone has read all of it
                inside &= inside.flip(0).cumsum(0).flip(0) == 1
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

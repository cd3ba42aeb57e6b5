"""What an encoder answers when asked how a thing looks: by masked LM, by embedding, by Stroop probing.

Below them is what an encoder makes of words in the sentences around them: their states, and their word embeddings.
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
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Example, Sample, TextRow, collate, require
from groundling.core.errors import InputError
from groundling.data.samples import ClipRowEncoder, TextDataset, TextRowEncoder, mask_id_of
from groundling.data.text.words import word_spans
from groundling.models.clip import CLIP_LIKE, load_clip_text_tower
from groundling.models.heads import LMHead, init_lm_head
from groundling.models.loading import load_config
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.runs.progress import track
from groundling.studies.knowledge.visual_facts import MASK, VisualFact

FRAMES = ("{}", "there is a {} .")
"""Neutral surroundings of a word in the embedding mode: none, and a sentence that says nothing of its looks."""

NO_MLM_HEAD = "expected a text encoder with a masked-LM head; --modes embedding stroop need none"
"""What to do about a model that cannot fill a mask."""

OptionScores = list[dict[str, np.ndarray]]
"""Per fact and template, a number per option (options,); the highest is the model's answer."""

ProbeNotes = dict[str, str | list[str]]
"""What there is to know of the answers, by name: `head`, `several_pieces`, `unknown_pieces` of `fill_mask`."""
BATCH = 64
"""Texts run at a time."""
T = TypeVar("T")
SLOT = "{}"
"""The place of the noun in a frame."""
LAST_LAYER = -1
"""The layer whose output the encoder gives."""


# -- by embedding ------------------------------------------------------------------------------------------------------


def score_by_embedding(
    source: str | Path, facts: Sequence[VisualFact], max_length: int = 64
) -> tuple[OptionScores, ProbeNotes]:
    """Cosine of the subject's and each option's embedding, both in the same neutral frame; the frames are templates.

    `source` is a hub id or folder of a text encoder or CLIP-like model. Raises InputError if it is neither, or a text
    has more than `max_length` pieces.
    """
    words: dict[str, None] = {}  # in order, each once
    for fact in facts:
        words.update(dict.fromkeys((fact.subject, *fact.options)))
    parts = [fill_slot(frame, "{}", word) for frame in FRAMES for word in words]
    vectors = make_embedder(source, max_length)(parts)
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
    """Cosine of the prompt filled with an option and the prompt with its slot taken out.

    Stroop probing is of "Is BERT Blind?" (Alper et al., CVPR 2023). `source`, `max_length` and errors are those of
    `embedding`.
    """
    parts = []
    for fact in facts:
        for prompt in fact.prompts.values():
            parts += [fill_prompt(prompt, word) for word in ("", *fact.options)]
    vectors = make_embedder(source, max_length)(parts)
    answers = []
    for fact in facts:
        by_template = {}
        for name, prompt in fact.prompts.items():
            without = vectors[fill_prompt(prompt, "")]
            said = [vectors[fill_prompt(prompt, option)] for option in fact.options]
            by_template[name] = np.stack(said) @ without
        answers.append(by_template)
    return answers, {}


def make_embedder(
    source: str | Path, max_length: int = 64
) -> Callable[[Iterable[TextSpan]], dict[TextSpan, np.ndarray]]:
    """A function from parts of texts to unit vectors (D,), the states that `load_word_state_encoder` has of them."""
    reader = load_word_state_encoder(source, max_length=max_length)

    @torch.no_grad()
    def embed(parts: Iterable[TextSpan]) -> dict[TextSpan, np.ndarray]:
        distinct = list(dict.fromkeys(parts))
        embedded = {}
        for batch in iterate_texts(distinct):
            for part, vector in zip(batch, reader.of(batch), strict=True):
                embedded[part] = (vector / vector.norm()).numpy()
        return embedded

    return embed


# -- by masked LM ------------------------------------------------------------------------------------------------------


class _FilledPrompt(NamedTuple):
    """An option in the place of a prompt's mask."""

    fact: int
    template: str
    option: int
    filled: TextSpan


class _MaskedPrompt(NamedTuple):
    """A question as the model reads it."""

    row: TextRow
    """The filled prompt, its option's pieces replaced by masks."""
    pieces: np.ndarray
    """(masks,) int64: the pieces that were there."""


@torch.no_grad()
def score_by_fill_mask(
    source: str | Path, facts: Sequence[VisualFact], max_length: int = 64
) -> tuple[OptionScores, ProbeNotes]:
    """Log-probability of each option in the prompt's place, under as many masks as it has pieces, mean per piece.

    The pieces are those the option has in the filled prompt, so a byte-level tokenizer's space before it counts. Notes
    tell whose `head` it is, and which options have `several_pieces` or `unknown_pieces`.

    Raises InputError if `source` is no text encoder with a masked-LM head, or a text has more than `max_length` pieces.
    """
    text, head, origin = _with_head(source)
    questions = _questions(facts)
    masked = _mask(questions, text, max_length)
    answers: OptionScores = []
    for fact in facts:
        answers.append({template: np.empty(len(fact.options)) for template in fact.prompts})
    for numbers, logs in _log_probabilities(text, head, masked):
        for number in numbers:
            question = questions[number]
            pieces = masked[number].pieces
            mean = logs[np.arange(len(pieces)), pieces].mean()
            answers[question.fact][question.template][question.option] = mean
    return answers, {"head": origin, **_piece_notes(questions, masked, text)}


def _with_head(source: str | Path) -> tuple[TextEncoder, LMHead, str]:
    """The encoder and its masked-LM head, ready to run, and whose head it is: an earlier run's or the checkpoint's."""
    if load_config(source).model_type in CLIP_LIKE:
        raise InputError(f"{source}: a CLIP-like model fills no mask; {NO_MLM_HEAD}")
    text = load_text_encoder(source)
    mask_id_of(text.tokenizer, f"; {NO_MLM_HEAD}")
    sizes = text.sizes
    head = LMHead(sizes.text, sizes.input_embeddings, sizes.activation, sizes.epsilon)
    origin = init_lm_head(head, source, text.encoder.config.model_type)
    if origin == "new":
        # A head that was trained on joint states, after cross-modal layers, is none: it never read these states.
        raise InputError(
            f"{source}: no masked-LM head of this encoder's own is saved there; {NO_MLM_HEAD}"
        )
    device = PartialState().device
    return text.to(device).eval(), head.to(device).eval(), origin


def _questions(facts: Sequence[VisualFact]) -> list[_FilledPrompt]:
    questions = []
    for number, fact in enumerate(facts):
        for template, prompt in fact.prompts.items():
            for place, option in enumerate(fact.options):
                part = fill_slot(prompt, MASK, option)
                questions.append(_FilledPrompt(number, template, place, part))
    return questions


def _mask(
    questions: Sequence[_FilledPrompt], text: TextEncoder, max_length: int
) -> list[_MaskedPrompt]:
    parts = [question.filled for question in questions]
    text_input, _ = text.inputs(max_length)
    masked = []
    for part, sample in zip(parts, tokenize_spans(parts, text_input), strict=True):
        row = require(sample.text, "text", "masked LM")
        inside = tokens_of_span(part, row)
        ids = np.where(inside, text.tokenizer.mask_token_id, row.input_ids)
        masked.append(_MaskedPrompt(replace(row, input_ids=ids), row.input_ids[inside]))
    return masked


def _log_probabilities(
    text: TextEncoder, head: LMHead, masked: Sequence[_MaskedPrompt]
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Numbers of questions that share a masked sentence, and its log-probabilities (masks, vocabulary)."""
    device = PartialState().device
    mask = text.tokenizer.mask_token_id
    for sharing in iterate_texts(_sharing(masked)):
        samples = [Sample(str(numbers[0]), masked[numbers[0]].row) for numbers in sharing]
        batch = collate(samples).to(device)
        encoded = text(batch)
        states = require(encoded.text, "text", "masked LM")
        is_mask = require(batch.text, "text", "masked LM").input_ids == mask
        for place, numbers in enumerate(sharing):
            logits = head(states[place, is_mask[place]], encoded.input_embeddings)
            yield numbers, logits.float().log_softmax(-1).cpu().numpy()


def _sharing(masked: Sequence[_MaskedPrompt]) -> list[list[int]]:
    """Numbers of questions with the same masked sentence: options of a prompt that have as many pieces."""
    same: dict[bytes, list[int]] = {}
    for number, question in enumerate(masked):
        same.setdefault(question.row.input_ids.tobytes(), []).append(number)
    return list(same.values())


def _piece_notes(
    questions: Sequence[_FilledPrompt], masked: Sequence[_MaskedPrompt], text: TextEncoder
) -> ProbeNotes:
    several = set()
    unknown = set()
    for question, read in zip(questions, masked, strict=True):
        option = question.filled.words
        if len(read.pieces) > 1:
            several.add(option)
        if text.tokenizer.unk_token_id in read.pieces:
            unknown.add(option)
    return {"several_pieces": sorted(several), "unknown_pieces": sorted(unknown)}


# -- words and their states --------------------------------------------------------------------------------------------


class TextSpan(NamedTuple):
    """A stretch of a text, in characters."""

    text: str
    start: int
    stop: int

    @property
    def words(self) -> str:
        """The stretch itself."""
        return self.text[self.start : self.stop]


def fill_slot(frame: str, slot: str, word: str) -> TextSpan:
    """The word in the place of a frame's slot."""
    start = frame.index(slot)
    return TextSpan(frame.replace(slot, word), start, start + len(word))


def fill_prompt(prompt: str, word: str) -> TextSpan:
    """The whole prompt, filled with a word or, if that is empty, without its slot."""
    text = " ".join(prompt.replace(MASK, word).split())
    return TextSpan(text, 0, len(text))


def tokenize_spans(
    parts: Sequence[TextSpan], text: TextRowEncoder | None, clip: ClipRowEncoder | None = None
) -> list[Sample]:
    """The parts' texts, tokenised for a text encoder or a CLIP text tower; raises InputError if one is too long."""
    examples = [Example(part.text, part.text) for part in parts]
    samples = TextDataset(examples, text, clip).get(range(len(examples)))
    for sample in samples:
        if sample.truncated_tokens:
            raise InputError(
                f"{sample.id!r} is {sample.truncated_tokens} pieces too long; raise --max-length, if the model can"
            )
    return samples


def tokens_of_span(part: TextSpan, row: TextRow) -> np.ndarray:
    """Which pieces of a row belong to the words of a part, (T,) bool; raises InputError if none does."""
    words = word_spans(part.text)
    overlaps = (words[:, 0] < part.stop) & (words[:, 1] > part.start)
    inside = np.isin(row.word_ids, np.flatnonzero(overlaps))
    if not inside.any():
        raise InputError(f"{part.text!r}: the tokenizer makes no pieces of {part.words!r}")
    return inside


def iterate_texts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The values in their order, `BATCH` at a time."""
    for start in track(range(0, len(values), BATCH), "texts", "batch"):
        yield values[start : start + BATCH]


class NounStates(NamedTuple):
    """Vectors of nouns, by noun."""

    states: dict[str, np.ndarray]
    """(D,): the mean over frames of the noun's state in each."""
    word_embeddings: dict[str, np.ndarray]
    """(E,): the mean of its pieces' word embeddings, before any layer and without a sentence."""
    unknown: list[str]
    """Nouns with pieces that the tokenizer does not know."""


class WordStateEncoder(NamedTuple):
    """How a model reads words in their sentences."""

    samples: Callable[[Sequence[TextSpan]], list[Sample]]
    row: Callable[[Sample], TextRow]
    """The pieces that the model itself reads."""
    states: Callable[[Sequence[TextSpan], Sequence[Sample]], list[Tensor]]
    """A state (D,) on the CPU of each part."""
    table: Tensor
    """Word embeddings (vocabulary, E)."""
    unknown: int | None
    """The piece that stands for what the tokenizer does not know."""

    def of(self, parts: Sequence[TextSpan]) -> list[Tensor]:
        """A state (D,) of each part; raises InputError if a text is too long, or has no pieces of its part."""
        return self.states(parts, self.samples(parts))


@torch.no_grad()
def noun_states(
    source: str | Path,
    nouns: Sequence[str],
    frames: Sequence[str],
    layer: int = LAST_LAYER,
    max_length: int = 64,
) -> NounStates:
    """States of nouns, each in every frame (a sentence with one `{}`).

    Of a text encoder, the mean over the noun's own pieces of what `layer` puts out: 0 the embeddings before the first
    layer, k the k-th layer, -1 the last. Of a CLIP-like tower always the text feature of the whole frame.

    Raises InputError for a frame without a place for the noun, a layer that does not exist, a noun of which the
    tokenizer makes no pieces, and a text of more than `max_length` pieces.
    """
    for frame in frames:
        if frame.count(SLOT) != 1:
            raise InputError(
                f"--templates {frame!r}: expected a sentence with one {SLOT} for the noun"
            )
    if not frames:
        raise InputError("--templates: expected at least one sentence with {} for the noun")
    reader = load_word_state_encoder(source, layer, max_length)
    distinct = list(dict.fromkeys(nouns))
    found = NounStates({}, {}, [])
    for some in iterate_texts(distinct):
        by_frame = [reader.of([fill_slot(frame, SLOT, noun) for noun in some]) for frame in frames]
        _words(reader, some, frames[0], found)
        for noun, *vectors in zip(some, *by_frame, strict=True):
            found.states[noun] = torch.stack(vectors).mean(0).numpy()
    return found


def _words(reader: WordStateEncoder, nouns: Sequence[str], frame: str, found: NounStates) -> None:
    """Add the nouns' word embeddings; of pieces as they are inside a sentence, where a space may be part of them."""
    parts = [fill_slot(frame, SLOT, noun) for noun in nouns]
    for noun, part, sample in zip(nouns, parts, reader.samples(parts), strict=True):
        row = reader.row(sample)
        pieces = row.input_ids[tokens_of_span(part, row)]
        found.word_embeddings[noun] = reader.table[torch.from_numpy(pieces)].mean(0).numpy()
        if reader.unknown in pieces:
            found.unknown.append(noun)


def load_word_state_encoder(
    source: str | Path, layer: int = LAST_LAYER, max_length: int = 64
) -> WordStateEncoder:
    """What reads with a text encoder's `layer`, or with a CLIP-like tower, a hub id or folder.

    A text encoder gives the mean of its states over a part's own pieces, special ones left out; a CLIP-like tower
    always the text feature of the whole text (its end token). Raises InputError for a layer that does not exist.
    """
    is_tower = load_config(source).model_type in CLIP_LIKE
    return _tower(source, layer) if is_tower else _encoder(source, layer, max_length)


def _encoder(source: str | Path, layer: int, max_length: int) -> WordStateEncoder:
    device = PartialState().device
    model = load_text_encoder(source).to(device).eval()
    text_input, _ = model.inputs(max_length)
    count = model.encoder.config.num_hidden_layers
    if not LAST_LAYER <= layer <= count:
        raise InputError(
            f"--layer {layer}: {source} has layers 0 to {count}, or {LAST_LAYER} for the last"
        )

    def row(sample: Sample) -> TextRow:
        return require(sample.text, "text", "a state")

    def states(parts: Sequence[TextSpan], samples: Sequence[Sample]) -> list[Tensor]:
        batch = collate(samples).to(device)
        if layer == LAST_LAYER:
            out = require(model(batch).text, "text", "a state")
        else:
            out = model.hidden_states(batch)[layer]
        means = []
        for part, sample, padded in zip(parts, samples, out.float().cpu(), strict=True):
            own = row(sample)
            inside = torch.from_numpy(tokens_of_span(part, own))
            means.append(padded[: len(own.input_ids)][inside].mean(0))
        return means

    return WordStateEncoder(
        samples=lambda parts: tokenize_spans(parts, text_input),
        row=row,
        states=states,
        table=model.word_embeddings().weight.float().cpu(),
        unknown=model.tokenizer.unk_token_id,
    )


def _tower(source: str | Path, layer: int) -> WordStateEncoder:
    if layer != LAST_LAYER:
        raise InputError(
            f"--layer {layer}: {source} is a CLIP-like tower, read at its end; leave --layer out"
        )
    device = PartialState().device
    tower, tokenizer = load_clip_text_tower(source)
    tower.to(device).eval()
    windows = ClipRowEncoder(tokenizer, tower.context_length, max_windows=1)

    def states(_: Sequence[TextSpan], samples: Sequence[Sample]) -> list[Tensor]:
        batch = collate(samples).to(device)
        _, features = tower(require(batch.clip, "clip", "a state"))
        return list(features.float().cpu())

    return WordStateEncoder(
        samples=lambda parts: tokenize_spans(parts, None, windows),
        row=lambda sample: require(sample.clip, "clip", "a state"),
        states=states,
        table=tower.token_embedding_weight.float().cpu(),
        unknown=_unknown(tokenizer),
    )


def _unknown(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The piece for what a tower's tokenizer does not know; None if that is its end token, as OpenAI's CLIP has it."""
    unknown: int | None = tokenizer.unk_token_id
    return None if unknown == tokenizer.eos_token_id else unknown

"""What an encoder answers when asked how a thing looks: by masked LM, by embedding, by Stroop probing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from accelerate import PartialState

from groundling.core.batch import Row, Sample, collate, needed
from groundling.core.errors import InputError
from groundling.models.clip import CLIP_LIKE
from groundling.models.heads import LMHead
from groundling.models.loading import load_config
from groundling.models.saved_heads import start_lm_head
from groundling.models.text import TextEncoder, load_text_encoder
from groundling.studies.knowledge.states import (
    Part,
    batches,
    filled,
    pieces_of,
    reader_of,
    samples_of,
    whole,
)
from groundling.studies.knowledge.visual_facts import MASK, VisualFact

FRAMES = ("{}", "there is a {} .")
"""Neutral surroundings of a word in the embedding mode: none, and a sentence that says nothing of its looks."""

HEADLESS = "expected a text encoder with a masked-LM head; --modes embedding stroop need none"
"""What to do about a model that cannot fill a mask."""

Answers = list[dict[str, np.ndarray]]
"""Per fact and template, a number per option (options,); the highest is the model's answer."""

Notes = dict[str, str | list[str]]
"""What there is to know of the answers, by name: `head`, `several_pieces`, `unknown_pieces` of `fill_mask`."""

# -- by embedding ------------------------------------------------------------------------------------------------------


def embedding(
    source: str | Path, facts: Sequence[VisualFact], max_length: int = 64
) -> tuple[Answers, Notes]:
    """Cosine of the subject's and each option's embedding, both in the same neutral frame; the frames are templates.

    `source` is a hub id or folder of a text encoder or CLIP-like model. Raises InputError if it is neither, or a text
    has more than `max_length` pieces.
    """
    words: dict[str, None] = {}  # in order, each once
    for fact in facts:
        words.update(dict.fromkeys((fact.subject, *fact.options)))
    parts = [filled(frame, "{}", word) for frame in FRAMES for word in words]
    vectors = embedder(source, max_length)(parts)
    answers = []
    for fact in facts:
        by_frame = {}
        for frame in FRAMES:
            subject = vectors[filled(frame, "{}", fact.subject)]
            options = [vectors[filled(frame, "{}", option)] for option in fact.options]
            by_frame[frame] = np.stack(options) @ subject
        answers.append(by_frame)
    return answers, {}


def stroop(
    source: str | Path, facts: Sequence[VisualFact], max_length: int = 64
) -> tuple[Answers, Notes]:
    """Cosine of the prompt filled with an option and the prompt with its slot taken out.

    Stroop probing is of "Is BERT Blind?" (Alper et al., CVPR 2023). `source`, `max_length` and errors are those of
    `embedding`.
    """
    parts = []
    for fact in facts:
        for prompt in fact.prompts.values():
            parts += [whole(prompt, word) for word in ("", *fact.options)]
    vectors = embedder(source, max_length)(parts)
    answers = []
    for fact in facts:
        by_template = {}
        for name, prompt in fact.prompts.items():
            without = vectors[whole(prompt, "")]
            said = [vectors[whole(prompt, option)] for option in fact.options]
            by_template[name] = np.stack(said) @ without
        answers.append(by_template)
    return answers, {}


def embedder(
    source: str | Path, max_length: int = 64
) -> Callable[[Iterable[Part]], dict[Part, np.ndarray]]:
    """A function from parts of texts to unit vectors (D,), the states that `reader_of` has of them."""
    reader = reader_of(source, max_length=max_length)

    @torch.no_grad()
    def embed(parts: Iterable[Part]) -> dict[Part, np.ndarray]:
        distinct = list(dict.fromkeys(parts))
        embedded = {}
        for batch in batches(distinct):
            for part, vector in zip(batch, reader.of(batch), strict=True):
                embedded[part] = (vector / vector.norm()).numpy()
        return embedded

    return embed


# -- by masked LM ------------------------------------------------------------------------------------------------------


class _Question(NamedTuple):
    """An option in the place of a prompt's mask."""

    fact: int
    template: str
    option: int
    filled: Part


class _Masked(NamedTuple):
    """A question as the model reads it."""

    row: Row
    """The filled prompt, its option's pieces replaced by masks."""
    pieces: np.ndarray
    """(masks,) int64: the pieces that were there."""


@torch.no_grad()
def fill_mask(
    source: str | Path, facts: Sequence[VisualFact], max_length: int = 64
) -> tuple[Answers, Notes]:
    """Log-probability of each option in the prompt's place, under as many masks as it has pieces, mean per piece.

    The pieces are those the option has in the filled prompt, so a byte-level tokenizer's space before it counts. Notes
    tell whose `head` it is, and which options have `several_pieces` or `unknown_pieces`.

    Raises InputError if `source` is no text encoder with a masked-LM head, or a text has more than `max_length` pieces.
    """
    text, head, origin = _with_head(source)
    questions = _questions(facts)
    masked = _mask(questions, text, max_length)
    answers: Answers = []
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
        raise InputError(f"{source}: a CLIP-like model fills no mask; {HEADLESS}")
    text = load_text_encoder(source)
    if text.tokenizer.mask_token_id is None:
        raise InputError(f"{source}: the tokenizer has no mask token; {HEADLESS}")
    sizes = text.sizes
    head = LMHead(sizes.text, sizes.word_table, sizes.activation, sizes.epsilon)
    origin = start_lm_head(head, source, text.encoder.config.model_type)
    if origin == "new":
        # A head that was trained on joint states, after cross-modal layers, is none: it never read these states.
        raise InputError(
            f"{source}: no masked-LM head of this encoder's own is saved there; {HEADLESS}"
        )
    device = PartialState().device
    return text.to(device).eval(), head.to(device).eval(), origin


def _questions(facts: Sequence[VisualFact]) -> list[_Question]:
    questions = []
    for number, fact in enumerate(facts):
        for template, prompt in fact.prompts.items():
            for place, option in enumerate(fact.options):
                part = filled(prompt, MASK, option)
                questions.append(_Question(number, template, place, part))
    return questions


def _mask(questions: Sequence[_Question], text: TextEncoder, max_length: int) -> list[_Masked]:
    parts = [question.filled for question in questions]
    text_input, _ = text.inputs(max_length)
    masked = []
    for part, sample in zip(parts, samples_of(parts, text_input), strict=True):
        row = needed(sample.text, "text", "masked LM")
        inside = pieces_of(part, row)
        ids = np.where(inside, text.tokenizer.mask_token_id, row.ids)
        masked.append(_Masked(replace(row, ids=ids), row.ids[inside]))
    return masked


def _log_probabilities(
    text: TextEncoder, head: LMHead, masked: Sequence[_Masked]
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Numbers of questions that share a masked sentence, and its log-probabilities (masks, vocabulary)."""
    device = PartialState().device
    mask = text.tokenizer.mask_token_id
    for sharing in batches(_sharing(masked)):
        samples = [Sample(str(numbers[0]), masked[numbers[0]].row) for numbers in sharing]
        batch = collate(samples).to(device)
        encoded = text(batch)
        states = needed(encoded.text, "text", "masked LM")
        is_mask = needed(batch.text, "text", "masked LM").ids == mask
        for place, numbers in enumerate(sharing):
            logits = head(states[place, is_mask[place]], encoded.word_table)
            yield numbers, logits.float().log_softmax(-1).cpu().numpy()


def _sharing(masked: Sequence[_Masked]) -> list[list[int]]:
    """Numbers of questions with the same masked sentence: options of a prompt that have as many pieces."""
    same: dict[bytes, list[int]] = {}
    for number, question in enumerate(masked):
        same.setdefault(question.row.ids.tobytes(), []).append(number)
    return list(same.values())


def _piece_notes(
    questions: Sequence[_Question], masked: Sequence[_Masked], text: TextEncoder
) -> Notes:
    several = set()
    unknown = set()
    for question, read in zip(questions, masked, strict=True):
        option = question.filled.words
        if len(read.pieces) > 1:
            several.add(option)
        if text.tokenizer.unk_token_id in read.pieces:
            unknown.add(option)
    return {"several_pieces": sorted(several), "unknown_pieces": sorted(unknown)}

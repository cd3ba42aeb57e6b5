"""What an encoder answers when asked how a thing looks: by masked LM, by embedding, by Stroop probing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor

from groundling.batch import Example, Row, Sample, collate
from groundling.checkpoint import start_lm_head
from groundling.data.samples import TextInput, TextSamples, WindowInput
from groundling.data.visual_facts import MASK, VisualFact
from groundling.data.words import spans
from groundling.errors import InputError
from groundling.models.clip import CLIP_LIKE, load_clip_text
from groundling.models.heads import LMHead
from groundling.models.loading import load_config
from groundling.models.text import TextEncoder, load_text_encoder

FRAMES = ("{}", "there is a {} .")
"""Neutral surroundings of a word in the embedding mode: none, and a sentence that says nothing of its looks."""

BATCH = 64
"""Texts run at a time."""

Answers = list[dict[str, np.ndarray]]
"""Per fact and template, a number per option (options,); the highest is the model's answer."""


class Part(NamedTuple):
    """A stretch of a text, in characters."""

    text: str
    start: int
    stop: int


def _put(frame: str, slot: str, word: str) -> Part:
    at = frame.index(slot)
    return Part(frame.replace(slot, word), at, at + len(word))


def _samples(
    parts: Sequence[Part], text: TextInput | None, clip: WindowInput | None = None
) -> list[Sample]:
    samples = TextSamples([Example(p.text, p.text) for p in parts], text, clip).get(
        range(len(parts))
    )
    for sample in samples:
        if sample.dropped:
            raise InputError(
                f"{sample.id!r} is {sample.dropped} pieces too long; raise --max-length, if the model can"
            )
    return samples


def _pieces(part: Part, row: Row) -> np.ndarray:
    """Which pieces of a row (T,) belong to the words of a part."""
    words = spans(part.text)
    inside = np.flatnonzero((words[:, 0] < part.stop) & (words[:, 1] > part.start))
    if not (found := np.isin(row.word, inside)).any():
        raise InputError(
            f"{part.text!r}: the tokenizer makes no pieces of {part.text[part.start : part.stop]!r}"
        )
    return found


def embedder(
    source: str | Path, max_length: int = 64
) -> Callable[[Iterable[Part]], dict[Part, np.ndarray]]:
    """A function from parts of texts to unit vectors (D,).

    A text encoder gives the mean of its last states over the part's own pieces, special ones left out; a CLIP-like
    tower always the text feature of the whole text (its end token).
    """
    device, mean = PartialState().device, load_config(source).model_type not in CLIP_LIKE
    model: Any
    sides: tuple[TextInput | None, WindowInput | None]
    if mean:
        model = load_text_encoder(source)
        sides = model.inputs(max_length)
    else:
        model, tokenizer = load_clip_text(source)
        sides = (None, WindowInput(tokenizer, model.window, max_windows=1))
    model.to(device).eval()

    @torch.no_grad()
    def embed(parts: Iterable[Part]) -> dict[Part, np.ndarray]:
        distinct, found = list(dict.fromkeys(parts)), {}
        for start in range(0, len(distinct), BATCH):
            chosen = distinct[start : start + BATCH]
            samples = _samples(chosen, *sides)
            batch = collate(samples).to(device)
            states: Tensor = model(batch).text if mean else model(batch.clip)[1]
            for part, sample, own in zip(chosen, samples, states.float().cpu(), strict=True):
                if mean:
                    assert sample.text is not None
                    own = own[: len(sample.text.ids)][
                        torch.from_numpy(_pieces(part, sample.text))
                    ].mean(0)
                found[part] = (own / own.norm()).numpy()
        return found

    return embed


def _with_head(source: str | Path) -> tuple[TextEncoder, LMHead, str]:
    """The encoder and its masked-LM head, and whose head it is: an earlier run's, or the checkpoint's own."""
    other = "expected a text encoder with a masked-LM head; --modes embedding stroop need none"
    if load_config(source).model_type in CLIP_LIKE:
        raise InputError(f"{source}: a CLIP-like model fills no mask; {other}")
    text = load_text_encoder(source)
    if text.tokenizer.mask_token_id is None:
        raise InputError(f"{source}: the tokenizer has no mask token; {other}")
    head = LMHead(text.sizes.text, text.sizes.word_table)
    origin = start_lm_head(head, source, text.encoder.config.model_type)
    if origin != "new":
        return text, head, origin
    raise InputError(f"{source}: no masked-LM head there; {other}")


@torch.no_grad()
def fill_mask(
    source: str | Path, facts: Sequence[VisualFact], max_length: int = 64
) -> tuple[Answers, dict[str, Any]]:
    """Log-probability of each option in the prompt's place, under as many masks as it has pieces, mean per piece.

    The pieces are those the option has in the filled prompt, so a byte-level tokenizer's space before it counts.
    """
    text, head, origin = _with_head(source)
    device, mask = PartialState().device, text.tokenizer.mask_token_id
    text.to(device).eval(), head.to(device).eval()
    slots = [
        (f, t, o)
        for f, fact in enumerate(facts)
        for t in fact.prompts
        for o in range(len(fact.options))
    ]
    parts = [_put(facts[f].prompts[t], MASK, facts[f].options[o]) for f, t, o in slots]
    wanted, rows = [], []
    same: dict[bytes, list[int]] = {}  # options of as many pieces share a masked sentence
    several: set[str] = set()
    unknown: set[str] = set()
    for number, (part, sample) in enumerate(
        zip(parts, _samples(parts, text.inputs(max_length)[0]), strict=True)
    ):
        assert sample.text is not None
        at = _pieces(part, sample.text)
        wanted.append(sample.text.ids[at])
        option = {part.text[part.start : part.stop]}
        several |= option if len(wanted[-1]) > 1 else set()
        unknown |= option if text.tokenizer.unk_token_id in wanted[-1] else set()
        rows.append(replace(sample.text, ids=np.where(at, mask, sample.text.ids)))
        same.setdefault(rows[-1].ids.tobytes(), []).append(number)
    answers: Answers = [{t: np.empty(len(fact.options)) for t in fact.prompts} for fact in facts]
    sharing = list(same.values())
    for start in range(0, len(sharing), BATCH):
        chosen = sharing[start : start + BATCH]
        batch = collate([Sample(str(numbers[0]), rows[numbers[0]]) for numbers in chosen]).to(
            device
        )
        assert batch.text is not None
        encoded = text(batch)
        for i, numbers in enumerate(chosen):
            logits = head(encoded.text[i, batch.text.ids[i] == mask], encoded.word_table)
            logs = logits.float().log_softmax(-1).cpu().numpy()  # (masks, vocabulary)
            for number in numbers:
                f, template, o = slots[number]
                answers[f][template][o] = logs[np.arange(len(logs)), wanted[number]].mean()
    return answers, {
        "head": origin,
        "several_pieces": sorted(several),
        "unknown_pieces": sorted(unknown),
    }


def embedding(
    source: str | Path, facts: Sequence[VisualFact], max_length: int = 64
) -> tuple[Answers, dict[str, Any]]:
    """Cosine of the subject's and each option's embedding, both in the same neutral frame."""
    embed = embedder(source, max_length)
    words = dict.fromkeys(word for fact in facts for word in (fact.subject, *fact.options))
    at = embed(_put(frame, "{}", word) for frame in FRAMES for word in words)

    def cosines(fact: VisualFact, frame: str) -> np.ndarray:
        options = np.stack([at[_put(frame, "{}", option)] for option in fact.options])
        return options @ at[_put(frame, "{}", fact.subject)]

    return [{frame: cosines(fact, frame) for frame in FRAMES} for fact in facts], {}


def stroop(
    source: str | Path, facts: Sequence[VisualFact], max_length: int = 64
) -> tuple[Answers, dict[str, Any]]:
    """Cosine of the prompt filled with an option and the prompt with its slot taken out (Is BERT Blind?, CVPR 2023)."""

    def sides(prompt: str, options: Sequence[str]) -> list[Part]:
        texts = [prompt.replace(MASK, option) for option in ("", *options)]
        return [Part(text, 0, len(text)) for text in (" ".join(text.split()) for text in texts)]

    parts = [
        {name: sides(prompt, fact.options) for name, prompt in fact.prompts.items()}
        for fact in facts
    ]
    at = embedder(source, max_length)(
        part for own in parts for some in own.values() for part in some
    )
    return [
        {
            name: np.stack([at[filled] for filled in some[1:]]) @ at[some[0]]
            for name, some in own.items()
        }
        for own in parts
    ], {}

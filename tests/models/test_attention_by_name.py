"""Attention maps by name: equal to Hugging Face's, in order, with their places, and none of them held."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy
from typing import Any

import pytest
import torch
from tiny import homes, toys
from torch import Tensor, nn

from groundling.core.batch import Batch, ClipWindows, Example, collate
from groundling.data.samples import ClipRowEncoder, TextDataset
from groundling.models.attention import AttentionMap, PositionKind
from groundling.models.clip import ClipTextEncoder
from groundling.models.text_encoder import TextEncoder

ENCODERS = ("bert", "roberta", "electra", "deberta", "modernbert")
TEXTS = [
    Example("short", "a dog"),
    Example("pair", "a red dog runs", text_pair="two cats wait on the beach"),
    Example("long", " ".join(toys.sentences()[:3])),
]
LAYERS = 2
"""Of each toy."""


def read(model: Any) -> Batch:
    """The same three texts for any student, two of them padded."""
    return collate(TextDataset(TEXTS, *model.inputs(48)).get(range(len(TEXTS))))


def theirs(encoder: Any, **inputs: Tensor) -> tuple[Tensor, ...]:
    """What HF's own `output_attentions` gives, with eager attention."""
    eager = deepcopy(encoder)
    eager.set_attn_implementation("eager")
    attentions: tuple[Tensor, ...] = eager(**inputs, output_attentions=True).attentions
    return attentions


def of_text(model: TextEncoder, batch: Batch) -> dict[str, Tensor]:
    assert batch.text is not None
    inputs = {"input_ids": batch.text.input_ids, "attention_mask": batch.text.attention_mask.long()}
    if model.has_types:
        inputs["token_type_ids"] = batch.text.token_type_ids
    return inputs


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_maps_of_a_text_encoder_are_hfs(name: str, student: Any) -> None:
    model = student(name)
    batch = read(model)
    configured = model.encoder.config._attn_implementation
    told: list[AttentionMap] = []
    plain, watched, again = model(batch), model(batch, attention=told.append), model(batch)
    mask, special = batch.text.attention_mask, batch.text.special_tokens_mask
    torch.testing.assert_close(watched.text[mask], plain.text[mask], rtol=0, atol=1e-5)
    assert torch.equal(again.text, plain.text)
    assert model.encoder.config._attn_implementation == configured
    assert not any(module._forward_hooks for module in model.modules())
    expected = theirs(model.encoder, **of_text(model, batch))
    assert len(expected) == LAYERS
    assert [(one.name, one.layer) for one in told] == [("self", n) for n in range(LAYERS)]
    for one, weights in zip(told, expected, strict=True):
        assert weights.std() > 0.01
        torch.testing.assert_close(one.weights, weights, rtol=0, atol=0)
        assert torch.equal(one.rows.kinds, one.columns.kinds)
        assert torch.equal(one.columns.kinds != PositionKind.PADDING, mask)
        assert torch.equal(one.columns.kinds == PositionKind.SPECIAL, special & mask)
        assert torch.equal(one.columns.indices[0], torch.arange(mask.shape[1]))
        # A padded column is never looked at; what a padded row says means nothing.
        assert not (one.weights.transpose(1, 2)[mask] * ~rows_of(mask)).any()
    assert not torch.allclose(told[0].weights, told[1].weights)


def test_an_error_while_watching_leaves_the_encoder_as_it_was(student: Any) -> None:
    model = student()
    before = model.encoder.config._attn_implementation

    def fails(one: AttentionMap) -> None:
        raise KeyError(one.name)

    with pytest.raises(KeyError):
        model(read(model), attention=fails)
    assert model.encoder.config._attn_implementation == before
    assert not any(module._forward_hooks for module in model.modules())


# -- CLIP-like towers --------------------------------------------------------------------------------------------------


def tower_maps(clip: nn.Module, windows: ClipWindows) -> tuple[Tensor, ...]:
    tokens = windows.input_ids.shape[1]
    full = clip.fixed_length or tokens
    ids = nn.functional.pad(windows.input_ids, (0, full - tokens), value=windows.pad_token_id)
    inputs = {"input_ids": ids}
    if not clip.fixed_length:
        inputs["attention_mask"] = windows.attention_mask.long()
    return tuple(map_[:, :, :tokens, :tokens] for map_ in theirs(clip.tower, **inputs))


@pytest.mark.parametrize("name", ["clip", "siglip"])
@torch.no_grad()
def test_maps_of_a_tower_are_hfs(name: str, tower: Any) -> None:
    clip, words = tower(name)
    texts = TextDataset(TEXTS, None, ClipRowEncoder(words, clip.context_length))
    windows = collate(texts.get(range(len(TEXTS)))).clip
    short = collate(texts.get([0])).clip  # SigLIP's padding is left out
    assert len(windows.input_ids) > len(TEXTS)
    for some in (windows, short):
        told: list[AttentionMap] = []
        watched = clip(some, told.append)
        expected = tower_maps(clip, some)
        assert [(one.name, one.layer) for one in told] == [("self", n) for n in range(LAYERS)]
        for one, weights in zip(told, expected, strict=True):
            torch.testing.assert_close(one.weights, weights, rtol=0, atol=0)
            assert torch.equal(one.rows.kinds != PositionKind.PADDING, some.attention_mask)
            ends = one.rows.kinds[torch.arange(len(some.eot_index)), some.eot_index]
            assert (ends == PositionKind.SPECIAL).all(), "every window ends with its end token"
        for one, other in zip(clip(some), watched, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


# -- both together -----------------------------------------------------------------------------------------------------

FOUR = ["text over clip", "clip over text", "text over text", "clip over clip"]


@torch.no_grad()
def test_a_cross_modal_model_tells_four_maps_a_layer(cross: Any) -> None:
    """Values mixed by the told weights are what each of the four attentions makes."""
    batch = collate(toys.both_sides(12).get([0, 7, 11]))
    plain = cross(batch)
    made: dict[tuple[str, int], tuple[Tensor, ...]] = {}
    parts = dict(zip(FOUR, ("text_cross", "clip_cross", "text_self", "clip_self"), strict=True))
    for number, layer in enumerate(cross.cross):
        for name, part in parts.items():
            layer.get_submodule(part).register_forward_hook(
                lambda _, inputs, output, key=(name, number): made.update(
                    {key: (*inputs[:2], output)}
                )
            )
    told: list[AttentionMap] = []
    watched = cross(batch, attention=told.append)
    for name in ("text", "visual", "joint_text", "joint_visual"):
        assert torch.equal(vars(plain)[name], vars(watched)[name]), name
    assert [(one.layer, one.name) for one in told] == [(n, name) for n in (0, 1) for name in FOUR]
    masks = {"text": batch.text.attention_mask, "clip": batch.clip.key_mask}
    for one in told:
        reader, _, seen = one.name.partition(" over ")
        assert torch.equal(one.rows.kinds != PositionKind.PADDING, masks[reader])
        assert torch.equal(one.columns.kinds != PositionKind.PADDING, masks[seen])
        assert one.weights.sum(-1) == pytest.approx(1, abs=1e-5)
        assert not one.weights.masked_select(~masks[seen][:, None, None, :]).any()
        attention = cross.cross[one.layer].get_submodule(parts[one.name])
        states, context, output = made[one.name, one.layer]
        values = attention.value(context).unflatten(-1, (attention.heads, -1)).transpose(1, 2)
        mixed = attention.out((one.weights @ values).transpose(1, 2).flatten(2))
        torch.testing.assert_close(attention.norm(states + mixed), output, rtol=0, atol=1e-5)


# -- nothing is held ---------------------------------------------------------------------------------------------------


class Forgets:
    """A callback that keeps no map, and looks whether anyone else keeps one of an earlier layer."""

    def __init__(self) -> None:
        self.told: dict[tuple[str, int], list[weakref.ref[Tensor]]] = {}
        self.alive: list[tuple[str, int]] = []

    def __call__(self, one: AttentionMap) -> None:
        self.alive += [place for place in self.still() if place[1] < one.layer]
        # A part of a larger map must not keep the larger one alive either.
        whole = one.weights if one.weights._base is None else one.weights._base
        self.told[one.name, one.layer] = [weakref.ref(one.weights), weakref.ref(whole)]

    def still(self) -> list[tuple[str, int]]:
        gc.collect()
        return [
            place for place, kept in self.told.items() if any(one() is not None for one in kept)
        ]


@pytest.mark.parametrize("name", ["bert", "deberta", "clip", "siglip", "cross"])
@torch.no_grad()
def test_no_layer_is_kept_while_the_next_is_told(
    name: str, student: Any, tower: Any, cross: Any
) -> None:
    # C7: all layers were held at once.
    if name == "cross":
        model, batch = cross, collate(toys.both_sides(12).get([0, 7, 11]))
    else:
        is_text = name in ENCODERS
        model = student(name) if is_text else ClipTextEncoder(*tower(name)).eval()
        batch = read(model)
    forgets = Forgets()
    encoded = model(batch, attention=forgets)
    assert {layer for _, layer in forgets.told} == {0, 1}
    assert forgets.alive == forgets.still() == [] and encoded is not None


# -- an encoder without maps ------------------------------------------------------------------------------------------


def test_an_encoder_without_maps_is_one_line(bert_tokenizer: Any) -> None:
    encoder = toys.bert(len(bert_tokenizer))
    encoder.encoder.layer = nn.ModuleList()  # an encoder with nothing to attend
    model = TextEncoder(encoder, bert_tokenizer)
    told = homes.refused(lambda: model(read(model), attention=lambda one: None))
    assert "a bert model returns no attention weights" in told


def rows_of(mask: Tensor) -> Tensor:
    """The mask (T,) of its text, for each token: (tokens, 1, T)."""
    return mask.repeat_interleave(mask.sum(1), 0)[:, None]

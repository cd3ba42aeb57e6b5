"""Attention maps by name: equal to Hugging Face's, in order, with their places, and none of them held."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy
from typing import Any

import pytest
import torch
from tiny import toys
from torch import Tensor, nn

from groundling.core.batch import Batch, ClipWindows, Example, collate
from groundling.core.errors import InputError
from groundling.data.samples import ClipRowEncoder, TextDataset
from groundling.models.attention import AttentionMap, PositionKind, capture_attention
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
    told: list[AttentionMap] = []
    model(batch, attention=told.append)
    expected = theirs(model.encoder, **of_text(model, batch))
    assert [(one.name, one.layer) for one in told] == [("self", n) for n in range(len(expected))]
    assert len(told) == LAYERS
    for one, weights in zip(told, expected, strict=True):
        assert weights.std() > 0.01
        torch.testing.assert_close(one.weights, weights, rtol=0, atol=0)
    assert not torch.allclose(told[0].weights, told[1].weights)


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_places_say_what_rows_and_columns_are(name: str, student: Any) -> None:
    model = student(name)
    batch = read(model)
    told: list[AttentionMap] = []
    model(batch, attention=told.append)
    for one in told:
        assert torch.equal(one.rows.kinds, one.columns.kinds)
        assert one.weights.shape[2:] == one.rows.kinds.shape[1:] * 2
        inside = one.columns.kinds != PositionKind.PADDING
        assert torch.equal(inside, batch.text.attention_mask)
        assert inside.sum(1).unique().numel() == len(TEXTS), "the texts differ in length"
        # A padded column is never looked at; what a padded row says means nothing.
        rows = one.weights.transpose(1, 2)[inside]
        assert rows.sum(-1) == pytest.approx(1, abs=1e-5)
        assert not rows.masked_select(~inside.repeat_interleave(inside.sum(1), 0)[:, None]).any()
        special = one.columns.kinds == PositionKind.SPECIAL
        assert torch.equal(special, batch.text.special_tokens_mask & batch.text.attention_mask)
        assert torch.equal(one.columns.indices[0], torch.arange(inside.shape[1]))
    # [CLS] a dog [SEP], or each family's own.
    assert (told[0].rows.kinds[0] == PositionKind.TOKEN).sum() == batch.text.attention_mask[
        0
    ].sum() - 2


@pytest.mark.parametrize("name", ENCODERS)
def test_watching_changes_nothing(name: str, student: Any) -> None:
    model = student(name)
    batch = read(model)
    before = model.encoder.config._attn_implementation
    with torch.no_grad():
        plain = model(batch).text
        watched = model(batch, attention=lambda one: None).text
        again = model(batch).text
    inside = batch.text.attention_mask
    torch.testing.assert_close(watched[inside], plain[inside], rtol=0, atol=1e-5)
    assert torch.equal(again, plain)
    assert model.encoder.config._attn_implementation == before
    assert not any(module._forward_hooks for module in model.modules())


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
    samples = TextDataset(TEXTS, None, ClipRowEncoder(words, clip.context_length)).get(
        range(len(TEXTS))
    )
    windows = collate(samples).clip
    assert len(windows.input_ids) > len(TEXTS)
    told: list[AttentionMap] = []
    clip(windows, told.append)
    expected = tower_maps(clip, windows)
    assert [(one.name, one.layer) for one in told] == [("self", n) for n in range(len(expected))]
    for one, weights in zip(told, expected, strict=True):
        torch.testing.assert_close(one.weights, weights, rtol=0, atol=0)
        assert torch.equal(one.rows.kinds != PositionKind.PADDING, windows.attention_mask)
        edges = [one.rows.kinds[n, int(last)].item() for n, last in enumerate(windows.eot_index)]
        assert edges == [PositionKind.SPECIAL] * len(edges), "every window ends with its end token"
    short = collate(samples[:1]).clip  # SigLIP's padding is left out
    told.clear()
    clip(short, told.append)
    for one, weights in zip(told, tower_maps(clip, short), strict=True):
        torch.testing.assert_close(one.weights, weights, rtol=0, atol=0)
    plain = clip(windows)
    for one, other in zip(plain, clip(windows, lambda map_: None), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


# -- both together -----------------------------------------------------------------------------------------------------

FOUR = ["text over clip", "clip over text", "text over text", "clip over clip"]


@torch.no_grad()
def test_a_cross_modal_model_tells_four_maps_a_layer(cross: Any) -> None:
    batch = collate(toys.both_sides(12).get([0, 7, 11]))
    told: list[AttentionMap] = []
    watched = cross(batch, attention=told.append)
    assert [(one.layer, one.name) for one in told] == [(n, name) for n in (0, 1) for name in FOUR]
    masks = {"text": batch.text.attention_mask, "clip": batch.clip.key_mask}
    for one in told:
        reader, _, seen = one.name.partition(" over ")
        assert torch.equal(one.rows.kinds != PositionKind.PADDING, masks[reader])
        assert torch.equal(one.columns.kinds != PositionKind.PADDING, masks[seen])
        assert one.weights.shape == (3, 2 if reader == "text" else 1, *_sides(masks, reader, seen))
        assert one.weights.sum(-1) == pytest.approx(1, abs=1e-5)
        assert not one.weights.masked_select(~masks[seen][:, None, None, :]).any()
    plain = cross(batch)
    for name in ("text", "visual", "joint_text", "joint_visual"):
        assert torch.equal(vars(plain)[name], vars(watched)[name]), name


def _sides(masks: dict[str, Tensor], reader: str, seen: str) -> tuple[int, int]:
    return masks[reader].shape[1], masks[seen].shape[1]


@torch.no_grad()
def test_its_maps_are_what_its_layers_mix_with(cross: Any) -> None:
    """Values mixed by the told weights are what each of the four attentions makes."""
    batch = collate(toys.both_sides(12).get([0, 7, 11]))
    told: dict[tuple[str, int], Tensor] = {}
    states: dict[tuple[str, int], tuple[Tensor, ...]] = {}

    def keep(one: AttentionMap) -> None:
        told[one.name, one.layer] = one.weights

    parts = ("text_cross", "clip_cross", "text_self", "clip_self")
    for number, layer in enumerate(cross.cross):
        for name, part in zip(FOUR, parts, strict=True):
            attention = vars(layer)["_modules"][part]

            def hook(module: Any, inputs: Any, output: Any, key: Any = (name, number)) -> None:
                states[key] = (*inputs[:2], output)

            attention.register_forward_hook(hook)
    cross(batch, attention=keep)
    assert told.keys() == states.keys()
    for (name, number), weights in told.items():
        attention = vars(cross.cross[number])["_modules"][parts[FOUR.index(name)]]
        reader, over, made = states[name, number]
        values = attention.value(over).unflatten(-1, (attention.heads, -1)).transpose(1, 2)
        mixed = attention.out((weights @ values).transpose(1, 2).flatten(2))
        torch.testing.assert_close(attention.norm(reader + mixed), made, rtol=0, atol=1e-5)


# -- nothing is held ---------------------------------------------------------------------------------------------------


class Forgets:
    """A callback that keeps no map, and looks whether anyone else keeps one of an earlier layer."""

    def __init__(self) -> None:
        self.told: dict[tuple[str, int], list[weakref.ref[Tensor]]] = {}
        self.alive: list[tuple[str, int]] = []

    def __call__(self, one: AttentionMap) -> None:
        gc.collect()
        self.alive += [place for place in self.still() if place[1] < one.layer]
        # A part of a larger map must not keep the larger one alive either.
        whole = one.weights if one.weights._base is None else one.weights._base
        self.told[one.name, one.layer] = [weakref.ref(one.weights), weakref.ref(whole)]

    def still(self) -> list[tuple[str, int]]:
        return [
            place for place, kept in self.told.items() if any(one() is not None for one in kept)
        ]


@pytest.mark.parametrize("name", [*ENCODERS, "clip", "siglip", "cross"])
@torch.no_grad()
def test_no_layer_is_kept_while_the_next_is_told(
    name: str, student: Any, tower: Any, cross: Any
) -> None:
    # C7: all layers were held at once.
    if name == "cross":
        model = cross
        batch = collate(toys.both_sides(12).get([0, 7, 11]))
    elif name in ENCODERS:
        model = student(name)
        batch = read(model)
    else:
        model = ClipTextEncoder(*tower(name)).eval()
        batch = read(model)
    forgets = Forgets()
    encoded = model(batch, attention=forgets)
    assert {layer for _, layer in forgets.told} == {0, 1}
    assert forgets.alive == []
    gc.collect()
    assert forgets.still() == [] and encoded is not None


# -- an encoder without maps ------------------------------------------------------------------------------------------


def test_an_encoder_without_maps_is_one_line(bert_tokenizer: Any) -> None:
    encoder = toys.bert(len(bert_tokenizer))
    encoder.encoder.layer = nn.ModuleList()  # an encoder with nothing to attend
    model = TextEncoder(encoder, bert_tokenizer)
    with pytest.raises(InputError, match="a bert model returns no attention weights") as caught:
        model(read(model), attention=lambda one: None)
    assert "\n" not in str(caught.value)


def test_an_encoder_that_knows_no_eager_attention_is_one_line(student: Any) -> None:
    encoder = student().encoder

    class Convolutional(nn.Module):
        """As FNet: layers, but no attention."""

        config = encoder.config
        set_attn_implementation = encoder.set_attn_implementation

        def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
            return states, states  # 3 axes: no map

    model = Convolutional()
    with (
        pytest.raises(InputError, match="returns no attention weights"),
        capture_attention(model, lambda one: None, lambda: None),
    ):
        model(torch.zeros(1, 2, 3))

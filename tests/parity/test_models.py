"""Our models against Hugging Face: states, attention maps by name, and exported folders read without groundling."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from copy import deepcopy
from typing import Any

import pytest
import torch
from tiny import homes, toys
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    CLIPImageProcessorPil,
    CLIPTextModelWithProjection,
    SiglipTextModel,
)
from transformers.models.bert.modeling_bert import BertAttention, BertLayer

from groundling.commands.info.parameters import count_parameters
from groundling.core.batch import Batch, ClipWindows, Example, collate
from groundling.data.samples import ClipRowEncoder, TextDataset
from groundling.models.attention import AttentionMap, PositionKind
from groundling.models.clip import ClipDualEncoder, ClipTextEncoder, make_clip_text_tower
from groundling.models.cross_modal import CrossAttentionBlock, CrossModalLayer
from groundling.models.text_encoder import TextEncoder, load_text_encoder, save_tokenizer

STUDENTS = ("bert", "electra", "roberta", "deberta", "modernbert")
LENGTHS = [0, 7, 50, 63]  # samples of different length, two of them pairs


@pytest.mark.parametrize("name", STUDENTS)
@torch.no_grad()
def test_text_encoder_is_hf(name, student, texts):
    """HF's own call, exactly on a batch, and one text at a time without padding; as far as the encoder can read."""
    model = student(name)
    pairs = [(texts[0],), (texts[1], texts[-1]), ("a dog",), (texts[-4],), ("dog " * 200,)]
    examples = [Example(str(n), *pair) for n, pair in enumerate(pairs)]
    assert model.max_length == 64
    batch = collate(TextDataset(examples, *model.inputs(99)).get(range(5)))
    ids, mask = batch.text.input_ids, batch.text.attention_mask
    assert ids.shape == (5, 64)
    arguments = {"input_ids": ids, "attention_mask": mask.long()}
    if name in {"bert", "electra"}:
        arguments["token_type_ids"] = batch.text.token_type_ids
        assert batch.text.token_type_ids.max() == 1
    expected = model.encoder(**arguments)
    found = model(batch)
    assert torch.equal(found.text, expected.last_hidden_state)
    pools = name in {"bert", "roberta"}
    assert model.sizes.pooler_output == 32 * pools
    assert torch.equal(found.pooler_output, expected.pooler_output) if pools else not pools
    for row, pair in enumerate(pairs[:4]):
        inputs = model.tokenizer(*pair, return_tensors="pt")
        assert ids[row, mask[row]].tolist() == inputs["input_ids"][0].tolist()
        alone = model.encoder(**inputs).last_hidden_state[0]
        torch.testing.assert_close(found.text[row, : len(alone)], alone, rtol=0, atol=1e-5)


@torch.no_grad()
def test_clip_text_is_hf(clip, clip_tokenizer, samples):
    theirs = CLIPTextModelWithProjection(clip.config.text_config).eval()
    assert not theirs.load_state_dict(clip.state_dict(), strict=False).missing_keys
    windows = collate(samples.get(LENGTHS)).clip
    ids, mask = windows.input_ids, windows.attention_mask
    assert len(ids) > len(LENGTHS), "some texts have several windows"
    assert not mask.all(), "some windows are padded"
    states, pooled = make_clip_text_tower(clip)(windows)
    expected = theirs(input_ids=ids, attention_mask=mask.long())
    assert (pooled - expected.text_embeds).abs().max() <= 1e-6
    for row in range(len(ids)):
        alone = theirs(input_ids=ids[row, mask[row]][None])
        torch.testing.assert_close(pooled[row], alone.text_embeds[0], rtol=0, atol=1e-5)
        projected = theirs.text_projection(alone.last_hidden_state[0])
        torch.testing.assert_close(states[row, : len(projected)], projected, rtol=0, atol=1e-5)
    assert pooled.std() > 0.1, "features that are all alike would prove nothing"


@pytest.mark.parametrize("kind", ["model", "text model"])
@torch.no_grad()
def test_siglip_text_is_hf(kind, siglip, siglip_tokenizer, texts, tmp_path):
    """SigLIP attends to its padding: the features of a short text must not depend on its batch."""
    siglip.save_pretrained(tmp_path)
    theirs, report = SiglipTextModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    ours = make_clip_text_tower(siglip if kind == "model" else theirs)
    chosen = ["a dog", texts[0], "a"]
    inputs = siglip_tokenizer(
        chosen, padding="max_length", max_length=toys.WINDOW, truncation=True, return_tensors="pt"
    )
    expected = theirs(input_ids=inputs["input_ids"]).pooler_output
    assert expected.std() > 0.01
    windows = ClipRowEncoder(siglip_tokenizer, toys.WINDOW)
    data = TextDataset([Example(t, t) for t in chosen], None, windows)
    for rows in ([0, 1, 2], [0], [1], [2]):
        found = ours(collate(data.get(rows)).clip)[1]
        torch.testing.assert_close(found, expected[rows], rtol=0, atol=1e-6)


@torch.no_grad()
def test_two_towers_are_clip_model(clip, clip_tokenizer, pictures):
    towers = ClipDualEncoder(clip, clip_tokenizer).eval()
    batch = collate(pictures.get([0, 1, 2, 5]))
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
    )
    images = [pixels.permute(1, 2, 0).numpy() for pixels in batch.pixels]
    expected = clip(
        input_ids=batch.clip.input_ids,
        attention_mask=batch.clip.attention_mask.long(),
        pixel_values=processor(images, return_tensors="pt")["pixel_values"],
    )
    found = towers(batch)
    logits = found.scale * found.text_embeds @ found.image_embeds.T
    torch.testing.assert_close(logits, expected.logits_per_text, rtol=0, atol=1e-5)
    assert found.text_embeds.norm(dim=1).sub(1).abs().max() < 1e-6


@pytest.fixture
def streams():
    torch.manual_seed(5)
    text, clip = torch.randn(3, 7, 32), torch.randn(3, 11, 24)
    text_mask, clip_mask = torch.ones(3, 7, dtype=torch.bool), torch.ones(3, 11, dtype=torch.bool)
    text_mask[1, 4:] = clip_mask[2, 6:] = False
    return text, clip, text_mask, clip_mask


def randomise(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


def bert_attention(ours: CrossAttentionBlock, cross: bool) -> BertAttention:
    width, over = ours.query.in_features, ours.key.in_features
    config = BertConfig(hidden_size=width, num_attention_heads=ours.heads)
    config._attn_implementation = "eager"
    theirs = BertAttention(config, is_cross_attention=cross).eval()
    inner = theirs.self
    inner.key, inner.value = nn.Linear(over, width), nn.Linear(over, width)
    pairs = (
        (inner.query, ours.query),
        (inner.key, ours.key),
        (inner.value, ours.value),
        (theirs.output.dense, ours.out),
        (theirs.output.LayerNorm, ours.norm),
    )
    for their, our in pairs:
        their.load_state_dict(our.state_dict())
    return theirs


def additive(mask: torch.Tensor) -> torch.Tensor:
    return (~mask)[:, None, None, :].float() * torch.finfo(torch.float).min


@torch.no_grad()
def test_cross_layer_is_made_of_bert_attentions(streams):
    text, clip, text_mask, clip_mask = streams
    layer = CrossModalLayer(32, 2, 24, 3, 64, 0.1).eval()
    randomise(layer)

    def over(ours, states, source, mask):
        return bert_attention(ours, True)(states, None, source, additive(mask))[0]

    def over_itself(ours, states, mask):
        return bert_attention(ours, False)(states, additive(mask))[0]

    def forward(ours, states):
        width = states.shape[-1]
        config = BertConfig(hidden_size=width, intermediate_size=64, num_attention_heads=1)
        config._attn_implementation = "eager"
        theirs = BertLayer(config).eval()
        theirs.intermediate.dense.load_state_dict(ours.up.state_dict())
        theirs.output.dense.load_state_dict(ours.down.state_dict())
        theirs.output.LayerNorm.load_state_dict(ours.norm.state_dict())
        return theirs.feed_forward_chunk(states)

    # Both cross-attentions read the states from before the layer.
    new_text = over(layer.text_cross, text, clip, clip_mask)
    new_clip = over(layer.clip_cross, clip, text, text_mask)
    new_text = over_itself(layer.text_self, new_text, text_mask)
    new_clip = over_itself(layer.clip_self, new_clip, clip_mask)
    expected = forward(layer.text_forward, new_text), forward(layer.clip_forward, new_clip)
    found = layer(text, clip, text_mask, clip_mask)
    for one, other, mask in zip(found, expected, (text_mask, clip_mask), strict=True):
        torch.testing.assert_close(one[mask], other[mask], rtol=0, atol=2e-5)


@torch.no_grad()
def test_cross_modal_leaves_the_text_encoder_as_it_was(cross, samples):
    batch = collate(samples.get(LENGTHS))
    both, alone = cross(batch), cross.text(batch)
    assert torch.equal(both.text, alone.text)
    assert (both.joint_text - both.text).abs().max() > 0.1
    # A token's visual state sits where its token sits.
    windows, states = batch.clip, cross.clip(batch.clip)[0]
    assert both.visual.shape == (*windows.key_mask.shape, 24)
    for b in range(len(batch)):
        numbers = (windows.row_index == b).nonzero()[:, 0].tolist()
        own = torch.cat([states[n, windows.attention_mask[n]] for n in numbers])
        assert torch.equal(both.visual[b, : len(own)], own)
        assert not both.visual[b, len(own) :].any()


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        ("xdbert-bert-base", 202059009),
        ("xdbert-electra-large", 442671617),
        ("xdbert-electra-base", 201468417),
    ],
)
def test_published_parameter_counts(preset, parameters):
    found = count_parameters(preset)
    assert found["total"] == parameters
    assert sum(found["components"].values()) == parameters


@torch.no_grad()
def test_exported_folders_need_nothing_of_groundling(student, cross, tmp_path, monkeypatch):
    models = {name: student(name) for name in STUDENTS}
    for name, model in models.items():
        model.export(tmp_path / name)
    cross.export(tmp_path / "cross")
    models["cross/text"] = cross.text
    texts = ["a naïve café owner isn't selling 1,000 crêpes", "a dog 🐶"]
    for name, model in models.items():
        folder = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "groundling", None)  # any import of it fails
            stock, report = AutoModel.from_pretrained(folder, output_loading_info=True)
            words = AutoTokenizer.from_pretrained(folder)
        assert not report["missing_keys"] and not report["unexpected_keys"]
        read = stock(**words(texts, padding=True, return_tensors="pt")).last_hidden_state
        inputs = model.tokenizer(texts, padding=True, return_tensors="pt")
        assert torch.equal(read, model.encoder(**inputs).last_hidden_state), name
        files = {f.name for f in folder.iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
        assert "groundling" not in (folder / "config.json").read_text()
        again = load_text_encoder(folder)
        assert again.sizes._replace(config=None) == model.sizes._replace(config=None)


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


@pytest.mark.parametrize("name", STUDENTS)
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
def test_no_layer_is_kept_while_the_next_is_told(name, student, tower, cross):
    # C7: all layers were held at once.
    if name == "cross":
        model, batch = cross, collate(toys.both_sides(12).get([0, 7, 11]))
    else:
        is_text = name in STUDENTS
        model = student(name) if is_text else ClipTextEncoder(*tower(name)).eval()
        batch = read(model)
    forgets = Forgets()
    encoded = model(batch, attention=forgets)
    assert {layer for _, layer in forgets.told} == {0, 1}
    assert forgets.alive == forgets.still() == [] and encoded is not None


def test_an_encoder_without_maps_is_one_line(bert_tokenizer: Any) -> None:
    encoder = toys.bert(len(bert_tokenizer))
    encoder.encoder.layer = nn.ModuleList()  # an encoder with nothing to attend
    model = TextEncoder(encoder, bert_tokenizer)
    told = homes.refused(lambda: model(read(model), attention=lambda one: None))
    assert "a bert model returns no attention weights" in told


def rows_of(mask: Tensor) -> Tensor:
    """The mask (T,) of its text, for each token: (tokens, 1, T)."""
    return mask.repeat_interleave(mask.sum(1), 0)[:, None]


def test_an_exported_tokenizer_names_what_transformers_4_knows(tmp_path):
    # transformers 4.51, which BabyLM's pipeline asks for, refused the class and the list of tokens.
    words = deepcopy(toys.siglip_words())
    words.add_special_tokens({"additional_special_tokens": ["<seen>"]})
    save_tokenizer(words, tmp_path)
    written = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert written["additional_special_tokens"] == ["<seen>"]
    assert "extra_special_tokens" not in written
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.all_special_tokens == words.all_special_tokens
    assert again("a <seen> dog") == words("a <seen> dog")

"""Our models against Hugging Face's own forward passes, and exported folders read without groundling."""

import subprocess
import sys
from itertools import product

import pytest
import torch
from safetensors.torch import load_file
from tiny import toys
from torch import nn
from transformers import (
    BertConfig,
    CLIPImageProcessorPil,
    CLIPTextModelWithProjection,
    SiglipTextModel,
)
from transformers.models.bert.modeling_bert import BertAttention, BertLayer

from groundling.core.batch import Example, collate
from groundling.data.samples import ClipRowEncoder, TextDataset
from groundling.models.clip import ClipDualEncoder, make_clip_text_tower
from groundling.models.cross_modal import CrossAttentionBlock, CrossModalLayer
from groundling.models.text_encoder import load_text_encoder
from groundling.studies.papers.info import count_parameters

STUDENTS = ("bert", "electra", "roberta", "deberta", "modernbert")
LENGTHS = [0, 7, 50, 63]  # samples of different length, two of them pairs


# -- text encoders ---------------------------------------------------------------------------------------------------


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


# -- CLIP-like towers ------------------------------------------------------------------------------------------------


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


# -- the cross-modal layer -------------------------------------------------------------------------------------------


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


# -- published sizes -------------------------------------------------------------------------------------------------


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


# -- export ----------------------------------------------------------------------------------------------------------

READER = """
import json, sys
sys.modules["groundling"] = None  # any import of it fails
import torch
from transformers import AutoModel, AutoTokenizer
from safetensors.torch import save_file
torch.set_num_threads(1)
for folder in sys.argv[1:]:
    model, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ["a naïve café owner isn't selling 1,000 crêpes", "a dog 🐶"]
    out = model(**tokenizer(texts, padding=True, return_tensors="pt"))
    count = torch.tensor(sum(p.numel() for p in model.parameters()))
    save_file({"states": out.last_hidden_state.detach(), "count": count}, folder + "/read.safetensors")
"""


def test_exported_folders_need_nothing_of_groundling(student, cross, tmp_path):
    models = {name: student(name) for name in STUDENTS}
    for name, model in models.items():
        model.export(tmp_path / name)
    cross.export(tmp_path / "cross")
    models["cross/text"] = cross.text
    folders = [str(tmp_path / name) for name in models]
    done = subprocess.run([sys.executable, "-c", READER, *folders], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    texts = ["a naïve café owner isn't selling 1,000 crêpes", "a dog 🐶"]
    for name, model in models.items():
        folder = tmp_path / name
        read = load_file(folder / "read.safetensors")
        assert int(read["count"]) == sum(p.numel() for p in model.encoder.parameters())
        inputs = model.tokenizer(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            assert torch.equal(read["states"], model.encoder(**inputs).last_hidden_state), name
        files = {f.name for f in folder.iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
        assert "groundling" not in (folder / "config.json").read_text()
        again = load_text_encoder(folder)
        assert again.sizes._replace(config=None) == model.sizes._replace(config=None)
        assert type(again.sizes.config) is type(model.sizes.config)


@torch.no_grad()
def test_attention_weights_are_a_plain_loops(streams):
    text, clip, _, clip_mask = streams
    attention = CrossAttentionBlock(32, 24, 2, 0.0).eval()
    randomise(attention)
    weights = attention.weights(text, clip, clip_mask)
    q, k = attention.query(text), attention.key(clip)
    expected = torch.zeros(3, 2, 7, 11)
    for b, head, t in product(range(3), range(2), range(7)):
        part = slice(16 * head, 16 * head + 16)
        scores = k[b, clip_mask[b], part] @ q[b, t, part] / 4.0
        expected[b, head, t, clip_mask[b]] = scores.softmax(0)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)

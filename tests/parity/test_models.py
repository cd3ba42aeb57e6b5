"""Our models against Hugging Face's own forward passes, and exported folders read without groundling."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from tiny import toys
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    CLIPTextModelWithProjection,
    ElectraForMaskedLM,
    ModernBertForMaskedLM,
    RobertaForMaskedLM,
    SiglipTextModel,
)
from transformers.models.bert.modeling_bert import BertAttention, BertLayer

from groundling.commands.info.parameters import count_parameters
from groundling.core.batch import Example, collate
from groundling.core.errors import InputError
from groundling.data.samples import ClipRowEncoder, TextDataset, TextRowEncoder
from groundling.models.clip import ClipDualEncoder, make_clip_text_tower
from groundling.models.cross_modal import CrossAttentionBlock, CrossModalEncoder, CrossModalLayer
from groundling.models.heads import LMHead
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.objectives.feature_distillation import ContrastiveDistillation, L1Distillation
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.xdbert import ClipTokenClassification, SameSentencePrediction
from groundling.teachers.feature_cache import FeatureCache, TeacherDataset
from groundling.teachers.text import ClipTextTeacher
from groundling.training.loop import ModelWithObjectives

STUDENTS = ("bert", "electra", "roberta", "deberta", "modernbert")
LENGTHS = [0, 7, 50, 63]  # samples of different length, two of them pairs


# -- text encoders ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDENTS)
@torch.no_grad()
def test_text_encoder_is_hf_exactly(name, student, texts):
    model = student(name)
    examples = [
        Example("a", texts[0]),
        Example("b", texts[1], text_pair=texts[-1]),
        Example("c", "a dog"),
    ]
    batch = collate(TextDataset(examples, TextRowEncoder(model.tokenizer, 64)).get(range(3)))
    inputs = model.tokenizer([e.text for e in examples[:1]], return_tensors="pt")
    assert (
        batch.text.input_ids[0, : inputs["input_ids"].shape[1]].tolist()
        == inputs["input_ids"][0].tolist()
    )
    theirs = model.tokenizer(texts[1], texts[-1], return_tensors="pt")
    assert (
        batch.text.input_ids[1, batch.text.attention_mask[1]].tolist()
        == theirs["input_ids"][0].tolist()
    )

    arguments = {
        "input_ids": batch.text.input_ids,
        "attention_mask": batch.text.attention_mask.long(),
    }
    if name in {"bert", "electra"}:
        arguments["token_type_ids"] = batch.text.token_type_ids
        assert batch.text.token_type_ids.max() == 1
    expected = model.encoder(**arguments)
    found = model(batch)
    assert (found.text - expected.last_hidden_state).abs().max() == 0
    if name in {"bert", "roberta"}:
        assert (found.pooler_output - expected.pooler_output).abs().max() == 0
        assert model.sizes.pooler_output == 32
    else:
        assert found.pooler_output is None
        assert model.sizes.pooler_output == 0


@pytest.mark.parametrize("name", STUDENTS)
@torch.no_grad()
def test_text_encoder_one_by_one_equals_padded(name, student, texts):
    """HF's own call, one text at a time and without padding, gives the rows of our padded batch."""
    model = student(name)
    chosen = [texts[0], texts[-4], "a dog", texts[-2]]
    batch = collate(
        TextDataset([Example(t, t) for t in chosen], TextRowEncoder(model.tokenizer, 64)).get(
            range(4)
        )
    )
    found = model(batch)
    for row, text in enumerate(chosen):
        alone = model.encoder(**model.tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        torch.testing.assert_close(found.text[row, : len(alone)], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", STUDENTS)
@torch.no_grad()
def test_max_length_is_what_the_encoder_can_read(name, student):
    model = student(name)
    assert model.max_length == 64
    text = "dog " * 200
    batch = collate(
        TextDataset([Example("a", text)], TextRowEncoder(model.tokenizer, model.max_length)).get(
            [0]
        )
    )
    assert batch.text.input_ids.shape == (1, 64)
    assert model(batch).text.isfinite().all()


def test_tokenizer_larger_than_the_encoder_is_refused(bert_tokenizer):
    with pytest.raises(InputError, match=r"\d+ tokens, but 50 word embeddings"):
        TextEncoder(toys.bert(50), bert_tokenizer)


# -- CLIP-like towers ------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_clip_text_is_hf(clip, clip_tokenizer, samples):
    theirs = CLIPTextModelWithProjection(clip.config.text_config).eval()
    report = theirs.load_state_dict(clip.state_dict(), strict=False)
    assert not report.missing_keys
    batch = collate(samples.get(LENGTHS))
    assert len(batch.clip.input_ids) > len(LENGTHS), "some texts have several windows"
    assert not batch.clip.attention_mask.all(), "some windows are padded"
    states, pooled = make_clip_text_tower(clip)(batch.clip)
    expected = theirs(
        input_ids=batch.clip.input_ids, attention_mask=batch.clip.attention_mask.long()
    )
    assert (pooled - expected.text_embeds).abs().max() <= 1e-6
    for row in range(len(batch.clip.input_ids)):
        own = batch.clip.input_ids[row, batch.clip.attention_mask[row]]
        alone = theirs(input_ids=own[None])
        torch.testing.assert_close(pooled[row], alone.text_embeds[0], rtol=0, atol=1e-5)
        projected = theirs.text_projection(alone.last_hidden_state[0])
        torch.testing.assert_close(states[row, : len(own)], projected, rtol=0, atol=1e-5)
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
    ids = siglip_tokenizer(
        chosen, padding="max_length", max_length=toys.WINDOW, truncation=True, return_tensors="pt"
    )["input_ids"]
    expected = theirs(input_ids=ids).pooler_output
    assert expected.std() > 0.01
    windows = ClipRowEncoder(siglip_tokenizer, toys.WINDOW)
    data = TextDataset([Example(t, t) for t in chosen], None, windows)
    together = ours(collate(data.get(range(3))).clip)[1]
    torch.testing.assert_close(together, expected, rtol=0, atol=1e-6)
    for n in range(3):
        torch.testing.assert_close(
            ours(collate(data.get([n])).clip)[1][0], expected[n], rtol=0, atol=1e-6
        )


@torch.no_grad()
def test_two_towers_are_clip_model(clip, clip_tokenizer, pictures):
    towers = ClipDualEncoder(clip, clip_tokenizer).eval()
    batch = collate(pictures.get([0, 1, 2, 5]))
    found = towers(batch)
    pixels = batch.pixels.float() / 255
    pixels = (pixels - towers.mean) / towers.std
    expected = clip(
        input_ids=batch.clip.input_ids,
        attention_mask=batch.clip.attention_mask.long(),
        pixel_values=pixels,
    )
    logits = found.scale * found.text_embeds @ found.image_embeds.T
    torch.testing.assert_close(logits, expected.logits_per_text, rtol=0, atol=1e-5)
    assert found.text_embeds.norm(dim=1).sub(1).abs().max() < 1e-6


def test_pixels_are_normalised_as_hf_does(clip, clip_tokenizer, pictures):
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    towers = ClipDualEncoder(clip, clip_tokenizer)
    batch = collate(pictures.get([0, 3]))
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
    )
    theirs = processor([p.permute(1, 2, 0).numpy() for p in batch.pixels], return_tensors="pt")[
        "pixel_values"
    ]
    ours = (batch.pixels.float() / 255 - towers.mean) / towers.std
    torch.testing.assert_close(ours, torch.as_tensor(theirs).float(), rtol=0, atol=1e-5)


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


def bert_attention(
    width: int, over: int, heads: int, ours: CrossAttentionBlock, cross: bool
) -> BertAttention:
    config = BertConfig(hidden_size=width, num_attention_heads=heads)
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

    def bert(ours, width, over, heads, states, mask, source=None):
        theirs = bert_attention(width, over, heads, ours, cross=source is not None)
        if source is None:
            return theirs(states, additive(mask))[0]
        return theirs(states, None, source, additive(mask))[0]

    def forward(ours, width, states):
        config = BertConfig(hidden_size=width, intermediate_size=64, num_attention_heads=1)
        config._attn_implementation = "eager"
        theirs = BertLayer(config).eval()
        theirs.intermediate.dense.load_state_dict(ours.up.state_dict())
        theirs.output.dense.load_state_dict(ours.down.state_dict())
        theirs.output.LayerNorm.load_state_dict(ours.norm.state_dict())
        return theirs.feed_forward_chunk(states)

    # Both cross-attentions read the states from before the layer.
    new_text = bert(layer.text_cross, 32, 24, 2, text, clip_mask, clip)
    new_clip = bert(layer.clip_cross, 24, 32, 3, clip, text_mask, text)
    new_text = bert(layer.text_self, 32, 32, 2, new_text, text_mask)
    new_clip = bert(layer.clip_self, 24, 24, 3, new_clip, clip_mask)
    expected = forward(layer.text_forward, 32, new_text), forward(layer.clip_forward, 24, new_clip)
    found = layer(text, clip, text_mask, clip_mask)
    for one, other, mask in zip(found, expected, (text_mask, clip_mask), strict=True):
        torch.testing.assert_close(one[mask], other[mask], rtol=0, atol=2e-5)


@torch.no_grad()
def test_attention_is_its_plain_loop(streams):
    text, clip, _, clip_mask = streams
    attention = CrossAttentionBlock(32, 24, 2, 0.0).eval()
    randomise(attention)
    found, weights = attention(text, clip, clip_mask), attention.weights(text, clip, clip_mask)
    assert weights.shape == (3, 2, 7, 11)
    q, k, v = attention.query(text), attention.key(clip), attention.value(clip)
    for b in range(3):
        for t in range(7):
            mixed = []
            for head, part in enumerate((slice(0, 16), slice(16, 32))):
                seen = [j for j in range(11) if clip_mask[b, j]]
                scores = torch.stack([q[b, t, part] @ k[b, j, part] / 4.0 for j in seen]).softmax(0)
                torch.testing.assert_close(weights[b, head, t, seen], scores, rtol=0, atol=1e-5)
                mixed.append(
                    sum(score * v[b, j, part] for score, j in zip(scores, seen, strict=True))
                )
            x = text[b, t] + attention.out(torch.cat(mixed))
            x = (x - x.mean()) / (x.var(correction=0) + 1e-12).sqrt()
            torch.testing.assert_close(
                found[b, t], x * attention.norm.weight + attention.norm.bias, rtol=0, atol=1e-5
            )


@torch.no_grad()
def test_cross_modal_leaves_the_text_encoder_as_it_was(cross, samples):
    batch = collate(samples.get(LENGTHS))
    both, alone = cross(batch), cross.text(batch)
    assert (both.text - alone.text).abs().max() == 0
    assert (both.joint_text - both.text).abs().max() > 0.1
    # A token's visual state sits where its token sits.
    windows, states = batch.clip, cross.clip(batch.clip)[0]
    assert both.visual.shape == (*windows.key_mask.shape, 24)
    for b in range(len(batch)):
        own = torch.cat(
            [
                states[n, windows.attention_mask[n]]
                for n in range(len(windows.input_ids))
                if windows.row_index[n] == b
            ]
        )
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


def test_unknown_preset_lists_what_there_is():
    with pytest.raises(InputError, match="xdbert-bert-base"):
        count_parameters("xdbert-huge")


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


def test_exported_folders_need_nothing_of_groundling(student, cross, texts, tmp_path):
    from safetensors.torch import load_file

    models = {name: student(name) for name in STUDENTS}
    for name, model in models.items():
        model.export(tmp_path / name)
    cross.export(tmp_path / "cross")
    models["cross/text"] = cross.text
    folders = [str(tmp_path / name) for name in models]
    done = subprocess.run(
        [sys.executable, "-c", READER, *folders], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, model in models.items():
        inputs = model.tokenizer(
            ["a naïve café owner isn't selling 1,000 crêpes", "a dog 🐶"],
            padding=True,
            return_tensors="pt",
        )
        read = load_file(tmp_path / name / "read.safetensors")
        assert int(read["count"]) == sum(p.numel() for p in model.encoder.parameters())
        with torch.no_grad():
            assert (read["states"] - model.encoder(**inputs).last_hidden_state).abs().max() == 0, (
                name
            )
        files = {f.name for f in (tmp_path / name).iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
        assert "groundling" not in json.dumps(
            json.loads((tmp_path / name / "config.json").read_text())
        )


@torch.no_grad()
def test_export_and_load_is_the_same_model(student, text_only, tmp_path):
    model = student()
    model.export(tmp_path)
    again = load_text_encoder(tmp_path).eval()
    batch = collate(text_only.get(LENGTHS))
    assert torch.equal(model(batch).text, again(batch).text)
    assert again.sizes._replace(config=None) == model.sizes._replace(config=None)
    assert type(again.sizes.config) is type(model.sizes.config)
    assert again.max_length == model.max_length


def test_not_a_model_folder(tmp_path):
    with pytest.raises(InputError, match=r"no model found .*config\.json"):
        load_text_encoder(tmp_path)


# -- language-modelling heads of checkpoints -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bert", BertForMaskedLM),
        ("roberta", RobertaForMaskedLM),
        ("electra", ElectraForMaskedLM),
        ("modernbert", ModernBertForMaskedLM),
    ],
)
@torch.no_grad()
def test_lm_head_of_a_checkpoint(name, kind, student, text_only, tmp_path):
    model = student(name)
    whole = kind(model.encoder.config).eval()
    for parameter in whole.parameters():
        nn.init.normal_(parameter, std=0.2)
    whole.save_pretrained(tmp_path)
    batch = collate(
        TextDataset(toys.examples(4), TextRowEncoder(model.tokenizer, 40)).get(range(4))
    )
    inputs = {"input_ids": batch.text.input_ids, "attention_mask": batch.text.attention_mask.long()}
    expected = whole(**inputs, output_hidden_states=True)
    sizes = model.sizes
    head = LMHead(32, sizes.input_embeddings, sizes.config)
    assert head.load(tmp_path)
    found = head(whole.base_model(**inputs).last_hidden_state, whole.get_input_embeddings().weight)
    assert expected.logits.std() > 0.1
    torch.testing.assert_close(found, expected.logits, rtol=0, atol=1e-5)


def test_lm_head_of_a_folder_without_one(student, tmp_path):
    model = student()
    model.export(tmp_path)
    head = LMHead(32, model.sizes.input_embeddings)
    before = {k: v.clone() for k, v in head.state_dict().items()}
    assert not head.load(tmp_path)
    assert all(torch.equal(before[k], v) for k, v in head.state_dict().items())


# -- every student with every teacher --------------------------------------------------------------------------------


@pytest.mark.parametrize("teacher", ["clip", "siglip"])
@pytest.mark.parametrize("name", STUDENTS)
def test_every_pair_takes_a_step(name, teacher, student, tower):
    text, (clip, tokens) = student(name), tower(teacher)
    model = CrossModalEncoder(text, clip)
    sizes = model.sizes._replace(teacher=clip.embed_dim)
    inputs = (
        TextRowEncoder(text.tokenizer, text.max_length),
        ClipRowEncoder(tokens, clip.context_length),
    )
    texts = TextDataset(toys.examples(8), *inputs)
    data = TeacherDataset(texts, ClipTextTeacher(clip, tokens), FeatureCache())
    clip.requires_grad_(True)
    objectives = [
        SameSentencePrediction(sizes),
        MaskedLM(sizes, mask_id=text.tokenizer.mask_token_id, joint=True),
        ClipTokenClassification(sizes),
        ContrastiveDistillation(sizes),
        L1Distillation(sizes),
    ]
    corrupted = []
    for n, sample in enumerate(data.get(range(8), ())):
        for objective in objectives[:3]:
            rng = np.random.default_rng(n)
            sample = objective.corrupt(
                sample, rng, lambda rng=rng: data.get([int(rng.integers(8))], ())[0]
            )
        corrupted.append(sample)
    batch = collate(corrupted)
    step = ModelWithObjectives(model.train(), objectives)
    terms = step(batch, [o.name for o in objectives]).terms
    assert {"mlm", "match", "clip_tokens", "contrastive_sentence", "contrastive_word"} <= set(terms)
    assert {"l1_sentence", "l1_word"} <= set(terms)
    total = sum(terms.values())
    assert total.isfinite()
    total.backward()
    gradients = [p.grad for p in text.encoder.get_input_embeddings().parameters()]
    assert gradients[0].isfinite().all()
    assert gradients[0].any()

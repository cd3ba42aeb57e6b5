"""Decoders as students: the next token, states that have read a whole word or text, fine-tuning, and refusals."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from tiny import homes, toys
from tiny.lm_families import DECODERS, read
from tiny.objectives import captioned_run
from tiny.tasks import vqa
from torch import Tensor

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import EncoderOutput, Example, collate, require
from groundling.core.errors import InputError
from groundling.data.corpora import corpus_samples
from groundling.data.samples import ClipRowEncoder, TextDataset, TextRowEncoder
from groundling.models.frozen_clip import load_text_tower
from groundling.models.text_encoder import TextEncoder, load_text_encoder, new_text_encoder
from groundling.objectives import read_words
from groundling.objectives.causal_lm import CausalLM
from groundling.objectives.contrastive import pool_sentences
from groundling.objectives.lexi_contrastive import LexiContrastiveGrounding
from groundling.objectives.targeted_distillation import TargetedTextDistillation
from groundling.prediction.fine_tuned import load
from groundling.settings.fields import make_settings


@pytest.fixture(params=DECODERS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    words = DECODERS[request.param].words()
    torch.manual_seed(0)
    return homes.home(tmp_path / request.param, DECODERS[request.param].whole(len(words)), words)


def student(folder: Path) -> TextEncoder:
    return load_text_encoder(folder).eval()


@torch.no_grad()
def test_the_loss_is_that_of_hugging_face(home: Path) -> None:
    text = student(home)
    batch, tokens = read(text)
    assert not tokens.attention_mask.all()
    objective = CausalLM(text.sizes).eval()
    assert objective.head.load(home)
    loss = objective(text(batch), batch)["clm"] / objective.count(batch)["clm"]
    whole = type(DECODERS[home.name].whole(len(text.tokenizer))).from_pretrained(home).eval()
    mask = tokens.attention_mask
    labels = tokens.input_ids.masked_fill(~mask, -100)
    expected = whole(input_ids=tokens.input_ids, attention_mask=mask.long(), labels=labels).loss
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-5)
    # Left padding, as a decoder generates with, gives the same states.
    short = int(mask[0].sum())
    moved = torch.cat([tokens.input_ids[:1, short:], tokens.input_ids[:1, :short]], 1)
    padded = torch.cat([mask[:1, short:], mask[:1, :short]], 1).long()
    places = (padded.cumsum(1) - 1).clamp(min=0)
    left = whole.base_model(input_ids=moved, attention_mask=padded, position_ids=places)
    ours: Tensor = text(batch).text[0, :short]
    torch.testing.assert_close(left.last_hidden_state[0, -short:], ours, rtol=0, atol=1e-4)


def test_words_and_sentences_are_read_where_they_end() -> None:
    words = DECODERS["gpt2"].words()
    text = TextEncoder(DECODERS["gpt2"].whole(len(words)).base_model, words)
    long = [Example("a", "unbelievable dogs"), Example("b", "a dog")]
    batch = collate(TextDataset(long, TextRowEncoder(words, 40)).get(range(2)))
    tokens = require(batch.text, "text", "test")
    found = read_words(batch, text.sizes, "test")
    every = read_words(batch, text.sizes._replace(causal=False), "test")
    assert (found >= 0).sum() < (every >= 0).sum()
    for own, all_of_row in zip(found, every, strict=True):
        kept = [word for word in own.tolist() if word >= 0]
        assert kept == sorted(set(all_of_row.tolist()) - {-1})
        for word in kept:
            assert (own == word).nonzero().item() == (all_of_row == word).nonzero().max()
    states = torch.randn(*tokens.input_ids.shape, text.sizes.text)
    for pool in ("own", "last"):
        vectors = pool_sentences(EncoderOutput(text=states), batch, text.sizes, pool, "test")
        last = tokens.attention_mask.sum(1) - 1
        assert torch.equal(vectors, torch.stack([s[n] for s, n in zip(states, last, strict=True)]))


@torch.no_grad()
def test_lexi_contrastive_reads_the_layer_of_a_windowed_decoder() -> None:
    """A decoder whose first layer reads a window is the paper's: with `full` no other pass is needed."""
    words = toys.roberta_words()
    config = DECODERS["qwen3"].whole(len(words)).config
    config.sliding_window = 2
    text = TextEncoder(hf.Qwen3Model(config), words).eval()
    text.return_layers()
    batch, tokens = read(text)
    sizes = text.sizes._replace(teacher_image=8)
    full = LexiContrastiveGrounding(sizes, lcg_attention="full")
    windowed = LexiContrastiveGrounding(sizes, lcg_attention="causal")
    encoded = text(batch)
    own = encoded.encode_again(full._window(batch), 1)
    mask = tokens.attention_mask
    assert torch.equal(own[mask], encoded.layers[1][mask])
    again = encoded.encode_again(windowed._window(batch), 1)
    torch.testing.assert_close(own[mask], again[mask], rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama"])
@torch.no_grad()
def test_a_mask_of_pairs_leaves_positions_alone(family: str) -> None:
    words = toys.roberta_words()
    own = {"word_embed_proj_dim": 32} if family == "opt" else {}
    config = DECODERS[family].whole(len(words)).config
    config.update(own)
    text = TextEncoder(hf.AutoModel.from_config(config), words).eval()
    text.return_layers()
    batch, tokens = read(text)
    encoded, mask = text(batch), tokens.attention_mask
    earlier = torch.ones(mask.shape[1], mask.shape[1], dtype=torch.bool).tril() & mask[:, None]
    again = encoded.encode_again(earlier)
    torch.testing.assert_close(again[mask], encoded.text[mask], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "own"),
    [("gemma3", {"use_bidirectional_attention": True}), ("llama", {"is_causal": False})],
)
@torch.no_grad()
def test_a_decoder_that_reads_both_sides_is_an_encoder(name: str, own: dict) -> None:
    words = toys.roberta_words()
    config = DECODERS[name].whole(len(words)).config
    config.update(own)
    text = TextEncoder(hf.AutoModel.from_config(config).eval(), words)
    inputs = text.inputs(40)[0]
    first = [
        text(collate(TextDataset([Example("a", one)], inputs).get([0]))).text[0, 0]
        for one in ("a dog runs", "a cat runs")
    ]
    assert not torch.allclose(*first)
    assert not text.sizes.causal


@torch.no_grad()
def test_a_decoder_as_teacher_is_read_where_a_text_ends(tmp_path: Path) -> None:
    words = DECODERS["gpt2"].words()
    gpt = homes.home(tmp_path / "gpt2", DECODERS["gpt2"].whole(len(words)), words)
    texts = [Example("a", "unbelievable dogs run"), Example("b", "a dog")]
    tower, tokenizer = load_text_tower(gpt)
    windows = collate(TextDataset(texts, None, ClipRowEncoder(tokenizer, 40)).get(range(2))).clip
    text = student(gpt)
    batch = collate(TextDataset(texts, *text.inputs(40)).get(range(2)))
    torch.testing.assert_close(tower(windows)[1], batch.text.last(text(batch).text))


def test_a_decoder_from_nothing_has_a_size_of_its_own(home: Path, tmp_path: Path) -> None:
    text = new_text_encoder(home, 0, layers=3, width=128)
    text.export(tmp_path / "new")
    config = hf.AutoModel.from_pretrained(tmp_path / "new").config
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (3, 128, 2)
    batch, tokens = read(text)
    assert text(batch).text.shape[:2] == tokens.input_ids.shape


@pytest.mark.parametrize(
    ("arm", "decoder", "given", "message"),
    [
        ("xdbert", True, {}, "joint_mlm and match and clip_tokens need both sides of a token"),
        ("visual_token_mlm", True, {}, "visual_token_mlm needs both sides of a token, but a gpt2"),
        ("mlm_distillation", True, {"mlm_teacher": "clip"}, "mlm_distillation needs both sides"),
        ("contrastive", True, {"pooling": "cls"}, "pooling=cls: the first position of a gpt2"),
        (
            "clm+lexi_contrastive",
            True,
            {"lcg_attention": "bidirectional"},
            "lcg_attention=bidirectional: a token of a gpt2",
        ),
        ("clm", False, {}, "arm=clm: a bert model reads both sides, so the next token is no task"),
    ],
)
def test_objectives_of_the_other_direction_are_refused(arm, decoder, given, message, tmp_path):
    words = DECODERS["gpt2"].words()
    gpt = homes.home(tmp_path / "gpt2", DECODERS["gpt2"].whole(len(words)), words)
    own = {"student": str(gpt)} if decoder else {}
    own |= {name: str(tmp_path / one) if one == "clip" else one for name, one in given.items()}
    config = captioned_run(tmp_path, arm, **own)
    with pytest.raises(InputError, match=message):
        adapt(config, homes.STEPS, tmp_path / "out")


def test_a_block_of_a_decoder_has_the_end_of_each_text(tmp_path: Path) -> None:
    words = DECODERS["gpt2"].words()
    lines = homes.text(tmp_path / "text.txt", 12)
    reader = TextRowEncoder(words, 24, words.eos_token)
    blocks = corpus_samples([str(lines)], "blocks", reader, tmp_path / "stores")
    samples = blocks.get(range(len(blocks)), [None] * len(blocks))
    found = [int(token) for one in samples for token in one.text.input_ids[1:-1]]
    assert found.count(words.eos_token_id) == 12
    assert [len(one.text.input_ids) for one in samples[:-1]] == [24] * (len(samples) - 1)
    engine = reader.engine
    joined = " ".join(f"{line} {words.eos_token}" for line in lines.read_text().splitlines())
    assert len(engine.encode(joined, add_special_tokens=False).ids) == pytest.approx(
        len(found), abs=len(samples)
    )


def test_a_decoder_is_distilled_where_a_text_ends(tmp_path: Path) -> None:
    words = DECODERS["gpt2"].words()
    gpt = homes.home(tmp_path / "gpt2", DECODERS["gpt2"].whole(len(words)), words)
    text = student(gpt)
    batch, tokens = read(text)
    objective = TargetedTextDistillation(text.sizes._replace(teacher=text.sizes.text))
    rows = len(tokens.input_ids)
    batch = replace(batch, features={"clip_text": torch.zeros(rows, text.sizes.text)})
    states = torch.randn(*tokens.input_ids.shape, text.sizes.text, requires_grad=True)
    objective.distances(EncoderOutput(text=states), batch).sum().backward()
    read_at = states.grad.abs().sum(-1).nonzero().tolist()
    assert read_at == [[row, end - 1] for row, end in enumerate(tokens.attention_mask.sum(1))]


@pytest.mark.parametrize(("name", "lora"), [("gpt2", 0), ("qwen3", 0), ("opt", 4)])
def test_a_fine_tuned_decoder_gives_the_logits_of_hugging_face(name, lora, tmp_path) -> None:
    words = DECODERS[name].words()
    gpt = homes.home(tmp_path / name, DECODERS[name].whole(len(words)), words)
    about = gpt / "tokenizer_config.json"
    kept = {key: one for key, one in json.loads(about.read_text()).items() if key != "pad_token"}
    about.write_text(json.dumps(kept | {"pad_token": None}))
    data = str(homes.rte(tmp_path / "glue"))
    own = {"model": str(gpt), "task": "glue/rte", "data": data, "lora": lora}
    result = finetune(make_settings(FinetuneConfig, **own), homes.STEPS, tmp_path / "out")
    tuned = load(tmp_path / "out", device="cpu")
    assert tuned.student.tokenizer.pad_token is None
    (accuracy,) = result["scores"]["dev"]["accuracy"]
    assert tuned.evaluate(data)["scores"]["dev"]["accuracy"] == accuracy
    pairs = [("A dog sleeps.", "It sleeps."), ("The cat sat on a red mat.", "No cat sat there.")]
    examples = [Example(one, one, other) for one, other in pairs]
    batch = collate(TextDataset(examples, *tuned.student.inputs(128)).get(range(2)))
    assert not batch.text.attention_mask.all()
    kind = type(DECODERS[name].whole(len(words))).__name__
    kind = kind.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    theirs = getattr(hf, f"{kind}ForSequenceClassification").from_pretrained(tuned.folder).eval()
    with torch.no_grad():
        logits = tuned.objective.outputs(tuned.student(batch), batch)
        theirs.score.weight.copy_(tuned.objective.head.classify.weight)
        for pair, row in zip(pairs, logits, strict=True):
            found = theirs(**tuned.student.tokenizer(*pair, return_tensors="pt")).logits[0]
            torch.testing.assert_close(row, found, rtol=0, atol=1e-5)
    # The first states of both texts are equal, the last are not.
    assert not np.allclose(*tuned.encode([one for one, _ in pairs]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"task": "vqa", "data": "vqa"}, "gpt2: a decoder reads texts alone, but vqa has images"),
        ({"architecture": "uniter"}, "architecture=uniter: expected a BERT, but .*is a decoder"),
        ({"cls_without_pooler": True}, "the first position of a decoder has read nothing"),
    ],
)
def test_a_decoder_reads_texts_alone(given: dict, message: str, tmp_path: Path) -> None:
    words = DECODERS["gpt2"].words()
    gpt = homes.home(tmp_path / "gpt2", DECODERS["gpt2"].whole(len(words)), words)
    homes.rte(tmp_path / "glue")
    vqa(tmp_path / "vqa")
    own = {"model": str(gpt), "task": "glue/rte", "data": "glue", **given}
    own["data"] = str(tmp_path / own["data"])
    with pytest.raises(InputError, match=message):
        finetune(make_settings(FinetuneConfig, **own), homes.STEPS, tmp_path / "out")

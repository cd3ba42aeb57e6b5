"""Masked-LM heads against Hugging Face's own: every family's activation and epsilon, every spelling of its weights."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tiny import homes, toys
from tiny.lm_families import FAMILIES, Family, of_sizes, read
from torch import nn
from transformers import PreTrainedTokenizerBase

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.models.heads import (
    HEADS,
    LM_HEAD,
    init_lm_head,
    save_heads,
    save_with_lm_head,
)
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.settings.fields import make_settings
from groundling.studies.knowledge.commands import PROBE_FACTS as ask
from groundling.studies.knowledge.commands import ProbeFactsConfig
from groundling.studies.knowledge.probing_modes import score_by_fill_mask
from groundling.studies.knowledge.visual_facts import open_facts


def made(family: Family) -> tuple[Any, PreTrainedTokenizerBase]:
    """The family's own masked-LM model, no weight of which is at its start."""
    words = family.words()
    torch.manual_seed(0)
    whole = family.whole(len(words)).eval()
    for parameter in whole.parameters():
        nn.init.normal_(parameter, std=0.2)
    return whole, words


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_a_head_computes_as_its_family_does(name: str, tmp_path: Path) -> None:
    # A12: it was exact GELU with an epsilon of 1e-12, whatever the configuration said.
    family = FAMILIES[name]
    whole, words = made(family)
    homes.home(tmp_path, whole, words)
    text = load_text_encoder(tmp_path).eval()
    batch, tokens = read(text)
    arguments = {"input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask.long()}
    if text.has_types:
        arguments["token_type_ids"] = tokens.token_type_ids
    expected = whole(**arguments).logits[tokens.attention_mask]
    assert expected.std() > 0.1

    head = of_sizes(text).eval()
    assert init_lm_head(head, tmp_path) == "the checkpoint's"
    encoded = text(batch)
    found = head(encoded.text[tokens.attention_mask], encoded.input_embeddings)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)

    # As a run leaves it: the encoder as a stock folder, its head in a file of its own.
    left = tmp_path / "left"
    text.export(left)
    save_heads(left, {LM_HEAD: head})
    again = load_text_encoder(left).eval()
    its_head = of_sizes(again).eval()
    assert init_lm_head(its_head, left) == "an earlier run's"
    encoded = again(batch)
    found = its_head(encoded.text[tokens.attention_mask], encoded.input_embeddings)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_hugging_face_fills_masks_with_an_exported_head(name: str, tmp_path: Path) -> None:
    # F8: `AutoModelForMaskedLM` of an adapted student had a random head.
    whole, words = made(FAMILIES[name])
    text = TextEncoder(getattr(whole, whole.base_model_prefix), words).eval()
    head = of_sizes(text).eval()
    for parameter in head.parameters():  # as trained: every bias matters
        nn.init.normal_(parameter, std=0.2)
    assert save_with_lm_head(tmp_path, text.encoder, head)

    filling, report = hf.AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(filling) is type(whole)
    assert filling.config.architectures == [type(whole).__name__]
    assert not report["missing_keys"] and not report["mismatched_keys"]
    _, report = hf.AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert all("pooler" in key for key in report["missing_keys"])

    batch, tokens = read(text)
    arguments = {"input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask.long()}
    if text.has_types:
        arguments["token_type_ids"] = tokens.token_type_ids
    encoded = text.double()(batch)
    expected = head.double()(encoded.text, encoded.input_embeddings)[tokens.attention_mask]
    assert expected.std() > 0.1
    found = filling.double().eval()(**arguments).logits[tokens.attention_mask]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)

    # And groundling reads it back, from Hugging Face's file alone.
    again = of_sizes(text)
    assert init_lm_head(again, tmp_path) == "the checkpoint's"
    found = again.double()(encoded.text, encoded.input_embeddings)[tokens.attention_mask]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_family_without_a_known_head_is_left_as_it_is(tmp_path: Path) -> None:
    words = homes.words()
    text = TextEncoder(
        hf.GPT2Model(hf.GPT2Config(vocab_size=len(words), n_embd=32, n_head=2)), words
    )
    text.export(tmp_path)
    before = homes.digests(tmp_path)
    assert not save_with_lm_head(tmp_path, text.encoder, of_sizes(text))
    assert homes.digests(tmp_path) == before


# -- A1: the first checkpoints call a LayerNorm's weights gamma and beta, bert-base-uncased among them -----------------


@pytest.fixture(params=["BertForPreTraining", "BertForMaskedLM"])
def first_bert(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """A folder in the old spelling, and the model that it holds."""
    words = homes.words()
    kind = {"BertForPreTraining": hf.BertForPreTraining, "BertForMaskedLM": hf.BertForMaskedLM}
    torch.manual_seed(0)
    whole = kind[request.param](toys.bert(len(words)).config).eval()
    for parameter in whole.parameters():
        nn.init.normal_(parameter, std=0.2)
    folder = homes.home(tmp_path / "bert", whole, words)
    stored = load_file(folder / "model.safetensors")
    renamed = {}
    for name, value in stored.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        renamed[name.replace("LayerNorm.bias", "LayerNorm.beta")] = value
    assert renamed.keys() & {"cls.predictions.transform.LayerNorm.gamma"}
    assert not any("LayerNorm.weight" in name for name in renamed)
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder, whole


def word_logits(output: Any) -> torch.Tensor:
    """(N, T, vocabulary) of either kind of model."""
    return output.prediction_logits if "prediction_logits" in output else output.logits


@torch.no_grad()
def test_a_head_in_the_old_spelling_is_read(first_bert: tuple[Path, Any]) -> None:
    folder, whole = first_bert
    text = load_text_encoder(folder).eval()
    head = of_sizes(text)
    assert init_lm_head(head, folder) == "the checkpoint's"
    batch, tokens = read(text)
    theirs = whole(
        input_ids=tokens.input_ids,
        attention_mask=tokens.attention_mask.long(),
        token_type_ids=tokens.token_type_ids,
    )
    expected = word_logits(theirs)
    assert expected.std() > 0.1
    encoded = text(batch)
    found = head(encoded.text, encoded.input_embeddings)
    torch.testing.assert_close(
        found[tokens.attention_mask], expected[tokens.attention_mask], rtol=0, atol=1e-5
    )


def test_a_head_without_a_layernorm_is_still_refused(first_bert: tuple[Path, Any]) -> None:
    folder, _ = first_bert
    stored = load_file(folder / "model.safetensors")
    del stored["cls.predictions.transform.LayerNorm.gamma"]
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    text = load_text_encoder(folder)
    head = of_sizes(text)
    before = deepcopy(head.state_dict())
    assert not head.load(folder)
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


@torch.no_grad()
def test_ask_fills_masks_with_it(first_bert: tuple[Path, Any], tmp_path: Path) -> None:
    folder, whole = first_bert
    rows = [{"descriptor": "a", "item": "dog", "label": "red"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    data = homes.put(tmp_path / "memory_colors.jsonl", lines)
    config = make_settings(
        ProbeFactsConfig, model=str(folder), data=str(data), modes=("fill-mask",)
    )
    result = ask(config, tmp_path / "asked")
    assert result["fill-mask"]["head"] == "the checkpoint's"

    # What HF's own head says in the place of the first prompt's [MASK], of answers of one token.
    facts = open_facts(data).facts
    answers, _ = score_by_fill_mask(folder, facts)
    words = homes.words()
    template, prompt = next(iter(facts[0].prompts.items()))
    inputs = words(prompt, return_tensors="pt")
    theirs = whole(**inputs)
    place = inputs["input_ids"][0].tolist().index(words.mask_token_id)
    logs = word_logits(theirs)[0, place].log_softmax(-1)
    checked = 0
    for number, option in enumerate(facts[0].options):
        tokens = words.tokenize(option)
        if len(tokens) == 1:
            expected = logs[words.convert_tokens_to_ids(tokens[0])].item()
            assert answers[0][template][number] == pytest.approx(expected, abs=1e-4)
            checked += 1
    assert checked


def test_adaptation_starts_from_it(first_bert: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = first_bert
    text = homes.text(tmp_path / "text.txt", 16)
    config = make_settings(AdaptConfig, student=str(folder), arm="mlm", text=(str(text),))
    result = adapt(config, homes.STEPS, tmp_path / "out")
    assert result["heads_from"] == {"mlm": "the checkpoint's"}
    assert (tmp_path / "out" / "model" / HEADS).exists()


@pytest.mark.parametrize("arm", ["mlm", "match"])
@pytest.mark.parametrize("first_bert", ["BertForMaskedLM"], indirect=True)
def test_an_adapted_folder_fills_masks_for_hugging_face(
    first_bert: tuple[Path, Any], tmp_path: Path, arm: str
) -> None:
    folder, _ = first_bert
    teacher = homes.teacher(tmp_path / "clip") if arm == "match" else ""
    text = homes.text(tmp_path / "text.txt", 16)
    config = make_settings(
        AdaptConfig,
        student=str(folder),
        teacher=str(teacher),
        arm=arm,
        text=(str(text),),
        text_layout="lines",
    )
    result = adapt(config, homes.STEPS, tmp_path / "out")
    left = tmp_path / "out/model"
    whose = "this run's" if arm == "mlm" else "the student's"
    assert result["fills_masks"] == whose
    assert "AutoModelForMaskedLM" in (left / "README.md").read_text()
    filling, report = hf.AutoModelForMaskedLM.from_pretrained(left, output_loading_info=True)
    assert not report["missing_keys"]
    adapted = load_text_encoder(left).eval()
    head = of_sizes(adapted)
    source = left if arm == "mlm" else folder
    init_lm_head(head, source)  # of a run that trained one: groundling's own file
    batch, tokens = read(adapted)
    with torch.no_grad():
        encoded = adapted(batch)
        theirs = filling.eval()(
            input_ids=tokens.input_ids,
            attention_mask=tokens.attention_mask.long(),
            token_type_ids=tokens.token_type_ids,
        )
        expected = head(encoded.text, encoded.input_embeddings)[tokens.attention_mask]
        before = load_text_encoder(folder).eval()(batch)
    torch.testing.assert_close(theirs.logits[tokens.attention_mask], expected, rtol=0, atol=1e-6)
    assert not torch.equal(encoded.text, before.text)

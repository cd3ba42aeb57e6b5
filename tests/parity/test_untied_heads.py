"""Masked-LM heads with output embeddings of their own, and DeBERTa's own head, against Hugging Face's models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tiny import homes
from tiny.lm_families import ALL, FAMILIES, of_sizes, read
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.models.heads import (
    HEADS,
    LM_HEAD,
    init_lm_head,
    load_head,
    save_heads,
    save_with_lm_head,
)
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.settings.fields import make_settings


def untied(name: str, folder: Path, **settings: Any) -> tuple[Any, PreTrainedTokenizerBase]:
    """The family's own masked-LM model without ties, no weight of which is at its start, in a folder."""
    words = ALL[name].words()
    tied = ALL[name].whole(len(words))
    tied.config.tie_word_embeddings = False
    for key, value in settings.items():
        setattr(tied.config, key, value)
    torch.manual_seed(0)
    whole = type(tied)(tied.config).eval()
    drawn(whole)
    homes.home(folder, whole, words)
    return whole, words


def drawn(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.2)


@torch.no_grad()
def both(whole: Any, text: TextEncoder, head: Any) -> tuple[Tensor, Tensor]:
    """Logits of Hugging Face's model and of an encoder with its head, where there is text."""
    batch, tokens = read(text)
    arguments = {"input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask.long()}
    if text.has_types:
        arguments["token_type_ids"] = tokens.token_type_ids
    encoded = text.eval()(batch)
    theirs = whole.eval()(**arguments).logits[tokens.attention_mask]
    ours = head.eval()(encoded.text, encoded.input_embeddings)[tokens.attention_mask]
    assert theirs.std() > 0.1
    return ours, theirs


@pytest.mark.parametrize("name", ALL)
def test_an_untied_head_is_read_left_and_exported_exactly(name: str, tmp_path: Path) -> None:
    whole, _ = untied(name, tmp_path / "student")
    text = load_text_encoder(tmp_path / "student")
    head = of_sizes(text)
    assert init_lm_head(head, tmp_path / "student") == "the checkpoint's"
    assert not head.is_tied
    own = head.state_dict()[head.embeddings]
    assert (own - text.word_embeddings().weight).abs().max() > 0.1
    ours, theirs = both(whole, text, head)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)

    left = tmp_path / "left"
    text.export(left)
    assert save_with_lm_head(left, text.encoder, head)
    filling, report = hf.AutoModelForMaskedLM.from_pretrained(left, output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"]
    assert filling.config.tie_word_embeddings is False
    _, found = both(filling, text, head)
    torch.testing.assert_close(found, theirs, rtol=0, atol=1e-5)

    # Both ways back: from Hugging Face's file, and from the file of heads beside it.
    again = of_sizes(text)
    assert init_lm_head(again, left) == "the checkpoint's"
    torch.testing.assert_close(both(filling, text, again)[0], theirs, rtol=0, atol=1e-5)
    save_heads(left, {LM_HEAD: head})
    kept = of_sizes(text)
    assert init_lm_head(kept, left) == "an earlier run's"
    assert torch.equal(both(filling, text, kept)[0], ours)


@pytest.mark.parametrize("name", ["relu bert", "electra"])
def test_a_table_beside_a_configuration_that_ties_counts_where_it_differs(
    name: str, tmp_path: Path
) -> None:
    whole, _ = untied(name, tmp_path)
    whole.config.tie_word_embeddings = True
    whole.config.save_pretrained(tmp_path)
    theirs = hf.AutoModelForMaskedLM.from_pretrained(tmp_path)
    text = load_text_encoder(tmp_path)
    head = of_sizes(text)
    init_lm_head(head, tmp_path)
    ours, expected = both(theirs, text, head)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
    assert not head.is_tied

    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    table = next(key for key in stored if key.endswith("word_embeddings.weight"))
    output = "cls.predictions.decoder.weight" if name == "relu bert" else "generator_lm_head.weight"
    save_file({**stored, output: stored[table].clone()}, file, metadata={"format": "pt"})
    init_lm_head(head, tmp_path)
    assert head.is_tied


def test_an_untied_head_without_its_table_is_none(tmp_path: Path) -> None:
    untied("relu bert", tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    del stored["cls.predictions.decoder.weight"]
    save_file(stored, file, metadata={"format": "pt"})
    head = of_sizes(load_text_encoder(tmp_path))
    assert init_lm_head(head, tmp_path) == "new"


def test_a_table_for_fewer_words_does_not_fit(tmp_path: Path) -> None:
    untied("relu bert", tmp_path)
    head = of_sizes(load_text_encoder(tmp_path))
    before = head.state_dict()
    fewer = {name: value[:-1] if len(value) > 32 else value for name, value in before.items()}
    fewer[head.embeddings] = torch.randn(len(fewer[f"{head.output}.bias"]), 32)
    assert not head.adopt(fewer)
    assert head.is_tied
    assert head.adopt(
        {**before, head.embeddings: torch.randn(len(fewer[f"{head.output}.bias"]) + 1, 32)}
    )
    assert not head.is_tied


@pytest.mark.parametrize("norm_bias", [True, False])
def test_modernbert_keeps_the_bias_of_its_layernorm_where_it_has_one(
    norm_bias: bool, tmp_path: Path
) -> None:
    whole, words = untied("modernbert", tmp_path, norm_bias=norm_bias)
    text = TextEncoder(whole.model, words)
    head = of_sizes(text)
    drawn(head)
    assert save_with_lm_head(tmp_path / "left", text.encoder, head)
    filling = hf.AutoModelForMaskedLM.from_pretrained(tmp_path / "left")
    ours, theirs = both(filling, text, head)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert ("head.norm.bias" in filling.state_dict()) is norm_bias


def test_a_head_in_several_files_is_read(tmp_path: Path) -> None:
    whole, words = untied("roberta", tmp_path / "whole")
    whole.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    words.save_pretrained(tmp_path / "parts")
    assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 1
    text = load_text_encoder(tmp_path / "parts")
    head = of_sizes(text)
    assert init_lm_head(head, tmp_path / "parts") == "the checkpoint's"
    ours, theirs = both(whole, text, head)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


# -- DeBERTa's own head ------------------------------------------------------------------------------------------------


def deberta_v3(folder: Path, said: bool) -> Any:
    """DeBERTa v3's checkpoint; transformers' configuration knows of its head, the released ones' does not."""
    family = FAMILIES["deberta-v2"]
    words = family.words()
    config = family.whole(len(words)).config
    config.legacy = False
    torch.manual_seed(0)
    whole = hf.DebertaV2ForMaskedLM(config).eval()
    drawn(whole)
    homes.home(folder, whole, words)
    if not said:
        config.legacy = True
        config.save_pretrained(folder)
    return whole


@pytest.mark.parametrize("said", [True, False])
def test_debertas_own_head_is_read_and_exported(said: bool, tmp_path: Path) -> None:
    whole = deberta_v3(tmp_path / "v3", said)
    stored = load_file(tmp_path / "v3" / "model.safetensors")
    assert any(key.startswith("lm_predictions.lm_head.") for key in stored)
    text = load_text_encoder(tmp_path / "v3")
    head = of_sizes(text)
    assert init_lm_head(head, tmp_path / "v3") == "the checkpoint's"
    ours, theirs = both(whole, text, head)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert save_with_lm_head(tmp_path / "left", text.encoder, head)
    filling, report = hf.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "left", output_loading_info=True
    )
    assert not report["missing_keys"]
    _, found = both(filling, text, head)
    torch.testing.assert_close(found, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("legacy", [True, False])
def test_of_two_heads_the_configurations_counts(legacy: bool, tmp_path: Path) -> None:
    deberta_v3(tmp_path, said=True)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    config = hf.AutoConfig.from_pretrained(tmp_path)
    config.legacy = True
    other = hf.DebertaV2ForMaskedLM(config)
    drawn(other)
    theirs = {key: value for key, value in other.state_dict().items() if key.startswith("cls.")}
    del theirs["cls.predictions.decoder.weight"], theirs["cls.predictions.decoder.bias"]
    save_file({**stored, **theirs}, file, metadata={"format": "pt"})
    config.legacy = legacy
    config.save_pretrained(tmp_path)
    text = load_text_encoder(tmp_path)
    head = of_sizes(text)
    init_lm_head(head, tmp_path)
    ours, expected = both(hf.AutoModelForMaskedLM.from_pretrained(tmp_path), text, head)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


# -- whole runs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ["mlm", "xdbert"])
@pytest.mark.parametrize("kind", ["untied", "v3"])
def test_an_adapted_folder_has_such_a_head(kind: str, arm: str, tmp_path: Path) -> None:
    source = tmp_path / "student"
    if kind == "untied":
        whole, _ = untied("relu bert", source)
    else:
        whole = deberta_v3(source, said=False)
    teacher = homes.teacher(tmp_path / "clip") if arm == "xdbert" else ""
    config = make_settings(
        AdaptConfig,
        student=str(source),
        teacher=str(teacher),
        arm=arm,
        text_layout="lines",
        text=(str(homes.text(tmp_path / "text.txt", 16)),),
    )
    result = adapt(config, homes.STEPS, tmp_path / "out")
    left = tmp_path / "out/model"
    name = "mlm" if arm == "mlm" else "joint_mlm"
    assert result["heads_from"][name] == "the checkpoint's"
    assert (left / HEADS).exists()
    filling, report = hf.AutoModelForMaskedLM.from_pretrained(left, output_loading_info=True)
    assert result["fills_masks"] == ("this run's" if arm == "mlm" else "the student's")
    assert not report["missing_keys"]
    text = load_text_encoder(left)
    head = of_sizes(text)
    if arm == "mlm":
        assert load_head(left, head, LM_HEAD)
        changed = filling.state_dict()
        before = whole.state_dict()
        table = "cls.predictions.decoder.weight"
        if kind == "untied":
            assert not torch.equal(changed[table], before[table])  # it trains
    else:
        init_lm_head(head, source)
    ours, theirs = both(filling, text, head)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)

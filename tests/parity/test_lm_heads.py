"""Masked-LM heads of every family against Hugging Face's own, and what each family learns from `adapt`."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tiny import homes, toys
from tiny.lm_families import ALL, DECODERS, FAMILIES, of_sizes, read
from torch import Tensor, nn

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.core.errors import InputError
from groundling.models import heads
from groundling.models.cross_modal import make_cross_modal_layers
from groundling.models.heads import (
    LM_HEAD,
    LMHead,
    init_lm_head,
    load_head,
    save_heads,
    save_with_lm_head,
)
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.settings.fields import make_settings

SHORT = replace(homes.STEPS, steps=2)
TABLE = "cls.predictions.decoder.weight"
"""BERT's output embeddings."""


def drawn(module: Any) -> Any:
    """No weight is at its start."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.2)
    return module.eval()


def whole_model(name: str, folder: Path, tied: bool = True, **settings: Any) -> Any:
    """The family's own language model, in a folder."""
    family = {**ALL, **DECODERS}[name]
    words = family.words()
    made = family.whole(len(words))
    config = made.config
    for key, value in {"tie_word_embeddings": tied, **settings}.items():
        setattr(config, key, value)
    torch.manual_seed(0)
    whole = drawn(type(made)(config))
    homes.home(folder, whole, words)
    return whole


def edited(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Changes the weights in a folder."""
    file = folder / "model.safetensors"
    stored = load_file(file)
    change(stored)
    save_file(stored, file, metadata={"format": "pt"})


@torch.no_grad()
def logits(whole: Any, text: TextEncoder) -> Tensor:
    """What Hugging Face's model says where there is text."""
    _, tokens = read(text)
    arguments = {"input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask.long()}
    if text.has_types:
        arguments["token_type_ids"] = tokens.token_type_ids
    output = whole.eval()(**arguments)
    found = output.prediction_logits if "prediction_logits" in output else output.logits
    assert found.std() > 0.1
    return found[tokens.attention_mask]


@torch.no_grad()
def of_head(text: TextEncoder, head: LMHead) -> Tensor:
    """What an encoder with this head says there."""
    batch, tokens = read(text)
    encoded = text.eval()(batch)
    return head.eval()(encoded.text, encoded.input_embeddings)[tokens.attention_mask]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def loaded(folder: Path) -> tuple[TextEncoder, LMHead]:
    """The encoder of a folder, and the checkpoint's head."""
    text = load_text_encoder(folder)
    head = of_sizes(text)
    assert init_lm_head(head, folder) == "the checkpoint's"
    return text, head


def exported(folder: Path, text: TextEncoder, head: LMHead) -> Any:
    """Hugging Face's model of a folder with this encoder and head."""
    text.tokenizer.save_pretrained(folder)
    assert save_with_lm_head(folder, text.encoder, head)
    kind = hf.AutoModelForCausalLM if text.sizes.causal else hf.AutoModelForMaskedLM
    filling, report = kind.from_pretrained(folder, output_loading_info=True)
    assert filling.config.architectures == [type(filling).__name__]
    assert not report["missing_keys"] and not report["mismatched_keys"]
    _, report = hf.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert all("pooler" in key for key in report["missing_keys"])
    return filling


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", [*ALL, *DECODERS])
def test_a_head_is_read_saved_and_exported_exactly(name: str, tied: bool, tmp_path: Path) -> None:
    # A12: it was exact GELU with an epsilon of 1e-12, whatever the configuration said.
    whole = whole_model(name, tmp_path / "student", tied)
    text, head = loaded(tmp_path / "student")
    assert head.is_tied == tied
    expected = logits(whole, text)
    close(of_head(text, head), expected)
    # F8: `AutoModelForMaskedLM` of an adapted student had a random head.
    left = tmp_path / "left"
    filling = exported(left, text, head)
    assert type(filling) is type(whole) and filling.config.tie_word_embeddings is tied
    close(logits(filling, text), expected)
    # Both ways back: from Hugging Face's file, and from the file of heads beside it.
    close(of_head(*loaded(left)), expected)
    save_heads(left, {LM_HEAD: head})
    again, kept = load_text_encoder(left), of_sizes(text)
    # A decoder's tied head has no weights of its own.
    origin = "an earlier run's" if head.state_dict() else "the checkpoint's"
    assert init_lm_head(kept, left) == origin
    close(of_head(again, kept), expected)


@pytest.mark.parametrize("shards", ["1GB", "20KB"])
def test_a_decoders_tied_head_needs_no_second_reading_of_the_weights(shards, tmp_path, monkeypatch):
    whole = whole_model("llama", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    whole.save_pretrained(tmp_path, max_shard_size=shards)
    monkeypatch.setattr(heads, "_language_model", lambda _: pytest.fail("the weights were read"))
    text, head = loaded(tmp_path)
    close(of_head(text, head), logits(whole, text))


def test_a_decoders_own_table_counts_though_its_configuration_ties(tmp_path: Path) -> None:
    whole = whole_model("llama", tmp_path, tied=False)
    whole.config.tie_word_embeddings = True
    whole.config.save_pretrained(tmp_path)
    text, head = loaded(tmp_path)
    assert not head.is_tied
    close(of_head(text, head), logits(whole, text))


@pytest.mark.parametrize("norm_bias", [True, False])
def test_modernberts_layernorm_has_a_bias_where_the_family_has_one(norm_bias, tmp_path):
    whole = whole_model("modernbert", tmp_path, norm_bias=norm_bias)
    text = TextEncoder(whole.model, ALL["modernbert"].words())
    head = drawn(of_sizes(text))  # as trained: every bias matters
    filling = exported(tmp_path / "left", text, head)
    close(logits(filling, text), of_head(text, head))
    assert ("head.norm.bias" in filling.state_dict()) is norm_bias


def test_a_family_without_a_known_head_is_left_as_it_is(tmp_path: Path) -> None:
    words = homes.words()
    config = hf.SplinterConfig(vocab_size=len(words), **toys.SMALL)  # spans alone
    text = TextEncoder(hf.SplinterModel(config), words)
    text.export(tmp_path)
    before = homes.digests(tmp_path)
    assert not save_with_lm_head(tmp_path, text.encoder, of_sizes(text))
    assert homes.digests(tmp_path) == before


def test_a_head_in_several_files_is_read(tmp_path: Path) -> None:
    whole = whole_model("roberta", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    whole.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    text, head = loaded(tmp_path)
    close(of_head(text, head), logits(whole, text))


@pytest.mark.parametrize(
    ("name", "output"), [("relu bert", TABLE), ("electra", "generator_lm_head.weight")]
)
def test_a_table_beside_a_configuration_that_ties_counts_where_it_differs(name, output, tmp_path):
    whole = whole_model(name, tmp_path, tied=False)
    whole.config.tie_word_embeddings = True
    whole.config.save_pretrained(tmp_path)
    text, head = loaded(tmp_path)
    close(of_head(text, head), logits(hf.AutoModelForMaskedLM.from_pretrained(tmp_path), text))
    assert not head.is_tied
    table = next(one for one in whole.state_dict() if one.endswith("word_embeddings.weight"))
    edited(tmp_path, lambda stored: stored.update({output: stored[table].clone()}))
    assert loaded(tmp_path)[1].is_tied


@pytest.mark.parametrize("lost", [TABLE, "cls.predictions.transform.LayerNorm.weight"])
def test_a_head_that_lacks_a_weight_is_none(lost: str, tmp_path: Path) -> None:
    whole_model("relu bert", tmp_path, tied=False)
    edited(tmp_path, lambda stored: stored.pop(lost))
    head = of_sizes(load_text_encoder(tmp_path))
    before = deepcopy(head.state_dict())
    assert init_lm_head(head, tmp_path) == "new"
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


def test_a_table_for_fewer_words_does_not_fit(tmp_path: Path) -> None:
    whole_model("relu bert", tmp_path, tied=False)
    head = of_sizes(load_text_encoder(tmp_path))
    before = head.state_dict()
    words = len(before[f"{head.output}.bias"])
    fewer = {name: value[:-1] if len(value) > 32 else value for name, value in before.items()}
    assert not head.adopt({**fewer, head.embeddings: torch.randn(words - 1, 32)})
    assert head.is_tied
    assert head.adopt({**before, head.embeddings: torch.randn(words, 32)})
    assert not head.is_tied


@pytest.fixture(params=[hf.BertForPreTraining, hf.BertForMaskedLM])
def first_bert(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """A folder with LayerNorms of gamma and beta, as bert-base-uncased (A1), and the model that it holds."""
    words = homes.words()
    torch.manual_seed(0)
    whole = drawn(request.param(toys.bert(len(words)).config))
    folder = homes.home(tmp_path / "bert", whole, words)

    def rename(stored: dict[str, Tensor]) -> None:
        for name in list(stored):
            if "LayerNorm" in name:
                old = name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
                stored[old] = stored.pop(name)

    edited(folder, rename)
    return folder, whole


def test_a_head_in_the_old_spelling_is_read(first_bert: tuple[Path, Any]) -> None:
    folder, whole = first_bert
    text, head = loaded(folder)
    close(of_head(text, head), logits(whole, text))


def deberta_v3(folder: Path, said: bool) -> Any:
    """DeBERTa v3's checkpoint; transformers' configuration knows of its head, the released ones' does not."""
    whole = whole_model("deberta-v2", folder, legacy=False)
    if not said:
        config = deepcopy(whole.config)
        config.legacy = True
        config.save_pretrained(folder)
    return whole


@pytest.mark.parametrize("said", [True, False])
def test_debertas_own_head_is_read_and_exported(said: bool, tmp_path: Path) -> None:
    whole = deberta_v3(tmp_path / "v3", said)
    assert any(key.startswith("lm_predictions.lm_head.") for key in whole.state_dict())
    text, head = loaded(tmp_path / "v3")
    expected = logits(whole, text)
    close(of_head(text, head), expected)
    close(logits(exported(tmp_path / "left", text, head), text), expected)


@pytest.mark.parametrize("legacy", [True, False])
def test_of_two_heads_the_configurations_counts(legacy: bool, tmp_path: Path) -> None:
    config = deberta_v3(tmp_path, said=True).config
    config.legacy = True
    other = drawn(hf.DebertaV2ForMaskedLM(config)).state_dict()
    theirs = {key: value for key, value in other.items() if key.startswith("cls.")}
    del theirs[TABLE], theirs["cls.predictions.decoder.bias"]
    edited(tmp_path, lambda stored: stored.update(theirs))
    config.legacy = legacy
    config.save_pretrained(tmp_path)
    text, head = loaded(tmp_path)
    close(of_head(text, head), logits(hf.AutoModelForMaskedLM.from_pretrained(tmp_path), text))


@pytest.mark.parametrize("arm", ["mlm", "xdbert", "match"])
@pytest.mark.parametrize("kind", ["untied", "v3"])
def test_an_adapted_folder_fills_masks_for_hugging_face(kind, arm, teacher_home, tmp_path):
    source = tmp_path / "student"
    if kind == "untied":
        whole = whole_model("relu bert", source, tied=False)
    else:
        whole = deberta_v3(source, said=False)
    teacher = "" if arm == "mlm" else str(teacher_home)
    text = (str(homes.text(tmp_path / "text.txt", 16)),)
    given = {"arm": arm, "teacher": teacher, "text": text, "text_layout": "lines"}
    result = adapt(
        make_settings(AdaptConfig, student=str(source), **given), SHORT, tmp_path / "out"
    )
    left = tmp_path / "out/model"
    own = {"mlm": "mlm", "xdbert": "joint_mlm"}.get(arm)
    assert own is None or result["heads_from"][own] == "the checkpoint's"
    assert result["fills_masks"] == ("this run's" if arm == "mlm" else "the student's")
    assert "AutoModelForMaskedLM" in (left / "README.md").read_text()
    filling, report = hf.AutoModelForMaskedLM.from_pretrained(left, output_loading_info=True)
    assert not report["missing_keys"]
    text = load_text_encoder(left)
    head = of_sizes(text)
    if arm == "mlm":
        assert load_head(left, head, LM_HEAD)
        changed, before = filling.state_dict(), whole.state_dict()
        assert kind == "v3" or not torch.equal(changed[TABLE], before[TABLE])
    else:
        init_lm_head(head, source)
    close(of_head(text, head), logits(filling, text))


@pytest.fixture(scope="module")
def teacher_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return homes.teacher(tmp_path_factory.mktemp("clip"))


@pytest.mark.parametrize(
    ("name", "teacher"),
    [*((name, "clip") for name in [*FAMILIES, "albert"]), ("relu bert", "siglip")],
)
def test_a_family_learns_from_every_arm(name, teacher, teacher_home, tmp_path):
    if teacher == "siglip":
        words = toys.siglip_words()
        teacher_home = homes.home(tmp_path / "siglip", toys.siglip(words), words)
    before = whole_model(name, tmp_path / "student").base_model.get_input_embeddings().weight
    config = make_settings(
        AdaptConfig,
        student=str(tmp_path / "student"),
        teacher=str(teacher_home),
        arm="xdbert+l1+contrastive",
        text_layout="lines",
        text=(str(homes.text(tmp_path / "text.txt", 16)),),
    )
    result = adapt(config, SHORT, tmp_path / "out")
    assert set(result["objectives"]) == {"joint_mlm", "match", "clip_tokens", "l1", "contrastive"}
    assert all(value > 0 for value in result["train_metrics"].values())
    after = hf.AutoModel.from_pretrained(tmp_path / "out/model").get_input_embeddings().weight
    assert not torch.equal(after, before)


@pytest.mark.parametrize(
    ("config", "inner", "dropout"),
    [
        (hf.BertConfig(hidden_size=32, intermediate_size=48, num_attention_heads=2), 48, 0.1),
        (hf.DistilBertConfig(dim=32, hidden_dim=40, n_heads=2, dropout=0.3), 40, 0.3),
        (hf.XLMConfig(emb_dim=32, n_heads=2, dropout=0.0), 128, 0.0),
        (hf.ModernBertConfig(hidden_size=32, intermediate_size=24, num_attention_heads=2), 24, 0.1),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_a_cross_modal_layer_is_as_wide_as_the_text_encoders(config, inner, dropout, tower):
    (layer,) = make_cross_modal_layers(config, tower()[0], 1)
    assert layer.text_forward.up.out_features == inner
    assert (layer.text_cross.heads, layer.text_cross.dropout) == (2, dropout)


def test_an_encoder_without_attention_is_refused_by_name(tower: Any) -> None:
    config = hf.FNetConfig(hidden_size=32)
    with pytest.raises(InputError, match=r"fnet model .*num_attention_heads"):
        make_cross_modal_layers(config, tower()[0], 1)


def test_what_is_trained_in_float32_is_saved_so(tmp_path: Path) -> None:
    words = homes.words()
    whole = hf.BertForMaskedLM(toys.bert(len(words)).config).to(torch.bfloat16)
    student = homes.home(tmp_path / "student", whole, words)
    text = (str(homes.text(tmp_path / "text.txt", 16)),)
    adapt(
        make_settings(AdaptConfig, student=str(student), arm="mlm", text=text),
        SHORT,
        tmp_path / "out",
    )
    saved, report = hf.AutoModel.from_pretrained(tmp_path / "out/model", output_loading_info=True)
    weights = saved.state_dict().values()
    # Which rounding would have taken away.
    lost = [one for one in weights if not one.equal(one.to(torch.bfloat16).float())]
    assert saved.dtype == torch.float32 and len(lost) > 10
    # The card says what `AutoModel` reports.
    assert report["unexpected_keys"]
    assert all(key.startswith("cls.predictions.") for key in report["unexpected_keys"])
    card = (tmp_path / "out/model/README.md").read_text()
    assert "library_name: transformers" in card and "UNEXPECTED" in card

"""Text encoders of every family that has a masked-LM head here learn from every arm of `adapt`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as hf
from tiny import homes, toys
from tiny.lm_families import ALL

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.core.errors import InputError
from groundling.models.clip import load_clip_text_tower
from groundling.models.cross_modal import make_cross_modal_layers
from groundling.settings.fields import make_settings

SHORT = replace(homes.STEPS, steps=2)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return homes.teacher(tmp_path_factory.mktemp("clip"))


@pytest.mark.parametrize(
    ("name", "teacher"), [*((name, "clip") for name in ALL), ("relu bert", "siglip")]
)
def test_a_family_learns_from_every_arm(
    name: str, teacher: str, clip: Path, tmp_path: Path
) -> None:
    if teacher == "siglip":
        words = toys.siglip_words()
        clip = homes.home(tmp_path / "siglip", toys.siglip(words), words)
    words = ALL[name].words()
    torch.manual_seed(0)
    whole = ALL[name].whole(len(words))
    student = homes.home(tmp_path / "student", whole, words)
    config = make_settings(
        AdaptConfig,
        student=str(student),
        teacher=str(clip),
        arm="xdbert+l1+contrastive",
        text_layout="lines",
        text=(str(homes.text(tmp_path / "text.txt", 16)),),
    )
    result = adapt(config, SHORT, tmp_path / "out")
    assert set(result["objectives"]) == {"joint_mlm", "match", "clip_tokens", "l1", "contrastive"}
    assert all(value > 0 for value in result["train_metrics"].values())
    before = whole.base_model.get_input_embeddings().weight
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
def test_a_cross_modal_layer_is_as_wide_as_the_text_encoders(
    config: hf.PreTrainedConfig, inner: int, dropout: float, clip: Path
) -> None:
    (layer,) = make_cross_modal_layers(config, load_clip_text_tower(clip)[0], 1)
    assert layer.text_forward.up.out_features == inner
    assert (layer.text_cross.heads, layer.text_cross.dropout) == (2, dropout)


def test_an_encoder_without_attention_is_refused_by_name(clip: Path) -> None:
    config = hf.FNetConfig(hidden_size=32)
    with pytest.raises(InputError, match=r"fnet model .*num_attention_heads"):
        make_cross_modal_layers(config, load_clip_text_tower(clip)[0], 1)


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

"""`groundling merge`: weights between two models, by layer or whole, and folders that transformers loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import homes, toys
from transformers import AutoModel, BertForMaskedLM

import groundling
from groundling.core.errors import InputError


def encoder(folder: Path, seed: int, head: bool = False) -> Path:
    config = toys.bert(len(homes.words())).config
    torch.manual_seed(seed)
    model = BertForMaskedLM(config) if head else AutoModel.from_config(config)
    return homes.home(folder, model, homes.words())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(AutoModel.from_pretrained(folder).named_parameters())


@pytest.mark.parametrize("head", [False, True])
def test_one_share_is_a_straight_line(head: bool, tmp_path: Path) -> None:
    given, origin = encoder(tmp_path / "given", 1, head), encoder(tmp_path / "origin", 2)
    result = groundling.merge(model=given, origin=origin, share=(0.25,), out=tmp_path / "out")
    one, other, found = (weights(f) for f in (given, origin, tmp_path / "out/model"))
    for name, value in found.items():
        if "pooler" not in name:  # a model with a head has none
            torch.testing.assert_close(value, 0.25 * one[name] + 0.75 * other[name])
    assert result["merged"] > 30
    assert bool(result["alone"]) == head
    for share, expected in ((0.0, other), (1.0, one)):
        out = tmp_path / f"out{share}"
        groundling.merge(model=given, origin=origin, share=(share,), out=out)
        same = [
            torch.equal(value, expected[name]) for name, value in weights(out / "model").items()
        ]
        assert all(same[:-2])


def test_each_layer_has_its_share(tmp_path: Path) -> None:
    given, origin = encoder(tmp_path / "given", 1), encoder(tmp_path / "origin", 2)
    layers = AutoModel.from_pretrained(given).config.num_hidden_layers
    shares = (0.0, *(1.0 for _ in range(layers)))
    groundling.merge(model=given, origin=origin, share=shares, out=tmp_path / "out")
    one, other, found = (weights(f) for f in (given, origin, tmp_path / "out/model"))
    for name, value in found.items():
        assert torch.equal(value, (other if name.startswith("embeddings") else one)[name]), name
    with pytest.raises(InputError, match=r"2 shares, but .* is of layer 2"):
        groundling.merge(model=given, origin=origin, share=(0.0, 1.0), out=tmp_path / "bad")


def test_other_models_are_refused(tmp_path: Path) -> None:
    given = encoder(tmp_path / "given", 1)
    homes.home(tmp_path / "wide", toys.bert(len(homes.words()), positions=80), homes.words())
    with pytest.raises(InputError, match=r"position_embeddings.* is \(80, 32\), not"):
        groundling.merge(model=given, origin=tmp_path / "wide", out=tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no safetensors"):
        groundling.merge(model=given, origin=tmp_path / "empty", out=tmp_path / "other")

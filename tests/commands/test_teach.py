"""`train-clip` on a tiny rendered world: a stock CLIP, its retrieval, its listings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny.homes import STEPS, never, put
from transformers import AutoTokenizer, CLIPModel

from groundling.commands.train_clip import COMMAND as teach
from groundling.commands.train_clip import TrainClipConfig
from groundling.training import fit as fitting


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def test_teach_writes_a_stock_clip(taught: tuple[Path, dict]) -> None:
    out, result = taught
    assert (result["steps"], result["images"], result["missing_images"], result["samples"]) == (
        2,
        40,
        0,
        40,
    )
    model = CLIPModel.from_pretrained(out / "model")
    assert sum(p.numel() for p in model.parameters()) == result["parameters"]
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    words = tokenizer(["there is a red thing .", "a"], padding=True, return_tensors="pt")
    features = model.get_text_features(**words).pooler_output
    assert features.shape == (2, 16) and torch.isfinite(features).all()
    assert (
        model.config.text_config.max_position_embeddings,
        model.config.vision_config.image_size,
    ) == (20, 32)
    assert len(tokenizer) <= 560
    assert json.loads((out / "result.json").read_text()) == result
    assert not (out / "checkpoints").exists()


def test_teach_reports_retrieval(taught: tuple[Path, dict]) -> None:
    found = taught[1]["retrieval"]
    ways = [f"{way}_r@{k}" for way in ("text_to_image", "image_to_text") for k in (1, 5, 10)]
    assert list(found) == ["images", "captions", *ways, "mean_recall"]
    assert found["mean_recall"] == pytest.approx(sum(found[way] for way in ways) / 6, abs=0.01)
    assert (found["images"], found["captions"]) == (10, 20)
    for way in ("text_to_image", "image_to_text"):
        assert 0 <= found[f"{way}_r@1"] <= found[f"{way}_r@5"] <= found[f"{way}_r@10"] <= 100
    assert found["text_to_image_r@10"] == 100  # of ten images


def test_an_untrained_teacher_is_the_one_training_starts_from(
    teaching_config: TrainClipConfig,
    taught: tuple[Path, dict],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fitting, "train", never)
    result = teach(
        replace(teaching_config, untrained=True), replace(STEPS, steps=2), tmp_path / "out"
    )
    assert "steps" not in result
    assert result["retrieval"]["captions"] == 20
    before = weights(CLIPModel.from_pretrained(tmp_path / "out" / "model"))
    after = weights(CLIPModel.from_pretrained(taught[0] / "model"))
    assert before.keys() == after.keys()
    moved = {
        k: (after[k] - before[k]).abs().max().item()
        for k in before
        if before[k].is_floating_point()
    }
    assert 0 < max(moved.values()) < 0.01  # two steps at a rate of 1e-3
    for name in ("model/tokenizer.json", "model/tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (taught[0] / name).read_bytes()


def test_teach_keeps_to_its_listings(teaching_config: TrainClipConfig, tmp_path: Path) -> None:
    images = [
        image["file_name"]
        for image in json.loads(Path(teaching_config.captions).read_text())["images"]
    ]
    config = replace(
        teaching_config,
        image_list=str(put(tmp_path / "train.txt", "\n".join(images[:24]))),
        eval_image_list=str(put(tmp_path / "test.txt", "\n".join(images[24:31]))),
        eval_captions="",
    )
    result = teach(config, replace(STEPS, steps=1), tmp_path / "out")
    assert (result["images"], result["samples"]) == (24, 24)
    assert (result["retrieval"]["images"], result["retrieval"]["captions"]) == (7, 14)

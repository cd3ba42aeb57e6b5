"""Teachers that read images alone or texts alone: features are those of transformers' own models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from tiny import homes, toys
from tiny.objectives import captioned_run

import groundling
from groundling.core.batch import Sample, collate
from groundling.core.errors import InputError
from groundling.models.frozen_clip import load_frozen_clip
from groundling.models.text_encoder import load_text_encoder
from groundling.settings.fields import setting_values

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SQUARE = {"image_size": 28, "patch_size": 7}
ENCODERS: dict[str, tuple[Any, Any]] = {
    "dinov2": (hf.Dinov2Model, hf.Dinov2Config(**SMALL, **SQUARE)),
    "vit": (hf.ViTModel, hf.ViTConfig(**SMALL, **SQUARE, intermediate_size=64)),
    "vit without pooler": (
        hf.ViTForImageClassification,
        hf.ViTConfig(**SMALL, **SQUARE, intermediate_size=64),
    ),
    "resnet": (
        hf.ResNetModel,
        hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
    ),
    "convnext": (
        hf.ConvNextModel,
        hf.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    ),
}


def image_encoder(folder: Path, name: str) -> Path:
    kind, config = ENCODERS[name]
    torch.manual_seed(3)
    kind(config).save_pretrained(folder)
    square = {"height": 28, "width": 28}
    hf.BitImageProcessorPil(size={"shortest_edge": 28}, crop_size=square).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_image_features_are_transformers_own(name: str, tmp_path: Path) -> None:
    folder = image_encoder(tmp_path, name)
    tower = load_frozen_clip(folder, text=False).image
    noise = np.random.default_rng(0).integers(0, 255, (60, 40, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    pixels = hf.AutoImageProcessor.from_pretrained(folder, backend="pil")(
        image, return_tensors="pt"
    )
    read = hf.AutoModel.from_pretrained(folder).eval()(**pixels)
    expected = read.pooler_output.flatten(1)
    if name == "vit without pooler":  # transformers draws one
        expected = read.last_hidden_state[:, 0]
    found = tower(torch.from_numpy(tower.preprocess(image)[None]))
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)
    assert tower.pooled_width == tower.embed_dim == expected.shape[1]


@torch.no_grad()
def test_text_features_are_those_of_the_text_encoder(tmp_path: Path) -> None:
    folder = homes.sentence_encoder(tmp_path)
    clip = load_frozen_clip(folder, image=False)
    texts = toys.sentences()[:3]
    batch = collate([Sample(str(n), clip=row) for n, (row, _) in enumerate(clip.tokenize(texts))])
    states, _ = clip.encode_texts(batch)
    _, ends = clip.text(batch.clip)
    text = load_text_encoder(folder)
    tokens = text.tokenizer(texts, return_tensors="pt", padding=True)
    own = text.encoder(**tokens).last_hidden_state
    mask = tokens["attention_mask"].bool()
    torch.testing.assert_close(states[mask], own[mask], rtol=0, atol=2e-6)
    torch.testing.assert_close(ends, text.sentence.vectors(own, mask), rtol=0, atol=2e-6)
    torch.testing.assert_close(ends.norm(dim=-1), torch.ones(3))  # its last module normalises


def test_an_image_encoder_teaches_and_names_what_reads_images_alone(tmp_path: Path) -> None:
    teacher = str(image_encoder(tmp_path / "encoder", "dinov2"))
    config = captioned_run(tmp_path, "caption_to_image", teacher=teacher)
    result = groundling.adapt(
        **setting_values(config), steps=2, batch=4, cpu=True, out=tmp_path / "out"
    )
    assert np.isfinite(result["train_metrics"]["caption_to_image"])
    with pytest.raises(
        InputError, match=r"contrastive reads; of images alone are caption_to_image"
    ):
        groundling.adapt(**setting_values(config) | {"arm": "contrastive"}, out=tmp_path / "other")

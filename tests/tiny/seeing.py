"""Photos of noise, and the tiny models that look at them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers as hf
from PIL import Image
from torch import nn
from transformers import ConvNextImageProcessorPil, ResNetConfig, ResNetModel

from tiny import toys
from tiny.homes import home

RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 16, 24],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}
DETECTOR = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
EDGES = {"shortest_edge": 32, "longest_edge": 64}


def rt_detr() -> hf.RTDetrForObjectDetection:
    """A detector of 12 boxes a photo, of four classes."""
    stages = hf.RTDetrResNetConfig(**RESNET, out_features=["stage2", "stage3", "stage4"])
    config = hf.RTDetrConfig(
        backbone_config=stages,
        backbone=None,
        encoder_in_channels=[16, 16, 24],
        encoder_hidden_dim=16,
        num_queries=12,
        decoder_in_channels=[16, 16, 16],
        anchor_image_size=None,
        num_labels=4,
        num_denoising=0,
        **DETECTOR,
    )
    return hf.RTDetrForObjectDetection(config)


def seeing_models(root: Path) -> dict[str, str]:
    """Folders of tiny detectors and backbones with their image processors, by name."""
    torch.manual_seed(0)
    own = hf.ResNetConfig(**RESNET, out_features=["stage4"])
    detr = hf.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=own,
        num_queries=20,
        num_labels=5,
        **DETECTOR,
    )
    tiny = {"image_size": 16, "patch_size": 8, **toys.SMALL}
    square = {"size": {"height": 16, "width": 16}}
    made = {
        "detr": (hf.DetrForObjectDetection(detr), hf.DetrImageProcessorPil(size=EDGES)),
        "rt": (
            rt_detr(),
            hf.RTDetrImageProcessorPil(size={"height": 64, "width": 64}),
        ),
        "resnet": (
            hf.ResNetModel(hf.ResNetConfig(**RESNET)),
            hf.CLIPImageProcessorPil(do_normalize=False),
        ),
        "vit": (toys.vit(), hf.CLIPImageProcessorPil(**square)),
        "vision": (
            hf.CLIPVisionModel(hf.CLIPVisionConfig(**tiny)),
            hf.CLIPImageProcessorPil(**square),
        ),
        "clip": (toys.clip(toys.clip_words()), hf.CLIPImageProcessorPil(**square)),
    }
    for name, (model, processor) in made.items():
        processor.save_pretrained(home(root / name, model, None))
    return {name: str(root / name) for name in made}


SMALL = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 2]}


def resnet(folder: Path, kind: str = "bottleneck", **options: object) -> Path:
    torch.manual_seed(4)
    model = ResNetModel(ResNetConfig(layer_type=kind, **{**SMALL, **options}))  # type: ignore[arg-type]
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):  # as trained ones are, and not neutral to padding
            nn.init.normal_(part.running_mean, std=0.2)  # type: ignore[arg-type]
            nn.init.normal_(part.bias, std=0.2)
    mean = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.2]}
    ConvNextImageProcessorPil(size={"shortest_edge": 224}, **mean).save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def pictures(folder: Path, names: list[str]) -> Path:
    rng = np.random.default_rng(3)
    for number, name in enumerate(names):
        ending = ("jpg", "png", "JPEG")[number % 3]
        path = folder / f"{name}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40 + number, 60, 3), dtype=np.uint8)).save(path)
    return folder

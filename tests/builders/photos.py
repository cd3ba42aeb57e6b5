"""Photos of noise, and the ResNet that looks at them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from transformers import ConvNextImageProcessorPil, ResNetConfig, ResNetModel


def image(path: Path, size: tuple[int, int], seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


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

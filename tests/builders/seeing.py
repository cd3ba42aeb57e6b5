"""Tiny models that see."""

from __future__ import annotations

from pathlib import Path

import torch
import toys
import transformers as hf
from homes import home

RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 16, 24],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}
EDGES = {"shortest_edge": 32, "longest_edge": 64}


def seeing_models(root: Path) -> dict[str, str]:
    """Folders of tiny detectors and backbones with their image processors, by name."""
    torch.manual_seed(0)
    width = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    width |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    own = hf.ResNetConfig(**RESNET, out_features=["stage4"])
    detr = hf.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=own,
        num_queries=20,
        num_labels=5,
        **width,
    )
    stages = hf.RTDetrResNetConfig(**RESNET, out_features=["stage2", "stage3", "stage4"])
    rt = hf.RTDetrConfig(
        backbone_config=stages,
        backbone=None,
        encoder_in_channels=[16, 16, 24],
        encoder_hidden_dim=16,
        num_queries=12,
        decoder_in_channels=[16, 16, 16],
        anchor_image_size=None,
        num_labels=4,
        num_denoising=0,
        **width,
    )
    tiny = {"image_size": 16, "patch_size": 8, **toys.SMALL}
    square = {"size": {"height": 16, "width": 16}}
    made = {
        "detr": (hf.DetrForObjectDetection(detr), hf.DetrImageProcessorPil(size=EDGES)),
        "rt": (
            hf.RTDetrForObjectDetection(rt),
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

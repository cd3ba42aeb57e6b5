"""Tiny checkpoints in open_clip's own format, written by open_clip itself.

Imported by processes of their own: where open_clip lies in a folder beside the environment
(`OPEN_CLIP_FOLDER`, which `bootstrap.py test` fills), its torchvision is built for another torch.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

FOLDER = os.environ.get("OPEN_CLIP_FOLDER", "")
if FOLDER:
    sys.path.append(FOLDER)
    operators = torch.library.Library("torchvision", "DEF")
    operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import open_clip  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

VISION = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
TEXT = {"context_length": 16, "width": 32, "heads": 2, "layers": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "clip": {"vision_cfg": VISION, "text_cfg": TEXT, "quick_gelu": True},
    "resnet": {
        "vision_cfg": VISION | {"layers": [1, 1, 1, 1], "width": 8},
        "text_cfg": TEXT,
        "custom_text": True,
    },
    "timm": {
        "vision_cfg": {"timm_model_name": "resnet10t", "timm_pool": "avg", "image_size": 32},
        "text_cfg": {"hf_model_name": "own/text", "hf_tokenizer_name": "own", "context_length": 16}
        | {"hf_proj_type": "mlp", "hf_pooler_type": "mean_pooler"},
    },
    "siglip": {
        "vision_cfg": {"timm_model_name": "test_vit", "timm_pool": "map", "timm_proj": "none"}
        | {"image_size": 160},
        "text_cfg": TEXT
        | {"hf_tokenizer_name": "own", "tokenizer_kwargs": {"clean": "canonicalize"}}
        | {"width": 64, "no_causal_mask": True, "proj_bias": True, "pool_type": "last"},
        "init_logit_bias": -10,
        "custom_text": True,
    },
    "coca": {
        "vision_cfg": VISION
        | {"attentional_pool": True, "attn_pooler_heads": 2}
        | {"output_tokens": True},
        "text_cfg": TEXT | {"embed_cls": True, "output_tokens": True},
        "multimodal_cfg": TEXT | {"mlp_ratio": 2, "attn_pooler_heads": 2},
        "custom_text": True,
    },
}
"""`model_cfg` of each kind: CLIP, its ResNet, a timm image tower with a Hugging Face text tower, SigLIP, CoCa."""


def write(folder: Path, kind: str, **preprocess: Any) -> Path:
    """A folder as open_clip writes it for the hub; `folder` may hold a tokenizer, and a text encoder in `text`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads(json.dumps(CONFIGS[kind]).replace('"own', f'"{folder}'))
    config["embed_dim"] = 64 if kind == "siglip" else 24
    values = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25], **preprocess}
    content = {"model_cfg": config, "preprocess_cfg": values}
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    torch.manual_seed(4)
    model = open_clip.create_model(f"local-dir:{folder}", load_weights=False, pretrained_text=False)
    for name, value in model.named_parameters():
        if value.ndim > 1 and "visual.trunk" not in name:
            torch.nn.init.normal_(value, std=0.2)
    weights = {name: value.contiguous().clone() for name, value in model.state_dict().items()}
    save_file(weights, folder / "open_clip_model.safetensors")
    return folder

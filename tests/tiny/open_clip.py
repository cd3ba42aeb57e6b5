"""A tiny checkpoint in open_clip's own format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from groundling.models import open_clip
from tiny import toys
from tiny.homes import tokens

WIDTH, HEADS, LAYERS, SIDE, PATCH, JOINT = 32, 2, 2, 16, 8, 24
"""Sizes of the checkpoint."""


def model_config(quick: bool = True, **changes: Any) -> dict[str, Any]:
    """open_clip's `model_cfg` for these sizes."""
    vision = {"image_size": SIDE, "layers": LAYERS, "width": WIDTH, "head_width": WIDTH // HEADS}
    vision |= {"patch_size": PATCH, "mlp_ratio": 2.0}
    text = {"context_length": toys.WINDOW, "vocab_size": len(tokens()), "width": WIDTH}
    text |= {"heads": HEADS, "layers": LAYERS, "mlp_ratio": 2.0}
    parts: dict[str, Any] = {"embed_dim": JOINT, "vision_cfg": vision, "text_cfg": text}
    if quick:
        parts["quick_gelu"] = True
    for name, value in changes.items():
        part, _, inner = name.partition("__")
        (parts[part] if inner else parts).__setitem__(inner or part, value)
    return parts


def random_weights(prefix: str = "", mlp: int = 2 * WIDTH) -> dict[str, Tensor]:
    """Weights with open_clip's names and shapes; `prefix` stands before those of the text tower."""
    random = torch.Generator().manual_seed(4)

    def draw(*shape: int) -> Tensor:
        return 0.2 * torch.randn(*shape, generator=random)

    weights = {"logit_scale": torch.tensor(2.5)}
    for start, width in ((prefix, WIDTH), ("visual.", WIDTH)):
        for number in range(LAYERS):
            layer = f"{start}transformer.resblocks.{number}."
            weights[f"{layer}attn.in_proj_weight"] = draw(3 * width, width)
            weights[f"{layer}attn.in_proj_bias"] = draw(3 * width)
            for module, shape in (
                ("attn.out_proj", (width, width)),
                ("mlp.c_fc", (mlp, width)),
                ("mlp.c_proj", (width, mlp)),
            ):
                weights[f"{layer}{module}.weight"] = draw(*shape)
                weights[f"{layer}{module}.bias"] = draw(shape[0])
            for module in ("ln_1", "ln_2"):
                weights[f"{layer}{module}.weight"] = 1 + draw(width)
                weights[f"{layer}{module}.bias"] = draw(width)
    for norm in (f"{prefix}ln_final", "visual.ln_pre", "visual.ln_post"):
        weights[f"{norm}.weight"] = 1 + draw(WIDTH)
        weights[f"{norm}.bias"] = draw(WIDTH)
    weights[f"{prefix}token_embedding.weight"] = draw(len(tokens()), WIDTH)
    weights[f"{prefix}positional_embedding"] = draw(toys.WINDOW, WIDTH)
    weights[f"{prefix}text_projection"] = draw(WIDTH, JOINT)
    weights["visual.class_embedding"] = draw(WIDTH)
    weights["visual.positional_embedding"] = draw((SIDE // PATCH) ** 2 + 1, WIDTH)
    weights["visual.conv1.weight"] = draw(WIDTH, 3, PATCH, PATCH)
    weights["visual.proj"] = draw(WIDTH, JOINT)
    return weights


def write(folder: Path, model: dict[str, Any], prefix: str = "", **preprocess: Any) -> Path:
    """A folder as open_clip writes it for the hub, with CLIP's tokenizer."""
    folder.mkdir(parents=True)
    save_file(random_weights(prefix), folder / open_clip.WEIGHTS)
    values = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25], "interpolation": "bicubic"}
    content = {"model_cfg": model, "preprocess_cfg": {**values, **preprocess}}
    (folder / open_clip.OPEN_CLIP_CONFIG).write_text(json.dumps(content))
    tokens().save_pretrained(folder)
    return folder

"""Parameter counts of published models by name, or of a model folder.

Presets are built from configurations on the meta device, without weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    ElectraConfig,
    ElectraModel,
)

from groundling.commands.info import ModelInfoConfig
from groundling.core.errors import require_known
from groundling.models.clip import ClipTextTower, make_clip_text_tower
from groundling.models.cross_modal import LAYERS, make_cross_modal_layers
from groundling.models.heads import LMHead
from groundling.models.loading import load_config
from groundling.runs.folder import json_text
from groundling.runs.progress import CommandContext
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.single_stream import JOIN
from groundling.vision_language.uniter import UniterEmbeddings
from groundling.vision_language.visualbert import VisualBertEmbeddings
from groundling.vision_language.vlbert import VLBertEmbeddings

LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


def _xdbert(encoder: Callable[[], Any]) -> dict[str, nn.Module]:
    text = encoder()
    clip: ClipTextTower = make_clip_text_tower(CLIPModel(CLIPConfig()))  # ViT-B/32, HF's default
    return {"text": text, "clip": clip, "cross": make_cross_modal_layers(text.config, clip, 2)}


def _electra(**sizes: Any) -> ElectraModel:
    return ElectraModel(ElectraConfig(**sizes))


def _visualbert(**sizes: Any) -> dict[str, nn.Module]:
    bert = BertModel(BertConfig(**sizes))
    return {"bert": bert, "join": VisualBertEmbeddings(bert)}


def _vlbert(**sizes: Any) -> dict[str, nn.Module]:
    bert = BertModel(BertConfig(type_vocab_size=3, **sizes), add_pooling_layer=False)
    width = bert.config.hidden_size
    words = bert.config.vocab_size
    regions = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1601))
    return {
        "bert": bert,
        "join": VLBertEmbeddings(bert),
        "word head": LMHead(width, (words, width)),
        "region head": regions,
    }


def _uniter(**sizes: Any) -> dict[str, nn.Module]:
    bert = BertModel(BertConfig(vocab_size=28996, **sizes))  # cased
    return {"bert": bert, "join": UniterEmbeddings(bert)}


PRESETS: dict[str, Callable[[], dict[str, nn.Module]]] = {
    "xdbert-bert-base": lambda: _xdbert(lambda: BertModel(BertConfig())),
    "xdbert-electra-base": lambda: _xdbert(
        lambda: _electra(
            embedding_size=768, hidden_size=768, num_attention_heads=12, intermediate_size=3072
        )
    ),
    "xdbert-electra-large": lambda: _xdbert(lambda: _electra(embedding_size=1024, **LARGE)),
    "visualbert-base": _visualbert,
    "visualbert-large": lambda: _visualbert(**LARGE),
    "vlbert-base": _vlbert,
    "vlbert-large": lambda: _vlbert(**LARGE),
    "uniter-base": _uniter,
    "uniter-large": lambda: _uniter(**LARGE),
}
"""Components by preset; they add up to the total in the paper (XDBERT, Table 6) or released code.

VisualBERT and UNITER are counted with pooler and without heads, VL-BERT with its pre-training heads.
"""


def count_parameters(name: str) -> dict[str, Any]:
    """`{"name", "total", "components"}` of a preset or a model folder, in parameters; raises InputError for others."""
    parts = _components(name)
    counts = {
        part: sum(parameter.numel() for parameter in module.parameters())
        for part, module in parts.items()
    }
    return {"name": name, "total": sum(counts.values()), "components": counts}


def _components(name: str) -> dict[str, nn.Module]:
    folder = Path(name)
    if (folder / LAYERS).exists() or (folder / JOIN).exists():
        return dict(load_encoder(name).named_children())
    with torch.device("meta"):
        if folder.is_dir() and name not in PRESETS:
            return dict(AutoModel.from_config(load_config(name)).named_children())
        require_known(name, sorted(PRESETS), f"{name}: neither a model folder nor a preset")
        return PRESETS[name]()


def info(config: ModelInfoConfig, work: CommandContext) -> dict[str, Any]:
    """Print the parameter count of each component, or one JSON object; returns the counts."""
    described = count_parameters(config.name)
    if config.json:
        print(json_text(described))
        return described
    print(f"{described['name']}: {described['total']:,} parameters")
    for part, count in described["components"].items():
        print(f"  {part:<12}{count:>14,}")
    return described

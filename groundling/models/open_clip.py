"""Checkpoints in open_clip's own format, read as Hugging Face's `CLIPModel`: a folder, or open_clip:NAME/TAG.

The format is that of open_clip_torch 2 and 3 (`open_clip/push_to_hf_hub.py`, `save_for_hf`):
`open_clip_config.json` with `model_cfg` and `preprocess_cfg`, and `open_clip_model.safetensors`. Image
towers are ViTs and text towers CLIP's own; every other architecture is refused. Weights are renamed, and
the fused attention projections split. open_clip itself is needed for open_clip:NAME/TAG and its vocabulary.

One difference remains: open_clip repairs the characters of a text (ftfy, HTML entities) before it is
tokenised, and Hugging Face's CLIP tokenizer does not.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoTokenizer,
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPTokenizer,
    PreTrainedTokenizerBase,
)
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from groundling.core.errors import (
    InputError,
    convert_errors,
    convert_read_errors,
    did_you_mean,
    require_known,
)
from groundling.models.hub import (
    NO_OPEN_CLIP,
    OPEN_CLIP,
    OPEN_CLIP_CONFIG,
    is_hub_reachable,
    library_errors,
    parse_open_clip,
)
from groundling.runs.folder import read_object

WEIGHTS = "open_clip_model.safetensors"
TOKENIZER = ("tokenizer.json", "vocab.json")
"""Files of which one shows that a folder has its own tokenizer."""

ONLY = "groundling reads ViT image towers with CLIP's own text tower"
MODEL_KEYS = ("embed_dim", "vision_cfg", "text_cfg", "quick_gelu", "custom_text")
VISION_KEYS = ("layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size")
TEXT_KEYS = ("context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio")
"""Settings that are read, by part of `model_cfg`."""
FIXED = {
    "pos_embed_type": "learnable",
    "block_type": "default",
    "proj_type": "linear",
}
"""Settings with one supported value besides none."""
UNUSED = (
    *("init_logit_scale", "output_dict", "output_tokens", "cast_dtype", "patch_dropout"),
    *("attn_pooler_queries", "attn_pooler_heads", "pad_id", "eos_id", "hf_tokenizer_name"),
    *("timm_model_pretrained", "timm_pool", "timm_proj", "timm_proj_bias", "timm_drop"),
    *("timm_drop_path", "hf_model_pretrained", "hf_proj_type", "hf_pooler_type"),
)
"""Settings without effect on the features of a supported model."""
RESAMPLE = {"bicubic": 3, "bilinear": 2}
"""Pillow's numbers of open_clip's interpolations."""


@dataclass(frozen=True)
class OpenClipCheckpoint:
    """The parts of a checkpoint, wherever they were found."""

    source: str
    """As the user wrote it."""
    model: Mapping[str, Any]
    """open_clip's `model_cfg`."""
    preprocess: Mapping[str, Any]
    """open_clip's `preprocess_cfg`."""
    weights: Path | None
    """The safetensors file; None until it is needed."""
    folder: Path | None
    """The checkpoint's folder; None for a checkpoint of open_clip's list."""
    hub: str = ""
    """The hub id of the weights, for a checkpoint of open_clip's list."""


def open_checkpoint(source: str | Path) -> OpenClipCheckpoint:
    """The configuration of a checkpoint; its weights are not read yet.

    Raises InputError for a damaged file, or a name that open_clip does not list.
    """
    if str(source).startswith(OPEN_CLIP):
        return _listed_checkpoint(str(source))
    folder = Path(source)
    content = read_object(folder / OPEN_CLIP_CONFIG)
    return OpenClipCheckpoint(
        str(source),
        content.get("model_cfg", {}),
        content.get("preprocess_cfg", {}),
        folder / WEIGHTS,
        folder,
    )


def load_open_clip_config(source: str | Path) -> Any:
    """The configuration of a checkpoint as transformers' `CLIPConfig`; raises InputError if it is not supported."""
    return _hf_config(open_checkpoint(source))


def load_open_clip(source: str | Path) -> Any:
    """Load a checkpoint as transformers' `CLIPModel`, in fp32.

    Raises InputError for an architecture that is not supported, and for weights that do not fit.
    """
    checkpoint = open_checkpoint(source)
    config = _hf_config(checkpoint)
    weights = checkpoint.weights or _download(checkpoint)
    # The random weights are replaced.
    with torch.random.fork_rng(devices=[]), convert_read_errors(weights):
        model = CLIPModel(config)
        renamed = rename_weights(load_file(weights))
        model.load_state_dict({name: value.float() for name, value in renamed.items()})
    return model.eval()


def load_open_clip_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint: its folder's own, or CLIP's from the installed open_clip.

    Raises InputError if there is none, or if its end token is not its last: open_clip pools at the
    largest id.
    """
    checkpoint = open_checkpoint(source)
    folder = checkpoint.folder
    tokenizer: PreTrainedTokenizerBase
    if folder is not None and any((folder / name).is_file() for name in TOKENIZER):
        described = (folder / "tokenizer_config.json").is_file()
        maker: Any = AutoTokenizer if described else CLIPTokenizer
        with library_errors(source, "no tokenizer could be loaded"):
            tokenizer = maker.from_pretrained(folder, trust_remote_code=False)
            tokenizer("a")  # some damaged files fail only here
    else:
        tokenizer = _published_tokenizer(checkpoint)
    largest = max(tokenizer.get_vocab().values(), default=-1)
    size = _hf_config(checkpoint).text_config.vocab_size
    if largest < 0 or tokenizer.eos_token_id != largest or largest >= size:
        raise InputError(f"{source}: expected CLIP's tokenizer, whose end token is the last")
    return tokenizer


def load_open_clip_processor(source: str | Path) -> Any:
    """The image processor of a checkpoint, with Pillow; raises InputError for preprocessing that is not supported.

    It crops the centre as Hugging Face's does, which differs from torchvision's by at most one pixel.
    """
    checkpoint = open_checkpoint(source)
    values = checkpoint.preprocess
    side = _hf_config(checkpoint).vision_config.image_size
    mode = values.get("resize_mode") or "shortest"
    if mode not in ("shortest", "squash"):
        raise InputError(f"{source}: resize_mode is {mode!r}; expected shortest or squash")
    squash = mode == "squash"
    return CLIPImageProcessorPil(
        size={"height": side, "width": side} if squash else {"shortest_edge": side},
        do_center_crop=not squash,
        crop_size={"height": side, "width": side},
        resample=RESAMPLE[values.get("interpolation") or "bicubic"],
        image_mean=list(values.get("mean") or OPENAI_CLIP_MEAN),
        image_std=list(values.get("std") or OPENAI_CLIP_STD),
    )


# -- configuration -----------------------------------------------------------------------------------------------------


def _hf_config(checkpoint: OpenClipCheckpoint) -> Any:
    """The configuration in transformers' terms; raises InputError, naming the setting, if it is not supported."""
    with convert_errors(f"{checkpoint.source}: {ONLY}"):
        model = checkpoint.model
        vision, text = model["vision_cfg"], model["text_cfg"]
        _refuse_others(checkpoint.source, model, MODEL_KEYS)
        _refuse_others(checkpoint.source, vision, VISION_KEYS, pool_type="tok")
        _refuse_others(checkpoint.source, text, TEXT_KEYS, pool_type="argmax")
        shared = {
            "hidden_act": "quick_gelu" if model.get("quick_gelu") else "gelu",
            "projection_dim": model["embed_dim"],
        }
        width = vision.get("width", 768)
        tokens = text.get("vocab_size", 49408)
        return CLIPConfig(
            projection_dim=shared["projection_dim"],
            vision_config={
                **shared,
                **_transformer_sizes(vision, width, heads=width // vision.get("head_width", 64)),
                "image_size": _side(vision.get("image_size", 224)),
                "patch_size": _side(vision.get("patch_size", 16)),
            },
            text_config={
                **shared,
                **_transformer_sizes(text, text.get("width", 512), heads=text.get("heads", 8)),
                "max_position_embeddings": text.get("context_length", 77),
                "vocab_size": tokens,
                "bos_token_id": max(tokens - 2, 0),
                "eos_token_id": tokens - 1,
                "pad_token_id": tokens - 1,
            },
        )


def _refuse_others(
    source: str, values: Mapping[str, Any], known: tuple[str, ...], **fixed: str
) -> None:
    """Raises InputError for a setting that changes the model in a way that is not supported."""
    allowed = {**FIXED, **fixed}
    for name, value in values.items():
        if name in known or name in UNUSED or not value or value == allowed.get(name):
            continue
        if name == "norm_kwargs" and set(value) == {"eps"}:
            continue
        raise InputError(f"{source}: {OPEN_CLIP_CONFIG} sets {name} = {str(value)[:60]!r}; {ONLY}")


def _side(value: Any) -> Any:
    """A number of pixels, or two equal ones."""
    square = isinstance(value, (list, tuple)) and value[0] == value[1]
    return value[0] if square else value


def _transformer_sizes(values: Mapping[str, Any], width: int, heads: int) -> dict[str, Any]:
    """The sizes of a transformer, named as in transformers."""
    return {
        "hidden_size": width,
        "num_hidden_layers": values.get("layers", 12),
        "num_attention_heads": heads,
        "intermediate_size": int(width * values.get("mlp_ratio", 4.0)),
        "layer_norm_eps": (values.get("norm_kwargs") or {}).get("eps", 1e-5),
    }


# -- weights -----------------------------------------------------------------------------------------------------------

BLOCK = re.compile(r"(visual\.)?transformer\.resblocks\.(\d+)\.(.+)")
"""A weight of a transformer's layer."""
IN_LAYER = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
"""Modules of a layer, and their names in transformers."""
OUTSIDE = {
    "logit_scale": "logit_scale",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
    "text_projection": "text_projection.weight",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
    "visual.proj": "visual_projection.weight",
}
"""All other weights, and their names in transformers."""
TRANSPOSED = ("text_projection", "visual.proj")
"""Matrices that open_clip multiplies from the right."""
MASK = "attn_mask"
"""A buffer of some versions."""


def rename_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """open_clip's weights with transformers' names and shapes; others keep their names."""
    renamed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        own = name.removeprefix("text.")  # `custom_text` models keep the text tower in a module
        if own == MASK:
            continue
        block = BLOCK.fullmatch(own)
        if block is not None:
            renamed.update(_layer_weights(block, value))
        else:
            renamed[OUTSIDE.get(own, own)] = value.T.contiguous() if own in TRANSPOSED else value
    return renamed


def _layer_weights(block: re.Match[str], value: Tensor) -> dict[str, Tensor]:
    side, number, inside = block.groups()
    tower = "vision_model" if side else "text_model"
    layer = f"{tower}.encoder.layers.{number}."
    module, _, kind = inside.rpartition(".")
    if not inside.startswith("attn.in_proj_"):
        return {f"{layer}{IN_LAYER.get(module, module)}.{kind}": value}
    kind = inside.removeprefix("attn.in_proj_")
    parts = zip("qkv", value.chunk(3), strict=True)
    return {f"{layer}self_attn.{letter}_proj.{kind}": part.contiguous() for letter, part in parts}


# -- open_clip's own list ----------------------------------------------------------------------------------------------


def _library() -> Any:
    """The installed open_clip; raises InputError without it."""
    with convert_errors(NO_OPEN_CLIP):  # torchvision that does not fit torch raises a RuntimeError
        return importlib.import_module("open_clip")


def _listed_checkpoint(source: str) -> OpenClipCheckpoint:
    """A checkpoint of open_clip's list: NAME is its model configuration, TAG its weights."""
    name, tag = parse_open_clip(source)
    library = _library()
    models = library.list_models()
    if name not in models:
        raise InputError(f"{source}: open_clip lists no model {name!r}{did_you_mean(name, models)}")
    tags = library.list_pretrained_tags_by_model(name)
    require_known(tag, tags, f"{source}: open_clip lists no weights {tag!r} of {name}")
    model = dict(library.get_model_config(name))
    weights = dict(library.pretrained.get_pretrained_cfg(name, tag))
    if bool(weights.get("quick_gelu")) != bool(model.get("quick_gelu")):
        raise InputError(
            f"{source}: {tag} was trained with another activation; use NAME-quickgelu or NAME without it"
        )
    hub = str(weights.get("hf_hub", "")).rstrip("/")
    return OpenClipCheckpoint(source, model, weights, None, None, hub)


def _download(checkpoint: OpenClipCheckpoint) -> Path:
    """The safetensors file of a listed checkpoint, from the hub or its cache; a pickle is never opened."""
    with library_errors(checkpoint.source, f"{WEIGHTS} of {checkpoint.hub} was not downloaded"):
        local_only = not is_hub_reachable()
        return Path(
            huggingface_hub.hf_hub_download(checkpoint.hub, WEIGHTS, local_files_only=local_only)
        )


def _published_tokenizer(checkpoint: OpenClipCheckpoint) -> PreTrainedTokenizerBase:
    """CLIP's tokenizer, of the installed open_clip; raises InputError for a model with another one."""
    named = checkpoint.model["text_cfg"].get("hf_tokenizer_name")
    if named:
        raise InputError(f"{checkpoint.source}: its tokenizer {named} is not beside the weights")
    simple = _library().tokenizer.SimpleTokenizer()
    ids = dict(simple.encoder)
    for own, published in (
        ("<start_of_text>", "<|startoftext|>"),
        ("<end_of_text>", "<|endoftext|>"),
    ):
        if own in ids:
            ids[published] = ids.pop(own)
    merges: list[Any] = list(simple.bpe_ranks)
    return CLIPTokenizer(vocab=ids, merges=merges)

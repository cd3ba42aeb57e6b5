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

from groundling.core.errors import InputError, convert_read_errors, did_you_mean, require_known
from groundling.models.hub import (
    NO_OPEN_CLIP,
    OPEN_CLIP,
    describe_load_error,
    is_hub_reachable,
    parse_open_clip,
)
from groundling.runs.folder import read_object

CONFIG = "open_clip_config.json"
WEIGHTS = "open_clip_model.safetensors"
PICKLE = "open_clip_pytorch_model.bin"
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
LARGEST = 1 << 20
"""Maximum of a size in a configuration."""


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


def is_open_clip(source: str | Path) -> bool:
    """Whether a source is open_clip:NAME/TAG, or a folder in open_clip's format alone.

    Many folders on the hub have Hugging Face's format too, which is then used.
    """
    if str(source).startswith(OPEN_CLIP):
        return True
    folder = Path(source)
    if not (folder / CONFIG).is_file():
        return False
    config = folder / "config.json"  # timm writes one, too
    return not config.is_file() or "model_type" not in read_object(config)


def open_checkpoint(source: str | Path) -> OpenClipCheckpoint:
    """The configuration of a checkpoint; its weights are not read yet.

    Raises InputError for a damaged file, or a name that open_clip does not list.
    """
    if str(source).startswith(OPEN_CLIP):
        return _listed_checkpoint(str(source))
    folder = Path(source)
    content = read_object(folder / CONFIG)
    parts = {}
    for name in ("model_cfg", "preprocess_cfg"):
        part = content.get(name, {})
        if not isinstance(part, dict):
            raise InputError(f"{folder / CONFIG}: {name} is not an object")
        parts[name] = part
    if not parts["model_cfg"]:
        raise InputError(f"{folder / CONFIG}: no model_cfg; expected open_clip's configuration")
    return OpenClipCheckpoint(
        str(source), parts["model_cfg"], parts["preprocess_cfg"], folder / WEIGHTS, folder
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
    weights = _weights_file(checkpoint)
    with convert_read_errors(weights):
        tensors = load_file(weights)
    with torch.random.fork_rng(devices=[]):  # the random weights are replaced
        model = CLIPModel(config)
    renamed = rename_weights(tensors, str(weights))
    expected = model.state_dict()
    _check_weights(renamed, expected, str(weights))
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
        try:
            tokenizer = maker.from_pretrained(folder, trust_remote_code=False)
            tokenizer("a")  # some damaged files fail only here
        except Exception as error:  # the libraries raise many types
            raise InputError(
                f"{source}: no tokenizer could be loaded ({describe_load_error(source, error)})"
            ) from None
    else:
        tokenizer = _published_tokenizer(checkpoint)
    largest = max(tokenizer.get_vocab().values(), default=-1)
    size = _hf_config(checkpoint).text_config.vocab_size
    if largest < 0 or tokenizer.eos_token_id != largest or largest >= size:
        raise InputError(
            f"{source}: the tokenizer's end token has id {tokenizer.eos_token_id} of {largest + 1} tokens, the model "
            f"has {size}; expected CLIP's tokenizer, whose end token is the last"
        )
    return tokenizer


def load_open_clip_processor(source: str | Path) -> Any:
    """The image processor of a checkpoint, with Pillow; raises InputError for preprocessing that is not supported.

    It crops the centre as Hugging Face's does, which differs from torchvision's by at most one pixel.
    """
    checkpoint = open_checkpoint(source)
    values = checkpoint.preprocess
    side = _hf_config(checkpoint).vision_config.image_size
    interpolation = values.get("interpolation") or "bicubic"
    mode = values.get("resize_mode") or "shortest"
    where = f"{source}: preprocess_cfg."
    if interpolation not in RESAMPLE:
        raise InputError(
            f"{where}interpolation is {interpolation!r}; expected {' or '.join(RESAMPLE)}"
        )
    if mode not in ("shortest", "squash"):
        raise InputError(f"{where}resize_mode is {mode!r}; expected shortest or squash")
    squash = mode == "squash"
    return CLIPImageProcessorPil(
        size={"height": side, "width": side} if squash else {"shortest_edge": side},
        do_center_crop=not squash,
        crop_size={"height": side, "width": side},
        resample=RESAMPLE[interpolation],
        image_mean=_channels(values.get("mean"), OPENAI_CLIP_MEAN, f"{where}mean"),
        image_std=_channels(values.get("std"), OPENAI_CLIP_STD, f"{where}std"),
    )


def _channels(value: Any, default: list[float], where: str) -> list[float]:
    if value is None:
        return list(default)
    numbers = isinstance(value, (list, tuple)) and all(
        type(one) in (int, float) and abs(one) < LARGEST for one in value
    )
    if not numbers or len(value) != 3 or (where.endswith("std") and min(value) <= 0):
        raise InputError(f"{where} is {str(value)[:60]}; expected three numbers")
    return [float(one) for one in value]


# -- configuration -----------------------------------------------------------------------------------------------------


def _hf_config(checkpoint: OpenClipCheckpoint) -> Any:
    """The configuration in transformers' terms; raises InputError, naming the setting, if it is not supported."""
    part = _ConfigPart(checkpoint.source, "model_cfg", checkpoint.model)
    part.refuse_others(MODEL_KEYS)
    vision = part.inner("vision_cfg")
    text = part.inner("text_cfg")
    if isinstance(vision.values.get("layers"), (list, tuple)):
        raise InputError(f"{checkpoint.source}: the image tower is a ResNet; {ONLY}")
    vision.refuse_others(VISION_KEYS, pool_type="tok")
    text.refuse_others(TEXT_KEYS, pool_type="argmax")
    shared: dict[str, Any] = {
        "hidden_act": "quick_gelu" if part.values.get("quick_gelu") else "gelu",
        "projection_dim": part.number("embed_dim"),
    }
    width = vision.number("width", 768)
    head = vision.number("head_width", 64)
    tokens = text.number("vocab_size", 49408)
    return CLIPConfig(
        projection_dim=shared["projection_dim"],
        vision_config={
            **shared,
            **vision.sizes(width, 12, heads=width // head),
            "image_size": vision.side("image_size", 224),
            "patch_size": vision.side("patch_size", 16),
        },
        text_config={
            **shared,
            **text.sizes(text.number("width", 512), 12, heads=text.number("heads", 8)),
            "max_position_embeddings": text.number("context_length", 77),
            "vocab_size": tokens,
            "bos_token_id": max(tokens - 2, 0),
            "eos_token_id": tokens - 1,
            "pad_token_id": tokens - 1,
        },
    )


@dataclass(frozen=True)
class _ConfigPart:
    """One object of a configuration."""

    source: str
    name: str
    values: Mapping[str, Any]

    def inner(self, name: str) -> _ConfigPart:
        """A part of this part."""
        values = self.values.get(name)
        if not isinstance(values, Mapping):
            raise InputError(
                f"{self.source}: {self.name} has no {name}; expected open_clip's configuration"
            )
        return _ConfigPart(self.source, name, values)

    def refuse_others(self, known: tuple[str, ...], **fixed: str) -> None:
        """Raises InputError for a setting that changes the model in a way that is not supported."""
        allowed = {**FIXED, **fixed}
        for name, value in self.values.items():
            if name in known or name in UNUSED or not value or value == allowed.get(name):
                continue
            if name == "norm_kwargs" and isinstance(value, dict) and set(value) == {"eps"}:
                continue
            raise InputError(
                f"{self.source}: {self.name} sets {name} = {str(value)[:60]!r}; {ONLY}"
            )

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number from 1 up."""
        value = self.values.get(name, default)
        if type(value) is not int or not 0 < value < LARGEST:
            raise InputError(
                f"{self.source}: {self.name} sets {name} = {str(value)[:60]!r}; expected a number"
            )
        return value

    def side(self, name: str, default: int) -> int:
        """A whole number, or two equal ones."""
        value = self.values.get(name, default)
        if isinstance(value, (list, tuple)) and len(value) == 2 and value[0] == value[1]:
            value = value[0]
        return _ConfigPart(self.source, self.name, {name: value}).number(name)

    def sizes(self, width: int, layers: int, heads: int) -> dict[str, Any]:
        """The sizes of a transformer, named as in transformers."""
        ratio = self.values.get("mlp_ratio", 4.0)
        if type(ratio) not in (int, float) or not 0 < ratio < LARGEST:
            raise InputError(
                f"{self.source}: {self.name} sets mlp_ratio = {str(ratio)[:60]!r}; expected a number"
            )
        if not heads or width % heads:
            raise InputError(
                f"{self.source}: {self.name} has width {width} for {heads} heads; expected a multiple"
            )
        epsilon = (self.values.get("norm_kwargs") or {}).get("eps", 1e-5)
        if type(epsilon) is not float or not 0 < epsilon < 1:
            raise InputError(
                f"{self.source}: {self.name} sets norm_kwargs.eps = {str(epsilon)[:60]!r}; expected a number"
            )
        return {
            "hidden_size": width,
            "num_hidden_layers": self.number("layers", layers),
            "num_attention_heads": heads,
            "intermediate_size": int(width * ratio),
            "layer_norm_eps": epsilon,
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


def rename_weights(tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """open_clip's weights with transformers' names and shapes; raises InputError for one without a counterpart."""
    renamed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        own = name.removeprefix("text.")  # `custom_text` models keep the text tower in a module
        if own == MASK:
            continue
        block = BLOCK.fullmatch(own)
        if own in OUTSIDE:
            renamed[OUTSIDE[own]] = value.T.contiguous() if own in TRANSPOSED else value
        elif block is None:
            raise InputError(f"{where}: the weight {name} has no counterpart; {ONLY}")
        else:
            renamed.update(_layer_weights(block, value, f"{where}: the weight {name}"))
    return renamed


def _layer_weights(block: re.Match[str], value: Tensor, where: str) -> dict[str, Tensor]:
    side, number, inside = block.groups()
    tower = "vision_model" if side else "text_model"
    layer = f"{tower}.encoder.layers.{number}."
    module, _, kind = inside.rpartition(".")
    if module in IN_LAYER and kind in ("weight", "bias"):
        return {f"{layer}{IN_LAYER[module]}.{kind}": value}
    if inside not in ("attn.in_proj_weight", "attn.in_proj_bias"):
        raise InputError(f"{where} has no counterpart; {ONLY}")
    if not value.ndim or len(value) % 3:
        raise InputError(
            f"{where} has shape {tuple(value.shape)}; expected three projections in one"
        )
    kind = inside.removeprefix("attn.in_proj_")
    parts = zip("qkv", value.chunk(3), strict=True)
    return {f"{layer}self_attn.{letter}_proj.{kind}": part.contiguous() for letter, part in parts}


def _check_weights(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    """Raises InputError unless names and shapes are those of the model."""
    missing = sorted(expected.keys() - found.keys())
    if missing:
        raise InputError(
            f"{where}: {len(missing)} weights are missing, the first is {missing[0]} (transformers' name)"
        )
    extra = sorted(found.keys() - expected.keys())
    if extra:
        raise InputError(
            f"{where}: {len(extra)} weights are more than {CONFIG} describes, the first is {extra[0]}"
        )
    for name, value in found.items():
        if value.shape != expected[name].shape:
            raise InputError(
                f"{where}: {name} has shape {tuple(value.shape)}, expected {tuple(expected[name].shape)} by {CONFIG}"
            )


def _weights_file(checkpoint: OpenClipCheckpoint) -> Path:
    """The safetensors file, downloaded if needed; raises InputError if there is none."""
    if checkpoint.weights is None:
        return _download(checkpoint)
    if not checkpoint.weights.is_file():
        pickled = checkpoint.weights.with_name(PICKLE)
        if pickled.is_file():
            raise InputError(
                f"{pickled}: a pickle, which is never opened; if you trust it, open_clip's `save_for_hf` "
                f"writes {WEIGHTS}"
            )
        raise InputError(f"{checkpoint.source}: {WEIGHTS} is missing")
    return checkpoint.weights


# -- open_clip's own list ----------------------------------------------------------------------------------------------


def _library() -> Any:
    """The installed open_clip; raises InputError without it."""
    try:
        return importlib.import_module("open_clip")
    except Exception as error:  # torchvision that does not fit torch raises a RuntimeError
        raise InputError(f"{NO_OPEN_CLIP} ({type(error).__name__}: {error!s:.100})") from None


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
    trained = bool(weights.get("quick_gelu"))
    if trained != bool(model.get("quick_gelu")):
        other = f"{name}-quickgelu" if trained else name.removesuffix("-quickgelu")
        use = f"; use {OPEN_CLIP}{other}/{tag}" if other in models and other != name else ""
        raise InputError(
            f"{source}: {tag} was trained {'with' if trained else 'without'} QuickGELU, but open_clip configures "
            f"{name} {'without' if trained else 'with'} it{use}"
        )
    hub = str(weights.get("hf_hub", ""))
    if not hub.endswith("/"):
        raise InputError(
            f"{source}: open_clip lists its weights only as a pickle, which is never opened; use a tag that "
            f"has {WEIGHTS} on the hub"
        )
    return OpenClipCheckpoint(source, model, weights, None, None, hub.rstrip("/"))


def _download(checkpoint: OpenClipCheckpoint) -> Path:
    """The safetensors file of a listed checkpoint, from the hub or its cache."""
    try:
        return Path(
            huggingface_hub.hf_hub_download(
                checkpoint.hub, WEIGHTS, local_files_only=not is_hub_reachable()
            )
        )
    except Exception as error:  # of the HTTP client
        raise InputError(
            f"{checkpoint.source}: {WEIGHTS} of {checkpoint.hub} could not be downloaded "
            f"({describe_load_error(checkpoint.source, error)})"
        ) from None


def _published_tokenizer(checkpoint: OpenClipCheckpoint) -> PreTrainedTokenizerBase:
    """CLIP's tokenizer, of the installed open_clip; raises InputError for a model with another one."""
    text = checkpoint.model.get("text_cfg")
    named = text.get("hf_tokenizer_name") if isinstance(text, Mapping) else None
    expected = "expected tokenizer.json or vocab.json and merges.txt beside the weights"
    if named:
        raise InputError(f"{checkpoint.source}: its tokenizer is {named}; {expected}")
    try:
        library = _library()
    except InputError as error:
        raise InputError(
            f"{checkpoint.source}: no tokenizer found; {expected}, or {error}"
        ) from None
    simple = library.tokenizer.SimpleTokenizer()
    ids = dict(simple.encoder)
    for own, published in (
        ("<start_of_text>", "<|startoftext|>"),
        ("<end_of_text>", "<|endoftext|>"),
    ):
        if own in ids:
            ids[published] = ids.pop(own)
    merges: list[Any] = list(simple.bpe_ranks)
    return CLIPTokenizer(vocab=ids, merges=merges)

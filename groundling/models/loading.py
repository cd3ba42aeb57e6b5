"""Load configurations, tokenizers, weights and image processors; every error is an InputError of one line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoTokenizer,
    CLIPModel,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as hf_logging

from groundling.core.errors import InputError
from groundling.models.hub import describe_load_error, local_only
from groundling.models.open_clip import (
    is_open_clip,
    load_open_clip,
    load_open_clip_config,
    load_open_clip_processor,
    load_open_clip_tokenizer,
)
from groundling.models.sentence_modules import encoder_folder
from groundling.runs.folder import read_object
from groundling.runs.hashing import sha256_of

# Hashes that identify a model's weights, wherever they were loaded from.


def weights_sha256(model: nn.Module) -> str:
    """A hash of all of a model's weights, without their names, which libraries change between releases."""
    digests = []
    for tensor in model.state_dict().values():
        numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digests.append(hashlib.sha256(numbers.numpy()).hexdigest())
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def saved_sha256(source: str | Path) -> str:
    """A hash of the safetensors files below a folder; empty if there are none, or for a hub id."""
    files = Path(source).rglob("*.safetensors")
    digests = sorted(sha256_of(path) for path in files)
    return hashlib.sha256("".join(digests).encode()).hexdigest() if digests else ""


MAX_LAYERS = 1000
"""Maximum number of layers, or of heads, in a configuration."""
MAX_NUMBER = 2**31 - 1
"""Maximum of any other number in a configuration."""
SHARDS = "model.safetensors.index.json"
"""Maps each weight to its file."""
HALF = ("bfloat16", "float16")
"""Names of the half precisions in configurations."""
NO_CODE = {"trust_remote_code": False}
"""Option of every `from_pretrained`, so that no code of a model folder runs; without it transformers may prompt."""

IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
"""Configuration settings that may name a kernel on the hub, which transformers would download and run."""
NO_KERNELS = (None, "eager", "sdpa", "flex_attention", "batched_mm", "grouped_mm")
"""Their values that need no code beyond torch and transformers."""


@contextmanager
def library_errors(source: str | Path, message: str) -> Iterator[None]:
    """Within the context, turn any error of transformers, tokenizers and huggingface_hub into an InputError."""
    try:
        yield
    except Exception as error:  # the libraries raise many types
        raise InputError(f"{source}: {message} ({describe_load_error(source, error)})") from None


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a hub id or folder; raises InputError if there is none."""
    if is_open_clip(source):
        return load_open_clip_tokenizer(source)
    expected = "expected tokenizer.json or the family's vocabulary files beside the weights"
    with library_errors(source, f"no tokenizer could be loaded; {expected}"):
        tokenizer = AutoTokenizer.from_pretrained(
            encoder_folder(source), **NO_CODE, **local_only(source)
        )
        tokenizer("a")  # some damaged files fail only here
        own = len(tokenizer) - len(set(tokenizer.all_special_ids))
    if own < 1:  # transformers makes an empty tokenizer if files are missing
        raise InputError(f"{source}: no tokenizer found; {expected}")
    return tokenizer


def load_config(source: str | Path) -> Any:
    """Load a model's configuration from a hub id or folder; raises InputError if there is none.

    A checkpoint in open_clip's format has the configuration of the `CLIPModel` that it becomes.
    """
    if is_open_clip(source):
        config = load_open_clip_config(source)
        _refuse_giants(source, config.to_dict())
        return config
    place = encoder_folder(source)
    if Path(place).is_dir() and not (Path(place) / "config.json").exists():
        raise InputError(f"{source}: not a model folder, config.json is missing")
    with library_errors(source, "no model found"):
        config = AutoConfig.from_pretrained(place, **NO_CODE, **local_only(source))
    _refuse_giants(source, config.to_dict())
    _refuse_kernels(source, config)
    return config


def _refuse_kernels(source: str | Path, config: Any) -> None:
    """Raises InputError if a configuration, or one inside it, names a kernel that transformers would run."""
    for part in (config, *filter(_is_config, vars(config).values())):
        for name in IMPLEMENTATIONS:
            implementation = vars(part).get(f"_{name}_internal")
            if implementation not in NO_KERNELS:
                raise InputError(
                    f"{source}: config.json sets {name} = {implementation!r:.60}, code that is not "
                    "part of transformers; remove this setting"
                )


def _is_config(value: object) -> bool:
    """Whether a value is a configuration, e.g. of one tower of a model."""
    return isinstance(value, PreTrainedConfig)


def _refuse_giants(source: str | Path, values: dict[Any, Any]) -> None:
    """Raises InputError for impossible sizes: building the model would take hours, or all memory."""
    for name, value in values.items():
        if isinstance(value, dict):
            _refuse_giants(source, value)
        maximum = MAX_LAYERS if str(name).endswith(("_layers", "_heads")) else MAX_NUMBER
        if isinstance(value, int) and value > maximum:
            raise InputError(
                f"{source}: config.json sets {name} = {str(value)[:20]}, expected at most {maximum:,}; is it damaged?"
            )


def model_type(source: str | Path) -> str:
    """The `model_type` of transformers for a hub id or folder; empty for a folder without config.json.

    Raises InputError if there is no model.
    """
    if (
        not is_open_clip(source)
        and Path(source).is_dir()
        and not (Path(source) / "config.json").exists()
    ):
        return ""
    return str(load_config(source).model_type)


def load_weights(model_class: Any, source: str | Path) -> Any:
    """`model_class.from_pretrained(source)` in fp32; a missing pooler becomes None, other gaps an InputError.

    Pickled weights are never opened.
    """
    load_config(source)
    if is_open_clip(source):
        if model_class not in (AutoModel, CLIPModel):
            raise InputError(
                f"{source}: a CLIP in open_clip's format; expected a model for {model_class.__name__}"
            )
        clip = load_open_clip(source)
        _check_finite(clip, source)
        return clip
    place = encoder_folder(source)
    _refuse_pickles(Path(place))
    _check_shards(Path(place))
    before = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        options = {**NO_CODE, **local_only(source), "use_safetensors": True}
        with library_errors(source, "the weights could not be loaded"):
            model, report = model_class.from_pretrained(place, output_loading_info=True, **options)
    finally:
        hf_logging.set_verbosity(before)
    missing = [key for key in report["missing_keys"] if "pooler" not in key]
    if missing:
        raise InputError(
            f"{source}: {len(missing)} weights are missing, the first is {sorted(missing)[0]}"
        )
    _check_finite(model, source)
    if report["missing_keys"]:
        model.pooler = None  # transformers' random one would differ by process; the task makes one from the seed
    return model.float()


def _check_finite(model: Any, source: str | Path) -> None:
    """Raises InputError for NaN or infinite weights, before the learning rate is blamed for them."""
    for name, value in model.named_parameters():
        if not bool(value.isfinite().all()):
            raise InputError(
                f"{source}: weights of {name} are NaN or infinite, so the file is damaged or its training diverged; "
                "use another copy"
            )


def _refuse_pickles(folder: Path) -> None:
    """Raises InputError for a folder whose only weights are pickles."""
    pickled = sorted(folder.glob("pytorch_model*.bin"))
    if pickled and not any(folder.glob("*.safetensors")):
        raise InputError(
            f"{pickled[0]}: a pickle, which is never opened; if you trust it, load it once with transformers, and "
            "`save_pretrained` writes safetensors"
        )


def _check_shards(folder: Path) -> None:
    """Raises InputError unless each file named in a weight index exists in the folder itself."""
    index = folder / SHARDS
    if not index.is_file() or (folder / "model.safetensors").is_file():
        return
    listed = read_object(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise InputError(f"{index}: no `weight_map` of weights to files; use another copy")
    for name in dict.fromkeys(listed.values()):
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(
                f"{index}: `weight_map` names {str(name)[:80]!r}, expected a file in this folder; use another copy"
            )
        if not (folder / name).is_file():
            raise InputError(f"{index}: `weight_map` names {name!r}, which does not exist")


def load_processor(source: str | Path) -> Any:
    """Load a model's image processor, always with Pillow: torchvision returns other pixels.

    Raises InputError if there is none.
    """
    if is_open_clip(source):
        return load_open_clip_processor(source)
    message = "no image processor found: preprocessor_config.json is missing or damaged"
    with library_errors(source, message):
        processor = AutoImageProcessor.from_pretrained(
            source, backend="pil", **NO_CODE, **local_only(source)
        )
        processor(Image.new("RGB", (8, 8)))  # some damaged files fail only here
        if (
            processor.do_normalize
            and not len(processor.image_mean) == len(processor.image_std) == 3
        ):
            raise ValueError("image_mean and image_std: expected three numbers each")
        return processor

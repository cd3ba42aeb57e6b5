"""Models that can be fine-tuned, formats of model folders, and loading of their parts; every error is an InputError."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
)
from transformers.utils import logging as hf_logging

from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.core.errors import InputError
from groundling.data.samples import ClipRowEncoder, TextRowEncoder
from groundling.models.attention import AttentionCallback
from groundling.models.hub import is_open_clip, library_errors, local_only
from groundling.models.sentence_modules import encoder_folder


class Encoder(nn.Module):
    """A model that can read text alone, so that every text task can be run on it. Abstract."""

    sizes: OutputSizes
    """Widths of its outputs."""
    text_tokenizer: PreTrainedTokenizerBase | None = None
    """Tokenizer of its text encoder, for masked LM; None without one."""
    clip_backbone: Any = None
    """The `FrozenClip` whose features of text and image are its input; None if it reads them itself."""

    def inputs(self, max_length: int) -> tuple[TextRowEncoder | None, ClipRowEncoder | None]:
        """How texts become its input, at most `max_length` tokens: for a text encoder, for a CLIP text tower."""
        raise NotImplementedError

    def word_embeddings(self) -> nn.Module:
        """Its input embeddings."""
        raise NotImplementedError

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """Outputs for a batch made by its own `inputs`; `attention` is called with each attention map."""
        raise NotImplementedError

    def return_layers(self) -> None:
        """From now on, outputs include `layers` and `encode_again`.

        Raises InputError if this model cannot return them, as by default.
        """
        raise InputError(f"a {type(self).__name__} does not return its layers")

    def pack_texts(self, on: bool) -> bool:
        """Read the texts of a batch in one row without padding, or no longer; returns whether it did before.

        Raises InputError if this model cannot, as by default.
        """
        raise InputError(f"packing: a {type(self).__name__} does not read texts in one row")

    def export(self, folder: Path) -> None:
        """Write a folder that its `ModelFormat` can load."""
        raise NotImplementedError


@dataclass(frozen=True)
class ModelFormat:
    """A format of model folders other than a plain Hugging Face text encoder."""

    name: str
    """Unlike that of any other format."""
    matches: Callable[[str], bool]
    """Whether a hub id or folder has this format."""
    load: Callable[[str], Encoder]
    """Load the model from that hub id or folder."""
    for_inspection: bool = False
    """Whether `groundling visualize` alone loads it so."""


# Hashes that identify a model's weights, wherever they were loaded from.


def weights_sha256(model: nn.Module) -> str:
    """A hash of all of a model's weights, without their names, which libraries change between releases."""
    digests = []
    for tensor in model.state_dict().values():
        numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digests.append(hashlib.sha256(numbers.numpy()).hexdigest())
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


NO_CODE = {"trust_remote_code": False}
"""Option of every `from_pretrained`, so that no code of a model folder runs; without it transformers may prompt."""

IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
"""Configuration settings that may name a kernel on the hub, which transformers would download and run."""
NO_KERNELS = (None, "eager", "sdpa", "flex_attention", "batched_mm", "grouped_mm")
"""Their values that need no code beyond torch and transformers."""


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a hub id or folder; raises InputError if there is none."""
    expected = "expected tokenizer.json or the family's vocabulary files beside the weights"
    with library_errors(source, f"no tokenizer could be loaded; {expected}"):
        tokenizer = AutoTokenizer.from_pretrained(
            encoder_folder(source), **NO_CODE, **local_only(source)
        )
        tokenizer("a")  # some damaged files fail only here
        own = len(tokenizer) - len(set(tokenizer.all_special_ids))
    if own < 1:  # transformers makes one of special tokens alone if files are missing
        raise InputError(f"{source}: no tokenizer with more than special tokens; {expected}")
    return tokenizer


def load_config(source: str | Path) -> Any:
    """Load a model's configuration from a hub id or folder; raises InputError if there is none."""
    if is_open_clip(source):
        raise InputError(
            f"{source}: a model of open_clip can be a teacher only; use its Hugging Face format here"
        )
    with library_errors(source, "no model found"):
        config = AutoConfig.from_pretrained(encoder_folder(source), **NO_CODE, **local_only(source))
    for part in (config, *vars(config).values()):  # a model of several towers has one for each
        for name in IMPLEMENTATIONS:
            if getattr(part, f"_{name}_internal", None) not in NO_KERNELS:
                raise InputError(f"{source}: config.json sets {name} to code outside transformers")
        for name, value in getattr(part, "__dict__", {}).items():
            most = 1000 if name.endswith(("_layers", "_heads")) else 2**31
            if isinstance(value, int) and value > most:  # building the model would take hours
                raise InputError(f"{source}: config.json sets {name} to {str(value)[:20]}")
    return config


def is_causal(config: Any) -> bool:
    """Whether a configuration is of a causal language model, whose tokens read those before them alone."""
    # Decoders turned into encoders, such as EmbeddingGemma, keep their class.
    reads_both = getattr(config, "use_bidirectional_attention", None) in (True, "all")
    if reads_both or not getattr(config, "is_causal", True):
        return False
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING:  # families of both kinds have `is_decoder`
        return bool(getattr(config, "is_decoder", False))
    return type(config) in MODEL_FOR_CAUSAL_LM_MAPPING


def model_type(source: str | Path) -> str:
    """The `model_type` of transformers for a hub id or folder; empty for a folder without config.json.

    Raises InputError if there is no model.
    """
    folder = Path(source)
    if folder.is_dir() and (is_open_clip(source) or not (folder / "config.json").exists()):
        return ""
    return str(load_config(source).model_type)


def from_pretrained(model_class: Any, source: str | Path, **options: Any) -> tuple[Any, Any]:
    """`model_class.from_pretrained(source)` and its report of missing weights, without transformers' warnings."""
    options = {"use_safetensors": True, **NO_CODE, **local_only(source), **options}
    before = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        with library_errors(source, "the weights could not be loaded"):
            loaded: tuple[Any, Any] = model_class.from_pretrained(
                encoder_folder(source), output_loading_info=True, **options
            )
            return loaded
    finally:
        hf_logging.set_verbosity(before)


def load_weights(model_class: Any, source: str | Path) -> Any:
    """`model_class.from_pretrained(source)` in fp32; a missing pooler becomes None, other gaps an InputError.

    Pickled weights are never opened.
    """
    load_config(source)
    model, report = from_pretrained(model_class, source)
    missing = [key for key in report["missing_keys"] if "pooler" not in key]
    if missing:
        raise InputError(
            f"{source}: {len(missing)} weights are missing, the first is {sorted(missing)[0]}"
        )
    check_finite(model, source)
    if report["missing_keys"]:
        model.pooler = None  # transformers' random one would differ by process; the task makes one from the seed
    return model.float()


def check_finite(model: Any, source: str | Path) -> None:
    """Raises InputError if a weight is NaN or infinite."""
    for name, value in model.named_parameters():
        if not bool(value.isfinite().all()):
            raise InputError(f"{source}: weights of {name} are NaN or infinite")


def load_processor(source: str | Path) -> Any:
    """Load a model's image processor, always with Pillow: torchvision returns other pixels.

    Raises InputError if there is none.
    """
    message = "no image processor found: preprocessor_config.json is missing or damaged"
    with library_errors(source, message):
        processor = AutoImageProcessor.from_pretrained(
            source, backend="pil", **NO_CODE, **local_only(source)
        )
        processor(Image.new("RGB", (8, 8)))  # some damaged files fail only here
        return processor

"""Configurations, tokenizers, weights and image processors from a hub id or a folder; what is wrong is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from groundling.errors import InputError
from groundling.models.hub import fault, local_only
from groundling.models.sentence import encoder_folder

NO_CODE = {"trust_remote_code": False}
"""Of every `from_pretrained`: nothing that a folder brings along is run; unsaid, transformers asks at a terminal."""


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """A tokenizer by hub id or folder; raises InputError in one line where there is none."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            encoder_folder(source), **NO_CODE, **local_only(source)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{source}: no tokenizer could be loaded; expected tokenizer.json or the family's vocabulary files "
            f"beside the weights ({fault(source, error)})"
        ) from None
    if len(tokenizer) <= len(
        set(tokenizer.all_special_ids)
    ):  # transformers makes an empty one where files are missing
        raise InputError(
            f"{source}: no tokenizer there; expected tokenizer.json or the family's vocabulary files"
        )
    return tokenizer


def load_config(source: str | Path) -> Any:
    """A model's configuration by hub id or folder; raises InputError in one line where there is none."""
    place = encoder_folder(source)
    if Path(place).is_dir() and not (Path(place) / "config.json").exists():
        raise InputError(f"{source}: not a model folder, config.json is missing")
    try:
        return AutoConfig.from_pretrained(place, **NO_CODE, **local_only(source))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{source}: no model found there ({fault(source, error)})") from None


def model_type(source: str | Path) -> str:
    """What transformers calls the architecture of a hub id or folder; empty for a folder that is no model of its own.

    Raises InputError where there is none.
    """
    if Path(source).is_dir() and not (Path(source) / "config.json").exists():
        return ""
    return str(load_config(source).model_type)


def load_weights(kind: Any, source: str | Path, **options: Any) -> Any:
    """`kind.from_pretrained(source)` in fp32; missing weights are refused in one line, a missing pooler is left out."""
    before = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        place = encoder_folder(source)
        options = {**options, **NO_CODE, **local_only(source)}
        model, report = kind.from_pretrained(place, output_loading_info=True, **options)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise InputError(
            f"{source}: the weights could not be loaded ({fault(source, error)})"
        ) from None
    finally:
        hf_logging.set_verbosity(before)
    missing = [key for key in report["missing_keys"] if "pooler" not in key]
    if missing:
        raise InputError(
            f"{source}: {len(missing)} weights are missing, the first is {sorted(missing)[0]}"
        )
    _check_finite(model, source)
    if report["missing_keys"]:
        model.pooler = None  # a made-up one would be new in every process; the task makes its own, from the run's seed
    return model.float()


def _check_finite(model: Any, source: str | Path) -> None:
    """Raises InputError for weights that are no numbers: later, the rate of learning would be blamed."""
    for name, value in model.named_parameters():
        if not bool(value.isfinite().all()):
            raise InputError(
                f"{source}: weights of {name} are no numbers (NaN or infinite), so the file is damaged or its training "
                "diverged; take another copy"
            )


def load_processor(source: str | Path) -> Any:
    """The image processor beside a model's weights, always on Pillow: torchvision would give other pixels.

    Raises InputError if there is none.
    """
    try:
        return AutoImageProcessor.from_pretrained(
            source, backend="pil", **NO_CODE, **local_only(source)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{source}: no image processor there, preprocessor_config.json is missing or damaged "
            f"({fault(source, error)})"
        ) from None

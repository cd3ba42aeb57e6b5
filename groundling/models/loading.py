"""Configurations, tokenizers, weights and image processors from a hub id or a folder; what is wrong is one line."""

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
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as hf_logging

from groundling.core.errors import InputError
from groundling.models.hub import describe_load_error, local_only
from groundling.models.sentence_modules import encoder_folder
from groundling.runs.folder import read_object
from groundling.runs.hashing import sha256_of

# Which weights a model has, whatever folder or hub it came from.


def weights_sha256(model: nn.Module) -> str:
    """A hash of all of a model's numbers; not of their names, which a library may change between its releases."""
    digests = []
    for tensor in model.state_dict().values():
        numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digests.append(hashlib.sha256(numbers.numpy()).hexdigest())
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def saved_sha256(source: str | Path) -> str:
    """A hash of the weights below a folder, wherever it lies; empty if there are none, as of a hub id."""
    files = Path(source).rglob("*.safetensors")
    digests = sorted(sha256_of(path) for path in files)
    return hashlib.sha256("".join(digests).encode()).hexdigest() if digests else ""


MOST_LAYERS = 1000
"""Layers, or heads, of any model's configuration."""
MOST_NUMBER = 2**31 - 1
"""Any other number there."""
SHARDS = "model.safetensors.index.json"
"""Says in which of several files each weight is."""
HALF = ("bfloat16", "float16")
"""What configurations call the two half precisions."""
NO_CODE = {"trust_remote_code": False}
"""Of every `from_pretrained`: nothing that a folder brings along is run; unsaid, transformers asks at a terminal."""

IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
"""Settings of a configuration that may name code on the hub in place of one of transformers' own ways."""
NO_KERNELS = (None, "eager", "sdpa", "flex_attention", "batched_mm", "grouped_mm")
"""Those of transformers' own ways that torch itself can go."""


@contextmanager
def library_errors(source: str | Path, what: str) -> Iterator[None]:
    """Inside, whatever transformers, tokenizers and huggingface_hub stumble over is an InputError of one line."""
    try:
        yield
    except Exception as error:  # they fail in many ways
        raise InputError(f"{source}: {what} ({describe_load_error(source, error)})") from None


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """A tokenizer by hub id or folder; raises InputError in one line where there is none."""
    expected = "expected tokenizer.json or the family's vocabulary files beside the weights"
    with library_errors(source, f"no tokenizer could be loaded; {expected}"):
        tokenizer = AutoTokenizer.from_pretrained(
            encoder_folder(source), **NO_CODE, **local_only(source)
        )
        tokenizer("a")  # some damage shows only here
        own = len(tokenizer) - len(set(tokenizer.all_special_ids))
    if own < 1:  # transformers makes an empty one where files are missing
        raise InputError(f"{source}: no tokenizer there; {expected}")
    return tokenizer


def load_config(source: str | Path) -> Any:
    """A model's configuration by hub id or folder; raises InputError in one line where there is none."""
    place = encoder_folder(source)
    if Path(place).is_dir() and not (Path(place) / "config.json").exists():
        raise InputError(f"{source}: not a model folder, config.json is missing")
    with library_errors(source, "no model found there"):
        config = AutoConfig.from_pretrained(place, **NO_CODE, **local_only(source))
    _refuse_giants(source, config.to_dict())
    _refuse_kernels(source, config)
    return config


def _refuse_kernels(source: str | Path, config: Any) -> None:
    """Raises InputError if a configuration, or one inside it, names a kernel: transformers would fetch and run it."""
    for part in (config, *filter(_is_config, vars(config).values())):
        for name in IMPLEMENTATIONS:
            asked = vars(part).get(f"_{name}_internal")
            if asked not in NO_KERNELS:
                raise InputError(
                    f"{source}: config.json asks for {name} = {asked!r:.60}, code that is no part of transformers; "
                    "remove it there"
                )


def _is_config(value: object) -> bool:
    """Whether a value is a configuration, such as that of one side of a model."""
    return isinstance(value, PreTrainedConfig)


def _refuse_giants(source: str | Path, values: dict[Any, Any]) -> None:
    """Raises InputError for sizes that no model has: to build one would take hours, or all memory there is."""
    for name, value in values.items():
        if isinstance(value, dict):
            _refuse_giants(source, value)
        most = MOST_LAYERS if str(name).endswith(("_layers", "_heads")) else MOST_NUMBER
        if isinstance(value, int) and value > most:
            raise InputError(
                f"{source}: config.json says {name} = {str(value)[:20]}, expected at most {most:,}; is it damaged?"
            )


def model_type(source: str | Path) -> str:
    """What transformers calls the architecture of a hub id or folder; empty for a folder that is no model of its own.

    Raises InputError where there is none.
    """
    if Path(source).is_dir() and not (Path(source) / "config.json").exists():
        return ""
    return str(load_config(source).model_type)


def precision_note(source: str | Path) -> list[str]:
    """What is to be said where weights are stored in half precision: training and what it saves are in float32.

    Rounding what was trained would undo small changes, and a saved model would answer otherwise than it was scored.
    """
    if Path(source).is_dir() and not (Path(encoder_folder(source)) / "config.json").exists():
        return []
    stored = str(load_config(source).dtype).removeprefix("torch.")
    if stored not in HALF:
        return []
    return [
        f"{source}: its weights are {stored}; they are trained and saved in float32, twice the size, so that nothing "
        f"learned is lost to rounding; `from_pretrained(FOLDER, dtype={stored!r})` reads what is saved as before"
    ]


def load_weights(model_class: Any, source: str | Path) -> Any:
    """`kind.from_pretrained(source)` in fp32; missing weights are refused in one line, a missing pooler is left out.

    Pickled ones are never opened.
    """
    load_config(source)
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


def _refuse_pickles(folder: Path) -> None:
    """Raises InputError for a folder whose weights are only there as pickles, by their name."""
    pickled = sorted(folder.glob("pytorch_model*.bin"))
    if pickled and not any(folder.glob("*.safetensors")):
        raise InputError(
            f"{pickled[0]}: a pickle, which is never opened; load it once with transformers where you trust it, and "
            "`save_pretrained` writes safetensors"
        )


def _check_shards(folder: Path) -> None:
    """Raises InputError unless each file that an index of weights names is there, in the folder itself."""
    index = folder / SHARDS
    if not index.is_file() or (folder / "model.safetensors").is_file():
        return
    listed = read_object(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise InputError(f"{index}: no `weight_map` of weights to files; take another copy")
    for name in dict.fromkeys(listed.values()):
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(
                f"{index}: `weight_map` names {str(name)[:80]!r}, expected a file of this folder; take another copy"
            )
        if not (folder / name).is_file():
            raise InputError(f"{index}: `weight_map` names {name!r}, which is not there")


def load_processor(source: str | Path) -> Any:
    """The image processor beside a model's weights, always on Pillow: torchvision would give other pixels.

    Raises InputError if there is none.
    """
    what = "no image processor there, preprocessor_config.json is missing or damaged"
    with library_errors(source, what):
        processor = AutoImageProcessor.from_pretrained(
            source, backend="pil", **NO_CODE, **local_only(source)
        )
        processor(Image.new("RGB", (8, 8)))  # some damage shows only here
        if (
            processor.do_normalize
            and not len(processor.image_mean) == len(processor.image_std) == 3
        ):
            raise ValueError("image_mean and image_std: expected three numbers each")
        return processor

"""Low-rank adapters (LoRA) in the layers of a text encoder or decoder, by peft; merged, it is a stock model again."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from groundling.core.errors import InputError, convert_errors
from groundling.core.rng import derive_seed
from groundling.models.text_encoder import TextEncoder
from groundling.runs.folder import disk_errors

WEIGHTS = "adapter_model.safetensors"
"""peft's name of an adapter's weights."""


def adapted_modules(encoder: nn.Module) -> dict[str, nn.Module]:
    """The linear layers in the blocks of a Hugging Face model, by name; no embeddings, poolers or heads.

    Blocks are what a `ModuleList` has, so this holds for layers that share their weights (ALBERT), too. Raises
    InputError if there are none.
    """
    found: dict[str, nn.Module] = {
        name: module
        for name, module in encoder.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and re.search(r"\.\d+\.", name)
    }
    if not found:
        family = getattr(encoder.config, "model_type", "")
        raise InputError(f"lora: a {family} model has no linear layers in a list of blocks")
    return found


class LoraAdapters:
    """Adapters of a rank r in every matrix of a text encoder's blocks, which learn alone; the encoder is frozen.

    A matrix W becomes W + (alpha / r) B A, with A (r, in), B (out, r), B zero at first (Hu et al. 2021, 2106.09685,
    Section 4.1), alpha = 2 r and no dropout. All matrices get one, as QLoRA advises (Dettmers et al. 2023, 2305.14314,
    Section 4).
    """

    def __init__(self, text: TextEncoder, rank: int, seed: int) -> None:
        """Changes `text.encoder` in place; A depends on `seed` alone. Raises InputError without peft."""
        with convert_errors("lora needs: pip install 'groundling[lora]'", errors=ImportError):
            from peft import LoraConfig, get_peft_model
        modules = adapted_modules(text.encoder)
        # A pattern, since peft writes a set of names in another order in every process.
        names = {re.sub(r"\\\.\d+\\\.", r"\\.\\d+\\.", re.escape(name)) for name in modules}
        self.config: Any = LoraConfig(
            r=rank,
            lora_alpha=2 * rank,
            target_modules="|".join(sorted(names)),
            fan_in_fan_out=any(isinstance(module, Conv1D) for module in modules.values()),
        )
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft reads transformers' old names
            torch.manual_seed(derive_seed(seed, "init", "lora"))
            self.model: Any = get_peft_model(text.encoder, self.config)
        self.weights: dict[str, Tensor] = {}
        """Weights as peft names them, after `merge`."""

    def merge(self) -> int:
        """Add the adapters to the encoder's matrices, in place: it has its own modules again.

        Returns the number of the adapters' parameters.
        """
        from peft import get_peft_model_state_dict

        own = get_peft_model_state_dict(self.model)
        self.weights = {name: value.detach().cpu().clone() for name, value in own.items()}
        self.model.merge_and_unload()
        return sum(one.numel() for one in self.weights.values())

    def write(self, folder: Path, base: str) -> None:
        """Write the adapters after `merge`, for `PeftModel.from_pretrained(model, folder)`; `base` names the model."""
        folder.mkdir(parents=True, exist_ok=True)
        # A folder's path is of this machine only.
        self.config.base_model_name_or_path = Path(base).name if Path(base).exists() else base
        self.config.inference_mode = True
        with disk_errors(folder / WEIGHTS):
            self.config.save_pretrained(folder)
            save_file(self.weights, folder / WEIGHTS, {"format": "pt"})


def add_lora(text: object, rank: int, seed: int, who: str) -> LoraAdapters | None:
    """Adapters in a text encoder, None for rank 0; raises InputError, which names `who`, for another model."""
    if not rank:
        return None
    if not isinstance(text, TextEncoder):
        raise InputError(f"lora={rank}: {who}: expected a plain text encoder")
    return LoraAdapters(text, rank, seed)

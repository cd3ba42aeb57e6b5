"""Where a killed run goes on: weights and optimizer state as safetensors, counters as JSON, written all or nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.utils import cached_file

from groundling.errors import InputError
from groundling.models.heads import LMHead
from groundling.runs import disk_errors

HEADS = "groundling_heads.safetensors"
"""Heads of the objectives, beside an exported encoder: transformers ignores the file, a next run may start from it."""


class Checkpoints:
    """The newest whole state of a run in its folder; older ones go when a newer one is complete."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(
        self,
        step: int,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        counters: dict[str, Any],
    ) -> None:
        """Write the state after `step` optimizer steps."""
        target = self.folder / f"step-{step:09d}"
        partial = self.folder / "partial"
        with disk_errors(target):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            save_file(_tensors(module, optimizer), partial / "state.safetensors")
            (partial / "counters.json").write_text(
                json.dumps({"step": step, **counters}), encoding="utf-8"
            )
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
        for old in self.folder.glob("step-*"):
            if old != target:
                shutil.rmtree(old, ignore_errors=True)

    def restore(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
        """Load the newest state in place and return its counters; None if there is none."""
        found = sorted(self.folder.glob("step-*"))
        if not found:
            return None
        stored = load_file(found[-1] / "state.safetensors")
        with torch.no_grad():
            for name, value in _weights(module).items():
                value.copy_(stored[f"weight.{name}"])
        for name, parameter in module.named_parameters():
            prefix = f"adamw.{name}."
            state = {
                key[len(prefix) :]: value for key, value in stored.items() if key.startswith(prefix)
            }
            if state:
                optimizer.state[parameter] = {
                    key: value if key == "step" else value.to(parameter.device)
                    for key, value in state.items()
                }
        return json.loads((found[-1] / "counters.json").read_text(encoding="utf-8"))

    def clear(self) -> None:
        """Remove all states (of a run that has written its result)."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _weights(module: nn.Module) -> dict[str, Tensor]:
    # named_parameters names a shared tensor once, which is what safetensors asks for.
    return {
        **dict(module.named_parameters()),
        **{f"buffer.{k}": v for k, v in module.named_buffers()},
    }


def _tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {
        f"weight.{name}": value.detach().cpu().contiguous()
        for name, value in _weights(module).items()
    }
    for name, parameter in module.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"adamw.{name}.{key}"] = torch.as_tensor(value).detach().cpu().contiguous()
    return tensors


def save_heads(folder: Path, objectives: list[Any]) -> None:
    """Write every objective's head beside the exported model."""
    heads = {f"{o.name}.{key}": value for o in objectives for key, value in o.state_dict().items()}
    with disk_errors(folder / HEADS):
        save_file({k: v.detach().cpu().contiguous() for k, v in heads.items()}, folder / HEADS)


def start_lm_head(head: LMHead, source: str | Path, family: str) -> str:
    """Fill a masked-LM head from a hub id or folder; whose it is: `an earlier run's`, `the checkpoint's`, or `new`."""
    weights = cached_file(
        str(source),
        "model.safetensors",
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    folder = Path(weights).parent if weights else Path(source)
    if load_head(folder, head, "masked_lm.head"):
        return "an earlier run's"
    return "the checkpoint's" if head.load(folder, family) else "new"


def load_head(folder: Path, head: nn.Module, name: str) -> bool:
    """Fill a head from a folder written by `save_heads`, where it is called `name`; False if none there fits."""
    file = folder / HEADS
    if not file.exists():
        return False
    own = head.state_dict()
    try:
        with safe_open(file, framework="pt") as stored:
            keys = {key: f"{name}.{key}" for key in own}
            if not set(keys.values()) <= set(stored.keys()):
                return False
            found = {key: stored.get_tensor(stored_as) for key, stored_as in keys.items()}
    except SafetensorError as error:
        raise InputError(f"{file}: damaged or not safetensors ({error})") from None
    if any(found[key].shape != own[key].shape for key in own):
        return False
    head.load_state_dict(found)
    return True

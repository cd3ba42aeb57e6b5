"""The checkpoint from which a killed run resumes: weights and optimizer state as safetensors, counters as JSON."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groundling.core.errors import InputError, convert_read_errors
from groundling.runs.folder import (
    disk_errors,
    json_text,
    read_object,
    set_file_modes,
    sync_to_disk,
)

STATE = "state.safetensors"
"""Weights and optimizer state."""
COUNTERS = "counters.json"
"""Counters."""
ADVICE = "; train again in another output folder"


@dataclass
class Counters:
    """Counters of a run up to a step."""

    step: int = 0
    """Finished optimizer steps."""
    truncated_tokens: int = 0
    """Truncated tokens."""
    truncated_regions: int = 0
    """Truncated regions."""
    seconds: float = 0.0
    """Wall-clock time, restarts included."""
    windows: list[dict[str, Any]] = field(default_factory=list)
    """Sums of the last log lines, over which the result's losses are averaged: `steps`, and sum, items and weight
    by term.
    """
    scaler: dict[str, Any] | None = None
    """State of the fp16 loss scaler."""
    evaluations: list[dict[str, float | None]] = field(default_factory=list)
    """Evaluations during training: `step` and scores by name, None where undefined."""


class Checkpoints:
    """The newest checkpoint of a run, and the best weights that it needs.

    A checkpoint gets its name when it is complete and on the disk; the one before is then removed.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` holds nothing else."""
        self.folder = folder

    def save(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        counters: Counters,
        best: int = 0,
    ) -> None:
        """Write a checkpoint after `counters.step` optimizer steps; `best` is the step of the best weights that it
        needs.
        """
        target = self.folder / f"step-{counters.step:09d}"
        partial = self.folder / "partial"
        with disk_errors(target):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            save_file(_tensors(module, optimizer), partial / STATE)
            (partial / COUNTERS).write_text(json_text(asdict(counters)), encoding="utf-8")
            set_file_modes(partial)
            for path in (*partial.iterdir(), partial):
                sync_to_disk(path)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            sync_to_disk(self.folder)
        for path in self.folder.glob("step-*"):
            if path != target:
                shutil.rmtree(path, ignore_errors=True)
        for path in self.folder.glob("best-*.safetensors"):
            if path != self._best_path(best):
                path.unlink(missing_ok=True)

    def save_best(self, module: nn.Module, step: int) -> None:
        """Save the weights after `step` as the best so far."""
        target = self._best_path(step)
        partial = self.folder / "partial.safetensors"
        with disk_errors(target):
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file({name: _plain(value) for name, value in _weights(module).items()}, partial)
            sync_to_disk(partial)
            partial.rename(target)

    def load_best(self, module: nn.Module, step: int) -> None:
        """Load the best weights, saved after `step`, in place; raises InputError if they cannot be read."""
        target = self._best_path(step)
        with convert_read_errors(target, ADVICE):
            stored = load_file(target)
        with torch.no_grad():
            for name, value in _weights(module).items():
                value.copy_(stored[name])

    def _best_path(self, step: int) -> Path:
        return self.folder / f"best-{step:09d}.safetensors"

    def restore(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Counters | None:
        """Load the newest checkpoint in place and return its counters; None if there is none.

        Raises InputError if it cannot be read, or belongs to a run with another optimizer or model.
        """
        states = sorted(self.folder.glob("step-*"))
        return _load(states[-1], module, optimizer) if states else None

    def clear(self) -> None:
        """Remove the checkpoint, after the run has written its result."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _load(state: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> Counters:
    """Load a checkpoint in place; returns its counters."""
    with convert_read_errors(state / STATE, ADVICE):
        stored = load_file(state / STATE)
    kind = _kind(optimizer)
    others = {key.partition(".")[0] for key in stored} - {"weight", kind}
    if others:
        raise InputError(
            f"{state}: a run with {min(others)} cannot resume with {kind}; use another output folder"
        )
    weights = _weights(module)
    shapes = {name: value.shape for name, value in stored.items()}
    unfit = [name for name in weights if shapes.get(f"weight.{name}") != weights[name].shape]
    if unfit:
        raise InputError(
            f"{state}: belongs to another model, {unfit[0]} does not fit; use another output folder"
        )
    with torch.no_grad():
        for name, value in weights.items():
            value.copy_(stored[f"weight.{name}"])
    for name, parameter in module.named_parameters():
        prefix = f"{kind}.{name}."
        of_parameter = {
            key.removeprefix(prefix): value.to(parameter.device)
            for key, value in stored.items()
            if key.startswith(prefix)
        }
        if of_parameter:
            optimizer.state[parameter] = of_parameter
    with convert_read_errors(state / COUNTERS, ADVICE):
        return Counters(**read_object(state / COUNTERS))


def _weights(module: nn.Module) -> dict[str, Tensor]:
    # named_parameters lists a shared tensor once, as safetensors requires.
    parameters: dict[str, Tensor] = dict(module.named_parameters())
    buffers = {f"buffer.{name}": value for name, value in module.named_buffers()}
    return {**parameters, **buffers}


def _tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {f"weight.{name}": _plain(value) for name, value in _weights(module).items()}
    for name, parameter in module.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{_kind(optimizer)}.{name}.{key}"] = _plain(value)
    return tensors


def _kind(optimizer: torch.optim.Optimizer) -> str:
    """Prefix of an optimizer's state, which other optimizers cannot load."""
    return type(optimizer).__name__.lower()


def _plain(value: Tensor) -> Tensor:
    return value.detach().cpu().contiguous()

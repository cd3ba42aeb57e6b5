"""The checkpoint from which a killed run resumes: weights and optimizer state as safetensors, counters as JSON."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groundling.core.errors import convert_read_errors
from groundling.runs.folder import json_text, read_object, whole_folder

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
    """Sums of the last log lines: `steps`, and sum, items and weight by term; the result has their means."""
    scaler: dict[str, Any] | None = None
    """State of the fp16 loss scaler."""
    evaluations: list[dict[str, float | None]] = field(default_factory=list)
    """Evaluations during training: `step` and scores by name, None where undefined."""


class Checkpoints:
    """The newest checkpoint of a run, and the best weights that it needs.

    A checkpoint gets its name when it is complete and on the disk; the one before is then removed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, counters: Counters, best: int = 0
    ) -> None:
        """Write a checkpoint; `best` is the step of the best weights that it needs."""
        name = f"step-{counters.step:09d}"
        with whole_folder(self.folder) as partial:
            state = partial / name
            state.mkdir()
            save_file(_tensors(module, optimizer), state / STATE)
            (state / COUNTERS).write_text(json_text(asdict(counters)), encoding="utf-8")
        for path in self.folder.glob("step-*"):
            if path.name != name:
                shutil.rmtree(path, ignore_errors=True)
        for path in self.folder.glob("best-*.safetensors"):
            if path.name != _best_name(best):
                path.unlink(missing_ok=True)

    def save_best(self, module: nn.Module, step: int) -> None:
        """Save the weights after `step` as the best so far."""
        weights = {name: _plain(value) for name, value in _weights(module).items()}
        with whole_folder(self.folder) as partial:
            save_file(weights, partial / _best_name(step))

    def load_best(self, module: nn.Module, step: int) -> None:
        """Load the best weights, saved after `step`, in place."""
        path = self.folder / _best_name(step)
        with convert_read_errors(path, ADVICE), torch.no_grad():
            stored = load_file(path)
            for name, value in _weights(module).items():
                value.copy_(stored[name])

    def restore(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Counters | None:
        """Load the newest checkpoint in place and return its counters; None if there is none."""
        states = sorted(self.folder.glob("step-*"))
        if not states:
            return None
        path = states[-1] / STATE
        with convert_read_errors(path, ADVICE), torch.no_grad():
            _load(load_file(path), module, optimizer)
        path = states[-1] / COUNTERS
        with convert_read_errors(path, ADVICE):
            return Counters(**read_object(path))

    def clear(self) -> None:
        """Remove the checkpoint, after the run has written its result."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _best_name(step: int) -> str:
    return f"best-{step:09d}.safetensors"


def _load(stored: dict[str, Tensor], module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for name, value in _weights(module).items():
        value.copy_(stored[f"weight.{name}"])
    for name, parameter in module.named_parameters():
        prefix = f"optimizer.{name}."
        of_parameter = {
            key.removeprefix(prefix): value.to(parameter.device)
            for key, value in stored.items()
            if key.startswith(prefix)
        }
        if of_parameter:
            optimizer.state[parameter] = of_parameter


def _weights(module: nn.Module) -> dict[str, Tensor]:
    # named_parameters lists a shared tensor once, as safetensors requires.
    parameters: dict[str, Tensor] = dict(module.named_parameters())
    buffers = {f"buffer.{name}": value for name, value in module.named_buffers()}
    return {**parameters, **buffers}


def _tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {f"weight.{name}": _plain(value) for name, value in _weights(module).items()}
    for name, parameter in module.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{key}"] = _plain(value)
    return tensors


def _plain(value: Tensor) -> Tensor:
    return value.detach().cpu().contiguous()

"""Where a killed run resumes: weights and optimizer state as safetensors, counters as JSON, written all or nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groundling.errors import InputError, first_line
from groundling.runs import disk_errors


@dataclass
class Counters:
    """What a run has counted up to a step."""

    step: int = 0
    """Optimizer steps done."""
    dropped: int = 0
    """Pieces of text cut off."""
    left_out: int = 0
    """Regions that did not fit beside a text."""
    seconds: float = 0.0
    """Wall-clock time, restarts included."""
    last: dict[str, float] = field(default_factory=dict)
    """Means of the latest line of the log."""
    scaler: dict[str, Any] | None = None
    """State of the loss scaler, in fp16."""
    exams: list[dict[str, float]] = field(default_factory=list)
    """Of every evaluation on the way: `step` and scores by name."""


class Checkpoints:
    """The newest whole state of a run in its folder; older ones go when a newer one is complete."""

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
        """Write the state after `counters.step` optimizer steps; of weights set aside, only those of `best` stay."""
        target = self.folder / f"step-{counters.step:09d}"
        partial = self.folder / "partial"
        with disk_errors(target):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            save_file(_tensors(module, optimizer), partial / "state.safetensors")
            counted = json.dumps(asdict(counters))
            (partial / "counters.json").write_text(counted, encoding="utf-8")
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
        for older in self.folder.glob("step-*"):
            if older != target:
                shutil.rmtree(older, ignore_errors=True)
        # Only now: the older state speaks of the older ones, if this process is killed before.
        for aside in self.folder.glob("best-*.safetensors"):
            if aside != self._aside(best):
                aside.unlink(missing_ok=True)

    def keep(self, module: nn.Module, step: int) -> None:
        """Set the weights after `step` aside, the best so far."""
        target = self._aside(step)
        partial = self.folder / "partial.safetensors"
        with disk_errors(target):
            self.folder.mkdir(parents=True, exist_ok=True)
            weights = {name: _plain(value) for name, value in _weights(module).items()}
            save_file(weights, partial)
            partial.rename(target)

    def bring_back(self, module: nn.Module, step: int) -> None:
        """Load the weights that were set aside after `step`, in place; raises InputError if they are not readable."""
        target = self._aside(step)
        try:
            stored = load_file(target)
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{target}: the best weights cannot be read ({first_line(error)}); train again in another --out"
            ) from None
        with torch.no_grad():
            for name, value in _weights(module).items():
                value.copy_(stored[name])

    def _aside(self, step: int) -> Path:
        return self.folder / f"best-{step:09d}.safetensors"

    def restore(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Counters | None:
        """Load the newest state in place and return its counters; None if there is none.

        Raises InputError if it is the state of a run with another optimizer.
        """
        states = sorted(self.folder.glob("step-*"))
        if not states:
            return None
        stored = load_file(states[-1] / "state.safetensors")
        others = {key.partition(".")[0] for key in stored} - {"weight", _kind(optimizer)}
        if others:
            raise InputError(
                f"{states[-1]}: a run of {min(others)} cannot resume with {_kind(optimizer)}; use another --out"
            )
        with torch.no_grad():
            for name, value in _weights(module).items():
                value.copy_(stored[f"weight.{name}"])
        for name, parameter in module.named_parameters():
            state = _with_prefix(stored, f"{_kind(optimizer)}.{name}.")
            if state:
                optimizer.state[parameter] = {
                    key: value.to(parameter.device) for key, value in state.items()
                }
        return Counters(**json.loads((states[-1] / "counters.json").read_text(encoding="utf-8")))

    def clear(self) -> None:
        """Remove all states (of a run that has written its result)."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _with_prefix(stored: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) :]: value for key, value in stored.items() if key.startswith(prefix)}


def _weights(module: nn.Module) -> dict[str, Tensor]:
    # named_parameters names a shared tensor once, which is what safetensors asks for.
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
    """What an optimizer's state is stored under: another one's means nothing to it."""
    return type(optimizer).__name__.lower()


def _plain(value: Tensor) -> Tensor:
    return value.detach().cpu().contiguous()

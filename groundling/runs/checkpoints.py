"""Where a killed run resumes: weights and optimizer state as safetensors, counters as JSON, written all or nothing."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groundling.core.errors import InputError, convert_errors
from groundling.runs.folder import disk_errors, json_text, read_json, set_file_modes, sync_to_disk
from groundling.runs.hashing import sha256_of
from groundling.runs.progress import is_main_process

STATE = "state.safetensors"
"""Weights and the optimizer's state."""
COUNTERS = "counters.json"
"""What has been counted."""
CHECKSUMS = "checksums.json"
"""SHA-256 of every file of a state, by its name in the folder of all states."""
KEPT = 2
"""Newest states that stay: the older one is there for a newest one that was damaged."""


@dataclass
class Counters:
    """What a run has counted up to a step."""

    step: int = 0
    """Optimizer steps done."""
    truncated_tokens: int = 0
    """Pieces of text cut off."""
    truncated_regions: int = 0
    """Regions that did not fit beside a text."""
    seconds: float = 0.0
    """Wall-clock time, restarts included."""
    train_metrics: dict[str, float] = field(default_factory=dict)
    """Means of the latest line of the log."""
    scaler: dict[str, Any] | None = None
    """State of the loss scaler, in fp16."""
    evaluations: list[dict[str, float | None]] = field(default_factory=list)
    """Of every evaluation on the way: `step` and scores by name, None where undefined."""


class Checkpoints:
    """The newest whole states of a run in its folder, each with checksums; older ones go when a newer is complete."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds nothing else."""
        self.folder = folder
        self.hashed: dict[Path, str] = {}
        """SHA-256 of weights set aside, which stay as they are."""

    def save(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        counters: Counters,
        best: int = 0,
    ) -> None:
        """Write the state after `counters.step` optimizer steps; `best` names the weights set aside that it needs."""
        target = self.folder / f"step-{counters.step:09d}"
        partial = self.folder / "partial"
        with disk_errors(target, self.intact()):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            save_file(_tensors(module, optimizer), partial / STATE)
            counted = json_text(asdict(counters))
            (partial / COUNTERS).write_text(counted, encoding="utf-8")
            sums = {
                f"{target.name}/{name}": sha256_of(partial / name) for name in (STATE, COUNTERS)
            }
            if best:
                sums[self._aside(best).name] = self._hash_of(self._aside(best))
            (partial / CHECKSUMS).write_text(json_text(sums, indent=1), encoding="utf-8")
            set_file_modes(partial)
            for path in (*partial.iterdir(), partial):
                sync_to_disk(path)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            sync_to_disk(self.folder)
        self._tidy(target)

    def intact(self) -> str:
        """What to say of them beside a mistake; empty without any."""
        states = sorted(self.folder.glob("step-*"))
        steps = [int(state.name.removeprefix("step-")) for state in states]
        return f"the checkpoint of step {steps[-1]:,} is intact" if steps else ""

    def _tidy(self, newest: Path) -> None:
        """Remove what no state needs that may be resumed: those before `newest` but the last, and all after it."""
        states = sorted(self.folder.glob("step-*"))
        kept = [state for state in states if state <= newest][-KEPT:]
        needed = {name for state in kept for name in _sums(state)}
        for state in states:
            if state not in kept:
                shutil.rmtree(state, ignore_errors=True)
        for aside in self.folder.glob("best-*.safetensors"):
            if aside.name not in needed:
                aside.unlink(missing_ok=True)

    def _hash_of(self, aside: Path) -> str:
        if aside not in self.hashed:
            self.hashed[aside] = sha256_of(aside)
        return self.hashed[aside]

    def save_best(self, module: nn.Module, step: int) -> None:
        """Set the weights after `step` aside, the best so far."""
        target = self._aside(step)
        partial = self.folder / "partial.safetensors"
        with disk_errors(target, self.intact()):
            self.folder.mkdir(parents=True, exist_ok=True)
            weights = {name: _plain(value) for name, value in _weights(module).items()}
            save_file(weights, partial)
            sync_to_disk(partial)
            partial.rename(target)
            self.hashed.pop(target, None)

    def load_best(self, module: nn.Module, step: int) -> None:
        """Load the weights that were set aside after `step`, in place; raises InputError if they are not readable."""
        target = self._aside(step)
        with convert_errors(
            f"{target}: the best weights cannot be read", advice="; train again in another --out"
        ):
            stored = load_file(target)
        with torch.no_grad():
            for name, value in _weights(module).items():
                value.copy_(stored[name])

    def _aside(self, step: int) -> Path:
        return self.folder / f"best-{step:09d}.safetensors"

    def restore(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Counters | None:
        """Load the newest whole state in place and return its counters; None if there is none.

        A damaged one is told and passed over. Raises InputError if no state is whole, or it is that of a run with
        another optimizer or model.
        """
        faults = []
        for state in sorted(self.folder.glob("step-*"), reverse=True):
            fault = _fault(state)
            if fault:
                faults.append(fault)
                continue
            counters = _load(state, module, optimizer)
            if faults and is_main_process():
                note = f"note: {faults[0]}; going on from step {counters.step:,}, the checkpoint before"
                print(note, file=sys.stderr)
            return counters
        if faults:
            raise InputError(
                f"{faults[0]}, and no other is whole; delete {self.folder} to train from the first step"
            )
        return None

    def clear(self) -> None:
        """Remove all states (of a run that has written its result)."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _sums(state: Path) -> dict[str, str]:
    """The checksums of a state's files; none if they are not readable."""
    try:
        sums = read_json(state / CHECKSUMS)
    except InputError:
        return {}
    return sums if isinstance(sums, dict) else {}


def _fault(state: Path) -> str:
    """What is wrong with a state's files; empty if they are as they were written."""
    sums = _sums(state)
    own = [f"{state.name}/{name}" for name in (STATE, COUNTERS)]
    if not set(own) <= sums.keys():
        return (
            f"{state / CHECKSUMS}: the state cannot be read (its checksums are damaged or missing)"
        )
    for name, expected in sums.items():
        path = state.parent / name
        what = "the state" if path.parent == state else "the best weights"
        if not path.is_file():
            return f"{path}: {what} cannot be read (no such file)"
        if sha256_of(path) != expected:
            return f"{path}: {what} cannot be read (damaged, its checksum is another)"
    return ""


def _load(state: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> Counters:
    """Put a whole state in place; its counters."""
    stored = load_file(state / STATE)
    kind = _kind(optimizer)
    others = {key.partition(".")[0] for key in stored} - {"weight", kind}
    if others:
        raise InputError(
            f"{state}: a run of {min(others)} cannot resume with {kind}; use another --out"
        )
    weights = _weights(module)
    unlike = [
        name
        for name, value in weights.items()
        if f"weight.{name}" not in stored or stored[f"weight.{name}"].shape != value.shape
    ]
    if unlike:
        raise InputError(f"{state}: of another model, {unlike[0]} does not fit; use another --out")
    with torch.no_grad():
        for name, value in weights.items():
            value.copy_(stored[f"weight.{name}"])
    for name, parameter in module.named_parameters():
        held = _with_prefix(stored, f"{kind}.{name}.")
        if held:
            optimizer.state[parameter] = {
                key: value.to(parameter.device) for key, value in held.items()
            }
    return Counters(**read_json(state / COUNTERS))


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

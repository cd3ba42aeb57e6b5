"""Checkpoints from which a killed run resumes: weights and optimizer state as safetensors, counters
as JSON, written atomically.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groundling.core.errors import InputError, convert_errors, printable
from groundling.runs.folder import (
    disk_errors,
    json_text,
    read_json,
    refuse_link,
    set_file_modes,
    sync_to_disk,
)
from groundling.runs.hashing import sha256_of
from groundling.runs.progress import is_main_process

STATE = "state.safetensors"
"""Weights and optimizer state."""
COUNTERS = "counters.json"
"""Counters."""
CHECKSUMS = "checksums.json"
"""SHA-256 of every file of a checkpoint, by its path in the checkpoint folder."""
MAX_CHECKPOINTS = 2
"""Maximum number of checkpoints on disk; the older one is used if the newest is damaged."""


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
    """Newest complete checkpoints of a run, with checksums; older ones are removed when a newer one
    is complete.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` holds nothing else."""
        self.folder = folder
        self.hashes: dict[Path, str] = {}
        """SHA-256 of saved best weights, which do not change."""

    def save(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        counters: Counters,
        best: int = 0,
    ) -> None:
        """Write a checkpoint after `counters.step` optimizer steps; `best` is the step of the best
        weights that it needs.
        """
        target = self.folder / f"step-{counters.step:09d}"
        partial = refuse_link(refuse_link(self.folder) / "partial")
        with disk_errors(target, self.intact_remark()):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            save_file(_tensors(module, optimizer), partial / STATE)
            counted = json_text(asdict(counters))
            (partial / COUNTERS).write_text(counted, encoding="utf-8")
            sums = {
                f"{target.name}/{name}": sha256_of(partial / name) for name in (STATE, COUNTERS)
            }
            if best:
                sums[self._best_path(best).name] = self._hash_of(self._best_path(best))
            (partial / CHECKSUMS).write_text(json_text(sums, indent=1), encoding="utf-8")
            set_file_modes(partial)
            for path in (*partial.iterdir(), partial):
                sync_to_disk(path)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            sync_to_disk(self.folder)
        self._tidy(target)

    def intact_remark(self) -> str:
        """Remark for error messages on the newest checkpoint; empty without any."""
        states = sorted(self.folder.glob("step-*"))
        steps = [int(state.name.removeprefix("step-")) for state in states]
        return f"the checkpoint of step {steps[-1]:,} is intact" if steps else ""

    def _tidy(self, newest: Path) -> None:
        """Remove checkpoints that are not needed to resume: those before `newest` except the last,
        and all after it.
        """
        states = sorted(self.folder.glob("step-*"))
        newest_states = [state for state in states if state <= newest][-MAX_CHECKPOINTS:]
        needed = {name for state in newest_states for name in _checksums(state)}
        for state in states:
            if state not in newest_states:
                shutil.rmtree(state, ignore_errors=True)
        for path in self.folder.glob("best-*.safetensors"):
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def _hash_of(self, path: Path) -> str:
        if path not in self.hashes:
            self.hashes[path] = sha256_of(path)
        return self.hashes[path]

    def save_best(self, module: nn.Module, step: int) -> None:
        """Save the weights after `step` as the best so far."""
        target = self._best_path(step)
        partial = refuse_link(refuse_link(self.folder) / "partial.safetensors")
        with disk_errors(target, self.intact_remark()):
            self.folder.mkdir(parents=True, exist_ok=True)
            weights = {name: _plain(value) for name, value in _weights(module).items()}
            save_file(weights, partial)
            sync_to_disk(partial)
            partial.rename(target)
            self.hashes.pop(target, None)

    def load_best(self, module: nn.Module, step: int) -> None:
        """Load the best weights, saved after `step`, in place; raises InputError if they cannot be
        read.
        """
        target = self._best_path(step)
        with convert_errors(
            f"{target}: the best weights cannot be read", advice="; train again in another --out"
        ):
            stored = load_file(target)
        with torch.no_grad():
            for name, value in _weights(module).items():
                value.copy_(stored[name])

    def _best_path(self, step: int) -> Path:
        return self.folder / f"best-{step:09d}.safetensors"

    def restore(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Counters | None:
        """Load the newest complete checkpoint in place and return its counters; None if there is
        none.

        A damaged checkpoint is reported and skipped. Raises InputError if all are damaged, or if it
        belongs to a run with another optimizer or model.
        """
        faults = []
        for state in sorted(self.folder.glob("step-*"), reverse=True):
            fault = _fault(state)
            if fault:
                faults.append(fault)
                continue
            counters = _load(state, module, optimizer)
            if faults and is_main_process():
                note = f"note: {faults[0]}; resuming from step {counters.step:,}, the checkpoint before"
                print(printable(note), file=sys.stderr)
            return counters
        if faults:
            raise InputError(
                f"{faults[0]}, and there is no other checkpoint; delete {self.folder} to train from the first step"
            )
        return None

    def clear(self) -> None:
        """Remove all checkpoints, after the run has written its result."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _checksums(state: Path) -> dict[str, str]:
    """Checksums of a checkpoint's files; empty if they cannot be read."""
    try:
        sums = read_json(state / CHECKSUMS)
    except InputError:
        return {}
    return sums if isinstance(sums, dict) else {}


def _fault(state: Path) -> str:
    """Fault of a checkpoint's files; empty if they are intact."""
    sums = _checksums(state)
    own = [f"{state.name}/{name}" for name in (STATE, COUNTERS)]
    if not set(own) <= sums.keys():
        return f"{state / CHECKSUMS}: the checkpoint cannot be read (its checksums are damaged or missing)"
    for name, expected in sums.items():
        path = state.parent / name
        content = "the checkpoint" if path.parent == state else "the best weights"
        if not path.is_file():
            return f"{path}: {content} cannot be read (no such file)"
        if sha256_of(path) != expected:
            return f"{path}: {content} cannot be read (damaged: its checksum differs)"
    return ""


def _load(state: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> Counters:
    """Load a complete checkpoint in place; returns its counters."""
    stored = load_file(state / STATE)
    kind = _kind(optimizer)
    others = {key.partition(".")[0] for key in stored} - {"weight", kind}
    if others:
        raise InputError(
            f"{state}: a run with {min(others)} cannot resume with {kind}; use another --out"
        )
    weights = _weights(module)
    mismatched = [
        name
        for name, value in weights.items()
        if f"weight.{name}" not in stored or stored[f"weight.{name}"].shape != value.shape
    ]
    if mismatched:
        raise InputError(
            f"{state}: belongs to another model, {mismatched[0]} does not fit; use another --out"
        )
    with torch.no_grad():
        for name, value in weights.items():
            value.copy_(stored[f"weight.{name}"])
    for name, parameter in module.named_parameters():
        state_of_parameter = _with_prefix(stored, f"{kind}.{name}.")
        if state_of_parameter:
            optimizer.state[parameter] = {
                key: value.to(parameter.device) for key, value in state_of_parameter.items()
            }
    counted = read_json(state / COUNTERS)
    counted.pop("train_metrics", None)  # of versions that kept the last log line's means
    return Counters(**counted)


def _with_prefix(stored: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) :]: value for key, value in stored.items() if key.startswith(prefix)}


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

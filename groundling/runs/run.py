"""Life cycle of a run folder, for all commands: opened, resumed from its checkpoint, finished, cleared."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groundling.core.errors import convert_read_errors
from groundling.runs.folder import (
    PREPARED,
    RESULT,
    check_run_folder,
    disk_errors,
    json_safe,
    json_text,
    lock_folder,
    open_run,
    read_object,
    read_result,
    whole_folder,
    write_json,
)
from groundling.runs.jobs import process_state
from groundling.runs.progress import CommandContext, print_notes

# The checkpoint from which a killed run resumes: weights and optimizer state as safetensors, counters as JSON.

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
    tokens: int = 0
    """Tokens and regions that were read, without padding."""
    positions: int = 0
    """The same with padding."""
    timed: list[float] = field(default_factory=lambda: [0, 0, 0.0])
    """Tokens, kFLOPs and seconds of all log lines but the first of each process."""
    warm_up: list[float] = field(default_factory=lambda: [0, 0, 0.0])
    """Those of the last process's first line."""
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
        tensors = {f"weight.{name}": _plain(value) for name, value in _weights(module).items()}
        for parameter_name, parameter in module.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{parameter_name}.{key}"] = _plain(value)
        with whole_folder(self.folder) as partial:
            state = partial / name
            state.mkdir()
            save_file(tensors, state / STATE)
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
            stored = load_file(path)
            for name, value in _weights(module).items():
                value.copy_(stored[f"weight.{name}"])
            for name, parameter in module.named_parameters():
                prefix = f"optimizer.{name}."
                own = {key: value for key, value in stored.items() if key.startswith(prefix)}
                if own:
                    optimizer.state[parameter] = {
                        key.removeprefix(prefix): value.to(parameter.device)
                        for key, value in own.items()
                    }
        path = states[-1] / COUNTERS
        with convert_read_errors(path, ADVICE):
            return Counters(**read_object(path))

    def clear(self) -> None:
        """Remove the checkpoint, after the run has written its result."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _best_name(step: int) -> str:
    return f"best-{step:09d}.safetensors"


def _weights(module: nn.Module) -> dict[str, Tensor]:
    # What is frozen is loaded, or drawn from the seed, again. named_parameters lists a shared tensor once, as
    # safetensors requires.
    parameters: dict[str, Tensor] = {
        name: value for name, value in module.named_parameters() if value.requires_grad
    }
    buffers = {f"buffer.{name}": value for name, value in module.named_buffers()}
    return {**parameters, **buffers}


def _plain(value: Tensor) -> Tensor:
    return value.detach().cpu().contiguous()


# The folder of a run, or of a part of one.


class RunFolder(CommandContext):
    """A run, or a part of one, with its own folder and result; the main process writes, the others wait."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.state = PartialState()

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """The result of an earlier, finished run or part, with a note to the user; None otherwise."""
        result = read_result(self.folder)
        if result is not None:
            note = "finished earlier; nothing to do (use another output folder to run again)"
            print_notes([f"{self.folder}: {note}"])
            self._clear()
        return result

    def save(self, write: Callable[[Path], None]) -> None:
        """Call `write` with a temporary folder on the main process, then move its content to the run folder."""
        if self.state.is_main_process:
            with whole_folder(self.folder) as partial:
                write(partial)

    def end(self, result: dict[str, Any]) -> dict[str, Any]:
        """Write `result.json` with the notes and remove checkpoints; returns what is written."""
        result = self.with_notes(result)
        if self.state.is_main_process:
            write_json(self.folder / RESULT, result)
        self.state.wait_for_everyone()  # the others may still read prepared files until they arrive here
        self._clear()
        self.state.wait_for_everyone()
        return result

    def _clear(self) -> None:
        if self.state.is_main_process:
            Checkpoints(self.folder / "checkpoints").clear()
            shutil.rmtree(self.folder / PREPARED, ignore_errors=True)


class Run(RunFolder):
    """A command's run."""

    def __init__(
        self,
        out: str | Path,
        kind: str,
        settings: Mapping[str, Any],
        inputs: Mapping[str, str | Path],
        cpu: bool = False,
        timeout: timedelta | None = None,
    ) -> None:
        """`settings`, and the `inputs` (name to path; `input_state`) decide whether `out` holds this run.

        `timeout` is how long processes wait for each other instead of torch's default. Raises InputError if `out`
        holds another run, or another process writes there.
        """
        state = process_state(cpu, timeout)
        folder = Path(out)
        if state.is_main_process:
            check_run_folder(folder)
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(folder)
            given = {name: path for name, path in inputs.items() if str(path)}
            open_run(folder, kind, settings, given)
        state.wait_for_everyone()
        super().__init__(folder)

    def part(self, name: str, work: Callable[[RunFolder], dict[str, Any]]) -> dict[str, Any]:
        """The result of a part, in the subfolder `name`: of an earlier call, or made now by `work`."""
        part = RunFolder(self.folder / name)
        part.folder.mkdir(parents=True, exist_ok=True)
        return part.end(work(part)) if part.result is None else part.result

    def end(self, result: dict[str, Any]) -> dict[str, Any]:
        """As in a part, but returns the result as stored."""
        stored: dict[str, Any] = json_safe(super().end(result))
        return stored

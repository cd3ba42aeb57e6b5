"""What an arm's training costs: steps, samples, time, memory and extra parameters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from groundling.settings.training import TrainingArguments


class Cost:
    """What the stages of an arm cost, measured from its creation on."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps: list[int] = []
        self.samples = 0
        self.epochs: list[float] = []
        self.extra_parameters = 0
        self.began = time.process_time()
        self.core_seconds = 0.0
        _reset_peak()

    def add(self, result: Mapping[str, Any], training: TrainingArguments) -> None:
        """Add a stage's result."""
        self.seconds += result["seconds"]
        self.steps.append(result["steps"])
        self.samples += result["steps"] * training.batch
        self.epochs.append(result["epochs"])
        extra = result["training_parameters"] - result["parameters"]
        self.extra_parameters = max(self.extra_parameters, extra)

    def stop(self) -> None:
        """Measure the time of the processor now."""
        self.core_seconds = round(time.process_time() - self.began, 1)
        self.memory = _peak()

    def as_json(self) -> dict[str, Any]:
        """Costs by name; `core_seconds` does not count what an interrupted bench did before."""
        return {
            "steps": sum(self.steps),
            "stage_steps": self.steps,
            "samples": self.samples,
            "epochs": self.epochs,
            "seconds": round(self.seconds, 1),
            "core_seconds": self.core_seconds,
            "memory_mb": self.memory,
            "extra_parameters": self.extra_parameters,
        }


def _reset_peak() -> None:
    """Start a new measurement of this process's peak memory, where Linux allows it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int | None:
    """Peak resident memory of this process in MB; None where the system does not tell."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) // 1024
    return None

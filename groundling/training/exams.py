"""Evaluations while a model trains: how often, which step's weights are kept, when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from groundling.core.documented import documented

Scored = Mapping[str, float | None]
"""An exam's `step` and its scores by name; None where a score is undefined."""
Taken = Sequence[Scored]
"""Every exam so far."""


@documented
@dataclass(frozen=True)
class Exam:
    """What is measured on held-out data every so often, and what follows from it."""

    split: str
    """What the scores are of."""
    metric: str
    """The one of the scores by which steps are compared."""
    measure: Callable[[], Mapping[str, float]]
    """Scores of the model as it is now, by name; called by every process, and equal in all."""
    every: float
    """Epochs from one to the next; the last step always has one."""
    keep: Literal["last", "best"] = "last"
    """Which step's weights the model has in the end."""
    patience: int = 0
    """Stop after so many that were no better than the best before; 0: never."""
    higher_is_better: bool = True
    """False where the metric is an error."""

    def is_due(self, step: int, steps: int, per_epoch: float) -> bool:
        """Whether there is one after `step` of all `steps`, of which an epoch has `per_epoch`."""
        each = self.every * per_epoch
        return step == steps or _whole(step / each) > _whole((step - 1) / each)

    def best(self, taken: Taken) -> Scored:
        """The best of some exams, of equal ones the first; an undefined score is the worst there is."""
        return max(taken, key=self._worth)

    def best_step(self, taken: Taken) -> int:
        """The step after which it was taken."""
        return int(self.best(taken)["step"] or 0)

    def is_over(self, taken: Taken) -> bool:
        """Whether patience is at an end."""
        if not self.patience or not taken:
            return False
        return len(taken) - 1 - taken.index(self.best(taken)) >= self.patience

    def line(self, taken: Taken) -> str:
        """What is printed of the latest one."""
        latest = taken[-1]
        said = ", ".join(f"{name} {_said(one)}" for name, one in latest.items() if name != "step")
        best = self.best(taken)
        compared = "the best so far"
        if best is not latest:
            compared = f"best so far: {_said(best[self.metric])} at step {best['step']:,}"
        return f"step {latest['step']:,}: {self.split} {said} ({compared})"

    def told(self, taken: Taken, step: int, steps: int) -> dict[str, Any]:
        """What a result says of all of them, after `step` of `steps` planned ones."""
        kept = self.best_step(taken) if self.keep == "best" else step
        return {
            "split": self.split,
            "metric": self.metric,
            "keep": self.keep,
            "evaluations": len(taken),
            "kept_step": kept,
            "stopped_early": step < steps,
            "scores": list(taken),
        }

    def _worth(self, scores: Scored) -> float:
        value = scores[self.metric]
        if value is None or math.isnan(value):
            return -math.inf
        return value if self.higher_is_better else -value


def _said(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4g}"


def _whole(number: float) -> int:
    # Rounding first: a share of 1/3 must not lose a step to binary fractions.
    return math.floor(round(number, 6))

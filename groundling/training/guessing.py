"""What objectives lose who guess: by how frequent each answer is, or by the mean, without any look at the input."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from groundling.objectives import Targets

LEFT = 0.98
"""A loss above this share of what guessing gives has not left it."""


class Guessing:
    """Gathers what terms are scored against, and tells the loss of the best answer that is always the same."""

    def __init__(self) -> None:
        self.gathered: dict[str, _Gathered] = {}

    def add(self, targets: Mapping[str, Targets]) -> None:
        """Some items of every term."""
        for term, some in targets.items():
            self.gathered.setdefault(term, _Gathered(some.kind)).add(some.values.cpu().numpy())

    def levels(self) -> dict[str, float]:
        """The loss of guessing by term: nats for classes and shares; for numbers a squared error.

        A sample has not met every rare class, so that its entropy is too low; Miller's correction (1955) takes away
        about half of that.
        """
        return {term: one.level() for term, one in self.gathered.items() if one.items}


class _Gathered:
    """Sums over the items of one term."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.items = 0
        self.total: np.ndarray = np.zeros(0)
        self.squares = 0.0

    def add(self, values: np.ndarray) -> None:
        """Classes (n,), or shares or numbers (n, K)."""
        self.items += len(values)
        if self.kind == "class":
            values = np.bincount(values.astype(int), minlength=len(self.total))
            self.total = np.pad(self.total, (0, len(values) - len(self.total))) + values
            return
        values = values.astype(float)
        self.total = values.sum(0) + (self.total if len(self.total) else 0)
        self.squares += float((values**2).sum())

    def level(self) -> float:
        mean = self.total / self.items
        if self.kind == "number":
            return self.squares / self.items - float((mean**2).sum())
        # Of regions without any class a store's shares sum to 0: they add nothing to a loss, nor here.
        whole = mean.sum()
        there = mean[mean > 0]
        entropy = -float((there * np.log(there / whole)).sum()) if whole else 0.0
        unseen = (len(there) - 1) / (2 * self.items) if self.kind == "class" else 0.0
        return entropy + unseen

"""Metrics as the benchmarks define them; NaN, never a silent 0, where one is undefined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Metric:
    """A number computed from predictions (N,) and labels (N,)."""

    name: str
    compute: Callable[[np.ndarray, np.ndarray], float]
    higher_is_better: bool = True


def _accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float((predictions == labels).mean())


def _f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    hits = int(((predictions == 1) & (labels == 1)).sum())
    claimed, there = int((predictions == 1).sum()), int((labels == 1).sum())
    return 2 * hits / (claimed + there) if claimed + there else float("nan")


def _matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    # A constant prediction leaves a factor of the denominator 0; GLUE (and scikit-learn) call that 0 by definition.
    p, y = predictions - predictions.mean(), labels - labels.mean()
    spread = float(np.sqrt((p**2).sum() * (y**2).sum()))
    return float((p * y).sum()) / spread if spread else 0.0


def _pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return float("nan")
    return float(stats.pearsonr(predictions, labels).statistic)


def _spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return float("nan")
    return float(stats.spearmanr(predictions, labels).statistic)


ACCURACY = Metric("accuracy", _accuracy)
F1 = Metric("f1", _f1)
"""Of class 1."""
MATTHEWS = Metric("matthews", _matthews)
PEARSON = Metric("pearson", _pearson)
SPEARMAN = Metric("spearman", _spearman)

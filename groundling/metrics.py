"""Metrics as the benchmarks define them; NaN, never a silent 0, where one is undefined.

Each is a function of sums over examples, so that a bootstrap over examples is one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

Values = np.ndarray


@dataclass(frozen=True)
class Metric:
    """A number computed from predictions (N,) and labels (N,): `finish` of the sum of `terms` over examples."""

    name: str
    terms: Callable[[Values, Values], Values]
    """Predictions and labels to (N, k)."""
    finish: Callable[[Values], Values]
    """Sums (..., k) to the metric (...)."""
    higher_is_better: bool = True
    scale: float = 100.0
    """What it is multiplied by in tables and sentences: 100 for points."""
    classes: bool = True
    """Whether predictions are classes, so that votes can be counted."""
    ranked: bool = False
    """Computed from outputs (N, R), one per region, in place of predictions."""

    def compute(self, predictions: Values, labels: Values) -> float:
        """The metric of these predictions."""
        return float(self.finish(self.terms(predictions, labels).sum(0)))


def _ratio(above: Values, below: Values) -> Values:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below > 0, above / below, np.nan)


def _with_count(*columns: Values) -> Values:
    return np.stack([*columns, np.ones(len(columns[0]))], axis=-1).astype(float)


def _products(p: Values, y: Values) -> Values:
    # Centred, because sums of squares of large numbers lose digits.
    p, y = p - p.mean(), y - y.mean()
    return _with_count(p, y, p * p, y * y, p * y)


def _correlation(sums: Values) -> Values:
    p, y, pp, yy, py, n = np.moveaxis(sums, -1, 0)
    spread = (pp - p * p / n) * (yy - y * y / n)
    # What rounding leaves of a constant is no spread.
    spread = np.where(spread > 1e-20 * np.maximum(pp * yy, 1e-300), spread, 0.0)
    return np.clip(_ratio(py - p * y / n, np.sqrt(spread)), -1, 1)


def _matthews(sums: Values) -> Values:
    # A constant prediction leaves a factor of the denominator 0; GLUE (and scikit-learn) call that 0 by definition.
    return np.nan_to_num(_correlation(sums), nan=0.0)


def _ranked(p: Values, y: Values) -> Values:
    # Not for a bootstrap, in which ranks ought to be those of the resample; no verdict rests on it.
    return _products(stats.rankdata(p), stats.rankdata(y))


def _squares(p: Values, y: Values) -> Values:
    return _with_count((p - y) ** 2)


def _mean(sums: Values) -> Values:
    return _ratio(sums[..., 0], sums[..., 1])


ACCURACY = Metric("accuracy", lambda p, y: _with_count(p == y), _mean)
F1 = Metric(
    "f1",
    lambda p, y: np.stack([2.0 * ((p == 1) & (y == 1)), (p == 1) * 1.0 + (y == 1)], axis=-1),
    lambda sums: _ratio(sums[..., 0], sums[..., 1]),
)
"""Of class 1."""
MATTHEWS = Metric("matthews", _products, _matthews)
"""Of two classes, 0 and 1."""
PEARSON = Metric("pearson", _products, _correlation, classes=False)
SPEARMAN = Metric("spearman", _ranked, _correlation, classes=False)
MSE = Metric("mse", _squares, _mean, higher_is_better=False, scale=1.0, classes=False)
RMSE = Metric(
    "rmse",
    _squares,
    lambda sums: np.sqrt(_mean(sums)),
    higher_is_better=False,
    scale=1.0,
    classes=False,
)


def _picked(p: Values, y: Values) -> Values:
    return _with_count(np.take_along_axis(y, p.astype(int)[:, None], 1)[:, 0] == 1)


def _among(k: int) -> Callable[[Values, Values], Values]:
    def terms(outputs: Values, y: Values) -> Values:
        best = np.argsort(-outputs, axis=1, kind="stable")[:, :k]
        return _with_count((np.take_along_axis(y, best, 1) == 1).any(1))

    return terms


PICKED = Metric("picked", _picked, _mean)
"""Share of examples whose predicted region is right: labels (N, R) are 1 where a region is."""
AMONG = tuple(Metric(f"R@{k}", _among(k), _mean, ranked=True) for k in (1, 5, 10))
UPPER_BOUND = Metric(
    "upper bound", lambda outputs, y: _with_count((y == 1).any(1)), _mean, ranked=True
)
"""Share of examples that have a right region at all."""

GAINED = Metric("score", lambda p, y: _with_count(p), _mean, classes=False)
"""Mean of what each example gained, for answers that are right to a degree (VQA)."""

METRICS = {m.name: m for m in (ACCURACY, F1, MATTHEWS, PEARSON, SPEARMAN, MSE, RMSE, GAINED)} | {
    "picked": ACCURACY
}
"""By name, for runs read back from their folders; there a picked region is right or wrong (`read_predictions`)."""

"""Metrics as the benchmarks define them.

A metric is a function of sums over examples, so a bootstrap over examples is one matrix product. A
constant prediction scores 0; a correlation with constant labels is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

Values = np.ndarray

DEGENERATE_SHARE = 0.99
"""Share of equal predictions from which a run counts as degenerate, for any labels."""
NEARLY_DEGENERATE_SHARE = 0.95
"""The same threshold where the labels' own majority class is rarer by `MIN_SHARE_GAP` or more."""
MIN_SHARE_GAP = 0.05
"""Minimum difference between the shares of the majority prediction and the majority label."""

ROUNDING = 1e-12
"""A sum of squared deviations below this share of the sum of squares is rounding error of a constant."""


@dataclass(frozen=True)
class Metric:
    """A number computed from predictions (N,) and labels: `from_sums` of the sum of `example_terms` over examples."""

    name: str
    """Its name in reports and in `result.json`; unique among `METRICS`."""
    example_terms: Callable[[Values, Values], Values]
    """Maps predictions (N,) and labels (N,), or labels of metrics that use example scores, to (N, k)."""
    from_sums: Callable[[Values], Values]
    """Maps sums (..., k) to the metric (...)."""
    higher_is_better: bool = True
    """False for error measures."""
    scale: float = 100.0
    """Factor for tables and sentences: 100 for points."""
    is_classification: bool = True
    """Whether answers are right or wrong, so that right answers and votes can be counted."""
    uses_scores: bool = False
    """Whether it is computed from outputs (N, R), one per region, in place of predictions."""
    uses_example_scores: bool = False
    """Whether labels hold the score of each possible answer: (N, R) per region, or pairs (N, K, 2) of class and score.
    """

    def compute(self, predictions: Values, labels: Values) -> float:
        """The metric of predictions (N,), or of outputs (N, R) if it `uses_scores`."""
        return float(self.from_sums(self.example_terms(predictions, labels).sum(0)))

    @property
    def is_mean(self) -> bool:
        """Whether it is known to be a mean over examples, as the package's own means are."""
        return self.from_sums is _mean

    def per_example(self, predictions: Values, labels: Values) -> Values:
        """The contribution of each example, (N,); raises ValueError if the metric is no mean over examples."""
        terms = self.example_terms(predictions, labels)
        if terms.shape[1] != 2 or not np.all(terms[:, 1] == 1):
            raise ValueError(f"{self.name} is not a mean over examples")
        return terms[:, 0]

    def from_per_example(self) -> Metric:
        """The same metric, computed from the examples' contributions in place of predictions.

        Runs that number regions or answers differently can only be compared by these contributions.
        """
        terms = partial(_with_count, _given_score)
        return replace(self, example_terms=terms, from_sums=_mean, uses_example_scores=False)


def most_common(values: Values) -> tuple[float, float]:
    """The most common of values (N,) and its share; ties go to the first."""
    distinct, counts = np.unique(values, return_counts=True)
    best = int(counts.argmax())
    return float(distinct[best]), float(counts[best] / len(values))


def is_degenerate(predictions: Values, labels: Values | None = None) -> bool:
    """Whether predictions (N,) are degenerate: 99 % are one answer, or 95 % where labels are clearly more varied.

    `labels` (N,), or (N, K, 2) pairs of class and score, of which the class with credit in most examples is the
    most common; labels of any other shape are ignored.
    """
    _, share = most_common(predictions)
    if share >= DEGENERATE_SHARE or labels is None or share < NEARLY_DEGENERATE_SHARE:
        return share >= DEGENERATE_SHARE
    if labels.ndim == 1:
        majority = most_common(labels)[1]
    elif labels.ndim == 3:
        _, credits = np.unique(labels[labels[..., 1] > 0][:, 0], return_counts=True)
        majority = credits.max(initial=0) / len(labels)
    else:
        return False
    return bool(majority <= share - MIN_SHARE_GAP)


# -- means over examples -----------------------------------------------------------------------------------------------
def _mean(sums: Values) -> Values:
    total, count = np.moveaxis(sums, -1, 0)
    with np.errstate(invalid="ignore"):  # no examples: NaN
        return total / count


def _with_count(
    score: Callable[[Values, Values], Values], predictions: Values, labels: Values
) -> Values:
    """(N, 2): each example's score and 1, whose sums give the mean."""
    values = score(predictions, labels)
    return np.stack([values, np.ones(len(values))], axis=-1).astype(float)


def _mean_metric(name: str, score: Callable[[Values, Values], Values], **options: Any) -> Metric:
    """The mean of `score`, which maps predictions and labels to (N,)."""
    return Metric(name, partial(_with_count, score), _mean, **options)


def _squared_error(predictions: Values, labels: Values) -> Values:
    return (predictions - labels) ** 2


def _given_score(scores: Values, labels: Values) -> Values:
    return scores


def _region_is_right(predictions: Values, labels: Values) -> Values:
    place = predictions.astype(int)[:, None]
    return np.take_along_axis(labels, place, 1)[:, 0] == 1


def _right_region_among(count: int | None, outputs: Values, labels: Values) -> Values:
    # A stable order: ties keep the order of the regions.
    best = np.argsort(-outputs, axis=1, kind="stable")[:, :count]
    return (np.take_along_axis(labels, best, 1) == 1).any(1)


def _score_of_prediction(predictions: Values, labels: Values) -> Values:
    is_predicted = labels[..., 0] == predictions[:, None]
    return (labels[..., 1] * is_predicted).sum(1)


# -- counts and correlations -------------------------------------------------------------------------------------------
def _class_one(predictions: Values, labels: Values) -> Values:
    """(N, 2): twice the true positives; predicted positives plus true ones."""
    predicted = predictions == 1
    true = labels == 1
    return np.stack([2.0 * (predicted & true), predicted * 1.0 + true], axis=-1)


def _f1(sums: Values) -> Values:
    twice_right, positives = np.moveaxis(sums, -1, 0)
    # Without any positive, nothing is right: 0 / 1.
    return twice_right / np.maximum(positives, 1)


def _root_of_mean(sums: Values) -> Values:
    return np.sqrt(_mean(sums))


def _moments(predictions: Values, labels: Values) -> Values:
    """(N, 6): values, squares, product, and 1."""
    # Centred, because sums of squares of large numbers lose digits.
    p = predictions - predictions.mean()
    y = labels - labels.mean()
    return np.stack([p, y, p * p, y * y, p * y, np.ones(len(p))], axis=-1)


def _moments_of_ranks(predictions: Values, labels: Values) -> Values:
    # Not for a bootstrap, which would need the ranks of the resample; no verdict uses it.
    return _moments(stats.rankdata(predictions), stats.rankdata(labels))


def _spread(total: Values, squares: Values, count: Values) -> Values:
    """Sum of squared deviations; 0 for a constant, NaN if a value is NaN."""
    spread = squares - total * total / count
    return np.where(spread <= ROUNDING * squares, 0.0, spread)


def _correlation(sums: Values) -> Values:
    p, y, pp, yy, py, count = np.moveaxis(sums, -1, 0)
    spread_of_predictions = _spread(p, pp, count)
    spread_of_labels = _spread(y, yy, count)
    covariance = py - p * y / count
    with np.errstate(divide="ignore", invalid="ignore"):
        r = covariance / (np.sqrt(spread_of_predictions) * np.sqrt(spread_of_labels))
    r = np.clip(r, -1, 1)
    r = np.where(spread_of_predictions == 0, 0.0, r)
    return np.where(spread_of_labels == 0, np.nan, r)


def _matthews(sums: Values) -> Values:
    return np.nan_to_num(_correlation(sums), nan=0.0)


# -- the metrics -------------------------------------------------------------------------------------------------------
ACCURACY = _mean_metric("accuracy", np.equal)
"""Share of right answers."""

F1 = Metric("f1", example_terms=_class_one, from_sums=_f1)
"""F1 of class 1; 0 without predicted and true positives, as in scikit-learn, which GLUE's script calls."""


def _right_and_class_one(predictions: Values, labels: Values) -> Values:
    parts = [metric.example_terms(predictions, labels) for metric in (ACCURACY, F1)]
    return np.concatenate(parts, axis=-1)


def _mean_of_both(sums: Values) -> Values:
    return (_mean(sums[..., :2]) + _f1(sums[..., 2:])) / 2


ACCURACY_AND_F1 = Metric(
    "mean of accuracy and f1", example_terms=_right_and_class_one, from_sums=_mean_of_both
)
"""GLUE's score for tasks with both metrics; XDBERT's 89.51 on QQP fits it (`combined_score` in its release)."""

MATTHEWS = Metric("matthews", example_terms=_moments, from_sums=_matthews)
"""Matthews correlation of classes 0 and 1 (CoLA); 0 where either side is constant, as in scikit-learn."""

PEARSON = Metric("pearson", example_terms=_moments, from_sums=_correlation, is_classification=False)
"""Pearson correlation; NaN for constant labels, and 0 for a constant prediction, which says nothing about the labels.

With NaN (SciPy), a degenerate seed would be missing from the median of its runs, and only good seeds would remain.
"""

SPEARMAN = replace(PEARSON, name="spearman", example_terms=_moments_of_ranks)
"""Spearman correlation: Pearson's of the ranks, ties having their mean rank."""

MSE = _mean_metric(
    "mse", _squared_error, higher_is_better=False, scale=1.0, is_classification=False
)
"""Mean squared error."""

RMSE = replace(MSE, name="rmse", from_sums=_root_of_mean)
"""Root of the mean squared error."""

REGION_ACCURACY = _mean_metric("picked", _region_is_right, uses_example_scores=True)
"""Share of examples whose predicted region is right: labels (N, R) are 1 at right regions."""


def _recall(name: str, count: int | None) -> Metric:
    score = partial(_right_region_among, count)
    return _mean_metric(name, score, uses_scores=True, uses_example_scores=True)


RECALLS = (_recall("R@1", 1), _recall("R@5", 5), _recall("R@10", 10))
"""Share of examples with a right region among the best 1, 5 and 10."""

UPPER_BOUND = _recall("upper bound", None)
"""Share of examples that have a right region."""

SCORE = _mean_metric(
    "score", _score_of_prediction, is_classification=False, uses_example_scores=True
)
"""Mean score of the predicted answer, for labels (N, K, 2) with partial credit; VQA papers' local accuracy."""

METRICS: tuple[Metric, ...] = (
    ACCURACY,
    F1,
    ACCURACY_AND_F1,
    MATTHEWS,
    PEARSON,
    SPEARMAN,
    MSE,
    RMSE,
    REGION_ACCURACY,
    *RECALLS,
    UPPER_BOUND,
    SCORE,
)
"""All metrics, with unique names, for runs whose task is not in the package (the user's own files)."""

import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from groundling.metrics import ACCURACY, F1, MATTHEWS, PEARSON, SPEARMAN

DRAWS = 200


def pairs(seed: int, classes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Predictions and labels of varied length, agreement and balance; both sides hold at least two values."""
    rng, out = np.random.default_rng(seed), []
    while len(out) < DRAWS:
        size, share = int(rng.integers(3, 300)), rng.dirichlet(np.ones(classes))
        labels = rng.choice(classes, size, p=share)
        predictions = np.where(
            rng.random(size) < rng.random(), labels, rng.integers(0, classes, size)
        )
        if len(set(labels)) > 1 and len(set(predictions)) > 1:
            out.append((predictions, labels))
    return out


def close(ours: float, theirs: float) -> bool:
    return type(ours) is float and abs(ours - theirs) <= 1e-12


@pytest.mark.parametrize("classes", [2, 3])
def test_accuracy_is_scikit_learns(classes: int) -> None:
    for predictions, labels in pairs(1, classes):
        assert close(ACCURACY.compute(predictions, labels), sk.accuracy_score(labels, predictions))


def test_f1_of_class_one_is_scikit_learns() -> None:
    for predictions, labels in pairs(2, 2):
        assert close(F1.compute(predictions, labels), sk.f1_score(labels, predictions, pos_label=1))


def test_matthews_is_scikit_learns() -> None:
    for predictions, labels in pairs(3, 2):
        assert close(
            MATTHEWS.compute(predictions, labels), sk.matthews_corrcoef(labels, predictions)
        )


@pytest.mark.parametrize("ties", [False, True])
def test_correlations_are_scipys(ties: bool) -> None:
    rng = np.random.default_rng(4)
    for _ in range(DRAWS):
        labels = rng.uniform(0, 5, int(rng.integers(3, 300)))
        predictions = labels * rng.normal() + rng.normal(0, rng.uniform(0.1, 5), len(labels))
        if ties:
            labels, predictions = np.round(labels), np.round(predictions)
            labels[:2], predictions[:2] = (0, 1), (0, 1)
        assert close(PEARSON.compute(predictions, labels), stats.pearsonr(predictions, labels)[0])
        assert close(SPEARMAN.compute(predictions, labels), stats.spearmanr(predictions, labels)[0])


def test_spearman_gives_ties_their_average_rank() -> None:
    # ranks 1.5 1.5 3 and 1 2.5 2.5: covariance 0.75, both variances 1.5
    assert SPEARMAN.compute(np.array([2.0, 2.0, 9.0]), np.array([0.0, 4.0, 4.0])) == pytest.approx(
        0.5, abs=1e-12
    )
    assert PEARSON.compute(np.array([2.0, 2.0, 9.0]), np.array([0.0, 4.0, 5.0])) < 1


def test_undefined_is_nan_without_a_warning_and_matthews_is_zero() -> None:
    ones, mixed = np.ones(4), np.array([0.0, 1.0, 1.0, 0.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(F1.compute(np.zeros(4), np.zeros(4)))
        assert F1.compute(np.zeros(4), ones) == 0.0
        for metric in (PEARSON, SPEARMAN):
            assert np.isnan(metric.compute(ones, mixed))
            assert np.isnan(metric.compute(mixed, ones))
        for predictions, labels in ((ones, mixed), (mixed, ones), (ones, ones)):
            assert MATTHEWS.compute(predictions, labels) == 0.0


def test_a_third_class_is_not_class_one() -> None:
    predictions, labels = np.array([1, 2, 1, 0]), np.array([1, 1, 2, 0])
    assert F1.compute(predictions, labels) == 0.5

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk
from sklearn.exceptions import UndefinedMetricWarning as sk_warning
from tiny.homes import put

import groundling.core.metrics
from groundling.commands.finetune.result import summary
from groundling.core.batch import IGNORE, Example
from groundling.core.errors import InputError
from groundling.core.metrics import (
    ACCURACY,
    F1,
    MATTHEWS,
    METRICS,
    PEARSON,
    REGION_ACCURACY,
    SCORE,
    SPEARMAN,
    Metric,
)
from groundling.core.registry import registered
from groundling.runs.folder import json_safe, json_text, read_log, write_json
from groundling.runs.run import Run
from groundling.tasks import Task
from groundling.tasks.texts import RTE, STSB
from groundling.training.evaluation import EvaluationOutput

DRAWS = 100


def pairs(seed: int, classes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Predictions and labels of varied length, agreement and balance; both sides hold at least two values."""
    rng, out = np.random.default_rng(seed), []
    while len(out) < DRAWS:
        size, share = int(rng.integers(3, 300)), rng.dirichlet(np.ones(classes))
        labels = rng.choice(classes, size, p=share)
        is_right = rng.random(size) < rng.random()
        predictions = np.where(is_right, labels, rng.integers(0, classes, size))
        if len(set(labels)) > 1 and len(set(predictions)) > 1:
            out.append((predictions, labels))
    return out


def close(ours: float, theirs: float) -> bool:
    return type(ours) is float and abs(ours - theirs) <= 1e-12


@pytest.mark.parametrize(
    ("ours", "theirs", "classes"),
    [
        (ACCURACY, sk.accuracy_score, 2),
        (ACCURACY, sk.accuracy_score, 3),
        (F1, sk.f1_score, 2),
        (MATTHEWS, sk.matthews_corrcoef, 2),
    ],
)
def test_metrics_of_classes_are_scikit_learns(ours: Metric, theirs: Any, classes: int) -> None:
    for predictions, labels in pairs(classes, classes):
        assert close(ours.compute(predictions, labels), theirs(labels, predictions))


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


def test_a_constant_prediction_scores_zero_and_constant_labels_are_undefined() -> None:
    ones, mixed = np.ones(4), np.array([0.0, 1.0, 1.0, 0.0])
    tenths = np.full(7, 0.1)  # whose mean is not exactly 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for metric in (PEARSON, SPEARMAN):
            assert metric.compute(ones, mixed) == 0.0
            assert metric.compute(tenths, np.arange(7.0)) == 0.0
            assert metric.compute(1e8 + tenths, np.arange(7.0)) == 0.0
            assert np.isnan(metric.compute(mixed, ones))
            assert np.isnan(metric.compute(np.arange(7.0), tenths))
            assert np.isnan(metric.compute(ones, ones))
            assert np.isnan(metric.compute(np.array([np.nan, 1.0, 2.0, 3.0]), mixed))
        for predictions, labels in ((ones, mixed), (mixed, ones), (ones, ones)):
            assert MATTHEWS.compute(predictions, labels) == 0.0


def test_predictions_that_differ_little_are_not_constant() -> None:
    labels = np.arange(50.0)
    assert PEARSON.compute(1e-9 * labels, labels) == pytest.approx(1)
    assert PEARSON.compute(1e6 + 1e-3 * labels, labels) == pytest.approx(1)


def test_f1_without_any_positive_is_scikit_learns_zero() -> None:
    zeros, ones = np.zeros(4), np.ones(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sk_warning)
        theirs = [sk.f1_score(y, p) for p, y in ((zeros, zeros), (zeros, ones), (ones, zeros))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = [F1.compute(p, y) for p, y in ((zeros, zeros), (zeros, ones), (ones, zeros))]
    assert ours == theirs == [0.0, 0.0, 0.0]


def test_every_metric_has_a_name_of_its_own() -> None:
    values = [*vars(groundling.core.metrics).values(), *groundling.core.metrics.RECALLS]
    defined = {id(value) for value in values if isinstance(value, Metric)}
    assert defined == {id(metric) for metric in METRICS}
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_every_metric_of_a_task_is_listed_or_has_a_name_of_its_own() -> None:
    listed = {metric.name: metric for metric in METRICS}
    for task in registered("tasks", Task).values():
        for metric in task.metrics:
            assert listed.get(metric.name, metric) is metric, task.name


def test_graded_answers_become_what_they_gained() -> None:
    regions = np.array([[1, 0, IGNORE], [0, 1, 1], [0, 0, IGNORE]])
    assert REGION_ACCURACY.per_example(np.array([0, 0, 1]), regions).tolist() == [1, 0, 0]
    answers = np.array([[[7, 0.9], [3, 0.3]], [[2, 1.0], [IGNORE, IGNORE]]])
    gains = SCORE.per_example(np.array([3, 5]), answers)
    assert gains.tolist() == [0.3, 0]
    both = ((REGION_ACCURACY, [0, 0, 1], regions), (SCORE, [3, 5], answers))
    for metric, predictions, labels in both:
        values = np.array(predictions)
        plain = metric.from_per_example()
        assert (plain.name, plain.uses_example_scores) == (metric.name, False)
        gains = metric.per_example(values, labels)
        assert plain.compute(gains, np.ones(len(gains))) == metric.compute(values, labels)
    with pytest.raises(ValueError, match="pearson is not a mean"):
        PEARSON.per_example(np.arange(3.0), np.arange(3.0))


def test_a_third_class_is_not_class_one() -> None:
    predictions, labels = np.array([1, 2, 1, 0]), np.array([1, 1, 2, 0])
    assert F1.compute(predictions, labels) == 0.5


def test_two_metrics_of_a_task_do_not_share_a_name() -> None:
    mine = replace(ACCURACY, higher_is_better=False)
    with pytest.raises(InputError, match="two metrics are called 'accuracy'"):
        replace(RTE, metrics=(ACCURACY, mine))


# -- undefined numbers -------------------------------------------------------------------------------------------------
def strictly(text: str) -> Any:
    """JSON as its standard has it."""

    def refused(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refused)


def test_what_is_not_finite_is_null_however_deep(tmp_path: Path) -> None:
    value = {"a": [1.5, math.nan, (np.float64("inf"), {"b": -math.inf})], "c": Path("x"), "d": 3}
    expected = {"a": [1.5, None, [None, {"b": None}]], "c": "x", "d": 3}
    write_json(tmp_path / "v.json", value)
    assert strictly((tmp_path / "v.json").read_text()) == expected
    assert strictly(json_text([math.nan])) == [None]
    assert json_safe(value) | {"c": "x"} == expected


def test_a_log_with_undefined_numbers_is_read(tmp_path: Path) -> None:
    rows = [{"step": 1, "loss": 0.1, "gate": 0.5, "grad_norm": None}]
    rows += [{"step": 2, "loss": 0.1, "gate": None}]
    path = put(tmp_path / "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert read_log(path) == rows


@pytest.mark.parametrize("undefined", [math.nan, None])
def test_a_median_of_seeds_of_which_one_is_undefined(undefined: float | None) -> None:
    scores = [{"dev": {"pearson": score, "spearman": 0.5}} for score in (0.3, undefined, 0.4)]
    runs = [{"seed": n, "scores": one, "truncated_tokens": 0} for n, one in enumerate(scores)]
    found = json_safe(summary(STSB, runs, "model"))
    assert found["median"]["dev"] == {"pearson": None, "spearman": 0.5}
    assert found["scores"]["dev"]["pearson"] == [0.3, None, 0.4]


def test_answers_are_written_without_what_fills_them_up(tmp_path: Path) -> None:
    outputs = np.array([[0.5, -np.inf, 2.0], [1.0, -np.inf, -np.inf]])
    examples = [Example("a", ""), Example("b", "")]
    answers = EvaluationOutput(examples, outputs, np.array([2, 0]), np.array([2, 0]), {})
    answers.write(tmp_path / "p.jsonl")
    lines = [strictly(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [line["outputs"] for line in lines] == [[0.5, None, 2.0], [1.0]]


def test_a_run_returns_what_its_file_has(tmp_path: Path) -> None:
    run = Run(tmp_path, "probe-facts", {"limit": math.inf}, {})
    result = run.end({"score": math.nan, "pair": (1, 2)})
    assert result == {"score": None, "pair": [1, 2]}
    again = Run(tmp_path, "probe-facts", {"limit": math.inf}, {})
    assert again.result == result

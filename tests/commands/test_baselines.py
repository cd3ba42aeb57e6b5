"""What a fine-tuning's scores stand beside: the most common answer, and the same model without the images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import homes, standins
from tiny.homes import STEPS, put, table

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.result import (
    majority_baseline,
    majority_note,
)
from groundling.core.batch import Example
from groundling.core.metrics import ACCURACY, F1, MATTHEWS, RMSE, SCORE, is_degenerate
from groundling.core.output_types import Classification, OpenAnswer, RegionSelection, Regression
from groundling.settings.fields import make_settings
from groundling.stats.finished_runs import collect_runs
from groundling.tasks import Task
from groundling.training.evaluation import EvaluationOutput

BRIEF = replace(STEPS, steps=2, batch=4)
NAMES = tuple(f"photos/{number}" for number in range(20))


def task(form: object, *metrics: object) -> Task:
    return Task("t", form, lambda *_: [], metrics, "t")


def said(predictions: list[float], labels: object) -> EvaluationOutput:
    values = np.array(predictions, float)
    examples = [Example(str(number), "") for number in range(len(values))]
    return EvaluationOutput(examples, values[:, None], values, np.array(labels, float), {})


def learned(*labels: object) -> list[Example]:
    return [Example(str(number), "x", label=label) for number, label in enumerate(labels)]


# -- nearly one answer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "right", "is_so"),
    [
        (0, 0.97, True),  # all of them: nothing is said of anything, whatever the labels
        (1, 0.5, True),  # 1 of 31, as of two seeds on 145 photos, is less than 99 %
        (1, 0.95, False),  # the labels are no more varied
        (2, 0.3, False),  # 93 % are one answer
    ],
)
def test_nearly_one_answer_is_told_from_few_right_ones(
    others: int, right: float, is_so: bool
) -> None:
    count = 31
    predictions = np.array([1.0] * (count - others) + [2.0] * others)
    majority = round(right * count)
    labels = np.array([1.0] * majority + [3.0 + n % 5 for n in range(count - majority)])
    assert is_degenerate(predictions, labels) is is_so
    pairs = np.stack([labels, np.full(count, 0.9)], -1)[:, None]
    assert is_degenerate(predictions, pairs) is is_so
    assert is_degenerate(predictions) is (others == 0)


# -- the majority ------------------------------------------------------------------------------------------------------


def test_the_most_common_answer_is_the_trainings_and_scored_by_every_metric() -> None:
    of_two = task(Classification(("a", "b")), ACCURACY, F1, MATTHEWS)
    found = majority_baseline(of_two, learned(1, 1, 0, None), {"dev": said([0, 0, 0], [1, 0, 0])})
    scores = {"accuracy": 1 / 3, "f1": 0.5, "matthews": 0.0}
    assert found == {"majority": {"answer": "b", "scores": {"dev": scores}}}


def test_of_credit_numbers_and_regions() -> None:
    form = OpenAnswer(("", "x", "y"), excluded_answers=("",))
    pairs = np.array([[1, 0.3], [2, 0.9], [-1, 0.0]])
    examples = learned(pairs, pairs, 0, 0, 0)
    found = majority_baseline(task(form, SCORE), examples, {"val": said([0.0], [pairs])})
    assert found["majority"]["answer"] == "y"
    assert found["majority"]["scores"]["val"]["score"] == pytest.approx(0.9)
    answers = {"dev": said([0.0, 0.0], [2.0, 4.0])}
    found = majority_baseline(task(Regression(0, 5), RMSE), learned(1.0, 3.0), answers)
    assert found["majority"] == {
        "answer": 2.0,
        "scores": {"dev": {"rmse": pytest.approx(2**0.5)}},
    }
    regions = task(RegionSelection(), ACCURACY)
    assert majority_baseline(regions, learned(None), {"dev": said([0.0], [[1.0]])}) == {}


@pytest.mark.parametrize(("median", "is_said"), [(0.5, True), (0.51, False)])
def test_who_is_no_better_than_one_answer_is_told(median: float, is_said: bool) -> None:
    result = {
        "median": {"dev": {"accuracy": median}},
        "majority": {"answer": "no", "scores": {"dev": {"accuracy": 0.5}}},
    }
    notes = majority_note(task(Classification(("no", "yes")), ACCURACY), result)
    assert bool(notes) is is_said
    lower = {"rmse": median}, {"rmse": 0.505}
    result = {"median": {"dev": lower[0]}, "majority": {"answer": 1, "scores": {"dev": lower[1]}}}
    assert bool(majority_note(task(Regression(0, 1), RMSE), result)) is not is_said


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    homes.student(folder / "bert")
    standins.store(folder / "store", NAMES)
    rows = [(q, f"{n}.jpg", "no" if m else "yes") for n in NAMES for m, q in enumerate("abc")]
    put(folder / "asked.csv", table(("q", "photo", "y"), *rows))
    return folder


def asked(place: Path, **changes: object) -> FinetuneConfig:
    settings = {"model": place / "bert", "architecture": "uniter", "data": place / "asked.csv"}
    settings |= {"regions": place / "store"}
    texts = {name: str(value) for name, value in settings.items()}
    columns = {"text": "q", "image": "photo", "label": "y", "max_length": 16, "seeds": 2}
    return make_settings(FinetuneConfig, **(texts | columns | changes))


def test_texts_alone_stand_beside_and_come_later_too(place: Path, tmp_path: Path) -> None:
    alone = finetune(asked(place, regions=""), BRIEF, tmp_path / "alone")
    before = finetune(asked(place), BRIEF, tmp_path / "run")
    assert "text_alone" not in before
    assert before["majority"]["answer"] == "no"
    assert before["majority"]["scores"]["dev"]["accuracy"] == pytest.approx(2 / 3)
    result = finetune(asked(place, text_only_baseline=True), BRIEF, tmp_path / "run")
    expected = {name: alone[name] for name in ("scores", "median", "degenerate_seeds")}
    assert result == before | {"text_alone": expected}
    assert result == json.loads((tmp_path / "run/result.json").read_text())
    there = tmp_path / "run/text-alone/seed-1"
    assert (there / "predictions_dev.jsonl").read_bytes() == (
        tmp_path / "alone/seed-1/predictions_dev.jsonl"
    ).read_bytes()
    assert not (there / "model").exists()
    (runs, _), *others = collect_runs("run", tmp_path / "run").values()
    assert (runs.seeds, others) == ((0, 1), [])
    assert finetune(asked(place, text_only_baseline=True), BRIEF, tmp_path / "run") == result

"""`finetune`: every seed and the median, predictions, seeds that are added, and what scores stand beside."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from safetensors.torch import load_file
from tiny import homes, standins
from tiny.homes import STEPS, digests, put, rte, table
from tiny.results import rows_of
from transformers import AutoModel

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.result import (
    majority_baseline,
    majority_note,
    seed_notes,
    summary,
)
from groundling.core.batch import Example
from groundling.core.metrics import ACCURACY, F1, MATTHEWS, RMSE, SCORE, is_degenerate
from groundling.core.output_types import Classification, OpenAnswer, RegionSelection, Regression
from groundling.settings.fields import make_settings, replace_settings
from groundling.stats.verdict_report import collect_runs
from groundling.tasks import Task
from groundling.tasks.texts import STSB
from groundling.training import fit as fitting
from groundling.training.loop import train


@pytest.fixture(scope="session")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rte(tmp_path_factory.mktemp("glue"))


@pytest.fixture(scope="session")
def tune(encoder: Path, glue: Path) -> FinetuneConfig:
    return make_settings(
        FinetuneConfig, model=str(encoder), task="glue/rte", data=str(glue), max_length=64
    )


@pytest.fixture(scope="session")
def tuned(tune: FinetuneConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("tuned")
    return out, finetune(replace(tune, seeds=2, submit=True), replace(STEPS, seed=4), out)


def test_finetune_reports_every_seed_and_the_median(tuned: tuple[Path, dict]) -> None:
    out, result = tuned
    assert (result["task"], result["headline"], result["seeds"]) == ("glue/rte", "accuracy", [4, 5])
    assert list(result["scores"]) == list(result["median"]) == ["dev"]
    lines = (out / "seed-4/predictions_dev.jsonl").read_text().splitlines()
    assert result["n"] == {"dev": len(lines)}
    each = [json.loads((out / f"seed-{seed}" / "result.json").read_text()) for seed in (4, 5)]
    assert [run["seed"] for run in each] == [4, 5]
    assert result["scores"]["dev"]["accuracy"] == [run["scores"]["dev"]["accuracy"] for run in each]
    assert result["median"]["dev"]["accuracy"] == median(result["scores"]["dev"]["accuracy"])
    constant = [run["seed"] for run in each if "constant" in run["scores"]["dev"]]
    assert result["degenerate_seeds"] == constant
    rates = [run["speed"]["tokens_per_second"] for run in each]
    assert result["speed"]["tokens_per_second"] == median(rates) > 0
    assert json.loads((out / "result.json").read_text()) == result


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        # A6: three collapsed seeds of five once dropped out, and the median was that of the other two
        ([0.9, 0.0, 0.0, 0.87, 0.0], 0.0),
        ([0.9, 0.8, 0.7], 0.8),
        ([0.9, float("nan"), 0.7], None),
        ([float("nan")], None),
    ],
)
def test_no_seed_drops_out_of_a_median(scores: list[float], expected: float | None) -> None:
    runs = []
    for seed, score in enumerate(scores):
        dev = {"pearson": score, "spearman": score} | ({} if score else {"constant": 1.0})
        runs.append({"seed": seed, "scores": {"dev": dev}, "truncated_tokens": 0})
    result = summary(STSB, runs, "model")
    assert result["median"]["dev"]["pearson"] == expected
    assert len(result["scores"]["dev"]["pearson"]) == len(result["seeds"]) == len(scores)
    assert result["degenerate_seeds"] == [n for n, score in enumerate(scores) if score == 0]


def test_a_note_of_all_seeds_is_told_once() -> None:
    assert seed_notes([{"seed": 4, "notes": ["a", "b"]}, {"seed": 5, "notes": ["a"]}]) == [
        "a",
        "seed 4: b",
    ]
    assert seed_notes([{"seed": 4, "notes": ["a"]}]) == ["seed 4: a"]
    assert seed_notes([{"seed": 4}, {"seed": 5}]) == []


def test_a_text_of_spaces_is_noted(tune: FinetuneConfig, tmp_path: Path) -> None:
    folder = rte(tmp_path / "glue")
    dev = folder / "RTE/dev.tsv"
    put(dev, dev.read_text() + "99\tIt snowed.\t \tentailment\n")
    result = finetune(
        replace_settings(tune, data=str(folder)), replace(STEPS, steps=1), tmp_path / "out"
    )
    told = f"{dev}, example rte-dev-8: expected text, found none"
    assert f"seed 0: {told}" in result["notes"]


def test_predictions_are_the_scores(tuned: tuple[Path, dict]) -> None:
    out, result = tuned
    outputs = []
    for number, seed in enumerate((4, 5)):
        found = rows_of(out / f"seed-{seed}" / "predictions_dev.jsonl")
        assert [row["id"] for row in found] == [f"rte-dev-{i}" for i in range(8)]
        assert [row["label"] for row in found] == [1 - i % 2 for i in range(8)]
        for row in found:
            assert row["prediction"] == max((0, 1), key=lambda i: row["outputs"][i])
        right = sum(row["prediction"] == row["label"] for row in found) / 8
        assert right == result["scores"]["dev"]["accuracy"][number]
        outputs.append([row["outputs"] for row in found])
    assert outputs[0] != outputs[1]


def test_submission_is_what_was_predicted(tuned: tuple[Path, dict]) -> None:
    for seed in (4, 5):
        own = tuned[0] / f"seed-{seed}"
        predicted = rows_of(own / "predictions_test.jsonl")
        names = ("entailment", "not_entailment")
        expected = [f"{i}\t{names[row['prediction']]}" for i, row in enumerate(predicted)]
        assert (own / "RTE.tsv").read_text().splitlines() == ["index\tprediction", *expected]
        assert len(expected) == 5
        assert {row["label"] for row in predicted} == {None}


def test_seeds_can_be_added(tune, tuned, tmp_path, monkeypatch):
    out, training, drawn = tmp_path / "out", replace(STEPS, seed=4), []
    config = replace(tune, submit=True)
    assert finetune(config, training, out)["seeds"] == [4]

    def counted(
        model: object,
        objectives: object,
        data: object,
        config: object,
        *rest: object,
        **options: object,
    ) -> dict:
        drawn.append(config.seed)
        return train(model, objectives, data, config, *rest, **options)

    monkeypatch.setattr(fitting, "train", counted)
    before = digests(out / "seed-4")
    result = finetune(replace_settings(config, seeds=2), training, out)
    assert drawn == [5]
    assert digests(out / "seed-4") == before
    assert {**result, "speed": tuned[1]["speed"]} == tuned[1]
    assert finetune(replace_settings(config, seeds=2), training, out) == result
    assert drawn == [5]


def test_finetune_keeps_what_it_trained_unless_told_not_to(tune, tuned, encoder, tmp_path):
    assert (tuned[0] / "seed-4" / "model").exists()
    finetune(replace(tune, save_model=False, limit_train=9), STEPS, tmp_path / "none")
    assert not (tmp_path / "none" / "seed-0" / "model").exists()
    result = finetune(replace(tune, limit_train=9), STEPS, tmp_path / "out")
    folder = tmp_path / "out" / "seed-0"
    assert json.loads((folder / "result.json").read_text())["samples"] == 9
    assert result["seeds"] == [0]
    model = AutoModel.from_pretrained(folder / "model")
    assert sum(p.numel() for p in model.parameters()) == sum(
        p.numel() for p in AutoModel.from_pretrained(encoder).parameters()
    )
    assert load_file(folder / "model" / "groundling_heads.safetensors")
    card, scores = (folder / "model/README.md").read_text(), result["scores"]["dev"]["accuracy"]
    assert f"| dev | this model | {result['n']['dev']} | {scores[0]:.4f} |" in card
    assert homes.run_card(folder / "model")["model"].task.name == "glue/rte"


# -- what scores stand beside: the most common answer, and the same model without the images -------------------------
BRIEF = replace(STEPS, steps=2, batch=4)
NAMES = tuple(f"photos/{number}" for number in range(20))


def task(form: object, *metrics: object) -> Task:
    return Task("t", form, lambda *_: [], metrics, "t")


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
def test_nearly_one_answer_is_told_from_few_right_ones(others, right, is_so):
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
    found = majority_baseline(
        of_two, learned(1, 1, 0, None), {"dev": learned(1, 0, 0), "test": learned(1, None)}
    )
    scores = {"accuracy": 1 / 3, "f1": 0.5, "matthews": 0.0}
    assert found == {"majority": {"answer": "b", "scores": {"dev": scores}}}


def test_of_credit_numbers_and_regions() -> None:
    form = OpenAnswer(("", "x", "y"), excluded_answers=("",))
    pairs = np.array([[1, 0.3], [2, 0.9], [-1, 0.0]])
    examples = learned(pairs, pairs, 0, 0, 0)
    found = majority_baseline(task(form, SCORE), examples, {"val": learned(pairs)})
    assert found["majority"]["answer"] == "y"
    assert found["majority"]["scores"]["val"]["score"] == pytest.approx(0.9)
    answers = {"dev": learned(2.0, 4.0)}
    found = majority_baseline(task(Regression(0, 5), RMSE), learned(1.0, 3.0), answers)
    assert found["majority"] == {
        "answer": 2.0,
        "scores": {"dev": {"rmse": pytest.approx(2**0.5)}},
    }
    regions = task(RegionSelection(), ACCURACY)
    assert majority_baseline(regions, learned(None), {"dev": learned(np.ones(1))}) == {}


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
    without = alone["median"]["dev"]["accuracy"]
    assert any(f"; trained without any: {without:.3f}" in note for note in result["notes"])
    assert result == before | {"text_alone": expected, "notes": result["notes"]}
    assert result == json.loads((tmp_path / "run/result.json").read_text())
    there = tmp_path / "run/text-alone/seed-1"
    assert (there / "predictions_dev.jsonl").read_bytes() == (
        tmp_path / "alone/seed-1/predictions_dev.jsonl"
    ).read_bytes()
    assert not (there / "model").exists()
    (runs, _), *others = collect_runs("run", tmp_path / "run").values()
    assert (runs.seeds, others) == ((0, 1), [])
    assert finetune(asked(place, text_only_baseline=True), BRIEF, tmp_path / "run") == result

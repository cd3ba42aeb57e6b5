"""Which of a run's seeds answers: the best on held-out data, or the one that is named."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import homes
from tiny.homes import STEPS, put, table

from groundling.commands.evaluate import COMMAND as evaluate
from groundling.commands.evaluate import EvaluateConfig
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.predict import COMMAND as predict
from groundling.commands.predict import PredictConfig
from groundling.core.errors import InputError
from groundling.prediction import load
from groundling.prediction.predictions import choose_seed_model
from groundling.settings.fields import make_settings
from groundling.settings.input_settings import PredictionColumns, SavedModelSettings


def run(folder: Path, results: dict[int, dict[str, object]]) -> Path:
    """A run's folder, as far as it matters which seed is the best."""
    for seed, result in results.items():
        put(folder / f"seed-{seed}/model/config.json", "{}")
        put(folder / f"seed-{seed}/result.json", json.dumps(result))
    return folder


def result(score: object, metric: str = "accuracy", **more: object) -> dict[str, object]:
    done = {"metrics": [metric], "splits": ["dev", "test"]}
    return done | {"scores": {"dev": {metric: score}, "test": {metric: 1.0}}} | more


def constant(score: float) -> dict[str, object]:
    return result(score, scores={"dev": {"accuracy": score, "constant": 1.0}})


@pytest.mark.parametrize(
    ("results", "best", "words"),
    [
        ({0: result(0.5), 1: result(0.7), 2: result(0.7)}, 1, r"dev \(accuracy 0.7\) of 0, 1, 2"),
        (
            {n: result(score, "mse", higher_is_better=False) for n, score in ((3, 0.5), (4, 0.7))},
            3,
            "the best on dev",
        ),
        ({0: result(0.5, "mine", higher_is_better=False), 1: result(0.7, "mine")}, 1, "the best"),
        ({0: result(None), 1: result(0.1), 2: {}}, 1, "the best on dev"),
        (
            {0: result(0.9), 1: result(0.1)} | {0: {}, 1: {}},
            0,
            "predictions of seed 0, the first of 0, 1",
        ),
        ({0: result(0.9, trained_on=["dev"]), 1: result(0.95)}, 0, "the best on test"),
        ({2: result(0.1), 10: result(0.2)}, 10, "the best on dev"),
        # Of equals a seed with one answer to everything is the last.
        ({0: constant(0.5), 1: result(0.5), 2: constant(0.5)}, 1, "the best on dev"),
    ],
)
def test_the_best_on_held_out_data_answers_and_it_is_said(
    results: dict, best: int, words: str, tmp_path: Path
) -> None:
    folder, note = choose_seed_model(run(tmp_path / "run", results))
    assert folder == tmp_path / f"run/seed-{best}/model"
    assert f"predictions of seed {best}," in note
    assert re.search(words, note)


def test_a_seed_is_named(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", {0: result(0.5), 1: result(0.9), 2: result(0.7)})
    assert choose_seed_model(folder, 2)[0].parent.name == "seed-2"
    with pytest.raises(InputError, match="no saved model of seed 1; there are: none"):
        choose_seed_model(folder / "seed-0", 1)


def test_seeds_of_an_earlier_command_do_not_answer(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", {0: result(0.5), 1: result(0.6), 2: result(0.9)})
    put(folder / "result.json", json.dumps({"seeds": [0, 1]}))
    assert choose_seed_model(folder)[0] == folder / "seed-1/model"
    assert choose_seed_model(folder, 2)[0] == folder / "seed-2/model"


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds on a table of one's own, of which the last one is the best on dev."""
    folder = tmp_path_factory.mktemp("mine")
    homes.student(folder / "bert")
    rows = [(f"a dog number {n}", "yes" if n % 2 else "no") for n in range(60)]
    put(folder / "my.csv", table(("text", "label"), *rows))
    config = make_settings(
        FinetuneConfig,
        model=str(folder / "bert"),
        data=str(folder / "my.csv"),
        text="text",
        label="label",
        seeds=3,
    )
    finetune(config, replace(STEPS, steps=2, batch=4), folder / "run")
    for seed, score in ((0, 0.4), (1, 0.3), (2, 0.8)):
        path = folder / f"run/seed-{seed}/result.json"
        done = json.loads(path.read_text())
        done["scores"]["dev"]["accuracy"] = score
        path.write_text(json.dumps(done))
    return folder


def test_commands_and_python_take_the_same_seeds(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(mine / "my.csv")

    def asked(name: str, **chosen: Any) -> dict[str, Any]:
        saved = SavedModelSettings(str(mine / "run"), cpu=True, **chosen)
        return predict(PredictConfig(saved, data=data), tmp_path / f"{name}.jsonl")

    assert asked("best")["model"] == str(mine / "run/seed-2/model")
    said = "predictions of seed 2, the best on dev (accuracy 0.8) of 0, 1, 2"
    assert said in capsys.readouterr().err
    asked("named", model_seed=1)
    best, named = (homes.answers(tmp_path / f"{name}.jsonl") for name in ("best", "named"))
    assert best != named
    assert (
        load(mine / "run", 1, device="cpu").predict("a dog number 1").answer == named[1]["answer"]
    )
    assert load(mine / "run", device="cpu").folder == mine / "run/seed-2/model"


def test_held_out_rows_are_those_that_training_held_out(tmp_path: Path) -> None:
    """With a file of their own, no row of the other file was held out; other columns are read where they are named."""
    rows = [(f"a dog number {n}", "cat", "yes" if n % 2 else "no") for n in range(40)]
    data = put(tmp_path / "my.csv", table(("text", "other", "label"), *rows))
    dev = put(tmp_path / "own_dev.csv", table(("text", "other", "label"), *rows[:8]))
    for name, held in (("own", str(dev)), ("drawn", "")):
        config = make_settings(
            FinetuneConfig,
            model=str(homes.student(tmp_path / "bert")),
            **dict(data=str(data), text="text", label="label", dev=held, save_model=True),
        )
        finetune(config, replace(STEPS, steps=1, batch=4), tmp_path / name)
    assert str(tmp_path) not in homes.told_by(tmp_path / "own/seed-0/model")

    def scored(name: str, **columns: str) -> dict[str, Any]:
        saved = SavedModelSettings(str(tmp_path / name), cpu=True)
        columns = PredictionColumns(**columns)
        return evaluate(EvaluateConfig(saved, data=str(data), split="dev", columns=columns))

    with pytest.raises(InputError, match=r"split=dev: own_dev.csv was held out"):
        scored("own")
    assert scored("drawn")["positive"] == "yes"
    assert json.loads((tmp_path / "drawn/result.json").read_text())["positive"] == "yes"
    with pytest.raises(InputError, match="nothing"):
        scored("drawn", text="nothing")

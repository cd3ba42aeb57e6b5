"""Evaluation on the way: when it is due, which weights are kept, when a run stops, and all of it after a kill."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import homes

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.errors import InputError
from groundling.core.output_types import Classification
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.fields import make_settings
from groundling.settings.training import EvaluationSettings, TrainingArguments
from groundling.training.evaluation import Evaluator
from groundling.training.loop import _TrainingLoop, train

STEPS = TrainingArguments(epochs=2, batch=16, lr=1e-2, log_every=3, save_every=3, cpu=True)


def scripted(scores: list[float], **options: Any) -> Evaluator:
    """An exam every half epoch whose scores are known beforehand."""
    told = iter(scores)
    settings = EvaluationSettings(eval_every=0.5, **options)
    return Evaluator(settings, "dev", "accuracy", lambda: {"accuracy": next(told)})


def taken(*scores: float) -> list[dict[str, float]]:
    return [{"step": 10 * n + 10, "accuracy": score} for n, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("every", "steps"),
    [(0.5, [2, 4, 6, 7]), (1, [4, 7]), (1 / 3, [2, 3, 4, 6, 7]), (0.1, [*range(1, 8)]), (9, [7])],
)
def test_it_is_due_where_a_share_of_an_epoch_ends_and_at_the_end(
    every: float, steps: list[int]
) -> None:
    exam = replace(scripted([]), settings=EvaluationSettings(eval_every=every))
    assert [step for step in range(1, 8) if exam.is_due(step, 7, 4.0)] == steps


def test_the_first_of_equal_scores_is_the_best_and_an_undefined_one_the_worst() -> None:
    exam = scripted([])
    assert exam.best(taken(0.1, 0.7, 0.7))["step"] == 20
    assert exam.best(taken(math.nan, -0.5, math.nan))["step"] == 20
    assert exam.best(taken(math.nan, math.nan))["step"] == 10
    assert replace(exam, higher_is_better=False).best(taken(0.5, 0.2, 0.9))["step"] == 20


def test_patience_counts_exams_that_were_no_better() -> None:
    exam = scripted([], patience=2)
    scores = (0.1, 0.5, 0.5, 0.3, 0.9)
    over = [exam.should_stop(taken(*scores[:count])) for count in range(6)]
    assert over == [False, False, False, False, True, False]
    assert not scripted([]).should_stop(taken(0.9, 0.1, 0.1, 0.1))


class ScriptedRun:
    """A training whose exam is scripted, and the weights at each of its exams."""

    def __init__(self, student: Any, samples: Any, out: Path, exam: Evaluator, at: int = 0) -> None:
        self.model = student()
        torch.manual_seed(3)
        task = SupervisedObjective(self.model.sizes, output_type=Classification(("no", "yes")))
        self.seen: list[dict[str, torch.Tensor]] = []

        def measure() -> dict[str, float]:
            self.seen.append(self.weights())
            assert self.model.training
            return dict(exam.measure())

        watched = replace(exam, measure=measure)
        self.result = train(
            self.model,
            [task],
            samples,
            STEPS,
            out,
            evaluator=watched,
            training_step=homes.dying(at),
        )

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def has(self, weights: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(value, weights[name]) for name, value in self.weights().items())


def test_the_best_weights_are_kept_and_a_killed_run_keeps_the_same(
    student: Any, text_only: Any, tmp_path: Path
) -> None:
    scores = [0.2, 0.9, 0.4, 0.8]
    whole = ScriptedRun(student, text_only, tmp_path / "whole", scripted(scores, keep_best=True))
    assert whole.has(whole.seen[1]) and not whole.has(whole.seen[3])
    told = whole.result["evaluation"]
    assert (told["kept_step"], told["evaluations"], told["stopped_early"]) == (4, 4, False)
    assert [one["accuracy"] for one in told["scores"]] == scores
    lines = homes.log_of(tmp_path / "whole")
    assert [line["step"] for line in lines if "dev accuracy" in line] == [2, 4, 6, 8]
    # Killed after the best one was set aside, and after the checkpoint behind it.
    out = tmp_path / "killed"
    with pytest.raises(homes.Killed):
        ScriptedRun(student, text_only, out, scripted(scores, keep_best=True), at=6)
    assert (out / "checkpoints/best-000000004.safetensors").exists()
    again = ScriptedRun(student, text_only, out, scripted(scores[2:], keep_best=True))
    assert again.has(whole.weights())
    assert again.result["evaluation"] == told
    assert homes.log_of(out) == lines


def test_weights_that_are_no_numbers_are_neither_examined_nor_kept(
    student: Any, text_only: Any, tmp_path: Path
) -> None:
    task = SupervisedObjective(student().sizes, output_type=Classification(("no", "yes")))
    exam = replace(scripted([]), settings=EvaluationSettings(eval_every=0.1, keep_best=True))
    with pytest.raises(InputError, match=r"step 1: weights are NaN or infinite"):
        train(student(), [task], text_only, replace(STEPS, lr=1e39), tmp_path, evaluator=exam)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_kill_before_the_checkpoint_loses_no_best_weights(
    student: Any, text_only: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ScriptedRun(
        student, text_only, tmp_path / "whole", scripted([0.5, 0.1, 0.2, 0.3], keep_best=True)
    )
    out = tmp_path / "killed"

    def killed(*_: Any) -> None:
        raise homes.Killed

    with monkeypatch.context() as patch:
        # Were the score at step 4 the best, its weights would be there now, beside those of step 2.
        later = iter([0.5, 0.9])
        exam = replace(scripted([], keep_best=True), measure=lambda: {"accuracy": next(later)})
        patch.setattr("groundling.training.loop._TrainingLoop._save", _third(killed))
        with pytest.raises(homes.Killed):
            ScriptedRun(student, text_only, out, exam)
    there = sorted(path.name for path in (out / "checkpoints").glob("best-*"))
    assert there == ["best-000000002.safetensors", "best-000000004.safetensors"]
    again = ScriptedRun(student, text_only, out, scripted([0.1, 0.2, 0.3], keep_best=True))
    assert again.has(whole.weights()) and again.has(whole.seen[0])


def test_an_undefined_score_on_the_way_survives_a_kill(
    student: Any, text_only: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = [math.nan, 0.1, math.nan, 0.05]
    whole = ScriptedRun(student, text_only, tmp_path / "whole", scripted(scores, keep_best=True))
    assert "accuracy undefined" in capsys.readouterr().err
    out = tmp_path / "killed"
    with pytest.raises(homes.Killed):
        ScriptedRun(student, text_only, out, scripted(scores, keep_best=True), at=7)
    again = ScriptedRun(student, text_only, out, scripted(scores[3:], keep_best=True))
    for run in (whole, again):
        told = run.result["evaluation"]
        assert [one["accuracy"] for one in told["scores"]] == [None, 0.1, None, 0.05]
        assert told["kept_step"] == 4
    lines = [line for line in homes.log_of(out) if "dev accuracy" in line]
    assert [line["dev accuracy"] for line in lines] == [None, 0.1, None, 0.05]
    assert "NaN" not in (out / "log.jsonl").read_text()


def _third(killed: Any) -> Any:
    """`_TrainingLoop._save` that is a kill where it is called for the third time, which is after step 4."""
    save = _TrainingLoop._save
    calls = iter([save, save, killed])
    return lambda training: next(calls)(training)


def test_it_stops_early_and_stays_stopped(student: Any, text_only: Any, tmp_path: Path) -> None:
    scores = [0.9, 0.1, 0.8]
    run = ScriptedRun(student, text_only, tmp_path, scripted(scores, patience=2))
    assert run.has(run.seen[2])  # kept is the last step, if nobody asks for the best
    assert (run.result["steps"], run.result["epochs"]) == (6, 1.5)
    assert run.result["evaluation"]["stopped_early"]
    again = ScriptedRun(student, text_only, tmp_path, scripted([], patience=2))
    assert again.result["evaluation"] == run.result["evaluation"]


# -- fine-tuning -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    home = tmp_path_factory.mktemp("home")
    return make_settings(
        FinetuneConfig,
        model=str(homes.student(home / "model")),
        task="glue/rte",
        data=str(homes.rte(home / "glue")),
        eval_every=0.5,
        keep_best=True,
        patience=2,
    )


def test_finetune_says_what_was_kept(
    settings: FinetuneConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = finetune(settings, replace(STEPS, epochs=3, batch=4), tmp_path)
    said = capsys.readouterr().err
    assert "step 2: dev accuracy " in said and "(best so far: " in said
    told = json.loads((tmp_path / "seed-0/result.json").read_text())
    exam = told["evaluation"]
    best = max(exam["scores"], key=lambda one: one["accuracy"])
    assert exam["kept_step"] == best["step"]
    assert told["scores"]["dev"]["accuracy"] == best["accuracy"]  # the kept weights answered
    assert any("scores on dev are too high (selection bias)" in one for one in result["notes"])


def test_evaluating_leaves_no_trace(student: Any, text_only: Any, tmp_path: Path) -> None:
    watched = ScriptedRun(student, text_only, tmp_path / "watched", scripted([0.1] * 4))
    plain = student()
    torch.manual_seed(3)
    task = SupervisedObjective(plain.sizes, output_type=Classification(("no", "yes")))
    train(plain, [task], text_only, STEPS, tmp_path / "plain")
    assert watched.has(plain.state_dict())

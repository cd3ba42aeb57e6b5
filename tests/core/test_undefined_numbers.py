"""Numbers that are undefined are `null` in every file of JSON, and None when they are read again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import homes
from tiny.homes import put

from groundling import cli
from groundling.commands.finetune.result import summary
from groundling.core.batch import Example
from groundling.core.output_types import Classification
from groundling.objectives.supervised import SupervisedObjective
from groundling.runs.folder import json_safe, json_text, read_log, write_json
from groundling.runs.run import Run
from groundling.settings.fields import make_settings
from groundling.settings.training import EvaluationSettings, TrainingArguments
from groundling.studies.knowledge.commands import PROBE_FACTS as ask
from groundling.studies.knowledge.commands import ProbeFactsConfig
from groundling.tasks.glue import STSB
from groundling.training.evaluation import EvaluationOutput, Evaluator
from groundling.training.loop import train


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


FACTS = [{"descriptor": "a", "item": "dog", "label": "red"}]
FACTS += [{"descriptor": "a", "item": "bus", "label": "green"}]


def test_what_ask_cannot_define_is_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = put(tmp_path / "memory_colors.jsonl", "".join(json.dumps(f) + "\n" for f in FACTS))
    student = homes.student(tmp_path / "student")
    command = ["probe-facts", "--model", str(student), "--data", str(data), "--modes", "embedding"]
    assert cli.main([*command, "--out", str(tmp_path / "out")]) == 0
    printed = strictly(capsys.readouterr().out)
    written = strictly((tmp_path / "out/result.json").read_text())
    assert printed == written
    assert "null" in (tmp_path / "out/result.json").read_text()
    asked = {"model": str(student), "data": str(data), "modes": ("embedding",)}
    config = make_settings(ProbeFactsConfig, **asked)
    assert ask(config, tmp_path / "new") == written == ask(config, tmp_path / "new")


STEPS = TrainingArguments(epochs=2, batch=16, lr=1e-2, log_every=1, save_every=3, cpu=True)


def examined(student: Any, samples: Any, out: Path, scores: list[float], at: int = 0) -> Any:
    model = student()
    torch.manual_seed(3)
    task = SupervisedObjective(model.sizes, output_type=Classification(("no", "yes")))
    told = iter(scores)
    settings = EvaluationSettings(eval_every=0.5, keep_best=True)
    exam = Evaluator(settings, "dev", "pearson", lambda: {"pearson": next(told)})
    return train(model, [task], samples, STEPS, out, evaluator=exam, training_step=homes.dying(at))


def test_an_undefined_score_on_the_way_survives_a_kill(
    student: Any, text_only: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = [math.nan, 0.1, math.nan, 0.05]
    whole = examined(student, text_only, tmp_path / "whole", scores)
    assert "pearson undefined" in capsys.readouterr().err
    assert [one["pearson"] for one in whole["evaluation"]["scores"]] == [None, 0.1, None, 0.05]
    assert whole["evaluation"]["kept_step"] == 4
    out = tmp_path / "killed"
    with pytest.raises(homes.Killed):
        examined(student, text_only, out, scores, at=7)
    assert examined(student, text_only, out, scores[3:])["evaluation"] == whole["evaluation"]
    for folder in (tmp_path / "whole", out):
        lines = [strictly(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        found = [line["dev pearson"] for line in lines if "dev pearson" in line]
        assert found == [None, 0.1, None, 0.05]
        for file in folder.rglob("*.json"):
            strictly(file.read_text())


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

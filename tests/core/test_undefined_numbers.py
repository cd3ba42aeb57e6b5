"""Numbers that are undefined are `null` in every file of JSON, and None when they are read again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.homes import put

from groundling.commands.finetune.result import summary
from groundling.core.batch import Example
from groundling.runs.folder import json_safe, json_text, read_log, write_json
from groundling.runs.run import Run
from groundling.tasks.glue import STSB
from groundling.training.evaluation import EvaluationOutput


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

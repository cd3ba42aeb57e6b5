"""What a user is told who goes on where nothing was learned, or names a run where a model is meant."""

from __future__ import annotations

from pathlib import Path

import homes
import pytest

from groundling.command_line.inputs import weights
from groundling.commands.finetune.result import all_alike
from groundling.core.errors import InputError
from groundling.prediction.predictions import chosen
from groundling.runs.folder import write_json


def test_seeds_that_all_answer_alike_are_told() -> None:
    assert all_alike({"seeds": [0, 1], "collapsed_seeds": [0, 1]})
    assert not all_alike({"seeds": [0, 1], "collapsed_seeds": [1]})


def test_a_run_in_place_of_its_model_is_told_where_the_model_is(tmp_path: Path) -> None:
    homes.student(tmp_path / "run/model")
    weights("--student", str(tmp_path / "run/model"))
    write_json(tmp_path / "run/result.json", {})
    with pytest.raises(InputError, match=r"run's folder; its model is .*run/model$"):
        weights("--student", str(tmp_path / "run"))


def test_seeds_of_an_earlier_command_do_not_answer(tmp_path: Path) -> None:
    for seed, score in enumerate((0.5, 0.6, 0.9)):
        (tmp_path / f"seed-{seed}/model").mkdir(parents=True)
        told = {"metrics": ["accuracy"], "splits": ["dev"], "scores": {"dev": {"accuracy": score}}}
        write_json(tmp_path / f"seed-{seed}/result.json", told)
    write_json(tmp_path / "result.json", {"seeds": [0, 1]})
    assert chosen(tmp_path).folder == tmp_path / "seed-1/model"
    assert len(chosen(tmp_path, seeds="all").others) == 1
    assert chosen(tmp_path, 2).folder == tmp_path / "seed-2/model"

"""Which seeds of a run answer."""

from __future__ import annotations

from pathlib import Path

from groundling.prediction.predictions import choose_seed_models
from groundling.runs.folder import write_json


def test_seeds_of_an_earlier_command_do_not_answer(tmp_path: Path) -> None:
    for seed, score in enumerate((0.5, 0.6, 0.9)):
        (tmp_path / f"seed-{seed}/model").mkdir(parents=True)
        told = {"metrics": ["accuracy"], "splits": ["dev"], "scores": {"dev": {"accuracy": score}}}
        write_json(tmp_path / f"seed-{seed}/result.json", told)
    write_json(tmp_path / "result.json", {"seeds": [0, 1]})
    assert choose_seed_models(tmp_path)[0][0] == tmp_path / "seed-1/model"
    assert len(choose_seed_models(tmp_path, seeds="all")[0]) == 2
    assert choose_seed_models(tmp_path, 2)[0][0] == tmp_path / "seed-2/model"


def test_a_seed_with_one_answer_to_everything_is_the_last_of_equals(tmp_path: Path) -> None:
    for seed, more in enumerate(({"constant": 1.0}, {}, {"constant": 1.0})):
        (tmp_path / f"seed-{seed}/model").mkdir(parents=True)
        scores = {"dev": {"accuracy": 0.5, **more}}
        told = {"metrics": ["accuracy"], "splits": ["dev"], "scores": scores}
        write_json(tmp_path / f"seed-{seed}/result.json", told)
    assert choose_seed_models(tmp_path)[0][0] == tmp_path / "seed-1/model"

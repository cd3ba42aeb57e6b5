"""Averages of finished runs, against a plain restatement, and what cannot be averaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from tiny import vcr_files
from tiny.homes import STEPS, answers, put, rte, student
from tiny.tasks import vqa_answers

import groundling.studies.clip_td.combined_runs
import groundling.training.evaluation
from groundling.cli import main
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.errors import InputError
from groundling.studies.clip_td.commands import ENSEMBLE as ensemble
from groundling.studies.clip_td.commands import VCR as vcr
from groundling.studies.clip_td.commands import EnsembleConfig, VcrJointScoreConfig


def member(
    folder: Path, task: str, rows: list[dict[str, Any]], seed: int = 0, split: str = "val"
) -> Path:
    put(folder / f"seed-{seed}/result.json", json.dumps({"task": task, "seed": seed}))
    vcr_files.write(folder / f"seed-{seed}/predictions_{split}.jsonl", rows)
    return folder


def said(scores: np.ndarray) -> list[dict[str, Any]]:
    """Lines by official id, in any order."""
    rows = []
    for number, own in enumerate(scores.tolist()):
        row = {"id": f"any {number}", "official": f"val-{number}"}
        rows.append(row | {"prediction": int(np.argmax(own)), "label": 0, "outputs": own})
    return rows[::-1]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return vcr_files.folder(tmp_path / "vcr")


def refusal(config: EnsembleConfig, out: Path) -> str:
    with pytest.raises(InputError) as told:
        ensemble(config, out)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_mean_of_softmax(data: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(3, 14, 4)) * 3
    a = member(tmp_path / "a", "vcr/answer", said(scores[0]))
    member(a, "vcr/answer", said(scores[1]), seed=1)
    both = np.stack([rng.normal(size=(14, 4)), scores[2]], -1).reshape(
        14, 8
    )  # UNITER's, wrong and right
    rows = said(both)
    for row in rows:
        row["prediction"] = int(np.argmax(row["outputs"][1::2]))
    b = member(tmp_path / "b", "vcr/answer", rows)
    flags = [str(a), str(b), "--task", "vcr/answer", "--data", str(data)]
    assert main(["ensemble", *flags, "--out", str(tmp_path / "out")]) == 0
    written = answers(tmp_path / "out/seed-0/predictions_val.jsonl")
    mean = softmax(scores, axis=-1).mean(0)
    assert [row["official"] for row in written] == [f"val-{n}" for n in range(14)]
    assert np.exp([row["outputs"] for row in written]) == pytest.approx(mean, abs=1e-5)
    assert [row["prediction"] for row in written] == mean.argmax(1).tolist()
    gold = np.arange(14) % 4
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert result["scores"]["val"]["accuracy"] == (mean.argmax(1) == gold).mean()
    assert len(result["members"]) == 3


def test_a_split_that_a_member_learned_from_is_marked(data: Path, tmp_path: Path) -> None:
    rows = said(np.random.default_rng(0).normal(size=(14, 4)))
    runs = [member(tmp_path / name, "vcr/answer", rows) for name in ("held", "learned", "too")]
    done = {"task": "vcr/answer", "seed": 0, "trained_on": ["val"]}
    put(runs[1] / "seed-0/result.json", json.dumps(done))
    config = EnsembleConfig(tuple(map(str, runs[:2])), "vcr/answer", str(data))
    assert ensemble(config, tmp_path / "out")["trained_on"] == ["val"]
    assert json.loads((tmp_path / "out/seed-0/result.json").read_text())["trained_on"] == ["val"]
    both_held = replace(config, runs=(str(runs[0]), str(runs[2])))
    assert "trained_on" not in ensemble(both_held, tmp_path / "none")


def test_an_ensemble_is_a_run_of_one_seed(data: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for task in ("answer", "rationale"):
        for name in ("a", "b"):
            member(tmp_path / f"{task}-{name}", f"vcr/{task}", said(rng.normal(size=(14, 4))))
        runs = (str(tmp_path / f"{task}-a"), str(tmp_path / f"{task}-b"))
        ensemble(EnsembleConfig(runs, f"vcr/{task}", str(data)), tmp_path / task)
    joint = vcr(
        VcrJointScoreConfig(str(tmp_path / "answer"), str(tmp_path / "rationale"), str(data)),
        tmp_path / "joint",
    )
    told = json.loads((tmp_path / "answer/result.json").read_text())["scores"]["val"]["accuracy"]
    assert joint["scores"]["Q->A"] == [told]
    again = EnsembleConfig(
        (str(tmp_path / "answer"), str(tmp_path / "answer-a")), "vcr/answer", str(data)
    )
    assert len(ensemble(again, tmp_path / "again")["members"]) == 2


def test_runs_of_finetune_and_the_servers_file(tmp_path: Path) -> None:
    data = str(rte(tmp_path / "glue"))
    model = str(student(tmp_path / "student"))
    config = FinetuneConfig(model, "glue/rte", data, seeds=2, submit=True, max_length=32)
    finetune(config, STEPS, tmp_path / "run")
    result = ensemble(EnsembleConfig((str(tmp_path / "run"),), "glue/rte", data), tmp_path / "out")
    assert set(result["scores"]) == {"dev"}
    tables = [answers(tmp_path / f"run/seed-{seed}/predictions_dev.jsonl") for seed in (0, 1)]
    mean = np.mean([softmax([row["outputs"] for row in table], axis=1) for table in tables], axis=0)
    written = answers(tmp_path / "out/seed-0/predictions_dev.jsonl")
    assert [row["prediction"] for row in written] == mean.argmax(1).tolist()
    assert [row["label"] for row in written] == [row["label"] for row in tables[0]]
    server = (tmp_path / "out/seed-0/RTE.tsv").read_text().splitlines()
    assert len(server) == 6 and server[0] == "index\tprediction"


def test_of_many_answers_the_likely_ones_are_averaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VQA's 3,129 outputs are not kept; here 3 are as many, first in full and then cut."""
    folder = vqa_answers(tmp_path / "vqa", ("yes", "red", "no", "yes", "red", "no", "yes", "red"))
    config = FinetuneConfig(
        str(student(tmp_path / "student")), "vqa", str(folder), seeds=2, max_length=32
    )
    steps = replace(STEPS, lr=1e-2)
    finetune(config, steps, tmp_path / "full")
    full = EnsembleConfig((str(tmp_path / "full"),), "vqa", str(folder))
    in_full = ensemble(full, tmp_path / "full-mean")
    for module in (groundling.training.evaluation, groundling.studies.clip_td.combined_runs):
        monkeypatch.setattr(module, "MAX_OUTPUTS", 2)
    finetune(config, steps, tmp_path / "many")
    line = answers(tmp_path / "many/seed-0/predictions_val.jsonl")[0]
    wide = answers(tmp_path / "full/seed-0/predictions_val.jsonl")[0]
    assert len(line["outputs"]) == 1 and "likely" not in wide
    shares = softmax(wide["outputs"])
    assert dict(line["likely"]) == pytest.approx(dict(enumerate(shares)), abs=1e-4)
    kept = [share for _, share in line["likely"]]
    assert kept == sorted(kept, reverse=True)
    many = EnsembleConfig((str(tmp_path / "many"),), "vqa", str(folder))
    cut = ensemble(many, tmp_path / "many-mean")
    assert cut["scores"] == in_full["scores"]
    ours = answers(tmp_path / "many-mean/seed-0/predictions_val.jsonl")
    theirs = answers(tmp_path / "full-mean/seed-0/predictions_val.jsonl")
    for one, other in zip(ours, theirs, strict=True):
        assert one["prediction"] == other["prediction"]
        mean = np.exp(other["outputs"])
        assert dict(one["likely"]) == pytest.approx(dict(enumerate(mean)), abs=1e-4)
    # a file of before this field
    path = tmp_path / "many/seed-0/predictions_val.jsonl"
    rows = [{k: v for k, v in row.items() if k != "likely"} for row in answers(path)]
    vcr_files.write(path, rows)
    assert "outputs that cannot be averaged (ValueError" in refusal(many, tmp_path / "old")


def test_refusals(data: Path, tmp_path: Path) -> None:
    scores = np.random.default_rng(2).normal(size=(14, 4))
    a = member(tmp_path / "a", "vcr/answer", said(scores))
    b = member(tmp_path / "b", "vcr/answer", said(scores))
    config = EnsembleConfig((str(a), str(b)), "vcr/answer", str(data))
    path = b / "seed-0/predictions_val.jsonl"
    kept = path.read_text().splitlines(keepends=True)
    put(path, "".join(kept[:-2]))
    others = f"{path}: predictions are not of the same examples: "
    assert refusal(config, tmp_path / "o") == f"{others}vcr-answer-val-0 (2 such)"
    put(path, "".join(kept) + kept[0].replace('"val-13"', '"val-77"'))
    assert refusal(config, tmp_path / "o") == f"{others}val-77"
    put(path, "".join(kept[1:]) + '{"id": "val-13", "prediction": 1, "outputs": [1, 2]}\n')
    assert f"{path}, val-13: 2 scores for 4 choices" in refusal(config, tmp_path / "o")
    put(path, "".join(kept[1:]) + '{"id": "val-13", "prediction": 0, "outputs": "x"}\n')
    assert f"{path}, line 14: expected a line" in refusal(config, tmp_path / "o")
    put(path, "".join(kept).replace('"outputs": [', '"outputs": [null, ', 1))
    assert f"{path}: outputs of val-13 are not finite" in refusal(config, tmp_path / "o")
    path.unlink()
    told = refusal(config, tmp_path / "o")
    assert told.endswith("a/seed-0: no predictions of val, test")
    other = replace(config, task="vcr/rationale")
    assert "a run of vcr/answer, expected one of vcr/rationale" in refusal(other, tmp_path / "o")
    none = replace(config, runs=(str(data),))
    assert "no finished seed" in refusal(none, tmp_path / "o")
    regions = replace(config, task="refcoco+")
    assert "answers of refcoco+ cannot be averaged" in refusal(regions, tmp_path / "o")

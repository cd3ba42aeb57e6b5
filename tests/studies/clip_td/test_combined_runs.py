"""Finished runs together: averages against a plain restatement, and VCR's joint score and server file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from tiny import vcr_files
from tiny.homes import STEPS, answers, put, refused, rte, student
from tiny.tasks import json_lines, vqa_answers

import groundling.studies.clip_td.combined_runs
import groundling.training.evaluation
from groundling.cli import main
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.settings.fields import replace_settings
from groundling.studies.clip_td.commands import ENSEMBLE as ensemble
from groundling.studies.clip_td.commands import VCR as vcr
from groundling.studies.clip_td.commands import EnsembleConfig, VcrJointScoreConfig
from groundling.tasks.vcr import ANSWER


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


def test_mean_of_softmax(data: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(3, 14, 4)) * 3
    a = member(tmp_path / "a", "vcr/answer", said(scores[0]))
    member(a, "vcr/answer", said(scores[1]), seed=1)
    # UNITER's, wrong and right
    both = np.stack([rng.normal(size=(14, 4)), scores[2]], -1).reshape(14, 8)
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
    runs = tuple(str(member(tmp_path / name, "vcr/answer", rows)) for name in "ab")
    config = EnsembleConfig(runs, "vcr/answer", str(data))
    assert "trained_on" not in ensemble(config, tmp_path / "none")
    done = {"task": "vcr/answer", "seed": 0, "trained_on": ["val"]}
    put(Path(runs[1], "seed-0/result.json"), json.dumps(done))
    assert ensemble(config, tmp_path / "out")["trained_on"] == ["val"]
    assert json.loads((tmp_path / "out/seed-0/result.json").read_text())["trained_on"] == ["val"]


def test_an_ensemble_is_a_run_of_one_seed(data: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for task in ("answer", "rationale"):
        members = [
            member(tmp_path / f"{task}-{name}", f"vcr/{task}", said(rng.normal(size=(14, 4))))
            for name in "ab"
        ]
        config = EnsembleConfig(tuple(map(str, members)), f"vcr/{task}", str(data))
        result = ensemble(config, tmp_path / task)
    both = VcrJointScoreConfig(str(tmp_path / "answer"), str(tmp_path / "rationale"), str(data))
    joint = vcr(both, tmp_path / "joint")
    assert joint["scores"]["QA->R"] == [result["scores"]["val"]["accuracy"]]
    again = replace(config, runs=(str(tmp_path / "rationale"), str(members[0])))
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


def test_of_many_answers_the_likely_ones_are_averaged(tmp_path, monkeypatch):
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


def test_what_cannot_be_averaged(data: Path, tmp_path: Path) -> None:
    scores = np.random.default_rng(2).normal(size=(14, 4))
    a, b = (member(tmp_path / name, "vcr/answer", said(scores)) for name in "ab")
    config = EnsembleConfig((str(a), str(b)), "vcr/answer", str(data))
    path = b / "seed-0/predictions_val.jsonl"
    kept = path.read_text().splitlines(keepends=True)
    whole = "".join(kept)
    last = '{"id": "val-13", "prediction": 1, "outputs": %s}\n'
    others = ": predictions are not of the same examples: "
    for content, message in (
        ("".join(kept[:-2]), f"{others}vcr-answer-val-0 (2 such)"),
        (whole + kept[0].replace('"val-13"', '"val-77"'), f"{others}val-77"),
        ("".join(kept[1:]) + last % "[1, 2]", ", val-13: 2 scores for 4 choices"),
        ("".join(kept[1:]) + last % '"x"', ", line 14: expected a line"),
        (whole.replace('"outputs": [', '"outputs": [null, ', 1), ": outputs of val-13 are not fin"),
    ):
        put(path, content)
        assert refused(ensemble, config, tmp_path / "o").startswith(f"{path}{message}")
    path.unlink()
    for changes, message in (
        ({}, "a/seed-0: no predictions of val, test"),
        ({"task": "vcr/rationale"}, "a run of vcr/answer, expected one of vcr/rationale"),
        ({"runs": (str(data),)}, "no finished seed"),
        ({"task": "refcoco+"}, "answers of refcoco+ cannot be averaged"),
    ):
        assert message in refused(ensemble, replace(config, **changes), tmp_path / "o")


# -- VCR's joint score -------------------------------------------------------------------------------------------------
GOLD = ((0, 1), (1, 2), (2, 3), (3, 0))
"""Right answer and right rationale of each item."""


def line(n: int) -> dict[str, Any]:
    answers = ("yes .", "no .", "maybe .", "[0] left .")
    return vcr_files.row(n, "Who ?", answers, answers[::-1], GOLD[n], ["person"])


def predicted(
    folder: Path, seed: int, task: str, split: str, scores: dict[str, Sequence[float]]
) -> Path:
    rows = [
        {"id": i, "prediction": int(np.argmax(s)), "label": None, "outputs": list(s)}
        for i, s in scores.items()
    ]
    return member(folder, task, rows, seed, split)


def sure(choice: int) -> list[float]:
    return [float(n == choice) for n in range(4)]


@pytest.fixture
def config(tmp_path: Path) -> VcrJointScoreConfig:
    """Of four items, seed 0 answers three right and reasons two right, one of them in common; seed 1 all."""
    vcr_files.write(tmp_path / "vcr/val.jsonl", map(line, range(4)))
    secret = [{k: v for k, v in line(n).items() if not k.endswith("_label")} for n in range(2)]
    vcr_files.write(tmp_path / "vcr/test.jsonl", secret)
    own = {0: ((0, 1, 2, 0), (0, 0, 3, 0)), 1: tuple(zip(*GOLD, strict=True))}
    for seed, both in own.items():
        for task, said in zip(("answer", "rationale"), both, strict=True):
            scores = {f"vcr-{task}-val-{n}": sure(choice) for n, choice in enumerate(said)}
            predicted(tmp_path / task, seed, f"vcr/{task}", "val", scores)
    predicted(tmp_path / "answer", 7, "vcr/answer", "val", {})
    return VcrJointScoreConfig(
        str(tmp_path / "answer"), str(tmp_path / "rationale"), str(tmp_path / "vcr")
    )


def test_joint_accuracy_by_seed(config, tmp_path, capsys):
    flags = ["--answers", config.answers, "--rationales", config.rationales, "--data", config.data]
    assert main(["vcr", *flags, "--out", str(tmp_path / "out")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out/result.json").read_text())
    assert printed["scores"] == {"Q->A": [0.75, 1.0], "QA->R": [0.5, 1.0], "Q->AR": [0.25, 1.0]}
    assert printed["median"] == {"Q->A": 0.875, "QA->R": 0.75, "Q->AR": 0.625}
    assert (printed["seeds"], printed["left_out_seeds"], printed["items"]) == ([0, 1], [7], 4)


def test_the_servers_file_of_a_split_without_labels(config, tmp_path):
    secret = replace_settings(config, split="test")
    told = refused(vcr, secret, tmp_path / "a")
    assert "answer/seed-0/predictions_test.jsonl: no such file" in told
    rng = np.random.default_rng(0)
    asked = {"answer": [f"vcr-answer-val-{n}" for n in (0, 1)]}
    asked["rationale"] = [f"vcr-rationale-val-{n}-a{k}" for n in (0, 1) for k in range(4)]
    for task, ids in asked.items():
        for seed in (0, 1):
            scores = {name: rng.normal(size=4).tolist() for name in ids}
            predicted(tmp_path / task, seed, f"vcr/{task}", "test", scores)
    result = vcr(secret, tmp_path / "out")
    assert result["files"] == [str(tmp_path / f"out/test-seed-{seed}.csv") for seed in (0, 1)]
    assert "scores" not in result
    head, *rows = Path(result["files"][1]).read_text().splitlines()
    assert head.startswith("annot_id,answer_0")
    assert [row.split(",")[0] for row in rows] == ["val-0", "val-1"]
    shares = np.array([row.split(",")[1:] for row in rows], float).reshape(2, 5, 4)
    assert shares.sum(-1) == pytest.approx(1, abs=1e-4)
    raw = [row["outputs"] for row in answers(tmp_path / "answer/seed-1/predictions_test.jsonl")]
    assert np.array_equal(shares[:, 0].argmax(-1), np.argmax(raw, -1))
    for task in asked:  # UNITER's two scores a choice, of which the second counts
        file = tmp_path / task / "seed-1/predictions_test.jsonl"
        both = [
            row | {"outputs": [x for score in row["outputs"] for x in (9.0, score)]}
            for row in answers(file)
        ]
        put(file, json_lines(*both))
    again = vcr(secret, tmp_path / "again")["files"]
    assert Path(again[1]).read_text() == Path(result["files"][1]).read_text()


def test_predictions_are_matched_by_what_the_data_set_calls_an_example(config, tmp_path):
    older = vcr(config, tmp_path / "older")
    for task in ("answer", "rationale"):
        for path in (tmp_path / task).glob("seed-[01]/predictions_val.jsonl"):
            rows = [
                row | {"id": f"renamed {n}", "official": f"val-{n}"}
                for n, row in enumerate(answers(path))
            ]
            put(path, json_lines(*rows[::-1]))
    newer = vcr(config, tmp_path / "newer")
    assert newer == older and newer["median"]["Q->AR"] == 0.625


def test_from_finetune_to_the_servers_file(config: VcrJointScoreConfig, tmp_path: Path) -> None:
    folder, model = Path(config.data), str(student(tmp_path / "student"))
    put(folder / "train.jsonl", (folder / "val.jsonl").read_text())
    for task in ("answer", "rationale"):
        own = FinetuneConfig(model, f"vcr/{task}", config.data, submit=True, max_length=32)
        finetune(own, replace(STEPS, steps=1, batch=4), tmp_path / f"tuned/{task}")
        seed = tmp_path / f"tuned/{task}/seed-0"
        names = [row["official"] for row in answers(seed / "predictions_test.jsonl")]
        several = [f"val-{n}-a{k}" for n in (0, 1) for k in range(4)]
        assert names == (["val-0", "val-1"] if task == "answer" else several)
        assert not [*seed.glob("*submission*"), *seed.glob("*.?sv")]
    told = refused(ANSWER.submission, "test", (), ())
    assert told == "vcr/answer: 'test' has no server file; there are: none"
    tuned = [str(tmp_path / "tuned" / task) for task in ("answer", "rationale")]
    runs = replace(config, answers=tuned[0], rationales=tuned[1])
    result = json.loads((tmp_path / "tuned/answer/result.json").read_text())
    assert vcr(runs, tmp_path / "joint")["median"]["Q->A"] == result["median"]["val"]["accuracy"]
    (file,) = vcr(replace(runs, split="test"), tmp_path / "server")["files"]
    assert len(Path(file).read_text().splitlines()) == 3


def test_runs_that_have_no_joint_score(config: VcrJointScoreConfig, tmp_path: Path) -> None:
    swapped = {"answers": config.rationales, "rationales": config.answers}
    for changes, message in (
        (swapped, "a run of vcr/rationale, expected one of vcr/answer"),
        ({"answers": str(tmp_path)}, "finished seeds are [] and [0, 1]"),
        ({"rationales": ""}, "vcr needs rationales"),
        ({"split": "nowhere"}, "nowhere.jsonl: no such file"),
    ):
        assert message in refused(
            lambda given: vcr(replace_settings(config, **given), tmp_path / "o"), changes
        )
    path = tmp_path / "rationale/seed-0/predictions_val.jsonl"
    first, *rest = answers(path)
    put(path, json_lines(first | {"outputs": [1, 2]}, *rest))
    assert ": 2 scores for 4 choices" in refused(vcr, config, tmp_path / "o")

"""VCR's joint score and server file, from predictions written by hand."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.homes import STEPS, put, student

from groundling.cli import main
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.errors import InputError
from groundling.settings.fields import replace_settings
from groundling.studies.clip_td.commands import VCR as vcr
from groundling.studies.clip_td.commands import VcrJointScoreConfig
from groundling.tasks.vcr import ANSWER

GOLD = ((0, 1), (1, 2), (2, 3), (3, 0))
"""Right answer and right rationale of each item."""


def line(n: int, labelled: bool) -> str:
    words = [["yes", "."], ["no", "."], ["maybe", "."], [[0], "left", "."]]
    row: dict[str, Any] = {"annot_id": f"val-{n}", "img_fn": f"m/{n}.jpg", "objects": ["person"]}
    row |= {"question": ["Who", "?"], "answer_choices": words, "rationale_choices": words[::-1]}
    return json.dumps(
        row | ({"answer_label": GOLD[n][0], "rationale_label": GOLD[n][1]} if labelled else {})
    )


def predicted(
    folder: Path, seed: int, task: str, split: str, said: dict[str, Sequence[float]]
) -> Path:
    put(folder / f"seed-{seed}/result.json", json.dumps({"task": task, "seed": seed}))
    rows = [
        {"id": i, "prediction": int(np.argmax(s)), "label": None, "outputs": list(s)}
        for i, s in said.items()
    ]
    return put(
        folder / f"seed-{seed}/predictions_{split}.jsonl",
        "".join(json.dumps(row) + "\n" for row in rows),
    )


def sure(choice: int) -> list[float]:
    return [float(n == choice) for n in range(4)]


@pytest.fixture
def config(tmp_path: Path) -> VcrJointScoreConfig:
    """Of four items, seed 0 answers three right and reasons two right, one of them in common; seed 1 all."""
    put(tmp_path / "vcr/val.jsonl", "".join(line(n, True) + "\n" for n in range(4)))
    put(tmp_path / "vcr/test.jsonl", "".join(line(n, False) + "\n" for n in range(2)))
    own = {0: ((0, 1, 2, 0), (0, 0, 3, 0)), 1: tuple(zip(*GOLD, strict=True))}
    for seed, both in own.items():
        for task, said in zip(("answer", "rationale"), both, strict=True):
            scores = {f"vcr-{task}-val-{n}": sure(choice) for n, choice in enumerate(said)}
            predicted(tmp_path / task, seed, f"vcr/{task}", "val", scores)
    predicted(tmp_path / "answer", 7, "vcr/answer", "val", {})
    return VcrJointScoreConfig(
        str(tmp_path / "answer"), str(tmp_path / "rationale"), str(tmp_path / "vcr")
    )


def refusal(config: VcrJointScoreConfig, out: Path, **changes: str) -> str:
    with pytest.raises(InputError) as told:
        vcr(replace_settings(config, **changes), out)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_joint_accuracy_by_seed(
    config: VcrJointScoreConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--answers", config.answers, "--rationales", config.rationales, "--data", config.data]
    assert main(["vcr", *flags, "--out", str(tmp_path / "out")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out/result.json").read_text())
    assert printed["scores"] == {"Q->A": [0.75, 1.0], "QA->R": [0.5, 1.0], "Q->AR": [0.25, 1.0]}
    assert printed["median"] == {"Q->A": 0.875, "QA->R": 0.75, "Q->AR": 0.625}
    assert (printed["seeds"], printed["left_out_seeds"], printed["items"]) == ([0, 1], [7], 4)


def test_the_servers_file_of_a_split_without_labels(
    config: VcrJointScoreConfig, tmp_path: Path
) -> None:
    assert "answer/seed-0/predictions_test.jsonl: no such file" in refusal(
        config, tmp_path / "a", split="test"
    )
    rng = np.random.default_rng(0)
    asked = {"answer": [f"vcr-answer-val-{n}" for n in (0, 1)]}
    asked["rationale"] = [f"vcr-rationale-val-{n}-a{k}" for n in (0, 1) for k in range(4)]
    for task, ids in asked.items():
        for seed in (0, 1):
            scores = {name: rng.normal(size=4).tolist() for name in ids}
            predicted(tmp_path / task, seed, f"vcr/{task}", "test", scores)
    result = vcr(replace_settings(config, split="test"), tmp_path / "out")
    assert result["files"] == [str(tmp_path / f"out/test-seed-{seed}.csv") for seed in (0, 1)]
    assert "scores" not in result
    head, *rows = Path(result["files"][1]).read_text().splitlines()
    assert head.startswith("annot_id,answer_0") and [row.split(",")[0] for row in rows] == [
        "val-0",
        "val-1",
    ]
    shares = np.array([row.split(",")[1:] for row in rows], float).reshape(2, 5, 4)
    assert shares.sum(-1) == pytest.approx(1, abs=1e-4)
    raw = [
        json.loads(row)["outputs"]
        for row in (tmp_path / "answer/seed-1/predictions_test.jsonl").open()
    ]
    assert np.array_equal(shares[:, 0].argmax(-1), np.argmax(raw, -1))
    for task in asked:  # UNITER's two scores a choice, of which the second counts
        file = tmp_path / task / "seed-1/predictions_test.jsonl"
        lines = [json.loads(row) for row in file.open()]
        both = [
            line | {"outputs": [x for score in line["outputs"] for x in (9.0, score)]}
            for line in lines
        ]
        file.write_text("".join(json.dumps(line) + "\n" for line in both))
    again = vcr(replace_settings(config, split="test"), tmp_path / "again")["files"]
    assert Path(again[1]).read_text() == Path(result["files"][1]).read_text()


def test_predictions_are_matched_by_what_the_data_set_calls_an_example(
    config: VcrJointScoreConfig, tmp_path: Path
) -> None:
    """C4: by the field `official`, whatever our ids look like; older files without it are matched by id, as above."""
    older = vcr(config, tmp_path / "older")
    for task in ("answer", "rationale"):
        for path in (tmp_path / task).glob("seed-[01]/predictions_val.jsonl"):
            rows = [json.loads(line) for line in path.open()]
            named = [
                row | {"id": f"renamed {n}", "official": f"val-{n}"} for n, row in enumerate(rows)
            ]
            path.write_text("".join(json.dumps(row) + "\n" for row in reversed(named)))
    newer = vcr(config, tmp_path / "newer")
    assert newer == older and newer["median"]["Q->AR"] == 0.625


def test_from_finetune_to_the_servers_file(config: VcrJointScoreConfig, tmp_path: Path) -> None:
    folder, model = Path(config.data), str(student(tmp_path / "student"))
    put(folder / "train.jsonl", (folder / "val.jsonl").read_text())
    for task in ("answer", "rationale"):
        own = FinetuneConfig(model, f"vcr/{task}", config.data, submit=True, max_length=32)
        finetune(own, replace(STEPS, steps=1, batch=4), tmp_path / f"tuned/{task}")
        files = {
            path.name for path in (tmp_path / f"tuned/{task}/seed-0").iterdir() if path.is_file()
        }
        assert {"predictions_val.jsonl", "predictions_test.jsonl"} <= files
        written = tmp_path / f"tuned/{task}/seed-0/predictions_test.jsonl"
        names = [json.loads(row)["official"] for row in written.open()]
        several = [f"val-{n}-a{k}" for n in (0, 1) for k in range(4)]
        assert names == (["val-0", "val-1"] if task == "answer" else several)
        assert not any("submission" in name or name.endswith((".csv", ".tsv")) for name in files)
    with pytest.raises(InputError, match="vcr/answer: 'test' has no server file; there are: none"):
        ANSWER.submission("test", (), ())
    runs = replace(
        config, answers=str(tmp_path / "tuned/answer"), rationales=str(tmp_path / "tuned/rationale")
    )
    told = json.loads((tmp_path / "tuned/answer/result.json").read_text())
    assert vcr(runs, tmp_path / "joint")["median"]["Q->A"] == told["median"]["val"]["accuracy"]
    (file,) = vcr(replace(runs, split="test"), tmp_path / "server")["files"]
    assert len(Path(file).read_text().splitlines()) == 3


def test_faults_are_one_line(config: VcrJointScoreConfig, tmp_path: Path) -> None:
    path = tmp_path / "rationale/seed-0/predictions_val.jsonl"
    kept = path.read_text().splitlines(keepends=True)
    put(path, "".join(kept[:2]))
    told = refusal(config, tmp_path / "a")
    assert told == f"{path}: predictions are not of the same examples: vcr-rationale-val-2 (2 such)"
    first = json.loads(kept[0]) | {"outputs": [1, 2]}
    put(path, "".join([json.dumps(first) + "\n", *kept[1:]]))
    assert ": 2 scores for 4 choices" in refusal(config, tmp_path / "b")
    other = first | {"id": "x", "official": "other data"}
    put(path, "".join([*kept, json.dumps(other) + "\n"]))
    assert refusal(config, tmp_path / "b").endswith(
        "predictions are not of the same examples: other data"
    )
    put(path, "".join(kept))
    told = refusal(config, tmp_path / "c", answers=config.rationales, rationales=config.answers)
    assert "a run of vcr/rationale, expected one of vcr/answer" in told
    assert refusal(config, tmp_path / "d", answers=str(tmp_path)).endswith(
        "finished seeds are [] and [0, 1]"
    )
    assert refusal(config, tmp_path / "e", rationales="") == "vcr needs rationales"
    assert "nowhere.jsonl: no such file" in refusal(config, tmp_path / "f", split="nowhere")

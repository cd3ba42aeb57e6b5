"""Files for folders, names with a `=`, classes spelt alike, and what lies in the directory that workers begin in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import homes
import pytest
import toys
from homes import put, table

import groundling
from groundling.cli import main
from groundling.commands.adapt import ADAPTING, AdaptConfig
from groundling.commands.finetune import TUNING, FinetuneConfig
from groundling.commands.verdict import VerdictConfig, groups_of
from groundling.core.errors import InputError
from groundling.data.corpora.weighted_files import named_folder
from groundling.runs.cards import command
from groundling.settings.fields import configured
from groundling.settings.inputs import OwnFile
from groundling.tasks.table import own_notes, own_task

FEW = ["--steps", "1", "--batch", "4", "--cpu"]
ROOT = Path(groundling.__file__).parent.parent
OWN_TASK = """
import csv
from dataclasses import replace
from groundling.core.batch import Example
from groundling.tasks.glue import RTE

def read(file, split):
    rows = list(csv.DictReader(open(file)))
    chosen = [row for number, row in enumerate(rows) if (number % 3 == 0) == (split == "dev")]
    labelled = [(str(n), row["q"], float(row["y"] == "yes")) for n, row in enumerate(chosen)]
    return [Example(f"{split}-{n}", text, label=y, official=n) for n, text, y in labelled]

TASK = replace(RTE, name="mine", read=read, file=lambda file, split: file, test={})
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- data that is a file -----------------------------------------------------------------------------------------------


def test_a_task_of_ones_own_in_a_file_is_read_by_what_follows_its_training(place: Path) -> None:
    homes.student(place / "bert")
    rows = [(toys.sentences()[i], "yes" if i % 2 else "no") for i in range(24)]
    put(place / "own.csv", table(("q", "y"), *rows))
    put(place / "task_of_mine.py", OWN_TASK)
    put(place / "caps.csv", table(("image", "caption"), *[("a.jpg", text) for text, _ in rows]))
    about = ["--task", "task_of_mine:TASK", "--data", "own.csv"]
    try:
        tuned = ["finetune", "--model", "bert", *about, "--seeds", "2", *FEW, "--no-save-model"]
        assert main([*tuned, "--out", "run"]) == 0
        assert main(["ensemble", "run/seed-0", *about, "--out", "one"]) == 2  # one is none
        assert main(["ensemble", "--runs", "run", *about, "--out", "mean"]) == 0
        assert main(["data", "partition", *about, "--per", "2", "--out", "few.json"]) == 0
        counted = ["--captions", "caps.csv", "--tokenizer", "bert"]
        assert main(["data", "counts", *counted, "--out", "counts.json"]) == 0
        grounded = ["grounded", "--base", "run", "--other", "run", *about, "--tokenizer", "bert"]
        assert main([*grounded, "--counts", "counts.json", "--out", "gain"]) == 0
    finally:
        sys.modules.pop("task_of_mine", None)
    done = json.loads((place / "mean/seed-0/result.json").read_text())
    assert done["task"] == json.loads((place / "run/seed-0/result.json").read_text())["task"]


# -- a `=` in names ----------------------------------------------------------------------------------------------------


def test_a_folders_name_may_have_an_equals_sign(place: Path) -> None:
    for folder in ("runs/lr=1/a", "b"):
        (place / folder).mkdir(parents=True)
    for word, name, folder in (
        ("runs/lr=1/a", "", "runs/lr=1/a"),
        ("A=runs/lr=1/a", "A", "runs/lr=1/a"),
        ("lr=1=runs/lr=1/a", "lr=1", "runs/lr=1/a"),
        ("A=b", "A", "b"),
        ("A=gone=1", "A", "gone=1"),
        ("gone", "", "gone"),
        ("A=", "A", ""),
    ):
        assert named_folder(word) == (name, folder)
    config = configured(VerdictConfig, runs=["runs/lr=1/a", "w/o images=b"])
    assert groups_of(config) == {"a": "runs/lr=1/a", "w/o images": "b"}


def test_a_card_tells_no_folder_of_this_machine_whose_name_has_an_equals_sign() -> None:
    texts = ["/home/me/lr=1/t.txt=2", "/home/me/u.txt", "data/v.txt=3"]
    given = {"text": texts, "held": ["~/a=b/held.txt"], "student": "me/bert", "train": {}}
    told = command({"kind": "adapt", "config": given}, {"data/v.txt"}, (AdaptConfig(), ADAPTING))
    assert told == "groundling adapt --student me/bert --text t.txt=2 u.txt v.txt=3 --held held.txt"
    regions = {"regions": ["train=/home/me/k=3/store"], "train": {}}
    assert command(
        {"kind": "finetune", "config": regions}, set(), (FinetuneConfig(), TUNING)
    ).endswith("train=store")


# -- labels ------------------------------------------------------------------------------------------------------------


def own_of(path: Path, labels: list[str]) -> Any:
    texts = (f"text {number}" for number in range(len(labels)))
    return own_task(
        put(path, table(("q", "y"), *zip(texts, labels, strict=True))), OwnFile("q", "y")
    )


def test_classes_that_are_spelt_alike_are_told(tmp_path: Path) -> None:
    def told(labels: list[str]) -> list[str]:
        task = own_of(tmp_path / "own.csv", labels * 8)
        return [note for note in own_notes(task.read) if "alone, and are learned as" in note]

    assert told(["yes", "no"]) == []
    (capitals,) = told(["Yes", "yes", "no"])
    assert "'Yes' and 'yes'" in capitals
    (forms,) = told(["caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}"])
    assert "'cafe\\u0301' and 'caf\\xe9'" in forms


def test_a_decimal_comma_is_told_with_its_own_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"own\.csv, line 4: .* such as 0,3;"):
        own_of(tmp_path / "own.csv", ["0.1", "0.2", "0,3", "0.4"])


# -- processes ---------------------------------------------------------------------------------------------------------

PLANTED = """
from pathlib import Path
Path("ran").touch()
raise ImportError("planted")
"""
SEVERAL = """
from groundling.runs import jobs

if __name__ == "__main__":
    jobs._set_up_process = abs  # of a number, which loads no torch
    assert jobs.run_jobs([jobs.Job("one", len, ("a",))], 1, print) == {"one": 1}
    assert list(jobs.side_by_side(len, [("bc",), ("bc",)], 2)) == [2, 2]
"""


def test_workers_run_nothing_of_the_working_directory(tmp_path: Path) -> None:
    for name in ("pickle", "socket", "selectors"):
        put(tmp_path / f"data/{name}.py", PLANTED)
    script = put(tmp_path / "script.py", SEVERAL)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path / "data",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert not (tmp_path / "data/ran").exists()
    assert done.returncode == 0, done.stderr


# -- what a refused command leaves -------------------------------------------------------------------------------------


def test_a_verdict_on_nothing_leaves_an_earlier_one_alone(place: Path, capsys: Any) -> None:
    for run, task in (("a", "glue/rte"), ("b", "glue/rte"), ("c", "glue/mrpc")):
        rows = [{"id": f"{n}", "prediction": n % 2, "label": 1.0} for n in range(6)]
        put(place / run / "seed-0/predictions_dev.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
        done = {"seed": 0, "task": task, "metrics": ["accuracy"], "splits": ["dev"]}
        put(place / run / "seed-0/result.json", json.dumps(done))
    assert main(["verdict", "--runs", "a", "b", "--out", "judged"]) == 0
    before = homes.digests(place / "judged")
    assert main(["verdict", "--runs", "a", "c", "--out", "judged"]) == 2
    assert "nothing is judged" in capsys.readouterr().err
    assert homes.digests(place / "judged") == before


# -- functions ---------------------------------------------------------------------------------------------------------


def test_a_lone_path_stands_for_a_list_in_a_group_too(place: Path) -> None:
    put(place / "own.csv", table(("q", "y"), ("a cat", "yes"), ("a dog", "no")))
    given = {"student": "gone/gone", "text": place / "gone.txt"}
    with pytest.raises(InputError, match=r"gone\.txt: no such file|gone/gone: no model found"):
        groundling.compare(data="own.csv", text="q", label="y", arms="mlm", adapt=given, out="out")

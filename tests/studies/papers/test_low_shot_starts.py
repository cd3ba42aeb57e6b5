"""The initial model of a low-shot row has not been trained on held-out answers; otherwise the plan
notes it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from groundling.cli import main
from groundling.command_line.registered_names import TASKS_WITH_ANSWERS
from groundling.commands.sweep.file import read_sweep
from groundling.commands.sweep.plan import SweepPlan
from groundling.commands.sweep.steps import steps_of
from groundling.core.output_types import MultipleChoice, OpenAnswer
from groundling.core.registry import registered
from groundling.tasks import Task

SWEEPS = sorted((Path(__file__).parents[3] / "sweeps").glob("*.toml"))
FILE = """
[data.vcr]
path = "vcr"
available_from = "https://visualcommonsense.com"

[data.few]
path = "few.json"
partition = { task = "vcr/answer", data = "data:vcr", per_stratum = 100 }

[data.others]
path = "others.json"
partition = { task = "vcr/answer", data = "data:vcr", per_stratum = 7 }

[data.tuned]
path = "tuned"
finetune = { model = "weights:bert", task = "vcr/answer", data = "data:vcr", partition = "data:others" }

[weights.bert]
path = "bert-base-uncased"

[weights.second]
path = "second"
trained_on_labels = "data:vcr"

[pretrain.stage]
model = "weights:bert"
task = "vcr"
data = "data:vcr"

[pretrain.needed-by-none]
model = "weights:bert"
task = "vcr"
data = "data:vcr"
partition = "data:few"

[pretrain.needed-by-none-either]
model = "weights:bert"
task = "vcr"
data = "data:vcr"
partition = "data:others"

[pretrain.later]
model = "pretrain of stage"
task = "vcr"
data = "data:vcr"
task_answers = "any"

[tasks.few]
task = "vcr/answer"
data = "data:vcr"
partition = "data:few"

[tasks.full]
task = "vcr/answer"
data = "data:vcr"

[variants.plain]
model = "weights:bert"

[variants.staged]
model = "pretrain of later"

[variants.released]
model = "weights:second"

[variants.again]
model = "data:tuned/seed-0/model"
"""
OUTSIDE = "which this row holds out"


def notes_of(path: Path) -> list[str]:
    what = read_sweep(path)
    return SweepPlan(what, steps_of(what, Path("out"))).notes


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.name)
def test_no_row_of_the_sweeps_starts_from_answers_that_it_holds_back(file: Path) -> None:
    assert notes_of(file) == []


def test_some_of_these_rows_are_low_shot_and_come_after_pre_training_on_their_data() -> None:
    """Otherwise the test above would prove nothing."""
    what = read_sweep(next(path for path in SWEEPS if path.name == "clip_td.toml"))
    steps = {step.name: step for step in steps_of(what, Path("out"))}
    few = [
        step for step in steps.values() if step.command == "finetune" and step.values["partition"]
    ]
    before = [steps[name] for step in few for name in step.after if name.startswith("pretrain")]
    assert {step.values["data"] for step in before} == {"data:vcr", "data:snli-ve", "data:vqa"}
    assert all(step.values["task_answers"] == "any" for step in before)


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.name)
def test_released_weights_of_a_second_stage_say_what_they_have_read(file: Path) -> None:
    for source in read_sweep(file).sources.values():
        assert ("second stage" in source.title) == bool(source.trained_on_labels), source.name


STAGE = "\n\n[pretrain.needed-by-none]"
"""The place for more settings of the first pre-training."""
FEW = 'partition = "data:few"\n\n[tasks.full]'


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (("", ""), ["staged", "released", "again"]),
        ((STAGE, '\ntask_answers = "any"' + STAGE), ["released", "again"]),
        ((STAGE, '\npartition = "data:few"' + STAGE), ["released", "again"]),
        ((STAGE, '\npartition = "data:others"' + STAGE), ["staged", "released", "again"]),
        (('trained_on_labels = "data:vcr"', ""), ["staged", "again"]),
        (('partition = "data:others" }', 'partition = "data:few" }'), ["staged", "released"]),
        ((FEW, "limit_train = 9\n\n[tasks.full]"), ["staged", "released"]),
        ((FEW, "\n[tasks.full]"), []),
    ],
)
def test_a_start_that_has_read_more_answers_is_told(
    change: tuple[str, str], rows: list[str], tmp_path: Path
) -> None:
    assert change[0] in FILE
    text = FILE.replace(*change, 1)
    (tmp_path / "s.toml").write_text(text)
    notes = notes_of(tmp_path / "s.toml")
    assert [note.partition(": few")[0] for note in notes] == rows
    assert all(note.endswith(OUTSIDE) for note in notes)


def test_splits_that_are_scored_are_held_back_too(tmp_path: Path) -> None:
    text = FILE.replace(STAGE, '\ntrain_splits = ["train", "val"]' + STAGE, 1)
    (tmp_path / "s.toml").write_text(text)
    notes = notes_of(tmp_path / "s.toml")
    assert (
        "staged: full: pretrain stage has read the right answers of val of data:vcr, " + OUTSIDE
        in notes
    )
    both = text.replace("[tasks.full]", '[tasks.full]\ntrain_splits = ["train", "val"]')
    (tmp_path / "s.toml").write_text(both)
    assert not [note for note in notes_of(tmp_path / "s.toml") if note.startswith("staged: full")]


def test_a_plan_prints_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(FILE)
    assert main(["sweep", "--file", "s.toml", "--plan", "--out", "out"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    (note,) = [
        note
        for note in json.loads(Path("out/plan.json").read_text())["notes"]
        if "released" in note
    ]
    assert note == (
        "released: few: second has read the right answers of data:vcr outside data:few, " + OUTSIDE
    )
    assert f"note: {note}" in said


def test_a_claim_on_data_that_there_is_not_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.toml").write_text(
        FILE.replace('trained_on_labels = "data:vcr"', 'trained_on_labels = "data:vrc"')
    )
    assert main(["sweep", "--file", str(tmp_path / "s.toml"), "--plan"]) == 2
    assert "data:vrc refers to [data.vrc], which does not exist" in capsys.readouterr().err


def test_tasks_whose_texts_tell_their_labels() -> None:
    told = {
        name
        for name, task in registered("tasks", Task).items()
        if isinstance(task.form, OpenAnswer | MultipleChoice)
    }
    assert told == set(TASKS_WITH_ANSWERS)

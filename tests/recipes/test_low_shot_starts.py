"""The model of a low-shot row has not been trained on held-out answers; otherwise the plan notes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny.recipes import FILES, recipe_of

from groundling.cli import main
from groundling.command_line.names import TASKS_WITH_ANSWERS
from groundling.core.output_types import MultipleChoice, OpenAnswer
from groundling.core.registry import registered
from groundling.recipes.plan import exposure_notes
from groundling.tasks import Task

FILE = """
from groundling.recipes import Table, data, pretrain, row, weights

VCR = data("vcr", "vcr", available_from="https://visualcommonsense.com")
FEW = data("few", "few.json", made_by=("data partition", dict(task="vcr/answer", data=VCR, per_stratum=100)))
OTHERS = data("others", "others.json", made_by=("data partition", dict(task="vcr/answer", data=VCR, per_stratum=7)))
BERT = weights("bert", "bert-base-uncased")
SECOND = weights("second", "second", trained_on=VCR)
TUNED = data("tuned", "tuned", made_by=("finetune", dict(model=BERT, task="vcr/answer", data=VCR, partition=OTHERS)))

STAGE = pretrain("stage", model=BERT, task="vcr", data=VCR, )
LATER = pretrain("later", model=STAGE, task="vcr", data=VCR, task_answers="any")
TASKS = {
    "few": dict(task="vcr/answer", data=VCR, partition=FEW),
    "full": dict(task="vcr/answer", data=VCR),
}
MODELS = {"plain": BERT, "staged": LATER, "released": SECOND, "again": TUNED / "seed-0/model"}
TABLES = [Table("", [row(name, model, TASKS) for name, model in MODELS.items()])]
"""
OUTSIDE = "which this row holds out"


def notes_of(path: Path) -> list[str]:
    return exposure_notes(recipe_of(path).steps())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_row_of_the_recipes_starts_from_answers_that_it_holds_back(file: Path) -> None:
    assert notes_of(file) == []


def test_some_of_these_rows_are_low_shot_and_come_after_pre_training_on_their_data() -> None:
    """Otherwise the test above would prove nothing."""
    recipe = recipe_of("clip_td.py")
    tuned = [step for step in recipe.steps() if step.command == "finetune"]
    few = [step for step in tuned if step.values["partition"]]
    before = [one for step in few for one in recipe.before(step) if one.command == "pretrain"]
    read = {step.values["data"].name for step in before}
    assert read == {"data:vcr", "data:snli-ve", "data:vqa"}
    assert all(step.values["task_answers"] == "any" for step in before)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_released_weights_of_a_second_stage_say_what_they_have_read(file: Path) -> None:
    for source in recipe_of(file).inputs():
        assert ("second stage" in source.title) == (source.trained_on is not None), source.name


STAGE = 'task="vcr", data=VCR, )'
"""The end of the first pre-training, with a place for more settings."""
FEW = ", partition=FEW)"


@pytest.mark.parametrize(
    ("old", "new", "rows"),
    [
        ("", "", ["staged", "released", "again"]),
        (STAGE, STAGE.replace(")", 'task_answers="any")'), ["released", "again"]),
        (STAGE, STAGE.replace(")", "partition=FEW)"), ["released", "again"]),
        (STAGE, STAGE.replace(")", "partition=OTHERS)"), ["staged", "released", "again"]),
        (", trained_on=VCR", "", ["staged", "again"]),
        ("partition=OTHERS", "partition=FEW", ["staged", "released"]),
        (FEW, ", limit_train=9)", ["staged", "released"]),
        (FEW, ")", []),
    ],
)
def test_a_start_that_has_read_more_answers_is_told(
    old: str, new: str, rows: list[str], tmp_path: Path
) -> None:
    (tmp_path / "s.py").write_text(FILE.replace(old, new, 1))
    notes = notes_of(tmp_path / "s.py")
    assert [note.partition(": few")[0] for note in notes] == rows
    assert all(note.endswith(OUTSIDE) for note in notes)


def test_splits_that_are_scored_are_held_back_too(tmp_path: Path) -> None:
    text = FILE.replace(STAGE, STAGE.replace(")", 'train_splits=["train", "val"])'), 1)
    (tmp_path / "s.py").write_text(text)
    told = f"staged: full: pretrain stage has read the right answers of val of data:vcr, {OUTSIDE}"
    assert told in notes_of(tmp_path / "s.py")
    full = '"full": dict(task="vcr/answer", data=VCR'
    (tmp_path / "s.py").write_text(text.replace(full, f'{full}, train_splits=["train", "val"]'))
    assert not [note for note in notes_of(tmp_path / "s.py") if note.startswith("staged: full")]


def test_a_plan_prints_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.py").write_text(FILE)
    assert main(["run", "s.py", "--plan", "--out", "out"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    notes = json.loads(Path("out/plan.json").read_text())["notes"]
    note = f"second has read the right answers of data:vcr outside data:few, {OUTSIDE}"
    assert f"released: few: {note}" in notes and f"note: released: few: {note}" in said


def test_tasks_whose_texts_tell_their_labels() -> None:
    tasks = registered("tasks", Task).items()
    told = {name for name, task in tasks if isinstance(task.form, OpenAnswer | MultipleChoice)}
    assert told == set(TASKS_WITH_ANSWERS)

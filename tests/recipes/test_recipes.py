"""Recipes that run: all that is missing is run and nothing twice, and what comes of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import homes
from tiny.commands import FILES, recipe_of
from tiny.homes import STEPS

from groundling.cli import main
from groundling.command_line.names import TASKS_WITH_ANSWERS
from groundling.commands.adapt import AdaptConfig
from groundling.commands.compare import COMMAND as compare
from groundling.commands.compare import TrainAndCompareConfig
from groundling.core.errors import InputError
from groundling.core.output_types import MultipleChoice, OpenAnswer
from groundling.core.registry import registered
from groundling.recipes.plan import exposure_notes
from groundling.settings.fields import make_settings, replace_settings
from groundling.tasks import Task
from groundling.training import fit as fitting
from groundling.training.loop import train


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a student, a teacher, a text and a task."""
    homes.student(tmp_path / "student")
    homes.teacher(tmp_path / "teacher")
    homes.text(tmp_path / "text.txt", 40)
    homes.rte(tmp_path / "glue")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every folder something is trained into."""
    found: list[str] = []

    def counted(*arguments: object, **options: object) -> dict:
        found.append(str(Path(str(arguments[4]))))
        return train(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(fitting, "train", counted)
    return found


FILE = """
from groundling.recipes import Table, adapt, row, settings

SEEDS = 2
ADAPT = dict(student="student", teacher="teacher", text=["text.txt"], max_length=64, steps=2, batch=8, cpu=True)
TUNE = dict(seeds=SEEDS, steps=2, batch=8, cpu=True, max_length=64)
TASKS = {"glue/rte": settings(TUNE, data="glue")}
WITH_CLIP = adapt("all, two layers", ADAPT, arm="xdbert", save_joint=True)
ROWS = [
    row("control", adapt("control", ADAPT, arm="mlm"), TASKS, published="BERT-b"),
    row("all, two layers", WITH_CLIP, TASKS, published="XDBERT-b"),
    row("whole", WITH_CLIP / "joint", TASKS),
    row("tower", "teacher", TASKS, limit_train=12, batch=4),
]
TABLES = [Table("", ROWS)]
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'arm="mlm"',
            "arms=3",
            "s.py, line 10: control: adapt: unknown key 'arms'; did you mean arm?",
        ),
        ("batch=8", 'batch="eight"', "all--two-layers: adapt: batch = 'eight': expected a valid"),
        ('data="glue"', "", "control: glue/rte: finetune needs data"),
        ('"glue/rte"', '"glue/x"', "no task is called 'glue/x'"),
        ('arm="mlm"', 'arm="mlmm"', "no objective is called 'mlmm'"),
        ("TUNE = dict(", 'TUNE = dict(schedule="step", ', "schedule = 'step': expected 'linear'"),
        ('"teacher", TASKS', '"gone", TASKS', "tower: glue/rte: model: gone: no model found"),
        ('row("whole"', 'row("tower "', "two different steps are called tower: glue/rte; rename"),
        ("TABLES = ", "1 / 0\nTABLES = ", "s.py, line 15: ZeroDivisionError: division by zero"),
        ("TABLES = ", "(\nTABLES = ", "s.py: SyntaxError: "),
    ],
)
def test_mistakes_in_a_recipe_are_one_line(old, new, message, place, capsys):
    (place / "s.py").write_text(FILE.replace(old, new, 1))
    assert main(["run", "s.py", "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (place / "out").exists()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_shipped_recipes_can_be_read(file: Path) -> None:
    recipe = recipe_of(file)
    for table in recipe.tables:
        assert len(table.rows) > 1 or table.name.startswith(("Code", "RefCOCO"))
    for step in recipe.steps():
        for source in step.sources:
            assert source.suffix != "/joint" or source.settings["save_joint"] is True


def test_recipes_share_a_store_only_if_it_has_the_same_features() -> None:
    """A plan takes an input that exists as there, whoever made it."""
    kinds: dict[str, set[tuple[str, str]]] = {}
    for file in FILES:
        for source in recipe_of(file).inputs():
            if source.path.startswith("stores/"):
                made = source.made_by
                origin = (
                    made.settings["backbone"].path if made else source.available_from.split()[0]
                )
                kinds.setdefault(source.path, set()).add((source.title, origin))
    assert {path: kind for path, kind in kinds.items() if len(kind) > 1} == {}


def verdict(folder: Path) -> dict:
    return json.loads((folder / "verdict.json").read_text())


# -- runs ------------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("in_process")
def test_one_adaptation_and_many_tunings(place, trained, capsys):
    def tuned(*seeds: int) -> list[str]:
        rows = ("control", "all--two-layers", "whole", "tower")
        return [f"out/{row}/glue-rte/seed-{seed}" for row in rows for seed in seeds]

    (place / "s.py").write_text(FILE)
    assert main(["run", "s.py", "--out", "out"]) == 0
    said = capsys.readouterr().out
    adapted = ["out/control/adapt", "out/all--two-layers/adapt"]
    assert sorted(trained) == sorted([*adapted, *tuned(0, 1)])
    result = verdict(place / "out")
    assert result["control"] == "control"
    assert [v["other"] for v in result["verdicts"]] == ["all, two layers", "whole", "tower"]
    assert all(v["sentence"] in said for v in result["verdicts"])
    assert "66.43" in said and "69.31" in said
    assert all(scores["glue/rte"]["seeds"] == [0, 1] for scores in result["scores"].values())

    # A third seed and another variant: only these are run. What was half done is done again, in its own folder.
    trained.clear()
    (place / "out" / "whole" / "glue-rte" / "seed-1" / "result.json").unlink()
    more = 'ROWS.append(row("more", adapt("more", ADAPT, arm="contrastive"), TASKS))\n'
    (place / "s.py").write_text(FILE + more)
    assert main(["run", "s.py", "--seeds", "3", "--out", "out"]) == 0
    new = ["out/more/adapt", *(f"out/more/glue-rte/seed-{seed}" for seed in range(3))]
    assert sorted(trained) == sorted([*tuned(2), "out/whole/glue-rte/seed-1", *new])

    # Other settings for what is there are refused, with the run they would overwrite.
    (place / "s.py").write_text(FILE.replace("steps=2", "steps=3", 1))
    capsys.readouterr()
    assert main(["run", "s.py", "--out", "out"]) == 2
    told = r"control: adapt: out/control/adapt: holds another run .*steps"
    assert re.search(told, capsys.readouterr().err)


EVERY_SEED = """
from groundling.recipes import Row, Table, step

ADAPT = dict(student="student", teacher="teacher", text=["text.txt"], max_length=64, steps=2, batch=8, cpu=True)
TUNE = dict(task="glue/rte", data="glue", steps=2, batch=8, cpu=True, max_length=64, seeds=1)


def rows():
    for arm in ("mlm", "contrastive"):
        tuned = []
        for seed in (0, 1):
            model = step("adapt", ADAPT, arm=arm, seed=seed, name=f"{arm} {seed}", out=f"{arm}/seed-{seed}/adapt")
            out = f"{arm}/seed-{seed}/rte"
            tuned.append(step("finetune", TUNE, model=model, seed=seed, name=f"rte of {arm} {seed}", out=out))
        yield Row(arm, tuple(tuned))


TABLES = [Table("", list(rows()))]
"""


@pytest.mark.usefixtures("in_process")
def test_every_seed_may_adapt_anew(place, trained, capsys):
    (place / "s.py").write_text(EVERY_SEED)
    assert main(["run", "s.py", "--out", "out"]) == 0
    both = [(f"out/{arm}/seed-{seed}", seed) for arm in ("mlm", "contrastive") for seed in (0, 1)]
    places = [f"{out}/{part}" for out, seed in both for part in ("adapt", f"rte/seed-{seed}")]
    assert sorted(trained) == sorted(places)
    weights = "adapt/model/model.safetensors"
    one, two = (load_file(place / f"out/mlm/seed-{seed}" / weights) for seed in (0, 1))
    assert any(not torch.equal(one[key], two[key]) for key in one)
    scores = verdict(place / "out")["scores"]
    assert all(found["glue/rte"]["seeds"] == [0, 1] for found in scores.values())
    # `--seeds` cannot count the seeds of a loop.
    capsys.readouterr()
    assert main(["run", "s.py", "--seeds", "3", "--out", "out"]) == 2
    assert "rte of mlm 0 has a seed of its own; change the recipe" in capsys.readouterr().err


@pytest.mark.usefixtures("in_process")
def test_compare_is_the_simplest_recipe(place, trained, capsys):
    sources = {"student": "student", "teacher": "teacher", "text": ("text.txt",)}
    settings = make_settings(AdaptConfig, **sources, max_length=64)
    config = TrainAndCompareConfig(
        arms=("contrastive",), tasks=("glue/rte",), data="glue", seeds=2, max_length=64
    )
    training = STEPS, replace(STEPS, steps=2)
    result = compare(config, settings, *training, "out")
    assert list(result["scores"]) == ["mlm", "contrastive"]
    said = capsys.readouterr().out
    assert said.startswith("note: 2 seeds cannot show a difference, however large: the smallest")
    assert result["verdicts"][0]["sentence"] in said and "cannot be decided with 2 seeds" in said
    reports = {path.parent.name for path in (place / "out").rglob("report.html")}
    assert reports == {"adapt", "glue-rte"}
    page = (place / "out" / "verdict.html").read_text()
    assert "Against mlm" in page
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    trained.clear()
    alone = replace_settings(config, arms=("mlm",), control=False)
    assert compare(alone, settings, *training, "out")["verdicts"] == trained == []
    with pytest.raises(InputError, match="compare needs either tasks, or text"):
        compare(replace_settings(config, tasks=()), settings, STEPS, STEPS, "out")


TWO_TASKS = """
from groundling.recipes import Table, row, settings

TUNE = dict(seeds=1, steps=1, batch=4, cpu=True, max_length=32, data="glue")
TASKS = {"glue/rte": settings(TUNE, seeds=2), "glue/cola": TUNE}
TABLES = [Table("", [row("one", "student", TASKS), row("two", "student", TASKS, lr=1e-3)])]
"""


def cola(folder: Path) -> None:
    rows = [f"x\t{number % 2}\t\ta dog number {number} ." for number in range(8)]
    for split in ("train", "dev"):
        homes.put(folder / "CoLA" / f"{split}.tsv", "\n".join(rows) + "\n")


@pytest.mark.usefixtures("in_process")
def test_each_task_has_its_own_seeds_unless_the_flag_says_otherwise(place, trained):
    cola(place / "glue")
    (place / "s.py").write_text(TWO_TASKS)
    assert main(["run", "s.py", "--out", "out"]) == 0
    for scores in verdict(place / "out")["scores"].values():
        seeds = {task: found["seeds"] for task, found in scores.items()}
        assert seeds == {"glue/rte": [0, 1], "glue/cola": [0]}
    assert len(trained) == len(set(trained)) == 2 * (2 + 1)
    assert main(["run", "s.py", "--seeds", "2", "--out", "out"]) == 0
    for scores in verdict(place / "out")["scores"].values():
        assert [found["seeds"] for found in scores.values()] == [[0, 1], [0, 1]]


# -- one's own file ----------------------------------------------------------------------------------------------------
OWN = """
from groundling.recipes import Table, adapt, row

MINE = dict(label="answer", data="my.csv", text="question", image="photo", seeds=1)
CONTROL = adapt("control", student="student", text=["text.txt"], arm="mlm")
TABLES = [Table("", [row("control", CONTROL, {"mine": MINE})])]
"""


def own_csv(path: Path) -> Path:
    rows = [(f"is it {word}?", "yn"[n % 2], f"{n}.jpg") for n, word in enumerate("abcdefghijkl")]
    return homes.put(path, homes.table(("question", "answer", "photo"), *rows))


def test_a_recipe_names_columns_of_ones_own_file(place, capsys):
    own_csv(place / "my.csv")
    homes.put(place / "own.py", OWN)
    (row,) = recipe_of(Path("own.py")).tables[0].rows
    (tuned,) = row.steps
    assert (tuned.values["display_name"], tuned.values["task"]) == ("mine", "")
    assert main(["run", "own.py", "--out", "out", "--plan"]) == 0
    told = capsys.readouterr().out
    for name, value in (("text", "question"), ("label", "answer"), ("image", "photo")):
        assert re.search(rf"^ *{name} +{value}\b", told, re.MULTILINE), told
    for old, new, message in (
        ('"question"', '"frage"', "my.csv: no column 'frage'"),
        ('"photo"', '"photo", task="glue/rte"', "finetune needs either task, or text and label"),
    ):
        homes.put(place / "own.py", OWN.replace(old, new))
        assert main(["run", "own.py", "--out", "out"]) == 2
        assert message in capsys.readouterr().err


# -- starts that have read answers which a row holds back --------------------------------------------------------------
STAGES = """
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
def test_a_start_that_has_read_more_answers_is_told(old, new, rows, tmp_path):
    (tmp_path / "s.py").write_text(STAGES.replace(old, new, 1))
    notes = notes_of(tmp_path / "s.py")
    assert [note.partition(": few")[0] for note in notes] == rows
    assert all(note.endswith(OUTSIDE) for note in notes)


def test_splits_that_are_scored_are_held_back_too(tmp_path: Path) -> None:
    text = STAGES.replace(STAGE, STAGE.replace(")", 'train_splits=["train", "val"])'), 1)
    (tmp_path / "s.py").write_text(text)
    told = f"staged: full: pretrain stage has read the right answers of val of data:vcr, {OUTSIDE}"
    assert told in notes_of(tmp_path / "s.py")
    full = '"full": dict(task="vcr/answer", data=VCR'
    (tmp_path / "s.py").write_text(text.replace(full, f'{full}, train_splits=["train", "val"]'))
    assert not [note for note in notes_of(tmp_path / "s.py") if note.startswith("staged: full")]


def test_a_plan_prints_and_keeps_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("s.py").write_text(STAGES)
    assert main(["run", "s.py", "--plan", "--out", "out"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    notes = json.loads(Path("out/plan.json").read_text())["notes"]
    note = f"second has read the right answers of data:vcr outside data:few, {OUTSIDE}"
    assert f"released: few: {note}" in notes and f"note: released: few: {note}" in said


def test_tasks_whose_texts_tell_their_labels() -> None:
    tasks = registered("tasks", Task).items()
    told = {name for name, task in tasks if isinstance(task.form, OpenAnswer | MultipleChoice)}
    assert told == set(TASKS_WITH_ANSWERS)

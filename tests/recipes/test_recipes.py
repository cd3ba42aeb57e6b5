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
from tiny.commands import FILES, RECIPES, recipe_of
from tiny.homes import STEPS

from groundling.cli import main
from groundling.commands.adapt import AdaptConfig
from groundling.commands.compare import COMMAND as compare
from groundling.commands.compare import TrainAndCompareConfig
from groundling.core.errors import InputError
from groundling.settings.fields import make_settings, replace_settings
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
    ("change", "message"),
    [
        (('arm="mlm"', "arms=3"), r"s.py, line 10: control: adapt: unknown key 'arms'; there are"),
        (
            ("batch=8", 'batch="eight"'),
            "all--two-layers: adapt: batch = 'eight': expected a valid integer",
        ),
        (('data="glue"', ""), "control: glue/rte: finetune needs data"),
        (('"glue/rte"', '"glue/x"'), "no task is called 'glue/x'"),
        (('arm="mlm"', 'arm="mlmm"'), "no objective is called 'mlmm'"),
        (
            ("TUNE = dict(", 'TUNE = dict(schedule="step", '),
            "schedule = 'step': expected 'linear'",
        ),
        (('"teacher", TASKS', '"gone", TASKS'), "tower: glue/rte: model: gone: no model found"),
        (
            ('row("whole"', 'row("tower "'),
            "two different steps are called tower: glue/rte; rename one",
        ),
        (("TABLES = ", "1 / 0\nTABLES = "), "s.py, line 15: ZeroDivisionError: division by zero"),
        (("TABLES = ", "(\nTABLES = "), "s.py: SyntaxError: "),
    ],
)
def test_mistakes_in_a_recipe_are_one_line(
    change: tuple[str, str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert change[0] in FILE
    (place / "s.py").write_text(FILE.replace(*change, 1))
    assert main(["run", "s.py", "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (place / "out").exists()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_shipped_recipes_can_be_read(file: Path) -> None:
    recipe = recipe_of(file)
    assert all(
        len(table.rows) > 1 or table.name.startswith(("Code", "RefCOCO")) for table in recipe.tables
    )
    for step in recipe.steps():
        for source in step.sources:
            if source.suffix == "/joint":
                assert source.settings["save_joint"] is True


@pytest.mark.usefixtures("in_process")
def test_the_example_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (RECIPES.parent / "examples/my_recipe.py").read_text(encoding="utf-8")
    for change in (
        ("bert-base-uncased", "student"),
        ("openai/clip-vit-base-patch32", "teacher"),
        ("my_text.txt", "text.txt"),
        ("steps=1000", "steps=1, batch=4, max_length=64, cpu=True"),
        ("glue_data", "glue"),
        ("seeds=3, epochs=3", "seeds=1, steps=1, batch=4, cpu=True"),
    ):
        assert change[0] in text
        text = text.replace(*change)
    cola(place / "glue")
    (place / "mine.py").write_text(text)
    assert main(["run", "mine.py", "--out", "out"]) == 0
    assert "against mlm" in (place / "out/verdict.html").read_text().lower()
    assert set(json.loads((place / "out/verdict.json").read_text())["scores"]) == {"mlm", "xdbert"}


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_process")
def test_one_adaptation_and_many_tunings(
    place: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "s.py").write_text(FILE)
    assert main(["run", "s.py", "--out", "out"]) == 0
    said = capsys.readouterr().out
    places = [
        f"out/{v}/glue-rte/seed-{s}"
        for v in ("control", "all--two-layers", "whole", "tower")
        for s in (0, 1)
    ]
    assert sorted(trained) == sorted(["out/control/adapt", "out/all--two-layers/adapt", *places])
    result = json.loads((place / "out" / "verdict.json").read_text())
    assert result["control"] == "control"
    assert [v["other"] for v in result["verdicts"]] == ["all, two layers", "whole", "tower"]
    assert all(v["sentence"] in said for v in result["verdicts"])
    assert "66.43" in said and "69.31" in said
    for variant in result["scores"].values():
        assert variant["glue/rte"]["seeds"] == [0, 1]

    # A third seed and another variant: only these are run. What was half done is done again, in its own folder.
    trained.clear()
    (place / "out" / "whole" / "glue-rte" / "seed-1" / "result.json").unlink()
    more = 'ROWS.append(row("more", adapt("more", ADAPT, arm="contrastive"), TASKS))\n'
    (place / "s.py").write_text(FILE + more)
    assert main(["run", "s.py", "--seeds", "3", "--out", "out"]) == 0
    places = [f"out/{v}/glue-rte/seed-2" for v in ("control", "all--two-layers", "whole", "tower")]
    places += [
        "out/whole/glue-rte/seed-1",
        *(f"out/more/glue-rte/seed-{s}" for s in range(3)),
        "out/more/adapt",
    ]
    assert sorted(trained) == sorted(places)

    # Other settings for what is there are refused, with the run they would overwrite.
    (place / "s.py").write_text(FILE.replace("steps=2", "steps=3", 1))
    capsys.readouterr()
    assert main(["run", "s.py", "--out", "out"]) == 2
    assert re.search(
        r"control: adapt: out/control/adapt: holds another run .*steps", capsys.readouterr().err
    )


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
def test_every_seed_may_adapt_anew(
    place: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "s.py").write_text(EVERY_SEED)
    assert main(["run", "s.py", "--out", "out"]) == 0
    adapted = [f"out/{arm}/seed-{s}/adapt" for arm in ("mlm", "contrastive") for s in (0, 1)]
    tuned = [f"out/{arm}/seed-{s}/rte/seed-{s}" for arm in ("mlm", "contrastive") for s in (0, 1)]
    assert sorted(trained) == sorted([*adapted, *tuned])
    one, two = (
        load_file(place / "out/mlm" / f"seed-{s}" / "adapt/model/model.safetensors") for s in (0, 1)
    )
    assert any(not torch.equal(one[key], two[key]) for key in one)
    result = json.loads((place / "out" / "verdict.json").read_text())
    assert all(found["glue/rte"]["seeds"] == [0, 1] for found in result["scores"].values())
    # `--seeds` cannot count the seeds of a loop.
    capsys.readouterr()
    assert main(["run", "s.py", "--seeds", "3", "--out", "out"]) == 2
    assert "rte of mlm 0 has a seed of its own; change the recipe" in capsys.readouterr().err


@pytest.mark.usefixtures("in_process")
def test_compare_is_the_simplest_recipe(
    place: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_settings(
        AdaptConfig, student="student", teacher="teacher", text=("text.txt",), max_length=64
    )
    config = TrainAndCompareConfig(
        arms=("contrastive",), tasks=("glue/rte",), data="glue", seeds=2, max_length=64
    )
    result = compare(config, settings, STEPS, replace(STEPS, steps=2), "out")
    assert list(result["scores"]) == ["mlm", "contrastive"]
    assert result["verdicts"][0]["sentence"] in capsys.readouterr().out
    page = (place / "out" / "verdict.html").read_text()
    assert "Against mlm" in page
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    trained.clear()
    alone = compare(
        replace_settings(config, arms=("mlm",), control=False),
        settings,
        STEPS,
        replace(STEPS, steps=2),
        "out",
    )
    assert (trained, alone["verdicts"]) == ([], [])
    with pytest.raises(InputError, match="compare needs either tasks, or text"):
        compare(replace_settings(config, tasks=()), settings, STEPS, STEPS, "out")


TWO_TASKS = """
from groundling.recipes import Table, row, settings

TUNE = dict(seeds=1, steps=1, batch=4, cpu=True, max_length=32, data="glue")
TASKS = {"glue/rte": settings(TUNE, seeds=3), "glue/cola": TUNE}
TABLES = [Table("", [row("one", "student", TASKS), row("two", "student", TASKS, lr=1e-3)])]
"""


def cola(folder: Path) -> None:
    rows = [f"x\t{number % 2}\t\ta dog number {number} ." for number in range(8)]
    for split in ("train", "dev"):
        homes.put(folder / "CoLA" / f"{split}.tsv", "\n".join(rows) + "\n")


@pytest.mark.usefixtures("in_process")
def test_each_task_has_its_own_seeds_unless_the_flag_says_otherwise(
    place: Path, trained: list[str]
) -> None:
    # A5: nine runs of RTE and five of the others are one recipe
    cola(place / "glue")
    (place / "s.py").write_text(TWO_TASKS)
    assert main(["run", "s.py", "--out", "out"]) == 0
    result = json.loads((place / "out" / "verdict.json").read_text())
    for scores in result["scores"].values():
        assert scores["glue/rte"]["seeds"] == [0, 1, 2]
        assert scores["glue/cola"]["seeds"] == [0]
    assert len(trained) == len(set(trained)) == 2 * (3 + 1)
    assert main(["run", "s.py", "--seeds", "2", "--out", "other"]) == 0
    result = json.loads((place / "other" / "verdict.json").read_text())
    for scores in result["scores"].values():
        assert [found["seeds"] for found in scores.values()] == [[0, 1], [0, 1]]


# -- one's own file ----------------------------------------------------------------------------------------------------

OWN = """
from groundling.recipes import Table, adapt, row

MINE = dict(label="answer", data="my.csv", text="question", image="photo", seeds=1)
CONTROL = adapt("control", student="student", text=["text.txt"], arm="mlm")
TABLES = [Table("", [row("control", CONTROL, {"mine": MINE})])]
"""


def own_csv(path: Path) -> Path:
    rows = [
        f"is it {word}?,{'yes' if n % 2 else 'no'},{n}.jpg\n"
        for n, word in enumerate("abcdefghijkl")
    ]
    return homes.put(path, "question,answer,photo\n" + "".join(rows))


def test_a_recipe_names_columns_of_ones_own_file(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # F9
    own_csv(place / "my.csv")
    homes.put(place / "own.py", OWN)
    ((tuned,),) = [row.steps for row in recipe_of(Path("own.py")).tables[0].rows]
    assert (tuned.values["display_name"], tuned.values["task"]) == ("mine", "")
    assert main(["run", "own.py", "--out", "out", "--plan"]) == 0
    told = capsys.readouterr().out
    for name, value in (("text", "question"), ("label", "answer"), ("image", "photo")):
        assert re.search(rf"^ *{name} +{value}\b", told, re.MULTILINE), told
    homes.put(place / "own.py", OWN.replace('"question"', '"frage"'))
    assert main(["run", "own.py", "--out", "out"]) == 2
    assert "my.csv: no column 'frage'" in capsys.readouterr().err
    homes.put(place / "own.py", OWN.replace('"photo"', '"photo", task="glue/rte"'))
    assert main(["run", "own.py", "--out", "out"]) == 2
    assert (
        "finetune needs either task, or text and label for your own file" in capsys.readouterr().err
    )

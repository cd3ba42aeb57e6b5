"""Sweeps: what a file may say, that all that is missing is run and nothing twice, and what comes of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import homes
import pytest
import torch
from homes import STEPS, put
from safetensors.torch import load_file

from groundling.cli import main
from groundling.command_line.registered_names import published_scores as reported
from groundling.commands.adapt import ADAPTING, AdaptConfig
from groundling.commands.adapt import run as adapting
from groundling.commands.compare import COMMAND as compare
from groundling.commands.compare import TrainAndCompareConfig
from groundling.commands.finetune import TUNING, FinetuneConfig
from groundling.commands.finetune import run as tuning
from groundling.commands.sweep.file import read_sweep
from groundling.core.errors import InputError
from groundling.settings.fields import make_settings, replace_settings
from groundling.training.loop import train

SWEEPS = sorted((Path(__file__).parents[2] / "sweeps").glob("*.toml"))


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

    monkeypatch.setattr(adapting, "train", counted)
    monkeypatch.setattr(tuning, "train", counted)
    return found


FILE = """
seeds = 2
{more}
[adapt]
student = "student"
teacher = "teacher"
text = ["text.txt"]
max_length = 64
steps = 2
batch = 8
cpu = true

[tune]
steps = 2
batch = 8
cpu = true
max_length = 64

[tasks."glue/rte"]
data = "glue"

[variants."control"]
arm = "mlm"
published = "BERT-b"

[variants."all, two layers"]
arm = "xdbert"
save_joint = true
published = "XDBERT-b"

[variants."whole"]
model = "joint of all, two layers"

[variants."tower"]
model = "teacher"
tune = {{ limit_train = 12, batch = 4 }}
"""

# -- files -----------------------------------------------------------------------------------------------------------


def test_a_file_fills_the_settings_the_flags_fill(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(FILE.format(more="") + 'steps = 5\nlr = 1\ntext = ["a", "b"]\n')
    found = read_sweep(file)
    base = make_settings(
        AdaptConfig, student="student", teacher="teacher", text=("text.txt",), max_length=64
    )
    assert found.variants[0].adapt == replace_settings(base, arm="mlm")
    assert found.variants[1].adapt == replace_settings(base, arm="xdbert", save_joint=True)
    assert found.variants[1].train == replace(ADAPTING, steps=2, batch=8, cpu=True)
    assert found.variants[3].train == replace(ADAPTING, steps=5, lr=1, batch=8, cpu=True)
    assert found.variants[3].adapt.text == ("a", "b")
    assert found.variants[3].tune_settings == (("limit_train", 12), ("batch", 4))
    (only,) = found.tasks
    settings, training = only.settings_for(found.variants[3])
    assert (settings, training) == (
        replace(only.finetune, limit_train=12),
        replace(only.train, batch=4),
    )
    assert only.settings_for(found.variants[0]) == (only.finetune, only.train)
    tuning = make_settings(FinetuneConfig, task="glue/rte", data="glue", max_length=64)
    assert only.finetune == replace(tuning, save_model=False)
    assert only.train == replace(TUNING, steps=2, batch=8, cpu=True)
    assert (found.seeds, found.adapt_every_seed) == (2, False)
    assert [v.published for v in found.variants] == ["BERT-b", "XDBERT-b", "", ""]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ('arm = "mlm"', "arms = 3"),
            r'\[variants\."control"\]: unknown key \'arms\'; there are: adversarial_kl',
        ),
        (("batch = 8", 'batch = "8"'), r"\[adapt\]: batch = '8', expected a whole number"),
        (("steps = 2", "steps = true"), r"\[adapt\]: steps = True, expected a whole number"),
        (
            ('text = ["text.txt"]', "text = 3"),
            "text = 3, expected a list",
        ),
        (("seeds = 2", "seed = 2"), "unknown key 'seed'; there are: adapt"),
        (
            ("limit_train = 12", "arm = 3"),
            r'\[variants\."tower"\]\.tune: unknown key \'arm\'; there are: adapter',
        ),
        (("tune = { limit_train = 12, batch = 4 }", "tune = 3"), r"tune: 3, expected a table"),
        (("seeds = 2", "seeds ="), r"not valid TOML, .*line 2"),
        (('[tasks."glue/rte"]', "[task]"), "unknown key 'task'"),
        (('data = "glue"', ""), r"glue/rte needs `data`"),
        (('"glue/rte"', '"glue/x"'), "no task is called 'glue/x'"),
        (('arm = "mlm"', 'arm = "mlmm"'), "unknown name 'mlmm'"),
        (("seeds = 2", 'seeds = "2"'), "seeds = '2', expected a whole number"),
        (
            ("seeds = 2", "seeds = 2\nadapt_every_seed = 1"),
            "adapt_every_seed = 1, expected true or false",
        ),
        (("seeds = 2", "seeds = 2\nadapt = 3"), "not valid TOML|adapt = 3, expected a table"),
        (('[variants."control"]', "[variants]\nx = 3"), r"no \[variants.NAME\] table"),
        (
            ("[tune]", '[tune]\nmodel = "student"'),
            r"s.toml, \[tune\]: model = 'student'; put the model into the table of a variant",
        ),
        (
            ('data = "glue"', 'data = "glue"\nmodel = "student"'),
            r"s.toml, \[tasks\.\"glue/rte\"\]: model = 'student'; put the model",
        ),
        (
            ("limit_train = 12", 'model = "student"'),
            r'\[variants\."tower"\]\.tune: model = \'student\'; put the model',
        ),
        (
            ('published = "BERT-b"', 'published = "BERT"'),
            r'\[variants\."control"\]: published = \'BERT\'; there are: CLIP-T, BERT-b',
        ),
        (
            ("[tune]", "[tune]\nobjectives = [1]"),
            r"s.toml, \[tune\]: objectives = \[1\], expected a list of strings",
        ),
        (
            ("batch = 8", 'batch = 8\nschedule = "step"'),
            "schedule = step, expected one of linear, cosine, constant",
        ),
        (
            ('"joint of all, two layers"', '"joint of control"'),
            "whole: model is the joint of 'control'; expected a variant",
        ),
        (
            ('[variants."tower"]', '[variants."whole "]'),
            "two variants would share the folder whole; rename 'whole'",
        ),
        (
            ('[variants."tower"]', '[variants.".."]'),
            r"variants: '..' cannot name a folder inside the sweep's folder; rename it",
        ),
        (
            ('[variants."tower"]', '[variants."/ "]'),
            "variants: '/ ' cannot name a folder inside the sweep's folder; rename it",
        ),
    ],
)
def test_mistakes_in_a_file_are_one_line_e12(
    change: tuple[str, str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "s.toml").write_text(FILE.format(more="").replace(*change, 1))
    assert main(["sweep", "--file", "s.toml", "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert error.count("\n") == 1
    assert not (place / "out").exists()


def test_no_file_and_no_tables(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "s.toml").write_text("seeds = 3\n")
    for arguments, message in (
        (["--file", "s.toml"], "no [tasks.NAME] table"),
        ([], "needs --file"),
        (["--file", "x.toml"], "x.toml: no such file"),
    ):
        assert main(["sweep", *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.name)
def test_the_shipped_sweeps_can_be_read(file: Path) -> None:
    found = read_sweep(file)
    assert len(found.variants) > 1
    assert {v.published for v in found.variants} <= {"", *reported()}
    joints = {
        v.model.removeprefix("joint of ") for v in found.variants if v.model.startswith("joint of ")
    }
    assert joints <= {v.name for v in found.variants if v.adapt.cross_modal.save_joint}


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_process")
def test_one_adaptation_and_many_tunings(
    place: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "s.toml").write_text(FILE.format(more=""))
    assert main(["sweep", "--file", "s.toml", "--out", "out"]) == 0
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
    (place / "s.toml").write_text(
        FILE.format(more="") + '\n[variants."more"]\narm = "contrastive"\n'
    )
    assert main(["sweep", "--file", "s.toml", "--seeds", "3", "--out", "out"]) == 0
    places = [f"out/{v}/glue-rte/seed-2" for v in ("control", "all--two-layers", "whole", "tower")]
    places += [
        "out/whole/glue-rte/seed-1",
        *(f"out/more/glue-rte/seed-{s}" for s in range(3)),
        "out/more/adapt",
    ]
    assert sorted(trained) == sorted(places)

    # Other settings for what is there are refused, with the run they would overwrite.
    (place / "s.toml").write_text(FILE.format(more="").replace("steps = 2", "steps = 3", 1))
    capsys.readouterr()
    assert main(["sweep", "--file", "s.toml", "--out", "out"]) == 2
    assert re.search(
        r"control: adapt: out/control/adapt: holds another run .*steps", capsys.readouterr().err
    )


@pytest.mark.usefixtures("in_process")
def test_every_seed_may_adapt_anew(place: Path, trained: list[str]) -> None:
    (place / "s.toml").write_text(
        FILE.format(more="adapt_every_seed = true").replace('[variants."tower"]', '[variants."t"]')
    )
    assert main(["sweep", "--file", "s.toml", "--out", "out"]) == 0
    for variant in ("control", "all--two-layers"):
        assert {f"out/{variant}/seed-{s}/adapt" for s in (0, 1)} <= set(trained)
        one, two = (
            load_file(place / "out" / variant / f"seed-{s}" / "adapt/model/model.safetensors")
            for s in (0, 1)
        )
        assert any(not torch.equal(one[key], two[key]) for key in one)
    tuned = [folder for folder in trained if "glue-rte" in folder]
    assert sorted(tuned) == sorted(
        f"out/{v}/seed-{s}/glue-rte/seed-{s}"
        for v in ("control", "all--two-layers", "whole", "t")
        for s in (0, 1)
    )
    result = json.loads((place / "out" / "verdict.json").read_text())
    assert all(found["glue/rte"]["seeds"] == [0, 1] for found in result["scores"].values())
    used = json.loads((place / "out/whole/seed-1/glue-rte/config.json").read_text())["config"][
        "model"
    ]
    assert used == "out/all--two-layers/seed-1/adapt/joint"


@pytest.mark.usefixtures("in_process")
def test_compare_is_the_simplest_sweep(
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
    assert "mlm (control)" in page
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
    with pytest.raises(InputError, match="compare needs --"):
        compare(replace_settings(config, tasks=()), settings, STEPS, STEPS, "out")


TWO_TASKS = """
seeds = 1
{more}
[tune]
steps = 1
batch = 4
cpu = true
max_length = 32

[tasks."glue/rte"]
data = "glue"
seeds = 3

[tasks."glue/cola"]
data = "glue"

[variants."one"]
model = "student"

[variants."two"]
model = "student"
tune = {{ lr = 1e-3 }}
"""


def cola(folder: Path) -> None:
    rows = [f"x\t{number % 2}\t\ta dog number {number} ." for number in range(8)]
    for split in ("train", "dev"):
        homes.put(folder / "CoLA" / f"{split}.tsv", "\n".join(rows) + "\n")


@pytest.mark.parametrize("every_seed", [False, True])
@pytest.mark.usefixtures("in_process")
def test_each_task_has_as_many_seeds_as_its_own_table_says(
    every_seed: bool, place: Path, trained: list[str]
) -> None:
    # A5: nine runs of RTE and five of the others are one file; the seeds above all tables are the default.
    cola(place / "glue")
    more = "adapt_every_seed = true" if every_seed else ""
    (place / "s.toml").write_text(TWO_TASKS.format(more=more))
    assert main(["sweep", "--file", "s.toml", "--out", "out"]) == 0
    result = json.loads((place / "out" / "verdict.json").read_text())
    for scores in result["scores"].values():
        assert scores["glue/rte"]["seeds"] == [0, 1, 2]
        assert scores["glue/cola"]["seeds"] == [0]
    assert len(trained) == len(set(trained)) == 2 * (3 + 1)


@pytest.mark.usefixtures("in_process")
def test_the_seeds_flag_adds_seeds_to_every_task(place: Path, trained: list[str]) -> None:
    # A5: `--seeds` overrides what the file says, of all tasks alike
    cola(place / "glue")
    (place / "s.toml").write_text(TWO_TASKS.format(more=""))
    assert main(["sweep", "--file", "s.toml", "--seeds", "2", "--out", "out"]) == 0
    result = json.loads((place / "out" / "verdict.json").read_text())
    for scores in result["scores"].values():
        assert [found["seeds"] for found in scores.values()] == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("seeds = 1", ""), [3, 5]),
        (("[tune]", "[tune]\nseeds = 2"), [3, 2]),
        (('data = "glue"\nseeds = 3', 'data = "glue"'), [1, 1]),
        (("seeds = 1\n\n[tune]", "\n[tune]\nseeds = 1"), [3, 1]),
    ],
)
def test_the_most_special_seeds_count(
    change: tuple[str, str], expected: list[int], tmp_path: Path
) -> None:
    # A5: above all tables or in [tune] for every task, in a task's own table for this one
    (tmp_path / "s.toml").write_text(TWO_TASKS.format(more="").replace(*change, 1))
    found = read_sweep(tmp_path / "s.toml")
    assert [found.seeds_of(one) for one in found.tasks] == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("lr = 1e-3", "seeds = 2"),
            r'\[variants\."two"\]\.tune: seeds = 2; all variants have the',
        ),
        (("seeds = 1", "seeds = 0"), r"s\.toml: seeds = 0, expected at least 1"),
        (("[tune]", "[tune]\nseeds = -1"), r"\[tune\]: seeds = -1, expected at least 1"),
        (("seeds = 3", "seeds = 0"), r'\[tasks\."glue/rte"\]: seeds = 0, expected at least 1'),
    ],
)
def test_seeds_that_would_be_ignored_are_refused(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    # A5, siblings: a variant of its own number could not be compared with the others
    (tmp_path / "s.toml").write_text(TWO_TASKS.format(more="").replace(*change, 1))
    with pytest.raises(InputError, match=message) as error:
        read_sweep(tmp_path / "s.toml")
    assert "\n" not in str(error.value)


# -- one's own file ----------------------------------------------------------------------------------------------------

OWN = """
[adapt]
student = "student"
text = ["text.txt"]
[tune]
label = "answer"
data = "my.csv"
[tasks."mine"]
text = "question"
image = "photo"
[variants."control"]
arm = "mlm"
"""


def own_csv(path: Path) -> Path:
    rows = [
        f"is it {word}?,{'yes' if n % 2 else 'no'},{n}.jpg\n"
        for n, word in enumerate("abcdefghijkl")
    ]
    return homes.put(path, "question,answer,photo\n" + "".join(rows))


def test_a_sweeps_file_names_columns_of_ones_own_file(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # F9
    own_csv(place / "my.csv")
    homes.put(place / "own.toml", OWN)
    (tuning_of,) = read_sweep("own.toml").tasks
    assert (tuning_of.name, tuning_of.finetune.task) == ("mine", "")
    assert main(["sweep", "--file", "own.toml", "--out", "out", "--plan"]) == 0
    told = capsys.readouterr().out
    for name, value in (("text", "question"), ("label", "answer"), ("image", "photo")):
        assert re.search(rf"^ *{name} +{value}\b", told, re.MULTILINE), told
    homes.put(place / "own.toml", OWN.replace('"question"', '"frage"'))
    assert main(["sweep", "--file", "own.toml", "--out", "out"]) == 2
    assert "my.csv, line 1: no column 'frage'" in capsys.readouterr().err
    homes.put(place / "own.toml", OWN.replace('"photo"', '"photo"\ntask = "glue/rte"'))
    assert main(["sweep", "--file", "own.toml", "--out", "out"]) == 2
    assert "makes a task of your own file; leave out --label or --task" in capsys.readouterr().err


@pytest.mark.usefixtures("in_process")
def test_compare_takes_ones_own_file(place: Path, trained: list[str]) -> None:
    # F9
    own_csv(place / "my.csv")
    settings = make_settings(AdaptConfig, student="student", text=("text.txt",), max_length=64)
    config = make_settings(
        TrainAndCompareConfig,
        arms=("mlm",),
        data="my.csv",
        text="question",
        label="answer",
        max_length=64,
    )
    one = replace(STEPS, steps=1)
    result = compare(replace_settings(config, seeds=1), settings, one, one, "out")
    assert list(result["scores"]["mlm"]) == ["my"]
    assert trained[-1] == "out/mlm/my/seed-0"
    with pytest.raises(
        InputError,
        match="--label answer makes a task of your own file; leave out --label or --tasks",
    ):
        compare(replace_settings(config, tasks=("glue/rte",)), settings, one, one, "out")


def test_e14_a_sweep_with_a_number_of_thousands_of_digits(tmp_path: Path) -> None:
    for damage in ("9" * 5000, "[" * 10**4):
        path = put(tmp_path / "s.toml", f"seeds = {damage}\n")
        with pytest.raises(
            InputError, match=r"s.toml: not valid TOML, nested too deep, or a number"
        ):
            read_sweep(path)

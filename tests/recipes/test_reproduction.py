"""Recipes of papers: the plan compared with the paper, and a miniature that runs all of it."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tiny.commands import PAPERS, RECIPES, recipe_of, steps_by_name

from groundling.cli import main
from groundling.recipes import paper, read_printed, slug

FILE = """
from groundling.recipes import Table, data, paper, pretrain, row, settings, weights

PAPER = "A paper (Somebody, 2020)"
CLIP = weights("clip", "openai/clip-vit-base-patch32", "ViT-B/32", kind="clip")
BERT = weights("bert", "bert-base-uncased", kind="bert")
VCR = data("vcr", "nowhere/vcr", "VCR", "https://visualcommonsense.com", kind="vcr", examples=212923)
COCO = data("coco", "nowhere/coco.json", available_from="https://cocodataset.org", kind="captions", examples=82783)
IMAGES = data("images", "nowhere/images", available_from="https://cocodataset.org", kind="images")
REGIONS = data("regions", "stores/coco", kind="regions", made_by=("regions", dict(images=IMAGES, backbone=CLIP)))
DRAWN = dict(task="vcr/answer", data=VCR, per_stratum=100)
FEW = data("few", "parts/few.json", examples=700, made_by=("data partition", DRAWN))
READER = dict(model=BERT, task="vcr/answer", data=VCR, steps=20)
TEXT_ONLY = data("text-only", "text-only", made_by=("finetune", READER))
CONFIDENT = TEXT_ONLY / "seed-0/predictions_val.jsonl"
SHIFTED = data("shifted", "shifted", made_by=("data shift", dict(data=VCR, protocol="im", predictions=CONFIDENT)))
SLOW = paper("Sec. 3", lr="5.0e-5")

CAPTIONS = pretrain(
    "captions",
    paper("code", epochs="10", batch=("48", 64, "rounder")),
    architecture="visualbert",
    model=BERT,
    regions=REGIONS,
    captions=[COCO],
)
TASK = pretrain("task", SLOW, model=CAPTIONS, regions=REGIONS, task="vcr/answer", data=VCR)
TUNE = settings(paper("Sec. 4", batch="64"), seeds=2, regions=REGIONS, max_length=40, task="vcr/answer", data=VCR)
OWN = paper("Sec. 4", epochs="10", lr="2e-5", seeds="3")
SMALL = settings(TUNE, OWN, partition=FEW, extra_eval=SHIFTED.named("IM"))
TASKS = {"few": SMALL, "full": TUNE}
SCORES = {"few": 60.0, "few (IM)": 50.0, "full": 70.1}
LATER = paper("code", warmup_ratio=("10 %", 0.2, "as others do"))
PLAIN = row("plain", BERT, TASKS, architecture="visualbert", scores=SCORES)
TABLES = [
    Table("Table 1", [PLAIN, row("pretrained", TASK, TASKS, SLOW, LATER)]),
    Table("Table 2", [row("pretrained", TASK, {"full": TUNE}, SLOW, LATER)]),
]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the recipe."""
    (tmp_path / "s.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(place: Path, *flags: str) -> dict[str, Any]:
    """The content of `plan.json`."""
    assert main(["run", "s.py", "--plan", "--out", "out", *flags]) == 0
    return json.loads((place / "out/plan.json").read_text())


def jobs(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {step["name"]: step for step in plan["steps"]}


# -- what a recipe says ------------------------------------------------------------------------------------------------
def test_later_settings_replace_earlier_ones_and_notes_stay(place: Path) -> None:
    steps = steps_by_name(recipe_of(place / "s.py"))
    plain, pretrained = steps["plain: few"], steps["pretrained: few"]
    names = ("task", "display_name", "max_length", "architecture", "lr", "seeds", "save_model")
    assert [plain.values[name] for name in names] == [
        *("vcr/answer", "few", 40, "visualbert", 2e-5, 3, False)
    ]
    assert (pretrained.values["lr"], pretrained.values["warmup_ratio"]) == (5e-5, 0.2)
    assert (pretrained.notes["lr"].printed, plain.notes["lr"].printed) == ("5.0e-5", "2e-5")
    assert steps["plain: full"].values["seeds"] == 2


def test_a_chain_of_pre_training_data_and_fine_tuning_is_in_order(place: Path) -> None:
    recipe = recipe_of(place / "s.py")
    steps = recipe.steps()
    places = {step.name: number for number, step in enumerate(steps)}
    for step in steps:
        assert all(places[one.name] < places[step.name] for one in recipe.before(step))
    after = {step.name: {one.name for one in recipe.before(step)} for step in steps}
    assert after["pretrain task"] == {"pretrain captions", "data:regions: make"}
    assert after["data:shifted: make"] == {"data:text-only: make"}
    assert after["pretrained: few"] == {
        *("pretrain task", "data:few: make", "data:shifted: make", "data:regions: make")
    }
    tuned = steps_by_name(recipe)["pretrained: few"]
    own, _ = tuned.typed(recipe.place)
    assert own.model == "out/pretrain/task/model"
    assert own.extra_eval == ("IM=shifted",)
    assert recipe.place(tuned) == "out/pretrained/few"
    # Column by column: a stopped run has whole ones.
    tuned_steps = [
        name for name in places if name.startswith("pl") or name.startswith("pretrained")
    ]
    assert tuned_steps[:2] == ["plain: few", "pretrained: few"]


WITHOUT_REASON = ('("48", 64, "rounder")', '("48", 64, "")')
OTHER_BATCH = ("max_length=40", "max_length=40, batch=32")


@pytest.mark.parametrize(
    ("change", "flags", "message"),
    [
        (WITHOUT_REASON, "", "captions: batch = 64, but the paper has 48 (code); use"),
        (OTHER_BATCH, "", "batch = 32, but the paper has 64 (Sec. 4); use the"),
        (("TABLES = [", "NONE = ["), "", "s.py: KeyError: 'TABLES'"),
        ((), "--table Table9", "no table is called 'Table9'; there are: Table 1, Table 2"),
        ((), "--rows plan", "no row is called 'plan'; there are: plain, pretrained"),
        (("Table 2", "T2"), "--table T2 --rows plain", "no row is called 'plain'; there are: pre"),
    ],
)
def test_mistakes_of_a_recipe_and_its_flags_are_one_line(change, flags, message, place, capsys):
    if change:
        assert change[0] in FILE
        (place / "s.py").write_text(FILE.replace(*change, 1))
    assert main(["run", "s.py", "--plan", "--out", "out", *flags.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("groundling: ") and message in error, error
    assert error.count("\n") == 1
    assert not (place / "out").exists()


@pytest.mark.parametrize(
    ("printed", "default", "value"),
    [
        ("7.0e-5", 0.1, 7e-5),
        ("8,000", 1, 8000),
        ("10 %", 0.5, 0.1),
        ("0.9, 0.98", (0.9, 0.999), (0.9, 0.98)),
        ("14, 18, 26", (), (14, 18, 26)),
        ("4 to 8", 1, "4 to 8"),
        ("0.9, 0.98", 0.1, "0.9, 0.98"),
        ("1.2.3", 0.1, "1.2.3"),
        ("SGD", "adamw", "sgd"),
        ("td_image, td_text", (), ("td_image", "td_text")),
        ("yes", False, True),
        ("no", True, False),
    ],
)
def test_printed_values_are_read_as_what_they_are(printed, default, value):
    assert read_printed(printed, default) == value


def test_a_paper_value_agrees_if_it_runs() -> None:
    notes = paper("Sec. 1", lr="2e-5", batch=("4", 32, "per GPU"), keep_best=("yes", "biased"))
    assert notes["lr"].value("lr", 0.1) == 2e-5
    assert (notes["batch"].value("batch", 1), notes["batch"].agrees(1)) == (32, False)
    assert (notes["keep_best"].value("keep_best", False), notes["keep_best"].agrees(False)) == (
        True,
        True,
    )


# -- plans -------------------------------------------------------------------------------------------------------------
def test_a_plan_tells_steps_settings_and_what_is_missing(place, capsys):
    (place / "nowhere").mkdir()
    (place / "nowhere/coco.json").write_text("{}")
    plan = planned(place)
    said = capsys.readouterr().out
    states = {one["name"]: one["state"] for one in plan["inputs"]}
    assert states["data:coco"] == "present"
    assert states["data:vcr"] == "missing"
    assert states["data:few"] == states["data:regions"] == "made here"
    assert states["weights:bert"] == "hub id"
    (coco,) = [line for line in said.splitlines() if line.startswith("data:coco ")]
    assert "https://visualcommonsense.com" in said and "https" not in coco
    found = jobs(plan)
    steps = {name: found[name]["optimizer_steps"] for name in found}
    assert steps["plain: few"] == 10 * 700 // 64
    assert steps["plain: full"] == 3 * 212923 // 64
    assert steps["pretrain captions"] == 10 * 82783 // 64
    assert steps["data:text-only: make"] == 20
    assert steps["data:few: make"] is None
    assert found["plain: few"]["seeds"] == 3
    settings = found["plain: few"]["settings"]
    assert settings["lr"] == {"here": "2e-5", "paper": "2e-5", "where": "Sec. 4", "mark": "same"}
    assert settings["partition"]["mark"] == "input"
    settings = found["pretrained: full"]["settings"]
    assert settings["warmup_ratio"]["mark"] == "differs: as others do"
    assert settings["schedule"]["mark"] == "ours"
    row = (
        "^warmup_ratio +0.2 +10 % +code +differs: as others do +pretrained: few, pretrained: full$"
    )
    assert re.search(row, said, re.MULTILINE)
    assert not list(place.glob("out/*/*"))


def test_a_plan_of_some_rows_has_what_these_need_alone(place: Path) -> None:
    assert set(jobs(planned(place, "--table", "Table 2"))) == {
        *("data:regions: make", "pretrain captions", "pretrain task", "pretrained: full")
    }
    found = jobs(planned(place, "--rows", "plain", "--seeds", "1"))
    assert "pretrain task" not in found and "pretrained: few" not in found
    assert (
        found["plain: few"]["settings"]["seeds"]["mark"] == "differs: changed on the command line"
    )


@pytest.mark.usefixtures("place")
def test_a_plan_needs_no_torch() -> None:
    program = (
        "import sys; from groundling.cli import main; "
        "assert main(['run', 's.py', '--plan']) == 0; "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


# -- runs --------------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("place")
def test_what_is_missing_is_told_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "s.py", "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(
        "groundling: data:\\w+: nowhere/\\S+ does not exist; obtain it: https://\\S+ "
        "\\(--plan lists all\\)\n",
        error,
    )
    assert not Path("out").exists()


@pytest.mark.usefixtures("in_process", "few_asked")
def test_a_miniature_runs_every_job(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(place)
    assert main(["run", "s.py", "--miniature", "--out", "mini"]) == 0
    said = capsys.readouterr().out
    for name in jobs(plan):
        assert f"\n{name}: " in said or name == "data:regions: make"
    assert "note: data:regions: uses a stand-in instead of `regions`" in said
    # Runs of one task at two sizes are separate; shifted files are next to the standard ones.
    table = json.loads((place / "mini/tables/Table-1/verdict.json").read_text())
    assert list(table["scores"]["plain"]) == ["few", "few (IM)", "full"]
    assert table["control"] == "plain"
    assert list(json.loads((place / "mini/tables/Table-2/verdict.json").read_text())["scores"]) == [
        "pretrained"
    ]
    result = json.loads((place / "mini/plain/few/seed-0/result.json").read_text())
    assert (result["task"], result["display_name"], result["steps"]) == ("vcr/answer", "few", 2)
    assert json.loads((place / "mini/stand-ins/made/few.json").read_text())["per_stratum"] == 4
    page = (place / "mini/tables/Table-1/verdict.html").read_text()
    assert "published" in page and "50.0" in page


@pytest.mark.usefixtures("in_process")
def test_a_kind_that_nothing_stands_in_for(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for change, message in (
        ("", "data:vcr: a stand-in needs a `kind`"),
        (', kind="vcrr"', "data:vcr: kind = 'vcrr'; there are: vqa, vcr"),
    ):
        (place / "s.py").write_text(FILE.replace(', kind="vcr"', change, 1))
        assert main(["run", "s.py", "--miniature", "--out", "out"]) == 2
        assert message in capsys.readouterr().err


# -- the papers' files -------------------------------------------------------------------------------------------------
def plan_of(name: str, place: Path, *flags: str) -> dict[str, dict[str, Any]]:
    out = place / "plan"
    assert main(["run", str(RECIPES / name), "--plan", "--out", str(out), *flags]) == 0
    return jobs(json.loads((out / "plan.json").read_text()))


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, dict[str, Any]]]:
    """The whole plan of a paper's file, made once."""
    place = tmp_path_factory.mktemp("plans")
    return cache(lambda name: plan_of(name, place / name))


def told(job: dict[str, Any], *names: str) -> list[str]:
    return [job["settings"][name]["here"] for name in names]


@pytest.mark.parametrize("file", PAPERS, ids=lambda file: file.name)
def test_every_deviation_has_its_reason(file: Path, plans: Any) -> None:
    plan = plans(file.name)
    marks = [row["mark"] for job in plan.values() for row in job["settings"].values()]
    assert {mark.partition(":")[0].partition(";")[0] for mark in marks} == {
        *("same", "differs", "ours", "input")
    }
    assert all(len(mark) > len("differs: ") for mark in marks if mark.startswith("differs"))


QUESTIONS = 212_923
"""Of VCR's training split."""
CAPTIONS = 566_747
"""Of Karpathy's train and restval."""
COUNTS = {
    # optimizer steps, and the steps of the plan that take as many; `test_official_settings` derives the settings
    "uniter.py": {
        45_000: ["pretrain VCR, base", "pretrain VCR, large"],
        8000: ["VCR--base: VCR", "NLVR2--base--all-data: NLVR2", "NLVR2--base--in-domain: NLVR2"],
        5000: ["VQA--large: VQA", "NLVR2--large--all-data: NLVR2"],
    },
    "villa.py": {8000: ["VCR--base--UNITER: VCR"], 10_000: ["VCR--large--VILLA: VCR"]},
    # the paper's first version, Sec. 4; jackroos/VL-BERT, cfgs/, whose step has 128 of each kind of text
    "vlbert.py": {
        129_622: ["pretrain first, pixels", "pretrain first, stored", "pretrain a", "pretrain c"],
        2 * 129_622: ["pretrain base, pixels", "pretrain large, stored"],
        20 * QUESTIONS // 256: ["VL-BERT: VCR Q to A", "VL-BERT: VCR QA to R"],
        20 * 443_757 // 256: ["VL-BERT--stored: VQA"],
        20 * 120_191 // 256: ["VL-BERT: RefCOCO+ annotated", "VL-BERT: RefCOCO+ detected"],
        20 * QUESTIONS // 64: ["Code--large: Code: VCR Q to A", "Code--base: Code: VCR QA to R"],
        5 * 443_757 // 256: ["Code--base--stored: Code: VQA", "Code--large--stored: Code: VQA"],
        20 * 120_191 // 32: ["Code--base: Code: RefCOCO+ annotated"],
        10 * QUESTIONS // 64: ["a--words: Half: VCR Q to A"],
        5 * 443_757 // 512: ["Code--base: Half: VQA"],
        10 * 120_191 // 32: ["c--words--regions--relation: Half: RefCOCO+ detected"],
    },
    # Appendix B and uclanlp/visualbert, visualbert/configs; VCR's phase: 8 texts of each question once
    "visualbert.py": {
        10 * CAPTIONS // 48: ["pretrain VQA, COCO"],
        10 * CAPTIONS // 128: ["pretrain VCR, COCO"],
        10 * CAPTIONS // 64: ["pretrain NLVR2, COCO"],
        10 * CAPTIONS // 32: ["pretrain Flickr30k, COCO"],
        69_337: ["pretrain VQA, task", "VQA--VisualBERT: VQA"],
        8 * QUESTIONS // 32: ["pretrain VCR, task", "VCR--VisualBERT: VCR Q-A"],
        12 * QUESTIONS // 32: ["VCR--VisualBERT: VCR QA-R"],
        13_495: ["pretrain NLVR2, task", "NLVR2--VisualBERT: NLVR2"],
        46_535: ["pretrain Flickr30k, task"],
        5 * 427_193 // 92: ["Flickr30k--VisualBERT: Flickr30k"],
    },
}
BESIDE = {
    # settings that no file of the authors gives in these units
    "uniter.py": {
        "VCR--base: VCR": {"max_length": "220", "batch_tokens": "4000"},
        # a third of the code's tokens, which count a VCR text three times
        "pretrain VCR, base": {"batch_tokens": "2048", "gradient_accumulation_steps": "16"},
        "VQA--base: VQA": {"train_splits": "train nominival"},
    },
    "villa.py": {
        "VCR--base--VILLA: VCR": {"batch_tokens": "4000"},
        "VCR--large--VILLA: VCR": {"batch_tokens": "2000"},
    },
    "vlbert.py": {"VL-BERT: VCR Q to A": {"head_loss": "ce"}},
}


@pytest.mark.parametrize("file", COUNTS)
def test_a_plan_counts_the_papers_steps(file: str, plans: Any) -> None:
    plan = plans(file)
    assert {job["seeds"] for job in plan.values()} == {1}
    for steps, names in COUNTS[file].items():
        for name in names:  # half steps are rounded down, as in a run
            assert abs(plan[name]["optimizer_steps"] - steps) <= 1, name
    for name, expected in BESIDE.get(file, {}).items():
        assert dict(zip(expected, told(plan[name], *expected), strict=True)) == expected
    if file == "uniter.py":
        assert plan["VCR--large: VCR"]["after"] == ["pretrain VCR, large"]
        # A VCR text counts once here, and three times in the code's pre-training.
        for size in ("base", "large"):
            tokens_of = {f"VCR--{size}: VCR": 4000 * 4 * 5, f"pretrain VCR, {size}": 2048 * 4 * 4}
            for name, tokens in tokens_of.items():
                values = told(plan[name], "batch_tokens", "gradient_accumulation_steps")
                assert math.prod(map(int, values)) == tokens
    for name, job in plan.items() if file == "visualbert.py" else ():
        fixed = "fixed" in name or "alone" in name or "w-o-COCO" in name
        assert ("images" in job["settings"]) == ("VCR" in name and not fixed), name


TEXT_TASKS = "RTE|MRPC|STS-B|CoLA|SST-2|QNLI|QQP|MNLI|SWAG"
LARGE = "|".join(f"{task}, large" for task in [*TEXT_TASKS.split("|"), "READ"])
FOUND = [
    # file, table, its rows and columns; a row, a column and their published score
    ("vlbert.py", "Table 2", 2, "VCR Q to A|VCR QA to R", "VL-BERT", "VCR QA to R", 74.5),
    ("vlbert.py", "Table 3", 2, "VQA", "VL-BERT, stored", "VQA", 70.5),
    (
        *("vlbert.py", "Table 4", 2, "RefCOCO+ annotated|RefCOCO+ detected"),
        *("w/o pre-training", "RefCOCO+ detected (testB)", 55.55),
    ),
    ("clip_td.py", "Table 1", 11, "VCR 700|VCR 7000|VCR full", "VILLA", "VCR full (SM)", 75.43),
    ("clip_td.py", "Table 2", 9, "VCR 700|VCR 7000|VCR full", "VL-BERT, TS", "VCR 700", 46.28),
    ("clip_td.py", "Table 3", 4, "VCR 700|VCR 7000", "VL-BERT, CLIP-TD 16 (S)", "VCR 700", 52.43),
    ("clip_td.py", "Table 5", 11, "VE 3000|VE 30000|VE full", "VE, VILLA", "VE full (test)", 79.32),
    ("clip_td.py", "Table 6", 8, "VQA 100|VQA 1000|VQA full", "VQA, UNITER-L", "VQA 1000", 64.43),
    ("clip_td.py", "Table 8", 15, "VCR 700|VCR 7000|VCR full", "VL-BERT, CW", "VCR 7000", 58.93),
    ("clip_td.py", "Table 11", 5, "VCR 700|VCR 7000|VCR full", "CLIP, attention", "VCR 700", 34.41),
    ("clip_td.py", "Table 10", 4, "VCR full", "UNITER-B", "VCR full (EM)", 69.42),
    ("xdbert.py", "Table 8, BERT-b", 2, TEXT_TASKS, "XBERT-b", "MNLI", 84.62),
    ("xdbert.py", "Table 1, ELECTRA-l", 2, LARGE, "XDELECTRA-l", "READ, large", 0.635),
    (
        "xdbert.py",
        "Table 3",
        7,
        "RTE|MRPC|STS-B|CoLA, rate 1e-4",
        "XDBERT-b",
        "CoLA, rate 1e-4",
        56.27,
    ),
]


@pytest.mark.parametrize(("file", "table", "rows", "columns", "row", "column", "score"), FOUND)
def test_tables_have_the_papers_rows_columns_and_scores(
    file: str, table: str, rows: int, columns: str, row: str, column: str, score: float
) -> None:
    (found,) = recipe_of(file, table=table).tables
    assert (len(found.rows), found.columns) == (rows, columns.split("|"))
    (one,) = [one for one in found.rows if one.name == row]
    assert one.scores[column] == score


CLIP_TD = {
    # student: optimizer, rate, warm-up, steps on VCR's 700, 7,000 and 212,923 questions (Section 9.2)
    "VL-BERT": ("sgd", "0.00896", "1000", (164, 1640, 49903)),
    "UNITER-B": ("adamw", "6e-5", "800", (8000, 8000, 8000)),
    "UNITER-L": ("adamw", "6e-5", "800", (8000, 8000, 8000)),
    "VILLA": ("adamw", "6e-5", "1000", (10000, 10000, 10000)),
}
NAIVE = "td_image td_text"
SELECTED = "td_image td_text td_words"
ROWS = {
    # row of Tables 1, 2 and 8: teacher, terms, weight, words, gate, choices, adaptive finetuning
    "VL-BERT--naive-V": ("ViT-B/32", "td_image", "0.05", "", "", "", False),
    "VL-BERT--naive-L": ("ViT-B/32", "td_text", "0.05", "", "", "", False),
    "VL-BERT--naive-VL": ("ViT-B/32", NAIVE, "0.05", "", "", "", False),
    "VL-BERT--naive-VL--weight-1.0": ("ViT-B/32", NAIVE, "1", "", "", "", False),
    "VL-BERT--naive-VL--weight-0.5": ("ViT-B/32", NAIVE, "0.5", "", "", "", False),
    "VL-BERT--naive-VL--weight-0.1": ("ViT-B/32", NAIVE, "0.1", "", "", "", False),
    "VL-BERT--naive-VL--weight-0.01": ("ViT-B/32", NAIVE, "0.01", "", "", "", False),
    "VL-BERT--RTS": ("ViT-B/32", SELECTED, "0.05", "2", "", "", False),
    "VL-BERT--TS": ("ViT-B/32", SELECTED, "0.05", "2", "", "", False),
    "VL-BERT--TS--1-word": ("ViT-B/32", SELECTED, "0.05", "1", "", "", False),
    "VL-BERT--TS--3-words": ("ViT-B/32", SELECTED, "0.05", "3", "", "", False),
    "VL-BERT--CW": ("ViT-B/32", NAIVE, "0.05", "", "question", "all", False),
    "VL-BERT--CW--right-answer": ("ViT-B/32", NAIVE, "0.05", "", "question", "right", False),
    "VL-BERT--AF": ("ViT-B/32", NAIVE, "0.05", "", "", "", True),
    "VL-BERT--CLIP-TD-32": ("ViT-B/32", SELECTED, "0.05", "2", "question", "all", True),
    "VL-BERT--CLIP-TD-16": ("ViT-B/16", SELECTED, "0.05", "2", "question", "all", True),
    "UNITER-B--CLIP-TD-32": ("ViT-B/32", SELECTED, "0.05", "2", "question", "all", True),
    "UNITER-L--CLIP-TD-16": ("ViT-B/16", SELECTED, "0.05", "2", "question", "all", True),
    "VILLA--CLIP-TD-16": ("ViT-B/16", SELECTED, "0.05", "2", "question", "all", True),
}
SIZES = {"VCR 700": 700, "VCR 7000": 7000, "VCR full": 212923}


def test_clip_tds_plan_has_the_papers_numbers(plans: Any) -> None:
    plan = plans("clip_td.py")
    for student, (optimizer, rate, warmup, steps) in CLIP_TD.items():
        for size, expected in zip(SIZES, steps, strict=True):
            job = plan[f"{student}: {size}"]
            assert (job["examples"], job["optimizer_steps"]) == (SIZES[size], expected)
            assert told(job, "optimizer", "lr", "warmup_steps") == [optimizer, rate, warmup]
            assert "teacher" not in job["settings"]
            if "batch_tokens" in job["settings"]:
                tokens, times = map(int, told(job, "batch_tokens", "gradient_accumulation_steps"))
                assert tokens * times == 80_000
    assert told(plan["VL-BERT: VCR full"], "epochs", "milestones", "batch") == [
        *("30", "14 18 26", "128")
    ]
    assert told(plan["VILLA: VCR full"], "training_step", "adversarial_lr") == ["villa", "0.1"]
    for row, expected in ROWS.items():
        settings = plan[f"{row}: VCR full"]["settings"]
        names = ("teacher", "objectives", "td_weight", "num_words", "td_gate", "td_choices")
        found = [settings[name]["here"] if name in settings else "" for name in names]
        assert (*found, "pretrain" in settings["model"]["here"]) == expected, row
    assert told(plan["VL-BERT--RTS: VCR 700"], "word_selection") == ["random"]
    for name, job in plan.items():
        assert ("(S)" in job["name"] or "-S" in name) == (
            "unlabelled_per_labelled" in job["settings"]
        )
    assert told(plan["VL-BERT--TS: VCR 700"], "extra_eval") == [
        "SM=VCR, shortcuts mitigated EM=VCR, explicit mitigation IM=VCR, implicit mitigation"
    ]


ABLATIONS = {
    # the one setting of pre-training on COCO in which an ablation differs from the full model (Table 7)
    "C1, COCO's texts": "grounded",
    "C2, COCO": "early_fusion",
    "C3, COCO": "random_init",
    "C4, COCO": "sentence_image",
}


def test_visualberts_ablations_share_one_budget(tmp_path: Path) -> None:
    """B15: every arm of Table 7 has the full model's steps, rates, boxes and phases, except what it ablates."""
    plan = plan_of("visualbert.py", tmp_path, "--table", "Table 7")

    def here(name: str) -> dict[str, str]:
        rows = plan[name]["settings"]
        return {
            key: row["here"] for key, row in rows.items() if key not in ("architecture", "model")
        }

    full = here("pretrain C, COCO")
    for name, setting in ABLATIONS.items():
        ablated = here(f"pretrain {name}")
        changed_ones = {key for key in full.keys() | ablated if full.get(key) != ablated.get(key)}
        assert changed_ones == {setting}, name
        assert plan[f"pretrain {name}"]["optimizer_steps"] == 10 * CAPTIONS // 64
    phases = [here(name) for name in plan if name.startswith("pretrain") and "task" in name]
    tuned = [here(name) for name in plan if not name.startswith("pretrain")]
    assert (len(phases), len(tuned)) == (6, 6)
    assert all(one == phases[0] for one in phases) and all(one == tuned[0] for one in tuned)
    (table,) = recipe_of("visualbert.py", table="Table 7").tables
    printed = [row.scores["NLVR2 with 36 regions"] for row in table.rows]
    assert printed == [66.7, 63.9, 62.9, 61.4, 64.7, 64.9]


XDBERT = {
    # by job: epochs, steps, cross layers, text, rate (Sec. 2.3, 5, App. C.1, Table 3; the release's script)
    "XDBERT-b: adapt": ("1", 803, "2", "wiki103", "0.0001"),
    "ELECTRA-l: adapt": ("1", 803, "2", "wiki103", "0.0001"),
    "1-cross-attention-layer: adapt": ("1", 803, "1", "wiki103", "0.0001"),
    "2-epochs: adapt": ("2", 1607, "2", "wiki103", "0.0001"),
    "20-epochs: adapt": ("20", 16071, "2", "wiki103", "0.0001"),
    "wiki--14G---same-steps: adapt": ("", 16000, "2", "wiki (14G)", "0.0001"),
    "XDBERT-b--released: adapt": ("25", 10986, "2", "wiki103", "5e-5"),
}
RATES = {
    # task: rates of base and large (Table 5), seeds, training examples
    "RTE": ("0.0001", "5e-5", 9, 2490),
    "MRPC": ("0.0001", "5e-5", 5, 3668),
    "STS-B": ("0.0001", "5e-5", 5, 5749),
    "CoLA": ("2e-5", "1e-5", 5, 8551),
    "SST-2": ("2e-5", "1e-5", 5, 67349),
    "QNLI": ("2e-5", "1e-5", 5, 104743),
    "QQP": ("2e-5", "1e-5", 5, 363846),
    "MNLI": ("2e-5", "1e-5", 5, 392702),
    "SWAG": ("2e-5", "1e-5", 5, 73546),
}


def test_xdberts_plan_has_the_papers_numbers(plans: Any) -> None:
    """A4: blocks of 512, 9 windows, a 40-epoch schedule, the 20-epoch row's steps, Table 5's rates, 9 seeds of RTE."""
    plan = plans("xdbert.py")
    for name, (epochs, steps, layers, text, rate) in XDBERT.items():
        job = plan[name]
        assert (job["optimizer_steps"], job["seeds"]) == (steps, 1)
        assert told(job, "cross_layers", "text", "lr", "warmup_ratio") == [
            layers,
            text,
            rate,
            "0.05",
        ]
        assert told(job, "max_length", "max_windows", "text_layout") == ["512", "9", "blocks"]
        assert "epochs" not in job["settings"] or told(job, "epochs") == [epochs]
    batch, schedule_steps = map(int, told(plan["XDBERT-b: adapt"], "batch", "schedule_steps"))
    assert batch == pytest.approx(225_000 * 20 / 16_000, abs=2)
    assert schedule_steps == pytest.approx(
        40 * plan["XDBERT-b: adapt"]["optimizer_steps"], rel=0.01
    )
    assert told(plan["XDBERT-b--released: adapt"], "schedule_steps", "batch", "optimizer") == [
        *("139600", "512", "bertadam")
    ]
    for task, (base, large, seeds, examples) in RATES.items():
        for row in ("BERT-b", "XDBERT-b", "XBERT-b", "XDELECTRA-b"):
            job = plan[f"{row}: {task}"]
            assert (told(job, "lr")[0], job["seeds"], job["examples"]) == (base, seeds, examples)
            assert job["optimizer_steps"] == 3 * examples // 32
        for row in ("ELECTRA-l", "XDELECTRA-l", "XELECTRA-l"):
            job = plan[f"{row}: {task}, large"]
            assert (*told(job, "lr", "max_length"), job["seeds"]) == (large, "128", seeds)
    assert plan["XBERT-b: RTE"]["settings"]["model"]["here"].endswith("XDBERT-b/adapt/joint")
    assert told(plan["2-epochs: CoLA, rate 1e-4"], "lr") == ["0.0001"]
    assert told(plan["XDBERT-b--released: RTE, released"], "cls_without_pooler", "lr") == [
        "yes",
        "0.0001",
    ]
    assert "ELECTRA-l: READ, large" in plan and "BERT-b: READ" not in plan


FEWER = {
    "clip_td.py": "VL-BERT, CLIP-TD 32|CLIP, MLP 1, concat|CLIP, attention|VE, VILLA, CLIP-TD|VQA, VL-BERT",
    "uniter.py": "VQA, base|VCR, base|SNLI-VE, base|NLVR2, base, all data|RefCOCO+, base",
    "villa.py": "VCR, base, VILLA|SNLI-VE, base, VILLA|NLVR2, base, VILLA",
    "visualbert.py": "VQA, VisualBERT|VCR, VisualBERT|VCR, fixed ResNet|NLVR2, VisualBERT|"
    "Flickr30k, VisualBERT|C, VisualBERT|C3, w/o BERT initialization|Code, VCR",
    "vlbert.py": "VL-BERT|VL-BERT, stored|Code: base, stored|(b) words, regions",
    "xdbert.py": "CLIP-T|ELECTRA-l|MLM+MATCH|XDBERT-b, released",
}
"""Rows of a file with a long miniature, one of each kind; others have the same jobs with other settings."""


@pytest.mark.parametrize("file", PAPERS, ids=lambda file: file.name)
@pytest.mark.usefixtures("in_process", "few_asked")
def test_a_papers_miniature_runs_every_job(file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = FEWER[file.name].split("|")
    plan = plan_of(file.name, tmp_path, "--rows", *rows)
    capsys.readouterr()
    assert main(["run", str(file), "--miniature", "--out", "mini", "--rows", *rows]) == 0
    done = set(re.findall(r"^(.*): \d+ s$", capsys.readouterr().out, re.MULTILINE))
    assert done == set(plan)
    for table in recipe_of(file).tables:
        wanted = [row.name for row in table.rows if row.name in rows]
        verdict = tmp_path / "mini/tables" / slug(table.name) / "verdict.json"
        assert verdict.exists() == bool(wanted)
        scores = json.loads(verdict.read_text())["scores"] if wanted else {}
        assert list(scores) == wanted
        assert all(set(table.columns) <= set(by_task) for by_task in scores.values())

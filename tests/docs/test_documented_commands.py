"""Every documented command runs, in order, on small stand-ins for the models and data that it names.

A7: while tests replaced the recipes, nothing saw that a command lacked a flag, or that two of them shared one --out.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import documents
import pytest
from documents import PAGES, ROOT, TypedCommand
from tiny import standins
from tiny.recipes import FILES, recipe_of
from tiny.small_commands import REPRODUCTIONS, smaller

from groundling.cli import main
from groundling.studies.xdbert.diversity import attention_report

NEEDS_RESULTS = "results.md runs it, behind the commands whose outputs it reads"
NEEDS_DATA = "needs real data; another command of the page runs the same on stand-ins"
OF_A_BENCH = "reads the folder of a bench, which takes hours; clip_td.md adapts to the same oracle"
NOT_RUN = {
    (
        "results.md",
        "groundling quickstart --full --seed 0 --out runs/quickstart-0",
    ): "renders 32,000 images; test_quickstart.py has fewer",
    (
        "results.md",
        "groundling quickstart --full --seed 0 --out runs/quickstart",
    ): "uses a stand-in instead of",
    (
        "bench.md",
        "groundling bench-real --student minilm --teacher runs/teacher/model --captions "
        "flickr8k/subset2000.token.txt --images flickr8k/images --facts coda_annotations.jsonl memory_colors.jsonl "
        "--modes linear --words EN-RG-65.txt --retention-pairs stsb_dev_300.tsv --steps 100 --batch 16 --lr 1e-4 "
        "--max-length 32 --cpu --processes 1 --method contrastive --adapt-seeds 3 --out runs/real",
    ): NEEDS_DATA,
    (
        "bench.md",
        "groundling bench-real --student minilm --teacher runs/teacher6/model --captions "
        "flickr8k/subset2000.token.txt --images flickr8k/images --facts coda_annotations.jsonl --modes linear "
        "--retention-pairs stsb_dev_300.tsv --tasks glue/sst-2 --data glue --task-seeds 1 --limit-train 500 "
        "--steps 100 --batch 16 --lr 1e-4 --max-length 32 --cpu --method lexi_contrastive caption_to_image "
        "--adapt-seeds 3 --out runs/real6",
    ): NEEDS_DATA,
    (
        "results.md",
        "groundling adapt --student runs/bench/shared/objects-0/making/encoder/model --text "
        "runs/bench/shared/objects-0/handed/corpus.txt --arm mlm+l1 --teacher groundling.studies.worlds.oracle:ORACLE "
        "--option world=runs/bench/shared/objects-0/private noise=0.5 --steps 300 --batch 64 --lr 2e-3 --warmup-ratio "
        "0.05 --max-length 32 --cpu --out runs/carries/l1",
    ): OF_A_BENCH,
    (
        "results.md",
        "groundling probe --model runs/carries/l1/model --data runs/bench/shared/objects-0/private --questions truth "
        "--steps 1 --seeds 1 --cpu --out runs/carries/l1-probe",
    ): OF_A_BENCH,
    ("papers.md", "groundling run recipes/real.py --out runs/real"): NEEDS_RESULTS,
    (
        "papers.md",
        "groundling run recipes/table3_world.py --out runs/table3",
    ): NEEDS_RESULTS,
}
"""Documented commands that do not run here, with the reason."""


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return standins.shelf(tmp_path_factory.mktemp("standins"))


@pytest.fixture
def place(request: pytest.FixtureRequest, shelf: Path, tmp_path: Path, monkeypatch) -> Path:
    """A working folder with the stand-ins of a document, and the recipes with one small step a run."""
    page = request.getfixturevalue("page")
    standins.put_down(shelf, page.name, tmp_path)
    documents.write_modules(page, tmp_path)
    for path in FILES:
        text = path.read_text()
        if path.name not in REPRODUCTIONS:
            text = re.sub(r"\b(steps|epochs)=\d+( if folder.*? else 10)?", "steps=1", text)
            text = re.sub(r"\bbatch=\d+", "batch=4", text)
            text = re.sub(r"\bper_stratum=\d+", "per_stratum=4", text)
            text = text.replace("SEEDS = 5", "SEEDS = 1")
        standins.put(tmp_path / "recipes" / path.name, text)
    example = "examples/my_recipe.py"
    standins.put(tmp_path / example, (ROOT / example).read_text())
    few = partial(attention_report, draws=50, min_texts=standins.SENTENCES)
    monkeypatch.setattr("groundling.studies.xdbert.diversity.attention_report", few)
    monkeypatch.setattr("groundling.studies.attention.figures.DPI", 60)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "page",
    # test_paths.py walks the README's.
    [page for page in PAGES if documents.commands(page) and page.name != "README.md"],
    ids=lambda p: p.name,
)
@pytest.mark.usefixtures("in_process", "few_asked")  # a process costs five seconds of imports
def test_every_command_of_a_document_runs(
    page: Path, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    failures = []
    planned: set[tuple[str, str]] = set()
    for command in documents.commands(page):
        if not command.is_whole or (page.name, command.line) in NOT_RUN:
            continue
        if _is_another_part(command, planned):
            continue
        words = smaller(command)
        try:
            status: object = main(words)
        except SystemExit as stop:  # flags that do not exist
            status = stop.code
        complaint = capfd.readouterr().err.strip()
        if status != 0:
            failures.append(f"{command.line}\n    {complaint[-500:]}")
        elif (
            "--out" in words
            and not (words[0] == "bench" and "--plan" in words)  # it writes nothing
            and not (place / words[words.index("--out") + 1]).exists()
        ):
            failures.append(f"{command.line}\n    wrote nothing to its --out")
    assert not failures, "\n" + "\n".join(failures)


def _is_another_part(command: TypedCommand, planned: set[tuple[str, str]]) -> bool:
    """Whether this plans one more table or row of a file, one of which was planned; it has to be there."""
    part = re.search(
        r"""recipes/(\S+\.py) --(table|rows) ["']([^"']+)["'] --out \S+$""", command.line
    )
    if not part or part[1] not in REPRODUCTIONS:
        return False
    file, flag, name = part.groups()
    chosen = {"table": name} if flag == "table" else {"rows": (name,)}
    assert recipe_of(file, **chosen).tables, command.line
    if (file, flag) in planned:
        return True
    planned.add((file, flag))
    return False


def test_commands_that_do_not_run_are_still_documented() -> None:
    every = [command for page in PAGES for command in documents.commands(page)]
    assert set(NOT_RUN) <= {(command.page, command.line) for command in every}


def test_commands_are_written_as_code() -> None:
    """Or nobody would find them: a paragraph that was meant as a block once hid three."""
    names = {command.name.split()[0] for page in PAGES for command in documents.commands(page)}
    typed = re.compile(rf"\bgroundling (?:{'|'.join(names)}) ")
    for page in PAGES:
        for is_block, text in documents.parts(page.read_text(encoding="utf-8")):
            if not is_block:
                assert typed.findall(re.sub(r"`[^`]+`", "", text)) == [], (page.name, text)


def test_no_command_is_overlooked(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [command for page in PAGES for command in documents.commands(page)]
    assert len(commands) > 90
    main(["--help"])
    listed = set(re.findall(r"^  (\w+) ", capsys.readouterr().out, re.MULTILINE))
    assert len(listed) > 15
    # A rendered world is probed by the quickstart, so nobody has to type `probe`.
    assert listed - {command.name.split()[0] for command in commands} <= {"probe"}


def test_the_same_with_another_flag_means_the_last_full_command(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "| a | `groundling adapt --arm mlm --text a b --out x` |\n"
        "| b | the same with `--arm l1 --out y` |\n"
        "| c | the same with `--text c --whole-word --out z` |\n"
        "| d | `groundling info bert` |\n"
        "| e | the full model's `adapt` with `--out w`, then `finetune` |\n"
        "and the `info` above with `--json`.\n\n"
        "    groundling regions \\\n        photos  # boxes\n\n"
        "Then `groundling finetune --task NAME` or\n    `groundling vcr`, ``groundling adapt ...`.\n"
    )
    found = documents.commands(page)
    assert [command.line for command in found] == [
        "groundling adapt --arm mlm --text a b --out x",
        "groundling adapt --arm l1 --text a b --out y",
        "groundling adapt --arm mlm --text c --out z --whole-word",
        "groundling info bert",
        "groundling adapt --arm mlm --text a b --out w",
        "groundling info bert --json",
        "groundling regions photos",
        "groundling vcr",
        "groundling adapt ...",
    ]
    assert [command.is_whole for command in found] == [True] * 7 + [False] * 2

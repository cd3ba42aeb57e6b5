"""What documents tell their reader to run, on small stand-ins: every page's commands and outputs, and notebooks."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import documents
import pytest
from documents import PAGES, ROOT, TypedCommand
from tiny import standins
from tiny.commands import FILES, REPRODUCTIONS, recipe_of, smaller
from tiny.homes import digests

from groundling.cli import main
from groundling.studies.worlds.language import ROWS

NOT_RUN = {
    "groundling bench-real --student minilm": "needs real data; another command of the page runs the same",
    "groundling bench-real --student kit/": "needs real data; bench_real.md runs the same",
    "runs/carries/l1": "reads the folder of a bench, which takes hours; clip_td.md adapts to the same oracle",
    "recipes/real.py --out runs/real": "results.md runs it, behind the commands whose outputs it reads",
    "recipes/table3_world.py --out runs/table3": "results.md runs it",
    "recipes/real.py --processes 2": "results.md runs it",
    "groundling quickstart": "renders thousands of images; test_quickstart.py has fewer",
}
"""What commands that do not run here have in them, and the reason."""


NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?(e-?\d+)?")


def is_run(command: TypedCommand) -> bool:
    """Whether the command is run here; a recipe only on the page that makes its inputs."""
    found = [part for part in NOT_RUN if part in command.line]
    by_results = any("results.md" in NOT_RUN[part] for part in found)
    return command.is_whole and (not found or (by_results and command.page == "results.md"))


@pytest.fixture(scope="module")
def few_rows() -> Iterator[None]:
    """A tenth of a world's questions: they are written for every world, and read after every probe."""
    with pytest.MonkeyPatch.context() as patch:
        for split, count in ROWS.items():
            patch.setitem(ROWS, split, count // 10)
        yield


@pytest.fixture(scope="module")
def shelf(few_rows: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
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
            # One task of a kind is enough of the arms that other recipes and pages run on all.
            text = text.replace('TASKS = ("world/truth", ', 'TASKS = ("world/truth",)  # ')
            text = re.sub(r'\n    "readability": .*', "", text)
        standins.put(tmp_path / "recipes" / path.name, text)
    example = "examples/my_recipe.py"
    standins.put(tmp_path / example, (ROOT / example).read_text())
    monkeypatch.setattr("groundling.studies.xdbert.diversity.DRAWS", 50)
    monkeypatch.setattr("groundling.studies.xdbert.diversity.MIN_TEXTS", standins.SENTENCES)
    monkeypatch.setattr("groundling.studies.attention.figures.DPI", 60)
    monkeypatch.setattr("groundling.studies.bench.judge.DRAWS", 20)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_typed(words: list[str]) -> tuple[object, str]:
    """Exit status of a command, and what it printed on both channels."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            status: object = main(words)
        except SystemExit as stop:  # flags that do not exist
            status = stop.code
    return status, said.getvalue()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if documents.commands(page)], ids=lambda p: p.name
)
@pytest.mark.usefixtures("in_process", "few_asked")  # a process costs five seconds of imports
def test_every_command_of_a_document_runs_and_prints_what_it_shows(page: Path, place: Path) -> None:
    failures = []
    printed: dict[str, str] = {}
    planned: set[str] = set()
    for command in documents.commands(page):
        if not is_run(command) or _is_planned(command.line, planned):
            continue
        words = smaller(command)
        status, said = run_typed(words)
        printed[command.line] = said
        if status != 0:
            failures.append(f"{command.line}\n    {said.strip()[-500:]}")
        elif (
            "--out" in words
            and not (words[0] == "bench" and "--plan" in words)  # it writes nothing
            and not (place / words[words.index("--out") + 1]).exists()
        ):
            failures.append(f"{command.line}\n    wrote nothing to its --out")
    assert not failures, "\n" + "\n".join(failures)
    for first, *lines in documents.blocks(page, "console"):
        if head := re.fullmatch(r"\$ head -\d+ (\S+)", first):
            written = (place / head[1]).read_text(encoding="utf-8").splitlines()
            assert written[0] == lines[0] and len(written) >= len(lines)
            continue
        line = first.removeprefix("$ ").removesuffix("...").strip()
        (said,) = [text for command, text in printed.items() if command.startswith(line)]
        missing = missing_lines(lines, said)
        assert not missing, (line, missing, said)
    for name, header, *_ in documents.blocks(page, "text"):
        if re.fullmatch(r"\w+\.\w+", name):  # a file that the reader brings
            rows = (place / name).read_text(encoding="utf-8").splitlines()
            assert rows[0] == header or not name.endswith(".csv")


def missing_lines(shown: list[str], printed: str) -> list[str]:
    """Lines of a document that were not printed in this order, but for numbers and what is left out (`...`)."""
    rest = iter([masked(line) for line in printed.splitlines()])
    missing = []
    for line in shown:
        wanted, dots, _ = masked(line).partition("...")
        is_there = any(one == wanted or (dots and one.startswith(wanted)) for one in rest)
        if wanted and not is_there:
            missing.append(line)
    return missing


def masked(line: str) -> str:
    """A line without spaces, and without its numbers and how many a list has."""
    return re.sub(r"\[N+\]", "[N]", NUMBER.sub("N", line).replace(" ", ""))


@cache
def names_in(file: str) -> set[str]:
    """The tables and rows of a recipe."""
    tables = recipe_of(file).tables
    return {one.name for table in tables for one in (table, *table.rows)}


def _is_planned(line: str, planned: set[str]) -> bool:
    """Whether another command of the page planned the same recipe; the table or row that is named has to be there."""
    run = re.search(r"""recipes/(\S+\.py)(?: --(?:table|rows) ["']([^"']+)["'])?""", line)
    if not run or run[1] not in REPRODUCTIONS:
        return False
    file, name = run.groups()
    assert not name or name in names_in(file), line
    is_planned = file in planned
    planned.add(file)
    return is_planned


def test_commands_that_do_not_run_are_still_documented() -> None:
    every = [command.line for page in PAGES for command in documents.commands(page)]
    assert all(any(part in line for line in every) for part in NOT_RUN)


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
    assert len(commands) > 500
    main(["--help"])
    listed = set(re.findall(r"^  (\w+) ", capsys.readouterr().out, re.MULTILINE))
    assert len(listed) > 15
    # A rendered world is probed by the quickstart, so nobody has to type `probe`.
    assert listed - {command.name.split()[0] for command in commands} <= {"probe"}


# -- the notebooks, cell by cell --------------------------------------------------------------------------------
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
ONE_STEP = "cpu=True, steps=1, batch=4, "
FEW = dict.fromkeys(("train_clip", "adapt", "finetune"), ONE_STEP)
FEW["data_make_world"] = (
    "nouns=36, dev_nouns=9, test_nouns=9, scenes=16, dev_scenes=20, sentences=150, "
)
"""Keywords that make a call small."""


def cells(path: Path) -> list[str]:
    """Sources of a notebook's code, whose world and training are small."""
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = re.sub(r"\b(steps|batch|scenes)=\d+,? ?", "", "".join(cell["source"]))
        source = source.replace("seeds=5", "seeds=2")
        if cell["cell_type"] == "code":
            for name, flags in FEW.items():
                source = re.sub(rf"\bgroundling\.{name}\(", rf"\g<0>{flags}", source)
            found.append(source)
    return found


def shown(source: str, names: dict[str, Any]) -> object:
    """Runs a cell; gives what it ends with, as a notebook shows it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


@pytest.fixture
def ran(request, few_rows, tmp_path, monkeypatch) -> dict[str, Any]:
    """The variables of a notebook after its last cell, and as `_` what that cell showed."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for source in cells(request.param):
        names["_"] = shown(source, names)
    return names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_saved_with_the_outputs_of_every_cell(path: Path) -> None:
    book = json.loads(path.read_text(encoding="utf-8"))
    assert path.stat().st_size < 60_000
    assert book["nbformat"] == 4 and len({cell["id"] for cell in book["cells"]}) == len(
        book["cells"]
    )
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        kinds = {(one["output_type"], one.get("name")) for one in cell["outputs"]}
        assert kinds and kinds <= {("stream", "stdout"), ("execute_result", None)}
        has_picture = any("image/png" in one.get("data", {}) for one in cell["outputs"])
        assert has_picture == bool(cell["metadata"].get("alt"))
    assert not re.search(r"/(home|tmp|root|Users)/|0x[0-9a-f]{6}", json.dumps(book), re.I)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("ran", [ROOT / "examples/ground_an_encoder.ipynb"], indirect=True)
def test_an_encoder_is_grounded(ran: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    terms = {name: {*run["train_metrics"]} for name, run in ran["arms"].items()}
    both = {"loss", "mlm", "caption_to_image"}
    assert terms == {"text": {"loss", "mlm"}, "shuffled": both, "seeing": both}
    weights = [digests(Path("runs") / name / "model")["model.safetensors"] for name in terms]
    assert len(set(weights)) == 3
    assert type(ran["model"]).__name__ == "BertModel"
    assert Path("runs/verdict-shuffled/verdict.html").is_file()


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("ran", [ROOT / "examples/ask_your_photos.ipynb"], indirect=True)
def test_photos_are_asked(ran: dict[str, Any]) -> None:
    assert {"majority", "linear probe"} <= ran["baselines"]["scores"].keys()
    assert "does it use the photographs?" in "".join(ran["answers"]["notes"])
    assert ran["judged"]["control"] == "shuffled"
    answers = {row[2] for row in ran["rows"]}
    assert {row["gold"] for row in ran["worst"]} <= answers
    assert {one.answer for one in ran["answer"].best} <= answers and ran["_"].size == (96, 96)

"""What documents tell their reader to run, on small stand-ins: every page's commands, the README's paths, notebooks."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import documents
import pytest
from documents import PAGES, ROOT, TypedCommand
from tiny import standins
from tiny.commands import FILES, REPRODUCTIONS, recipe_of, smaller
from tiny.homes import digests
from transformers import AutoModel

from groundling.cli import main
from groundling.studies.xdbert.diversity import compare_maps

NOT_RUN = {
    "groundling quickstart --full": "renders 32,000 images; test_quickstart.py has fewer",
    "groundling bench-real --student minilm": "needs real data; another command of the page runs the same",
    "runs/carries/l1": "reads the folder of a bench, which takes hours; clip_td.md adapts to the same oracle",
    "recipes/real.py --out runs/real": "results.md runs it, behind the commands whose outputs it reads",
    "recipes/table3_world.py --out runs/table3": "results.md runs it",
}
"""What commands that do not run here have in them, and the reason."""


def is_run(command: TypedCommand) -> bool:
    """Whether the command is run here; a recipe only on the page that makes its inputs."""
    found = [part for part in NOT_RUN if part in command.line]
    by_results = any("results.md" in NOT_RUN[part] for part in found)
    return command.is_whole and (not found or (by_results and command.page == "results.md"))


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
            # One task of a kind is enough of the arms that other recipes and pages run on all.
            text = text.replace('TASKS = ("world/truth", ', 'TASKS = ("world/truth",)  # ')
            text = re.sub(r'\n    "readability": .*', "", text)
        standins.put(tmp_path / "recipes" / path.name, text)
    example = "examples/my_recipe.py"
    standins.put(tmp_path / example, (ROOT / example).read_text())
    few = partial(compare_maps, draws=50, min_texts=standins.SENTENCES)
    monkeypatch.setattr("groundling.studies.xdbert.diversity.compare_maps", few)
    monkeypatch.setattr("groundling.studies.attention.figures.DPI", 60)
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
    "page",
    # The README's are walked below.
    [page for page in PAGES if documents.commands(page) and page.name != "README.md"],
    ids=lambda p: p.name,
)
@pytest.mark.usefixtures("in_process", "few_asked")  # a process costs five seconds of imports
def test_every_command_of_a_document_runs(page: Path, place: Path) -> None:
    failures = []
    planned: set[str] = set()
    for command in documents.commands(page):
        if not is_run(command) or _is_planned(command.line, planned):
            continue
        words = smaller(command)
        status, said = run_typed(words)
        if status != 0:
            failures.append(f"{command.line}\n    {said.strip()[-500:]}")
        elif (
            "--out" in words
            and not (words[0] == "bench" and "--plan" in words)  # it writes nothing
            and not (place / words[words.index("--out") + 1]).exists()
        ):
            failures.append(f"{command.line}\n    wrote nothing to its --out")
    assert not failures, "\n" + "\n".join(failures)


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


# -- the README's three paths --------------------------------------------------------------------------------

README = ROOT / "README.md"
MODELS = ("bert-base-uncased", "openai", "microsoft", "PekingU")
PHOTOS = ("my_photos", "my_captions.tsv", "my_questions.csv", "new_photos", "new_questions.csv")
PATHS = {
    "I have a text encoder": ("my_text.txt", "my.csv", "glue_data"),
    "I have photos and questions": PHOTOS,
    "I want to test a claim": ("my_text.txt", "glue_data"),
}
"""What each path's reader brings, beside models of the hub."""
ELSEWHERE = {
    "groundling run recipes/real.py --processes 2 --out runs/real": "results.md runs it",
    "groundling data make-tasks --out runs/vision": "vision.md runs it",
    "groundling quickstart": "renders 32,000 images; test_quickstart.py has fewer",
}
"""The README's commands that do not run here, with the reason."""
BLOCK = re.compile(r"^```(text|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?(e-?\d+)?")


@dataclass
class Ran:
    """A path that was walked."""

    place: Path
    failed: list[str] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)
    """What each command printed, on both channels."""


def section(title: str) -> str:
    text = README.read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(title: str, kind: str) -> list[list[str]]:
    """Lines of a section's blocks of a kind: files to bring and to find (text), what is printed (console)."""
    return [body.splitlines() for name, body in BLOCK.findall(section(title)) if name == kind]


@pytest.fixture(scope="module")
def walked(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """Runs the commands of a path, once, in a folder with nothing but what the README tells its reader to bring."""
    done: dict[str, Ran] = {}

    def walk(title: str) -> Ran:
        if title not in done:
            done[title] = ran = Ran(tmp_path_factory.mktemp("path"))
            for name in (*MODELS, *PATHS[title]):
                source = shelf / "all" / name
                (shutil.copytree if source.is_dir() else shutil.copy)(source, ran.place / name)
            if title == "I want to test a claim":  # it judges the two encoders of the first path
                shutil.copytree(walk("I have a text encoder").place / "runs", ran.place / "runs")
            page = ran.place.parent / f"{ran.place.name}.md"
            page.write_text(section(title), encoding="utf-8")
            with contextlib.chdir(ran.place):
                for command in documents.commands(page):
                    run(command, ran)
        return done[title]

    return walk


def run(command: documents.TypedCommand, ran: Ran) -> None:
    if not command.is_whole or command.line in ELSEWHERE:
        return
    words = smaller(command)
    if command.name == "compare":  # one seed has no list of seeds to show
        words[words.index("--seeds") + 1] = "2"
    status, ran.said[command.line] = run_typed(words)
    if status != 0:
        ran.failed.append(f"{command.line}\n    {ran.said[command.line][-500:]}")


def test_every_command_is_on_a_path() -> None:
    whole = {one.line for one in documents.commands(README) if one.is_whole}
    on_paths = {line for line in whole if any(line in section(title) for title in PATHS)}
    assert whole - on_paths <= set(ELSEWHERE) <= whole


@pytest.mark.usefixtures("in_process", "few_asked")
@pytest.mark.parametrize("title", PATHS)
def test_a_path_is_walked(title: str, walked: Callable[[str], Ran]) -> None:
    ran = walked(title)
    assert len(ran.said) >= 2
    assert not ran.failed, "\n" + "\n".join(ran.failed)


@pytest.mark.usefixtures("in_process", "few_asked")
@pytest.mark.parametrize("title", PATHS)
def test_what_the_readme_shows_is_printed(title: str, walked: Callable[[str], Ran]) -> None:
    """Line by line, but for numbers and what is left out (`...`)."""
    ran = walked(title)
    shown = blocks(title, "console")
    assert shown
    for first, *lines in shown:
        if head := re.fullmatch(r"\$ head -\d+ (\S+)", first):  # of a file that was written
            written = (ran.place / head[1]).read_text(encoding="utf-8").splitlines()
            assert written[0] == lines[0] and len(written) >= len(lines)
            continue
        typed = first.removeprefix("$ ").removesuffix("...").strip()
        (said,) = [text for line, text in ran.said.items() if line.startswith(typed)]
        rest = [masked(line) for line in said.splitlines()]
        for line in lines:
            wanted, dots, _ = masked(line).partition("...")
            found = [
                n
                for n, one in enumerate(rest)
                if one == wanted or (dots and one.startswith(wanted))
            ]
            assert found, (typed, line, said)
            rest = rest[found[0] + bool(wanted) :]


def masked(line: str) -> str:
    """A line without spaces, and without its numbers and how many a list has."""
    return re.sub(r"\[N+\]", "[N]", NUMBER.sub("N", line).replace(" ", ""))


@pytest.mark.usefixtures("in_process", "few_asked")
@pytest.mark.parametrize("title", PATHS)
def test_files_are_as_the_readme_shows_them(title: str, walked: Callable[[str], Ran]) -> None:
    """Each block names a file; a table's header is that of the stand-in, or of what was written."""
    ran = walked(title)
    for name, header, *_ in blocks(title, "text"):
        assert (ran.place / name).is_file(), name
        if name.endswith(".csv"):
            assert (ran.place / name).read_text(encoding="utf-8").splitlines()[0] == header


# -- the notebooks, cell by cell --------------------------------------------------------------------------------

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
FEW = {"adapt": "cpu=True, steps=1, batch=4, ", "regions": "cpu=True, "}
FEW |= {"pretrain": FEW["adapt"], "finetune": FEW["adapt"]}
"""Keywords that make a call small."""


def cells(path: Path) -> list[str]:
    """Sources of a notebook's code, whose training is small and has two seeds."""
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            for name, flags in FEW.items():
                source = re.sub(rf"\bgroundling\.{name}\(", rf"\g<0>{flags}", source)
            found.append(
                re.sub(r"\bepochs=1, |(seeds)=\d", lambda m: "seeds=2" * bool(m[1]), source)
            )
    return found


def shown(source: str, names: dict[str, Any]) -> object:
    """Runs a cell; gives what it ends with, as a notebook shows it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


@pytest.fixture
def outputs(
    request: pytest.FixtureRequest, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[object]:
    """What the cells of a notebook show."""
    standins.put_down(shelf, "", tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    return [shown(source, names) for source in cells(request.param)]


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["ask_your_photos", "ground_an_encoder"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_is_kept_of_a_run(path: Path) -> None:
    """Outputs would be somebody's machine and pictures."""
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4 and len({cell["id"] for cell in book["cells"]}) == len(
        book["cells"]
    )
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("outputs", [ROOT / "examples/ground_an_encoder.ipynb"], indirect=True)
def test_an_encoder_is_grounded(outputs: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    steps, last = outputs[1]
    assert steps == 1 and any(name.startswith("contrastive") for name in last)
    cosines = outputs[2]
    assert set(cosines) == {"seeing", "control"} and all(-1 <= x <= 1 for x in cosines.values())
    first, second = (digests(Path("runs") / name / "model") for name in ("seeing", "control"))
    assert first["model.safetensors"] != second["model.safetensors"]
    assert type(AutoModel.from_pretrained("runs/seeing/model")).__name__ == "BertModel"
    assert Path("runs/verdict/verdict.html").is_file()


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("outputs", [ROOT / "examples/ask_your_photos.ipynb"], indirect=True)
def test_photos_are_asked(outputs: list[object]) -> None:
    images, regions, skipped = outputs[1]
    assert (images, skipped) == (len(standins.PHOTOS), 0) and regions >= images
    assert all("accuracy" in scores for scores in outputs[2])
    answer, probability, best = outputs[3]
    assert answer in {"y", "n"} and 0 < probability < 1 and len(best) == 2
    assert "<iframe" in outputs[4]._repr_html_()
    assert "is it a dog" in Path("look.html").read_text(encoding="utf-8")

"""The README's three paths, each from a folder that holds nothing but what the README tells its reader to bring."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import documents
import pytest
from documents import ROOT
from tiny import standins
from tiny.small_commands import smaller

from groundling.cli import main

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
def walked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """Runs the commands of a path, once."""
    shelf = tmp_path_factory.mktemp("brought")
    for fill in (standins.models, standins.texts, standins.glue, standins.own_images):
        fill(shelf)
    done: dict[str, Ran] = {}

    def walk(title: str) -> Ran:
        if title not in done:
            done[title] = ran = Ran(tmp_path_factory.mktemp("path"))
            for name in (*MODELS, *PATHS[title]):
                copy = shutil.copytree if (shelf / name).is_dir() else shutil.copy
                copy(shelf / name, ran.place / name)
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
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status: object = main(words)
        except SystemExit as stop:
            status = stop.code
    ran.said[command.line] = out.getvalue()
    if status != 0:
        ran.failed.append(f"{command.line}\n    {out.getvalue()[-500:]}")


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

"""What the documents say can be typed, run and followed."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import documents
import pytest
from documents import PAGES, ROOT
from tiny import homes
from tiny.commands import flags_of
from tiny.regions import store
from transformers import AutoModel

from groundling.cli import COMMANDS, main

ALL = [*PAGES, *(part for parts in documents.PARTS.values() for part in parts)]
READ = {page: page.read_text(encoding="utf-8") for page in ALL}
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def fenced(page: Path, kind: str) -> list[str]:
    return [body for language, body in FENCED.findall(READ[page]) if language == kind]


def indented(page: Path) -> list[str]:
    """Blocks of four spaces after a blank line, outside fences."""
    text = FENCED.sub("", READ[page])
    return [
        textwrap.dedent(b) for b in re.findall(r"(?:(?<=\n\n)|\A)((?:    .*\n?|\n(?=    ))+)", text)
    ]


def commands() -> list[tuple[str, str]]:
    """Every `groundling COMMAND ...` of a block or in running text, by page."""
    lines = [
        (command.page, command.line.removesuffix("...").strip())
        for page in PAGES
        for command in documents.commands(page)
    ]
    return list(dict.fromkeys(lines))


FLAGS = {flag for command in COMMANDS for flag in flags_of(command)} | {
    *("--out", "--help", "--help-all", "--dry-run"),
    "--folder",  # of docs/make_outputs.py
}


@pytest.mark.parametrize(("page", "line"), commands())
def test_every_command_parses(page, line, called, capsys):
    words = shlex.split(line)[1:]
    if words[0] == "data" and len(words) == 2:  # only named, not given
        assert " ".join(words) in COMMANDS
        return
    if words == ["info"]:
        return
    assert main(words) == 0, capsys.readouterr().err
    assert len(called) == ("--help" not in words)


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_every_flag_in_running_text_exists(page: Path) -> None:
    own = ("pip", "torchrun", "python", "pytest", "git")
    codes = [
        code
        for code in re.findall(r"`([^`]+)`", FENCED.sub("", READ[page]))
        if not code.startswith(own)
    ]
    flags = {flag for code in codes for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9.-]*", code)}
    assert flags - FLAGS - {f"--no-{flag[2:]}" for flag in FLAGS} == set()


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_python_compiles(page: Path) -> None:
    for block in fenced(page, "python"):
        ast.parse(block)
    for block in indented(page):
        if re.match(r"(class|def|from|import) ", block):
            ast.parse(block)


def test_the_readmes_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = (ROOT / "README.md", ROOT / "docs/first_steps.md")
    blocks = [block for page in pages for block in fenced(page, "python") if "groundling" in block]
    assert len(blocks) > 1
    homes.student(tmp_path / "my_encoder")
    homes.teacher(tmp_path / "my_teacher")
    homes.text(tmp_path / "my_text.txt", 64)
    rows = [(f"is it wet {n} ?", "yes", n % 2) for n in range(60)]
    homes.put(tmp_path / "my.csv", homes.table(("question", "answer", "y"), *rows))
    store(tmp_path / "runs" / "store", ["holiday/beach", "cat"])
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(blocks):
        block = re.sub(r"\b(adapt|finetune)\(", r"\1(cpu=True, ", block)
        exec(compile(re.sub("seeing", f"seeing-{number}", block), "a page", "exec"), {})
    written = sorted(tmp_path.glob("runs/*/model"))
    assert written
    assert [type(AutoModel.from_pretrained(folder)).__name__ for folder in written] == [
        "BertModel"
    ] * len(written)


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCED.sub("", READ[page])
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if not (page.parent / link.split("#")[0]).exists()] == []
    for link in local:  # and to a heading that is there
        file, _, anchor = link.partition("#")
        if anchor:
            target = (page.parent / file).read_text(encoding="utf-8") if file else text
            heads = re.findall(r"^#+ (.+)$", target, re.MULTILINE)
            assert anchor in {
                re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads
            }


def test_the_site_is_built_and_lists_every_page(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    assert 'not included in the "nav"' not in made.stderr  # a page that nobody finds
    pages = {path.parent.name for path in tmp_path.glob("*/index.html")}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= pages
    assert "Guides" in (tmp_path / "index.html").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[.+?\]\((.+?)\)", (tmp_path / "llms.txt").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed)) > 50
    assert [one for one in listed if not (tmp_path / one / "index.html").exists()] == []


@pytest.fixture(scope="session")
def tree() -> list[str]:
    """Rooms and lone modules in the tree of CONTRIBUTING.md, as paths under `groundling/`, from top to bottom."""
    (block,) = [
        body
        for _, body in FENCED.findall(READ[ROOT / "CONTRIBUTING.md"])
        if body.startswith("groundling/")
    ]
    found: list[str] = []
    above = ""
    for line in block.splitlines()[1:]:
        indent, rest = re.match(r"([│├└─ ]*)(.*)", line).groups()
        names = re.findall(r"\S+", rest.partition("   ")[0])
        above = above if len(indent) > 4 else ""
        found += [above + name for name in names]
        above = above or names[0]
    return found


def test_the_tree_is_the_package(tree: list[str]) -> None:
    package = ROOT / "groundling"
    there = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    for inside in ("", "studies/", "data/"):
        there |= {
            f"{inside}{path.name}/"
            for path in (package / inside).iterdir()
            if (path / "__init__.py").exists()
        }
    assert sorted(tree) == sorted(there)


def test_the_tree_stands_as_the_layers_do(tree: list[str]) -> None:
    """What stands above may import what stands below, and `lint-imports` reads its layers in pyproject.toml."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [one["layers"] for one in contracts["contracts"] if one["type"] == "layers"]
    place = {name: at for at, layer in enumerate(layers) for name in layer.split(" | ")}
    top = [place[name.removesuffix(".py").strip("/")] for name in tree if "/" not in name[:-1]]
    assert top == sorted(top)


def test_nothing_private_of_this_machine_is_in_the_documents() -> None:
    found = {
        page.name: re.findall(r"/(?:home|tmp|root|work)/\S*", text) for page, text in READ.items()
    }
    assert not any(found.values()), found

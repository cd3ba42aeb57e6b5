"""docs/papers.md: each printed value is in the file under the key of its row, and runs as the row states."""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import documents
import pytest
from tiny.commands import PAPERS, recipe_of

from groundling.command_line import COMMANDS
from groundling.recipes import PaperValue, default_settings, format_setting
from groundling.settings.fields import setting_values

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
SETTINGS = "| setting | printed | where | key | here |"
SILENT = ("not stated", "not mentioned")
HAS_SAID_SO = re.compile(r"\bours\b|as (?:in the code|here)|\bNLTK|\(default", re.IGNORECASE)
FLAG = re.compile(r"`(\w+) --([\w-]+) ([^` ]+)` \(default")


@dataclass(frozen=True)
class ResolvedSetting:
    """One setting of a recipe, as its plan resolves it."""

    note: PaperValue
    value: Any
    default: Any

    def cell(self) -> str:
        """The value as the page prints it, without the reason for a difference."""
        if self.note.agrees(self.default):
            return "same"
        return f"{format_setting(self.value)}: {self.note.reason}"


def sections() -> dict[str, str]:
    """The page's sections by reproduction file, from the first table."""
    files = re.findall(r"^\| \[([\w-]+)\]\(#\S+\) \| `(recipes/\w+\.py)` \|$", PAGE, re.MULTILINE)
    texts = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    return {file: next(one for one in texts if one.startswith(f"{name} (")) for name, file in files}


def defaults(command: str) -> dict[str, Any]:
    return setting_values(*default_settings(command))


def told(file: str) -> dict[str, ResolvedSetting]:
    """All values of papers by key, such as `VCR_CODE.lr` and `SIZES["VQA, base"].lr`, which are names of the recipe."""
    resolved = {}
    for step in recipe_of(ROOT / file).steps():
        known = defaults(step.command)
        for name, note in step.notes.items():
            one = ResolvedSetting(note, step.values[name], known[name])
            resolved.setdefault(said_by(note), one)
    return {
        f"{table}.{name}": resolved[said_by(note)]
        for table, values in groups(file).items()
        for name, note in values.items()
        if isinstance(note, PaperValue) and said_by(note) in resolved
    }


def said_by(note: PaperValue) -> tuple[str, ...]:
    return format_setting(note.printed), note.source, format_setting(note.ours), note.reason


def groups(file: str) -> dict[str, dict[str, Any]]:
    """Groups of settings in a recipe, and in its dicts of groups."""
    names = runpy.run_path(str(ROOT / file))
    dicts = {name: value for name, value in names.items() if isinstance(value, dict)}
    inside = {
        f'{name}["{key}"]': group
        for name, value in dicts.items()
        for key, group in value.items()
        if isinstance(group, dict)
    }
    return dicts | inside


def rows(section: str, heading: str) -> list[list[str]]:
    lines = section.split(f"{heading}\n", 1)[1].splitlines()[1:]
    table = lines[: next(place for place, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in table]


def full_names(keys: str) -> list[str]:
    """The keys of a cell; a key that begins with a dot is in the table of the previous key."""
    names: list[str] = []
    for name in re.findall(r"`([^`]+)`", keys):
        table = names[-1].rpartition(".")[0] if name.startswith(".") and names else ""
        names.append(f"{table}{name}")
    return names


def wrong(row: list[str], file: str, notes: dict[str, ResolvedSetting]) -> list[str]:
    """Statements of a row that its file does not confirm."""
    _, said, where, keys, here = row
    names = full_names(keys)
    missing = [name for name in names if name not in notes]
    if missing or not names:
        return [f"{file}: no note of {', '.join(missing) or 'anything'}"]
    found = [notes[name] for name in names]
    shown = here.removesuffix(" (default)")
    expected = (
        (said, [format_setting(one.note.printed) for one in found]),
        (where, [one.note.source for one in found]),
        (shown, [one.cell() for one in found]),
    )
    faults = []
    for cell, parts in expected:
        if cell.split(" · ") not in (parts, parts[:1] if len(set(parts)) == 1 else parts):
            faults.append(f"{file}: {keys}: {cell!r}, and the file says {' · '.join(parts)!r}")
    if shown != here and any(one.value != one.default for one in found):
        faults.append(f"{file}: {keys}: not the default, which is {[one.default for one in found]}")
    return faults


def test_every_paper_has_its_recipe() -> None:
    assert set(sections()) == {f"recipes/{path.name}" for path in PAPERS}


@pytest.mark.parametrize("file", sections())
def test_settings_are_those_of_the_recipe(file: str) -> None:
    notes = told(file)
    table = rows(sections()[file], SETTINGS)
    assert len(table) > 5
    assert [fault for row in table for fault in wrong(row, file, notes)] == []


def test_flags_that_are_called_defaults_are_the_defaults() -> None:
    found = [one for one in FLAG.findall(PAGE) if one[0] in COMMANDS]
    assert found
    for command, flag, value in found:
        default = defaults(command)[flag.replace("-", "_")]
        assert format_setting(default) == format_setting(type(default)(value)), (command, flag)


def test_what_a_paper_does_not_say_is_told_as_ours_or_the_codes() -> None:
    """A row without a value in the paper names who chose the value."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") > 4]
    silent = [line for line in rows if line.split("|")[2].strip().endswith(SILENT)]
    assert len(silent) > 10
    assert [line for line in silent if not HAS_SAID_SO.search(line)] == []


def typed(page: str) -> list[documents.TypedCommand]:
    return [one for one in documents.commands(ROOT / "docs" / page) if one.is_whole]


def test_pages_that_are_named_for_commands_have_them() -> None:
    """CLIP-TD's protocols, and what its recipe says that it leaves to another page."""
    section = PAGE.split("### Its protocols\n")[1].split("\n## ")[0]
    introduction, table = section.split("\n| ", 1)
    pages = re.findall(r"\]\((\w+\.md)\)", introduction)
    there = {one.name for page in pages for one in typed(page)}
    named = set(re.findall(r"`((?:data )?[a-z-]+)(?= --|`)", table)) & set(COMMANDS)
    assert len(named) > 5 and named <= there
    head = " ".join((ROOT / "recipes/clip_td.py").read_text().split('"""')[1].split())
    (left,) = re.findall(r"docs/clip_td\.md has what this file lacks: (.*?\.)(?: |$)", head + " ")
    flags = re.findall(r"--[\w-]+", " ".join(re.findall(r"`([^`]+)`", left)))
    page = (ROOT / "docs/clip_td.md").read_text()
    assert flags and [flag for flag in flags if flag not in page] == []


def test_sm_beside_the_papers_numbers_is_edited_as_the_release_edits() -> None:
    edited = [one.line for one in typed("clip_td.md") if "--protocol sm" in one.line]
    assert edited and all("--legacy" in line.split() for line in edited)
    steps = recipe_of("clip_td.py").steps()
    shifts = [one.settings for one in steps if one.command == "data shift"]
    assert [one.get("legacy") for one in shifts if one["protocol"] == "sm"] == [True]

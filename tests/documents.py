"""The documents' commands, in the order in which a reader meets them."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import groundling

ROOT = Path(groundling.__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PARTS = {page: sorted(page.with_suffix("").glob("*.md")) for page in PAGES}
"""The pages in the folder of a page's name, which a reader works through in their order."""

PLACEHOLDER = re.compile(r"(?<![^\s])[A-Z]{4,}(?![^\s])")
"""NAME, FOLDER: the form of a command, not one to type."""
CODE = re.compile(
    r"the same with\s+`(?P<same>--[^`]+)`"
    r"|the (?:full model's )?`(?P<name>\w+)`(?: above)? with\s+`(?P<change>--[^`]+)`"
    r"|`(?P<code>[^`]+)`"
)
"""Inline code; it may tell what it changes in the last command that was given in full, or in the last one of a name."""


@dataclass(frozen=True)
class TypedCommand:
    """A line that a document tells its reader to type."""

    page: str
    line: str
    in_full: bool = True
    """As against "the same with ...", which tells what it changes in the last command given in full."""

    @property
    def name(self) -> str:
        """The name of the command, `data check` and its like with both words."""
        first, *rest = words(self.line)
        return " ".join([first, *rest[:1]]) if first == "data" else first

    @property
    def is_whole(self) -> bool:
        """Whether it can be typed as it stands: no mere name of a command, and nothing left out (`...`)."""
        only_named = self.line == f"groundling {self.name}" and self.name != "quickstart"
        return not only_named and not self.line.endswith("...")


def commands(page: Path) -> list[TypedCommand]:
    """Every `groundling COMMAND ...` of a page and its parts, in blocks and in running text, from top to bottom."""
    found: list[TypedCommand] = []
    whole = "\n".join(one.read_text(encoding="utf-8") for one in (page, *PARTS.get(page, ())))
    for is_block, text in parts(whole):
        if is_block:
            lines = text.replace("\\\n", " ").splitlines()
            codes = [_command(line.split(" #")[0]) for line in lines]
            found += [TypedCommand(page.name, code) for code in codes if code]
        else:
            _add_inline(text, page.name, found)
    return found


MODULE = re.compile(
    r"^```python\n# (?P<path>[\w/]+\.py)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
"""A block of Python that names its file in its first line."""


def modules(page: Path) -> dict[str, str]:
    """The files that a page tells its reader to write, by path."""
    text = page.read_text(encoding="utf-8")
    return {match["path"]: match["code"] for match in MODULE.finditer(text)}


def forget_modules(package: str) -> None:
    """Forget an imported package: documents have packages of the same name in other folders."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]
    importlib.invalidate_caches()


def write_modules(page: Path, folder: Path) -> None:
    """Writes these files below a folder; packages of the same names that other pages wrote are forgotten."""
    for package in {path.partition("/")[0].removesuffix(".py") for path in modules(page)}:
        forget_modules(package)
    for path, code in modules(page).items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(code, encoding="utf-8")


def parts(text: str) -> list[tuple[bool, str]]:
    """A document cut into blocks of shell commands (True) and running text or rows of a table (False)."""
    tokens: list[tuple[bool, str]] = []
    fence = ""
    before = ""
    for line in text.splitlines():
        if line.startswith("```"):
            fence = "" if fence else (line.removeprefix("```") or "text")
            tokens.append((True, ""))
            before = ""
            continue
        is_indented = line.startswith("    ") and (not before or before.startswith("    "))
        is_block = fence == "bash" or (not fence and is_indented)
        before = line
        if fence and not is_block:
            continue
        is_row = line.startswith("|")
        if tokens and tokens[-1][0] == is_block and line and not is_row:
            tokens[-1] = (is_block, tokens[-1][1] + "\n" + line)
        else:
            tokens.append((is_block, line))
    return tokens


BLOCK = re.compile(r"^```(text|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path, kind: str) -> list[list[str]]:
    """Lines of a page's blocks of a kind: files to bring (text), what is printed (console)."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [body.splitlines() for name, body in found if name == kind]


def words(line: str) -> list[str]:
    """What follows `groundling` in a command."""
    return shlex.split(line)[1:]


def _add_inline(text: str, page: str, found: list[TypedCommand]) -> None:
    """Adds the commands in running text to those found before."""
    for match in CODE.finditer(text):
        if match["code"]:
            line = _command(match["code"])
            if line:
                found.append(TypedCommand(page, line))
            continue
        full = [command.line for command in found if command.in_full]
        if match["same"]:
            line = changed(full[-1], shlex.split(match["same"]))
        else:
            named = [line for line in full if line.startswith(f"groundling {match['name']} ")]
            line = changed(named[-1], shlex.split(match["change"]))
        found.append(TypedCommand(page, line, in_full=False))


def _command(code: str) -> str:
    """A line of code as `groundling ...`; empty if it is something else."""
    line = " ".join(code.split())
    line = re.sub(r"^torchrun .*-m groundling\.cli ", "groundling ", line)
    line = re.sub(r"^python3? bootstrap\.py quickstart", "groundling quickstart", line)
    if not line.startswith("groundling ") or PLACEHOLDER.search(line):
        return ""
    return line


def changed(line: str, flags: list[str]) -> str:
    """A command with other values of some flags, or with more flags."""
    groups: dict[str, list[str]] = {}
    name = ""
    for word in [*shlex.split(line), *flags]:
        if word.startswith("--"):
            name = word
            groups[name] = []
        else:
            groups.setdefault(name, []).append(word)
    everything = []
    for name, values in groups.items():
        everything += [name, *values] if name else values
    return shlex.join(everything)

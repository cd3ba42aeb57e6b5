"""VCR's official lines: read, edited in their choices alone, and written back in the official format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from groundling.core.errors import InputError
from groundling.data.tables import lines_of
from groundling.runs.folder import disk_errors, json_text, write_whole
from groundling.tasks.vcr import ANSWER, Item, Token, items

Part = Literal["answer", "rationale"]
"""Which of an item's two sets of four choices."""
PARTS: tuple[Part, Part] = ("answer", "rationale")
MASK = "[MASK]"
"""The word of a hidden position (Ye and Kovashka 2021; release: yekeren/VCR-shortcut-effects-study)."""
BESIDE = ("train.jsonl", "vcr1images")
"""What a written folder shares with the one that was read."""

Text = Sequence[Token]
"""A text of VCR: words, and lists of objects' numbers."""


@dataclass(frozen=True)
class Line:
    """One line of an official file."""

    raw: str
    """As the file has it, which stays so unless a choice is edited."""
    item: Item
    """What it says."""

    def choices(self, part: Part) -> list[list[Token]]:
        """The four choices of a part."""
        return self.item.answers if part == "answer" else self.item.rationales

    def right(self, part: Part) -> int:
        """The number of the right choice; raises InputError where it is secret."""
        right = self.item.answer if part == "answer" else self.item.rationale
        if right is None:
            raise InputError(f"{self.item.id}: no label of the right {part}")
        return right

    def asked(self, part: Part) -> list[Token]:
        """What the choices of a part are asked after: the question, of rationales with the right answer behind it."""
        if part == "answer":
            return self.item.question
        return self.item.question + self.item.answers[self.right("answer")]

    def with_choices(self, part: Part, choices: Sequence[Text]) -> Line:
        """The line with other choices of a part; every other field keeps its value, an equal line its very bytes."""
        new = [list(choice) for choice in choices]
        if new == self.choices(part):
            return self
        fields = json.loads(self.raw)
        fields[f"{part}_choices"] = new
        raw = json_text(fields, ensure_ascii=self.raw.isascii())
        if part == "answer":
            return Line(raw, replace(self.item, answers=new))
        return Line(raw, replace(self.item, rationales=new))


@dataclass
class Shifted:
    """What a shift made of a file."""

    lines: list[Line] = field(default_factory=list)
    """The lines that are kept, edited."""
    before: list[Line] = field(default_factory=list)
    """The same lines as they were."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """Every edited choice: what it was, what it became, and why."""
    left: Counter[str] = field(default_factory=Counter)
    """How many choices (EM: words) were left as they were, by reason."""

    def add(
        self, before: Line, after: Line, why: Mapping[tuple[str, Part, int], Any] | None = None
    ) -> None:
        """Keep a line, and log what was changed in it; `why` tells more, by annot_id, part and choice."""
        self.lines.append(after)
        self.before.append(before)
        for part, number, old, new in differences(before, after):
            entry: dict[str, Any] = {"annot_id": before.item.id, "part": part, "choice": number}
            entry |= {"right": number == before.right(part), "before": old, "after": new}
            if why is not None:
                entry["why"] = why[before.item.id, part, number]
            self.log.append(entry)

    def edited(self) -> dict[str, dict[str, int]]:
        """How many right and wrong choices of each part were edited."""
        counts: dict[str, dict[str, int]] = {part: {"right": 0, "wrong": 0} for part in PARTS}
        for entry in self.log:
            counts[entry["part"]]["right" if entry["right"] else "wrong"] += 1
        return counts


def differences(before: Line, after: Line) -> Iterator[tuple[Part, int, list[Token], list[Token]]]:
    """Every choice that two versions of a line do not share: part, number, old and new text."""
    for part in PARTS:
        pairs = zip(before.choices(part), after.choices(part), strict=True)
        for number, (old, new) in enumerate(pairs):
            if old != new:
                yield part, number, old, new


def read_lines(folder: Path, split: str) -> list[Line]:
    """The labelled lines of a split in file order.

    Raises:
        InputError: As `tasks.vcr.items`, or the split has no labels.
    """
    path = ANSWER.file(folder, split)
    asked = items(folder, split)
    if asked[0].answer is None:
        raise InputError(f"{path}: without labels nobody can tell right from wrong choices")
    return [Line(raw, item) for raw, item in zip(lines_of(path), asked, strict=True)]


def write_lines(folder: Path, split: str, lines: Sequence[Line]) -> Path:
    """The official file of a split in a folder, which is made; returns its path."""
    path = ANSWER.file(folder, split)
    with disk_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(line.raw + "\n" for line in lines))
    return path


def write_log(path: Path, log: Sequence[dict[str, Any]]) -> None:
    """One line of JSON per entry."""
    write_whole(path, "".join(json_text(entry) + "\n" for entry in log))


def link_beside(source: Path, folder: Path) -> list[str]:
    """Links to training data and images of the folder that was read; returns what is linked.

    So a shifted folder is a whole one: `finetune --data` reads it, and images are found below it.
    """
    linked = []
    for name in BESIDE:
        there = source / name
        link = folder / name
        is_written = link.exists() and not link.is_symlink()  # the split itself may be train
        if not there.exists() or is_written:
            continue
        with disk_errors(link):
            if not link.is_symlink():
                link.symlink_to(there.resolve())
        linked.append(name)
    return linked

"""VCR's official lines: read, edited in choices alone, written back; and how much choices share with questions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from groundling.core.errors import InputError
from groundling.data.tables import lines_of
from groundling.data.text.words import stop_words
from groundling.runs.folder import disk_errors, json_text, write_whole
from groundling.tasks.vcr import ANSWER, VcrItem, VcrToken, read_items

VcrPart = Literal["answer", "rationale"]
"""Which of an item's two sets of four choices."""
PARTS: tuple[VcrPart, VcrPart] = ("answer", "rationale")
MASK = "[MASK]"
"""The word of a hidden position (Ye and Kovashka 2021; release: yekeren/VCR-shortcut-effects-study)."""
BESIDE = ("train.jsonl", "vcr1images")
"""What a written folder shares with the one that was read."""

VcrText = Sequence[VcrToken]
"""A text of VCR: words, and lists of objects' numbers."""


@dataclass(frozen=True)
class VcrLine:
    """One line of an official file."""

    raw: str
    """As the file has it, which stays so unless a choice is edited."""
    item: VcrItem
    """What it says."""

    def choices(self, part: VcrPart) -> list[list[VcrToken]]:
        """The four choices of a part."""
        return self.item.answers if part == "answer" else self.item.rationales

    def label(self, part: VcrPart) -> int:
        """The number of the right choice; raises InputError where it is secret."""
        right = self.item.answer if part == "answer" else self.item.rationale
        if right is None:
            raise InputError(f"{self.item.id}: no label of the right {part}")
        return right

    def query(self, part: VcrPart) -> list[VcrToken]:
        """What the choices of a part are asked after: the question, of rationales with the right answer behind it."""
        if part == "answer":
            return self.item.question
        return self.item.question + self.item.answers[self.label("answer")]

    def with_choices(self, part: VcrPart, choices: Sequence[VcrText]) -> VcrLine:
        """The line with other choices of a part; every other field keeps its value, an equal line its very bytes."""
        new = [list(choice) for choice in choices]
        if new == self.choices(part):
            return self
        fields = json.loads(self.raw)
        fields[f"{part}_choices"] = new
        raw = json_text(fields, ensure_ascii=self.raw.isascii())
        if part == "answer":
            return VcrLine(raw, replace(self.item, answers=new))
        return VcrLine(raw, replace(self.item, rationales=new))


@dataclass
class ShiftedFile:
    """What a shift made of a file."""

    lines: list[VcrLine] = field(default_factory=list)
    """The lines that are kept, edited."""
    originals: list[VcrLine] = field(default_factory=list)
    """The same lines as they were."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """Every edited choice: what it was, what it became, and why."""
    unedited_counts: Counter[str] = field(default_factory=Counter)
    """How many choices (EM: words) were left as they were, by reason."""

    def add(
        self,
        before: VcrLine,
        after: VcrLine,
        why: Mapping[tuple[str, VcrPart, int], Any] | None = None,
    ) -> None:
        """Keep a line, and log what was changed in it; `why` tells more, by annot_id, part and choice."""
        self.lines.append(after)
        self.originals.append(before)
        for part, number, old, new in edited_choices(before, after):
            entry: dict[str, Any] = {"annot_id": before.item.id, "part": part, "choice": number}
            entry |= {"right": number == before.label(part), "before": old, "after": new}
            if why is not None:
                entry["why"] = why[before.item.id, part, number]
            self.log.append(entry)

    def edited(self) -> dict[str, dict[str, int]]:
        """How many right and wrong choices of each part were edited."""
        counts: dict[str, dict[str, int]] = {part: {"right": 0, "wrong": 0} for part in PARTS}
        for entry in self.log:
            counts[entry["part"]]["right" if entry["right"] else "wrong"] += 1
        return counts


def edited_choices(
    before: VcrLine, after: VcrLine
) -> Iterator[tuple[VcrPart, int, list[VcrToken], list[VcrToken]]]:
    """Every choice that two versions of a line do not share: part, number, old and new text."""
    for part in PARTS:
        pairs = zip(before.choices(part), after.choices(part), strict=True)
        for number, (old, new) in enumerate(pairs):
            if old != new:
                yield part, number, old, new


def read_lines(folder: Path, split: str) -> list[VcrLine]:
    """The labelled lines of a split in file order.

    Raises:
        InputError: As `tasks.vcr.items`, or the split has no labels.
    """
    path = ANSWER.file(folder, split)
    asked = read_items(folder, split)
    if asked[0].answer is None:
        raise InputError(f"{path}: without labels nobody can tell right from wrong choices")
    return [VcrLine(raw, item) for raw, item in zip(lines_of(path), asked, strict=True)]


def write_lines(folder: Path, split: str, lines: Sequence[VcrLine]) -> Path:
    """The official file of a split in a folder, which is made; returns its path."""
    path = ANSWER.file(folder, split)
    with disk_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(line.raw + "\n" for line in lines))
    return path


def write_log(path: Path, log: Sequence[dict[str, Any]]) -> None:
    """One line of JSON per entry."""
    write_whole(path, "".join(json_text(entry) + "\n" for entry in log))


def link_shared_files(source: Path, folder: Path) -> list[str]:
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


# How much choices share with what they are asked about: CLIP-TD's Table 9, and what tags alone would answer.

Lemmatizer = Callable[[str], str]
"""The word that a form is a form of: WordNet's, or simply the form in lower case."""
WORD = re.compile(r"[A-Za-z]+(-[A-Za-z]+)*")
STOPS = stop_words()


def is_content(token: object) -> bool:
    """Whether a token is a word that says something: no tag, stop word, mark, number or mask."""
    if not isinstance(token, str) or token == MASK:
        return False
    return WORD.fullmatch(token) is not None and len(token) > 1 and token.lower() not in STOPS


def content_lemmas(text: VcrText, lemma: Lemmatizer) -> set[str]:
    """The lemmas of a text's content words."""
    return {lemma(token) for token in text if isinstance(token, str) and is_content(token)}


def object_lemmas(line: VcrLine, lemma: Lemmatizer) -> set[str]:
    """The lemmas of the classes of an image's objects, which is the image's side of Table 9."""
    return {lemma(name) for name in line.item.objects}


def _everything(text: VcrText, line: VcrLine) -> set[str]:
    """Every word in lower case, stop words and marks too, and every tag as its object."""
    out = {token.lower() for token in text if isinstance(token, str) and token != MASK}
    return out | {f"object {number}" for number in _tags(text)}


def _tags(text: VcrText) -> set[int]:
    return {number for token in text if isinstance(token, list) for number in token}


def overlap_statistics(lines: Sequence[VcrLine], lemma: Lemmatizer) -> dict[str, Any]:
    """Table 9's numbers, and the tags-alone baseline, of both parts of some lines.

    The paper says neither whether stop words and tags count nor which lemmas: `question` and `image` count content
    words by lemma, without tags; `question, every token` counts all words and tags. Rationales are asked after the
    right answer, too.
    """
    out: dict[str, Any] = {"items": len(lines)}
    for part in PARTS:
        counts: dict[str, list[list[int]]] = {
            "question": [],
            "image": [],
            "question, every token": [],
        }
        for line in lines:
            asked = line.query(part)
            words = [content_lemmas(choice, lemma) for choice in line.choices(part)]
            told = content_lemmas(asked, lemma)
            seen = object_lemmas(line, lemma)
            every = _everything(asked, line)
            counts["question"].append([len(one & told) for one in words])
            counts["image"].append([len(one & seen) for one in words])
            counts["question, every token"].append(
                [len(_everything(choice, line) & every) for choice in line.choices(part)]
            )
        right = np.array([line.label(part) for line in lines])
        table = {name: compare_overlap(np.array(rows), right) for name, rows in counts.items()}
        out[part] = {**table, "tags alone": tag_overlap_baseline(lines, part)}
    return out


def compare_overlap(counts: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Table 9's two columns of counts (N, 4), the right choice of each row being `right` (N,).

    Means over items, those of wrong choices over three first; shares of the items in which the right choice has more
    than the mean wrong one, the reverse, and neither.
    """
    is_right = np.arange(counts.shape[1]) == right[:, None]
    correct = counts[is_right]
    incorrect = counts[~is_right].reshape(len(counts), -1).mean(1)
    return {
        "correct": float(correct.mean()),
        "incorrect": float(incorrect.mean()),
        "correct has more": float((correct > incorrect).mean()),
        "incorrect has more": float((correct < incorrect).mean()),
        "neither": float((correct == incorrect).mean()),
    }


def tag_overlap_baseline(lines: Sequence[VcrLine], part: VcrPart) -> dict[str, float]:
    """How often the choice that shares most tags with the question is right; no word is read.

    `first of the best` predicts the first of equals, and is an accuracy; `among the best` counts an item wherever the
    right choice is one of them. The release reports both (yekeren/VCR-shortcut-effects-study, tools/cheat.py: about
    0.29 and above 0.65 for answers).
    """
    first = []
    among = []
    for line in lines:
        asked = _tags(line.query(part))
        shared = [len(_tags(choice) & asked) for choice in line.choices(part)]
        right = line.label(part)
        first.append(shared.index(max(shared)) == right)
        among.append(shared[right] == max(shared))
    return {"first of the best": fmean(first), "among the best": fmean(among)}

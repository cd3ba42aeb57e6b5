"""VCR's official files with edited choices, and statistics of the word overlap between choices and questions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from groundling.core.errors import InputError
from groundling.data.tables import lines_of
from groundling.data.text import stop_words
from groundling.runs.folder import disk_errors, json_text, write_whole
from groundling.tasks.vcr import ANSWER, VcrItem, VcrToken, read_items

VcrPart = Literal["answer", "rationale"]
"""Which of an item's two sets of four choices."""
PARTS: tuple[VcrPart, VcrPart] = ("answer", "rationale")
MASK = "[MASK]"
"""Replaces a masked position (Ye and Kovashka 2021; release: yekeren/VCR-shortcut-effects-study)."""
BESIDE = ("train.jsonl", "vcr1images")
"""Files and folders that a written folder shares with its source, through links."""

VcrText = Sequence[VcrToken]
"""A text of VCR: words, and lists of objects' numbers."""


@dataclass(frozen=True)
class VcrLine:
    """One line of an official file."""

    raw: str
    """The line's text, unchanged unless a choice is edited."""
    item: VcrItem
    """The parsed line."""

    def choices(self, part: VcrPart) -> list[list[VcrToken]]:
        """The four choices of a part."""
        return self.item.answers if part == "answer" else self.item.rationales

    def label(self, part: VcrPart) -> int:
        """The number of the right choice; raises InputError where the label is secret."""
        right = self.item.answer if part == "answer" else self.item.rationale
        if right is None:
            raise InputError(f"{self.item.id}: no label of the right {part}")
        return right

    def query(self, part: VcrPart) -> list[VcrToken]:
        """The query of a part: the question, for rationales followed by the right answer."""
        if part == "answer":
            return self.item.question
        return self.item.question + self.item.answers[self.label("answer")]

    def with_choices(self, part: VcrPart, choices: Sequence[VcrText]) -> VcrLine:
        """The line with other choices of a part; other fields keep their values, an unchanged line its bytes."""
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
    """The shifted version of a file."""

    lines: list[VcrLine] = field(default_factory=list)
    """The selected lines, edited."""
    originals: list[VcrLine] = field(default_factory=list)
    """The same lines before the edits."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """Every edited choice: old text, new text, and reason."""
    unedited_counts: Counter[str] = field(default_factory=Counter)
    """Number of unedited choices (EM: words) by reason."""

    def add(
        self,
        before: VcrLine,
        after: VcrLine,
        reasons: Mapping[tuple[str, VcrPart, int], Any] | None = None,
    ) -> None:
        """Add a line and log its edits; `reasons` has reasons by annot_id, part and choice."""
        self.lines.append(after)
        self.originals.append(before)
        for part in PARTS:
            texts = zip(before.choices(part), after.choices(part), strict=True)
            for number, (old, new) in enumerate(texts):
                if old == new:
                    continue
                entry: dict[str, Any] = {"annot_id": before.item.id, "part": part, "choice": number}
                entry |= {"right": number == before.label(part), "before": old, "after": new}
                if reasons is not None:
                    entry["why"] = reasons[before.item.id, part, number]
                self.log.append(entry)

    def edited(self) -> dict[str, dict[str, int]]:
        """Number of edited right and wrong choices of each part."""
        counts: dict[str, dict[str, int]] = {part: {"right": 0, "wrong": 0} for part in PARTS}
        for entry in self.log:
            counts[entry["part"]]["right" if entry["right"] else "wrong"] += 1
        return counts


def read_lines(folder: Path, split: str) -> list[VcrLine]:
    """The labelled lines of a split in file order.

    Raises InputError: as `read_items`, or the split has no labels.
    """
    path = ANSWER.file(folder, split)
    items = read_items(folder, split)
    if items[0].answer is None:
        raise InputError(f"{path}: no labels; expected a labelled split")
    return [VcrLine(raw, item) for raw, item in zip(lines_of(path), items, strict=True)]


def write_lines(folder: Path, split: str, lines: Sequence[VcrLine]) -> Path:
    """Write a split's official file to a folder, which is created; returns the file's path."""
    path = ANSWER.file(folder, split)
    with disk_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(line.raw + "\n" for line in lines))
    return path


def link_shared_files(source: Path, folder: Path) -> list[str]:
    """Link training data and images of the source folder; returns the linked names.

    The links make a shifted folder complete: `finetune --data` can read it, and it contains the images.
    """
    linked = []
    for name in BESIDE:
        target = source / name
        link = folder / name
        is_written = link.exists() and not link.is_symlink()  # the split itself may be train
        if not target.exists() or is_written:
            continue
        with disk_errors(link):
            if not link.is_symlink():
                link.symlink_to(target.resolve())
        linked.append(name)
    return linked


# Overlap between choices and queries: CLIP-TD's Table 9, and a baseline that compares only tags.

Lemmatizer = Callable[[str], str]
"""From a word form to its lemma: WordNet's, or the form in lower case."""
WORD = re.compile(r"[A-Za-z]+(-[A-Za-z]+)*")
STOPS = stop_words()


def is_content(token: object) -> bool:
    """Whether a token is a content word: no tag, stop word, punctuation, number or mask."""
    if not isinstance(token, str) or token == MASK:
        return False
    return WORD.fullmatch(token) is not None and len(token) > 1 and token.lower() not in STOPS


def content_lemmas(text: VcrText, lemma: Lemmatizer) -> set[str]:
    """The lemmas of a text's content words."""
    return {lemma(token) for token in text if isinstance(token, str) and is_content(token)}


def object_lemmas(line: VcrLine, lemma: Lemmatizer) -> set[str]:
    """The lemmas of the image's object classes, which stand for the image in Table 9."""
    return {lemma(name) for name in line.item.objects}


def _all_words(text: VcrText) -> set[str]:
    """All words in lower case, including stop words and punctuation, and all tags as their objects."""
    out = {token.lower() for token in text if isinstance(token, str) and token != MASK}
    return out | {f"object {number}" for number in _tags(text)}


def _tags(text: VcrText) -> set[int]:
    return {number for token in text if isinstance(token, list) for number in token}


def overlap_statistics(lines: Sequence[VcrLine], lemma: Lemmatizer) -> dict[str, Any]:
    """Table 9's numbers and the tags-only baseline, for both parts of some lines.

    The paper states neither whether stop words and tags count nor which lemmas: `question` and `image` count content
    words by lemma, without tags; `question, every token` counts all words and tags. For rationales the question
    includes the right answer.
    """
    out: dict[str, Any] = {"items": len(lines)}
    for part in PARTS:
        counts: dict[str, list[list[int]]] = {
            "question": [],
            "image": [],
            "question, every token": [],
        }
        for line in lines:
            query = line.query(part)
            words = [content_lemmas(choice, lemma) for choice in line.choices(part)]
            query_lemmas = content_lemmas(query, lemma)
            image_lemmas = object_lemmas(line, lemma)
            query_words = _all_words(query)
            counts["question"].append([len(one & query_lemmas) for one in words])
            counts["image"].append([len(one & image_lemmas) for one in words])
            counts["question, every token"].append(
                [len(_all_words(choice) & query_words) for choice in line.choices(part)]
            )
        right = np.array([line.label(part) for line in lines])
        table = {name: compare_overlap(np.array(rows), right) for name, rows in counts.items()}
        out[part] = {**table, "tags alone": tag_overlap_baseline(lines, part)}
    return out


def compare_overlap(counts: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Table 9's two columns from counts (N, 4); `right` (N,) is the right choice of each row.

    Means over items, after the mean over the three wrong choices; shares of items in which the right choice has more
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
    """Accuracy of the choice that shares most tags with the question, without any words.

    `first of the best` is an accuracy, with ties going to the first choice; `among the best` counts an item if the
    right choice is one of the tied ones. The release reports both (yekeren/VCR-shortcut-effects-study, tools/cheat.py:
    about 0.29 and above 0.65 for answers).
    """
    first = []
    among = []
    for line in lines:
        query_tags = _tags(line.query(part))
        shared = [len(_tags(choice) & query_tags) for choice in line.choices(part)]
        right = line.label(part)
        first.append(shared.index(max(shared)) == right)
        among.append(shared[right] == max(shared))
    return {"first of the best": fmean(first), "among the best": fmean(among)}

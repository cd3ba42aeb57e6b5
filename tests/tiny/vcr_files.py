"""Official files of VCR about nothing: persons and things, seven kinds of questions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny.homes import put
from tiny.tasks import json_lines

OBJECTS = ("person", "person", "person", "car", "dog")
QUESTIONS = (
    "Why is [0] with [1,2] ?",
    "What is [0] doing ?",
    "What happened before ?",
    "How does [0] feel ?",
    "What is the relation of [0,1] ?",
    "Where are [1,2] ?",
    "What would [0] do with the dog ?",
)
"""One of each category; some mention one person, some one group."""


def tokens(text: str) -> list[Any]:
    """`[0,1] walk .` as VCR has it."""
    return [
        json.loads(word) if word.startswith("[") and word != "[MASK]" else word
        for word in text.split()
    ]


def row(
    number: int,
    question: str = "Why is [0] there ?",
    answers: Sequence[str] = ("[0] is a dog .", "They sit .", "[1] walks .", "No ."),
    rationales: Sequence[str] = ("[0] talks .", "He has a hat .", "[3] stops .", "Yes ."),
    right: tuple[int, int] = (0, 0),
    objects: Sequence[str] = OBJECTS,
    split: str = "val",
) -> dict[str, Any]:
    """A line, with fields that nobody reads."""
    return {
        "movie": "a film",
        "objects": list(objects),
        "interesting_scores": [-1, 0],
        "img_fn": f"movie/{number % 3}.jpg",
        "metadata_fn": f"movie/{number % 3}.json",
        "answer_orig": "as they wrote it é",
        "question": tokens(question),
        "answer_choices": [tokens(answer) for answer in answers],
        "answer_label": right[0],
        "rationale_choices": [tokens(rationale) for rationale in rationales],
        "rationale_label": right[1],
        "annot_id": f"{split}-{number}",
        "match_index": number,
    }


def write(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    return put(path, json_lines(*rows))


def folder(place: Path, train: int = 21, val: int = 14) -> Path:
    """A folder of both splits with questions of all categories in turn."""
    for split, count in (("train", train), ("val", val)):
        rows = []
        for number in range(count):
            question = QUESTIONS[number % len(QUESTIONS)]
            right = (number % 4, (number + 1) % 4)
            rows.append(row(number, question, right=right, split=split))
        write(place / f"{split}.jsonl", rows)
    return place


# -- A made-up WordNet of a few meanings, in the format of the real one's files (wndb(5), cntlist(5)) --
ENDINGS = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
TYPES = {"n": 1, "v": 2, "a": 3, "r": 4}


@dataclass(frozen=True)
class Meaning:
    """A synset: lemmas with how often each is tagged with it, and its hypernym's first lemma."""

    pos: str
    lemmas: tuple[tuple[str, int], ...]
    above: str = ""


MEANINGS = (
    Meaning("n", (("animal", 5), ("creature", 2))),
    Meaning("n", (("dog", 42), ("domestic_dog", 0), ("Canis_familiaris", 0)), "animal"),
    Meaning("n", (("cat", 18), ("kitty", 1)), "animal"),
    Meaning("n", (("child", 30), ("kid", 12), ("youngster", 3))),
    Meaning("n", (("person", 99), ("individual", 5))),
    Meaning("n", (("police_officer", 3), ("policeman", 2), ("officer", 9))),
    Meaning("n", (("umbrella", 2),), "canopy"),
    Meaning("n", (("canopy", 1), ("awning", 4))),
    Meaning("n", (("hat", 7),)),
    Meaning("n", (("apple", 2),), "fruit"),
    Meaning("n", (("fruit", 3),)),
    Meaning("v", (("talk", 20), ("speak", 15))),
    Meaning("v", (("walk", 9), ("stroll", 1))),
    Meaning("v", (("stop", 8), ("halt", 2))),
    Meaning("v", (("see", 50), ("behold", 1))),
    Meaning("v", (("look", 30),), "see"),
    Meaning("v", (("dog", 1), ("chase", 2))),
    Meaning("a", (("happy", 10), ("glad", 4))),
    Meaning("r", (("quickly", 3), ("rapidly", 2))),
)
EXCEPTIONS = {
    "n": ("children child", "policemen policeman"),
    "v": (
        *("spoke speak", "spoken speak", "saw see", "seen see", "stopped stop", "stopping stop"),
        *("beheld behold",),
    ),
    "a": ("happier happy",),
    "r": (),
}
LICENCE = "  1 Made up for tests.  \n  2 {heading}  \n"


def write_wordnet(
    folder: Path, version: str = "3.0", meanings: Sequence[Meaning] = MEANINGS
) -> Path:
    """All files that a reader of WordNet needs."""
    folder.mkdir(parents=True, exist_ok=True)
    head = LICENCE.format(heading=f"WordNet {version} Copyright 2006 by nobody.  ")
    counts = []
    for pos, ending in ENDINGS.items():
        own = [meaning for meaning in meanings if meaning.pos == pos]
        offsets = _offsets(own, head)
        lines = [_line(one, offsets) for one in own]
        (folder / f"data.{ending}").write_text(head + "".join(lines))
        senses: dict[str, list[tuple[int, str]]] = {}
        for one in own:
            for lemma, count in one.lemmas:
                senses.setdefault(lemma.lower(), []).append((-count, offsets[one.lemmas[0][0]]))
                if count:
                    counts.append(f"{lemma.lower()}%{TYPES[pos]}:05:00:: 1 {count}\n")
        index = []
        for lemma, places in sorted(senses.items()):
            found = " ".join(offset for _, offset in sorted(places))
            index.append(f"{lemma} {pos} {len(places)} 1 @ {len(places)} 0 {found}  \n")
        (folder / f"index.{ending}").write_text(head + "".join(index))
        (folder / f"{ending}.exc").write_text("".join(f"{one}\n" for one in EXCEPTIONS[pos]))
    (folder / "cntlist.rev").write_text("".join(sorted(counts)))
    (folder / "index.sense").write_text("")
    (folder / "lexnames").write_text("".join(f"{one:02d} made.up {1}\n" for one in range(6)))
    return folder


def _offsets(meanings: Sequence[Meaning], head: str) -> dict[str, str]:
    """Where each meaning's line will begin, by its first lemma; an offset always has eight digits."""
    unplaced = {one.lemmas[0][0]: "0" * 8 for one in meanings}
    place = len(head)
    offsets = {}
    for one in meanings:
        offsets[one.lemmas[0][0]] = f"{place:08d}"
        place += len(_line(one, unplaced))
    return offsets


def _line(one: Meaning, offsets: dict[str, str]) -> str:
    words = " ".join(f"{lemma} 0" for lemma, _ in one.lemmas)
    pointers = f"001 @ {offsets[one.above]} {one.pos} 0000" if one.above else "000"
    frames = " 01 + 02 00" if one.pos == "v" else ""
    offset = offsets[one.lemmas[0][0]]
    return f"{offset} 05 {one.pos} {len(one.lemmas):02x} {words} {pointers}{frames} | made up\n"

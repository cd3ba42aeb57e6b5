"""Readers of VEC, of spatial commonsense (Liu et al. 2022) and of ImageNetVC, as facts with prompts.

The formats are those of the released files: TobiasLee/VEC `data/*.json` and its copy on the hub,
xxxiaol/spatial-commonsense `data/*/data.json` and `data/posrel/data_qa.json` (all JSON lines, in spite
of their ending), and the .csv files that hemingkx/ImageNetVC `PLM/ImageNetVC.py` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from groundling.core.errors import InputError
from groundling.data.tables import read_json_lines, read_rows
from groundling.studies.knowledge.visual_facts import MASK, TEMPLATES, FactsFile, VisualFact

COMPARATIVES = {
    "size": ("smaller", "larger"),
    "height": ("shorter", "taller"),
    "mass": ("lighter", "heavier"),
    "temperature": ("colder", "hotter"),
    "hardness": ("softer", "harder"),
}
"""Answers by relation; the second is right if the label is 1."""
COMPARISONS = ("The {} is [MASK] than the {}.", "Compared with the {1}, the {0} is [MASK].")
"""Prompts that compare two objects."""
POSITIONS = ("inside", "on", "under", "beside")
"""Positions by label, in the words of the questions of Liu et al."""
POSITION_PROMPTS = ("{} The {} is [MASK] the {}.", "{} Where is the {}? It is [MASK] the {}.")
"""Prompts after the sentence that describes the scene."""
NO_OR_YES = ("no", "yes")
LAYOUTS = (
    ("obj1", "obj2", "label"),
    ("obj_a", "obj_b", "label"),
    ("question", "label"),
    ("obj", "positive", "negative"),
    ("sub", "obj", "alt"),
)
"""Fields of which one group is in every line."""


def is_commonsense(fields: Sequence[str], ending: str) -> bool:
    """Whether a line of JSON with these fields, in a file with this ending, has one of these layouts.

    ViComTe's lines have the fields of VEC's, in files that end in .jsonl.
    """
    known = LAYOUTS if ending == ".json" else LAYOUTS[:-1]
    return any(set(group) <= set(fields) for group in known)


def read_commonsense(path: Path) -> FactsFile:
    """The facts of a file of VEC or of Liu et al.; raises InputError with the line and field of a damaged one."""
    facts = []
    names = set()
    for number, (where, row) in enumerate(read_json_lines(path, ()), start=1):
        name, fact = _CommonsenseLine(path, where, number, row).fact()
        facts.append(fact)
        names.add(name)
    if len(names) > 1:
        raise InputError(f"{path}: has lines of {' and '.join(sorted(names))}; expected one set")
    return FactsFile(facts, {}, set_name=names.pop())


class _CommonsenseLine:
    """One line of a file."""

    def __init__(self, path: Path, where: str, number: int, row: object) -> None:
        self.path = path
        self.where = where
        self.number = number
        if not isinstance(row, dict):
            self.fail("expected a JSON object")
        self.row: Mapping[str, Any] = row

    def fail(self, reason: str) -> NoReturn:
        raise InputError(f"{self.where}: {reason}")

    def fact(self) -> tuple[str, VisualFact]:
        """The set's name, and the line's fact."""
        fields = self.row.keys()
        if {"obj1", "obj2", "label"} <= fields:
            relation = self._relation("relation")
            return f"vec/{relation}", self._comparison(relation, "obj1", "obj2")
        if {"obj", "positive", "negative"} <= fields:
            relation = self._relation("relation")
            return f"vec/{relation}", self._choice(relation, "obj", "positive", "negative")
        if {"sub", "obj", "alt"} <= fields:
            relation = self._relation("relation")
            return f"vec/{relation}", self._choice(relation, "sub", "obj", "alt")
        if {"obj_a", "obj_b", "label", "question"} <= fields:
            relation = self._asked_relation()
            return f"spatial/{relation}", self._comparison(relation, "obj_a", "obj_b")
        if {"obj_a", "obj_b", "label", "text"} <= fields:
            return "spatial/position", self._position()
        if {"question", "label"} <= fields:
            return "spatial/position-qa", self._question()
        layouts = "; ".join(", ".join(group) for group in LAYOUTS)
        self.fail(f"fields are {', '.join(map(str, self.row))[:80]}; expected {layouts}")

    def _comparison(self, relation: str, first: str, second: str) -> VisualFact:
        if relation not in COMPARATIVES:
            self.fail(f"relation is {relation!r}; expected one of {', '.join(COMPARATIVES)}")
        one, other = self._word(first), self._word(second)
        options = COMPARATIVES[relation]
        prompts = {prompt: prompt.format(one, other) for prompt in COMPARISONS}
        subject = f"the {one} compared with the {other}"
        return self._fact(relation, subject, options, self._label(2), prompts)

    def _choice(self, relation: str, subject: str, right: str, wrong: str) -> VisualFact:
        if relation not in TEMPLATES:
            self.fail(f"relation is {relation!r}; expected one of {', '.join(TEMPLATES)}")
        noun, answer, other = (self._word(name) for name in (subject, right, wrong))
        if answer == other:
            self.fail(f"{right} and {wrong} are both {answer!r}")
        options = tuple(sorted((answer, other)))  # so that their order reveals nothing
        prompts = {prompt: prompt.format(f"the {noun}") for prompt in TEMPLATES[relation]}
        return self._fact(relation, noun, options, options.index(answer), prompts)

    def _position(self) -> VisualFact:
        text, one, other = (self._word(name) for name in ("text", "obj_a", "obj_b"))
        prompts = {prompt: prompt.format(text, one, other) for prompt in POSITION_PROMPTS}
        return self._fact("position", text, POSITIONS, self._label(len(POSITIONS)), prompts)

    def _question(self) -> VisualFact:
        question = self._word("question")
        prompts = {f"{{}} {MASK}.": f"{question} {MASK}."}
        return self._fact("position-qa", question, NO_OR_YES, self._label(2), prompts)

    def _fact(
        self,
        relation: str,
        subject: str,
        options: tuple[str, ...],
        answer: int,
        prompts: dict[str, str],
    ) -> VisualFact:
        for prompt in prompts.values():
            if prompt.count(MASK) != 1:
                self.fail(f"the text {prompt[:80]!r} contains {MASK}; remove it")
        return VisualFact(
            id=f"{self.number}:{subject}",
            subject=subject,
            relation=relation,
            options=options,
            target=np.eye(len(options))[answer],
            prompts=prompts,
        )

    # -- fields --------------------------------------------------------------------------------------------------------

    def _word(self, name: str) -> str:
        value = self.row[name]
        if not isinstance(value, str) or not value.strip():
            self.fail(f"{name} is {str(value)[:60]!r}; expected a text")
        return value.strip()

    def _label(self, count: int) -> int:
        value = self.row["label"]
        if type(value) is not int or not 0 <= value < count:
            self.fail(f"label is {value!r:.60}; expected a number from 0 to {count - 1}")
        return value

    def _relation(self, field: str) -> str:
        """The line's relation, or that of the file's name (`mass.json`)."""
        if field in self.row:
            return self._word(field)
        known = {*COMPARATIVES, *TEMPLATES}
        if "question" in self.row:
            return self._asked_relation()
        if self.path.stem not in known:
            self.fail(f"no relation, and the file's name is none of {', '.join(sorted(known))}")
        return self.path.stem

    def _asked_relation(self) -> str:
        """Size or height, by the comparative of the question."""
        words = self._word("question").rstrip("?").split()
        for relation in ("size", "height"):
            if set(COMPARATIVES[relation]) & set(words):
                return relation
        self.fail(
            f"question is {self.row['question'][:60]!r}; expected larger, smaller, taller or shorter"
        )


# -- ImageNetVC --------------------------------------------------------------------------------------------------------

_CANDIDATES = """color brown black white yellow green gray red orange blue silver pink
shape round rectangle triangle square oval curved cylinder straight cone curly heart star
material metal wood plastic cotton glass fabric stone rubber ceramic cloth leather flour paper clay wax concrete
component yes no
others_yes yes no
others_number 2 4 6 1 8 3 5
others_other long small short large forest water ocean big tree ground tall wild outside thin head thick circle brown \
soft land neck rough chest smooth fur hard top plants black metal books vertical lake grass road sky front kitchen \
feathers stripes baby hair feet mouth female table"""
CANDIDATES: dict[str, tuple[str, ...]] = {}
for _line in _CANDIDATES.splitlines():
    _name, *_words = _line.split()
    CANDIDATES[_name] = tuple(_words)
"""ImageNetVC's candidate answers by subset (its PLM/ImageNetVC.py)."""
OTHERS = "others"
"""The subset whose candidates depend on the answer."""
QUESTION_PROMPTS = (
    "{} [MASK].",
    "{} Answer: [MASK].",
    "{} The answer is [MASK].",
    "Question: {} Answer: [MASK].",
    "Question: {} The answer is [MASK].",
)
"""ImageNetVC's five prompts (its Section 4), with the candidate masked."""
COLUMNS = ("question", "answer")


def read_imagenet_vc(path: Path) -> FactsFile:
    """The facts of one of ImageNetVC's files, which its name identifies: color, shape, material, component, others.

    As in the release, the candidates of `others` depend on the answer: yes or no, a number, or a word.
    A row whose answer is no candidate is left out and counted; the release counts it as wrong.

    Raises InputError for another name, or a row without a question or an answer.
    """
    subset = path.stem
    if subset != OTHERS and subset not in CANDIDATES:
        names = ", ".join([*CANDIDATES, OTHERS])
        raise InputError(
            f"{path}: ImageNetVC's files name their subset; expected one of {names}, e.g. color.csv"
        )
    facts = []
    outside = 0
    for line, (where, row) in enumerate(read_rows(path, COLUMNS), 2):
        question, answer = row["question"].strip(), row["answer"].strip().lower()
        for name, value in zip(COLUMNS, (question, answer), strict=True):
            if not value:
                raise InputError(f"{where}: {name} is empty; expected a text")
        if MASK in question:
            raise InputError(f"{where}: question contains {MASK}; remove it")
        kind = _kind_of_other(answer) if subset == OTHERS else subset
        options = CANDIDATES[kind]
        if answer not in options:
            outside += 1
            continue
        facts.append(
            VisualFact(
                id=str(line),
                subject=question,
                relation=subset,
                options=options,
                target=np.eye(len(options))[options.index(answer)],
                group=kind if kind != subset else "",
                prompts={prompt: prompt.format(question) for prompt in QUESTION_PROMPTS},
            )
        )
    if not facts:
        raise InputError(f"{path}: no answer is a candidate of the subset {subset}")
    family = OTHERS if subset.startswith(OTHERS) else subset
    return FactsFile(facts, {"answers_no_candidate": outside}, set_name=f"imagenet-vc/{family}")


def _kind_of_other(answer: str) -> str:
    kinds = ("others_yes", "others_number")
    return next((kind for kind in kinds if answer in CANDIDATES[kind]), "others_other")

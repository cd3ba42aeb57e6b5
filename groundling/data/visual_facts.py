"""What things look like, as people say it: the public files of Memory Colors, CoDa and ViComTe, and the world's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from groundling.data.tables import lines_of
from groundling.errors import InputError

MASK = "[MASK]"
"""The place of the answer in a prompt, whatever the model's own mask token is."""

_ANSWERS = """memory black blue brown green grey orange pink purple red white yellow
coda black blue brown gray green orange pink purple red white yellow
color black blue brown gray green orange pink purple red silver white yellow
shape cross heart octagon oval polygon rectangle rhombus round semicircle square star triangle
material bronze ceramic cloth concrete cotton denim glass gold iron jade leather metal paper plastic rubber stone tin \
wood"""
ANSWERS = {name: tuple(words) for name, *words in map(str.split, _ANSWERS.splitlines())}
"""Memory Colors' answers, and ViComTe's per relation in the order of its distributions (its mine-data/README.md)."""

_COLOR = (
    "In daylight {} looks [MASK].",
    "You would call the color of {} [MASK].",
    "To paint {} you need [MASK] paint.",
)
TEMPLATES = {
    "coda": _COLOR,
    "color": _COLOR,
    "shape": (
        "Seen from the front, {} has a [MASK] outline.",
        "To draw {} you begin with a [MASK] shape.",
    ),
    "material": ("Most of {} consists of [MASK].", "To make {} a factory needs [MASK]."),
    "size_larger": ("Next to {} the [MASK] looks small.", "The [MASK] takes up less room than {}."),
    "size_smaller": ("Next to {} the [MASK] looks huge.", "The [MASK] takes up more room than {}."),
    "cooccur": (
        "A picture of {} often shows a [MASK] too.",
        "Where you see {} you expect to see a [MASK].",
    ),
}
"""Prompts for files without sentences of their own, by relation; {} is the subject with its article."""


@dataclass(frozen=True)
class VisualFact:
    """A subject, the answers to choose from, and how people's answers fall on them."""

    id: str
    subject: str
    relation: str
    options: tuple[str, ...]
    target: np.ndarray  # (options,) float, sums to 1; one-hot where the file has a single answer
    group: str = ""  # a part of the data in the file's own terms: Single, Multi, Any; in a world, the noun's split
    prompts: dict[str, str] = field(
        default_factory=dict
    )  # sentences with one `[MASK]`, by their template's name


def read_visual_facts(path: str | Path) -> list[VisualFact]:
    """Facts of one file; each line's fields tell which of these layouts it has.

    - Memory Colors' `memory_colors.jsonl` (Norlund et al. 2021): per object `descriptor`, `item`, `label`.
    - CoDa's `default_*.jsonl` (Paik et al. 2021): per object and template `class_id`, `ngram`, `label` (eleven shares),
      `object_group` (0 Single, 1 Multi, 2 Any), `text`, `template_idx`, `template_group` (1: `text` has a `[MASK]`;
      group 0 has none and is left out). World files add `relation` and `options`: what is asked, and its answers.
    - ViComTe (Zhang et al. 2022), its path telling the relation: `db/**/*.jsonl`, per subject `sub`, `obj`, `alt`; or
      `distributions/*-dist.jsonl`, one line of counts or shares by subject.
    """
    facts: dict[str, VisualFact] = {}
    for number, text in enumerate(lines_of(path), start=1):
        line = _Line(Path(path), number, text)
        for fact in line.facts():
            known = facts.setdefault(fact.id, fact)
            same = known.options == fact.options and np.array_equal(known.target, fact.target)
            if not same or (known is not fact and known.prompts.keys() & fact.prompts):
                line.fail(
                    f"{fact.id} was there before with another label, other options or this template_idx"
                )
            known.prompts.update(fact.prompts)
    for fact in facts.values():
        if not fact.prompts:
            raise InputError(
                f"{path}: {fact.id} has no sentence with {MASK}; expected lines of template_group 1"
            )
    return list(facts.values())


class _Line:
    def __init__(self, path: Path, number: int, text: str) -> None:
        self.path, self.number = path, number
        try:
            self.row: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError as error:
            self.fail(f"not JSON ({error.msg}); expected one object a line")
        if not isinstance(self.row, dict) or not self.row:
            self.fail("expected a JSON object with fields")

    def fail(self, what: str) -> NoReturn:
        raise InputError(f"{self.path}, line {self.number}: {what}")

    def word(self, name: str, default: str | None = None) -> str:
        value = self.row.get(name, default)
        if not isinstance(value, str) or not (value.strip() or default == ""):
            self.fail(f"{name} is {value!r}; expected a text")
        return value.strip()

    def shares(self, name: str, options: Sequence[str]) -> np.ndarray:
        values: Any = self.row[name]
        numbers = isinstance(values, list) and all(
            type(v) in (int, float) and 0 <= v < np.inf for v in values
        )
        if not numbers or len(values) != len(options) or not sum(values):
            self.fail(
                f"{name} is {str(values)[:60]}; expected {len(options)} numbers from 0 up, not all of them 0"
            )
        return np.array(values, float) / sum(values)

    def one_hot(self, name: str, options: Sequence[str]) -> np.ndarray:
        if (value := self.word(name)) not in options:
            self.fail(f"{name} is {value!r}; expected one of {', '.join(options)}")
        return np.eye(len(options))[options.index(value)]

    def facts(self) -> Iterator[VisualFact]:
        if {"item", "label"} <= self.row.keys():
            item, target = self.word("item"), self.one_hot("label", ANSWERS["memory"])
            yield self._fact(
                item,
                "color",
                ANSWERS["memory"],
                target,
                f"{self.word('descriptor', '')} {item}".strip(),
            )
        elif {"class_id", "ngram", "label"} <= self.row.keys():
            yield self._coda()
        elif {"sub", "obj", "alt"} <= self.row.keys():
            relation, subject = self._relation(), self.word("sub")
            # Where answers are things, the line's two are the choice; sorted, so that their order tells nothing.
            options = ANSWERS.get(relation) or tuple(sorted((self.word("obj"), self.word("alt"))))
            yield self._fact(
                subject, relation, options, self.one_hot("obj", options), f"the {subject}"
            )
        elif all(isinstance(value, list) for value in self.row.values()):
            relation = self._relation()
            for subject in self.row:
                options = ANSWERS.get(relation, ())
                yield self._fact(
                    subject, relation, options, self.shares(subject, options), f"the {subject}"
                )
        else:
            layouts = "item, label (Memory Colors); class_id, ngram, label (CoDa); sub, obj, alt or lists (ViComTe)"
            self.fail(f"fields are {', '.join(self.row)[:80]}; expected {layouts}")

    def _fact(
        self, subject: str, relation: str, options: tuple[str, ...], target: Any, phrase: str
    ) -> VisualFact:
        group = {"single": "Single", "multi": "Multi", "any": "Any"}.get(self.path.parent.name, "")
        prompts = {template: template.format(phrase) for template in TEMPLATES[relation]}
        return VisualFact(
            f"{self.number}:{subject}", subject, relation, options, target, group, prompts
        )

    def _coda(self) -> VisualFact:
        options, group, prompts = (
            self.row.get("options", list(ANSWERS["coda"])),
            self.row.get("object_group"),
            {},
        )
        if (
            not isinstance(options, list)
            or len({str(o) for o in options if o}) != len(options)
            or len(options) < 2
        ):
            self.fail(f"options is {str(options)[:60]}; expected two or more different words")
        group = (
            ("Single", "Multi", "Any")[group]
            if type(group) is int and 0 <= group < 3
            else self.word("object_group")
        )
        if self.row.get("template_group") in (1, "text-masked"):
            if self.word("text").count(MASK) != 1 or "template_idx" not in self.row:
                self.fail(
                    f"text is {self.word('text')!r}; expected one {MASK} in it, and a template_idx"
                )
            prompts[str(self.row["template_idx"])] = self.word("text")
        relation, name, target = (
            self.word("relation", "color"),
            self.word("class_id"),
            self.shares("label", options),
        )
        key = f"{name}/{relation}" if "relation" in self.row else name
        return VisualFact(key, self.word("ngram"), relation, tuple(options), target, group, prompts)

    def _relation(self) -> str:
        for part in reversed((*self.path.parts[:-1], self.path.name.split("-dist")[0])):
            if (name := part.removeprefix("wiki-")) in TEMPLATES:
                return name
        self.fail(
            f"ViComTe's lines do not name their relation; expected one of {', '.join(TEMPLATES)} in the path"
        )

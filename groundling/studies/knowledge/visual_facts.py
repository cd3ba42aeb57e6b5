"""Visual attributes by people's answers: files of Memory Colors, CoDa, ViComTe and worlds.

CoDa's raw annotations (Paik et al. 2021) are supported too: colours by worker, words of each
object, and templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import yaml
from scipy.stats import kendalltau

from groundling.core.errors import InputError, convert_errors
from groundling.data.tables import lines_of, read_json_lines, read_text

MASK = "[MASK]"
"""The answer's slot in a prompt, independent of the model's mask token."""

COLOURS = (
    *("black", "blue", "brown", "gray", "green", "orange"),
    *("pink", "purple", "red", "white", "yellow"),
)
"""CoDa's options, in the order of its published labels."""
_ANSWERS = """memory black blue brown green grey orange pink purple red white yellow
color black blue brown gray green orange pink purple red silver white yellow
shape cross heart octagon oval polygon rectangle rhombus round semicircle square star triangle
material bronze ceramic cloth concrete cotton denim glass gold iron jade leather metal paper plastic rubber stone tin \
wood"""
ANSWERS: dict[str, tuple[str, ...]] = {"coda": COLOURS}
for _line in _ANSWERS.splitlines():
    _name, *_words = _line.split()
    ANSWERS[_name] = tuple(_words)
"""Options of Memory Colors, and of ViComTe's relations in order (its mine-data/README.md)."""

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
"""Prompts for files without sentences, by relation; {} is the subject with its article."""


OBJECT_GROUPS = ("Single", "Multi", "Any")
"""CoDa's groups of objects by index: mostly one colour, several, or any."""

MASKED_TEMPLATES = (1, "text-masked")
"""Values of template_group in CoDa's files for sentences with a `[MASK]`."""

MAX_COUNT = 1e300
"""Largest count or share that is accepted; the sum of eleven is still finite."""
ANNOTATIONS = "annotations.jsonl"
OBJECTS = "objects.jsonl"
SENTENCES = "templates.yaml"
"""Names of CoDa's raw files, all with the same prefix, which may be empty."""
MASKED = "text-masked"
"""Name of the group of templates with a mask."""
WORDS = ("object_s", "areis_s", "object_pl", "areis_pl")
"""Fields of an object: singular and plural, each with its verb; None if it has no such form."""


@dataclass(frozen=True)
class VisualFact:
    """A subject, its options, and the distribution of people's answers over them."""

    id: str
    """Unique within a file."""
    subject: str
    """The noun, without an article."""
    relation: str
    """The attribute: color, shape, material, size_larger, ..."""
    options: tuple[str, ...]
    """The possible answers."""
    target: np.ndarray
    """(options,) float, sums to 1: shares of people's answers; one-hot for a single answer."""
    group: str = ""
    """The file's group of the fact: Single, Multi, Any; in a world, the noun's split."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Sentences with one `[MASK]`, by template name."""
    frequencies: np.ndarray | None = None
    """(options,) float: how many people named each option; feature norms alone have it."""


class FactsFile(NamedTuple):
    """The facts of a file, and counts of what was left out."""

    facts: list[VisualFact]
    left_out: dict[str, int]
    """Number of lines or subjects left out, by reason."""
    companion_files: tuple[Path, ...] = ()
    """Companion files that were read too."""
    set_name: str = ""
    """The published set that the file belongs to; empty: none."""


def open_visual_facts(path: str | Path) -> FactsFile:
    """The facts of a file, see `read_visual_facts`, and counts of what was left out."""
    if not is_raw_coda(path):
        return FactsFile(read_visual_facts(path), {}, set_name=_set_name(Path(path)))
    objects, left_out = read_coda(path)
    facts = []
    for coda_object in objects:
        if MASK not in "".join(coda_object.prompts.values()):
            raise InputError(f"{path}: {coda_object.noun!r} has no sentence with {MASK}")
        facts.append(
            VisualFact(
                coda_object.id,
                coda_object.noun,
                "color",
                COLOURS,
                coda_object.shares,
                "",
                coda_object.prompts,
            )
        )
    return FactsFile(facts, left_out, companion_files(path), "coda")


def _set_name(path: Path) -> str:
    """The published set of a file that is no raw CoDa, by its first line; empty for a world's."""
    (_, row), *_ = read_json_lines(path, ())
    fields = set(row)
    lists = all(isinstance(value, list) for value in row.values())
    if not lists and {"item", "label"} <= fields:
        return "memory-colors"
    if not lists and "class_id" in fields:
        return "" if "relation" in fields else "coda"
    return f"vicomte/{_relation_name(path)}"


def _relation_name(path: Path) -> str:
    """The last part of a path that names a relation, `wiki-` included; empty without one."""
    for part in (path.name.split("-dist")[0], *reversed(path.parts[:-1])):
        if part.removeprefix("wiki-") in TEMPLATES:
            return part
    return ""


def read_visual_facts(path: str | Path) -> list[VisualFact]:
    """Facts of one file in JSON lines; the fields of each line determine its layout:

    - Memory Colors' `memory_colors.jsonl` (Norlund et al. 2021): per object `descriptor`, `item`,
      `label`.
    - CoDa's `default_*.jsonl` (Paik et al. 2021): per object and template `class_id`, `ngram`,
      `label` (eleven shares), `object_group` (0 Single, 1 Multi, 2 Any), `text`, `template_idx`,
      `template_group` (1: `text` has a `[MASK]`; group 0 has none and is left out). World files add
      `relation` and `options`.
    - CoDa's raw `annotations.jsonl`, beside its `objects.jsonl` and `templates.yaml`: see
      `read_coda`.
    - ViComTe (Zhang et al. 2022), with the relation in the path: `db/**/*.jsonl`, per subject
      `sub`, `obj`, `alt`; or `distributions/*-dist.jsonl`, one line of counts or shares by subject.

    Raises InputError with the line that has none of these layouts, or contradicts an earlier line.
    """
    if is_raw_coda(path):
        return open_visual_facts(path).facts
    facts: dict[str, VisualFact] = {}
    for number, (_, row) in enumerate(read_json_lines(Path(path), ()), start=1):
        line = _FactLine(Path(path), number, row)
        for fact in line.facts():
            if fact.id in facts:
                line.check_agreement(facts[fact.id], fact)
                facts[fact.id].prompts.update(fact.prompts)
            else:
                facts[fact.id] = fact
    for fact in facts.values():
        if not fact.prompts:
            raise InputError(
                f"{path}: {fact.id} has no sentence with {MASK}; expected lines of template_group 1"
            )
    return list(facts.values())


class _FactLine:
    """One line of a file: a JSON object in one of the layouts."""

    def __init__(self, path: Path, number: int, row: dict[str, Any]) -> None:
        self.path = path
        self.number = number
        if not row:
            self.fail("expected a JSON object with fields")
        self.row = row

    def facts(self) -> Iterator[VisualFact]:
        """The facts of the line, by its layout."""
        fields = self.row.keys()
        # In a line of distributions, field names are subjects, and ViComTe's subjects include "item" and
        # "label".
        if all(isinstance(value, list) for value in self.row.values()):
            yield from self._distributions()
        elif {"item", "label"} <= fields:
            yield self._memory_colors()
        elif {"class_id", "ngram", "label"} <= fields:
            yield self._coda()
        elif {"sub", "obj", "alt"} <= fields:
            yield self._vicomte_pair()
        else:
            layouts = "item, label (Memory Colors); class_id, ngram, label (CoDa); sub, obj, alt or lists (ViComTe)"
            self.fail(f"fields are {', '.join(self.row)[:80]}; expected {layouts}")

    def check_agreement(self, earlier: VisualFact, fact: VisualFact) -> None:
        """Raises InputError unless `fact` is the `earlier` one with other sentences."""
        same_options = earlier.options == fact.options
        same_target = np.array_equal(earlier.target, fact.target)
        repeated = earlier.prompts.keys() & fact.prompts.keys()
        if not same_options or not same_target or repeated:
            self.fail(
                f"{fact.id} is also on an earlier line, with another label, other options or the same template_idx"
            )

    def fail(self, reason: str) -> NoReturn:
        raise InputError(f"{self.path}, line {self.number}: {reason}")

    # -- layouts -------------------------------------------------------------------------------------------------------

    def _memory_colors(self) -> VisualFact:
        options = ANSWERS["memory"]
        item = self._word("item")
        target = self._one_hot("label", options)
        descriptor = self._word("descriptor", default="")  # the article; "steel" has none
        return self._fact(item, "color", options, target, f"{descriptor} {item}".strip())

    def _coda(self) -> VisualFact:
        options = self._coda_options()
        prompts = {}
        if self.row.get("template_group") in MASKED_TEMPLATES:
            sentence = self._word("text")
            if sentence.count(MASK) != 1 or "template_idx" not in self.row:
                self.fail(
                    f"text is {sentence!r}; expected a sentence with one {MASK}, and a template_idx"
                )
            prompts[str(self.row["template_idx"])] = sentence
        name = self._word("class_id")
        relation = self._word("relation", default="color")
        return VisualFact(
            # In a world's file, a noun has a fact for every relation.
            id=f"{name}/{relation}" if "relation" in self.row else name,
            subject=self._word("ngram"),
            relation=relation,
            options=options,
            target=self._shares("label", options),
            group=self._coda_group(),
            prompts=prompts,
        )

    def _coda_options(self) -> tuple[str, ...]:
        if "options" not in self.row:
            return ANSWERS["coda"]
        options = self.row["options"]
        words = isinstance(options, list) and all(
            isinstance(word, str) and word for word in options
        )
        if not words or len(options) < 2 or len(set(options)) < len(options):
            self.fail(f"options is {str(options)[:60]}; expected two or more different words")
        return tuple(options)

    def _coda_group(self) -> str:
        group = self.row.get("object_group")
        if type(group) is int and 0 <= group < len(OBJECT_GROUPS):  # True is an int, too
            return OBJECT_GROUPS[group]
        return self._word("object_group")

    def _vicomte_pair(self) -> VisualFact:
        relation = self._relation()
        subject = self._word("sub")
        options = ANSWERS.get(relation)
        if options is None:
            # If answers are nouns, the line's two are the options; sorted, so that their order reveals nothing.
            options = tuple(sorted((self._word("obj"), self._word("alt"))))
        return self._fact(
            subject, relation, options, self._one_hot("obj", options), f"the {subject}"
        )

    def _distributions(self) -> Iterator[VisualFact]:
        relation = self._relation()
        options = ANSWERS.get(relation, ())
        for subject in self.row:
            target = self._shares(subject, options)
            yield self._fact(subject, relation, options, target, f"the {subject}")

    def _fact(
        self,
        subject: str,
        relation: str,
        options: tuple[str, ...],
        target: np.ndarray,
        phrase: str,
    ) -> VisualFact:
        """A fact of a file without sentences; `phrase` is the subject with its article."""
        groups = {name.lower(): name for name in OBJECT_GROUPS}
        return VisualFact(
            id=f"{self.number}:{subject}",
            subject=subject,
            relation=relation,
            options=options,
            target=target,
            group=groups.get(self.path.parent.name, ""),
            prompts={template: template.format(phrase) for template in TEMPLATES[relation]},
        )

    # -- fields --------------------------------------------------------------------------------------------------------

    def _word(self, name: str, default: str | None = None) -> str:
        value = self.row.get(name, default)
        if not isinstance(value, str):
            self.fail(f"{name} is {value!r}; expected a text")
        word = value.strip()
        if not word and default != "":
            self.fail(f"{name} is {value!r}; expected a text")
        return word

    def _shares(self, name: str, options: Sequence[str]) -> np.ndarray:
        values = self.row[name]
        if not _are_counts(values) or len(values) != len(options) or not sum(values):
            self.fail(
                f"{name} is {str(values)[:60]}; expected {len(options)} numbers, none below 0 and not all 0"
            )
        return np.array(values, float) / sum(values)

    def _one_hot(self, name: str, options: Sequence[str]) -> np.ndarray:
        value = self._word(name)
        if value not in options:
            self.fail(f"{name} is {value!r}; expected one of {', '.join(options)}")
        return np.eye(len(options))[options.index(value)]

    def _relation(self) -> str:
        """The last part of the path that names a relation: `wiki-color/`, `size_larger/`, `shape-dist.jsonl`."""
        name = _relation_name(self.path).removeprefix("wiki-")
        if name:
            return name
        self.fail(
            f"ViComTe's lines do not name their relation; expected one of {', '.join(TEMPLATES)} in the path"
        )


def _are_counts(values: object) -> bool:
    """Whether it is a list of finite numbers from 0 up."""
    if not isinstance(values, list):
        return False
    return all(type(value) in (int, float) and 0 <= value <= MAX_COUNT for value in values)


# -- CoDa, raw ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CodaObject:
    """An object of CoDa with people's colour shares."""

    id: str
    """CoDa's `class_id`."""
    noun: str
    shares: np.ndarray
    """(11,) float, sums to 1: the mean of the annotators' shares, in the order of `COLOURS`."""
    prompts: dict[str, str]
    """Sentences with a `[MASK]`, by index among all templates."""


def is_raw_coda(path: str | Path) -> bool:
    """Whether a file has CoDa's raw annotations, one worker's answer per line."""
    first = lines_of(path)[0]
    return all(f'"{name}"' in first for name in ("class_id", "included", "action"))


def companion_files(path: str | Path) -> tuple[Path, Path]:
    """The files of objects and templates that belong to a file of annotations.

    Raises InputError if its name does not end in `annotations.jsonl`.
    """
    path = Path(path)
    if not path.name.endswith(ANNOTATIONS):
        raise InputError(
            f"{path}: CoDa's raw annotations must be named {ANNOTATIONS}, in one folder with {OBJECTS} and {SENTENCES}"
        )
    start = path.name.removesuffix(ANNOTATIONS)
    return path.with_name(start + OBJECTS), path.with_name(start + SENTENCES)


def read_coda(path: str | Path) -> tuple[list[CodaObject], dict[str, int]]:
    """The objects of CoDa's raw files, and the number of lines and objects left out, by reason.

    As in nala-cub/coda, projects/coda/probing/dataset/dataset.py: answers that are not `included`
    are skipped. Each remaining answer is divided by its sum. The answer that agrees least with the
    object's mean is removed, repeatedly, while its Kendall's tau is negative. Objects that
    `objects.jsonl` does not list are left out.

    Raises InputError for a malformed line, field or file.
    """
    objects, templates = companion_files(path)
    answers, skipped = _answers(Path(path))
    sentences = _sentences(templates)
    listed = []
    disagreeing = 0
    unannotated = 0
    for where, row in read_json_lines(objects, ("class_id", "ngram")):
        shares = answers.pop(row["class_id"], None)
        if shares is None:
            unannotated += 1
            continue
        agreeing = _agreeing(np.stack(shares))
        disagreeing += len(shares) - len(agreeing)
        prompts = _fill_templates(sentences, row, where)
        listed.append(CodaObject(row["class_id"], row["ngram"], agreeing.mean(0), prompts))
    if not listed:
        raise InputError(f"{objects}: no object has a class_id of {path}")
    left_out = {
        "skipped_annotations": skipped,
        "disagreeing_annotations": disagreeing,
        "objects_not_listed": len(answers),
        "objects_not_annotated": unannotated,
    }
    return listed, left_out


def _answers(path: Path) -> tuple[dict[str, list[np.ndarray]], int]:
    """Shares (11,) of each included answer, by object, and the number of other answers."""
    answers: dict[str, list[np.ndarray]] = {}
    skipped = 0
    for where, row in read_json_lines(path, ("class_id",)):
        if type(row.get("included")) is not bool:
            raise InputError(
                f"{where}: included is {row.get('included')!r}; expected true or false"
            )
        if not row["included"]:
            skipped += 1
            continue
        numbers = np.array([_number(row, colour, where) for colour in COLOURS])
        if not numbers.sum():
            raise InputError(f"{where}: no colour has a number above 0; expected included: false")
        answers.setdefault(row["class_id"], []).append(numbers / numbers.sum())
    return answers, skipped


def _number(row: Mapping[str, Any], colour: str, where: str) -> float:
    value: Any = row.get(colour)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < np.inf:
        raise InputError(f"{where}: {colour} is {value!r}; expected a number of at least 0")
    return float(value)


def _agreeing(shares: np.ndarray) -> np.ndarray:
    """The answers (n, 11) without those that disagree with the mean; the worst is removed first."""
    while True:
        mean = shares.mean(0)
        tau = np.array([kendalltau(own, mean).statistic for own in shares])
        # A constant answer has no tau, and is kept.
        tau = np.where(np.isnan(tau), np.inf, tau)
        if tau.min() >= 0:
            return shares
        shares = np.delete(shares, tau.argmin(), axis=0)


def _sentences(path: Path) -> dict[str, str]:
    """Sentences with a mask, by index among all templates, sorted (the release's template_idx)."""
    expected = (
        f"{path}: expected CoDa's YAML, `templates:` as a list of a `name` and its `templates`"
    )
    with convert_errors(expected, errors=(yaml.YAMLError, KeyError, TypeError)):
        content = yaml.safe_load(read_text(path))
        groups = [(group["name"], list(group["templates"])) for group in content["templates"]]
    texts = sorted((str(text), name) for name, members in groups for text in members)
    masked = {str(n): text for n, (text, name) in enumerate(texts) if name == MASKED}
    if not masked:
        raise InputError(f"{path}: no group of templates is named {MASKED}")
    return masked


def _fill_templates(
    sentences: Mapping[str, str], row: Mapping[str, Any], where: str
) -> dict[str, str]:
    """The sentences that an object has all words for; some objects have no singular."""
    for name in WORDS:
        if name not in row or not isinstance(row[name], str | None):
            raise InputError(f"{where}: {name} is {row.get(name)!r}; expected a text or null")
    words: dict[str, str] = {name: row[name] for name in WORDS if row[name]}
    for form in ("s", "pl"):
        parts: Sequence[str | None] = (words.get(f"object_{form}"), words.get(f"areis_{form}"))
        if all(parts):
            words[f"object_areis_{form}"] = " ".join(part for part in parts if part)
    prompts = {}
    for number, sentence in sentences.items():
        filled = sentence
        for name, word in words.items():
            filled = filled.replace(f"{{{name}}}", word)
        if "{" not in filled:
            prompts[number] = filled
    return prompts

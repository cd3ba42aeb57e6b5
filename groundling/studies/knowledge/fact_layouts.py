"""Files of visual facts that others released, as rows of our own format (`visual_facts`).

`LAYOUTS` maps the columns or fields of each release: Memory Colors (Norlund et al. 2021), CoDa and its raw
annotations (Paik et al. 2021), ViComTe (Zhang et al. 2022), VEC (TobiasLee/VEC and its copy on the hub),
spatial commonsense (Liu et al. 2022), ImageNetVC (hemingkx/ImageNetVC, PLM/ImageNetVC.py), and feature norms
after Visual Property Norms (Hagström and Johansson 2022; lovhag/measure-visual-commonsense-knowledge,
`visual_property_norms/`): a query is a concept and the start of a feature (is, has, has a, is made of), and its
labels are the features' last words. Here a label may have several tokens; the release keeps words that are one
token of BERT. Of a feature with alternatives (`noisy_loud`) the first is used; the release picks the most frequent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from scipy.stats import kendalltau

from groundling.core.errors import (
    InputError,
    convert_errors,
    convert_read_errors,
    prefix_errors,
    require_known,
)
from groundling.data.tables import Row, lines_of, read_json_lines, read_text

MASK = "[MASK]"
"""The answer's slot in a prompt, independent of the model's mask token."""

FactRow = dict[str, Any]
"""A row of our own format: subject, relation, options, shares and prompts; id, group, set, frequencies."""


class FactSource:
    """A file that is read, and what its reader adds to the facts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left_out = Counter[str]()
        """Number of rows or subjects left out, by reason."""
        self.companions: tuple[Path, ...] = ()
        """Companion files that were read too."""


RowReader = Callable[[Iterable[Row], FactSource], Iterator[tuple[str, FactRow]]]
"""From all rows of a file to rows of our own format, each with its file and line."""
RowConverter = Callable[[dict[str, Any], FactSource], Iterator[FactRow]]


class Layout(NamedTuple):
    """A format of a release."""

    columns: tuple[str, ...]
    """Columns or fields that identify it."""
    read: RowReader


@contextmanager
def at_line(where: str) -> Iterator[None]:
    """Context manager: whatever a damaged row raises is one line with its place in the file."""
    with prefix_errors(where), convert_errors("not a fact"):
        yield


def row_by_row(convert: RowConverter) -> RowReader:
    """The reader of a format each of whose rows is a fact, or several."""

    def read(rows: Iterable[Row], source: FactSource) -> Iterator[tuple[str, FactRow]]:
        for where, row in rows:
            with at_line(where):
                converted = list(convert(row, source))
            for own in converted:
                yield where, own

    return read


def _own(row: dict[str, Any], source: FactSource) -> Iterator[FactRow]:
    """A row that is in our own format already."""
    yield row


def one_hot(options: Sequence[str], answer: str) -> list[float]:
    """1 for the answer; all 0 for one that is no option, which the reader of facts refuses."""
    return [float(option == answer) for option in options]


# -- Memory Colors, CoDa, ViComTe --------------------------------------------------------------------------------------

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

ANNOTATIONS = "annotations.jsonl"
OBJECTS = "objects.jsonl"
SENTENCES = "templates.yaml"
"""Names of CoDa's raw files, all with the same prefix, which may be empty."""
MASKED = "text-masked"
"""Name of the group of templates with a mask."""
WORDS = ("object_s", "areis_s", "object_pl", "areis_pl")
"""Fields of an object: singular and plural, each with its verb; None if it has no such form."""


def _described(
    name: str,
    relation: str,
    subject: str,
    options: Sequence[str],
    shares: Sequence[float],
    phrase: str,
) -> FactRow:
    """A fact of a file without sentences; `phrase` is the subject with its article."""
    return {
        "set": name,
        "subject": subject,
        "relation": relation,
        "options": options,
        "shares": shares,
        "prompts": {template: template.format(phrase) for template in TEMPLATES[relation]},
    }


def _memory_colors(row: dict[str, Any], source: FactSource) -> Iterator[FactRow]:
    options = ANSWERS["memory"]
    item = row["item"].strip()
    phrase = f"{row.get('descriptor', '')} {item}".strip()  # the article; "steel" has none
    shares = one_hot(options, row["label"].strip())
    yield _described("memory-colors", "color", item, options, shares, phrase)


def _coda(row: dict[str, Any], source: FactSource) -> Iterator[FactRow]:
    """An object with one template; a world's file adds `relation` and `options`."""
    is_world = "relation" in row
    relation = row.get("relation", "color")
    group = row["object_group"]
    is_masked = row.get("template_group") in MASKED_TEMPLATES
    yield {
        "set": "" if is_world else "coda",
        "id": f"{row['class_id']}/{relation}" if is_world else row["class_id"],
        "subject": row["ngram"].strip(),
        "relation": relation,
        "options": row.get("options", COLOURS),
        "shares": row["label"],
        "group": OBJECT_GROUPS[group] if isinstance(group, int) else group,
        "prompts": {str(row["template_idx"]): row["text"]} if is_masked else {},
    }


def _vicomte_relation(path: Path) -> str:
    """The last part of the path that names a relation: `wiki-color/`, `size_larger/`, `shape-dist.jsonl`."""
    for part in (path.name.split("-dist")[0], *reversed(path.parts[:-1])):
        if part.removeprefix("wiki-") in TEMPLATES:
            return part
    raise InputError(f"no relation; expected one of {', '.join(TEMPLATES)} in the path")


def _vicomte(row: dict[str, Any], source: FactSource) -> Iterator[FactRow]:
    """A pair, or a line of counts or shares by subject."""
    name = _vicomte_relation(source.path)
    relation = name.removeprefix("wiki-")
    groups = {group.lower(): group for group in OBJECT_GROUPS}
    group = {"group": groups.get(source.path.parent.name, "")}
    if not _is_distribution(row):
        subject = row["sub"].strip()
        # If answers are nouns, the line's two are the options; sorted, so that their order reveals nothing.
        pair = sorted((row["obj"].strip(), row["alt"].strip()))
        options = ANSWERS.get(relation, tuple(pair))
        shares = one_hot(options, row["obj"].strip())
        yield group | _described(
            f"vicomte/{name}", relation, subject, options, shares, f"the {subject}"
        )
        return
    for subject, shares in row.items():
        options = ANSWERS[relation]
        yield group | _described(
            f"vicomte/{name}", relation, subject, options, shares, f"the {subject}"
        )


def _is_distribution(row: Mapping[str, Any]) -> bool:
    """Whether a line's field names are subjects; ViComTe's include "item" and "label"."""
    return all(isinstance(value, list) for value in row.values())


# -- CoDa, raw ---------------------------------------------------------------------------------------------------------


def _raw_coda(rows: Iterable[Row], source: FactSource) -> Iterator[tuple[str, FactRow]]:
    """The objects of CoDa's raw files, beside which are its objects and templates.

    As in nala-cub/coda, projects/coda/probing/dataset/dataset.py: answers that are not `included`
    are skipped. Each remaining answer is divided by its sum. The answer that agrees least with the
    object's mean is removed, repeatedly, while its Kendall's tau is negative. Objects that
    `objects.jsonl` does not list are left out.
    """
    path = source.path
    if not path.name.endswith(ANNOTATIONS):
        raise InputError(
            f"{path}: CoDa's raw annotations must be named {ANNOTATIONS}, in one folder with {OBJECTS} and {SENTENCES}"
        )
    start = path.name.removesuffix(ANNOTATIONS)
    objects, templates = path.with_name(start + OBJECTS), path.with_name(start + SENTENCES)
    source.companions = (objects, templates)
    answers = _annotations(rows, source)
    sentences = _sentences(templates)
    for where, row in read_json_lines(objects, ("class_id", "ngram")):
        shares = answers.pop(row["class_id"], None)
        if shares is None:
            source.left_out["objects_not_annotated"] += 1
            continue
        agreeing = _agreeing(np.stack(shares))
        source.left_out["disagreeing_annotations"] += len(shares) - len(agreeing)
        with at_line(where):
            prompts = _fill_templates(sentences, row)
        yield (
            where,
            {
                "set": "coda",
                "id": row["class_id"],
                "subject": row["ngram"],
                "relation": "color",
                "options": COLOURS,
                "shares": agreeing.mean(0),
                "prompts": prompts,
            },
        )
    source.left_out["objects_not_listed"] += len(answers)


def _annotations(rows: Iterable[Row], source: FactSource) -> dict[str, list[np.ndarray]]:
    """Shares (11,) of each included answer, by object."""
    answers: dict[str, list[np.ndarray]] = defaultdict(list)
    for where, row in rows:
        with at_line(where):
            if not row["included"]:
                source.left_out["skipped_annotations"] += 1
                continue
            numbers = np.array([row[colour] for colour in COLOURS], float)
            if not ((numbers >= 0).all() and 0 < numbers.sum() < np.inf):
                raise InputError("expected a number of at least 0 for each colour, one above 0")
            answers[row["class_id"]].append(numbers / numbers.sum())
    return answers


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
    with convert_read_errors(path):
        groups = yaml.safe_load(read_text(path))["templates"]
        texts = sorted((text, group["name"]) for group in groups for text in group["templates"])
    return {str(number): text for number, (text, name) in enumerate(texts) if name == MASKED}


def _fill_templates(sentences: Mapping[str, str], row: Mapping[str, Any]) -> dict[str, str]:
    """The sentences that an object has all words for; some objects have no singular."""
    words: dict[str, str] = {name: row[name] for name in WORDS if row[name]}
    for form in ("s", "pl"):
        parts = [words.get(f"object_{form}"), words.get(f"areis_{form}")]
        if None not in parts:
            words[f"object_areis_{form}"] = " ".join(map(str, parts))
    prompts = {}
    for number, sentence in sentences.items():
        filled = sentence
        for name, word in words.items():
            filled = filled.replace(f"{{{name}}}", word)
        if "{" not in filled:
            prompts[number] = filled
    return prompts


# -- VEC and spatial commonsense ---------------------------------------------------------------------------------------

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


def _commonsense_relation(row: Mapping[str, Any], path: Path) -> str:
    """The line's relation: its own, that of its question's comparative, or of the file's name (`mass.json`)."""
    if "relation" in row:
        return str(row["relation"])
    if "question" not in row:
        return path.stem
    words = set(row["question"].rstrip("?").split())
    fits = [name for name in ("size", "height") if words & set(COMPARATIVES[name])]
    return fits[0]


def _comparison(name: str, first: str, second: str) -> RowConverter:
    def convert(row: dict[str, Any], source: FactSource) -> Iterator[FactRow]:
        relation = _commonsense_relation(row, source.path)
        one, other = row[first].strip(), row[second].strip()
        yield {
            "set": f"{name}/{relation}",
            "subject": f"the {one} compared with the {other}",
            "relation": relation,
            "options": COMPARATIVES[relation],
            "shares": [float(row["label"] == number) for number in range(2)],
            "prompts": {prompt: prompt.format(one, other) for prompt in COMPARISONS},
        }

    return convert


def _choice(subject: str, right: str, wrong: str) -> RowConverter:
    def convert(row: dict[str, Any], source: FactSource) -> Iterator[FactRow]:
        relation = _commonsense_relation(row, source.path)
        noun, answer = row[subject].strip(), row[right].strip()
        options = sorted((answer, row[wrong].strip()))  # so that their order reveals nothing
        shares = one_hot(options, answer)
        yield _described(f"vec/{relation}", relation, noun, options, shares, f"the {noun}")

    return convert


def _vicomte_or_vec(row: dict[str, Any], source: FactSource) -> Iterator[FactRow]:
    """A line with the fields of both; VEC's files end in .json."""
    if source.path.suffix == ".json":
        return _choice("sub", "obj", "alt")(row, source)
    return _vicomte(row, source)


def _position(row: dict[str, Any], source: FactSource) -> Iterator[FactRow]:
    text, one, other = (row[name].strip() for name in ("text", "obj_a", "obj_b"))
    yield {
        "set": "spatial/position",
        "subject": text,
        "relation": "position",
        "options": POSITIONS,
        "shares": [float(row["label"] == number) for number in range(len(POSITIONS))],
        "prompts": {prompt: prompt.format(text, one, other) for prompt in POSITION_PROMPTS},
    }


def _question(row: dict[str, Any], source: FactSource) -> Iterator[FactRow]:
    question = row["question"].strip()
    yield {
        "set": "spatial/position-qa",
        "subject": question,
        "relation": "position-qa",
        "options": NO_OR_YES,
        "shares": [float(row["label"] == number) for number in range(2)],
        "prompts": {f"{{}} {MASK}.": f"{question} {MASK}."},
    }


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


def _imagenet_vc(row: dict[str, Any], source: FactSource) -> Iterator[FactRow]:
    """A question of a subset, which the file's name identifies: color, shape, material, component, others.

    As in the release, the candidates of `others` depend on the answer: yes or no, a number, or a word.
    A row whose answer is no candidate is left out and counted; the release counts it as wrong.
    """
    subset = source.path.stem
    require_known(subset, [*CANDIDATES, OTHERS], "ImageNetVC's files are named after their subset")
    question, answer = row["question"].strip(), row["answer"].strip().lower()
    kind = _kind_of_other(answer) if subset == OTHERS else subset
    options = CANDIDATES[kind]
    if answer not in options:
        source.left_out["answers_no_candidate"] += 1
        return
    yield {
        "set": f"imagenet-vc/{OTHERS if subset.startswith(OTHERS) else subset}",
        "subject": question,
        "relation": subset,
        "options": options,
        "shares": one_hot(options, answer),
        "group": kind if kind != subset else "",
        "prompts": {prompt: prompt.format(question) for prompt in QUESTION_PROMPTS},
    }


def _kind_of_other(answer: str) -> str:
    kinds = ("others_yes", "others_number")
    return next((kind for kind in kinds if answer in CANDIDATES[kind]), "others_other")


# -- feature norms -----------------------------------------------------------------------------------------------------

CSLB = ("concept", "feature", "feature type", "pf")
MCRAE = ("Concept", "Feature", "BR_Label", "Prod_Freq")
"""Columns of the two tables: concept, feature, its type, and its production frequency."""
STARTS = {"is": "is", "has": "has", "has a": "has a", "has an": "has a", "made of": "is made of"}
"""Starts of features, and how a query begins."""
TYPES = ("visual", "tactile")
"""Types of features that are kept: those that begin so (CSLB: `visual perceptual`)."""
NORM_PROMPTS = ("{} {} {}.", "Usually {} {} {}.")
"""Prompts of concept, start and mask."""
RAREST = 2
"""Least production frequency of a feature that is kept, as in the release."""
LABELS = "labels.txt"
"""File of all labels, in the folder of the queries or the one above it."""


def _norms(name: str, columns: tuple[str, str, str, str]) -> RowReader:
    """The reader of a table of norms: a fact for each concept and start of a feature."""

    def read(rows: Iterable[Row], source: FactSource) -> Iterator[tuple[str, FactRow]]:
        counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for where, row in rows:
            concept, feature, kind, pf = (row[column].strip() for column in columns)
            if name == "mcrae":
                feature = feature.replace("_", " ")
            start, _, label = feature.rpartition(" ")
            label = label.partition("_")[0].lower()
            with at_line(where):
                frequency = int(pf)
            if not kind.startswith(TYPES):
                source.left_out["other_feature_types"] += 1
            elif start not in STARTS:
                source.left_out["other_features"] += 1
            elif frequency < RAREST:
                source.left_out["rare_features"] += 1
            else:
                own = counts[concept.replace("_", " "), STARTS[start]]
                own[label] = max(own[label], frequency)
        options = sorted({label for own in counts.values() for label in own})
        for (concept, start), own in counts.items():
            phrase = f"{'an' if concept[:1].lower() in 'aeiou' else 'a'} {concept}"
            prompts = {prompt: prompt.format(phrase, start, MASK) for prompt in NORM_PROMPTS}
            fact = _norm(concept, start, options, own, prompts)
            yield str(source.path), {"set": f"norms/{name}", **fact}

    return read


def _norm(
    concept: str,
    start: str,
    options: Sequence[str],
    frequencies: Mapping[str, int],
    prompts: dict[str, str],
) -> FactRow:
    numbers = [float(frequencies.get(option, 0)) for option in options]
    return {
        "id": f"{concept}/{start}",
        "subject": concept,
        "relation": "norms",
        "options": options,
        "shares": numbers,
        "frequencies": numbers,
        "group": start,
        "prompts": prompts,
    }


def _queries(rows: Iterable[Row], source: FactSource) -> Iterator[tuple[str, FactRow]]:
    """The queries that the release generates, in which all labels have the file's minimal frequency.

    The options are the labels of `labels.txt`, beside the file or in the folder above, or else all labels
    of the file.
    """
    folder = source.path.parent
    source.companions = tuple(
        one for one in (folder / LABELS, folder.parent / LABELS) if one.is_file()
    )[:1]
    queries = list(rows)
    options = {label for _, row in queries for label in row["labels"]}
    for companion in source.companions:
        listed = {line.strip() for line in lines_of(companion) if line.strip()}
        for label in sorted(options):
            require_known(label, listed, f"{companion}: does not list {label!r}")
        options = listed
    for where, row in queries:
        with at_line(where):
            frequencies = {label: int(row["pf"]) for label in row["labels"]}
            prompts = {row["query_template"]: row["query"]}
            concept, start = row["concept"], row["feature_starter"]
            fact = _norm(concept, start, sorted(options), frequencies, prompts)
        yield where, {"set": "norms/queries", **fact}


LAYOUTS = (
    Layout(("subject", "relation", "options", "shares", "prompts"), row_by_row(_own)),
    Layout(("class_id", "included", "action"), _raw_coda),
    Layout(("item", "label"), row_by_row(_memory_colors)),
    Layout(("class_id", "ngram", "label"), row_by_row(_coda)),
    Layout(("obj1", "obj2", "label"), row_by_row(_comparison("vec", "obj1", "obj2"))),
    Layout(
        ("obj_a", "obj_b", "label", "question"),
        row_by_row(_comparison("spatial", "obj_a", "obj_b")),
    ),
    Layout(("obj_a", "obj_b", "label", "text"), row_by_row(_position)),
    Layout(("question", "label"), row_by_row(_question)),
    Layout(("obj", "positive", "negative"), row_by_row(_choice("obj", "positive", "negative"))),
    Layout(("sub", "obj", "alt"), row_by_row(_vicomte_or_vec)),
    Layout(("query", "labels", "query_template", "feature_starter"), _queries),
    Layout(("question", "answer"), row_by_row(_imagenet_vc)),
    Layout(CSLB, _norms("cslb", CSLB)),
    Layout(MCRAE, _norms("mcrae", MCRAE)),
)
"""The formats; the first whose columns a file has is its format."""
DISTRIBUTION = Layout((), row_by_row(_vicomte))
"""ViComTe's lines of lists, whose fields are subjects."""


def layout_of(path: Path, first: Mapping[str, Any]) -> Layout:
    """The format of a file, by its first row; raises InputError for another one."""
    if first and _is_distribution(first):
        return DISTRIBUTION
    for layout in LAYOUTS:
        if set(layout.columns) <= set(first):
            return layout
    known = "; ".join(", ".join(layout.columns) for layout in LAYOUTS)
    raise InputError(f"{path}: columns are {', '.join(first)[:80]}; expected those of {known}")

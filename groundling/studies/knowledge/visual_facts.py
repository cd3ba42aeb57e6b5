"""Visual facts: a subject, possible answers and people's answers, and the one reader of their files.

Our own format is jsonl with one fact per line: `subject`, `relation`, `options`, `shares` (of people's answers, or
counts), `prompts` (sentences with one `[MASK]`, by name), and if you like `id` and `group`. `LAYOUTS` maps the columns
or fields of files that others released onto it: Memory Colors (Norlund et al. 2021), CoDa and its raw annotations (Paik
et al. 2021), ViComTe (Zhang et al. 2022), VEC (TobiasLee/VEC and its copy on the hub), spatial commonsense (Liu et al.
2022), ImageNetVC (hemingkx/ImageNetVC, PLM/ImageNetVC.py), TaxonomiGQA's questions about descriptions (Qin et al. 2025;
tinlaboratory/taxonomigqa, `src/prompting/run_inference.py`), and feature norms after Visual Property Norms (Hagström
and Johansson 2022; lovhag/measure-visual-commonsense-knowledge, `visual_property_norms/`): a query is a concept and the
start of a feature (is, has, has a, is made of), and its labels are the features' last words. Here a label may have
several tokens; the release keeps words that are one token of BERT. Of a feature with alternatives (`noisy_loud`) the
first is used; the release picks the most frequent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.stats import kendalltau

from groundling.core.errors import (
    InputError,
    convert_errors,
    convert_read_errors,
    prefix_errors,
    require_known,
    require_nonempty,
)
from groundling.data.tables import Row, lines_of, read_header, read_json_lines, read_rows, read_text
from groundling.data.text import indefinite_article
from groundling.studies.knowledge import JsonObject

MASK = "[MASK]"
"""The answer's slot in a prompt, independent of the model's mask token."""
JSON_LINES = (".json", ".jsonl")
"""Endings of files with one object per line; all others are tables."""


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
    set_name: str = ""
    """The published set that it belongs to; empty: none."""
    counts_with: tuple[str, int] | None = None
    """TaxonomiGQA: id and hops of the question that it belongs to, with those about other concepts."""


@dataclass
class FactsFile:
    """The facts of a file, and what its reader notes about them."""

    path: Path
    facts: list[VisualFact] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of lines or subjects left out, by reason."""
    companion_files: tuple[Path, ...] = ()
    """Companion files that were read too."""
    set_name: str = ""
    """The published set that the file belongs to; empty: none."""


FactsReader = Callable[[Iterable[Row], FactsFile], Iterator[VisualFact]]
"""From all rows of a file to its facts; facts without an id get one."""


def open_facts(path: str | Path) -> FactsFile:
    """The facts of a file in our own format or a released one, with the name of its set, if it is a published one.

    Raises InputError for another format, or a damaged file, with its line.
    """
    file = FactsFile(Path(path))
    columns = _layout_of(file.path)
    is_table = file.path.suffix not in JSON_LINES
    rows = read_rows(file.path, columns) if is_table else read_json_lines(file.path)
    facts: dict[str, VisualFact] = {}
    for number, fact in enumerate(LAYOUTS[columns](rows, file), 1):
        with prefix_errors(path):
            _add(fact if fact.id else replace(fact, id=f"{number}:{fact.subject}"), facts)
    file.facts = list(facts.values())
    require_nonempty(file.facts, f"{path}: no fact is left")
    names = list(dict.fromkeys(fact.set_name for fact in file.facts))
    if len(names) > 1:
        raise InputError(f"{path}: has lines of {' and '.join(sorted(names))}; expected one set")
    without = [fact.subject for fact in file.facts if not fact.prompts]
    if without:
        raise InputError(f"{path}: {without[0]!r} has no sentence with {MASK}")
    file.set_name = names[0]
    return file


def _layout_of(path: Path) -> tuple[str, ...]:
    """The columns by which a file's format is known from its first row; raises InputError for another one."""
    if path.suffix not in JSON_LINES:
        header = read_header(path)
    else:
        _, first = next(read_json_lines(path))
        header = list(first)
        if first and _is_distribution(first):
            return DISTRIBUTION
    for columns in LAYOUTS:
        if columns and set(columns) <= set(header):
            return columns
    known = "; ".join(", ".join(columns) for columns in LAYOUTS if columns)
    raise InputError(f"{path}: columns are {', '.join(header)[:80]}; expected those of {known}")


def _add(fact: VisualFact, facts: dict[str, VisualFact]) -> None:
    """Add a fact, or its sentences to those of an equal fact on an earlier line."""
    earlier = facts.setdefault(fact.id, fact)
    if earlier is fact:
        return
    is_equal = earlier.options == fact.options and np.array_equal(earlier.target, fact.target)
    if not is_equal or earlier.prompts.keys() & fact.prompts.keys():
        raise InputError(f"{fact.id} is on two lines, with different answers or the same sentence")
    earlier.prompts.update(fact.prompts)


@contextmanager
def at_line(where: object) -> Iterator[None]:
    """Context manager: whatever a damaged row raises is one line with its place in the file."""
    with prefix_errors(where), convert_errors("not a fact"):
        yield


def row_by_row(convert: Callable[[JsonObject, FactsFile], Iterable[VisualFact]]) -> FactsReader:
    """The reader of a format each of whose rows is a fact, or several."""

    def read(rows: Iterable[Row], file: FactsFile) -> Iterator[VisualFact]:
        for where, row in rows:
            with at_line(where):
                yield from convert(row, file)

    return read


def make_fact(
    set_name: str,
    relation: str,
    subject: str,
    options: Sequence[str],
    shares: str | Sequence[float],
    prompts: Mapping[str, str],
    id: str = "",
    group: str = "",
    are_frequencies: bool = False,
) -> VisualFact:
    """A fact; raises InputError if it would be scored wrongly.

    `shares` may be the right option, and is all 0 for one that is no option; `are_frequencies`: they count people.
    """
    if isinstance(shares, str):
        shares = [float(option == shares) for option in options]
    target = np.array(shares, float)
    are_texts = all(isinstance(one, str) and one for one in (subject, *options))
    is_described = are_texts and all(one.count(MASK) == 1 for one in prompts.values())
    # The letters of a text are no options.
    are_options = len(set(options)) == len(options) and not isinstance(options, str)
    are_shares = target.shape == (len(options),) and (target >= 0).all()
    if not (is_described and are_options and are_shares and 0 < target.sum() < np.inf):
        raise InputError(
            f"{str(subject)[:60]!r} with the options {', '.join(map(str, options))[:200]}: expected different "
            f"options, a share of at least 0 for each, one above 0, and sentences with one {MASK}"
        )
    return VisualFact(
        id,
        subject,
        relation,
        tuple(options),
        target / target.sum(),
        group,
        dict(prompts),
        target if are_frequencies else None,
        set_name,
    )


def _fill(templates: Iterable[str], *words: str) -> dict[str, str]:
    return {template: template.format(*words) for template in templates}


def _by_label(row: Mapping[str, Any], options: Sequence[str]) -> list[float]:
    return [float(row["label"] == number) for number in range(len(options))]


# -- Memory Colors, CoDa, ViComTe --------------------------------------------------------------------------------------
COLOURS = (
    *("black", "blue", "brown", "gray", "green", "orange"),
    *("pink", "purple", "red", "white", "yellow"),
)
"""CoDa's options, in the order of its published labels."""


def _word_lists(text: str) -> dict[str, tuple[str, ...]]:
    return {name: tuple(words) for name, *words in map(str.split, text.splitlines())}


_ANSWERS = """memory black blue brown green grey orange pink purple red white yellow
color black blue brown gray green orange pink purple red silver white yellow
shape cross heart octagon oval polygon rectangle rhombus round semicircle square star triangle
material bronze ceramic cloth concrete cotton denim glass gold iron jade leather metal paper plastic rubber stone tin \
wood"""
ANSWERS = {"coda": COLOURS, **_word_lists(_ANSWERS)}
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


@row_by_row
def _memory_colors(row: JsonObject, file: FactsFile) -> Iterator[VisualFact]:
    item = row["item"].strip()
    phrase = f"{row.get('descriptor', '')} {item}".strip()  # the article; "steel" has none
    prompts = _fill(TEMPLATES["color"], phrase)
    answer = row["label"].strip()
    yield make_fact("memory-colors", "color", item, ANSWERS["memory"], answer, prompts)


@row_by_row
def _coda(row: JsonObject, file: FactsFile) -> Iterator[VisualFact]:
    """An object with one template; a world's file adds `relation` and `options`."""
    is_world = "relation" in row
    relation = row.get("relation", "color")
    is_masked = row.get("template_group") in MASKED_TEMPLATES
    prompts = {str(row["template_idx"]): row["text"]} if is_masked else {}
    group = row["object_group"]
    yield make_fact(
        "" if is_world else "coda",
        relation,
        row["ngram"].strip(),
        row.get("options", COLOURS),
        row["label"],
        prompts,
        id=f"{row['class_id']}/{relation}" if is_world else row["class_id"],
        group=OBJECT_GROUPS[group] if isinstance(group, int) else group,
    )


def _vicomte_relation(path: Path) -> str:
    """The last part of the path that names a relation: `wiki-color/`, `size_larger/`, `shape-dist.jsonl`."""
    name = path.name.split("-dist")[0]
    for part in (name, *reversed(path.parts[:-1])):
        if part.removeprefix("wiki-") in TEMPLATES:
            return part
    raise InputError(f"no relation; expected one of {', '.join(TEMPLATES)} in the path")


@row_by_row
def _vicomte(row: JsonObject, file: FactsFile) -> Iterator[VisualFact]:
    """A pair, of which VEC's files, which end in .json, offer both as options; or counts or shares by subject."""
    is_distribution = _is_distribution(row)
    if file.path.suffix == ".json" and not is_distribution:
        yield _choice(row, file.path, "sub", "obj", "alt")
        return
    name = _vicomte_relation(file.path)
    relation = name.removeprefix("wiki-")
    of_subjects: Mapping[str, Any] = row
    options = ANSWERS.get(relation)
    if not is_distribution:
        of_subjects = {row["sub"].strip(): row["obj"].strip()}
        # If answers are nouns, the line's two are the options; sorted, so that their order reveals nothing.
        both = (row["obj"].strip(), row["alt"].strip())
        options = options or tuple(sorted(both))
    groups = {group.lower(): group for group in OBJECT_GROUPS}
    for subject, shares in of_subjects.items():
        prompts = _fill(TEMPLATES[relation], f"the {subject}")
        group = groups.get(file.path.parent.name, "")
        yield make_fact(
            f"vicomte/{name}", relation, subject, options or (), shares, prompts, group=group
        )


def _is_distribution(row: Mapping[str, Any]) -> bool:
    """Whether a line's field names are subjects; ViComTe's include "item" and "label"."""
    return all(isinstance(value, list) for value in row.values())


# -- CoDa, raw ---------------------------------------------------------------------------------------------------------
ANNOTATIONS, OBJECTS, SENTENCES = "annotations.jsonl", "objects.jsonl", "templates.yaml"
"""Names of CoDa's raw files, all with the same prefix, which may be empty."""
WORDS = ("object_s", "areis_s", "object_pl", "areis_pl")
"""Fields of an object: singular and plural, each with its verb; None if it has no such form."""


def _raw_coda(rows: Iterable[Row], file: FactsFile) -> Iterator[VisualFact]:
    """The objects of CoDa's raw files, beside which are its objects and templates.

    As in nala-cub/coda, projects/coda/probing/dataset/dataset.py: answers that are not `included` are skipped. Each
    remaining answer is divided by its sum. The answer that agrees least with the object's mean is removed, repeatedly,
    while its Kendall's tau is negative. Objects that `objects.jsonl` does not list are left out.
    """
    path = file.path
    if not path.name.endswith(ANNOTATIONS):
        raise InputError(
            f"{path}: CoDa's raw annotations must be named {ANNOTATIONS}, in one folder with {OBJECTS} and {SENTENCES}"
        )
    start = path.name.removesuffix(ANNOTATIONS)
    objects, templates = path.with_name(start + OBJECTS), path.with_name(start + SENTENCES)
    file.companion_files = (objects, templates)
    answers = _annotations(rows, file)
    sentences = _sentences(templates)
    for where, row in read_json_lines(objects, ("class_id", "ngram")):
        shares = answers.pop(row["class_id"], None)
        if shares is None:
            file.left_out["objects_not_annotated"] += 1
            continue
        agreeing = _agreeing(np.stack(shares))
        file.left_out["disagreeing_annotations"] += len(shares) - len(agreeing)
        mean = agreeing.mean(0).tolist()
        with at_line(where):
            prompts = _fill_words(sentences, row)
            yield make_fact("coda", "color", row["ngram"], COLOURS, mean, prompts, row["class_id"])
    file.left_out["objects_not_listed"] += len(answers)


def _annotations(rows: Iterable[Row], file: FactsFile) -> dict[str, list[np.ndarray]]:
    answers: dict[str, list[np.ndarray]] = defaultdict(list)
    for where, row in rows:
        with at_line(where):
            if not row["included"]:
                file.left_out["skipped_annotations"] += 1
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
        texts: list[tuple[str, str]] = []
        for group in groups:
            texts += [(text, group["name"]) for text in group["templates"]]
        texts.sort()
    return {
        str(number): text
        for number, (text, name) in enumerate(texts)
        if name == MASKED_TEMPLATES[1]
    }


def _fill_words(sentences: Mapping[str, str], row: Mapping[str, Any]) -> dict[str, str]:
    """The sentences that an object has all words for; some objects have no singular."""
    words: dict[str, str] = {name: row[name] for name in WORDS if row[name]}
    for form in ("s", "pl"):
        if f"object_{form}" in words and f"areis_{form}" in words:
            words[f"object_areis_{form}"] = f"{words[f'object_{form}']} {words[f'areis_{form}']}"
    prompts = {}
    for number, sentence in sentences.items():
        with suppress(KeyError):
            prompts[number] = sentence.format(**words)
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


def _commonsense_relation(row: Mapping[str, Any], path: Path) -> str:
    """The line's relation: its own, that of its question's comparative, or of the file's name (`mass.json`)."""
    if "relation" in row:
        return str(row["relation"])
    if "question" not in row:
        return path.stem
    words = set(row["question"].rstrip("?").split())
    fits = [name for name in ("size", "height") if words & set(COMPARATIVES[name])]
    return fits[0]


def _comparison(name: str, first: str, second: str) -> FactsReader:
    def convert(row: JsonObject, file: FactsFile) -> Iterator[VisualFact]:
        relation = _commonsense_relation(row, file.path)
        one, other = row[first].strip(), row[second].strip()
        subject = f"the {one} compared with the {other}"
        options = COMPARATIVES[relation]
        prompts = _fill(COMPARISONS, one, other)
        yield make_fact(
            f"{name}/{relation}", relation, subject, options, _by_label(row, options), prompts
        )

    return row_by_row(convert)


def _choice(row: JsonObject, path: Path, subject: str, right: str, wrong: str) -> VisualFact:
    relation = _commonsense_relation(row, path)
    noun, answer = row[subject].strip(), row[right].strip()
    options = sorted((answer, row[wrong].strip()))  # so that their order reveals nothing
    prompts = _fill(TEMPLATES[relation], f"the {noun}")
    return make_fact(f"vec/{relation}", relation, noun, options, answer, prompts)


@row_by_row
def _position(row: JsonObject, file: FactsFile) -> Iterator[VisualFact]:
    text = row["text"].strip()
    one, other = row["obj_a"].strip(), row["obj_b"].strip()
    prompts = _fill(POSITION_PROMPTS, text, one, other)
    shares = _by_label(row, POSITIONS)
    yield make_fact("spatial/position", "position", text, POSITIONS, shares, prompts)


@row_by_row
def _question(row: JsonObject, file: FactsFile) -> Iterator[VisualFact]:
    question = row["question"].strip()
    shares = _by_label(row, ("no", "yes"))
    prompts = {f"{{}} {MASK}.": f"{question} {MASK}."}
    yield make_fact("spatial/position-qa", "position-qa", question, ("no", "yes"), shares, prompts)


# -- TaxonomiGQA -------------------------------------------------------------------------------------------------------
NO_HYPERNYM = -100
"""Hops of a question about another concept than the image's; of its hypernyms they are -1, -2, ..."""
SCENE_PROMPT = "Description: {} Question: In the scene, {} Answer: [MASK]."
"""The release's prompt, with the answer masked."""


@row_by_row
def _taxonomigqa(row: JsonObject, file: FactsFile) -> Iterator[VisualFact]:
    """A question about a described scene, grouped by how many hypernyms above the scene's concept it is asked.

    As in the release (`data/behavioral-data/aggregate_model_res.py`), questions not answered by yes or no are left out.
    """
    question = row["question"].strip()
    answer = row["ground_truth"].strip().lower()
    if answer not in ("no", "yes"):
        file.left_out["answers_no_candidate"] += 1
        return
    hops = int(row["substitution_hop"])
    group = f"{abs(hops) % -NO_HYPERNYM} hops{', other concept' if hops < 0 else ''}"
    asked = question[:1].lower() + question[1:]
    prompts = {SCENE_PROMPT: SCENE_PROMPT.format(row["scene_description"].strip(), asked)}
    one = make_fact(
        "taxonomigqa", "taxonomy", question, ("no", "yes"), answer, prompts, group=group
    )
    key = (str(row["question_id"]), abs(hops) % -NO_HYPERNYM) if "question_id" in row else None
    yield replace(one, counts_with=key)


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
CANDIDATES = _word_lists(_CANDIDATES)
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


@row_by_row
def _imagenet_vc(row: JsonObject, file: FactsFile) -> Iterator[VisualFact]:
    """A question of a subset, which the file's name identifies: color, shape, material, component, others.

    As in the release, the candidates of `others` depend on the answer: yes or no, a number, or a word.
    A row whose answer is no candidate is left out and counted; the release counts it as wrong.
    """
    subset = file.path.stem
    require_known(subset, [*CANDIDATES, OTHERS], "ImageNetVC's files are named after their subset")
    question = row["question"].strip()
    answer = row["answer"].strip().lower()
    kind = subset
    if subset == OTHERS:
        kinds = ("others_yes", "others_number")
        kind = next((one for one in kinds if answer in CANDIDATES[one]), "others_other")
    if answer not in CANDIDATES[kind]:
        file.left_out["answers_no_candidate"] += 1
        return
    name = f"imagenet-vc/{OTHERS if subset.startswith(OTHERS) else subset}"
    prompts = _fill(QUESTION_PROMPTS, question)
    group = kind if kind != subset else ""
    yield make_fact(name, subset, question, CANDIDATES[kind], answer, prompts, group=group)


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
NORMS = "norms"
"""The relation of their facts."""
RAREST = 2
"""Least production frequency of a feature that is kept, as in the release."""
LABELS = "labels.txt"
"""File of all labels, in the folder of the queries or the one above it."""


def _norms(name: str, columns: tuple[str, str, str, str]) -> FactsReader:
    """The reader of a table of norms: a fact for each concept and start of a feature."""

    def read(rows: Iterable[Row], file: FactsFile) -> Iterator[VisualFact]:
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
                file.left_out["other_feature_types"] += 1
            elif start not in STARTS:
                file.left_out["other_features"] += 1
            elif frequency < RAREST:
                file.left_out["rare_features"] += 1
            else:
                own = counts[concept.replace("_", " "), STARTS[start]]
                own[label] = max(own[label], frequency)
        options = sorted({label for own in counts.values() for label in own})
        for (concept, start), own in counts.items():
            phrase = f"{indefinite_article(concept.lower())} {concept}"
            prompts = {prompt: prompt.format(phrase, start, MASK) for prompt in NORM_PROMPTS}
            with at_line(file.path):
                yield _norm(name, concept, start, options, own, prompts)

    return read


def _norm(
    name: str,
    concept: str,
    start: str,
    options: Sequence[str],
    frequencies: Mapping[str, int],
    prompts: Mapping[str, str],
) -> VisualFact:
    shares = [frequencies.get(option, 0) for option in options]
    key = f"{concept}/{start}"
    return make_fact(f"norms/{name}", NORMS, concept, options, shares, prompts, key, start, True)


def _queries(rows: Iterable[Row], file: FactsFile) -> Iterator[VisualFact]:
    """The queries that the release generates, in which all labels have the file's minimal frequency.

    The options are the labels of `labels.txt`, beside the file or in the folder above, or else all labels of the file.
    """
    folder = file.path.parent
    file.companion_files = tuple(
        one for one in (folder / LABELS, folder.parent / LABELS) if one.is_file()
    )[:1]
    queries = list(rows)
    options = {label for _, row in queries for label in row["labels"]}
    for companion in file.companion_files:
        listed = {line.strip() for line in lines_of(companion) if line.strip()}
        for label in sorted(options):
            require_known(label, listed, f"{companion}: does not list {label!r}")
        options = listed
    for where, row in queries:
        with at_line(where):
            frequencies = {label: int(row["pf"]) for label in row["labels"]}
            prompts = {row["query_template"]: row["query"]}
            concept, start = row["concept"], row["feature_starter"]
            yield _norm("queries", concept, start, sorted(options), frequencies, prompts)


OWN = ("subject", "relation", "options", "shares", "prompts")
"""Fields of our own format; `id` and `group` are optional."""


@row_by_row
def _own(row: JsonObject, file: FactsFile) -> Iterator[VisualFact]:
    given = {name: row[name] for name in OWN}
    more = {name: row[name] for name in ("id", "group") if name in row}
    yield make_fact("", **given, **more)


DISTRIBUTION = ()
"""ViComTe's lines of lists, whose fields are subjects."""
LAYOUTS: dict[tuple[str, ...], FactsReader] = {
    OWN: _own,
    ("class_id", "included", "action"): _raw_coda,
    ("item", "label"): _memory_colors,
    ("class_id", "ngram", "label"): _coda,
    ("obj1", "obj2", "label"): _comparison("vec", "obj1", "obj2"),
    ("obj_a", "obj_b", "label", "question"): _comparison("spatial", "obj_a", "obj_b"),
    ("obj_a", "obj_b", "label", "text"): _position,
    ("question", "label"): _question,
    ("question", "ground_truth", "scene_description", "substitution_hop"): _taxonomigqa,
    ("obj", "positive", "negative"): row_by_row(
        lambda row, file: [_choice(row, file.path, "obj", "positive", "negative")]
    ),
    ("sub", "obj", "alt"): _vicomte,
    ("query", "labels", "query_template", "feature_starter"): _queries,
    ("question", "answer"): _imagenet_vc,
    CSLB: _norms("cslb", CSLB),
    MCRAE: _norms("mcrae", MCRAE),
    DISTRIBUTION: _vicomte,
}
"""The formats by their columns or fields; the first that a file has is its format."""

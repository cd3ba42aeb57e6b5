"""Which heads follow syntactic relations (VisualBERT, Section 3, Table 2, Figure 4), as a command.

Does a word attend to the region of the word that it depends on, or that depends on it? An arc joins w1, the head word
of a phrase with boxes, and any other word w2. A head is right if the region that gets most of w2's attention matches a
box of the phrase. A relation is scored separately for phrases that are its head and its dependent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from groundling.core.batch import Example, GoldBoxes
from groundling.core.errors import InputError
from groundling.data.text.parses import (
    ROOT,
    Parse,
    ParsedWord,
    align_parse,
    format_conllu,
    normalize_characters,
    parse_texts,
    read_parses,
)
from groundling.runs.folder import write_whole
from groundling.runs.progress import CommandContext
from groundling.runs.report import TableRow, format_table
from groundling.runs.run import Run
from groundling.studies.attention.commands import (
    GOLD_PARSES,
    EntityCaptionSettings,
    SyntaxConfig,
    parses_of,
)
from groundling.studies.attention.figures import draw_head_accuracies, write_figures
from groundling.studies.attention.grounding import (
    COUNTED,
    PhraseBaselines,
    PhraseSpan,
    count_phrases,
    format_interval,
    format_value,
    notes_of_reports,
    score_heads,
)
from groundling.tasks.grounding import FLICKR30K, EntitiesCaption, read_captions
from groundling.tasks.grounding import EntityPhrase as Entity

LabelScheme = Literal["stanford", "as-is"]
ArcEnd = Literal["head", "dependent"]
"""The end of an arc that is the phrase."""
TABLE_2: dict[str, ArcEnd] = {
    "det": "head",
    "pobj": "dependent",
    "amod": "head",
    "nsubj": "dependent",
    "prep": "head",
    "dobj": "dependent",
    "punct": "head",
    "partmod": "head",
    "nn": "head",
    "num": "head",
}
"""The ten relations of the paper's Table 2, in its order, with the end that is the phrase."""


@dataclass(frozen=True)
class ParsedCaption:
    """A caption with its parse."""

    caption: EntitiesCaption
    words: tuple[ParsedWord, ...]
    spans: np.ndarray
    """(W, 2): character offsets of each word in the caption, start and end (exclusive)."""


class Relation(NamedTuple):
    """A relation, scored separately for phrases that are its head and its dependent."""

    name: str
    phrase_end: ArcEnd
    """The end that is the phrase."""


class MatchedParses(NamedTuple):
    """Captions with their parses, and what could not be matched."""

    parsed: list[ParsedCaption]
    """In the order of the captions."""
    unaligned: list[str]
    """File and line of sentences that name a caption or image but do not have its words."""


def match_parses(
    captions: Sequence[EntitiesCaption], parses: Sequence[Parse], scheme: LabelScheme
) -> MatchedParses:
    """Match captions and parses, and convert the labels to `scheme`.

    A parse with id IMAGE#NUMBER belongs to that caption; one that names an image, to the caption of that image with the
    same words; any other, to every caption with the same words and no parse of its own. The first of several is used.
    """
    by_id = {caption.id: caption for caption in captions}
    by_text: dict[str, list[EntitiesCaption]] = defaultdict(list)
    by_image: dict[str, list[EntitiesCaption]] = defaultdict(list)
    for caption in captions:
        by_text[normalize_characters(caption.text)].append(caption)
        by_image[caption.image].append(caption)
    found: dict[str, ParsedCaption] = {}
    unaligned = []
    # Parses that name their caption come first.
    for parse in sorted(parses, key=lambda parse: parse.id not in by_id):
        if parse.id in by_id:
            candidates = [by_id[parse.id]]
        elif parse.image:
            candidates = by_image.get(parse.image, [])
        else:
            candidates = by_text.get(parse.characters, [])
        fits = False
        for caption in candidates:
            spans = align_parse(parse, caption.text)
            if spans is None:
                continue
            fits = True
            if caption.id not in found:
                found[caption.id] = ParsedCaption(caption, relabel(parse.words, scheme), spans)
        if candidates and not fits:
            unaligned.append(f"{parse.where}: {' '.join(parse.tokens)[:60]!r}")
    parsed = [found[caption.id] for caption in captions if caption.id in found]
    return MatchedParses(parsed, unaligned)


def arcs_of(parsed: ParsedCaption) -> tuple[list[tuple[Relation, PhraseSpan]], Counter[str]]:
    """The arcs at the head words of a caption's phrases with boxes, and counts of what was skipped.

    The span of an arc is the other word, its gold boxes are those of the phrase. Arcs inside a phrase
    are included; a word in another phrase with boxes is skipped, as it may attend to its own region.
    """
    skip_counts: Counter[str] = Counter()
    caption = parsed.caption
    members = [_members(phrase, parsed.spans) for phrase in caption.phrases]
    arcs = []
    for number, phrase in enumerate(caption.phrases):
        own = members[number]
        tops = [place for place in own if parsed.words[place].head not in own]
        if len(tops) != 1:
            skip_counts["phrases_of_several_heads"] += 1
            continue
        # A region is right if it matches any of the phrase's boxes.
        gold = GoldBoxes(phrase.boxes, caption.size)
        example = Example(caption.id, caption.text, images=(caption.image,), gold_boxes=gold)
        other_members = set().union(*members[:number], *members[number + 1 :]) - own
        for relation, place in _arcs_at(parsed.words, tops[0]):
            if place in other_members:
                skip_counts["arcs_to_other_phrases"] += 1
                continue
            arcs.append((relation, PhraseSpan(example, *parsed.spans[place].tolist())))
    return arcs, skip_counts


def _members(phrase: Entity, spans: np.ndarray) -> set[int]:
    touched = (spans[:, 0] < phrase.stop) & (spans[:, 1] > phrase.start)
    return set(np.flatnonzero(touched).tolist())


def _arcs_at(words: Sequence[ParsedWord], top: int) -> list[tuple[Relation, int]]:
    arcs = [
        (Relation(word.relation, "head"), place)
        for place, word in enumerate(words)
        if word.head == top
    ]
    if words[top].head != ROOT:
        arcs.insert(0, (Relation(words[top].relation, "dependent"), words[top].head))
    return arcs


class ArcQuestions(NamedTuple):
    """The arcs of a split's captions that heads are scored on."""

    examples: list[Example]
    """Captions with at least one arc."""
    phrases: list[list[PhraseSpan]]
    """The arcs of every caption, see `arcs_of`; the group of an arc is its relation's index."""
    relations: list[Relation]
    """The most frequent first."""
    skip_counts: Counter[str]
    """Counts of what was skipped."""


def make_arc_questions(parsed: Sequence[ParsedCaption]) -> ArcQuestions:
    """The arcs of all captions, see `arcs_of`."""
    skip_counts: Counter[str] = Counter()
    examples = []
    arcs_of_captions = []
    for one in parsed:
        arcs, skipped = arcs_of(one)
        skip_counts += skipped
        if arcs:
            caption = one.caption
            examples.append(Example(caption.id, caption.text, images=(caption.image,)))
            arcs_of_captions.append(arcs)
    counts = Counter(relation for arcs in arcs_of_captions for relation, _ in arcs)
    relations = sorted(counts, key=lambda relation: (-counts[relation], relation))
    number = {relation: place for place, relation in enumerate(relations)}
    phrases = [
        [replace(arc, group=number[relation]) for relation, arc in arcs]
        for arcs in arcs_of_captions
    ]
    return ArcQuestions(examples, phrases, relations, skip_counts)


# -- labels ------------------------------------------------------------------------------------------------------------
TO_STANFORD = {
    "acl": "partmod",
    "acl:relcl": "rcmod",
    "agent": "prep",
    "aux:pass": "auxpass",
    "cc:preconj": "preconj",
    "compound": "nn",
    "compound:prt": "prt",
    "csubj:pass": "csubjpass",
    "det:predet": "predet",
    "fixed": "mwe",
    "intj": "discourse",
    "nmod:npmod": "npadvmod",
    "nmod:poss": "poss",
    "nmod:tmod": "tmod",
    "nmod:unmarked": "npadvmod",
    "nsubj:pass": "nsubjpass",
    "nummod": "num",
    "obj": "dobj",
    "obl:npmod": "npadvmod",
    "obl:tmod": "tmod",
    "obl:unmarked": "npadvmod",
    "relcl": "rcmod",
}
"""Stanford's names for relations of UD and ClearNLP, where they differ."""
POSSESSIVE = ("nmod:poss", "poss")
"""Relations of a possessor, whose `case` is 's."""
OBLIQUE = ("nmod", "obl")
"""UD's relations of a noun with a preposition, with any subtype."""
IN_A_NOUN_PHRASE = (
    *("acl", "amod", "appos", "case", "compound", "conj", "cc", "det", "fixed", "flat"),
    *("goeswith", "nmod", "nummod", "poss", "relcl"),
)
"""Relations whose children stay with a noun when a copula becomes the predicate in its place."""


def relabel(words: Sequence[ParsedWord], scheme: LabelScheme) -> tuple[ParsedWord, ...]:
    """The words of a parse with the relations of `scheme`; `as-is` changes nothing.

    `stanford`: de Marneffe and Manning 2008, basic dependencies, as in AllenNLP's parser, which the VisualBERT paper
    uses; from Universal Dependencies (v2) or ClearNLP (spaCy's English models). Most relations differ in their name
    alone. A preposition is a child of its noun in UD (`case`); in the others it is the noun's parent (`prep`), and the
    noun its `pobj`. UD attaches `cc` to the conjunct that follows, the others to the first conjunct. A relation without
    a counterpart keeps its name. Words that the schemes attach to different parents (punctuation, copulas except before
    a preposition) keep the parser's parent.
    """
    if scheme == "as-is":
        return tuple(words)
    tree = _Tree(words)
    tree.to_stanford()
    changed = zip(words, tree.head, tree.relation, strict=True)
    return tuple(word._replace(head=head, relation=name) for word, head, name in changed)


def base_relation(relation: str) -> str:
    """A relation without its subtype, the part after the colon."""
    return relation.partition(":")[0]


class _Tree:
    """A parse that can be changed."""

    def __init__(self, words: Sequence[ParsedWord]) -> None:
        self.original_words = words
        self.head = [word.head for word in words]
        self.relation = [word.relation for word in words]

    def children(self, place: int, fits: Callable[[str], bool]) -> list[int]:
        """Indices of the children of word `place` whose relations fit, in order."""
        return [
            child
            for child, head in enumerate(self.head)
            if head == place and fits(self.relation[child])
        ]

    def to_stanford(self) -> None:
        for place, head in enumerate(self.head):
            if self.relation[place] == "cc" and head != ROOT and self.relation[head] == "conj":
                self.head[place] = self.head[head]
        for place in range(len(self.head)):
            cases = self.children(place, lambda name: base_relation(name) == "case")
            if cases:
                self._put_prepositions_between(place, cases)
        for place, name in enumerate(self.relation):
            if base_relation(name) == "acl" and name != "acl:relcl" and self._is_infinitive(place):
                self.relation[place] = "infmod"
            elif name == "dative" and not self.children(place, lambda name: name == "pobj"):
                self.relation[place] = "iobj"
            elif name == "dative":
                self.relation[place] = "prep"
            else:
                self.relation[place] = TO_STANFORD.get(
                    name, TO_STANFORD.get(base_relation(name), base_relation(name))
                )

    def _put_prepositions_between(self, noun: int, cases: Sequence[int]) -> None:
        """Attach a noun to its last preposition; the first one takes its place."""
        name = self.relation[noun]
        if name in POSSESSIVE:
            for case in cases:
                self.relation[case] = "possessive"
            return
        copulas = self.children(noun, lambda name: base_relation(name) == "cop")
        if base_relation(name) in OBLIQUE:
            above = self.head[noun]
        elif copulas:
            above = copulas[0]
            self._make_predicate(above, noun)
        else:
            return
        for case in cases:
            self.head[case], self.relation[case] = above, "prep"
            above = case
        self.head[noun], self.relation[noun] = above, "pobj"

    def _make_predicate(self, verb: int, noun: int) -> None:
        """Put a copula in its noun's place, as "is" in "the dog is on the grass"."""
        self.head[verb], self.relation[verb] = self.head[noun], self.relation[noun]
        for child in self.children(noun, lambda name: base_relation(name) not in IN_A_NOUN_PHRASE):
            self.head[child] = verb

    def _is_infinitive(self, place: int) -> bool:
        marks = self.children(place, lambda name: name in ("mark", "aux"))
        return any(self.original_words[mark].form.lower() == "to" for mark in marks)


# -- the command -------------------------------------------------------------------------------------------------------
SHOWN = 20
"""Number of unaligned sentences in the result."""


def syntax(config: SyntaxConfig, run: Run) -> dict[str, Any]:
    """For every dependency relation, how often each head predicts a region of the word's neighbour.

    Writes the parses of spaCy to the run's folder as `parses.conllu`, and `relations.svg`.

    Raises InputError: the model reads no regions or gives no attention, a file is missing or malformed, a parser is not
    installed, or no relation has enough arcs.
    """
    every = read_captions(Path(config.data), config.split)
    # A parser runs once; its output is saved and read as the file of parses.
    parses = parses_of(config) or _ask_parser(config.parses, every, run)
    parsed = match_parses(every, read_parses(parses), config.labels)
    if not parsed.parsed:
        first = parsed.unaligned or ["no sentence has the words of a caption"]
        raise InputError(f"{parses}: none of the {len(every):,} captions has a parse; {first[0]}")
    arcs = make_arc_questions(parsed.parsed)
    relations: list[dict[str, Any]] = []
    rare: dict[str, int] = {}
    if arcs.relations:
        baselines, boards = score_heads(
            config, arcs.examples, arcs.phrases, FLICKR30K, "mean", run.state.device
        )
        counts = _counts(len(every), parsed, arcs, baselines)
        for (name, end), board in zip(arcs.relations, boards, strict=True):
            number = int(board.scored_phrases.sum())
            if number < config.min_arcs:
                rare[f"{name}, phrase is {end}"] = number
                continue
            row = {"relation": name, "phrase_is": end, "table_2": TABLE_2.get(name) == end}
            relations.append({**row, "arcs": number, **board.report()})
    if not relations:
        raise InputError(
            f"no relation has {config.min_arcs} arcs at a phrase with boxes, the most frequent has "
            f"{max(rare.values(), default=0)}; lower min_arcs"
        )
    run.note(*notes_of_reports(counts, LEFT_OUT, relations))
    if run.state.is_main_process:
        panels = {f"{one['relation']} (phrase is {one['phrase_is']})": one for one in relations}
        write_figures({"relations": draw_head_accuracies(panels)}, run.folder)
    return {
        "labels": config.labels,
        "counts": counts,
        "unaligned": parsed.unaligned[:SHOWN],
        "relations": relations,
        "rare": rare,
        "notes": run.notes,
    }


# -- captions and parses -----------------------------------------------------------------------------------------------
def write_captions(config: EntityCaptionSettings, work: CommandContext) -> str:
    """Write the captions to the file `work.out`, one per line; returns a line with their number.

    Raises InputError if the data is missing or malformed, or the file cannot be written.
    """
    captions = read_captions(Path(config.data), config.split)
    write_whole(work.out, "".join(f"{caption.text}\n" for caption in captions))
    return f"{work.out}: {len(captions):,} captions, one per line"


def _ask_parser(parser: str, captions: Sequence[EntitiesCaption], run: Run) -> Path:
    """Parse the captions with spaCy in the first process; returns the file."""
    path = run.folder / GOLD_PARSES
    with run.state.main_process_first():
        if not path.exists():
            parses = parse_texts(parser, [caption.text for caption in captions])
            lines = []
            for parse, caption in zip(parses, captions, strict=True):
                if parse.words:  # CoNLL-U has no empty sentence
                    lines += format_conllu(replace(parse, id=caption.id))
            write_whole(path, "".join(f"{line}\n" for line in lines))
    return path


def _counts(
    captions: int, matched: MatchedParses, arcs: ArcQuestions, baselines: PhraseBaselines
) -> dict[str, int]:
    return {
        "captions": captions,
        "parsed": len(matched.parsed),
        "unparsed": captions - len(matched.parsed),
        "unaligned_sentences": len(matched.unaligned),
        "phrases": sum(len(one.caption.phrases) for one in matched.parsed),
        "phrases_of_several_heads": arcs.skip_counts["phrases_of_several_heads"],
        "arcs": len(baselines.status),
        "arcs_to_other_phrases": arcs.skip_counts["arcs_to_other_phrases"],
        **count_phrases(baselines),
    }


LEFT_OUT = {
    "unparsed": "captions without a parse",
    "unaligned_sentences": "sentences whose words differ from the caption that they name",
    "phrases_of_several_heads": "phrases with more than one head word",
    "arcs_to_other_phrases": "arcs to another phrase with boxes",
}
"""Counts of what is left out, and the notes on them."""


# -- tables ------------------------------------------------------------------------------------------------------------
def format_syntax(result: dict[str, Any]) -> str:
    """The result as text: the paper's relations, then all others."""
    counts = result["counts"]
    lines = [
        f"{counts['asked']:,} arcs of {counts['parsed']:,} captions; labels: {result['labels']}; {COUNTED}"
    ]
    order = list(TABLE_2)
    of_paper = [one for one in result["relations"] if one["table_2"]]
    of_paper.sort(key=lambda one: order.index(one["relation"]))
    others = [one for one in result["relations"] if not one["table_2"]]
    for heading, rows in (
        ("relations of the paper's Table 2", of_paper),
        ("other relations", others),
    ):
        if rows:
            lines.append(f"{heading}\n\n{format_table([_row(one) for one in rows])}")
    if result["rare"]:
        arcs = sum(result["rare"].values())
        lines.append(f"{len(result['rare'])} rarer relations have {arcs:,} arcs together")
    return "\n\n".join(lines)


def _row(relation: dict[str, Any]) -> TableRow:
    rule = "confidence" if relation["confidence"] is not None else "chance"
    return {
        "relation": relation["relation"],
        "phrase is": relation["phrase_is"],
        "arcs": f"{relation['arcs']:,}",
        "baseline": f"{format_value(relation[rule])} ({rule})",
        "best": relation["best"]["head"] if relation["best"] else "none",
        "%": format_value(relation["best"]),
        "held out": format_value(relation["held_out"]),
        "95 % interval": format_interval(relation["held_out"]),
        "other images": format_value(relation["other_images"]),
    }

"""Which heads follow syntactic relations (VisualBERT, Section 3, Table 2, Figure 4), as a command.

Does a word attend to the region of the word that it depends on, or that depends on it? An arc joins
w1, the head word of a phrase with boxes, and any other word w2. A head is right if the region that
gets most of w2's attention matches a box of the phrase. A relation is scored separately for phrases
that are its head and its dependent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
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
from groundling.runs.report import TableRow, format_count, format_table
from groundling.runs.run import Run
from groundling.studies.attention.commands import (
    GOLD_PARSES,
    EntityCaptionSettings,
    SyntaxConfig,
    parses_of,
)
from groundling.studies.attention.dependency_labels import LabelScheme, relabel
from groundling.studies.attention.grounding import (
    COUNTED,
    GroundingQuestions,
    HeadLeaderboard,
    PhraseBaselines,
    PhraseSpan,
    count_phrases,
    format_interval,
    format_value,
    notes_of_reports,
    score_heads,
)
from groundling.tasks.flickr_entities import FLICKR30K, PROTOCOLS, EntitiesCaption, read_captions
from groundling.tasks.flickr_entities import EntityPhrase as Entity

ArcEnd = Literal["head", "dependent"]
"""The end of an arc that is the phrase."""
BOX_PROTOCOL = "any-box"
"""A region is right if it matches any of a phrase's boxes."""
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


@dataclass(frozen=True)
class Arc:
    """An arc between a phrase's head word and another word."""

    relation: str
    phrase_end: ArcEnd
    """The end that is the phrase."""
    phrase: Entity
    other_word: int
    """Index of the other word in the parse."""


class MatchedParses(NamedTuple):
    """Captions with their parses, and what could not be matched."""

    parsed: list[ParsedCaption]
    """In the order of the captions."""
    unparsed: list[str]
    """Ids of captions without a parse."""
    unaligned: list[str]
    """File and line of sentences that name a caption or image but do not have its words."""
    other_sentences: int
    """Number of sentences of other captions or images."""


def match_parses(
    captions: Sequence[EntitiesCaption], parses: Sequence[Parse], scheme: LabelScheme
) -> MatchedParses:
    """Match captions and parses, and convert the labels to `scheme`.

    A parse with id IMAGE#NUMBER belongs to that caption; one that names an image, to the caption of
    that image with the same words; any other, to every caption with the same words and no parse of
    its own. The first of several is used.
    """
    by_id = {caption.id: caption for caption in captions}
    by_text: dict[str, list[EntitiesCaption]] = defaultdict(list)
    by_image: dict[str, list[EntitiesCaption]] = defaultdict(list)
    for caption in captions:
        by_text[normalize_characters(caption.text)].append(caption)
        by_image[caption.image].append(caption)
    found: dict[str, ParsedCaption] = {}
    unaligned = []
    elsewhere = 0
    # Parses that name their caption come first.
    for parse in sorted(parses, key=lambda parse: parse.id not in by_id):
        if parse.id in by_id:
            candidates = [by_id[parse.id]]
        elif parse.image:
            candidates = by_image.get(parse.image, [])
        else:
            candidates = by_text.get(parse.characters, [])
        elsewhere += not candidates
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
    unparsed = [caption.id for caption in captions if caption.id not in found]
    return MatchedParses(parsed, unparsed, unaligned, elsewhere)


def arcs_of(
    parsed: ParsedCaption, include_other_phrases: bool = False
) -> tuple[list[Arc], Counter[str]]:
    """The arcs at the head words of a caption's phrases with boxes, and counts of what was skipped.

    Arcs inside a phrase are included. `include_other_phrases`: include arcs to words in another phrase with
    boxes, which may attend to their own region.
    """
    skip_counts: Counter[str] = Counter()
    members = [_members(phrase, parsed.spans) for phrase in parsed.caption.phrases]
    arcs = []
    for number, phrase in enumerate(parsed.caption.phrases):
        own = members[number]
        tops = [place for place in own if parsed.words[place].head not in own]
        if len(tops) != 1:
            skip_counts["phrases_of_several_heads"] += 1
            continue
        other_members = set().union(*members[:number], *members[number + 1 :]) - own
        for relation, entity, place in _arcs_at(parsed.words, tops[0]):
            if place in other_members and not include_other_phrases:
                skip_counts["arcs_to_other_phrases"] += 1
                continue
            arcs.append(Arc(relation, entity, phrase, place))
    return arcs, skip_counts


def _members(phrase: Entity, spans: np.ndarray) -> set[int]:
    """Indices of the words that overlap a phrase."""
    touched = (spans[:, 0] < phrase.stop) & (spans[:, 1] > phrase.start)
    return set(np.flatnonzero(touched).tolist())


def _arcs_at(words: Sequence[ParsedWord], top: int) -> list[tuple[str, ArcEnd, int]]:
    """The arcs at word `top`: relation, its own end, and the index of the other word."""
    arcs: list[tuple[str, ArcEnd, int]] = []
    if words[top].head != ROOT:
        arcs.append((words[top].relation, "dependent", words[top].head))
    for place, word in enumerate(words):
        if word.head == top:
            arcs.append((word.relation, "head", place))
    return arcs


class ArcQuestions(NamedTuple):
    """The arcs of a split's captions that heads are scored on."""

    questions: GroundingQuestions
    """Captions with at least one arc; a phrase is an arc: its span is the other word, its gold boxes
    are the phrase's, its group is the relation's index in `names`.
    """
    names: list[tuple[str, ArcEnd]]
    """Every relation with the end that is the phrase, the most frequent first."""
    skip_counts: Counter[str]
    """Counts of what was skipped."""


def make_arc_questions(
    parsed: Sequence[ParsedCaption], include_other_phrases: bool = False
) -> ArcQuestions:
    """The arcs of all captions, see `arcs_of`."""
    skip_counts: Counter[str] = Counter()
    of_captions: list[tuple[ParsedCaption, list[Arc]]] = []
    for one in parsed:
        arcs, skipped = arcs_of(one, include_other_phrases)
        skip_counts += skipped
        if arcs:
            of_captions.append((one, arcs))
    counts = Counter((arc.relation, arc.phrase_end) for _, arcs in of_captions for arc in arcs)
    names = sorted(counts, key=lambda name: (-counts[name], name))
    number = {name: place for place, name in enumerate(names)}
    questions = GroundingQuestions(
        [
            Example(one.caption.id, one.caption.text, images=(one.caption.image,))
            for one, _ in of_captions
        ],
        [[_arc_phrase(one, arc) for arc in arcs] for one, arcs in of_captions],
        [[number[arc.relation, arc.phrase_end] for arc in arcs] for _, arcs in of_captions],
    )
    return ArcQuestions(questions, names, skip_counts)


def _arc_phrase(parsed: ParsedCaption, arc: Arc) -> PhraseSpan:
    start, stop = parsed.spans[arc.other_word].tolist()
    caption = parsed.caption
    gold = GoldBoxes(PROTOCOLS[BOX_PROTOCOL](arc.phrase.boxes), caption.size)
    example = Example(caption.id, caption.text, images=(caption.image,), gold_boxes=gold)
    return PhraseSpan(example, start, stop)


# -- the command -------------------------------------------------------------------------------------------------------


SHOWN = 20
"""Most captions per list in the result."""


def syntax(config: SyntaxConfig, run: Run) -> dict[str, Any]:
    """For every dependency relation, how often each head predicts a region of the word's neighbour.

    Writes the parses of spaCy to the run's folder as `parses.conllu`.

    Raises:
        InputError: The model reads no regions or gives no attention, a file is missing or
            malformed, a parser is not installed, or no relation has enough arcs.
    """
    every = read_captions(
        Path(config.data), config.split, unrelated=config.include_unrelated_captions
    )
    # A parser runs once; its output is saved and read as the file of parses.
    parses = parses_of(config) or _ask_parser(config.parses, every, run)
    parsed = match_parses(every, read_parses(parses), config.labels)
    if not parsed.parsed:
        first = parsed.unaligned or ["no sentence has the words of a caption"]
        raise InputError(f"{parses}: none of the {len(every):,} captions has a parse; {first[0]}")
    arcs = make_arc_questions(parsed.parsed, config.include_other_phrases)
    relations: list[dict[str, Any]] = []
    rare: dict[str, int] = {}
    if arcs.names:
        baselines, boards = score_heads(config, arcs.questions, FLICKR30K, "mean", run.state.device)
        counts = _counts(len(every), parsed, arcs, baselines)
        relations, rare = _relations(arcs.names, boards, config.min_arcs)
    if not relations:
        raise InputError(_too_rare(config.min_arcs, rare, parsed))
    run.note(*_notes(counts, parsed, relations, config.min_region_attention))
    return {
        "task": FLICKR30K.name,
        "split": config.split,
        "model": config.model,
        "untrained": config.untrained,
        "parses": config.parses,
        "labels": config.labels,
        "protocol": BOX_PROTOCOL,
        "counted": COUNTED,
        "query": "mean over the other word's tokens",
        "active_above": config.min_region_attention,
        "counts": counts,
        "unaligned": parsed.unaligned[:SHOWN],
        "unparsed": parsed.unparsed[:SHOWN],
        "relations": relations,
        "rare": rare,
        "notes": run.notes,
    }


# -- captions and parses -----------------------------------------------------------------------------------------------


def write_captions(config: EntityCaptionSettings, work: CommandContext) -> str:
    """Write the captions to the file `work.out`, one per line; returns a line with their number.

    Raises InputError if the data is missing or malformed, or the file cannot be written.
    """
    captions = read_captions(
        Path(config.data), config.split, unrelated=config.include_unrelated_captions
    )
    write_whole(work.out, "".join(f"{caption.text}\n" for caption in captions))
    return f"{work.out}: {len(captions):,} captions, one per line"


def _ask_parser(parser: str, captions: Sequence[EntitiesCaption], run: Run) -> Path:
    """Parse the captions with spaCy in the first process; returns the file."""
    path = run.folder / GOLD_PARSES
    with run.state.main_process_first():
        if not path.exists():
            write_parses(
                path, parse_texts(parser, [caption.text for caption in captions]), captions
            )
    return path


def write_parses(path: Path, parses: Sequence[Parse], captions: Sequence[EntitiesCaption]) -> None:
    """Write the parses as a CoNLL-U file with the captions' ids."""
    lines = []
    for parse, caption in zip(parses, captions, strict=True):
        if parse.words:  # CoNLL-U has no empty sentence
            lines += format_conllu(replace(parse, id=caption.id))
    write_whole(path, "".join(f"{line}\n" for line in lines))


def _too_rare(min_arcs: int, rare: Mapping[str, int], matched: MatchedParses) -> str:
    """The error that no relation has enough arcs."""
    most = max(rare, key=lambda name: rare[name], default="")
    least = f"the most frequent, {most}, has {rare[most]}" if most else "there are none"
    unaligned = format_count(len(matched.unaligned), "sentence") + " not aligned with its caption"
    return (
        f"no relation has {min_arcs} arcs at a phrase with boxes: {least} ({unaligned}, "
        f"{len(matched.unparsed)} without a parse); lower min_arcs"
    )


def _relations(
    names: Sequence[tuple[str, ArcEnd]], boards: Sequence[HeadLeaderboard], min_arcs: int
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The report of every relation with enough arcs, and the number of arcs of the others."""
    reports, rare = [], {}
    for (name, end), board in zip(names, boards, strict=True):
        arcs = int(board.scored_phrases.sum())
        if arcs < min_arcs:
            rare[f"{name}, phrase is {end}"] = arcs
            continue
        row = {"relation": name, "phrase_is": end, "table_2": TABLE_2.get(name) == end}
        reports.append({**row, "arcs": arcs, **board.report()})
    return reports, rare


def _counts(
    captions: int, matched: MatchedParses, arcs: ArcQuestions, baselines: PhraseBaselines
) -> dict[str, int]:
    return {
        "captions": captions,
        "parsed": len(matched.parsed),
        "unparsed": len(matched.unparsed),
        "unaligned_sentences": len(matched.unaligned),
        "sentences_of_other_captions": matched.other_sentences,
        "phrases": sum(len(one.caption.phrases) for one in matched.parsed),
        "phrases_of_several_heads": arcs.skip_counts["phrases_of_several_heads"],
        "arcs": len(baselines.status),
        "arcs_to_other_phrases": arcs.skip_counts["arcs_to_other_phrases"],
        **count_phrases(baselines),
    }


NOTES_OF_COUNTS = {
    "unparsed": ("caption", "left out: without a parse"),
    "phrases_of_several_heads": ("phrase", "left out: more than one head word"),
    "arcs_to_other_phrases": (
        "arc",
        "left out: to another phrase with boxes (include_other_phrases)",
    ),
}
"""Counts that become notes: the noun that is counted, and the reason."""


def _notes(
    counts: dict[str, int],
    matched: MatchedParses,
    relations: Sequence[dict[str, Any]],
    min_share: float,
) -> list[str]:
    notes = [
        f"{format_count(counts[name], noun)} {why}"
        for name, (noun, why) in NOTES_OF_COUNTS.items()
        if counts[name]
    ]
    if matched.unaligned:
        notes.append(
            f"{format_count(len(matched.unaligned), 'sentence')} left out: the words differ from the "
            f"caption that the sentence names; the first is {matched.unaligned[0]}"
        )
    return notes + notes_of_reports(counts, "word", relations, min_share)


# -- tables ------------------------------------------------------------------------------------------------------------


def format_syntax(result: dict[str, Any]) -> str:
    """The result as text: the paper's relations, then all others."""
    counts = result["counts"]
    lines = [
        f"{counts['asked']:,} arcs of {counts['parsed']:,} captions; labels: {result['labels']}; {COUNTED}"
    ]
    order = list(TABLE_2)
    relations = result["relations"]
    of_paper = [one for one in relations if one["table_2"]]
    of_paper.sort(key=lambda one: order.index(one["relation"]))
    others = [one for one in relations if not one["table_2"]]
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

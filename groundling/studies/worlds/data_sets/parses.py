"""What the world's captions are by its own grammar: dependency parses, in the labels of Universal Dependencies."""

from __future__ import annotations

import re

from groundling.data.text.parses import ROOT, Parse, Word

UNIT = re.compile(r"\[/EN#\S+ ([^\]]*)\]|(\S+)")
"""A marked phrase, whose words are the first group, or a word."""
GRAMMAR = {
    "there is _ and _ .": (
        *("expl 1 PRON", "root - VERB", "nsubj 1 NOUN"),
        *("cc 4 CCONJ", "conj 2 NOUN", "punct 1 PUNCT"),
    ),
    "_ is near _ .": (
        *("nsubj 3 NOUN", "cop 3 AUX", "case 3 ADP"),
        *("root - NOUN", "punct 3 PUNCT"),
    ),
    "_ sees _ and _ .": (
        *("nsubj 1 PRON", "root - VERB", "obj 1 NOUN"),
        *("cc 4 CCONJ", "conj 2 NOUN", "punct 1 PUNCT"),
    ),
}
"""Of each template, with a `_` for a phrase: relation, number of the unit it depends on, and tag of every unit."""
ARTICLES = ("a", "the")


def parse_of(caption: str, id: str) -> Parse:
    """The parse of a caption with Flickr30k Entities' marks: a phrase is article, adjectives and last its noun."""
    units = [(match[1] or match[2]).split() for match in UNIT.finditer(caption)]
    template = UNIT.sub(lambda match: "_" if match[1] else match[2], caption)
    first = [sum(map(len, units[:number])) for number in range(len(units))]
    top = [start + len(unit) - 1 for start, unit in zip(first, units, strict=True)]
    words: list[Word] = []
    for number, (unit, row) in enumerate(zip(units, GRAMMAR[template], strict=True)):
        relation, above, tag = row.split()
        head = ROOT if relation == "root" else top[int(above)]
        for form in unit[:-1]:
            own, own_tag = ("det", "DET") if form in ARTICLES else ("amod", "ADJ")
            words.append(Word(form, top[number], own, own_tag, len(words)))
        words.append(Word(unit[-1], head, relation, tag, len(words)))
    return Parse(tuple(words), tuple(word.form for word in words), id, id)

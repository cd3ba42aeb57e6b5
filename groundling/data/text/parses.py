"""Dependency parses: CoNLL-U files, or spaCy's, and the position of a parse's words in their text.

The format is Universal Dependencies' (universaldependencies.org/format.html); any labels are accepted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from groundling.core.errors import InputError, convert_errors, prefix_errors
from groundling.data.tables import lines_of

ROOT = -1
"""Head of the root."""
COMMENT = re.compile(r"#\s*(\S+)\s*=\s*(.*?)\s*")
"""`# name = value`."""
EMPTY_NODE = re.compile(r"\d+\.\d+")
"""The ID of a node that is no word of the text."""
ESCAPES = {
    "-lrb-": "(",
    "-rrb-": ")",
    "-lsb-": "[",
    "-rsb-": "]",
    "-lcb-": "{",
    "-rcb-": "}",
    "``": '"',
    "''": '"',
}
"""Brackets and quotes as spelt by parsers trained on the Penn Treebank; in lower case."""


class ParsedWord(NamedTuple):
    """A word of a parse and its head."""

    form: str
    """The word in the parser's spelling."""
    head: int
    """Number of its head, from 0; `ROOT` for none."""
    relation: str
    """Its dependency relation to its head."""
    tag: str
    """Its universal part of speech, or else the parser's own; empty if unknown."""
    token: int
    """Number of its token in the text: `don't` may be one token of two words."""


@dataclass(frozen=True)
class Parse:
    """A sentence's dependency tree."""

    words: tuple[ParsedWord, ...]
    tokens: tuple[str, ...]
    """Its text, token by token."""
    where: str
    """File and first line, for messages."""
    id: str = ""
    """Value of `# sent_id`."""
    image: str = ""
    """Value of `# image`."""

    @property
    def characters(self) -> str:
        """The whole text, normalised by `characters`."""
        return normalize_characters(" ".join(self.tokens))


def normalize_characters(text: str) -> str:
    """A text normalised so that spellings compare equal: no spaces, lower case, no escapes of the Penn Treebank."""
    text = "".join(text.split()).lower()
    for spelling, meant in ESCAPES.items():
        text = text.replace(spelling, meant)
    return text


def align_parse(parse: Parse, text: str) -> np.ndarray | None:
    """Positions (W, 2) int64 of the W words in a text; None if the text differs.

    If the words of one token do not spell it together, each gets the span of the whole token.
    """
    tokens = _align_forms(parse.tokens, text, 0, len(text))
    if tokens is None:
        return None
    spans: list[tuple[int, int]] = []
    for token, (start, stop) in enumerate(tokens):
        forms = [word.form for word in parse.words if word.token == token]
        if len(forms) == 1:
            spans.append((start, stop))
        else:
            spans += _align_forms(forms, text, start, stop) or [(start, stop)] * len(forms)
    return np.array(spans, np.int64).reshape(-1, 2)


def _align_forms(
    forms: Sequence[str], text: str, start: int, stop: int
) -> list[tuple[int, int]] | None:
    """Positions of forms that follow each other, separated only by spaces; None unless they spell the whole span."""
    spans = []
    at = start
    for form in forms:
        while at < stop and text[at].isspace():
            at += 1
        end = _match_form(form, text, at, stop)
        if end is None:
            return None
        spans.append((at, end))
        at = end
    return spans if not text[at:stop].strip() else None


def _match_form(form: str, text: str, at: int, stop: int) -> int | None:
    """The end of a form that begins at `at`, ignoring case, spaces and escapes; None if it is not there."""
    for spelling in (form, ESCAPES.get(form.lower(), form)):
        end = at
        for letter in "".join(spelling.split()):
            while end < stop and text[end].isspace():
                end += 1
            if end >= stop or text[end].lower() != letter.lower():
                break
            end += 1
        else:
            return end if end > at else None
    return None


# -- files -------------------------------------------------------------------------------------------------------------


def read_parses(path: str | Path) -> list[Parse]:
    """The sentences of a CoNLL-U file, or of all `*.conllu` files of a folder in order of their names."""
    path = Path(path)
    files = sorted(path.glob("*.conllu")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: no *.conllu in this folder")
    return [parse for file in files for parse in _sentences(file)]


def _sentences(path: Path) -> Iterator[Parse]:
    block: list[tuple[int, str]] = []
    for number, line in enumerate([*lines_of(path), ""], 1):
        if line.strip():
            block.append((number, line))
        elif block:
            yield _parse(path, block)
            block = []


def _parse(path: Path, lines: Sequence[tuple[int, str]]) -> Parse:
    where = f"{path}, line {lines[0][0]}"
    comments: dict[str, str] = {}
    words: list[ParsedWord] = []
    tokens: list[str] = []
    range_stop = 0  # last word of the latest multiword token
    for number, line in lines:
        if line.startswith("#"):
            if match := COMMENT.fullmatch(line):
                comments[match[1]] = match[2]
            continue
        with convert_errors(f"{path}, line {number}: not a row of CoNLL-U"):
            id, form, _, universal, own, _, head, relation, _, _ = line.split("\t")
            if EMPTY_NODE.fullmatch(id):
                continue
            first, *rest = map(int, id.split("-"))
            if first != len(words) + 1 or not form.strip():
                raise ValueError(f"ID {id} and FORM {form!r}, expected word {len(words) + 1}")
            if rest:
                if not range_stop < first < rest[0]:
                    raise ValueError(f"ID {id}, expected a range behind {range_stop}")
                range_stop = rest[0]
                tokens.append(form)
                continue
            if first > range_stop:
                tokens.append(form)
            if relation in ("", "_"):
                raise ValueError("no DEPREL; the text may not be parsed")
            tag = next((one for one in (universal, own) if one != "_"), "")
            words.append(ParsedWord(form, int(head) - 1, relation, tag, len(tokens) - 1))
    with prefix_errors(where):
        if range_stop > len(words):
            raise InputError(f"the sentence has {len(words)} words, expected more")
        heads = [word.head for word in words]
        reached = {ROOT}
        for _ in heads:
            reached.update(place for place, head in enumerate(heads) if head in reached)
        if heads.count(ROOT) != 1 or len(reached) <= len(heads):
            raise InputError(
                "expected a tree: a single word with HEAD 0, on which all others depend"
            )
    id, image = comments.get("sent_id", ""), comments.get("image", "")
    return Parse(tuple(words), tuple(tokens), where, id, image)


def format_conllu(parse: Parse) -> list[str]:
    """A parse as lines of a CoNLL-U file, with the empty line at its end."""
    lines = [f"# sent_id = {parse.id}", f"# text = {' '.join(parse.tokens)}"]
    words_of = Counter(word.token for word in parse.words)
    for number, word in enumerate(parse.words, 1):
        count = words_of.pop(word.token, 1)  # also 1 after a token's first word
        if count > 1:
            lines.append(_row(f"{number}-{number + count - 1}", parse.tokens[word.token]))
        head = str(word.head + 1)
        lines.append(_row(str(number), word.form, word.tag or "_", head, word.relation))
    return [*lines, ""]


def _row(id: str, form: str, tag: str = "_", head: str = "_", relation: str = "_") -> str:
    return "\t".join((id, form, "_", tag, "_", "_", head, relation, "_", "_"))


# -- parsing with spaCy ------------------------------------------------------------------------------------------------


def parse_texts(parser: str, texts: Sequence[str]) -> list[Parse]:
    """A parse of each text; `parser` is `spacy`, optionally with `:` and its pipeline.

    A text of several sentences becomes one tree, in which later roots are `parataxis` of the first.
    """
    model = parser.partition(":")[2] or "en_core_web_sm"
    with convert_errors(f"parses {parser}", "; install it, or pass a CoNLL-U file of any parser"):
        pipeline = import_module("spacy").load(model)
    parses = []
    for number, doc in enumerate(pipeline.pipe(texts), 1):
        if not doc.has_annotation("DEP"):
            raise InputError(f"parses spacy:{model}: this pipeline has no parser")
        words = _words_of(doc)
        roots = [place for place, word in enumerate(words) if word.head == ROOT]
        for place in roots[1:]:
            words[place] = words[place]._replace(head=roots[0], relation="parataxis")
        tokens = tuple(word.form for word in words)
        parses.append(Parse(tuple(words), tokens, f"spacy:{model}, caption {number}"))
    return parses


def _words_of(doc: Any) -> list[ParsedWord]:
    kept = [token for token in doc if not token.text.isspace()]
    number = {token.i: place for place, token in enumerate(kept)}
    words: list[ParsedWord] = []
    for token in kept:
        head = doc[token.head.i]
        while head.text.isspace() and head.head.i != head.i:
            head = doc[head.head.i]
        # In spaCy, a root is its own head.
        place = ROOT if head.i == token.i else number.get(head.i, ROOT)
        words.append(
            ParsedWord(token.text, place, token.dep_, token.pos_ or token.tag_, len(words))
        )
    return words

"""Dependency parses: CoNLL-U files, or spaCy's and Stanza's, and the position of a
parse's words in their text.

The format is Universal Dependencies'
(universaldependencies.org/format.html); any labels are accepted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from groundling.core.errors import InputError, first_line
from groundling.data.tables import lines_of

COLUMNS = 10
ROOT = -1
"""Head of the root."""
COMMENT = re.compile(r"#\s*(\S+)\s*=\s*(.*?)\s*")
"""`# name = value`."""
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
    """A text normalised so that spellings compare equal: no spaces, lower case, no
    escapes of the Penn Treebank.
    """
    text = "".join(text.split()).lower()
    for spelling, meant in ESCAPES.items():
        text = text.replace(spelling, meant)
    return text


def align_parse(parse: Parse, text: str) -> np.ndarray | None:
    """Positions of the W words in a text: characters (start, stop), (W, 2) int64.

    None if the text differs.

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
    """Positions of forms that follow each other, separated only by spaces.

    None unless they spell the whole span.
    """
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
    """The end of a form that begins at `at`, ignoring case, spaces and escapes.

    None if it is not there.
    """
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
    """The sentences of a CoNLL-U file, or of all `*.conllu` files of a
    folder in order of their names.

    Raises:
        InputError: A file is missing or malformed, or a sentence is not a tree with one root;
            the message names the line.
    """
    path = Path(path)
    files = sorted(path.glob("*.conllu")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: no *.conllu in this folder")
    return [parse for file in files for parse in _sentences(file)]


def _sentences(path: Path) -> Iterator[Parse]:
    """The sentences of a file; the last one may lack the empty line after it."""
    block: list[tuple[int, str]] = []
    for number, line in enumerate([*lines_of(path), ""], 1):
        if line.strip():
            block.append((number, line))
        elif block:
            yield _ConlluSentence(path, block).parse()
            block = []


class _ConlluSentence:
    """A sentence's lines, while they are read."""

    def __init__(self, path: Path, lines: Sequence[tuple[int, str]]) -> None:
        self.path = path
        self.first = lines[0][0]
        self.lines = lines
        self.comments: dict[str, str] = {}
        self.words: list[ParsedWord] = []
        self.numbers: list[int] = []
        """Line of each word."""
        self.tokens: list[str] = []
        self.range_stop = 0
        """Last word of the latest multiword token."""

    def parse(self) -> Parse:
        """The sentence; raises InputError for its first fault."""
        for number, line in self.lines:
            if not line.startswith("#"):
                self._row(number, line)
            elif self.words or self.tokens:
                raise self._wrong(
                    number, "a comment inside a sentence; an empty line may be missing before it"
                )
            elif match := COMMENT.fullmatch(line):
                self.comments[match[1]] = match[2]
        if not self.words:
            raise self._wrong(self.first, "no words after these comments")
        if self.range_stop > len(self.words):
            last = self.lines[-1][0]
            raise self._wrong(
                last, f"the sentence ends before word {self.range_stop} of a multiword token"
            )
        self._check_tree()
        where = f"{self.path}, line {self.first}"
        comments = self.comments
        return Parse(
            tuple(self.words),
            tuple(self.tokens),
            where,
            comments.get("sent_id", ""),
            comments.get("image", ""),
        )

    def _wrong(self, line: int, fault: str) -> InputError:
        return InputError(f"{self.path}, line {line}: {fault}")

    def _row(self, number: int, line: str) -> None:
        fields = line.split("\t")
        if len(fields) != COLUMNS:
            raise self._wrong(number, f"{len(fields)} columns, expected 10 with tabs between them")
        id, form, _, universal, own, _, head, relation, _, _ = fields
        if not form.strip():
            raise self._wrong(number, "FORM is empty")
        if re.fullmatch(r"\d+\.\d+", id):
            return  # an empty node, which is no word of the text
        if match := re.fullmatch(r"(\d+)-(\d+)", id):
            self._range(number, int(match[1]), int(match[2]), form)
            return
        expected = len(self.words) + 1
        if id != str(expected):
            raise self._wrong(number, f"ID {id!r}, expected {expected}")
        if not re.fullmatch(r"\d+", head):
            raise self._wrong(
                number, f"HEAD {head!r}, expected a number from 0; the text may not be parsed"
            )
        if relation in ("", "_"):
            raise self._wrong(number, "DEPREL is empty; the text may not be parsed")
        if expected > self.range_stop:
            self.tokens.append(form)
        tag = next((one for one in (universal, own) if one != "_"), "")
        self.words.append(ParsedWord(form, int(head) - 1, relation, tag, len(self.tokens) - 1))
        self.numbers.append(number)

    def _range(self, number: int, start: int, stop: int, form: str) -> None:
        """Read the range line of a multiword token, whose words follow."""
        expected = len(self.words) + 1
        if start != expected or stop <= start or start <= self.range_stop:
            raise self._wrong(
                number, f"ID {start}-{stop}, expected a range that begins with {expected}"
            )
        self.tokens.append(form)
        self.range_stop = stop

    def _check_tree(self) -> None:
        count = len(self.words)
        roots = [place for place, word in enumerate(self.words) if word.head == ROOT]
        for place, word in enumerate(self.words):
            if word.head >= count:
                raise self._wrong(
                    self.numbers[place],
                    f"HEAD {word.head + 1}, but the sentence has {count} words",
                )
        if len(roots) > 1:
            raise self._wrong(
                self.numbers[roots[1]],
                f"a second root besides word {roots[0] + 1}; expected a single word with HEAD 0",
            )
        for place in range(count):
            at, steps = place, 0
            while at != ROOT and steps <= count:
                at = self.words[at].head
                steps += 1
            if at != ROOT:
                raise self._wrong(
                    self.numbers[place], f"word {place + 1} depends on itself through a cycle"
                )


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


# -- parsing with spaCy or Stanza --------------------------------------------------------------------------------------


def parse_texts(parser: str, texts: Sequence[str]) -> list[Parse]:
    """A parse of each text; `parser` is `spacy` or `stanza`, optionally with `:`
    and its model or language.

    A text of several sentences becomes one tree, in which later roots are `parataxis` of the first.
    Raises InputError if the parser or its model is not installed.
    """
    name, _, model = parser.partition(":")
    read, default = PARSERS[name]
    try:
        package = import_module(name)
    except ImportError as error:
        # An installed parser may lack a package of its own.
        lacks = "is not installed" if error.name == name else f"cannot be loaded ({error})"
        raise InputError(
            f"--parses {parser}: {name} {lacks}; install it, or pass a CoNLL-U file from any parser"
        ) from None
    return [_one_tree(parse) for parse in read(package, model or default, texts)]


def _one_tree(parse: Parse) -> Parse:
    roots = [place for place, word in enumerate(parse.words) if word.head == ROOT]
    words = list(parse.words)
    for place in roots[1:]:
        words[place] = words[place]._replace(head=roots[0], relation="parataxis")
    return replace(parse, words=tuple(words))


def _spacy(package: Any, model: str, texts: Sequence[str]) -> list[Parse]:
    try:
        pipeline = package.load(model)
    except OSError as error:
        raise InputError(f"--parses spacy:{model}: {first_line(error)}") from None
    parses = []
    for number, doc in enumerate(pipeline.pipe(texts), 1):
        if not doc.has_annotation("DEP"):
            raise InputError(f"--parses spacy:{model}: this pipeline has no parser")
        words = _words_of(doc)
        tokens = tuple(word.form for word in words)
        parses.append(Parse(words, tokens, f"spacy:{model}, caption {number}"))
    return parses


def _words_of(doc: Any) -> tuple[ParsedWord, ...]:
    """The words of a spaCy document, without the white space that it counts as tokens."""
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
    return tuple(words)


def _stanza(package: Any, language: str, texts: Sequence[str]) -> list[Parse]:
    try:
        pipeline = package.Pipeline(
            language,
            processors="tokenize,pos,lemma,depparse",
            tokenize_no_ssplit=True,
            download_method=None,
            verbose=False,
        )
    except Exception as error:  # many kinds of exceptions for a missing model
        raise InputError(
            f"--parses stanza:{language}: {first_line(error)}; stanza.download({language!r}) fetches the model"
        ) from None
    parses = []
    for number, text in enumerate(texts, 1):
        words: list[ParsedWord] = []
        tokens: list[str] = []
        for sentence in pipeline(text).sentences:
            before = len(words)
            for token in sentence.tokens:
                for word in token.words:
                    head = before + word.head - 1 if word.head else ROOT
                    tag = word.upos or word.xpos or ""
                    words.append(ParsedWord(word.text, head, word.deprel, tag, len(tokens)))
                tokens.append(token.text)
        where = f"stanza:{language}, caption {number}"
        parses.append(Parse(tuple(words), tuple(tokens), where))
    return parses


PARSERS: dict[str, tuple[Callable[[Any, str, Sequence[str]], list[Parse]], str]] = {
    "spacy": (_spacy, "en_core_web_sm"),
    "stanza": (_stanza, "en"),
}
"""By package name: the function that calls it, and its default model."""

"""Dependency parses by spaCy or Stanza, where the user has one of them; groundling depends on neither."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from groundling.core.errors import InputError, first_line
from groundling.data.text.conllu import ROOT, Parse, Word


def parses_by(parser: str, texts: Sequence[str]) -> list[Parse]:
    """A parse of each text; `parser` is `spacy`, `stanza`, or either with `:` and the model or language it loads.

    A text of several sentences is one tree, in which later roots are `parataxis` of the first. Raises InputError if the
    parser or its model is not installed.
    """
    name, _, model = parser.partition(":")
    read, default = PARSERS[name]
    try:
        package = import_module(name)
    except ImportError as error:
        # An installed parser may itself lack a package.
        lacks = "is not installed" if error.name == name else f"cannot be loaded ({error})"
        raise InputError(
            f"--parses {parser}: {name} {lacks}; install it, or pass a CoNLL-U file of any parser's"
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


def _words_of(doc: Any) -> tuple[Word, ...]:
    """The words of spaCy's document, without white space, which it counts as tokens where there is more than one."""
    kept = [token for token in doc if not token.text.isspace()]
    number = {token.i: place for place, token in enumerate(kept)}
    words: list[Word] = []
    for token in kept:
        head = doc[token.head.i]
        while head.text.isspace() and head.head.i != head.i:
            head = doc[head.head.i]
        # spaCy's roots are their own heads.
        place = ROOT if head.i == token.i else number.get(head.i, ROOT)
        words.append(Word(token.text, place, token.dep_, token.pos_ or token.tag_, len(words)))
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
    except Exception as error:  # its errors for a missing model are of many kinds
        raise InputError(
            f"--parses stanza:{language}: {first_line(error)}; stanza.download({language!r}) fetches the model"
        ) from None
    parses = []
    for number, text in enumerate(texts, 1):
        words: list[Word] = []
        tokens: list[str] = []
        for sentence in pipeline(text).sentences:
            before = len(words)
            for token in sentence.tokens:
                for word in token.words:
                    head = before + word.head - 1 if word.head else ROOT
                    tag = word.upos or word.xpos or ""
                    words.append(Word(word.text, head, word.deprel, tag, len(tokens)))
                tokens.append(token.text)
        where = f"stanza:{language}, caption {number}"
        parses.append(Parse(tuple(words), tuple(tokens), where))
    return parses


PARSERS: dict[str, tuple[Callable[[Any, str, Sequence[str]], list[Parse]], str]] = {
    "spacy": (_spacy, "en_core_web_sm"),
    "stanza": (_stanza, "en"),
}
"""By the name of their package: what asks them, and the model that is loaded if nobody names one."""

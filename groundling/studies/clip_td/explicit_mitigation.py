"""Explicit mitigation (CLIP-TD's EM): synonyms or hypernyms replace words that choices share with question or image.

CLIP-TD Sections 4.1.2 and 8.4 describe the idea without a procedure, and there is no released code; this is one
interpretation. All four choices are edited in the same way, since a change in the right one alone would be a new cue.
Answers are edited first; rationales then follow the edited right answer. A replacement is never a word of the context,
so editing is idempotent.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from groundling.core.errors import InputError, convert_errors, convert_read_errors
from groundling.studies.clip_td.vcr_files import (
    PARTS,
    WORD,
    ShiftedFile,
    VcrLine,
    VcrPart,
    VcrText,
    content_lemmas,
    is_content,
    object_lemmas,
)
from groundling.tasks.vcr import VcrToken

# WordNet from the user's database files: lemmas of word forms, and synonyms and hypernyms by frequency.
# The files have Princeton's format (manual pages wndb(5), cntlist(5), morphy(7)), as in Debian's package
# wordnet-base and NLTK's corpus `wordnet`. Nothing is downloaded, and NLTK is not imported.
# Also English inflection: the form of a word, and another word in the same form, or None where the form is uncertain.

NOUN, VERB, ADJECTIVE, ADVERB = "n", "v", "a", "r"
FILES = {NOUN: "noun", VERB: "verb", ADJECTIVE: "adj", ADVERB: "adv"}
"""File endings by part of speech; ties go to the earlier part of speech."""
TYPES = {"1": NOUN, "2": VERB, "3": ADJECTIVE, "4": ADVERB, "5": ADJECTIVE}
"""Parts of speech by the number in a sense key; 5 is a satellite adjective, `s` in the data."""
COUNTS = "cntlist.rev"
HEAD = 4000
"""Bytes that are searched for the version; the licence at the beginning has 1,740."""
HYPERNYM = "@"
"""Pointer symbol of a hypernym; instance hypernyms (Rome to city) have `@i` and are not used."""
NUMBERS = {"n": 1, "v": 2, "a": 3, "r": 4, "s": 5}
"""Synset types in the data files, and their numbers in a sense key."""
HEADING = re.compile(r"WordNet (\d+\.\d+) Copyright")
RULES = {
    NOUN: (
        ("s", ""),
        ("ses", "s"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    VERB: (
        ("s", ""),
        ("ies", "y"),
        ("es", "e"),
        ("es", ""),
        ("ed", "e"),
        ("ed", ""),
        ("ing", "e"),
        ("ing", ""),
    ),
    ADJECTIVE: (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    ADVERB: (),
}
"""Endings and their replacements: morphy's rules of detachment."""
PLACES = (
    "/usr/share/wordnet",
    "~/nltk_data/corpora/wordnet",
    "/usr/share/nltk_data/corpora/wordnet",
    "/usr/local/share/nltk_data/corpora/wordnet",
)
"""Default folders of Debian and NLTK."""
BELOW = (".", "dict", "corpora/wordnet", "wordnet")
"""Subfolders that are searched for the files."""

WordForm = Literal["base", "plural", "third", "ing", "past"]
"""The base form; for nouns the plural; for verbs the third person, the -ing form, and past or participle."""
VOWELS = "aeiou"
_SAME_IN_PAST = """bet bid broadcast burst cast cost cut forecast hit hurt let put quit read rid set shed shut slit
split spread thrust upset wed"""
"""Verbs whose past equals the base form, which the lists of exceptions omit."""
SAME_IN_PAST = frozenset(_SAME_IN_PAST.split())
HISSING = ("s", "x", "z", "ch", "sh")
"""Endings that take -es."""
SOUNDS_OF_VOWELS = ("hour", "honest", "honor", "honour", "heir")
"""Beginnings with a consonant letter that take `an`."""
SOUNDS_OF_CONSONANTS = ("uni", "use", "usu", "eu", "one", "once")
"""Beginnings with a vowel letter that take `a`."""


@dataclass(frozen=True)
class WordLemma:
    """Lemma and part of speech of a word form."""

    lemma: str
    """In lower case, words joined by _; the form itself if WordNet lacks it."""
    pos: str = ""
    """The part of speech; empty if WordNet lacks the form."""


@dataclass(frozen=True)
class Synset:
    """A synset of WordNet: lemmas with one meaning."""

    name: str
    """Offset and part of speech, such as 02084071-n."""
    lemmas: tuple[str, ...]
    """In the file's spelling, words joined by _."""
    counts: tuple[int, ...]
    """Tag count of each lemma in this synset."""
    hypernyms: tuple[int, ...]
    """Offsets of its hypernyms, of the same part of speech."""


class WordNet:
    """A WordNet database; reads index and counts at once, and synsets on demand."""

    def __init__(self, folder: Path) -> None:
        """Raises InputError if a file is missing or damaged."""
        self.folder = folder
        self._data = {pos: _bytes(self._path(f"data.{end}")) for pos, end in FILES.items()}
        self._index: dict[str, dict[str, str]] = {}
        self._exceptions: dict[str, dict[str, list[str]]] = {}
        self._irregular: dict[tuple[str, str], list[str]] = defaultdict(list)
        for pos, ending in FILES.items():
            lines = _bytes(self._path(f"index.{ending}")).decode("latin-1").splitlines()
            self._index[pos] = {line.split(" ", 1)[0]: line for line in lines if line[:1] != " "}
            self._exceptions[pos] = _exceptions(self._path(f"{ending}.exc"))
            for form, lemmas in self._exceptions[pos].items():
                for lemma in lemmas:
                    self._irregular[lemma, pos].append(form)
        self.version = _version(self._data[NOUN])
        self._tagged, self._totals = _counts(self._path(COUNTS))
        self._readings: dict[str, WordLemma] = {}

    def _path(self, name: str) -> Path:
        return self.folder / name

    def most_frequent(self, form: str) -> WordLemma:
        """The most frequent lemma and part of speech of a form, whatever its context.

        Frequencies are those of the sense-tagged texts; ties go to noun, verb, adjective, adverb, in this order, and to
        the form itself before a derived lemma.
        """
        form = form.lower()
        if form not in self._readings:
            readings = [
                WordLemma(lemma, pos) for pos in FILES for lemma in self.lemmas_of(form, pos)
            ]
            self._readings[form] = max(readings, key=self._frequency, default=WordLemma(form))
        return self._readings[form]

    def _frequency(self, reading: WordLemma) -> int:
        return self._totals[reading.lemma, reading.pos]

    def lemma(self, form: str) -> str:
        """The most frequent lemma of a form."""
        return self.most_frequent(form).lemma

    def lemmas_of(self, form: str, pos: str) -> list[str]:
        """All possible lemmas of a form (lower case) for a part of speech: itself, listed exceptions, by rules."""
        derived = list(self._exceptions[pos].get(form, ()))
        for ending, instead in RULES[pos]:
            if form.endswith(ending) and len(form) > len(ending):
                derived.append(form.removesuffix(ending) + instead)
        in_index = [lemma for lemma in (form, *derived) if lemma in self._index[pos]]
        return list(dict.fromkeys(in_index))

    def irregular(self, lemma: str, pos: str) -> list[str]:
        """The forms of a lemma in the list of exceptions, in the list's order."""
        return self._irregular.get((lemma, pos), [])

    def first_synset(self, lemma: str, pos: str) -> Synset | None:
        """The most frequent synset of a lemma, the first in the index; None if there is none."""
        line = self._index[pos].get(lemma)
        if line is None:
            return None
        fields = line.split()
        path = self._path(f"index.{FILES[pos]}")
        with convert_errors(f"{path}: the line for {lemma!r} is damaged"):
            offset = int(fields[-int(fields[2])])
        return self.synset(offset, pos)

    def synset(self, offset: int, pos: str) -> Synset:
        """The synset at a byte offset; raises InputError if no line begins there."""
        data = self._data[pos]
        line = data[offset : data.find(b"\n", offset)].decode("latin-1")
        path = self._path(f"data.{FILES[pos]}")
        with convert_errors(f"{path}: no synset at byte {offset}, where the index has one"):
            return self._synset(offset, pos, line.partition(" | ")[0].split())

    def _synset(self, offset: int, pos: str, fields: Sequence[str]) -> Synset:
        """The synset of a data line's fields; raises IndexError, KeyError or ValueError if they are invalid."""
        if int(fields[0]) != offset:
            raise ValueError(f"{fields[0]} is at {offset}")
        number = NUMBERS[fields[2]]
        pointers = 4 + 2 * int(fields[3], 16)
        lemmas = []
        counts = []
        for place in range(4, pointers, 2):
            # The bracket has an adjective's syntactic position.
            lemma = fields[place].partition("(")[0]
            lemmas.append(lemma)
            order = int(fields[place + 1], 16)
            counts.append(self._tagged[f"{lemma.lower()}%{number}:{fields[1]}:{order:02d}"])
        hypernyms = []
        first = pointers + 1
        for place in range(first, first + 4 * int(fields[pointers]), 4):
            if fields[place] == HYPERNYM:
                hypernyms.append(int(fields[place + 1]))
        return Synset(f"{offset:08d}-{pos}", tuple(lemmas), tuple(counts), tuple(hypernyms))


def wordnet_folder(name: str) -> Path:
    """The folder of the files: `name` or a subfolder of it; without a name, Debian's or NLTK's default folder.

    Raises:
        InputError: There are no files.
    """
    roots = [name] if name else PLACES
    for root in roots:
        for subfolder in BELOW:
            folder = Path(root).expanduser() / subfolder
            if (folder / "index.noun").is_file():
                return folder
    where = name or "default folders of Debian and NLTK"
    raise InputError(
        f"{where}: no WordNet files (index.noun); install Debian's wordnet-base, or NLTK's corpus `wordnet` unpacked, "
        "and pass wordnet=FOLDER"
    )


def _bytes(path: Path) -> bytes:
    with convert_read_errors(path, "; the WordNet database needs this file"):
        return path.read_bytes()


def _version(content: bytes) -> str:
    """The version in a file's first bytes; empty if there is none."""
    match = HEADING.search(content[:HEAD].decode("latin-1"))
    return match[1] if match else ""


def _exceptions(path: Path) -> dict[str, list[str]]:
    """Lemmas by form."""
    lines = [line.split() for line in _bytes(path).decode("latin-1").splitlines()]
    return {form: lemmas for form, *lemmas in filter(None, lines)}


def _counts(path: Path) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """Tag counts by sense key (without an adjective's head word), and by lemma and part of speech."""
    tagged = Counter[str]()
    totals = Counter[tuple[str, str]]()
    for number, line in enumerate(_bytes(path).decode("latin-1").splitlines(), 1):
        with convert_errors(f"{path}, line {number}: no sense key, its number and a count"):
            key, _, count = line.split()
            lemma, sense = key.split("%")
            kind, file, order, *_ = sense.split(":")
            tagged[f"{lemma}%{kind}:{file}:{order}"] += int(count)
            totals[lemma, TYPES[kind]] += int(count)
    return tagged, totals


def word_form(word: str, reading: WordLemma) -> WordForm | None:
    """The form of a word (lower case), given its lemma; None for comparatives and superlatives."""
    if word == reading.lemma:
        return "base"
    if reading.pos == NOUN:
        return "plural"
    if reading.pos != VERB:
        return None
    if word.endswith("ing"):
        return "ing"
    return "third" if word.endswith("s") else "past"


def inflect(lemma: str, pos: str, form: WordForm, wordnet: WordNet) -> list[str] | None:
    """The words of a lemma (joined by _) in a form: inflects the first word of a verb, the last of a noun.

    None where the form is uncertain: several irregular forms in WordNet's lists, or a form whose lemma is another word.
    """
    words = lemma.split("_")
    if form == "base":
        return words
    changing = 0 if pos == VERB else -1
    word = words[changing]
    new = _inflect_word(word, form, wordnet)
    if new is None or word not in wordnet.lemmas_of(new, pos):
        return None
    words[changing] = new
    return words


def indefinite_article(word: str) -> str:
    """The article, a or an, for a word (lower case)."""
    if word.startswith(SOUNDS_OF_VOWELS):
        return "an"
    if word.startswith(SOUNDS_OF_CONSONANTS) or word[0] not in VOWELS:
        return "a"
    return "an"


def match_case(word: str, model: str) -> str:
    """A word in the case of another word: upper case, capitalised, or unchanged."""
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word[0].upper() + word[1:] if model[0].isupper() else word


def _inflect_word(word: str, form: WordForm, wordnet: WordNet) -> str | None:
    """One word in a form other than the base."""
    if form == "plural":
        return _plural(word, wordnet.irregular(word, NOUN))
    exceptions = wordnet.irregular(word, VERB)
    ing_forms = [one for one in exceptions if one.endswith("ing")]
    past_forms = [one for one in exceptions if one not in ing_forms]
    if form == "third":
        return _with_s(word, (*HISSING, "o"))
    if form == "ing":
        return _only(ing_forms) if ing_forms else _with_ing(word)
    if word in SAME_IN_PAST:
        return word
    if past_forms:
        return _only(past_forms)
    # A verb that doubles its last letter before -ing (put, putting) but has no listed past has an irregular past.
    doubles = f"{word}{word[-1]}ing" in ing_forms
    return None if doubles else _with_ed(word)


def _only(forms: list[str]) -> str | None:
    return forms[0] if len(forms) == 1 else None


def _plural(word: str, exceptions: list[str]) -> str | None:
    if exceptions:
        return _only(exceptions)
    if word.endswith("woman"):
        return word.removesuffix("woman") + "women"
    if word.endswith("man"):
        return None
    return _with_s(word, HISSING)


def _with_s(word: str, hissing: tuple[str, ...]) -> str:
    if word.endswith(hissing):
        return word + "es"
    return word[:-1] + "ies" if _on_y(word) else word + "s"


def _with_ing(word: str) -> str:
    if word.endswith("ie"):
        return word.removesuffix("ie") + "ying"
    keeps = word.endswith(("ee", "oe", "ye"))
    return word.removesuffix("e") + "ing" if not keeps else word + "ing"


def _with_ed(word: str) -> str:
    if word.endswith("e"):
        return word + "d"
    return word[:-1] + "ied" if _on_y(word) else word + "ed"


def _on_y(word: str) -> bool:
    """Whether a word ends in y after a consonant."""
    return len(word) > 1 and word.endswith("y") and word[-2] not in VOWELS


Ngram = tuple[str, ...]
"""Lemmas of adjacent content words."""
ARTICLES = {"a", "an"}


@dataclass(frozen=True)
class OverlapContext:
    """N-grams and lemmas of question and image, with which the choices of an item are compared."""

    ngrams: frozenset[Ngram]
    """N-grams of the question (for rationales also of the right answer), and the image's object classes."""
    lemmas: frozenset[str]
    """The single lemmas of the same."""


@dataclass(frozen=True)
class NgramSpan:
    """An n-gram in a choice."""

    start: int
    """Number of its first token."""
    stop: int
    """Number of the token after it."""
    ngram: Ngram


@dataclass(frozen=True)
class WordReplacement:
    """The words that replace a span."""

    words: tuple[str, ...]
    """In the span's form and case."""
    note: dict[str, Any]
    """Log entry: from, to, synset, and relation."""


class SynonymEditor:
    """Replaces n-grams that choices share with their context in enough items of a split."""

    def __init__(self, wordnet: WordNet, min_items: int = 10, longest: int = 3) -> None:
        """`min_items`: minimum number of items that share an n-gram; `longest`: maximum n-gram length in words."""
        self.wordnet = wordnet
        self.min_items = min_items
        self.longest = longest

    def edit_lines(self, lines: Sequence[VcrLine]) -> ShiftedFile:
        """All lines with edited choices."""
        out = ShiftedFile()
        edited = list(lines)
        notes: dict[tuple[str, VcrPart, int], Any] = {}
        for part in PARTS:
            frequent = self._frequent(edited, part)
            for place, line in enumerate(edited):
                context = self.context(line, part)
                choices = []
                for number, choice in enumerate(line.choices(part)):
                    new, entries = self.edit(choice, context, frequent, out.unedited_counts)
                    notes[line.item.id, part, number] = entries
                    choices.append(new)
                edited[place] = line.with_choices(part, choices)
        for before, after in zip(lines, edited, strict=True):
            out.add(before, after, notes)
        return out

    def context(self, line: VcrLine, part: VcrPart) -> OverlapContext:
        """The context of a line's choices."""
        query = line.query(part)
        classes = object_lemmas(line, self.wordnet.lemma)
        ngrams = {span.ngram for span in self._spans(query)} | {(one,) for one in classes}
        lemmas = content_lemmas(query, self.wordnet.lemma) | classes
        return OverlapContext(frozenset(ngrams), frozenset(lemmas))

    def _frequent(self, lines: Sequence[VcrLine], part: VcrPart) -> set[Ngram]:
        """The n-grams that choices share with their context in enough items."""
        items = Counter[Ngram]()
        for line in lines:
            context = self.context(line, part)
            shared: set[Ngram] = set()
            for choice in line.choices(part):
                shared |= {span.ngram for span in self._spans(choice)} & context.ngrams
            items.update(shared)
        return {ngram for ngram, count in items.items() if count >= self.min_items}

    def _spans(self, text: VcrText) -> Iterator[NgramSpan]:
        """All n-grams of adjacent content words, longest first, from left to right."""
        lemmas = [
            self.wordnet.lemma(token) if isinstance(token, str) and is_content(token) else ""
            for token in text
        ]
        for length in range(self.longest, 0, -1):
            for start in range(len(text) - length + 1):
                ngram = tuple(lemmas[start : start + length])
                if all(ngram):
                    yield NgramSpan(start, start + length, ngram)

    def edit(
        self,
        choice: VcrText,
        context: OverlapContext,
        frequent: set[Ngram],
        unedited_counts: Counter[str],
    ) -> tuple[list[VcrToken], list[dict[str, Any]]]:
        """The choice with shared n-grams replaced, and a log entry for each; adds other words to `unedited_counts`."""
        replacements: dict[int, tuple[NgramSpan, WordReplacement]] = {}
        replaced: set[int] = set()
        for span in self._spans(choice):
            positions = set(range(span.start, span.stop))
            if span.ngram not in context.ngrams or positions & replaced:
                continue
            reason = (
                "" if span.ngram in frequent else f"shared in fewer than {self.min_items} items"
            )
            replacement = None
            if not reason:
                replacement, reason = self._replacement(choice, span, context)
            if replacement is not None:
                replacements[span.start] = (span, replacement)
                replaced |= positions
            elif len(span.ngram) == 1:
                unedited_counts[reason] += 1
        return _apply_replacements(choice, replacements), [
            one.note for _, one in replacements.values()
        ]

    def _replacement(
        self, choice: VcrText, span: NgramSpan, context: OverlapContext
    ) -> tuple[WordReplacement | None, str]:
        """The replacement of a span, or the reason why there is none."""
        tokens = [str(token) for token in choice[span.start : span.stop]]
        reading = self.wordnet.most_frequent(
            tokens[0] if len(tokens) == 1 else "_".join(span.ngram)
        )
        changing = 0 if reading.pos == VERB else -1
        form = word_form(tokens[changing].lower(), WordLemma(span.ngram[changing], reading.pos))
        synset = self.wordnet.first_synset(reading.lemma, reading.pos) if reading.pos else None
        if synset is None:
            return None, "not in WordNet"
        if form is None:
            return None, "comparatives stay"
        above = [self.wordnet.synset(offset, reading.pos) for offset in synset.hypernyms]
        reason = "no other word in WordNet"
        for relation, synsets in (("synonym", [synset]), ("hypernym", above)):
            for lemma, name in _by_frequency(synsets, reading.lemma):
                reason = "no other word outside the context, or in that form"
                words = inflect(lemma, reading.pos, form, self.wordnet)
                if words is None or not self._is_new(words, context):
                    continue
                cased = (match_case(words[0], tokens[0]), *words[1:])
                note = {"from": tokens, "to": list(cased), "meaning": name, "relation": relation}
                return WordReplacement(cased, note), ""
        return None, reason

    def _is_new(self, words: Sequence[str], context: OverlapContext) -> bool:
        """Whether the words have content lemmas, none of which is in the context."""
        lemmas = content_lemmas(words, self.wordnet.lemma)
        return bool(lemmas) and not lemmas & context.lemmas


def _by_frequency(synsets: Sequence[Synset], excluded: str) -> list[tuple[str, str]]:
    """Other plain lemmas of some synsets with the synset's name, most frequent first, then in file order.

    Names (with a capital), abbreviations and numbers are omitted.
    """
    candidates = []
    for synset in synsets:
        for lemma, count in zip(synset.lemmas, synset.counts, strict=True):
            plain = all(WORD.fullmatch(word) for word in lemma.split("_"))
            if plain and lemma.islower() and lemma != excluded:
                candidates.append((count, lemma, synset.name))
    candidates.sort(key=lambda one: -one[0])
    return [(lemma, name) for _, lemma, name in candidates]


def _apply_replacements(
    choice: VcrText, replacements: dict[int, tuple[NgramSpan, WordReplacement]]
) -> list[VcrToken]:
    """The choice with its spans replaced, and with corrected articles a and an before them."""
    out: list[VcrToken] = []
    position = 0
    while position < len(choice):
        if position not in replacements:
            out.append(choice[position])
            position += 1
            continue
        span, replacement = replacements[position]
        before = out[-1] if out else ""
        if isinstance(before, str) and before.lower() in ARTICLES:
            out[-1] = match_case(indefinite_article(replacement.words[0].lower()), before)
        out += replacement.words
        position = span.stop
    return out

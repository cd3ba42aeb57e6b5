"""Explicit mitigation (CLIP-TD's EM): synonyms or hypernyms replace words that choices share with question or image.

CLIP-TD Sections 4.1.2 and 8.4 describe the idea without a procedure, and there is no released code; this is one
interpretation. All four choices are edited in the same way, since a change in the right one alone would be a new cue.
Answers are edited first; rationales then follow the edited right answer. A replacement is never a word of the context,
so editing is idempotent.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from groundling.core.errors import InputError, convert_read_errors
from groundling.data.tables import import_optional
from groundling.data.text import indefinite_article
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

# WordNet from the user's folder, through nltk, and English inflection: a word in the form of another one, or None where
# the form is uncertain.

NOUN, VERB = "n", "v"
FILES = {NOUN: "noun", VERB: "verb", "a": "adj", "r": "adv"}
"""File endings by part of speech; ties go to the earlier part of speech."""
PLACES = (
    "/usr/share/wordnet",
    "~/nltk_data/corpora/wordnet",
    "/usr/share/nltk_data/corpora/wordnet",
    "/usr/local/share/nltk_data/corpora/wordnet",
)
"""Where Debian and NLTK install it."""

WordForm = Literal["base", "plural", "third", "ing", "past"]
"""The base form; for nouns the plural; for verbs the third person, the -ing form, and past or participle."""
SAME_IN_PAST = """bet bid broadcast burst cast cost cut forecast hit hurt let put quit read rid set shed shut slit
split spread thrust upset wed"""
"""Verbs whose past equals the base form, which the lists of exceptions omit."""
HISSING = ("s", "x", "z", "ch", "sh")
"""Endings that take -es."""


class WordLemma(NamedTuple):
    """Lemma and part of speech of a word form."""

    lemma: str
    """In lower case, words joined by _; the form itself if WordNet lacks it."""
    pos: str = ""
    """The part of speech; empty if WordNet lacks the form."""


class WordNet:
    """The reader of nltk on a WordNet folder, and what it has no method for: frequent lemmas, irregular forms."""

    def __init__(self, folder: Path) -> None:
        """Raises InputError if a file is missing or damaged, or nltk is not installed."""
        nltk: Any = import_optional("nltk.corpus.reader.wordnet", folder, "wordnet")
        data: Any = import_optional("nltk.data", folder, "wordnet")
        data.path.append(str(folder))  # nltk reads only folders that are registered
        with convert_read_errors(folder, "; expected WordNet's files"), warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # on other languages than English, which need another corpus
            self.reader = _english_reader(nltk.WordNetCorpusReader)(str(folder), None)
            self.version = self.reader.get_version() or ""
            tagged = (line.split() for line in self.reader.open("cntlist.rev"))
            self._counts = {key: int(count) for key, _, count in tagged}
            self._irregular: dict[tuple[str, str], list[str]] = defaultdict(list)
            for pos, ending in FILES.items():
                for line in self.reader.open(f"{ending}.exc"):
                    form, *lemmas = line.split()
                    for lemma in lemmas:
                        self._irregular[lemma, pos].append(form)
        self.folder = folder
        self.most_frequent = lru_cache(None)(self._most_frequent)

    def _most_frequent(self, form: str) -> WordLemma:
        """The most frequent lemma and part of speech of a form (lower case), whatever its context.

        Frequencies are those of the sense-tagged texts; ties go to noun, verb, adjective, adverb, in this order, and to
        the form itself before a derived lemma.
        """
        readings = [WordLemma(lemma, pos) for pos in FILES for lemma in self.lemmas_of(form, pos)]
        return max(readings, key=self._frequency, default=WordLemma(form))

    def _frequency(self, reading: WordLemma) -> int:
        with convert_read_errors(self.folder):
            return sum(map(self.count, self.reader.lemmas(*reading)))

    def count(self, lemma: Any) -> int:
        """How often nltk's lemma is tagged in its synset; its own `count` searches the file each time."""
        return self._counts.get(lemma.key(), 0)

    def lemma(self, form: str) -> str:
        """The most frequent lemma of a form."""
        return self.most_frequent(form.lower()).lemma

    def lemmas_of(self, form: str, pos: str) -> list[str]:
        """All possible lemmas of a form (lower case) for a part of speech; `morphy` gives the first of them alone."""
        lemmas: list[str] = self.reader._morphy(form, pos)
        return lemmas

    def irregular(self, lemma: str, pos: str) -> list[str]:
        """The forms of a lemma in the list of exceptions, in the list's order."""
        return self._irregular.get((lemma, pos), [])

    def first_synset(self, lemma: str, pos: str) -> Any:
        """The most frequent synset of a lemma; None if there is none."""
        with convert_read_errors(self.folder):
            return next(iter(self.reader.synsets(lemma, pos)), None)


def _english_reader(reader: Any) -> Any:
    """The reader of nltk without its map to WordNet 3.0, for which it needs a second WordNet, for other languages."""
    return type("EnglishReader", (reader,), {"map_wn": lambda _: None})


def wordnet_folder(name: str) -> Path:
    """The folder of the files: `name` or, as in the releases, `dict` below it; without a name, one of `PLACES`.

    Raises InputError without files.
    """
    for place in (name, f"{name}/dict") if name else PLACES:
        folder = Path(place).expanduser()
        if (folder / "index.noun").is_file():
            return folder
    raise InputError(
        f"{name or 'folders of Debian and NLTK'}: no WordNet files (index.noun); install Debian's wordnet-base, or "
        "NLTK's corpus `wordnet` unpacked, and pass wordnet=FOLDER"
    )


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
    new = _inflect_word(word, pos, form, wordnet)
    if new is None or word not in wordnet.lemmas_of(new, pos):
        return None
    words[changing] = new
    return words


def match_case(word: str, model: str) -> str:
    """A word in the case of another word: upper case, capitalised, or unchanged."""
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word[0].upper() + word[1:] if model[0].isupper() else word


def _inflect_word(word: str, pos: str, form: WordForm, wordnet: WordNet) -> str | None:
    """One word in a form other than the base: the only irregular form, else the regular one."""
    if form == "past" and word in SAME_IN_PAST.split():
        return word
    listed = wordnet.irregular(word, pos)
    doubles = f"{word}{word[-1]}ing" in listed
    if form != "plural":
        listed = [one for one in listed if one.endswith("ing") == (form == "ing")]
    if listed and form != "third":
        return listed[0] if len(listed) == 1 else None
    # The plural of a human is no humen, and what doubles its last letter (put, putting) without a listed past has an
    # irregular one.
    uncertain = word.endswith("man") if form == "plural" else form == "past" and doubles
    return None if uncertain else _regular(word, form)


def _regular(word: str, form: WordForm) -> str:
    stem = word.removesuffix("e")
    if form == "ing":
        if word.endswith("ie"):
            return word[:-2] + "ying"
        return (word if word.endswith(("ee", "oe", "ye")) else stem) + "ing"
    # of a consonant and y
    stem = word[:-1] + "i" if re.search("[^aeiou]y$", word) else word
    if form == "past":
        return stem.removesuffix("e") + "ed"
    hisses = word.endswith(HISSING) or (form == "third" and word.endswith("o"))
    return stem + ("es" if hisses or stem != word else "s")


Ngram = tuple[str, ...]
"""Lemmas of adjacent content words."""
ARTICLES = {"a", "an"}


WordReplacement = tuple[int, tuple[str, ...], dict[str, Any]]
"""The token after an n-gram, the words in its place, and the log's entry: from, to, synset, relation."""


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
                    replacements = self._replacements(
                        choice, context, frequent, out.unedited_counts
                    )
                    notes[line.item.id, part, number] = [
                        note for _, _, note in replacements.values()
                    ]
                    choices.append(_apply_replacements(choice, replacements))
                edited[place] = line.with_choices(part, choices)
        for before, after in zip(lines, edited, strict=True):
            out.add(before, after, notes)
        return out

    def context(self, line: VcrLine, part: VcrPart) -> set[Ngram]:
        """N-grams of a line's question (for rationales also of the right answer), and the image's object classes."""
        classes = object_lemmas(line, self.wordnet.lemma)
        return {ngram for _, ngram in self._ngrams(line.query(part))} | {(one,) for one in classes}

    def _frequent(self, lines: Sequence[VcrLine], part: VcrPart) -> set[Ngram]:
        """The n-grams that choices share with their context in enough items."""
        items = Counter[Ngram]()
        for line in lines:
            of_choices = {ngram for one in line.choices(part) for _, ngram in self._ngrams(one)}
            items.update(of_choices & self.context(line, part))
        return {ngram for ngram, count in items.items() if count >= self.min_items}

    def _ngrams(self, text: VcrText) -> Iterator[tuple[int, Ngram]]:
        """All n-grams of adjacent content words with their first token, longest first, from left to right."""
        lemmas = [
            self.wordnet.lemma(token) if isinstance(token, str) and is_content(token) else ""
            for token in text
        ]
        for length in range(self.longest, 0, -1):
            for start in range(len(text) - length + 1):
                ngram = tuple(lemmas[start : start + length])
                if all(ngram):
                    yield start, ngram

    def _replacements(
        self,
        choice: VcrText,
        context: set[Ngram],
        frequent: set[Ngram],
        unedited_counts: Counter[str],
    ) -> dict[int, WordReplacement]:
        """A choice's replacements by first token; adds shared words without one to `unedited_counts`."""
        replacements: dict[int, WordReplacement] = {}
        replaced: set[int] = set()
        for start, ngram in self._ngrams(choice):
            positions = set(range(start, start + len(ngram)))
            if ngram not in context or positions & replaced:
                continue
            if ngram not in frequent:
                found, reason = None, f"shared in fewer than {self.min_items} items"
            else:
                found = self._replacement(choice, start, ngram, context)
                reason = "no other word in that form outside the context"
            if found is not None:
                replacements[start] = found
                replaced |= positions
            elif len(ngram) == 1:
                unedited_counts[reason] += 1
        return replacements

    def _replacement(
        self, choice: VcrText, start: int, ngram: Ngram, context: set[Ngram]
    ) -> WordReplacement | None:
        """The replacement of an n-gram: its first synset's most frequent new word, else one of its hypernyms'."""
        stop = start + len(ngram)
        tokens = [str(token) for token in choice[start:stop]]
        reading = self.wordnet.most_frequent(
            tokens[0].lower() if len(tokens) == 1 else "_".join(ngram)
        )
        changing = 0 if reading.pos == VERB else -1
        form = word_form(tokens[changing].lower(), WordLemma(ngram[changing], reading.pos))
        synset = self.wordnet.first_synset(*reading) if reading.pos else None
        if synset is None or form is None:
            return None
        for relation, synsets in (("synonym", [synset]), ("hypernym", synset.hypernyms())):
            for lemma, name in self._by_frequency(synsets, reading.lemma):
                words = inflect(lemma, reading.pos, form, self.wordnet)
                if words is None or not self._is_new(words, context):
                    continue
                cased = (match_case(words[0], tokens[0]), *words[1:])
                note = {"from": tokens, "to": list(cased), "meaning": name, "relation": relation}
                return stop, cased, note
        return None

    def _by_frequency(self, synsets: Sequence[Any], excluded: str) -> list[tuple[str, str]]:
        """Other plain lemmas of some synsets with the synset's name, most frequent first, then in file order.

        Names (with a capital), abbreviations and numbers are omitted.
        """
        candidates = []
        for synset in synsets:
            for lemma in synset.lemmas():
                word = lemma.name()
                plain = all(WORD.fullmatch(one) for one in word.split("_"))
                if plain and word.islower() and word != excluded:
                    candidates.append((self.wordnet.count(lemma), word, synset.name()))
        candidates.sort(key=lambda one: -one[0])
        return [(word, name) for _, word, name in candidates]

    def _is_new(self, words: Sequence[str], context: set[Ngram]) -> bool:
        """Whether the words have content lemmas, none of which is in the context."""
        lemmas = {(lemma,) for lemma in content_lemmas(words, self.wordnet.lemma)}
        return bool(lemmas) and not lemmas & context


def _apply_replacements(
    choice: VcrText, replacements: dict[int, WordReplacement]
) -> list[VcrToken]:
    """The choice with its n-grams replaced, and with corrected articles a and an before them."""
    out: list[VcrToken] = []
    position = 0
    while position < len(choice):
        if position not in replacements:
            out.append(choice[position])
            position += 1
            continue
        position, words, _ = replacements[position]
        before = out[-1] if out else ""
        if isinstance(before, str) and before.lower() in ARTICLES:
            out[-1] = match_case(indefinite_article(words[0].lower()), before)
        out += words
    return out

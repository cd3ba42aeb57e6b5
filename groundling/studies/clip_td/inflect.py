"""English forms: which one a word has, and another word in the same one, or nothing where that is not certain."""

from __future__ import annotations

from typing import Literal

from groundling.studies.clip_td.wordnet import NOUN, VERB, Reading, WordNet

Form = Literal["base", "plural", "third", "ing", "past"]
"""The word itself; of nouns the plural; of verbs the third person, the -ing form, and past or participle."""
VOWELS = "aeiou"
_SAME_IN_PAST = """bet bid broadcast burst cast cost cut forecast hit hurt let put quit read rid set shed shut slit
split spread thrust upset wed"""
"""Verbs whose past is the verb itself, which no list of exceptions can tell."""
SAME_IN_PAST = frozenset(_SAME_IN_PAST.split())
HISSING = ("s", "x", "z", "ch", "sh")
"""Endings that take -es."""
SOUNDS_OF_VOWELS = ("hour", "honest", "honor", "honour", "heir")
"""Beginnings that take `an` in spite of their letter."""
SOUNDS_OF_CONSONANTS = ("uni", "use", "usu", "eu", "one", "once")
"""Beginnings that take `a` in spite of theirs."""


def form_of(word: str, reading: Reading) -> Form | None:
    """The form in which a word (lower case) is what it is read as; None for comparatives and superlatives."""
    if word == reading.lemma:
        return "base"
    if reading.pos == NOUN:
        return "plural"
    if reading.pos != VERB:
        return None
    if word.endswith("ing"):
        return "ing"
    return "third" if word.endswith("s") else "past"


def inflected(lemma: str, pos: str, form: Form, wordnet: WordNet) -> list[str] | None:
    """The words of a lemma (joined by _) in a form: of a verb the first word changes, of a noun the last.

    None where the form is not certain: irregular with several forms in WordNet's lists, or a form that does not lead
    back to the word.
    """
    words = lemma.split("_")
    if form == "base":
        return words
    changing = 0 if pos == VERB else -1
    word = words[changing]
    new = _changed(word, form, wordnet)
    if new is None or word not in wordnet.bases(new, pos):
        return None
    words[changing] = new
    return words


def article(word: str) -> str:
    """The article, a or an, that stands before a word (lower case)."""
    if word.startswith(SOUNDS_OF_VOWELS):
        return "an"
    if word.startswith(SOUNDS_OF_CONSONANTS) or word[0] not in VOWELS:
        return "a"
    return "an"


def like(word: str, model: str) -> str:
    """A word in the case of another: all capitals, a capital first letter, or as it is."""
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word[0].upper() + word[1:] if model[0].isupper() else word


def _changed(word: str, form: Form, wordnet: WordNet) -> str | None:
    """One word in a form other than the base."""
    if form == "plural":
        return _plural(word, wordnet.irregular(word, NOUN))
    exceptions = wordnet.irregular(word, VERB)
    on_ing = [one for one in exceptions if one.endswith("ing")]
    others = [one for one in exceptions if one not in on_ing]
    if form == "third":
        return _with_s(word, (*HISSING, "o"))
    if form == "ing":
        return _only(on_ing) if on_ing else _with_ing(word)
    if word in SAME_IN_PAST:
        return word
    if others:
        return _only(others)
    # What doubles its last letter before -ing (put, putting) and has no past in the list has an irregular one.
    doubles = f"{word}{word[-1]}ing" in on_ing
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

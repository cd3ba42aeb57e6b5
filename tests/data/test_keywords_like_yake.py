"""Keywords on texts as data sets have them, against YAKE: tokens joined by blanks, names, marks, numbers, escapes."""

from __future__ import annotations

import random

import pytest

from groundling.data.text.keywords import (
    YakeExtractor,
    is_stop_word,
    keyword_importance,
    keyword_stop_words,
)
from groundling.data.text.words import word_spans

RANKED = {
    "Why is Casey sad ? Casey lost his dog .": (
        "casey sad < lost his dog < casey lost < casey < dog = sad < lost"
    ),
    "What are Casey and Riley talking about ? Casey Riley Jessie are arguing over the broken vase .": (
        "casey riley jessie < riley jessie < casey riley < jessie are arguing < broken vase"
        " < riley talking < casey = riley < casey and riley < jessie < vase < arguing = broken = talking"
    ),
    "Is Riley angry with Casey ? No , Riley does n't like the coffee that Casey made .": (
        "casey made < riley angry < angry with casey = coffee that casey < casey = riley < made"
        " < angry = coffee"
    ),
    "Is this a formal event ? Yes , it is . Casey and Riley wear formal suits . Riley is holding a glass of wine .": (
        "riley wear formal < wear formal suits < riley wear < casey and riley < glass of wine"
        " < formal event = formal suits < holding a glass < wear formal < riley is holding < riley"
        " < casey < formal < event = suits = wine < glass = holding = wear"
    ),
    "What is Casey ' s job ? Casey is a 3rd grade teacher , and works until 10:30 .": (
        "grade teacher < works until 10:30 < casey < 10:30 = grade = job = teacher < works"
    ),
    "How do Casey Riley feel ? Excited ! They provide food , he provides the music .": (
        "casey riley feel < casey riley < riley feel < provide food < excited < provides the music"
        " < casey = riley < feel = food = music < provide = provides"
    ),
    "Who provides the music ? They provide songs .": "music = songs",
    "1. Dogs bark. 2. Cats sleep.": "cats sleep < dogs bark < cats < bark = dogs < sleep",
    "A T-shirt &amp; McDonald's o'clock\n\nsigns … in the “old” U.S.A. store": (
        "mcdonald's o'clock signs < store < mcdonald's o'clock = o'clock signs < t-shirt"
        " < mcdonald = signs < o'clock"
    ),
    "Casey's hat isn't “new” and Riley’s coat is mother-in-law's.": (
        "riley’s coat < casey's hat < riley < casey < coat = hat"
    ),
}
"""What yake 0.7.3 answers (n 3, dedup_lim 1, all keywords, its own stop words), best first, ties to five decimals.

Phrases have the characters that they have in the text: "girl's hat", which YAKE writes as "girl hat".
"""


def ranked(text: str) -> list[tuple[float, list[str]]]:
    """The keywords of a text in groups of equal scores, best first."""
    groups: list[tuple[float, list[str]]] = []
    for keyword in YakeExtractor()(text):
        if not groups or round(keyword.score, 5) != round(groups[-1][0], 5):
            groups.append((keyword.score, []))
        groups[-1][1].append(" ".join(keyword.phrase.lower().split()))
    return [(score, sorted(phrases)) for score, phrases in groups]


@pytest.mark.parametrize("text", RANKED)
def test_the_ranking_is_yakes(text: str) -> None:
    expected = [sorted(group.split(" = ")) for group in RANKED[text].split(" < ")]
    assert [phrases for _, phrases in ranked(text)] == expected


@pytest.mark.parametrize(
    ("text", "phrase", "score"),
    [
        ("Why is Casey sad ? Casey lost his dog .", "Casey sad", 0.01531),
        ("Why is Casey sad? Casey lost his dog.", "Casey sad", 0.05807),
        ("The man .\nThe dog", "dog", 0.09568),
        ("cat dog. ' .", "cat", 0.20051),
        ("cat dog", "cat", 0.15832),
        ("M. Zebra", "Zebra", 0.08596),
        ("m. Zebra", "Zebra", 0.17882),
    ],
)
def test_sentences_end_where_yake_ends_them(text: str, phrase: str, score: float) -> None:
    assert scores(text)[phrase] == pytest.approx(score, abs=1e-5)


def test_a_long_number_counts_among_the_words_and_a_short_one_does_not() -> None:
    assert scores("cat , cat , dog , 1939")["cat"] == pytest.approx(0.02135, abs=1e-5)
    assert scores("cat , cat , dog , 30")["cat"] == pytest.approx(0.02246, abs=1e-5)


def test_one_capital_at_the_beginning_makes_a_name_and_capitals_alone_an_acronym() -> None:
    found = scores("I met McDonald and BOB and T-shirt")
    expected = {"McDonald": 0.15832, "BOB": 0.08596, "T-shirt": 0.05701}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-5)


def scores(text: str) -> dict[str, float]:
    """The keywords of a text and what they score."""
    return {keyword.phrase: keyword.score for keyword in YakeExtractor()(text)}


def test_stop_words_are_yakes() -> None:
    stops = keyword_stop_words()
    assert len(stops) == 571
    assert {"the", "looking", "thank", "uucp", "dra"} <= stops
    assert all(word == word.lower().strip() for word in stops)
    for word in ("names", "tv", "n't", "a-b", "at-s"):  # a plural, and fewer than three letters
        assert is_stop_word(word, stops)
    for word in ("don", "ass", "well-known", "sunset"):
        assert not is_stop_word(word, stops)


def worths(text: str) -> list[tuple[str, float]]:
    """Every raw word of a text that is worth something, and the score of its best keyword."""
    words = word_spans(text)
    worth = keyword_importance(text, words, YakeExtractor())
    pairs = zip(words.tolist(), worth.tolist(), strict=True)
    return [(text[start:stop], 1 / value - 1) for (start, stop), value in pairs if value]


def test_a_stop_word_inside_a_compound_is_worth_what_the_compound_is() -> None:
    text = "the well-known TV show isn't Casey's"
    best = scores(text)
    found = worths(text)
    assert [word for word, _ in found] == ["well", "known", "show", "Casey"]
    phrase = best["well-known TV show"]
    assert [score for _, score in found] == pytest.approx([phrase, phrase, phrase, best["Casey"]])


def test_a_word_is_worth_the_best_keyword_of_its_place() -> None:
    found = worths("Why is Casey sad ? Casey lost his dog .")
    assert [word for word, _ in found] == ["Casey", "sad", "Casey", "lost", "dog"]
    scored = [0.01531, 0.01531, 0.02518, 0.02289, 0.02289]
    assert [score for _, score in found] == pytest.approx(scored, abs=1e-5)


@pytest.mark.parametrize(
    "text",
    ["&amplt;", "a-&#13;b", "&lt; 3 &eacute;t&eacute;", "-\r\nb", "\ud800 x", "&#8232;", "’s 's '"],
)
def test_every_keyword_stands_where_it_says(text: str) -> None:
    text = f"dogs {text} bark"
    found = YakeExtractor()(text)
    assert {"dogs", "bark"} <= {keyword.phrase for keyword in found}
    for keyword in found:
        assert {text[start:stop].lower() for start, stop in keyword.spans} == {
            keyword.phrase.lower()
        }


def test_made_texts_score_as_with_the_package() -> None:
    """Runs where somebody has installed YAKE, which is no dependency."""
    extractor = pytest.importorskip("yake").KeywordExtractor(lan="en", dedup_lim=1.0, top=10**6)
    rng = random.Random(0)
    names = ["Casey", "Riley", "Jessie", "Avery", "Pat"]
    rest = [
        *(
            "why",
            "is",
            "are",
            "what",
            "will",
            "happen",
            "if",
            "the",
            "a",
            "because",
            "talking",
            "to",
            "and",
            "of",
        ),
        *(
            "old",
            "red",
            "coat",
            "dogs",
            "dog",
            "running",
            "looking",
            "provides",
            "provide",
            "T-shirt",
            "NASA",
        ),
        *(
            "well-known",
            "person3",
            "10:30",
            "1,000",
            "1939",
            "3rd",
            ",",
            ",",
            ".",
            "?",
            "!",
            "...",
            '"',
            "“",
            "—",
        ),
    ]
    for _ in range(300):
        text = " ".join(rng.choice(names if rng.random() < 0.2 else rest) for _ in range(25))
        theirs = {
            phrase.lower(): float(score) for phrase, score in extractor.extract_keywords(text)
        }
        ours = {phrase.lower(): score for phrase, score in scores(text).items()}
        assert ours == pytest.approx(theirs, abs=1e-9), text

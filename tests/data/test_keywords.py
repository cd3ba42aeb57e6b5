"""Which words of a text matter: YAKE's rankings, what they make words worth, the selection; and k-means on a line."""

from __future__ import annotations

import itertools
from itertools import groupby

import numpy as np
import pytest

from groundling.core.errors import InputError
from groundling.data.kmeans import kmeans_1d
from groundling.data.text import word_spans
from groundling.data.text.keywords import (
    Keyword,
    extract_yake_keywords,
    is_stop_word,
    keyword_importance,
    keyword_stop_words,
    select_random_tokens,
    select_tokens,
    token_scores,
)

RANKED = {
    "30 dogs run past the well-known singer.": (
        "dogs run past < dogs run = well-known singer < past the well-known = run past < dogs = singer"
        " < past = run = well-known"
    ),
    "A surfer in a black wetsuit rides a huge green wave. The wave is breaking behind the surfer and his board.": (
        "black wetsuit rides < huge green wave"
        " < black wetsuit = huge green = rides a huge = wetsuit rides < green wave < surfer = wave"
        " < black = green = huge = rides = wetsuit < board < wave is breaking < breaking"
    ),
    "She is nervous because the NASA engineer from Houston is about to start the countdown for the rocket.": (
        "engineer from houston = nasa engineer < start the countdown < houston = nasa < rocket"
        " < countdown = engineer = nervous = start"
    ),
    "Why is Casey sad ? Casey lost his dog .": (
        "casey sad < lost his dog < casey lost < casey < dog = sad < lost"
    ),
    "What are Casey and Riley talking about ? Casey Riley Jessie are arguing over the broken vase .": (
        "casey riley jessie < riley jessie < casey riley < jessie are arguing < broken vase"
        " < riley talking < casey = riley < casey and riley < jessie < vase < arguing = broken = talking"
    ),
    "Is this a formal event ? Yes , it is . Casey and Riley wear formal suits . Riley is holding a glass of wine .": (
        "riley wear formal < wear formal suits < riley wear < casey and riley < glass of wine"
        " < formal event = formal suits < holding a glass < wear formal < riley is holding < riley"
        " < casey < formal < event = suits = wine < glass = holding = wear"
    ),
    "What is Casey ' s job ? Casey is a 3rd grade teacher , and works until 10:30 .": (
        "grade teacher < works until 10:30 < casey < 10:30 = grade = job = teacher < works"
    ),
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


@pytest.mark.parametrize("text", RANKED)
def test_the_ranking_is_yakes(text: str) -> None:
    found = groupby(extract_yake_keywords(text), lambda keyword: round(keyword.score, 5))
    phrases = [[" ".join(one.phrase.lower().split()) for one in group] for _, group in found]
    assert " < ".join(" = ".join(sorted(some)) for some in phrases) == RANKED[text]


SCORES = {
    "sunset": {"sunset": 0.04491},  # ln ln 3 / 2, over 1 more than itself
    "I met Bob today": {"Bob": 0.14478},
    # Sentences end where YAKE ends them.
    "Why is Casey sad ? Casey lost his dog .": {"Casey sad": 0.01531},
    "Why is Casey sad? Casey lost his dog.": {"Casey sad": 0.05807},
    "The man .\nThe dog": {"dog": 0.09568},
    "cat dog. ' .": {"cat": 0.20051},
    "M. Zebra": {"Zebra": 0.08596},
    # A long number counts among the words, a short one does not.
    "cat , cat , dog , 1939": {"cat": 0.02135},
    "cat , cat , dog , 30": {"cat": 0.02246},
    # One capital at the beginning makes a name, capitals alone an acronym.
    "I met McDonald and BOB and T-shirt": {"McDonald": 0.15832, "BOB": 0.08596, "T-shirt": 0.05701},
}
"""What some keywords of a text score, by the published formulas."""


def scores(text: str) -> dict[str, float]:
    """The keywords of a text and what they score."""
    return {keyword.phrase: keyword.score for keyword in extract_yake_keywords(text)}


@pytest.mark.parametrize("text", SCORES)
def test_scores_follow_the_published_formulas(text: str) -> None:
    found = scores(text)
    assert {name: found[name] for name in SCORES[text]} == pytest.approx(SCORES[text], abs=1e-5)


@pytest.mark.parametrize(
    "text", ["", "2", "Is it?", "3.5, 1,000", "person1", "... !", "ox", "\n\n", "Looks well!"]
)
def test_a_text_may_have_no_keywords(text: str) -> None:
    assert extract_yake_keywords(text) == []


def test_any_function_finds_keywords() -> None:
    def longest(text: str) -> list[Keyword]:
        word = max(text.split(), key=len)
        start = text.index(word)
        return [Keyword(word, ((start, start + len(word)),), -0.5)]

    text = "a well-known ox"
    # the mark inside is no word; below 0 there is nothing better than 0
    assert keyword_importance(text, word_spans(text), longest).tolist() == [0, 1, 0, 1, 0]
    assert keyword_importance("", word_spans(""), lambda text: []).tolist() == []


def test_stop_words_are_yakes() -> None:
    stops = keyword_stop_words()
    assert len(stops) == 571
    assert {"the", "looking", "thank", "uucp", "dra"} <= stops
    assert all(word == word.lower().strip() for word in stops)
    for word in ("names", "tv", "n't", "a-b", "at-s"):  # a plural, and fewer than three letters
        assert is_stop_word(word)
    for word in ("don", "ass", "well-known", "sunset"):
        assert not is_stop_word(word)


def worths(text: str) -> list[tuple[str, float]]:
    """Every raw word of a text that is worth something, and the score of its best keyword."""
    words = word_spans(text)
    worth = keyword_importance(text, words, extract_yake_keywords)
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
    found = extract_yake_keywords(text)
    assert {"dogs", "bark"} <= {keyword.phrase for keyword in found}
    for keyword in found:
        assert {text[start:stop].lower() for start, stop in keyword.spans} == {
            keyword.phrase.lower()
        }


# -- selection ---------------------------------------------------------------------------------------------------------

RELEVANCE = np.array([0.1, 0.2, 0.3, 0.4])
IMPORTANCE = np.array([0, 0, 1 / 1.15832, 1 / 1.29737])
ALL = np.ones(4, bool)


def test_scores_of_the_worked_example() -> None:
    scores = token_scores(RELEVANCE, IMPORTANCE, ALL)
    assert scores == pytest.approx([0.1, 0.2, 0.82831, 0.87169], abs=1e-5)
    assert select_tokens(scores, ALL, 2).tolist() == [3, 2]


def test_what_is_no_candidate_has_no_share() -> None:
    candidates = np.array([True, False, True, False])
    assert select_tokens(np.array([0.2, 0.5, 0.5, 0.5]), ALL, 2).tolist() == [1, 2]  # the earlier
    assert token_scores(-RELEVANCE[:1], np.zeros(1), ALL[:1]).tolist() == [-1]  # signs are kept
    scores = token_scores(RELEVANCE, IMPORTANCE, candidates)
    assert scores == pytest.approx([0.25, 0, 0.75 + 1, 0])
    assert select_tokens(scores, candidates, 3).tolist() == [2, 0]
    none = np.zeros(4, bool)
    assert select_tokens(token_scores(RELEVANCE, IMPORTANCE, none), none, 2).tolist() == []
    assert token_scores(np.zeros(0), np.zeros(0), np.zeros(0, bool)).tolist() == []


def test_random_words_are_candidates_each_as_often() -> None:
    candidates = np.array([True, False, True, True])
    counts = np.zeros(4)
    for seed in range(300):
        chosen = select_random_tokens(candidates, 2, np.random.default_rng(seed))
        assert len(set(chosen.tolist())) == 2
        counts[chosen] += 1
    assert counts[1] == 0
    assert counts[[0, 2, 3]] == pytest.approx([200] * 3, abs=45)
    assert sorted(select_random_tokens(candidates, 9, np.random.default_rng(0))) == [0, 2, 3]


# -- Exact k-means on a line, against every possible cut


def cheapest(values: np.ndarray, k: int) -> float:
    """The least sum of squares over all ways to cut the sorted values into k runs."""
    ordered = np.sort(values)
    sums = []
    for cuts in itertools.combinations(range(1, len(values)), k - 1):
        runs = np.split(ordered, cuts)
        sums.append(sum(((run - run.mean()) ** 2).sum() for run in runs))
    return min(sums)


@pytest.mark.parametrize("seed", range(20))
def test_no_cut_is_better(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(5, 13))
    values = rng.normal(size=count) if seed % 2 else rng.integers(0, 9, count).astype(float)
    k = min(int(rng.integers(1, 5)), len(set(values)))
    found = kmeans_1d(values, k)
    assert found.variance * count == pytest.approx(cheapest(values, k), abs=1e-9)
    for number, centre in enumerate(found.centres):
        assert values[found.labels == number].mean() == pytest.approx(centre)
    assert (np.diff(found.centres) > 0).all()


def test_order_and_shift_change_nothing_and_k_values_are_their_own_centres():
    values = np.array([3.0, 1.0, 1.1, 9.0, 2.9])
    found = kmeans_1d(values, 3)
    assert found.labels.tolist() == [1, 0, 0, 2, 1]
    moved = kmeans_1d(values[::-1] + 1e6, 3)
    assert moved.labels.tolist() == [1, 2, 0, 0, 1]
    assert kmeans_1d(np.array([2.0, 1.0]), 2).centres.tolist() == [1, 2]
    assert kmeans_1d(np.array([2.0, 1.0]), 2).variance == 0


@pytest.mark.parametrize("values", [[1.0, 1.0, 2.0], [], [1.0, np.nan, 2.0, 3.0]])
def test_what_cannot_be_clustered_is_refused(values):
    with pytest.raises(InputError, match="expected finite numbers, at least 3 of them distinct"):
        kmeans_1d(np.array(values), 3)

"""Which words of a text matter: the scorer against YAKE's rankings, what it makes words worth, and the selection."""

from __future__ import annotations

import numpy as np
import pytest

from groundling.data.text.keywords import (
    Keyword,
    YakeExtractor,
    keyword_importance,
    select_random_tokens,
    select_tokens,
    token_scores,
)
from groundling.data.text.words import word_spans

RANKED = {
    "The man is sending a telegram.": (
        "sending a telegram < man is sending < telegram < man = sending"
    ),
    "30 dogs run past the well-known singer.": (
        "dogs run past < dogs run = well-known singer < past the well-known = run past < dogs = singer"
        " < past = run = well-known"
    ),
    "Is the cat sleeping on top of the laptop or under the desk?": (
        "cat sleeping = sleeping on top < desk < cat = laptop = sleeping = top"
    ),
    "The old woman in the red coat is feeding pigeons near the fountain. Pigeons gather around the woman.": (
        "coat is feeding = red coat < feeding pigeons < fountain < pigeons gather < pigeons = woman"
        " < coat = feeding = red < gather"
    ),
    "A surfer in a black wetsuit rides a huge green wave. The wave is breaking behind the surfer and his board.": (
        "black wetsuit rides < huge green wave"
        " < black wetsuit = huge green = rides a huge = wetsuit rides < green wave < surfer = wave"
        " < black = green = huge = rides = wetsuit < board < wave is breaking < breaking"
    ),
    "person3 and person4 are arguing about the broken vase that person3 dropped.": (
        "broken vase < dropped < arguing = broken = vase"
    ),
    "She is nervous because the NASA engineer from Houston is about to start the countdown for the rocket.": (
        "engineer from houston = nasa engineer < start the countdown < houston = nasa < rocket"
        " < countdown = engineer = nervous = start"
    ),
    "An elephant sprays water over a baby elephant. The baby elephant enjoys the water! "
    "Tourists take pictures of the elephants.": (
        "elephant sprays water < baby elephant < sprays water < elephant sprays < baby elephant enjoys"
        " < baby < elephant < water < sprays < elephant enjoys < tourists take pictures"
        " < enjoys the water < elephants < enjoys < tourists < pictures"
    ),
}
"""What yake 0.7.3 answers (n 3, dedup_lim 1, all keywords, its own stop words), best first, ties to five decimals."""


@pytest.mark.parametrize("text", RANKED)
def test_the_ranking_is_yakes(text: str) -> None:
    scores = {keyword.phrase.lower(): keyword.score for keyword in YakeExtractor()(text)}
    groups = [group.split(" = ") for group in RANKED[text].split(" < ")]
    assert set(scores) == {phrase for group in groups for phrase in group}
    below = 0.0
    for group in groups:
        first, *rest = (scores[phrase] for phrase in group)
        assert below < first
        assert rest == pytest.approx([first] * len(rest), abs=1e-9)
        below = first


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("sunset", 0.04491),  # ln ln 3 / 2, over 1 more than itself
        ("man rides", 0.15832),
        ("the man is", 0.29737),
        ("I met Bob today", 0.14478),  # a name
    ],
)
def test_scores_follow_the_published_formulas(text: str, score: float) -> None:
    (found,) = [k.score for k in YakeExtractor()(text) if k.phrase in {"sunset", "man", "Bob"}]
    assert found == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    "text", ["", "2", "Is it?", "3.5, 1,000", "person1", "... !", "ox", "\n\n", "Looks well!"]
)
def test_a_text_may_have_no_keywords(text: str) -> None:
    assert YakeExtractor()(text) == []


def test_keywords_come_best_first_and_of_equals_the_earlier() -> None:
    text = "Dogs bark, cats sleep, and dogs bark."
    found = YakeExtractor()(text)
    assert found == YakeExtractor()(text)
    order = [(keyword.score, keyword.spans[0]) for keyword in found]
    assert order == sorted(order)
    for keyword in found:
        for start, stop in keyword.spans:
            assert text[start:stop].lower() == keyword.phrase.lower()
    spans_of = {keyword.phrase: keyword.spans for keyword in found}
    assert spans_of["Dogs bark"] == ((0, 9), (27, 36))


def test_a_possessive_is_its_word_and_a_contraction_a_stop_word() -> None:
    phrases = [keyword.phrase for keyword in YakeExtractor()("The girl's hat isn't red")]
    assert sorted(phrases) == ["girl", "girl's hat", "hat", "red"]


def test_a_word_is_worth_its_best_keyword() -> None:
    text = "The man is sending a telegram."
    worth = keyword_importance(text, word_spans(text), YakeExtractor())
    best = {keyword.phrase: 1 / (1 + keyword.score) for keyword in YakeExtractor()(text)}
    of_three = best["sending a telegram"]
    assert worth == pytest.approx([0, best["man is sending"], 0, of_three, 0, of_three, 0])
    assert worth.max() < 1


def test_any_function_finds_keywords() -> None:
    def longest(text: str) -> list[Keyword]:
        word = max(text.split(), key=len)
        start = text.index(word)
        return [Keyword(word, ((start, start + len(word)),), -0.5)]

    text = "a well-known ox"
    # the mark inside is no word; below 0 there is nothing better than 0
    assert keyword_importance(text, word_spans(text), longest).tolist() == [0, 1, 0, 1, 0]
    assert keyword_importance("", word_spans(""), lambda text: []).tolist() == []


# -- selection ---------------------------------------------------------------------------------------------------------

RELEVANCE = np.array([0.1, 0.2, 0.3, 0.4])
IMPORTANCE = np.array([0, 0, 1 / 1.15832, 1 / 1.29737])
ALL = np.ones(4, bool)


def test_scores_of_the_worked_example() -> None:
    scores = token_scores(RELEVANCE, IMPORTANCE, ALL)
    assert scores == pytest.approx([0.1, 0.2, 0.82831, 0.87169], abs=1e-5)
    assert select_tokens(scores, ALL, 2).tolist() == [3, 2]


def test_signs_are_kept_and_nothing_is_divided_by_zero() -> None:
    scores = token_scores(np.array([-0.1, 0.3]), np.zeros(2), np.ones(2, bool))
    assert scores == pytest.approx([-0.25, 0.75])
    assert token_scores(np.zeros(2), np.zeros(2), np.ones(2, bool)).tolist() == [0, 0]


def test_what_is_no_candidate_has_no_share() -> None:
    candidates = np.array([True, False, True, False])
    scores = token_scores(RELEVANCE, IMPORTANCE, candidates)
    assert scores == pytest.approx([0.25, 0, 0.75 + 1, 0])
    assert select_tokens(scores, candidates, 3).tolist() == [2, 0]
    none = np.zeros(4, bool)
    assert select_tokens(token_scores(RELEVANCE, IMPORTANCE, none), none, 2).tolist() == []
    assert token_scores(np.zeros(0), np.zeros(0), np.zeros(0, bool)).tolist() == []


def test_of_equal_scores_the_earlier_word_is_taken() -> None:
    assert select_tokens(np.array([0.2, 0.5, 0.5, 0.5]), ALL, 2).tolist() == [1, 2]


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

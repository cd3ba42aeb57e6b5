"""Grounded ratios by hand, and gains where they are planted and where they are not."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu
from tiny import toys
from tiny.homes import coco, home, put, words
from transformers import BertTokenizer

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.data.text import stop_words
from groundling.runs.report import svg_of
from groundling.studies.xdbert.commands import DATA_COUNTS as count
from groundling.studies.xdbert.commands import CaptionTokenCountsConfig
from groundling.studies.xdbert.grounded import (
    GroundedTokens,
    ImprovementGroups,
    compare_groups,
    count_tokens,
    draw_ratio_boxes,
    group_by_improvement,
    list_extreme_examples,
    null_split,
)

PRINTED = {  # totals of Appendix D's examples that agree with their texts
    21: "Security forces were on high alert after an election campaign in which more than 1,000 people, including "
    "seven election candidates, have been killed. Security forces were on high alert after a campaign marred by "
    "violence.",
    40: "Jean-Claude Trichet, the European Central Bank president, made it clear, on Wednesday, that he would oppose "
    "unwarranted political attempts to remove Antonio Fazio: the Bank of Italy governor, engulfed in controversy over "
    "his handling of bank takeover bids. Antonio Fazio is subordinate to Jean-Claude Trichet.",
    24: "About half were along a 20-mile stretch of Santa Monica Bay from Topanga Canyon Boulevard to the Palos Verdes "
    "Peninsula. The coastline of Santa Monica Bay is 50 miles long.",
}
SPLIT_UP = {
    "trichet": "tri ##chet",
    "fazio": "fa ##zio",
    "topanga": "top ##anga",
    "palos": "palo ##s",
}
SPLIT_UP |= {"unwarranted": "un ##war ##rant ##ed", "verdes": "verde ##s", "dogs": "dog ##s"}


@cache
def tokens() -> BertTokenizer:
    """The paper's WordPieces of its examples, and a few more words."""
    text = " ".join(PRINTED.values()) + " a dogs and cat cafe near s don ' t it red"
    single = "".join(c if c.isalnum() else f" {c} " for c in text.lower()).split()
    vocabulary = {token for word in single for token in SPLIT_UP.get(word, word).split()}
    return BertTokenizer(
        vocab={p: i for i, p in enumerate([*toys.BERT_SPECIAL, *sorted(vocabulary)])}
    )


def grounding(threshold: int = 100) -> GroundedTokens:
    counts = {
        "dog": 101,
        "##s": 300,
        "s": 500,
        "cat": 100,
        "red": 7,
        "the": 9999,
        ".": 9999,
        "cafe": 200,
    }
    raw = {"dogs": 90, "cat": 400, "café": 200, "the": 9999}
    return GroundedTokens({"tokens": counts, "words": raw}, tokens(), threshold)


def test_stop_words_are_nltks() -> None:
    found = stop_words()
    assert len(found) == 179
    assert {"don't", "should've", "mightn't", "that'll", "ma", "y", "won", "yourselves"} <= found
    assert (
        not {"also", "one", "two", "would", "per", "back", "often", "across", "y'all", "#"} & found
    )


def test_ratios_by_hand() -> None:
    text = "The dogs, a red cat's: CAFÉ."  # dog ##s red cat cafe; the , a ' s : . count nowhere
    assert grounding().ratio(text) == pytest.approx(3 / 5)  # dog ##s cafe
    assert grounding().ratio(text, variant="inherit") == pytest.approx(
        2 / 5
    )  # cat cafe; "dogs" is too rare
    assert grounding().ratio(text, variant="words") == pytest.approx(2 / 4)  # dogs red cat café
    assert grounding().ratio(text, "cat dogs red") == pytest.approx(5 / 9)  # both texts as one
    assert math.isnan(grounding().ratio("The, and it. Don't!")) and math.isnan(
        grounding().ratio("")
    )


def test_more_than_the_threshold_and_a_continuation_is_no_stop_word() -> None:
    assert grounding().grounded("dog") and not grounding().grounded("cat")  # 101 and 100
    assert grounding(99).grounded("cat") and not grounding(101).grounded("dog")
    assert grounding().grounded("##s") and not grounding().grounded("s")
    assert not any(grounding().grounded(token) for token in ("the", ".", "unseen", ""))


@pytest.mark.parametrize("total", PRINTED)
def test_printed_totals_of_the_paper(total: int) -> None:
    assert sum(grounding().shares(PRINTED[total])) == total


def test_tokens_are_counted_as_spelt() -> None:
    counts = count_tokens(["A dog, dogs.", "Cafés: the café"], tokens())
    assert list(counts.items()) == [("##s", 2), ("cafe", 2), ("dog", 2), ("a", 1), ("the", 1)]


@pytest.mark.parametrize(
    "make", [toys.roberta_words, toys.clip_words, toys.siglip_words, toys.bert_words]
)
def test_every_tokenizer_spells_alike(make: object) -> None:
    tokenizer = make()  # type: ignore[operator]
    found = count_tokens(["The dog isn't here", "a red dog's 🐶", "café"], tokenizer)
    assert all(
        key.removeprefix("##").isalnum() and key.isascii() for key in found
    )  # no Ġ, no </w>, no é
    ground = GroundedTokens({"tokens": found, "words": {"dog": 1, "red": 1}}, tokenizer, 0)
    assert ground.ratio("a red dog!") == ground.ratio("the dog", variant="inherit") == 1
    assert ground.ratio("a red car", variant="words") == 0.5
    assert math.isnan(ground.ratio("the, it's 🐶", variant="inherit"))


def test_table_of_a_coco_file(tmp_path: Path) -> None:
    file = coco(
        tmp_path / "captions.json",
        [(1, "a.jpg"), (2, "b.jpg")],
        [(1, "A dog."), (2, "Dogs: a cat"), (1, " ")],
    )
    tokenizer = str(home(tmp_path / "tokenizer", None, tokens()))
    config = CaptionTokenCountsConfig((str(file),), tokenizer=tokenizer)
    assert "4 tokens and 6 words of 2 captions" in count(config, tmp_path / "counts.json")
    table = json.loads((tmp_path / "counts.json").read_text())
    assert table["tokens"] == {"a": 2, "dog": 2, "##s": 1, "cat": 1}
    assert table["words"] == {"a": 2, ".": 1, ":": 1, "cat": 1, "dog": 1, "dogs": 1}
    assert (
        table["provenance"]["captions"] == 2 and len(table["provenance"]["files"][str(file)]) == 64
    )
    assert GroundedTokens.read(tmp_path / "counts.json", tokens(), 1).ratio(
        "a dog, cat dogs"
    ) == pytest.approx(2 / 4)
    with pytest.raises(InputError, match=r"counts.json: counted with another tokenizer"):
        GroundedTokens.read(tmp_path / "counts.json", words())
    for number, content in enumerate(
        (
            "{}",
            "[]",
            json.dumps({**table, "tokens": ["a"]}),
            json.dumps({**table, "words": {"a": "often"}}),
            '{"provenance": {}}',
        )
    ):
        with pytest.raises(InputError, match=r"not a count table"):
            GroundedTokens.read(put(tmp_path / f"{number}.json", content), tokens())


def parts(found: ImprovementGroups) -> list[list[int]]:
    return [part.tolist() for part in found]


def answers(chance: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.random((6, len(chance))) < chance  # of 6 seeds


def test_split_counts_seeds() -> None:
    base, other = (
        np.array([[1, 0, 1, 0, 1], [1, 0, 0, 0, 0]]),
        np.array([[1, 1, 0, 0, 0], [1, 1, 0, 0, 1]]),
    )
    assert parts(group_by_improvement(base, other)) == [[1], [2], [0, 3, 4]]
    assert parts(group_by_improvement(base[:1], base[1:])) == [[], [2, 4], [0, 1, 3]]


def test_null_split_halves_the_seeds() -> None:
    answers = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]], bool)
    found = [null_split(answers, seed) for seed in range(30)]
    assert all({0, 2} <= set(part.on_par.tolist()) for part in found)  # all seeds agree
    assert {(1 in p.improved, 1 in p.worsened) for p in found} == {
        (True, False),
        (False, True),
        (False, False),
    }


def test_a_planted_effect_is_found_and_not_in_the_null_split() -> None:
    rng = np.random.default_rng(0)
    ratios, lengths, labels = rng.random(300), rng.integers(20, 200, 300), rng.integers(0, 2, 300)
    ratios[:3] = np.nan
    base = answers(np.full(300, 0.5), rng)
    other = answers(0.2 + 0.6 * np.nan_to_num(ratios, nan=0.5), rng)
    found = compare_groups(ratios, base, other, lengths, labels)
    models, null = found["models"], found["null"]
    up, down = (ratios[at][~np.isnan(ratios[at])] for at in group_by_improvement(base, other)[:2])
    expected = mannwhitneyu(up, down)
    assert (
        models["mann_whitney_p"] == pytest.approx(expected.pvalue)
        and models["mann_whitney_p"] < 1e-6
    )
    assert models["cliffs_delta"] == pytest.approx(2 * expected.statistic / len(up) / len(down) - 1)
    assert 0 < models["interval"][0] < models["cliffs_delta"] < models["interval"][1] < 1
    assert models["controlled"]["p"] < 0.01 and models["controlled"]["difference"] > 0.1
    assert models["controlled"]["strata"] == 8  # two labels by four quarters of length
    assert (
        min(null["mann_whitney_p"], null["controlled"]["p"]) > 0.05
        and null["interval"][0] < 0 < null["interval"][1]
    )
    assert [sum(g[key] for g in models["groups"].values()) for key in ("n", "undefined")] == [
        297,
        3,
    ]
    summary = [models["groups"]["improved"][key] for key in ("mean", "q1", "median", "q3")]
    assert summary == pytest.approx([up.mean(), *np.quantile(up, [0.25, 0.5, 0.75])])
    assert (
        json.loads(json.dumps(found))
        == found
        == compare_groups(ratios, base, other, lengths, labels)
    )


def test_what_only_follows_from_length_is_gone_once_controlled() -> None:
    rng = np.random.default_rng(1)
    long = rng.integers(0, 2, 600)
    ratios, base, other = 0.4 * long + 0.2 * rng.random(600), np.full(600, 0.5), 0.3 + 0.4 * long
    found = compare_groups(ratios, answers(base, rng), answers(other, rng), long, np.zeros(600))[
        "models"
    ]
    assert found["mann_whitney_p"] < 1e-6 < 0.05 < found["controlled"]["p"]
    assert abs(found["controlled"]["difference"]) < 0.02


def test_empty_groups_are_said_to_be_empty() -> None:
    right = np.ones((2, 4), bool)
    found = compare_groups(np.full(4, 0.5), right, ~right, np.arange(4), np.zeros(4))["models"]
    assert found["groups"]["improved"] == dict.fromkeys(("mean", "median", "q1", "q3")) | {
        "n": 0,
        "undefined": 0,
    }
    assert [found[k] for k in ("mann_whitney_p", "cliffs_delta", "interval", "controlled")] == [
        None
    ] * 4
    apart = compare_groups([0.9, 0.1], [[0, 1]] * 2, [[1, 0]] * 2, [9, 9], [0, 1])["models"]
    assert apart["controlled"] is None and apart["cliffs_delta"] == 1  # no stratum has both groups


def test_figure_has_both_panels() -> None:
    groups, null = (
        {"improved": [0.1, np.nan, 0.4], "on_par": []},
        {"improved": [0.2], "on_par": [0.3]},
    )
    svg = svg_of(draw_ratio_boxes(groups, null))
    assert (
        svg.startswith("<svg")
        and "between the models" in svg
        and "null split" in svg
        and "n = 2" in svg
    )
    assert "#008000" in svg and "on par" in svg  # the green plus


def test_listing_shows_the_most_extreme() -> None:
    texts = ["The dogs, red", "a cat", "cafe", "it", "the dog"]
    examples = [
        Example(f"e{i}", text, text_pair="a red * dog" if i == 0 else None)
        for i, text in enumerate(texts)
    ]
    base, other = [[0, 0, 1, 1, 1], [0, 1, 1, 0, 1]], [[1, 1, 1, 1, 0], [1, 1, 1, 0, 1]]
    page = list_extreme_examples(
        grounding(), examples, base, other, k=1, names=("BERT", "XDBERT")
    ).split("\n")
    assert (
        page[2] == "Example e0: grounded ratio 3/(3+2) = 0.6000; BERT right 0/2, XDBERT right 2/2"
    )
    assert page[4] == "(The) **dog** **##s** (,) red" and page[6] == r"(a) red (\*) **dog**"
    heads = [line.split(":")[0] for line in page if line.startswith(("Example", "##"))]
    assert heads == [
        "## Improved",
        "Example e0",
        "## Worsened",
        "Example e4",
        "## On par",
        "Example e2",
    ]
    assert "Example e3: grounded ratio undefined" in list_extreme_examples(
        grounding(), examples, base, other
    )


def test_bad_input_in_one_line() -> None:
    right = np.ones((2, 4), bool)
    for base, other in ((right, right[:1]), (right, right[:, :3])):
        with pytest.raises(InputError, match="answers of shapes"):
            group_by_improvement(base, other)
    with pytest.raises(InputError, match="needs 2 seeds"):
        null_split(right[:1])

"""Grounded ratios by hand, and gains where they are planted and where they are not."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu
from tiny import homes, toys
from tiny.homes import coco, home, put, words
from tiny.results import write_runs
from transformers import BertTokenizer

from groundling.cli import main
from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.registry import resolve
from groundling.data.text import stop_words
from groundling.stats.verdict import SeedRuns
from groundling.studies.xdbert.commands import DATA_COUNTS as count
from groundling.studies.xdbert.commands import CaptionTokenCountsConfig
from groundling.studies.xdbert.grounded import (
    GroundedTokens,
    compare_groups,
    count_tokens,
    group_by_improvement,
    list_extreme_examples,
    null_split,
)
from groundling.tasks import Task

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
    counts = {"dog": 101, "##s": 300, "s": 500, "cat": 100, "red": 7, "the": 9999, "cafe": 200}
    return GroundedTokens(counts, tokens(), threshold)


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
    assert grounding().ratio(text, "cat dogs red") == pytest.approx(5 / 9)  # both texts as one
    assert np.isnan([grounding().ratio(text) for text in ("The, and it. Don't!", "")]).all()


def test_more_than_the_threshold_and_a_continuation_is_no_stop_word() -> None:
    statuses = {
        token: grounding().status(token) for token in ("dog", "cat", "##s", "s", "the", ".")
    }
    assert statuses == {"dog": True, "cat": False, "##s": True, "s": None, "the": None, ".": None}
    assert grounding(99).status("cat") and not grounding(101).status("dog")


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
    spelt = [key.removeprefix("##") for key in found]
    assert all(key.isalnum() and key.isascii() for key in spelt)  # no Ġ, no </w>, no é
    ground = GroundedTokens(found, tokenizer, 0)
    assert ground.ratio("a red dog!") == ground.ratio("the dog") == 1


def test_table_of_a_coco_file(tmp_path: Path) -> None:
    images, texts = [(1, "a.jpg"), (2, "b.jpg")], [(1, "A dog."), (2, "Dogs: a cat"), (1, " ")]
    file = coco(tmp_path / "captions.json", images, texts)
    tokenizer = str(home(tmp_path / "tokenizer", None, tokens()))
    config = CaptionTokenCountsConfig((str(file),), tokenizer=tokenizer)
    assert "4 tokens of 2 captions" in count(config, tmp_path / "counts.json")
    table = json.loads((tmp_path / "counts.json").read_text())
    assert table["tokens"] == {"a": 2, "dog": 2, "##s": 1, "cat": 1}
    about = table["provenance"]
    assert about["captions"] == 2 and about["files"] == [str(file)]
    read = GroundedTokens.read(tmp_path / "counts.json", tokens(), 1)
    assert read.ratio("a dog, cat dogs") == pytest.approx(2 / 4)
    with pytest.raises(InputError, match=r"counts.json: counted with another tokenizer"):
        GroundedTokens.read(tmp_path / "counts.json", words())
    for content in ({}, [], {**table, "tokens": ["a"]}, {**table, "tokens": {"a": "often"}}):
        bad = put(tmp_path / "bad.json", json.dumps(content))
        with pytest.raises(InputError, match=r"bad.json: not a count table"):
            GroundedTokens.read(bad, tokens())


def parts(found: dict[str, np.ndarray]) -> list[list[int]]:
    return [part.tolist() for part in found.values()]


def answers(chance: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.random((6, len(chance))) < chance  # of 6 seeds


def test_split_counts_seeds() -> None:
    base = np.array([[1, 0, 1, 0, 1], [1, 0, 0, 0, 0]])
    other = np.array([[1, 1, 0, 0, 0], [1, 1, 0, 0, 1]])
    assert parts(group_by_improvement(base, other)) == [[1], [2], [0, 3, 4]]
    assert parts(group_by_improvement(base[:1], base[1:])) == [[], [2, 4], [0, 1, 3]]
    with pytest.raises(InputError, match="answers of shapes"):
        group_by_improvement(base, other[:1])


def test_null_split_halves_the_seeds() -> None:
    answers = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]], bool)
    found = [null_split(answers, seed) for seed in range(30)]
    assert all({0, 2} <= set(part["on_par"].tolist()) for part in found)  # all seeds agree
    moved = {(1 in part["improved"], 1 in part["worsened"]) for part in found}
    assert moved == {(True, False), (False, True), (False, False)}


def test_a_planted_effect_is_found_and_not_in_the_null_split() -> None:
    rng = np.random.default_rng(0)
    ratios, lengths, labels = rng.random(300), rng.integers(20, 200, 300), rng.integers(0, 2, 300)
    ratios[:3] = np.nan
    base = answers(np.full(300, 0.5), rng)
    other = answers(0.2 + 0.6 * np.nan_to_num(ratios, nan=0.5), rng)
    found = compare_groups(ratios, base, other, lengths, labels)
    models, null = found["models"], found["null"]
    up, down = (
        ratios[at][~np.isnan(ratios[at])]
        for at in list(group_by_improvement(base, other).values())[:2]
    )
    expected = mannwhitneyu(up, down)
    assert models["mann_whitney_p"] == pytest.approx(expected.pvalue) and expected.pvalue < 1e-6
    assert models["cliffs_delta"] == pytest.approx(2 * expected.statistic / len(up) / len(down) - 1)
    assert 0 < models["interval"][0] < models["cliffs_delta"] < models["interval"][1] < 1
    assert models["controlled"]["p"] < 0.01 and models["controlled"]["difference"] > 0.1
    assert models["controlled"]["strata"] == 8  # two labels by four quarters of length
    assert min(null["mann_whitney_p"], null["controlled"]["p"]) > 0.05
    assert null["interval"][0] < 0 < null["interval"][1]
    groups = models["groups"].values()
    assert [sum(group[key] for group in groups) for key in ("n", "undefined")] == [297, 3]
    summary = [models["groups"]["improved"][key] for key in ("mean", "q1", "median", "q3")]
    assert summary == pytest.approx([up.mean(), *np.quantile(up, [0.25, 0.5, 0.75])])
    assert found == compare_groups(ratios, base, other, lengths, labels)


def test_what_only_follows_from_length_is_gone_once_controlled() -> None:
    rng = np.random.default_rng(1)
    long = rng.integers(0, 2, 600)
    ratios = 0.4 * long + 0.2 * rng.random(600)
    both = answers(np.full(600, 0.5), rng), answers(0.3 + 0.4 * long, rng)
    found = compare_groups(ratios, *both, long, np.zeros(600))["models"]
    assert found["mann_whitney_p"] < 1e-6 < 0.05 < found["controlled"]["p"]
    assert abs(found["controlled"]["difference"]) < 0.02


def test_empty_groups_are_said_to_be_empty() -> None:
    right = np.ones((2, 4), bool)
    found = compare_groups(np.full(4, 0.5), right, ~right, np.arange(4), np.zeros(4))["models"]
    none = dict.fromkeys(("mean", "median", "q1", "q3"))
    assert found["groups"]["improved"] == none | {"n": 0, "undefined": 0}
    keys = ("mann_whitney_p", "cliffs_delta", "interval", "controlled")
    assert [found[key] for key in keys] == [None] * 4
    apart = compare_groups([0.9, 0.1], [[0, 1]] * 2, [[1, 0]] * 2, [9, 9], [0, 1])["models"]
    assert apart["controlled"] is None and apart["cliffs_delta"] == 1  # no stratum has both groups


def test_listing_shows_the_most_extreme() -> None:
    texts = ["The dogs, red", "a cat", "cafe", "it", "the dog"]
    examples = [Example(f"e{number}", text) for number, text in enumerate(texts)]
    examples[0] = replace(examples[0], text_pair="a red * dog")
    base, other = [[0, 0, 1, 1, 1], [0, 1, 1, 0, 1]], [[1, 1, 1, 1, 0], [1, 1, 1, 0, 1]]
    page = list_extreme_examples(grounding(), examples, base, other, 1).split("\n")
    assert page[2] == "Example e0: grounded ratio 0.6000; base right 0/2, other 2/2"
    assert page[4] == "(The) **dog** **##s** (,) red" and page[6] == r"(a) red (\*) **dog**"
    heads = [line.split(":")[0] for line in page if line.startswith(("Example", "##"))]
    of_groups = [
        "## Improved",
        "Example e0",
        "## Worsened",
        "Example e4",
        "## On par",
        "Example e2",
    ]
    assert heads == of_groups


# -- the command -------------------------------------------------------------------------------------------------------
GROUNDED = "grounded --base base --other other --task glue/rte --data glue --counts counts.json --tokenizer student"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Counts of captions, a tokenizer, RTE and a longer RTE, and runs of two models and of a single seed."""
    monkeypatch.chdir(tmp_path)
    homes.student(tmp_path / "student")
    said = [f"{i}.jpg#0\ta dog and a cat number {i % 3} on the grass\n" for i in range(30)]
    captions = put(tmp_path / "some.token.txt", "".join(said))
    config = CaptionTokenCountsConfig((str(captions),), tokenizer="student")
    assert "of 30 captions" in count(config, tmp_path / "counts.json")
    homes.rte(tmp_path / "glue")
    longer = homes.rte(tmp_path / "more") / "RTE" / "dev.tsv"
    longer.write_text(longer.read_text() + "8\tA.\tB.\tentailment\n")
    examples = resolve("tasks", Task, "glue/rte").read(tmp_path / "glue", "dev")
    labels = np.array([one.label for one in examples], float)
    ids = tuple(one.id for one in examples)
    for number, (name, share) in enumerate({"base": 0.5, "other": 0.8, "one": 0.5}.items()):
        right = np.random.default_rng(number).random((4, len(ids))) < share
        answered = np.where(right, labels, 1 - labels)[: 1 if name == "one" else 4]
        seeds = tuple(range(len(answered)))
        write_runs(tmp_path / name, SeedRuns(name, "glue/rte", seeds, ids, labels, answered))
    return tmp_path


def test_from_runs_to_the_figure(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GROUNDED.split(), "--threshold", "5", "--out", "out"]) == 0
    result = json.loads((place / "out/result.json").read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert (result["task"], result["seeds"]) == ("glue/rte", [0, 1, 2, 3])
    assert (place / "out/grounded.png").read_bytes()[:4] == b"\x89PNG"
    assert (place / "out/examples.md").read_text().startswith("## Improved")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("task glue/rte", "task glue/cola"), "base: no finished run of glue/cola"),
        (("--data glue", "--data more"), "have different examples"),
        (("--counts counts.json", "--counts glue/RTE/dev.tsv"), "not valid JSON"),
        (("--tokenizer student", ""), "grounded needs tokenizer"),
        (("--other other", "--other one"), "the null split needs 2 seeds of both models, got 1"),
    ],
)
@pytest.mark.usefixtures("place")
def test_a_mistake_is_one_line(change, message, capsys):
    assert main(GROUNDED.replace(*change).split()) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1

"""Minimal pairs: scores against plain restatements and a model computed by hand, groups, intervals, files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import documents
import numpy as np
import pytest
import torch
import transformers as hf
from tiny import homes, toys
from tiny.homes import put, table

from groundling.cli import main
from groundling.core.errors import InputError
from groundling.models.heads import LM_HEAD, LMHead, save_heads
from groundling.stats.verdict_report import collect_runs
from groundling.studies.knowledge import pair_likelihoods
from groundling.studies.knowledge.commands import PAIRS as pairs
from groundling.studies.knowledge.commands import PairsConfig
from groundling.studies.knowledge.minimal_pairs import (
    BLIMP_RULES,
    EWOK_RULES,
    WINOGROUND_RULES,
    WINOVIZ_RULES,
    bootstrap_means,
    macro_average,
    read_minimal_pairs,
    read_winoground,
)
from groundling.studies.knowledge.pair_likelihoods import LanguageModel, TextWithContext

CPU = torch.device("cpu")
SIZES = {**toys.SMALL, "max_position_embeddings": 66}
TEXTS = ["a dog runs", "the clown isn't ... 🐶", "a dog"]


def spread(model: Any) -> Any:
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def bert(size: int) -> Any:
    return hf.BertForMaskedLM(hf.BertConfig(vocab_size=size, **SIZES))


def roberta(size: int) -> Any:
    return hf.RobertaForMaskedLM(hf.RobertaConfig(vocab_size=size, **SIZES))


FAMILIES = {"bert": (bert, homes.words), "roberta": (roberta, toys.roberta_words)}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with a masked language model of each type, made once."""
    root = tmp_path_factory.mktemp("families")

    def place(name: str) -> Path:
        if not (root / name).exists():
            make, words = FAMILIES[name]
            tokenizer = words()
            homes.home(root / name, spread(make(len(tokenizer))), tokenizer)
        return root / name

    return place


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2, whose tokenizer adds no start token."""
    vocabulary = json.loads(toys.roberta_words().backend_tokenizer.to_str())["model"]
    vocabulary["vocab"]["<|endoftext|>"] = len(vocabulary["vocab"])
    merges = [tuple(merge) for merge in vocabulary["merges"]]
    tokenizer = hf.GPT2Tokenizer(vocab=vocabulary["vocab"], merges=merges)
    sizes = {"n_positions": 66, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=len(tokenizer), **sizes))
    return homes.home(tmp_path_factory.mktemp("causal"), spread(model), tokenizer)


@lru_cache
def loaded(folder: Path) -> tuple[Any, Any]:
    model = hf.AutoModelForMaskedLM.from_pretrained(folder).eval()
    return model, hf.AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def plain(folder: Path, text: str, masking: str, start: int = 0) -> float:
    """The definition, token by token: a word is a run of letters and digits, or another mark."""
    model, tokenizer = loaded(folder)
    found = tokenizer(text, return_offsets_mapping=True)
    ids = found["input_ids"]
    words = [match.span() for match in re.finditer(r"[^\W_]+|[^\w\s]|_", text)]

    def word(place: int) -> int:
        """The first word that the token touches; for a single space, the next word."""
        if ids[place] in tokenizer.all_special_ids:
            return -1
        begin = found["offset_mapping"][place][0]
        return next(n for n, (_, last) in enumerate(words) if begin < last)

    total = 0.0
    for place in range(len(ids)):
        if word(place) < 0 or words[word(place)][0] < start:
            continue
        masked = list(ids)
        for later in range(place, len(ids)):
            if later == place or (masking == "within-word" and word(later) == word(place)):
                masked[later] = tokenizer.mask_token_id
        logits = model(input_ids=torch.tensor([masked])).logits[0, place]
        total += float(logits.log_softmax(-1)[ids[place]])
    return total


@pytest.mark.parametrize("name", FAMILIES)
def test_pseudo_log_likelihood_is_its_definition(name, places, monkeypatch):
    monkeypatch.setattr(pair_likelihoods, "MAX_BATCH_TOKENS", 64)  # several batches
    folder = places(name)
    model = LanguageModel(folder, CPU)
    for masking in ("within-word", "original"):
        found = model.score([TextWithContext(text) for text in TEXTS], masking)
        assert found[0] == pytest.approx([plain(folder, t, masking) for t in TEXTS], abs=1e-3)
    assert len(np.unique(found[0])) == len(TEXTS)


def test_a_model_computed_by_hand(tmp_path: Path) -> None:
    """With zero weights, a head's output is its bias: each token's own log-probability."""
    words = [*toys.BERT_SPECIAL, "a", "b", "##c"]
    model = hf.BertForMaskedLM(hf.BertConfig(vocab_size=len(words), **SIZES))
    shares = np.array([0.1, 0.1, 0.1, 0.1, 0.1, 0.3, 0.15, 0.05])
    for parameter in model.parameters():
        parameter.data.zero_()
    model.cls.predictions.bias.data.copy_(torch.tensor(np.log(shares)))
    homes.home(tmp_path, model, hf.BertTokenizer(vocab={w: n for n, w in enumerate(words)}))
    texts = [("a b", 0), ("a bc a", 0), ("a b a", 2)]
    found = LanguageModel(tmp_path, CPU).score([TextWithContext(*text) for text in texts])
    a, b, c = np.log(shares[5:])
    by_hand = [a + b, 2 * a + b + c, b + a]
    assert found[0] == pytest.approx(by_hand, abs=1e-5)
    assert found[1].tolist() == [2, 4, 2]


@torch.no_grad()
def test_log_likelihood_of_a_causal_model(causal: Path) -> None:
    model = LanguageModel(causal, CPU)
    assert model.causal
    whole = hf.GPT2LMHeadModel.from_pretrained(causal).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(causal)
    texts = [*TEXTS, "a dog runs"]
    found = model.score([*map(TextWithContext, TEXTS), TextWithContext(texts[3], 2)])
    for text, start, sums in zip(texts, (0, 0, 0, 2), found[0], strict=True):
        ids = [tokenizer.bos_token_id, *tokenizer(text)["input_ids"]]
        logs = whole(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        first = 1 + len(tokenizer(text[: max(0, start - 1)])["input_ids"])
        by_token = [float(logs[place - 1, ids[place]]) for place in range(first, len(ids))]
        assert sums == pytest.approx(sum(by_token), abs=1e-4)


def test_the_head_of_an_earlier_run(places: Callable[[str], Path], tmp_path: Path) -> None:
    """A student of `adapt` gives the same scores as a complete model with the same weights."""
    folder = places("bert")
    whole = hf.BertForMaskedLM.from_pretrained(folder)
    head = LMHead(32, (len(homes.words()), 32))
    assert head.load(folder)
    homes.home(tmp_path, whole.bert, homes.words())
    with pytest.raises(InputError, match=r"expected a masked language.*: no masked-LM head"):
        LanguageModel(tmp_path, CPU)
    save_heads(tmp_path, {LM_HEAD: head})
    texts = [TextWithContext(text) for text in TEXTS]
    one, other = (LanguageModel(place, CPU).score(texts)[0] for place in (tmp_path, folder))
    assert one == pytest.approx(other, abs=1e-3)


def test_texts_that_read_alike_tie(places: Callable[[str], Path]) -> None:
    texts = ("a dog", "dog dog dog dog", "A Dog")  # the model ignores case
    found = LanguageModel(places("bert"), CPU).score([TextWithContext(text) for text in texts])
    assert found[0][0] == found[0][2] != found[0][1]


def test_models_without_a_language_model(tmp_path: Path) -> None:
    words = hf.BertTokenizer(vocab={w: n for n, w in enumerate([*toys.BERT_SPECIAL, "a"])})
    words.mask_token = None
    size = len(homes.words())
    broken = spread(bert(size))
    broken.cls.predictions.bias.data.fill_(float("nan"))
    for folder, message in (
        (homes.teacher(tmp_path / "clip"), "expected a masked language model.*/clip: a clip model"),
        (homes.home(tmp_path / "maskless", bert(6), words), "has no mask token"),
        (homes.home(tmp_path / "t5", toys.t5(size), homes.words()), "t5: a t5 model is not a text"),
        (homes.home(tmp_path / "nan", broken, homes.words()), "are NaN or infinite"),
    ):
        with pytest.raises(InputError, match=message):
            LanguageModel(folder, CPU)


def told(rules: Any, scores: list[float]) -> dict[str, float]:
    return {rule.name: float(rule.item_score(np.array([scores]))[0]) for rule in rules}


def test_rules() -> None:
    assert told(BLIMP_RULES, [-1, -2]) == {"accuracy": 1}
    assert told(BLIMP_RULES, [-1, -1]) == told(BLIMP_RULES, [-2, -1]) == {"accuracy": 0}
    # Target 1 after contexts 1 and 2, target 2 after contexts 1 and 2.
    assert told(EWOK_RULES, [-1, -2, -4, -3]) == {"accuracy": 1, "both": 1, "targets": 1}
    assert told(EWOK_RULES, [-4, -5, -2, -1]) == {"accuracy": 1, "both": 1, "targets": 0}
    assert told(EWOK_RULES, [-1, -1, -4, -3]) == {"accuracy": 0.75, "both": 0, "targets": 1}
    assert told(EWOK_RULES, [-2, -1, -3, -4]) == {"accuracy": 0, "both": 0, "targets": 1}
    # Image 0 with captions 0 and 1, image 1 with captions 0 and 1.
    assert told(WINOGROUND_RULES, [4, 1, 2, 3]) == {"text": 1, "image": 1, "group": 1}
    assert told(WINOGROUND_RULES, [2, 1, 3, 4]) == {"text": 1, "image": 0, "group": 0}
    assert told(WINOGROUND_RULES, [2, 3, 1, 4]) == {"text": 0, "image": 1, "group": 0}
    assert told(WINOGROUND_RULES, [1, 1, 1, 1]) == {"text": 0, "image": 0, "group": 0}


def test_chance_levels_are_what_random_scores_reach() -> None:
    scores = np.random.default_rng(0).random((60_000, 4))
    for rule in (*EWOK_RULES, *WINOGROUND_RULES):
        assert rule.item_score(scores).mean() == pytest.approx(rule.chance, abs=0.01)


def test_intervals_are_of_resampled_items() -> None:
    rng = np.random.default_rng(1)
    values = (rng.random((90, 2)) < 0.7).astype(float)
    found = bootstrap_means(values, "a")
    assert found.mean == pytest.approx(values.mean(0))
    picked = rng.integers(90, size=(4000, 90))
    plainly = values[picked].mean(1)
    assert found.draws.std(0) == pytest.approx(plainly.std(0), rel=0.1)
    difference = (found.draws[:, 1] - found.draws[:, 0]).std()
    assert difference == pytest.approx((plainly[:, 1] - plainly[:, 0]).std(), rel=0.1)
    assert np.array_equal(bootstrap_means(values, "a").draws, found.draws)
    small = bootstrap_means(np.ones((5, 2)), "b")
    both = macro_average([found, small])
    assert both.mean == pytest.approx((values.mean(0) + 1) / 2)
    assert both.draws.std(0) == pytest.approx(found.draws.std(0) / 2)
    assert both.items == 95


def blimp_folder(folder: Path) -> Path:
    words = ["dog", "cat", "girl", "man", "biker", "team", "clown"]
    for uid, term, field, count in (
        ("causative", "argument_structure", "syntax", 7),
        ("animate_subject_trans", "s-selection", "syntax", 3),
        ("principle_A_case_1", "binding", "syntax/semantics", 4),
        ("principle_A_case_2", "binding", "syntax_semantics", 4),
    ):
        about = {"field": field, "linguistics_term": term, "UID": uid}
        rows = [
            {"sentence_good": f"a {w} runs", "sentence_bad": f"a runs {w}", "pairID": str(n)}
            | about
            for n, w in enumerate(words[:count])
        ]
        rows[0]["sentence_bad"] = rows[0]["sentence_good"]
        homes.lines(folder / f"data/{uid}.jsonl", *rows)
    put(folder / "__MACOSX/data/._causative.jsonl", b"\x00\x05\x16\x07")
    return folder


EWOK_ROW = {
    "Target1": "the dog runs",
    "Target2": "the dog waits",
    "Context1": "a red dog .",
    "Context2": "a wet dog .",
    "Domain": "animals",
}


COMPS_ROW = {
    "id": 1,
    "property": "can run",
    "prefix_acceptable": "A dog",
    "prefix_unacceptable": "A ball",
    "property_phrase": "can run.",
    "negative_sample_type": "random",
}
WINOVIZ_ROWS = (
    ("Premise Sentence 1", "Premise Sentence 2", "Visual Hypothesis 1", "Visual Hypothesis 2"),
    ("the ball is wet", "the ball is old", "a blue ball", "a red ball"),
    ("the dog waits", "the dog runs", "a dog in bed", "a dog in bed"),
)


def test_blimp_and_its_two_spellings(tmp_path: Path) -> None:
    read = read_minimal_pairs(blimp_folder(tmp_path))
    assert len(read) == 18
    assert read[0].id == "animate_subject_trans/0"
    assert {item.phenomenon for item in read} == {"argument_structure", "binding"}
    assert {item.field for item in read} == {"syntax", "syntax_semantics"}
    supplement = {"sentence_good": "a dog", "sentence_bad": "dog a"}
    (one,) = read_minimal_pairs(homes.lines(tmp_path / "hypernym.jsonl", supplement))
    assert (one.id, one.paradigm, one.field) == ("hypernym/1", "hypernym", "")


def test_ewok_and_ones_own(tmp_path: Path) -> None:
    (one,) = read_minimal_pairs(homes.lines(tmp_path / "animals.jsonl", EWOK_ROW))
    targets = [text.text[text.scored_from :] for text in one.texts]
    contexts = [text.text[: text.scored_from] for text in one.texts]
    assert targets == 2 * ["the dog runs"] + 2 * ["the dog waits"]
    assert contexts == 2 * ["a red dog . ", "a wet dog . "]
    assert (one.paradigm, one.rules) == ("animals", EWOK_RULES)
    rows = (("good", "bad", "group", "id"), ("a, dog", "dog a", "order", "x"), ("b", "c", "d", "y"))
    first, second = read_minimal_pairs(put(tmp_path / "mine.csv", table(*rows)))
    assert (first.texts[0].text, first.paradigm, first.id) == ("a, dog", "order", "mine/x")
    assert second.paradigm == "d"
    (one,) = read_minimal_pairs(put(tmp_path / "mine.tsv", "bad\tgood\ndog a\ta dog\n"))
    assert (one.texts[0].text, one.id, one.paradigm) == ("a dog", "mine/1", "mine")
    (one,) = read_minimal_pairs(
        homes.lines(tmp_path / "own.jsonl", {"good": "a", "bad": "b", "id": 7})
    )
    assert one.id == "own/7"


def test_comps_and_winoviz(tmp_path: Path) -> None:
    wug = {**COMPS_ROW, "prefix_acceptable": "A wug is a dog. Therefore, a wug"}
    homes.lines(tmp_path / "comps/comps_base.jsonl", COMPS_ROW)
    homes.lines(tmp_path / "comps/comps_wugs.jsonl", {**wug, "negative_sample_type": "taxonomic"})
    one, other = read_minimal_pairs(tmp_path / "comps")
    assert [text.text for text in one.texts] == ["A dog can run.", "A ball can run."]
    assert {text.text[text.scored_from :] for text in (*one.texts, *other.texts)} == {"can run."}
    assert [item.paradigm for item in (one, other)] == ["comps_base random", "comps_wugs taxonomic"]
    assert (one.id, one.set_name, one.rules) == ("comps_base/1", "comps/comps_base", BLIMP_RULES)
    one, _ = read_minimal_pairs(put(tmp_path / "states.tsv", table(*WINOVIZ_ROWS)))
    assert [text.text[text.scored_from :] for text in one.texts[1:3]] == [
        "a blue ball",
        "a red ball",
    ]
    assert one.texts[1].text == "the ball is old a blue ball" and one.rules == WINOVIZ_RULES
    # Each look after each state: both states have their own; one has; ties count a half, and no pair.
    scores = np.array([[-1, -9, -2, -3], [-1, -2, -3, -4], [-1, -1, -1, -1]])
    accuracy, pair = WINOVIZ_RULES
    assert accuracy.item_score(scores).tolist() == [1, 0.5, 0.5]
    assert pair.item_score(scores).tolist() == [1, 0, 0]


def test_the_documents_lines_are_read(tmp_path: Path) -> None:
    page = (documents.ROOT / "docs" / "pairs.md").read_text()
    for part in page.split("```text\n# ")[1].partition("```")[0].split("\n# "):
        name, _, content = part.partition("\n")
        (one,) = read_minimal_pairs(put(tmp_path / name, content.strip() + "\n"))
        assert (
            one.set_name == {"comps_base.jsonl": "comps/comps_base", "states.tsv": "winoviz"}[name]
        )


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        ("a.jsonl", [COMPS_ROW, EWOK_ROW], "line 2: no field 'prefix_acceptable'"),
        ("a.jsonl", [{**COMPS_ROW, "property_phrase": ["x"]}], "line 1: field 'property_phrase'"),
        ("a.jsonl", [{"good": "a", "bad": "b"}, {"good": "a"}], "line 2: no field 'bad'"),
        ("a.jsonl", [{"good": "a", "bad": "b", "id": 1}] * 2, "line 2: duplicate id a/1"),
        ("a.jsonl", [{"good": "a", "bad": ["b"]}], r"line 1: field 'bad' is \['b'\]"),
        ("a.jsonl", [{"text": "a"}], "fields are text; expected sentence_good, sentence_bad"),
        ("a.jsonl", [EWOK_ROW, {"good": "a", "bad": "b"}], "line 2: no field 'Target1'"),
        ("a.txt", [{}], "fields are {}; expected sentence_good"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, name: str, rows: Any, expected: str) -> None:
    path = homes.lines(tmp_path / name, *rows)
    with pytest.raises(InputError, match=expected) as error:
        read_minimal_pairs(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_folders_without_pairs_and_of_two_kinds(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unpack an archive first"):
        read_minimal_pairs(tmp_path)
    put(tmp_path / "a.csv", "good,bad\na,b\n")
    homes.lines(tmp_path / "b.jsonl", {"good": "a", "bad": "b"})
    assert [pair.id for pair in read_minimal_pairs(tmp_path)] == ["a/1", "b/1"]
    homes.lines(tmp_path / "c.jsonl", EWOK_ROW)
    with pytest.raises(InputError, match=r"c\.jsonl, line 1: no field 'good'"):
        read_minimal_pairs(tmp_path)


def test_winoground_lines(tmp_path: Path) -> None:
    row = {"id": 0, "image_0": "ex_0_img_0", "image_1": "ex_0_img_1.png", "caption_0": "a b"}
    row |= {"caption_1": "b a", "collapsed_tag": "Object", "secondary_tag": "", "num_main_preds": 1}
    (one,) = read_winoground(homes.lines(tmp_path / "examples.jsonl", row).parent)
    assert one.images == ("ex_0_img_0", "ex_0_img_1")
    assert one.tags == ("Object", "1 main predicates")
    with pytest.raises(InputError, match="line 2: duplicate id 0"):
        read_winoground(homes.lines(tmp_path / "examples.jsonl", row, row))
    with pytest.raises(InputError, match="line 1: no text in field 'image_0'"):
        read_winoground(homes.lines(tmp_path / "examples.jsonl", {"id": 1}))


def settings(model: Path, data: Path, **changes: Any) -> PairsConfig:
    return PairsConfig(**{"model": str(model), "data": str(data), "cpu": True, **changes})


def test_the_command_on_blimp(places, tmp_path, capsys):
    data = blimp_folder(tmp_path / "blimp")
    model = places("bert")
    flags = ["pairs", "--model", str(model), "--data", str(data), "--cpu"]
    other = ["--other", str(places("roberta")), "--out", str(tmp_path / "out")]
    assert main([*flags, *other]) == 0
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "out/result.json").read_text())
    scored = homes.answers(tmp_path / "out/items.jsonl")
    by_paradigm: dict[str, list[float]] = {}
    for line in scored:
        good, bad = line["model"]["scores"]
        assert line["model"]["accuracy"] == (good > bad)
        by_paradigm.setdefault(line["paradigm"], []).append(float(good > bad))
    first = next(line for line in scored if line["id"] == "causative/1")
    expected = [plain(model, text, "within-word") for text in ("a cat runs", "a runs cat")]
    assert first["model"]["scores"] == pytest.approx(expected, abs=1e-3)
    means = {name: np.mean(values) for name, values in by_paradigm.items()}
    scores = result["scores"]
    assert {n: found["accuracy"] for n, found in scores["paradigm"].items()} == means
    structure = np.mean([means["causative"], means["animate_subject_trans"]])
    assert scores["phenomenon"]["argument_structure"]["accuracy"] == pytest.approx(structure)
    overall = scores["overall"]
    assert overall["mean of paradigms"]["accuracy"] == pytest.approx(np.mean(list(means.values())))
    everything = np.mean([value for values in by_paradigm.values() for value in values])
    assert overall["all items"]["accuracy"] == pytest.approx(everything)
    low, high = overall["all items"]["accuracy_interval"]
    assert low < everything < high
    assert (result["items"], result["ties"]) == (18, 4)
    gained = result["difference"]["overall"]["all items"]["accuracy"]
    theirs = result["other"]["scores"]["overall"]["all items"]["accuracy"]
    assert gained == pytest.approx(theirs - everything)
    assert theirs == np.mean([line["other"]["accuracy"] for line in scored])
    assert "mean of paradigms" in printed and "other - model" in printed


def test_verdict_finds_the_runs(places: Callable[[str], Path], tmp_path: Path) -> None:
    data = blimp_folder(tmp_path / "blimp")
    found = []
    for seed, name in enumerate(("bert", "roberta")):
        config = settings(places(name), data, model_seed=seed)
        found.append(pairs(config, tmp_path / f"runs/{seed}")["scores"]["overall"]["all items"])
    ((task, (runs, metric)),) = collect_runs("a", tmp_path / "runs").items()
    assert (task, runs.seeds, len(runs.ids)) == ("pairs/blimp", (0, 1), 18)
    assert runs.scores(metric) == pytest.approx([one["accuracy"] for one in found])


def test_ewok_by_the_command(places: Callable[[str], Path], tmp_path: Path) -> None:
    rows = [{**EWOK_ROW, "Context1": f"a {word} dog ."} for word in ("red", "blue", "tiny")]
    data = homes.lines(
        tmp_path / "ewok/animals.jsonl", *rows, {**EWOK_ROW, "Context1": "a wet dog ."}
    )
    result = pairs(settings(places("bert"), data.parent, reduction="mean"), tmp_path / "out")
    assert result["chance"] == {"accuracy": 0.5, "both": 0.25, "targets": 0.5}
    assert result["ties"] == 2
    scored = homes.answers(tmp_path / "out/items.jsonl")
    assert scored[3]["model"]["accuracy"] == 0.5
    text = "a red dog . the dog waits"
    tokens = len(hf.AutoTokenizer.from_pretrained(places("bert")).tokenize("the dog waits"))
    expected = plain(places("bert"), text, "within-word", text.index("the")) / tokens
    assert scored[0]["model"]["scores"][2] == pytest.approx(expected, abs=1e-4)


def test_comps_and_winoviz_by_the_command(places: Callable[[str], Path], tmp_path: Path) -> None:
    model = places("bert")
    row = {**COMPS_ROW, "prefix_acceptable": "a dog", "property_phrase": "runs"}
    data = homes.lines(
        tmp_path / "comps/comps_base.jsonl", row, {**row, "negative_sample_type": "overlap"}
    )
    result = pairs(settings(model, data), tmp_path / "comps-run")
    assert set(result["scores"]["paradigm"]) == {"comps_base random", "comps_base overlap"}
    assert result["set"]["measure"] == "accuracy" and result["chance"] == {"accuracy": 0.5}
    line, _ = homes.answers(tmp_path / "comps-run/items.jsonl")
    expected = plain(model, "a dog runs", "within-word", len("a dog "))
    assert line["model"]["scores"][0] == pytest.approx(expected, abs=1e-3)
    states = put(tmp_path / "states.tsv", table(*WINOVIZ_ROWS))
    result = pairs(settings(model, states), tmp_path / "states-run")
    assert result["chance"] == {"accuracy": 0.5, "pair": 0.25} and result["ties"] == 2
    first, second = (line["model"] for line in homes.answers(tmp_path / "states-run/items.jsonl"))
    assert second["accuracy"] == 0.5 and second["pair"] == 0
    blue, _, _, red = first["scores"]
    text = "the ball is old a red ball"
    assert red == pytest.approx(
        plain(model, text, "within-word", len("the ball is old ")), abs=1e-3
    )
    assert first["pair"] == (blue > first["scores"][2] and red > first["scores"][1])


def test_a_text_without_words_has_nothing_to_score(causal, tmp_path):
    data = put(tmp_path / "mine.csv", table(("good", "bad"), ("a dog", ""), ("a man", "man a")))
    with pytest.raises(InputError, match=r"1 of 2 pairs .* nothing to score; the first is mine/1"):
        pairs(settings(causal, data), tmp_path / "out")


def test_few_pairs_and_long_ones(places, tmp_path, capsys):
    rows = [("good", "bad"), ("a dog", "dog a"), ("a cat " * 30, "cat"), ("a man", "man a")]
    data = put(tmp_path / "mine.csv", table(*rows))
    model = places("bert")
    with pytest.raises(InputError, match=r"1 of 3 pairs .* the first is mine/2; skip_long"):
        pairs(settings(model, data), tmp_path / "out")
    result = pairs(settings(model, data, skip_long=True), tmp_path / "out")
    assert (result["items"], result["left_out"]) == (2, 1)
    assert "left out 1 pairs" in capsys.readouterr().err
    few = pairs(settings(model, data, limit=1), tmp_path / "few")
    assert few["items"] == 1
    with pytest.raises(InputError, match="3 of 3 pairs"):
        pairs(settings(model, data, max_length=3, skip_long=True), tmp_path / "none")

"""The modes of `probe-facts` against Hugging Face and scipy, and the command."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import kendalltau, spearmanr
from tiny import homes, toys
from tiny.lm_families import DECODERS
from transformers import (
    BertForMaskedLM,
    BertModel,
    BertTokenizer,
    RobertaConfig,
    RobertaForMaskedLM,
)

from groundling.core.errors import InputError
from groundling.studies.knowledge.commands import PROBE_FACTS as ask
from groundling.studies.knowledge.commands import ProbeFactsConfig
from groundling.studies.knowledge.probe_facts import score_answers, summarize_relation
from groundling.studies.knowledge.probing_modes import (
    CharSpan,
    embed_spans,
    load_word_reader,
    score_by_embedding,
    score_by_fill_mask,
    score_by_stroop,
)
from groundling.studies.knowledge.visual_facts import VisualFact, open_facts
from groundling.studies.worlds.families.objects import ATTRIBUTES

COLOURS = ATTRIBUTES["colour"]


def fact(
    name: str, target: Any, prompts: dict[str, str], options: tuple[str, ...] = COLOURS
) -> VisualFact:
    return VisualFact(name, name, "colour", options, np.array(target, float), "", prompts)


def words(extra: tuple[str, ...]) -> BertTokenizer:
    listed = [*toys.BERT_SPECIAL, *COLOURS, "the", "is", "a", "there", ".", *extra]
    return BertTokenizer(vocab={w: i for i, w in enumerate(listed)})


@torch.no_grad()
def log_probabilities(model: Any, tokenizer: Any, text: str) -> torch.Tensor:
    """Those at the masks of a text, (masks, vocabulary)."""
    given = tokenizer(text, return_tensors="pt")
    is_mask = given.input_ids == tokenizer.mask_token_id
    return model.eval()(**given).logits[is_mask].log_softmax(-1)


def test_fill_mask_says_what_hf_says(bert: Path) -> None:
    tokenizer, model = BertTokenizer.from_pretrained(bert), BertForMaskedLM.from_pretrained(bert)
    prompts = {"p": "the zib is [MASK] .", "q": "there is a [MASK] dal"}
    answers, notes = score_by_fill_mask(bert, [fact("zib", np.eye(6)[0], prompts)])
    colours = tokenizer.convert_tokens_to_ids(list(COLOURS))
    for name, prompt in prompts.items():
        (logs,) = log_probabilities(model, tokenizer, prompt)
        assert answers[0][name] == pytest.approx(logs[colours].numpy(), abs=1e-5)
    assert notes == {"head": "the checkpoint's", "several_tokens": [], "unknown_tokens": []}
    # An option of two tokens has two masks.
    one = fact("zib", [1, 0, 0], {"p": "the zib is [MASK] ."}, ("purish", "red", "mauve"))
    answers, notes = score_by_fill_mask(bert, [one])
    assert notes["several_tokens"] == ["purish"] and notes["unknown_tokens"] == ["mauve"]
    logs = log_probabilities(model, tokenizer, "the zib is [MASK] [MASK] .")
    first, second = tokenizer.convert_tokens_to_ids(["pur", "##ish"])
    mean = float(logs[0, first] + logs[1, second]) / 2
    assert answers[0]["p"][0] == pytest.approx(mean, abs=1e-5)


def test_the_space_before_a_byte_level_option_counts(tmp_path: Path) -> None:
    tokenizer = toys.roberta_words()
    sizes = {**toys.SMALL, "max_position_embeddings": 66, "type_vocab_size": 1}
    config = RobertaConfig(vocab_size=len(tokenizer), layer_norm_eps=1e-5, **sizes, **toys.SPREAD)
    torch.manual_seed(0)
    model = RobertaForMaskedLM(config).eval()
    every = ("dog", "girl", "red", "tiny", "wet")
    options = tuple(one for one in every if len(tokenizer.tokenize(f" {one}")) == 1)
    assert len(options) > 1
    facts = [fact("dog", [1], {"p": "a dog is [MASK]."}, options)]
    answers, notes = score_by_fill_mask(homes.home(tmp_path / "m", model, tokenizer), facts)
    # The mask includes the space before it.
    (logs,) = log_probabilities(model, tokenizer, f"a dog is{tokenizer.mask_token}.")
    wanted = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(f" {o}"))[0] for o in options]
    assert answers[0]["p"] == pytest.approx(logs[wanted].numpy(), abs=1e-5)
    assert notes["several_tokens"] == []


def test_without_a_head_the_other_modes_are_named(tmp_path: Path) -> None:
    names = DECODERS["gpt2"].words()  # with a mask token
    decoder = homes.home(tmp_path / "gpt2", DECODERS["gpt2"].whole(len(names)), names)
    for folder in (homes.student(tmp_path / "bert"), homes.teacher(tmp_path / "clip"), decoder):
        facts = [fact("dog", [1, 0], {"p": "a dog is [MASK]"}, ("red", "wet"))]
        with pytest.raises(
            InputError, match="with a masked-LM head; modes linear embedding stroop"
        ):
            score_by_fill_mask(folder, facts)
        for mode in (score_by_embedding, score_by_stroop):
            (own,), _ = mode(folder, facts)
            assert own and all(len(one) == 2 and (abs(one) <= 1.001).all() for one in own.values())


def test_embeddings_are_of_the_word_alone_and_a_tower_s_of_the_text(bert, tmp_path):
    tokenizer, model = BertTokenizer.from_pretrained(bert), BertModel.from_pretrained(bert).eval()
    text = "there is a purish zib ."
    part, whole = CharSpan(text, 11, 17), CharSpan(text, 0, len(text))
    found = embed_spans(load_word_reader(bert), [part, whole, CharSpan("the zib", 0, 7)])
    dog = CharSpan("a dog", 0, 5)
    feature = embed_spans(load_word_reader(homes.teacher(tmp_path / "clip")), [dog])[dog]
    tower = toys.clip(homes.tokens()).eval()
    with torch.no_grad():
        states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        given = homes.tokens()("a dog", return_tensors="pt")
        wanted = tower.get_text_features(**given).pooler_output[0]
    for vector, mean in (
        (found[part], states[4:6].mean(0)),
        (found[whole], states[1:-1].mean(0)),
        (feature, wanted),
    ):
        assert vector == pytest.approx((mean / mean.norm()).numpy(), abs=1e-5)
    with pytest.raises(InputError, match="tokens too long"):
        embed_spans(load_word_reader(bert, max_length=5), [whole])


def test_planted_knowledge_is_found_and_a_random_model_is_near_chance(tmp_path: Path) -> None:
    nouns = tuple(f"{a}{b}{c}" for a in "bdgkmnp" for b in "aeiou" for c in "bdgklm")
    rng = np.random.default_rng(0)
    colour = rng.integers(6, size=len(nouns))
    prompts = [{"p": f"the {n} is [MASK] ."} for n in nouns]
    facts = [fact(n, np.eye(6)[c], p) for n, c, p in zip(nouns, colour, prompts, strict=True)]
    tokenizer = words(nouns)
    torch.manual_seed(0)
    model = toys.bert(len(tokenizer))
    random, _ = score_by_embedding(homes.home(tmp_path / "random", model, tokenizer), facts)
    assert summarize_relation(facts, random)["averaged_scores"]["accuracy"] < 0.3
    table = model.get_input_embeddings().weight
    with torch.no_grad():
        for name, c in zip(nouns, colour, strict=True):
            noun, known = tokenizer.convert_tokens_to_ids([name, COLOURS[c]])
            table[noun] = table[known]
    planted = homes.home(tmp_path / "planted", model, tokenizer)
    found = summarize_relation(facts, score_by_embedding(planted, facts)[0])
    assert found["averaged_scores"]["accuracy"] == 1
    assert found["chance"] == pytest.approx(1 / 6) and found["facts"] == len(nouns)
    assert 1 / 6 < found["majority"] < 0.3


def test_scores_are_scipys_and_undefined_ones_nan() -> None:
    rng = np.random.default_rng(0)
    targets, scores = rng.dirichlet(np.ones(6), 5), np.log(rng.dirichlet(np.ones(6), 5)) - 3
    facts = [fact(str(i), t, {"p": "[MASK]"}) for i, t in enumerate(targets)]
    found = score_answers(facts, scores, logs=True)
    pairs = list(zip(scores, targets, strict=True))
    for name, function in (("spearman", spearmanr), ("kendall", kendalltau)):
        assert found[name] == pytest.approx(np.mean([function(s, t).statistic for s, t in pairs]))
    shares = [jensenshannon(np.exp(s) / np.exp(s).sum(), t, 2) ** 2 for s, t in pairs]
    assert found["js"] == pytest.approx(np.mean(shares))
    single = score_answers([replace(facts[0], target=np.eye(6)[2])], [np.arange(6.0)])
    assert np.isnan([single["spearman"], single["kendall"], single["js"]]).all()
    assert single["accuracy"] == 0
    tied = replace(facts[0], target=np.array([0.5, 0, 0.5, 0, 0, 0]))
    assert [score_answers([tied], [np.eye(6)[i]])["accuracy"] for i in range(3)] == [1, 0, 1]
    assert summarize_relation([tied], [{"p": np.eye(6)[0]}])["chance"] == pytest.approx(1 / 3)
    # Equal scores count as a correlation of 0; the fact is not left out
    assert score_answers([tied], [np.ones(6)])["spearman"] == 0


def test_a_run_writes_answers_and_goes_on(bert, world, tmp_path, monkeypatch):
    data = world[1]
    settings = ProbeFactsConfig(model=str(bert), data=str(data))
    result = ask(settings, tmp_path / "run")
    facts = open_facts(data).facts
    for mode in settings.modes:
        rows = homes.answers(tmp_path / "run" / f"scores_{mode}.jsonl")
        assert [row["id"] for row in rows] == [fact.id for fact in facts]
        right = []
        for row, fact in zip(rows, facts, strict=True):
            assert row["answer"] == fact.options[np.argmax(row["outputs"])]
            assert row["accuracy"] == fact.target[fact.options.index(row["answer"])]
            if fact.relation == "colour":
                right.append(row["accuracy"])
        scores = result[mode]["relations"]["colour"]["all"]["averaged_scores"]
        assert scores["accuracy"] == pytest.approx(np.mean(right)) and len(right) == 24
        assert set(result[mode]["relations"]["size"]) == {"all", "train", "dev", "test"}
    monkeypatch.setattr(
        "groundling.studies.knowledge.probe_facts.MODES", dict.fromkeys(settings.modes, homes.never)
    )
    again = ask(settings, tmp_path / "run")
    assert json.dumps(again) == json.dumps(json.loads(json.dumps(result)))
    with pytest.raises(InputError, match="modes = 'guess': expected"):
        ask(replace(settings, modes=("guess",)), tmp_path / "other")

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.spatial.distance import jensenshannon
from scipy.stats import kendalltau, spearmanr
from tiny import homes, toys
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    RobertaConfig,
    RobertaForMaskedLM,
)

from groundling.api import function_of
from groundling.core.errors import InputError
from groundling.models.heads import HEADS
from groundling.studies.knowledge.commands import PROBE_FACTS as ask
from groundling.studies.knowledge.commands import ProbeFactsConfig
from groundling.studies.knowledge.probe_facts import score_answers, summarize_relation
from groundling.studies.knowledge.probing_modes import (
    CharSpan,
    make_embedder,
    score_by_embedding,
    score_by_fill_mask,
    score_by_stroop,
)
from groundling.studies.knowledge.visual_facts import VisualFact, open_facts
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.families.objects import ATTRIBUTES
from groundling.studies.worlds.world import World

COLOURS = ATTRIBUTES["colour"]
TINY = WorldConfig(
    nouns=24, dev_nouns=4, test_nouns=6, scenes=0, dev_scenes=0, sentences=0, dev_sentences=0
)


def fact(
    name: str, target: Any, prompts: dict[str, str], options: tuple[str, ...] = COLOURS
) -> VisualFact:
    return VisualFact(name, name, "colour", options, np.array(target, float), "", prompts)


def words(extra: tuple[str, ...]) -> BertTokenizer:
    listed = [*toys.BERT_SPECIAL, *COLOURS, "the", "is", "a", "there", ".", *extra]
    return BertTokenizer(vocab={w: i for i, w in enumerate(listed)})


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = words(("zib", "dal", "##ish", "pur"))
    torch.manual_seed(0)
    model = BertForMaskedLM(
        BertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **toys.SMALL)
    )
    with torch.no_grad():  # new biases are zero, so leaving them out would not show
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return homes.home(tmp_path_factory.mktemp("bert"), model, tokenizer)


def facts_of(path: Path) -> list[VisualFact]:
    return open_facts(path).facts


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    return homes.put(path, "".join(json.dumps(row) + "\n" for row in rows))


def test_fill_mask_says_what_hf_says(bert: Path) -> None:
    tokenizer, model = (
        BertTokenizer.from_pretrained(bert),
        BertForMaskedLM.from_pretrained(bert).eval(),
    )
    prompts = {"p": "the zib is [MASK] .", "q": "there is a [MASK] dal"}
    answers, notes = score_by_fill_mask(bert, [fact("zib", np.eye(6)[0], prompts)])
    for name, prompt in prompts.items():
        given = tokenizer(prompt, return_tensors="pt")
        at = int((given.input_ids[0] == tokenizer.mask_token_id).nonzero())
        with torch.no_grad():
            logs = model(**given).logits[0, at].log_softmax(-1)
        assert answers[0][name] == pytest.approx(
            logs[tokenizer.convert_tokens_to_ids(list(COLOURS))].numpy(), abs=1e-5
        )
    assert notes == {"head": "the checkpoint's", "several_tokens": [], "unknown_tokens": []}


def test_an_option_of_two_tokens_has_two_masks(bert: Path) -> None:
    tokenizer, model = (
        BertTokenizer.from_pretrained(bert),
        BertForMaskedLM.from_pretrained(bert).eval(),
    )
    one = fact("zib", [1, 0, 0], {"p": "the zib is [MASK] ."}, ("purish", "red", "mauve"))
    answers, notes = score_by_fill_mask(bert, [one])
    assert notes["several_tokens"] == ["purish"] and notes["unknown_tokens"] == ["mauve"]
    with torch.no_grad():
        logs = (
            model(**tokenizer("the zib is [MASK] [MASK] .", return_tensors="pt"))
            .logits[0]
            .log_softmax(-1)
        )
    tokens = tokenizer.convert_tokens_to_ids(["pur", "##ish"])
    assert answers[0]["p"][0] == pytest.approx(
        float(logs[4, tokens[0]] + logs[5, tokens[1]]) / 2, abs=1e-5
    )


def test_the_space_before_a_byte_level_option_counts(tmp_path: Path) -> None:
    tokenizer = toys.roberta_words()
    config = {
        **toys.SMALL,
        "max_position_embeddings": 66,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    }
    torch.manual_seed(0)
    model = RobertaForMaskedLM(
        RobertaConfig(vocab_size=len(tokenizer), **config, **toys.SPREAD)
    ).eval()
    options = tuple(
        o for o in ("dog", "girl", "red", "tiny", "wet") if len(tokenizer.tokenize(f" {o}")) == 1
    )
    assert len(options) > 1
    prompt = "a dog is [MASK]."
    answers, notes = score_by_fill_mask(
        homes.home(tmp_path / "m", model, tokenizer), [fact("dog", [1], {"p": prompt}, options)]
    )
    given = tokenizer(
        prompt.replace(" [MASK]", tokenizer.mask_token), return_tensors="pt"
    )  # the mask includes the space before it
    with torch.no_grad():
        logs = model(**given).logits[given.input_ids == tokenizer.mask_token_id][0].log_softmax(-1)
    wanted = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(f" {o}"))[0] for o in options]
    assert answers[0]["p"] == pytest.approx(logs[wanted].numpy(), abs=1e-5)
    assert notes["several_tokens"] == []


def test_without_a_head_the_other_modes_are_named(tmp_path: Path) -> None:
    for folder in (homes.student(tmp_path / "bert"), homes.teacher(tmp_path / "clip")):
        facts = [fact("dog", [1, 0], {"p": "a dog is [MASK]"}, ("red", "wet"))]
        with pytest.raises(
            InputError,
            match="expected a text encoder with a masked-LM head; modes embedding stroop",
        ):
            score_by_fill_mask(folder, facts)
        for mode in (score_by_embedding, score_by_stroop):
            answers, _ = mode(folder, facts)
            assert all(
                own.shape == (2,) and (abs(own) <= 1.001).all() for own in answers[0].values()
            )


def test_a_head_of_an_earlier_run_is_used(bert: Path, tmp_path: Path) -> None:
    facts, model = (
        [fact("zib", np.eye(6)[0], {"p": "the zib is [MASK] ."})],
        BertForMaskedLM.from_pretrained(bert),
    )
    folder, theirs = (
        homes.home(tmp_path / "run", model.bert, BertTokenizer.from_pretrained(bert)),
        model.cls.predictions,
    )
    head = {f"cls.predictions.{name}": value for name, value in theirs.state_dict().items()}
    del head["cls.predictions.decoder.weight"]
    save_file(
        {f"masked_lm.head.{name}": value.detach().clone() for name, value in head.items()},
        folder / HEADS,
    )
    answers, notes = score_by_fill_mask(folder, facts)
    assert notes["head"] == "an earlier run's"
    assert answers[0]["p"] == pytest.approx(score_by_fill_mask(bert, facts)[0][0]["p"], abs=1e-5)


def test_embeddings_are_of_the_word_alone_and_a_tower_s_of_the_text(
    bert: Path, tmp_path: Path
) -> None:
    tokenizer, model = (
        BertTokenizer.from_pretrained(bert),
        BertForMaskedLM.from_pretrained(bert).bert.eval(),
    )
    text = "there is a purish zib ."
    part, whole = CharSpan(text, 11, 17), CharSpan(text, 0, len(text))
    found = make_embedder(bert)([part, whole, CharSpan("the zib", 0, 7)])
    with torch.no_grad():
        states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
    for key, mean in ((part, states[4:6].mean(0)), (whole, states[1:-1].mean(0))):
        assert found[key] == pytest.approx((mean / mean.norm()).numpy(), abs=1e-5)
    folder = homes.teacher(tmp_path / "clip")
    at, tower, tokens = (
        make_embedder(folder)([CharSpan("a dog", 0, 5)]),
        toys.clip(homes.tokens()).eval(),
        homes.tokens(),
    )
    with torch.no_grad():
        feature = tower.get_text_features(**tokens("a dog", return_tensors="pt")).pooler_output[0]
    assert at[CharSpan("a dog", 0, 5)] == pytest.approx(
        (feature / feature.norm()).numpy(), abs=1e-5
    )
    with pytest.raises(InputError, match="tokens too long"):
        make_embedder(bert, 5)([whole])


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
            table[tokenizer.convert_tokens_to_ids(name)] = table[
                tokenizer.convert_tokens_to_ids(COLOURS[c])
            ]
    planted = homes.home(tmp_path / "planted", model, tokenizer)
    found = summarize_relation(facts, score_by_embedding(planted, facts)[0])
    assert (
        found["averaged_scores"]["accuracy"]
        == found["mean"]["accuracy"]
        == found["best"]["accuracy"]
        == 1
    )
    assert (
        found["chance"] == pytest.approx(1 / 6)
        and 1 / 6 < found["majority"] < 0.3
        and found["facts"] == len(nouns)
    )


def test_scores_are_scipys_and_undefined_ones_nan() -> None:
    rng = np.random.default_rng(0)
    targets, scores = rng.dirichlet(np.ones(6), 5), np.log(rng.dirichlet(np.ones(6), 5)) - 3
    facts = [fact(str(i), t, {"p": "[MASK]"}) for i, t in enumerate(targets)]
    found = score_answers(facts, scores, logs=True)
    pairs = list(zip(scores, targets, strict=True))
    assert found["spearman"] == pytest.approx(
        np.mean([spearmanr(s, t).statistic for s, t in pairs])
    )
    assert found["kendall"] == pytest.approx(
        np.mean([kendalltau(s, t).statistic for s, t in pairs])
    )
    shares = [jensenshannon(np.exp(s) / np.exp(s).sum(), t, 2) ** 2 for s, t in pairs]
    assert found["js"] == pytest.approx(np.mean(shares))
    single = score_answers([replace(facts[0], target=np.eye(6)[2])], [np.arange(6.0)])
    assert (
        np.isnan([single["spearman"], single["kendall"], single["js"]]).all()
        and single["accuracy"] == 0
    )
    tied = replace(facts[0], target=np.array([0.5, 0, 0.5, 0, 0, 0]))
    assert [score_answers([tied], [np.eye(6)[i]])["accuracy"] for i in range(3)] == [1, 0, 1]
    assert summarize_relation([tied], [{"p": np.eye(6)[0]}])["chance"] == pytest.approx(1 / 3)
    # A6: equal scores count as a correlation of 0; the fact is not left out
    assert score_answers([tied], [np.ones(6)])["spearman"] == 0


def test_a_run_writes_answers_and_goes_on(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    World(TINY).write_text(tmp_path / "world")
    data = tmp_path / "world" / "probes" / "knowledge.jsonl"
    settings = ProbeFactsConfig(model=str(bert), data=str(data))
    result = ask(settings, tmp_path / "run")
    for mode in settings.modes:
        rows = [
            json.loads(line)
            for line in (tmp_path / "run" / f"predictions_{mode}.jsonl").read_text().splitlines()
        ]
        assert [row["id"] for row in rows] == [f.id for f in facts_of(data)]
        colours = [
            row for row in rows if row["id"].endswith("/colour") and len(row["outputs"]) == 6
        ]
        assert (
            all(row["outputs"][row["prediction"]] == max(row["outputs"]) for row in colours)
            and len(colours) == 24
        )
        scores = result[mode]["relations"]["colour"]["all"]["averaged_scores"]
        assert scores["accuracy"] == pytest.approx(
            np.mean([row["prediction"] == row["label"] for row in colours])
        )
        assert set(result[mode]["relations"]["size"]) == {"all", "train", "dev", "test"}
        of_facts = [
            json.loads(line)
            for line in (tmp_path / "run" / f"scores_{mode}.jsonl").read_text().splitlines()
        ]
        assert [row["id"] for row in of_facts] == [row["id"] for row in rows]
        own = [row["accuracy"] for row in of_facts if row["relation"] == "colour"]
        assert np.mean(own) == pytest.approx(scores["accuracy"]) and "subject" in of_facts[0]
    monkeypatch.setattr(
        "groundling.studies.knowledge.probe_facts.MODES", dict.fromkeys(settings.modes, homes.never)
    )
    again = ask(settings, tmp_path / "run")
    assert json.dumps(again) == json.dumps(json.loads(json.dumps(result)))
    with pytest.raises(InputError, match="holds another run"):
        ask(replace(settings, max_length=16), tmp_path / "run")
    with pytest.raises(InputError, match="modes = 'guess': expected"):
        ask(replace(settings, modes=("guess",)), tmp_path / "other")
    with pytest.raises(InputError, match="needs model"):
        function_of("probe-facts")(data=settings.data, out=tmp_path / "other")

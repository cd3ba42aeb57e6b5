"""Sentence-transformers folders stay what they are: pooling, modules, lengths, and what adapting leaves of them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from tiny import homes, toys
from tiny.homes import STEPS, put, refused
from tiny.lm_families import DECODERS
from torch import nn
from transformers import AutoModel, AutoTokenizer

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.commands.adapt.evaluation import read_pairs, similarity_agreement
from groundling.core.batch import Example, collate
from groundling.core.errors import InputError
from groundling.data.samples import TextDataset
from groundling.models.sentence_modules import make_sentence_modules
from groundling.models.text_encoder import load_text_encoder
from groundling.objectives.contrastive import pool_sentences
from groundling.objectives.feature_distillation import ContrastiveDistillation, EmbeddingRetention
from groundling.prediction.similarity import sentence_vectors
from groundling.settings.fields import make_settings, replace_settings
from groundling.teachers.text import FrozenCopy

SETTINGS = ("sentence_bert_config.json", "config_sentence_transformers.json")
TEXTS = toys.sentences()[:8]


@pytest.mark.parametrize(
    ("layout", "mode", "length"),
    [
        (2, "mean", 24),
        (2, "dense", 24),
        (5, "cls", 24),
        (5, "weightedmean_tokens", 24),
        (6, "lasttoken", 0),
        (6, "max", 0),
    ],
)
def test_a_folder_of_any_version_is_read_and_written(tmp_path, layout, mode, length) -> None:
    pooling = "mean" if mode == "dense" else mode
    folder = homes.sentence_encoder(tmp_path / "given", layout, pooling)
    if mode == "dense":
        with_dense(folder)
    text = load_text_encoder(folder)
    assert text.sentence.modes == (pooling.removesuffix("_tokens"),)
    assert text.sentence.max_length == length
    text.export(tmp_path / "out")
    for name in SETTINGS:
        before, after = (json.loads((at / name).read_text()) for at in (folder, tmp_path / "out"))
        assert before == after, name
    AutoModel.from_pretrained(tmp_path / "out")
    as_sentence_transformers_encodes(folder)
    as_sentence_transformers_encodes(tmp_path / "out")


@pytest.mark.parametrize("name", ["gpt2", "opt", "qwen3"])
def test_a_decoder_needs_no_padding_token_and_no_side(name: str, tmp_path: Path) -> None:
    words = DECODERS[name].words()
    folder = homes.home(tmp_path / name, DECODERS[name].whole(len(words)), words)
    about = json.loads((folder / "tokenizer_config.json").read_text())
    about |= {"pad_token": None, "padding_side": "left", "truncation_side": "left"}
    put(folder / "tokenizer_config.json", json.dumps(about))
    text = load_text_encoder(folder)
    pooling = make_sentence_modules("lasttoken", text.sizes.text, 8)
    text.set_sentence_modules(pooling.with_projection(nn.Linear(text.sizes.text, 6)))
    text.export(tmp_path / "out")
    as_sentence_transformers_encodes(tmp_path / "out")


def as_sentence_transformers_encodes(folder: Path) -> SentenceTransformer:
    text = load_text_encoder(folder)
    ours, _ = sentence_vectors(text, text.sentence, TEXTS)
    theirs = SentenceTransformer(str(folder), device="cpu")
    torch.testing.assert_close(torch.tensor(theirs.encode(TEXTS)), ours, atol=1e-5, rtol=0)
    return theirs


def test_an_encoder_in_a_folder_of_its_own_is_written_beside_the_modules(tmp_path: Path) -> None:
    flat = homes.sentence_encoder(tmp_path / "flat")
    nested = tmp_path / "nested"
    shutil.copytree(flat, nested / "0_Transformer")
    for name in ("modules.json", "config_sentence_transformers.json", "1_Pooling"):
        (nested / "0_Transformer" / name).rename(nested / name)
    edited(nested, "modules.json", lambda listed: listed[0].update(path="0_Transformer"))
    edited(nested, "0_Transformer/sentence_bert_config.json", lambda c: c.update(max_seq_length=9))
    text = load_text_encoder(nested)
    for name, weight in load_text_encoder(flat).encoder.state_dict().items():
        assert torch.equal(text.encoder.state_dict()[name], weight)
    text.export(tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").is_file()
    assert not (tmp_path / "out/0_Transformer").exists()
    assert load_text_encoder(tmp_path / "out").sentence.max_length == 9


def edited(folder: Path, name: str, change: Callable[[dict], object]) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def with_dense(folder: Path, activation: str = "torch.nn.modules.activation.Tanh") -> Path:
    """LaBSE's layout: Transformer, Pooling, Dense, Normalize."""
    module = {"idx": 2, "name": "dense", "path": "2_Dense"}
    module["type"] = "sentence_transformers.models.Dense"
    edited(folder, "modules.json", lambda listed: listed.insert(2, module))
    settings = {"in_features": 32, "out_features": 6, "bias": True}
    settings["activation_function"] = activation
    put(folder / "2_Dense/config.json", json.dumps(settings))
    weights = {"linear.weight": torch.randn(6, 32), "linear.bias": torch.randn(6)}
    save_file(weights, folder / "2_Dense/model.safetensors")
    return folder


def spoil(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


POOLING = "1_Pooling/config.json"
UNREAD = "sentence-transformers does not load its modules"
SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "another module": (
        lambda at: spoil(at, "modules.json", "models.Normalize", "models.LSTM"),
        "module 2 is sentence_transformers.models.LSTM, expected Dense or Normalize",
    ),
    "another package's": (
        lambda at: spoil(at, "modules.json", "sentence_transformers.models.Pool", "mine.Pool"),
        "module 1 is mine.Pooling, expected Pooling",
    ),
    "no list": (lambda at: put(at / "modules.json", "{}"), "modules.json: cannot be read"),
    "encoder elsewhere": (
        lambda at: spoil(at, "modules.json", '"path": ""', '"path": "0_Transformer"'),
        "no model found",
    ),
    "no pooling": (lambda at: (at / POOLING).unlink(), UNREAD),
    "unknown pooling": (
        lambda at: edited(at, POOLING, lambda c: c.update(pooling_mode="best")),
        "Invalid pooling mode: 'best'",
    ),
    "prompt left out": (
        lambda at: (
            edited(at, POOLING, lambda c: c.update(include_prompt=False)),
            edited(at, SETTINGS[1], lambda c: c.update(prompts={"q": "find: "})),
            edited(at, SETTINGS[1], lambda c: c.update(default_prompt_name="q")),
        ),
        "include_prompt",
    ),
    "prompt that is missing": (
        lambda at: edited(at, SETTINGS[1], lambda c: c.update(default_prompt_name="q")),
        "KeyError",
    ),
    "length": (
        lambda at: edited(at, SETTINGS[0], lambda c: c.update(max_seq_length="long")),
        UNREAD,
    ),
    "activation": (lambda at: with_dense(at, "mine.Swish"), "unknown mine.Swish"),
    "no weights": (lambda at: (with_dense(at) / DENSE).unlink(), UNREAD),
    "dense of another width": (
        lambda at: save_file({"linear.weight": torch.ones(6, 5)}, with_dense(at) / DENSE),
        UNREAD,
    ),
}
DENSE = "2_Dense/model.safetensors"


@pytest.mark.parametrize("case", SPOILT)
def test_what_is_not_known_is_refused_in_a_line(tmp_path: Path, case: str) -> None:
    damage, complaint = SPOILT[case]
    folder = homes.sentence_encoder(tmp_path / "given")
    damage(folder)
    told = refused(load_text_encoder, folder)
    assert complaint in told and str(folder) in told


def test_texts_are_lower_cased_where_the_folder_says_so(tmp_path: Path) -> None:
    tokenizer = toys.roberta_words()
    folder = homes.sentence_encoder(tmp_path / "given")
    homes.home(folder, toys.roberta(len(tokenizer)), tokenizer)
    edited(folder, SETTINGS[0], lambda c: c.update(do_lower_case=True))
    words = load_text_encoder(folder).tokenizer
    assert words("A Red DOG")["input_ids"] == words("a red dog")["input_ids"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence encoder, a teacher, texts, and pairs of them."""
    place = tmp_path_factory.mktemp("given")
    homes.sentence_encoder(place / "student")
    homes.student(place / "plain")
    homes.teacher(place / "teacher")
    homes.text(place / "text.txt", 16)
    texts = toys.sentences()
    rows = [f"{texts[n]}\t{texts[n + 1]}\t{n / 2}\n" for n in range(6)]
    put(place / "pairs.tsv", "".join(rows))
    return place


@pytest.fixture(scope="module")
def settings(given: Path) -> AdaptConfig:
    return make_settings(
        AdaptConfig,
        student=str(given / "student"),
        teacher=str(given / "teacher"),
        text=(str(given / "text.txt"),),
        retention_pairs=str(given / "pairs.tsv"),
    )


def test_adapting_leaves_a_sentence_encoder(settings, given, tmp_path) -> None:
    student = shutil.copytree(given / "student", tmp_path / "student")
    edited(student, SETTINGS[0], lambda c: c.update(max_seq_length=9))
    prompt = {"prompts": {"q": "find: "}, "default_prompt_name": "q"}
    edited(student, SETTINGS[1], lambda c: c.update(prompt))
    result = adapt(replace_settings(settings, student=str(student)), STEPS, tmp_path / "out")
    left = tmp_path / "out/model"
    assert "library_name: sentence-transformers" in (left / "README.md").read_text()
    assert result["max_length"] == 9
    assert "training does not prepend the student's prompt 'find: '" in " ".join(result["notes"])
    for name in SETTINGS:
        stored = json.loads((student / name).read_text())
        assert json.loads((left / name).read_text()) == stored
    pairs = read_pairs(given / "pairs.tsv")
    told = result["retention"]
    for when, folder in (("before", student), ("after", left)):
        text = load_text_encoder(folder)
        agreement = similarity_agreement(text, text.sentence, pairs)
        assert told[when] == agreement["spearman"]
    assert (told["pooling"], told["pairs"], "projected" in told) == ("mean", 6, False)
    assert result["heads_from"]["mlm"] == "new"


def test_what_is_pooled_is_what_is_taught(given: Path) -> None:
    text = load_text_encoder(given / "student").eval()
    examples = [Example("a", "a red dog"), Example("b", TEXTS[0])]
    batch = collate(TextDataset(examples, *text.inputs(24)).get([0, 1]))
    encoded = text(batch)
    plain = text.sizes._replace(sentence_embedding=0)
    states = encoded.text[0][batch.text.attention_mask[0]]
    assert len(states) < encoded.text.shape[1]
    for sizes, pooling, expected in (
        (text.sizes, "own", states.mean(0)),
        (text.sizes, "mean", states[1:-1].mean(0)),
        (plain, "own", states[0]),
    ):
        found = pool_sentences(encoded, batch, sizes, pooling, "this test")
        torch.testing.assert_close(found[0], expected)


@pytest.mark.parametrize(("layout", "pool"), [(2, "own"), (6, "own"), (0, "mean")])
def test_a_kept_projection_speaks_the_teachers_space(settings, given, tmp_path, layout, pool):
    student = given / "plain"
    if layout:
        student = homes.sentence_encoder(tmp_path / "student", layout)
    kept = {"keep_projection": True, "masked_lm": False}
    config = replace_settings(settings, student=str(student), pooling=pool, **kept)
    result = adapt(config, STEPS, tmp_path / "out")
    assert result["objectives"] == ["contrastive"]
    model = tmp_path / "out/model"
    kinds = [m["type"].rpartition(".")[2] for m in json.loads((model / "modules.json").read_text())]
    assert kinds == ["Transformer", "Pooling", "Dense", "Normalize"]
    dense = load_file(model / "2_Dense/model.safetensors")
    trained = load_file(model / "groundling_heads.safetensors")
    for part in ("weight", "bias"):
        assert torch.equal(dense[f"linear.{part}"], trained[f"contrastive.project.sentence.{part}"])
    theirs = as_sentence_transformers_encodes(model)
    assert layout != 2 or theirs.max_seq_length == 24
    assert set(result["retention"]) >= {"before", "after", "projected"}
    # The teacher's window has 16 places, some texts have more tokens: it alone loses them.
    assert result["truncated_tokens"] > 0


def test_the_targets_of_a_kept_projection_are_the_teachers_own(settings, tmp_path, monkeypatch):
    seen: list[torch.Tensor] = []
    forward = ContrastiveDistillation.forward

    def told(self: ContrastiveDistillation, encoded: object, batch: object) -> object:
        seen.append(batch.features["sentence"])
        return forward(self, encoded, batch)

    monkeypatch.setattr(ContrastiveDistillation, "forward", told)
    text = put(tmp_path / "one.txt", "a red dog\n")
    config = replace_settings(settings, text=(str(text),), keep_projection=True, retention_pairs="")
    adapt(config, replace(STEPS, steps=1, batch=1), tmp_path / "out")
    tower = AutoModel.from_pretrained(settings.teacher)
    tokens = AutoTokenizer.from_pretrained(settings.teacher)("a red dog", return_tensors="pt")
    theirs = tower.get_text_features(**tokens).pooler_output
    torch.testing.assert_close(seen[0], theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"arm": "mlm", "keep_projection": True}, "keep_projection needs `a sentence"),
        ({"sentence_weight": 0.0, "keep_projection": True}, "keep_projection needs `a sentence"),
        ({"arm": "xdbert", "masked_lm": False}, "masked_lm=False: arm=xdbert does not join"),
        ({"retain_weight": -1.0}, "retain_weight = -1.0: expected "),
    ],
)
def test_what_does_not_go_together_is_refused(settings, tmp_path, changes, complaint) -> None:
    told = refused(lambda: adapt(replace_settings(settings, **changes), STEPS, tmp_path))
    assert complaint in told


def test_a_sentence_encoder_is_held_where_it_was(settings, given, tmp_path) -> None:
    close = []
    for weight in (0.0, 100.0):
        out = tmp_path / str(weight)
        config = replace_settings(settings, retain_weight=weight, retention_pairs="")
        result = adapt(config, replace(STEPS, steps=6), out)
        assert ("retain" in result["train_metrics"]) == bool(weight)
        texts = [load_text_encoder(folder) for folder in (settings.student, out / "model")]
        sides = [sentence_vectors(text, text.sentence, TEXTS)[0] for text in texts]
        close.append(torch.cosine_similarity(*sides, dim=-1).mean())
    assert close[1] > close[0]
    told = refused(FrozenCopy, load_text_encoder(given / "plain"))
    assert "no sentence vectors to retain" in told


def test_it_is_its_own_teacher(given: Path) -> None:
    text = load_text_encoder(given / "student").eval()
    texts = ["a red dog", "two cats"]
    samples = TextDataset([Example(one, one) for one in texts], *text.inputs(24)).get([0, 1])
    before, objective = FrozenCopy(text), EmbeddingRetention(text.sizes)
    expected, _ = sentence_vectors(text, text.sentence, texts)
    given_features = before.features(collate(before.inputs(samples)))
    torch.testing.assert_close(given_features["initial_sentence_embedding"], expected)
    batch = replace(collate(samples), features=given_features)
    for moved in (False, True):
        if moved:
            torch.nn.init.normal_(text.word_embeddings().weight.detach())
        now, _ = sentence_vectors(text, text.sentence, texts)
        distance = float((1 - (now * expected).sum(-1)).sum())
        assert (distance > 0.01) == moved
        assert float(objective(text(batch), batch)["retain"]) == pytest.approx(distance, abs=1e-5)
        again = before.features(collate(before.inputs(samples)))["initial_sentence_embedding"]
        torch.testing.assert_close(again, expected)


def test_agreement_is_spearmans_of_cosines(given: Path) -> None:
    text = load_text_encoder(given / "plain").eval()
    pairs = read_pairs(given / "pairs.tsv")
    cosines = []
    for pair in pairs.texts:
        inputs = [text.tokenizer(one, return_tensors="pt") for one in pair]
        first = [text.encoder(**one).last_hidden_state[0, 0] for one in inputs]
        cosines.append(torch.cosine_similarity(*first, dim=0).item())
    expected = spearmanr(cosines, pairs.similarities).statistic
    found = similarity_agreement(text, make_sentence_modules("cls", 32, 40), pairs)
    assert found == {"spearman": pytest.approx(expected, abs=1e-4), "cut": 0}
    assert similarity_agreement(text, make_sentence_modules("cls", 32, 4), pairs)["cut"] > 0


def test_pairs_are_sts_b_or_ones_own(tmp_path: Path) -> None:
    header = "index\tsentence1\tsentence2\tscore\n"
    put(tmp_path / "STS-B/dev.tsv", header + "0\ta\tb\t5.0\n1\ta\tc\t1.5\n2\tb\tc\t0\n")
    for place in (tmp_path, tmp_path / "STS-B"):
        pairs = read_pairs(place)
        assert pairs.texts == [("a", "b"), ("a", "c"), ("b", "c")]
        assert pairs.similarities.tolist() == [5.0, 1.5, 0.0]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a\tb\n", "line 1: expected text<TAB>text<TAB>number"),
        ("a\tb\t1\nc\td\thigh\n", "line 2: expected text<TAB>text<TAB>number"),
        ("a\tb\t1\nc\td\t1\nc\td\t1\n", "3 pairs, of different similarities"),
        ("a\tb\t1\nc\td\t2\nc\td\tnan\n", "3 pairs, of different similarities"),
    ],
)
def test_other_pairs_are_refused(tmp_path: Path, content: str, complaint: str) -> None:
    assert complaint in refused(read_pairs, put(tmp_path / "pairs.tsv", content))


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch) -> None:
    folder = homes.sentence_encoder(tmp_path)
    monkeypatch.setitem(sys.modules, "sentence_transformers.sentence_transformer", None)
    with pytest.raises(InputError, match=r"pip install 'groundling\[sentence\]'"):
        load_text_encoder(folder)

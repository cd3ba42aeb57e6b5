"""`groundling probe` on other people's worlds: whichever files and columns there are, and the readout by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler
from tiny import homes
from tiny.homes import STEPS

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.stats.linear_probes import (
    STRENGTHS,
    fit_probes,
    noun_states,
    read_nouns,
    score_readout,
)
from groundling.studies.worlds import probe as module
from groundling.studies.worlds.commands import PROBE as probe
from groundling.studies.worlds.commands import ProbeConfig
from groundling.vision_language.loading import load_encoder

NOUNS = ("dog", "cat", "red ball", "man", "house", "park", "the", "runs", "a")
SPLITS = ("train", "train", "train", "train", "train", "dev", "dev", "test", "test")
COLOURS = ("red", "red", "blue", "blue", "red", "red", "blue", "blue", "red")
"""Nouns of a world made by hand."""


def table(*rows: str) -> str:
    return "".join(f"{line}\n" for line in rows).replace("|", "\t")


def attributes() -> str:
    rows = [
        f"{noun}|{split}|{colour}|see {noun} here"
        for noun, split, colour in zip(NOUNS, SPLITS, COLOURS, strict=True)
    ]
    return table("noun|split|colour|sentence", *rows)


def questions() -> str:
    said = [("dog", "cat", "man", 1), ("dog", "man", "cat", 0), ("man", "red ball", "house", 1)]
    rows = [f"{i}|is {p} like {q} , not {r}|{y}" for i, (p, q, r, y) in enumerate(said)]
    return table("index|sentence|label", *rows)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(homes.student(tmp_path_factory.mktemp("encoder")))


@pytest.fixture
def world(tmp_path: Path) -> Path:
    folder = tmp_path / "world"
    (folder / "probes").mkdir(parents=True)
    return folder


def put(world: Path, name: str, content: str) -> None:
    (world / "probes" / name).write_text(content)


def put_questions(world: Path, name: str) -> None:
    for split in ("train", "dev", "test"):
        put(world, f"{name}_{split}.tsv", questions())


FEW = replace(STEPS, steps=2, batch=2)


def test_nouns_alone_and_questions_alone_are_asked(encoder, world, tmp_path):
    config = ProbeConfig(model=encoder, data=str(world), seeds=1)
    put(world, "attribute.tsv", attributes())
    assert set(probe(config, FEW, tmp_path / "nouns")) == {"linear/colour"}
    put_questions(world, "odd")
    both = probe(config, FEW, tmp_path / "both")
    assert set(both) == {"linear/colour", "readout/odd", "world/odd"}
    assert both["readout/odd"]["chance"] == pytest.approx(2 / 3)
    (world / "probes" / "attribute.tsv").unlink()
    put_questions(world, "mine")
    alone = replace(config, questions=("mine",))
    found = probe(alone, FEW, tmp_path / "questions")
    assert set(found) == {"world/mine"}
    assert found["world/mine"]["guessing_loss"] == pytest.approx(0.6365, abs=1e-4)


def test_a_seed_that_learned_nothing_has_no_part_in_the_mean(encoder, world, tmp_path, monkeypatch):
    put_questions(world, "mine")
    losses = {0: 0.3, 1: 0.6364, 2: 0.5, 3: 0.63, 4: 0.7, 5: 0.64}
    accuracy = {0: 0.8, 1: 0.5, 2: 0.9, 3: 0.5, 4: 0.5, 5: 0.5}

    def run_seed(self: Any, seed: int, part: Any) -> Any:
        scores = {split: {"accuracy": accuracy[seed]} for split in ("dev", "test")}
        return {"train_metrics": {"loss": losses[seed]}, "scores": scores}

    monkeypatch.setattr(module.FineTuning, "run_seed", run_seed)
    config = ProbeConfig(model=encoder, data=str(world))
    found = probe(config, FEW, tmp_path / "some")["world/mine"]
    assert found["learned"] == [True, False, True]
    assert found["test"] == pytest.approx(0.85)
    assert found["test_sd"] == pytest.approx(np.std([0.8, 0.9], ddof=1))
    assert found["scores"]["test"] == [0.8, 0.5, 0.9]
    none = probe(config, replace(FEW, seed=3), tmp_path / "none")["world/mine"]
    assert (none["dev"], none["test"], none["test_sd"]) == (None, None, None)
    assert json.loads((tmp_path / "none" / "result.json").read_text())["world/mine"]["test"] is None


def test_the_readout_is_a_ridge_per_attribute_and_products_of_shares() -> None:
    rng = np.random.default_rng(0)
    split = ["train"] * 24 + ["dev"] * 8 + ["test"] * 8
    names = [f"n{number}" for number in range(40)]
    columns = {"colour": rng.integers(3, size=40), "size": rng.integers(2, size=40)}
    states = rng.normal(size=(40, 6))
    rows = [
        {"noun": name, "split": one, "sentence": name}
        | {column: str(values[n]) for column, values in columns.items()}
        for n, (name, one) in enumerate(zip(names, split, strict=True))
    ]
    scaled = StandardScaler().fit(states[:24]).transform(states)
    expected = []
    for values in columns.values():
        targets = np.eye(values.max() + 1)[values]
        fits = [Ridge(alpha=a).fit(scaled[:24], targets[:24]).predict(scaled) for a in STRENGTHS]
        expected.append(max(fits, key=lambda fit: (fit.argmax(1) == values)[24:32].mean()))
    probes = fit_probes(states, rows)
    assert list(probes) == ["linear/colour", "linear/size"]
    for one, wanted in zip(probes.values(), expected, strict=True):
        np.testing.assert_allclose(one.shares(), wanted, atol=1e-6)
        np.testing.assert_allclose(one.shares().sum(1), 1, atol=1e-9)
    triples = [rng.permutation(40)[:3] for _ in range(30)]
    labels = rng.integers(2, size=30)
    examples = [
        Example(str(n), f"n{p} is like n{q} , not n{r} .", label=int(label), official_id=str(n))
        for n, ((p, q, r), label) in enumerate(zip(triples, labels, strict=True))
    ]
    plain = [
        (sum(e[p] @ e[q] for e in expected) > sum(e[p] @ e[r] for e in expected)) == bool(label)
        for (p, q, r), label in zip(triples, labels, strict=True)
    ]
    assert score_readout(list(probes.values()), names, examples) == np.mean(plain)


def test_a_noun_of_several_words_is_read_at_all_of_them(encoder: str, world: Path) -> None:
    put(world, "attribute.tsv", attributes())
    rows = read_nouns(world)
    model = load_encoder(encoder, "")
    states = noun_states(model, rows)
    lone = {**rows[2], "noun": "red"}, {**rows[2], "noun": "ball"}
    red, ball = noun_states(model, list(lone))
    tokens = [len(model.tokenizer.tokenize(word)) for word in ("red", "ball")]
    np.testing.assert_allclose(
        states[2], np.average([red, ball], axis=0, weights=tokens), atol=1e-5
    )
    with pytest.raises(InputError, match=r"'red ball' is not in the first 3 tokens of"):
        noun_states(model, [{**rows[2], "sentence": "see the dog and the red ball"}], 3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dog|train", "dog|training", "line 2: expected a split of train, dev, test"),
        ("see dog", "see cat", r"'dog' is not in the first \d+ tokens of 'see cat here'"),
        ("cat|train|red|see cat", "dog|train|red|see dog", "line 3: .* that is not repeated"),
        ("dog|train|red|", "dog|train||", "attribute.tsv, line 2: .* and all attributes"),
        ("|dev|", "|test|", "column 'colour' cannot be probed"),
        ("blue", "red", "column 'colour' cannot be probed: expected two values or more"),
        ("|sentence", "|text", "no column 'sentence'"),
    ],
)
def test_a_bad_table_is_named(old, new, message, encoder, world, tmp_path):
    put(world, "attribute.tsv", table(attributes().replace("\t", "|").replace(old, new).rstrip()))
    with pytest.raises(InputError, match=message) as caught:
        probe(ProbeConfig(model=encoder, data=str(world)), FEW, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out" / "result.json").exists()


def test_bad_questions_are_named(encoder: str, world: Path, tmp_path: Path) -> None:
    config = ProbeConfig(model=encoder, data=str(world), seeds=1)

    def refused(**settings: Any) -> str:
        with pytest.raises(InputError) as caught:
            probe(replace(config, **settings), FEW, tmp_path / "out")
        return str(caught.value)

    assert "no probes; expected a folder `probes` with attribute.tsv or" in refused()
    put_questions(world, "odd")
    assert "questions=truth: no truth_train.tsv" in refused(questions=("truth",))
    assert "seeds = 0: expected greater than" in refused(seeds=0)
    put(world, "odd_dev.tsv", questions().replace("\t1\n", "\tyes\n"))
    assert "odd_dev.tsv, line 2" in refused()
    (world / "probes" / "odd_dev.tsv").unlink()
    assert "odd_dev.tsv: no such file" in refused()
    put(world, "odd_dev.tsv", questions())
    with pytest.raises(InputError, match=r"odd_train.tsv: \d+ samples are fewer than one batch of"):
        probe(config, replace(FEW, batch=10**4), tmp_path / "out")
    assert not (tmp_path / "out" / "result.json").exists()
    put(world, "odd_dev.tsv", questions().replace("like cat", "like it"))
    put(world, "attribute.tsv", attributes())
    assert "odd-dev-0: expected three different nouns" in refused()
    assert "no column 'material'" in refused(columns=("material",))

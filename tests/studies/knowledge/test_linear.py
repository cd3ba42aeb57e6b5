"""Linear probes of nouns' states, and CoDa's raw files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.preprocessing import StandardScaler
from tiny import homes, toys

from groundling.core.batch import collate
from groundling.core.errors import InputError
from groundling.core.metrics import SPEARMAN
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.text_encoder import load_text_encoder
from groundling.studies.knowledge.commands import PROBE_FACTS as ask
from groundling.studies.knowledge.commands import ProbeFactsConfig
from groundling.studies.knowledge.probe_facts import (
    PENALTIES,
    assign_folds,
    collect_nouns,
    compare_states,
    predict_by_ridge,
)
from groundling.studies.knowledge.probing_modes import word_states
from groundling.studies.knowledge.visual_facts import COLOURS, VisualFact, open_facts

OPTIONS = ("red", "green", "blue", "white")


def facts_of(shares: np.ndarray, names: list[str] | None = None) -> list[VisualFact]:
    names = names or [f"noun{number}" for number in range(len(shares))]
    pairs = zip(names, shares, strict=True)
    return [VisualFact(name, name, "color", OPTIONS, own) for name, own in pairs]


def planted(count: int) -> tuple[list[VisualFact], dict[str, np.ndarray]]:
    """Nouns whose shares are a function of their states; white is frequent for all."""
    rng = np.random.default_rng(0)
    states = rng.normal(size=(count, 8))
    shares = np.exp(states @ rng.normal(size=(8, 4)) * 0.4 + np.array([0, 0, 0, 2.0]))
    facts = facts_of(shares / shares.sum(1, keepdims=True))
    return facts, {fact.subject: state for fact, state in zip(facts, states, strict=True)}


def test_what_is_planted_is_found_and_random_features_find_nothing() -> None:
    facts, states = planted(80)
    scores, outputs, of_facts = compare_states(facts, {"state": states}, folds=4, seed=0)
    rows = scores["from"]
    assert (scores["nouns"], scores["options"], rows["random"]["width"]) == (80, 4, 8)
    assert rows["state"]["deviations"]["mean"] > 0.8
    low, high = rows["random"]["deviations"]["interval"]
    assert low < 0.1 and high > -0.1
    # Why deviations: the mean alone ranks colours well, because most things are mostly white.
    assert rows["random"]["spearman"]["mean"] > 0.3 > rows["random"]["deviations"]["mean"]
    low, high = rows["state"]["accuracy"]["interval"]
    assert low < rows["state"]["accuracy"]["mean"] < high
    assert len(outputs) == 80 and outputs[0].shape == (4,)
    for name in ("deviations", "spearman", "accuracy"):
        values = of_facts[name]
        assert values.shape == (80,) and values.mean() == pytest.approx(rows["state"][name]["mean"])
    again, *_ = compare_states(facts, {"state": states}, folds=4, seed=0)
    assert again == scores


def test_nothing_of_a_fold_reaches_its_own_prediction() -> None:
    facts, states = planted(30)
    nouns = collect_nouns(facts)
    rows = np.stack(list(states.values()))
    fold = assign_folds(nouns.names, 5, seed=0)
    assert np.bincount(fold).tolist() == [6] * 5
    found, agreement = predict_by_ridge(rows, nouns.shares, fold)
    # The first fold, restated with scikit-learn: the penalty is selected on the training nouns.
    test = fold == 0
    scale = StandardScaler().fit(rows[~test])
    roots = np.sqrt(nouns.shares)
    chosen = RidgeCV(PENALTIES).fit(scale.transform(rows[~test]), roots[~test]).alpha_
    ridge = Ridge(chosen).fit(scale.transform(rows[~test]), roots[~test])
    predicted = ridge.predict(scale.transform(rows[test]))
    assert found[test] == pytest.approx(predicted, abs=1e-9)
    mean = roots[~test].mean(0)
    pairs = zip(predicted - mean, roots[test] - mean, strict=True)
    wanted = [pearsonr(*pair).statistic for pair in pairs]
    assert agreement[test] == pytest.approx(np.array(wanted), abs=1e-9)
    scores, *_ = compare_states(facts, {"state": states}, folds=5, seed=0)
    wanted = [SPEARMAN.compute(*pair) for pair in zip(found, nouns.shares, strict=True)]
    mean_rank = scores["from"]["state"]["spearman"]["mean"]
    assert mean_rank == pytest.approx(np.mean(wanted), abs=1e-9)
    assert not np.array_equal(assign_folds(nouns.names, 5, seed=1), fold)
    # Changing the shares of a fold does not change its predictions.
    changed = nouns.shares.copy()
    changed[test] = changed[test][:, ::-1]
    assert predict_by_ridge(rows, changed, fold)[0][test] == pytest.approx(predicted, abs=1e-9)


def test_a_noun_is_one_noun_however_often_it_comes() -> None:
    rows = np.eye(4)[[0, 1, 2, 3, 0]]
    nouns = collect_nouns(facts_of(rows, ["dog", "cat", "Dog", "tree", "sky"]))
    assert nouns.names == ("dog", "cat", "tree", "sky")
    assert nouns.shares[0].tolist() == [0.5, 0, 0.5, 0]
    assert nouns.of_fact.tolist() == [0, 1, 0, 2, 3]


def test_facts_with_options_of_their_own_are_scored_among_these() -> None:
    things = ("ant", "bus", "cat", "dog", "elk", "fox")
    facts = []
    for number, noun in enumerate(things * 2):
        options = (things[number % 5], "bus") if number % 5 != 1 else ("bus", "cat")
        facts.append(VisualFact(f"{number}", noun, "size", options, np.array([1.0, 0.0])))
    states = {noun: np.eye(6)[number] for number, noun in enumerate(things)}
    scores, outputs, _ = compare_states(facts, {"state": states}, folds=3, seed=0)
    assert scores["nouns"] == 6
    assert set(scores["from"]["state"]) == {"width", "deviations", "accuracy"}
    assert {len(output) for output in outputs} == {2}


def test_people_who_all_say_the_same_leave_nothing_to_find() -> None:
    facts = facts_of(np.tile([0.5, 0.5, 0, 0], (6, 1)))
    states = {fact.subject: np.ones(2) for fact in facts}
    scores, *_ = compare_states(facts, {"state": states}, folds=3, seed=0)
    assert scores["from"]["state"]["deviations"] is None


def test_few_nouns_are_a_fold_each_and_too_few_one_line() -> None:
    assert sorted(assign_folds(collect_nouns(planted(5)[0]).names, 6, 0)) == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match=r"modes=linear: expected 3 or more .*, found 2"):
        assign_folds(collect_nouns(planted(2)[0]).names, 10, 0)


def test_states_are_means_of_the_noun_s_tokens_over_frames(student: Path) -> None:
    frames = ("{}", "there is a {} .")
    model = load_text_encoder(student).eval()
    model.return_layers()
    count = len(model.tokenizer.tokenize("snowboard"))
    assert count > 1
    layers = []
    for frame in frames:
        example = toys.Example("x", frame.replace("{}", "snowboard"))
        (sample,) = TextDataset([example], TextRowEncoder(model.tokenizer, 40)).get([0])
        first = len(model.tokenizer.tokenize(frame.partition("{}")[0])) + 1
        outs = model(collate([sample])).layers
        layers.append([out[0, first : first + count].mean(0).detach().numpy() for out in outs])
    for layer, place in ((-1, 2), (0, 0), (1, 1), (2, 2), (None, slice(3))):
        found = word_states(student, ["snowboard"], frames, layer)
        wanted = np.mean([own[place] for own in layers], axis=0)
        assert found.states["snowboard"] == pytest.approx(wanted, abs=1e-5)
    assert found.layers == ["0", "1", "2"]
    ids = model.tokenizer("snowboard", add_special_tokens=False)["input_ids"]
    table = model.word_embeddings().weight.detach().numpy()
    assert found.word_embeddings["snowboard"] == pytest.approx(table[ids].mean(0), abs=1e-6)


def test_a_tower_is_read_at_its_end(tmp_path: Path) -> None:
    folder = homes.teacher(tmp_path / "clip")
    found = word_states(folder, ["dog"], ("a {}",))
    assert found.states["dog"].shape == (24,) and found.word_embeddings["dog"].shape == (32,)
    with pytest.raises(InputError, match=r"layer=0: .* is a CLIP-like tower"):
        word_states(folder, ["dog"], ("a {}",), layer=0)


def test_wrong_frames_layers_and_nouns_are_one_line(student: Path) -> None:
    for frames in (("a dog",), ("{} {}",)):
        with pytest.raises(InputError, match=r"template .*: expected a text with one \{\}"):
            word_states(student, ["dog"], frames)
    with pytest.raises(InputError, match=r"layer=3: .* has layers 0 to 2"):
        word_states(student, ["dog"], ("{}",), layer=3)
    with pytest.raises(InputError, match="gives no tokens for ' '"):
        word_states(student, [" "], ("a {}",))
    assert word_states(student, ["dog", "犬"], ("{}",)).unknown == ["犬"]


def answer(name: str, **colours: float) -> dict[str, Any]:
    counts = {colour: colours.get(colour, 0) for colour in COLOURS}
    return {"class_id": name, "action": "submitted", "included": True, **counts}


def thing(name: str, noun: str, **changes: Any) -> dict[str, Any]:
    forms = {"object_s": noun, "areis_s": "is", "object_pl": f"{noun}s", "areis_pl": "are"}
    return {"class_id": name, "ngram": noun, **forms, **changes}


SKIPPED = {"class_id": "/m/1", "action": "skipped", "included": False}
ANSWERS = [
    answer("/m/1", red=4),
    answer("/m/1", red=1, green=1),
    answer("/m/1", **{colour: 5 for colour in COLOURS if colour not in ("red", "green")}),
    SKIPPED,
    answer("/m/2", **{colour: 2 for colour in COLOURS}),
    answer("/m/9", red=1),
]
OBJECTS = [
    thing("/m/1", "apple"),
    thing("/m/2", "goggle", object_s=None, areis_s=None),
    thing("/m/3", "kite"),
]
TEMPLATES = """templates:
  - name: clip-imagenet
    templates:
      - a photo of many {object_pl}.
  - name: text-masked
    templates:
      - This {object_areis_s} [MASK].
      - It's known that {object_areis_pl} [MASK].
"""


def raw(folder: Path, answers: Any = None, things: Any = None, templates: str = TEMPLATES) -> Path:
    homes.lines(folder / "coda_objects.jsonl", *(things or OBJECTS))
    homes.put(folder / "coda_templates.yaml", templates)
    return homes.lines(folder / "coda_annotations.jsonl", *(answers or ANSWERS))


def test_coda_s_annotators_are_averaged(tmp_path: Path) -> None:
    file = open_facts(raw(tmp_path))
    apple, goggle = file.facts
    # The third contradicts the other two; a constant answer contradicts none.
    assert dict(zip(COLOURS, apple.target, strict=True)) == pytest.approx(
        {**dict.fromkeys(COLOURS, 0.0), "red": 0.75, "green": 0.25}
    )
    assert goggle.target == pytest.approx(np.full(11, 1 / 11))
    many = "It's known that {} are [MASK]."
    assert apple.prompts == {"0": many.format("apples"), "1": "This apple is [MASK]."}
    assert goggle.prompts == {"0": many.format("goggles")}
    assert (apple.id, apple.relation, apple.options) == ("/m/1", "color", COLOURS)
    assert file.left_out == {
        "skipped_annotations": 1,
        "disagreeing_annotations": 1,
        "objects_not_listed": 1,
        "objects_not_annotated": 1,
    }
    names = [path.name for path in file.companion_files]
    assert names == ["coda_objects.jsonl", "coda_templates.yaml"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"answers": [{**ANSWERS[0], "red": None}]},
            "annotations.jsonl, line 1: expected a number",
        ),
        ({"answers": [{**ANSWERS[0], "red": -1}]}, "line 1: expected a number of at least 0"),
        ({"answers": [answer("/m/1")]}, "line 1: expected a number .*, one above 0"),
        ({"answers": [ANSWERS[-1]]}, "no fact is left"),
        ({"things": [{"class_id": "/m/1"}]}, "objects.jsonl, line 1: no text in field 'ngram'"),
        ({"things": [{"class_id": "/m/1", "ngram": "a"}]}, r"not a fact \(KeyError: 'object_s'\)"),
        ({"templates": "templates: 7"}, "templates.yaml: cannot be read"),
        ({"things": [thing("/m/1", "x", object_s=None, object_pl=None)]}, "'x' has no sentence"),
    ],
)
def test_damaged_raw_files_are_one_line(tmp_path: Path, changes: Any, expected: str) -> None:
    with pytest.raises(InputError, match=expected) as error:
        open_facts(raw(tmp_path, **changes))
    assert "\n" not in str(error.value)


def test_raw_files_belong_together_by_name(tmp_path: Path) -> None:
    path = raw(tmp_path)
    (tmp_path / "coda_objects.jsonl").unlink()
    with pytest.raises(InputError, match=r"coda_objects\.jsonl: no such file"):
        open_facts(path)
    with pytest.raises(InputError, match=r"must be named annotations\.jsonl, in one folder"):
        open_facts(path.rename(tmp_path / "other.jsonl"))


def test_ask_reads_counts_that_do_not_sum_to_one(student: Path, tmp_path: Path) -> None:
    nouns = ("dog", "cat", "girl", "horse", "team", "man", "beach")
    counts = {noun: [number + 1, *[0] * 10, 3] for number, noun in enumerate(nouns)}
    data = homes.lines(tmp_path / "color-dist.jsonl", counts)
    config = ProbeFactsConfig(model=str(student), data=str(data), modes=("linear",))
    result = ask(config, tmp_path / "run")
    scores = result["linear"]["relations"]["color"]["all"]
    assert set(scores["from"]) == {"state", "words", "random"} and scores["nouns"] == 7
    rows = homes.answers(tmp_path / "run" / "scores_linear.jsonl")
    assert len(rows) == 7 and all(len(row["outputs"]) == 12 for row in rows)
    right = np.mean([row["accuracy"] for row in rows])
    assert scores["from"]["state"]["accuracy"]["mean"] == right
    one = homes.lines(tmp_path / "one" / "color-dist.jsonl", {"dog": [1] * 12})
    with pytest.raises(InputError, match="nouns per relation, found 1"):
        ask(
            ProbeFactsConfig(model=str(student), data=str(one), modes=("linear",)),
            tmp_path / "none",
        )

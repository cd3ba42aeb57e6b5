"""Facts of VEC, spatial commonsense, ImageNetVC and feature norms: their formats, damaged lines, MAP by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import documents
import homes
import numpy as np
import pytest
import torch
import toys
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from groundling.core.errors import InputError
from groundling.studies.knowledge import probing_modes
from groundling.studies.knowledge.commands import PROBE_FACTS as ask
from groundling.studies.knowledge.commands import ProbeFactsConfig
from groundling.studies.knowledge.evaluation_sets import (
    SAME_ITEMS,
    SETS,
    describe_set,
    find_same_items,
    sets_with_same_items,
)
from groundling.studies.knowledge.probe_facts import mean_average_precision
from groundling.studies.knowledge.visual_facts import VisualFact, open_facts

CSLB_HEADER = "domain\tfeature type\tconcept\tfeature\tpf\tfeature alternatives\tparticipant list"
MCRAE_HEADER = "Concept\tFeature\tWB_Label\tBR_Label\tProd_Freq\tRank_PF"


def lines(path: Path, *rows: Any) -> Path:
    return homes.put(path, "".join(json.dumps(row) + "\n" for row in rows))


def compared(**changes: Any) -> dict[str, Any]:
    """A line of spatial commonsense."""
    row = {"text": "A kite and a bus.", "question": "Is a kite larger than a bus?"}
    return {**row, "obj_a": "kite", "obj_b": "bus", "label": 0, **changes}


def answers(path: Path) -> tuple[list[str], str]:
    """The right answer of each fact, and the set's name."""
    found = open_facts(path)
    return [fact.options[fact.target.argmax()] for fact in found.facts], found.set_name


def test_pairs_of_objects_are_compared(tmp_path: Path) -> None:
    taller = compared(question="Is a kite shorter than a bus?", label=1)
    for name, row, answer, known in [
        ("size/data.json", compared(), "smaller", "spatial/size"),
        ("height/data.json", taller, "taller", "spatial/height"),
        ("size.json", compared(obj1="kite", obj2="bus"), "smaller", "vec/size"),
        ("other.json", compared(obj1="kite", obj2="bus"), "smaller", "vec/size"),
        ("mass.json", {"obj1": "anvil ", "obj2": "pin", "label": 1}, "heavier", "vec/mass"),
        ("temperature.json", {"obj1": "ice", "obj2": "tea", "label": 0}, "colder", "vec/temperature"),
        ("hub.jsonl", {"obj1": "a", "obj2": "b", "relation": "hardness", "label": 0}, "softer", "vec/hardness"),
    ]:  # fmt: skip
        assert answers(lines(tmp_path / name, row)) == ([answer], known), name
    (fact,) = open_facts(
        lines(tmp_path / "mass.json", {"obj1": "anvil ", "obj2": "pin", "label": 1})
    ).facts
    assert list(fact.prompts.values()) == [
        "The anvil is [MASK] than the pin.",
        "Compared with the pin, the anvil is [MASK].",
    ]


def test_positions_and_their_questions(tmp_path: Path) -> None:
    scene = {"text": "A cook opens the tin. ", "obj_a": "cook", "obj_b": "tin"}
    rows = [{**scene, "label": label} for label in range(4)]
    found = open_facts(lines(tmp_path / "posrel/data.json", *rows))
    assert answers(tmp_path / "posrel/data.json")[0] == ["inside", "on", "under", "beside"]
    assert found.set_name == "spatial/position"
    assert list(found.facts[0].prompts.values()) == [
        "A cook opens the tin. The cook is [MASK] the tin.",
        "A cook opens the tin. Where is the cook? It is [MASK] the tin.",
    ]
    asked = {"question": "A cook opens the tin. Is the cook on the tin?", "label": 0}
    path = lines(tmp_path / "data_qa.json", asked, {**asked, "label": 1})
    assert answers(path) == (["no", "yes"], "spatial/position-qa")


def test_vec_offers_two_answers_and_vicomte_all(tmp_path: Path) -> None:
    row = {"sub": "spade", "obj": "wood", "alt": "jade"}
    (two,) = open_facts(lines(tmp_path / "material.json", row)).facts
    assert two.options == ("jade", "wood") and two.target.tolist() == [0, 1]
    assert answers(tmp_path / "material.json")[1] == "vec/material"
    hub = {"obj": "spade", "positive": "jade", "negative": "wood", "relation": "material"}
    assert answers(lines(tmp_path / "x.jsonl", hub)) == (["jade"], "vec/material")
    found = open_facts(lines(tmp_path / "db/material/test.jsonl", row))
    assert len(found.facts[0].options) == 18 and found.set_name == "vicomte/material"
    assert (
        answers(lines(tmp_path / "db/wiki-color/t.jsonl", {**row, "obj": "red"}))[1]
        == "vicomte/wiki-color"
    )


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("d.json", [compared(), compared(label=2)], "line 2: 'the kite compared with the bus' with the options"),
        ("d.json", [compared(question="Is a kite redder?")], "line 1: not a fact (IndexError"),
        ("d.json", [compared(), compared(question="Is it taller?")], "has lines of spatial/height and spatial/size"),
        ("d.json", [compared(obj_a="[MASK]")], "sentences with one [MASK]"),
        ("d.json", [{"obj1": "a", "obj2": "b", "label": 1}], "line 1: not a fact (KeyError: 'd')"),
        ("colour.json", [{"sub": "a", "obj": "b", "alt": "c"}], "not a fact (KeyError: 'colour')"),
        ("color.json", [{"sub": "a", "obj": "b", "alt": "b"}], "with the options b, b: expected different"),
        ("color.json", [{"obj1": "a", "obj2": "b", "label": 1}], "not a fact (KeyError: 'color')"),
        ("mass.json", [{"obj": "a", "positive": "b", "negative": "c"}], "not a fact (KeyError: 'mass')"),
        ("d.json", [{"obj_a": 1}], "columns are obj_a; expected those of"),
        ("d.json", [compared(), ["a"]], "line 2: expected an object"),
        ("q.jsonl", [{"question": "Is it [MASK]?", "label": 1}], "sentences with one [MASK]"),
    ],
)  # fmt: skip
def test_a_damaged_line_is_named(tmp_path: Path, name: str, rows: list[Any], message: str) -> None:
    path = lines(tmp_path / name, *rows)
    with pytest.raises(InputError) as caught:
        open_facts(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


def test_imagenet_vc_has_the_candidates_of_its_subset(tmp_path: Path) -> None:
    path = homes.put(
        tmp_path / "color.csv",
        'question,answer,category\n"Of what hue is a bat, say?",Black,bat\nOf what hue is fog?,misty,fog\n',
    )
    found = open_facts(path)
    assert found.set_name == "imagenet-vc/color" and found.left_out == {"answers_no_candidate": 1}
    (fact,) = found.facts
    assert len(fact.options) == 11 and fact.options[fact.target.argmax()] == "black"
    assert list(fact.prompts.values())[3] == "Question: Of what hue is a bat, say? Answer: [MASK]."
    others = "question,answer\nIs it big?,no\nHow many?,4\nWhere?,lake\n"
    found = open_facts(homes.put(tmp_path / "others.csv", others))
    assert [len(fact.options) for fact in found.facts] == [2, 7, 46]
    assert [fact.group for fact in found.facts] == ["others_yes", "others_number", "others_other"]
    for name, content, message in [
        ("vc.csv", others, "named after their subset; there are: color"),
        ("shape.csv", others, "no fact is left"),
        ("shape.csv", "question,answer\nIs [MASK]?,star\n", r"sentences with one \[MASK\]"),
        ("shape.csv", "a,b\nIs it?,star\n", "columns are a, b; expected those of"),
    ]:
        with pytest.raises(InputError, match=message):
            open_facts(homes.put(tmp_path / name, content))
    with pytest.raises(InputError, match="Is a directory"):
        open_facts(tmp_path)


def cslb(*rows: tuple[str, str, str, object]) -> str:
    return "\n".join(
        [CSLB_HEADER, *(f"x\t{k}\t{c}\t{f}\t{n}\tf; g\tp 1 2" for k, c, f, n in rows), ""]
    )


def test_norms_become_queries_over_all_labels(tmp_path: Path) -> None:
    look = "visual perceptual"
    text = cslb(
        (look, "owl", "has wings", 20), (look, "owl", "is brown_tan", 6), (look, "owl", "is round", 2),
        (look, "sea_lion", "is brown", 12), ("taxonomic", "owl", "is a bird", 9),
        (look, "owl", "does blink", 9), (look, "owl", "is odd", 1),
    )  # fmt: skip
    found = open_facts(homes.put(tmp_path / "norms.dat", text))
    assert found.set_name == "norms/cslb"
    assert found.left_out == {"other_feature_types": 1, "other_features": 1, "rare_features": 1}
    wings, looks, lion = found.facts
    assert wings.options == ("brown", "round", "wings")
    assert [fact.frequencies.tolist() for fact in found.facts if fact.frequencies is not None] == [
        [0, 0, 20], [6, 2, 0], [12, 0, 0],
    ]  # fmt: skip
    assert looks.target.tolist() == [0.75, 0.25, 0]
    assert list(lion.prompts.values()) == ["a sea lion is [MASK].", "Usually a sea lion is [MASK]."]
    rows = "owl\tis_brown\te\tvisual-colour\t9\t1\nowl\tmade_of_felt\te\ttactile\t5\t2\n"
    rows += "owl\thas_4_toes\te\tvisual-form\t6\t3\n"
    found = open_facts(homes.put(tmp_path / "CONCS.txt", f"{MCRAE_HEADER}\n{rows}"))
    assert found.set_name == "norms/mcrae" and [f.group for f in found.facts] == [
        "is",
        "is made of",
    ]
    commas = f"{MCRAE_HEADER}\n{rows}".replace("\t", ",")
    assert len(open_facts(homes.put(tmp_path / "colour.csv", commas)).facts) == 2


def test_damaged_norms_are_named(tmp_path: Path) -> None:
    look = "visual perceptual"
    for rows, message in [
        ([(look, "owl", "is red", "many")], "line 2: not a fact"),
        ([(look, "", "is red", 2)], "expected different options"),
        ([("taxonomic", "owl", "is red", 2)], "no fact is left"),
    ]:
        with pytest.raises(InputError, match=message):
            open_facts(homes.put(tmp_path / "norms.dat", cslb(*rows)))


def query(concept: str, labels: list[str], template: str = "t", **changes: Any) -> dict[str, Any]:
    row = {"query": f"a {concept} is [MASK].", "labels": labels, "concept": concept}
    return {**row, "query_template": template, "feature_starter": "is", "pf": 5, **changes}


def test_queries_of_visual_property_norms(tmp_path: Path) -> None:
    first = [query("owl", ["brown", "round"]), query("fox", ["red"]), query("fox", ["red"], "u")]
    path = lines(tmp_path / "queries/template_0_pf_5.jsonl", *first)
    found = open_facts(path)
    assert found.set_name == "norms/queries" and found.companion_files == ()
    owl, fox = found.facts
    assert owl.options == ("brown", "red", "round") and owl.target.tolist() == [0.5, 0, 0.5]
    assert list(fox.prompts) == ["t", "u"]
    beside = homes.put(tmp_path / "labels.txt", "brown\nred\nround\nwild\n")
    found = open_facts(path)
    assert len(found.facts[0].options) == 4 and found.companion_files == (beside,)
    homes.put(beside, "brown\nred\n")
    with pytest.raises(InputError, match="does not list 'round'"):
        open_facts(path)
    beside.unlink()
    for row, message in [
        (query("owl", []), "line 2: 'owl' with the options red"),
        (query("owl", ["a"], query="no slot"), r"line 2: .* sentences with one \[MASK\]"),
        (query("owl", ["a"], pf="x"), "line 2: not a fact"),
        (query("fox", ["big"]), "line 2: fox/is is also on an earlier line"),
        (query("", ["a"]), "line 2: '' with the options"),
    ]:
        with pytest.raises(InputError, match=message):
            open_facts(lines(tmp_path / "bad.jsonl", query("fox", ["red"]), row))


def test_mean_average_precision_by_hand() -> None:
    def norm(frequencies: list[float]) -> VisualFact:
        numbers = np.array(frequencies)
        return VisualFact(
            "c/is", "c", "norms", tuple("abcd"), numbers / numbers.sum(), frequencies=numbers
        )

    facts = [norm([12, 2, 0, 0]), norm([0, 0, 0, 6])]
    # The first ranks c, a, b, d: right at 2 and 3, so (1/2 + 2/3) / 2; the second ranks d last: 1/4.
    scores = [np.array([3.0, 2.0, 4.0, 1.0]), np.array([4.0, 3.0, 2.0, 1.0])]
    found = mean_average_precision(facts, scores)
    assert found["2"] == {"map": pytest.approx((7 / 12 + 1 / 4) / 2), "queries": 2, "chance": 3 / 8}
    # From 5 on, only a is right for the first, at place 2; from 10 on, the second has no label.
    assert found["5"] == {"map": pytest.approx((1 / 2 + 1 / 4) / 2), "queries": 2, "chance": 1 / 4}
    assert found["10"] == {"map": pytest.approx(1 / 2), "queries": 1, "chance": 1 / 4}
    assert "20" not in found
    with pytest.raises(InputError, match="expected feature norms"):
        mean_average_precision([replace(facts[0], frequencies=None)], scores[:1])


def test_the_documents_lines_are_read(tmp_path: Path) -> None:
    page = (documents.ROOT / "docs" / "probe.md").read_text()
    (block,) = [one for one in page.split("```text\n") if one.startswith("# memory_colors.jsonl")]
    kinds = set()
    for part in block.partition("```")[0].strip().removeprefix("# ").split("\n# "):
        name, _, content = part.partition("\n")
        found = open_facts(homes.put(tmp_path / name.split(" (")[0], content + "\n"))
        assert len(found.facts) == 1, name
        kinds.add(found.set_name.partition("/")[0])
    assert kinds == {"memory-colors", "coda", "vicomte", "vec", "spatial", "imagenet-vc", "norms"}


def test_sets_that_share_items_have_no_mean() -> None:
    assert find_same_items(["coda", "memory-colors", "mine"]) == ""
    for one, other in SAME_ITEMS:
        assert other in sets_with_same_items(one) and one in sets_with_same_items(other)
        assert " share items: " in find_same_items([other, "rg-66", one])
        assert {one, other} <= SETS.keys()
    items = {"mine": {"a", "b"}, "yours": {"b", "c"}}
    assert find_same_items(items, items) == "mine and yours share 1 items"
    assert describe_set("vec/size")["set"]["same_items"] == ["spatial/size"]
    assert describe_set("vec/mass")["set"]["published"] == 654 and describe_set("") == {}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    every = "the is a compared with than owl fox red brown round wings usually has smaller larger kite bus , ."
    listed = [*toys.BERT_SPECIAL, *every.split()]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(listed)})
    torch.manual_seed(0)
    model = BertForMaskedLM(
        BertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **toys.SMALL)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return homes.home(tmp_path_factory.mktemp("bert"), model, tokenizer)


def test_norms_are_scored_by_masked_lm_and_by_embedding(
    tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("owl", "is brown", 6), ("owl", "has wings", 11), ("fox", "is red", 30)]
    path = homes.put(tmp_path / "norms.dat", cslb(*(("visual perceptual", *row) for row in rows)))
    settings = ProbeFactsConfig(model=str(bert), data=str(path), modes=("fill-mask", "embedding"))
    result = ask(settings, tmp_path / "whole")
    assert result["set"]["name"] == "norms/cslb" and result["facts"] == 3
    for mode in ("fill-mask", "embedding"):
        scores = result[mode]["relations"]["norms"]
        assert set(scores) == {"all", "is", "has"}
        assert scores["all"]["map"]["2"]["queries"] == 3
        assert scores["all"]["map"]["30"]["queries"] == 1
        assert 0 < scores["is"]["map"]["5"]["map"] <= 1
    monkeypatch.setattr(probing_modes, "PORTION", 7)  # one or two facts at a time
    again = ask(settings, tmp_path / "portions")
    assert again["fill-mask"]["several_tokens"] == result["fill-mask"]["several_tokens"]
    for name in ("all", "is", "has"):
        one, other = (each["fill-mask"]["relations"]["norms"][name] for each in (again, result))
        assert one["averaged_scores"] == pytest.approx(
            other["averaged_scores"], abs=1e-5, nan_ok=True
        )
    portions = ask(replace(settings, modes=("stroop",)), tmp_path / "stroop")
    monkeypatch.setattr(probing_modes, "PORTION", 1000)
    whole = ask(replace(settings, modes=("stroop",)), tmp_path / "whole-stroop")
    one, other = (each["stroop"]["relations"]["norms"]["all"] for each in (portions, whole))
    assert one["averaged_scores"] == pytest.approx(other["averaged_scores"], abs=1e-5, nan_ok=True)


def test_comparisons_are_scored(tmp_path: Path, bert: Path) -> None:
    path = lines(tmp_path / "data.json", compared(), compared(obj_a="bus", obj_b="kite", label=1))
    modes = ("fill-mask", "embedding", "stroop")
    result = ask(ProbeFactsConfig(model=str(bert), data=str(path), modes=modes), tmp_path / "run")
    assert result["set"] == {
        "name": "spatial/size",
        "same_items": ["vec/size"],
        "measure": "accuracy of two",
        "source": SETS["spatial/size"].source,
        "published": 500,
    }
    for mode in modes:
        scores = result[mode]["relations"]["size"]["all"]
        assert scores["chance"] == 0.5 and scores["averaged_scores"]["accuracy"] in (0, 0.5, 1)

"""Facts of VEC, spatial commonsense, ImageNetVC and feature norms: their formats, damaged lines, MAP by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import documents
import numpy as np
import pytest
from tiny import homes

from groundling.core.errors import InputError
from groundling.studies.knowledge import SAME_ITEMS, SETS, describe_set, probing_modes
from groundling.studies.knowledge.commands import PROBE_FACTS as ask
from groundling.studies.knowledge.commands import ProbeFactsConfig
from groundling.studies.knowledge.probe_facts import mean_average_precision, summarize_relation
from groundling.studies.knowledge.visual_facts import ANSWERS, VisualFact, open_facts
from groundling.studies.worlds.families.objects import ATTRIBUTES
from groundling.studies.worlds.world import World

CSLB_HEADER = "domain\tfeature type\tconcept\tfeature\tpf\tfeature alternatives\tparticipant list"
LOOK = "visual perceptual"
ASKED = "question,answer\nIs it big?,no\nHow many?,4\nWhere?,lake\n"
SCENE = "question,ground_truth,scene_description,substitution_hop\n"
MCRAE_HEADER = "Concept\tFeature\tWB_Label\tBR_Label\tProd_Freq\tRank_PF"


def compared(**changes: Any) -> dict[str, Any]:
    """A line of spatial commonsense."""
    row = {"text": "A kite and a bus.", "question": "Is a kite larger than a bus?"}
    return {**row, "obj_a": "kite", "obj_b": "bus", "label": 0, **changes}


def coda(text: str, index: int, **changes: Any) -> dict[str, Any]:
    row = {"text": text, "label": [0.0, 0.5, 0.25, 0.25, *[0.0] * 7], "class_id": "/m/0x"}
    row |= {"template_group": 1, "template_idx": index, "object_group": 2, "ngram": "ruler"}
    return {**row, **changes}


def facts_of(path: Path) -> list[VisualFact]:
    return open_facts(path).facts


def answers(path: Path) -> tuple[list[str], str]:
    """The right answer of each fact, and the set's name."""
    found = open_facts(path)
    return [fact.options[fact.target.argmax()] for fact in found.facts], found.set_name


def test_memory_colors(tmp_path: Path) -> None:
    rows = [
        {"descriptor": d, "item": i, "label": "grey"} for d, i in (("an", "owl"), ("", "steel"))
    ]
    owl, steel = facts_of(homes.lines(tmp_path / "memory_colors.jsonl", *rows))
    assert owl.options == ANSWERS["memory"] and len(owl.options) == 11
    assert owl.options[owl.target.argmax()] == "grey" and owl.target.sum() == 1
    assert owl.subject == "owl" and all("an owl" in prompt for prompt in owl.prompts.values())
    assert len(steel.prompts) > 1 and steel.prompts.keys() == owl.prompts.keys()


def test_coda_keeps_its_own_sentences_and_leaves_those_without_a_mask(tmp_path: Path) -> None:
    photo = coda("a photo of a large ruler.", 5, template_group=0)
    rows = (coda("All rulers are [MASK].", 0), photo, coda("This ruler is [MASK].", 7))
    (ruler,) = facts_of(homes.lines(tmp_path / "default_test.jsonl", *rows))
    assert ruler.prompts == {"0": "All rulers are [MASK].", "7": "This ruler is [MASK]."}
    about = (ruler.id, ruler.subject, ruler.relation, ruler.group)
    assert about == ("/m/0x", "ruler", "color", "Any")
    assert ruler.target[:4].tolist() == [0, 0.5, 0.25, 0.25] and ruler.options[1] == "blue"


def test_vicomte_pairs_and_distributions(tmp_path: Path) -> None:
    pine = {"sub": "pine tree", "obj": "green", "alt": "yellow"}
    (pine,) = facts_of(homes.lines(tmp_path / "db/wiki-color/single/test.jsonl", pine))
    assert (pine.relation, pine.group, len(pine.options)) == ("color", "Single", 12)
    assert pine.options[pine.target.argmax()] == "green"
    pairs = {"sub": "dish", "obj": "ant", "alt": "bus"}, {"sub": "dog", "obj": "mug", "alt": "ant"}
    dish, dog = facts_of(homes.lines(tmp_path / "db" / "size_larger" / "test.jsonl", *pairs))
    assert (dish.options, dish.target.tolist()) == (("ant", "bus"), [1, 0])
    assert (dog.options, dog.target.tolist()) == (("ant", "mug"), [0, 1])
    assert np.isnan(summarize_relation([dish, dog], [{"t": np.array([1, 0])}] * 2)["majority"])
    counts = {"plate": [0] * 7 + [3] + [0, 1, 0, 0], "kite": [0] * 6 + [2] + [0] * 5}
    plate, kite = facts_of(homes.lines(tmp_path / "distributions" / "shape-dist.jsonl", counts))
    assert plate.target[[7, 9]].tolist() == [0.75, 0.25] and plate.options[7] == "round"
    assert kite.options[kite.target.argmax()] == "rhombus"
    # ViComTe's color-dist.jsonl has subjects called "item" and "label".
    counts = {word: [1] + [0] * 11 for word in ("item", "label", "class_id", "ngram", "sub", "obj")}
    facts = facts_of(homes.lines(tmp_path / "distributions" / "color-dist.jsonl", counts))
    assert [f.subject for f in facts] == list(counts)
    assert {f.relation for f in facts} == {"color"}


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    own = {"subject": "sky", "relation": "hue", "options": ["red", "blue"], "shares": [1, 3]}
    path = homes.lines(tmp_path / "mine.jsonl", {**own, "prompts": {"a": "The sky is [MASK]."}})
    (sky,) = facts_of(path)
    assert (sky.id, sky.options, sky.target.tolist()) == ("1:sky", ("red", "blue"), [0.25, 0.75])
    assert open_facts(path).set_name == ""


def test_a_world_writes_its_own(world: tuple[World, Path]) -> None:
    facts = facts_of(world[1])
    assert len(facts) == 24 * 4
    nouns = {noun.name: noun for noun in world[0].nouns}
    for fact in facts:
        noun = nouns[fact.subject]
        looks = dict(zip(ATTRIBUTES, noun.attributes, strict=True))
        assert fact.options[fact.target.argmax()] == looks[fact.relation]
        assert fact.target.sum() == 1 and fact.group == noun.split
        assert fact.prompts["0"] == f"the {noun.name} is [MASK] ."


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
        assert answers(homes.lines(tmp_path / name, row)) == ([answer], known), name
    (fact,) = facts_of(tmp_path / "mass.json")
    assert list(fact.prompts.values()) == [
        "The anvil is [MASK] than the pin.",
        "Compared with the pin, the anvil is [MASK].",
    ]


def test_positions_and_their_questions(tmp_path: Path) -> None:
    scene = {"text": "A cook opens the tin. ", "obj_a": "cook", "obj_b": "tin"}
    rows = [{**scene, "label": label} for label in range(4)]
    found = open_facts(homes.lines(tmp_path / "posrel/data.json", *rows))
    assert answers(tmp_path / "posrel/data.json")[0] == ["inside", "on", "under", "beside"]
    assert found.set_name == "spatial/position"
    assert list(found.facts[0].prompts.values()) == [
        "A cook opens the tin. The cook is [MASK] the tin.",
        "A cook opens the tin. Where is the cook? It is [MASK] the tin.",
    ]
    asked = {"question": "A cook opens the tin. Is the cook on the tin?", "label": 0}
    path = homes.lines(tmp_path / "data_qa.json", asked, {**asked, "label": 1})
    assert answers(path) == (["no", "yes"], "spatial/position-qa")


def test_vec_offers_two_answers_and_vicomte_all(tmp_path: Path) -> None:
    row = {"sub": "spade", "obj": "wood", "alt": "jade"}
    (two,) = open_facts(homes.lines(tmp_path / "material.json", row)).facts
    assert two.options == ("jade", "wood") and two.target.tolist() == [0, 1]
    assert answers(tmp_path / "material.json")[1] == "vec/material"
    hub = {"obj": "spade", "positive": "jade", "negative": "wood", "relation": "material"}
    assert answers(homes.lines(tmp_path / "x.jsonl", hub)) == (["jade"], "vec/material")
    found = open_facts(homes.lines(tmp_path / "db/material/test.jsonl", row))
    assert len(found.facts[0].options) == 18 and found.set_name == "vicomte/material"
    red = homes.lines(tmp_path / "db/wiki-color/t.jsonl", {**row, "obj": "red"})
    assert answers(red)[1] == "vicomte/wiki-color"


def test_imagenet_vc_has_the_candidates_of_its_subset(tmp_path: Path) -> None:
    text = 'question,answer,category\n"Of what hue is a bat, say?",Black,bat\nOf fog?,misty,fog\n'
    path = homes.put(tmp_path / "color.csv", text)
    found = open_facts(path)
    assert found.set_name == "imagenet-vc/color" and found.left_out == {"answers_no_candidate": 1}
    (fact,) = found.facts
    assert len(fact.options) == 11 and fact.options[fact.target.argmax()] == "black"
    assert list(fact.prompts.values())[3] == "Question: Of what hue is a bat, say? Answer: [MASK]."
    found = open_facts(homes.put(tmp_path / "others.csv", ASKED))
    assert [len(fact.options) for fact in found.facts] == [2, 7, 46]
    assert [fact.group for fact in found.facts] == ["others_yes", "others_number", "others_other"]


def test_taxonomigqa_asks_about_a_description(tmp_path: Path) -> None:
    rows = "Is there a pug?,yes,A pug sleeps.,0\nIs there an animal?,Yes,A pug sleeps.,3\n"
    rows += "Is there a bus?,no,A pug sleeps.,-100\nIs there a vehicle?,no,A pug sleeps.,-1\n"
    found = open_facts(homes.put(tmp_path / "x.csv", f"{SCENE}{rows}What is it?,pug,A pug.,0\n"))
    assert found.set_name == "taxonomigqa" and found.left_out == {"answers_no_candidate": 1}
    right = [fact.options[fact.target.argmax()] for fact in found.facts]
    assert right == ["yes", "yes", "no", "no"]
    groups = ["0 hops", "3 hops", "0 hops, other concept", "1 hops, other concept"]
    assert [fact.group for fact in found.facts] == groups
    (prompt,) = found.facts[1].prompts.values()
    said = "Description: A pug sleeps. Question: In the scene, is there an animal? Answer: [MASK]."
    assert prompt == said


def test_a_taxonomigqa_question_counts_with_those_about_other_concepts(tmp_path: Path) -> None:
    """By hand: of three pairs, with two, one and one negatives, the first has a wrong negative."""
    hops = [("1", 0), ("1", -100), ("1", -100), ("1", 2), ("1", -2), ("2", 2), ("2", -2), ("2", 1)]
    rows = [
        f"Is it {n}?,{'no' if hop < 0 else 'yes'},A pug.,{hop},{i}"
        for n, (i, hop) in enumerate(hops)
    ]
    table = f"{SCENE.strip()},question_id\n" + "\n".join(rows)
    facts = open_facts(homes.put(tmp_path / "x.csv", table)).facts
    answers = [{"p": fact.target} for fact in facts]
    answers[2] = {"p": 1 - facts[2].target}
    found = summarize_relation(facts, answers)["paired"]
    assert found == pytest.approx({"accuracy": 2 / 3, "chance": (1 / 8 + 1 / 4 + 1 / 4) / 3})
    assert "paired" not in summarize_relation(facts[:1], answers[:1])


def cslb(*rows: tuple[str, str, str, object]) -> str:
    told = [f"x\t{kind}\t{one}\t{feature}\t{pf}\tf; g\tp 1 2" for kind, one, feature, pf in rows]
    return "\n".join([CSLB_HEADER, *told, ""])


def test_norms_become_queries_over_all_labels(tmp_path: Path) -> None:
    text = cslb(
        (LOOK, "owl", "has wings", 20), (LOOK, "owl", "is brown_tan", 6), (LOOK, "owl", "is round", 2),
        (LOOK, "sea_lion", "is brown", 12), ("taxonomic", "owl", "is a bird", 9), (LOOK, "unicycle", "is round", 9),
        (LOOK, "owl", "does blink", 9), (LOOK, "owl", "is odd", 1),
    )  # fmt: skip
    found = open_facts(homes.put(tmp_path / "norms.dat", text))
    assert found.set_name == "norms/cslb"
    assert found.left_out == {"other_feature_types": 1, "other_features": 1, "rare_features": 1}
    wings, looks, lion, cycle = found.facts
    assert wings.options == ("brown", "round", "wings")
    counts = [[0, 0, 20], [6, 2, 0], [12, 0, 0], [0, 9, 0]]
    assert [fact.frequencies.tolist() for fact in found.facts] == counts  # type: ignore[union-attr]
    assert looks.target.tolist() == [0.75, 0.25, 0]
    assert list(lion.prompts.values()) == ["a sea lion is [MASK].", "Usually a sea lion is [MASK]."]
    assert min(cycle.prompts.values()).startswith("Usually a unicycle")
    assert min(wings.prompts.values()).startswith("Usually an owl has")
    rows = "owl\tis_brown\te\tvisual-colour\t9\t1\nowl\tmade_of_felt\te\ttactile\t5\t2\n"
    rows += "owl\thas_4_toes\te\tvisual-form\t6\t3\n"
    found = open_facts(homes.put(tmp_path / "CONCS.txt", f"{MCRAE_HEADER}\n{rows}"))
    assert found.set_name == "norms/mcrae"
    assert [fact.group for fact in found.facts] == ["is", "is made of"]
    commas = f"{MCRAE_HEADER}\n{rows}".replace("\t", ",")
    assert len(open_facts(homes.put(tmp_path / "colour.csv", commas)).facts) == 2


def query(concept: str, labels: list[str], template: str = "t", **changes: Any) -> dict[str, Any]:
    row = {"query": f"a {concept} is [MASK].", "labels": labels, "concept": concept}
    return {**row, "query_template": template, "feature_starter": "is", "pf": 5, **changes}


def test_queries_of_visual_property_norms(tmp_path: Path) -> None:
    rows = [query("owl", ["brown", "round"]), query("fox", ["red"]), query("fox", ["red"], "u")]
    path = homes.lines(tmp_path / "queries/template_0_pf_5.jsonl", *rows)
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


SKY = {"descriptor": "the", "item": "sky", "label": "blue"}
SHOWN = coda("this [MASK].", 0, class_id="/m/0y")
FOX = query("fox", ["red"])
ROW = "expected different options, a share of at least 0 for each, one above 0, and sentences with one [MASK]"
DAMAGED: list[tuple[str, list[Any] | str, str]] = [
    ("m.jsonl", [SKY, {"item": "sky", "label": "gray"}], ROW),
    ("m.jsonl", [SKY, {"noun": "sky"}], "line 2: not a fact (KeyError: 'item')"),
    ("c.jsonl", "sky blue\n", "line 1: not valid JSON"),
    ("c.jsonl", [SHOWN, coda("no mask", 3)], "line 2: 'ruler' with the options"),
    ("c.jsonl", [SHOWN, coda("a [MASK].", 3, label=[float("nan")] * 11)], ROW),
    ("c.jsonl", [SHOWN, coda("a [MASK].", 3, label=[1] * 10)], ROW),
    ("c.jsonl", [SHOWN, coda("a [MASK].", 3, label=[-1, *[1] * 10])], ROW),
    ("c.jsonl", [SHOWN, coda("a [MASK].", 3, options=["red", "red"], label=[1, 1])], ROW),
    ("c.jsonl", [SHOWN, coda("a [MASK].", 3, options="red", label=[1, 1, 1])], ROW),
    ("c.jsonl", [SHOWN, coda("a [MASK].", 3, options=[1, 2], label=[1, 1])], ROW),
    ("c.jsonl", [SHOWN, coda("a [MASK].", 3, label=[10**400] * 11)], "line 2: not a fact"),
    ("c.jsonl", [SHOWN, SHOWN], "/m/0y is on two lines"),
    ("c.jsonl", [SHOWN, {**SHOWN, "template_idx": 1, "label": [1.0] * 11}], "/m/0y is on two lines"),
    ("c.jsonl", [{**SHOWN, "template_group": 0}], "has no sentence with [MASK]"),
    ("v.jsonl", [{"sub": "a", "obj": "b", "alt": "c"}], "line 1: no relation; expected one of coda, color"),
    ("color-dist.jsonl", [{"b": [1] * 12}, {"a": [1] * 42}], "line 2: 'a' with the options"),
    ("x.jsonl", [{"a": 1}], "columns are a; expected those of subject, relation"),
    ("d.json", [compared(), compared(label=2)], "line 2: 'the kite compared with the bus' with the options"),
    ("d.json", [compared(question="Is a kite redder?")], "line 1: not a fact (IndexError"),
    ("d.json", [compared(), compared(question="Is it taller?")], "has lines of spatial/height and spatial/size"),
    ("d.json", [compared(obj_a="[MASK]")], "sentences with one [MASK]"),
    ("colour.json", [{"sub": "a", "obj": "b", "alt": "c"}], "not a fact (KeyError: 'colour')"),
    ("color.json", [{"sub": "a", "obj": "b", "alt": "b"}], "with the options b, b: expected different"),
    ("vc.csv", ASKED, "named after their subset; there are: color"),
    ("shape.csv", ASKED, "no fact is left"),
    ("shape.csv", "question,answer\nIs [MASK]?,star\n", "sentences with one [MASK]"),
    ("shape.csv", "a,b\nIs it?,star\n", "columns are a, b; expected those of"),
    ("t.csv", f"{SCENE}Is it?,yes,A pug.,far\n", "line 2: not a fact"),
    ("t.csv", f"{SCENE}Is it?,yes,A [MASK].,0\n", "sentences with one [MASK]"),
    ("t.csv", f"{SCENE}Is it?,yes\n", "line 2: 2 fields, expected 4"),
    ("norms.dat", cslb((LOOK, "owl", "is red", "many")), "line 2: not a fact"),
    ("norms.dat", cslb((LOOK, "", "is red", 2)), "expected different options"),
    ("norms.dat", cslb(("taxonomic", "owl", "is red", 2)), "no fact is left"),
    ("bad.jsonl", [FOX, query("owl", [])], "line 2: 'owl' with the options red"),
    ("bad.jsonl", [FOX, query("owl", ["a"], pf="x")], "line 2: not a fact"),
    ("bad.jsonl", [FOX, query("fox", ["big"])], "fox/is is on two lines"),
]  # fmt: skip
"""Damaged files, and what is said of them."""


@pytest.mark.parametrize(("name", "content", "message"), DAMAGED)
def test_damage_is_named(tmp_path: Path, name: str, content: list[Any] | str, message: str) -> None:
    path = tmp_path / name
    homes.put(path, content) if isinstance(content, str) else homes.lines(path, *content)
    with pytest.raises(InputError) as caught:
        open_facts(path)
    told = str(caught.value)
    assert message in told and str(path) in told and "\n" not in told


def test_mean_average_precision_by_hand() -> None:
    def norm(frequencies: list[float]) -> VisualFact:
        numbers = np.array(frequencies)
        shares = numbers / numbers.sum()
        return VisualFact("c/is", "c", "norms", tuple("abcd"), shares, frequencies=numbers)

    facts = [norm([12, 2, 0, 0]), norm([0, 0, 0, 6])]
    # The first ranks c, a, b, d: right at 2 and 3, so (1/2 + 2/3) / 2; the second ranks d last: 1/4.
    scores = [np.array([3.0, 2.0, 4.0, 1.0]), np.array([4.0, 3.0, 2.0, 1.0])]
    found = mean_average_precision(facts, scores)
    assert found["2"] == {"map": pytest.approx((7 / 12 + 1 / 4) / 2), "queries": 2, "chance": 3 / 8}
    # From 5 on, only a is right for the first, at place 2; from 10 on, the second has no label.
    assert found["5"] == {"map": pytest.approx((1 / 2 + 1 / 4) / 2), "queries": 2, "chance": 1 / 4}
    assert found["10"] == {"map": pytest.approx(1 / 2), "queries": 1, "chance": 1 / 4}
    assert "20" not in found


def test_the_documents_lines_are_read(tmp_path: Path) -> None:
    page = (documents.ROOT / "docs" / "probe.md").read_text()
    (block,) = [one for one in page.split("```text\n") if one.startswith("# memory_colors.jsonl")]
    kinds = set()
    for part in block.partition("```")[0].strip().removeprefix("# ").split("\n# "):
        name, _, content = part.partition("\n")
        found = open_facts(homes.put(tmp_path / name.split(" (")[0], content + "\n"))
        assert len(found.facts) == 1, name
        kinds.add(found.set_name.partition("/")[0])
    assert kinds == {
        "memory-colors",
        "coda",
        "vicomte",
        "vec",
        "spatial",
        "imagenet-vc",
        "norms",
        "taxonomigqa",
    }


def test_sets_are_described_with_those_that_share_their_items() -> None:
    for one, other in SAME_ITEMS:
        assert other in describe_set(one)["set"]["same_items"] and {one, other} <= SETS.keys()
        assert one in describe_set(other)["set"]["same_items"]
    assert describe_set("vec/size")["set"]["same_items"] == ["spatial/size"]
    assert describe_set("vec/mass")["set"]["measure"] == "accuracy" and describe_set("") == {}


def test_norms_are_scored_by_masked_lm_and_by_embedding(tmp_path, bert, monkeypatch):
    rows = [("owl", "is brown", 6), ("owl", "has wings", 11), ("fox", "is red", 30)]
    path = homes.put(tmp_path / "norms.dat", cslb(*((LOOK, *row) for row in rows)))
    settings = ProbeFactsConfig(model=str(bert), data=str(path), modes=("fill-mask", "embedding"))
    result = ask(settings, tmp_path / "whole")
    about = {"name": "norms/cslb", "same_items": ["norms/queries"], "measure": "map"}
    assert result["set"] == about
    assert result["facts"] == 3
    for mode in ("fill-mask", "embedding"):
        scores = result[mode]["relations"]["norms"]
        assert set(scores) == {"all", "is", "has"}
        assert scores["all"]["map"]["2"]["queries"] == 3
        assert scores["all"]["map"]["30"]["queries"] == 1
        assert 0 < scores["is"]["map"]["5"]["map"] <= 1
    monkeypatch.setattr(probing_modes, "PORTION", 7)  # one or two facts at a time
    again = ask(replace(settings, modes=("fill-mask", "stroop")), tmp_path / "portions")
    monkeypatch.setattr(probing_modes, "PORTION", 1000)
    whole = ask(replace(settings, modes=("stroop",)), tmp_path / "stroop")
    assert again["fill-mask"]["several_tokens"] == result["fill-mask"]["several_tokens"]
    for mode, other in (("fill-mask", result), ("stroop", whole)):
        for name in ("all", "is", "has"):
            one, two = (each[mode]["relations"]["norms"][name] for each in (again, other))
            scores = one["averaged_scores"]
            assert scores == pytest.approx(two["averaged_scores"], abs=1e-5, nan_ok=True)

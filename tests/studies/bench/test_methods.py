"""Methods that the bench cannot compare are refused, and models that are not plain are reported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny.bench import Ran
from transformers import AutoModel, AutoTokenizer

from groundling.core.errors import InputError
from groundling.studies.bench.engine import control_stages, text_key
from groundling.studies.bench.methods import (
    BenchMethod,
    Stage,
    built_in_methods,
    find_methods,
    outside_method,
)
from groundling.studies.bench.readings import plain_faults

OWN = """
from groundling.objectives import Objective


class Quiet(Objective):
    name = "quiet"
    required_fields = ("text",)

    def count(self, batch):
        return {"quiet": batch.rows}

    def forward(self, encoded, batch):
        return {"quiet": encoded.text.pow(2).mean((1, 2)).sum()}


class OfText(Quiet):
    required_fields = ("text", "features.sentence")


class OfImages(Quiet):
    required_fields = ("text", "features.clip_image")


class OfBoth(Quiet):
    required_fields = ("text", "features.clip_image", "features.clip_text")


NOT_A_METHOD = 3
"""


def test_a_method_with_a_teacher_cannot_pass_for_one_of_text() -> None:
    method = BenchMethod("sneak", "p", "text", (Stage("contrastive"),))
    assert method.why_not() == "contrastive reads a teacher, so the data class is not `text`"


def test_models_that_are_not_plain(ran: Ran, tmp_path: Path) -> None:
    encoder = ran.out / "shared" / "objects-0" / "making" / "encoder" / "model"
    assert plain_faults(encoder, encoder) == []
    model = AutoModel.from_pretrained(encoder)
    model.resize_token_embeddings(model.config.vocab_size + 2)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    tokenizer.add_tokens(["newword"])
    for one in (model, tokenizer):
        one.save_pretrained(tmp_path / "big")
    assert plain_faults(tmp_path / "big", encoder) == [
        *("another vocabulary", "another configuration (vocab_size)", "256 more parameters"),
    ]
    shutil.copytree(encoder, tmp_path / "coded")
    config = json.loads((tmp_path / "coded" / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "code.Model"}
    (tmp_path / "coded" / "config.json").write_text(json.dumps(config))
    assert "code of its own" in plain_faults(tmp_path / "coded", encoder)
    config = json.loads((encoder / "config.json").read_text()) | {"hidden_act": "relu"}
    (tmp_path / "coded" / "config.json").write_text(json.dumps(config))
    assert plain_faults(tmp_path / "coded", encoder) == ["another configuration (hidden_act)"]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"student": "mine/better"}, "student: a method reads"),
        ({"eval_text": ("a.txt",)}, "a.txt: a method reads the bench's texts"),
        ({"teacher_text": "mine/tower"}, "mine/tower: a method reads"),
        ({"option": ("file=/tmp/answers",)}, "file=/tmp/answers: a method reads"),
        ({"teacher_text": "stage-1/model"}, "stage-1/model: a method reads"),
        ({"teacher_text": "stage-0/../../private"}, "private: a method reads"),
    ],
)
def test_settings_name_no_foreign_files(settings: dict, match: str) -> None:
    with pytest.raises(InputError, match=match):
        BenchMethod("a", "p", "text and teacher", (Stage("l1", settings=settings),))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"grid": (1.0, 2.0)}, "a `grid` of three values, or neither"),
        ({"grid": (1.0, 1.0, 2.0)}, "a `grid` of three values, or neither"),
        ({"weight": ""}, "or neither"),
        ({"data": "pictures"}, "expected one of text, text and teacher, captions with images"),
        ({"stages": (Stage("l1", ("wikipedia",)),)}, "wikipedia: a method reads the bench's texts"),
        ({"stages": (Stage("l1", ("captions",)),)}, "so its data class is not"),
        ({"stages": (Stage("l1", images=True),)}, "so its data class is not"),
        ({"stages": (Stage("l1", batch=640),)}, "batch = 640, the bench's is 64"),
        ({"stages": (Stage("l1", student="mine/encoder"),)}, "mine/encoder: a method reads"),
    ],
)
def test_methods_that_cannot_be_compared_are_refused(change: dict, match: str) -> None:
    given = {"weight": "distill_weight", "grid": (0.1, 1.0, 10.0), "stages": (Stage("l1"),)}
    with pytest.raises(InputError, match=match) as caught:
        BenchMethod(**{"name": "a", "paper": "p", "data": "text and teacher"} | given | change)
    assert "\n" not in str(caught.value)


def test_the_data_class_of_an_objective_follows_from_its_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kinds.py").write_text(OWN)
    found = {name: outside_method(f"kinds:{name}") for name in ("Quiet", "OfText", "OfImages")}
    assert [one.data for one in found.values()] == [
        *("text", "text and teacher", "captions with images"),
    ]
    assert found["OfImages"].stages == (Stage("mlm+kinds:OfImages", ("captions",)),)
    assert found["OfText"].stages[0].texts == ("corpus",)
    both = outside_method("kinds:OfBoth")
    assert both.data == "captions with images" and both.reads_text_tower
    assert not found["OfImages"].reads_text_tower
    assert set(found["Quiet"].description()["source"]) >= {"kinds:Quiet"}
    with pytest.raises(InputError, match="expected a sub-class of Objective"):
        outside_method("kinds:NOT_A_METHOD")


def test_the_packages_methods() -> None:
    offered = built_in_methods()
    assert {"xdbert", "l1", "contrastive"} <= {one.name for one in find_methods(())}
    for name, method in offered.items():
        assert method.name == name
        assert sum(method.stage_steps(500)) == 500
        assert control_stages(method)[-1].arm == "mlm"
    # Methods that read the same texts share a control.
    assert text_key(offered["l1"]) == text_key(offered["contrastive"])
    assert text_key(offered["l1"]) != text_key(offered["xdbert"])
    two = offered["vokenization"]
    assert [one.texts for one in control_stages(two)] == [("captions",), ("corpus",)]
    assert [one.student for one in control_stages(two)] == ["", "stage-1/model"]
    with pytest.raises(InputError, match=r"no bench method is called 'l2'.*contrastive"):
        find_methods(["l2"])

"""A word budget: what is counted, which students are saved when, and what is refused; images that are exchanged."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import homes
from tiny.homes import STEPS, digests
from tiny.lm_families import DECODERS
from tiny.objectives import captioned_run
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

import groundling
from groundling.cli import main
from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig, word_budget
from groundling.commands.adapt.data import other_images
from groundling.core.errors import InputError
from groundling.data.corpora import corpus_samples, plain_lines
from groundling.data.samples import TextRowEncoder
from groundling.settings.fields import make_settings, replace_settings, setting_values

UNIT = 20
"""Words in place of a million."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("budget")
    words = DECODERS["gpt2"].words()
    homes.home(root / "gpt2", DECODERS["gpt2"].whole(len(words)), words)
    homes.student(root / "bert")
    homes.text(root / "text.txt", 60)
    return root


def own_words(place: Path) -> int:
    return sum(len(line.split()) for line in plain_lines(place / "text.txt"))


def budgeted(place: Path, student: str = "gpt2", **changes: Any) -> AdaptConfig:
    given = {"student": place / student, "text": place / "text.txt", "arm": "mlm"}
    return make_settings(
        AdaptConfig, **{**given, "from_scratch": True, "word_budget": "10M", **changes}
    )


def test_students_are_due_at_the_official_word_counts() -> None:
    due = [count // 1_000_000 for count in islice(word_budget.milestones(), 28)]
    assert due == [*range(1, 11), *range(20, 101, 10), *range(200, 1001, 100)]


@pytest.mark.parametrize(
    ("student", "layout", "kind"),
    [
        ("gpt2", "lines", AutoModelForCausalLM),
        ("gpt2", "blocks", AutoModelForCausalLM),
        ("bert", "blocks", AutoModelForMaskedLM),
    ],
)
def test_students_are_saved_when_so_many_words_are_read_also_by_a_killed_run(
    student: str, layout: str, kind: Any, place: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(word_budget, "MILLION", UNIT)
    config = budgeted(place, student, text_layout=layout, max_length=12)
    steps = replace(STEPS, steps=9, batch=3, save_every=4)
    # Killed in the seventh step: after a checkpoint, and after students that it does not have.
    whole, resumed = homes.whole_and_resumed(adapt, config, steps, tmp_path, "", at=7)
    saved = json.loads((tmp_path / "whole/result.json").read_text())["words"]["saved"]
    folders = {name.split("/")[0] for name in whole if name.startswith("chck_")}
    assert folders == set(saved) and {"chck_1M", "chck_2M"} < folders
    for one in (whole, resumed):
        for name in [name for name in one if not name.startswith(("chck_", "model/"))]:
            del one[name]  # times of logs
    assert whole == resumed
    at = [one["step"] for one in saved.values()]
    assert at == sorted(at) and at[0] < 5 < at[-1]
    for name, one in saved.items():
        due = UNIT * int(name.removeprefix("chck_").removesuffix("M"))
        assert due <= one["words"] <= due + 3 * 12 + UNIT
        folder = tmp_path / "whole" / name
        model, report = kind.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"]
        tokens = AutoTokenizer.from_pretrained(folder)("a red dog", return_tensors="pt")
        assert torch.isfinite(model(**tokens).logits).all()
    assert len({digests(tmp_path / "whole" / name)["model.safetensors"] for name in saved}) == len(
        set(at)
    )


@pytest.mark.parametrize("student", ["gpt2", "bert"])
@pytest.mark.parametrize("layout", ["lines", "blocks"])
def test_words_are_those_of_the_file_however_it_is_cut(
    student: str, layout: str, place: Path, tmp_path: Path
) -> None:
    config = budgeted(place, student, text_layout=layout, max_length=7)
    words = adapt(config, replace(STEPS, epochs=2, steps=0), tmp_path / "out")["words"]
    assert words["texts"] == {str(place / "text.txt"): own_words(place)}
    assert (words["teachers"], words["total"]) == ({}, own_words(place))
    assert words["times"]["text"] == pytest.approx(2, abs=0.1)
    assert words["read"] == pytest.approx(2 * words["total"], rel=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"from_scratch": False}, "word_budget: a pretrained student has read words"),
        ({"word_budget": "", "teacher_words": 5}, "teacher_words=5: counts towards word_budget"),
        ({"word_budget": "10G"}, "word_budget=10G: expected a number of words"),
        ({"limit": 5}, "limit=5: word_budget counts whole files"),
        ({"eval_every": 0.1, "patience": 1}, "patience=1: word_budget counts the words"),
        ({"epochs": 11, "steps": 0}, "epochs=11: word_budget allows 10 at most"),
        ({"steps": 200}, "text: .* words would be read of .*, more than 10 times; lower epochs"),
        ({"word_budget": "100"}, "word_budget=100: texts and teachers have [0-9]+ words"),
        ({"teacher": "clip"}, "teacher=.*clip: the words that it has read count towards"),
        ({"teacher": "clip", "teacher_words": 10**7}, "texts and teachers have 10,000,[0-9]+"),
        ({"teacher_words": 7}, "teacher_words=7: no model here has read texts"),
        ({"shuffle_images": True}, "shuffle_images: no objective of arm=mlm reads images"),
    ],
)
def test_what_breaks_the_budget_is_refused_before_a_step(
    changes: dict[str, Any], message: str, place: Path, tmp_path: Path
) -> None:
    given = setting_values(budgeted(place)) | {"steps": 2, "batch": 4, "cpu": True} | changes
    if "teacher" in changes:
        given["teacher"] = str(homes.teacher(tmp_path / "clip"))
    with pytest.raises(InputError, match=message):
        groundling.adapt(**given, out=tmp_path / "out")
    assert not (tmp_path / "out/log.jsonl").exists()


def test_a_teacher_of_images_alone_has_read_nothing(tmp_path: Path) -> None:
    homes.put(tmp_path / "dino/config.json", '{"model_type": "dinov2"}')
    homes.put(tmp_path / "vit/config.json", '{"model_type": "vit"}')
    for name, teacher in (("a", str(tmp_path / "dino")), ("b", "timm:vit_b16_clip.openai")):
        made = {"kind": "embed", "config": {"teacher": teacher}}
        homes.put(tmp_path / name / "config.json", json.dumps(made))
    known = {
        f"{tmp_path}/dino": True,
        f"{tmp_path}/vit": False,  # with whatever weights
        f"vectors:{tmp_path}/a": True,
        f"vectors:{tmp_path}/b": False,
        f"vectors:{tmp_path}/elsewhere": False,
        "timm:vit_small_patch14_dinov2.lvd142m": True,
        "timm:vit_base_patch16_clip_224.openai": False,
        "timm:eva02_base_patch14_224.mim_in22k": False,  # it predicts a CLIP's features
        "open_clip:ViT-B-32/openai": False,
        "mine:Teacher": False,
    }
    assert {one: word_budget.reads_images_alone(one) for one in known} == known


def test_every_image_is_exchanged_for_one_other_and_words_stay(tmp_path: Path) -> None:
    """A CLIP that has read as many words as the user says; the ledger is in the result and in its notes."""
    config = replace_settings(
        captioned_run(tmp_path, "mlm+caption_to_image"),
        from_scratch=True,
        word_budget="1M",
        teacher_words=500,
    )
    own = adapt(config, STEPS, tmp_path / "own")
    other = adapt(replace_settings(config, shuffle_images=True), STEPS, tmp_path / "other")
    assert own["words"] == other["words"]
    assert own["words"]["teachers"] == {config.teacher: 500}
    assert own["words"]["total"] == sum(own["words"]["texts"].values()) + 500
    assert any(f"{own['words']['total']:,} of 1,000,000 words" in note for note in own["notes"])
    assert own["train_metrics"] != other["train_metrics"]


def test_captions_of_an_image_stay_together(place: Path, tmp_path: Path) -> None:
    rows = [f"{image}.jpg#{n}\ta dog {n}" for image in range(12) for n in range(3)]
    captions = homes.put(tmp_path / "x.token.txt", "\n".join(rows) + "\n")
    tokens = TextRowEncoder(AutoTokenizer.from_pretrained(place / "bert"), 20)
    texts = corpus_samples([captions], "lines", tokens, tmp_path)
    before = list(texts.images)
    texts.other_images = other_images(texts, 0)
    assert other_images(texts, 0) == texts.other_images != other_images(texts, 1)
    given = defaultdict(set)
    for place_, (old, new) in enumerate(zip(before, texts.images, strict=True)):
        given[old].add(new)
        assert texts.get([place_])[0].example.images == new != old
    assert sorted(set().union(*given.values())) == sorted(set(before))
    assert {len(new) for new in given.values()} == {1}


def test_the_command_line_prints_the_ledger(place: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["adapt", "--student", place / "gpt2", "--from-scratch", "--text", place / "text.txt"]
    words += ["--arm", "mlm", "--word-budget", "10M", "--steps", 1, "--batch", 4, "--cpu"]
    assert main([*map(str, words), "--out", str(tmp_path / "out")]) == 0
    assert f"{own_words(place):,} of 10,000,000 words" in capsys.readouterr().err

"""Attempts to make a bad method look good are refused or reported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from builders.bench import Ran
from homes import put
from transformers import AutoModel, AutoTokenizer

from groundling.core.errors import InputError
from groundling.runs.hashing import data_hash
from groundling.studies.bench import arms
from groundling.studies.bench.arms import METHOD, ArmRun, control_stages, run_arm, text_key
from groundling.studies.bench.handed import check_handed
from groundling.studies.bench.leaks import (
    check_inputs,
    plain_faults,
    relative_names,
    watch_files,
    watch_writes,
)
from groundling.studies.bench.method import (
    BenchMethod,
    Stage,
    built_in_methods,
    find_methods,
    outside_method,
)
from groundling.studies.bench.protocol import BenchFolder, BenchWorld, Protocol

WORLD = BenchWorld("objects", 0)

OWN = """
from pathlib import Path

from groundling.objectives import Objective, ObjectiveSpec
from groundling.studies.bench.method import BenchMethod, Stage


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


def peek(context):
    world = Path(context.options["world"])
    (world / "private" / "probes" / "attribute.tsv").read_text()
    return Quiet(context.sizes)


def spoil(context):
    path = Path(context.options["world"]) / "handed" / "corpus.txt"
    path.write_text(path.read_text() + "the zib is red .\\n")
    return Quiet(context.sizes)


def forge(context):
    jobs = Path(context.options["world"]).parents[1] / "jobs"
    jobs.mkdir(exist_ok=True)
    (jobs / "objects-0-l1-method-seed-0.json").write_text("{}")
    return Quiet(context.sizes)


def record(context):
    path = Path(context.options["world"]) / "handed.json"
    path.write_text(path.read_text() + " ")
    return Quiet(context.sizes)


def replace_model(context):
    runs = Path(context.options["world"]).parents[1] / "runs"
    (runs / "objects-0" / "l1").mkdir(parents=True)
    (runs / "objects-0" / "l1" / "model.safetensors").write_text("")
    return Quiet(context.sizes)


FORGE = ObjectiveSpec("forge", forge)
RECORD = ObjectiveSpec("record", record)
REPLACE = ObjectiveSpec("replace", replace_model)
PEEK = ObjectiveSpec("peek", peek)
SPOIL = ObjectiveSpec("spoil", spoil)
NOT_A_METHOD = 3
"""


@pytest.fixture
def own(ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BenchFolder:
    """A copy of the finished bench's shared files, beside a module of cheating objectives."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cheats.py").write_text(OWN)
    shutil.copytree(ran.out / "shared", tmp_path / "out" / "shared")
    return BenchFolder(tmp_path / "out")


def cheat(folder: BenchFolder, name: str, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Run a method of one objective, which finds the world by an option."""
    world = str(folder.world(WORLD).root)
    method = outside_method("cheats:Quiet")
    stage = Stage(f"mlm+cheats:{name}")
    method = replace(method, name=name, stages=(stage,))
    # A stage may not name a folder, so a cheat would find it by itself.
    settings = {"option": (f"world={world}",)}
    monkeypatch.setattr(
        "groundling.studies.bench.arms.resolve_stage_paths", lambda _, runs: settings
    )
    return run_arm(folder, Protocol(0.004), ArmRun(method, METHOD, WORLD, 0), "key")


def test_reading_the_answers_is_reported(own: BenchFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cheat(own, "PEEK", monkeypatch)["remarks"] == [
        "leak: opened the world's answers (objects-0/private/probes/attribute.tsv)"
    ]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("FORGE", "jobs/objects-0-l1-method-seed-0.json"),
        ("RECORD", "shared/objects-0/handed.json"),
        ("REPLACE", "runs/objects-0/l1"),
    ],
)
def test_writing_what_is_not_its_own_is_reported(
    own: BenchFolder, monkeypatch: pytest.MonkeyPatch, name: str, file: str
) -> None:
    (remark,) = cheat(own, name, monkeypatch)["remarks"]
    assert remark.startswith(f"leak: wrote what is not its own ({file}")


def test_the_benchs_own_results_are_not_reported(
    own: BenchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process writes its results meanwhile, and the bench reads those that are there."""
    adapt = arms.ADAPT
    other = "import json, sys; json.dump({}, open(sys.argv[1], 'w'))"

    def beside(*settings: object) -> object:
        (own.root / "jobs").mkdir(exist_ok=True)
        path = own.job("objects 0: l1, method, seed 0")
        subprocess.run([sys.executable, "-c", other, str(path)], check=True)
        assert path.read_text() == "{}" and list(path.parent.iterdir())
        return adapt(*settings)

    monkeypatch.setattr(arms, "ADAPT", beside)
    result = cheat(own, "Quiet", monkeypatch)
    assert result["remarks"] == [] and {path.stem for path in (own.root / "jobs").iterdir()} == {
        *("objects-0-l1-method-seed-0", "objects-0-Quiet-method-seed-0"),
        "objects-0-Quiet-method-seed-0-training",
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.write_text("y"),
        lambda file: file.open("a").close(),
        lambda file: os.close(os.open(file, os.O_RDWR)),
        lambda file: file.unlink(),
        lambda file: os.truncate(file, 0),
        lambda file: file.with_name("b").replace(file),
        lambda file: os.replace(file.parents[1] / "out", file),
        lambda file: (file.parents[1] / "link").hardlink_to(file),
        lambda file: (file.parents[1] / "link").symlink_to(file),
    ],
)
def test_files_that_are_written_are_seen(change: Callable[[Path], object], tmp_path: Path) -> None:
    file = tmp_path / "in" / "a"
    file.parent.mkdir()
    for path in (file, file.with_name("b"), tmp_path / "out"):
        path.write_text("x")
    with watch_writes(tmp_path / "in") as written:
        file.read_text()
        list(file.parent.iterdir())
        (tmp_path / "c").write_text("x")
        assert not written
        change(file)
    assert "in/a" in relative_names(written, tmp_path)
    file.write_text("x")


def test_changing_a_handed_over_file_is_refused(
    own: BenchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_handed(own.world(WORLD), "before")
    with pytest.raises(InputError, match=r"corpus\.txt: changed since it was handed over, while"):
        cheat(own, "SPOIL", monkeypatch)
    # It was trained, and is not read.
    assert [path.stem for path in (own.root / "jobs").glob("*.json")] == [
        "objects-0-SPOIL-method-seed-0-training"
    ]


def test_only_opened_files_below_the_folder_are_seen(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for place in ("in/a", "b"):
        (tmp_path / place).write_text("x")
    with watch_files(tmp_path / "in") as opened:
        (tmp_path / "b").read_text()
        assert not opened
        (tmp_path / "in" / ".." / "in" / "a").read_text()
    (tmp_path / "in" / "c").write_text("x")
    assert relative_names(opened, tmp_path / "in") == ["a"]


def test_links_and_other_worlds_are_seen(tmp_path: Path) -> None:
    for place in ("one/private", "two/private"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "a").write_text("x")
    with watch_files(tmp_path / "one/private", tmp_path / "two/private") as opened:
        (tmp_path / "two/private/a").read_text()
        (tmp_path / "link").hardlink_to(tmp_path / "one/private/a")
    assert relative_names(opened, tmp_path) == ["one/private/a", "two/private/a"]


@pytest.mark.parametrize("watch", [watch_files, watch_writes])
def test_another_name_for_a_folder_above_is_seen(watch: Callable, tmp_path: Path) -> None:
    (tmp_path / "one" / "private").mkdir(parents=True)
    with watch(tmp_path / "one" / "private") as seen:
        list((tmp_path / "one").iterdir())
        assert not seen
        (tmp_path / "one").rename(tmp_path / "two")
    assert relative_names(seen, tmp_path) == ["one"]


def test_a_link_elsewhere_is_not_seen_and_what_is_opened_through_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("in", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text("x")
    with watch_files(tmp_path / "in") as opened, watch_writes(tmp_path / "in") as written:
        os.symlink(".", "other/here")
        os.symlink("a", "other/b")
        os.symlink(tmp_path, "other/above")
        assert not opened and not written
        os.symlink("../in/a", "other/c")
        assert len(opened) == len(written) == 1
        (tmp_path / "other/above/in/a").write_text("y")
    assert relative_names(written, tmp_path) == ["in/a"]


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


def test_a_run_on_other_files_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "arm" / "stage-2"
    run.mkdir(parents=True)

    def inputs(**entries: str) -> None:
        found = {name: {"path": path} for name, path in entries.items()}
        (run / "config.json").write_text(json.dumps({"inputs": found}))

    corpus = str(put(tmp_path / "corpus.txt", "handed over"))
    handed = {corpus: data_hash(corpus)}
    inputs(text=corpus, student=str(tmp_path / "arm" / "stage-1" / "model"))
    check_inputs(run, handed, tmp_path / "arm")
    put(tmp_path / "corpus.txt", "changed")
    with pytest.raises(InputError, match="differs from what was handed over"):
        check_inputs(run, handed, tmp_path / "arm")
    inputs(text=str(tmp_path / "more.txt"))
    with pytest.raises(
        InputError, match=r"trained with text .*more\.txt, which was not handed over"
    ):
        check_inputs(run, handed, tmp_path / "arm")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"student": "mine/better"}, "student is set by the bench"),
        ({"teacher": "mine/better"}, "teacher is set by the bench"),
        ({"eval_text": ("a.txt",)}, "eval_text is set by the bench"),
        ({"teacher_text": "mine/tower"}, "is not handed over"),
        ({"option": ("file=/tmp/answers",)}, "is not handed over"),
        ({"teacher_text": "stage-1/model"}, "is not handed over"),
        ({"teacher_text": "stage-0/../../private"}, "is not handed over"),
    ],
)
def test_settings_name_no_foreign_files(settings: dict, match: str) -> None:
    with pytest.raises(InputError, match=match):
        BenchMethod("a", "p", "text and teacher", (Stage("l1", settings=settings),))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"grid": (1.0, 2.0)}, "a `grid` of three values, or neither"),
        ({"grid": (1.0, 1.0, 2.0)}, "repeats a value"),
        ({"grid": ("a b", "c", "a-b")}, "grid values 'a b' and 'a-b' would have the same files"),
        ({"grid": (0.1, Decimal("0.1"), 2)}, "0.1 and .*0.1.* would have the same files; spell"),
        ({"weight": ""}, "or neither"),
        ({"name": "a\nb"}, "cannot be printed"),
        ({"data": "pictures"}, "expected one of text, text and teacher, captions with images"),
        ({"stages": ()}, "at least one stage"),
        ({"stages": (Stage("l1", ("wikipedia",)),)}, "text 'wikipedia' is not handed over"),
        ({"stages": (Stage("l1", ("captions",)),)}, "reads captions, so its data class"),
        ({"stages": (Stage("l1", ("corpus=1", "corpus")),)}, "give all of them a weight"),
        ({"stages": (Stage("l1", images=True),)}, "reads images, so its data class"),
        ({"stages": (Stage("l1", batch=640),)}, "batch from 0 to 64, the bench's"),
        ({"stages": (Stage("l1", student="mine/encoder"),)}, "the first student is the bench's"),
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
    with pytest.raises(InputError, match="expected a BenchMethod, an ObjectiveSpec or a sub-class"):
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
    with pytest.raises(InputError, match=r"method=l2: expected .*contrastive"):
        find_methods(["l2"])

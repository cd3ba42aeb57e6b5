"""Every kind of addition from a package of one's own, no file of groundling edited: docs/extending.md's."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import documents
import pytest
import torch
from documents import ROOT
from safetensors.torch import load_file
from tiny import homes, standins, toys
from tiny.homes import STEPS, log_of
from tiny.objectives import JOINS, still, two_classes

import groundling
from groundling.cli import main
from groundling.core.errors import InputError
from groundling.settings.objectives import TrainingStepSettings
from groundling.stats.verdict_report import collect_runs
from groundling.training.loop import train
from groundling.training.training_steps import VillaStep
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.single_stream import SingleStreamModel

Refusal = Callable[..., str]

FEW = ["--steps", "2", "--batch", "4", "--cpu", "--log-every", "1"]

MORE = {
    "mine/scored.py": '''
"""A task with a metric of its own."""

from dataclasses import replace

from groundling.core.metrics import ACCURACY
from mine.dogs import DOGS

OWN = replace(ACCURACY, name="right answers")
SCORED = replace(DOGS, name="scored dogs", metrics=(OWN, ACCURACY))
''',
    "mine/wrong.py": """
from groundling.objectives import Objective
from groundling.training.loop import PlainTrainingStep


def needs_one(value):
    return value


class Needs(PlainTrainingStep):
    def __init__(self, value):
        self.value = value


def made():
    raise KeyError("why")


NUMBER = 7
LINES = "two\\nlines"
""",
    "mine/unfinished.py": """
from groundling.objectives import Objective
from groundling.teachers import Teacher


class Nameless(Objective):
    def count(self, batch):
        return {}

    def forward(self, encoded, batch):
        return {}


class Unscored(Objective):
    name = "unscored"

    def count(self, batch):
        return {}


class Widthless(Teacher):
    name = "widthless"

""",
    "mine/raises.py": 'raise RuntimeError("first line\\nsecond line")\n',
    "mine/leaves.py": "import sys\n\nsys.exit(3)\n",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder: models and data under the names of the documents, and the package `mine`."""
    folder = tmp_path_factory.mktemp("outside")
    documents.write_modules(ROOT / "docs/extending.md", folder)
    for path, code in MORE.items():
        homes.put(folder / path, code)
    homes.student(folder / "bert-base-uncased")
    homes.teacher(folder / "openai/clip-vit-base-patch32")
    homes.text(folder / "my_text.txt", 24)
    homes.rte(folder / "glue_data")
    standins.own_images(folder)
    standins.store(folder / "runs/store", standins.PHOTOS)
    return folder


@pytest.fixture(autouse=True)
def place(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder; what was imported from it is forgotten afterwards."""
    monkeypatch.chdir(shared)
    before = list(sys.path)
    yield shared
    sys.path[:] = before
    for name in [name for name in sys.modules if name.split(".")[0] in {"mine", "changing"}]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def mine(place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`mine("villa")` is that module."""
    monkeypatch.syspath_prepend(str(place))
    return lambda name: importlib.import_module(f"mine.{name}")


def run(*words: str) -> None:
    assert main([*words]) == 0


def result(out: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((out / "result.json").read_text())
    return read


ADAPT = ["adapt", "--student", "bert-base-uncased", "--text", "my_text.txt", *FEW]
RTE = ["finetune", "--model", "bert-base-uncased", "--task", "glue/rte", "--data", "glue_data"]
RTE += FEW
DOGS = ["finetune", "--model", "bert-base-uncased", "--task", "mine.dogs:DOGS", "--data", "my_dogs"]
DOGS += FEW
PRETRAIN = ["pretrain", "--model", "bert-base-uncased", "--regions", "runs/store"]
PRETRAIN += ["--captions", "my_captions.tsv", *FEW]


def test_the_examples_are_all_there() -> None:
    """Or a change of the document's form would leave the tests below without them."""
    names = [path.removeprefix("mine/") for path in documents.modules(ROOT / "docs/extending.md")]
    expected = ["shorter", "bag", "dogs", "plain", "streams", "average", "villa"]
    assert names == [f"{name}.py" for name in expected]
    villa = documents.modules(ROOT / "docs/extending.md")["mine/villa.py"]
    assert len(villa.splitlines()) <= 70


# -- (a) an objective --------------------------------------------------------------------------------------------------
def test_an_objective_takes_part_in_every_training(tmp_path: Path) -> None:
    run(*ADAPT, "--arm", "mlm+mine.shorter:Shorter", "--out", str(tmp_path / "adapt"))
    assert set(result(tmp_path / "adapt")["train_metrics"]) == {"loss", "mlm", "length"}
    assert "mine.shorter:Shorter" in (tmp_path / "adapt/model/README.md").read_text()
    run(*RTE, "--objectives", "mine.shorter:Shorter", "--out", str(tmp_path / "tuned"))
    for line in log_of(tmp_path / "tuned/seed-0"):
        assert line["loss"] == pytest.approx(line["task"] + 0.01 * line["length"])
    run(*PRETRAIN, "--objectives", "mine.shorter:Shorter", "--out", str(tmp_path / "seen"))
    assert {"mlm", "sentence_image", "length"} <= set(log_of(tmp_path / "seen")[0])


def test_its_settings_are_options(tmp_path: Path, refusal: Refusal) -> None:
    words = [*ADAPT, "--arm", "mlm+mine.shorter:Shorter"]
    lengths = []
    for order in ("1", "2"):
        run(*words, "--option", f"norm_order={order}", "--out", str(tmp_path / order))
        lengths.append(log_of(tmp_path / order)[0]["length"])
    run(*words, "--out", str(tmp_path / "default"))
    assert lengths[0] > lengths[1] == log_of(tmp_path / "default")[0]["length"]
    given = {"student": "bert-base-uncased", "text": "my_text.txt", "steps": 2, "batch": 4}
    groundling.adapt(
        **given, arm="mlm+mine.shorter:Shorter", option=["norm_order=1"], cpu=True, log_every=1,
        out=tmp_path / "function",
    )  # fmt: skip
    assert log_of(tmp_path / "function")[0]["length"] == lengths[0]
    for flags, told in (
        ([*words, "--option", "norm_order=3", "--out", str(tmp_path / "1")], "option"),
        ([*words, "--option", "norm_order=0"], "norm_order = '0': expected"),
        ([*words, "--option", "norm_ordre=1"], "option=norm_ordre: no objective of this run reads"),
        ([*words, "--norm-order", "1"], "has no flag '--norm-order'"),
    ):
        out = [] if "--out" in flags else ["--out", str(tmp_path / "bad")]
        assert told in refusal(*flags, *out)


# -- (b) a teacher -----------------------------------------------------------------------------------------------------
TAUGHT = ["--teacher", "mine.bag:Bag"]


@pytest.mark.parametrize("command", ["adapt", "finetune"])
def test_a_teacher_is_asked_beforehand_or_in_every_step(command: str, tmp_path: Path) -> None:
    words = [*ADAPT, "--arm", "mlm+mine.bag:Follow"]
    if command == "finetune":
        words = [*RTE, "--objectives", "mine.bag:Follow"]
    logs = []
    for memory in ("2", "0"):
        out = tmp_path / memory
        run(*words, *TAUGHT, "--cache-gb", memory, "--out", str(out))
        logs.append(log_of(out if command == "adapt" else out / "seed-0"))
        assert "follow" in logs[-1][0]
    for cached, live in zip(*logs, strict=True):
        assert cached == pytest.approx(live, rel=1e-5)


def test_a_teacher_beside_captions_and_regions(tmp_path: Path) -> None:
    words = ["--objectives", "mine.bag:Follow", *TAUGHT]
    run(*PRETRAIN, *words, "--out", str(tmp_path / "seen"))
    assert "follow" in log_of(tmp_path / "seen")[0]
    flags = ["--model", str(tmp_path / "seen/model"), "--regions", "runs/store"]
    run("finetune", *DOGS[3:], *flags, *words, "--out", str(tmp_path / "tuned"))
    assert "follow" in log_of(tmp_path / "tuned/seed-0")[0]


# -- (c) a task --------------------------------------------------------------------------------------------------------
def test_a_task_is_trained_judged_and_found_again(tmp_path: Path, capsys: Any) -> None:
    for name in ("control", "other"):
        words = [*DOGS, "--seeds", "2", "--max-length", "48" if name == "other" else "40"]
        run(*words, "--out", str(tmp_path / name))
    own = ("mine.dogs:DOGS",)
    runs, metric = collect_runs("control", tmp_path / "control", own)["mine.dogs:DOGS"]
    assert (runs.seeds, metric.name, len(runs.ids)) == ((0, 1), "accuracy", 12)
    both = [str(tmp_path / name) for name in ("control", "other")]
    run("verdict", "--runs", *both, "--trust", *own, "--out", str(tmp_path / "verdict"))
    verdict = json.loads((tmp_path / "verdict/verdict.json").read_text())
    assert set(verdict["scores"]["control"]) == {"mine.dogs:DOGS"}
    about = ["--task", *own, "--data", "my_dogs"]
    run("ensemble", "--runs", both[0], *about, "--out", str(tmp_path / "mean"))
    run("data", "partition", *about, "--per-stratum", "2", "--out", str(tmp_path / "few.json"))
    counts = ["--captions", "my_captions.tsv", "--tokenizer", "bert-base-uncased"]
    table = tmp_path / "counts.json"
    run("data", "counts", *counts, "--out", str(table))
    words = ["grounded", "--base", both[0], "--other", both[1], "--task", "mine.dogs:DOGS"]
    words += ["--data", "my_dogs", "--counts", str(table), "--threshold", "1"]
    run(*words, "--tokenizer", "bert-base-uncased", "--out", str(tmp_path / "grounded"))
    assert result(tmp_path / "grounded")["seeds"] == [0, 1]


def test_a_metric_of_ones_own_is_found(tmp_path: Path) -> None:
    words = [word.replace("mine.dogs:DOGS", "mine.scored:SCORED") for word in DOGS]
    run(*words, "--out", str(tmp_path))
    assert result(tmp_path)["headline"] == "right answers"
    _, metric = collect_runs("mine", tmp_path, ("mine.scored:SCORED",))["mine.scored:SCORED"]
    assert metric.name == "right answers"
    with pytest.raises(InputError, match=r"trust=mine\.scored:SCORED"):
        collect_runs("mine", tmp_path)


@pytest.mark.usefixtures("in_process")
def test_a_recipe_runs_outside_tasks_and_objectives(tmp_path: Path) -> None:
    recipe = """
from groundling.recipes import Table, adapt, row

ADAPT = dict(student="bert-base-uncased", text=["my_text.txt"], steps=1, batch=4, cpu=True)
TASKS = {"mine.dogs:DOGS": dict(data="my_dogs", seeds=2, steps=1, batch=4, cpu=True)}
CONTROL = adapt("control", ADAPT, arm="mlm")
SHORTER = adapt("shorter", ADAPT, arm="mlm+mine.shorter:Shorter")
FOLLOWED = adapt("followed", ADAPT, arm="mlm")
FOLLOW = dict(objectives=["mine.bag:Follow"], teacher="mine.bag:Bag")
ROWS = [row("control", CONTROL, TASKS), row("shorter", SHORTER, TASKS), row("followed", FOLLOWED, TASKS, FOLLOW)]
TABLES = [Table("", ROWS)]
"""
    file = homes.put(tmp_path / "recipe.py", recipe)
    run("run", str(file), "--out", str(tmp_path / "out"))
    verdict = json.loads((tmp_path / "out/verdict.json").read_text())
    assert {name: set(tasks) for name, tasks in verdict["scores"].items()} == {
        name: {"mine.dogs:DOGS"} for name in ("control", "shorter", "followed")
    }


# -- (d) a vision-language model ---------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def plain(shared: Path) -> Path:
    """A model of the package's design, pre-trained by the command line."""
    out = shared / "runs/plain"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shared)
        run(*PRETRAIN, "--architecture", "mine.plain:ARCHITECTURE", "--out", str(out))
    return out


SEEN = ["--regions", "runs/store", "--architecture", "mine.plain:ARCHITECTURE"]


def test_a_design_is_pretrained_and_tuned_with_its_own_phase_and_head(plain, mine, tmp_path):
    assert set(result(plain)["train_metrics"]) == {"loss", "mlm"}
    assert result(plain)["architecture"] == "plain"
    model = ["--model", str(plain / "model")]
    run("finetune", *DOGS[3:], *model, *SEEN, "--save-model", "--out", str(tmp_path))
    saved = load_file(tmp_path / "seed-0/model/groundling_heads.safetensors")
    # The plain head of a BERT with a pooler has the same shape: its own has no dropout, and this is its only layer.
    assert {name for name in saved if "head" in name} == {
        "supervised.head.classify.weight",
        "supervised.head.classify.bias",
    }
    again = load_encoder(tmp_path / "seed-0/model", architecture="mine.plain:ARCHITECTURE")
    assert isinstance(again, SingleStreamModel) and again.join.kind == "plain"
    words = homes.words()
    with pytest.raises(InputError, match="another: `build` returned a model named 'plain'"):
        replace(mine("plain").ARCHITECTURE, name="another").make(toys.bert(len(words)), words, 12)
    with pytest.raises(InputError, match=r"unknown kind 'plain'.*architecture MODULE:NAME"):
        load_encoder(plain / "model")
    # A next phase resumes from it, too.
    flags = ["--model", str(tmp_path / "seed-0/model"), "--architecture", "mine.plain:ARCHITECTURE"]
    run("pretrain", *PRETRAIN[3:], *flags, "--out", str(tmp_path / "more"))


def test_two_streams_are_pretrained_tuned_and_loaded(shared: Path, tmp_path: Path) -> None:
    streams = ["--architecture", "mine.streams:ARCHITECTURE"]
    run(*PRETRAIN, *streams, "--out", str(tmp_path / "seen"))
    assert result(tmp_path / "seen")["architecture"] == "streams"
    model = ["--model", str(tmp_path / "seen/model"), "--regions", "runs/store", *streams]
    run("finetune", *DOGS[3:], *model, "--save-model", "--out", str(tmp_path / "tuned"))
    again = load_encoder(tmp_path / "tuned/seed-0/model", architecture="mine.streams:ARCHITECTURE")
    assert again.regions_provenance


# -- (e) a kind of model folder ----------------------------------------------------------------------------------------
KIND = ["--model-format", "mine.average:KIND"]


@pytest.fixture(scope="module")
def average(shared: Path) -> Path:
    """A model of the package's kind, fine-tuned from a BERT's word embeddings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shared)
        run(*DOGS, *KIND, "--save-model", "--out", "runs/average")
    return shared / "runs/average/seed-0/model"


def test_a_kind_is_tuned_saved_and_loaded_again(average: Path, mine: Any, tmp_path: Path) -> None:
    assert (average / "words.safetensors").exists()
    run("finetune", *DOGS[3:], "--model", str(average), *KIND, "--out", str(tmp_path))
    model = load_encoder(average, model_format="mine.average:KIND")
    assert type(model).__name__ == "Average"
    with pytest.raises(InputError, match=": no model found"):
        load_encoder(average)
    before = load_encoder("bert-base-uncased").word_embeddings().weight
    after = model.word_embeddings().weight
    assert before.shape == after.shape and not torch.equal(before, after)


def test_a_model_of_ones_own_kind_and_task_is_asked_again(average, capsys, tmp_path):
    words = ["--model", str(average), "--data", "my_dogs", "--split", "dev", "--cpu"]
    words += ["--trust", "mine.average:KIND", "mine.dogs:DOGS"]
    run("evaluate", *words)
    scored = json.loads(capsys.readouterr().out)
    assert scored["scores"]["dev"] == result(average.parent)["scores"]["dev"]
    assert "notes" not in scored
    model = shutil.copytree(average, tmp_path / "model")
    about = json.loads((model / "groundling_task.json").read_text())
    about["modules"]["mine.dogs:DOGS"] = "of another file"
    (model / "groundling_task.json").write_text(json.dumps(about))
    run("predict", "--model", str(model), *words[2:], "--out", str(tmp_path / "answers.jsonl"))
    assert "dogs.py: changed since the model was trained" in capsys.readouterr().err
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == scored["n"]["dev"]


# -- (f) an inner step -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [*JOINS, "bert"])
def test_the_documents_villa_is_the_built_in_one(name: str, mine: Any, tmp_path: Path) -> None:
    """In every modality; `test_villa` compares the built-in one with a plain restatement."""
    modality = "both" if name in JOINS else "text"
    options = TrainingStepSettings(adversarial_modality=modality, adversarial_lr=0.5)
    logs = []
    for place, step in (("own", mine("villa").Villa(size=0.5)), ("built-in", VillaStep(options))):
        model, task, data = two_classes(name)
        config = replace(STEPS, steps=3, gradient_accumulation_steps=2)
        train(still(model), [still(task)], data, config, tmp_path / place, training_step=step)
        lines = log_of(tmp_path / place)
        logs.append([[line[key] for key in ("loss", "task", "divergence")] for line in lines])
    for own, built_in in zip(*logs, strict=True):
        assert own == pytest.approx(built_in, rel=1e-4)
        assert own[2] > 0


# -- what is wrong with a module is one line ---------------------------------------------------------------------------
TASK = [*RTE[:3], "--data", "glue_data", *FEW, "--task"]
OBJECTIVE = [*RTE, "--objectives"]
TEACHER = [*RTE, "--objectives", "contrastive", "--teacher"]
STEP = [*RTE, "--training-step"]
NEW_MODEL = [*RTE, "--regions", "runs/store", "--architecture"]
FORMAT = [*RTE, "--model-format"]
ARM = [*ADAPT, "--arm"]
PRETRAINED = [*PRETRAIN, "--architecture"]
NO_OBJECTIVE = "expected a sub-class of Objective"
WRONG = [
    (TASK, "nowhere:THING", "'nowhere' cannot be imported"),
    (STEP, "mine.dogs:CATS", "has no 'CATS'; there are: "),
    (NEW_MODEL, "mine.raises:THING", "cannot be imported (RuntimeError: first line"),
    (FORMAT, "mine.leaves:THING", "cannot be imported (SystemExit: 3)"),
    (TASK, "mine.wrong:NUMBER", "found int, expected Task"),
    (OBJECTIVE, "mine.wrong:LINES", NO_OBJECTIVE),
    (OBJECTIVE, "mine.bag:Bag", NO_OBJECTIVE),
    (ARM, "mine.dogs:DOGS", NO_OBJECTIVE),
    (TEACHER, "mine.wrong:NUMBER", "expected a Teacher"),
    (TEACHER, "mine.wrong:made", "the call failed (KeyError: 'why')"),
    (STEP, "mine.wrong:Needs", "the call failed (TypeError: "),
    (STEP, "mine.bag:Bag", "expected a TrainingStep, found Bag"),
    (NEW_MODEL, "mine.plain:PlainEmbeddings", "class PlainEmbeddings, expected Architecture"),
    (FORMAT, "mine.average:Average", "found the class Average, expected ModelFormat"),
    (PRETRAINED, "mine.plain:build", "found function, expected Architecture"),
    (OBJECTIVE, "mine.unfinished:Nameless", "objectives: expected distinct names, found ["),
    (OBJECTIVE, "mine.unfinished:Unscored", "this objective has no method `forward`"),
    (
        [*OBJECTIVE, "mine.bag:Follow", "--teacher"],
        "mine.unfinished:Widthless",
        "a teacher needs a `name`, and a `width` or `image_width`",
    ),
    (OBJECTIVE, "mine.bag:Follow", "needs teacher"),
    ([*ADAPT, "--arm"], "mlm+mine.bag:Follow", "needs teacher"),
    ([*RTE, "--teacher"], "mine.length:Length", "no objective uses teacher=mine.length:Length"),
    (
        ["finetune", "--model", "openai/clip-vit-base-patch32", *RTE[3:], "--training-step"],
        "mine.villa:Villa",
        "a perturbation needs texts or regions",
    ),
]


@pytest.mark.parametrize(("words", "value", "expected"), WRONG)
def test_what_is_wrong_is_one_line(words, value, expected, refusal, tmp_path):
    complaint = refusal(*words, value, "--out", str(tmp_path / "out"))
    assert expected in complaint
    if "imported" in expected:
        assert value.partition(":")[0] in complaint and not (tmp_path / "out").exists()


def test_an_edited_module_makes_another_run(refusal, place, monkeypatch, tmp_path):
    """Or a finished run of yesterday's code would be taken for today's."""
    monkeypatch.chdir(tmp_path)
    code = documents.modules(ROOT / "docs/extending.md")["mine/shorter.py"]
    homes.put(tmp_path / "changing.py", code)
    words = [word.replace("glue_data", str(place / "glue_data")) for word in RTE]
    words = [word.replace("bert-base", f"{place}/bert-base") for word in words]
    words += ["--objectives", "changing:Shorter", "--out", "out"]
    run(*words)
    before = result(Path("out"))
    run(*words)
    assert result(Path("out")) == before
    homes.put(tmp_path / "changing.py", code + "\n# another one\n")
    assert "module changing:Shorter" in refusal(*words)

"""While a run runs: what it prints, what it does without a hub, with little memory, and from an existing CLIP."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from PIL import Image
from tiny import homes, standins, toys
from tiny.homes import put, table
from tiny.jobs import note, refuse
from torch import nn
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    BertModel,
    CLIPImageProcessorPil,
    CLIPModel,
)

import groundling
from groundling.cli import main
from groundling.commands.train_clip import COMMAND as teach
from groundling.commands.train_clip import TrainClipConfig
from groundling.core.batch import collate
from groundling.core.errors import InputError
from groundling.models import hub
from groundling.models.clip import load_clip_dual_encoder
from groundling.models.loading import load_config, load_tokenizer, load_weights
from groundling.models.text_encoder import gradient_checkpointing
from groundling.objectives.masked_lm import MaskedLM
from groundling.runs import progress
from groundling.runs.folder import whole_folder
from groundling.runs.jobs import Job, run_jobs
from groundling.runs.progress import Progress, print_line
from groundling.runs.run import Checkpoints, Counters
from groundling.settings.training import TrainingArguments
from groundling.training.loop import train

CPU = TrainingArguments(steps=3, batch=8, lr=1e-3, log_every=1, cpu=True)


# -- what is printed -------------------------------------------------------------------------------------------------
@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come at once."""
    monkeypatch.setattr(progress, "SECONDS", 0.0)


@pytest.mark.usefixtures("soon")
def test_d2_without_a_terminal_whole_lines_come_now_and_then(capsys: Any) -> None:
    shown = Progress("training", 1000, "step", done=400)
    for number in range(2):
        shown.set_measurements({"loss": 3.0 - number, "mlm": 1.0})
        shown.update(30)
    shown.close()
    list(progress.track([0], "texts", "batch"))
    unknown = Progress("regions", 0, "image")
    unknown.update(64)
    unknown.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" steps, ")[0] for line in lines if "training" in line] == [
        "training: 400 of 1000",
        "training: 430 of 1000",
        "training: 460 of 1000",
    ]
    assert "loss=2.000, mlm=1.000" in lines[2]
    assert lines[4].startswith("texts: 1 of 1 batches, ")
    assert lines[-1].startswith("regions: 64 of ")
    assert not [line for line in lines if not line.strip() or "\r" in line]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(("columns", "is_bar"), [(0, False), (80, True)])
def test_a_terminal_without_width_gets_lines(columns, is_bar, monkeypatch) -> None:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        shown = Progress("training", 10, "step")
        shown.update()
        assert shown.is_bar == is_bar
        shown.close()
    said = b""
    while b"training" not in said:  # it may arrive in parts; after its end, reading fails
        said += os.read(ours, 1000)


@pytest.mark.usefixtures("soon")
def test_other_processes_are_silent(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("RANK", "1")
    shown = Progress("training", 10, "step")
    shown.update()
    print_line("a line")
    assert capsys.readouterr().err == ""


# -- a hub that is not there -----------------------------------------------------------------------------------------
@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub that does not answer, although nobody said so; what it was asked for."""
    asked: list[str] = []

    class Session:
        def head(self, address: str, timeout: float) -> None:
            asked.append(address)
            raise ConnectionError("Name or service not known")

    monkeypatch.setattr(hub, "is_offline_mode", lambda: False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "get_session", Session)
    hub.is_hub_reachable.cache_clear()
    yield asked
    hub.is_hub_reachable.cache_clear()


def test_a_hub_id_without_a_hub_is_one_line_after_one_question(offline: list[str]) -> None:
    for load in (load_config, load_tokenizer, lambda name: load_weights(BertModel, name)):
        with pytest.raises(InputError, match=r"^no-one/here: .*not in the hub's cache.*answer\)$"):
            load("no-one/here")
    assert len(offline) == 1


def test_what_the_cache_has_still_loads(offline, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    kept = cache / "models--some--bert"
    homes.put(kept / "refs/main", "a" * 40)
    homes.student(tmp_path / "student")
    shutil.copytree(tmp_path / "student", kept / "snapshots" / ("a" * 40))
    assert load_config("some/bert").model_type == "bert"
    assert len(load_tokenizer("some/bert")) == len(load_tokenizer(tmp_path / "student"))
    assert load_weights(BertModel, "some/bert").config.model_type == "bert"
    assert len(offline) == 1


# -- less memory -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["bert", "deberta", "electra", "modernbert", "roberta"])
def test_recomputing_changes_no_number_of_a_text_encoder(name, student, tmp_path):
    texts = toys.TextDataset(toys.examples(16), student(name).inputs(40)[0])
    found: dict[bool, Any] = {}
    for again in (False, True):
        model = student(name)
        torch.manual_seed(1)
        mask = int(model.tokenizer.mask_token_id)
        config = replace(CPU, gradient_checkpointing=again)
        train(model, [MaskedLM(model.sizes, mask_id=mask)], texts, config, tmp_path / str(again))
        found[again] = homes.log_of(tmp_path / str(again)), model.state_dict()
    assert found[False][0] == found[True][0]
    assert_equal(found[False][1], found[True][1])


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def gradients(model: nn.Module, batch: Any, again: bool) -> tuple[dict[str, torch.Tensor], int]:
    """Gradients of a loss with dropout, and how often layers of Hugging Face's ran."""
    calls: list[str] = []
    model.train()
    hooks = [
        part.register_forward_hook(lambda *_: calls.append("layer"))
        for name, part in model.named_modules()
        if name.endswith("attention.self") or name.endswith("self_attn")
    ]
    torch.manual_seed(5)
    if again:
        with gradient_checkpointing(model):
            loss(model(batch)).backward()
    else:
        loss(model(batch)).backward()
    for hook in hooks:
        hook.remove()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found, len(calls)


def loss(encoded: Any) -> torch.Tensor:
    parts = (encoded.text, encoded.visual, encoded.joint_text, encoded.text_embeds)
    parts = (*parts, encoded.image_embeds)
    return sum((part.square().sum() for part in parts if part is not None), torch.zeros(()))


def test_recomputing_changes_no_gradient_of_models_around_encoders(
    cross: Any, towers: Any, samples: Any, pictures: Any
) -> None:
    cases = [
        (cross, collate(samples.get([0, 1, 7]))),
        (towers, collate(pictures.get([0, 1, 2]))),
        (toys.seer(), collate(toys.seen(4).get([0, 1, 2], ()))),
    ]
    for model, batch in cases:
        plain, once = gradients(model, batch, again=False)
        less, twice = gradients(model, batch, again=True)
        assert twice == 2 * once > 0  # every layer of the encoders ran again
        assert_equal(plain, less)
        assert gradients(model, batch, again=False)[1] == once  # off again


# -- an existing CLIP ------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP of odd preprocessing, and eight captioned pictures."""
    folder = tmp_path_factory.mktemp("clip")
    homes.teacher(folder / "clip")
    side = load_config(folder / "clip").vision_config.image_size
    CLIPImageProcessorPil(
        size={"shortest_edge": side},
        crop_size={"height": side, "width": side},
        image_mean=[0.5, 0.25, 0.125],
    ).save_pretrained(folder / "clip")
    rows = []
    for number in range(8):
        homes.picture(folder / f"images/{number}.png", (number * 30, 9, 99), (20, 30))
        rows.append(f"a dog and {number} cats\t{number}.png")
    homes.put(folder / "captions.tsv", "\n".join(rows) + "\n")
    return folder


def continued(place: Path, **options: Any) -> TrainClipConfig:
    return TrainClipConfig(
        model=str(place / "clip"),
        captions=str(place / "captions.tsv"),
        images=str(place / "images"),
        **options,
    )


def test_teach_goes_on_from_a_clip(place: Path, tmp_path: Path) -> None:
    still = teach(continued(place), replace(CPU, steps=1, lr=0.0), tmp_path / "still")
    teach(continued(place), replace(CPU, steps=1), tmp_path / "moved")
    before = CLIPModel.from_pretrained(place / "clip").state_dict()
    assert_equal(before, CLIPModel.from_pretrained(tmp_path / "still/model").state_dict())
    folders = (place / "clip", tmp_path / "moved/model")
    after = CLIPModel.from_pretrained(folders[1]).state_dict()
    assert not torch.equal(before["logit_scale"], after["logit_scale"])
    assert "notes" not in still
    one, other = (AutoImageProcessor.from_pretrained(f) for f in folders)
    assert one.to_dict() == other.to_dict()
    assert list(other.image_mean) == [0.5, 0.25, 0.125]
    words, others = (AutoTokenizer.from_pretrained(folder).get_vocab() for folder in folders)
    assert words == others


def test_its_pictures_are_prepared_as_its_processor_says(place: Path) -> None:
    towers, cut = load_clip_dual_encoder(place / "clip")
    image = Image.open(place / "images/3.png")
    processor = AutoImageProcessor.from_pretrained(place / "clip", backend="pil")
    wanted = processor(images=image, return_tensors="pt")["pixel_values"]
    pixels = torch.from_numpy(cut(image)).unsqueeze(0)
    mine = (pixels.float() / towers.max_pixel - towers.mean) / towers.std
    torch.testing.assert_close(mine, wanted)


def test_settings_of_a_new_clip_are_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"vision_tower=8 1: .* keeps its own; leave it out"):
        teach(continued(place, vision_tower=(8, 1)), CPU, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_clip_is_refused(place: Path, tmp_path: Path) -> None:
    config = replace(continued(place), model=str(homes.student(tmp_path / "bert")))
    with pytest.raises(InputError, match="a bert model; expected a CLIP"):
        teach(config, CPU, tmp_path / "out")


def test_files_are_on_the_disk_before_they_are_named(tmp_path, monkeypatch):
    done: list[object] = []
    replace = os.replace
    monkeypatch.setattr("os.fsync", lambda handle: done.append(os.fstat(handle).st_ino))
    monkeypatch.setattr("os.replace", lambda *paths: (done.append("named"), replace(*paths)))
    with whole_folder(tmp_path / "model") as folder:
        homes.put(folder / "weights", "a")
    of_file, of_folder = ((tmp_path / name).stat().st_ino for name in ("model/weights", "model"))
    assert done == [of_file, "named", of_folder]
    done.clear()
    model = nn.Linear(2, 2)
    Checkpoints(tmp_path).save(model, torch.optim.SGD(model.parameters()), Counters(step=1))
    state = tmp_path / "step-000000001"
    files = (*state.iterdir(), state, tmp_path)
    assert set(done) == {"named", *(path.stat().st_ino for path in files)}


# -- jobs --------------------------------------------------------------------------------------------
ROOT = Path(groundling.__file__).parent.parent
PLANTED = """
from pathlib import Path
Path("ran").touch()
raise ImportError("planted")
"""
SEVERAL = """
import os
import sys

from groundling.runs import jobs

jobs._set_up_process = abs  # of a number, which loads no torch
os.environ.pop("OMP_WAIT_POLICY", None)
os.environ["OMP_NUM_THREADS"] = "7"
before = dict(os.environ)
of_job = jobs.run_jobs([jobs.Job("one", os.getenv, ("OMP_NUM_THREADS",))], 1, print)
assert of_job == {"one": "1"} and os.environ == before
found = list(jobs.run_parallel(os.getenv, [("OMP_NUM_THREADS",), ("OMP_WAIT_POLICY",)], 2))
assert sorted(found) == ["1", "PASSIVE"] and os.environ == before

from tiny.jobs import thread_that_stays

# Foreign code has a process of its own, which ends with it.
every = [
    jobs.Job("before", os.getpid, ()),
    jobs.Job("foreign", os.getpid, (), after=("before",), isolated=True),
    jobs.Job("slow to end", thread_that_stays, (), after=("before",), isolated=True),
    jobs.Job("after", os.getpid, (), after=("foreign",)),
]
found = jobs.run_jobs(every, 1, print)
assert found["before"] == found["after"] != found["foreign"]
try:
    os.kill(found["foreign"], 0)
except ProcessLookupError:
    pass
else:
    raise AssertionError("the process of the foreign job is still there")
for call, words, isolated in (
    (sys.exit, "SystemExit", True),
    (divmod, "TypeError", True),
    (os.abort, "was killed", True),
    (os.abort, "was killed", False),
):
    try:
        jobs.run_jobs([jobs.Job("bad", call, (), isolated=isolated)], 1, print)
    except jobs.InputError as error:
        assert str(error).startswith("bad: ") and words in str(error), error
    else:
        raise AssertionError(words)
"""
"""Without `if __name__ == "__main__":`, which processes would need that begin with the script."""


def test_workers_run_nothing_of_the_working_directory(tmp_path: Path) -> None:
    for name in ("pickle", "socket", "selectors"):
        put(tmp_path / f"data/{name}.py", PLANTED)
    script = put(tmp_path / "script.py", SEVERAL)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path / "data",
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
    )
    assert not (tmp_path / "data/ran").exists()
    assert done.returncode == 0, done.stderr
    assert (
        "TypeError: divmod expected 2 arguments" in done.stderr
    )  # for the author of the foreign code


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("processes", [1, 3])
def test_jobs_wait_for_those_before_them_and_the_first_mistake_is_named(processes, tmp_path):
    path = str(tmp_path / "order")
    said: list[str] = []
    jobs = [
        Job("late", note, (path, "late"), after=("second", "first")),
        Job("first", note, (path, "first")),
        Job("second", note, (path, "second"), after=("first",)),
    ]
    found = run_jobs(jobs, processes, said.append)
    assert found == {name: name for name in ("first", "second", "late")}
    assert Path(path).read_text().split() == ["first", "second", "late"]
    assert [line.split(":")[0] for line in said] == ["first", "second", "late"]
    with pytest.raises(ValueError, match=r"names that do not exist: \['x'\]"):
        run_jobs([Job("x", note, (path, "x"), after=("nothing",))], processes, said.append)
    wrong = Job("wrong", refuse, ("x.txt: no such file",))
    never = Job("never", note, (path, "never"), after=("wrong",))
    with pytest.raises(InputError, match=r"^wrong: x.txt: no such file$"):
        run_jobs([wrong, never], processes, said.append)
    assert "never" not in Path(path).read_text()


# -- dry run -----------------------------------------------------------------------------------------
CLIP = ["--size", "16", "--patch-size", "8", "--vision-tower", "32", "1", "--text-tower", "32", "1"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dry")
    homes.student(folder / "student")
    homes.teacher(folder / "clip")
    homes.text(folder / "text.txt", 12)
    standins.own_images(folder)
    standins.store(folder / "store", standins.PHOTOS)
    standins.backbone(folder / "vit")
    return folder


COMMANDS = {
    "adapt --student student --arm mlm --text text.txt --batch 4": {"texts": 12},
    "finetune --model student --data my_questions.csv --text question --image photo --label answer --batch 4": {
        "train": 30,
        "dev": 6,
    },
    "pretrain --model student --regions store --captions my_captions.tsv --batch 4": {"samples": 6},
    "train-clip --captions my_captions.tsv --images my_photos --vocab-size 300 --batch 4": {
        "images": 6,
        "missing images": 0,
    },
    "regions my_photos --backbone vit --grid 2": {},
}
"""What is read, by command."""


@pytest.mark.parametrize("line", COMMANDS)
def test_inputs_are_read_and_nothing_is_written(line, inputs, monkeypatch, capsys):
    monkeypatch.chdir(inputs)
    before = homes.digests(inputs)
    words = [*line.split(), *(CLIP if "train-clip" in line else ()), "--cpu", "--out", "runs/x"]
    assert main([*words, "--dry-run"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["dry_run"].startswith(("training, ", "regions, 12 images"))
    assert COMMANDS[line].items() <= said["read"].items()
    assert homes.digests(inputs) == before


@pytest.mark.parametrize("name", ["make-world", "make-tasks"])
def test_nothing_is_rendered(name: str, tmp_path: Path, capsys) -> None:
    assert main(["data", name, "--out", str(tmp_path / "x"), "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["dry_run"] == "rendering"
    assert not (tmp_path / "x").exists()


def test_notes_come_too(inputs: Path, tmp_path: Path) -> None:
    rows = [(f"text {number}", ("1", "1.0", "2")[number % 3]) for number in range(30)]
    data = put(tmp_path / "q.csv", table(("q", "y"), *rows))
    settings = {"model": inputs / "student", "data": data, "text": "q", "label": "y"}
    said = groundling.finetune(**settings, cpu=True, batch=4, dry_run=True)
    assert any("are the same number" in note for note in said["notes"])

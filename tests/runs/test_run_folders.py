"""What a run's folder owes to others: it is free after a refusal, to be read by all, and never holds half a file."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import PartialState
from tiny import homes, standins
from tiny.commands import same
from tiny.homes import STEPS, digests, never, put
from tiny.standins import PHOTOS
from transformers import AutoModel

import groundling
from groundling.cli import COMMANDS, main
from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.core.errors import InputError
from groundling.core.registry import resolve
from groundling.runs import folder as folders
from groundling.runs.folder import (
    LOCK,
    NO_RESULTS,
    PREPARED,
    data_hash,
    open_run,
    read_json,
    read_log,
    read_result,
    sha256_of,
    whole_file,
    whole_folder,
    write_json,
    write_whole,
)
from groundling.runs.run import Checkpoints, Counters, Run
from groundling.settings.fields import replace_settings
from groundling.settings.training import TrainingArguments
from groundling.studies.clip_td.combined_runs import finished_seeds
from groundling.studies.clip_td.shift import text_only_run
from groundling.tasks import Task
from groundling.training import fit as fitting

TRAINED = ["--cpu", "--batch", "4", "--steps", "2", "--save-every", "1"]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What commands that train read."""
    folder = tmp_path_factory.mktemp("shelf")
    homes.student(folder / "student")
    homes.seeing_clip(folder / "clip")
    homes.text(folder / "text.txt")
    homes.rte(folder / "glue")
    standins.own_images(folder)
    standins.store(folder / "store", PHOTOS)
    assert main(["data", "make-world", *standins.WORLD, "--out", str(folder / "world")]) == 0
    return folder


def commands(shelf: Path) -> dict[str, list[str]]:
    """A small run of every command that trains, without its `--out`."""
    small = "--size 16 --patch-size 8 --vision-tower 16 1 --text-tower 16 1 --projection-dim 8"
    captions = f"--captions {shelf}/my_captions.tsv"
    text = f"--student {shelf}/student --teacher {shelf}/clip --text {shelf}/text.txt"
    arms = f"--adapt.student {shelf}/student --adapt.text {shelf}/text.txt --adapt.teacher {shelf}/clip"
    of_arms = "--train.steps 1 --train.batch 4 --train.cpu --tune.steps 1 --tune.batch 4 --tune.cpu"
    lines = {
        "train-clip": f"train-clip {captions} --images {shelf}/my_photos {small}",
        "adapt": f"adapt {text} --max-length 32",
        "pretrain": f"pretrain --architecture visualbert --model {shelf}/student --regions {shelf}/store {captions}",
        "finetune": f"finetune --model {shelf}/student --task glue/rte --data {shelf}/glue --seeds 1",
        "probe": f"probe --model {shelf}/student --data {shelf}/world --seeds 1 --questions truth",
    }
    every = {name: [*line.split(), *TRAINED] for name, line in lines.items()}
    compared = f"compare --arms l1 --tasks glue/rte --data {shelf}/glue --seeds 1 {arms} {of_arms}"
    return every | {"compare": compared.split()}


def training_commands() -> list[str]:
    """Commands that have settings of a training."""
    return [
        name
        for name, command in COMMANDS.items()
        if any(isinstance(one, TrainingArguments) for one in command.settings.values())
    ]


def test_every_command_that_trains_is_among_those_refused_here(shelf: Path) -> None:
    assert sorted(commands(shelf)) == sorted(training_commands())


@pytest.mark.parametrize("name", training_commands())
def test_a_command_that_was_refused_before_its_first_step_leaves_its_folder_to_others(
    name: str, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: None
) -> None:
    """Whatever it had prepared by then: texts, a tokenizer, a teacher's features."""

    def refuse(*_: object) -> None:
        raise InputError("refused by the test")

    homes.import_recipes()
    monkeypatch.setattr(groundling.training.loop, "plan_batches", refuse)
    monkeypatch.setenv("GROUNDLING_CACHE", "")  # tokenised texts stay in the folder
    assert main([*commands(shelf)[name], "--out", str(tmp_path / "out")]) == 2
    opened = [path.parent for path in (tmp_path / "out").rglob("config.json")]
    opened = [folder for folder in opened if PREPARED not in folder.parts]
    assert opened
    if name in ("train-clip", "adapt"):
        assert list((tmp_path / "out" / PREPARED).rglob("*.json"))
    for folder in opened:
        open_run(folder, "another", {"lr": 1}, {})
        left = [path for path in folder.rglob("*") if path.is_file()]
        assert {path.name for path in left} - {LOCK} == {"config.json"}


def trained(out: Path) -> dict[str, object]:
    """Weights, predictions and logs of every run below a folder."""
    files = homes.digests(out)
    kept = {name: files[name] for name in files if name.endswith((".safetensors", ".tsv"))}
    kept |= {name: files[name] for name in files if "predictions" in name}
    return kept | {str(log): homes.log_of(out / log) for log in logs_below(out)}


def logs_below(out: Path) -> list[Path]:
    return sorted(log.parent.relative_to(out) for log in out.rglob("log.jsonl"))


@pytest.mark.parametrize("name", training_commands())
def test_a_killed_run_ends_as_a_whole_one_and_a_finished_one_stays(
    name: str, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: None
) -> None:
    """Bit-equal: two runs of the same settings, one of which died in its second step."""
    line = [*commands(shelf)[name], "--out"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main([*line, str(whole)]) == 0
    with monkeypatch.context() as patch:
        patch.setattr("groundling.training.fit.train", homes.training_with(homes.dying(2)))
        with pytest.raises(homes.Killed):
            main([*line, str(killed)])
    assert not (killed / "result.json").exists()

    other = "--save-every 9 --log-every 9 --workers 0"
    changed = " ".join(line).replace("--save-every 1", other).split()
    assert main([*changed, str(killed)]) == 0
    found = trained(whole)
    assert len(found) > len(logs_below(whole)) > 0
    assert trained(killed) == found
    before = homes.digests(whole)
    assert main([*line, str(whole)]) == 0
    assert homes.digests(whole) == before


def test_what_was_prepared_for_other_settings_is_not_taken(shelf: Path, tmp_path: Path) -> None:
    """The samples were fewer than a batch; by then there was a tokenizer, of another vocabulary."""
    line = [*commands(shelf)["train-clip"], "--out", str(tmp_path / "out")]
    large = [*line, "--vocab-size", "600"]
    large[large.index("--batch") + 1] = "200"
    assert main(large) == 2
    assert main([*line, "--vocab-size", "530"]) == 0
    assert main([*line[:-1], str(tmp_path / "fresh"), "--vocab-size", "530"]) == 0
    made = homes.digests(tmp_path / "out" / "model")
    assert made == homes.digests(tmp_path / "fresh" / "model")
    assert not (tmp_path / "out" / PREPARED).exists()


@pytest.mark.parametrize("kept", ["checkpoints/step-000000001/x", "seed-0/result.json", "notes.md"])
def test_what_a_run_saved_or_nobody_knows_keeps_its_folder(kept: str, tmp_path: Path) -> None:
    open_run(tmp_path, "train-clip", {"lr": 1}, {})
    put(tmp_path / kept, "{}")
    for name in NO_RESULTS:
        put(tmp_path / "inside" / name, "")
    with pytest.raises(InputError, match=r"holds another run \(config.lr: 1 there, 2 now\)"):
        open_run(tmp_path, "train-clip", {"lr": 2}, {})
    assert (tmp_path / kept).exists()


# -- modes -------------------------------------------------------------------------------------------------------------
def owner_only(path: Path) -> None:
    """As safetensors writes."""
    put(path, "x").chmod(0o600)


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_files_have_the_mode_that_the_umask_says(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        with whole_folder(tmp_path / "run") as partial:
            owner_only(partial / "model" / "model.safetensors")
        write_whole(tmp_path / "run" / "page.html", "x")
        with whole_file(tmp_path / "run" / "lines.jsonl") as file:
            file.write("{}\n")
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o666 & ~mask}


# -- disks that are full, or cannot be written to ----------------------------------------------------------------------
def fill_up(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_stays_the_same_is_not_written_again(tmp_path: Path) -> None:
    """Another run whose input it is would no longer be the same, and a finished run may lie on a read-only disk."""
    path = tmp_path / "result.json"
    write_json(path, {"score": 1})
    at(path, 10**9)
    write_json(path, {"score": 1})
    assert path.stat().st_mtime == 10**9


@pytest.mark.parametrize("before", ["", "older"])
def test_a_disk_that_fills_up_leaves_no_half_file(before, tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    if before:
        path.write_text(before)

    def streamed() -> None:
        with whole_file(path) as file:
            file.write("half of it")
            file.flush()
            fill_up()

    monkeypatch.setattr(os, "replace", fill_up)
    for write in (streamed, lambda: write_whole(path, "new"), lambda: write_json(path, {})):
        with pytest.raises(InputError, match=r"page.html: cannot be written .*No space") as error:
            write()
        assert "checkpoint" not in str(error.value)
        assert [one.read_text() for one in tmp_path.iterdir()] == ([before] if before else [])


WRITE = re.compile(r"(?<!self)\.write_(?:text|bytes)\(|\.open\(\"[wax]")
WRITERS = {
    *("runs/folder.py", "runs/run.py", "commands/adapt/run.py", "commands/finetune/run.py"),
    *("commands/pretrain/run.py", "commands/train_clip/run.py"),
    *(
        "models/adapters.py",
        "models/sentence_modules.py",
        "studies/worlds/stand_ins.py",
        "teachers/vectors.py",
    ),
    *("vision_language/single_stream.py", "training/loop.py"),
}
"""Modules that write by their own hands: into a folder that is renamed, a log's next line, a switch of Linux."""


def test_all_others_write_whole_files_or_none() -> None:
    root = Path(groundling.__file__).parent
    found = {path for path in root.rglob("*.py") if WRITE.search(path.read_text())}
    assert {str(path.relative_to(root)) for path in found} == WRITERS


def test_e14_json_is_bounded_in_depth_and_numbers(tmp_path: Path) -> None:
    for hostile in ("[" * 10**5, "9" * 5000, "[1" + "0" * 5000 + "]"):
        file = put(tmp_path / "a.json", hostile)
        with pytest.raises(InputError, match=r"a.json: not valid JSON"):
            read_json(file)


def test_e14_what_commands_wrote_is_looked_at_before_it_is_taken(tmp_path: Path) -> None:
    out = open_run(tmp_path / "run", "finetune", {"steps": 1}, {})
    put(out / "config.json", "[]")
    with pytest.raises(InputError, match=r"config.json: holds a list, expected an object"):
        open_run(out, "finetune", {"steps": 1}, {})
    put(out / "seed-0/predictions_val.jsonl", "")
    task = resolve("tasks", Task, "vcr/answer")
    put(out / "seed-0/result.json", json.dumps({"task": task.name}))
    with pytest.raises(InputError, match=r"config.json: cannot be read"):
        text_only_run(out / "seed-0/predictions_val.jsonl")
    assert finished_seeds(str(out), task.name) == {}
    put(out / "seed-0/result.json", "[1]")
    with pytest.raises(InputError, match=r"result.json: holds a list, expected an object"):
        read_result(out / "seed-0")


DAMAGED_LINES = {
    "cut": b'{"step": 2, "lo',
    "not UTF-8": b'{"step": 2, "l\xff": 1}',
    "no object": b"[1]",
    "no step": b"{}",
    "blank": b"",
}


@pytest.mark.parametrize("damage", DAMAGED_LINES.values(), ids=DAMAGED_LINES)
def test_of_a_log_the_last_line_may_be_damaged(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert read_log(path) == []
    for whole in (b"", b'{"step": 1, "loss": null}\n'):
        for end in (b"", b"\n", b"\0" * 9):
            path.write_bytes(whole + damage + end)
            assert [line["step"] for line in read_log(path)] == [1] * bool(whole)
    path.write_bytes(damage + b'\n{"step": 2}\n')
    with pytest.raises(InputError, match=r"^\S+log.jsonl: cannot be read [^\n]*$"):
        read_log(path)


@pytest.mark.parametrize(
    "line",
    [
        ["data", "make-world", *standins.WORLD],
        ["data", "make-tasks", *standins.TASKS],
        ["verdict", "--runs", ".", "b=."],
    ],
)
@pytest.mark.parametrize("there", ["out/config.json", "out/notes.txt", "out"])
def test_a_folder_of_something_else_is_not_written_to(line, there, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / there, "{}")
    assert main([*line, "--out", "out"]) == 2
    assert "groundling: out: exists and was not written by `groundling" in capsys.readouterr().err
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [
        there
    ]


@pytest.mark.parametrize("name", ["make-world", "make-tasks"])
def test_a_killed_rendering_is_done_again_and_a_whole_one_stays(name, tmp_path, monkeypatch):
    flags = {"make-world": standins.WORLD, "make-tasks": standins.TASKS}[name]
    line = ["data", name, *flags, "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr("PIL.Image.fromarray", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main(line)
    assert main(line) == 0
    first = homes.digests(tmp_path / "out")
    assert not any(".partial" in str(file) for file in first)
    assert main(line) == 0
    assert homes.digests(tmp_path / "out") == first


# -- whose folder ------------------------------------------------------------------------------------
def test_a_folder_belongs_to_one_run(control, given, tmp_path, monkeypatch):
    out = tmp_path / "out"
    mine = put(tmp_path / "text.txt", (given / "text.txt").read_bytes())
    control = replace(control, text=(str(mine),))
    result = adapt(control, STEPS, out)
    before = digests(out)
    monkeypatch.setattr(fitting, "train", never)
    assert adapt(control, STEPS, out) == result == json.loads((out / "result.json").read_text())

    for config, training, difference in (
        (control, replace(STEPS, lr=2e-3), "lr: 0.001 there, 0.002 now"),
        (replace_settings(control, mask_rate=0.3), STEPS, "mask_rate: 0.15 there, 0.3 now"),
        (
            replace(control, arm="joint_mlm", teacher=str(given / "teacher")),
            STEPS,
            "arm: mlm there, joint_mlm now",
        ),
    ):
        with pytest.raises(InputError, match="holds another run") as error:
            adapt(config, training, out)
        assert difference in str(error.value)
        assert str(out) in str(error.value)
    tuning = {"model": given / "student", "task": "glue/rte", "data": given / "glue"}
    with pytest.raises(InputError, match="kind: adapt there, finetune now"):
        groundling.finetune(**tuning, cpu=True, out=out)
    put(mine, mine.read_text() + "one more line\n")
    with pytest.raises(InputError, match=r"inputs.text0?.*content: \w+ there, \w+ now"):
        adapt(control, STEPS, out)
    assert digests(out) == before


@pytest.mark.parametrize("source", ["{}", "vectors:{}"])
def test_a_run_of_an_earlier_version_is_compared_as_it_was(source: str, tmp_path: Path) -> None:
    file = put(tmp_path / "data/images.npy", "abc")
    os.utime(file, ns=(1, 1))
    # SHA-256 of "images.npy\t3\t1\n", by sha256sum; vectors had no state.
    times = {"files": 1, "sizes_and_times": "196b946c62725201"} if source == "{}" else {}
    data = source.format(tmp_path / "data")
    old = {"kind": "adapt", "config": {}, "inputs": {"data": {"path": data, **times}}}
    put(tmp_path / "run/config.json", json.dumps(old))
    put(tmp_path / "run/model/x", "saved")
    open_run(tmp_path / "run", "adapt", {}, {"data": data})
    os.utime(file, ns=(2, 2))
    with pytest.raises(InputError, match="sizes_and_times") if times else nullcontext():
        open_run(tmp_path / "run", "adapt", {}, {"data": data})


def test_foreign_files_are_left_alone(control: AdaptConfig, tmp_path: Path) -> None:
    put(tmp_path / "thesis" / "chapter1.tex", "years of work")
    put(tmp_path / "file", "not even a folder")
    for name in ("thesis", "file"):
        with pytest.raises(
            InputError,
            match=f"{name}: exists and is not a groundling run folder; choose another `out`",
        ):
            adapt(control, STEPS, tmp_path / name)
    assert set(digests(tmp_path)) == {"thesis/chapter1.tex", "file"}
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "years of work"


HOLDS = """
import os, sys
from pathlib import Path
from groundling.runs.folder import lock_folder
held = lock_folder(Path(sys.argv[1]))
os.write(1, b"held\\n" if os.fork() else b"forked\\n")
sys.stdin.read()  # the fork, like a data loader's worker, outlives its parent
"""


def test_e12_a_folder_is_held_by_one_process_until_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    arguments = [sys.executable, "-c", HOLDS, str(tmp_path / "out")]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        # A fork lets go of the folder before it says so.
        assert {other.stdout.readline(), other.stdout.readline()} == {"held\n", "forked\n"}
        with pytest.raises(InputError, match="out: another process is writing there now"):
            Run(tmp_path / "out", "test", {}, {}, cpu=True)
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]
        other.kill()
        other.wait()
        first = Run(tmp_path / "out", "test", {}, {}, cpu=True)
        assert Run(tmp_path / "out", "test", {}, {}, cpu=True).folder == first.folder


def test_settings_that_were_never_whole_are_as_good_as_none(control, whole, tmp_path):
    """A run was killed while it wrote them."""
    put(tmp_path / "out/config.json.partial", "{")
    adapt(control, STEPS, tmp_path / "out")
    assert same(tmp_path / "out", whole)
    AutoModel.from_pretrained(tmp_path / "out" / "model")


# -- hashing -----------------------------------------------------------------------------------------
def at(path: Path, seconds: int) -> Path:
    """The file with this time of its last change."""
    os.utime(path, (seconds, seconds))
    return path


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("prefix", ["", "vectors:", "timm:", "datasets:"])
@pytest.mark.parametrize("name", ["data.bin", "folder/deep/er.bin"])
def test_e4_another_input_makes_another_run(name, prefix, is_large, tmp_path, monkeypatch):
    """A small input is known by its content, a large one by size and time."""
    monkeypatch.setattr(folders, "SMALL", 0 if is_large else 1 << 26)
    file = at(put(tmp_path / "in" / name, "one"), 10**9)
    ending = ":en:train" if prefix == "datasets:" else ""
    inputs = {"data": f"{prefix}{tmp_path}/in/{name.partition('/')[0]}{ending}"}
    out = tmp_path / "out"
    assert Run(out, "test", {}, inputs, cpu=True).end({"score": 1}) == {"score": 1}
    same, others = ("one", 10**9 + 1), [("longer", 10**9), ("two", 10**9)]
    if is_large:
        same, *others = others[1], others[0], same
    at(put(file, same[0]), same[1])
    put(file.parent / ".lock", "")
    assert Run(out, "test", {}, inputs, cpu=True).result == {"score": 1}
    for content, time in others:
        at(put(file, content), time)
        with pytest.raises(InputError, match=r"out: holds another run \(inputs.data.\w+: .* now"):
            Run(out, "test", {}, inputs, cpu=True)
    at(put(file, "one"), 10**9)
    assert Run(out, "test", {}, inputs, cpu=True).result == {"score": 1}


def test_a_folder_behind_a_link_is_an_input_too_each_once(tmp_path: Path) -> None:
    file = put(tmp_path / "disk/part/numbers", "one")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/linked").symlink_to(tmp_path / "disk")
    (tmp_path / "disk/back").symlink_to(tmp_path / "in")  # a circle
    state = folders.input_state(tmp_path / "in")
    assert state["files"] == 1
    put(file, "two")
    assert folders.input_state(tmp_path / "in") != state


def test_a_table_beside_a_tar_is_a_part_of_it(tmp_path: Path) -> None:
    put(tmp_path / "0.tar", "tar")
    put(tmp_path / "0.parquet", "captions")
    Run(tmp_path / "out", "test", {}, {"text": tmp_path / "0.tar"}, cpu=True).end({})
    put(tmp_path / "0.parquet", "others")
    with pytest.raises(InputError, match=r"inputs.text.content"):
        Run(tmp_path / "out", "test", {}, {"text": tmp_path / "0.tar"}, cpu=True)


def test_content_is_hashed_whatever_its_time(tmp_path: Path) -> None:
    file = put(tmp_path / "in/a.txt", "a")
    before = data_hash(file), data_hash(file.parent)
    assert before[0] == sha256_of(file)
    at(file, 10**9)
    assert (data_hash(file), data_hash(file.parent)) == before
    at(put(file, "b"), 10**9)
    assert data_hash(file) != before[0] and data_hash(file.parent) != before[1]
    assert data_hash("somebody/model") == "not a local path"
    with pytest.raises(InputError, match="gone: no such file"):
        sha256_of(tmp_path / "gone")


# -- damaged checkpoints -----------------------------------------------------------------------------
def halved(path: Path) -> None:
    put(path, path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    put(path, b"")


def model(width: int = 3) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model after one step, so that its optimizer has a state."""
    torch.manual_seed(width)
    module = torch.nn.Linear(width, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return module, optimizer


@pytest.mark.parametrize("damage", [halved, emptied, Path.unlink])
@pytest.mark.parametrize("file", ["state.safetensors", "counters.json"])
def test_e2_a_damaged_checkpoint_is_one_line_that_names_it(file, damage, tmp_path):
    found = Checkpoints(tmp_path / "checkpoints")
    found.save(*model(), Counters(7))
    damage(tmp_path / "checkpoints/step-000000007" / file)
    with pytest.raises(InputError, match=rf"step-000000007/{file}.*: (no such|cannot|not valid)"):
        found.restore(*model())


def test_the_newest_checkpoint_and_the_best_weights_stay_alone(tmp_path: Path) -> None:
    found = Checkpoints(tmp_path)
    module, optimizer = model()
    for step in (1, 2, 3):
        found.save_best(module, step)
        found.save(module, optimizer, Counters(step), best=min(step, 2))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best-000000002.safetensors",
        "step-000000003",
    ]
    expected = module.weight.detach().clone()
    put(tmp_path / ".partial/step-000000009/state.safetensors", "of a run that was killed")
    (tmp_path / "step-000000002").mkdir()  # killed before it was removed
    with torch.no_grad():
        module.weight.zero_()
    counters = found.restore(module, optimizer)
    assert counters == Counters(3) and torch.equal(module.weight, expected)
    with pytest.raises(
        InputError, match=r"state.safetensors: cannot be read .* train again in another"
    ):
        found.restore(*model(width=4))


def test_each_run_of_a_session_has_the_device_that_it_asks_for(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr(PartialState, "default_device", torch.device("meta"))
    devices = [
        Run(tmp_path / str(number), "adapt", {}, {}, cpu).state.device.type
        for number, cpu in enumerate((False, True, False, True))
    ]
    assert devices == ["meta", "cpu", "meta", "cpu"]


def test_a_run_in_tokens_stays_on_its_number_of_processes(control, tmp_path, monkeypatch):
    """Batches of so many samples are the same, however many processes share them."""
    config = replace(STEPS, steps=1)
    in_tokens = replace(config, batch_tokens=400)
    for name, training in (("samples", config), ("tokens", in_tokens)):
        adapt(control, training, tmp_path / name)
    monkeypatch.setitem(PartialState._shared_state, "num_processes", 2)
    adapt(control, config, tmp_path / "samples")
    with pytest.raises(InputError, match=r"config.train.processes: 1 there, 2 now"):
        adapt(control, in_tokens, tmp_path / "tokens")

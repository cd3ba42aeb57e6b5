"""A run that is killed goes on, by the same call, to the very same weights."""

import json
import os
import signal
from pathlib import Path

import homes
import pytest
import torch
import toys
from safetensors.torch import load_file, save_file

from groundling.objectives.clip_tokens import ClipTokenClassification
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.same_sentence import SameSentencePrediction
from groundling.runs import checkpoints as checkpoint
from groundling.runs.run import RunFolder
from groundling.settings.training import TrainingArguments
from groundling.training.loop import (
    MicroBatchContext,
    ModelWithObjectives,
    PlainTrainingStep,
    train,
)

STEPS = 14
KILLED = -signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(out: str, place: str, at: int) -> None:
    """The whole run, from its folder's last checkpoint on; kills its own process at the `at`-th call of `place`."""
    calls = {"inner": 0, "save": 0}

    class DyingStep(PlainTrainingStep):
        def __call__(self, micro: MicroBatchContext):
            calls["inner"] += 1
            if place == "forward" and calls["inner"] == at:
                die()
            terms = super().__call__(micro)
            if place == "backward" and calls["inner"] == at:
                die()
            return terms

    def half_written(tensors, path):
        calls["save"] += 1
        if place == "save" and calls["save"] == at:
            Path(path).write_bytes(b"half a file")
            die()
        save_file(tensors, path)

    checkpoint.save_file = half_written
    model = toys.cross_modal()
    torch.manual_seed(9)
    objectives = [
        MaskedLM(model.sizes, mask_id=4, joint=True),
        SameSentencePrediction(model.sizes),
        ClipTokenClassification(model.sizes),
    ]
    config = TrainingArguments(
        steps=STEPS,
        batch=8,
        gradient_accumulation_steps=2,
        save_every=3,
        log_every=1,
        lr=1e-3,
        cpu=True,
    )
    train(
        model, objectives, toys.both_sides(40), config, out, training_step=DyingStep()
    )  # an epoch is 5 steps
    state = {
        k: v.detach().clone()
        for k, v in ModelWithObjectives(model, objectives).state_dict().items()
    }
    save_file(state, Path(out) / "end.safetensors")


@pytest.fixture
def start(processes):
    """`start(out, place, at)` runs in a process of its own and returns its exit code."""

    def call(out: Path, place: str = "never", at: int = 0) -> int:
        process = processes.Process(target=run, args=(str(out), place, at))
        process.start()
        process.join()
        return process.exitcode

    return call


def checkpoints(out: Path) -> list[str]:
    return sorted(p.name for p in (out / "checkpoints").glob("*"))


def log(out: Path) -> list[dict]:
    lines = [json.loads(line) for line in (out / "log.jsonl").open()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def test_killed_four_times_bit_equal(start, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "killed"
    assert start(whole) == 0
    # Two calls of `inner` are one optimizer step. Before the first checkpoint, between the halves of step 2:
    assert start(out, "backward", 3) == KILLED
    assert checkpoints(out) == []
    # From nothing; in the second half of step 5 (epoch 1 ends with it), so step 3 is the last one saved:
    assert start(out, "forward", 10) == KILLED
    assert checkpoints(out) == ["step-000000003"]
    # From 3; while the checkpoint of step 9 is being written, after that of step 6:
    assert start(out, "save", 2) == KILLED
    assert checkpoints(out) == [".partial", "step-000000006"]
    assert (
        out / "checkpoints" / ".partial" / "step-000000009" / "state.safetensors"
    ).read_bytes() == b"half a file"
    # From 6; in the first half of step 11, mid-epoch:
    assert start(out, "backward", 9) == KILLED
    assert checkpoints(out) == ["step-000000009"]
    with (out / "log.jsonl").open("a") as file:
        file.write('{"step": 11, "lo')  # a line cut off by the kill
    assert start(out) == 0

    one, other = load_file(whole / "end.safetensors"), load_file(out / "end.safetensors")
    assert one.keys() == other.keys()
    assert not [name for name in one if not torch.equal(one[name], other[name])]
    assert [line["step"] for line in log(out)] == list(range(1, STEPS + 1))
    assert log(whole) == log(out)


def test_checkpoints_that_a_kill_behind_the_result_left_are_cleared(tmp_path: Path) -> None:
    state = homes.put(tmp_path / "checkpoints/step-000000002/counters.json", "{}")
    assert RunFolder(tmp_path).result is None and state.exists()  # it is resumed from there
    homes.put(tmp_path / "result.json", '{"steps": 2}')
    assert RunFolder(tmp_path).result == {"steps": 2}
    assert not (tmp_path / "checkpoints").exists()

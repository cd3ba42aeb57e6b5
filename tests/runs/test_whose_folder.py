"""Folders of other runs, of nobody, and of a run that is still writing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.commands import adapting_with, same, tuning_with
from homes import STEPS, digests, never, put
from transformers import AutoModel

from groundling.cli import main
from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.commands.adapt import run as adapting
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune import run as tuning
from groundling.core.errors import InputError
from groundling.runs.run import Run
from groundling.settings.fields import make_settings, replace_settings


def test_a_folder_belongs_to_one_run(
    control: AdaptConfig, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    mine = put(tmp_path / "text.txt", (given / "text.txt").read_bytes())
    control = replace(control, text=(str(mine),))
    result = adapt(control, STEPS, out)
    before = digests(out)
    monkeypatch.setattr(adapting, "train", never)
    monkeypatch.setattr(tuning, "train", never)
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
    with pytest.raises(InputError, match="kind: adapt there, finetune now"):
        finetune(
            make_settings(
                FinetuneConfig,
                model=str(given / "student"),
                task="glue/rte",
                data=str(given / "glue"),
            ),
            STEPS,
            out,
        )
    put(mine, mine.read_text() + "one more line\n")
    with pytest.raises(InputError, match=r"inputs.text0?.*bytes: \d+ there, \d+ now"):
        adapt(control, STEPS, out)
    assert digests(out) == before


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


def test_settings_that_were_never_whole_are_as_good_as_none(
    control: AdaptConfig, whole: dict, tmp_path: Path
) -> None:
    """A run was killed while it wrote them."""
    put(tmp_path / "out/config.json.partial", "{")
    adapt(control, STEPS, tmp_path / "out")
    assert same(tmp_path / "out", whole)


def test_an_empty_folder_is_as_good_as_none(
    control: AdaptConfig, whole: dict, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    adapt(control, STEPS, tmp_path / "out")
    assert same(tmp_path / "out", whole)
    shutil.rmtree(tmp_path / "out" / "checkpoints", ignore_errors=True)
    AutoModel.from_pretrained(tmp_path / "out" / "model")


@pytest.mark.parametrize(
    ("command", "made"), [(adapting_with, "model"), (tuning_with, "seed-0/model")]
)
def test_e9_a_finished_run_whose_model_is_gone_says_how_to_make_it_again(
    command: Callable[..., list[object]], made: str, given: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "out"
    changes: dict[str, object] = {"arm": "mlm"} if command is adapting_with else {}
    arguments = [str(one) for one in command(given, out, **changes)]
    assert main(arguments) == 0
    before = digests(out / made)
    shutil.rmtree(out / made)
    capsys.readouterr()
    assert main(arguments) == 0
    result = (out / made).with_name("result.json")
    said = (
        f"finished earlier, but {out / made} is missing; delete {result} and run the same command"
    )
    assert said in capsys.readouterr().err
    result.unlink()
    assert main(arguments) == 0
    assert digests(out / made) == before


@pytest.mark.parametrize("name", ["result.json.partial", "log.jsonl"])
def test_nothing_is_written_through_a_link(control: AdaptConfig, tmp_path: Path, name: str) -> None:
    """The folder itself may be a link, for instance to another disk."""
    mine = put(tmp_path / "mine.txt", "kept")
    (tmp_path / "disk").mkdir()
    out = tmp_path / "out"
    out.symlink_to(tmp_path / "disk")
    assert adapt(control, STEPS, out)["steps"] == STEPS.steps
    (out / "result.json").unlink()
    (out / "log.jsonl").unlink()
    (out / name).symlink_to(mine)
    if name == "log.jsonl":  # written anew when a run starts, in place of the link
        adapt(control, STEPS, out)
    else:
        with pytest.raises(InputError, match=f"{name}: is a symbolic link"):
            adapt(control, STEPS, out)
    assert mine.read_text() == "kept"

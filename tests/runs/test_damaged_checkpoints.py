"""Checkpoints that were damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import homes
import pytest
import torch
from builders.commands import same
from homes import STEPS, put

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.core.errors import InputError
from groundling.runs import checkpoints as checkpoint
from groundling.runs.checkpoints import Counters
from groundling.settings.fields import make_settings


def flipped(path: Path) -> None:
    """One bit in the middle of the last tensor."""
    content = bytearray(path.read_bytes())
    content[-50] ^= 4
    put(path, bytes(content))


def halved(path: Path) -> None:
    put(path, path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    put(path, "{}")


@pytest.fixture(scope="module")
def stopped(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves that is killed in its third and last step."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    config = make_settings(
        AdaptConfig,
        student=str(given / "student"),
        arm="mlm",
        text=(str(given / "text.txt"),),
        max_length=40,
    )
    homes.kill(adapt, config, STEPS, out, at=3)
    return out


@pytest.mark.parametrize("damage", [flipped, halved, emptied, Path.unlink])
@pytest.mark.parametrize("file", ["state.safetensors", "counters.json", "checksums.json"])
def test_e2_a_damaged_checkpoint_is_told_and_the_one_before_taken(
    file: str,
    damage: Callable[[Path], None],
    stopped: Path,
    control: AdaptConfig,
    tmp_path: Path,
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    states = sorted((out / "checkpoints").glob("step-*"))
    damage(states[-1] / file)
    restored: list[Any] = []
    module = torch.nn.Linear(1, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_load", lambda state, *_: restored.append(state) or Counters(1))
        found = checkpoint.Checkpoints(out / "checkpoints")
        found.restore(module, torch.optim.SGD(module.parameters()))
        damage(states[-2] / file)
        with pytest.raises(
            InputError, match=r"cannot be read .*, and there is no other checkpoint"
        ):
            found.restore(module, torch.optim.SGD(module.parameters()))
    assert restored == [states[-2]]


def test_e2_a_run_goes_on_from_the_older_checkpoint_to_the_same_weights(
    stopped: Path, control: AdaptConfig, whole: dict, tmp_path: Path, capsys: Any
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    flipped(out / "checkpoints/step-000000002/state.safetensors")
    adapt(control, STEPS, out)
    said = capsys.readouterr().err
    assert "step-000000002/state.safetensors: the checkpoint cannot be read (damaged" in said
    assert "; resuming from step 1, the checkpoint before\n" in said
    assert same(out, whole)
    assert [line["step"] for line in homes.log_of(out)] == [1, 2, 3]

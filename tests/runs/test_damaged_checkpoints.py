"""Checkpoints that were damaged after they were written: one line, never other weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from homes import put

from groundling.core.errors import InputError
from groundling.runs.checkpoints import Checkpoints, Counters


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
def test_e2_a_damaged_checkpoint_is_one_line_that_names_it(
    file: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
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

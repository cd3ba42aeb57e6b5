"""Weights that are no numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from builders.commands import adapting_with, tuning_with


@pytest.mark.parametrize("command", [adapting_with, tuning_with])
def test_e3_weights_that_are_no_numbers_are_not_exported(
    command: Callable[..., list[object]],
    given: Path,
    tmp_path: Path,
    refusal: Callable[..., str],
) -> None:
    """The update of the last step overflows, which no loss is there to tell; a second try says the same."""
    changes: dict[str, object] = {"arm": "mlm"} if command is adapting_with else {}
    arguments = command(given, tmp_path / "out", steps=1, lr=1e38, warmup=0, **changes)
    for _ in range(2):
        line = refusal(*arguments)
        assert "step 1: weights of model." in line
        assert "so no model is written; lower --lr" in line
    assert not list(tmp_path.rglob("model"))
    assert not list(tmp_path.rglob("result.json"))
    assert not list(tmp_path.rglob("state.safetensors"))

"""A run to disturb, and the weights of the same run undisturbed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny.homes import STEPS

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.settings.fields import make_settings


@pytest.fixture(scope="session")
def control(given: Path) -> AdaptConfig:
    return make_settings(
        AdaptConfig,
        student=str(given / "student"),
        arm="mlm",
        text=(str(given / "text.txt"),),
        max_length=40,
    )


@pytest.fixture(scope="session")
def whole(control, tmp_path_factory) -> dict[str, torch.Tensor]:
    """The weights of an undisturbed run."""
    out = tmp_path_factory.mktemp("whole")
    adapt(control, STEPS, out)
    return load_file(out / "model" / "model.safetensors")

"""A tiny rendered world, and the teacher that is trained on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny import homes
from tiny.homes import STEPS

from groundling.commands.train_clip import COMMAND as teach
from groundling.commands.train_clip import TrainClipConfig
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.world import World

TINY = {
    "size": 32,
    "patch_size": 16,
    "vision_tower": (32, 1),
    "text_tower": (32, 1),
    "projection_dim": 16,
    "vocab_size": 560,
    "context_length": 20,
}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    World(
        WorldConfig(
            nouns=24,
            dev_nouns=6,
            test_nouns=8,
            scenes=40,
            dev_scenes=10,
            sentences=80,
            dev_sentences=10,
            control_images=False,
        )
    ).write(folder)
    return folder


@pytest.fixture(scope="session")
def teaching_config(world: Path) -> TrainClipConfig:
    return TrainClipConfig(
        captions=str(world / "captions_train.json"),
        images=str(world / "images"),
        eval_captions=str(world / "captions_dev.json"),
        **TINY,
    )


@pytest.fixture(scope="session")
def taught(teaching_config, tmp_path_factory) -> tuple[Path, dict]:
    """A teacher's run folder and result."""
    out = tmp_path_factory.mktemp("teacher")
    return out, teach(teaching_config, replace(STEPS, steps=2), out)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return homes.student(tmp_path_factory.mktemp("encoder"))

"""`groundling embed`: a run on a teacher's vectors has the weights of a run with the teacher, to the last bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny.objectives import captioned_run

import groundling
from groundling.core.errors import InputError
from groundling.settings.fields import setting_values
from groundling.teachers import vectors as stored_vectors


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embed")


@pytest.fixture(scope="module")
def config(home: Path) -> dict[str, Any]:
    return setting_values(captioned_run(home, "caption_to_image"))


@pytest.fixture(scope="module")
def vectors(home: Path, config: dict[str, Any]) -> Path:
    groundling.embed(**embedding_of(config), out=home / "vectors")
    return home / "vectors"


def embedding_of(config: dict[str, Any]) -> dict[str, Any]:
    given = {"teacher": config["teacher"], "text": config["text"]}
    return {**given, "images": config["teacher_images"], "cpu": True}


def weights(config: dict[str, Any], out: Path) -> dict[str, torch.Tensor]:
    groundling.adapt(**config, steps=3, batch=4, cpu=True, out=out)
    return load_file(out / "model/model.safetensors")


@pytest.mark.parametrize(
    ("arm", "settings"),
    [
        ("caption_to_image", {}),
        ("mlm+lexi_contrastive", {}),
        ("contrastive", {"word_weight": 0.0}),
        ("l1", {"word_weight": 0.0, "l1_targets": "unit"}),
    ],
)
def test_training_on_vectors_needs_no_teacher_and_is_bit_equal(
    arm: str, settings: dict[str, Any], config: dict[str, Any], vectors: Path, tmp_path: Path
) -> None:
    reads_images = not settings
    config = {**config, **settings, "arm": arm}
    if not reads_images:
        config["teacher_images"] = ""
    live = weights(config, tmp_path / "live")
    given = {**config, "teacher": f"vectors:{vectors}", "teacher_images": ""}
    stored = weights(given, tmp_path / "stored")
    assert all(torch.equal(live[name], stored[name]) for name in live)


def test_a_killed_run_goes_on_with_the_missing_files(config, vectors, tmp_path, monkeypatch):
    given = {**embedding_of(config), "out": tmp_path / "out"}

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stored_vectors, "image_teacher", die)
        with pytest.raises(KeyboardInterrupt):
            groundling.embed(**given)
    texts = (tmp_path / "out/texts-00000.npy").stat().st_mtime_ns
    groundling.embed(**given)
    assert (tmp_path / "out/texts-00000.npy").stat().st_mtime_ns == texts
    for file in vectors.glob("*-0*"):
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()


def test_what_vectors_lack_is_said_before_training(config, vectors, tmp_path):
    given = {**config, "teacher": f"vectors:{vectors}", "teacher_images": "", "out": tmp_path / "a"}
    with pytest.raises(InputError, match="no has, words; word_weight=0"):
        groundling.adapt(**given | {"arm": "contrastive"})
    others = tmp_path / "others"
    shutil.copytree(vectors, others)
    file = others / "images-00000.txt"
    file.write_text(file.read_text().replace("3", "x", 1))
    with pytest.raises(InputError, match="no vector of the image '3'"):
        groundling.adapt(**given | {"teacher": f"vectors:{others}"})

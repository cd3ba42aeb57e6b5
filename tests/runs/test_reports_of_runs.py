"""What a run tells: whose features it computes, what its loss adds up from, what was skipped, in how many digits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import homes
import numpy as np
import pytest
import toys
from builders.regions import store
from homes import STEPS

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.commands.regions import COMMAND as regions
from groundling.commands.regions import RegionsConfig
from groundling.core.batch import Example
from groundling.core.output_types import Classification, Regression
from groundling.data.samples import TextDataset
from groundling.models.text_encoder import load_text_encoder
from groundling.prediction.predictions import (
    Candidate,
    Prediction,
    prediction_cells,
    prediction_columns,
)
from groundling.settings.fields import make_settings
from groundling.teachers import feature_cache
from groundling.teachers import feature_cache as cache
from groundling.teachers.feature_cache import FeatureCache, TeacherDataset
from groundling.teachers.text import FrozenCopy


def adds_up(result: dict[str, Any]) -> None:
    """The loss is made of its terms and their weights, all of which are told."""
    last, weights = result["train_metrics"], result["loss_weights"]
    assert set(weights) == set(last) - {"loss"}
    total = sum(weights[term] * mean for term, mean in last.items() if term != "loss")
    assert total == pytest.approx(last["loss"], rel=1e-4)


def test_terms_and_weights_of_a_result_add_up_to_its_loss(tmp_path: Path) -> None:
    names = [f"{number:03d}" for number in range(8)]
    store(tmp_path / "store", names, width=12)
    homes.put(
        tmp_path / "some.token.txt",
        "".join(f"{name}.jpg#0\ta dog and {name} cats\n" for name in names),
    )
    config = make_settings(
        PretrainConfig,
        model=str(homes.student(tmp_path / "bert")),
        regions=str(tmp_path / "store"),
        captions=str(tmp_path / "some.token.txt"),
        architecture="uniter",
        max_length=24,
    )
    # One task is drawn for each step: so many draw them all.
    result = pretrain(
        config, replace(STEPS, steps=24, log_every=24, save_every=24), tmp_path / "out"
    )
    adds_up(result)
    assert result["loss_weights"]["regress_regions"] == pytest.approx(1 / 12)


def test_a_result_names_weights_other_than_one(tmp_path: Path) -> None:
    student = homes.sentence_encoder(tmp_path / "student")
    config = make_settings(
        AdaptConfig,
        student=str(student),
        text=(str(homes.text(tmp_path / "text.txt", 40)),),
        arm="mlm",
        max_length=24,
    )
    result = adapt(config, STEPS, tmp_path / "out")
    adds_up(result)
    assert result["loss_weights"] == {"mlm": 1.0, "retain": 10.0}


def test_a_run_without_a_teacher_does_not_speak_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: list[str] = []

    class Heard(cache.Progress):
        def __init__(self, what: str, *values: Any, **more: Any) -> None:
            phases.append(what)
            super().__init__(what, *values, **more)

    for module in (cache, feature_cache):
        monkeypatch.setattr(module, "Progress", Heard)
    text = load_text_encoder(homes.sentence_encoder(tmp_path / "student"))
    samples = TextDataset([Example("a", "a red dog"), Example("b", "two cats")], *text.inputs(24))
    TeacherDataset(samples, FrozenCopy(text), FeatureCache())
    TeacherDataset(samples, FrozenCopy(text), FeatureCache(tmp_path / "kept"))
    assert len(phases) == 4 and all("the student before training" in phase for phase in phases)
    assert not any("teacher" in phase for phase in phases)


def test_photos_that_are_skipped_are_counted_and_named(tmp_path: Path) -> None:
    from transformers import CLIPImageProcessorPil

    vit = homes.home(tmp_path / "vit", toys.vit(), None)
    CLIPImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(vit)
    homes.picture(tmp_path / "photos/good.png", size=(20, 16))
    for number in range(7):
        homes.put(tmp_path / f"photos/broken-{number}.png", b"no photo")
    config = make_settings(
        RegionsConfig, images=str(tmp_path / "photos"), backbone=str(vit), grid=2, cpu=True
    )
    result = regions(config, tmp_path / "store")
    assert result["skipped"] == 7
    assert "broken-0" in result["skipped_first"][0]
    assert regions(config, tmp_path / "store") == result


def test_numbers_in_a_file_of_answers_have_few_digits_and_the_same_order() -> None:
    shares = (0.8177219919756766, 0.18227800802432342)
    best = tuple(Candidate(word, share) for word, share in zip(("yes", "no"), shares, strict=True))
    prediction = Prediction("yes", shares[0], best=best)
    cells = prediction_cells(prediction, prediction_columns(Classification(("no", "yes")), 2))
    assert list(cells.values()) == ["yes", 0.817722, "no", 0.182278]
    number = Prediction(np.float32(2.718281828).item(), best=(Candidate(2.7182817459106445),))
    assert prediction_cells(number, prediction_columns(Regression(), 1)) == {"answer": 2.71828}
    assert prediction.probability == shares[0], "Python has all digits"

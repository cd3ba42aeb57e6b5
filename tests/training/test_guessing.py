"""Whether a part of a pre-training has left guessing: what guessing loses, from what each term is scored against."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import homes, standins, toys
from tiny.homes import STEPS

from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.core.batch import collate
from groundling.objectives.masked_regions import MaskedRegionModeling
from groundling.settings.fields import make_settings
from groundling.training.batch_sampler import corrupt_samples
from groundling.training.held_out_loss import compare_with_baseline, constant_loss


def test_what_guessing_loses() -> None:
    for kind, values, loss in (
        ("class", [0, 1, 1, 0, 1, 0], log(2) + 1 / 12),
        ("class", [3] * 6, 0),
        ("share", [[1.0, 0.0], [0.0, 1.0]], log(2)),
        ("share", [[0.5, 0.5], [0.0, 0.0]], log(2) / 2),
        ("number", [[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]], 8 / 3),
    ):
        assert constant_loss(kind, np.array(values)) == pytest.approx(loss)


def test_of_many_rare_classes_a_sample_tells_too_little_and_that_is_mended() -> None:
    rng = np.random.default_rng(0)
    shares = 1 / np.arange(1, 2001)
    shares /= shares.sum()
    whole = -(shares * np.log(shares)).sum()
    drawn = rng.choice(2000, 4000, p=shares)
    seen = np.bincount(drawn) / 4000
    plain = -(seen[seen > 0] * np.log(seen[seen > 0])).sum()
    assert whole - plain > 0.1
    assert abs(constant_loss("class", drawn) - whole) < 0.6 * (whole - plain)


@pytest.mark.parametrize("kind", ["soft", "regress"])
def test_who_always_says_the_same_loses_just_that(kind) -> None:
    """The loss itself, of a head that is made to say the best constant answer."""
    model, samples = toys.seer(), toys.seen()
    torch.manual_seed(0)
    objective = MaskedRegionModeling(model.sizes._replace(classes=5), kind=kind)
    batch = collate(corrupt_samples(samples, range(48), 0, 0, [objective]))
    ((term, (found, values)),) = objective.loss_targets(batch).items()
    scored = objective.count(batch)[term]
    assert len(values) == scored
    for parameter in objective.parameters():
        torch.nn.init.zeros_(parameter)
    mean = values.mean(0)
    with torch.no_grad():
        objective.head[-1].bias.copy_(mean if kind == "regress" else mean.clamp(min=1e-9).log())
        loss = objective(model(batch), batch)[term] / scored
    assert loss.item() == pytest.approx(constant_loss(found, values.numpy()), rel=1e-4)


def test_who_has_not_left_guessing_is_told() -> None:
    losses = {"loss": 9.0, "mlm": 2.0, "match": 0.690, "word_region": 0.1, "bad": float("nan")}
    levels = {"mlm": 5.0, "match": 0.6931, "bad": 1.0}
    beside = SimpleNamespace(measure=lambda: losses, baseline_losses=lambda: levels)
    told, notes = compare_with_baseline(beside, "mend it")
    assert told["mlm"] == {"loss": 2.0, "guessing": 5.0}
    assert "word_region" not in told
    assert [note.split()[0] for note in notes] == ["match", "bad"]
    assert "its loss is 0.69, that of" in notes[0] and notes[0].endswith("is 0.6931; mend it")


def test_a_pretraining_says_which_parts_still_guess(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    homes.student(tmp_path / "bert")
    standins.own_images(tmp_path)
    standins.store(tmp_path / "store", standins.PHOTOS)
    config = make_settings(
        PretrainConfig,
        architecture="uniter",
        model=str(tmp_path / "bert"),
        regions=str(tmp_path / "store"),
        captions=str(tmp_path / "my_captions.tsv"),
        max_length=24,
    )
    result = pretrain(config, replace(STEPS, lr=1e-9, batch=4), tmp_path / "out")
    parts = result["guessing"]
    assert {"mlm", "sentence_image"} <= parts.keys()
    assert "word_region" not in parts
    still = [term for term, one in parts.items() if one["loss"] >= 0.98 * one["guessing"]]
    assert still
    told = capsys.readouterr().err
    for term in still:
        assert f"note: {term} is no better than a constant prediction: " in told

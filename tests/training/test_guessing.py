"""Whether a part of a pre-training has left guessing: what guessing loses, from what each term is scored against."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import homes, standins, toys
from tiny.homes import STEPS

from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.core.batch import collate
from groundling.objectives import MaskingVocabulary, ObjectiveContext, built_in_objectives
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.masked_regions import MaskedRegionModeling, UnmaskedRegionClassification
from groundling.settings.fields import make_settings
from groundling.training.batch_sampler import corrupt_samples
from groundling.training.held_out_loss import ConstantBaseline, compare_with_baseline


def level(kind: str, *parts: list) -> float:
    found = ConstantBaseline(kind)
    for values in parts:
        found.add(np.array(values))
    return found.loss()


def test_what_guessing_loses() -> None:
    assert level("class", [0, 1], [1, 0, 1, 0]) == pytest.approx(log(2) + 1 / 12)
    assert level("class", [3] * 5, [3]) == 0
    assert level("share", [[1.0, 0.0]], [[0.0, 1.0]]) == pytest.approx(log(2))
    assert level("share", [[0.5, 0.5], [0.5, 0.5]]) == pytest.approx(log(2))
    assert level("number", [[0.0, 5.0]], [[2.0, 5.0], [4.0, 5.0]]) == pytest.approx(8 / 3)


def test_of_many_rare_classes_a_sample_tells_too_little_and_that_is_mended() -> None:
    rng = np.random.default_rng(0)
    shares = 1 / np.arange(1, 2001)
    shares /= shares.sum()
    whole = -(shares * np.log(shares)).sum()
    drawn = rng.choice(2000, 4000, p=shares)
    seen = np.bincount(drawn) / 4000
    plain = -(seen[seen > 0] * np.log(seen[seen > 0])).sum()
    assert whole - plain > 0.1
    assert abs(level("class", drawn.tolist()) - whole) < 0.6 * (whole - plain)


@pytest.mark.parametrize(
    "make",
    [
        lambda sizes: MaskedLM(sizes, mask_id=4),
        ImageTextMatching,
        UnmaskedRegionClassification,
        *(
            lambda sizes, kind=kind: MaskedRegionModeling(sizes, kind=kind)
            for kind in ("soft", "hard", "regress")
        ),
    ],
)
def test_who_always_says_the_same_loses_just_that(make) -> None:
    """The loss itself, of a head that is made to say the best constant answer, is what `losses` says."""
    model, samples = toys.seer(), toys.seen()
    sizes = model.sizes._replace(classes=5)
    torch.manual_seed(0)
    objective = make(sizes)
    batch = collate(corrupt_samples(samples, range(48), 0, 0, [objective]))
    targets = objective.loss_targets(batch)
    (term,) = targets
    values = targets[term].values
    found = ConstantBaseline(targets[term].kind)
    found.add(values.numpy())
    expected = found.loss()
    scored = objective.count(batch)[term]
    if targets[term].kind == "class":
        if isinstance(objective, MaskedLM):
            assert (
                len(values)
                == int((batch.text.attention_mask & ~batch.text.special_tokens_mask).sum())
                > scored
            )
        counts = np.bincount(values.numpy()) / len(values)
        chance = -(counts[counts > 0] * np.log(counts[counts > 0])).sum()
        assert expected == pytest.approx(chance + ((counts > 0).sum() - 1) / (2 * len(values)))
        return
    assert len(values) == scored
    for parameter in objective.parameters():
        torch.nn.init.zeros_(parameter)
    last = [one for one in objective.modules() if isinstance(one, torch.nn.Linear)][-1]
    mean = values.mean(0)
    with torch.no_grad():
        last.bias.copy_(mean if objective.kind == "regress" else mean.clamp(min=1e-9).log())
        loss = objective(model(batch), batch)[term] / scored
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_every_objective_of_ours_scores_what_it_says() -> None:
    """Terms that `loss_targets` names are terms that `count` knows, so that both are of the same loss."""
    samples = toys.seen()
    model = toys.seer()
    for part in built_in_objectives().values():
        if part.needs_cross_modal or part.needed_teacher() or part.name == "match":
            continue
        vocabulary = MaskingVocabulary.of(model.text.tokenizer)
        objective = part.from_context(ObjectiveContext(model.sizes._replace(classes=5), vocabulary))
        batch = collate(corrupt_samples(samples, range(8), 0, 0, [objective]))
        assert objective.loss_targets(batch).keys() <= objective.count(batch).keys()


class LossBesideGuess:
    """What a model loses, and what guessing does."""

    def __init__(self, losses: dict, levels: dict) -> None:
        self.measure, self.baseline_losses = lambda: losses, lambda: levels


def test_who_has_not_left_guessing_is_told() -> None:
    losses = {
        "loss": 9.0,
        "mlm": 2.0,
        "sentence_image": 0.690,
        "word_region": 0.1,
        "bad": float("nan"),
    }
    told, notes = compare_with_baseline(
        LossBesideGuess(losses, {"mlm": 5.0, "sentence_image": 0.6931, "bad": 1.0}), "mend it"
    )
    assert told["mlm"] == {"loss": 2.0, "guessing": 5.0}
    assert "word_region" not in told
    assert [note.split()[0] for note in notes] == ["sentence_image", "bad"]
    assert (
        "its loss is 0.69, that of" in notes[0]
        and "is 0.6931; " in notes[0]
        and notes[0].endswith("; mend it")
    )


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
        assert any(
            note.startswith(f"{term} is no better than a constant prediction")
            for note in result["notes"]
        )
    assert pretrain(config, replace(STEPS, lr=1e-9, batch=4), tmp_path / "out") == result

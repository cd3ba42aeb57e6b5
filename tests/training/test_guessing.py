"""Whether a part of a pre-training has left guessing: what guessing loses, from what each term is scored against."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path

import homes
import numpy as np
import pytest
import standins
import torch
import toys
from homes import STEPS

from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.core.batch import collate
from groundling.core.registry import instances
from groundling.objectives import ObjectiveContext, ObjectiveSpec, Targets, Vocabulary
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.masked_regions import MaskedRegions
from groundling.objectives.region_classes import RegionClasses
from groundling.objectives.sentence_image import SentenceImage
from groundling.settings.fields import configured
from groundling.training.batch_sampler import Corruption
from groundling.training.held_out import Guessing, still_guessing


def level(kind: str, *parts: list) -> float:
    found = Guessing()
    for values in parts:
        found.add({"x": Targets(kind, torch.tensor(values))})
    return found.levels()["x"]


def test_what_guessing_loses() -> None:
    assert level("class", [0, 1], [1, 0, 1, 0]) == pytest.approx(log(2) + 1 / 12)
    assert level("class", [3] * 5, [3]) == 0
    assert level("share", [[1.0, 0.0]], [[0.0, 1.0]]) == pytest.approx(log(2))
    assert level("share", [[0.5, 0.5], [0.5, 0.5]]) == pytest.approx(log(2))
    assert level("number", [[0.0, 5.0]], [[2.0, 5.0], [4.0, 5.0]]) == pytest.approx(8 / 3)
    assert Guessing().levels() == {}


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
        SentenceImage,
        RegionClasses,
        *(
            lambda sizes, kind=kind: MaskedRegions(sizes, kind=kind)
            for kind in ("soft", "hard", "regress")
        ),
    ],
)
def test_who_always_says_the_same_loses_just_that(make) -> None:
    """The loss itself, of a head that is made to say the best constant answer, is what `levels` says."""
    model, samples = toys.seer(), toys.seen()
    sizes = model.sizes._replace(classes=5)
    torch.manual_seed(0)
    objective = make(sizes)
    batch = collate(Corruption(0)(samples, range(48), 0, [objective]))
    targets = objective.scored_against(batch)
    (term,) = targets
    found = Guessing()
    found.add(targets)
    expected = found.levels()[term]
    values = targets[term].values
    scored = objective.count(batch)[term]
    if targets[term].kind == "class":
        if isinstance(objective, MaskedLM):
            assert len(values) == int((batch.text.mask & ~batch.text.special).sum()) > scored
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
    """Terms that `scored_against` names are terms that `count` knows, so that both are of the same loss."""
    samples = toys.seen()
    model = toys.seer()
    for part in instances("objectives", ObjectiveSpec).values():
        if part.joint or part.taught or part.name == "match":
            continue
        vocabulary = Vocabulary.of(model.text.tokenizer)
        objective = part.make(ObjectiveContext(model.sizes._replace(classes=5), vocabulary))
        batch = collate(Corruption(0)(samples, range(8), 0, [objective]))
        assert objective.scored_against(batch).keys() <= objective.count(batch).keys()


class LossBesideGuess:
    """What a model loses, and what guessing does."""

    def __init__(self, losses: dict, levels: dict) -> None:
        self.measure, self.guessing = lambda: losses, lambda: levels


def test_who_has_not_left_guessing_is_told() -> None:
    losses = {
        "loss": 9.0,
        "mlm": 2.0,
        "sentence_image": 0.690,
        "word_region": 0.1,
        "bad": float("nan"),
    }
    told, notes = still_guessing(
        LossBesideGuess(losses, {"mlm": 5.0, "sentence_image": 0.6931, "bad": 1.0}), "mend it"
    )
    assert told["mlm"] == {"loss": 2.0, "guessing": 5.0}
    assert "word_region" not in told
    assert [note.split()[0] for note in notes] == ["sentence_image", "bad"]
    assert "0.69, where 0.6931" in notes[0] and notes[0].endswith("; mend it")


def test_a_pretraining_says_which_parts_still_guess(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    homes.student(tmp_path / "bert")
    standins.own_images(tmp_path)
    standins.store(tmp_path / "store", standins.PHOTOS)
    config = configured(
        PretrainConfig,
        model="uniter",
        student=str(tmp_path / "bert"),
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
        assert f"note: {term} has not left guessing: " in told
        assert any(note.startswith(f"{term} has not left guessing") for note in result["notes"])
    assert pretrain(config, replace(STEPS, lr=1e-9, batch=4), tmp_path / "out") == result

"""Objectives with in-batch negatives lose some of them to accumulation, which every run that trains them says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import homes
import pytest

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.core.batch import OutputSizes
from groundling.objectives import in_batch_negatives_note
from groundling.objectives.clip_contrastive import ClipContrastiveLoss
from groundling.objectives.feature_distillation import ContrastiveDistillation, L1Distillation
from groundling.objectives.masked_lm import MaskedLM
from groundling.settings.fields import make_settings
from groundling.settings.training import TrainingArguments

WIDTHS = OutputSizes(text=8, teacher=8, input_embeddings=(10, 8))


def run(tmp_path: Path, arm: str, accumulate: int) -> tuple[dict, float]:
    """The result, and the first step's loss of sentences."""
    out = tmp_path / f"{arm}-{accumulate}"
    config = make_settings(
        AdaptConfig,
        student=str(homes.student(tmp_path / "student")),
        teacher=str(homes.teacher(tmp_path / "clip")),
        arm=arm,
        text=(str(homes.text(tmp_path / "text.txt", 16)),),
    )
    result = adapt(
        config, replace(homes.STEPS, steps=1, gradient_accumulation_steps=accumulate), out
    )
    return result, homes.log_of(out)[0][f"{arm}_sentence"]


def test_only_a_contrastive_loss_is_another_one_and_the_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, contrastive = run(tmp_path, "contrastive", 1)
    assert "gradient_accumulation_steps" not in capsys.readouterr().err
    result, less = run(tmp_path, "contrastive", 2)
    assert less < contrastive - 0.1
    (note,) = [note for note in result["notes"] if note.startswith("gradient_accumulation_steps=2")]
    assert "contrastive" in note and "4 of a step's 8 samples" in note
    assert note in capsys.readouterr().err
    result, _ = run(tmp_path, "l1", 2)
    assert not [
        note for note in result.get("notes", ()) if note.startswith("gradient_accumulation_steps")
    ]


@pytest.mark.parametrize(
    ("objectives", "settings", "told"),
    [
        (
            [ClipContrastiveLoss(WIDTHS)],
            {"gradient_accumulation_steps": 4, "batch": 64},
            "16 of a step's 64 samples",
        ),
        (
            [ClipContrastiveLoss(WIDTHS), ContrastiveDistillation(WIDTHS)],
            {"gradient_accumulation_steps": 2, "batch_tokens": 100},
            "one of a step's 2 on each process",
        ),
        ([ClipContrastiveLoss(WIDTHS)], {"gradient_accumulation_steps": 1}, ""),
        (
            [L1Distillation(WIDTHS), MaskedLM(WIDTHS)],
            {"gradient_accumulation_steps": 4},
            "",
        ),
    ],
)
def test_what_is_said(objectives: list, settings: dict, told: str) -> None:
    notes = in_batch_negatives_note(objectives, TrainingArguments(**settings))
    assert len(notes) == bool(told)
    assert all(told in note for note in notes)

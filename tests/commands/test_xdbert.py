"""XDBERT in its paper's form: blocks of one length, pairs that lengths do not tell, and what its parts learn."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import homes, toys

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.commands.adapt.data import clip_windows, text_layout_of
from groundling.commands.adapt.evaluation import evaluate_objectives, length_note, match_by_length
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.predict import COMMAND as predict
from groundling.commands.predict import PredictConfig
from groundling.core.batch import IGNORE, Example, Sample, collate
from groundling.data.corpora import full_blocks
from groundling.data.samples import ClipRowEncoder, TextDataset, TextRowEncoder, backend_tokenizer
from groundling.data.text import TokenizationCache, length_auc
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.xdbert import ClipTokenClassification, SameSentencePrediction
from groundling.prediction.model_description import read_description
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.training import TrainingArguments
from groundling.tasks.texts import RTE
from groundling.training.batch_sampler import corrupt_samples
from groundling.vision_language.loading import RAW, make_task_head

TWO = TrainingArguments(steps=2, batch=4, cpu=True)
WINDOWS = math.ceil(693 / toys.WINDOW)
"""Of the toy tower, as many places as nine windows of 77 have."""


# -- blocks ------------------------------------------------------------------------------------------------------------
def test_which_arms_read_blocks_and_of_what_length() -> None:
    own = AdaptConfig()
    assert text_layout_of(own, True, 512) == text_layout_of(own, True, 8192) == ("blocks", 512)
    assert text_layout_of(own, True, 32) == ("blocks", 32)
    assert text_layout_of(own, False, 512) == ("lines", 128)
    assert text_layout_of(own, False, 32) == ("lines", 32)
    lines = AdaptConfig(text_layout="lines", max_length=40)
    assert text_layout_of(lines, True, 512) == ("lines", 40)
    assert [clip_windows("blocks", 0, size) for size in (77, 20)] == [9, 35]
    assert (clip_windows("lines", 0, 77), clip_windows("lines", 3, 77)) == (0, 3)


# -- lengths -----------------------------------------------------------------------------------------------------------
def test_told_by_length_is_the_area_under_the_curve() -> None:
    one = np.array([10, 20, 40, 10, 20, 40])
    same = np.array([True, True, True, False, False, False])
    assert length_auc(one, np.array([12, 24, 48, 24, 48, 12]), same) == 1
    assert length_auc(one, np.array([12, 24, 48, 12, 24, 48]), same) == 0.5
    assert math.isnan(length_auc(one, one, np.ones(6, bool)))
    rng = np.random.default_rng(0)
    one, other = rng.integers(1, 50, (2, 60))
    same = rng.random(60) < 0.5
    mismatch = np.abs(np.log(one / other) - np.median(np.log(one / other)[same]))
    right, wrong = mismatch[same][:, None], mismatch[~same]
    expected = np.mean((right < wrong) + 0.5 * (right == wrong))
    assert length_auc(one, other, same) == pytest.approx(expected)


def paired(texts: list[str], length: int) -> TextDataset:
    """Texts for both sides."""
    examples = [Example(f"t:{number}", text) for number, text in enumerate(texts)]
    windows = ClipRowEncoder(toys.clip_words(), 77)
    return TextDataset(examples, TextRowEncoder(toys.bert_words(), length), windows)


@pytest.fixture(scope="module")
def uneven() -> list[str]:
    """Texts of 1 to 40 words."""
    rng = np.random.default_rng(1)
    words = " ".join(toys.sentences()).split()
    return [" ".join(rng.choice(words, rng.integers(1, 41))) for _ in range(400)]


def test_lengths_tell_lines_but_neither_like_lines_nor_blocks(cross, uneven: list[str]) -> None:
    """MATCH in lines is nearly solved by counting tokens."""
    lines = paired(uneven, 128)
    match = SameSentencePrediction(cross.sizes)
    like = SameSentencePrediction(cross.sizes, match_negatives="length")
    near, far = (match_by_length([one], lines, 0) for one in (like, match))
    engine = backend_tokenizer(toys.bert_words())
    blocks = paired(list(full_blocks(uneven, TokenizationCache(engine), 30)), 32)
    assert near < 0.6 and far > 0.85
    assert match_by_length([match], blocks, 0) < 0.65
    assert match_by_length([ClipTokenClassification(cross.sizes)], lines, 0) is None
    assert match_by_length([match], paired(uneven[:19], 128), 0) is None
    note = length_note(far, "lines")[0]
    assert f"{far:.2f}" in note and "text_layout=blocks, or match_negatives=length" in note
    assert "text_layout=blocks" not in length_note(far, "blocks")[0]
    assert [length_note(one, "lines") for one in (near, None, float("nan"))] == [[], [], []]


def test_negatives_of_like_length_are_keyed_other_texts(cross, uneven: list[str]) -> None:
    lines = paired(uneven, 128)
    match = SameSentencePrediction(cross.sizes, match_negatives="length")
    first, again = (corrupt_samples(lines, range(60), 5, 2, [match]) for _ in range(2))
    own = lines.get(range(60))
    swapped = [one for one, plain in zip(first, own, strict=True) if one.clip is not plain.clip]
    assert 15 < len(swapped) < 45
    for one, other in zip(first, again, strict=True):
        assert np.array_equal(one.clip.input_ids, other.clip.input_ids)
    hard = SameSentencePrediction(cross.sizes, match_negatives="length", hard_negatives=20)
    assert corrupt_samples(lines, [3], 5, 2, [hard])[0].labels["match"] in (0, 1)


# -- what the parts learn ----------------------------------------------------------------------------------------------
def test_the_report_is_what_the_objectives_say(cross, samples) -> None:
    match = SameSentencePrediction(cross.sizes).eval()
    tokens = ClipTokenClassification(cross.sizes).eval()
    lm = MaskedLM(cross.sizes, joint=True, mask_id=4).eval()
    cross.train()
    found = evaluate_objectives(cross, [lm, match, tokens], samples, 7)
    assert cross.training
    cross.eval()

    def drawn(objective: Any) -> list[Sample]:
        return corrupt_samples(samples, range(len(samples)), 7, -1, [objective])

    with torch.no_grad():
        batch = collate(drawn(match))
        right = match.logits(cross(batch)).argmax(-1) == batch.labels["match"]
        assert found["match_accuracy"] == pytest.approx(right.float().mean().item())
        for objective, loss in ((tokens, "clip_tokens"), (lm, "mlm")):
            batch = collate(drawn(objective))
            mean = objective(cross(batch), batch)[loss] / objective.count(batch)[loss]
            assert found[f"{loss}_loss"] == pytest.approx(mean.item(), rel=1e-4)
    labels = np.concatenate([one.labels["clip_tokens"] for one in drawn(tokens)])
    shares = np.unique(labels[labels != IGNORE], return_counts=True)[1] / (labels != IGNORE).sum()
    assert found["clip_tokens_entropy"] == pytest.approx(-(shares * np.log(shares)).sum())
    sides = ("mlm_loss", "mlm_loss_without_clip", "mlm_loss_with_other_clip")
    assert len({found[name] for name in sides}) == 3


def test_an_adaptation_reports_its_parts_and_its_form(tmp_path: Path) -> None:
    config = make_settings(
        AdaptConfig,
        student=str(homes.student(tmp_path / "student")),
        teacher=str(homes.teacher(tmp_path / "teacher")),
        text=(str(homes.text(tmp_path / "train.txt", 60)),),
        eval_text=(str(homes.text(tmp_path / "held.txt", 20)),),
        arm="xdbert",
        max_length=24,
    )
    result = adapt(config, TWO, tmp_path / "out")
    shape = [result[name] for name in ("text_layout", "max_length", "max_windows")]
    assert shape == ["blocks", 24, WINDOWS]
    assert result["learned"]["held_out"] is True and 0 <= result["learned"]["match_accuracy"] <= 1
    assert 0.2 < result["match_by_length"] < 0.8
    assert json.loads((tmp_path / "out/result.json").read_text())["learned"] == result["learned"]
    config = replace_settings(config, text_layout="lines", eval_text=(), arm="joint_mlm+match")
    lines = adapt(config, TWO, tmp_path / "2")
    assert lines["learned"]["held_out"] is False and "clip_tokens_loss" not in lines["learned"]


# -- the released code, and what a column means ------------------------------------------------------------------------
def test_the_released_head_is_one_linear_on_the_raw_first_position(student, texts) -> None:
    student = student("bert").eval()
    head = make_task_head(student, RTE.form, RAW)
    assert [name for name, _ in head.named_parameters()] == ["classify.weight", "classify.bias"]
    samples = TextDataset([Example("a", texts[0])], TextRowEncoder(student.tokenizer, 30))
    batch = collate(samples.get([0]))
    encoded = student(batch)
    head.train()  # there is no dropout
    expected = encoded.text[:, 0] @ head.classify.weight.T + head.classify.bias
    torch.testing.assert_close(head(encoded, batch), expected)


def test_a_fine_tuning_takes_the_released_head(tmp_path: Path) -> None:
    glue = str(homes.rte(tmp_path / "glue"))
    student = str(homes.student(tmp_path / "student"))
    config = FinetuneConfig(
        model=student, task="glue/rte", data=glue, max_length=40, cls_without_pooler=True
    )
    finetune(config, TWO, tmp_path / "out")
    model = tmp_path / "out/seed-0/model"
    assert read_description(model).head == RAW
    asked = make_settings(PredictConfig, model=str(model), data=glue, cpu=True)
    predict(asked, tmp_path / "again.jsonl")
    assert len((tmp_path / "again.jsonl").read_text().splitlines()) == 5

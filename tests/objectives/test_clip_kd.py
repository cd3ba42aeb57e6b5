"""Losses to a teacher's vectors by hand: CLIP-KD's, relational, sigmoid and a frozen probe's."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.objectives.clip_kd import (
    AffinityDistillation,
    FeatureMimicry,
    InteractiveContrast,
    RelationalDistillation,
)
from groundling.studies.bench.methods.frozen_probe import FrozenProbe
from groundling.studies.bench.methods.sigmoid import SigmoidContrast

SIZES = OutputSizes(text=6, sentence_embedding=6, teacher=4, teacher_image=5)
COUNT = 7


@pytest.fixture
def batch() -> Batch:
    """Seven texts, of which the first and the last have the same image."""
    torch.manual_seed(1)
    images = F.normalize(torch.randn(COUNT, 5), dim=-1)
    images[-1] = images[0]
    features = {"clip_image": images, "clip_text": F.normalize(torch.randn(COUNT, 4), dim=-1)}
    return Batch(tuple(map(str, range(COUNT))), features=features)


def terms(
    kind: type, batch: Batch, sizes: OutputSizes = SIZES, **settings: Any
) -> tuple[Any, dict[str, Tensor], Tensor]:
    torch.manual_seed(2)
    objective = kind(sizes, **settings)
    sentences = torch.randn(COUNT, 6, requires_grad=True)
    found = objective(EncoderOutput(sentence_embedding=sentences), batch)
    sum(found.values()).backward()
    assert torch.isfinite(sentences.grad).all()
    assert sentences.grad.abs().sum() > 0
    return objective, found, objective.project(sentences).detach()


@pytest.mark.parametrize("target", ["image", "text"])
def test_feature_mimicry(target: str, batch: Batch) -> None:
    objective, found, student = terms(FeatureMimicry, batch, mimicry_target=target)
    teacher = batch.features[f"clip_{target}"]
    expected = sum(F.mse_loss(a / a.norm(), b) for a, b in zip(student, teacher, strict=True))
    torch.testing.assert_close(found["feature_mimicry"], expected)
    assert objective.weight_of("feature_mimicry") == 2000
    assert objective.features() == {"clip_image", "clip_text"}
    assert objective.required_fields == ("text", f"features.clip_{target}")


@pytest.mark.parametrize(
    ("scale", "factor"), [("learned", 1 / 0.07), ("released", math.log(1 / 0.07))]
)
def test_interactive_contrast_leaves_out_captions_of_one_image(scale, factor, batch):
    _, found, student = terms(InteractiveContrast, batch, interactive_scale=scale)
    images = batch.features["clip_image"]
    expected = torch.tensor(0.0)
    for i in range(COUNT):
        same = {0, COUNT - 1} if i in (0, COUNT - 1) else {i}
        scores = {
            j: factor * torch.dot(student[i] / student[i].norm(), images[j])
            for j in range(COUNT)
            if j == i or j not in same
        }
        expected += torch.logsumexp(torch.stack(list(scores.values())), 0) - scores[i]
    torch.testing.assert_close(found["interactive_contrast"], expected)


def test_affinity_distillation_vanishes_for_the_teachers_own_distribution(batch: Batch) -> None:
    batch.features["clip_text"] = F.normalize(torch.randn(COUNT, 5), dim=-1)
    objective, found, student = terms(
        AffinityDistillation, batch, SIZES._replace(teacher=5), affinity_scale=10.0
    )
    images = batch.features["clip_image"]
    expected = torch.tensor(0.0)
    for own, text in zip(student, batch.features["clip_text"], strict=True):
        p = (10 * images @ text).softmax(0)
        q = (10 * images @ (own / own.norm())).softmax(0)
        expected += (p * (p / q).log()).sum()
    torch.testing.assert_close(found["affinity_distillation"], expected)
    with torch.no_grad():
        objective.project.weight.copy_(torch.eye(5, 6))
        objective.project.bias.zero_()
    perfect = F.pad(batch.features["clip_text"], (0, 1))
    found = objective(EncoderOutput(sentence_embedding=perfect), batch)
    assert abs(found["affinity_distillation"].item()) < 1e-5


@pytest.mark.parametrize("target", ["image", "text"])
def test_relational_distillation(target: str, batch: Batch) -> None:
    """Both images of a pair that is one image count in the mean distance, as in the paper and in lenscloth/RKD."""
    objective, found, student = terms(
        RelationalDistillation, batch, relational_target=target, relational_weight=3.0
    )
    teacher = batch.features[f"clip_{target}"]
    pairs = [(i, j) for i, j in product(range(COUNT), repeat=2) if i != j]
    distances = [torch.zeros(COUNT, COUNT) for _ in range(2)]
    for table, vectors in zip(distances, (student, teacher), strict=True):
        for i, j in pairs:
            table[i, j] = (vectors[i] - vectors[j]).norm()
        table /= table.sum() / len(pairs)
    distance = COUNT * F.smooth_l1_loss(*distances)
    torch.testing.assert_close(found["rkd_distance"], distance, rtol=1e-4, atol=1e-6)
    angles = [torch.zeros(COUNT, COUNT, COUNT) for _ in range(2)]
    for table, vectors in zip(angles, (student, teacher), strict=True):
        for i, j, k in product(range(COUNT), repeat=3):
            if i not in (j, k):
                table[i, j, k] = F.cosine_similarity(
                    vectors[j] - vectors[i], vectors[k] - vectors[i], 0
                )
    angle = COUNT * F.smooth_l1_loss(*angles)
    torch.testing.assert_close(found["rkd_angle"], angle, rtol=1e-4, atol=1e-6)
    assert (objective.weight_of("rkd_distance"), objective.weight_of("rkd_angle")) == (75, 150)


def test_sigmoid(batch: Batch) -> None:
    """As SigLIP's formula and open_clip's `SigLipLoss` for other images, divided by the number of texts as there."""
    objective, found, student = terms(SigmoidContrast, batch, sigmoid_weight=2.0)
    assert objective.weight_of("sigmoid") == 2 and objective.count(batch) == {"sigmoid": COUNT}
    texts = F.normalize(student.double(), dim=-1)
    expected = torch.tensor(0.0).double()
    for i, j in product(range(COUNT), repeat=2):
        if {i, j} != {0, COUNT - 1}:
            logit = 10 * texts[i].dot(batch.features["clip_image"][j].double()) - 10
            expected += (1 + (logit if i != j else -logit).exp()).log()
    torch.testing.assert_close(found["sigmoid"].double(), expected, rtol=1e-5, atol=1e-6)


def test_frozen_probe_is_clips_loss_with_a_fixed_scale_and_without_gradient(batch: Batch) -> None:
    torch.manual_seed(2)
    objective = FrozenProbe(SIZES, probe_layers=3, probe_width=8).eval()
    sentences = torch.randn(COUNT, 6, requires_grad=True)
    loss = objective(EncoderOutput(sentence_embedding=sentences), batch)["frozen_probe"]
    loss.backward()
    assert sentences.grad is None
    assert all(one.grad is not None and one.grad.any() for one in objective.parameters())
    state = sentences.detach().double()
    for place in (0, 4):
        linear, norm = (objective.project[place + n].double() for n in (0, 1))
        state = state @ linear.weight.T + linear.bias
        state = (state - state.mean(1, True)) / (
            state.var(1, correction=0, keepdim=True) + 1e-5
        ).sqrt()
        state = (state * norm.weight + norm.bias).clamp(min=0)
    last = objective.project[8].double()
    texts = F.normalize(state @ last.weight.T + last.bias, dim=-1)
    logits = math.exp(2.6592) * texts @ batch.features["clip_image"].double().T
    expected = torch.tensor(0.0).double()
    for table, i in product((logits, logits.T), range(COUNT)):
        others = [j for j in range(COUNT) if i == j or {i, j} != {0, COUNT - 1}]
        expected += (table[i, others].exp().sum().log() - table[i, i]) / 2
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)

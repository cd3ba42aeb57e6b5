"""Losses of a grounded space (Bordes et al., Cap2Img) and of CLIP-KD, in loops; what a pair and a negative is."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny.homes import STEPS
from tiny.objectives import pictured_captions, tokens_of
from torch import Tensor, nn
from torch.nn import functional as F

from groundling.commands.adapt import COMMAND as adapt
from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.core.errors import InputError
from groundling.objectives.caption_to_image import Cap2Img, number_images
from groundling.objectives.clip_kd import (
    AffinityDistillation,
    FeatureMimicry,
    InteractiveContrast,
    RelationalDistillation,
)
from groundling.objectives.grounded_space import (
    GroundedSpace,
    VisualCluster,
    VisualPerceptual,
    correlate_similarities,
)
from groundling.settings.fields import replace_settings
from groundling.studies.bench.methods.frozen_probe import FrozenProbe
from groundling.studies.bench.methods.sigmoid import SigmoidContrast


def batch_of(images: Tensor, is_pair: list[int] | None = None) -> Batch:
    """Rows with these image features (N, E); pairs of captions if `is_pair` is given for each."""
    rows = len(images)
    text = tokens_of(torch.tensor([[2, 1, 2]]).expand(rows, 3))
    samples = rows if is_pair is None else len(is_pair)
    labels = {} if is_pair is None else {"is_pair": torch.tensor(is_pair)}
    ids = tuple(map(str, range(samples)))
    return Batch(ids, text=text, labels=labels, features={"clip_image": images})


def encoded(vectors: Tensor) -> EncoderOutput:
    """States whose first position is the sentence vector (N, D), the others something else."""
    return EncoderOutput(text=torch.stack([vectors, vectors.flip(-1) + 3, -vectors], 1))


KINDS = {(): GroundedSpace, ("cluster",): VisualCluster, ("perceptual",): VisualPerceptual}


def plain(width: int, *parts: Any, **options: Any) -> GroundedSpace:
    """The objective with the sentence vector itself as grounded space."""
    sizes = OutputSizes(text=width, teacher_image=width)
    objective = KINDS[parts](sizes, **options)
    objective.project = nn.Identity()
    return objective


# -- in loops --------------------------------------------------------------------------------------------------------
SHOWN = [0, 1, 2, 0, 3, 4]
"""The images of six pairs; two pairs show the same image, and the last caption has no other."""
IS_PAIR = [1, 1, 1, 1, 1, 0]


def drawn() -> tuple[Tensor, Tensor]:
    """Vectors of both captions of every pair (12, 8), and their images' features (12, 8)."""
    rng = torch.Generator().manual_seed(5)
    captions = torch.randn(12, 8, generator=rng)
    captions[11] = captions[10]
    images = torch.randn(5, 8, generator=rng)
    return captions, images[SHOWN].repeat_interleave(2, 0)


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


def cluster_in_loops(captions: np.ndarray, margin: float) -> float:
    total = 0.0
    for pair in range(6):
        if not IS_PAIR[pair]:
            continue
        anchor, positive = captions[2 * pair], captions[2 * pair + 1]
        hinges = []
        for other in range(6):
            if SHOWN[other] == SHOWN[pair]:
                continue
            for row in range(2 if IS_PAIR[other] else 1):
                negative = cosine(anchor, captions[2 * other + row])
                hinges.append(max(0.0, margin - cosine(anchor, positive) + negative))
        total += sum(hinges) / len(hinges)
    return total


def perceptual_in_loops(captions: np.ndarray, images: np.ndarray) -> float:
    of_captions, of_images = [], []
    for one in range(0, 12, 2):
        for other in range(one + 2, 12, 2):
            of_captions.append(cosine(captions[one], captions[other]))
            of_images.append(cosine(images[one], images[other]))
    assert len(of_captions) == 15
    return -6 * float(np.corrcoef(of_captions, of_images)[0, 1])


@pytest.mark.parametrize("margin", [0.5, 0.1])
def test_both_losses_in_loops(margin: float) -> None:
    captions, images = drawn()
    batch = batch_of(images, IS_PAIR)
    objective = plain(8, cluster_margin=margin)
    assert objective.count(batch) == {"visual_cluster": 5, "visual_perceptual": 6}
    found = objective(encoded(captions), batch)
    expected = cluster_in_loops(captions.numpy(), margin)
    assert found["visual_cluster"].item() == pytest.approx(expected, rel=1e-5)
    expected = perceptual_in_loops(captions.numpy(), images.numpy())
    assert found["visual_perceptual"].item() == pytest.approx(expected, rel=1e-4)
    alone = plain(8, "perceptual")(encoded(captions[::2]), batch_of(images[::2]))
    torch.testing.assert_close(alone["visual_perceptual"], found["visual_perceptual"])


CAPTIONED = [0, 1, 1, 2, 3, 0, 4]
"""The image of each of seven captions."""


@pytest.mark.parametrize("margin", [0.2, 0.7])
def test_the_hinge_of_cap2img_in_loops(margin: float) -> None:
    rng = torch.Generator().manual_seed(3)
    captions, images = torch.randn(7, 6, generator=rng), torch.randn(5, 6, generator=rng)
    objective = Cap2Img(OutputSizes(text=6, teacher_image=6), caption_to_image_margin=margin)
    objective.project = nn.Identity()
    found = objective(encoded(captions), batch_of(images[CAPTIONED]))
    said, seen = captions.numpy(), images.numpy()
    expected = 0.0
    for x, v in enumerate(CAPTIONED):
        for x2, v2 in enumerate(CAPTIONED):
            if v2 != v:
                right = cosine(said[x], seen[v])
                expected += max(0.0, margin - right + cosine(said[x2], seen[v]))
                expected += max(0.0, margin - right + cosine(said[x], seen[v2]))
    assert expected > 1
    assert found["caption_to_image"].item() == pytest.approx(expected, rel=1e-5)


def test_images_are_told_apart_by_their_features() -> None:
    features = torch.randn(50, 20)
    features[7] = features[3]
    features[8] = features[3].roll(1)
    numbers = number_images(features).tolist()
    assert numbers[7] == numbers[3]
    assert len(set(numbers)) == 49


# -- where nothing can be compared -----------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_captions_have_no_correlation(count: int) -> None:
    vectors = torch.randn(count, 4, requires_grad=True)
    found = plain(4, "perceptual")(encoded(vectors), batch_of(torch.randn(count, 4)))
    found["visual_perceptual"].backward()
    assert found["visual_perceptual"].item() == 0
    assert vectors.grad is not None
    assert not vectors.grad.any()


def test_equal_similarities_have_no_correlation() -> None:
    vectors = torch.randn(5, 4, requires_grad=True)
    found = correlate_similarities(vectors, torch.ones(5, 4))
    found.backward()
    assert found.item() == pytest.approx(0, abs=0.1)
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()


def test_captions_without_a_pair_or_a_negative_add_nothing() -> None:
    vectors = torch.randn(4, 4, requires_grad=True)
    objective = plain(4, "cluster")
    for images, is_pair in ((torch.eye(4)[[0, 0, 1, 1]], [0, 0]), (torch.ones(4, 4), [1, 1])):
        batch = batch_of(images, is_pair)
        found = objective(encoded(vectors), batch)["visual_cluster"]
        found.backward()
        assert found.item() == 0
        assert objective.count(batch) == {"visual_cluster": sum(is_pair)}
    assert vectors.grad is not None
    assert not vectors.grad.any()


# -- runs ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arm", "told"),
    [
        ("visual_cluster+visual_perceptual", "are the objective grounded_space; train one of them"),
        ("visual_cluster", "grounded_space compares captions of an image, but"),
    ],
)
def test_what_cannot_be_trained_is_refused(arm: str, told: str, tmp_path: Path) -> None:
    config = replace_settings(pictured_captions(tmp_path / "data", each=1), arm=arm)
    with pytest.raises(InputError, match=told):
        adapt(config, STEPS, tmp_path / "run")


# -- Losses to a teacher's vectors by hand: CLIP-KD's, relational, sigmoid and a frozen probe's

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

"""Bordes et al.'s grounded space and Cap2Img: their losses in loops, and what a pair and a negative is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny.homes import STEPS
from tiny.objectives import pictured_captions, tokens_of
from torch import Tensor, nn

from groundling.commands.adapt import COMMAND as adapt
from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.core.errors import InputError
from groundling.objectives.grounded_space import (
    Cap2Img,
    GroundedSpace,
    VisualCluster,
    VisualPerceptual,
    correlate_similarities,
    number_images,
)
from groundling.settings.fields import replace_settings


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

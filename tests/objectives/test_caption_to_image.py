"""Cap2Img: its hinge in loops, and what counts as a negative."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny.objectives import in_processes, tokens_of
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.objectives import caption_to_image
from groundling.objectives.caption_to_image import Cap2Img, number_images


def batch_of(images: Tensor) -> Batch:
    """Captions of three tokens each, the first and last special, with these image features (N, E)."""
    rows = len(images)
    text = tokens_of(torch.tensor([[2, 1, 2]]).expand(rows, 3))
    return Batch(tuple(map(str, range(rows))), text=text, features={"clip_image": images})


def encoded(vectors: Tensor) -> EncoderOutput:
    """States whose first position is the sentence vector (N, D), the others something else."""
    return EncoderOutput(text=torch.stack([vectors, vectors.flip(-1) + 3, -vectors], 1))


def plain(width: int, **options: float) -> Cap2Img:
    """The objective with a projection that changes nothing."""
    objective = Cap2Img(OutputSizes(text=width, teacher_image=width), **options)
    objective.project = nn.Identity()
    return objective


def in_loops(captions: np.ndarray, images: np.ndarray, shown: list[int], margin: float) -> float:
    """The sum over all triples; caption i shows image `shown[i]`."""

    def cosine(one: np.ndarray, other: np.ndarray) -> float:
        return float(one @ other / np.sqrt((one @ one) * (other @ other)))

    total = 0.0
    for x, v in zip(range(len(captions)), shown, strict=True):
        right = cosine(captions[x], images[v])
        for x2, v2 in zip(range(len(captions)), shown, strict=True):
            if v2 != v:
                total += max(0.0, margin - right + cosine(captions[x2], images[v]))
                total += max(0.0, margin - right + cosine(captions[x], images[v2]))
    return total


SHOWN = [0, 1, 1, 2, 3, 0, 4]


def drawn() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    return torch.randn(len(SHOWN), 6, generator=rng), torch.randn(5, 6, generator=rng)


@pytest.mark.parametrize("margin", [0.2, 0.7])
def test_the_hinge_in_loops(margin: float) -> None:
    captions, images = drawn()
    found = plain(6, caption_to_image_margin=margin)(encoded(captions), batch_of(images[SHOWN]))
    expected = in_loops(captions.numpy(), images.numpy(), SHOWN, margin)
    assert expected > 1 and Cap2Img(OutputSizes()).margin == 0.2
    assert found["caption_to_image"].item() == pytest.approx(expected, rel=1e-5)


def test_processes_share_their_negatives() -> None:
    captions, images = drawn()
    objective = plain(6)
    expected = objective(encoded(captions), batch_of(images[SHOWN]))["caption_to_image"]

    def part(rows: slice) -> Tensor:
        batch = batch_of(images[SHOWN][rows])
        return objective(encoded(captions[rows]), batch)["caption_to_image"]

    found = in_processes(caption_to_image, lambda: part(slice(3)), lambda: part(slice(3, 7)))
    torch.testing.assert_close(sum(found), expected)


def test_images_are_told_apart_by_their_features() -> None:
    features = torch.randn(50, 20)
    features[7] = features[3]
    features[8] = features[3].roll(1)
    numbers = number_images(features).tolist()
    assert numbers[7] == numbers[3]
    assert len(set(numbers)) == 49

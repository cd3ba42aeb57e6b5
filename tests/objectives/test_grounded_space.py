"""Bordes et al.'s grounded space: both losses in loops, what a pair is, and runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import homes
from tiny.homes import STEPS, log_of
from tiny.objectives import in_processes, pictured_captions, tokens_of
from torch import Tensor, nn

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.core.errors import InputError
from groundling.objectives import grounded_space
from groundling.objectives.grounded_space import (
    GroundedSpace,
    VisualCluster,
    VisualPerceptual,
    correlate_similarities,
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


def test_processes_share_a_batch() -> None:
    captions, images = drawn()
    objective = plain(8)
    expected = objective(encoded(captions), batch_of(images, IS_PAIR))

    def part(start: int, stop: int) -> dict[str, Tensor]:
        rows = slice(2 * start, 2 * stop)
        return objective(encoded(captions[rows]), batch_of(images[rows], IS_PAIR[start:stop]))

    one, other = in_processes(grounded_space, lambda: part(0, 2), lambda: part(2, 6))
    for term, value in expected.items():
        torch.testing.assert_close(one[term] + other[term], value)


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


# -- settings --------------------------------------------------------------------------------------------------------


def test_the_sentence_vector_follows_the_pooling() -> None:
    states = EncoderOutput(text=torch.randn(12, 3, 8), sentence_embedding=torch.randn(12, 5))
    _, images = drawn()
    batch = batch_of(images, IS_PAIR)
    sizes = OutputSizes(text=8, sentence_embedding=5, teacher_image=8)
    torch.manual_seed(0)
    objective = GroundedSpace(sizes, pooling="own")
    assert objective.project[0].in_features == 5
    objective(states, batch)
    found = []
    for pool in ("cls", "mean"):
        objective = GroundedSpace(sizes, pooling=pool)
        objective.project = nn.Identity()
        found.append(objective(states, batch)["visual_cluster"].item())
    assert states.text is not None
    middle = EncoderOutput(text=states.text[:, 1:2])
    cls = plain(8)
    assert found[0] != found[1] == cls(middle, batch)["visual_cluster"].item()


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> AdaptConfig:
    return pictured_captions(tmp_path_factory.mktemp("pictured"))


def test_texts_without_images_train_the_rest(pictured: AdaptConfig, tmp_path: Path) -> None:
    text = str(homes.text(tmp_path / "texts.txt"))
    both = replace_settings(
        pictured,
        arm="mlm+grounded_space",
        text=(f"{pictured.text[0]}=1", f"{text}=1"),
        eval_text=(pictured.text[0].replace("captions", "held"),),
    )
    Path(both.eval_text[0]).write_text(Path(pictured.text[0]).read_text())
    result = adapt(both, replace(STEPS, steps=6), tmp_path / "run")
    lines = log_of(tmp_path / "run")
    assert all("mlm" in line for line in lines)
    assert 0 < sum("visual_cluster" in line for line in lines) < 6
    assert {"visual_cluster", "visual_perceptual"} <= set(result["held"]["terms"])


def test_two_terms_in_two_spaces_are_refused(pictured: AdaptConfig, tmp_path: Path) -> None:
    config = replace_settings(pictured, arm="visual_cluster+visual_perceptual")
    with pytest.raises(InputError) as error:
        adapt(config, STEPS, tmp_path)
    assert str(error.value) == (
        "two of visual_cluster, visual_perceptual are the objective grounded_space; train one of them"
    )


def test_images_with_one_caption_each_are_refused(tmp_path: Path) -> None:
    config = replace_settings(pictured_captions(tmp_path / "data", each=1), arm="visual_cluster")
    with pytest.raises(InputError, match="grounded_space compares captions of an image, but"):
        adapt(config, STEPS, tmp_path / "run")

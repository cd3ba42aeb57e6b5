"""Points of integrated gradients on the line from the baseline, with a LayerNorm that jumps near it
too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny import toys

from groundling.core.batch import Example
from groundling.data.regions.samples import RegionDataset, RegionOptions
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.studies.attention import attribution
from groundling.studies.attention.answers import MatchOutcome
from groundling.vision_language.single_stream import SingleStreamModel
from groundling.vision_language.uniter import uniter
from groundling.vision_language.vlbert import vlbert

EXAMPLES = 4


def model_of(join: Any, bias: float) -> SingleStreamModel:
    """A small model with weights as large as trained ones, and biases with this standard
    deviation.
    """
    torch.manual_seed(0)
    words = toys.bert_words()
    model: SingleStreamModel = join(toys.bert(len(words), type_vocab_size=3), words, 12).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() == 2:
                weights.mul_(1.5)
            elif name.endswith("bias"):
                weights.normal_(std=bias) if bias else weights.zero_()
    return model


def missing(model: SingleStreamModel, steps: int) -> np.ndarray:
    """The share of each example's change that attributions miss."""
    torch.manual_seed(1)
    head = ImageTextMatching(model.sizes).eval()
    with torch.no_grad():
        for weights in head.parameters():
            weights.mul_(20)
    texts = toys.sentences()
    examples = [Example(f"s{n}", texts[n], images=(f"i{n}",)) for n in range(EXAMPLES)]
    store = toys.RegionDict({f"i{n}": toys.regions(n, 2 + n) for n in range(EXAMPLES)})
    seeing = RegionOptions(
        model.reads_whole_image, model.has_inclusive_boxes, width=model.sizes.regions
    )
    samples = RegionDataset(
        TextDataset(examples, TextRowEncoder(toys.bert_words(), 40)), store, seeing
    )
    found = attribution.attribute_answers(model, MatchOutcome(head), samples, EXAMPLES, steps)
    return np.array([abs(one.residual) / abs(one.change) for one in found])


def test_points_integrate_what_is_smooth_and_what_is_steep_at_the_beginning() -> None:
    shares, weights = attribution.quadrature_points(64)
    assert shares.min() > 0 and shares.max() < 1 and weights.sum() == pytest.approx(1)
    assert (weights * shares**5).sum() == pytest.approx(1 / 6)
    for start in (
        1e-1,
        1e-3,
        1e-6,
    ):  # the slope of s / sqrt(s^2 + start^2), which jumps within `start`
        slope = start**2 / (shares**2 + start**2) ** 1.5
        assert (weights * slope).sum() == pytest.approx(1 / np.hypot(1, start), rel=0.03)
    assert [part.tolist() for part in attribution.quadrature_points(1)] == [[0.125], [1.0]]


@pytest.mark.parametrize(("join", "bias"), [(uniter, 0.0), (uniter, 1e-3), (vlbert, 0.0)])
def test_shares_add_up_also_where_a_normalised_vector_starts_at_zero(
    join: Any, bias: float
) -> None:
    assert missing(model_of(join, bias), 64).max() < 0.1


def test_more_points_are_not_worse() -> None:
    model = model_of(uniter, 0.0)
    few, many = (np.median(missing(model, steps)) for steps in (16, 96))
    assert many < 0.01 and many < few


def test_even_points_would_step_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests above would prove nothing."""
    monkeypatch.setattr(attribution, "POINT_POWER", 1)
    assert np.median(missing(model_of(uniter, 0.0), 64)) > 0.1

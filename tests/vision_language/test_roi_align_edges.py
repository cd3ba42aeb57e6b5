"""RoIAlign where samples lie at the very ends of an image, and where an image has no boxes; worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from groundling.vision_language.end_to_end import roi_align

ROW = torch.tensor([[[[10.0, 20.0, 30.0, 40.0]]]])
"""One image of one row of four pixels."""


def row_of(x1: float, x2: float, size: int = 1, sampling: int = 1) -> list[float]:
    """What a box over the whole height of `ROW` holds, in bins from left to right."""
    boxes = torch.tensor([[x1, 0.0, x2, 1.0]])
    return roi_align(ROW, [boxes], size, 1.0, sampling)[0, 0, 0].tolist()


# A pixel's centre is at its number plus .5, so half a pixel is taken off: 1.0 to 2.0 is sampled at 1.0, 20.
@pytest.mark.parametrize(
    ("x1", "x2", "expected"),
    [
        (1.0, 2.0, 20.0),
        (1.25, 2.25, 22.5),
        (-0.5, 0.5, 10.0),  # at -.5: the first pixel
        (-1.0, 0.0, 10.0),  # at -1: still the first pixel
        (-1.125, -0.125, 0.0),  # at -1.125: nothing
        (3.75, 4.75, 40.0),  # at 3.75: the last pixel
        (4.0, 5.0, 40.0),  # at 4, the width: still the last pixel
        (4.125, 5.125, 0.0),  # at 4.125: nothing
    ],
)
def test_a_sample_counts_from_one_pixel_before_to_the_end(
    x1: float, x2: float, expected: float
) -> None:
    assert row_of(x1, x2) == [expected]


def test_half_of_the_samples_at_the_end() -> None:
    # Two samples, at -1.5 and -1: the first is none, the second is the first pixel.
    assert row_of(-1.25, -0.25, sampling=2) == [5.0]
    # Two bins of two samples: -2 and -1; 0 and 1.
    assert row_of(-2.0, 2.0, size=2, sampling=2) == [5.0, 15.0]


def in_torchvisions_order(box: np.ndarray, size: int, sampling: int, width: int) -> np.ndarray:
    """How many of each bin's samples count (size,), every step in single precision."""
    single = np.float32
    low, high = (single(side * single(1) - single(0.5)) for side in box)
    span = single(single(high - low) / single(size))
    counts = np.zeros(size)
    for number in range(size):
        for sample in range(sampling):
            place = single(low + single(single(number) * span))
            place += single(single(single(sample + 0.5) * span) / single(sampling))
            counts[number] += (not (place < -1 or place > width)) / sampling
    return counts


@pytest.mark.parametrize(("size", "sampling"), [(7, 3), (7, 2), (14, 2)])
def test_rounding_takes_the_side_that_it_takes_in_torchvision(size: int, sampling: int) -> None:
    # Left ends in steps of 1/16 and widths such that a sample lies at -1 but for rounding.
    rng = np.random.default_rng(size)
    middles = rng.integers(0, 2 * size, 400) + 0.5
    spans = rng.integers(1, 60, 400) * 0.7
    lefts = -0.5 - spans * middles / (2 * size)
    boxes = np.stack([lefts, lefts + spans], 1).astype(np.float32)
    features = torch.ones(1, 1, 1, 12)
    given = torch.tensor([[left, 0.0, right, 1.0] for left, right in boxes.tolist()])
    found = roi_align(features, [given], size, 1.0, sampling)[:, 0, 0].numpy()
    expected = [in_torchvisions_order(box, size, sampling, 12) for box in boxes]
    np.testing.assert_allclose(found, np.stack(expected), atol=1e-5)
    ends = [box for box in boxes if abs(box[0]) > 1]
    assert len(ends) > 100


def test_an_image_without_boxes_has_no_features() -> None:
    features = torch.randn(3, 2, 4, 4)
    box = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
    none = torch.zeros(0, 4)
    found = roi_align(features, [none, box, none], 2, 1.0, 2)
    alone = roi_align(features[1:2], [box], 2, 1.0, 2)
    assert found.shape == (1, 2, 2, 2)
    assert torch.equal(found, alone)
    assert roi_align(features, [none] * 3, 2, 1.0, 2).shape == (0, 2, 2, 2)

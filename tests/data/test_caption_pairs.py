"""Pairs of captions of the same image: who is drawn, what is repeated, and how large they are."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from tiny import toys

from groundling.core.batch import collate
from groundling.core.errors import InputError
from groundling.core.rng import generator
from groundling.data.captions import CaptionPairs
from groundling.data.samples import SampleDataset


def drawn(pairs: CaptionPairs, epoch: int) -> list[tuple[str, str, int]]:
    """Names of both captions of every pair, and its label."""
    rngs = [generator(0, epoch, name) for name in pairs.ids]
    samples = pairs.get(range(len(pairs)), rngs)
    assert [sample.id for sample in samples] == list(pairs.ids)
    return [(s.choices[0].id, s.choices[1].id, int(s.labels["is_pair"])) for s in samples]


def test_the_second_row_is_another_caption_of_the_image() -> None:
    # 16 captions, five of an image: images 0 to 2, and one caption of image 3.
    pairs = toys.caption_pairs(16, each=5)
    partners: dict[str, set[str]] = {}
    for epoch in range(40):
        for one, other, is_pair in drawn(pairs, epoch):
            assert int(one[1:]) // 5 == int(other[1:]) // 5
            assert is_pair == (one != other) == (one != "s15")
            partners.setdefault(one, set()).add(other)
    assert [len(partners[f"s{number}"]) for number in range(16)] == [4] * 15 + [1]
    assert drawn(pairs, 3) == drawn(pairs, 3) != drawn(pairs, 4)


def test_a_batch_has_two_rows_of_every_sample() -> None:
    pairs = toys.caption_pairs(6)
    batch = collate(pairs.get([4, 1], [generator(0), generator(1)]))
    assert (len(batch), batch.rows, batch.choices) == (2, 4, 2)
    assert batch.ids == ("s4", "s1")
    assert batch.labels["is_pair"].tolist() == [1, 1]
    plain = collate(cast(SampleDataset, toys.captions(6)).get([4, 5, 1, 0], [generator(0)] * 4))
    assert plain.text is not None
    assert batch.text is not None
    assert batch.text.input_ids.equal(plain.text.input_ids)
    assert batch.features["clip_image"].equal(plain.features["clip_image"])


def test_sizes_are_bounds() -> None:
    pairs = CaptionPairs(toys.captions(20, 3).samples, "captions")
    own = pairs.samples.sizes
    longest = np.array([own[pairs.group == group].max(0) for group in pairs.group])
    assert (pairs.sizes[:, 0] == 2).all()
    assert np.array_equal(pairs.sizes[:, 1:], longest[:, 1:])
    assert (pairs.lengths == pairs.samples.lengths).all()


def test_one_caption_for_each_image_is_refused() -> None:
    with pytest.raises(InputError) as error:
        CaptionPairs(toys.captions(5, each=1), "captions.json: visual_cluster")
    assert str(error.value) == (
        "captions.json: visual_cluster compares captions of an image, but every image has one"
    )

"""Padding, windows laid end to end, and what a batch refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import toys

from groundling.core.batch import IGNORE, Batch, Sample, TextRow, collate
from groundling.core.errors import InputError


def text_row(*ids: int, pad: int = 9) -> TextRow:
    n = len(ids)
    edge = np.array([True] + [False] * (n - 2) + [True])
    word = np.array([-1, *range(n - 2), -1])
    return TextRow(np.array(ids), edge, word, np.array([0] * (n - 1) + [1]), pad)


def clip_row(*windows: tuple[int, ...], pad: int = 8, second: int = 9) -> TextRow:
    """Windows of tokens; those from number `second` on belong to the second text of a pair."""
    ids = np.array([i for w in windows for i in w])
    number = np.array([n for n, w in enumerate(windows) for _ in w])
    special = np.array([t in (0, len(w) - 1) for w in windows for t in range(len(w))])
    word = np.where(special, -1, np.cumsum(~special) - 1)
    return TextRow(ids, special, word, (number >= second).astype(int), pad, number)


@pytest.fixture
def batch() -> Batch:
    pair = clip_row((3, 6, 4), (3, 7, 7, 4), (3, 4), second=2)
    a = Sample("a", text_row(1, 5, 2), pair, np.array([11, 12]), truncated_tokens=2)
    single, words = clip_row((3, 5, 4)), np.array([11, 13, 14])
    b = Sample("b", text_row(1, 5, 6, 7, 2), single, words, truncated_tokens=3)
    a = replace(a, labels={"one": np.array(1), "each": np.array([IGNORE, 5, IGNORE])})
    b = replace(b, labels={"one": np.array(0), "each": np.array([IGNORE, 5, 6, 7, IGNORE])})
    ones = np.ones((3, 4), np.float32)
    a = replace(a, features={"sentence": ones[0], "words": ones[:2]})
    return collate([a, replace(b, features={"sentence": 0 * ones[0], "words": ones})])


def test_text_is_padded_and_masked(batch):
    assert batch.ids == ("a", "b")
    assert len(batch) == 2
    assert batch.text.input_ids.tolist() == [[1, 5, 2, 9, 9], [1, 5, 6, 7, 2]]
    assert batch.text.attention_mask.tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    assert batch.text.special_tokens_mask.tolist() == [
        [True, False, True, True, True],
        [True, False, False, False, True],
    ]
    assert batch.text.word_ids.tolist() == [[-1, 0, -1, -1, -1], [-1, 0, 1, 2, -1]]
    assert batch.text.token_type_ids.tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 1]]
    assert batch.word_type_ids.tolist() == [[11, 12, -1], [11, 13, 14]]
    assert batch.truncated_tokens == 5
    assert batch.pixels is None


def test_labels_and_features_are_padded(batch):
    assert batch.labels["one"].tolist() == [1, 0]
    assert batch.labels["each"].tolist() == [
        [IGNORE, 5, IGNORE, IGNORE, IGNORE],
        [IGNORE, 5, 6, 7, IGNORE],
    ]
    assert batch.features["sentence"].shape == (2, 4)
    assert batch.features["words"].shape == (2, 3, 4)
    assert batch.features["words"][0, 2].tolist() == [0, 0, 0, 0]


def test_windows_are_as_many_as_needed(batch):
    clip = batch.clip
    assert clip.input_ids.tolist() == [[3, 6, 4, 8], [3, 7, 7, 4], [3, 4, 8, 8], [3, 5, 4, 8]]
    assert clip.attention_mask.sum(1).tolist() == [3, 4, 2, 3]
    assert clip.row_index.tolist() == [0, 0, 0, 1]
    assert clip.eot_index.tolist() == [2, 3, 1, 2]
    assert clip.token_type_ids.tolist() == [0, 0, 1, 0]
    assert toys.clip_ids(batch).tolist() == [
        [3, 6, 4, 3, 7, 7, 4, 3, 4],
        [3, 5, 4, 0, 0, 0, 0, 0, 0],
    ]
    assert clip.key_mask.tolist() == [[True] * 9, [True] * 3 + [False] * 6]
    assert clip.word_ids.tolist() == [
        [-1, 0, -1, -1, 1, 2, -1, -1, -1],
        [-1, 0, -1, -1, -1, -1, -1, -1, -1],
    ]


def test_join_lays_windows_end_to_end(batch):
    states = torch.randn(4, 4, 6, requires_grad=True)
    joined = batch.clip.flatten_states(states)
    assert joined.shape == (2, 9, 6)
    expected = [torch.cat([states[0, :3], states[1, :4], states[2, :2]]), states[3, :3]]
    assert torch.equal(joined[0], expected[0])
    assert torch.equal(joined[1, :3], expected[1])
    assert not joined[1, 3:].any()
    joined.sum().backward()
    assert torch.equal(states.grad[..., 0].bool(), batch.clip.attention_mask)


def test_pixels_are_stacked(pictures):
    batch = collate(pictures.get([0, 4]))
    assert batch.pixels.shape == (2, 3, 16, 16)
    assert batch.pixels.dtype == torch.uint8
    assert batch.labels["image"].tolist() == [0, 2]
    assert batch.text is None


@pytest.mark.parametrize("need", ["pixels", "labels.nothing", "features.sentence.x", "txet"])
def test_require_names_the_field_and_who_asks(batch, need):
    with pytest.raises(InputError) as error:
        batch.require(["text", "labels.one", need], "some objective")
    assert str(error.value).startswith(f"some objective needs `{need}`")
    batch.require(["text", "clip", "word_type_ids", "labels.one", "features.words"], "anyone")


def test_to_moves_every_tensor(batch):
    moved = batch.to("meta")
    tensors = [moved.word_type_ids, *moved.labels.values(), *moved.features.values()]
    tensors += [*vars(moved.text).values(), *vars(moved.clip).values()]
    tensors = [value for value in tensors if isinstance(value, torch.Tensor)]
    assert len(tensors) == 1 + 2 + 2 + 5 + 9
    assert all(t.device.type == "meta" for t in tensors)
    assert moved.ids == batch.ids
    assert moved.truncated_tokens == 5
    assert batch.word_type_ids.device.type == "cpu"

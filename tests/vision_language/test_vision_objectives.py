"""Objectives on regions, each against a plain restatement."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import toys
from torch import Tensor

from groundling.core.batch import (
    IGNORE,
    EncoderOutput,
    Example,
    OutputSizes,
    RegionRow,
    Sample,
    collate,
)
from groundling.core.errors import InputError
from groundling.core.rng import generator
from groundling.data.captions import CaptionedImage
from groundling.data.regions.samples import (
    CaptionSampleDataset,
    RegionDataset,
    RegionOptions,
    add_whole_image,
)
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.objectives.image_text_matching import ImageTextMatching, transport_distance
from groundling.objectives.masked_regions import MaskedRegionModeling

SIZES = OutputSizes(text=6, visual=6, regions=4, classes=5, pooler_output=6)


def row(seed: int, count: int = 12, whole: bool = True) -> RegionRow:
    rng = np.random.default_rng(seed)
    made = RegionRow(
        rng.normal(size=(count, 4)).astype(np.float32),
        rng.random((count, 4)).astype(np.float32),
        rng.random(count).astype(np.float32),
        np.zeros(count, np.int64),
        np.zeros(count, bool),
        rng.dirichlet(np.ones(5), count).astype(np.float32),
    )
    return add_whole_image(made) if whole else made


def corrupted(objective: MaskedRegionModeling, count: int = 200) -> list[Sample]:
    return [
        objective.corrupt(Sample(f"s{i}", regions=row(i)), generator(0, i), lambda: Sample("x"))
        for i in range(count)
    ]


def test_shares_of_chosen_and_hidden_regions() -> None:
    samples = corrupted(MaskedRegionModeling(SIZES, rate=0.3, keep_ratio=0.2), 400)
    chosen = np.stack([s.labels["masked_regions"] == 1 for s in samples])
    hidden = np.stack([s.regions.masked for s in samples])
    assert not chosen[:, 0].any(), "the whole image is never chosen"
    assert chosen[:, 1:].mean() == pytest.approx(0.3, abs=0.02)
    assert (hidden <= chosen).all()
    assert hidden.sum() / chosen.sum() == pytest.approx(0.8, abs=0.04)
    for number, (sample, mask) in enumerate(zip(samples, hidden, strict=True)):
        plain, regions = row(number), sample.regions
        assert not regions.features[mask].any()
        seen = np.flatnonzero(~mask)[1:]
        assert np.array_equal(regions.features[seen], plain.features[seen])
        # What stands for the whole image is the mean of what is still visible.
        assert np.allclose(regions.features[0], plain.features[seen].mean(0), atol=1e-6)
        assert np.array_equal(regions.boxes, plain.boxes)


def test_uniter_always_chooses_one() -> None:
    few = MaskedRegionModeling(SIZES, rate=0.001, keep_ratio=0.0, min_masked=1)
    assert {int((s.labels["masked_regions"] == 1).sum()) for s in corrupted(few)} == {1}
    none = MaskedRegionModeling(SIZES, rate=0.001)
    assert any(not (s.labels["masked_regions"] == 1).any() for s in corrupted(none))


@pytest.mark.parametrize(
    ("kind", "background"), [("soft", True), ("hard", True), ("hard", False), ("regress", True)]
)
def test_losses_by_hand(kind: str, background: bool) -> None:
    """Stores of one's own have no background column, VL-BERT's and UNITER's have one."""
    sizes = SIZES._replace(background=background)
    objective = MaskedRegionModeling(sizes, kind=kind, rate=0.4, keep_ratio=0.0).eval()
    batch = collate(corrupted(objective, 5))
    batch.require(objective.required_fields, objective.name)
    visual = torch.randn(5, 13, 6)
    (loss,) = objective(EncoderOutput(visual=visual), batch).values()
    total, count = 0.0, 0
    for b, r in (batch.labels[objective.name] == 1).nonzero().tolist():
        plain, out = row(b), objective.head(visual[b, r]).detach()
        count += 1
        if kind == "soft":
            total -= float((torch.from_numpy(plain.classes[r]) * out.log_softmax(-1)).sum())
        elif kind == "hard":
            first = int(background)  # B11
            total -= float(out.log_softmax(-1)[plain.classes[r, first:].argmax() + first])
        else:
            total += float(((out - torch.from_numpy(plain.features[r])) ** 2).sum())
    assert objective.count(batch) == {objective.name: count}
    assert loss.item() == pytest.approx(total, rel=1e-5)


def test_a_negative_is_never_another_text_on_the_same_image() -> None:
    """B9: task data ask several questions about one image. B3: boxes go with the pixels of their own image."""
    objective = ImageTextMatching(SIZES)
    samples = [
        Sample(
            f"q{n}",
            regions=row(ord(image)),
            example=Example(f"q{n}", "?", images=(image,)),
            pixels=np.full((3, 4, 4), n, np.uint8),
        )
        for n, image in enumerate("xxxy")
    ]
    labels = []
    for seed in range(400):
        rng = generator(seed)
        made = objective.corrupt(samples[0], rng, lambda rng=rng: samples[int(rng.integers(4))])
        labels.append(int(made.labels["sentence_image"]))
        image = samples[0 if labels[-1] else 3]
        assert made.regions is image.regions and made.pixels is image.pixels
    assert np.mean(labels) == pytest.approx(0.5, abs=0.07)
    for seed in range(20):  # all texts are on one image: there is no negative
        made = objective.corrupt(samples[0], generator(seed), lambda: samples[1])
        assert int(made.labels["sentence_image"]) == 1


def test_labels_of_the_data_stay() -> None:
    sample = Sample("a", regions=row(0)).with_label("sentence_image", np.array(0))
    objective = ImageTextMatching(SIZES, swap_images=False)
    assert objective.corrupt(sample, generator(0), lambda: sample) is sample


def proximal_points(cost: np.ndarray, beta: float, rounds: int) -> float:
    """Transport distance of a cost (words, regions) as ChenRocks/UNITER, model/ot.py goes about it, one inner step."""
    words, regions = cost.shape
    kernel = np.exp(-cost.T / beta)
    plan = np.ones((regions, words))
    sigma = np.full(words, 1 / words)
    for _ in range(rounds):
        weighted = kernel * plan
        delta = 1 / (regions * (weighted @ sigma))
        sigma = 1 / (words * (delta @ weighted))
        plan = delta[:, None] * weighted * sigma
    return float((plan.T * cost).sum())


@pytest.mark.parametrize("rounds", [1, 5, 50])
def test_transport_starts_from_uniters_side(rounds: int) -> None:
    """B8: sigma over the words starts at 1 / length, delta over the regions is taken first."""
    torch.manual_seed(1)
    words, regions = torch.randn(4, 7, 8), torch.randn(4, 5, 8)
    words_mask = torch.arange(7) < torch.tensor([7, 4, 6, 2])[:, None]
    regions_mask = torch.arange(5) < torch.tensor([5, 5, 2, 3])[:, None]
    distances = transport_distance(words, regions, words_mask, regions_mask, rounds=rounds)
    every = costs(words, regions, (words_mask, regions_mask))
    expected = [proximal_points(cost, 0.5, rounds) for cost in every]
    assert distances.tolist() == pytest.approx(expected, abs=1e-6)
    if rounds < 50:
        turned = transport_distance(regions, words, regions_mask, words_mask, rounds=rounds)
        assert (turned - distances).abs().max() > 1e-3, "the other side gives other distances"


def test_transport_is_in_full_precision_inside_autocast() -> None:
    """B8: half precision is off by 1e-3."""
    torch.manual_seed(2)
    words, regions = torch.randn(3, 9, 16), torch.randn(3, 6, 16)
    masks = torch.ones(3, 9, dtype=torch.bool), torch.ones(3, 6, dtype=torch.bool)
    expected = transport_distance(words, regions, *masks)
    with torch.autocast("cpu", torch.bfloat16):
        distances = transport_distance(words, regions, *masks)
    assert distances.dtype == torch.float32
    assert torch.equal(distances, expected)


def test_alignment_is_drawn_down_for_pairs_and_up_for_strangers(samples: TextDataset) -> None:
    objective = ImageTextMatching(SIZES, alignment=0.1).eval()
    made = [
        replace(s, regions=row(i)).with_label("sentence_image", np.array(i % 2))
        for i, s in enumerate(samples.get(range(4)))
    ]
    batch = collate(made)
    assert batch.text is not None and batch.regions is not None
    text, visual = torch.randn(4, batch.text.input_ids.shape[1], 6), torch.randn(4, 13, 6)
    terms = objective(EncoderOutput(text=text, visual=visual, pooler_output=text[:, 0]), batch)
    distance = transport_distance(text, visual, batch.text.attention_mask, batch.regions.mask)
    sign = torch.tensor([-1.0, 1.0, -1.0, 1.0])
    torch.testing.assert_close(terms["word_region"], 0.1 * (sign * distance).sum())
    assert objective.count(batch) == {"sentence_image": 4, "word_region": 4}
    assert (batch.labels["sentence_image"] != IGNORE).all()


STORE = toys.RegionDict({f"i{n}": row(n, 3 + n, whole=False) for n in range(6)})


def test_regions_of_several_images_stand_in_one_row(bert_tokenizer) -> None:
    words = TextRowEncoder(bert_tokenizer, 32)
    examples = [
        Example("a", "a dog", "a cat", images=("i1", "i3")),
        Example("b", "a red hat", images=("i0",)),
    ]
    options = RegionOptions(whole_image=True, max_regions=3)
    first, second = RegionDataset(TextDataset(examples, words), STORE, options).get([0, 1], ())
    assert first.regions.image_index.tolist() == [0] * 4 + [1] * 4
    assert first.regions.is_whole_image.tolist() == [True, False, False, False] * 2
    assert np.allclose(first.regions.features[0], STORE["i1"].features[:3].mean(0))
    assert np.array_equal(first.regions.features[5:], STORE["i3"].features[:3])
    regions = collate([first, second]).regions
    assert regions.features.shape == (2, 8, 4) and regions.mask.sum(1).tolist() == [8, 4]
    assert not regions.features[1, 4:].any()
    lost = TextDataset([Example("a", "b", images=("gone",))], words)
    with pytest.raises(InputError, match=r"1 of 1 images are not in this region .* 'gone'"):
        RegionDataset(lost, STORE)


class Sized(toys.RegionDict):
    """A store that knows the size of its images."""

    def size(self, image: str) -> tuple[int, int]:
        return 640, 480


def test_boxes_end_at_the_last_pixel_where_a_model_wants_it(bert_tokenizer) -> None:
    """B12: VL-BERT's whole image is [0, 0, W - 1, H - 1], and boxes are cut to it."""
    boxes = np.array([[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 1], [0.5, 0.5, 0.9995, 0.9995]], np.float32)
    store = Sized({"i2": replace(row(0, 3, whole=False), boxes=boxes)})
    right, bottom = 1 - 1 / 640, 1 - 1 / 480
    cut = [[0, 0, right, bottom], boxes[0], [0, 0, right, bottom], [0.5, 0.5, right, bottom]]
    whole = RegionOptions(whole_image=True)
    last = replace(whole, last_pixel=True)
    found = seen(store, bert_tokenizer, last).regions.boxes
    assert np.allclose(found, cut, rtol=0, atol=1e-7)
    for shelf, options in ((store, whole), (toys.RegionDict(store), last)):  # of unknown size
        assert np.array_equal(seen(shelf, bert_tokenizer, options).regions.boxes[1:], boxes)


@pytest.mark.parametrize("most", [0, 1, 2])
@pytest.mark.parametrize("whole", [False, True])
def test_a_stores_whole_image_is_for_models_that_read_it(most, whole, bert_tokenizer):
    """B7, B19: it does not count among the most regions, and an object's number is its place behind it."""
    kept = STORE["i2"].take(slice(most or len(STORE["i2"])))
    options = RegionOptions(whole_image=whole, max_regions=most)
    tagged = {"region_tags": ((2, 5, 1),), "object_count": 5}
    for store in (STORE, toys.RegionDict({"i2": add_whole_image(STORE["i2"])})):
        regions = seen(store, bert_tokenizer, options).regions
        assert regions.is_whole_image.tolist() == [True] * whole + [False] * len(kept)
        parts = regions.take(~regions.is_whole_image)
        assert np.array_equal(parts.features, kept.features)
        assert np.array_equal(parts.boxes, kept.boxes)
        if most != 1:
            sample = seen(store, bert_tokenizer, options, **tagged)
            (named,) = set(sample.text.region_index.tolist()) - {-1}
            assert np.array_equal(sample.regions.boxes[named], STORE["i2"].boxes[1])


def test_caption_pairs_are_of_one_image_in_half_of_the_cases(bert_tokenizer) -> None:
    words = TextRowEncoder(bert_tokenizer, 64)
    images = [
        CaptionedImage(f"i{n}", f"{n}.jpg", tuple(f"caption {n} {m}" for m in range(4)))
        for n in range(6)
    ]
    samples = RegionDataset(CaptionSampleDataset(images, words), STORE)
    labels = []
    for epoch in range(60):
        made = samples.get(range(6), [generator(0, epoch, i) for i in range(6)])
        again = samples.get([3], [generator(0, epoch, 3)])[0]
        assert np.array_equal(again.text.input_ids, made[3].text.input_ids)
        for n, sample in enumerate(made):
            inside = sample.text.input_ids[~sample.text.special_tokens_mask]
            said = re.findall(r"caption (\d) (\d)", bert_tokenizer.decode(inside))
            (own, first), (second, other) = said
            label = int(sample.labels["sentence_image"])
            labels.append(label)
            assert own == str(n) and (second == own) == bool(label)
            assert not label or first != other  # another caption of the image, not the same again
            assert np.array_equal(sample.regions.boxes, STORE[f"i{n}"].boxes)
    assert np.mean(labels) == pytest.approx(0.5, abs=0.08)
    single = RegionDataset(CaptionSampleDataset(images, words, pairs=False), STORE)
    assert "sentence_image" not in single.get([1], [generator(0)])[0].labels


def costs(words: Tensor, regions: Tensor, masks: tuple[Tensor, Tensor]) -> list[np.ndarray]:
    """One less the cosines of each row's words and regions."""
    found = []
    for number in range(len(words)):
        sides = (words[number][masks[0][number]], regions[number][masks[1][number]])
        word, region = (F.normalize(side.double(), dim=-1) for side in sides)
        found.append((1 - word @ region.T).numpy())
    return found


def seen(store: Any, words: Any, options: RegionOptions, **about: Any) -> Sample:
    """A text about the image `i2` with regions of a store."""
    texts = TextDataset([Example("a", "a dog", images=("i2",), **about)], TextRowEncoder(words, 8))
    return RegionDataset(texts, store, options).get([0], ())[0]

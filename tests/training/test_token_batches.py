"""Batches counted in tokens, as UNITER's and VILLA's: what a micro-batch holds, and that it follows from the seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import toys
from tiny.homes import log_of
from tiny.objectives import still, three_choices

from groundling.core.batch import Batch, Example, collate
from groundling.data.captions import CaptionedImage
from groundling.data.regions.samples import CaptionSampleDataset, RegionDataset, RegionOptions
from groundling.data.samples import MultiVersionTextDataset, TextDataset, TextRowEncoder
from groundling.objectives import Objective
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.objectives.masked_lm import MaskedLM
from groundling.settings.training import TrainingArguments
from groundling.tasks.splits import UnlabelledDataset
from groundling.training.batch_sampler import (
    DataSource,
    MicroBatchDataset,
    plan_batches,
)
from groundling.training.loop import train

TOKENS = 150
CONFIG = TrainingArguments(
    steps=0, epochs=2, batch_tokens=TOKENS, log_every=1, save_every=2, cpu=True, lr=1e-3
)


def padded(batch: Batch) -> int:
    """Positions that a model of text and regions, or of text and a CLIP side, computes."""
    masks = [
        batch.text and batch.text.attention_mask,
        batch.regions and batch.regions.mask,
        batch.clip and batch.clip.key_mask,
    ]
    return batch.rows * sum(mask.shape[1] for mask in masks if mask is not None)


def feed_of(
    samples: Any,
    objectives: Sequence[Objective],
    config: TrainingArguments,
    rank: int = 0,
    world: int = 1,
) -> MicroBatchDataset:
    plan = plan_batches([DataSource(samples)], objectives, config, world)
    return MicroBatchDataset(plan, objectives, config.gradient_accumulation_steps, rank, world)


def every(feed: MicroBatchDataset) -> list[Batch]:
    return [feed[number] for number in range(len(feed))]


def pairs_of_images(count: int = 24) -> RegionDataset:
    """Two images each, read apart."""
    made = toys.sentences()
    store = toys.RegionDict({f"image{n}": toys.regions(n, 2 + n % 6) for n in range(2 * count)})
    examples = [
        Example(f"s{n}", made[n], label=0, images=(f"image{2 * n}", f"image{2 * n + 1}"))
        for n in range(count)
    ]
    texts = TextDataset(examples, TextRowEncoder(toys.bert_words(), 60))
    return RegionDataset(texts, store, RegionOptions(separate_images=True))


def captions(pairs: bool, whole: bool = False) -> RegionDataset:
    """Images of one to three captions, one (or a pair) of which is drawn in each epoch."""
    made = toys.sentences()
    images = [CaptionedImage(f"image{n}", "", tuple(made[n : n + 1 + n % 3])) for n in range(24)]
    store = toys.RegionDict({f"image{n}": toys.regions(n, 2 + n % 6) for n in range(24)})
    texts = CaptionSampleDataset(images, TextRowEncoder(toys.bert_words(), 40), pairs)
    return RegionDataset(texts, store, RegionOptions(whole_image=whole, max_regions=4))


def drawn() -> RegionDataset:
    """Texts in one to three versions, some with choices, one of which is drawn in each epoch."""
    made = toys.sentences()
    versions = []
    for n in range(24):
        options = tuple(made[40 + n : 43 + n])
        example = Example(f"s{n}", made[n], images=(f"image{n}",))
        plain = [replace(example, text=made[n + k]) for k in range(1 + n % 3)]
        versions.append([replace(example, choices=options)] if n % 4 == 3 else plain)
    store = toys.RegionDict({f"image{n}": toys.regions(n, 2 + n % 6) for n in range(24)})
    return RegionDataset(
        MultiVersionTextDataset(versions, TextRowEncoder(toys.bert_words(), 60)), store
    )


DATA = {
    "text": lambda: TextDataset(toys.examples(48), TextRowEncoder(toys.bert_words(), 40)),
    "text and CLIP": lambda: toys.both_sides(24),
    "regions": toys.seen,
    "choices": three_choices,
    "images apart": pairs_of_images,
    "drawn captions": drawn,
    "captions": lambda: captions(pairs=False),
    "captions, whole image": lambda: captions(pairs=False, whole=True),
    "pairs of captions": lambda: captions(pairs=True),
}


@pytest.mark.parametrize("name", DATA)
def test_a_micro_batch_keeps_to_its_tokens(name: str) -> None:
    samples = DATA[name]()
    tokens = max(TOKENS, int((samples.sizes[:, 0] * samples.sizes[:, 1:].sum(1)).max()))
    config = replace(CONFIG, batch_tokens=tokens)
    batches = every(feed_of(samples, [], config))
    sizes = [padded(batch) for batch in batches]
    assert max(sizes) <= tokens
    assert np.mean(sizes) > 0.5 * tokens, "batches are as full as they can be"
    seen = Counter(id for batch in batches for id in batch.ids)
    assert set(seen) <= set(samples.ids)
    assert set(seen.values()) <= {1, 2, 3}, "two epochs, of which the second may begin a third"


@pytest.mark.parametrize("name", [name for name in DATA if "captions" not in name])
def test_sizes_are_what_samples_have(name: str) -> None:
    samples = DATA[name]()
    for number, size in enumerate(samples.sizes.tolist()):
        batch = collate(samples.get([number], ()))
        assert batch.rows == size[0]
        assert padded(batch) == size[0] * (size[1] + size[2])


def test_every_sample_comes_up_once_an_epoch(text_only: Any) -> None:
    """Nothing is left out at an epoch's end: a step takes what is missing from the next one."""
    config = replace(CONFIG, gradient_accumulation_steps=4, epochs=3)
    feed = feed_of(text_only, [], config)
    seen: list[str] = [id for batch in every(feed) for id in batch.ids]
    count = len(text_only)
    assert len(seen) > 2 * count
    for epoch in range(len(seen) // count):
        assert len(set(seen[epoch * count : (epoch + 1) * count])) == count
    assert seen[:count] != seen[count : 2 * count]


def test_steps_follow_from_tokens(text_only: Any) -> None:
    batches = plan_batches([DataSource(text_only)], [], CONFIG, 1).per_epoch
    for accumulate, world in ((1, 1), (2, 1), (2, 2)):
        config = replace(CONFIG, gradient_accumulation_steps=accumulate)
        plan = plan_batches([DataSource(text_only)], [], config, world)
        assert len(plan) == 2 * batches // (accumulate * world)
        assert plan.covered_epochs() == pytest.approx(2, abs=1 / (batches / (accumulate * world)))
    assert len(plan_batches([DataSource(text_only)], [], replace(CONFIG, steps=7), 1)) == 7


def test_data_listed_twice_are_one_epoch(text_only: Any) -> None:
    """B5, in tokens: UNITER's kinds of steps share an epoch; text beside them lengthens it."""
    once = len(plan_batches([DataSource(text_only)], [], CONFIG, 1))
    kinds = [DataSource(text_only, 2.0), DataSource(text_only, 1.0)]
    assert len(plan_batches(kinds, [], CONFIG, 1)) == once
    beside = [DataSource(text_only), DataSource(text_only, counts_towards_epoch=False)]
    assert len(plan_batches(beside, [], CONFIG, 1)) == 2 * once


def test_processes_share_the_micro_batches_of_a_step(text_only: Any) -> None:
    """Two processes of one micro-batch see what one process of two does; nothing twice."""
    alone = every(feed_of(text_only, [], replace(CONFIG, gradient_accumulation_steps=2)))
    two = [every(feed_of(text_only, [], CONFIG, rank, 2)) for rank in (0, 1)]
    together = [batch.ids for pair in zip(*two, strict=True) for batch in pair]
    assert [batch.ids for batch in alone] == together


def test_batches_follow_from_seed_and_step_alone(text_only: Any) -> None:
    feed = feed_of(text_only, [], CONFIG)
    forwards = [batch.ids for batch in every(feed)]
    fresh = feed_of(text_only, [], CONFIG)
    backwards = [fresh[number].ids for number in reversed(range(len(fresh)))]
    assert forwards == backwards[::-1]
    other = every(feed_of(text_only, [], replace(CONFIG, seed=1)))
    assert forwards != [batch.ids for batch in other]


def test_an_exchanged_image_has_room() -> None:
    """An objective that swaps images may give any sample the most regions that there are."""
    samples = toys.seen()
    objective = ImageTextMatching(toys.seer().sizes, negatives=1.0)
    batches = every(feed_of(samples, [objective], CONFIG))
    assert max(padded(batch) for batch in batches) <= TOKENS
    plan = plan_batches([DataSource(samples)], [], CONFIG, 1)
    unaware = MicroBatchDataset(plan, [objective], 1, 0, 1)
    assert max(padded(batch) for batch in every(unaware)) > TOKENS


def test_what_stands_beside_has_room(text_only: Any) -> None:
    others = UnlabelledDataset(text_only, np.array(0))
    source = DataSource(text_only, extra_samples=others, extra_per_sample=2)
    plan = plan_batches([source], [], CONFIG, 1)
    batches = every(MicroBatchDataset(plan, [], 1, 0, 1))
    assert max(padded(batch) for batch in batches) <= TOKENS
    assert all(len(batch) % 3 == 0 for batch in batches)


# -- training on them --------------------------------------------------------------------------------------------------


def test_the_loss_is_a_mean_over_the_step(student: Any, text_only: Any, tmp_path: Path) -> None:
    """Micro-batches of a step differ in their samples; every masked token counts alike all the same."""
    model = student().eval()
    torch.manual_seed(4)
    objective = MaskedLM(model.sizes, mask_id=4)
    config = replace(CONFIG, steps=1, gradient_accumulation_steps=3)
    sums, tokens, samples = 0.0, 0, []
    with torch.no_grad():
        for batch in every(feed_of(text_only, [objective], config)):
            sums += float(objective(model(batch), batch)["mlm"])
            tokens += objective.count(batch)["mlm"]
            samples.append(len(batch))
    assert len(set(samples)) > 1
    train(still(model), [objective], text_only, config, tmp_path)
    assert log_of(tmp_path)[0]["mlm"] == pytest.approx(sums / tokens, rel=1e-5)

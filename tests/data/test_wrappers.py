"""Regions, pixels and teachers around samples: in any order, by row, beside any objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import homes, toys
from torch import Tensor

from groundling.core.batch import IGNORE, Batch, Example, Sample, collate, require
from groundling.core.output_types import MultipleChoice
from groundling.data.image_samples import PixelDataset
from groundling.data.regions.samples import RegionDataset
from groundling.data.samples import SampleDataset, TextDataset, TextRowEncoder
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.training import TrainingArguments
from groundling.teachers import Teacher, add_features
from groundling.teachers.feature_cache import FeatureCache, TeacherDataset
from groundling.training.batch_sampler import DataSource, MicroBatchDataset, plan_batches
from groundling.training.loop import ModelWithObjectives

COUNT = 6
CHOICES = 3
STORE = toys.RegionDict({f"image{n}": toys.regions(n, 2 + n) for n in range(COUNT)})


class Letters(Teacher):
    """A teacher that says how many characters a row's texts have."""

    name = "letters"
    width = 2

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        made = []
        for row in rows:
            example = require(row.example, "example", "a test")
            lengths = [len(example.text), len(example.text_pair or "")]
            made.append(
                Sample(f"{example.text}|{example.text_pair}", word_type_ids=np.array(lengths))
            )
        return made

    def features(self, batch: Batch) -> dict[str, Tensor]:
        return {"sentence": require(batch.word_type_ids, "word_type_ids", "a test").float()}


def texts(choices: int, tokenizer: Any) -> TextDataset:
    made = toys.sentences()
    examples = []
    for n in range(COUNT):
        seconds = tuple(made[10 * n : 10 * n + choices])
        label = n % CHOICES
        examples.append(
            Example(f"s{n}", made[n], label=label, choices=seconds, images=(f"image{n}",))
        )
    return TextDataset(examples, TextRowEncoder(tokenizer, 40))


def flat(value: object, path: str = "") -> dict[str, object]:
    """Every value inside a batch by its path; tensors as lists."""
    if isinstance(value, Tensor):
        return {path: (value.dtype, value.tolist())}
    if is_dataclass(value):
        value = {one.name: value.__dict__[one.name] for one in fields(value)}
    if not isinstance(value, Mapping):
        return {path: value}
    out = {}
    for name, inner in value.items():
        out |= flat(inner, f"{path}.{name}")
    return out


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for n in range(COUNT):
        homes.picture(folder / f"image{n}.png", (20 * n, 30, 40), (16 + n, 20))
    return folder


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("choices", [0, CHOICES])
def test_wrappers_nest_in_any_order(
    choices: int, cached: bool, images: Path, bert_tokenizer: Any
) -> None:
    """C5: regions and teachers did not nest."""
    wraps = {
        "regions": lambda samples: RegionDataset(samples, STORE),
        "pixels": lambda samples: PixelDataset(samples, images, 16),
        "teacher": lambda samples: TeacherDataset(
            samples, Letters(), FeatureCache() if cached else None
        ),
    }
    batches = {}
    for order in permutations(wraps):
        samples: SampleDataset = texts(choices, bert_tokenizer)
        for name in order:
            samples = wraps[name](samples)
        assert len(samples) == COUNT
        assert list(samples.ids) == [f"s{n}" for n in range(COUNT)]
        assert [tuple(one) for one in samples.images] == [(f"image{n}",) for n in range(COUNT)]
        batch = collate(samples.get([4, 0, 3], ()))
        batches[order] = flat(batch if cached else add_features(Letters(), batch))
    first, *others = batches.values()
    assert {".pixels", ".regions.features", ".features.sentence", ".labels.label"} <= first.keys()
    assert all(other == first for other in others)


def test_a_choice_is_masked_and_taught_by_row(bert_tokenizer: Any) -> None:
    """C5: masked LM and a teacher beside a multiple choice; features and labels of tokens come by row."""
    model = toys.seer()
    form = MultipleChoice(("0", "1", "2"))
    masked = MaskedLM(model.sizes, mask_id=bert_tokenizer.mask_token_id)
    task = SupervisedObjective(model.sizes, output_type=form)
    plain = texts(CHOICES, bert_tokenizer)
    samples = TeacherDataset(RegionDataset(plain, STORE), Letters(), FeatureCache())
    feed = MicroBatchDataset(
        plan_batches([DataSource(samples)], [], TrainingArguments(batch=4, steps=1), 1),
        [task, masked],
        1,
        0,
        1,
    )
    batch = feed[0]
    assert batch.text is not None and batch.regions is not None
    assert (len(batch), batch.rows, batch.choices) == (4, 4 * CHOICES, CHOICES)
    assert batch.labels["label"].shape == (4,)
    assert batch.labels["masked_lm"].shape == batch.text.input_ids.shape
    assert batch.features["sentence"].shape == (4 * CHOICES, 2)
    row = 0
    for name in batch.ids:
        (sample,) = plain.get([plain.ids.index(name)])
        assert sample.example is not None
        for choice in sample.choices:
            assert choice.text is not None and choice.example is not None
            ids = torch.from_numpy(choice.text.input_ids)
            labels = batch.labels["masked_lm"][row]
            scored = labels != IGNORE
            assert scored.any() and not scored[len(ids) :].any()
            assert torch.equal(labels[scored], ids[scored[: len(ids)]])
            assert torch.equal(
                batch.text.input_ids[row, : len(ids)][~scored[: len(ids)]], ids[~scored[: len(ids)]]
            )
            lengths = [len(choice.example.text), len(choice.example.text_pair or "")]
            assert batch.features["sentence"][row].tolist() == lengths
            row += 1
    step = ModelWithObjectives(model, [task, masked]).eval()
    terms = step(batch, ("supervised", "masked_lm")).terms
    encoded = model(batch)
    scored = batch.labels["masked_lm"] != IGNORE
    logits = masked.head(encoded.text[scored], encoded.input_embeddings)
    by_hand = torch.nn.functional.cross_entropy(
        logits, batch.labels["masked_lm"][scored], reduction="sum"
    )
    torch.testing.assert_close(terms["mlm"], by_hand)
    assert masked.count(batch) == {"mlm": int(scored.sum())}
    scores = task.outputs(encoded, batch)
    assert scores.shape == (4, CHOICES)
    torch.testing.assert_close(terms["task"], form.loss(scores, batch.labels["label"]))

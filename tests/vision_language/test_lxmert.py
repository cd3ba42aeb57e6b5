"""LXMERT against transformers' own: states, attention and losses; then trained, saved and loaded by the commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import homes, toys
from tiny.regions import store
from tiny.tasks import task_texts, vqa
from torch import nn
from transformers import BertConfig, BertModel, LxmertForPreTraining

from groundling.cli import main
from groundling.core.batch import IGNORE, Batch, OutputSizes, collate
from groundling.core.output_types import OpenAnswer
from groundling.core.rng import generator
from groundling.models.attention import AttentionMap, PositionKind
from groundling.models.heads import HEADS, init_lm_head
from groundling.models.task_heads import HeadContext
from groundling.objectives import ObjectiveContext
from groundling.objectives.masked_lm import MaskedLM
from groundling.settings.objectives import PretrainingVariantSettings
from groundling.tasks.vqa import VQA
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.lxmert import (
    ARCHITECTURE,
    ImageQuestionAnswering,
    Lxmert,
    LxmertPairHead,
    MaskedObjects,
    lxmert,
)

ANSWERS = OpenAnswer(("red", "two", "yes"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """transformers' folder of a tiny LXMERT with its pre-training heads."""
    words = toys.bert_words()
    return homes.home(tmp_path_factory.mktemp("lxmert"), toys.lxmert(words), words)


@pytest.fixture(scope="module")
def model(folder: Path) -> Lxmert:
    loaded = load_encoder(folder)
    assert isinstance(loaded, Lxmert)
    return loaded


@pytest.fixture(scope="module")
def batch() -> Batch:
    found = collate(toys.seen(5).get(range(5), ()))
    assert not found.text.attention_mask.all() and not found.regions.mask.all()
    return found


def theirs_of(folder: Path, batch: Batch) -> tuple[LxmertForPreTraining, dict[str, Any]]:
    """transformers' model, and the arguments of its call."""
    text, regions = batch.text, batch.regions
    arguments = {
        "input_ids": text.input_ids,
        "attention_mask": text.attention_mask.long(),
        "token_type_ids": text.token_type_ids,
        "visual_feats": regions.features,
        "visual_pos": regions.boxes,
        "visual_attention_mask": regions.mask.long(),
    }
    return LxmertForPreTraining.from_pretrained(folder).eval(), arguments


@torch.no_grad()
def test_states_and_attention_are_transformers_own(folder, model, batch):
    theirs, arguments = theirs_of(folder, batch)
    expected = theirs.lxmert(**arguments, output_attentions=True)
    found = model(batch)
    assert torch.equal(found.text, expected.language_output)
    assert torch.equal(found.visual, expected.vision_output)
    assert torch.equal(found.pooler_output, expected.pooled_output)
    maps: dict[str, list[AttentionMap]] = {}
    model(batch, lambda one: maps.setdefault(one.name, []).append(one))
    assert {name: [one.layer for one in some] for name, some in maps.items()} == {
        "text over text": [0, 1, 2, 3],
        "regions over regions": [0, 1, 2],
        "text over regions": [0, 1],
        "regions over text": [0, 1],
    }
    for name, weights in (
        ("text over text", expected.language_attentions),
        ("regions over regions", expected.vision_attentions),
        ("text over regions", expected.cross_encoder_attentions),
    ):
        for one, other in zip(maps[name], weights, strict=False):
            assert torch.equal(one.weights, other)
    sides = {"text": batch.text.attention_mask, "regions": batch.regions.mask}
    for name, some in maps.items():
        rows, columns = (sides[side] for side in name.split(" over "))
        for one in some:
            assert one.weights.shape[2:] == (rows.shape[1], columns.shape[1])
            assert ((one.columns.kinds == PositionKind.PADDING) == ~columns).all()
            torch.testing.assert_close(one.weights.sum(-1), torch.ones(one.weights.shape[:-1]))
    assert not any(part._forward_hooks for part in model.modules()), "the hooks are gone"


def test_losses_are_transformers_own(folder: Path, model: Lxmert) -> None:
    """All five tasks on one corrupted batch; transformers takes means over all positions, times 6.67."""
    sizes = model.sizes._replace(classes=5, background=False)
    context = ObjectiveContext(sizes, model.text_tokenizer, output_type=ANSWERS)
    chosen = ARCHITECTURE.pretraining.objectives(context, PretrainingVariantSettings())
    names = ["masked_lm", "sentence_image", "masked_objects", "image_qa"]
    assert [one.name for one in chosen] == names
    rows = toys.seen(8).get(range(8), ())
    samples = []
    for number, sample in enumerate(rows):
        sample = sample.with_label("label", np.array(number % 3))
        for one in sorted(chosen, key=lambda one: not one.swaps_inputs):
            rng = generator("test", one.name, number)
            sample = one.corrupt(sample, rng, lambda number=number: rows[(number + 1) % 8])
        samples.append(sample)
    batch = collate(samples)
    assert init_lm_head(chosen[0].head, folder) == "the checkpoint's"
    for one in chosen[1:]:
        model.load_heads(one, folder)
        one.eval()
    labels, regions = batch.labels, batch.regions
    matched, answers = labels["sentence_image"], labels["label"]
    scored = (labels["masked_objects"] == 1).float()
    assert scored.any() and 0 < matched.sum() < 8 and ((answers == IGNORE) == (matched == 0)).all()
    theirs, arguments = theirs_of(folder, batch)
    none, classes = torch.zeros_like(scored), regions.classes.argmax(-1)
    targets = {
        "obj": (classes, none),
        "attr": (torch.zeros_like(classes), none),
        "feat": (labels["masked_objects_targets"].float(), none),
    }
    counts = {name: count for one in chosen for name, count in one.count(batch).items()}
    with torch.no_grad():
        out = model(batch)
        ours = {name: value for one in chosen for name, value in one(out, batch).items()}
        for name, given in (
            ("mlm", {"labels": labels["masked_lm"]}),
            ("sentence_image", {"matched_label": matched}),
            ("image_qa", {"ans": answers}),
        ):
            loss = theirs(**arguments, **given).loss
            torch.testing.assert_close(ours[name] / counts[name], loss)
        for name, part, weight in (
            ("masked_objects", "feat", scored),
            ("masked_labels", "obj", scored * regions.confidence),
        ):
            every = targets | {part: (targets[part][0], weight)}
            loss = theirs(**arguments, obj_labels=every).loss * scored.numel() / 6.67
            torch.testing.assert_close(ours[name], loss)


def test_of_masked_regions_some_are_another_images() -> None:
    objects = MaskedObjects(OutputSizes(visual=32, regions=12))
    one, other = toys.seen(12).get([5, 11], ())
    before = one.regions.features
    shares = np.zeros(4)
    for draw in range(600):
        after = objects.corrupt(one, generator(draw), lambda: other)
        chosen = after.labels["masked_objects"] == 1
        np.testing.assert_array_equal(after.labels["masked_objects_targets"], before)
        assert (after.regions.features[~chosen] == before[~chosen]).all()
        for place in np.flatnonzero(chosen):
            row = after.regions.features[place]
            foreign = (row == other.regions.features).all(1).any()
            shares += (1, np.array_equal(row, before[place]), not row.any(), foreign)
    total = shares[0]
    assert shares[1:].sum() == total
    shares = shares / [600 * len(before), total, total, total]
    np.testing.assert_allclose(shares, [0.15, 0.1, 0.8, 0.1], atol=0.03)


def test_a_new_one_is_a_berts_in_its_text_layers() -> None:
    words = toys.bert_words()
    bert = toys.bert(len(words))
    made = lxmert(bert, words, width=12).eval()
    own = made.model.state_dict()
    shared = [name for name in bert.state_dict() if name in own]
    assert len(shared) == len(bert.state_dict())
    assert all(torch.equal(own[name], bert.state_dict()[name]) for name in shared)
    one, *_ = toys.seen(2).get([0, 1], ())
    alone = collate([replace(one, regions=None)])
    out = made(alone)
    assert out.visual is None and out.text.isfinite().all()
    maps: list[str] = []
    made(alone, lambda one: maps.append(one.name))
    assert set(maps) == {"text over text"}


def test_its_sizes_are_the_released_ones() -> None:
    with torch.device("meta"):
        bert = BertModel(BertConfig())
        made = lxmert(bert, toys.bert_words())
        pairs = LxmertPairHead(HeadContext(made.sizes, OpenAnswer(("no", "yes"))))
        answers = ImageQuestionAnswering(made.sizes, OpenAnswer(tuple(map(str, range(9500)))))
        lm = MaskedLM(made.sizes)
        objects = MaskedObjects(made.sizes._replace(classes=1600))

    def count(*modules: nn.Module) -> int:
        return sum(one.numel() for part in modules for one in part.parameters())

    assert count(made) == 207_936_768
    assert count(pairs) == 1536 * 1537 + 2 * 1536 + 2 * 1537
    # The release's pre-training has the matching head (2 x 769) and attributes (400 x 769), too.
    assert count(made, answers, lm, objects) + 2 * 769 + 400 * 769 == 228_051_752


def test_on_a_tasks_texts_image_qa_is_trained_and_its_head_starts_vqas(tmp_path: Path) -> None:
    """`pretrain --task vqa`, then `finetune`, by command."""
    homes.student(tmp_path / "bert")
    data = vqa(tmp_path / "vqa")
    texts = task_texts(VQA.with_answers_of(data), data, splits=("train", "val"))
    given = ["--task", "vqa", "--data", str(data), "--lr", "0", "--weight-decay", "0", "--cpu"]
    given += ["--regions", str(store(tmp_path / "store", toys.images_of(texts)))]
    given += ["--steps", "6", "--batch", "4", "--log-every", "1"]
    start = ["--architecture", "lxmert", "--model", str(tmp_path / "bert")]
    assert main(["pretrain", *start, *given, "--out", str(tmp_path / "seen")]) == 0
    lines = homes.log_of(tmp_path / "seen")
    terms = {"mlm", "sentence_image", "masked_objects", "masked_labels", "image_qa"}
    assert terms <= {name for line in lines for name in line}
    heads = load_file(tmp_path / "seen/model" / HEADS)
    trained = {name: one for name, one in heads.items() if name.startswith("image_qa.head.")}
    assert len(trained) == 6
    tuned = ["--model", str(tmp_path / "seen/model"), "--out", str(tmp_path / "tuned")]
    assert main(["finetune", *tuned, *given]) == 0
    own = load_file(tmp_path / "tuned/seed-0/model" / HEADS)
    for name, value in trained.items():
        assert torch.equal(own[name.replace("image_qa", "supervised")], value), name

"""Tokens, padding and FLOPs of a run's lines, beside what torch counts in whole passes without padding."""

import json

import pytest
import torch
from tiny import toys
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from groundling.core.batch import Batch, collate
from groundling.core.rng import generator
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.clip import ClipDualEncoder
from groundling.models.text_encoder import TextEncoder
from groundling.objectives.contrastive import ClipContrastiveLoss
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.xdbert import ClipTokenClassification, SameSentencePrediction
from groundling.settings.training import TrainingArguments
from groundling.training import loop, throughput
from groundling.training.batch_sampler import DataSource, MicroBatchDataset, plan_batches
from groundling.training.loop import ModelWithObjectives
from groundling.vision_language.lxmert import lxmert


def texts() -> TextDataset:
    return TextDataset(toys.examples(24), TextRowEncoder(toys.bert_words(), 40))


def text(frozen: bool = False):
    words = toys.bert_words()
    model = TextEncoder(toys.bert(len(words)), words)
    model.encoder.requires_grad_(not frozen)
    return model, [MaskedLM(model.sizes, mask_id=4)], texts()


def cross():
    model = toys.cross_modal()
    parts = [MaskedLM(model.sizes, mask_id=4, joint=True), SameSentencePrediction(model.sizes)]
    return model, [*parts, ClipTokenClassification(model.sizes)], toys.both_sides()


def regions():
    model = toys.seer()
    return model, [MaskedLM(model.sizes, mask_id=4), ImageTextMatching(model.sizes)], toys.seen()


def two_streams():
    words = toys.bert_words()
    model = lxmert(toys.bert(len(words)), words, width=12)
    return model, [MaskedLM(model.sizes, mask_id=4)], toys.seen()


def images():
    words = toys.clip_words()
    model = ClipDualEncoder(toys.clip(words), words)
    return model, [ClipContrastiveLoss(model.sizes)], toys.Pictures(words)


KINDS = {
    "text": text,
    "frozen": lambda: text(frozen=True),
    "cross": cross,
    "regions": regions,
    "two streams": two_streams,
    "images": images,
}


def counted(model, parts, batch: Batch) -> int:
    """FLOPs of a forward and a backward pass, by torch's own counter."""
    module = ModelWithObjectives(model, parts).train()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        terms = module(batch, [one.name for one in parts]).terms
        sum(terms.values()).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_those_of_passes_without_padding(kind):
    """Within a tenth: a pooler that no loss reads is no less, and two streams have lengths of their own."""
    model, parts, data = KINDS[kind]()
    samples = data.get(range(16), [()] * 16)
    for part in parts:
        samples = [
            part.corrupt(one, generator(3, one.id), lambda some=samples: some[1]) for one in samples
        ]
    expected = sum(counted(model, parts, collate([one])) for one in samples)
    work = throughput.model_work(model, collate(samples[:5]))
    whole = collate(samples)
    found = work.of(throughput.Volume.of(whole))
    found += sum(
        throughput.head_work(one) * throughput.scored_items(one.count(whole)) for one in parts
    )
    assert found == pytest.approx(expected, rel=0.1)


def test_a_line_has_tokens_padding_and_mfu(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "measure_peak", lambda device, precision: 1e9)
    model, parts, data = text()
    settings = {"batch": 8, "epochs": 1, "log_every": 1, "cpu": True}
    plain, measured = (
        loop.train(
            model,
            parts,
            data,
            TrainingArguments(**settings, measure_peak=on),
            tmp_path / str(on),
        )["speed"]
        for on in (False, True)
    )
    lines = [json.loads(one) for one in (tmp_path / "True/log.jsonl").read_text().splitlines()]
    tokens = positions = 0
    plan = plan_batches([DataSource(data)], parts, TrainingArguments(**settings), 1)
    feed = MicroBatchDataset(plan, parts, 1, 0, 1)
    work = throughput.model_work(model, feed[0])
    for number, line in enumerate(lines):
        volume = throughput.Volume.of(feed[number])
        tokens += volume.tokens
        positions += volume.positions
        items = throughput.scored_items(parts[0].count(feed[number]))
        flops = work.of(volume) + items * throughput.head_work(parts[0])
        assert line["padding"] == pytest.approx(1 - volume.tokens / volume.positions, abs=1e-4)
        spent = volume.tokens / line["tokens_per_second"]
        assert line["mfu"] == pytest.approx(flops / spent / 1e9, rel=0.01, abs=1e-4)
    assert measured["padding"] == pytest.approx(1 - tokens / positions, abs=1e-4)
    assert measured["mfu"] > 0 and measured["tokens_per_second"] > 0
    assert measured["peak_gflops"] == 1.0
    assert not {"mfu", "peak_gflops"} & plain.keys() and plain["padding"] == measured["padding"]


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H200", "no", 67e12),
        ("NVIDIA A100-SXM4-40GB", "fp16", 312e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", 0),
        ("NVIDIA L4", "bf16", 121e12),
        ("a card of tomorrow", "bf16", 0),
    ],
)
def test_peaks_are_found_by_name(name, precision, peak, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert throughput.known_peak(torch.device("cuda"), precision) == peak
    assert throughput.known_peak(torch.device("cpu"), precision) == 0

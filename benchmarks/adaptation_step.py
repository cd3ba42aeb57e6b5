"""Compare adaptation steps with the paper's way and transformers' own class: tokens per second, memory, MFU.

With CLIP (XDBERT's three objectives), the same model and the same texts:
- plain: the paper's way, 512 + 9 x 77 positions for each text, whatever its length, eager attention, vocabulary logits
  at every position;
- here: padded to each batch's longest text, bucketed by length, fused attention, logits only at scored positions.
With text alone (masked LM):
- transformers: `BertForMaskedLM` with fused attention, padded to each batch's longest text, logits at every position;
- alone: the same encoder and objective here.

A GPU computes in bf16. MFU is 6 x weights x the positions they are applied to + 12 x layers x width x positions^2 for
attention, without padding and unscored logits, divided by seconds x --peak-tflops; known cards need no --peak-tflops.

python benchmarks/adaptation_step.py [--layers 4 --width 256]
python benchmarks/adaptation_step.py --form blocks --base --batch 32 --steps 20    # BERT-base, on a GPU
python benchmarks/adaptation_step.py --form lines --base --batch 128 --steps 20
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
)
from transformers.utils import logging as hf_logging

from groundling.core.batch import Batch, Sample, TextRow, collate
from groundling.core.rng import generator
from groundling.models.clip import make_clip_text_tower
from groundling.models.cross_modal import CrossAttentionBlock, CrossModalEncoder
from groundling.models.text_encoder import TextEncoder
from groundling.objectives import Objective
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.xdbert import ClipTokenClassification, SameSentencePrediction
from groundling.training.throughput import known_peak

VOCABULARY, CLIP_VOCABULARY = 30522, 49408
WINDOW, WINDOWS, LENGTH = 77, 9, 512
WAYS = ("plain", "here", "transformers", "alone")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TABLES = {"masked_lm": VOCABULARY, "clip_tokens": CLIP_VOCABULARY}
"""Rows of the embedding table whose entries an objective predicts."""


class Tokenizer:
    """Stands in for a tokenizer: only its size and limit are read here."""

    model_max_length = LENGTH
    name_or_path = "benchmark"

    def __len__(self) -> int:
        return VOCABULARY


def texts(number: int, form: str) -> list[Sample]:
    """Random tokens: blocks of 512, or texts as long as sentences and paragraphs (log-normal, median 60)."""
    samples = []
    for i in range(number):
        rng = generator("benchmark", i)
        length = LENGTH - 2
        if form == "lines":
            length = int(np.clip(rng.lognormal(np.log(60), 0.8), 8, length))
        ids = np.concatenate([[101], rng.integers(1000, VOCABULARY, length), [102]])
        special = np.zeros(length + 2, bool)
        special[[0, -1]] = True
        word = np.where(special, -1, np.arange(-1, length + 1))
        clip, clip_special, window = [], [], []
        for start in range(0, length, WINDOW - 2):
            part = rng.integers(300, CLIP_VOCABULARY - 3, min(WINDOW - 2, length - start))
            clip += [49406, *part, 49407]
            clip_special += [True, *[False] * len(part), True]
            window += [start // (WINDOW - 2)] * (len(part) + 2)
        samples.append(
            Sample(
                str(i),
                text=TextRow(ids, special, word, np.zeros_like(ids), 0),
                clip=TextRow(
                    np.array(clip),
                    np.array(clip_special),
                    np.full(len(clip), -1),
                    np.zeros(len(clip), int),
                    49407,
                    np.array(window),
                ),
            )
        )
    return samples


def pad_to_fixed_layout(batch: Batch) -> Batch:
    """The same batch in the paper's fixed layout: 512 text positions and nine windows of 77 per text."""
    from dataclasses import replace

    assert batch.text is not None and batch.clip is not None
    b = len(batch)
    more = LENGTH - batch.text.input_ids.shape[1]
    text = replace(
        batch.text,
        input_ids=F.pad(batch.text.input_ids, (0, more)),
        attention_mask=F.pad(batch.text.attention_mask, (0, more)),
        special_tokens_mask=F.pad(batch.text.special_tokens_mask, (0, more), value=True),
        word_ids=F.pad(batch.text.word_ids, (0, more), value=-1),
        token_type_ids=F.pad(batch.text.token_type_ids, (0, more)),
    )
    ids = torch.zeros(b, WINDOWS, WINDOW, dtype=torch.long)
    mask = torch.zeros(b, WINDOWS, WINDOW, dtype=torch.bool)
    labels = torch.full((b, WINDOWS, WINDOW), -100)
    for n, row in enumerate(batch.clip.row_index.tolist()):
        place = int((batch.clip.row_index[:n] == row).sum())
        size = int(batch.clip.attention_mask[n].sum())
        ids[row, place, :size], mask[row, place, :size] = batch.clip.input_ids[n, :size], True
        flat = batch.clip.flat_position[n, :size] % batch.clip.key_mask.shape[1]
        labels[row, place, :size] = batch.labels["clip_tokens"][row, flat]
    slots = torch.arange(b * WINDOWS * WINDOW).view(b * WINDOWS, WINDOW)
    clip = replace(
        batch.clip,
        input_ids=ids.view(-1, WINDOW),
        attention_mask=torch.ones(b * WINDOWS, WINDOW, dtype=torch.bool),
        row_index=torch.arange(b).repeat_interleave(WINDOWS),
        flat_position=slots,
        eot_index=torch.full((b * WINDOWS,), WINDOW - 1),
        key_mask=mask.view(b, -1),
    )
    labels = {**batch.labels, "masked_lm": F.pad(batch.labels["masked_lm"], (0, more), value=-100),
              "clip_tokens": labels.view(b, -1)}  # fmt: skip
    return replace(batch, text=text, clip=clip, labels=labels)


def eager(
    self: CrossAttentionBlock, states: torch.Tensor, over: torch.Tensor, key_mask: torch.Tensor
) -> torch.Tensor:
    """`Attention.forward` with its softmax written out."""
    q, k, v = (
        p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        for p, x in ((self.query, states), (self.key, over), (self.value, over))
    )
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~key_mask[:, None, None, :], torch.finfo(scores.dtype).min)
    weights = F.dropout(scores.softmax(-1), self.dropout, self.training)
    mixed = (weights @ v).transpose(1, 2).flatten(2)
    return self.norm(states + F.dropout(self.out(mixed), self.dropout, self.training))


Loss = Callable[[Batch], Tensor]


def build_model(
    way: str, options: argparse.Namespace
) -> tuple[Loss, nn.ModuleList, list[Objective]]:
    """A way's loss function, all its trained modules, and the objectives that corrupt and count."""
    torch.manual_seed(0)
    implementation = "eager" if way == "plain" else "sdpa"
    width, heads = options.width, options.width // 64
    config = BertConfig(
        hidden_size=width, num_hidden_layers=options.layers, num_attention_heads=heads,
        intermediate_size=4 * width, attn_implementation=implementation,
    )  # fmt: skip
    text = TextEncoder(BertModel(config, add_pooling_layer=False), Tokenizer())  # type: ignore[arg-type]
    if way in ("transformers", "alone"):
        alone: list[Objective] = [MaskedLM(text.sizes)]
        if way == "alone":
            return partial(summed_loss, text, alone), nn.ModuleList([text, *alone]), alone
        theirs = BertForMaskedLM(config)
        return partial(transformers_loss, theirs), nn.ModuleList([theirs]), alone
    tower = CLIPTextModelWithProjection(
        CLIPTextConfig(hidden_size=width, num_hidden_layers=options.layers, num_attention_heads=heads,
                       intermediate_size=4 * width, projection_dim=width, attn_implementation=implementation)
    )  # fmt: skip
    model = CrossModalEncoder(text, make_clip_text_tower(tower), 2, Tokenizer())  # type: ignore[arg-type]
    objectives = [
        SameSentencePrediction(model.sizes),
        MaskedLM(model.sizes, joint=True),
        ClipTokenClassification(model.sizes),
    ]
    everything = nn.ModuleList([model, *objectives])
    if way == "here":
        return partial(summed_loss, model, objectives), everything, objectives
    CrossAttentionBlock.forward = eager  # type: ignore[method-assign]
    return (
        lambda batch: every_position(objectives, model(batch), batch).sum(),
        everything,
        objectives,
    )


def summed_loss(model: nn.Module, objectives: list[Objective], batch: Batch) -> Tensor:
    """The sum of terms as in `train`."""
    encoded = model(batch)
    counts = {term: n for one in objectives for term, n in one.count(batch.cpu_copy).items()}
    terms = [(term, v) for one in objectives for term, v in one(encoded, batch).items()]
    return torch.stack([value / max(1, counts[term]) for term, value in terms]).sum()


def transformers_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of transformers' class on a batch."""
    assert batch.text is not None
    loss: Tensor = model(
        input_ids=batch.text.input_ids,
        attention_mask=batch.text.attention_mask.long(),
        token_type_ids=batch.text.token_type_ids,
        labels=batch.labels["masked_lm"],
    ).loss
    return loss


def steps(way: str, options: argparse.Namespace) -> Iterator[tuple[float, int, float]]:
    """Seconds, text tokens without padding, and FLOPs of each training step; the first is a warm-up and not counted."""
    loss_of, everything, objectives = build_model(way, options)
    everything.to(DEVICE).train()
    parameters = [one for one in everything.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=DEVICE.type == "cuda")
    samples = texts(options.batch * (options.steps + 1), options.form)
    order = np.arange(options.steps + 1)
    if way in (
        "here",
        "alone",
    ):  # bucketing by length, as `plan_batches` does within its pools
        samples.sort(key=lambda s: len(s.text.input_ids) if s.text else 0)
        order = generator("benchmark", "order").permutation(options.steps + 1)
    for n, at in enumerate(order):
        some = samples[at * options.batch : (at + 1) * options.batch]
        for objective in objectives:
            some = [
                objective.corrupt(s, generator("corrupt", s.id), lambda: samples[0]) for s in some
            ]
        batch = collate(some)
        tokens, work = count_flops(batch, objectives, options)
        batch = (pad_to_fixed_layout(batch) if way == "plain" else batch).to(DEVICE)
        started = now()
        with torch.autocast("cuda", torch.bfloat16, enabled=DEVICE.type == "cuda"):
            loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if n:
            yield now() - started, tokens, work


def now() -> float:
    """Seconds on a GPU; processor seconds on a CPU, because other load changes them less."""
    if DEVICE.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def count_flops(
    batch: Batch, objectives: list[Objective], options: argparse.Namespace
) -> tuple[int, float]:
    """Text tokens without padding, and the minimum FLOPs of a step: 6 x weights x their positions + attention."""
    assert batch.text is not None
    width, layers = options.width, options.layers
    layer = 12 * width**2  # weights: four of attention, eight of its feed-forward block
    text = batch.text.attention_mask.sum(1)
    tokens = int(text.sum())
    weights, pairs = layers * layer * tokens, layers * int((text**2).sum())
    for objective in objectives:
        scored_positions = sum(objective.count(batch).values())
        weights += scored_positions * width * (width + TABLES.get(objective.name, 0))
    if batch.clip is not None and len(objectives) > 1:
        clip, windows = batch.clip.key_mask.sum(1), batch.clip.attention_mask.sum(1)
        weights += (layers * layer + width**2) * int(clip.sum())
        pairs += layers * int((windows**2).sum())
        # Two cross-modal layers: each side attends to the other and to itself, so it has four more attention weights.
        weights += 2 * (layer + 4 * width**2) * (tokens + int(clip.sum()))
        pairs += 2 * int((text**2 + clip**2 + 2 * text * clip).sum())
    return tokens, float(6 * weights + 12 * width * pairs)


def every_position(objectives: list, encoded: object, batch: Batch) -> torch.Tensor:
    """The three losses, with logits computed at every position; unscored ones are ignored afterwards."""
    match, mlm, clip_tokens = objectives
    logits = mlm.head(encoded.joint_text, encoded.input_embeddings)  # type: ignore[attr-defined]
    clip_logits = clip_tokens.head(encoded.joint_visual, encoded.clip_input_embeddings)  # type: ignore[attr-defined]
    return torch.stack(
        [
            F.cross_entropy(logits.flatten(0, 1), batch.labels["masked_lm"].flatten()),
            F.cross_entropy(clip_logits.flatten(0, 1), batch.labels["clip_tokens"].flatten()),
            match(encoded, batch)["match"] / len(batch),
        ]
    )


def measure(way: str, options: argparse.Namespace) -> dict[str, float]:
    """Text tokens per second without padding, peak memory in MiB, and MFU."""
    torch.set_num_threads(options.threads)
    rows = list(steps(way, options))
    seconds, tokens, work = (sum(column) for column in zip(*rows, strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if DEVICE.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
    found = {"tokens_per_second": tokens / seconds, "peak_mib": peak / 2**20}
    flops = 1e12 * (options.peak_tflops or 0) or known_peak(DEVICE, "bf16")
    return {**found, "mfu": work / seconds / flops} if flops else found


def main() -> None:
    """Run every way in its own process, and print the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (
        ("--batch", 8),
        ("--steps", 6),
        ("--layers", 4),
        ("--width", 256),
        ("--threads", 1),
    ):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--base", action="store_true", help="12 layers of width 768")
    parser.add_argument("--form", choices=["lines", "blocks"], default="lines")
    parser.add_argument(
        "--peak-tflops", type=float, help="dense peak of the device, for MFU; known cards need none"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--way", choices=WAYS, help="run one way and print its figures as JSON")
    options = parser.parse_args()
    if options.base:
        options.layers, options.width = 12, 768
    hf_logging.set_verbosity_error()
    if options.way:
        print(json.dumps(measure(options.way, options)))
        return
    found = {}
    for way in options.ways:
        command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(f"{way:12} failed (out of memory, for example): see above", flush=True)
            continue
        found[way] = json.loads(done.stdout.splitlines()[-1])
        used = f", MFU {found[way]['mfu']:.1%}" if "mfu" in found[way] else ""
        print(f"{way:12} {found[way]['tokens_per_second']:8.0f} real text tokens/s, "
              f"peak {found[way]['peak_mib']:6.0f} MiB{used}", flush=True)  # fmt: skip
    for ours, theirs in (("here", "plain"), ("alone", "transformers")):
        if ours in found and theirs in found:
            speed, memory = (
                found[ours][figure] / found[theirs][figure]
                for figure in ("tokens_per_second", "peak_mib")
            )
            print(
                f"{ours} is {speed:.1f} times as fast as {theirs}, with {memory:.2f} of the memory"
            )
    sys.exit(len(found) < len(options.ways))


if __name__ == "__main__":
    main()

"""The adaptation step of XDBERT against the paper's way of computing it, in one run: tokens per second, peak memory.

Plain way: 512 + 9 x 77 positions per text whatever its length, eager attention, vocabulary logits at every position.
Here: padded to need, bucketed by length, fused attention, logits at scored positions only. Same model, same texts.

python benchmarks/adaptation_step.py [--texts FILE] [--layers 4 --width 256]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from transformers import BertConfig, BertModel, CLIPTextConfig, CLIPTextModelWithProjection
from transformers.utils import logging as hf_logging

from groundling.batch import Batch, Row, Sample, collate
from groundling.keyed import generator
from groundling.models.clip import clip_text
from groundling.models.crossmodal import Attention, CrossModal
from groundling.models.text import TextEncoder
from groundling.objectives.clip_tokens import ClipTokens
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.match import Match

VOCABULARY, CLIP_VOCABULARY = 30522, 49408
WINDOW, WINDOWS, LENGTH = 77, 9, 512


class Tokenizer:
    """Stands in for a tokenizer: only its size and limit are asked for here."""

    model_max_length = LENGTH
    name_or_path = "benchmark"

    def __len__(self) -> int:
        return VOCABULARY


def texts(number: int, longest: int) -> list[Sample]:
    """Texts of random pieces whose lengths are spread like sentences' and paragraphs' (log-normal, median 60)."""
    samples = []
    for i in range(number):
        rng = generator("benchmark", i)
        length = int(np.clip(rng.lognormal(np.log(60), 0.8), 8, longest - 2))
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
                text=Row(ids, special, word, np.zeros_like(ids), 0),
                clip=Row(
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


def padded(batch: Batch) -> Batch:
    """The same batch in the paper's fixed layout: 512 text positions and nine windows of 77 per text."""
    from dataclasses import replace

    assert batch.text is not None and batch.clip is not None
    b = len(batch)
    more = LENGTH - batch.text.ids.shape[1]
    text = replace(
        batch.text,
        ids=F.pad(batch.text.ids, (0, more)),
        mask=F.pad(batch.text.mask, (0, more)),
        special=F.pad(batch.text.special, (0, more), value=True),
        word=F.pad(batch.text.word, (0, more), value=-1),
        types=F.pad(batch.text.types, (0, more)),
    )
    ids = torch.zeros(b, WINDOWS, WINDOW, dtype=torch.long)
    mask = torch.zeros(b, WINDOWS, WINDOW, dtype=torch.bool)
    labels = torch.full((b, WINDOWS, WINDOW), -100)
    for n, row in enumerate(batch.clip.row.tolist()):
        place = int((batch.clip.row[:n] == row).sum())
        size = int(batch.clip.mask[n].sum())
        ids[row, place, :size], mask[row, place, :size] = batch.clip.ids[n, :size], True
        flat = batch.clip.slot[n, :size] % batch.clip.key_mask.shape[1]
        labels[row, place, :size] = batch.labels["clip_tokens"][row, flat]
    slots = torch.arange(b * WINDOWS * WINDOW).view(b * WINDOWS, WINDOW)
    clip = replace(
        batch.clip,
        ids=ids.view(-1, WINDOW),
        mask=torch.ones(b * WINDOWS, WINDOW, dtype=torch.bool),
        row=torch.arange(b).repeat_interleave(WINDOWS),
        slot=slots,
        last=torch.full((b * WINDOWS,), WINDOW - 1),
        key_mask=mask.view(b, -1),
    )
    labels = {**batch.labels, "masked_lm": F.pad(batch.labels["masked_lm"], (0, more), value=-100),
              "clip_tokens": labels.view(b, -1)}  # fmt: skip
    return replace(batch, text=text, clip=clip, labels=labels)


def eager(
    self: Attention, states: torch.Tensor, over: torch.Tensor, key_mask: torch.Tensor
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


def steps(way: str, options: argparse.Namespace) -> Iterator[float]:
    """Seconds of each training step after the first, which warms up."""
    torch.manual_seed(0)
    implementation = "eager" if way == "plain" else "sdpa"
    width, heads = options.width, options.width // 64
    bert = BertModel(
        BertConfig(hidden_size=width, num_hidden_layers=options.layers, num_attention_heads=heads,
                   intermediate_size=4 * width, attn_implementation=implementation),
        add_pooling_layer=False,
    )  # fmt: skip
    tower = CLIPTextModelWithProjection(
        CLIPTextConfig(hidden_size=width, num_hidden_layers=options.layers, num_attention_heads=heads,
                       intermediate_size=4 * width, projection_dim=width, attn_implementation=implementation)
    )  # fmt: skip
    model = CrossModal(TextEncoder(bert, Tokenizer()), clip_text(tower))  # type: ignore[arg-type]
    objectives = [Match(model.sizes), MaskedLM(model.sizes, joint=True), ClipTokens(model.sizes)]
    parameters = [*model.parameters(), *(p for o in objectives for p in o.parameters())]
    optimizer = torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=1e-4)
    if way == "plain":
        Attention.forward = eager  # type: ignore[method-assign]
    samples = texts(options.batch * (options.steps + 1), LENGTH)
    if way == "here":  # bucketing by length, as `Plan` does within its pools
        samples.sort(key=lambda s: len(s.text.ids) if s.text else 0)
        order = generator("benchmark", "order").permutation(options.steps + 1)
    else:
        order = np.arange(options.steps + 1)
    for n, at in enumerate(order):
        some = samples[at * options.batch : (at + 1) * options.batch]
        for objective in objectives:
            some = [
                objective.corrupt(s, generator("corrupt", s.id), lambda: samples[0]) for s in some
            ]
        batch = collate(some)
        batch = padded(batch) if way == "plain" else batch
        started = time.perf_counter()
        encoded = model(batch)
        if way == "plain":
            loss = every_position(objectives, encoded, batch)
        else:
            loss = torch.stack(
                [
                    v / max(1, o.count(batch)[t])
                    for o in objectives
                    for t, v in o(encoded, batch).items()
                ]
            )
        loss.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if n:
            yield time.perf_counter() - started


def every_position(objectives: list, encoded: object, batch: Batch) -> torch.Tensor:
    """The three losses with logits computed at every position and the unscored ones ignored afterwards."""
    match, mlm, tokens = objectives
    logits = mlm.head(encoded.joint_text, encoded.word_table)  # type: ignore[attr-defined]
    clip_logits = tokens.head(encoded.joint_visual, encoded.clip_table)  # type: ignore[attr-defined]
    return torch.stack(
        [
            F.cross_entropy(logits.flatten(0, 1), batch.labels["masked_lm"].flatten()),
            F.cross_entropy(clip_logits.flatten(0, 1), batch.labels["clip_tokens"].flatten()),
            match(encoded, batch)["match"] / len(batch),
        ]
    )


def main() -> None:
    """Run both ways, each in its own process, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--way", choices=["plain", "here"], help="run one way only and print its figures as JSON"
    )
    options = parser.parse_args()
    hf_logging.set_verbosity_error()
    if options.way:
        torch.set_num_threads(options.threads)
        seconds = sum(steps(options.way, options))
        samples = texts(options.batch * (options.steps + 1), LENGTH)
        pieces = (
            sum(len(s.text.ids) for s in samples if s.text) * options.steps / (options.steps + 1)
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"tokens_per_second": pieces / seconds, "peak_mib": peak}))
        return
    found = {}
    for way in ("plain", "here"):
        command = [sys.executable, __file__, "--way", way, *sys.argv[1:]]
        found[way] = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
        )
        print(
            f"{way:6} {found[way]['tokens_per_second']:8.0f} real text pieces/s, peak {found[way]['peak_mib']:6.0f} MiB"
        )
    speed = found["here"]["tokens_per_second"] / found["plain"]["tokens_per_second"]
    memory = found["here"]["peak_mib"] / found["plain"]["peak_mib"]
    print(f"here is {speed:.1f} times as fast, with {memory:.2f} of the memory")


if __name__ == "__main__":
    main()

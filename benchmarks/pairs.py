"""Compare the scores of `pairs` with a plain pipeline's: processor seconds, one thread, same weights.

A masked language model of MiniLM's size (6 layers of 384, random weights) scores pairs of made-up sentences of BLiMP's
lengths, of which one word differs. `plain`, as published pipelines do, masks one token at a time, reads copies in the
order of the file, 64 a batch, and computes logits at every position, with transformers' class. Ways alternate; loading
does not count. Sums must agree to 1e-3. `--minicons`: that library, where it is installed, is timed as well.

python benchmarks/pairs.py [--pairs 200 --rounds 3 --minicons]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from vision_step import VOCABULARY, tokenizer  # noqa: E402

from groundling.core.rng import generator  # noqa: E402
from groundling.studies.knowledge.pair_likelihoods import (  # noqa: E402
    LanguageModel,
    TextWithContext,
)

BATCH = 64
Score = Callable[[list[str]], np.ndarray]
"""Pseudo-log-likelihoods (N,) of texts."""


def sentences(pairs: int) -> list[str]:
    """Good and bad sentences in turn, of 5 to 14 words."""
    texts = []
    for number in range(pairs):
        rng = generator("pairs", number)
        words = [f"w{word}" for word in rng.integers(1000, VOCABULARY, rng.integers(5, 15))]
        other = list(words)
        other[rng.integers(len(words))] = f"w{rng.integers(1000, VOCABULARY)}"
        texts += [" ".join(words), " ".join(other)]
    return texts


def plain(folder: str) -> Score:
    """Copies in the order of the file, padded to the longest of a batch, with logits at every position."""
    model, words = BertForMaskedLM.from_pretrained(folder).eval(), tokenizer()

    @torch.inference_mode()
    def score(texts: list[str]) -> np.ndarray:
        rows = words(texts)["input_ids"]
        copies = [
            (text, place) for text, row in enumerate(rows) for place in range(1, len(row) - 1)
        ]
        sums = np.zeros(len(texts))
        for start in range(0, len(copies), BATCH):
            some = copies[start : start + BATCH]
            ids = [torch.tensor(rows[text]) for text, _ in some]
            padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in ids], True)
            at = torch.arange(len(some)), torch.tensor([place for _, place in some])
            targets = padded[at]
            padded[at] = words.convert_tokens_to_ids("[MASK]")
            logits = model(input_ids=padded, attention_mask=mask).logits.log_softmax(-1)
            np.add.at(sums, [text for text, _ in some], logits[(*at, targets)].double().numpy())
        return sums

    return score


def minicons(folder: str) -> Score:
    """As its documentation shows it: some sentences a batch (64 masked copies or more), each with its copies."""
    from minicons.scorer import MaskedLMScorer  # type: ignore[import-not-found]

    scorer = MaskedLMScorer(folder, "cpu")
    if not hasattr(
        scorer.tokenizer, "batch_encode_plus"
    ):  # minicons 0.3.39; gone in transformers 5
        type(scorer.tokenizer).batch_encode_plus = type(scorer.tokenizer).__call__

    def score(texts: list[str]) -> np.ndarray:
        sums = []
        for start in range(0, len(texts), 8):
            sums += scorer.sequence_score(
                texts[start : start + 8], reduction=lambda scores: scores.sum(0).item()
            )
        return np.array(sums)

    return score


def here(folder: str) -> Score:
    """What `pairs` calls."""
    model = LanguageModel(folder, torch.device("cpu"))
    return lambda texts: model.score([TextWithContext(text) for text in texts])[0]


def main() -> None:
    """Time all ways in turn, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("pairs", 200), ("rounds", 3), ("layers", 6), ("width", 384)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--minicons", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=options.width, num_hidden_layers=options.layers,
        num_attention_heads=options.width // 32, intermediate_size=4 * options.width,
    )  # fmt: skip
    texts = sentences(options.pairs)
    with tempfile.TemporaryDirectory() as folder:
        BertForMaskedLM(config).save_pretrained(folder)
        words = tokenizer()
        words.add_special_tokens(
            {"mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        )
        words.save_pretrained(folder)
        ways = {"here": here(folder), "plain": plain(folder)}
        if options.minicons:
            ways["minicons"] = minicons(folder)
    ratios: dict[str, list[float]] = {name: [] for name in ways if name != "here"}
    for number in range(options.rounds + 1):
        found, seconds = {}, {}
        for name, score in ways.items():
            began = time.process_time()
            found[name] = score(texts if number else texts[:4])  # a warm-up first
            seconds[name] = time.process_time() - began
        for name, of_rival in ratios.items():
            np.testing.assert_allclose(found["here"], found[name], rtol=1e-5, atol=1e-3)
            if number:
                of_rival.append(seconds[name] / seconds["here"])
        if number:
            print(", ".join(f"{name} {one:.2f} s" for name, one in seconds.items()), flush=True)
    for name, of_rival in ratios.items():
        spelt = ", ".join(f"{one:.2f}" for one in of_rival)
        fast = f"{statistics.median(of_rival):.2f} times as fast as {name} ({spelt})"
        print(f"{len(texts)} texts: here is {fast}")


if __name__ == "__main__":
    main()

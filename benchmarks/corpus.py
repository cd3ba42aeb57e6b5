"""Compare corpus preparation with `datasets.map`, and measure a training process's memory, on made-up text.

Both ways alternate. Each reads one file of lines, tokenises it with one fast tokenizer, and writes files to be mapped
from disk: lines of at most 128 tokens, or blocks of 512 (with datasets as in transformers' run_mlm.py, which groups
tokens). The time for loading libraries counts for neither way, except in worker processes, which one way starts anew
and the other forks. Then separate processes train a small encoder for some steps on the prepared corpus, reading at
random.

python benchmarks/corpus.py [--sizes .01 .1] [--processes 2] [--rounds 3] [--steps 20]

Sizes are shares of WikiText-103's 103 million words.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BEGAN = time.time()
WIKITEXT = 103_000_000
"""Words of WikiText-103's training text (Merity et al. 2016, Table 1)."""
VOCABULARY = 50_000
LINE = 90
"""Average number of words per line."""
READ = 20_000
"""Samples read at random before memory is measured."""
FORMS = {"lines": 128, "blocks": 512}
MOST = 1024
"""Words of text on which the tokenizer is trained, in thousands."""


def write_text(path: Path, words: int) -> None:
    """Write words with natural frequencies (Zipf), of two to ten letters, in sentences and lines."""
    import numpy as np

    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlcumwfgypbvkjxqz"))
    frequent = 1 / np.arange(3, len(letters) + 3)
    draw = rng.choice(letters, (VOCABULARY, 10), p=frequent / frequent.sum())
    lengths = rng.integers(2, 11, VOCABULARY)
    known = np.array(["".join(row[:n]) for row, n in zip(draw, lengths, strict=True)], object)
    share = 1 / np.arange(1, VOCABULARY + 1)
    ends = np.cumsum(share / share.sum())
    with path.open("w", encoding="ascii") as stream:
        for start in range(0, words, 1_000_000):
            count = min(1_000_000, words - start)
            chosen = known[ends.searchsorted(rng.random(count)).clip(0, VOCABULARY - 1)].tolist()
            for place in range(0, count, 15):
                chosen[place] += " ."
            at = 0
            while at < count:
                size = int(rng.integers(LINE // 3, 2 * LINE - LINE // 3))
                stream.write(" ".join(chosen[at : at + size]) + "\n")
                at += size


def save_tokenizer(text: Path, folder: Path) -> None:
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizer

    with text.open(encoding="ascii") as stream:
        some = [line for line, _ in zip(stream, range(MOST * 1000 // LINE), strict=False)]
    learner = BertWordPieceTokenizer()
    learner.train_from_iterator(some, vocab_size=20_000, show_progress=False)
    BertTokenizer(vocab=learner.get_vocab()).save_pretrained(folder)


def with_groundling(text: Path, form: str, processes: int, folder: Path) -> Any:
    from transformers import AutoTokenizer

    from groundling.data import corpora
    from groundling.data.corpora import corpus_samples
    from groundling.data.samples import TextRowEncoder

    corpora.cores = lambda: processes
    tokenizer = AutoTokenizer.from_pretrained(text.parent / "tokenizer")
    return corpus_samples([text], form, TextRowEncoder(tokenizer, FORMS[form]), folder)


def with_datasets(text: Path, form: str, processes: int, folder: Path) -> Any:
    from datasets import load_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(text.parent / "tokenizer")
    length = FORMS[form]
    most = {"truncation": True, "max_length": length} if form == "lines" else {}

    def tokenise(batch: dict[str, list[str]]) -> dict[str, Any]:
        return dict(tokenizer(batch["text"], return_special_tokens_mask=True, **most))

    def grouped(batch: dict[str, list[list[int]]]) -> dict[str, Any]:
        joined = {name: [token for row in rows for token in row] for name, rows in batch.items()}
        total = len(joined["input_ids"]) // length * length
        return {
            name: [row[at : at + length] for at in range(0, total, length)]
            for name, row in joined.items()
        }

    data = load_dataset("text", data_files=str(text), split="train", cache_dir=str(folder))
    several = processes if processes > 1 else None
    data = data.map(tokenise, batched=True, num_proc=several, remove_columns=["text"])
    if form == "blocks":
        data = data.map(grouped, batched=True, num_proc=several)
    return data


WAYS = {"groundling": with_groundling, "datasets": with_datasets}


def train_some(text: Path, form: str, folder: Path, steps: int) -> dict[str, float]:
    """MiB beyond those of libraries and model, and seconds until the first step."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from groundling.data.corpora import corpus_samples
    from groundling.data.samples import TextRowEncoder
    from groundling.models.text_encoder import TextEncoder
    from groundling.objectives.masked_lm import MaskedLM
    from groundling.settings.training import TrainingArguments
    from groundling.training.loop import train

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(text.parent / "tokenizer")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(tokenizer), intermediate_size=128, **sizes)
    model = TextEncoder(BertModel(config), tokenizer)
    loaded = time.time()
    before = resident_mib()
    samples = corpus_samples([text], form, TextRowEncoder(tokenizer, FORMS[form]), folder)
    objectives = [MaskedLM(model.sizes, mask_id=int(tokenizer.mask_token_id))]

    def run(steps: int) -> None:
        training = TrainingArguments(steps=steps, batch=8, save_every=10**6, cpu=True)
        with tempfile.TemporaryDirectory() as out:
            train(model, objectives, samples, training, out)

    run(1)
    first = time.time()
    run(steps)
    rng = np.random.default_rng(0)
    began = time.perf_counter()
    for _ in range(0, READ, 8):
        samples.get(rng.integers(len(samples), size=8).tolist())
    read = (time.perf_counter() - began) / READ
    return {
        "texts": len(samples),
        "libraries_s": round(loaded - BEGAN, 1),
        "first_step_s": round(first - loaded, 2),
        "own_mib": resident_mib("RssAnon") - before["RssAnon"],
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        - sum(before.values()),
        "sample_us": round(read * 1e6),
    }


def resident_mib(name: str = "") -> Any:
    """MiB of this process: its own (`RssAnon`), and mapped from files (`RssFile`), which the system can reclaim."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    lines = dict(line.split(":", 1) for line in status.splitlines() if line.startswith("Rss"))
    mib = {key: int(value.split()[0]) // 1024 for key, value in lines.items()}
    return mib[name] if name else mib


def run_in_new_process(*words: str) -> str:
    """Run this script in a separate process, and return the last line that it prints."""
    done = subprocess.run(
        [sys.executable, sys.argv[0], *words], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def child(options: argparse.Namespace) -> None:
    what, text, form, number, folder = options.alone
    if what == "train":
        print(json.dumps(train_some(Path(text), form, Path(folder), int(number))))
        return
    import datasets  # noqa: F401  (libraries count for neither way)

    import groundling.data.corpora  # noqa: F401

    before = processor_seconds()
    began = time.perf_counter()
    WAYS[what](Path(text), form, int(number), Path(folder))
    print(json.dumps([processor_seconds() - before, time.perf_counter() - began]))


def processor_seconds() -> float:
    """Processor seconds of this process and its finished children, without other work on the machine."""
    return sum(os.times()[:4])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.01, 0.1])
    parser.add_argument("--processes", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--forms", nargs="+", default=list(FORMS))
    parser.add_argument("--alone", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        child(options)
        return
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as name:
        for size in options.sizes:
            measure(Path(name) / f"{size:g}", size, options)


def measure(folder: Path, size: float, options: argparse.Namespace) -> None:
    """Print all figures for one size."""
    folder.mkdir()
    text = folder / "text.txt"
    words = round(WIKITEXT * size)
    write_text(text, words)
    save_tokenizer(text, folder / "tokenizer")
    print(f"{size:g} x WikiText-103: {words:,} words, {text.stat().st_size / 2**20:,.0f} MiB")
    for form in options.forms:
        for processes in options.processes:
            spent: dict[str, list[list[float]]] = {way: [] for way in WAYS}
            for turn in range(options.rounds):
                for way, taken in spent.items():
                    place = folder / f"{way}-{form}-{processes}-{turn}"
                    told = run_in_new_process(
                        "--alone", way, str(text), form, str(processes), str(place)
                    )
                    taken.append(json.loads(told))
            for unit, number in (("processor", 0), ("clock", 1)):
                middle = {
                    way: statistics.median(turn[number] for turn in taken)
                    for way, taken in spent.items()
                }
                speeds = ", ".join(
                    f"{way} {words / taken / 1000:,.0f}" for way, taken in middle.items()
                )
                ratio = middle["datasets"] / middle["groundling"]
                print(
                    f"  {form}, {processes} processes: thousand words a second of the {unit}: {speeds}; "
                    f"ratio {ratio:.2f}",
                    flush=True,
                )
        store = folder / f"groundling-{form}-{options.processes[0]}-0"
        found = json.loads(
            run_in_new_process("--alone", "train", str(text), form, str(options.steps), str(store))
        )
        kept = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
        print(f"  {form}, training: {found}, {kept / 2**20:,.0f} MiB on disk", flush=True)


if __name__ == "__main__":
    main()

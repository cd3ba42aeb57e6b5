"""Peak memory and time of training steps with and without `--gradient-checkpointing`, as ratios within one run.

Each way is a separate process, which trains an encoder with random weights by masked LM. Memory is the process's peak
minus its memory before the first step: libraries and weights do not count, gradients and Adam's state do.

python benchmarks/memory.py [--layers 12 --width 256 --batch 16 --length 128 --steps 3]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizer

from groundling.core.batch import Example
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.text_encoder import TextEncoder
from groundling.objectives.masked_lm import MaskedLM
from groundling.settings.training import TrainingArguments
from groundling.training.loop import train

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"w{number}" for number in range(1000)]


def resident_mib() -> int:
    """Current memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 2**20


def measure(options: argparse.Namespace) -> dict[str, float]:
    """MiB and processor seconds of one way, without other work on the machine."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = BertTokenizer(vocab={word: n for n, word in enumerate([*SPECIAL, *WORDS])})
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.width // 32,
        intermediate_size=4 * options.width,
    )
    model = TextEncoder(BertModel(config), tokenizer)
    text = " ".join(WORDS[: options.length - 2])
    examples = [Example(str(number), text) for number in range(options.batch)]
    samples = TextDataset(examples, TextRowEncoder(tokenizer, options.length))
    training = TrainingArguments(
        steps=options.steps,
        batch=options.batch,
        gradient_checkpointing=options.recompute,
        save_every=10**6,
        cpu=True,
    )
    before = resident_mib()
    began = time.process_time()
    with tempfile.TemporaryDirectory() as out:
        train(model, [MaskedLM(model.sizes, mask_id=4)], samples, training, out)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"mib": peak - before, "seconds": round(seconds, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--recompute", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(measure(options)))
        return
    found = {}
    for name, more in (("kept", []), ("recomputed", ["--recompute"])):
        words = [sys.executable, __file__, *sys.argv[1:], "--alone", *more]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"{name:<12}{found[name]['mib']:>8,.0f} MiB{found[name]['seconds']:>8.1f} s")
    for part in ("mib", "seconds"):
        print(f"ratio of {part}: {found['recomputed'][part] / found['kept'][part]:.2f}")


if __name__ == "__main__":
    main()

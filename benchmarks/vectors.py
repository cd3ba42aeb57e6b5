"""Measure `adapt` on many captions whose teacher is a folder of vectors: memory, start-up, samples a second.

For each number of captions, made-up captions and vectors of random numbers are written, and the same short run is made
twice, each in a process of its own: the first makes the store of tokens and the index of ids, the second opens them.

python benchmarks/vectors.py [--captions 10000 100000] [--width 384] [--steps 50] [--batch 32]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from corpus import processor_seconds, resident_mib, run_in_new_process, save_tokenizer

WORDS = 12
"""Words of a caption."""
TOGETHER = 100_000
"""Captions that are made together."""


def write_data(folder: Path, captions: int, width: int) -> None:
    """Write distinct captions, and a float16 vector for each, in files of `TOGETHER` rows."""
    import numpy as np

    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    known = np.array(["".join(rng.choice(letters, size)) for size in rng.integers(2, 9, 20_000)])
    (folder / "vectors").mkdir(parents=True)
    with (folder / "captions.txt").open("w", encoding="ascii") as stream:
        for number, start in enumerate(range(0, captions, TOGETHER)):
            count = min(TOGETHER, captions - start)
            words = known[rng.integers(len(known), size=(count, WORDS - 1))].tolist()
            lines = [f"{' '.join(row)} {start + place}\n" for place, row in enumerate(words)]
            stream.writelines(lines)
            file = folder / f"vectors/texts-{number:05}.npy"
            file.with_suffix(".txt").write_text("".join(lines), encoding="ascii")
            np.save(file, rng.standard_normal((count, width), np.float32).astype(np.float16))


def save_student(folder: Path) -> None:
    """Write a small BERT, so that reading is a large part of a step."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    save_tokenizer(folder / "captions.txt", folder / "student")
    tokens = len(AutoTokenizer.from_pretrained(folder / "student"))
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=tokens, intermediate_size=64, **sizes)).save_pretrained(
        folder / "student"
    )


def child(folder: Path, options: argparse.Namespace) -> None:
    """Print MiB besides libraries, seconds until the first step, and samples a second after it.

    A process's own memory does not include pages of mapped files, which the system drops when it needs the space.
    """
    import groundling
    from groundling.commands.adapt import run
    from groundling.training import fit

    run.adapt  # noqa: B018  (libraries are not start-up)
    libraries = resident_mib("RssAnon")
    marks: dict[str, float] = {}
    train: Any = fit.train

    def timed(*arguments: Any, **named: Any) -> Any:
        marks["start"], marks["clock"] = processor_seconds(), time.perf_counter()
        try:
            return train(*arguments, **named)
        finally:
            marks["end"], marks["own"] = processor_seconds(), resident_mib("RssAnon")

    fit.train = timed
    before, clock = processor_seconds(), time.perf_counter()
    groundling.adapt(
        student=str(folder / "student"),
        teacher=f"vectors:{folder / 'vectors'}",
        text=(str(folder / "captions.txt"),),
        arm="contrastive",
        word_weight=0.0,
        masked_lm=False,
        max_length=64,
        steps=options.steps,
        batch=options.batch,
        cpu=True,
        out=folder / f"run-{time.time_ns()}",
    )
    told = {
        "own_mib": marks["own"] - libraries,
        "peak_with_mapped_files_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "startup_processor_s": round(marks["start"] - before, 2),
        "startup_clock_s": round(marks["clock"] - clock, 2),
        "samples_per_processor_s": round(
            options.steps * options.batch / (marks["end"] - marks["start"])
        ),
    }
    print(json.dumps(told))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--captions", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        child(options.alone, options)
        return
    for captions in options.captions:
        with tempfile.TemporaryDirectory() as name:
            measure(Path(name), captions, options)


def measure(folder: Path, captions: int, options: argparse.Namespace) -> None:
    """Print all figures for one number of captions."""
    folder = folder / str(captions)
    os.environ |= {"OMP_NUM_THREADS": "1", "GROUNDLING_CACHE": str(folder / "cache")}
    write_data(folder, captions, options.width)
    save_student(folder)
    print(f"{captions:,} captions with vectors of {options.width} numbers", flush=True)
    for turn in ("first", "again"):
        words = ["--steps", str(options.steps), "--batch", str(options.batch)]
        told = run_in_new_process("--alone", str(folder), *words)
        print(f"  {turn}: {told}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

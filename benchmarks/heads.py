"""Time and peak memory of scoring every head on phrases, for some texts and for ten times as many.

Three ways over the same texts, each in its own process:
- streamed: the single pass of `groundling heads`, which keeps one bit per phrase and head;
- masses: the pass of `groundling modality`, which keeps three numbers per text and layer, intervals included;
- held: every layer's maps are kept until all texts are read, as usual with `output_attentions`.
The model is a UNITER with random weights. The 36 regions of an image are drawn when they are read, so that the data set
takes no memory. Texts have 12 words and 2 phrases; five texts belong to one image.

python benchmarks/heads.py [--texts 100 --times 10] [--layers 12 --heads 12 --width 192]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import BertConfig, BertModel, BertTokenizer

from groundling.core.batch import Example, GoldBoxes, RegionRow
from groundling.core.rng import generator
from groundling.data.regions.samples import RegionDataset
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.attention import AttentionMap
from groundling.studies.attention.grounding import HeadGrounding, PhraseSpan
from groundling.studies.attention.importance import (
    Bootstrap,
    ImportanceEstimate,
    ModalityImportance,
)
from groundling.studies.attention.inspected_models import (
    BATCH,
    AttentionBatch,
    consume_attention,
)
from groundling.tasks.grounding import FLICKR30K
from groundling.vision_language.single_stream import SingleStreamModel
from groundling.vision_language.uniter import uniter

REGIONS, FEATURES, WORDS, TO_AN_IMAGE = 36, 2048, 12, 5
VOCABULARY = [f"w{number}" for number in range(1000)]


class Drawn:
    """A store whose regions are drawn when they are read."""

    def __contains__(self, image: object) -> bool:
        return True

    def __getitem__(self, image: str) -> RegionRow:
        rng = generator("benchmark", image)
        corner, side = rng.uniform(0, 0.5, (2, REGIONS, 2))
        return RegionRow(
            rng.standard_normal((REGIONS, FEATURES), np.float32),
            np.concatenate([corner, corner + side], 1).astype(np.float32),
            rng.random(REGIONS, np.float32),
            np.zeros(REGIONS, np.int64),
            np.zeros(REGIONS, bool),
        )

    def count(self, image: str) -> int:
        """The same number for every image."""
        return REGIONS

    def size(self, image: str) -> tuple[int, int]:
        """The same size for every image."""
        return 500, 400

    def in_annotated_order(self, image: str) -> bool:
        """Drawn regions are not annotated."""
        return False

    def appended_detections(self, image: str) -> int:
        """None."""
        return 0


class AllMaps:
    """Keeps every attention map."""

    def __init__(self) -> None:
        self.maps: list[Tensor] = []

    def consume(self, seen: AttentionBatch, one: AttentionMap) -> None:
        """Add a map."""
        self.maps.append(one.weights)


def model_of(arguments: argparse.Namespace) -> SingleStreamModel:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = BertTokenizer(vocab={word: n for n, word in enumerate([*special, *VOCABULARY])})
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        intermediate_size=4 * arguments.width,
    )
    return uniter(BertModel(config), tokenizer, FEATURES)


def make_texts(texts: int) -> tuple[list[Example], list[list[PhraseSpan]]]:
    """Texts and their phrases, each with two boxes."""
    examples = []
    phrases = []
    for number in range(texts):
        rng = generator("benchmark", "text", number)
        words = [VOCABULARY[place] for place in rng.integers(0, len(VOCABULARY), WORDS)]
        example = Example(str(number), " ".join(words), images=(str(number // TO_AN_IMAGE),))
        own = []
        for first in (1, 7):
            corner = rng.uniform(0, 200, (2, 2))
            gold = GoldBoxes(np.concatenate([corner, corner + 150], 1), (500, 400))
            start = len(" ".join(words[:first])) + 1
            stop = len(" ".join(words[: first + 2]))
            own.append(PhraseSpan(Example(**{**vars(example), "gold_boxes": gold}), start, stop))
        examples.append(example)
        phrases.append(own)
    return examples, phrases


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds, and peak MiB before and after: the difference is beyond the model and one batch."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = model_of(arguments)
    runs = 0

    def count(*_: object) -> None:
        nonlocal runs
        runs += 1

    def run_pass(texts: int, way: str) -> None:
        examples, phrases = make_texts(texts)
        consumer: Any = AllMaps()
        if way == "streamed":
            consumer = HeadGrounding(
                phrases, FLICKR30K.label_regions, [n % 2 for n in range(texts)]
            )
        if way == "masses":
            consumer = ModalityImportance()
        text = TextRowEncoder(model.text.tokenizer, 64)
        samples = RegionDataset(TextDataset(examples, text, max_cached=0), Drawn())
        consume_attention(model, samples, consumer)
        if way == "masses":
            images = [example.images[0] for example in examples]
            ImportanceEstimate(consumer, Bootstrap(images, 0)).to_json()

    first = "masses" if arguments.way == "masses" else "streamed"
    run_pass(BATCH, first)  # memory of one batch, independent of the number of texts
    model.register_forward_hook(count)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    run_pass(arguments.texts, arguments.way)
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "runs": runs, "before": before / 1024, "peak": after / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--way", default="")
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(measure(arguments)))
        return
    print("way       texts  forward passes  seconds  ms a text  peak MiB  beyond one batch")
    for way in ("streamed", "masses", "held"):
        for texts in (arguments.texts, arguments.texts * arguments.times):
            flags = ["--layers", "--heads", "--width"]
            values = [arguments.layers, arguments.heads, arguments.width]
            sizes = [word for pair in zip(flags, map(str, values), strict=True) for word in pair]
            command = [sys.executable, __file__, "--way", way, "--texts", str(texts), *sizes]
            answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            told = json.loads(answer.splitlines()[-1])
            print(
                f"{way:<8}{texts:>7,}{told['runs']:>16,}{told['seconds']:>9.1f}"
                f"{1000 * told['seconds'] / texts:>11.1f}{told['peak']:>10,.0f}"
                f"{told['peak'] - told['before']:>18,.1f}"
            )


if __name__ == "__main__":
    main()

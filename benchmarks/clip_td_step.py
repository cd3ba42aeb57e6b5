"""Compare CLIP-TD's distillation step with cached teacher features, plain fine-tuning, and CLIP in every step.

Three ways over the same batches, weights and optimizer alternate in one process, each order equally often:
- plain: only the task's loss;
- kept: with td_image, td_text and td_words, whose features were computed once and are on disk;
- live: the same, but the teacher runs in every step.
A step is all of a training step: read samples, collate, run the teacher, forward, backward, clip, update. The student
is a UNITER with random weights, the teacher a CLIP with random weights; images are JPEG files of noise. First the
losses of `kept` and `live`, without dropout, must agree. Ratios are medians over the turns, and ratios of the fastest
steps, which other processes on the machine disturb least.

python benchmarks/clip_td_step.py [--layers 12 --width 768 --patch 16 --choices 1] [--batch 8 --steps 12]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as hf_logging

from groundling.core.batch import Example, RegionRow, collate
from groundling.core.output_types import Classification, MultipleChoice
from groundling.core.rng import generator
from groundling.data.regions.samples import RegionDataset, RegionOptions
from groundling.data.samples import SampleDataset, TextDataset, TextRowEncoder
from groundling.models.clip import ClipImageTower, make_clip_text_tower
from groundling.models.frozen_clip import FrozenClip
from groundling.objectives import Objective
from groundling.objectives.supervised import SupervisedObjective
from groundling.objectives.targeted_distillation import (
    TargetedImageDistillation,
    TargetedTextDistillation,
    TargetedWordDistillation,
)
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.teachers import Teacher, add_features
from groundling.teachers.clip import ClipTeacher
from groundling.teachers.feature_cache import FeatureCache, TeacherSet
from groundling.training.loop import ModelWithObjectives
from groundling.vision_language.uniter import uniter

FEATURES, REGIONS = 2048, 36
WORDS = 3000
"""Number of different words in the texts."""
WANTS = ("clip_image", "clip_text", "clip_words", "clip_word")


class StoreOfThirtySix:
    """A store of made-up images in memory, each with 36 regions."""

    def __init__(self) -> None:
        rng = generator("benchmark", "regions")
        corner, side = rng.random((2, REGIONS, 2), np.float32) / 2
        self.row = RegionRow(
            rng.standard_normal((REGIONS, FEATURES), np.float32).clip(0),
            np.concatenate([corner, corner + side], 1),
            np.ones(REGIONS, np.float32),
            np.zeros(REGIONS, np.int64),
            np.zeros(REGIONS, bool),
        )

    def __contains__(self, image: object) -> bool:
        return True

    def __getitem__(self, image: str) -> RegionRow:
        return self.row

    def count(self, image: str) -> int:
        """How many regions an image has."""
        return REGIONS

    def size(self, image: str) -> tuple[int, int]:
        """Unknown."""
        return 0, 0

    def in_annotated_order(self, image: str) -> bool:
        """Made-up regions are not annotated."""
        return False

    def appended_detections(self, image: str) -> int:
        """None."""
        return 0


def tokenizer(size: int, start: str, end: str) -> Any:
    """Whole words between a start and an end token; the vocabulary has the model's size."""
    words = ["[PAD]", "[UNK]", start, end, *(f"word{number}" for number in range(4, size))]
    ids = {word: number for number, word in enumerate(words)}
    engine = Tokenizer(models.WordLevel(ids, "[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    engine.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} $B:1 {end}:1",
        special_tokens=[(start, 2), (end, 3)],
    )
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=engine, pad_token="[PAD]", model_max_length=512)


def text(*key: str | int, words: int) -> str:
    """A text of `words` words on average."""
    rng = generator("benchmark", *key)
    count = int(np.clip(rng.lognormal(np.log(words), 0.3), 3, 30))
    return " ".join(f"word{number}" for number in rng.integers(10, WORDS, count))


def examples(options: argparse.Namespace, photos: Path) -> list[Example]:
    """A text for each image or, with several choices, a question and its answers; as long as SNLI-VE's and VCR's."""
    found = []
    for number in range(options.batch * (options.steps + 1)):
        rng = generator("benchmark", "image", number)
        pixels = rng.integers(0, 256, (480, 640, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{number}.jpg")
        label = int(rng.integers(max(3, options.choices) if options.choices > 1 else 3))
        one = Example(str(number), text(number, words=8), label=label, images=(str(number),))
        if options.choices > 1:
            answers = tuple(text(number, answer, words=9) for answer in range(options.choices))
            label %= options.choices
            one = Example(one.id, one.text, choices=answers, label=label, images=one.images)
        found.append(one)
    return found


def teacher(options: argparse.Namespace, photos: Path) -> ClipTeacher:
    """A ViT-B with random weights and a text tower of CLIP's size, or smaller towers."""
    tokens = tokenizer(49408, "<start>", "<end>")
    sides: dict[str, Any] = {"patch_size": options.patch_size}
    texts: dict[str, Any] = {"eos_token_id": 3, "bos_token_id": 2, "pad_token_id": 0}
    if options.width != 768:
        small = {"num_hidden_layers": options.layers, "num_attention_heads": options.width // 64}
        small |= {"hidden_size": options.width, "intermediate_size": 4 * options.width}
        sides |= small
        texts |= small
    clip = CLIPModel(CLIPConfig(vision_config=sides, text_config=texts))
    image = ClipImageTower(clip.vision_model, clip.visual_projection, CLIPImageProcessorPil())
    seen = TargetedDistillationSettings(teacher_images=str(photos))
    return ClipTeacher(FrozenClip(image, make_clip_text_tower(clip), tokens), WANTS, seen)


class Way:
    """Steps over the same samples with some objectives, and with teachers that run in each step."""

    def __init__(
        self,
        samples: SampleDataset,
        module: ModelWithObjectives,
        objectives: Sequence[Objective],
        live: Sequence[Teacher],
    ) -> None:
        self.samples = samples
        self.module = module
        self.objectives = objectives
        self.live = live

    def loss(self, indices: Sequence[int]) -> torch.Tensor:
        """The weighted sum of all terms' means over a batch."""
        batch = collate(self.samples.get(indices, [generator(index) for index in indices]))
        for one in self.live:
            batch = add_features(one, batch)
        names = [objective.name for objective in self.objectives]
        terms = self.module(batch, names).terms
        counts = {k: v for one in self.objectives for k, v in one.count(batch).items()}
        parts = [self.module.weight(k) * v / max(1, counts[k]) for k, v in terms.items()]
        return torch.stack(parts).sum()

    def step(self, indices: Sequence[int], optimizer: torch.optim.Optimizer) -> float:
        """Seconds of one optimizer step."""
        began = time.perf_counter()
        self.loss(indices).backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - began


def make_ways(
    options: argparse.Namespace, folder: Path
) -> tuple[dict[str, Way], ModelWithObjectives]:
    """All three ways, with one student."""
    photos = folder / "photos"
    photos.mkdir()
    words = tokenizer(30522, "[CLS]", "[SEP]")
    bert = BertModel(
        BertConfig(
            hidden_size=options.width,
            num_hidden_layers=options.layers,
            num_attention_heads=options.width // 64,
            intermediate_size=4 * options.width,
        )
    )
    model = uniter(bert, words, FEATURES)
    plain = TextDataset(examples(options, photos), TextRowEncoder(words, 128))
    clip = teacher(options, photos)
    began = time.perf_counter()
    kept, _ = TeacherSet([clip], FeatureCache(folder / "kept")).wrap(plain)
    seconds = time.perf_counter() - began
    size = sum(path.stat().st_size for path in (folder / "kept").rglob("*") if path.is_file())
    print(
        f"features of {len(plain)} examples: {seconds:.1f} s, {size / len(plain):,.0f} bytes each"
    )
    live, asked = TeacherSet([clip]).wrap(plain)
    sizes = model.sizes._replace(teacher=clip.width, teacher_image=clip.image_width)
    labels = tuple(str(number) for number in range(options.choices))
    form = MultipleChoice(labels) if options.choices > 1 else Classification(("yes", "maybe", "no"))
    task = SupervisedObjective(sizes, output_type=form)
    terms = [
        TargetedImageDistillation(sizes),
        TargetedTextDistillation(sizes),
        TargetedWordDistillation(sizes),
    ]
    module = ModelWithObjectives(model, [task, *terms])
    boxes = StoreOfThirtySix()
    seen = {name: RegionDataset(some, boxes, RegionOptions()) for name, some in
            (("plain", plain), ("kept", kept), ("live", live))}  # fmt: skip
    return {
        "plain": Way(seen["plain"], module, [task], []),
        "kept": Way(seen["kept"], module, [task, *terms], []),
        "live": Way(seen["live"], module, [task, *terms], asked),
    }, module


def main() -> None:
    """Time the three ways in alternation, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("--batch", 8),
        ("--steps", 12),
        ("--layers", 12),
        ("--width", 768),
        ("--patch-size", 16),
        ("--choices", 1),
        ("--threads", 1),
    ):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    hf_logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        all_ways, module = make_ways(options, Path(folder))
        first = range(options.batch)
        module.eval()
        with torch.no_grad():
            kept, live = (float(all_ways[name].loss(first)) for name in ("kept", "live"))
        assert abs(kept - live) <= 1e-6 * abs(live), f"losses differ: {kept} kept, {live} live"
        module.train()
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True)
        orders = list(permutations(all_ways))  # the way that ran before affects the caches
        seconds: dict[str, list[float]] = {name: [] for name in all_ways}
        for turn in range(options.steps + 1):
            indices = range(turn * options.batch, (turn + 1) * options.batch)
            for name in orders[turn % len(orders)]:
                spent = all_ways[name].step(indices, optimizer)
                if turn:  # the first is a warm-up
                    seconds[name].append(spent)
    print(f"losses agree to {abs(kept - live) / abs(live):.0e}")
    for name, spent in seconds.items():
        print(
            f"{name:6}{median(spent):8.3f} s per step of {options.batch} examples, at best {min(spent):.3f} s"
        )
    for name in ("plain", "live"):
        ratios = [mine / other for mine, other in zip(seconds["kept"], seconds[name], strict=True)]
        best = min(seconds["kept"]) / min(seconds[name])
        print(f"kept is {median(ratios):.3f} of {name}, at best {best:.3f}")


if __name__ == "__main__":
    main()

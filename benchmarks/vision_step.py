"""Compare VisualBERT's pre-training step (masked LM over two captions + sentence-image) with Hugging Face's.

Three ways over the same samples, weights, optimizer and corruption alternate, each in its own process:
- fixed: `VisualBertForPreTraining`, text padded to 128 and regions to 100, as in VisualBERT's code;
- need: the same, but each batch is padded only to its longest text and its most regions, without bucketing;
- here: as in `train`: bucketing by length, padding to each batch's need, fused
attention, logits only at masked
  tokens.
First the losses and gradients of the two models on one batch, without dropout, must agree. Making batches is not timed.

On CUDA in bf16, with samples/s and MFU (the FLOPs of the samples without padding and unmasked logits, over the peak).

python benchmarks/vision_step.py [--layers 4 --width 256 | --base] [--batch 8 --steps 8]
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
    VisualBertConfig,
    VisualBertForPreTraining,
)

from groundling.core.batch import IGNORE, Batch, RegionRow
from groundling.core.rng import generator
from groundling.data.captions import CaptionedImage
from groundling.data.regions.samples import CaptionSampleDataset, RegionDataset
from groundling.objectives import Objective
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.objectives.masked_lm import MaskedLM
from groundling.settings.training import TrainingArguments
from groundling.training.batch_sampler import DataSource, MicroBatchDataset, plan_batches
from groundling.training.loop import ModelWithObjectives
from groundling.vision_language.single_stream import SingleStreamModel
from groundling.vision_language.visualbert import visualbert

VOCABULARY, FEATURES, TEXT, REGIONS = 30522, 2048, 128, 100
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ACTIVE = ("masked_lm", "sentence_image")
NAMES = {
    "position": "visual_bert.embeddings.visual_position_embeddings",
    "segment": "visual_bert.embeddings.visual_token_type_embeddings",
    "projection": "visual_bert.embeddings.visual_projection",
    "match.classify": "cls.seq_relationship",
}
"""Hugging Face's names of our modules other than BERT."""


class StoreOfTens:
    """A store of made-up images, made when read: 10 to 100 regions, 41 on average (adaptive bottom-up attention)."""

    def __contains__(self, image: object) -> bool:
        return True

    def count(self, image: str) -> int:
        """How many regions an image has."""
        return int(
            np.clip(generator("benchmark", "count", image).lognormal(np.log(36), 0.5), 10, REGIONS)
        )

    def size(self, image: str) -> tuple[int, int]:
        """Unknown."""
        return 0, 0

    def in_annotated_order(self, image: str) -> bool:
        """Made-up regions are not annotated."""
        return False

    def appended_detections(self, image: str) -> int:
        """None."""
        return 0

    def __getitem__(self, image: str) -> RegionRow:
        rng, count = generator("benchmark", "regions", image), self.count(image)
        features = rng.standard_normal((count, FEATURES), np.float32).clip(0)
        corner, side = rng.random((2, count, 2), np.float32) / 2
        boxes = np.concatenate([corner, corner + side], 1)
        return RegionRow(
            features,
            boxes,
            np.ones(count, np.float32),
            np.zeros(count, np.int64),
            np.zeros(count, bool),
        )


def tokenizer() -> Any:
    """Whole words between [CLS] and [SEP]; the vocabulary has BERT's size."""
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"w{number}" for number in range(5, VOCABULARY)),
    ]
    engine = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, "[UNK]")
    )
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    engine.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=engine, pad_token="[PAD]", model_max_length=512)


def captioned(images: int) -> list[CaptionedImage]:
    """Images with five captions of 12 tokens on average, distributed as COCO's (log-normal, 7 to 50)."""
    out = []
    for number in range(images):
        rng = generator("benchmark", "captions", number)
        lengths = rng.lognormal(np.log(11.5), 0.25, 5).round().clip(7, 50).astype(int)
        captions = [
            " ".join(f"w{word}" for word in rng.integers(1000, VOCABULARY, n)) for n in lengths
        ]
        out.append(CaptionedImage(str(number), f"{number}.jpg", tuple(captions)))
    return out


def sizes(options: argparse.Namespace) -> dict[str, Any]:
    width = {"hidden_size": options.width, "intermediate_size": 4 * options.width}
    return {
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.width // 64,
        **width,
    }


def build_model(options: argparse.Namespace) -> tuple[SingleStreamModel, list[Objective]]:
    """Our model and its objectives."""
    torch.manual_seed(0)
    model = visualbert(BertModel(BertConfig(**sizes(options))), tokenizer(), FEATURES)
    assert model.text.encoder.config._attn_implementation == "sdpa"
    return model, [
        MaskedLM(model.sizes, mask_id=4),
        ImageTextMatching(model.sizes, swap_images=False),
    ]


class TransformersStep(nn.Module):
    """Hugging Face's model with the weights of ours; answers with its loss."""

    def __init__(self, way: str, options: argparse.Namespace) -> None:
        super().__init__()
        self.fixed = way == "fixed"
        self.model = VisualBertForPreTraining(
            VisualBertConfig(visual_embedding_dim=FEATURES, **sizes(options))
        )
        model, (mlm, match) = build_model(options)
        own = {
            f"visual_bert.{name}": weight
            for name, weight in model.text.encoder.state_dict().items()
        }
        table = own["visual_bert.embeddings.word_embeddings.weight"]
        own |= {
            "cls.predictions.decoder.weight": table,
            "cls.predictions.decoder.bias": mlm.state_dict()["head.cls.predictions.bias"],
        }
        for prefix, module in (("", model.join), ("mlm.", mlm), ("match.", match)):
            for name, weight in module.state_dict().items():
                kind, _, rest = f"{prefix}{name}".rpartition(".")
                kind = NAMES[kind] if kind in NAMES else kind.removeprefix("mlm.head.")
                own[f"{kind}.{rest}"] = weight
        self.model.load_state_dict(own)

    def forward(self, batch: Batch) -> Tensor:
        """The sum of both losses, with vocabulary logits at every position of the sequence, as in the class."""
        text, regions = batch.text, batch.regions
        assert text is not None and regions is not None
        more, extra = (
            (TEXT - text.input_ids.shape[1], REGIONS - regions.mask.shape[1])
            if self.fixed
            else (0, 0)
        )
        loss: Tensor = self.model(
            input_ids=F.pad(text.input_ids, (0, more)),
            attention_mask=F.pad(text.attention_mask, (0, more)).long(),
            token_type_ids=F.pad(text.token_type_ids, (0, more)),
            visual_embeds=F.pad(regions.features, (0, 0, 0, extra)),
            visual_attention_mask=F.pad(regions.mask, (0, extra)).long(),
            visual_token_type_ids=F.pad(regions.image_index, (0, extra)),
            labels=F.pad(
                batch.labels["masked_lm"], (0, more + extra + regions.mask.shape[1]), value=IGNORE
            ),
            sentence_image_labels=batch.labels["sentence_image"],
        ).loss
        return loss


class GroundlingStep(nn.Module):
    """This package's step, with the loss that `train` computes from its terms."""

    def __init__(self, way: str, options: argparse.Namespace) -> None:
        super().__init__()
        model, self.objectives = build_model(options)
        self.step = ModelWithObjectives(model, self.objectives)

    def forward(self, batch: Batch) -> Tensor:
        """The sum of both losses."""
        counts = {term: count for o in self.objectives for term, count in o.count(batch).items()}
        return torch.stack(
            [value / counts[term] for term, value in self.step(batch, ACTIVE).terms.items()]
        ).sum()


WAYS: dict[str, type[nn.Module]] = {
    "fixed": TransformersStep,
    "need": TransformersStep,
    "here": GroundlingStep,
}


def batches(way: str, options: argparse.Namespace) -> MicroBatchDataset:
    """One epoch; samples and their corruption are the same for all ways, and only batches of ours are bucketed."""
    model, objectives = build_model(options)
    captions = CaptionSampleDataset(captioned(options.batch * options.steps), model.inputs(TEXT)[0])
    data = RegionDataset(captions, StoreOfTens())
    if way != "here":
        data.lengths = np.zeros(len(data))
    return MicroBatchDataset(
        plan_batches(
            [DataSource(data)],
            [],
            TrainingArguments(batch=options.batch, steps=options.steps),
            1,
        ),
        objectives,
        1,
        0,
        1,
    )


def check(options: argparse.Namespace) -> list[float]:
    """Differences in loss and gradient norm between their models and ours, in fp32 and without dropout."""
    torch.set_num_threads(options.threads)
    batch, found = batches("need", options)[0].to(DEVICE), []
    for way, kind in WAYS.items():
        module = kind(way, options).to(DEVICE).eval()
        loss = module(batch)
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
        found.append(torch.stack([loss.detach(), norm]))
    return [float((way - found[-1]).abs().max()) for way in found[:-1]]


def serve(way: str, options: argparse.Namespace, line: Connection) -> None:
    """Run a step for each message, send its seconds and FLOPs back, and at the end the peak memory in MiB."""
    torch.set_num_threads(options.threads)
    module = WAYS[way](way, options).to(DEVICE).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    feed = batches(way, options)
    for number in range(options.steps + 1):
        line.recv()
        batch = feed[max(0, number - 1)].to(DEVICE)  # the first is a warm-up
        started = now()
        with torch.autocast("cuda", torch.bfloat16, enabled=DEVICE.type == "cuda"):
            loss = module(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        line.send((now() - started, flops(batch, options)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line.send((torch.cuda.max_memory_allocated() if DEVICE.type == "cuda" else peak) / 2**20)


def now() -> float:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def flops(batch: Batch, options: argparse.Namespace) -> float:
    """FLOPs of a step without padding and unmasked logits: 6 x weights x their positions + attention."""
    assert batch.text is not None and batch.regions is not None
    width, regions = options.width, batch.regions.mask.sum(1)
    places = batch.text.attention_mask.sum(1) + regions
    masked = int((batch.labels["masked_lm"] != IGNORE).sum())
    weights = 12 * width**2 * options.layers * int(places.sum()) + FEATURES * width * int(
        regions.sum()
    )
    weights += width * (width + VOCABULARY) * masked + width**2 * len(batch)
    return float(6 * weights + 12 * options.layers * width * int((places**2).sum()))


def main() -> None:
    """Check, time the three ways in alternation, and print seconds, memory and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (
        ("--batch", 8),
        ("--steps", 8),
        ("--layers", 4),
        ("--width", 256),
        ("--threads", 1),
    ):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--base", action="store_true", help="12 layers of width 768")
    parser.add_argument(
        "--peak-tflops", type=float, default=989, help="dense bf16 peak of the card, for MFU"
    )
    options = parser.parse_args()
    if options.base:
        options.layers, options.width = 12, 768
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1) as pool:
        worst = max(pool.apply(check, (options,)))
    assert worst < 1e-4, f"losses or gradients of the two models differ by {worst:.1e}"
    print(f"{options.layers} layers of {options.width}, batches of {options.batch}, {DEVICE.type}; losses and gradient "
          f"norms of the two models differ by at most {worst:.0e}")  # fmt: skip
    lines, seconds, work = {}, dict.fromkeys(WAYS, 0.0), dict.fromkeys(WAYS, 0.0)
    for way in WAYS:
        lines[way], end = spawn.Pipe()
        spawn.Process(target=serve, args=(way, options, end), daemon=True).start()
        end.close()
    for step in range(options.steps + 1):
        for way, line in lines.items():
            line.send("go")
            spent, needed = line.recv()
            seconds[way] += spent * bool(step)
            work[way] += needed * bool(step)
    samples = options.batch * options.steps
    peaks = {way: line.recv() for way, line in lines.items()}
    for way, spent in seconds.items():
        used = (
            f", MFU {work[way] / spent / options.peak_tflops / 1e12:.1%}"
            if DEVICE.type == "cuda"
            else ""
        )
        print(f"{way:5} {spent / samples:8.4f} s per sample, {samples / spent:7.1f} samples/s, "
              f"peak {peaks[way]:6.0f} MiB{used}")  # fmt: skip
    for way in ("fixed", "need"):
        print(f"here is {seconds[way] / seconds['here']:.2f} times as fast as {way}, "
              f"with {peaks['here'] / peaks[way]:.2f} of the memory")  # fmt: skip


if __name__ == "__main__":
    main()

"""The first thing to run on a GPU: are results right there, and how fast is each command beside its rivals?

Correctness: losses and gradients of every objective against the processor's (fp32, and bf16 within bounds), no step
that waits for the GPU, and a killed run that ends bit-equal. Speed: `adapt` (masked LM, contrastive, XDBERT,
caption_to_image), `pretrain` (three models), `finetune`, `train-clip` and `regions` at BERT's sizes, in bf16, with
`train` itself, so that tokens a second, padding and MFU are those of a run's lines, without the first. Rivals on the
same texts: transformers' `Trainer` (bf16, fused AdamW, grouped by length, compiled or not) and, if it is installed,
sentence-transformers' trainer. Profile: where the time of masked LM on blocks of 512 tokens goes, by kinds of kernels.
Models have random weights, texts random tokens; nothing is downloaded.

Parts run in a process one after the other; one that fails or takes too long becomes a line with its error.

python benchmarks/gpu.py --out gpu.json                  # on a GPU: at most 8 minutes
python benchmarks/gpu.py --sizes toy --out toy.json      # on a processor: a minute
python benchmarks/gpu.py --page gpu.json                 # as tables, for docs/performance.md
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import adaptation_step  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import vision_step  # noqa: E402
from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from groundling.core.batch import Sample, TextRow  # noqa: E402
from groundling.core.output_types import Classification  # noqa: E402
from groundling.core.rng import generator  # noqa: E402
from groundling.data.regions.samples import (  # noqa: E402
    CaptionSampleDataset,
    RegionDataset,
    add_whole_image,
)
from groundling.data.samples import MappedDataset  # noqa: E402
from groundling.models.clip import ClipDualEncoder  # noqa: E402
from groundling.models.text_encoder import TextEncoder  # noqa: E402
from groundling.objectives import Objective  # noqa: E402
from groundling.objectives.contrastive import ClipContrastiveLoss  # noqa: E402
from groundling.objectives.feature_distillation import ContrastiveDistillation  # noqa: E402
from groundling.objectives.image_text_matching import ImageTextMatching  # noqa: E402
from groundling.objectives.masked_lm import MaskedLM  # noqa: E402
from groundling.objectives.supervised import SupervisedObjective  # noqa: E402
from groundling.settings.training import TrainingArguments  # noqa: E402
from groundling.training.batch_sampler import DataSource  # noqa: E402
from groundling.training.loop import train  # noqa: E402
from groundling.training.training_steps import PlainTrainingStep, TrainingStep  # noqa: E402
from groundling.vision_language.uniter import uniter  # noqa: E402
from groundling.vision_language.visualbert import visualbert  # noqa: E402
from groundling.vision_language.vlbert import vlbert  # noqa: E402

CUDA = torch.cuda.is_available()
SIZES = {"toy": (2, 64), "base": (12, 768), "large": (24, 1024)}
"""Layers and width."""
STEPS, BATCH = (40, 64) if CUDA else (4, 4)
if CUDA and torch.cuda.get_device_properties(0).total_memory > 100 * 2**30:
    BATCH = 128
LINES = 4
"""Lines of a run's log; the first is a warm-up."""
TEACHER = 512
PART_SECONDS = 75.0
"""Most seconds of a part; imports count for the first of a process."""
ON_A_GPU_ALONE = (
    *("contracts", "adapt_mlm_compiled", "trainer_mlm_compiled", "adapt_mlm_blocks_compiled"),
    *("trainer_mlm_blocks_compiled", "profile_blocks", "profile_blocks_compiled"),
)
"""Parts that the tests run on a processor, or that take minutes there."""
KERNELS = {
    "attention": ("flash", "fmha", "sdpa", "attention"),
    "compiled": ("triton",),
    "optimizer": ("multi_tensor", "adam"),
    "layer norm": ("layer_norm", "layernorm", "gammabeta"),
    "dropout": ("dropout",),
    "GELU": ("gelu",),
    "products": ("gemm", "nvjet", "cutlass", "splitk"),
    "copies and casts": ("copy", "memcpy", "memset", "fillfunctor"),
    "other elements": ("elementwise", "reduce"),
}
"""Kinds of kernels, by parts of their names in lower case; the first that fits, else `the rest`."""
PROFILED = 8
"""Steps that are profiled."""
Figures = dict[str, Any]


class Samples:
    """Samples in memory."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self.ids = [one.id for one in samples]
        rows = [one.text or one.clip for one in samples]
        self.lengths = np.array([len(row.input_ids) for row in rows if row is not None])
        self.images: list[tuple[str, ...]] = [()] * len(samples)

    def __len__(self) -> int:
        return len(self.samples)

    def get(self, indices: Sequence[int], rngs: Sequence[Any] = ()) -> list[Sample]:
        """The samples at these places."""
        return [self.samples[place] for place in indices]


def measure(
    model: nn.Module,
    parts: Sequence[Objective],
    data: Any,
    step: TrainingStep | None = None,
    **options: bool,
) -> Figures:
    """Tokens a second, padding, MFU, and samples a second of training, without the first lines."""
    settings = TrainingArguments(
        steps=STEPS, batch=BATCH, precision="bf16" if CUDA else "fp32", log_every=STEPS // LINES,
        save_every=10**6, measure_peak=not CUDA, cpu=not CUDA, **options,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        result = train(model, parts, [DataSource(data)], settings, folder, training_step=step)
        log = (Path(folder) / "log.jsonl").read_text().splitlines()
    first, last = (json.loads(line) for line in (log[0], log[-1]))
    seconds = last["seconds"] - first["seconds"]
    speed: Any = result["speed"]
    done = BATCH * (last["step"] - first["step"])
    return {
        **speed,
        "samples_per_second": round(done / max(seconds, 0.01), 1),
        "loss": last["loss"],
    }


def options_of(size: str) -> argparse.Namespace:
    layers, width = SIZES[size]
    return argparse.Namespace(layers=layers, width=width, batch=BATCH, steps=STEPS)


def bert_config(size: str) -> transformers.BertConfig:
    return transformers.BertConfig(**vision_step.sizes(options_of(size)))


def encoder(size: str) -> TextEncoder:
    torch.manual_seed(0)
    made = transformers.BertModel(bert_config(size), add_pooling_layer=False)
    return TextEncoder(made, vision_step.tokenizer())


def texts(form: str = "lines", number: int = BATCH * STEPS) -> list[Sample]:
    """Texts for a text encoder alone."""
    return [replace(one, clip=None) for one in adaptation_step.texts(number, form)]


def adapt_mlm(size: str, form: str = "lines", **options: bool) -> Figures:
    model = encoder(size)
    return measure(model, [MaskedLM(model.sizes, mask_id=4)], Samples(texts(form)), **options)


class Profiled(PlainTrainingStep):
    """Profiles the last steps of a run but one."""

    def __init__(self) -> None:
        super().__init__()
        self.profiler = profile(activities=[ProfilerActivity.CUDA])
        self.steps = 0

    def __call__(self, micro: Any) -> Any:
        """Train."""
        self.steps += 1
        if self.steps in (STEPS - PROFILED, STEPS):
            torch.cuda.synchronize()
            if self.steps < STEPS:
                self.profiler.start()
                self.began = time.perf_counter()
            else:
                self.seconds = time.perf_counter() - self.began
                self.profiler.stop()
        return super().__call__(micro)


def profile_blocks(size: str, **options: bool) -> Figures:
    """Milliseconds of a step of masked LM on blocks, and those in which the GPU computes, by kinds of kernels."""
    model, step = encoder(size), Profiled()
    objectives = [MaskedLM(model.sizes, mask_id=4)]
    measure(model, objectives, Samples(texts("blocks")), step, **options)
    spent: Counter[str] = Counter()
    found = [one for one in step.profiler.key_averages() if one.self_device_time_total > 0]
    for one in found:
        name = one.key.lower()
        kind = next(
            (kind for kind, parts in KERNELS.items() if any(map(name.count, parts))), "the rest"
        )
        spent[kind] += one.self_device_time_total / 1e3 / PROFILED
    return {
        "step_ms": round(1e3 * step.seconds / PROFILED, 2),
        "gpu_ms": round(spent.total(), 2),
        "kinds_ms": {kind: round(value, 2) for kind, value in spent.most_common()},
    }


def adapt_xdbert(size: str) -> Figures:
    """A CLIP text tower, and two cross-modal layers."""
    _, parts, objectives = adaptation_step.build_model("here", options_of(size))
    return measure(parts[0], objectives, Samples(adaptation_step.texts(BATCH * STEPS, "lines")))


def with_features(sample: Sample) -> Sample:
    """A sample with vectors of a teacher: of its image, its text and each of its words."""
    rng = generator("features", sample.id)
    assert sample.text is not None
    words = int(sample.text.word_ids.max()) + 1
    features = {
        "clip_image": rng.standard_normal(TEACHER, np.float32),
        "sentence": rng.standard_normal(TEACHER, np.float32),
        "words": rng.standard_normal((words, TEACHER), np.float32),
        "has": np.ones(words, bool),
    }
    types = sample.text.input_ids[sample.text.word_ids >= 0]
    return replace(sample, features=features, word_type_ids=types)


def adapt_contrastive(size: str) -> Figures:
    model = encoder(size)
    taught = Samples([with_features(one) for one in texts()])
    sizes = model.sizes._replace(teacher=TEACHER)
    return measure(model, [ContrastiveDistillation(sizes), MaskedLM(sizes, mask_id=4)], taught)


def adapt_caption_to_image(size: str) -> Figures:
    from groundling.objectives import built_in_objectives

    model = encoder(size)
    taught = Samples([with_features(one) for one in texts()])
    sizes = model.sizes._replace(teacher=TEACHER, teacher_image=TEACHER)
    return measure(model, [built_in_objectives()["caption_to_image"](sizes)], taught)


def pretrain(size: str, architecture: str) -> Figures:
    build: Any = {"visualbert": visualbert, "uniter": uniter, "vlbert": vlbert}[architecture]
    torch.manual_seed(0)
    bert = transformers.BertModel(bert_config(size))
    model = build(bert, vision_step.tokenizer(), vision_step.FEATURES)
    captions = CaptionSampleDataset(
        vision_step.captioned(BATCH * STEPS), model.inputs(vision_step.TEXT)[0]
    )
    data: Any = RegionDataset(captions, vision_step.StoreOfTens())
    parts: list[Objective] = [MaskedLM(model.sizes, mask_id=4)]
    if architecture == "vlbert":
        data = MappedDataset(data, whole_image)
    else:
        parts.append(ImageTextMatching(model.sizes, swap_images=False))
    return measure(model, parts, data)


def whole_image(sample: Sample) -> Sample:
    """The sample with its whole image as a region."""
    assert sample.regions is not None
    return replace(sample, regions=add_whole_image(sample.regions))


def finetune(size: str) -> Figures:
    model = encoder(size)
    form = Classification(("no", "yes"))
    labelled = [one.with_label("label", np.array(n % 2)) for n, one in enumerate(texts())]
    return measure(model, [SupervisedObjective(model.sizes, output_type=form)], Samples(labelled))


def clip_model(size: str) -> transformers.CLIPModel:
    """ViT-B/32 or ViT-L/14 with its text tower, or a toy."""
    layers, _ = SIZES[size]
    sides = {"toy": (32, 16, 64), "base": (224, 32, 512), "large": (224, 14, 768)}[size]
    image = {"image_size": sides[0], "patch_size": sides[1], **vision_step.sizes(options_of(size))}
    text = {"hidden_size": sides[2], "intermediate_size": 4 * sides[2], "eos_token_id": 49407}
    text |= {"num_hidden_layers": min(layers, 12), "num_attention_heads": sides[2] // 64}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(text_config=text, vision_config=image)
    return transformers.CLIPModel(config)


def train_clip(size: str) -> Figures:
    clip = clip_model(size)
    side = clip.config.vision_config.image_size
    model = ClipDualEncoder(clip, vision_step.tokenizer())
    samples = []
    for number in range(BATCH * STEPS):
        rng = generator("pairs", number)
        ids = np.array([49406, *rng.integers(300, 49000, rng.integers(8, 30)), 49407])
        special = np.isin(ids, (49406, 49407))
        none = np.zeros(len(ids), int)
        row = TextRow(ids, special, none - 1, none, 49407, none)
        pixels = rng.integers(0, 256, (3, side, side), np.uint8)
        image = {"image": np.array(number)}
        samples.append(Sample(str(number), clip=row, pixels=pixels, labels=image))
    return measure(model, [ClipContrastiveLoss(model.sizes)], Samples(samples))


def regions(size: str) -> Figures:
    """`regions --grid 4`: photographs of noise from files to a store, set-up included."""
    from PIL import Image

    import groundling

    number = 512 if CUDA else 4
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photos").mkdir()
        for n in range(number):
            pixels = generator("photos", n).integers(0, 256, (240, 320, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"photos/{n}.jpg")
        clip = clip_model(size)
        side = clip.config.vision_config.image_size
        clip.save_pretrained(folder / "clip")
        processor = transformers.CLIPImageProcessorPil(
            size={"shortest_edge": side}, crop_size={"height": side, "width": side}
        )
        processor.save_pretrained(folder / "clip")
        began = time.perf_counter()
        groundling.regions(
            images=str(folder / "photos"), grid=4, backbone=str(folder / "clip"), cpu=not CUDA,
            out=str(folder / "store"),
        )  # fmt: skip
        return {"images_per_second": round(number / (time.perf_counter() - began), 1)}


class Timed(transformers.TrainerCallback):
    """Seconds of a rival's steps after the first quarter, which is a warm-up as here."""

    began = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start after the warm-up, and stop at the end."""
        if state.global_step in (STEPS // LINES, STEPS):
            if CUDA:
                torch.cuda.synchronize()
            now = time.perf_counter()
            self.began, self.seconds = now, now - self.began


def best_settings(folder: str, compiled: bool) -> dict[str, Any]:
    """A rival's best settings."""
    return {
        "output_dir": folder, "max_steps": STEPS, "per_device_train_batch_size": BATCH, "bf16": CUDA,
        "optim": "adamw_torch_fused", "torch_compile": compiled, "use_cpu": not CUDA,
        "dataloader_num_workers": 4 if CUDA else 0, "logging_steps": STEPS // LINES,
        "save_strategy": "no", "report_to": [], "disable_tqdm": True,
    }  # fmt: skip


def trainer_mlm(size: str, form: str = "lines", compiled: bool = False) -> Figures:
    """`Trainer` on `BertForMaskedLM`, with the texts of `adapt_mlm`, grouped by length."""
    torch.manual_seed(0)
    rows = [{"input_ids": one.text.input_ids.tolist()} for one in texts(form) if one.text]
    tokens = sum(len(row["input_ids"]) for row in rows)
    timed, words = Timed(), vision_step.tokenizer()
    words.mask_token = "[MASK]"
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            **best_settings(folder, compiled), train_sampling_strategy="group_by_length"
        )
        transformers.Trainer(
            transformers.BertForMaskedLM(bert_config(size)),
            arguments,
            train_dataset=rows,  # type: ignore[arg-type]
            data_collator=transformers.DataCollatorForLanguageModeling(words),
            callbacks=[timed],
        ).train()
    # Every text is seen once; the warm-up's are left out as a share.
    share = 1 - STEPS // LINES / STEPS
    return {"tokens_per_second": round(share * tokens / timed.seconds, 1)}


def sentence_transformers_pairs(size: str) -> Figures:
    """sentence-transformers' trainer: in-batch negatives over pairs of texts, as users train it."""
    try:
        import sentence_transformers as st
        from datasets import Dataset
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    except ImportError as error:
        return {"skipped": f"{error.name} is not installed"}
    words = vision_step.tokenizer()
    rows = [" ".join(f"w{n}" for n in one.text.input_ids[1:-1]) for one in texts() if one.text]
    with tempfile.TemporaryDirectory() as folder:
        transformers.BertModel(bert_config(size)).save_pretrained(folder)
        words.save_pretrained(folder)
        transformer = Transformer(folder, max_seq_length=adaptation_step.LENGTH)
        pooling = Pooling(transformer.get_word_embedding_dimension())
        model = st.SentenceTransformer(modules=[transformer, pooling])
        timed = Timed()
        st.SentenceTransformerTrainer(
            model,
            st.SentenceTransformerTrainingArguments(**best_settings(folder, compiled=False)),
            train_dataset=Dataset.from_dict({"anchor": rows, "positive": rows[::-1]}),
            loss=MultipleNegativesRankingLoss(model),
            callbacks=[timed],
        ).train()
    tokens = 2 * sum(len(row.split()) + 2 for row in rows)
    share = 1 - STEPS // LINES / STEPS
    return {"tokens_per_second": round(share * tokens / timed.seconds, 1)}


class Killed(PlainTrainingStep):
    """Ends the run in its fourth step."""

    steps = 0

    def __call__(self, micro: Any) -> Any:
        """Train, or end."""
        self.steps += 1
        if self.steps == 4:
            raise KeyboardInterrupt
        return super().__call__(micro)


def resumes(size: str) -> Figures:
    """A run that is killed after its checkpoint and started again ends with the same bits."""
    settings = TrainingArguments(
        steps=6, batch=4, save_every=3, precision="bf16" if CUDA else "fp32", cpu=not CUDA
    )
    ends = []
    with tempfile.TemporaryDirectory() as folder:
        for name, step in (("whole", None), ("killed", Killed()), ("killed", None)):
            model = encoder(size)
            parts = [MaskedLM(model.sizes, mask_id=4)]
            data = [DataSource(Samples(texts()[:24]))]
            try:
                train(model, parts, data, settings, f"{folder}/{name}", training_step=step)
            except KeyboardInterrupt:
                continue
            ends.append(
                [value.cpu() for value in nn.ModuleList([model, *parts]).state_dict().values()]
            )
    whole, killed = ends
    equal = all(torch.equal(one, other) for one, other in zip(whole, killed, strict=True))
    return {"bit_equal": equal} if equal else {"error": "weights differ after resuming"}


def contracts(_: str) -> Figures:
    """The tests of every objective on the device, and of steps that wait for it."""
    tests = ["tests/contracts/test_objectives.py", "tests/training/test_waiting.py"]
    tests += ["tests/models/test_packing.py"]
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "-p", "no:cacheprovider"]
    command += [*tests, "-k", "device or for_no_gpu or flash"]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True)
    said = done.stdout.strip().splitlines()
    failed = [line for line in said if line.startswith(("FAILED", "ERROR", "E  "))]
    return {
        "tests": said[-1],
        **({"error": "; ".join(failed)[:2_000] or said[-1]} if done.returncode else {}),
    }


PARTS: dict[str, Callable[[str], Figures]] = {
    "resumes": resumes,
    "adapt_mlm": adapt_mlm,
    "adapt_mlm_compiled": partial(adapt_mlm, compile=True),
    "adapt_mlm_packed": partial(adapt_mlm, packing=True),
    "adapt_mlm_blocks": partial(adapt_mlm, form="blocks"),
    "trainer_mlm": trainer_mlm,
    "adapt_mlm_blocks_compiled": partial(adapt_mlm, form="blocks", compile=True),
    "trainer_mlm_blocks": partial(trainer_mlm, form="blocks"),
    "trainer_mlm_blocks_compiled": partial(trainer_mlm, form="blocks", compiled=True),
    "profile_blocks": profile_blocks,
    "profile_blocks_compiled": partial(profile_blocks, compile=True),
    "adapt_contrastive": adapt_contrastive,
    "adapt_caption_to_image": adapt_caption_to_image,
    "sentence_transformers": sentence_transformers_pairs,
    "adapt_xdbert": adapt_xdbert,
    "pretrain_visualbert": partial(pretrain, architecture="visualbert"),
    "pretrain_uniter": partial(pretrain, architecture="uniter"),
    "pretrain_vlbert": partial(pretrain, architecture="vlbert"),
    "finetune": finetune,
    "train_clip": train_clip,
    "regions": regions,
    "trainer_mlm_compiled": partial(trainer_mlm, compiled=True),
}
"""By name, the most important first: the time may run out."""
COMPARED = (
    ("adapt_mlm", "trainer_mlm"),
    ("adapt_mlm_compiled", "trainer_mlm_compiled"),
    ("adapt_mlm_packed", "adapt_mlm"),
    ("adapt_mlm_blocks", "trainer_mlm_blocks"),
    ("adapt_mlm_blocks_compiled", "trainer_mlm_blocks_compiled"),
)


def run_part(size: str, part: str) -> Figures:
    """A part's figures with its seconds and peak memory, or the error's one line."""
    began = time.perf_counter()
    if CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        figures = (contracts if part == "contracts" else PARTS[part])(size)
    except Exception as error:  # of any kind: the other parts go on
        figures = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    if CUDA:
        figures["peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
    return {"size": size, "part": part, **figures, "seconds": round(time.perf_counter() - began, 1)}


def run_all(wanted: Sequence[tuple[str, str]], minutes: float) -> list[Figures]:
    """Run parts in a process of their own, which is started again behind one that crashes or takes too long."""
    end = time.monotonic() + 60 * minutes
    lines: list[Figures] = []
    while len(lines) < len(wanted):
        left = wanted[len(lines) :]
        words = [sys.executable, __file__, "--only", json.dumps(left)]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ)
        said: Queue[str] = Queue()
        assert child.stdout is not None
        Thread(target=listen, args=(child.stdout, said), daemon=True).start()
        for size, part in left:
            limit = 2 * PART_SECONDS if part == "contracts" else PART_SECONDS
            most = min(limit, end - time.monotonic())
            try:
                line = json.loads(said.get(timeout=most)) if most > 0 else {"error": "no time left"}
            except (Empty, ValueError) as error:
                why = f"more than {most:.0f} s" if isinstance(error, Empty) else "the process ended"
                line = {"error": why}
            lines.append({"size": size, "part": part, **line})
            print(json.dumps(lines[-1]), flush=True)
            if "seconds" not in line and most > 0:
                break
        child.kill()
        child.wait()
    return lines


def listen(stream: Any, said: Queue[str]) -> None:
    """Pass on a child's lines of JSON; an empty one at its end."""
    for line in stream:
        if line.startswith('{"size"'):  # Trainer prints its log, too
            said.put(line)
    said.put("")


def about() -> Figures:
    """Device, date and versions."""
    installed = {"torch": torch.__version__, "transformers": transformers.__version__}
    device = (
        torch.cuda.get_device_name() if CUDA else f"processor, {torch.get_num_threads()} threads"
    )
    return {
        "device": device,
        "date": str(date.today()),
        **installed,
        "steps": STEPS,
        "batch": BATCH,
    }


def page(found: Figures) -> str:
    """The figures as tables."""
    head = ", ".join(f"{name} {value}" for name, value in found["about"].items())
    out = [
        f"{head}:",
        "",
        "| size | part | tokens/s | padding | MFU | samples/s | peak memory, MiB |",
    ]
    out.append("|---|---|---:|---:|---:|---:|---:|")
    rates = {}
    for line in found["lines"]:
        rates[line["size"], line["part"]] = line.get("tokens_per_second")
        said = line.get("error") or line.get("skipped") or line.get("tests")
        if "kinds_ms" in line:
            kinds = ", ".join(f"{kind} {value}" for kind, value in line["kinds_ms"].items())
            said = f"{line['gpu_ms']} ms of a step on the GPU: {kinds}"
        cells = [f"{line['tokens_per_second']:,.0f}" if "tokens_per_second" in line else said or ""]
        cells += [f"{line[key]:.1%}" if key in line else "" for key in ("padding", "mfu")]
        samples = line.get("samples_per_second", line.get("images_per_second"))
        cells += [f"{samples:,.1f}" if samples else "", f"{line.get('peak_mib', '')}"]
        out.append(f"| {line['size']} | {line['part']} | {' | '.join(cells)} |")
    for size in dict.fromkeys(line["size"] for line in found["lines"]):
        for ours, theirs in COMPARED:
            mine, other = rates.get((size, ours)), rates.get((size, theirs))
            if mine and other:
                out += ["", f"{size}: {ours} is {mine / other:.2f} times as fast as {theirs}."]
    return "\n".join(out)


def main() -> None:
    """Run every part, write the JSON, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["base", "large"])
    parser.add_argument("--minutes", type=float, default=7.5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--page", type=Path, help="print the tables of such a JSON")
    parser.add_argument("--only", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    if options.page:
        print(page(json.loads(options.page.read_text())))
        return
    if options.only:
        for size, part in options.only:
            print(json.dumps(run_part(size, part)), flush=True)
        return
    wanted = [("toy", "contracts")]
    wanted += [(size, part) for size in options.sizes for part in options.parts]
    if not CUDA:
        wanted = [(size, part) for size, part in wanted if part not in ON_A_GPU_ALONE]
    found = {"about": about(), "lines": run_all(wanted, options.minutes)}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(page(found))


if __name__ == "__main__":
    main()

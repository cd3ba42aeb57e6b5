"""The loop does not wait for the device: between two lines of the log nothing is read from it."""

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from tiny import toys
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import ConvNextImageProcessorPil, ResNetConfig, ResNetModel

import groundling.training.loop
from groundling.core.batch import Batch, EncoderOutput, Sample, require
from groundling.core.output_types import Classification
from groundling.data.regions.samples import add_whole_image
from groundling.data.samples import MappedDataset, TextDataset, TextRowEncoder
from groundling.models.clip import make_clip_text_tower
from groundling.models.text_encoder import TextEncoder
from groundling.objectives import Objective
from groundling.objectives.feature_distillation import ContrastiveDistillation
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.masked_regions import MaskedRegionModeling
from groundling.objectives.supervised import SupervisedObjective
from groundling.objectives.xdbert import ClipTokenClassification, SameSentencePrediction
from groundling.settings.objectives import TrainingStepSettings
from groundling.settings.training import TrainingArguments
from groundling.teachers.feature_cache import TeacherDataset
from groundling.teachers.text import ClipTextTeacher
from groundling.training.training_steps import VillaStep
from groundling.vision_language.end_to_end import EndToEndModel
from groundling.vision_language.vlbert import vlbert

PACKAGE = Path(groundling.training.loop.__file__).parent
META = torch.device("meta")
ON_META = TrainingArguments(batch=4, optimizer="sgd", momentum=0.0, log_every=100, save_every=100)
"""Fused Adam knows no such device."""


class Watch(TorchDispatchMode):
    """Plays an accelerator on the device `meta`, whose tensors hold nothing: notes what would wait for one.

    A number that is read is 1; a mask that picks rows cannot be answered, and ends the run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        options = options or {}
        name = function.overloadpacket.__name__
        first = arguments[0] if arguments else None
        is_there = isinstance(first, Tensor) and first.device == META
        if name == "_local_scalar_dense" and is_there:
            self.note("a number is read")
            return torch.ones((), dtype=first.dtype).item()
        if name == "_to_copy" and "device" in options:
            goes = torch.device(options["device"]) == META
            if goes != is_there and not options.get("non_blocking"):
                self.note("a copy is waited for")
            if is_there and not goes:
                return torch.ones(first.shape, dtype=options.get("dtype") or first.dtype)
        if name == "copy_" and (arguments[1].device == META) != is_there:
            self.note("a copy is waited for")
        if name in ("index", "index_put", "index_put_") and any(
            i is not None and i.dtype == torch.bool and i.device == META for i in arguments[1]
        ):
            self.note("a mask picks rows")
        if name in ("index_put", "index_put_") and is_there and not arguments[2].ndim:
            self.note("a number is assigned to elements")
        return function(*arguments, **options)

    def __enter__(self) -> "Watch":
        self.made = Made(self)
        self.made.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.made.__exit__(*error)

    def note(self, what: str) -> None:
        frame = sys._getframe()
        while not frame.f_code.co_filename.startswith(str(PACKAGE)):
            frame = frame.f_back
        self.waits.append(f"{what}: {frame.f_code.co_name}, line {frame.f_lineno}")


class Made(TorchFunctionMode):
    """Notes tensors that are made on the device of numbers that the computer has, which it waits for, too."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        made = function(*arguments, **(options or {}))
        if function in (torch.tensor, torch.as_tensor, Tensor.new_tensor) and made.device == META:
            self.watch.note("numbers are copied")
        return made


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """What a run on the played accelerator waited for."""
    usual = groundling.training.loop._accelerator

    def on_meta(config: TrainingArguments, out: Path) -> Any:
        accelerator = usual(config, out)
        for state in (PartialState, AcceleratorState):
            monkeypatch.setitem(state._shared_state, "device", META)
        return accelerator

    monkeypatch.setattr(groundling.training.loop, "_accelerator", on_meta)
    # What is saved is read, of course.
    monkeypatch.setattr(groundling.training.loop._TrainingLoop, "_check_weights", lambda _: None)
    monkeypatch.setattr(groundling.training.loop.Checkpoints, "save", lambda *_: None)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # knows no such device

    def run(steps: int, make: Callable[[], dict[str, Any]]) -> list[str]:
        parts, given = make(), replace(ON_META, steps=steps)
        with Watch() as watch:
            groundling.training.loop.train(config=given, out=tmp_path / str(steps), **parts)
        return watch.waits

    return run


def student() -> TextEncoder:
    words = toys.bert_words()
    return TextEncoder(toys.bert(len(words)), words)


def xdbert() -> dict[str, Any]:
    model = toys.cross_modal()
    sizes = model.sizes
    parts = [MaskedLM(sizes, mask_id=4, joint=True), SameSentencePrediction(sizes)]
    parts.append(ClipTokenClassification(sizes, clip_targets="released"))
    return {"model": model, "objectives": parts, "data": toys.both_sides()}


def contrastive() -> dict[str, Any]:
    model = student()
    words = toys.clip_words()
    teacher = ClipTextTeacher(make_clip_text_tower(toys.clip(words)), words)
    texts = TextDataset(toys.examples(64), TextRowEncoder(toys.bert_words(), 40))
    data = TeacherDataset(texts, teacher)
    sizes = model.sizes._replace(teacher=teacher.width)
    parts = [ContrastiveDistillation(sizes), MaskedLM(sizes, mask_id=4)]
    return {"model": model, "objectives": parts, "data": data, "teachers": [teacher]}


def adversarial() -> dict[str, Any]:
    """Pre-training on regions, with VILLA's passes."""
    model = toys.seer()
    sizes = model.sizes._replace(classes=5)
    parts = [MaskedLM(sizes, mask_id=4), MaskedRegionModeling(sizes), ImageTextMatching(sizes)]
    step = VillaStep(TrainingStepSettings(adversarial_steps=2))
    return {"model": model, "objectives": parts, "data": toys.seen(), "training_step": step}


def looking() -> dict[str, Any]:
    """VL-BERT end to end, on pictures of two sizes."""
    words = toys.bert_words()
    sizes = {"embedding_size": 4, "hidden_sizes": [4, 8, 8, 12], "depths": [1, 1, 1, 1]}
    cnn = ResNetModel(ResNetConfig(layer_type="basic", **sizes))
    stream = vlbert(toys.bert(len(words)), words, 12, pixels=True)
    model = EndToEndModel(stream, cnn, ConvNextImageProcessorPil(size={"shortest_edge": 32}))

    def seen(sample: Sample) -> Sample:
        row = add_whole_image(require(sample.regions, "regions", "a test"))
        high = 32 + 8 * (len(row.boxes) % 2)
        return replace(sample, regions=row, pixels=np.zeros((3, high, 40), np.uint8))

    parts = [MaskedLM(model.sizes, mask_id=4)]
    return {"model": model, "objectives": parts, "data": MappedDataset(toys.seen(), seen)}


def finetuning() -> dict[str, Any]:
    model = student()
    examples = [replace(one, label=n % 2) for n, one in enumerate(toys.examples(64))]
    data = TextDataset(examples, TextRowEncoder(toys.bert_words(), 40))
    parts = [SupervisedObjective(model.sizes, output_type=Classification(("no", "yes")))]
    return {"model": model, "objectives": parts, "data": data}


@pytest.mark.parametrize("make", [xdbert, contrastive, adversarial, looking])
def test_a_step_waits_for_nothing(make, waits):
    few = waits(1, make)
    assert few, "the line that is written at the end is read from the device"
    many = waits(2, make)
    assert many == few


class Curious(Objective):
    """Reads a number in every step."""

    name = "curious"
    required_fields = ("text",)

    def __init__(self, sizes: Any, looks: Sequence[Callable[[Tensor], object]]) -> None:
        super().__init__(sizes)
        self.looks = looks
        self.scale = nn.Parameter(torch.ones(()))

    def count(self, batch: Batch) -> dict[str, int]:
        return {"curious": len(batch)}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        for look in self.looks:
            look(encoded.text.detach())
        return {"curious": encoded.text.mean() * self.scale}


def test_a_step_that_waits_is_found(waits):
    looks = [
        lambda states: float(states.mean()),
        lambda states: states.mean().item(),
        lambda states: states.mean(-1).tolist(),
        lambda states: bool((states > 0).all()),
        lambda states: states.to("cpu"),
        lambda states: torch.tensor([1.0], device=states.device),
    ]

    def make() -> dict[str, Any]:
        parts = finetuning()
        return {**parts, "objectives": [Curious(parts["model"].sizes, looks)]}

    assert len(waits(2, make)) == len(waits(1, make)) + len(looks)


class CountsTaught(Curious):
    """Counts by a feature that its teacher computes in every step, and whose inputs do not carry it."""

    required_fields = ("text", "features.sentence")

    def count(self, batch: Batch) -> dict[str, int]:
        return {"curious": int((batch.features["sentence"].norm(dim=-1) > 0).sum())}


def test_a_count_of_a_live_feature_waits(waits):
    def make() -> dict[str, Any]:
        parts = contrastive()
        return {**parts, "objectives": [CountsTaught(parts["model"].sizes, [])]}

    assert len(waits(2, make)) > len(waits(1, make))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("make", [xdbert, contrastive, adversarial, looking])
def test_a_step_waits_for_no_gpu(make, tmp_path, monkeypatch):
    learn = groundling.training.loop._TrainingLoop._optimizer_step

    def guarded(training: Any, step: int, batches: Any) -> Tensor:
        # The first step of a kind loads kernels, and the first backward pass makes its streams.
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        try:
            return learn(training, step, batches)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(groundling.training.loop._TrainingLoop, "_optimizer_step", guarded)
    config = TrainingArguments(steps=3, batch=8, log_every=100, save_every=100)
    groundling.training.loop.train(config=config, out=tmp_path, **make())

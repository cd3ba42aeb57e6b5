"""Pre-train VisualBERT, VL-BERT or UNITER on captioned images, or on the texts and images of a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from groundling.batch import Example, Sizes
from groundling.checkpoint import Checkpoints, save_heads, start_lm_head
from groundling.config import PretrainConfig, TrainConfig
from groundling.data.captions import keep_listed, read_captions, with_store_ids
from groundling.data.corpora import corpus
from groundling.data.paired import CaptionPairs, RegionSamples
from groundling.data.pictures import Pictured
from groundling.data.regions import RegionStore, stem
from groundling.data.samples import TextInput, TextSamples
from groundling.errors import InputError
from groundling.feed import Source
from groundling.find import named
from groundling.forms import Answer
from groundling.joins.end_to_end import EndToEnd, end_to_end
from groundling.keyed import seed_of
from groundling.load import load_student
from groundling.models.single_stream import SingleStream, bert_of, join_to
from groundling.models.text import TextEncoder
from groundling.objectives import Objective
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.masked_regions import MaskedRegions
from groundling.objectives.sentence_image import SentenceImage
from groundling.recipes.adapt import vocabulary
from groundling.runs import disk_errors, finished, open_run, write_json
from groundling.tasks import Task
from groundling.train import train


@dataclass(frozen=True)
class Phase:
    """What a model is pre-trained with: objectives, and how often a step scores which of them."""

    objectives: Callable[[Sizes, PretrainConfig, Any], list[Objective]]
    mix: Sequence[tuple[float, tuple[str, ...]]] = ()
    """(ratio, objectives) of each kind of step; empty: every step scores all of them."""
    pairs: bool = False
    """Two captions a text, as VisualBERT's."""


def _masked_lm(
    sizes: Sizes, config: PretrainConfig, words: Any, whole_word: bool = False
) -> Objective:
    return MaskedLM(
        sizes,
        mask_id=words.mask_id,
        replacements=words.ordinary,
        rate=config.mask_rate,
        whole_word=whole_word,
    )


def _visualbert(sizes: Sizes, config: PretrainConfig, words: Any) -> list[Objective]:
    match = [SentenceImage(sizes, swap=False)] if config.sentence_image and not config.task else []
    return [_masked_lm(sizes, config, words), *match]


def _vlbert(sizes: Sizes, config: PretrainConfig, words: Any) -> list[Objective]:
    regions = [MaskedRegions(sizes)] if sizes.classes else []
    related = [SentenceImage(sizes)] if config.related else []
    return [_masked_lm(sizes, config, words, whole_word=True), *related, *regions]


def _uniter(sizes: Sizes, config: PretrainConfig, words: Any) -> list[Objective]:
    classes = [MaskedRegions(sizes, keep=0.0, least=1, norm=True)] if sizes.classes else []
    return [
        _masked_lm(sizes, config, words),
        SentenceImage(sizes, alignment=0.1),
        # The code takes the mean over the features' numbers. Over classes too, which would leave 1/1601 of that term.
        MaskedRegions(
            sizes, kind="regress", keep=0.0, least=1, norm=True, tied=True, weight=1 / sizes.regions
        ),
        *classes,
    ]


PHASES = {
    "visualbert": Phase(_visualbert, pairs=True),
    "vlbert": Phase(_vlbert),
    # In-domain ratios of the released code: itm 2, mlm 2, mrfr 1, mrc-kl 1; one of them per optimizer step.
    "uniter": Phase(
        _uniter,
        (
            (2, ("sentence_image",)),
            (2, ("masked_lm",)),
            (1, ("regress_regions",)),
            (1, ("masked_regions",)),
        ),
    ),
}
"""How each model is pre-trained (VisualBERT Section 3.3; VL-BERT Section 3.3 and its code; UNITER's code)."""


def pretrain(config: PretrainConfig, training: TrainConfig, out: str | Path) -> dict[str, Any]:
    """Pre-train and write `out/model`, from which `finetune` and a next phase start, and `out/result.json`."""
    for field, value in (("student", config.student), ("regions", config.regions)):
        if not value:
            raise InputError(f"pretrain needs --{field}")
    if bool(config.captions) == bool(config.task):
        raise InputError(
            "pretrain needs --captions FILE, or --task and --data for a task's own texts"
        )
    state = PartialState(cpu=training.cpu)
    inputs: dict[str, str | Path] = {
        "student": config.student,
        "regions": Path(config.regions) / "manifest.json",
    }
    inputs |= {"captions": config.captions} if config.captions else {"data": config.data}
    inputs |= {f"text:{number}": path for number, path in enumerate(config.text)}
    inputs |= {"images": config.images, "backbone": config.backbone} if config.images else {}
    with state.main_process_first():
        folder = open_run(out, "pretrain", {**asdict(config), "train": asdict(training)}, inputs)
    if (done := finished(folder)) is not None:
        return done

    store = RegionStore(config.regions, features=not config.images)
    torch.manual_seed(seed_of(training.seed, "init", "join"))
    model = _model(config, store)
    phase = PHASES[model.join.kind]
    text = model.inputs(config.max_length)[0]
    data, left_out = _data(config, phase, model, store, text)
    sizes = model.sizes._replace(classes=store.classes, background=store.background)
    torch.manual_seed(seed_of(training.seed, "init", "heads"))
    objectives = phase.objectives(sizes, config, vocabulary(model.text))
    if not config.random_start:
        for objective in objectives:
            if isinstance(objective, MaskedLM):
                start_lm_head(objective.head, config.student, "bert")
    names = {objective.name for objective in objectives}
    sources = [Source(data, 1.0, tuple(sorted(names)), "image and text")]
    if phase.mix:
        mix = [(ratio, tuple(n for n in some if n in names)) for ratio, some in phase.mix]
        sources = [Source(data, ratio, some, "+".join(some)) for ratio, some in mix if some]
    if config.text:
        plain = corpus(config.text, "blocks", model.text.tokenizer, text.max_length)
        share = sum(source.ratio for source in sources)
        sources.append(Source(TextSamples(plain, text), share, ("masked_lm",), "text alone"))
    result = train(model, objectives, sources, training, folder)
    result |= {"model": model.join.kind, "objectives": sorted(names), "left_out": left_out}
    result["parameters"] = sum(p.numel() for p in model.parameters())
    if state.is_main_process:
        with disk_errors(folder / "model"):
            model.export(folder / "model")
            save_heads(folder / "model", objectives)
        write_json(folder / "result.json", result)
        Checkpoints(folder / "checkpoints").clear()
    state.wait_for_everyone()
    return result


def _model(config: PretrainConfig, store: RegionStore) -> SingleStream:
    start = load_student(config.student)
    if config.random_start and isinstance(start, TextEncoder):
        start = TextEncoder(type(start.encoder)(start.encoder.config), start.tokenizer)
    if config.images and config.model == "vlbert" and isinstance(start, TextEncoder):
        start = end_to_end(bert_of(start), start.tokenizer, config.backbone, config.side)
    if isinstance(start, EndToEnd):
        if not config.images:
            raise InputError(f"{config.student}: this model reads pixels; pass --images FOLDER")
        return start
    if config.images:
        raise InputError(
            f"--images {config.images}: only VL-BERT learns from pixels; pass --model vlbert with a BERT "
            "or an end-to-end model as --student, or leave --images out"
        )
    options = {"early": config.early_fusion} if config.model == "visualbert" else {}
    model = join_to(start, config.model, store.width, **options)
    store.require(model.sizes.regions)
    return model


def _data(
    config: PretrainConfig, phase: Phase, model: SingleStream, store: RegionStore, text: TextInput
) -> tuple[Any, int]:
    """Samples with regions, and how many captioned images the store lacks."""
    if config.task:
        examples = task_texts(
            named("tasks", Task, config.task).at(Path(config.data)), Path(config.data)
        )
        seen = RegionSamples(
            TextSamples(examples, text), store, whole=model.whole, most=config.most_regions
        )
        return _pictured(seen, [example.images for example in examples], config, model), 0
    images = read_captions(config.captions)
    images = keep_listed(images, config.listing) if config.listing else images
    there = [image for image in images if stem(image.file) in store]
    if len(there) < len(images) and not (config.skip_missing and there):
        first = next(image for image in images if stem(image.file) not in store)
        raise InputError(
            f"{config.regions}: {len(images) - len(there)} of {len(images)} captioned images are not in the store, "
            f"the first is {stem(first.file)!r}; add them or pass --skip-missing"
        )
    keyed = with_store_ids(there)
    pairs = CaptionPairs(
        keyed, text, store, pairs=phase.pairs, whole=model.whole, most=config.most_regions
    )
    return _pictured(pairs, [(image.id,) for image in keyed], config, model), len(images) - len(
        there
    )


def _pictured(
    samples: Any, images: Sequence[Sequence[str]], config: PretrainConfig, model: SingleStream
) -> Any:
    """The samples, with pixels for a model that reads them."""
    return (
        Pictured(samples, images, config.images, model.side)
        if isinstance(model, EndToEnd)
        else samples
    )


def task_texts(task: Task, folder: Path) -> list[Example]:
    """A task's training texts with what is right, for masked LM on its own images (VisualBERT Section 3.3).

    A question is followed by its best answer (the released code takes the answer apart into letters), a choice by the
    right one, a statement stands alone.
    """
    out = []
    for example in task.read(folder, task.train):
        pair = example.pair
        if example.choices:
            assert example.label is not None
            pair = example.choices[int(example.label)]
        elif isinstance(task.form, Answer):
            pair = task.form.best(example.label)
        out.append(Example(example.id, example.text, pair, images=example.images))
    return out

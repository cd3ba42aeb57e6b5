"""Adapt a text encoder: XDBERT's objectives, distillation, or the text-only control without a teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig

from groundling.command_line.names import check_causal, parse_arm
from groundling.commands.adapt import AdaptConfig
from groundling.commands.adapt.data import (
    Layout,
    clip_windows,
    read_texts,
    text_layout_of,
    training_data,
)
from groundling.commands.adapt.evaluation import (
    evaluate_objectives,
    length_note,
    match_by_length,
    read_pairs,
    retention_report,
    similarity_agreement,
)
from groundling.commands.adapt.word_budget import Ledger, describe, open_ledger, plan_saves
from groundling.core.batch import OutputSizes, require
from groundling.core.errors import InputError
from groundling.core.rng import derive_seed
from groundling.data.captions import CaptionPairs
from groundling.data.corpora import CorpusDataset
from groundling.data.samples import ClipRowEncoder
from groundling.models.clip import load_clip_text_tower
from groundling.models.cross_modal import CrossModalEncoder
from groundling.models.heads import LMHead, init_lm_head, save_with_lm_head
from groundling.models.loading import Encoder
from groundling.models.lora import LoraAdapters, add_lora
from groundling.models.sentence_modules import SentenceModules, make_sentence_modules
from groundling.models.text_encoder import TextEncoder, load_text_encoder, new_text_encoder
from groundling.objectives import Objective, ObjectiveContext, find_objective, unused_settings_note
from groundling.objectives.feature_distillation import EmbeddingRetention, FeatureDistillation
from groundling.objectives.masked_lm import LanguageModelling
from groundling.prediction.similarity import text_length_limit
from groundling.runs.run import Run
from groundling.settings.fields import replace_settings
from groundling.settings.input_settings import parse_weighted_files
from groundling.settings.objectives import ObjectiveSettings
from groundling.settings.training import TrainingArguments
from groundling.teachers.feature_cache import TeacherSet
from groundling.teachers.loading import load_teacher_set
from groundling.teachers.text import FrozenCopy
from groundling.training.batch_sampler import DataSource
from groundling.training.fit import BASELINE_SHARE, fit, save_trained, taught_objectives


def adapt(config: AdaptConfig, training: TrainingArguments, run: Run) -> dict[str, Any]:
    """Adapt the student and write `model`, a stock HF folder; with `save_joint` also the whole model, as `joint`."""
    pairs = read_pairs(config.retention_pairs) if config.retention_pairs else None
    seed = training.seed
    text = _student(config, seed)
    arm = _arm_of(config, text)
    names = list(arm)
    is_cross_modal = any(one.needs_cross_modal for one in arm.values())
    pooling = config.objective_settings.distillation.pooling
    sentence = text.sentence or (_pooled(text, pooling) if pairs else None)
    before = similarity_agreement(text, sentence, pairs) if pairs and sentence else {}
    run.note(*_unused_note(config, names))
    # Of a plain encoder, `keep_projection` makes a sentence encoder, which has no vectors to stay close to.
    retains = bool(config.retain_weight) and text.sentence is not None and not is_cross_modal
    settings = _objective_settings(config, text)
    layout, max_length = text_layout_of(config, is_cross_modal, text_length_limit(text, sentence))
    model, windows = _model(config, is_cross_modal, text, layout, seed)
    texts, eval_texts = read_texts(config, layout, max_length, text, windows, run, seed)
    ledger = open_ledger(config, texts) if config.word_budget else None
    teacher_set, model, objectives, heads = _taught_model(
        config, arm, model, text, settings, retains, run, seed
    )
    projection = _projection(objectives) if config.keep_projection else None
    by_length = match_by_length(objectives, texts, seed)
    run.note(*_student_notes(config, heads, text), *length_note(by_length, layout))
    run.note(*_new_layers_note(model, text, training))
    run.note(*_cache_note(teacher_set, len(texts), settings, training))
    data, held_out = training_data(config, texts, eval_texts, teacher_set, objectives)
    saves = _saves(ledger, data[0], objectives, text, config, training, run) if ledger else {}
    adapters = add_lora(text, config.lora, seed, config.student)
    result = fit(
        model,
        objectives,
        data,
        training,
        run,
        training_step=config.training_step,
        evaluation=config.evaluation,
        held_out=held_out,
        saves=saves,
    )
    run.note(*guessing_notes(objectives, data[0], training, result))
    if adapters is not None:
        result["lora_parameters"] = adapters.merge()
    result |= {"arm": config.arm, "objectives": names, "heads_from": heads}
    result |= {"texts": len(texts), "parameters": _count(text.encoder)}
    result["training_parameters"] = _count(nn.ModuleList([model, *objectives]))
    if ledger is not None:
        result["words"] = ledger
    result |= {"text_layout": layout, "max_length": max_length}
    if windows is not None:
        result |= {"max_windows": windows.max_windows, "match_by_length": by_length}
        result["learned"] = _learned(model, objectives, texts, eval_texts, seed)
    if projection is not None and text.sentence is not None:
        text.set_sentence_modules(text.sentence.with_projection(projection))
    if pairs and sentence is not None:
        result["retention"] = retention_report(text, sentence, pairs, before)
    run.save(partial(_save, text, model, objectives, config, training, result, adapters))
    return result


def _taught_model(
    config: AdaptConfig,
    arm: Mapping[str, type[Objective]],
    model: Encoder,
    text: TextEncoder,
    settings: ObjectiveSettings,
    retains: bool,
    run: Run,
    seed: int,
) -> tuple[TeacherSet, Encoder, list[Objective], dict[str, str]]:
    """The teachers, the model that is trained, its objectives, and where their heads come from.

    `retains`: the last objective keeps a sentence encoder close to what it was.
    """
    names = list(arm)
    context = ObjectiveContext(model.sizes, text.tokenizer, settings, config.cross_modal)
    teacher = config.teacher if "teacher" in {one.needed_teacher() for one in arm.values()} else ""
    extra = [FrozenCopy(text)] if retains else []
    teacher_set = load_teacher_set(
        teacher, names, context, run.state.device, run.folder, seed, extra
    )
    sizes = teacher_set.sizes(context.sizes)
    model = _wrapped(model, names, sizes, seed)
    objectives = taught_objectives(names, context, teacher_set, seed)
    heads = _start_heads(names, objectives, config, text)
    if retains:
        objectives.append(EmbeddingRetention(sizes, weight=config.retain_weight))
    return teacher_set, model, objectives, heads


def _student(config: AdaptConfig, seed: int) -> TextEncoder:
    if config.from_scratch:
        layers, width = config.student_layers, config.student_width
        text = new_text_encoder(config.student, seed, layers, width)
    else:
        text = load_text_encoder(config.student)
    if config.dropout:
        text.set_dropout(config.dropout)
    return text


def _unused_note(config: AdaptConfig, names: Sequence[str]) -> list[str]:
    used = replace_settings(config.objective_settings, pooling="own")  # retention uses it too
    step = config.training_step.training_step
    return unused_settings_note(names, used, step, config.cross_modal, config.teacher)


def _learned(
    model: Encoder,
    objectives: Sequence[Objective],
    texts: CorpusDataset,
    eval_texts: CorpusDataset | None,
    seed: int,
) -> dict[str, Any]:
    scores = evaluate_objectives(model, objectives, eval_texts or texts, seed)
    return {**scores, "held_out": eval_texts is not None}


def _arm_of(config: AdaptConfig, text: TextEncoder) -> dict[str, type[Objective]]:
    """The arm's objectives by name; raises InputError if the student's direction of reading rules one out."""
    arm = parse_arm(config.arm, config.masked_lm, text.sizes.causal)
    family = text.encoder.config.model_type
    if not text.sizes.causal:
        if "clm" in arm:
            raise InputError(
                f"arm={config.arm}: a {family} model reads both sides, so the next token is no task; train mlm"
            )
        return arm
    check_causal(arm, config.arm, family)
    if config.objective_settings.distillation.pooling == "cls":
        raise InputError(
            f"pooling=cls: the first position of a {family} model has read nothing; expected last or mean"
        )
    if config.objective_settings.lexi_contrastive.lcg_attention == "bidirectional":
        raise InputError(
            f"lcg_attention=bidirectional: a token of a {family} model never reads the next; expected causal or full"
        )
    return arm


def guessing_notes(
    objectives: Sequence[Objective],
    sources: Sequence[DataSource],
    training: TrainingArguments,
    result: Mapping[str, Any],
) -> list[str]:
    """A note for each term whose last losses are no better than guessing among the rows that it is contrasted with."""
    if training.batch_tokens:  # the number of rows differs from batch to batch
        return []
    parts = 1 if training.cached_negatives else training.gradient_accumulation_steps
    samples = training.batch // parts
    losses = result["train_metrics"]
    notes = []
    for objective in objectives:
        read = [
            one for one in sources if one.objectives is None or objective.name in one.objectives
        ]
        is_paired = any(isinstance(one.samples, CaptionPairs) for one in read)
        rows = 2 * samples if is_paired else samples
        notes += [
            f"{term} is no better than guessing among {rows} rows: its last loss is {losses[term]:.4g}, that of "
            f"guessing {level:.4g}; train longer, or raise lr: the encoder has learned little from this term so far"
            for term, level in objective.guessing_losses(rows).items()
            if term in losses and not losses[term] < BASELINE_SHARE * level
        ]
    return notes


def _save(
    text: TextEncoder,
    model: Encoder,
    objectives: Sequence[Objective],
    config: AdaptConfig,
    training: TrainingArguments,
    result: dict[str, Any],
    adapters: LoraAdapters | None,
    folder: Path,
) -> None:
    result["fills_masks"] = _save_student(folder / "model", text, objectives, config)
    if adapters is not None:
        adapters.write(folder / "adapter", config.student)
    if config.cross_modal.save_joint and model is not text:
        save_trained(folder / "joint", model, objectives)
    library = "sentence-transformers" if text.sentence else "transformers"
    card = _card(config, training, result, library, text.sizes.causal)
    (folder / "model" / "README.md").write_text(card, encoding="utf-8")


def _save_student(
    folder: Path, text: TextEncoder, objectives: Sequence[Objective], config: AdaptConfig
) -> str:
    save_trained(folder, text, objectives)
    return _save_lm_head(folder, objectives, config, text)


def _saves(
    ledger: Ledger,
    sources: Sequence[DataSource],
    objectives: Sequence[Objective],
    text: TextEncoder,
    config: AdaptConfig,
    training: TrainingArguments,
    run: Run,
) -> dict[int, Callable[[], None]]:
    """What saves the students of a word budget, by step; notes the ledger, which is whole then."""
    due = plan_saves(ledger, sources, objectives, training, run.state.num_processes)
    run.note(describe(ledger, config.student))
    return {
        step: partial(_save_students, names, run, text, objectives, config)
        for step, names in due.items()
    }


def _save_students(
    names: Sequence[str],
    run: Run,
    text: TextEncoder,
    objectives: Sequence[Objective],
    config: AdaptConfig,
) -> None:
    """Save the student as it is now under each of several names, beside the run's `model`."""

    def write(folder: Path) -> None:
        for name in names:
            _save_student(folder / name, text, objectives, config)

    run.save(write)


# -- sentences ---------------------------------------------------------------------------------------------------------
def _pooled(text: TextEncoder, pool: str) -> SentenceModules:
    """Sentence pooling of a plain encoder by the setting `pooling`; `own`: the first position, or a decoder's last."""
    first = "lasttoken" if text.sizes.causal else "cls"
    mode = {"mean": "mean", "last": "lasttoken"}.get(pool, first)
    return make_sentence_modules(mode, text.sizes.text, text.max_length)


def _objective_settings(config: AdaptConfig, text: TextEncoder) -> ObjectiveSettings:
    settings = config.objective_settings
    if not config.keep_projection:
        return settings
    distillation = settings.distillation
    if text.sentence is None or distillation.pooling != "own":
        text.set_sentence_modules(_pooled(text, distillation.pooling))
    windows = distillation.max_windows or 1
    return replace_settings(settings, pooling="own", l1_targets="unit", max_windows=windows)


def _projection(objectives: Sequence[Objective]) -> nn.Linear:
    """The projection into the teacher's space; of two, that of `contrastive`."""
    found = [one for one in objectives if isinstance(one, FeatureDistillation)]
    trained = [one for one in found if one.part_weights["sentence"]]
    best = min(trained, key=lambda one: one.name, default=None)
    projection = require(best, "a sentence projection", "keep_projection").project["sentence"]
    assert isinstance(projection, nn.Linear)
    return projection


# -- model and heads ---------------------------------------------------------------------------------------------------
def _model(
    config: AdaptConfig, is_cross_modal: bool, text: TextEncoder, layout: Layout, seed: int
) -> tuple[Encoder, ClipRowEncoder | None]:
    """The model to train: the text encoder alone, or inside a cross-modal model, whose CLIP side reads windows."""
    if not is_cross_modal:
        return text, None
    clip, tokenizer = load_clip_text_tower(config.teacher)
    size, most = clip.context_length, config.objective_settings.distillation.max_windows
    windows = ClipRowEncoder(tokenizer, size, clip_windows(layout, most, size))
    torch.manual_seed(derive_seed(seed, "init", "cross"))
    clip.requires_grad_(not config.cross_modal.freeze_clip)
    clip.logit_scale.requires_grad_(False)
    return CrossModalEncoder(text, clip, config.cross_modal.cross_layers, tokenizer), windows


def _wrapped(model: Encoder, names: Sequence[str], sizes: OutputSizes, seed: int) -> Encoder:
    wrapping = [name for name in names if find_objective(name).wraps_encoder()]
    if not wrapping:
        return model
    if len(wrapping) > 1 or not isinstance(model, TextEncoder):
        raise InputError(
            f"arm={'+'.join(names)}: {wrapping[0]} trains a model of its own around the text encoder, and so "
            "does another objective; train them in two runs"
        )
    torch.manual_seed(derive_seed(seed, "init", wrapping[0]))
    return find_objective(wrapping[0]).wrap_encoder(model, sizes)


def _start_heads(
    names: Sequence[str], objectives: Sequence[Objective], config: AdaptConfig, text: TextEncoder
) -> dict[str, str]:
    origins = {}
    for name, objective in zip(names, objectives, strict=True):
        origins[name] = "new"
        if isinstance(objective, LanguageModelling) and not config.from_scratch:
            origins[name] = init_lm_head(objective.head, config.student, objective.pretrained_names)
    return origins


def _student_notes(config: AdaptConfig, heads: Mapping[str, str], text: TextEncoder) -> list[str]:
    """Notes if a pretrained student gets a new masked-LM head, and if it has a prompt, which training does not read."""
    prompt = text.sentence.prompt if text.sentence else ""
    notes = [f"training does not prepend the student's prompt {prompt!r} to texts"] * bool(prompt)
    new = [name for name, origin in heads.items() if origin == "new"]
    if config.from_scratch or not any(find_objective(name).masks_text for name in new):
        return notes
    others = [name for name in heads if not find_objective(name).masks_text]
    without = "; arm=simcse trains on text without one"
    if others:
        without = f"; masked_lm=False trains {' and '.join(others)} without it"
    return [
        *notes,
        f"{config.student} has no masked-LM head, and the encoder forgets while a new one learns (retention_pairs "
        f"measures how much){without}",
    ]


def _cache_note(
    teacher_set: TeacherSet, texts: int, settings: ObjectiveSettings, training: TrainingArguments
) -> list[str]:
    """A note if the run's own cache is filled with features of many more texts than it reads."""
    read = training.steps * training.batch
    is_shared = bool(settings.targeted_distillation.teacher_cache)
    has_cache = any(teacher.split(fixed=True)[0] for teacher in teacher_set.teachers)
    if is_shared or not (teacher_set.limit_gb and has_cache):
        return []
    if not 0 < 3 * read < texts:
        return []
    return [
        f"features of all {texts:,} texts are cached before the first step, but this run reads at most {read:,}; "
        "cache_gb=0 computes only these"
    ]


def _new_layers_note(model: Encoder, text: TextEncoder, training: TrainingArguments) -> list[str]:
    """A note if new layers around the text encoder, which are not heads, train later or slower than heads do."""
    is_frozen = bool(training.freeze_encoder_steps or training.freeze_encoder_ratio)
    if model is text or (not is_frozen and training.head_lr == 1):
        return []
    return [
        "the new layers around the text encoder are not heads: they are frozen as long as it is, and train at its "
        "learning rate; to train all from the first step, set freeze_encoder_ratio=0, head_lr=1 and a higher lr"
    ]


def _save_lm_head(
    folder: Path, objectives: Sequence[Objective], config: AdaptConfig, text: TextEncoder
) -> str:
    origin = "this run's"
    heads = [one.head for one in objectives if isinstance(one, LanguageModelling) and not one.joint]
    if not heads:
        origin = "the student's"
        heads = [] if config.from_scratch else own_lm_head(config.student, text)
    written = [save_with_lm_head(folder, text.encoder, head) for head in heads]
    if any(written) and text.sizes.causal and not config.from_scratch:
        with suppress(OSError):  # it has none
            GenerationConfig.from_pretrained(config.student).save_pretrained(folder)
    return origin if any(written) else "none"


def own_lm_head(student: str, text: TextEncoder) -> list[LMHead]:
    """The masked-LM head of a student, a hub id or folder, or nothing if it has none."""
    sizes = text.sizes
    head = LMHead(sizes.text, sizes.input_embeddings, sizes.config)
    origin = init_lm_head(head, student)
    return [] if origin == "new" else [head]


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# -- model card -------------------------------------------------------------------------------------------------------
HEAD = "`{0}` loads {1}. `AutoModel`, which needs no head, reports its weights as UNEXPECTED."
HEAD_TEXTS = {
    "this run's": HEAD.format("{0}", "the {1} head that was trained in this run"),
    "the student's": HEAD.format("{0}", "the student's own {1} head, which was not trained here"),
    "none": "There is no {1} head: `{0}` would initialise one randomly.",
}
"""Text of a model card on the language-model head, by the head's origin, for its class and kind."""
HEAD_KINDS = {
    False: ("AutoModelForMaskedLM", "masked-LM"),
    True: ("AutoModelForCausalLM", "causal-LM"),
}
"""Class and kind of the head of an encoder and of a causal student."""


USES = {
    "sentence-transformers": "from sentence_transformers import SentenceTransformer\n\n"
    'model = SentenceTransformer("{0}")',
    "transformers": "from transformers import {1}, AutoTokenizer\n\n"
    'tokenizer = AutoTokenizer.from_pretrained("{0}")\nmodel = {1}.from_pretrained("{0}")',
}
"""How a library loads the model of a folder or of an id on the hub."""


def _end_of_path(place: str) -> str:
    path = Path(place)
    return "/".join(path.absolute().parts[-2:]) if path.exists() else place


def _card(
    config: AdaptConfig,
    training: TrainingArguments,
    result: Mapping[str, Any],
    library: str,
    causal: bool,
) -> str:
    files = parse_weighted_files(config.text, "text")
    kd_teacher = config.objective_settings.state_distillation.kd_teacher
    teachers = [_end_of_path(one) for one in (config.teacher, kd_teacher) if one]
    is_local = config.from_scratch or Path(config.student).exists()
    name = Path(config.student).name
    has_next = causal and result["fills_masks"] != "none"
    kind = "AutoModelForCausalLM" if has_next else "AutoModel"
    losses = ", ".join(f"{term} {loss:.4g}" for term, loss in result["train_metrics"].items())
    return f"""---
library_name: {library}
{"" if is_local else f"base_model: {config.student}"}
tags: [groundling, {config.arm.replace("+", "-").replace(":", "-")}]
---
# {name}, adapted with groundling ({config.arm})

{"A decoder" if causal else "An encoder"} with the architecture of `{name}` ({result["parameters"]:,} parameters),
trained on text {"with a teacher" if teachers else "without a teacher, as a control"}. It loads without groundling:

```python
{USES[library].format("FOLDER", kind)}
```

{HEAD_TEXTS[result["fills_masks"]].format(*HEAD_KINDS[causal])}

## Training

- student: `{_end_of_path(config.student)}`{", new weights" if config.from_scratch else ""}
- teacher: `{"`, `".join(teachers) or "none (control)"}`
- objectives: {", ".join(result["objectives"])}
- text: {", ".join(f"`{Path(each.file).name}`" for each in files)}, {result["texts"]:,} texts
- tokens cut off at {result["max_length"]} a text: {result["truncated_tokens"]:,}
- {result["steps"]:,} steps of {training.batch_size}, learning rate {training.lr}, seed {training.seed}
- mean losses at the end: {losses}

## What this does not show

Losses do not say whether the model knows more of how things look, or less of language. Over several seeds and on
tasks of your own, compare it with a control that read the same text for as many steps, and with the student as it was.

Heads used in training are in `groundling_heads.safetensors`, which transformers ignores. The licences of the
student, the teacher and the text apply.
""".replace("\n\ntags:", "\ntags:")

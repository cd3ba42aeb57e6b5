"""Adapt a text encoder: XDBERT's objectives, distillation, or the text-only control without a
teacher.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from groundling.command_line.registered_names import ArmObjectives, parse_arm
from groundling.commands.adapt import AdaptConfig
from groundling.commands.adapt.evaluation import (
    RetentionEvaluator,
    evaluate_objectives,
    length_note,
    match_by_length,
    read_pairs,
)
from groundling.commands.adapt.sources import restrict_to_readable, text_sources
from groundling.core.batch import OutputSizes, require
from groundling.core.errors import InputError
from groundling.core.rng import derive_seed
from groundling.data.captions.captions import CaptionReadOptions
from groundling.data.corpora.token_stores import CorpusDataset, corpus_samples, stores_folder
from groundling.data.samples import ClipRowEncoder, TextRowEncoder
from groundling.models.clip import load_clip_text_tower
from groundling.models.cross_modal import CrossModalEncoder
from groundling.models.formats import Encoder
from groundling.models.heads import LMHead, init_lm_head, save_with_lm_head
from groundling.models.loading import precision_note
from groundling.models.sentence_modules import SentenceModules, make_sentence_modules
from groundling.models.text_encoder import TextEncoder, load_text_encoder, new_text_encoder
from groundling.objectives import (
    MaskingVocabulary,
    Objective,
    ObjectiveContext,
    find_objective,
    in_batch_negatives_note,
    make_objectives,
    save_objective_heads,
    unused_settings_note,
)
from groundling.objectives.embedding_retention import EmbeddingRetention
from groundling.objectives.feature_distillation import FeatureDistillation
from groundling.objectives.masked_lm import MaskedLM
from groundling.runs.model_card import MLM_HEAD_TEXTS, end_of_path, library_of
from groundling.runs.progress import print_notes
from groundling.runs.run import Run
from groundling.settings.fields import replace_settings
from groundling.settings.input_settings import WeightedFile, parse_weighted_files
from groundling.settings.objectives import DistillationSettings
from groundling.settings.training import TrainingArguments
from groundling.teachers.feature_cache import TeacherSet
from groundling.teachers.loading import load_teacher_set
from groundling.teachers.text import FrozenCopy
from groundling.training.held_out_loss import (
    BASELINE_SHARE,
    HeldOutLoss,
    report_held_out,
    selection_bias_note,
)
from groundling.training.loop import train
from groundling.training.training_steps import load_training_step

# Text layout: lines, or the blocks of XDBERT's paper.

LINE = 128
"""Default maximum tokens of a line."""
BLOCK = 512
"""Tokens of a block, as in XDBERT's paper (Appendix B)."""
SLOTS = 9 * 77
"""Positions of a block's CLIP side in the paper: nine windows of 77; other window sizes get as \
many positions."""


@dataclass(frozen=True)
class TextLayout:
    """How texts are split."""

    text_layout: Literal["lines", "blocks"]
    """lines: each line by itself; blocks: the lines of a file joined and cut into blocks."""
    max_length: int
    """Tokens of the text encoder, special tokens included: the maximum of a line, or the length \
of every block."""
    max_windows: int = 0
    """Maximum CLIP windows per text; 0: the default of the layout."""

    def windows(self, size: int) -> int:
        """Maximum CLIP windows of `size` tokens per text; 0: as many as needed."""
        if self.max_windows or self.text_layout == "lines":
            return self.max_windows
        return math.ceil(SLOTS / size)

    def note(self, arm: str, windows: int) -> str:
        """Note on the layout of a cross-modal arm that reads at most `windows` CLIP windows."""
        if self.text_layout == "lines":
            return (
                f"text_layout=lines: {arm} reads lines of at most {self.max_length} "
                "tokens; the paper reads blocks of "
                f"{BLOCK} (text_layout=blocks)"
            )
        paper = "" if self.max_length == BLOCK else f"; the paper's blocks have {BLOCK}"
        return (
            f"{arm} reads blocks of {self.max_length} tokens, and CLIP reads each in at most {windows} "
            f"windows{paper}"
        )


def text_layout_of(
    text_layout: Literal["auto", "lines", "blocks"],
    max_length: int,
    max_windows: int,
    joint: bool,
    student_max_length: int,
) -> TextLayout:
    """The layout of an arm's texts. `auto` means blocks if the arm is `joint`, as XDBERT, else lines.

    `student_max_length`: maximum tokens that the student can read.
    """
    if text_layout == "auto":
        text_layout = "blocks" if joint else "lines"
    length = max_length or (BLOCK if text_layout == "blocks" else LINE)
    return TextLayout(text_layout, min(length, student_max_length), max_windows)


def adapt(config: AdaptConfig, training: TrainingArguments, run: Run) -> dict[str, Any]:
    """Adapt the student and write `model`, a stock HF folder; with `save_joint` also the whole
    model, as `joint`.
    """
    arm = parse_arm(config.arm, config.masked_lm)
    training_step = load_training_step(
        config.training_step.training_step, config.training_step.adversarial
    )
    pairs = read_pairs(config.retention_pairs) if config.retention_pairs else None
    text = _student(config, training.seed)
    pretrained = "" if config.from_scratch else config.student
    if config.dropout:
        text.set_dropout(config.dropout)
    settings = config.objective_settings
    pool = settings.distillation.pooling
    retention = (
        RetentionEvaluator(pairs, text, text.sentence or _pooled(text, pool)) if pairs else None
    )
    run.note(
        *(precision_note(pretrained) if pretrained else ()), *_unused_settings_notes(config, arm)
    )
    run.note(*_pool_notes(config, arm, text))
    retains = bool(config.retain_weight) and text.sentence is not None and not arm.needs_cross_modal
    max_windows = settings.distillation.max_windows
    if config.keep_projection:
        settings = replace(
            settings, distillation=_teacher_space_settings(text, settings.distillation)
        )
    layout = text_layout_of(
        config.text_layout, config.max_length, max_windows, arm.needs_cross_modal, text.max_length
    )
    model, windows = _model(config, arm, text, layout, training.seed)
    if windows:
        run.note(layout.note(config.arm, windows.max_windows))
    files = parse_weighted_files(config.text, "text")
    texts, eval_texts = _texts(config, files, layout, text, windows, stores_folder(run.folder))
    run.counts |= {"texts": len(texts), "eval texts": len(eval_texts or ())}
    context = ObjectiveContext(
        model.sizes, MaskingVocabulary.of(text.tokenizer), settings, config.cross_modal
    )
    frozen_copies = [FrozenCopy(text)] if retains else []
    teacher_set = _teacher_set(
        run, config.teacher, arm, context, training.seed, frozen_copies, text
    )
    sources, teachers = text_sources(texts, files, teacher_set, "text")
    context = replace(context, sizes=teacher_set.sizes(context.sizes))
    model = _wrapped(model, arm.names, context.sizes, training.seed)
    objectives = make_objectives(arm.names, context, training.seed)
    heads = _start_heads(arm.names, objectives, pretrained, text)
    run.note(*_notes(pretrained, arm, training, heads, text))
    if retains:
        objectives.append(EmbeddingRetention(context.sizes, weight=config.retain_weight))
        run.note(_retain_note(config.retain_weight, config.student))
    by_length = match_by_length(objectives, texts, training.seed)
    run.note(
        *in_batch_negatives_note(objectives, training), *length_note(by_length, layout.text_layout)
    )
    held_out = _held_out(eval_texts, config.eval_text, teacher_set, model, objectives, training)
    evaluator = held_out.evaluator(config.evaluation) if held_out else None
    result = train(
        model,
        objectives,
        restrict_to_readable(sources, objectives, teacher_set),
        training,
        run.folder,
        teachers=teachers,
        training_step=training_step,
        evaluator=evaluator,
    )
    run.note(*_guessing_notes(objectives, training, result))
    run.note(*selection_bias_note(result))
    result |= {"arm": config.arm, "objectives": arm.names, "heads_from": heads}
    result |= {"texts": len(texts), "parameters": _count(text.encoder)}
    result["training_parameters"] = _count(nn.ModuleList([model, *objectives]))
    result |= {"text_layout": layout.text_layout, "max_length": layout.max_length}
    result |= report_held_out(held_out)
    if isinstance(model, CrossModalEncoder) and windows:
        result |= {"max_windows": windows.max_windows, "match_by_length": by_length}
        result["learned"] = _learned(model, objectives, texts, eval_texts, training.seed)
    if config.keep_projection:
        text.set_sentence_modules(_with_projection(text, objectives))
    result |= _retention_result(retention, text)

    def save(folder: Path) -> None:
        result["fills_masks"] = _export(folder, text, model, objectives, config)
        card = _card(config, files, training, result, library_of(folder / "model"))
        (folder / "model" / "README.md").write_text(card, encoding="utf-8")

    run.save(save)
    return result


def _student(config: AdaptConfig, seed: int) -> TextEncoder:
    if not config.from_scratch:
        return load_text_encoder(config.student)
    return new_text_encoder(config.student, seed, config.student_layers, config.student_width)


def _guessing_notes(
    objectives: Sequence[Objective], training: TrainingArguments, result: Mapping[str, Any]
) -> list[str]:
    """A note for each term whose last losses are no better than guessing among the rows of a micro-batch."""
    if training.batch_tokens:  # the number of rows differs from batch to batch
        return []
    rows = training.batch // training.gradient_accumulation_steps
    levels: dict[str, float] = {}
    for objective in objectives:
        levels |= objective.guessing_losses(rows)
    losses = result["train_metrics"]
    return [
        f"{term} is no better than guessing among {rows} rows: its last loss is {losses[term]:.4g}, that of guessing "
        f"{level:.4g}; train longer, or raise lr: the encoder has learned nothing from this term"
        for term, level in levels.items()
        if term in losses and not losses[term] < BASELINE_SHARE * level
    ]


def _texts(
    config: AdaptConfig,
    files: Sequence[WeightedFile],
    layout: TextLayout,
    text: TextEncoder,
    windows: ClipRowEncoder | None,
    folder: Path,
) -> tuple[CorpusDataset, CorpusDataset | None]:
    """Training texts, and held-out texts or None; tokenised texts are stored below `folder`."""
    tokens = TextRowEncoder(text.tokenizer, layout.max_length)
    selection = CaptionReadOptions(
        config.caption_settings.caption_splits, config.caption_settings.columns
    )

    def read(paths: Sequence[str], limit: int = 0) -> CorpusDataset:
        return corpus_samples(paths, layout.text_layout, tokens, folder, windows, limit, selection)

    eval_texts = read(config.eval_text) if config.eval_text else None
    return read([each.file for each in files], config.limit), eval_texts


def _teacher_set(
    run: Run,
    teacher: str,
    arm: ArmObjectives,
    context: ObjectiveContext,
    seed: int,
    frozen_copies: Sequence[FrozenCopy],
    text: TextEncoder,
) -> TeacherSet:
    """Teachers with weights of their own: the cross-modal model trains its CLIP side, a teacher
    stays frozen.
    """
    source = teacher if arm.needs_teacher else ""
    return load_teacher_set(
        source,
        arm.names,
        context,
        run.state.device,
        run.folder,
        seed,
        frozen_copies,
        text.tokenizer,
    )


def _held_out(
    texts: CorpusDataset | None,
    paths: Sequence[str],
    teacher_set: TeacherSet,
    model: Encoder,
    objectives: Sequence[Objective],
    training: TrainingArguments,
) -> HeldOutLoss | None:
    """Evaluation of the loss on held-out texts, with the same teachers as in training."""
    if texts is None:
        return None
    sources, teachers = text_sources(
        texts, [WeightedFile(path) for path in paths], teacher_set, "eval_text"
    )
    sources = restrict_to_readable(sources, objectives, teacher_set)
    return HeldOutLoss("texts", sources, model, objectives, teachers, training)


def _learned(
    model: CrossModalEncoder,
    objectives: Sequence[Objective],
    texts: CorpusDataset,
    eval_texts: CorpusDataset | None,
    seed: int,
) -> dict[str, Any]:
    """Scores of a cross-modal model's objectives, which are also printed."""
    report = evaluate_objectives(
        model, objectives, eval_texts or texts, seed, eval_texts is not None
    )
    print_notes([report.line()])
    return asdict(report)


def _export(
    folder: Path,
    text: TextEncoder,
    model: Encoder,
    objectives: Sequence[Objective],
    config: AdaptConfig,
) -> str:
    """Write the encoder, and with --save-joint the whole cross-modal model, each with the
    objectives' heads.

    Returns which head `AutoModelForMaskedLM` finds in the encoder's folder, see `_save_lm_head`.
    """
    text.export(folder / "model")
    fills_masks = _save_lm_head(folder / "model", objectives, config, text)
    save_objective_heads(folder / "model", objectives)
    if config.cross_modal.save_joint and model is not text:
        model.export(folder / "joint")
        save_objective_heads(folder / "joint", objectives)
    return fills_masks


# -- sentences ---------------------------------------------------------------------------------------------------------


def _pooled(text: TextEncoder, pool: str) -> SentenceModules:
    """Sentence pooling of a plain encoder: --pooling, where `own` means the first position."""
    mode = "mean" if pool == "mean" else "cls"
    return make_sentence_modules(mode, text.sizes.text, text.max_length)


def _teacher_space_settings(
    text: TextEncoder, distillation: DistillationSettings
) -> DistillationSettings:
    """Settings with which the sentence projection maps the pooled student into the teacher's space.

    Sets the student's pooling if its folder defines none, or if --pooling replaces it.
    """
    if text.sentence is None or distillation.pooling != "own":
        text.set_sentence_modules(_pooled(text, distillation.pooling))
    return replace(
        distillation, pooling="own", l1_targets="unit", max_windows=distillation.max_windows or 1
    )


def _unused_settings_notes(config: AdaptConfig, arm: ArmObjectives) -> list[str]:
    """Notes on settings that this arm does not use."""
    notes = []
    if config.teacher and not (arm.needs_cross_modal or arm.needs_teacher):
        reason = (
            "reads kd_teacher alone" if arm.teacher_settings else "is a control without a teacher"
        )
        notes.append(f"teacher={config.teacher} is not used: arm={config.arm} {reason}")
    settings = config.objective_settings
    if config.retention_pairs:  # uses --pooling
        settings = replace_settings(settings, pooling=DistillationSettings().pooling)
    return notes + unused_settings_note(
        arm.names, settings, config.training_step.training_step, config.cross_modal
    )


def _retention_result(retention: RetentionEvaluator | None, text: TextEncoder) -> dict[str, Any]:
    """`retention` of a result, which is also printed; empty without --retention-pairs."""
    if retention is None:
        return {}
    report = retention.report(text)
    print_notes([retention.line(report)])
    return {"retention": report}


def _retain_note(weight: float, student: str) -> str:
    return (
        f"retain_weight={weight:g}: {student} is a sentence encoder, so a loss keeps its sentence vectors "
        "close to the original ones; retain_weight=0 turns this off"
    )


def _with_projection(text: TextEncoder, objectives: Sequence[Objective]) -> SentenceModules:
    """The student's pooling followed by the trained projection; with two, the one of `contrastive`."""
    found = [one for one in objectives if isinstance(one, FeatureDistillation)]
    best = min(found, key=lambda one: one.name)
    projection = best.project["sentence"]
    if text.sentence is None or not isinstance(projection, nn.Linear):
        raise AssertionError(
            "keep_projection needs a student with a pooling and an objective with a Linear"
        )
    return text.sentence.with_projection(projection)


PUBLISHED = TrainingArguments(lr=1e-4)
"""XDBERT's learning rate, from the first step for everything (Appendix C.1)."""


def _pool_notes(config: AdaptConfig, arm: ArmObjectives, text: TextEncoder) -> list[str]:
    """Notes on the sentence pooling and on the targets of --keep-projection."""
    notes = []
    pool = config.objective_settings.distillation.pooling
    if arm.needs_teacher and text.sentence is not None and pool != "own":
        own = "+".join(text.sentence.pooling.modes)
        notes.append(f"pooling={pool} is used, although {config.student} pools by {own}")
    if config.keep_projection:
        windows = config.objective_settings.distillation.max_windows or 1
        notes.append(
            "keep_projection: targets are the teacher's text embeddings, not standardised; of each text the "
            f"teacher reads at most {windows} x its window (max_windows), and truncated tokens are counted"
        )
    return notes


def _notes(
    student: str,
    arm: ArmObjectives,
    training: TrainingArguments,
    heads: Mapping[str, str],
    text: TextEncoder,
) -> list[str]:
    """Notes on a new masked-LM head, and on learning rates other than the paper's."""
    notes = []
    pace = _learning_rate_words(training)
    if student and "new" in [heads.get(name) for name in heads if find_objective(name).masks_text]:
        chance = math.log(text.sizes.input_embeddings[0])
        notes.append(
            f"masked LM: {student} has no head; a new one starts at a loss of about {chance:.1f}, and the encoder "
            f"forgets while the head learns; this run uses {pace}; with l1 or contrastive, masked_lm=False trains "
            "without masked LM; retention_pairs measures how much the encoder forgets"
        )
    if arm.needs_cross_modal and pace != _learning_rate_words(PUBLISHED):
        notes.append(
            f"XDBERT's paper trains with {_learning_rate_words(PUBLISHED)} (lr=1e-4 "
            f"freeze_encoder_ratio=0 head_lr=1); this run uses {pace}"
        )
    return notes


def _learning_rate_words(training: TrainingArguments) -> str:
    """Learning rates and head-only steps in words."""
    start = f"{training.freeze_encoder_steps} steps"
    if not training.freeze_encoder_steps:
        start = f"{training.freeze_encoder_ratio:.0%} of the steps"
    alone = training.freeze_encoder_steps or training.freeze_encoder_ratio
    words = f"learning rate {training.lr:g}"
    words += f", heads {training.head_lr:g} times as much" if training.head_lr != 1 else ""
    return words + (f", only heads in the first {start}" if alone else " from the first step")


# -- model and heads ---------------------------------------------------------------------------------------------------


def _model(
    config: AdaptConfig, arm: ArmObjectives, text: TextEncoder, layout: TextLayout, seed: int
) -> tuple[Encoder, ClipRowEncoder | None]:
    """The model to train: the text encoder alone, or inside a cross-modal model, whose CLIP side
    reads windows.
    """
    if not arm.needs_cross_modal:
        return text, None
    clip, tokenizer = load_clip_text_tower(config.teacher)
    windows = ClipRowEncoder(tokenizer, clip.context_length, layout.windows(clip.context_length))
    torch.manual_seed(derive_seed(seed, "init", "cross"))
    clip.requires_grad_(not config.cross_modal.freeze_clip)
    clip.logit_scale.requires_grad_(False)
    return CrossModalEncoder(text, clip, config.cross_modal.cross_layers, tokenizer), windows


def _wrapped(model: Encoder, names: Sequence[str], sizes: OutputSizes, seed: int) -> Encoder:
    """The model that an objective trains around the text encoder, if one does; else the model itself.

    Raises InputError if two objectives each need a model of their own.
    """
    wrapping = [spec for spec in map(find_objective, names) if spec.wrap_encoder is not None]
    if not wrapping:
        return model
    if len(wrapping) > 1 or not isinstance(model, TextEncoder):
        raise InputError(
            f"arm={'+'.join(names)}: {wrapping[0].name} trains a model of its own around the text encoder, and so "
            "does another objective; train them in two runs"
        )
    torch.manual_seed(derive_seed(seed, "init", wrapping[0].name))
    wrap = require(wrapping[0].wrap_encoder, "wrap_encoder", wrapping[0].name)
    return wrap(model, sizes)


def _start_heads(
    names: Sequence[str], objectives: Sequence[Objective], student: str, text: TextEncoder
) -> dict[str, str]:
    """Initialise masked-LM heads from the student's own head, if it has one; returns each
    objective's head origin. `student` is empty for one from nothing.
    """
    origins = {}
    for name, objective in zip(names, objectives, strict=True):
        origins[name] = "new"
        if isinstance(objective, MaskedLM) and student:
            family = text.encoder.config.model_type
            origins[name] = init_lm_head(
                objective.head, student, family, objective.pretrained_names
            )
    return origins


def _save_lm_head(
    folder: Path, objectives: Sequence[Objective], config: AdaptConfig, text: TextEncoder
) -> str:
    """Save a masked-LM head that Hugging Face loads; returns its origin: `this run's`, `the
    student's`, or `none`.

    If the run trained no masked LM on the encoder alone (joint MLM does not count), the student's
    own head is saved.
    """
    origin = "this run's"
    heads = [one.head for one in objectives if isinstance(one, MaskedLM) and not one.joint]
    if not heads:
        origin = "the student's"
        heads = [] if config.from_scratch else own_lm_head(config.student, text)
    written = [save_with_lm_head(folder, text.encoder, head) for head in heads]
    return origin if any(written) else "none"


def own_lm_head(student: str, text: TextEncoder) -> list[LMHead]:
    """The masked-LM head of a student, a hub id or folder, or nothing if it has none."""
    sizes = text.sizes
    head = LMHead(sizes.text, sizes.input_embeddings, sizes.activation, sizes.epsilon)
    origin = init_lm_head(head, student, text.encoder.config.model_type)
    return [] if origin == "new" else [head]


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _card(
    config: AdaptConfig,
    files: Sequence[WeightedFile],
    training: TrainingArguments,
    result: dict[str, Any],
    library: str,
) -> str:
    texts = "\n".join(f"- `{Path(each.file).name}`" for each in files)
    weights = result["loss_weights"]
    terms = ", ".join(
        f"{term} {value:.3f}"
        + (f" (times {weights[term]:.3g})" if weights.get(term, 1) != 1 else "")
        for term, value in result["train_metrics"].items()
    )
    kd_teacher = config.objective_settings.state_distillation.kd_teacher
    places = filter(None, (config.teacher, kd_teacher))
    teachers = "`, `".join(map(end_of_path, places))
    loading = "`AutoModel.from_pretrained`"
    if library == "sentence-transformers":
        loading = "`SentenceTransformer`, or its encoder alone with `AutoModel.from_pretrained`"
    return f"""---
library_name: {library}
tags: [groundling, {config.arm.replace("+", "-").replace(":", "-")}]
---
# {Path(config.student).name}, adapted with groundling ({config.arm})

A stock `transformers` encoder with {result["parameters"]:,} parameters; load it with {loading}.
{MLM_HEAD_TEXTS[result["fills_masks"]]}

- student: `{end_of_path(config.student)}`{", new weights" if config.from_scratch else ""}
- teacher: `{teachers or "none (control)"}`
- objectives: {", ".join(result["objectives"])}
- text ({result["texts"]} texts, {result["truncated_tokens"]} truncated tokens):
{texts}
- {result["steps"]} steps of {training.batch_size}, learning rate {training.lr}, seed {training.seed}
- losses, means over the last {result["train_metrics_steps"]} steps: {terms}

Heads used in training are in `groundling_heads.safetensors`, which transformers ignores. The licences of the
student, the teacher and the text apply.
"""

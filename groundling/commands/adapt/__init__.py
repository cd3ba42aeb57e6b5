"""`groundling adapt`: adapt a text encoder with a CLIP-like teacher (or without: the control)."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from groundling.command_line import Command, ResumableRun
from groundling.command_line.names import (
    check_lora,
    check_training_step,
    input_paths,
    parse_arm,
    teacher_settings,
)
from groundling.core.errors import InputError
from groundling.settings.fields import (
    InputKind,
    Settings,
    refuse_settings,
    require_settings,
    settings,
)
from groundling.settings.input_settings import CaptionSettings
from groundling.settings.objectives import (
    CrossModalEncoderSettings,
    ObjectiveSettings,
    TrainingStepSettings,
)
from groundling.settings.training import WITHOUT_EFFECT, EvaluationSettings, TrainingArguments


@settings
class AdaptConfig(Settings):
    """Adaptation of a text encoder: texts, arm and the options of its objectives."""

    student: Annotated[str, InputKind.MODEL] = ""
    """Text encoder: hub id or folder, with its tokenizer."""
    from_scratch: bool = False
    """Start with new weights, drawn from --seed, as --student is configured (Vokenization, VidLanKD)."""
    student_layers: Annotated[int, Ge(0)] = 0
    """--from-scratch: number of layers; 0: as configured."""
    student_width: Annotated[int, Ge(0)] = 0
    """--from-scratch: width of the hidden states, a multiple of 64, with attention heads of 64; \
feed-forward layers keep their proportion. 0: as configured."""
    teacher: Annotated[str, InputKind.MODEL] = ""
    """Hub id or folder of a CLIP-like model, an image encoder or a text encoder, open_clip:NAME/TAG, \
timm:NAME, vectors:FOLDER, or MODULE:NAME of your own; the arm `mlm` needs none."""
    text: Annotated[tuple[str, ...], InputKind.WEIGHTED] = ()
    """Training texts, each FILE or FILE=WEIGHT: plain text, also compressed (.gz, .zst) or in a .parquet file, or \
captions that `train-clip` reads. With weights each step draws one file by weight; without, all files are mixed."""
    caption_settings: CaptionSettings = field(default_factory=CaptionSettings)
    arm: Annotated[str, InputKind.OBJECT] = "contrastive"
    """mlm (the control), xdbert, or objectives joined by +, such as contrastive, l1, caption_to_image, mlm+sigmoid, \
lexi_contrastive (docs/methods.md), or MODULE:NAME of your own. Parts of the papers' methods: joint_mlm, match, \
clip_tokens, td_text, td_words (with --word-selection random, since plain text has no image)."""
    masked_lm: bool = True
    """l1 and contrastive: also train masked LM, as the control does."""
    lora: Annotated[int, Ge(0)] = 0
    """Rank of low-rank adapters (LoRA) in every matrix of the student's layers; only they and heads are trained. The \
saved model has them merged; `adapter` has them alone, in peft's format. 0: train all of it."""
    text_layout: Literal["auto", "lines", "blocks"] = "auto"
    """lines: one text per line; blocks: documents cut into blocks of exactly --max-length tokens; \
auto: blocks for xdbert's objectives, since lines can be matched by their lengths, else lines."""
    max_length: Annotated[int, Ge(0)] = 0
    """Maximum tokens per text for the student; longer texts are split. 0: 128 (blocks: 512), but \
at most the student's maximum."""
    dropout: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Dropout probability of the student's hidden states in this run; its configuration does not \
change. 0: as configured. simcse and mcse need dropout."""
    limit: Annotated[int, Ge(0)] = 0
    """Maximum number of texts, evenly spaced; 0: all."""
    eval_text: Annotated[tuple[str, ...], InputKind.PATH] = ()
    """Held-out text files, on which the result reports the loss and, for xdbert, scores of its parts."""
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    objective_settings: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    cross_modal: CrossModalEncoderSettings = field(default_factory=CrossModalEncoderSettings)
    training_step: TrainingStepSettings = field(default_factory=TrainingStepSettings)
    keep_projection: bool = False
    """l1 and contrastive: train against the teacher's own text embeddings and save the projection \
with the model, as a sentence-transformers folder, whose mean pooling includes special tokens. The \
teacher truncates texts to its context length, unless --max-windows allows more."""
    retain_weight: Annotated[float, Ge(0)] = 10.0
    """Sentence-transformers student: weight of the loss that keeps its sentence vectors close to \
the original ones; 0: none. Not used by xdbert."""
    word_budget: str = ""
    """Maximum number of words of the texts and of all that teachers have read, such as 500K or 10M (BabyLM). \
Prints the ledger, trains at most ten epochs, and saves intermediate students as `chck_1M` and so on."""
    teacher_words: Annotated[int, Ge(-1)] = -1
    """--word-budget: words read by teachers that are not known to be image-only encoders; -1: refuse such \
teachers."""
    shuffle_images: bool = False
    """A control: each image's captions get another image, drawn from --seed, so that the words are the same."""
    retention_pairs: Annotated[str, InputKind.PATH] = ""
    """Text pairs with similarities, on which Spearman correlation is measured before and after \
adaptation: the folder of STS-B or GLUE (dev.tsv is read), or a tsv of text, text, number."""


MILLION = 1_000_000
MOST_EPOCHS = 10
"""Most times that BabyLM's rules allow to read a text (from memory of its rules of 2025 and 2026)."""


def parse_words(text: str) -> int:
    """A number of words, such as 10M; raises InputError for anything else."""
    factor = {"K": 1_000, "M": MILLION}.get(text[-1:], 1)
    digits = text if factor == 1 else text[:-1]
    if not (digits.isascii() and digits.isdigit()):
        raise InputError(f"word_budget={text}: expected a number of words, such as 500K or 10M")
    return int(digits) * factor


ADAPTING = TrainingArguments(lr=2e-5, freeze_encoder_ratio=0.2, head_lr=20.0)
"""Adaptation that preserves the encoder's knowledge: new heads train first and fast, the encoder slowly \
(docs/results.md). XDBERT's paper trains everything at 1e-4 from the first step (Appendix C.1)."""


def check(config: AdaptConfig, training: TrainingArguments, out: str | Path) -> None:
    """Raises InputError for settings that are missing or have no effect."""
    arm = parse_arm(config.arm, config.masked_lm)
    require_settings(config, f"arm={config.arm}", "student", *teacher_settings(arm))
    check_lora(config.lora)
    if config.from_scratch:
        refuse_settings(config, "adapts weights that exist; leave out from_scratch", "lora")
    else:
        reason = "a pretrained student has a size; add from_scratch"
        refuse_settings(config, reason, "student_layers", "student_width")
    if not any(one.needs_cross_modal or one.wraps_encoder() for one in arm.values()):
        refuse_settings(config, f"arm={config.arm} has no cross-modal model", "save_joint")
    check_training_step(config)
    _check_word_budget(config, training)


def _check_word_budget(config: AdaptConfig, training: TrainingArguments) -> None:
    if not config.word_budget:
        refuse_settings(config, "counts towards word_budget, which is not set", "teacher_words")
        return
    if not config.from_scratch:
        raise InputError("word_budget: a pretrained student has read words; add from_scratch")
    parse_words(config.word_budget)
    refuse_settings(config, "word_budget counts whole files; shorten the file", "limit")
    reason = "word_budget counts the words of a whole run"
    refuse_settings(config, reason, "patience", "keep_best")
    if not training.steps and training.epochs > MOST_EPOCHS:
        raise InputError(f"epochs={training.epochs:g}: word_budget allows {MOST_EPOCHS} at most")


COMMAND = Command(
    "adapt",
    "adapt a text encoder with a CLIP-like teacher (or without: the control)",
    "groundling.commands.adapt.run:adapt",
    {"_own": AdaptConfig(), "_train": ADAPTING},
    title="Train",
    example="groundling adapt --student bert-base-uncased --teacher openai/clip-vit-base-patch32 "
    "--text my_text.txt --out runs/adapted",
    common_flags="student teacher text arm eval-text retention-pairs steps epochs batch lr seed cpu",
    validate=check,
    output=ResumableRun(input_paths, WITHOUT_EFFECT),
)

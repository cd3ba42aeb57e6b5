"""`groundling adapt`: adapt a text encoder with a CLIP-like teacher (or without: the control)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from groundling.command_line import SHARED, Command
from groundling.command_line.registered_names import Arm, check_training_step, parse_arm
from groundling.core.errors import InputError
from groundling.runs.outputs import Inputs, ResumableRun
from groundling.settings.fields import (
    InputKind,
    Settings,
    at_least,
    require_settings,
    unnested,
)
from groundling.settings.input_settings import CaptionSettings, weighted_files
from groundling.settings.objectives import (
    CrossModalSettings,
    ObjectiveSettings,
    TrainingStepSettings,
    teacher_inputs,
)
from groundling.settings.training import EvaluationSettings, TrainConfig, check_has_eval_data


@dataclass(frozen=True)
class AdaptConfig(Settings):
    """How a text encoder is adapted; the arms and the options of their objectives."""

    student: Annotated[str, InputKind.WEIGHTS] = ""
    """Text encoder: hub id or folder, with its tokenizer."""
    teacher: Annotated[str, InputKind.WEIGHTS] = ""
    """CLIP-like teacher: hub id or folder, with its tokenizer, or MODULE:NAME of your own; the arm `mlm` needs none."""
    text: Annotated[tuple[str, ...], InputKind.WEIGHTED] = ()
    """Files to adapt on, each FILE or FILE=WEIGHT: plain text, also packed (.gz, .zst) or in the column `text` of a \
.parquet file (or its only one), or captions in any file or folder that `train-clip` reads. They are tokenised once, for \
all runs (docs/running.md). With weights a step reads one of the files, drawn by weight; without any, all together are \
read."""
    caption_settings: Annotated[CaptionSettings, unnested] = field(default_factory=CaptionSettings)
    arm: str = "contrastive"
    """mlm (the control), xdbert, l1, contrastive, or objectives joined by +: mlm, joint_mlm, match, clip_tokens, l1, \
contrastive, td_text, td_words (with --word-selection random: text alone shows no image), or MODULE:NAME of your own."""
    masked_lm: bool = True
    """l1 and contrastive: train masked LM, too, as the control does; turn off to leave it out."""
    text_layout: Literal["auto", "lines", "blocks"] = "auto"
    """One text per line, or documents cut into blocks of exactly --max-length pieces; auto: blocks for xdbert and its \
parts, as in its paper, since lines can be matched by their lengths; lines for the rest."""
    max_length: Annotated[int, at_least(0)] = 0
    """Pieces per text for the student; longer ones become several texts; 0: 128, of blocks 512, and never more than \
the student reads."""
    limit: Annotated[int, at_least(0)] = 0
    """Use at most so many texts, evenly spaced; 0: all."""
    eval_text: Annotated[tuple[str, ...], InputKind.PATH] = ()
    """Files of text that is not learned from: the report has the loss on them, and, of xdbert, what its parts have \
learned (without this: on some of the texts that were learned from, with new masks and pairs)."""
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    objective_settings: Annotated[ObjectiveSettings, unnested] = field(
        default_factory=ObjectiveSettings
    )
    cross_modal: CrossModalSettings = field(default_factory=CrossModalSettings)
    training_step: Annotated[TrainingStepSettings, unnested] = field(
        default_factory=TrainingStepSettings
    )
    keep_projection: bool = False
    """l1 and contrastive: train against the teacher's own text embeddings, and export the projection into their space \
with the model, a sentence-transformers folder of Transformer, Pooling, Dense and Normalize; a text longer than the \
teacher's window is cut for the teacher alone, unless --max-windows says otherwise."""
    retain_weight: Annotated[float, at_least(0)] = 10.0
    """A sentence encoder (a folder of sentence-transformers): weight of staying close to the vectors that it gave \
before; 0: they may move. No part in xdbert."""
    retention_pairs: Annotated[str, InputKind.PATH] = ""
    """Pairs of texts with a similarity each, on which cosines are scored before and after (Spearman): STS-B's folder \
or GLUE's, of which dev.tsv is read, or a tsv of text, text, number."""


ADAPTING = TrainConfig(lr=2e-5, freeze_encoder_ratio=0.2, head_lr=20.0)
"""Adaptation that keeps what an encoder knows: new heads learn fast and first, the encoder slowly (docs/results.md).

XDBERT's paper trains everything at 1e-4 from the first step (Appendix C.1).
"""


def check(config: AdaptConfig, training: TrainConfig, out: str | Path) -> Arm:
    """What the arm is made of; raises InputError for settings that are missing, or do not go together."""
    arm = parse_arm(config.arm, config.masked_lm)
    taught = ["teacher"] if arm.joint or arm.taught else []
    require_settings(config, f"--arm {config.arm}", "student", *taught)
    check_has_eval_data(
        config.evaluation,
        bool(config.eval_text),
        "--eval-text FILES, texts that are not learned from",
    )
    learned_from = {each.file for each in weighted_files(config.text, "--text")}
    for path in config.eval_text:
        if path in learned_from:
            raise InputError(f"--eval-text {path}: --text has it, too, so that it is learned from")
    if config.cross_modal.save_joint and not arm.joint:
        raise InputError(f"--save-joint: --arm {config.arm} has no cross-modal model; use xdbert")
    if config.keep_projection:
        projects = {"l1", "contrastive"} & set(
            arm.names
        ) and config.objective_settings.distillation.sentence_weight
        if not projects:
            raise InputError(
                f"--keep-projection: --arm {config.arm} trains no sentence projection; use contrastive or l1, with a "
                "--sentence-weight share above 0"
            )
    check_training_step(config.training_step.training_step, config.training_step.adversarial)
    return arm


def inputs(config: AdaptConfig, training: TrainConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    texts = weighted_files(config.text, "--text")
    return {
        **{f"text:{number}": each.file for number, each in enumerate(texts)},
        "student": config.student,
        **teacher_inputs(config.teacher, config.objective_settings.targeted_distillation),
        "retention": config.retention_pairs,
        **{f"held:{number}": path for number, path in enumerate(config.eval_text)},
    }


def makes(config: AdaptConfig, training: TrainConfig) -> Sequence[str]:
    """What a run leaves."""
    return ["model", "joint"] if config.cross_modal.save_joint else ["model"]


COMMAND = Command(
    "adapt",
    "adapt a text encoder with a CLIP-like teacher (or without: the control)",
    "groundling.commands.adapt.run:adapt",
    {"_own": AdaptConfig(), "_train": ADAPTING, **SHARED},
    title="Train",
    example="groundling adapt --student bert-base-uncased --teacher openai/clip-vit-base-patch32 "
    "--text my_text.txt --out runs/adapted",
    common_flags="student teacher text arm eval-text retention-pairs steps epochs batch lr seed cpu",
    validate=check,
    output=ResumableRun(inputs, artifacts=makes),
)

"""Adapt a text encoder: XDBERT as published, distillation, or the control that sees the same text without a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from groundling.config import AdaptConfig, TrainConfig, check_numbers, check_training
from groundling.data.corpora import corpus
from groundling.data.samples import Samples, TextInput, TextSamples, WindowInput
from groundling.errors import InputError
from groundling.keyed import seed_of
from groundling.models.clip import load_clip_text
from groundling.models.crossmodal import CrossModal
from groundling.models.saved_heads import start_lm_head
from groundling.models.text import TextEncoder, load_text_encoder
from groundling.objectives import Given, Objective, part_named
from groundling.objectives.masked_lm import MaskedLM
from groundling.recipes.lifecycle import Run
from groundling.recipes.teaching import (
    classroom,
    inner_step,
    make_objectives,
    save_objectives,
    teacher_inputs,
    vocabulary,
    with_teachers,
)
from groundling.train import train

ARMS = {
    "mlm": "mlm",
    "xdbert": "joint_mlm+match+clip_tokens",
    "l1": "mlm+l1",
    "contrastive": "mlm+contrastive",
}
"""Named arms; the control `mlm` is text, steps and seeds like the others, without a teacher."""


@dataclass(frozen=True)
class Arm:
    """What an arm is made of."""

    names: list[str]
    """Objectives, each once."""
    joint: bool
    """Some of them need the cross-modal encoder."""
    taught: bool
    """Some of them need a teacher's features."""


def arm_of(text: str) -> Arm:
    """What `--arm` asks for; raises InputError for an unknown name."""
    names = [name for part in text.split("+") for name in ARMS.get(part, part).split("+")]
    names = list(dict.fromkeys(names))
    parts = []
    for name in names:
        try:
            parts.append(part_named(name))
        except InputError as error:
            raise InputError(
                f"--arm {text}: {name!r} is none of {', '.join(ARMS)}; {error}"
            ) from None
    if {"mlm", "joint_mlm"} <= set(names):
        names.remove("mlm")  # one masking per text: within XDBERT, MLM is joint
    return Arm(names, any(part.joint for part in parts), any(part.taught for part in parts))


def adapt(config: AdaptConfig, training: TrainConfig, out: str | Path) -> dict[str, Any]:
    """Adapt the student and write `out/model`, a stock HF folder, and `out/result.json`; returns the result.

    With `save_joint`, the whole cross-modal model goes to `out/joint`. Raises InputError for settings that do not fit.
    """
    arm = arm_of(config.arm)
    _check(config, arm)
    check_numbers(config)
    check_training(training)
    inner = inner_step(config.inner, config.adversarial)
    inputs: dict[str, str | Path] = {f"text:{n}": path for n, path in enumerate(config.text)}
    inputs |= {"student": config.student, **teacher_inputs(config.teacher, config.targeted)}
    run = Run(out, "adapt", {**asdict(config), "train": asdict(training)}, inputs, training.cpu)
    if run.result is not None:
        return run.result

    text = load_text_encoder(config.student)
    max_length = min(config.max_length, text.max_length)
    examples = corpus(config.text, config.form, text.tokenizer, max_length, config.max_texts)
    model, windows = _model(config, arm, text, training.seed)
    samples: Samples = TextSamples(examples, TextInput(text.tokenizer, max_length), windows)
    # A teacher of its own: the cross-modal model trains its CLIP side, a teacher never changes.
    source = config.teacher if arm.taught else ""
    given = Given(
        model.sizes,
        vocabulary(text),
        config.masking,
        config.crossing,
        config.distilling,
        config.targeted,
    )
    room = classroom(source, arm.names, given, run.state.device, run.folder, training.seed)
    samples, teachers = room.wrap(samples)
    objectives = make_objectives(arm.names, with_teachers(given, room), training.seed)
    heads = _start_heads(arm.names, objectives, config.student, text)
    result = train(model, objectives, samples, training, run.folder, teachers=teachers, inner=inner)
    result |= {"arm": config.arm, "objectives": arm.names, "heads_from": heads}
    result |= {"texts": len(examples), "parameters": _count(text.encoder)}

    def save(folder: Path) -> None:
        text.export(folder / "model")
        save_objectives(folder / "model", objectives)
        if config.crossing.save_joint and isinstance(model, CrossModal):
            model.export(folder / "joint")
            save_objectives(folder / "joint", objectives)
        card = _card(config, training, result)
        (folder / "model" / "README.md").write_text(card, encoding="utf-8")

    result = run.finish(result, save)
    room.clear()
    return result


def _check(config: AdaptConfig, arm: Arm) -> None:
    if not config.student:
        raise InputError(f"--arm {config.arm} needs --student FOLDER_OR_HUB_ID")
    if not config.teacher and (arm.joint or arm.taught):
        raise InputError(f"--arm {config.arm} needs --teacher FOLDER_OR_HUB_ID")
    if config.crossing.save_joint and not arm.joint:
        raise InputError(f"--save-joint: --arm {config.arm} has no cross-modal model; use xdbert")


def _model(
    config: AdaptConfig, arm: Arm, text: TextEncoder, seed: int
) -> tuple[TextEncoder | CrossModal, WindowInput | None]:
    """What is trained: the text encoder alone, or inside a cross-modal model, whose CLIP side reads windows."""
    if not arm.joint:
        return text, None
    clip, tokenizer = load_clip_text(config.teacher)
    windows = WindowInput(tokenizer, clip.window, config.distilling.max_windows)
    torch.manual_seed(seed_of(seed, "init", "cross"))
    clip.requires_grad_(not config.crossing.freeze_clip)
    clip.logit_scale.requires_grad_(False)
    return CrossModal(text, clip, config.crossing.cross_layers, tokenizer), windows


def _start_heads(
    names: Sequence[str], objectives: Sequence[Objective], student: str, text: TextEncoder
) -> dict[str, str]:
    """Masked-LM heads start from the student's own, where it has one; whose each objective's head is."""
    origins = {}
    for name, objective in zip(names, objectives, strict=True):
        origins[name] = "new"
        if isinstance(objective, MaskedLM):
            family = text.encoder.config.model_type
            origins[name] = start_lm_head(objective.head, student, family, objective.starts_from)
    return origins


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _card(config: AdaptConfig, training: TrainConfig, result: dict[str, Any]) -> str:
    texts = "\n".join(f"- `{Path(path).name}`" for path in config.text)
    terms = ", ".join(f"{term} {value:.3f}" for term, value in result["last"].items())
    return f"""---
library_name: transformers
tags: [groundling, {config.arm.replace("+", "-").replace(":", "-")}]
---
# {Path(config.student).name}, adapted with groundling ({config.arm})

A stock `transformers` encoder with {result["parameters"]:,} parameters; load it with `AutoModel.from_pretrained`.

- student: `{config.student}`
- teacher: `{config.teacher or "none (control)"}`
- objectives: {", ".join(result["objectives"])}
- text ({result["texts"]} texts, {result["dropped_pieces"]} pieces cut off):
{texts}
- {result["steps"]} steps of {training.batch_size}, learning rate {training.lr}, seed {training.seed}
- last losses: {terms}

Heads used in training are in `groundling_heads.safetensors`; transformers ignores that file. The licences of the
student, the teacher and the text apply.
"""

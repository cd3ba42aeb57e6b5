"""Adapt a text encoder: XDBERT as published, distillation, or the control that sees the same text without a teacher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import nn

from groundling.batch import Sizes
from groundling.checkpoint import Checkpoints, save_heads, start_lm_head
from groundling.config import AdaptConfig, TrainConfig
from groundling.data.corpora import corpus
from groundling.data.samples import TextInput, TextSamples, WindowInput
from groundling.errors import InputError
from groundling.keyed import seed_of
from groundling.models.clip import load_clip_text
from groundling.models.crossmodal import CrossModal
from groundling.models.text import TextEncoder, load_text_encoder
from groundling.objectives import Objective
from groundling.objectives.clip_tokens import ClipTokens
from groundling.objectives.distill import Distill
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.match import Match
from groundling.runs import disk_errors, finished, open_run, write_json
from groundling.teachers.clip_text import ClipTextTeacher, Taught
from groundling.train import train

ARMS = {
    "mlm": "mlm",
    "xdbert": "joint_mlm+match+clip_tokens",
    "l1": "mlm+l1",
    "contrastive": "mlm+contrastive",
}
"""Named arms; the control `mlm` is text, steps and seeds like the others, without a teacher."""

JOINT = {"joint_mlm", "match", "clip_tokens"}
"""Objectives that need the cross-modal encoder."""


@dataclass(frozen=True)
class Vocabulary:
    """What masking needs to know of the student's tokenizer."""

    mask_id: int
    ordinary: list[int]
    """Ids that may stand in for a masked piece: all but special tokens."""


def _masked_lm(joint: bool) -> Callable[[Sizes, AdaptConfig, Vocabulary], Objective]:
    return lambda sizes, config, vocabulary: MaskedLM(
        sizes,
        mask_id=vocabulary.mask_id,
        replacements=vocabulary.ordinary,
        rate=config.mask_rate,
        scheme=config.mask_scheme,
        whole_word=config.whole_word,
        joint=joint,
    )


def _distill(kind: Any) -> Callable[[Sizes, AdaptConfig, Vocabulary], Objective]:
    return lambda sizes, config, vocabulary: Distill(
        sizes,
        kind=kind,
        sentence=config.sentence,
        word=config.word,
        temperature=config.temperature,
        pool=config.pool,
        targets=config.l1_targets,
        weight=config.distill_weight,
        warmup=config.distill_warmup,
    )


OBJECTIVES: dict[str, Callable[[Sizes, AdaptConfig, Vocabulary], Objective]] = {
    "mlm": _masked_lm(joint=False),
    "joint_mlm": _masked_lm(joint=True),
    "match": lambda sizes, config, vocabulary: Match(sizes, hard=config.hard_negatives),
    "clip_tokens": lambda sizes, config, vocabulary: ClipTokens(sizes, targets=config.clip_targets),
    "l1": _distill("l1"),
    "contrastive": _distill("contrastive"),
}
"""What an arm can be made of."""


def parts_of(arm: str) -> list[str]:
    """Objective names of an arm; raises InputError for an unknown name, and for both kinds of MLM at once."""
    names = [name for part in arm.split("+") for name in ARMS.get(part, part).split("+")]
    names = list(dict.fromkeys(names))
    unknown = [n for n in names if n not in OBJECTIVES]
    if unknown:
        raise InputError(
            f"--arm {arm}: {unknown[0]!r} is none of {', '.join([*ARMS, *OBJECTIVES])}"
        )
    if {"mlm", "joint_mlm"} <= set(names):
        names.remove("mlm")  # one masking per text: within XDBERT, MLM is joint
    return names


def adapt(config: AdaptConfig, training: TrainConfig, out: str | Path) -> dict[str, Any]:
    """Adapt the student and write `out/model`, a stock HF folder, and `out/result.json`; returns the result."""
    names = parts_of(config.arm)
    taught = bool({"l1", "contrastive"} & set(names))
    joint = bool(JOINT & set(names))
    for field, value, needed in (
        ("student", config.student, True),
        ("teacher", config.teacher, taught or joint),
    ):
        if needed and not value:
            raise InputError(f"--arm {config.arm} needs --{field} FOLDER_OR_HUB_ID")
    if config.save_joint and not joint:
        raise InputError(f"--save-joint: --arm {config.arm} has no cross-modal model; use xdbert")
    state = PartialState(cpu=training.cpu)
    inputs = {f"text:{number}": p for number, p in enumerate(config.text)} | {
        "student": config.student
    }
    if config.teacher:
        inputs["teacher"] = config.teacher
    with state.main_process_first():
        folder = open_run(out, "adapt", {**asdict(config), "train": asdict(training)}, inputs)
    if (done := finished(folder)) is not None:
        return done

    text = load_text_encoder(config.student)
    max_length = min(config.max_length, text.max_length)
    examples = corpus(config.text, config.form, text.tokenizer, max_length, config.max_texts)
    model: nn.Module = text
    sizes = text.sizes
    windows: WindowInput | None = None
    teachers: list[ClipTextTeacher] = []
    if taught or joint:
        clip, clip_tokenizer = load_clip_text(config.teacher)
        windows = WindowInput(clip_tokenizer, clip.window, config.max_windows)
        if joint:
            torch.manual_seed(seed_of(training.seed, "init", "cross"))
            clip.requires_grad_(not config.freeze_clip).logit_scale.requires_grad_(False)
            model = crossed = CrossModal(text, clip, config.cross_layers, clip_tokenizer)
            sizes = crossed.sizes
        sizes = sizes._replace(teacher=clip.width)
    data: Any = TextSamples(examples, TextInput(text.tokenizer, max_length), windows)
    if taught:
        # Its own copy: CrossModal trains its CLIP side, a teacher never changes.
        teacher = ClipTextTeacher(
            load_clip_text(config.teacher)[0], standardise=config.l1_targets == "standard"
        )
        teacher.to(state.device)
        needed = (
            data.lengths.sum() / 4 * teacher.width * 4 / 2**30
        )  # about four characters a word, four bytes a number
        if needed <= config.cache_gb or joint:
            data = Taught(data, teacher, keep_clip=joint)
        else:
            teachers = [teacher.fit(data)]

    words = vocabulary(text)
    objectives, heads = [], {}
    for name in names:
        torch.manual_seed(
            seed_of(training.seed, "init", name)
        )  # the same head in every arm that has it
        objective = OBJECTIVES[name](sizes, config, words)
        heads[name] = "new"
        if isinstance(objective, MaskedLM):
            heads[name] = start_lm_head(
                objective.head, config.student, text.encoder.config.model_type
            )
        objectives.append(objective)
    result = train(model, objectives, data, training, folder, teachers=teachers)
    result |= {"arm": config.arm, "objectives": names, "heads_from": heads, "texts": len(examples)}
    result["parameters"] = sum(p.numel() for p in text.encoder.parameters())
    if state.is_main_process:
        with disk_errors(folder / "model"):
            text.export(folder / "model")
            save_heads(folder / "model", objectives)
            if config.save_joint and isinstance(model, CrossModal):
                model.export(folder / "joint")
                save_heads(folder / "joint", objectives)
            (folder / "model" / "README.md").write_text(
                _card(config, training, result), encoding="utf-8"
            )
        write_json(folder / "result.json", result)
        Checkpoints(folder / "checkpoints").clear()
    state.wait_for_everyone()
    return result


def vocabulary(text: TextEncoder) -> Vocabulary:
    """Mask id and ordinary ids of an encoder's tokenizer; raises InputError if it has no mask token."""
    mask_id = text.tokenizer.mask_token_id
    if mask_id is None:
        raise InputError(
            f"{text.tokenizer.name_or_path}: the tokenizer has no mask token, masked LM is not possible"
        )
    special = set(text.tokenizer.all_special_ids)
    return Vocabulary(int(mask_id), [i for i in range(len(text.tokenizer)) if i not in special])


def _card(config: AdaptConfig, training: TrainConfig, result: dict[str, Any]) -> str:
    texts = "\n".join(f"- `{Path(p).name}`" for p in config.text)
    terms = ", ".join(f"{k} {v:.3f}" for k, v in result["last"].items())
    return f"""---
library_name: transformers
tags: [groundling, {config.arm.replace("+", "-")}]
---
# {Path(config.student).name}, adapted with groundling ({config.arm})

A stock `transformers` encoder with {result["parameters"]:,} parameters; load it with `AutoModel.from_pretrained`.

- student: `{config.student}`
- teacher: `{config.teacher or "none (control)"}`
- objectives: {", ".join(result["objectives"])}
- text ({result["texts"]} texts, {result["dropped_pieces"]} pieces cut off):
{texts}
- {result["steps"]} steps of {training.batch}, learning rate {training.lr}, seed {training.seed}
- last losses: {terms}

Heads used in training are in `groundling_heads.safetensors`; transformers ignores that file. The licences of the
student, the teacher and the text apply.
"""

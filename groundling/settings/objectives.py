"""Settings of the objectives, shared by several commands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from groundling.core.errors import InputError
from groundling.core.registry import is_import_path
from groundling.settings.fields import InputKind, Settings, above, at_least, between, unnested


@dataclass(frozen=True)
class MaskingSettings(Settings):
    """Masking of text tokens."""

    mask_rate: Annotated[float, above(0, below=1)] = 0.15
    """Share of tokens to mask."""
    mask_scheme: Literal["bert", "released"] = "bert"
    """bert: 80/10/10 (mask/random/keep) as in the papers; released: 81/9/10 as in XDBERT's code."""
    whole_word: bool = False
    """Mask whole words: all tokens of a word get the same replacement, and a text may end up \
without masked words (VL-BERT's code)."""


@dataclass(frozen=True)
class PretrainingObjectiveSettings(Settings):
    """Objectives of pre-training where paper and code differ or offer ablations."""

    task_answers: Literal["right", "any", "judged"] = "right"
    """--task: which answer a text contains. right: the right choice; any: one drawn anew in every \
epoch, so no label leaks (a question without choices, as in vqa, has no answer); judged: as any, \
and VisualBERT predicts whether it is right, or whether an NLVR2 statement is true (VisualBERT's \
code)."""
    region_classes: Literal["soft", "hard", "none"] = "soft"
    """VL-BERT and UNITER: target of masked regions: the detector's class distribution (soft, both \
releases), its top class (hard, the papers), or none."""
    sentence_image: bool = True
    """VisualBERT: predict whether both captions of a pair describe the image (off: ablation C4)."""
    related: bool = False
    """VL-BERT: predict whether caption and image belong together (first version of the paper; not \
in the release)."""


@dataclass(frozen=True)
class CrossModalSettings(Settings):
    """XDBERT's cross-modal encoder and its objectives."""

    cross_layers: Annotated[int, at_least(1)] = 2
    """Number of cross-modal layers (XDBERT Section 2.1)."""
    hard_negatives: Annotated[int, at_least(0)] = 0
    """match: candidates per negative text, of which the most similar is used; 0: one random \
candidate, as in the paper."""
    match_negatives: Literal["random", "length"] = "random"
    """match: negative texts are drawn from all texts, as in the paper, or from texts of nearly \
the same length, so that length alone does not reveal them."""
    clip_targets: Literal["real", "released"] = "real"
    """clip_tokens: predict real tokens only (real), or all 9 x 77 positions, padding included, as \
in XDBERT's code (released)."""
    freeze_clip: bool = False
    """Freeze the CLIP side of the cross-modal model (XDBERT trains it)."""
    save_joint: bool = False
    """Also save the whole cross-modal model, in the subfolder `joint`, for full-model fine-tuning \
and attention maps."""


@dataclass(frozen=True)
class DistillationSettings(Settings):
    """Distillation from a frozen teacher."""

    distill_weight: Annotated[float, at_least(0)] = 1.0
    """l1 and contrastive: weight of both terms together."""
    sentence_weight: Annotated[float, at_least(0)] = 1.0
    """l1 and contrastive: weight of the sentence term."""
    word_weight: Annotated[float, at_least(0)] = 1.0
    """l1 and contrastive: weight of the word term."""
    temperature: Annotated[float, above(0)] = 0.07
    """contrastive: temperature of both terms."""
    pooling: Literal["own", "cls", "mean"] = "own"
    """Sentence pooling of the student: own: as its sentence-transformers folder defines, else the \
first position; cls: the first position; mean: the mean over tokens without special tokens."""
    l1_targets: Literal["standard", "unit"] = "standard"
    """l1: targets are standardised teacher features (standard), or unit vectors (unit, CLIP-TD)."""
    max_windows: Annotated[int, at_least(0)] = 0
    """Maximum number of windows in which CLIP reads a text, each of CLIP's context length; the \
rest is truncated and counted. 0: as many as needed; for blocks 9 windows of 77 tokens (XDBERT), \
or the same number of tokens in windows of another size."""
    cache_gb: Annotated[float, between(0, math.inf)] = 2.0
    """Cache a text teacher's features if they need fewer gigabytes of disk than this, else \
compute them in every step. Features of an image teacher are always cached, unless this is 0."""


@dataclass(frozen=True)
class TargetedDistillationSettings(Settings):
    """CLIP Targeted Distillation (CLIP-TD): the teacher and the objectives td_image, td_text and
    td_words.
    """

    teacher_images: Annotated[str, InputKind.FOLDER] = ""
    """CLIP-TD: folder of the teacher's images; an image's id is its path in this folder, without \
the file ending."""
    teacher_text: Annotated[str, InputKind.MODEL] = ""
    """CLIP-TD: another model as the teacher's text tower (the paper's MAD): hub id or folder; \
empty: the text tower of --teacher."""
    teacher_scorer: Annotated[str, InputKind.MODEL] = ""
    """CLIP-TD: CLIP that scores how well image and text match, if the teacher's two towers come \
from different models."""
    teacher_cache: str = ""
    """Folder that keeps the teacher's features for other runs; empty: they stay in the run folder \
until the run ends."""
    teacher_space: Literal["joint", "pre_projection"] = "joint"
    """CLIP-TD: use the teacher's features after its projections (joint) or before them."""
    num_words: Annotated[int, at_least(1)] = 2
    """CLIP-TD: number of words per text that td_words distils."""
    word_selection: Literal["top", "random"] = "top"
    """CLIP-TD: distil the highest-scoring words, or random words (the control)."""
    relevance: Literal["contextual", "isolated"] = "contextual"
    """CLIP-TD: visual relevance of a word in its context (contextual), or of the word alone \
(isolated)."""
    keyword_extractor: str = ""
    """CLIP-TD: MODULE:NAME of your own keyword extractor; empty: YAKE, implemented from its \
published formulas."""
    td_weight: Annotated[float, at_least(0)] = 0.05
    """CLIP-TD: weight of td_image, td_text and td_words."""
    td_reduction: Literal["sum", "mean"] = "sum"
    """CLIP-TD: L1 summed or averaged over the feature dimensions."""
    td_unit: bool = True
    """CLIP-TD: normalise the student's projected states to unit length, as the teacher's features \
are."""
    td_words_reduction: Literal["mean", "sum"] = "mean"
    """CLIP-TD: mean over the selected words of a text, or their sum (Eq. 7 taken literally)."""
    td_choices: Literal["all", "right"] = "all"
    """CLIP-TD: distil all answer choices, or only the right one (Table 8)."""
    td_gate: Literal["none", "question", "pair"] = "none"
    """CLIP-TD: distil only where the teacher is more confident than the student, compared per \
question or per image-text pair."""
    td_temperature: Annotated[float, above(0)] = 1.0
    """CLIP-TD: temperature T of the comparison in --td-gate; a higher T favours the teacher."""


@dataclass(frozen=True)
class OptionSettings(Settings):
    """Options of the user's own objectives and teachers."""

    option: tuple[str, ...] = ()
    """Options of your own objectives and teachers, each NAME=VALUE, e.g. margin=0.5: an objective \
reads `ObjectiveContext.options`, a function that makes a teacher gets them as its argument."""


def parse_options(given: Sequence[str]) -> dict[str, str]:
    """Values of `--option` by name; raises InputError for one that is malformed or repeated."""
    options: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--option {one}: expected NAME=VALUE, e.g. margin=0.5")
        if name in options:
            raise InputError(f"--option {name}: given twice; give it once")
        options[name] = value
    return options


@dataclass(frozen=True)
class ObjectiveSettings(Settings):
    """Settings of objectives, in every command that trains with them.

    An objective with its own settings declares their group here, and its `ObjectiveSpec` lists the
    group in `reads`.
    """

    masking: MaskingSettings = field(default_factory=MaskingSettings)
    distillation: DistillationSettings = field(default_factory=DistillationSettings)
    targeted_distillation: TargetedDistillationSettings = field(
        default_factory=TargetedDistillationSettings
    )
    options: Annotated[OptionSettings, unnested] = field(default_factory=OptionSettings)


def teacher_inputs(source: str, options: TargetedDistillationSettings) -> dict[str, str | Path]:
    """Models and images of the teachers, whose hashes identify a run."""
    return {
        "teacher": "" if is_import_path(source) else source,
        "teacher_text": options.teacher_text,
        "teacher_scorer": options.teacher_scorer,
        "teacher_images": options.teacher_images,
    }


@dataclass(frozen=True)
class AdversarialSettings(Settings):
    """VILLA's adversarial training (`--training-step villa`); defaults are those of its VCR run with
    BERT-base.

    Source: zhegan27/VILLA, config/train-vcr-base-4gpu-adv.json.
    """

    adversarial_steps: Annotated[int, at_least(1)] = 3
    """--training-step villa: forward passes per micro-batch; the first starts without a \
perturbation (VILLA's code: 3)."""
    adversarial_modality: Literal["both", "text", "image", "alternate"] = "both"
    """--training-step villa: what is perturbed: the word embeddings (text), the region features \
(image), both, or one after the other in separate passes (alternate; "alter" in VILLA's code, used \
in none of its runs). VILLA's code: both for VCR, text for VQA, SNLI-VE and NLVR2."""
    adversarial_lr: Annotated[float, at_least(0)] = 1e-2
    """--training-step villa: step size of the gradient ascent (VILLA's code: 1e-2 for VCR, 1e-3 \
for other tasks; with BERT-large 1e-1 for VCR)."""
    adversarial_norm: Literal["l2", "linf"] = "l2"
    """--training-step villa: norm in which the step size is measured, over all positions of a row \
(VILLA's code: l2)."""
    adversarial_kl_weight: Annotated[float, at_least(0)] = 1.5
    """--training-step villa: weight of the KL divergence from the clean pass (VILLA's code: 1.5; \
1 for VQA and VCR with BERT-large)."""
    adversarial_kl_reduction: Literal["sum", "mean"] = "sum"
    """--training-step villa: KL divergence summed over the classes, or averaged over them, as \
VILLA's code does for VCR only, where this halves it."""


@dataclass(frozen=True)
class TrainingStepSettings(Settings):
    """Training step on a micro-batch."""

    training_step: Annotated[str, InputKind.TRAINING_STEP] = ""
    """Training step: villa (adversarial training), or MODULE:NAME of your own; empty: one forward \
and one backward pass."""
    adversarial: AdversarialSettings = field(default_factory=AdversarialSettings)


@dataclass(frozen=True)
class ExtraObjectiveSettings(Settings):
    """Auxiliary objectives and their teacher."""

    objectives: tuple[str, ...] = ()
    """Auxiliary objectives, by name, e.g. contrastive, or MODULE:NAME of your own."""
    teacher: Annotated[str, InputKind.WEIGHTS] = ""
    """Frozen teacher of the auxiliary objectives: hub id or folder of a CLIP-like model, \
open_clip:NAME/TAG, or MODULE:NAME of your own."""

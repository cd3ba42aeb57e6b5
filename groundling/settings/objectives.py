"""What objectives are set by: settings that several commands have."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from groundling.core.registry import is_import_path
from groundling.settings.fields import InputKind, Settings, above, at_least, between


@dataclass(frozen=True)
class MaskingSettings(Settings):
    """How pieces of text are masked."""

    mask_rate: Annotated[float, above(0, below=1)] = 0.15
    """Share of pieces masked."""
    mask_scheme: Literal["bert", "released"] = "bert"
    """80/10/10 as the papers say, or 81/9/10 as XDBERT's released code does."""
    whole_word: bool = False
    """Mask all pieces of a word together, with one fate, and no word at all where none is drawn (VL-BERT's code)."""


@dataclass(frozen=True)
class PretrainingObjectiveSettings(Settings):
    """What a vision-language model is pre-trained with, of what its paper or code leaves open."""

    task_answers: Literal["right", "any", "judged"] = "right"
    """--task: the right choice with each question; or any, drawn anew in every epoch, so that no label is told (a \
question that has no choices, as in vqa, stands alone); or judged, any too, and VisualBERT predicts whether it is \
right, or an NLVR2 statement true (its code)."""
    region_classes: Literal["soft", "hard", "none"] = "soft"
    """VL-BERT and UNITER: masked regions predict the detector's distribution (both releases), its best class (the \
papers), or no classes."""
    sentence_image: bool = True
    """VisualBERT: predict whether both captions are of the image (ablation C4 leaves it out)."""
    related: bool = False
    """VL-BERT: predict whether caption and image are related (first version; the release leaves it out)."""


@dataclass(frozen=True)
class CrossModalSettings(Settings):
    """XDBERT's cross-modal encoder and its objectives."""

    cross_layers: Annotated[int, at_least(1)] = 2
    """Cross-modal layers (XDBERT Section 2.1)."""
    hard_negatives: Annotated[int, at_least(0)] = 0
    """Match: candidates per negative, of which the most similar is taken; 0: the first drawn, as in the paper."""
    match_negatives: Literal["random", "length"] = "random"
    """Match: where the other text comes from: all texts, as in the paper, or those of nearly the same length, so that \
lengths alone do not tell."""
    clip_targets: Literal["real", "released"] = "real"
    """ClipTokenClassification: real pieces only, or every one of 9 x 77 slots, padding too, as XDBERT's released code does."""
    freeze_clip: bool = False
    """Keep the CLIP side of the cross-modal model as it is (XDBERT trains it)."""
    save_joint: bool = False
    """Also keep the whole cross-modal model, in `joint`: for full-model fine-tuning and attention maps."""


@dataclass(frozen=True)
class DistillationSettings(Settings):
    """What is distilled from a frozen teacher, and how."""

    distill_weight: Annotated[float, at_least(0)] = 1.0
    """Weight of the l1 or contrastive terms."""
    sentence_weight: Annotated[float, at_least(0)] = 1.0
    """Share of the sentence term."""
    word_weight: Annotated[float, at_least(0)] = 1.0
    """Share of the word term."""
    temperature: Annotated[float, above(0)] = 0.07
    """Temperature of the contrastive terms."""
    pooling: Literal["own", "cls", "mean"] = "own"
    """Student's sentence feature: as its sentence-transformers folder says, else its first position (own); its first \
position (cls); the mean of its states, special pieces left out (mean)."""
    l1_targets: Literal["standard", "unit"] = "standard"
    """L1 on standardised teacher features, or on unit vectors (CLIP-TD)."""
    max_windows: Annotated[int, at_least(0)] = 0
    """Most CLIP windows per text, the rest is dropped and counted; 0: as many as needed, of blocks 9 of 77 (XDBERT) \
or as many places in windows of another size."""
    cache_gb: Annotated[float, between(0, math.inf)] = 2.0
    """A text teacher's features are computed once if they take less disk than this, else in every step; those of a \
teacher of images are always computed once, but for 0."""


@dataclass(frozen=True)
class TargetedDistillationSettings(Settings):
    """CLIP Targeted Distillation (CLIP-TD): its teacher, and the objectives td_image, td_text and td_words."""

    teacher_images: Annotated[str, InputKind.FOLDER] = ""
    """CLIP-TD: folder of the images that the teacher sees; ids are paths there without the ending."""
    teacher_text: Annotated[str, InputKind.MODEL] = ""
    """CLIP-TD: another model for the teacher's text tower (MAD); empty: the same."""
    teacher_scorer: Annotated[str, InputKind.MODEL] = ""
    """CLIP-TD: a CLIP that says how well image and text fit, where the two towers come from different models."""
    teacher_cache: str = ""
    """Folder in which the teacher's features, computed once, stay for other runs; empty: in the run folder, until the \
run ends."""
    teacher_space: Literal["joint", "pre_projection"] = "joint"
    """CLIP-TD: the teacher's features after its projections, or before."""
    num_words: Annotated[int, at_least(1)] = 2
    """CLIP-TD: words of each text that td_words distils."""
    word_selection: Literal["top", "random"] = "top"
    """CLIP-TD: those words are the ones that matter most, or random ones (the control)."""
    relevance: Literal["contextual", "isolated"] = "contextual"
    """CLIP-TD: a word's visual relevance is that of its place in the text, or of the word by itself."""
    keyword_extractor: str = ""
    """CLIP-TD: MODULE:NAME of what finds a text's keywords; empty: YAKE's published formulas."""
    td_weight: Annotated[float, at_least(0)] = 0.05
    """CLIP-TD: weight of td_image, td_text and td_words."""
    td_reduction: Literal["sum", "mean"] = "sum"
    """CLIP-TD: L1 summed over a feature's numbers, or their mean."""
    td_unit: bool = True
    """CLIP-TD: the student's projected states have unit length, as the teacher's features have."""
    td_words_reduction: Literal["mean", "sum"] = "mean"
    """CLIP-TD: mean over the selected words of a text, or their sum (Eq. 7 taken literally)."""
    td_choices: Literal["all", "right"] = "all"
    """CLIP-TD: distil all answer choices, or the right one alone (Table 8)."""
    td_gate: Literal["none", "question", "pair"] = "none"
    """CLIP-TD: distil only where the teacher is surer than the student: of a question, or of each pair by itself."""
    td_temperature: Annotated[float, above(0)] = 1.0
    """CLIP-TD: T of that comparison; the larger, the more often the teacher is taken for the surer one."""


@dataclass(frozen=True)
class ObjectiveSettings(Settings):
    """What objectives are set by, in every command that trains with them.

    An objective with settings of its own declares their group here, and its `ObjectiveSpec` names it among `reads`.
    """

    masking: MaskingSettings = field(default_factory=MaskingSettings)
    distillation: DistillationSettings = field(default_factory=DistillationSettings)
    targeted_distillation: TargetedDistillationSettings = field(
        default_factory=TargetedDistillationSettings
    )


def teacher_inputs(source: str, options: TargetedDistillationSettings) -> dict[str, str | Path]:
    """The models and images of a run's teachers, whose hashes tell it from other runs."""
    return {
        "teacher": "" if is_import_path(source) else source,
        "teacher_text": options.teacher_text,
        "teacher_scorer": options.teacher_scorer,
        "teacher_images": options.teacher_images,
    }


@dataclass(frozen=True)
class AdversarialSettings(Settings):
    """VILLA's adversarial passes, of `--training-step villa`; defaults are those of its VCR run with BERT-base.

    Source: zhegan27/VILLA, config/train-vcr-base-4gpu-adv.json.
    """

    adversarial_steps: Annotated[int, at_least(1)] = 3
    """--training-step villa: perturbed passes of a micro-batch, the first of which has no perturbation yet (release: 3)."""
    adversarial_modality: Literal["both", "text", "image", "alternate"] = "both"
    """--training-step villa: what is perturbed: both at once, the text's word embeddings, the regions' features, or one after \
the other in passes of their own (the release's "alter", in none of its runs). Release: both for VCR, text for VQA, \
SNLI-VE and NLVR2."""
    adversarial_lr: Annotated[float, at_least(0)] = 1e-2
    """--training-step villa: size of a step up the gradient (release: 1e-2 for VCR, 1e-3 for others; large: 1e-1 for VCR)."""
    adversarial_norm: Literal["l2", "linf"] = "l2"
    """--training-step villa: norm that this size is measured in, over all positions of a row (release: l2)."""
    adversarial_kl_weight: Annotated[float, at_least(0)] = 1.5
    """--training-step villa: weight of the divergence from the clean pass (release: 1.5; 1 for VQA and VCR with BERT-large)."""
    adversarial_kl_reduction: Literal["sum", "mean"] = "sum"
    """--training-step villa: divergence of an answer: sum over its classes, or their mean, as the release has it for VCR \
alone, which halves it."""


@dataclass(frozen=True)
class TrainingStepSettings(Settings):
    """What happens to a micro-batch between two optimizer steps."""

    training_step: Annotated[str, InputKind.INNER] = ""
    """villa (adversarial training), or MODULE:NAME of an inner step of your own; empty: one forward, one backward."""
    adversarial: AdversarialSettings = field(default_factory=AdversarialSettings)


@dataclass(frozen=True)
class ExtraObjectiveSettings(Settings):
    """Objectives beside those of a task or of a model's own pre-training, and their teacher."""

    objectives: tuple[str, ...] = ()
    """Objectives by name, e.g. contrastive, or MODULE:NAME of your own."""
    teacher: Annotated[str, InputKind.WEIGHTS] = ""
    """Frozen teacher of these: hub id or folder of a CLIP-like model, or MODULE:NAME of your own."""

"""Settings of the objectives, shared by several commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval
from pydantic import AllowInfNan

from groundling.core.errors import convert_errors
from groundling.settings.fields import InputKind, Settings, settings


@settings
class MaskingSettings(Settings):
    """Masking of text tokens."""

    mask_rate: Annotated[float, Interval(gt=0, lt=1)] = 0.15
    """Share of tokens to mask."""
    mask_scheme: Literal["bert", "released"] = "bert"
    """bert: 80/10/10 (mask/random/keep) as in the papers; released: 81/9/10 as in XDBERT's code."""
    whole_word: bool = False
    """Mask whole words: all tokens of a word get the same replacement, and a text may end up \
without masked words (VL-BERT's code)."""


@settings
class PretrainingVariantSettings(Settings):
    """Objectives of pre-training where paper and code differ or offer ablations."""

    task_answers: Literal["right", "any", "judged"] = "right"
    """--task: which answer a text contains. right: the right choice; any: one drawn anew in every epoch, so no label \
leaks (a question without choices, as in vqa, has no answer); judged: as any, and VisualBERT predicts whether it is \
right, or whether an NLVR2 statement is true (VisualBERT's code)."""
    region_classes: Literal["soft", "hard", "none"] = "soft"
    """VL-BERT and UNITER: target of masked regions: the detector's class distribution (soft, both \
releases), its top class (hard, the papers), or none."""
    sentence_image: bool = True
    """VisualBERT: predict whether both captions of a pair describe the image (off: ablation C4)."""
    related: bool = False
    """VL-BERT: predict whether caption and image belong together (first version of the paper; not in the release)."""


@settings
class CrossModalEncoderSettings(Settings):
    """XDBERT's cross-modal encoder and its objectives."""

    cross_layers: Annotated[int, Ge(1)] = 2
    """Number of cross-modal layers (XDBERT Section 2.1)."""
    hard_negatives: Annotated[int, Ge(0)] = 0
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


@settings
class NoSettings(Settings):
    """The settings of an objective without any."""


@settings
class PoolingSettings(Settings):
    """The student's sentence vector, which several objectives read."""

    pooling: Literal["own", "cls", "last", "mean"] = "own"
    """Sentence pooling of the student: own: as its sentence-transformers folder defines, without one \
the first position (a causal student: the last); cls: the first position; last: the last; mean: the \
mean over tokens without special tokens."""


@settings
class DistillationSettings(PoolingSettings):
    """Distillation from a frozen teacher."""

    distill_weight: Annotated[float, Ge(0)] = 1.0
    """l1 and contrastive: weight of both terms together."""
    sentence_weight: Annotated[float, Ge(0)] = 1.0
    """l1 and contrastive: weight of the sentence term."""
    word_weight: Annotated[float, Ge(0)] = 1.0
    """l1 and contrastive: weight of the word term."""
    temperature: Annotated[float, Gt(0)] = 0.07
    """contrastive: temperature of both terms."""
    l1_targets: Literal["standard", "unit"] = "standard"
    """l1: targets are standardised teacher features (standard), or unit vectors (unit, CLIP-TD)."""
    max_windows: Annotated[int, Ge(0)] = 0
    """Maximum number of windows in which CLIP reads a text, each of CLIP's context length; the \
rest is truncated and counted. 0: as many as needed; for blocks 9 windows of 77 tokens (XDBERT), \
or the same number of tokens in windows of another size."""
    cache_gb: Annotated[float, Ge(0), AllowInfNan()] = 2.0
    """Cache a text teacher's features if they need fewer gigabytes of disk than this, else \
compute them in every step. Features of an image teacher are always cached, unless this is 0."""


@settings
class TeacherTowerSettings(Settings):
    """The two towers of CLIP-TD's teacher."""

    teacher_text: Annotated[str, InputKind.MODEL] = ""
    """CLIP-TD: another model as the teacher's text tower (the paper's MAD): hub id or folder; \
empty: the text tower of --teacher."""
    teacher_scorer: Annotated[str, InputKind.MODEL] = ""
    """CLIP-TD: CLIP that scores how well image and text match, if the teacher's two towers come \
from different models."""


@settings
class TargetedDistillationSettings(TeacherTowerSettings):
    """CLIP Targeted Distillation (CLIP-TD): teacher; td_image, td_text, td_words, td_image_text."""

    teacher_images: Annotated[str, InputKind.FOLDER] = ""
    """CLIP-TD: folder of the teacher's images; an image's id is its path in this folder, without the file ending."""
    teacher_cache: str = ""
    """Folder that keeps the teacher's features for other runs; empty: they stay in the run folder \
until the run ends."""
    teacher_space: Literal["joint", "pre_projection"] = "joint"
    """CLIP-TD: use the teacher's features after its projections (joint) or before them."""
    num_words: Annotated[int, Ge(1)] = 2
    """CLIP-TD: number of words per text that td_words distils."""
    word_selection: Literal["top", "random"] = "top"
    """CLIP-TD: distil the highest-scoring words, or random words (the control)."""
    relevance: Literal["contextual", "isolated"] = "contextual"
    """CLIP-TD: visual relevance of a word in its context (contextual), or of the word alone (isolated)."""
    keyword_extractor: Annotated[str, InputKind.OBJECT] = ""
    """CLIP-TD: MODULE:NAME of your own keyword extractor; empty: YAKE, implemented from its published formulas."""
    td_weight: Annotated[float, Ge(0)] = 0.05
    """CLIP-TD: weight of td_image, td_text, td_words and td_image_text."""
    td_distance: Literal["l1", "l2"] = "l1"
    """CLIP-TD: absolute differences (l1, the paper), which fit the median of the targets, or squared \
ones (l2), which fit their mean."""
    td_reduction: Literal["sum", "mean"] = "sum"
    """CLIP-TD: differences summed or averaged over the feature dimensions."""
    td_unit: bool = True
    """CLIP-TD: normalise the student's projected states to unit length, as the teacher's features are."""
    td_words_reduction: Literal["mean", "sum"] = "mean"
    """CLIP-TD: mean over the selected words of a text, or their sum (Eq. 7 taken literally)."""
    td_choices: Literal["all", "right"] = "all"
    """CLIP-TD: distil all answer choices, or only the right one (Table 8)."""
    td_gate: Literal["none", "question", "pair"] = "none"
    """CLIP-TD: distil only where the teacher is more confident than the student, compared per \
question or per image-text pair."""
    td_temperature: Annotated[float, Gt(0)] = 1.0
    """CLIP-TD: temperature T of the comparison in --td-gate; a higher T favours the teacher."""


@settings
class SimilarityDistillationSettings(TeacherTowerSettings):
    """Distillation of a CLIP's similarities of image and choices."""

    td_similarity_weight: Annotated[float, Ge(0)] = 1.0
    """td_similarity: its weight."""


@settings
class StateDistillationSettings(Settings):
    """Distillation of a text encoder's token states (VidLanKD): objectives nst, crd and nt_xent."""

    kd_teacher: Annotated[str, InputKind.MODEL] = ""
    """nst, crd and nt_xent: frozen text encoder whose token states are distilled: hub id or \
folder, with the student's tokenizer. VidLanKD: a BERT that its teacher stage grounded in videos."""
    kd_weight: Annotated[float, Ge(0)] = 1.0
    """nst, crd and nt_xent: weight of each (VidLanKD's code: 1)."""
    kd_variant: Literal["paper", "released"] = "paper"
    """nst and nt_xent: over a sentence's tokens, averaged (paper), or as in VidLanKD's code \
(released): padding and special tokens included; nst without the teacher's constant term and \
summed over the micro-batch; both divided by its length in tokens, nt_xent also by its 2 x B items."""
    crd_temperature: Annotated[float, Gt(0)] = 0.07
    """crd: temperature (0.07 in the code of CRD and in the first version of VidLanKD's; CRD's \
paper: 0.1 on CIFAR-100)."""
    crd_negatives: Annotated[int, Ge(0)] = 0
    """crd: N, the number of negatives of a token: the states at its position in the next N sentences of the batch; 0: \
of all others. CRD's code draws 16384 from a memory of the data set; the first version of VidLanKD's: batch size - 1."""
    crd_cardinality: Annotated[int, Ge(0)] = 0
    """crd: M of N/M, the number of items that negatives are drawn from; 0: the sentences of the batch at that \
position. The paper: the size of the data set (CIFAR-100: 50000; the first version of VidLanKD's code: 1000000)."""
    crd_partition: Literal["none", "first_batch"] = "none"
    """crd: scores as in the paper's formula (none), or divided by a constant, M times the mean \
score of the first batch, as in CRD's code (first_batch)."""


@settings
class VokenizerSettings(Settings):
    """Vokenization's first stage (Tan and Bansal 2020): the objective token_image_matching."""

    vokenizer_head: Literal["mlp", "none"] = "mlp"
    """token_image_matching: text head: Linear, ReLU, dropout, Linear (mlp, Vokenization), or the \
states themselves (none, VidLanKD's teacher, with --vokenizer-layers 1); the image always has one."""
    vokenizer_layers: Annotated[int, Ge(1)] = 4
    """token_image_matching: number of the text encoder's last layers, concatenated (Vokenization: 4)."""
    vokenizer_width: Annotated[int, Ge(1)] = 64
    """token_image_matching: dimensions of token and image vectors (Vokenization: 64; not used with \
--vokenizer-head none)."""
    vokenizer_margin: Annotated[float, Gt(0)] = 0.5
    """token_image_matching: margin of the hinge, in cosine (Vokenization: 0.5; VidLanKD's code: 1)."""
    vokenizer_hinge: Literal["paper", "released"] = "paper"
    """token_image_matching: paper: the negative is a random other image of the batch, special \
tokens are not scored; released: it is the item half a batch away, special tokens are scored."""
    vokenizer_frozen: bool = True
    """token_image_matching: train only the heads, not the text encoder (Vokenization)."""


@settings
class VokenSettings(Settings):
    """Vokenization's second stage: the objective voken_classification."""

    voken_matcher: Annotated[str, InputKind.FOLDER] = ""
    """voken_classification: folder `model` of a run of token_image_matching, with the student's \
tokenizer; --teacher and --teacher-space must be those of that run."""
    voken_images: Annotated[str, InputKind.FOLDER] = ""
    """voken_classification: folder of images that may become vokens (Vokenization: 50,000 of Visual \
Genome); empty: --teacher-images, or, with --teacher vectors:FOLDER, all images that have a vector."""
    voken_weight: Annotated[float, Ge(0)] = 1.0
    """voken_classification: weight of its loss (Vokenization: 1, as masked LM's)."""
    voken_control: Literal["none", "random", "shuffled", "reversed", "token_id"] = "none"
    """voken_classification: controls of Vokenization's code: random vokens, drawn anew in each epoch; a text's vokens \
shuffled among its tokens, or in reverse order; each token's own id in place of an image."""


@settings
class LexiContrastiveSettings(Settings):
    """LexiContrastive Grounding (LCG): the objective lexi_contrastive."""

    lcg_layer: Annotated[int, Ge(1)] = 1
    """LCG: number of layers whose output is compared with the image (paper and released code: 1)."""
    lcg_attention: Literal["causal", "bidirectional", "full"] = "causal"
    """LCG: what a token reads in these layers: itself and the previous token (causal, as in paper \
and released code, which train a causal model), also the next token (bidirectional), or the whole \
text, as the encoder does elsewhere (full)."""
    lcg_positions: Annotated[int, Ge(1)] = 2048
    """LCG: maximum number of tokens of a micro-batch that are compared with images, drawn at random \
(released code: 2048 positions, padding included)."""
    lcg_weight: Annotated[float, Ge(0)] = 0.3
    """LCG: weight of both directions (released code: 0.3, beside next-token prediction with 1)."""
    lcg_negatives: Literal["tokens", "released"] = "tokens"
    """LCG: negatives of an image's token are the other captions' tokens (tokens), or also their \
padding, as in LCG's code (released)."""
    lcg_image_to_text: Literal["standard", "released"] = "standard"
    """LCG: the image that is compared with a token and its negatives: the token's own (standard), or \
that numbered by the token's position modulo the batch, as in LCG's code (released)."""


@settings
class SimCSESettings(PoolingSettings):
    """SimCSE: the objective simcse."""

    simcse_temperature: Annotated[float, Gt(0)] = 0.05
    """simcse: temperature (released code: 0.05)."""


@settings
class MCSESettings(PoolingSettings):
    """MCSE: the objective mcse, beside simcse."""

    mcse_temperature: Annotated[float, Gt(0)] = 0.05
    """mcse: temperature (released code: 0.05)."""
    mcse_weight: Annotated[float, Ge(0)] = 0.01
    """mcse: weight; simcse has 1 (released scripts: 0.01 for captions and Wikipedia, \
0.05 for captions alone)."""


@settings
class GroundedSpaceSettings(PoolingSettings):
    """The grounded space of Bordes et al. 2019."""

    cluster_weight: Annotated[float, Gt(0)] = 1.0
    """grounded_space and visual_cluster: weight of the cluster term (we do not know the paper's value)."""
    perceptual_weight: Annotated[float, Gt(0)] = 1.0
    """grounded_space and visual_perceptual: weight of the perceptual term (we do not know the paper's value)."""
    cluster_margin: Annotated[float, Gt(0)] = 0.5
    """grounded_space and visual_cluster: margin between the cosines of a positive and a negative \
(paper: about 0.5, from memory)."""
    grounded_size: Annotated[int, Ge(1)] = 512
    """Width of the grounded space, and of the hidden layer before it (we do not know the paper's value)."""


@settings
class Cap2ImgSettings(PoolingSettings):
    """Cap2Img (Kiela et al. 2018, objective caption_to_image); the sentence vector follows `--pooling`."""

    caption_to_image_weight: Annotated[float, Gt(0)] = 1.0
    """caption_to_image: weight of its term."""
    caption_to_image_margin: Annotated[float, Gt(0)] = 0.2
    """caption_to_image: margin alpha between the cosines of the right and of a wrong pair (0.2 is \
usual for this loss; we do not know the paper's value)."""


@settings
class MimicrySettings(PoolingSettings):
    """CLIP-KD's feature distillation (objective feature_mimicry)."""

    mimicry_weight: Annotated[float, Gt(0)] = 2000.0
    """feature_mimicry: weight of its term (CLIP-KD's scripts: 2000)."""
    mimicry_target: Literal["image", "text"] = "image"
    """feature_mimicry: the teacher's embedding of the caption's image, which needs no text tower, or \
of the caption, which CLIP-KD's text tower mimics."""


@settings
class InteractiveContrastSettings(PoolingSettings):
    """CLIP-KD's interactive contrastive learning (objective interactive_contrast)."""

    interactive_weight: Annotated[float, Gt(0)] = 1.0
    """interactive_contrast: weight of its term (CLIP-KD's scripts: 1)."""
    interactive_scale: Literal["learned", "released"] = "learned"
    """interactive_contrast: the learned inverse temperature, from 1 / 0.07; released: its logarithm \
in its place, as in CLIP-KD's code."""


@settings
class AffinitySettings(PoolingSettings):
    """CLIP-KD's relational distillation across towers (objective affinity_distillation)."""

    affinity_weight: Annotated[float, Gt(0)] = 1.0
    """affinity_distillation: weight of its term."""
    affinity_scale: Annotated[float, Gt(0)] = 100.0
    """affinity_distillation: inverse temperature of both distributions (100: that of OpenAI's CLIPs)."""


@settings
class RelationalSettings(PoolingSettings):
    """Relational knowledge distillation (objective relational_kd)."""

    relational_weight: Annotated[float, Ge(0)] = 1.0
    """relational_kd: weight of both terms together."""
    relational_distance: Annotated[float, Ge(0)] = 25.0
    """relational_kd: weight of the distances' term (HobbitLong/RepDistiller, distiller_zoo/RKD.py: 25)."""
    relational_angle: Annotated[float, Ge(0)] = 50.0
    """relational_kd: weight of the angles' term (RepDistiller: 50)."""
    relational_target: Literal["image", "text"] = "image"
    """relational_kd: relations among the teacher's embeddings of images, or of captions."""


@settings
class MaskedLMDistillationSettings(MaskingSettings):
    """Distillation of masked-LM predictions from a teacher that sees the image (ViComTe)."""

    mlm_teacher: Annotated[str, InputKind.MODEL] = ""
    """mlm_distillation: folder of a CLIP-BERT, `joint` of a run of `--arm visual_token_mlm \
--save-joint`; --teacher is the CLIP that it was trained with."""
    mlm_distillation_positions: Literal["tokens", "masked", "released"] = "tokens"
    """mlm_distillation: positions in the loss. tokens: the mean over all but special tokens and padding; masked: the \
mean over masked tokens; released: the sum over every position, padding included, per text, as in ViComTe's code."""


def parse_options(given: Sequence[str]) -> dict[str, str]:
    """Values of `--option` by name; raises InputError for one without a value."""
    with convert_errors("option: expected NAME=VALUE, e.g. margin=0.5"):
        return {name: value for name, value in (one.split("=", 1) for one in given)}


@settings
class ObjectiveSettings(Settings):
    """Options of your own objectives and teachers.

    The groups are the settings of the built-in objectives, without torch, so that help is fast. Those of an
    objective whose `Settings` are not among these groups are given by `option`.
    """

    masking: MaskingSettings = MaskingSettings()
    distillation: DistillationSettings = DistillationSettings()
    targeted_distillation: TargetedDistillationSettings = TargetedDistillationSettings()
    similarity_distillation: SimilarityDistillationSettings = SimilarityDistillationSettings()
    state_distillation: StateDistillationSettings = StateDistillationSettings()
    vokenizer: VokenizerSettings = VokenizerSettings()
    vokens: VokenSettings = VokenSettings()
    lexi_contrastive: LexiContrastiveSettings = LexiContrastiveSettings()
    simcse: SimCSESettings = SimCSESettings()
    mcse: MCSESettings = MCSESettings()
    grounded_space: GroundedSpaceSettings = GroundedSpaceSettings()
    caption_to_image: Cap2ImgSettings = Cap2ImgSettings()
    mimicry: MimicrySettings = MimicrySettings()
    interactive_contrast: InteractiveContrastSettings = InteractiveContrastSettings()
    affinity: AffinitySettings = AffinitySettings()
    relational: RelationalSettings = RelationalSettings()
    masked_lm_distillation: MaskedLMDistillationSettings = MaskedLMDistillationSettings()
    option: tuple[str, ...] = ()
    """Options of your own objectives and teachers, each NAME=VALUE, e.g. margin=0.5: values of an \
objective's `Settings`; a function that makes a teacher gets them as its argument."""


@settings
class TrainingStepSettings(Settings):
    """Training step on a micro-batch; defaults of VILLA are those of its VCR run with BERT-base.

    Source: zhegan27/VILLA, config/train-vcr-base-4gpu-adv.json.
    """

    training_step: Annotated[str, InputKind.OBJECT] = ""
    """Training step: villa (adversarial training), or MODULE:NAME of your own; empty: one forward \
and one backward pass."""
    adversarial_steps: Annotated[int, Ge(1)] = 3
    """--training-step villa: forward passes per micro-batch; the first starts without a \
perturbation (VILLA's code: 3)."""
    adversarial_modality: Literal["both", "text", "image", "alternate"] = "both"
    """--training-step villa: what is perturbed: the word embeddings (text), the region features \
(image), both, or one after the other in separate passes (alternate; "alter" in VILLA's code, used \
in none of its runs). VILLA's code: both for VCR, text for VQA, SNLI-VE and NLVR2."""
    adversarial_lr: Annotated[float, Ge(0)] = 1e-2
    """--training-step villa: step size of the gradient ascent (VILLA's code: 1e-2 for VCR, 1e-3 \
for other tasks; with BERT-large 1e-1 for VCR)."""
    adversarial_norm: Literal["l2", "linf"] = "l2"
    """--training-step villa: norm in which the step size is measured, over all positions of a row \
(VILLA's code: l2)."""
    adversarial_kl_weight: Annotated[float, Ge(0)] = 1.5
    """--training-step villa: weight of the KL divergence from the clean pass (VILLA's code: 1.5; \
1 for VQA and VCR with BERT-large)."""
    adversarial_kl_reduction: Literal["sum", "mean"] = "sum"
    """--training-step villa: KL divergence summed over the classes, or averaged over them, as \
VILLA's code does for VCR only, where this halves it."""


@settings
class ExtraObjectiveSettings(Settings):
    """Auxiliary objectives and their teacher."""

    objectives: Annotated[tuple[str, ...], InputKind.OBJECT] = ()
    """Auxiliary objectives, by name, e.g. contrastive, or MODULE:NAME of your own."""
    teacher: Annotated[str, InputKind.MODEL] = ""
    """Frozen teacher of the auxiliary objectives: hub id or folder of a CLIP-like model, \
open_clip:NAME/TAG, or MODULE:NAME of your own."""

"""Settings of a run, as dataclasses; their docstrings are the command line's help. Imports nothing heavy.

Settings that travel together are groups of their own inside a command's settings; on the command line and in a sweep's
file every setting is called by its own name alone (`configured` and `changed` do the same in Python).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from groundling.documented import documented
from groundling.errors import InputError, nearest

Settings = TypeVar("Settings")


@cache  # the plan of a paper asks for them a hundred thousand times
def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)


@cache
def _has_fields(kind: Any) -> bool:
    return is_dataclass(kind)


def _is_group(value: object) -> bool:
    kind: Any = type(value)
    return _has_fields(kind)


def flat(config: object) -> list[tuple[object, Field[Any]]]:
    """Every single setting of a configuration, those of its groups too, with the group that holds it."""
    found: list[tuple[object, Field[Any]]] = []
    if not _is_group(config):
        return found
    kind: Any = type(config)
    for one in _fields(kind):
        value = config.__dict__[one.name]
        if _is_group(value):
            found += flat(value)
        else:
            found.append((config, one))
    return found


def changed(config: Settings, /, **values: object) -> Settings:
    """A copy with some settings changed, each by its own name, in whichever group it stands.

    Raises InputError for a name that there is not.
    """
    names = {one.name for _, one in flat(config)}
    for name in values:
        if name not in names:
            raise InputError(
                f"no setting is called {name!r}; there are: {', '.join(sorted(names))}{nearest(name, names)}"
            )
    return _changed(config, values)


def _changed(config: Any, values: dict[str, object]) -> Any:
    new = {}
    kind: Any = type(config)
    for one in _fields(kind):
        value = config.__dict__[one.name]
        if _is_group(value):
            new[one.name] = _changed(value, values)
        elif one.name in values:
            new[one.name] = values[one.name]
    return replace(config, **new)


def configured(kind: type[Settings], /, **values: object) -> Settings:
    """A configuration with some settings other than the default, each by its own name: as the flags of a command."""
    return changed(kind(), **values)


def filled(defaults: Sequence[Any], values: Mapping[str, object], where: str) -> list[Any]:
    """Configurations with some settings other than the default; each name belongs to the one that has it.

    Raises InputError, which begins with `where`, for a name that there is not, and for a value that does not fit.
    """
    if not values:
        return list(defaults)
    holders = {
        one.name: (place, group)
        for place, config in enumerate(defaults)
        for group, one in flat(config)
    }
    new: list[dict[str, object]] = [{} for _ in defaults]
    for name, value in values.items():
        if name not in holders:
            raise InputError(
                f"{where}: unknown key {name!r}; expected one of {', '.join(sorted(holders))}{nearest(name, holders)}"
            )
        place, group = holders[name]
        _check_value(group, name, value, where)
        new[place][name] = value
    pairs = zip(defaults, new, strict=True)
    settings = [changed(config, **some) if some else config for config, some in pairs]
    try:
        for config in settings:
            check_numbers(config)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return settings


@cache
def hints(kind: Any) -> dict[str, Any]:
    """The types of a configuration's settings by name."""
    return get_type_hints(kind)


def _check_value(group: Any, name: str, value: object, where: str) -> None:
    """Raises InputError for a value of another type than the setting's default, or none of its choices."""
    before = vars(group)[name]
    kind: Any = type(group)
    # Whole epochs are a whole number in many defaults.
    kinds = (int, float) if hints(kind)[name] is float else (type(before),)
    wrong_bool = isinstance(value, bool) and not isinstance(before, bool)
    if not isinstance(value, kinds) or wrong_bool:
        raise InputError(f"{where}: {name} = {value!r}, expected a value like {before!r}")
    hint = hints(kind)[name]
    if isinstance(value, tuple):
        _check_members(get_args(hint), name, value, where)
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise InputError(
            f"{where}: {name} = {value!r}, expected one of {', '.join(get_args(hint))}"
        )


def _check_members(
    members: Sequence[object], name: str, value: tuple[object, ...], where: str
) -> None:
    """Raises InputError for a list of others than the texts or numbers that belong there, or too many or few."""
    kinds = (str,) if members[0] is str else (int, float)
    word = "texts" if members[0] is str else "numbers"
    if Ellipsis not in members:
        word = f"{len(members)} {word}"
    fits = all(isinstance(one, kinds) and not isinstance(one, bool) for one in value)
    if not fits or (Ellipsis not in members and len(value) != len(members)):
        raise InputError(f"{where}: {name} = {list(value)!r}, expected a list of {word}")


def need(config: object, command: str, *names: str) -> None:
    """Raises InputError naming the first of a command's settings that is empty and must not be."""
    values = {one.name: group.__dict__[one.name] for group, one in flat(config)}
    for name in names:
        if not values[name]:
            raise InputError(f"{command} needs --{_flag(name)}")


@documented
@dataclass(frozen=True)
class Masking:
    """How pieces of text are masked."""

    mask_rate: float = 0.15
    """Share of pieces masked."""
    mask_scheme: Literal["bert", "released"] = "bert"
    """80/10/10 as the papers say, or 81/9/10 as XDBERT's released code does."""
    whole_word: bool = False
    """Mask all pieces of a word together, with one fate, and no word at all where none is drawn (VL-BERT's code)."""


@documented
@dataclass(frozen=True)
class CrossModalOptions:
    """XDBERT's cross-modal encoder and its objectives."""

    cross_layers: int = 2
    """Cross-modal layers (XDBERT Section 2.1)."""
    hard_negatives: int = 0
    """Match: candidates per negative, of which the most similar is taken; 0: the first drawn, as in the paper."""
    match_negatives: Literal["random", "length"] = "random"
    """Match: where the other text comes from: all texts, as in the paper, or those of nearly the same length, so that \
lengths alone do not tell."""
    clip_targets: Literal["real", "released"] = "real"
    """ClipTokens: real pieces only, or every one of 9 x 77 slots, padding too, as XDBERT's released code does."""
    freeze_clip: bool = False
    """Keep the CLIP side of the cross-modal model as it is (XDBERT trains it)."""
    save_joint: bool = False
    """Also keep the whole cross-modal model, in `joint`: for full-model fine-tuning and attention maps."""


@documented
@dataclass(frozen=True)
class Distilling:
    """What is distilled from a frozen teacher, and how."""

    distill_weight: float = 1.0
    """Weight of the l1 or contrastive terms."""
    distill_warmup: int = 0
    """Steps in which that weight grows from 0."""
    sentence: float = 1.0
    """Share of the sentence term."""
    word: float = 1.0
    """Share of the word term."""
    temperature: float = 0.07
    """Temperature of the contrastive terms."""
    pool: Literal["own", "cls", "mean"] = "own"
    """Student's sentence feature: as its sentence-transformers folder says, else its first position (own); its first \
position (cls); the mean of its states, special pieces left out (mean)."""
    l1_targets: Literal["standard", "unit"] = "standard"
    """L1 on standardised teacher features, or on unit vectors (CLIP-TD)."""
    max_windows: int = 0
    """Most CLIP windows per text, the rest is dropped and counted; 0: as many as needed, of blocks 9 of 77 (XDBERT) \
or as many places in windows of another size."""
    cache_gb: float = 2.0
    """A text teacher's features are computed once if they take less disk than this, else in every step; those of a \
teacher of images are always computed once, but for 0."""


def _list_lone_texts(config: object, *names: str) -> None:
    """Turns a lone text, as Python code may write it, into a list of one, and an empty one into none."""
    for name in names:
        value = config.__dict__[name]
        if isinstance(value, str):
            object.__setattr__(config, name, (value,) if value else ())  # the class is frozen


@documented
@dataclass(frozen=True)
class Targeted:
    """CLIP Targeted Distillation (CLIP-TD): its teacher, and the objectives td_image, td_text and td_words."""

    teacher_images: str = ""
    """CLIP-TD: folder of the images that the teacher sees; ids are paths there without the ending."""
    teacher_text: str = ""
    """CLIP-TD: another model for the teacher's text tower (MAD); empty: the same."""
    teacher_scorer: str = ""
    """CLIP-TD: a CLIP that says how well image and text fit, where the two towers come from different models."""
    teacher_cache: str = ""
    """Folder in which the teacher's features, computed once, stay for other runs; empty: in the run folder, until the \
run ends."""
    space: Literal["joint", "pre_projection"] = "joint"
    """CLIP-TD: the teacher's features after its projections, or before."""
    words: int = 2
    """CLIP-TD: words of each text that td_words distils."""
    select: Literal["top", "random"] = "top"
    """CLIP-TD: those words are the ones that matter most, or random ones (the control)."""
    relevance: Literal["contextual", "isolated"] = "contextual"
    """CLIP-TD: a word's visual relevance is that of its place in the text, or of the word by itself."""
    keywords: str = ""
    """CLIP-TD: MODULE:NAME of what finds a text's keywords; empty: YAKE's published formulas."""
    td_weight: float = 0.05
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
    td_temperature: float = 1.0
    """CLIP-TD: T of that comparison; the larger, the more often the teacher is taken for the surer one."""


@documented
@dataclass(frozen=True)
class Adapting:
    """Layers trained over a frozen CLIP (CLIP-TD, Table 11)."""

    adapter: Literal["none", "mlp", "attention"] = "none"
    """Train a few layers over --model, a CLIP that stays as it is and sees the pictures of --teacher-images: an MLP, \
or one attention layer."""
    adapter_layers: int = 1
    """--adapter mlp: Linears, the last one included: 1 or 3."""
    fusion: Literal["concat", "cosine"] = "concat"
    """--adapter mlp: of both features as one vector, or of each by itself, compared by their cosine."""


@documented
@dataclass(frozen=True)
class RegionInput:
    """Where a model's regions come from."""

    regions: tuple[str, ...] = ()
    """Region stores of the images (`groundling regions`), each STORE or NAME=STORE; none: the model reads the text \
alone. An image is looked up in all of them, and the first that has it counts. A NAME is a split of the task (in \
`pretrain`, a captions' file without its ending), which then reads the stores of its name alone."""
    images: str = ""
    """VL-BERT and VisualBERT end to end: folder of the images, whose ids in the store are paths there without the \
ending; of the store only boxes, classes and segments are read."""
    most_regions: int = 0
    """Regions per image, best first; 0: all."""
    budget: int = 0
    """Pieces of text and regions together, at most; the longer of both is cut, and counted. 0: no bound. VL-BERT: 64 \
in pre-training."""
    other_regions: bool = False
    """Accept regions made by another detector or backbone than the model was trained with."""
    tags: bool = True
    """VCR: words that name objects are tied to these objects' regions (turn off for a store of others: a grid's)."""
    mentioned: bool = False
    """VCR: see no objects but those that question, answers or rationales of an item name (VisualBERT's code)."""

    def __post_init__(self) -> None:
        _list_lone_texts(self, "regions")


@documented
@dataclass(frozen=True)
class Joining:
    """How a new VisualBERT, made of a plain BERT, joins text and regions; one that is there stays as it is."""

    early_fusion: bool = True
    """A new VisualBERT: attend over text and regions in every layer (ablation C2: only in one added layer)."""
    region_boxes: bool = False
    """A new VisualBERT: add corners, width and height of its box to each region's features (its code on Flickr30k)."""
    object_classes: bool = False
    """A new VisualBERT: regions as R2C has them (its code on VCR): the whole image first, and of each its class \
embedded beside its features; with --images its segment, too."""


@documented
@dataclass(frozen=True)
class Pixels:
    """How a model that reads pixels looks at its pictures."""

    backbone: str = "microsoft/resnet-101"
    """--images: ResNet to start the CNN from, hub id or folder; without effect on a model that has a CNN already."""
    side: int = 0
    """--images: pixels of the short side, kept with the model; 0: the model's own, 600 for a new one."""
    long_side: int = 0
    """--images: most pixels of the long side, kept with the model; 0: the model's own, 5/3 of the short side for a \
new one. VL-BERT: 1000, on VCR 1200."""
    flip: bool = True
    """--images: train on mirrored pictures in half of the draws, with boxes and segments, and left and right in the \
texts of tasks whose paper does that."""


@documented
@dataclass(frozen=True)
class CaptionColumns:
    """Which columns of a table hold captions and image files."""

    caption_column: str = ""
    """Captions in a csv, tsv, json or jsonl file: column of the caption, or several by comma; empty: told by the \
columns' names, or by what they hold."""
    image_column: str = ""
    """Captions in such a file: column of the image's file name; empty: told likewise."""


@documented
@dataclass(frozen=True)
class OwnFile:
    """Which columns of your own csv, tsv or json file (--data) make a task."""

    text: str = ""
    """Your own file: column of the text, or columns of two by comma, e.g. `question,answer`."""
    label: str = ""
    """Your own file: column of the label."""
    image: str = ""
    """Your own file: column of the image's file name; a text-only control keeps it, to hold out the same rows."""
    form: Literal["auto", "classify", "regress"] = "auto"
    """Your own file: classes or numbers; auto takes fractions, or more than 20 values, for a regression."""
    dev: str = ""
    """Your own file: another file to evaluate on; empty: about a fifth of the rows is held out."""
    group: str = ""
    """Your own file: column whose equal values are held out together; empty: the image's, or the text's."""


@documented
@dataclass(frozen=True)
class Adversarial:
    """VILLA's adversarial passes, of `--inner villa`; defaults are those of its VCR run with BERT-base.

    Source: zhegan27/VILLA, config/train-vcr-base-4gpu-adv.json.
    """

    adversarial_passes: int = 3
    """--inner villa: perturbed passes of a micro-batch, the first of which has no perturbation yet (release: 3)."""
    adversarial_modality: Literal["both", "text", "image", "alternate"] = "both"
    """--inner villa: what is perturbed: both at once, the text's word embeddings, the regions' features, or one after \
the other in passes of their own (the release's "alter", in none of its runs). Release: both for VCR, text for VQA, \
SNLI-VE and NLVR2."""
    adversarial_size: float = 1e-2
    """--inner villa: size of a step up the gradient (release: 1e-2 for VCR, 1e-3 for others; large: 1e-1 for VCR)."""
    adversarial_norm: Literal["l2", "linf"] = "l2"
    """--inner villa: norm that this size is measured in, over all positions of a row (release: l2)."""
    adversarial_kl: float = 1.5
    """--inner villa: weight of the divergence from the clean pass (release: 1.5; 1 for VQA and VCR with BERT-large)."""
    adversarial_kl_over: Literal["sum", "mean"] = "sum"
    """--inner villa: divergence of an answer: sum over its classes, or their mean, as the release has it for VCR \
alone, which halves it."""


@documented
@dataclass(frozen=True)
class TrainConfig:
    """How `train` optimises."""

    steps: int = 0
    """Optimizer steps; 0 means `epochs` decides."""
    epochs: float = 1.0
    """Passes over the data, if `steps` is 0."""
    batch: int = 32
    """Samples per optimizer step, over all processes and accumulation."""
    batch_tokens: int = 0
    """In place of --batch: most tokens (pieces and regions, padding included) of a micro-batch of one process; an \
optimizer step has --accumulate of them on every process (UNITER); 0: --batch counts."""
    accumulate: int = 1
    """Micro-batches per optimizer step and process; contrastive terms take their negatives from one of them."""
    optimizer: Literal["adamw", "bertadam", "sgd"] = "adamw"
    """adamw; bertadam, which does not correct the first steps' bias (VisualBERT, XDBERT); sgd (VL-BERT's VCR)."""
    lr: float = 1e-4
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """adamw, bertadam: decay of the two running means (UNITER: 0.9 0.98)."""
    epsilon: float = 1e-8
    """adamw, bertadam: added to the denominator (UNITER, VL-BERT, VisualBERT: 1e-6)."""
    momentum: float = 0.9
    """sgd: momentum (VL-BERT's VCR: 0.9)."""
    schedule: Literal["linear", "cosine", "constant", "steps"] = "linear"
    """Course of the learning rate after warm-up; steps: constant, and multiplied at every one of --milestones."""
    milestones: tuple[float, ...] = ()
    """--schedule steps: epochs after which the learning rate is multiplied (VL-BERT's VCR: 14 18)."""
    milestone_factor: float = 0.1
    """--schedule steps: by what it is multiplied (VL-BERT: 0.1)."""
    warmup: float = 0.05
    """Share of the schedule's steps in which the learning rate grows from 0."""
    warmup_steps: int = 0
    """Steps in which the learning rate grows from 0, in place of that share; 0: the share counts."""
    horizon: int = 0
    """Steps over which the schedule is laid out; 0 means the steps of the run. XDBERT's code: 139600."""
    weight_decay: float = 0.01
    """Weight decay (of sgd part of the gradient, otherwise apart from it); biases and LayerNorms are spared."""
    decay_all: bool = False
    """Let weights decay everywhere, in biases and LayerNorms too (the code of VL-BERT and XDBERT)."""
    head_lr: float = 1.0
    """Learning rate of the objectives' heads, as a multiple of `lr`."""
    head_start: int = 0
    """Steps in which only the heads are trained; warm-up of everything else begins after them; 0: --head-share \
counts."""
    head_share: float = 0.0
    """The same as a share of the schedule's steps."""
    clip: float = 1.0
    """Largest gradient norm; 0: gradients are not clipped."""
    clip_each: bool = False
    """Clip the gradient of every tensor by itself, in place of all together (VisualBERT's code)."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of forward passes; weights stay fp32."""
    gradient_checkpointing: bool = False
    """Keep less of the forward pass and compute it again in the backward pass: less memory, more time (about 1.4 \
times), the same numbers (docs/running.md)."""
    seed: int = 0
    """Seed of every random choice."""
    compile: bool = False
    """Compile the model's passes (torch.compile, of any shape): minutes before the first steps, faster ones after \
them, numbers equal up to rounding but for dropout, which draws others; for long runs on a GPU."""
    workers: int = -1
    """Data-loading processes per training process; results do not depend on it. -1: none on a CPU, up to 4 of its \
cores where there is an accelerator."""
    save_every: int = 500
    """Steps between checkpoints from which a killed run resumes."""
    log_every: int = 10
    """Steps between lines of log.jsonl."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""

    @property
    def batch_size(self) -> str:
        """What a batch is, in words."""
        return f"{self.batch_tokens} tokens" if self.batch_tokens else str(self.batch)


@documented
@dataclass(frozen=True)
class Examining:
    """Evaluation on held-out data while training, and what follows from it."""

    eval_every: float = 0.0
    """Epochs from one evaluation to the next, such as 1 or 0.25; 0: none until the end. On finetune: the task's first \
development split; adapt: the loss on --held; pretrain: that on --eval-captions, --eval-listing or --eval-splits; \
teach: retrieval on these."""
    keep: Literal["last", "best"] = "last"
    """--eval-every: which weights are kept: those of the last step, as the papers have it, or those that scored best \
there, whose score there is flattered by the choice."""
    patience: int = 0
    """--eval-every: stop after so many evaluations that were no better than the best one; 0: never."""

    def __post_init__(self) -> None:
        for flag, given in (("--keep best", self.keep != "last"), ("--patience", self.patience)):
            if given and not self.eval_every:
                raise InputError(f"{flag} needs --eval-every EPOCHS, more than 0")


Numbers = Callable[[float], bool]

EXPECTED: tuple[tuple[str, Numbers, tuple[str, ...]], ...] = (
    (
        "at least 1",
        lambda value: value >= 1,
        (
            *("batch", "accumulate", "save_every", "log_every"),
            *("words", "cross_layers", "adversarial_passes", "join_captions", "at_once"),
            *("processes", "least_arcs", "line_points"),
            *("patch", "projection", "vocabulary", "size", "vision", "text", "draws", "best"),
            *("held", "train", "most"),
        ),
    ),
    ("at least 3, for a start, a piece and an end", lambda value: value >= 3, ("window",)),
    (
        "more than 0",
        lambda value: 0 < value < math.inf,
        ("epochs", "epsilon", "temperature", "td_temperature", "scale"),
    ),
    (
        "0 to 1",
        lambda value: 0 <= value <= 1,
        ("warmup", "mask_rate", "active", "overlap", "stated"),
    ),
    (
        "at least 0 and below 1",
        lambda value: 0 <= value < 1,
        ("betas", "momentum", "head_share", "shift"),
    ),
    (
        "at least 0",
        lambda value: 0 <= value < math.inf,
        (
            *("steps", "batch_tokens", "lr", "milestones", "milestone_factor", "warmup_steps"),
            *("horizon", "weight_decay", "head_lr", "head_start", "clip"),
            *("distill_weight", "distill_warmup", "sentence", "word", "max_windows", "td_weight"),
            "retain",
            *("adversarial_size", "adversarial_kl", "hard_negatives", "most_questions", "windows"),
            *("most_examples", "explained", "most_regions", "budget"),
            *("eval_every", "patience", "threshold", "least", "side", "long_side", "max_length"),
            *("max_texts", "most_pairs", "top", "seconds_per_step"),
        ),
    ),
    ("at least 0, or -1 for what fits", lambda value: value >= -1, ("workers",)),
    ("at least 0, or inf for all", lambda value: value >= 0, ("cache_gb",)),
)
"""What numbers settings may be: in words, as a test, and which settings, of any command."""

EXPECTED_OF = {name: (words, fits) for words, fits, names in EXPECTED for name in names}
"""The same by setting."""

NUMERIC = re.compile(r"(tuple\[)?(int|float)\b")
"""Types of settings that are numbers; the same name may stand for something else in another command."""


@cache
def _numbers(kind: Any) -> frozenset[str]:
    """The settings of a group that are numbers."""
    return frozenset(one.name for one in _fields(kind) if NUMERIC.match(str(one.type)))


MOST_BOXES = 16
"""Per side of a grid of `look`: on a page of 360 pixels each is then 20 of them wide."""


def check_numbers(config: object, prefix: str = "") -> None:
    """Raises InputError naming the flag of a number that is out of its range, in whichever group it stands.

    Of numbers without a range of their own, NaN and infinity are none. `prefix` stands before the flag's name.
    """
    for group, one in flat(config):
        kind: Any = type(group)
        if one.name not in _numbers(kind):
            continue
        value = vars(group)[one.name]
        words, fits = EXPECTED_OF.get(one.name, ("a finite number", math.isfinite))
        every = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(number, (int, float)) and fits(number) for number in every):
            raise InputError(f"--{prefix}{_flag(one.name)} = {_spelt(value)}, expected {words}")


MAY_REPEAT = frozenset(
    {"text", "model", "regions", "heads", "predictions", "published", "ids", "ids_as"}
)
"""Lists in which a thing may stand twice: what belongs side by side, or to another list."""


def check_lists(config: object, prefix: str = "") -> None:
    """Raises InputError naming the flag of a list in which something stands twice, where that changes nothing.

    `prefix` stands before the flag's name.
    """
    for group, one in flat(config):
        value = vars(group)[one.name]
        kind: Any = type(group)
        is_list = isinstance(value, tuple) and get_args(hints(kind)[one.name])[1:] == (...,)
        if not is_list or one.name in MAY_REPEAT:
            continue
        twice = next((each for each in value if value.count(each) > 1), None)
        if twice is not None:
            raise InputError(f"--{prefix}{_flag(one.name)}: {twice} is there twice; leave one out")


def check_training(config: TrainConfig, prefix: str = "") -> None:
    """Raises InputError naming the flag of a setting that is out of its range or without effect.

    `prefix` stands before the flag's name.
    """
    check_numbers(config, prefix)
    if len(config.betas) != 2:
        raise InputError(f"--{prefix}betas = {_spelt(config.betas)}, expected two numbers")
    milestones = config.milestones
    if (config.schedule == "steps") != bool(milestones):
        raise InputError(
            f"--{prefix}schedule steps and --{prefix}milestones (epochs) need each other"
        )
    if list(milestones) != sorted(set(milestones)):
        raise InputError(
            f"--{prefix}milestones = {_spelt(milestones)}, expected rising numbers of epochs"
        )


def check_adapter(options: Adapting) -> None:
    """Raises InputError for an adapter that there is not."""
    if options.adapter_layers not in (1, 3):
        raise InputError(f"--adapter-layers {options.adapter_layers}: expected 1 or 3")
    if options.adapter == "none" and options != Adapting():
        raise InputError("--adapter-layers and --fusion are settings of --adapter, which is none")
    if options.adapter == "attention" and options != Adapting("attention"):
        raise InputError(
            "--adapter attention is one layer that reads image and text together; leave --adapter-layers and --fusion "
            "out"
        )


def check_look(config: LookConfig) -> None:
    """Raises InputError for settings of which one would be ignored."""
    need(config, "look", "model")
    for name, value in (("per-page", config.per_page), ("most", config.most)):
        if value < 1:
            raise InputError(f"--{name} {value}: expected at least 1")
    if config.first < 0:
        raise InputError(f"--first {config.first}: expected 0 for all, or a number of pairs")
    many = bool(config.data or config.predictions)
    if many and (config.text or config.image or config.pair):
        raise InputError(
            "--text, --pair and --image are one pair of your own; leave them out with --data or --predictions"
        )
    if not many:
        need(config, "look", "text")
        if not config.text.strip():
            raise InputError("--text: holds nothing but spaces; expected words")
    if config.predictions and (config.task or config.data):
        raise InputError("--predictions are the pairs themselves; leave --data and --task out")
    if config.predictions and len(config.predictions) != 2:
        raise InputError(f"--predictions: {len(config.predictions)} files, expected two")
    if config.task and not config.data:
        raise InputError(f"--task {config.task}: pass the folder of its files, --data FOLDER")
    if config.split and not config.task:
        raise InputError(f"--split {config.split}: only a --task has splits")
    if config.only and not config.task:
        raise InputError(f"--only {config.only}: names examples of a --task")
    if not 0 <= config.grid <= MOST_BOXES:
        raise InputError(
            f"--grid {config.grid}: expected 1 to {MOST_BOXES} boxes per side, 0 for none; smaller ones cannot be "
            "picked on a telephone's page, and what words read of each is kept in it"
        )
    if len(config.heads) > len(config.model):
        raise InputError(f"--heads: {len(config.heads)} results for {len(config.model)} models")


def check_held(examining: Examining, is_held: bool, flags: str) -> None:
    """Raises InputError for evaluation on the way without data for it; `flags` say what to pass."""
    if examining.eval_every and not is_held:
        raise InputError(f"--eval-every: nothing is held out to evaluate on; pass {flags}")


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _spelt(value: object) -> str:
    """A value as one types it."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


@documented
@dataclass(frozen=True)
class TeachConfig:
    """How a small CLIP teacher is built and trained from scratch, or an existing one is trained on."""

    start: str = ""
    """Continue this CLIP, hub id or folder, with its tokenizer, image processor and scale; its sizes stay, so that \
--size, --patch, --vision, --text, --projection, --vocabulary and --window are left out; empty: a new one."""
    captions: str = ""
    """Captions, in any file or folder of docs/vision.md, "Captions and photos as you have them": COCO or Karpathy's \
json, Flickr8k's token.txt, a csv, tsv, json or jsonl, an imagefolder, images with .txt or .json beside them."""
    columns: CaptionColumns = field(default_factory=CaptionColumns)
    caption_splits: tuple[str, ...] = ()
    """Karpathy's json: which of its splits to use, e.g. `train restval`."""
    images: str = ""
    """Folder of the images, which may be in folders below it."""
    listing: str = ""
    """File that lists the training images, one name a line; empty: all."""
    eval_listing: str = ""
    """File that lists the images on which retrieval is reported; empty: none."""
    eval_captions: str = ""
    """Captions of other images on which retrieval is reported (instead of `eval_listing`)."""
    eval_splits: tuple[str, ...] = ()
    """Karpathy's json: splits on which retrieval is reported, of --eval-captions or else of --captions."""
    examining: Examining = field(default_factory=Examining)
    skip_missing: bool = False
    """Leave captions out whose image is missing, and count them."""
    size: int = 64
    """Image side, pixels."""
    patch: int = 8
    """Patch side of the vision transformer, pixels."""
    vision: tuple[int, int] = (192, 4)
    """Width and layers of the vision tower."""
    text: tuple[int, int] = (192, 3)
    """Width and layers of the text tower."""
    projection: int = 192
    """Width of the joint space."""
    vocabulary: int = 4000
    """Pieces of the byte-pair tokenizer, which is trained on the captions."""
    window: int = 32
    """Positions of the text tower."""
    flip: bool = True
    """Mirror images at random (turn off where captions say left and right)."""
    shift: float = 0.06
    """Largest random shift of the view, share of the side."""
    untrained: bool = False
    """Stop before training: a control teacher that knows nothing."""


@documented
@dataclass(frozen=True)
class AdaptConfig:
    """How a text encoder is adapted; the arms and the options of their objectives."""

    student: str = ""
    """Text encoder: hub id or folder, with its tokenizer."""
    teacher: str = ""
    """CLIP-like teacher: hub id or folder, with its tokenizer, or MODULE:NAME of your own; the arm `mlm` needs none."""
    text: tuple[str, ...] = ()
    """Files to adapt on, each FILE or FILE=WEIGHT: plain text, also packed (.gz, .zst) or in the column `text` of a \
.parquet file (or its only one), or captions in any file or folder that `teach` reads. They are tokenised once, for \
all runs (docs/running.md). With weights a step reads one of the files, drawn by weight; without any, all together are \
read."""
    columns: CaptionColumns = field(default_factory=CaptionColumns)
    caption_splits: tuple[str, ...] = ()
    """Karpathy's json: which of its splits to use, e.g. `train restval`."""
    arm: str = "contrastive"
    """mlm (the control), xdbert, l1, contrastive, or objectives joined by +: mlm, joint_mlm, match, clip_tokens, l1, \
contrastive, td_text, td_words (with --select random: text alone shows no image), or MODULE:NAME of your own."""
    masked_lm: bool = True
    """l1 and contrastive: train masked LM, too, as the control does; turn off to leave it out."""
    form: Literal["auto", "lines", "blocks"] = "auto"
    """One text per line, or documents cut into blocks of exactly --max-length pieces; auto: blocks for xdbert and its \
parts, as in its paper, since lines can be matched by their lengths; lines for the rest."""
    max_length: int = 0
    """Pieces per text for the student; longer ones become several texts; 0: 128, of blocks 512, and never more than \
the student reads."""
    max_texts: int = 0
    """Use at most so many texts, evenly spaced; 0: all."""
    held: tuple[str, ...] = ()
    """Files of text that is not learned from: the report has the loss on them, and, of xdbert, what its parts have \
learned (without this: on some of the texts that were learned from, with new masks and pairs)."""
    examining: Examining = field(default_factory=Examining)
    masking: Masking = field(default_factory=Masking)
    crossing: CrossModalOptions = field(default_factory=CrossModalOptions)
    distilling: Distilling = field(default_factory=Distilling)
    targeted: Targeted = field(default_factory=Targeted)
    inner: str = ""
    """villa (adversarial training), or MODULE:NAME of an inner step of your own; empty: one forward, one backward."""
    adversarial: Adversarial = field(default_factory=Adversarial)
    keep_projection: bool = False
    """l1 and contrastive: train against the teacher's own text embeddings, and export the projection into their space \
with the model, a sentence-transformers folder of Transformer, Pooling, Dense and Normalize; a text longer than the \
teacher's window is cut for the teacher alone, unless --max-windows says otherwise."""
    retain: float = 10.0
    """A sentence encoder (a folder of sentence-transformers): weight of staying close to the vectors that it gave \
before; 0: they may move. No part in xdbert."""
    retention: str = ""
    """Pairs of texts with a similarity each, on which cosines are scored before and after (Spearman): STS-B's folder \
or GLUE's, of which dev.tsv is read, or a tsv of text, text, number."""

    def __post_init__(self) -> None:
        _list_lone_texts(self, "text", "held")


@documented
@dataclass(frozen=True)
class PretrainConfig:
    """How a vision-language model is pre-trained on captioned images, or on a task's own texts and images."""

    model: str = "visualbert"
    """visualbert, vlbert, uniter, or MODULE:NAME of a design of your own: what a plain text encoder becomes; of a \
vision-language model as --student, its own."""
    student: str = ""
    """BERT, or a single-stream model to continue from: hub id or folder."""
    regions: RegionInput = field(default_factory=RegionInput)
    pixels: Pixels = field(default_factory=Pixels)
    captions: tuple[str, ...] = ()
    """Captions, each FILE or FILE=WEIGHT: COCO or Karpathy's json, Conceptual Captions tsv, Flickr8k token.txt, your \
own csv, tsv or jsonl, or a folder (docs/vision.md). A step reads one of several files, drawn by weight, or, where \
none has one, by its number of samples."""
    columns: CaptionColumns = field(default_factory=CaptionColumns)
    caption_splits: tuple[str, ...] = ()
    """Karpathy's json: which of its splits to use, e.g. `train restval`."""
    listing: str = ""
    """File that lists the images to use, one name a line, or as karpathy_train_images.txt does; empty: all."""
    skip_missing: bool = False
    """Leave captions out whose image is not in the store, and count them."""
    epoch_of: Literal["captions", "images"] = "captions"
    """What comes up once in an epoch: every caption, as in the models' releases, or every image with one of its."""
    eval_captions: tuple[str, ...] = ()
    """Captions of other images, in any files that --captions reads, on which the loss is reported."""
    eval_listing: str = ""
    """File that lists the images on which the loss is reported, of --eval-captions or else of --captions."""
    eval_splits: tuple[str, ...] = ()
    """Splits on which the loss is reported: Karpathy's json: of --eval-captions or else of --captions; --task: of the \
task's own, e.g. `val`."""
    examining: Examining = field(default_factory=Examining)
    task: str = ""
    """Instead of captions: a task's training texts, VisualBERT's task-specific phase and UNITER's second stage on \
VCR; e.g. vqa."""
    data: str = ""
    """Folder with that task's official files."""
    train_splits: tuple[str, ...] = ()
    """--task: texts of these splits, e.g. `train val` before --submit; none: of the task's own training split."""
    task_answers: Literal["right", "any", "judged"] = "right"
    """--task: the right choice with each question; or any, drawn anew in every epoch, so that no label is told (a \
question that has no choices, as in vqa, stands alone); or judged, any too, and VisualBERT predicts whether it is \
right, or an NLVR2 statement true (its code)."""
    partition: str = ""
    """--task: texts of this file's training examples alone (`data partition`), which few-shot fine-tuning knows."""
    step_mix: tuple[float, ...] = ()
    """How often each kind of step comes, in the model's order, where a step has one objective (UNITER; \
docs/papers.md); empty: the release's. Its large model on VCR: 10 1 1."""
    text: tuple[str, ...] = ()
    """Files of text without images, each FILE or FILE=WEIGHT as for `adapt`, together drawn as often as the captions \
(VL-BERT)."""
    max_length: int = 64
    """Pieces per text; longer ones are cut and counted."""
    masking: Masking = field(default_factory=Masking)
    region_classes: Literal["soft", "hard", "none"] = "soft"
    """VL-BERT and UNITER: masked regions predict the detector's distribution (both releases), its best class (the \
papers), or no classes."""
    sentence_image: bool = True
    """VisualBERT: predict whether both captions are of the image (ablation C4 leaves it out)."""
    related: bool = False
    """VL-BERT: predict whether caption and image are related (first version; the release leaves it out)."""
    grounded: bool = True
    """VisualBERT: read captions with their images (ablation C1 reads the captions alone; --regions still says what \
the model is made for)."""
    joining: Joining = field(default_factory=Joining)
    random_start: bool = False
    """Forget the weights of --student and keep its sizes (ablation C3: no BERT)."""
    objectives: tuple[str, ...] = ()
    """Objectives beside the model's own, by name, e.g. contrastive, or MODULE:NAME of your own."""
    teacher: str = ""
    """Frozen teacher of these: hub id or folder of a CLIP-like model, or MODULE:NAME of your own."""
    distilling: Distilling = field(default_factory=Distilling)
    targeted: Targeted = field(default_factory=Targeted)
    inner: str = ""
    """villa (adversarial training), or MODULE:NAME of an inner step of your own; empty: one forward, one backward."""
    adversarial: Adversarial = field(default_factory=Adversarial)

    def __post_init__(self) -> None:
        _list_lone_texts(self, "captions", "eval_captions")


@documented
@dataclass(frozen=True)
class FinetuneConfig:
    """How an encoder is fine-tuned on a task."""

    model: str = ""
    """Text encoder, CLIP-like text tower, or what `adapt`, `pretrain` or `finetune` wrote: hub id or folder."""
    task: str = ""
    """Task by name, e.g. glue/rte, or MODULE:NAME of your own."""
    data: str = ""
    """Folder with the task's official files; `hub` reads GLUE through the datasets library."""
    seeds: int = 1
    """Runs, with seeds counted up from --seed."""
    max_length: int = 128
    """Pieces per input; longer ones are cut and counted."""
    train_splits: tuple[str, ...] = ()
    """Splits to learn from, e.g. `train val` before --submit; none: the task's own. Scores on a split that was \
learned from are marked."""
    max_train: int = 0
    """Use at most so many training examples, evenly spaced; 0: all."""
    partition: str = ""
    """Train on the examples of this file of `data partition` alone."""
    unlabelled: int = 0
    """--partition: so many of the other training examples, without their labels, beside each labelled one in every \
step, for objectives that need none (semi-supervised: CLIP-TD); 0: none."""
    also: tuple[str, ...] = ()
    """NAME=FOLDER: also evaluate on the development split of another folder, such as one that `data shift` wrote."""
    submit: bool = False
    """Also predict the unlabelled test split, in the server's format."""
    save_model: bool = True
    """Keep each seed's fine-tuned encoder and head, for `predict` and `evaluate`; a sweep keeps none unless told to."""
    called: str = ""
    """What reports call the task, where its runs at several sizes stand side by side; empty: its own name."""
    freeze_words: bool = False
    """Keep the word embeddings as they are, so that words outside the training examples stay where they belong."""
    regions: RegionInput = field(default_factory=RegionInput)
    pixels: Pixels = field(default_factory=Pixels)
    blind: bool = False
    """Set the regions' features to zero and keep their boxes: the control of tasks that pick a region."""
    baselines: bool = False
    """Also train the same model without the images, with the same seeds and settings and the task's own loss, in \
`text-alone` of the run's folder (a task that picks a region: with --blind): what the texts alone reach."""
    join: str = ""
    """Make a vision-language model of a plain BERT, without any pre-training: visualbert, vlbert, uniter, or \
MODULE:NAME of a design of your own (needed, too, to load a model of that design)."""
    joining: Joining = field(default_factory=Joining)
    kind: str = ""
    """MODULE:NAME of a `Kind` of your own that loads --model; empty: it is told from the folder."""
    plain_head: bool = False
    """Read every task by the pooler and one Linear, in place of the paper's head and losses."""
    raw_first: bool = False
    """Read a text encoder's task by one Linear on its first position, without pooler or dropout (XDBERT's code)."""
    head_loss: Literal["paper", "bce", "ce", "kl"] = "paper"
    """The task's loss: the paper's of the head; each answer, choice or region by itself (bce); one softmax over them \
(ce; the first version of VL-BERT's paper, on VCR and VQA); divergence from it (kl)."""
    beside: bool = True
    """Train what the model's paper trains beside a task's own loss: VL-BERT on VCR, the classes of regions."""
    own: OwnFile = field(default_factory=OwnFile)
    adapting: Adapting = field(default_factory=Adapting)
    examining: Examining = field(default_factory=Examining)
    objectives: tuple[str, ...] = ()
    """Objectives beside the task's own, by name, e.g. contrastive, or MODULE:NAME of your own."""
    teacher: str = ""
    """Frozen teacher of these: hub id or folder of a CLIP-like model, or MODULE:NAME of your own."""
    masking: Masking = field(default_factory=Masking)
    distilling: Distilling = field(default_factory=Distilling)
    targeted: Targeted = field(default_factory=Targeted)
    inner: str = ""
    """villa (adversarial training), or MODULE:NAME of an inner step of your own; empty: one forward, one backward."""
    adversarial: Adversarial = field(default_factory=Adversarial)


@documented
@dataclass(frozen=True)
class Sharing:
    """Where on Hugging Face's hub a saved model goes."""

    push_to_hub: str = ""
    """OWNER/NAME: upload the saved model there after the run, with a card of how it was made, as `groundling push` \
does; of several seeds the best on dev; empty: nothing leaves this machine."""
    private: bool = False
    """--push-to-hub: make a new repository private; otherwise it is public, unless the owner's own default says \
otherwise. One that is there stays as it is."""

    def __post_init__(self) -> None:
        if self.private and not self.push_to_hub:
            raise InputError("--private needs --push-to-hub OWNER/NAME")


@documented
@dataclass(frozen=True)
class PushConfig:
    """Which run's model goes to Hugging Face's hub."""

    run: str = ""
    """Run folder of `adapt`, `teach`, `pretrain` or `finetune`."""
    to: str = ""
    """OWNER/NAME of the repository there; made if it is not there."""
    seed: int = -1
    """Of a fine-tuning: which seed; -1: the best one on the development split."""
    private: bool = False
    """Make a new repository private; otherwise it is public, unless the owner's own default says otherwise."""


@documented
@dataclass(frozen=True)
class Saved:
    """A fine-tuned model, and where it looks at images."""

    model: str = ""
    """What `finetune` wrote: a run's folder, or a `model` folder inside it."""
    seed: int = -1
    """Of a run's folder: which seed; -1: as --seeds says."""
    seeds: Literal["best", "all"] = "best"
    """Of a run's folder: which seeds answer, the best one on the development split, or all: the answer of most, of \
equals that of the higher mean probability; probabilities, and answers that are numbers, are then means over seeds."""
    regions: tuple[str, ...] = ()
    """Region stores of the images, made as those that the model learned from."""
    images: str = ""
    """Folder of the images: their regions are found now, by the detector or grid and the backbone that the model \
learned with; of a model that reads pixels, where these are."""
    other_regions: bool = False
    """Accept regions that were made otherwise than those that the model learned from."""
    detector: str = ""
    """--images: hub id or folder of the detector, if it is no longer where the training run had it."""
    backbone: str = ""
    """--images: the same of the backbone."""
    trust: tuple[str, ...] = ()
    """MODULE:NAME of every object of your own that the model's folder asks for, such as its task; nothing is imported \
because a folder says so."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""

    def __post_init__(self) -> None:
        _list_lone_texts(self, "regions", "trust")


@documented
@dataclass(frozen=True)
class Asking:
    """Which columns of your own file hold what is asked."""

    text: str = ""
    """A file of your own: column of the text, or two by comma (of a model that looks for phrases: text and phrase); \
empty: as in the file that the model learned from."""
    image: str = ""
    """A file of your own: column of the image's file name, or several by comma; empty: as it learned."""
    choices: str = ""
    """A file of your own: columns of a multiple choice's choices, by comma."""


@documented
@dataclass(frozen=True)
class PredictConfig:
    """What a fine-tuned model is asked, and how much of its answers is written."""

    saved: Saved = field(default_factory=Saved)
    data: str = ""
    """Your own csv, tsv, json or jsonl file, or a folder with the task's official files."""
    split: str = ""
    """A folder of official files: which split; empty: the one without labels if the task has one, or the first with."""
    asking: Asking = field(default_factory=Asking)
    best: int = 1
    """Write so many of the most likely answers, best first."""
    skip_bad: bool = False
    """Leave the answer empty where a row cannot be asked (a photo that is missing or broken, an empty text), and \
count such rows; without it, the first one is an error."""


@documented
@dataclass(frozen=True)
class EvaluateConfig:
    """What a fine-tuned model is scored on."""

    saved: Saved = field(default_factory=Saved)
    data: str = ""
    """A folder with the task's official files, or your own file with labels."""
    split: str = ""
    """Which split; empty: all that have labels, or all rows of your own file (`dev`: those that training held out)."""
    asking: Asking = field(default_factory=Asking)
    label: str = ""
    """A file of your own: column of the label; empty: as in the file that the model learned from."""


@documented
@dataclass(frozen=True)
class ProbeConfig:
    """How an encoder is asked what it knows of a world's nouns."""

    model: str = ""
    """Text encoder: hub id or folder."""
    data: str = ""
    """Folder of a rendered world, or of your own: its `probes` hold attribute.tsv, questions, or both."""
    seeds: int = 3
    """Times that each question is fine-tuned on; each time draws its head and the order of its examples anew."""
    questions: tuple[str, ...] = ()
    """Questions that are fine-tuned on, each NAME of a file NAME_train.tsv; empty: all that are there."""
    columns: tuple[str, ...] = ()
    """Columns of attribute.tsv that linear probes ask for; empty: all."""
    max_length: int = 32
    """Pieces per sentence."""
    kind: str = ""
    """MODULE:NAME of a `Kind` of your own that loads --model; empty: it is told from the folder."""


@documented
@dataclass(frozen=True)
class CompareConfig:
    """Arms side by side: each is adapted, then fine-tuned or probed; the control `mlm` always takes part."""

    arms: tuple[str, ...] = ("xdbert", "contrastive")
    """Arms, as in `adapt --arm`; `mlm` is added in front."""
    control: bool = True
    """Add the control `mlm` (same text, steps and seeds, no teacher)."""
    tasks: tuple[str, ...] = ()
    """Tasks to fine-tune on, e.g. glue/rte glue/cola."""
    data: str = ""
    """Folder with the tasks' official files, or, with --text and --label, your own csv, tsv, json or jsonl file."""
    own: OwnFile = field(default_factory=OwnFile)
    seeds: int = 3
    """Fine-tuning runs per arm and task."""
    max_train: int = 0
    """Use at most so many training examples per task; 0: all."""
    max_length: int = 128
    """Pieces per input in fine-tuning."""
    processes: int = 1
    """Runs side by side, one thread each."""


@documented
@dataclass(frozen=True)
class SweepConfig:
    """A list of runs over variants, tasks and seeds, from a TOML file."""

    file: str = ""
    """TOML with `[adapt]`, `[tune]`, `[tasks.NAME]`, `[variants.NAME]`; `sweeps/` holds those of the papers. A task \
of your own file has `data`, `text` and `label` in its table, as `finetune` has them as flags."""
    table: str = ""
    """Only this table of the file's, e.g. "Table 2"; empty: all."""
    rows: tuple[str, ...] = ()
    """Only these variants, by name; none: all."""
    seeds: int = 0
    """Overrides the file's number of seeds; 0 does not."""
    processes: int = 1
    """Runs side by side, one thread each."""
    plan: bool = False
    """Run nothing: print every job, its settings beside the paper's, what is missing, steps and hours."""
    seconds_per_step: float = 0.0
    """--plan: seconds of an optimizer step, measured on your machine; 0: a rough guess from the model's size."""
    miniature: bool = False
    """Run everything in a minute, two steps a job, on small stand-ins for the data and weights that the file names."""


@documented
@dataclass(frozen=True)
class VerdictConfig:
    """Which runs are compared."""

    runs: tuple[str, ...] = ()
    """Run folders, each FOLDER or NAME=FOLDER, the control first; each is searched for finished seeds."""
    published: tuple[str, ...] = ()
    """NAME=SYSTEM: a system of the paper whose numbers stand beside that group's, e.g. XDBERT=XDBERT-b."""
    trust: tuple[str, ...] = ()
    """MODULE:NAME of every task of your own whose metric is your own, too; of all others nothing is imported."""


@documented
@dataclass(frozen=True)
class VcrConfig:
    """Which runs on VCR's two tasks are scored together."""

    answers: str = ""
    """Run folder of `finetune --task vcr/answer`."""
    rationales: str = ""
    """Run folder of `finetune --task vcr/rationale`; its seeds go with the same ones of the other."""
    data: str = ""
    """Folder with VCR's official files."""
    split: str = "val"
    """What is scored; of `test`, whose labels are secret, the server's file is written (`finetune --submit` before)."""
    both: str = ""
    """Instead of --answers and --rationales: run folder of `finetune --task vcr`, one model for both."""


@documented
@dataclass(frozen=True)
class ZeroShotConfig:
    """What a model answers without any training on a task, and how it is asked."""

    model: str = ""
    """CLIP-like model, hub id or folder; with --regions a pre-trained single-stream model and its match head."""
    task: str = ""
    """A task of images: vcr/answer, vcr/rationale, vcr (both, with Q->AR), snli-ve, vqa, or MODULE:NAME of your own."""
    data: str = ""
    """Folder with the task's official files."""
    split: str = ""
    """What is answered; empty: every labelled split."""
    also: tuple[str, ...] = ()
    """NAME=FOLDER: also answer the development split of another folder, such as one that `data shift` wrote."""
    images: str = ""
    """Folder of the images, whose ids are paths there without the ending; for a CLIP, and VL-BERT end to end."""
    regions: tuple[str, ...] = ()
    """Region stores of the images, which a single-stream model reads, each STORE or NAME=STORE; the first that has an \
image counts. A NAME is a split of the task, or one of --also, which then reads the stores of its name alone."""
    most_regions: int = 0
    """Regions per image, best first; 0: all."""
    other_regions: bool = False
    """Accept regions made by another detector or backbone than the model was trained with."""
    max_length: int = 128
    """Pieces per text of a single-stream model; a CLIP's own window cuts its texts."""
    protocol: Literal["iqa", "ia"] = "iqa"
    """Multiple choice: the image is compared with question and choice, or with the choice alone (CLIP-TD's IQA and \
IA; of rationales IQR and IR)."""
    fit: Literal["split", "train"] = "split"
    """Classes: clusters of the similarities of the split that is answered (transductive, as CLIP-TD does), or of the \
training split's."""
    prompt: str = "{question} {answer}"
    """Answers: what the image is compared with; without {question} the answers are read only once."""
    most_questions: int = 0
    """At most so many examples of a split, evenly spaced; 0: all."""
    teacher_cache: str = ""
    """Folder in which a CLIP's features stay for other runs; empty: in the run folder, until the run ends."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


@documented
@dataclass(frozen=True)
class RetrieveConfig:
    """Which captioned images are searched, by which CLIP, and whose texts stand beside its own."""

    model: str = ""
    """CLIP-like model with both sides: hub id or folder."""
    captions: str = ""
    """Captions: COCO or Karpathy's json, Conceptual Captions tsv, Flickr8k token.txt, your own csv, tsv or jsonl, or \
a folder (docs/vision.md)."""
    columns: CaptionColumns = field(default_factory=CaptionColumns)
    caption_splits: tuple[str, ...] = ()
    """Karpathy's json: which of its splits to use, e.g. `test`."""
    images: str = ""
    """Folder of the images."""
    listing: str = ""
    """File that lists the images to use, one name a line, or as karpathy_test_images.txt does; empty: all."""
    skip_missing: bool = False
    """Leave captions out whose image is missing, and count the images."""
    skip_bad: bool = False
    """Leave images out whose file does not decode, and name and count them; without it, the first one is an error."""
    student: str = ""
    """Sentence encoder whose vectors are to be found among the model's images: a folder of sentence-transformers, as \
`adapt --keep-projection` writes it."""
    join_captions: int = 1
    """Captions of an image that make one text, one after the other; more than 1 makes long texts. The last text of an \
image has what is left."""
    windows: int = 1
    """Windows of a long text that the model's own text side reads, as a mean; 1: cut after the first, as CLIP does; \
0: all."""
    max_length: int = 0
    """Pieces of a text that the student reads; 0: as many as its folder says."""
    seed: int = 0
    """Draws the resamples of the intervals."""
    teacher_cache: str = ""
    """Folder in which the model's features stay for other runs; empty: in the run folder, until the run ends."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


@documented
@dataclass(frozen=True)
class ShiftConfig:
    """How VCR's choices are edited or its items chosen, so that shortcuts of the text no longer help."""

    data: str = ""
    """Folder with VCR's official files, or one that this command wrote."""
    split: str = "val"
    """Which labelled split."""
    kind: Literal["none", "sm", "singular", "plural", "advtop", "keeptop", "em", "im"] = "none"
    """none: only measure; sm: pronouns for shared tags, in singular and in plural questions; advtop, keeptop: [MASK] \
where an attack model loses most, or everywhere else; em: synonyms for shared words; im: without what texts tell."""
    legacy: bool = False
    """plural: look for a group in sorted order only, as the released code does."""
    attack: str = ""
    """advtop, keeptop: `seed-N/model` of `finetune --task vcr/answer --save-model` without regions."""
    attack_rationale: str = ""
    """The same of `vcr/rationale`; empty: rationales stay as they are."""
    losses: str = ""
    """advtop, keeptop: instead of a model, a file of losses, such as the `losses.jsonl` of an earlier run."""
    keep: int = 1
    """keeptop: positions of a choice that are not masked (the paper: 1, 3, 5)."""
    max_length: int = 128
    """advtop, keeptop: pieces per text for the attack model; longer ones are cut and counted."""
    wordnet: str = ""
    """Folder of WordNet 3.0 or 3.1; empty: where Debian or NLTK put it (em), or none: words are not lemmatised."""
    least: int = 10
    """em: replace what so many items share with question or image, or more."""
    longest: int = 3
    """em: words of the longest n-gram."""
    predictions: str = ""
    """im: `seed-N/predictions_val.jsonl` of `finetune --task vcr/answer` without regions."""
    confident: float = 0.9
    """im: probability from which a right answer tells that the text is enough."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


@documented
@dataclass(frozen=True)
class PartitionConfig:
    """Which training examples a few-shot partition takes."""

    task: str = ""
    """Task by name, e.g. vcr/answer, or MODULE:NAME of your own."""
    data: str = ""
    """Folder with the task's official files."""
    per: int = 0
    """Examples of each stratum."""
    by: Literal["auto", "total", "label", "category", "question-type", "answer"] = "auto"
    """Strata. auto: VCR's question category, a classification's label, otherwise the whole split as one (total); \
question-type and answer are VQA's."""
    seed: int = 0
    """Draws another partition; more examples of the same seed include the fewer."""
    allow_fewer: bool = False
    """Take all of a stratum that has fewer."""


@documented
@dataclass(frozen=True)
class EnsembleConfig:
    """Which finished runs are averaged."""

    runs: tuple[str, ...] = ()
    """Run folders of `finetune`, or single seeds' folders in them; every finished seed is a member."""
    task: str = ""
    """Task by name, e.g. vcr/answer, or MODULE:NAME of your own."""
    data: str = ""
    """Folder with the task's official files."""


@documented
@dataclass(frozen=True)
class AskConfig:
    """How an encoder is asked for what things look like."""

    model: str = ""
    """Text encoder or CLIP-like model: hub id or folder."""
    data: str = ""
    """File of Memory Colors, CoDa (also its raw annotations.jsonl) or ViComTe, or a world's probes/knowledge.jsonl."""
    modes: tuple[str, ...] = ("fill-mask", "embedding", "stroop")
    """fill-mask (needs a masked-LM head), embedding, stroop; linear (fits ridge regressions, folds over nouns)."""
    frames: tuple[str, ...] = ("a {}", "there is a {} .", "i saw a {} .")
    """linear: neutral sentences in which a noun, {}, is read; "{}" is the noun alone. States are averaged over them."""
    layer: int = -1
    """linear: whose output is a noun's state; 0: the embeddings', before any layer; -1: the last layer's."""
    folds: int = 10
    """linear: parts of the nouns, each predicted from all others."""
    seed: int = 0
    """linear: draws folds, random features and the bootstrap over nouns."""
    max_length: int = 64
    """Pieces per sentence; a longer one is an error."""


@documented
@dataclass(frozen=True)
class PairsConfig:
    """Which language model judges which minimal pairs, and how."""

    model: str = ""
    """Masked or causal language model: hub id or folder."""
    data: str = ""
    """Folder or file of BLiMP, of EWoK, or your own .csv, .tsv or .jsonl with columns good and bad (and group, id)."""
    other: str = ""
    """Another model, on the same pairs: its accuracy, and how far it is above --model, paired by item."""
    pll: Literal["within-word", "original"] = "within-word"
    """What is masked while a piece is scored: it and the later pieces of its word (Kauf and Ivanova 2023), or it \
alone (Salazar et al. 2020)."""
    reduce: Literal["sum", "mean"] = "sum"
    """A text's score: the sum over its pieces, or their mean."""
    most_pairs: int = 0
    """At most so many pairs of each paradigm, evenly spaced; 0: all."""
    max_length: int = 0
    """Most pieces of a text; 0: what the model can take."""
    skip_long: bool = False
    """Leave out pairs with a text that is longer, for both models, and count them; otherwise they are an error."""
    model_seed: int = 0
    """The seed that the model was trained with, under which `verdict` finds the answers."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


@documented
@dataclass(frozen=True)
class WinogroundConfig:
    """Which model tells Winoground's images and captions apart."""

    model: str = ""
    """CLIP-like model, hub id or folder; with --regions a pre-trained single-stream model and its match head."""
    data: str = ""
    """Winoground's folder, or its examples.jsonl."""
    other: str = ""
    """Another model of either kind, on the same examples: its scores, and how far they are above --model, paired by \
example."""
    images: str = ""
    """Folder of the images; empty: `images` in the data's folder. Of models with --regions only VL-BERT end to end \
needs it."""
    regions: tuple[str, ...] = ()
    """Region stores of the images, which a single-stream model reads; the first that has an image counts."""
    most_regions: int = 0
    """Regions per image, best first; 0: all."""
    other_regions: bool = False
    """Accept regions made by another detector or backbone than the model was trained with."""
    max_length: int = 128
    """Pieces per caption of a single-stream model; a CLIP's own window cuts its captions."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


@documented
@dataclass(frozen=True)
class SimilarityConfig:
    """Whose word embeddings are compared."""

    a: str = ""
    """Text encoder or CLIP-like model: hub id or folder; or `random`."""
    b: str = ""
    """The other one."""
    top: int = 0
    """Only the first so many shared words, by a's piece ids; 0: all."""
    draws: int = 5
    """Permuted pairings that tell what chance alone gives."""
    seed: int = 0
    """Seed of the pairings."""


@documented
@dataclass(frozen=True)
class GroundedConfig:
    """Which runs are split into improved and worsened examples."""

    base: str = ""
    """Run folder of the control."""
    other: str = ""
    """Run folder of the model that may have gained."""
    task: str = ""
    """Task by name, e.g. glue/rte."""
    data: str = ""
    """Folder with the task's official files."""
    counts: str = ""
    """Table of `groundling data counts`."""
    tokenizer: str = ""
    """Tokenizer of that table: hub id or folder."""
    threshold: int = 100
    """Grounded is what occurs more often than this in the captions (the paper: 100, in COCO's 414,113)."""
    variant: Literal["pieces", "inherit", "words"] = "pieces"
    """Pieces by themselves (the paper), pieces that inherit their word's status, or words."""


@documented
@dataclass(frozen=True)
class AttentionConfig:
    """Which cross-modal models' attention maps are compared."""

    a: str = ""
    """Folder `joint` of `adapt --save-joint`."""
    b: str = ""
    """The other one, e.g. without clip_tokens."""
    text: tuple[str, ...] = ()
    """Files of sentences, as for `adapt`."""
    task: str = ""
    """In place of --text: a task, whose development texts or pairs are read, e.g. glue/rte (XDBERT's Table 9)."""
    data: str = ""
    """--task: folder of its official files."""
    special: bool = False
    """The picture has rows of [CLS] and [SEP], too, as Table 9 has; the numbers are of the text's own pieces."""
    max_texts: int = 400
    """Use at most so many sentences, evenly spaced; at least 200 are needed."""
    max_length: int = 128
    """Pieces per sentence."""


@documented
@dataclass(frozen=True)
class Attending:
    """Whose attention is looked at, and what it reads beside the texts."""

    model: str = ""
    """Model that reads text and regions, pre-trained or fine-tuned: a folder of `pretrain`, `finetune --save-model`, \
or of Hugging Face's VisualBERT, LXMERT or ViLT."""
    untrained: bool = False
    """Random weights in place of the model's own: a control, which must show nothing."""
    regions: tuple[str, ...] = ()
    """Region stores of the images (`groundling regions`); the first that has an image counts."""
    images: str = ""
    """VL-BERT end to end, ViLT: folder of the images, whose ids are paths there without the ending."""
    most_regions: int = 0
    """Regions per image, best first; 0: all."""
    other_regions: bool = False
    """Accept regions made by another detector or backbone than the model was trained with."""
    max_length: int = 128
    """Pieces per text; longer ones are cut, and what is lost is counted."""
    at_once: int = 32
    """Texts that are read at a time."""
    seed: int = 0
    """Draws the controls, the halves of the data and the resamples of the intervals."""
    kind: str = ""
    """MODULE:NAME of a `Kind` of your own that loads the model."""
    join: str = ""
    """MODULE:NAME of a `Design` of your own that the model was made with."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""

    def __post_init__(self) -> None:
        _list_lone_texts(self, "regions")


@documented
@dataclass(frozen=True)
class HeadsConfig:
    """Whose attention heads are asked where a phrase's own thing is, and how."""

    attending: Attending = field(default_factory=Attending)
    task: str = "flickr30k"
    """A task whose answer is a region: flickr30k (any of a phrase's boxes counts), flickr30k/merged (the box around \
them), refcoco+, refcoco, refcocog (the whole expression is the phrase), or MODULE:NAME."""
    data: str = ""
    """Folder with the task's official files."""
    split: str = "val"
    """Which split: of Flickr30k Entities a list of images there."""
    query: Literal["last", "mean"] = "last"
    """Where in a phrase heads are asked: at its last piece, or the mean over its pieces."""
    active: float = 0.2
    """Heads that send no more than this share of their attention from phrases to regions are not chosen (the paper: \
20 %); 0: all may be."""
    unrelated: bool = True
    """Flickr30k Entities: ask captions, too, that UNRELATED_CAPTIONS lists."""
    other_images: bool = True
    """Ask a second time beside the looks of other images, which doubles the time: what is still found then, no head \
has found by looking."""
    processes: int = 1
    """Processes that share the texts, on this machine; results do not depend on it. `torchrun` does the same."""


@documented
@dataclass(frozen=True)
class SyntaxConfig:
    """Whose attention heads are asked where the thing of a word's syntactic neighbour is, and by which parses."""

    attending: Attending = field(default_factory=Attending)
    data: str = ""
    """Folder with Flickr30k Entities' official files."""
    split: str = "val"
    """Which split: a list of images there."""
    parses: str = ""
    """Dependency parses of the captions: a CoNLL-U file of any parser's, a folder of such, spacy, stanza (or \
spacy:MODEL, stanza:LANGUAGE, where installed), or gold: the rendered world's own."""
    labels: Literal["stanford", "ud", "as-is"] = "stanford"
    """Relations are called and built as in Stanford's dependencies (the paper), as in Universal Dependencies, or as \
the parses have them."""
    other_phrases: bool = False
    """Ask words in other phrases with boxes, too; these have a thing of their own to look at."""
    active: float = 0.2
    """Heads that send no more than this share of their attention from a relation's words to regions are not chosen \
for it (the paper: 20 %); 0: all may be."""
    least_arcs: int = 50
    """Relations of fewer arcs are only counted."""
    unrelated: bool = True
    """Ask captions, too, that UNRELATED_CAPTIONS lists."""
    other_images: bool = True
    """Ask a second time beside the looks of other images, which doubles the time: what is still found then, no head \
has found by looking."""
    processes: int = 1
    """Processes that share the captions, on this machine; results do not depend on it. `torchrun` does the same."""
    write_captions: str = ""
    """Only write the captions to this file, one a line, for a parser of your own; nothing is asked."""


@documented
@dataclass(frozen=True)
class ModalityConfig:
    """Of which model it is asked how much it looks at, and depends on, text and image; and on which examples."""

    attending: Attending = field(default_factory=Attending)
    other: str = ""
    """A second model, compared with the first on the same examples, such as the same one after distillation."""
    data: str = ""
    """File or folder of captions of images, as `pretrain` reads them; with --task, or of a fine-tuned model, the \
task's official files or your own file with labels, as for `evaluate`."""
    columns: CaptionColumns = field(default_factory=CaptionColumns)
    task: str = ""
    """Task whose examples a pre-trained model reads, e.g. snli-ve; empty: captions; a fine-tuned model's own."""
    split: str = ""
    """Which split of the data; empty: the task's first with labels. Of Karpathy's captions it has to be said."""
    asking: Asking = field(default_factory=Asking)
    label: str = ""
    """A file of your own: column of the label; empty: as in the file that the model learned from."""
    trust: tuple[str, ...] = ()
    """MODULE:NAME of every object of your own that a fine-tuned model's folder asks for, such as its task; nothing is \
imported because a folder says so."""
    most_examples: int = 1000
    """Use at most so many examples, evenly spaced; 0: all."""
    query: Literal["cls", "all"] = "cls"
    """Whose attention is summed: that of [CLS], or the mean over all places."""
    outcome: Literal["best", "match", "words"] = "best"
    """What a pre-trained model is asked where inputs are changed: how well text and image match, or words that are \
hidden from it; best: the match if it has a head for it. A fine-tuned one is asked its task."""
    other_inputs: bool = True
    """Also ask it beside blank, shuffled and swapped images and texts, eight passes in all."""
    explained: int = 100
    """Examples, evenly spaced, whose answers are also explained by integrated gradients; 0: none."""
    line_points: int = 64
    """Points on the line from a blank input at which integrated gradients are taken."""
    teacher: str = ""
    """Compare attention to words with CLIP-TD's selection scores by this CLIP (hub id or folder); empty: leave out."""
    teacher_images: str = ""
    """--teacher: folder of the images that it sees; ids are paths there without the ending."""
    words: int = 2
    """--teacher: words of each text that are selected."""
    relevance: Literal["contextual", "isolated"] = "contextual"
    """--teacher: a word's visual relevance is that of its place in the text, or of the word by itself."""
    processes: int = 1
    """Processes that share the examples, on this machine; results do not depend on it. `torchrun` does the same."""


@documented
@dataclass(frozen=True)
class CountsConfig:
    """Which captions are counted."""

    captions: tuple[str, ...] = ()
    """Files or folders of captions, as `teach` reads them; the paper uses MSCOCO's."""
    columns: CaptionColumns = field(default_factory=CaptionColumns)
    caption_splits: tuple[str, ...] = ()
    """Karpathy's json: which of its splits to count, e.g. `train restval`."""
    tokenizer: str = ""
    """Tokenizer whose pieces are counted: hub id or folder."""


@documented
@dataclass(frozen=True)
class TasksConfig:
    """A rendered world as six vision-and-language data sets with captions, boxes, and a small untrained BERT."""

    train: int = 4000
    """Most examples of a training split."""
    held: int = 1000
    """Most examples of a held-out split."""
    shortcut: float = 0.0
    """Share of VCR's questions, 0 to 1, whose wrong answers are of no kind that was asked for: their text tells."""


@documented
@dataclass(frozen=True)
class InfoConfig:
    """Which model is described."""

    name: str = ""
    """A preset (xdbert-bert-base, visualbert-base, ...) or a model folder."""
    json: bool = False
    """Print one JSON object."""


@documented
@dataclass(frozen=True)
class CheckConfig:
    """Which folder is looked through."""

    folder: str = ""
    """Folder of data in any layout that the library reads; nothing in it is changed. Exit status 1 if anything is \
wrong with it."""
    columns: CaptionColumns = field(default_factory=CaptionColumns)
    own: OwnFile = field(default_factory=OwnFile)


@documented
@dataclass(frozen=True)
class ShowConfig:
    """Which image of a region store is shown."""

    store: str = ""
    """Region store: the folder that `groundling regions` wrote."""
    image: str = ""
    """The image's id in the store, its file name, or its file."""
    images: str = ""
    """Folder of the photos; empty: the one that the store was made of."""


@documented
@dataclass(frozen=True)
class QuickstartConfig:
    """The whole path on a rendered world, offline, from nothing."""

    seed: int = 0
    """Draws another world, other scenes and other weights."""
    processes: int = 2
    """Runs side by side, one thread each."""
    full: bool = False
    """All arms, a blind teacher's too, and every probe, as in docs/results.md, section 1, in four times the time; \
otherwise one arm that transfers looks, beside the control."""
    scale: float = 1.0
    """Multiplies every number of steps; below 1 nothing is learned, which is for trying the machinery."""


@documented
@dataclass(frozen=True)
class RegionsConfig:
    """Which images, boxes and features become a region store; or which existing files do."""

    images: str = ""
    """Folder of images, searched through; an image's id is its path there without the ending."""
    imports: tuple[str, ...] = ()
    """Instead: TSVs of bottom-up-attention or LXMERT, HDF5, LMDB, or folders of UNITER's npz or VL-BERT's json, all \
of one layout; or several region stores, whose regions of an image then stand one behind the other."""
    ids: tuple[str, ...] = ()
    """--imports of bottom-up-attention's HDF5: for each, a file of image ids by row, one a line, or json."""
    ids_as: tuple[str, ...] = ()
    """--imports: what to call the images instead: a pattern of the numbers that their ids end with and of the subset \
(train2014) that the id or the file is named after, e.g. `COCO_{subset}_{number:012d}`; or COCO's json files, which \
name the images of numbers; or VCR's jsonl, for UNITER's names of its stills."""
    detector: str = "PekingU/rtdetr_r50vd"
    """Detector that finds the boxes: hub id or folder (DETR, RT-DETR, YOLOS, ...)."""
    boxes: tuple[str, ...] = ()
    """Boxes that exist already: COCO instances json, MAttNet's detections (RefCOCO), both together, or VCR's \
vcr1images; only their images count."""
    also_detected: bool = False
    """--boxes: and behind them those of --detector, of the same classes by their names (UNITER on VCR)."""
    grid: int = 0
    """Boxes per side of a regular grid, instead of a detector; 0: no grid."""
    backbone: str = "microsoft/resnet-101"
    """Image encoder of the features: hub id or folder (ResNet, ViT, CLIP, ...)."""
    side: int = 0
    """Short side of the images for the backbone, pixels; 0: the backbone's own square, or 608 if it has none."""
    threshold: float = 0.2
    """Detector: boxes above this confidence are kept."""
    least: int = 10
    """Detector: but at least so many."""
    most: int = 100
    """Detector: and at most so many."""
    overlap: float = 0.7
    """Detector: drop boxes that overlap a better one by more than this (intersection over union)."""
    whole: bool = False
    """Also store the whole image, as the first region."""
    skip_missing: bool = False
    """Leave images out that --boxes names but the folder does not hold, and count them."""
    batch: int = 8
    """Images per forward pass, if they are of one size."""
    shard: int = 256
    """Images per file of the store; a killed run loses as many at most, per process."""
    processes: int = 1
    """Processes side by side, on as many GPUs as there are."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""

    def __post_init__(self) -> None:
        _list_lone_texts(self, "imports", "ids", "boxes", "ids_as")


@documented
@dataclass(frozen=True)
class FiguresConfig:
    """Which runs are drawn."""

    results: tuple[str, ...] = ()
    """Folders of finished runs of `heads`, `syntax` and `modality`."""
    formats: tuple[str, ...] = ("svg", "pdf", "png")
    """Which of these to write."""

    def __post_init__(self) -> None:
        _list_lone_texts(self, "results", "formats")


@documented
@dataclass(frozen=True)
class LookConfig:
    """Which models are looked at, on which images and texts, and what stands beside them on the page."""

    model: tuple[str, ...] = ()
    """Models, side by side: what `finetune` or `pretrain` wrote (of several seeds the best on dev), a text encoder, \
or Hugging Face's VisualBERT, ViLT or CLIP."""
    image: str = ""
    """Your own photo."""
    text: str = ""
    """What is said about it."""
    pair: str = ""
    """A second text, such as the answer to a question."""
    data: str = ""
    """Instead of --image and --text: a csv, tsv, json or jsonl file of many, or the folder of a --task."""
    images: str = ""
    """Folder of the photos of --data."""
    image_column: str = "image"
    """--data, a file: column of the photo's file name."""
    text_column: str = "text"
    """--data, a file: column of the text, or two by comma."""
    task: str = ""
    """--data is a folder with this task's official files."""
    split: str = ""
    """--task: which split; empty: the first that has labels."""
    only: str = ""
    """--task: only the examples of this image, this caption of Flickr30k (IMAGE#NUMBER) or this id."""
    first: int = 0
    """Only so many of the pairs, from the first (--predictions: of each kind); 0: all."""
    regions: tuple[str, ...] = ()
    """Region stores; a photo that none of them has gets its regions as the first store's were made."""
    detector: str = ""
    """Detector that finds the regions of photos: hub id or folder; empty: the one that the model learned with."""
    backbone: str = ""
    """Their image encoder: hub id or folder; empty: the one that the model learned with."""
    grid: int = 0
    """Boxes per side of a regular grid, at most 16, instead of a detector; 0: as the model learned."""
    other_regions: bool = False
    """Accept regions that were made otherwise than those that the model learned from."""
    heads: tuple[str, ...] = ()
    """What `groundling heads` wrote about each of the models, in their order: ranks heads by what they find."""
    other_heads: bool = False
    """Accept what `groundling heads` found of another model of as many layers and heads."""
    predictions: tuple[str, ...] = ()
    """Two files that `groundling predict` wrote about one file: what became right or wrong from the first to the \
second. Without --data, these are the pairs."""
    gold: str = "label"
    """--predictions: column of the right answer."""
    layers: tuple[int, ...] = ()
    """Only these layers, counted from 0; none: all."""
    heat_maps: tuple[str, ...] = ()
    """Also draw these heads, LAYER-HEAD such as 2-0, of the first model on the first pair, as SVG, PDF and PNG; best: \
the best active head of --heads in each of the six best layers. Where a --task knows the boxes that phrases mean, \
regions are grouped by them."""
    per_page: int = 10
    """Pairs on a page; further ones are on pages of their own, with links."""
    most: int = 200
    """More pairs than this are refused, for the pages' sake."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""

    def __post_init__(self) -> None:
        _list_lone_texts(self, "model", "regions", "heads", "predictions", "heat_maps")


TUNING = TrainConfig(epochs=3, lr=1e-4, warmup=0.1, weight_decay=0.0)
"""Fine-tuning as in XDBERT, Appendix C.2 (1e-4 for RTE, MRPC and STS-B; the paper has 2e-5 for other tasks)."""

ADAPTING = TrainConfig(lr=2e-5, head_share=0.2, head_lr=20.0)
"""Adaptation that keeps what an encoder knows: new heads learn fast and first, the encoder slowly (docs/results.md).

XDBERT's paper trains everything at 1e-4 from the first step (Appendix C.1).
"""

TEACHING = TrainConfig(epochs=20, batch=200, lr=1e-3, schedule="cosine", weight_decay=0.1)
"""A small CLIP from scratch."""

PRETRAINING = TrainConfig(epochs=10, lr=5e-5, warmup=0.1, weight_decay=0.01)
"""Pre-training as in VisualBERT's code (10 epochs, 5e-5 to 1e-4, warm-up 10 %)."""

PROBING = TrainConfig(steps=1000, lr=5e-4, warmup=0.1, weight_decay=0.0, log_every=50)
"""Fine-tuning on a world's questions: at 250 steps the odd one out was in mid-rise, and moved by .18 with the seed."""


DEV_IMAGES = 10**9
"""Added to the ids of a world's dev images, so that no number of training scenes reaches them."""


@documented
@dataclass(frozen=True)
class WorldConfig:
    """How large a world to render, and from which seed."""

    seed: int = 0
    """Redraws everything: nouns, attributes, scenes, sentences."""
    nouns: int = 162
    """Number of invented nouns."""
    dev_nouns: int = 18
    """Number of nouns for choosing settings."""
    test_nouns: int = 36
    """Number of nouns for the reported numbers (the rest are train nouns)."""
    scenes: int = 16000
    """Number of training images, two captions each."""
    dev_scenes: int = 500
    """Number of held-out images, two captions each."""
    sentences: int = 24000
    """Number of lines in the text corpus."""
    dev_sentences: int = 1000
    """Number of lines in the held-out text corpus."""
    size: int = 32
    """Width and height of an image in pixels, a multiple of 16."""
    stated: float = 0.0
    """Reporting bias: probability that a mention of a noun, in text or caption, states one of its attributes."""
    blind: bool = True
    """Also write the control images, in which each noun's attributes are redrawn for every image."""

    def __post_init__(self) -> None:
        ranges = {"nouns": (4, 1000), "stated": (0, 1)}
        for name, value in asdict(self).items():
            low, high = ranges.get(name, (0, DEV_IMAGES - 1))
            if not low <= value <= high:
                raise InputError(f"{name} is {value}; expected {low} to {high}")
        if self.size < 16 or self.size % 16:
            raise InputError(f"size is {self.size}; expected a positive multiple of 16")
        held_out = self.dev_nouns + self.test_nouns
        if held_out >= self.nouns:
            raise InputError(
                f"dev_nouns + test_nouns is {held_out}; expected fewer than nouns, {self.nouns}"
            )

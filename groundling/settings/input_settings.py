"""What models read, which columns of tables, how regions are found on photos: settings of several commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from groundling.core.errors import InputError
from groundling.settings.fields import (
    InputKind,
    Settings,
    at_least,
    between,
    flag_name,
    may_repeat,
    required,
)


@dataclass(frozen=True)
class AdapterSettings(Settings):
    """Layers trained over a frozen CLIP (CLIP-TD, Table 11)."""

    adapter: Literal["none", "mlp", "attention"] = "none"
    """Train a few layers over --model, a CLIP that stays as it is and sees the pictures of --teacher-images: an MLP, \
or one attention layer."""
    adapter_layers: Literal[1, 3] = 1
    """--adapter mlp: Linears, the last one included: 1 or 3."""
    fusion: Literal["concat", "cosine"] = "concat"
    """--adapter mlp: of both features as one vector, or of each by itself, compared by their cosine."""


@dataclass(frozen=True)
class ImageSettings(Settings):
    """Where a model's images and their regions are."""

    regions: Annotated[tuple[str, ...], InputKind.NAMED, may_repeat] = ()
    """Region stores of the images (`groundling regions`), each STORE or NAME=STORE; none: the model reads no regions. \
An image is looked up in all of them, and the first that has it counts. A NAME is a split of the task or one of --extra-eval \
(in `pretrain`, a captions' file without its ending), which then reads the stores of its name alone."""
    images: Annotated[str, InputKind.FOLDER] = ""
    """Folder of the images, for models that read pixels: VL-BERT and VisualBERT end to end, ViLT, a CLIP without \
training. Their ids in a store are paths there without the ending; of the store only boxes, classes and segments are \
read."""
    max_regions: Annotated[int, at_least(0)] = 0
    """Regions per image, best first; 0: all."""
    allow_region_mismatch: bool = False
    """Accept regions made by another detector or backbone than the model was trained with."""


@dataclass(frozen=True)
class RegionSettings(ImageSettings):
    """Where a model's regions come from."""

    max_total_length: Annotated[int, at_least(0)] = 0
    """Pieces of text and regions together, at most; the longer of both is cut, and counted. 0: no bound. VL-BERT: 64 \
in pre-training."""
    object_tags: bool = True
    """VCR: words that name objects are tied to these objects' regions (turn off for a store of others: a grid's)."""
    mentioned_objects_only: bool = False
    """VCR: see no objects but those that question, answers or rationales of an item name (VisualBERT's code)."""


@dataclass(frozen=True)
class VisualBertSettings(Settings):
    """How a new VisualBERT, made of a plain BERT, joins text and regions; one that is there stays as it is."""

    early_fusion: bool = True
    """A new VisualBERT: attend over text and regions in every layer (ablation C2: only in one added layer)."""
    region_boxes: bool = False
    """A new VisualBERT: add corners, width and height of its box to each region's features (its code on Flickr30k)."""
    object_classes: bool = False
    """A new VisualBERT: regions as R2C has them (its code on VCR): the whole image first, and of each its class \
embedded beside its features; with --images its segment, too."""


@dataclass(frozen=True)
class PixelSettings(Settings):
    """How a model that reads pixels looks at its pictures."""

    backbone: str = "microsoft/resnet-101"
    """--images: ResNet to start the CNN from, hub id or folder; without effect on a model that has a CNN already."""
    shortest_edge: Annotated[int, at_least(0)] = 0
    """--images: pixels of the short side, kept with the model; 0: the model's own, 600 for a new one."""
    longest_edge: Annotated[int, at_least(0)] = 0
    """--images: most pixels of the long side, kept with the model; 0: the model's own, 5/3 of the short side for a \
new one. VL-BERT: 1000, on VCR 1200."""
    flip: bool = True
    """--images: train on mirrored pictures in half of the draws, with boxes and segments, and left and right in the \
texts of tasks whose paper does that."""


@dataclass(frozen=True)
class CaptionColumns(Settings):
    """Which columns of a table hold captions and image files."""

    caption_column: Annotated[str, InputKind.COLUMN] = ""
    """Captions in a csv, tsv, json or jsonl file: column of the caption, or several by comma; empty: told by the \
columns' names, or by what they hold."""
    image_column: Annotated[str, InputKind.COLUMN] = ""
    """Captions in such a file: column of the image's file name; empty: told likewise."""


@dataclass(frozen=True)
class CaptionSettings(Settings):
    """Which captions are read of files."""

    columns: CaptionColumns = field(default_factory=CaptionColumns)
    caption_splits: tuple[str, ...] = ()
    """Karpathy's json: which of its splits to use, e.g. `train restval` or `test`."""


@dataclass(frozen=True)
class TableTaskSettings(Settings):
    """Which columns of your own csv, tsv or json file (--data) make a task."""

    text: Annotated[str, InputKind.COLUMN] = ""
    """Your own file: column of the text, or columns of two by comma, e.g. `question,answer`."""
    label: Annotated[str, InputKind.COLUMN] = ""
    """Your own file: column of the label."""
    image: Annotated[str, InputKind.COLUMN] = ""
    """Your own file: column of the image's file name; a text-only control keeps it, to hold out the same rows."""
    label_type: Literal["auto", "classify", "regress"] = "auto"
    """Your own file: classes or numbers; auto takes fractions, or more than 20 values, for a regression."""
    dev: Annotated[str, InputKind.FILE] = ""
    """Your own file: another file to evaluate on; empty: about a fifth of the rows is held out."""
    group: Annotated[str, InputKind.COLUMN] = ""
    """Your own file: column whose equal values are held out together; empty: the image's, or the text's."""

    def __post_init__(self) -> None:
        """Raises InputError for what makes no task, since the column of the label is not named."""
        super().__post_init__()
        for name in ("text", "image", "dev", "group", "label_type"):
            if not self.label and vars(self)[name] not in ("", "auto"):
                raise InputError(
                    f"--{flag_name(name)} is about your own file as a task; pass --label COLUMN, too"
                )


def check_pixels(pixels: PixelSettings, images: str) -> None:
    """Raises InputError for settings of how pixels are read where none are."""
    if not images and pixels != PixelSettings():
        first = next(
            name for name, value in vars(PixelSettings()).items() if vars(pixels)[name] != value
        )
        flag = "no-flip" if first == "flip" else flag_name(first)
        raise InputError(f"--{flag} is about pixels, which --images FOLDER has read; leave it out")


def check_adapter(options: AdapterSettings) -> None:
    """Raises InputError for settings that the adapter does not read."""
    if options.adapter == "none" and options != AdapterSettings():
        raise InputError("--adapter-layers and --fusion are settings of --adapter, which is none")
    if options.adapter == "attention" and options != AdapterSettings("attention"):
        raise InputError(
            "--adapter attention is one layer that reads image and text together; leave --adapter-layers and --fusion "
            "out"
        )


@dataclass(frozen=True)
class SavedModelSettings(Settings):
    """A fine-tuned model, and where it looks at images."""

    model: Annotated[str, InputKind.FOLDER, required] = ""
    """What `finetune` wrote: a run's folder, or a `model` folder inside it."""
    model_seed: Annotated[int, at_least(-1)] = -1
    """Of a run's folder: which seed answers; -1: the best one on the development split."""
    all_seeds: bool = False
    """Of a run's folder: all seeds answer: the answer of most, of equals that of the higher mean probability; \
probabilities, and answers that are numbers, are then means over seeds."""
    regions: Annotated[tuple[str, ...], InputKind.NAMED, may_repeat] = ()
    """Region stores of the images, made as those that the model learned from."""
    images: Annotated[str, InputKind.FOLDER] = ""
    """Folder of the images: their regions are found now, by the detector or grid and the backbone that the model \
learned with; of a model that reads pixels, where these are."""
    allow_region_mismatch: bool = False
    """Accept regions that were made otherwise than those that the model learned from."""
    detector: Annotated[str, InputKind.MODEL] = ""
    """--images: hub id or folder of the detector, if it is no longer where the training run had it."""
    backbone: Annotated[str, InputKind.MODEL] = ""
    """--images: the same of the backbone."""
    trust: Annotated[tuple[str, ...], InputKind.OBJECT] = ()
    """MODULE:NAME of every object of your own that the model's folder asks for, such as its task; nothing is imported \
because a folder says so."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""

    def __post_init__(self) -> None:
        """Raises InputError for what finds no regions, since there are no images."""
        super().__post_init__()
        for name in ("detector", "backbone"):
            if vars(self)[name] and not self.images:
                raise InputError(f"--{name} finds regions in --images FOLDER; pass both, or none")


@dataclass(frozen=True)
class PredictionColumns(Settings):
    """Which columns of your own file hold what is asked."""

    text: Annotated[str, InputKind.COLUMN] = ""
    """A file of your own: column of the text, or two by comma (of a model that looks for phrases: text and phrase); \
empty: as in the file that the model learned from."""
    image: Annotated[str, InputKind.COLUMN] = ""
    """A file of your own: column of the image's file name, or several by comma; empty: as it learned."""
    choices: Annotated[str, InputKind.COLUMN] = ""
    """A file of your own: columns of a multiple choice's choices, by comma."""


def check_one_task(command: str, tasks: object, own: TableTaskSettings, flag: str) -> None:
    """Raises InputError unless tasks are named, by `flag`, or a file of one's own makes one, and not both."""
    if own.label and tasks:
        raise InputError(
            f"{command}: --label {own.label} makes a task of your own file; leave it or {flag} out"
        )
    if not (own.label or tasks):
        raise InputError(f"{command} needs {flag} (or --text and --label for your own file)")


# Files and folders as command lines name them: FILE=WEIGHT, which says how often a step reads it, and NAME=FOLDER.

LEAST, MOST = 1e-9, 1e9
"""Weights: beyond them a file is hardly ever drawn, and their sums are no numbers any more."""


class WeightedFile(NamedTuple):
    """A file, and how often it is drawn relative to others."""

    file: str
    weight: float = 0.0
    """0: nobody says."""


def weighted(word: str | Path, flag: str) -> WeightedFile:
    """The file of one word of a command's `flag`; raises InputError for a weight that is none."""
    word = str(word)
    file, equals_sign, told = word.rpartition("=")
    if not equals_sign or Path(word).exists():
        return WeightedFile(word)
    try:
        weight = float(told)
    except ValueError:
        weight = 0.0
    if not (file and LEAST <= weight <= MOST):
        raise InputError(
            f"{flag} {word}: {told!r} is no weight of a file; expected FILE or FILE=WEIGHT with a number above 0 "
            f"({LEAST:g} to {MOST:g})"
        )
    return WeightedFile(file, weight)


def weighted_files(words: Sequence[str | Path], flag: str) -> list[WeightedFile]:
    """The same of all; raises InputError, too, if some have a weight and others have not, or one is there twice."""
    files = [weighted(word, flag) for word in words]
    without = [each.file for each in files if not each.weight]
    if without and len(without) < len(files):
        raise InputError(f"{flag}: {without[0]} has no weight; give one to all files or to none")
    paths = [normpath(each.file) for each in files]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise InputError(
            f"{flag}: {twice} is there twice; leave one out, or give it a larger weight"
        )
    return files


class NamedFolder(NamedTuple):
    """A folder, and what it is called."""

    name: str
    """Empty: nobody says."""
    folder: str


def named_folder(word: str | Path) -> NamedFolder:
    """The parts of FOLDER or NAME=FOLDER; either may have a `=` in it, so what is there decides which one is meant."""
    word = str(word)
    if Path(word).exists():
        return NamedFolder("", word)
    halves = [
        NamedFolder(word[:at], word[at + 1 :]) for at, letter in enumerate(word) if letter == "="
    ]
    there = (half for half in halves if half.folder and Path(half.folder).exists())
    return next(there, halves[0] if halves else NamedFolder("", word))


# How regions are found on photos: boxes, and an image encoder that looks into them. Imports nothing heavy.


@dataclass(frozen=True)
class DetectionSettings(Settings):
    """What finds the regions of a photo: the same settings find the same regions on other photos."""

    detector: str = "PekingU/rtdetr_r50vd"
    """Detector that finds the boxes: hub id or folder (DETR, RT-DETR, YOLOS, ...)."""
    grid: Annotated[int, at_least(0)] = 0
    """Boxes per side of a regular grid, instead of a detector; 0: no grid."""
    backbone: str = "microsoft/resnet-101"
    """Image encoder of the features: hub id or folder (ResNet, ViT, CLIP, ...)."""
    shortest_edge: Annotated[int, at_least(0)] = 0
    """Short side of the images for the backbone, pixels; 0: the backbone's own square, or 608 if it has none."""
    score_threshold: Annotated[float, at_least(0)] = 0.2
    """Detector: boxes above this confidence are kept."""
    min_boxes: Annotated[int, at_least(0)] = 10
    """Detector: but at least so many."""
    max_boxes: Annotated[int, at_least(1)] = 100
    """Detector: and at most so many."""
    iou_threshold: Annotated[float, between(0, 1)] = 0.7
    """Detector: drop boxes that overlap a better one by more than this (intersection over union)."""
    add_whole_image: bool = False
    """Also store the whole image, as the first region."""

    def manifest_entry(self) -> dict[str, Any]:
        """Those that count, for a manifest: of a grid, what is said of detectors does not."""
        names = (
            ("grid",)
            if self.grid
            else ("detector", "score_threshold", "min_boxes", "max_boxes", "iou_threshold")
        )
        return {
            name: vars(self)[name]
            for name in ("backbone", "shortest_edge", "add_whole_image", *names)
        }


@dataclass(frozen=True)
class ExtractionSettings(Settings):
    """Which images are read, and how their regions are found."""

    images: Annotated[str, InputKind.FOLDER] = ""
    """Folder of images, searched through; an image's id is its path there without the ending."""
    boxes: Annotated[tuple[str, ...], InputKind.PATH] = ()
    """Boxes that exist already: COCO instances json, MAttNet's detections (RefCOCO), both together, or VCR's \
vcr1images; only their images count."""
    add_detected_boxes: bool = False
    """--boxes: and behind them those of --detector, of the same classes by their names (UNITER on VCR)."""
    detection: DetectionSettings = field(default_factory=DetectionSettings)
    skip_missing: bool = False
    """Leave images out that --boxes names but the folder does not hold, and count them."""
    batch: Annotated[int, at_least(1)] = 8
    """Images per forward pass, if they are of one size."""
    shard_size: Annotated[int, at_least(1)] = 256
    """Images per file of the store; a killed run loses as many at most, per process."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""

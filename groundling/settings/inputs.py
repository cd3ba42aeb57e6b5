"""What models read, and which columns of tables: settings that several commands have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from groundling.core.errors import InputError
from groundling.settings.fields import (
    Input,
    Settings,
    at_least,
    may_repeat,
    needed,
)


@dataclass(frozen=True)
class Adapting(Settings):
    """Layers trained over a frozen CLIP (CLIP-TD, Table 11)."""

    adapter: Literal["none", "mlp", "attention"] = "none"
    """Train a few layers over --model, a CLIP that stays as it is and sees the pictures of --teacher-images: an MLP, \
or one attention layer."""
    adapter_layers: Literal[1, 3] = 1
    """--adapter mlp: Linears, the last one included: 1 or 3."""
    fusion: Literal["concat", "cosine"] = "concat"
    """--adapter mlp: of both features as one vector, or of each by itself, compared by their cosine."""


@dataclass(frozen=True)
class RegionInput(Settings):
    """Where a model's regions come from."""

    regions: Annotated[tuple[str, ...], Input.NAMED, may_repeat] = ()
    """Region stores of the images (`groundling regions`), each STORE or NAME=STORE; none: the model reads the text \
alone. An image is looked up in all of them, and the first that has it counts. A NAME is a split of the task (in \
`pretrain`, a captions' file without its ending), which then reads the stores of its name alone."""
    images: Annotated[str, Input.FOLDER] = ""
    """VL-BERT and VisualBERT end to end: folder of the images, whose ids in the store are paths there without the \
ending; of the store only boxes, classes and segments are read."""
    most_regions: Annotated[int, at_least(0)] = 0
    """Regions per image, best first; 0: all."""
    budget: Annotated[int, at_least(0)] = 0
    """Pieces of text and regions together, at most; the longer of both is cut, and counted. 0: no bound. VL-BERT: 64 \
in pre-training."""
    other_regions: bool = False
    """Accept regions made by another detector or backbone than the model was trained with."""
    tags: bool = True
    """VCR: words that name objects are tied to these objects' regions (turn off for a store of others: a grid's)."""
    mentioned: bool = False
    """VCR: see no objects but those that question, answers or rationales of an item name (VisualBERT's code)."""


@dataclass(frozen=True)
class Joining(Settings):
    """How a new VisualBERT, made of a plain BERT, joins text and regions; one that is there stays as it is."""

    early_fusion: bool = True
    """A new VisualBERT: attend over text and regions in every layer (ablation C2: only in one added layer)."""
    region_boxes: bool = False
    """A new VisualBERT: add corners, width and height of its box to each region's features (its code on Flickr30k)."""
    object_classes: bool = False
    """A new VisualBERT: regions as R2C has them (its code on VCR): the whole image first, and of each its class \
embedded beside its features; with --images its segment, too."""


@dataclass(frozen=True)
class Pixels(Settings):
    """How a model that reads pixels looks at its pictures."""

    backbone: str = "microsoft/resnet-101"
    """--images: ResNet to start the CNN from, hub id or folder; without effect on a model that has a CNN already."""
    side: Annotated[int, at_least(0)] = 0
    """--images: pixels of the short side, kept with the model; 0: the model's own, 600 for a new one."""
    long_side: Annotated[int, at_least(0)] = 0
    """--images: most pixels of the long side, kept with the model; 0: the model's own, 5/3 of the short side for a \
new one. VL-BERT: 1000, on VCR 1200."""
    flip: bool = True
    """--images: train on mirrored pictures in half of the draws, with boxes and segments, and left and right in the \
texts of tasks whose paper does that."""


@dataclass(frozen=True)
class CaptionColumns(Settings):
    """Which columns of a table hold captions and image files."""

    caption_column: Annotated[str, Input.COLUMN] = ""
    """Captions in a csv, tsv, json or jsonl file: column of the caption, or several by comma; empty: told by the \
columns' names, or by what they hold."""
    image_column: Annotated[str, Input.COLUMN] = ""
    """Captions in such a file: column of the image's file name; empty: told likewise."""


@dataclass(frozen=True)
class OwnFile(Settings):
    """Which columns of your own csv, tsv or json file (--data) make a task."""

    text: Annotated[str, Input.COLUMN] = ""
    """Your own file: column of the text, or columns of two by comma, e.g. `question,answer`."""
    label: Annotated[str, Input.COLUMN] = ""
    """Your own file: column of the label."""
    image: Annotated[str, Input.COLUMN] = ""
    """Your own file: column of the image's file name; a text-only control keeps it, to hold out the same rows."""
    form: Literal["auto", "classify", "regress"] = "auto"
    """Your own file: classes or numbers; auto takes fractions, or more than 20 values, for a regression."""
    dev: Annotated[str, Input.FILE] = ""
    """Your own file: another file to evaluate on; empty: about a fifth of the rows is held out."""
    group: Annotated[str, Input.COLUMN] = ""
    """Your own file: column whose equal values are held out together; empty: the image's, or the text's."""


def check_adapter(options: Adapting) -> None:
    """Raises InputError for settings that the adapter does not read."""
    if options.adapter == "none" and options != Adapting():
        raise InputError("--adapter-layers and --fusion are settings of --adapter, which is none")
    if options.adapter == "attention" and options != Adapting("attention"):
        raise InputError(
            "--adapter attention is one layer that reads image and text together; leave --adapter-layers and --fusion "
            "out"
        )


@dataclass(frozen=True)
class Saved(Settings):
    """A fine-tuned model, and where it looks at images."""

    model: Annotated[str, Input.FOLDER, needed] = ""
    """What `finetune` wrote: a run's folder, or a `model` folder inside it."""
    seed: Annotated[int, at_least(-1)] = -1
    """Of a run's folder: which seed; -1: as --seeds says."""
    seeds: Literal["best", "all"] = "best"
    """Of a run's folder: which seeds answer, the best one on the development split, or all: the answer of most, of \
equals that of the higher mean probability; probabilities, and answers that are numbers, are then means over seeds."""
    regions: Annotated[tuple[str, ...], Input.NAMED, may_repeat] = ()
    """Region stores of the images, made as those that the model learned from."""
    images: Annotated[str, Input.FOLDER] = ""
    """Folder of the images: their regions are found now, by the detector or grid and the backbone that the model \
learned with; of a model that reads pixels, where these are."""
    other_regions: bool = False
    """Accept regions that were made otherwise than those that the model learned from."""
    detector: Annotated[str, Input.MODEL] = ""
    """--images: hub id or folder of the detector, if it is no longer where the training run had it."""
    backbone: Annotated[str, Input.MODEL] = ""
    """--images: the same of the backbone."""
    trust: tuple[str, ...] = ()
    """MODULE:NAME of every object of your own that the model's folder asks for, such as its task; nothing is imported \
because a folder says so."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


@dataclass(frozen=True)
class Asking(Settings):
    """Which columns of your own file hold what is asked."""

    text: Annotated[str, Input.COLUMN] = ""
    """A file of your own: column of the text, or two by comma (of a model that looks for phrases: text and phrase); \
empty: as in the file that the model learned from."""
    image: Annotated[str, Input.COLUMN] = ""
    """A file of your own: column of the image's file name, or several by comma; empty: as it learned."""
    choices: Annotated[str, Input.COLUMN] = ""
    """A file of your own: columns of a multiple choice's choices, by comma."""

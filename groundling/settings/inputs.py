"""What models read, and which columns of tables: settings that several commands have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from groundling.core.documented import documented
from groundling.core.errors import InputError
from groundling.settings.fields import _list_lone_texts


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

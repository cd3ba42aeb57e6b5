"""`groundling look`: a page to look at: which regions a model's words attend to, head by head, on your own photo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from groundling.checks.names import check_name
from groundling.command import Command
from groundling.core.documented import documented
from groundling.core.errors import InputError
from groundling.settings.fields import _list_lone_texts, need

MOST_BOXES = 16
"""Per side of a grid of `look`: on a page of 360 pixels each is then 20 of them wide."""


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


def check(config: LookConfig, out: str | Path) -> None:
    """Raises InputError as `check_look`, and for a task that there is not."""
    check_look(config)
    check_name("tasks", "Task", config.task)


COMMAND = Command(
    "look",
    "a page to look at: which regions a model's words attend to, head by head, on your own photo",
    "groundling.studies.attention.look:look",
    {"_own": LookConfig()},
    positional=("--model",),
    file="look.html",
    writes="HTML page to write; an older page is replaced, any other file is left alone.",
    rules="groundling.studies.attention.commands.look:check",
)

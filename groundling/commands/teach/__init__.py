"""`groundling teach`: train a small CLIP teacher on captioned images."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from groundling.command_line import SHARED, Command
from groundling.runs.outputs import Inputs, ResumableRun
from groundling.settings.fields import (
    Input,
    Settings,
    at_least,
    flag_of,
    needed,
    refuse_given,
    unnested,
)
from groundling.settings.inputs import CaptionReading
from groundling.settings.training import Examining, TrainConfig, check_held


@dataclass(frozen=True)
class TeachConfig(Settings):
    """How a small CLIP teacher is built and trained from scratch, or an existing one is trained on."""

    start: Annotated[str, Input.WEIGHTS] = ""
    """Continue this CLIP, hub id or folder, with its tokenizer, image processor and scale; its sizes stay: leave \
--size, --patch, --vision-tower, --text-tower, --projection, --vocabulary and --window out; empty: a new one."""
    captions: Annotated[str, Input.PATH, needed] = ""
    """Captions, in any file or folder of docs/vision.md, "Captions and photos as you have them": COCO or Karpathy's \
json, Flickr8k's token.txt, a csv, tsv, json or jsonl, an imagefolder, images with .txt or .json beside them."""
    reading: Annotated[CaptionReading, unnested] = field(default_factory=CaptionReading)
    images: Annotated[str, Input.FOLDER, needed] = ""
    """Folder of the images, which may be in folders below it."""
    listing: Annotated[str, Input.FILE] = ""
    """File that lists the training images, one name a line; empty: all."""
    eval_listing: Annotated[str, Input.FILE] = ""
    """File that lists the images on which retrieval is reported; empty: none."""
    eval_captions: Annotated[str, Input.PATH] = ""
    """Captions of other images on which retrieval is reported (instead of `eval_listing`)."""
    eval_splits: tuple[str, ...] = ()
    """Karpathy's json: splits on which retrieval is reported, of --eval-captions or else of --captions."""
    examining: Examining = field(default_factory=Examining)
    skip_missing: bool = False
    """Leave captions out whose image is missing, and count them."""
    size: Annotated[int, at_least(1)] = 64
    """Image side, pixels."""
    patch: Annotated[int, at_least(1)] = 8
    """Patch side of the vision transformer, pixels."""
    vision_tower: Annotated[tuple[int, int], at_least(1)] = (192, 4)
    """Width and layers of the vision tower."""
    text_tower: Annotated[tuple[int, int], at_least(1)] = (192, 3)
    """Width and layers of the text tower."""
    projection: Annotated[int, at_least(1)] = 192
    """Width of the joint space."""
    vocabulary: Annotated[int, at_least(3)] = 4000
    """Pieces of the byte-pair tokenizer, which is trained on the captions."""
    window: Annotated[int, at_least(3)] = 32
    """Positions of the text tower."""
    flip: bool = True
    """Mirror images at random (turn off where captions say left and right)."""
    shift: Annotated[float, at_least(0, below=1)] = 0.06
    """Largest random shift of the view, share of the side."""
    untrained: bool = False
    """Stop before training: a control teacher that knows nothing."""


TEACHING = TrainConfig(epochs=20, batch=200, lr=1e-3, schedule="cosine", weight_decay=0.1)
"""A small CLIP from scratch."""


NEW = (
    *("size", "patch", "vision_tower", "text_tower", "projection", "vocabulary", "window"),
    "untrained",
)
"""Settings that an existing CLIP leaves no choice of."""


def check(config: TeachConfig, training: TrainConfig, out: str | Path) -> None:
    """Raises InputError for settings of a new CLIP beside an existing one, and evaluation of nothing, or on nothing."""
    if config.start:
        changed = {
            f"--{flag_of(name)}": vars(config)[name] != vars(TeachConfig())[name] for name in NEW
        }
        refuse_given(changed, f"is for a new CLIP, {config.start} has its own; leave it out")
    held = config.eval_captions or config.eval_listing or config.eval_splits
    flags = "--eval-captions FILE, --eval-listing FILE or --eval-splits NAMES"
    check_held(config.examining, bool(held), flags)
    if config.untrained:
        every = {"--eval-every": config.examining.eval_every}
        refuse_given(every, "--untrained leaves no training to evaluate on the way")


def inputs(config: TeachConfig, training: TrainConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    return {
        "captions": config.captions,
        "images": config.images,
        "start": config.start,
        "eval_captions": config.eval_captions,
        "eval_listing": config.eval_listing,
    }


COMMAND = Command(
    "teach",
    "train a small CLIP teacher on captioned images",
    "groundling.commands.teach.run:teach",
    {"_own": TeachConfig(), "_train": TEACHING, **SHARED},
    title="Train",
    example="groundling teach --captions my_data/captions.csv --images my_data/photos --out "
    "runs/my_clip",
    common="captions images start size epochs steps batch lr seed cpu",
    rules=check,
    leaves=ResumableRun(inputs, makes=["model"]),
)

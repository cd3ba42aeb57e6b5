"""`groundling regions`: regions of your own images, or of others' region files, as a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from groundling.command import Command
from groundling.core.errors import InputError
from groundling.settings.fields import (
    Input,
    Settings,
    at_least,
    between,
    may_repeat,
)


@dataclass(frozen=True)
class RegionsConfig(Settings):
    """Which images, boxes and features become a region store; or which existing files do."""

    images: Annotated[str, Input.FOLDER] = ""
    """Folder of images, searched through; an image's id is its path there without the ending."""
    imports: Annotated[tuple[str, ...], Input.PATH] = ()
    """Instead: TSVs of bottom-up-attention or LXMERT, HDF5, LMDB, or folders of UNITER's npz or VL-BERT's json, all \
of one layout; or several region stores, whose regions of an image then stand one behind the other."""
    ids: Annotated[tuple[str, ...], Input.FILE, may_repeat] = ()
    """--imports of bottom-up-attention's HDF5: for each, a file of image ids by row, one a line, or json."""
    ids_as: Annotated[tuple[str, ...], may_repeat] = ()
    """--imports: what to call the images instead: a pattern of the numbers that their ids end with and of the subset \
(train2014) that the id or the file is named after, e.g. `COCO_{subset}_{number:012d}`; or COCO's json files, which \
name the images of numbers; or VCR's jsonl, for UNITER's names of its stills."""
    detector: str = "PekingU/rtdetr_r50vd"
    """Detector that finds the boxes: hub id or folder (DETR, RT-DETR, YOLOS, ...)."""
    boxes: Annotated[tuple[str, ...], Input.PATH] = ()
    """Boxes that exist already: COCO instances json, MAttNet's detections (RefCOCO), both together, or VCR's \
vcr1images; only their images count."""
    also_detected: bool = False
    """--boxes: and behind them those of --detector, of the same classes by their names (UNITER on VCR)."""
    grid: Annotated[int, at_least(0)] = 0
    """Boxes per side of a regular grid, instead of a detector; 0: no grid."""
    backbone: str = "microsoft/resnet-101"
    """Image encoder of the features: hub id or folder (ResNet, ViT, CLIP, ...)."""
    side: Annotated[int, at_least(0)] = 0
    """Short side of the images for the backbone, pixels; 0: the backbone's own square, or 608 if it has none."""
    threshold: Annotated[float, at_least(0)] = 0.2
    """Detector: boxes above this confidence are kept."""
    least: Annotated[int, at_least(0)] = 10
    """Detector: but at least so many."""
    most: Annotated[int, at_least(1)] = 100
    """Detector: and at most so many."""
    overlap: Annotated[float, between(0, 1)] = 0.7
    """Detector: drop boxes that overlap a better one by more than this (intersection over union)."""
    whole: bool = False
    """Also store the whole image, as the first region."""
    skip_missing: bool = False
    """Leave images out that --boxes names but the folder does not hold, and count them."""
    batch: Annotated[int, at_least(1)] = 8
    """Images per forward pass, if they are of one size."""
    shard: Annotated[int, at_least(1)] = 256
    """Images per file of the store; a killed run loses as many at most, per process."""
    processes: Annotated[int, at_least(1)] = 1
    """Processes side by side, on as many GPUs as there are."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


def check(config: RegionsConfig, out: str | Path) -> None:
    """Raises InputError for settings that do not go together."""
    if bool(config.images) == bool(config.imports):
        raise InputError("regions needs --images FOLDER or --imports FILE, one of them")
    if not config.imports and (config.ids or config.ids_as):
        raise InputError("regions: --ids and --ids-as name the images of --imports; leave them out")
    if bool(config.boxes) and config.grid:
        raise InputError("regions: --boxes and --grid both say where the boxes are; give one")
    if config.also_detected and not config.boxes:
        raise InputError("regions: --also-detected adds to --boxes; without, leave it out")


COMMAND = Command(
    "regions",
    "regions of your own images, or of others' region files, as a store",
    "groundling.commands.regions.run:regions",
    {"_own": RegionsConfig()},
    positional=("--images",),
    rules="groundling.commands.regions:check",
)

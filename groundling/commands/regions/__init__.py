"""`groundling regions`: regions of your own images, or of others' region files, as a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from groundling.command import Command
from groundling.core.documented import documented
from groundling.core.errors import InputError
from groundling.runs.leaves import Inputs, RunFolder
from groundling.settings.fields import _list_lone_texts

PATIENCE = timedelta(days=7)
"""How long one process under torchrun waits for the shards of the others."""


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


def check(config: RegionsConfig, out: str | Path) -> None:
    """Raises InputError for settings that do not go together."""
    if bool(config.images) == bool(config.imports):
        raise InputError("regions needs --images FOLDER or --imports FILE, one of them")
    if min(config.shard, config.batch, config.processes) < 1 or config.grid < 0:
        raise InputError(
            "regions: --shard, --batch and --processes are at least 1, --grid is not below 0"
        )
    if not config.imports and (config.ids or config.ids_as):
        raise InputError("regions: --ids and --ids-as name the images of --imports; leave them out")
    if bool(config.boxes) and config.grid:
        raise InputError("regions: --boxes and --grid both say where the boxes are; give one")
    if config.also_detected and not config.boxes:
        raise InputError("regions: --also-detected adds to --boxes; without, leave it out")


def inputs(config: RegionsConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    found: dict[str, str] = {"images": config.images}
    found |= _numbered("boxes", config.boxes)
    found |= _numbered("ids", config.ids)
    found |= _numbered("ids_as", [told for told in config.ids_as if told.endswith(".json")])
    if not config.imports:
        found |= {"detector": config.detector, "backbone": config.backbone}
    # Tens of gigabytes are not worth hashing.
    return found | _numbered(
        "imports", [path for path in config.imports if not Path(path).is_file()]
    )


def _numbered(name: str, paths: Sequence[str]) -> dict[str, str]:
    """A run's inputs of one kind: the first by the kind's name, others with their number."""
    return {f"{name}:{number}" if number else name: path for number, path in enumerate(paths)}


def facts(config: RegionsConfig) -> dict[str, list[int]]:
    """Bytes of the files that are imported, which tell runs apart in place of their hashes."""
    sizes = [Path(path).stat().st_size for path in config.imports if Path(path).is_file()]
    return {"bytes": sizes} if sizes else {}


COMMAND = Command(
    "regions",
    "regions of your own images, or of others' region files, as a store",
    "groundling.commands.regions.run:regions",
    {"_own": RegionsConfig()},
    positional=("--images",),
    rules="groundling.commands.regions:check",
    leaves=RunFolder(inputs, free=("processes", "cpu"), facts=facts, patience=PATIENCE),
)

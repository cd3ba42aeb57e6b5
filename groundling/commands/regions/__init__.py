"""`groundling regions`: regions of your own images, or of others' region files, as a store."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from groundling.command import Command
from groundling.core.errors import InputError
from groundling.settings.fields import (
    Input,
    Settings,
    at_least,
    may_repeat,
)
from groundling.vision.settings import Extraction


@dataclass(frozen=True)
class RegionsConfig(Settings):
    """Which images, boxes and features become a region store; or which existing files do."""

    extraction: Extraction = field(default_factory=Extraction)
    imports: Annotated[tuple[str, ...], Input.PATH] = ()
    """Instead: TSVs of bottom-up-attention or LXMERT, HDF5, LMDB, or folders of UNITER's npz or VL-BERT's json, all \
of one layout; or several region stores, whose regions of an image then stand one behind the other."""
    ids: Annotated[tuple[str, ...], Input.FILE, may_repeat] = ()
    """--imports of bottom-up-attention's HDF5: for each, a file of image ids by row, one a line, or json."""
    ids_as: Annotated[tuple[str, ...], may_repeat] = ()
    """--imports: what to call the images instead: a pattern of the numbers that their ids end with and of the subset \
(train2014) that the id or the file is named after, e.g. `COCO_{subset}_{number:012d}`; or COCO's json files, which \
name the images of numbers; or VCR's jsonl, for UNITER's names of its stills."""
    processes: Annotated[int, at_least(1)] = 1
    """Processes side by side, on as many GPUs as there are."""


def check(config: RegionsConfig, out: str | Path) -> None:
    """Raises InputError for settings that do not go together."""
    reads = config.extraction
    if bool(reads.images) == bool(config.imports):
        raise InputError("regions needs --images FOLDER or --imports FILE, one of them")
    if not config.imports and (config.ids or config.ids_as):
        raise InputError("regions: --ids and --ids-as name the images of --imports; leave them out")
    if bool(reads.boxes) and reads.finding.grid:
        raise InputError("regions: --boxes and --grid both say where the boxes are; give one")
    if reads.also_detected and not reads.boxes:
        raise InputError("regions: --also-detected adds to --boxes; without, leave it out")


COMMAND = Command(
    "regions",
    "regions of your own images, or of others' region files, as a store",
    "groundling.commands.regions.run:regions",
    {"_own": RegionsConfig()},
    positional=("--images",),
    rules="groundling.commands.regions:check",
)

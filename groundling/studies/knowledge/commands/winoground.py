"""`groundling winoground`: does a model tell images and captions of the same words apart?."""

from __future__ import annotations

from dataclasses import dataclass

from groundling.command import Command
from groundling.core.documented import documented


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


COMMAND = Command(
    "winoground",
    "does a model tell images and captions of the same words apart?",
    "groundling.studies.knowledge.winoground:winoground",
    {"_own": WinogroundConfig()},
    speaks=True,
    needs=("model", "data"),
)

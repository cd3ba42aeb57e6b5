"""How regions are found on photos: boxes, and an image encoder that looks into them. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from groundling.settings.fields import Input, Settings, at_least, between


@dataclass(frozen=True)
class Finding(Settings):
    """What finds the regions of a photo: the same settings find the same regions on other photos."""

    detector: str = "PekingU/rtdetr_r50vd"
    """Detector that finds the boxes: hub id or folder (DETR, RT-DETR, YOLOS, ...)."""
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

    def told(self) -> dict[str, Any]:
        """Those that count, for a manifest: of a grid, what is said of detectors does not."""
        names = ("grid",) if self.grid else ("detector", "threshold", "least", "most", "overlap")
        return {name: vars(self)[name] for name in ("backbone", "side", "whole", *names)}


@dataclass(frozen=True)
class Extraction(Settings):
    """Which images are read, and how their regions are found."""

    images: Annotated[str, Input.FOLDER] = ""
    """Folder of images, searched through; an image's id is its path there without the ending."""
    boxes: Annotated[tuple[str, ...], Input.PATH] = ()
    """Boxes that exist already: COCO instances json, MAttNet's detections (RefCOCO), both together, or VCR's \
vcr1images; only their images count."""
    also_detected: bool = False
    """--boxes: and behind them those of --detector, of the same classes by their names (UNITER on VCR)."""
    finding: Finding = field(default_factory=Finding)
    skip_missing: bool = False
    """Leave images out that --boxes names but the folder does not hold, and count them."""
    batch: Annotated[int, at_least(1)] = 8
    """Images per forward pass, if they are of one size."""
    shard: Annotated[int, at_least(1)] = 256
    """Images per file of the store; a killed run loses as many at most, per process."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""

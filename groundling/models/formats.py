"""What fine-tuning needs of a model, and how a kind of model folder is told and loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.core.field_docs import with_field_docs
from groundling.data.regions.inputs import Source
from groundling.data.samples import ClipRowEncoder, TextRowEncoder
from groundling.models.attention import AttentionCallback


@with_field_docs
class Encoder(nn.Module):
    """A model with a text-only path: every task on text can be put to it. Abstract."""

    sizes: OutputSizes
    """Widths of what it says."""

    def inputs(self, max_length: int) -> tuple[TextRowEncoder | None, ClipRowEncoder | None]:
        """How texts of at most `max_length` pieces become its input: for a text encoder, for a CLIP text tower."""
        raise NotImplementedError

    def word_embeddings(self) -> nn.Module:
        """The table of its input words."""
        raise NotImplementedError

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """What it says of a batch that was made by its own `inputs`; `attention` is told its maps, if it has any."""
        raise NotImplementedError

    def export(self, folder: Path) -> None:
        """Write a folder from which its `ModelFormat` loads the model again."""
        raise NotImplementedError


@with_field_docs
class RegionEncoder(Encoder):
    """A model that reads regions beside the text, or has patches in their place. Abstract."""

    region_source: Source = "features"
    """Where the looks of its regions are from."""
    reads_whole_image: bool
    """Whether a region of the whole image comes first."""
    has_inclusive_boxes: bool
    """Whether boxes end at their last pixel."""
    reads_tagged_regions: bool = True
    """Whether a word that names an object takes something of that object's region."""
    regions_provenance: Mapping[str, Any]
    """What made the regions that it learned from; empty where nobody says."""

    @property
    def image_sides(self) -> tuple[int, float]:
        """Pixels of a picture's short side, and most of its long one; 0 of a model that reads no pixels."""
        return 0, 0

    @property
    def architecture_name(self) -> str:
        """What results call its design."""
        raise NotImplementedError

    @property
    def special_ids(self) -> list[int]:
        """Ids of its tokenizer's special pieces."""
        raise NotImplementedError


@with_field_docs
@dataclass(frozen=True)
class ModelFormat:
    """A kind of model folder that is not a plain Hugging Face text encoder."""

    name: str
    """What messages call it."""
    matches: Callable[[str], bool]
    """Whether a hub id or folder holds one."""
    load: Callable[[str], Encoder]
    """The model of that hub id or folder."""


@with_field_docs
@dataclass(frozen=True)
class InspectionFormat:
    """A kind of model folder that `groundling visualize` shows otherwise than a `ModelFormat` loads it."""

    name: str
    """What messages call it."""
    fits: Callable[[str], bool]
    """Whether a hub id or folder holds one."""
    load: Callable[[str], Encoder]
    """What is shown of that hub id or folder."""

"""What fine-tuning needs of a model, and how a kind of model folder is told and loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from groundling.batch import Batch, Encoded, Sizes
from groundling.data.samples import TextInput, WindowInput
from groundling.documented import documented
from groundling.models.attention import Watch


@documented
class Student(nn.Module):
    """A model with a text-only path: every task on text can be put to it. Abstract."""

    sizes: Sizes
    """Widths of what it says."""

    def inputs(self, max_length: int) -> tuple[TextInput | None, WindowInput | None]:
        """How texts of at most `max_length` pieces become its input: for a text encoder, for a CLIP text tower."""
        raise NotImplementedError

    def word_embeddings(self) -> nn.Module:
        """The table of its input words."""
        raise NotImplementedError

    def forward(self, batch: Batch, attention: Watch | None = None) -> Encoded:
        """What it says of a batch that was made by its own `inputs`; `attention` is told its maps, if it has any."""
        raise NotImplementedError

    def export(self, folder: Path) -> None:
        """Write a folder from which its `Kind` loads the model again."""
        raise NotImplementedError


@documented
@dataclass(frozen=True)
class Kind:
    """A kind of model folder that is not a plain Hugging Face text encoder."""

    name: str
    """What messages call it."""
    fits: Callable[[str], bool]
    """Whether a hub id or folder holds one."""
    load: Callable[[str], Student]
    """The model of that hub id or folder."""

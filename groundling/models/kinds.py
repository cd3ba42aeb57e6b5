"""What fine-tuning needs of a model, and how a kind of model folder is told and loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from groundling.batch import Batch, Encoded, Sizes
from groundling.data.samples import TextInput, WindowInput


class Student(Protocol):
    """A model with a text-only path: every task on text can be put to it."""

    sizes: Sizes

    def inputs(self, max_length: int) -> tuple[TextInput | None, WindowInput | None]:
        """How texts of at most `max_length` pieces become its input: for a text encoder, for a CLIP text tower."""
        ...

    def word_embeddings(self) -> nn.Module:
        """The table of its input words."""
        ...

    def __call__(self, batch: Batch) -> Encoded:
        """What it says of a batch that was made by its own `inputs`."""
        ...

    def export(self, folder: Path) -> None:
        """Write a folder from which `load_student` reads the model again."""
        ...


@dataclass(frozen=True)
class Kind:
    """A kind of model folder that is not a plain Hugging Face text encoder."""

    name: str
    fits: Callable[[str], bool]
    """Whether a hub id or folder holds one."""
    load: Callable[[str], Any]

"""`groundling pairs`: which sentence of minimal pairs a language model finds likelier: BLiMP, EWoK, your own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from groundling.command import Command
from groundling.core.documented import documented


@documented
@dataclass(frozen=True)
class PairsConfig:
    """Which language model judges which minimal pairs, and how."""

    model: str = ""
    """Masked or causal language model: hub id or folder."""
    data: str = ""
    """Folder or file of BLiMP, of EWoK, or your own .csv, .tsv or .jsonl with columns good and bad (and group, id)."""
    other: str = ""
    """Another model, on the same pairs: its accuracy, and how far it is above --model, paired by item."""
    pll: Literal["within-word", "original"] = "within-word"
    """What is masked while a piece is scored: it and the later pieces of its word (Kauf and Ivanova 2023), or it \
alone (Salazar et al. 2020)."""
    reduce: Literal["sum", "mean"] = "sum"
    """A text's score: the sum over its pieces, or their mean."""
    most_pairs: int = 0
    """At most so many pairs of each paradigm, evenly spaced; 0: all."""
    max_length: int = 0
    """Most pieces of a text; 0: what the model can take."""
    skip_long: bool = False
    """Leave out pairs with a text that is longer, for both models, and count them; otherwise they are an error."""
    model_seed: int = 0
    """The seed that the model was trained with, under which `verdict` finds the answers."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


COMMAND = Command(
    "pairs",
    "which sentence of minimal pairs a language model finds likelier: BLiMP, EWoK, your own",
    "groundling.studies.knowledge.pairs:pairs",
    {"_own": PairsConfig()},
    speaks=True,
    needs=("model", "data"),
)

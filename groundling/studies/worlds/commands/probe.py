"""`groundling probe`: ask an encoder what it knows of a rendered world's nouns."""

from __future__ import annotations

from dataclasses import dataclass

from groundling.command import Command
from groundling.core.documented import documented
from groundling.settings.training import TrainConfig


@documented
@dataclass(frozen=True)
class ProbeConfig:
    """How an encoder is asked what it knows of a world's nouns."""

    model: str = ""
    """Text encoder: hub id or folder."""
    data: str = ""
    """Folder of a rendered world, or of your own: its `probes` hold attribute.tsv, questions, or both."""
    seeds: int = 3
    """Times that each question is fine-tuned on; each time draws its head and the order of its examples anew."""
    questions: tuple[str, ...] = ()
    """Questions that are fine-tuned on, each NAME of a file NAME_train.tsv; empty: all that are there."""
    columns: tuple[str, ...] = ()
    """Columns of attribute.tsv that linear probes ask for; empty: all."""
    max_length: int = 32
    """Pieces per sentence."""
    kind: str = ""
    """MODULE:NAME of a `Kind` of your own that loads --model; empty: it is told from the folder."""


PROBING = TrainConfig(steps=1000, lr=5e-4, warmup=0.1, weight_decay=0.0, log_every=50)
"""Fine-tuning on a world's questions: at 250 steps the odd one out was in mid-rise, and moved by .18 with the seed."""


COMMAND = Command(
    "probe",
    "ask an encoder what it knows of a rendered world's nouns",
    "groundling.studies.worlds.probe:probe",
    {"_own": ProbeConfig(), "_train": PROBING},
    needs=("model", "data"),
)

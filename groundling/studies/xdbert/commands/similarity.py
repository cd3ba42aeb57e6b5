"""`groundling similarity`: CCA, SVCCA and PWCCA of two encoders' word embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from groundling.command import Command
from groundling.core.documented import documented
from groundling.core.errors import InputError


@documented
@dataclass(frozen=True)
class SimilarityConfig:
    """Whose word embeddings are compared."""

    a: str = ""
    """Text encoder or CLIP-like model: hub id or folder; or `random`."""
    b: str = ""
    """The other one."""
    top: int = 0
    """Only the first so many shared words, by a's piece ids; 0: all."""
    draws: int = 5
    """Permuted pairings that tell what chance alone gives."""
    seed: int = 0
    """Seed of the pairings."""


def check(config: SimilarityConfig, out: str | Path) -> None:
    """Raises InputError without two models."""
    if not config.a or not config.b:
        raise InputError("similarity needs --a and --b, each a model or `random`")


COMMAND = Command(
    "similarity",
    "CCA, SVCCA and PWCCA of two encoders' word embeddings",
    "groundling.studies.xdbert.similarity:similarity",
    {"_own": SimilarityConfig()},
    rules="groundling.studies.xdbert.commands.similarity:check",
)

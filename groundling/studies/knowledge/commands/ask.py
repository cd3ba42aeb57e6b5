"""`groundling ask`: ask an encoder what things look like: Memory Colors, CoDa, ViComTe."""

from __future__ import annotations

from dataclasses import dataclass

from groundling.command import Command
from groundling.core.documented import documented


@documented
@dataclass(frozen=True)
class AskConfig:
    """How an encoder is asked for what things look like."""

    model: str = ""
    """Text encoder or CLIP-like model: hub id or folder."""
    data: str = ""
    """File of Memory Colors, CoDa (also its raw annotations.jsonl) or ViComTe, or a world's probes/knowledge.jsonl."""
    modes: tuple[str, ...] = ("fill-mask", "embedding", "stroop")
    """fill-mask (needs a masked-LM head), embedding, stroop; linear (fits ridge regressions, folds over nouns)."""
    frames: tuple[str, ...] = ("a {}", "there is a {} .", "i saw a {} .")
    """linear: neutral sentences in which a noun, {}, is read; "{}" is the noun alone. States are averaged over them."""
    layer: int = -1
    """linear: whose output is a noun's state; 0: the embeddings', before any layer; -1: the last layer's."""
    folds: int = 10
    """linear: parts of the nouns, each predicted from all others."""
    seed: int = 0
    """linear: draws folds, random features and the bootstrap over nouns."""
    max_length: int = 64
    """Pieces per sentence; a longer one is an error."""


COMMAND = Command(
    "ask",
    "ask an encoder what things look like: Memory Colors, CoDa, ViComTe",
    "groundling.studies.knowledge.ask:ask",
    {"_own": AskConfig()},
    needs=("model", "data"),
)

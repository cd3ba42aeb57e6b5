"""Commands and settings of the study of knowledge: what an encoder knows: visual facts, minimal pairs, Winoground."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


ASK = Command(
    "ask",
    "ask an encoder what things look like: Memory Colors, CoDa, ViComTe",
    "groundling.studies.knowledge.ask:ask",
    {"_own": AskConfig()},
    needs=("model", "data"),
)


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


PAIRS = Command(
    "pairs",
    "which sentence of minimal pairs a language model finds likelier: BLiMP, EWoK, your own",
    "groundling.studies.knowledge.pairs:pairs",
    {"_own": PairsConfig()},
    speaks=True,
    needs=("model", "data"),
)


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


WINOGROUND = Command(
    "winoground",
    "does a model tell images and captions of the same words apart?",
    "groundling.studies.knowledge.winoground:winoground",
    {"_own": WinogroundConfig()},
    speaks=True,
    needs=("model", "data"),
)


COMMANDS = (
    ASK,
    PAIRS,
    WINOGROUND,
)

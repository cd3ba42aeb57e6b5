"""Commands and settings of the study of knowledge: what an encoder knows: visual facts, minimal pairs, Winoground."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from groundling.command_line import Command
from groundling.runs.outputs import Inputs, ResumableRun
from groundling.settings.fields import InputKind, Settings, at_least, required, unnested
from groundling.settings.input_settings import ImageSettings


@dataclass(frozen=True)
class ProbeFactsConfig(Settings):
    """How an encoder is asked for what things look like."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """Text encoder or CLIP-like model: hub id or folder."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """File of Memory Colors, CoDa (also its raw annotations.jsonl) or ViComTe, or a world's probes/knowledge.jsonl."""
    modes: tuple[str, ...] = ("fill-mask", "embedding", "stroop")
    """fill-mask (needs a masked-LM head), embedding, stroop; linear (fits ridge regressions, folds over nouns)."""
    templates: tuple[str, ...] = ("a {}", "there is a {} .", "i saw a {} .")
    """linear: neutral sentences in which a noun, {}, is read; "{}" is the noun alone. States are averaged over them."""
    layer: Annotated[int, at_least(-1)] = -1
    """linear: whose output is a noun's state; 0: the embeddings', before any layer; -1: the last layer's."""
    seed: Annotated[int, at_least(0)] = 0
    """linear: draws folds, random features and the bootstrap over nouns."""
    max_length: Annotated[int, at_least(0)] = 64
    """Pieces per sentence; a longer one is an error."""


def probe_facts_inputs(config: ProbeFactsConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    from groundling.studies.knowledge.visual_facts import open_visual_facts

    beside = open_visual_facts(config.data).companion_files
    own = {f"data:{path.name}": path for path in beside}
    return {"model": config.model, "data": config.data, **own}


PROBE_FACTS = Command(
    "probe-facts",
    "ask an encoder what things look like: Memory Colors, CoDa, ViComTe",
    "groundling.studies.knowledge.probe_facts:probe_facts",
    {"_own": ProbeFactsConfig()},
    title="Knowledge: what an encoder knows",
    example="groundling probe-facts --model bert-base-uncased --data coda/annotations.jsonl --out runs/ask",
    common_flags="model data modes",
    output=ResumableRun(probe_facts_inputs),
)


@dataclass(frozen=True)
class PairsConfig(Settings):
    """Which language model judges which minimal pairs, and how."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """Masked or causal language model: hub id or folder."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """Folder or file of BLiMP, of EWoK, or your own .csv, .tsv or .jsonl with columns good and bad (and group, id)."""
    other: Annotated[str, InputKind.MODEL] = ""
    """Another model, on the same pairs: its accuracy, and how far it is above --model, paired by item."""
    pll: Literal["within-word", "original"] = "within-word"
    """What is masked while a piece is scored: it and the later pieces of its word (Kauf and Ivanova 2023), or it \
alone (Salazar et al. 2020)."""
    reduction: Literal["sum", "mean"] = "sum"
    """A text's score: the sum over its pieces, or their mean."""
    limit: Annotated[int, at_least(0)] = 0
    """At most so many pairs of each paradigm, evenly spaced; 0: all."""
    max_length: Annotated[int, at_least(0)] = 0
    """Most pieces of a text; 0: what the model can take."""
    skip_long: bool = False
    """Leave out pairs with a text that is longer, for both models, and count them; otherwise they are an error."""
    model_seed: Annotated[int, at_least(0)] = 0
    """The seed that the model was trained with, under which `verdict` finds the answers."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


def pairs_inputs(config: PairsConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    return {"model": config.model, "data": config.data, "other": config.other}


PAIRS = Command(
    "pairs",
    "which sentence of minimal pairs a language model finds likelier: BLiMP, EWoK, your own",
    "groundling.studies.knowledge.pair_likelihoods:pairs",
    {"_own": PairsConfig()},
    title="Knowledge: what an encoder knows",
    example="groundling pairs --model runs/control/model --other runs/seeing/model --data blimp --out "
    "runs/pairs",
    common_flags="model data other pll reduction cpu",
    prints_output=True,
    output=ResumableRun(pairs_inputs),
    formatter="groundling.studies.knowledge.pair_likelihoods:format_pairs",
)


@dataclass(frozen=True)
class WinogroundConfig(Settings):
    """Which model tells Winoground's images and captions apart."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """CLIP-like model, hub id or folder; with --regions a pre-trained single-stream model and its match head."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """Winoground's folder, or its examples.jsonl; a CLIP finds the images in `images` there, unless --images says \
otherwise."""
    other: Annotated[str, InputKind.MODEL] = ""
    """Another model of either kind, on the same examples: its scores, and how far they are above --model, paired by \
example."""
    shown: Annotated[ImageSettings, unnested] = field(default_factory=ImageSettings)
    max_length: Annotated[int, at_least(0)] = 128
    """Pieces per caption of a single-stream model; a CLIP's own window cuts its captions."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


def winoground_inputs(config: WinogroundConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    from groundling.data.regions.inputs import manifests

    given = {"model": config.model, "data": config.data, "images": config.shown.images}
    return {**given, "other": config.other, **manifests(config.shown.regions)}


WINOGROUND = Command(
    "winoground",
    "does a model tell images and captions of the same words apart?",
    "groundling.studies.knowledge.winoground:winoground",
    {"_own": WinogroundConfig()},
    title="Knowledge: what an encoder knows",
    example="groundling winoground --model openai/clip-vit-base-patch32 --data winoground --out "
    "runs/winoground",
    common_flags="model data other images regions cpu",
    prints_output=True,
    output=ResumableRun(winoground_inputs),
    formatter="groundling.studies.knowledge.winoground:format_winoground",
)


COMMANDS = (
    PROBE_FACTS,
    PAIRS,
    WINOGROUND,
)

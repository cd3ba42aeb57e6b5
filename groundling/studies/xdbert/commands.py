"""XDBERT's analyses, their commands and settings: word similarity, grounded words, diversity of attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from groundling.command_line import Command
from groundling.core.errors import InputError
from groundling.runs.outputs import Inputs, OutputFile, ResumableRun
from groundling.settings.fields import InputKind, Settings, at_least, required, unnested
from groundling.settings.input_settings import CaptionSettings


@dataclass(frozen=True)
class AttentionConfig(Settings):
    """Which cross-modal models' attention maps are compared."""

    model: Annotated[str, InputKind.FOLDER] = ""
    """Folder `joint` of `adapt --save-joint`."""
    other: Annotated[str, InputKind.FOLDER] = ""
    """The other one, e.g. without clip_tokens."""
    text: Annotated[tuple[str, ...], InputKind.PATH] = ()
    """Files of sentences, as for `adapt`."""
    task: Annotated[str, InputKind.TASK] = ""
    """In place of --text: a task, whose development texts or pairs are read, e.g. glue/rte (XDBERT's Table 9)."""
    data: Annotated[str, InputKind.PATH] = ""
    """--task: folder of its official files."""
    special_tokens: bool = False
    """The picture has rows of [CLS] and [SEP], too, as Table 9 has; the numbers are of the text's own pieces."""
    limit: Annotated[int, at_least(0)] = 400
    """Use at most so many sentences, evenly spaced; at least 200 are needed."""
    max_length: Annotated[int, at_least(0)] = 128
    """Pieces per sentence."""


def check_attention(config: AttentionConfig, out: str | Path) -> None:
    """Raises InputError without two models, or texts."""
    if not config.model or not config.other:
        raise InputError(
            "attention needs --model and --other, each a folder `joint` of `adapt --save-joint`"
        )
    if bool(config.text) == bool(config.task and config.data):
        raise InputError("attention needs --text FILE [FILE ...], or --task with --data")


def attention_inputs(config: AttentionConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    return {"data": config.data}


ATTENTION = Command(
    "attention",
    "how diverse the attention of two cross-modal models is",
    "groundling.studies.xdbert.diversity:attention",
    {"_own": AttentionConfig()},
    title="XDBERT: words, and the diversity of attention",
    example="groundling attention --model runs/match/joint --other runs/xdbert/joint --text my_text.txt --out "
    "runs/attention",
    common_flags="model other text task data",
    validate=check_attention,
    output=ResumableRun(attention_inputs, extendable=True),
)


@dataclass(frozen=True)
class CountsConfig(Settings):
    """Which captions are counted."""

    captions: Annotated[tuple[str, ...], InputKind.PATH, required] = ()
    """Files or folders of captions, as `train-clip` reads them; the paper uses MSCOCO's."""
    reading: Annotated[CaptionSettings, unnested] = field(default_factory=CaptionSettings)
    tokenizer: Annotated[str, InputKind.MODEL, required] = ""
    """Tokenizer whose pieces are counted: hub id or folder."""


DATA_COUNTS = Command(
    "data counts",
    "how often captions have each word, for `grounded`",
    "groundling.studies.xdbert.grounded:count_captions",
    {"_own": CountsConfig()},
    title="XDBERT: words, and the diversity of attention",
    example="groundling data counts --captions captions_train2014.json --tokenizer bert-base-uncased "
    "--out counts.json",
    common_flags="captions tokenizer",
    output=OutputFile(),
)


@dataclass(frozen=True)
class GroundedConfig(Settings):
    """Which runs are split into improved and worsened examples."""

    base: Annotated[str, InputKind.FOLDER, required] = ""
    """Run folder of the control."""
    other: Annotated[str, InputKind.FOLDER, required] = ""
    """Run folder of the model that may have gained."""
    task: Annotated[str, InputKind.TASK, required] = ""
    """Task by name, e.g. glue/rte."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """Folder with the task's official files."""
    counts: Annotated[str, InputKind.FILE, required] = ""
    """Table of `groundling data counts`."""
    tokenizer: Annotated[str, InputKind.MODEL, required] = ""
    """Tokenizer of that table: hub id or folder."""
    threshold: Annotated[int, at_least(0)] = 100
    """Grounded is what occurs more often than this in the captions (the paper: 100, in COCO's 414,113)."""
    variant: Literal["pieces", "inherit", "words"] = "pieces"
    """Pieces by themselves (the paper), pieces that inherit their word's status, or words."""


def grounded_inputs(config: GroundedConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    return {"counts": config.counts}


GROUNDED = Command(
    "grounded",
    "do gains go with the share of visually grounded words?",
    "groundling.studies.xdbert.grounded:grounded",
    {"_own": GroundedConfig()},
    title="XDBERT: words, and the diversity of attention",
    example="groundling grounded --base runs/control-rte --other runs/xdbert-rte --task glue/rte "
    "--data glue_data --counts counts.json --tokenizer bert-base-uncased --out runs/grounded",
    common_flags="base other task data counts tokenizer threshold",
    output=ResumableRun(grounded_inputs, extendable=True),
)


@dataclass(frozen=True)
class SimilarityConfig(Settings):
    """Whose word embeddings are compared."""

    model: Annotated[str, InputKind.MODEL_OR_RANDOM, required] = ""
    """Text encoder or CLIP-like model: hub id or folder; or `random`."""
    other: Annotated[str, InputKind.MODEL_OR_RANDOM, required] = ""
    """The other one."""
    limit: Annotated[int, at_least(0)] = 0
    """Only the first so many shared words, by a's piece ids; 0: all."""
    permutations: Annotated[int, at_least(1)] = 5
    """Permuted pairings that tell what chance alone gives."""
    seed: Annotated[int, at_least(0)] = 0
    """Seed of the pairings."""


SIMILARITY = Command(
    "similarity",
    "CCA, SVCCA and PWCCA of two encoders' word embeddings",
    "groundling.studies.xdbert.similarity:similarity",
    {"_own": SimilarityConfig()},
    title="XDBERT: words, and the diversity of attention",
    example="groundling similarity --model bert-base-uncased --other openai/clip-vit-base-patch32 --out "
    "runs/similarity",
    common_flags="model other",
    output=ResumableRun(extendable=True),
)


COMMANDS = (
    ATTENTION,
    DATA_COUNTS,
    GROUNDED,
    SIMILARITY,
)

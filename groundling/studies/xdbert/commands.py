"""XDBERT's analyses, their commands and settings: word similarity, grounded words, diversity of attention."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from groundling.command_line import Command, OutputFile, ResumableRun
from groundling.core.errors import InputError
from groundling.settings.fields import InputKind, Settings, required, settings
from groundling.settings.input_settings import CaptionSettings


@settings
class AttentionConfig(Settings):
    """Cross-modal models whose attention maps are compared."""

    model: Annotated[str, InputKind.FOLDER, required] = ""
    """First model: the folder `joint` that `adapt --save-joint` writes."""
    other: Annotated[str, InputKind.FOLDER, required] = ""
    """Second model, a folder of the same kind, e.g. trained without the objective clip_tokens."""
    text: Annotated[tuple[str, ...], InputKind.PATH] = ()
    """Files of sentences, one per line, in any format of `adapt --text`."""
    task: Annotated[str, InputKind.OBJECT] = ""
    """Instead of --text: a task whose development texts or pairs are read, e.g. glue/rte (XDBERT's Table 9)."""
    data: Annotated[str, InputKind.PATH] = ""
    """--task: folder with the task's official files."""
    special_tokens: bool = False
    """Draw the rows of [CLS] and [SEP] too, as XDBERT's Table 9 does; the numbers use only the tokens of the text."""
    limit: Annotated[int, Ge(0)] = 400
    """Maximum number of sentences, evenly spaced; 0: all. At least 200 are needed."""
    max_length: Annotated[int, Ge(0)] = 128
    """Maximum tokens per sentence."""


def check_attention(config: AttentionConfig, out: str | Path) -> None:
    """Raises InputError without texts."""
    if bool(config.text) == bool(config.task and config.data):
        raise InputError("attention needs text=FILE [FILE ...], or task with data")


ATTENTION = Command(
    "attention",
    "attention diversity of two cross-modal models",
    "groundling.studies.xdbert.diversity:attention",
    {"_own": AttentionConfig()},
    title="XDBERT: words, and the diversity of attention",
    example="groundling attention --model runs/match/joint --other runs/xdbert/joint --text my_text.txt --out "
    "runs/attention",
    common_flags="model other text task data",
    validate=check_attention,
    output=ResumableRun(lambda config: {"data": config.data}, extendable=True),
)


@settings
class CaptionTokenCountsConfig(Settings):
    """Captions whose words are counted."""

    captions: Annotated[tuple[str, ...], InputKind.PATH, required] = ()
    """Caption files or folders, as for `train-clip --captions`; the paper uses MSCOCO's."""
    caption_settings: CaptionSettings = field(default_factory=CaptionSettings)
    tokenizer: Annotated[str, InputKind.MODEL, required] = ""
    """Tokenizer whose tokens are counted: hub id or folder."""


DATA_COUNTS = Command(
    "data counts",
    "count the words of captions, for `grounded`",
    "groundling.studies.xdbert.grounded:count_captions",
    {"_own": CaptionTokenCountsConfig()},
    title="XDBERT: words, and the diversity of attention",
    example="groundling data counts --captions captions_train2014.json --tokenizer bert-base-uncased "
    "--out counts.json",
    common_flags="captions tokenizer",
    out_help="Output file, in json; an existing file is replaced.",
    output=OutputFile(),
)


@settings
class GroundedConfig(Settings):
    """Runs whose examples are split into improved and worsened ones."""

    base: Annotated[str, InputKind.FOLDER, required] = ""
    """Run folder of the control."""
    other: Annotated[str, InputKind.FOLDER, required] = ""
    """Run folder of the model that is compared with the control."""
    task: Annotated[str, InputKind.OBJECT, required] = ""
    """Task name, e.g. glue/rte."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """Folder with the task's official files."""
    counts: Annotated[str, InputKind.FILE, required] = ""
    """Word counts, the output of `groundling data counts`."""
    tokenizer: Annotated[str, InputKind.MODEL, required] = ""
    """Tokenizer with which the words were counted: hub id or folder."""
    threshold: Annotated[int, Ge(0)] = 100
    """A word is visually grounded if it occurs more often than this in the captions (the paper: \
100, in COCO's 414,113 captions)."""


GROUNDED = Command(
    "grounded",
    "do gains grow with the share of visually grounded words?",
    "groundling.studies.xdbert.grounded:grounded",
    {"_own": GroundedConfig()},
    title="XDBERT: words, and the diversity of attention",
    example="groundling grounded --base runs/control-rte --other runs/xdbert-rte --task glue/rte "
    "--data glue_data --counts counts.json --tokenizer bert-base-uncased --out runs/grounded",
    common_flags="base other task data counts tokenizer threshold",
    output=ResumableRun(lambda config: {"counts": config.counts}, extendable=True),
)


@settings
class SimilarityConfig(Settings):
    """Models whose word embeddings are compared, or vectors of captions and images."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """First model, text encoder or CLIP-like model: hub id or folder; or `random`: random vectors \
as a baseline. With --captions: vectors:FOLDER of the texts."""
    other: Annotated[str, InputKind.MODEL, required] = ""
    """Second model: hub id or folder; or `random`. With --captions: vectors:FOLDER of the images."""
    captions: Annotated[str, InputKind.PATH] = ""
    """Captions of images, whose vectors are compared in place of words', the first of each image."""
    caption_settings: CaptionSettings = field(default_factory=CaptionSettings)
    neighbors: Annotated[int, Ge(1)] = 10
    """Number of nearest neighbours of each row whose share in both is measured."""
    limit: Annotated[int, Ge(0)] = 0
    """Use only the first N shared words, in the order of --model's token ids, or images; 0: all."""
    permutations: Annotated[int, Ge(2)] = 5
    """Number of random pairings of words, which estimate the similarity expected by chance."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the random pairings."""


SIMILARITY = Command(
    "similarity",
    "CCA, SVCCA, PWCCA and mutual neighbours of two encoders' words, or of texts and images",
    "groundling.studies.xdbert.similarity:similarity",
    {"_own": SimilarityConfig()},
    title="XDBERT: words, and the diversity of attention",
    example="groundling similarity --model bert-base-uncased --other openai/clip-vit-base-patch32 --out "
    "runs/similarity",
    common_flags="model other captions",
    output=ResumableRun(lambda config: {"captions": config.captions}, extendable=True),
)


COMMANDS = (
    ATTENTION,
    DATA_COUNTS,
    GROUNDED,
    SIMILARITY,
)

"""Commands and settings of the attention study: what attention heads of vision-language models attend to."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from groundling.command_line import Command, OutputFile, ResumableRun
from groundling.command_line.names import input_paths
from groundling.settings.fields import (
    InputKind,
    Settings,
    may_repeat,
    require_settings,
    required,
    settings,
)
from groundling.settings.input_settings import (
    CaptionColumns,
    ImageSettings,
    PredictionColumns,
)

TITLE = "Attention: what heads of vision-language models attend to"
"""Section of these commands in help."""


@settings
class LoadingSettings(Settings):
    """How and where models are loaded."""

    model_format: Annotated[str, InputKind.OBJECT] = ""
    """MODULE:NAME of your own `ModelFormat` that loads --model; empty: detected from the folder."""
    architecture: Annotated[str, InputKind.OBJECT] = ""
    """MODULE:NAME of your own `Architecture` that the model was made with."""
    cpu: bool = False
    """Run on the CPU even if an accelerator is available."""


@settings
class AnalysedModelSettings(LoadingSettings):
    """Model whose attention is analysed, and its inputs."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """Pre-trained or fine-tuned model that reads text and regions: a folder of `pretrain` or \
`finetune --save-model`, or a Hugging Face VisualBERT, LXMERT or ViLT."""
    untrained: bool = False
    """Replace the model's weights with random ones: a control, which must show no effect."""
    image_settings: ImageSettings = field(default_factory=ImageSettings)
    object_tags: bool = True
    """VCR: link words that name objects to the regions of these objects; turn off for stores of \
other regions, such as a grid. A fine-tuned model keeps its setting from training."""
    max_length: Annotated[int, Ge(0)] = 128
    """Maximum tokens per text; longer texts are truncated and counted."""
    batch: Annotated[int, Ge(1)] = 32
    """Texts per forward pass."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the controls, the halves of the data and the bootstrap resamples."""


@settings
class EntityCaptionSettings(Settings):
    """Captions of Flickr30k Entities."""

    data: Annotated[str, InputKind.PATH, required] = ""
    """Folder with the official files of Flickr30k Entities or, for `heads`, of another --task."""
    split: str = "val"
    """Split to read; for Flickr30k Entities the name of a list of images in the folder (val: val.txt)."""


@settings
class GroundingSettings(AnalysedModelSettings, EntityCaptionSettings):
    """Attention heads as classifiers without training: model, data, selection of heads, control."""

    min_region_attention: Annotated[float, Interval(ge=0, le=1)] = 0.2
    """Select only heads that send more than this share of their attention from phrases to regions \
(the paper: 20 %); 0: all."""
    shuffled_images_control: bool = True
    """Control: repeat the analysis with the region features of other images, which doubles the \
time. Accuracy that remains does not come from visual content."""


@settings
class HeadsConfig(GroundingSettings):
    """Attention heads as phrase-grounding classifiers: model, task and controls."""

    task: Annotated[str, InputKind.OBJECT] = "flickr30k"
    """Task whose answer is a region: flickr30k (any of a phrase's boxes is correct), flickr30k/merged (the box around \
them), refcoco+, refcoco, refcocog (the whole expression is the phrase), or MODULE:NAME."""
    query: Literal["last", "mean"] = "last"
    """Query position of a phrase: its last token, or the mean over its tokens."""


HEADS = Command(
    "heads",
    "which attention heads ground phrases: every head as a phrase-grounding classifier",
    "groundling.studies.attention.grounding:heads",
    {"_own": HeadsConfig()},
    title=TITLE,
    example="groundling heads --model runs/uniter/model --data flickr30k --regions runs/store --out "
    "runs/heads",
    common_flags="model data regions images task split min-region-attention cpu",
    prints_output=True,
    output=ResumableRun(input_paths),
    formatter="groundling.studies.attention.grounding:format_heads",
)


GOLD_PARSES = "parses.conllu"
"""File of gold parses that a rendered world has beside its captions."""


@settings
class VisualizeConfig(LoadingSettings):
    """Models, images and texts of the page."""

    model: Annotated[tuple[str, ...], InputKind.MODEL, required, may_repeat] = ()
    """Models, side by side: output of `finetune` or `pretrain` (with several seeds the one with \
the best development score), a text encoder, or a Hugging Face VisualBERT, ViLT or CLIP."""
    image: Annotated[str, InputKind.FILE] = ""
    """Your photo."""
    text: str = ""
    """Text about the photo."""
    pair: str = ""
    """A second text, such as the answer to a question."""
    data: Annotated[str, InputKind.PATH] = ""
    """Instead of --image and --text: a csv, tsv, json or jsonl file with many pairs, or the folder of a --task."""
    images: Annotated[str, InputKind.FOLDER] = ""
    """Folder of the photos of --data."""
    image_column: Annotated[str, InputKind.COLUMN] = "image"
    """--data FILE: column of the photo's file name."""
    text_column: Annotated[str, InputKind.COLUMN] = "text"
    """--data FILE: text column, or two separated by a comma."""
    task: Annotated[str, InputKind.OBJECT] = ""
    """Task whose official files are in --data."""
    split: str = ""
    """--task: split to show; empty: the first with labels."""
    example: str = ""
    """--task: show only examples of this image, this Flickr30k caption (IMAGE#NUMBER) or this id."""
    limit: Annotated[int, Ge(0)] = 10
    """Show only the first N pairs; 0: all."""
    regions: Annotated[str, InputKind.FOLDER] = ""
    """Region store; photos that it lacks get regions extracted like those of the store."""
    allow_region_mismatch: bool = False
    """Accept regions made by another detector or backbone than those the model was trained on."""
    layers: tuple[Annotated[int, Ge(0)], ...] = ()
    """Show only these layers, counted from 0; none: all."""
    heat_maps: tuple[str, ...] = ()
    """Also draw heat maps of these heads, LAYER-HEAD such as 2-0, of the first model on the first \
pair, as SVG, PDF and PNG."""
    trust: Annotated[tuple[str, ...], InputKind.OBJECT] = ()
    """MODULE:NAME of each of your own objects that a fine-tuned model's folder needs."""


VISUALIZE = Command(
    "visualize",
    "an HTML page of the regions that each word attends to, head by head, on your own photo",
    "groundling.studies.attention.page:write_page",
    {"_own": VisualizeConfig()},
    title=TITLE,
    example='groundling visualize runs/read --image pier.jpg --text "is it a dog ?" --out look.html',
    common_flags="model image text data images regions cpu",
    positional=("--model",),
    file="look.html",
    out_help="Output HTML page; an existing file is replaced.",
    validate=lambda config, out: (
        None if config.data else require_settings(config, "visualize", "text")
    ),
    output=OutputFile(),
)


@settings
class ModalityConfig(AnalysedModelSettings):
    """How much a model attends to and depends on text and image: models, examples and methods."""

    other: Annotated[str, InputKind.MODEL] = ""
    """A second model, compared on the same examples, such as the first model after distillation."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """File or folder of captions, as for `pretrain`; with --task, or for a fine-tuned model, the \
task's official files or your own file with labels, as for `evaluate`."""
    columns: CaptionColumns = field(default_factory=CaptionColumns)
    task: Annotated[str, InputKind.OBJECT] = ""
    """Task whose examples a pre-trained model reads, e.g. snli-ve; empty: captions. A fine-tuned \
model uses its own task."""
    split: str = ""
    """Split of the data; empty: the task's first with labels. Karpathy's json of captions needs a split."""
    asking: PredictionColumns = field(default_factory=PredictionColumns)
    label: Annotated[str, InputKind.COLUMN] = ""
    """Your own file: label column; empty: the column of the training file."""
    trust: Annotated[tuple[str, ...], InputKind.OBJECT] = ()
    """MODULE:NAME of each of your own objects that the model folder needs, such as its task. Code \
named in a model folder is imported only if it is listed here."""
    limit: Annotated[int, Ge(0)] = 1000
    """Maximum number of examples, evenly spaced; 0: all."""
    outcome: Literal["best", "match", "words"] = "best"
    """Output of a pre-trained model that is measured when inputs change: the image-text match score, or the \
prediction of masked words; best: the match score if the model has a match head. A fine-tuned model uses its task."""
    perturbed_inputs: bool = True
    """Also measure the output with blank, shuffled and swapped images and texts (eight passes in all)."""
    ig_examples: Annotated[int, Ge(0)] = 100
    """Number of examples, evenly spaced, with integrated gradients of the output; 0: none."""
    ig_steps: Annotated[int, Ge(1)] = 64
    """Steps of integrated gradients between the blank input and the example."""
    teacher: Annotated[str, InputKind.MODEL] = ""
    """Compare attention to words with CLIP-TD's word selection by this CLIP: hub id or folder; empty: no comparison."""
    teacher_images: Annotated[str, InputKind.FOLDER] = ""
    """--teacher: folder of the images that it reads; an image's id is its path in this folder, \
without the file ending."""
    num_words: Annotated[int, Ge(1)] = 2
    """--teacher: number of words that it selects per text."""
    relevance: Literal["contextual", "isolated"] = "contextual"
    """--teacher: visual relevance of a word in its context (contextual), or of the word alone (isolated)."""


MODALITY = Command(
    "modality",
    "how much a model attends to and depends on text and image, e.g. before and after distillation",
    "groundling.studies.attention.modality:modality",
    {"_own": ModalityConfig()},
    title=TITLE,
    example="groundling modality --model runs/seen/model --regions runs/store --data my_captions.tsv "
    "--out runs/modality",
    common_flags="model data regions images other ig-examples cpu",
    prints_output=True,
    validate=lambda config, out: (
        require_settings(config, "modality teacher", "teacher_images") if config.teacher else None
    ),
    output=ResumableRun(input_paths),
    formatter="groundling.studies.attention.modality:format_modality",
)


@settings
class SyntaxConfig(GroundingSettings):
    """Attention heads that attend from a word to the region of its syntactic neighbour: model, data and parses."""

    parses: Annotated[str, required] = ""
    """Dependency parses of the captions: a CoNLL-U file of any parser, a folder of such files, \
spacy or spacy:MODEL, if it is installed, or gold: those of a rendered world."""
    labels: Literal["stanford", "as-is"] = "stanford"
    """Relation labels and structure: stanford: converted to Stanford dependencies (the paper); as-is: the parser's."""
    min_arcs: Annotated[int, Ge(1)] = 50
    """Minimum number of arcs of a relation; for rarer relations only the number is reported."""


def parses_of(config: SyntaxConfig) -> Path | None:
    """File or folder of the parses; None for a parser that runs now."""
    path = Path(config.parses)
    if config.parses == "gold" and not path.exists():
        return Path(config.data) / GOLD_PARSES
    is_parser = config.parses.partition(":")[0] == "spacy"
    return None if is_parser and not path.exists() else path


SYNTAX = Command(
    "syntax",
    "which attention heads attend from a word to the region of its syntactic neighbour",
    "groundling.studies.attention.syntax:syntax",
    {"_own": SyntaxConfig()},
    title=TITLE,
    example="groundling syntax --model runs/visualbert/model --data flickr30k --parses spacy "
    "--regions runs/store --out runs/syntax",
    common_flags="model data regions parses split labels cpu",
    prints_output=True,
    output=ResumableRun(lambda config: {**input_paths(config), "parses": parses_of(config) or ""}),
    formatter="groundling.studies.attention.syntax:format_syntax",
)


CAPTIONS = Command(
    "data captions",
    "write the captions that `syntax` reads, one per line, for a parser of your own",
    "groundling.studies.attention.syntax:write_captions",
    {"_own": EntityCaptionSettings()},
    title=TITLE,
    example="groundling data captions flickr30k --split val --out captions.txt",
    common_flags="data split",
    positional=("--data",),
    file="captions.txt",
    out_help="Output file; an existing file is replaced.",
    output=OutputFile(),
)


COMMANDS = (CAPTIONS, HEADS, VISUALIZE, MODALITY, SYNTAX)

"""Commands and settings of the study of attention: what the attention heads of vision-language models look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from groundling.command_line import Command
from groundling.core.errors import InputError
from groundling.runs.outputs import Inputs, OutputFile, ResumableRun
from groundling.settings.fields import (
    InputKind,
    Settings,
    at_least,
    between,
    may_repeat,
    refuse_settings,
    require_settings,
    required,
    unnested,
)
from groundling.settings.input_settings import CaptionColumns, ImageSettings, PredictionColumns

TITLE = "Attention: what the heads of vision-language models look at"
"""Of these commands in help."""


@dataclass(frozen=True)
class AttentionSettings(Settings):
    """Whose attention is looked at, and what it reads beside the texts."""

    model: Annotated[str, InputKind.MODEL] = ""
    """Model that reads text and regions, pre-trained or fine-tuned: a folder of `pretrain`, `finetune --save-model`, \
or of Hugging Face's VisualBERT, LXMERT or ViLT."""
    untrained: bool = False
    """Random weights in place of the model's own: a control, which must show nothing."""
    image_settings: Annotated[ImageSettings, unnested] = field(default_factory=ImageSettings)
    object_tags: bool = True
    """VCR: words that name objects are tied to these objects' regions (turn off for a store of others: a grid's); a \
fine-tuned model reads them as it learned."""
    max_length: Annotated[int, at_least(0)] = 128
    """Pieces per text; longer ones are cut, and what is lost is counted."""
    batch: Annotated[int, at_least(1)] = 32
    """Texts that are read at a time."""
    seed: Annotated[int, at_least(0)] = 0
    """Draws the controls, the halves of the data and the resamples of the intervals."""
    model_format: str = ""
    """MODULE:NAME of a `ModelFormat` of your own that loads the model."""
    architecture: Annotated[str, InputKind.DESIGN] = ""
    """MODULE:NAME of an `Architecture` of your own that the model was made with."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


def _of_attending(attending: AttentionSettings) -> Inputs:
    """The model, images and stores that an analysis reads, whose hashes tell its run from others."""
    from groundling.data.regions.inputs import manifests

    return {
        "model": attending.model,
        "images": attending.image_settings.images,
        **manifests(attending.image_settings.regions),
    }


@dataclass(frozen=True)
class FiguresConfig(Settings):
    """Which runs are drawn."""

    results: Annotated[tuple[str, ...], InputKind.FOLDER, required] = ()
    """Folders of finished runs of `heads`, `syntax` and `modality`."""
    formats: tuple[str, ...] = ("svg", "pdf", "png")
    """Which of these to write."""


FIGURES = Command(
    "figures",
    "figures for papers from what `heads`, `syntax` and `modality` wrote",
    "groundling.studies.attention.figures:figures",
    {"_own": FiguresConfig()},
    title=TITLE,
    example="groundling figures runs/heads --out runs/figures",
    common_flags="results formats",
    positional=("--results",),
    out_help="Folder of the figures; older ones of the same names are replaced.",
    output=OutputFile(("*.svg*", "*.pdf*", "*.png*")),
)


@dataclass(frozen=True)
class HeadsConfig(Settings):
    """Whose attention heads are asked where a phrase's own thing is, and how."""

    attention: AttentionSettings = field(default_factory=AttentionSettings)
    task: Annotated[str, InputKind.TASK] = "flickr30k"
    """A task whose answer is a region: flickr30k (any of a phrase's boxes counts), flickr30k/merged (the box around \
them), refcoco+, refcoco, refcocog (the whole expression is the phrase), or MODULE:NAME."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """Folder with the task's official files."""
    split: str = "val"
    """Which split: of Flickr30k Entities a list of images there."""
    query: Literal["last", "mean"] = "last"
    """Where in a phrase heads are asked: at its last piece, or the mean over its pieces."""
    min_region_attention: Annotated[float, between(0, 1)] = 0.2
    """Heads that send no more than this share of their attention from phrases to regions are not chosen (the paper: \
20 %); 0: all may be."""
    include_unrelated_captions: bool = True
    """Flickr30k Entities: ask captions, too, that UNRELATED_CAPTIONS lists."""
    shuffled_images_control: bool = True
    """Ask a second time beside the looks of other images, which doubles the time: what is still found then, no head \
has found by looking."""
    processes: Annotated[int, at_least(1)] = 1
    """Processes that share the texts, on this machine; results do not depend on it. `torchrun` does the same."""


def check_heads(config: HeadsConfig, out: str | Path) -> None:
    """Raises InputError without a model."""
    require_settings(config.attention, "heads", "model")


def inputs_of_heads(config: HeadsConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    return {"data": config.data, **_of_attending(config.attention)}


HEADS = Command(
    "heads",
    "which attention heads look where a phrase's own thing is: every head as a classifier",
    "groundling.studies.attention.heads:heads",
    {"_own": HeadsConfig()},
    title=TITLE,
    example="groundling heads --model runs/uniter/model --data flickr30k --regions runs/store --out "
    "runs/heads",
    common_flags="model data regions images task split min-region-attention cpu",
    prints_output=True,
    validate=check_heads,
    output=ResumableRun(inputs_of_heads, ignored_settings=("processes",)),
    formatter="groundling.studies.attention.heads:format_heads",
)


GOLD_PARSES = "parses.conllu"
"""What a rendered world has beside its captions."""
MOST_BOXES = 16
"""Per side of a grid of `visualize`: on a page of 360 pixels each is then 20 of them wide."""


def check_visualize(config: VisualizeConfig, out: str | Path) -> None:
    """Raises InputError for settings of which one would be ignored."""
    many = bool(config.data or config.predictions)
    if many:
        own = {"--text": config.text, "--pair": config.pair, "--image": config.image}
        refuse_settings(own, "of a pair of your own; leave it out with --data or --predictions")
    else:
        require_settings(config, "visualize", "text")
        if not config.text.strip():
            raise InputError("--text: holds nothing but spaces; expected words")
    if config.predictions:
        if len(config.predictions) != 2:
            raise InputError(f"--predictions: {len(config.predictions)} files, expected two")
        others = {"--data": config.data, "--task": config.task}
        refuse_settings(others, "--predictions are the pairs themselves; leave it out")
    if not config.data:
        refuse_settings({"--task": config.task}, "pass the folder of its files, --data FOLDER")
    if not config.task:
        of_tasks = {"--split": config.split, "--example": config.example}
        refuse_settings(of_tasks, "only a --task has splits, and examples by name")
    if len(config.heads) > len(config.model):
        raise InputError(f"--heads: {len(config.heads)} results for {len(config.model)} models")


@dataclass(frozen=True)
class VisualizeConfig(Settings):
    """Which models are looked at, on which images and texts, and what stands beside them on the page."""

    model: Annotated[tuple[str, ...], InputKind.MODEL, required, may_repeat] = ()
    """Models, side by side: what `finetune` or `pretrain` wrote (of several seeds the best on dev), a text encoder, \
or Hugging Face's VisualBERT, ViLT or CLIP."""
    image: Annotated[str, InputKind.FILE] = ""
    """Your own photo."""
    text: str = ""
    """What is said about it."""
    pair: str = ""
    """A second text, such as the answer to a question."""
    data: Annotated[str, InputKind.PATH] = ""
    """Instead of --image and --text: a csv, tsv, json or jsonl file of many, or the folder of a --task."""
    images: Annotated[str, InputKind.FOLDER] = ""
    """Folder of the photos of --data."""
    image_column: Annotated[str, InputKind.COLUMN] = "image"
    """--data, a file: column of the photo's file name."""
    text_column: Annotated[str, InputKind.COLUMN] = "text"
    """--data, a file: column of the text, or two by comma."""
    task: Annotated[str, InputKind.TASK] = ""
    """--data is a folder with this task's official files."""
    split: str = ""
    """--task: which split; empty: the first that has labels."""
    example: str = ""
    """--task: only the examples of this image, this caption of Flickr30k (IMAGE#NUMBER) or this id."""
    limit: Annotated[int, at_least(0)] = 0
    """Only so many of the pairs, from the first (--predictions: of each kind); 0: all."""
    regions: Annotated[tuple[str, ...], InputKind.NAMED, may_repeat] = ()
    """Region stores; a photo that none of them has gets its regions as the first store's were made."""
    detector: Annotated[str, InputKind.MODEL] = ""
    """Detector that finds the regions of photos: hub id or folder; empty: the one that the model learned with."""
    backbone: Annotated[str, InputKind.MODEL] = ""
    """Their image encoder: hub id or folder; empty: the one that the model learned with."""
    grid: Annotated[int, between(0, MOST_BOXES)] = 0
    """Boxes per side of a regular grid, at most 16, instead of a detector; 0: as the model learned."""
    allow_region_mismatch: bool = False
    """Accept regions that were made otherwise than those that the model learned from."""
    heads: Annotated[tuple[str, ...], InputKind.PATH, may_repeat] = ()
    """What `groundling heads` wrote about each of the models, in their order: ranks heads by what they find."""
    other_heads: bool = False
    """Accept what `groundling heads` found of another model of as many layers and heads."""
    predictions: Annotated[tuple[str, ...], InputKind.FILE, may_repeat] = ()
    """Two files that `groundling predict` wrote about one file: what became right or wrong from the first to the \
second. Without --data, these are the pairs."""
    label_column: str = "label"
    """--predictions: column of the right answer."""
    layers: Annotated[tuple[int, ...], at_least(0)] = ()
    """Only these layers, counted from 0; none: all."""
    heat_maps: tuple[str, ...] = ()
    """Also draw these heads, LAYER-HEAD such as 2-0, of the first model on the first pair, as SVG, PDF and PNG; best: \
the best active head of --heads in each of the six best layers. Where a --task knows the boxes that phrases mean, \
regions are grouped by them."""
    per_page: Annotated[int, at_least(1)] = 10
    """Pairs on a page; further ones are on pages of their own, with links."""
    max_pairs: Annotated[int, at_least(1)] = 200
    """More pairs than this are refused, for the pages' sake."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


VISUALIZE = Command(
    "visualize",
    "a page to look at: which regions a model's words attend to, head by head, on your own photo",
    "groundling.studies.attention.page:write_pages",
    {"_own": VisualizeConfig()},
    title=TITLE,
    example='groundling visualize runs/read --image pier.jpg --text "is it a dog ?" --out look.html',
    common_flags="model image text data images regions heads cpu",
    positional=("--model",),
    file="look.html",
    out_help="HTML page to write; an older page is replaced, any other file is left alone.",
    validate=check_visualize,
    output=OutputFile(),
)


@dataclass(frozen=True)
class ModalityConfig(Settings):
    """Of which model it is asked how much it looks at, and depends on, text and image; and on which examples."""

    attention_model: AttentionSettings = field(default_factory=AttentionSettings)
    other: Annotated[str, InputKind.MODEL] = ""
    """A second model, compared with the first on the same examples, such as the same one after distillation."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """File or folder of captions of images, as `pretrain` reads them; with --task, or of a fine-tuned model, the \
task's official files or your own file with labels, as for `evaluate`."""
    columns: CaptionColumns = field(default_factory=CaptionColumns)
    task: Annotated[str, InputKind.TASK] = ""
    """Task whose examples a pre-trained model reads, e.g. snli-ve; empty: captions; a fine-tuned model's own."""
    split: str = ""
    """Which split of the data; empty: the task's first with labels. Of Karpathy's captions it has to be said."""
    asking: PredictionColumns = field(default_factory=PredictionColumns)
    label: Annotated[str, InputKind.COLUMN] = ""
    """A file of your own: column of the label; empty: as in the file that the model learned from."""
    trust: Annotated[tuple[str, ...], InputKind.OBJECT] = ()
    """MODULE:NAME of every object of your own that a fine-tuned model's folder asks for, such as its task; nothing is \
imported because a folder says so."""
    limit: Annotated[int, at_least(0)] = 1000
    """Use at most so many examples, evenly spaced; 0: all."""
    query: Literal["cls", "all"] = "cls"
    """Whose attention is summed: that of [CLS], or the mean over all places."""
    outcome: Literal["best", "match", "words"] = "best"
    """What a pre-trained model is asked where inputs are changed: how well text and image match, or words that are \
hidden from it; best: the match if it has a head for it. A fine-tuned one is asked its task."""
    perturbed_inputs: bool = True
    """Also ask it beside blank, shuffled and swapped images and texts, eight passes in all."""
    ig_examples: Annotated[int, at_least(0)] = 100
    """Examples, evenly spaced, whose answers are also explained by integrated gradients; 0: none."""
    ig_steps: Annotated[int, at_least(1)] = 64
    """Points on the line from a blank input at which integrated gradients are taken."""
    teacher: Annotated[str, InputKind.MODEL] = ""
    """Compare attention to words with CLIP-TD's selection scores by this CLIP (hub id or folder); empty: leave out."""
    teacher_images: Annotated[str, InputKind.FOLDER] = ""
    """--teacher: folder of the images that it sees; ids are paths there without the ending."""
    num_words: Annotated[int, at_least(1)] = 2
    """--teacher: words of each text that are selected."""
    relevance: Literal["contextual", "isolated"] = "contextual"
    """--teacher: a word's visual relevance is that of its place in the text, or of the word by itself."""
    processes: Annotated[int, at_least(1)] = 1
    """Processes that share the examples, on this machine; results do not depend on it. `torchrun` does the same."""


def check_modality(config: ModalityConfig, out: str | Path) -> None:
    """Raises InputError without a model, and for a teacher without images."""
    require_settings(config.attention_model, "modality", "model")
    if config.teacher:
        require_settings(config, "modality --teacher", "teacher_images")


def inputs_of_modality(config: ModalityConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    return {
        "other": config.other,
        "data": config.data,
        "teacher": config.teacher,
        "teacher_images": config.teacher_images,
        **_of_attending(config.attention_model),
    }


MODALITY = Command(
    "modality",
    "how much a model looks at, and depends on, text and image; before and after distillation",
    "groundling.studies.attention.modality:modality",
    {"_own": ModalityConfig()},
    title=TITLE,
    example="groundling modality --model runs/seen/model --regions runs/store --data my_captions.tsv "
    "--out runs/modality",
    common_flags="model data regions images other ig-examples cpu",
    prints_output=True,
    validate=check_modality,
    output=ResumableRun(inputs_of_modality, ignored_settings=("processes",)),
    formatter="groundling.studies.attention.modality:format_modality",
)


@dataclass(frozen=True)
class SyntaxConfig(Settings):
    """Whose attention heads are asked where the thing of a word's syntactic neighbour is, and by which parses."""

    attention_model: AttentionSettings = field(default_factory=AttentionSettings)
    data: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder with Flickr30k Entities' official files."""
    split: str = "val"
    """Which split: a list of images there."""
    parses: Annotated[str, required] = ""
    """Dependency parses of the captions: a CoNLL-U file of any parser's, a folder of such, spacy, stanza (or \
spacy:MODEL, stanza:LANGUAGE, where installed), or gold: the rendered world's own."""
    labels: Literal["stanford", "ud", "as-is"] = "stanford"
    """Relations are called and built as in Stanford's dependencies (the paper), as in Universal Dependencies, or as \
the parses have them."""
    include_other_phrases: bool = False
    """Ask words in other phrases with boxes, too; these have a thing of their own to look at."""
    min_region_attention: Annotated[float, between(0, 1)] = 0.2
    """Heads that send no more than this share of their attention from a relation's words to regions are not chosen \
for it (the paper: 20 %); 0: all may be."""
    min_arcs: Annotated[int, at_least(1)] = 50
    """Relations of fewer arcs are only counted."""
    include_unrelated_captions: bool = True
    """Ask captions, too, that UNRELATED_CAPTIONS lists."""
    shuffled_images_control: bool = True
    """Ask a second time beside the looks of other images, which doubles the time: what is still found then, no head \
has found by looking."""
    processes: Annotated[int, at_least(1)] = 1
    """Processes that share the captions, on this machine; results do not depend on it. `torchrun` does the same."""


def check_syntax(config: SyntaxConfig, out: str | Path) -> None:
    """Raises InputError without a model."""
    require_settings(config.attention_model, "syntax", "model")


def parses_of(config: SyntaxConfig) -> Path | None:
    """The file or folder of the parses; None if a parser is to be asked. Raises InputError if it is not there."""
    from groundling.data.text.parses import PARSERS

    path = Path(config.parses)
    if config.parses == "gold" and not path.exists():
        path = Path(config.data) / GOLD_PARSES
        if not path.exists():
            raise InputError(
                f"--parses gold: no {path}; `groundling data make-tasks` writes one for a rendered world; photographs "
                "have none"
            )
    if path.exists():
        return path
    if config.parses.partition(":")[0] in PARSERS:
        return None
    raise InputError(
        f"--parses {config.parses}: no such file or folder; expected one of CoNLL-U, or {', '.join(PARSERS)} or gold"
    )


def inputs_of_syntax(config: SyntaxConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    parses = parses_of(config) or ""
    return {"data": config.data, "parses": parses, **_of_attending(config.attention_model)}


SYNTAX = Command(
    "syntax",
    "which attention heads look from a word to the thing of its syntactic neighbour",
    "groundling.studies.attention.syntax:syntax",
    {"_own": SyntaxConfig()},
    title=TITLE,
    example="groundling syntax --model runs/visualbert/model --data flickr30k --parses spacy "
    "--regions runs/store --out runs/syntax",
    common_flags="model data regions parses split labels cpu",
    prints_output=True,
    validate=check_syntax,
    output=ResumableRun(inputs_of_syntax, ignored_settings=("processes",)),
    formatter="groundling.studies.attention.syntax:format_syntax",
)


@dataclass(frozen=True)
class CaptionsConfig(Settings):
    """Of which split the captions are written for a parser of one's own."""

    data: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder with Flickr30k Entities' official files."""
    split: str = "val"
    """Which split: a list of images there."""
    include_unrelated_captions: bool = True
    """Write captions, too, that UNRELATED_CAPTIONS lists."""


CAPTIONS = Command(
    "data captions",
    "the captions that `syntax` reads, one a line, for a parser of your own",
    "groundling.studies.attention.syntax:write_captions",
    {"_own": CaptionsConfig()},
    title=TITLE,
    example="groundling data captions flickr30k --split val --out captions.txt",
    common_flags="data split include-unrelated-captions",
    positional=("--data",),
    file="captions.txt",
    out_help="File of the captions; an older one is replaced.",
    output=OutputFile(),
)


COMMANDS = (
    CAPTIONS,
    FIGURES,
    HEADS,
    VISUALIZE,
    MODALITY,
    SYNTAX,
)

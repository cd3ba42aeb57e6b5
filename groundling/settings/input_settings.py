"""Settings of several commands: inputs of models, columns of tables, and how regions are found in images."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from os.path import normpath
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Interval

from groundling.core.errors import InputError, convert_errors, duplicates
from groundling.settings.fields import InputKind, Settings, refuse_settings, required, settings


@settings
class ClipAdapterSettings(Settings):
    """An adapter trained over a frozen CLIP: a linear one, or those of CLIP-TD (Table 11)."""

    adapter: Literal["none", "linear", "mlp", "attention"] = "none"
    """Train a small adapter over --model, a frozen CLIP that reads the images of \
--teacher-images. linear: one Linear over image and text features, standardised, and their \
product, for few rows; mlp, attention: CLIP-TD's MLP and attention layer."""
    adapter_layers: Literal[1, 3] = 1
    """--adapter mlp: number of Linear layers, the output layer included."""
    fusion: Literal["concat", "cosine"] = "concat"
    """--adapter mlp: concatenate image and text features into one vector, or transform each and \
compare them by cosine."""

    def __post_init__(self) -> None:
        if self.adapter != "mlp":
            refuse_settings(self, "needs adapter=mlp", "adapter_layers", "fusion")


@settings
class ImageSettings(Settings):
    """Images of a model and their regions."""

    regions: Annotated[str, InputKind.FOLDER] = ""
    """Region store (output of `groundling regions`, whose --imports merges several); empty: the \
model reads no regions."""
    images: Annotated[str, InputKind.FOLDER] = ""
    """Folder of the images, for models that read pixels: end-to-end VL-BERT and VisualBERT, ViLT, \
zero-shot CLIP. An image's id in a store is its path in this folder, without the file ending; such \
a model reads only boxes, classes and segments from the store."""
    max_regions: Annotated[int, Ge(0)] = 0
    """Maximum regions per image, highest-scoring first; 0: all."""
    allow_region_mismatch: bool = False
    """Accept regions made by another detector or backbone than those the model was trained on."""


@settings
class RegionSettings(ImageSettings):
    """Regions of a model."""

    max_total_length: Annotated[int, Ge(0)] = 0
    """Maximum of text tokens and regions together; the longer of the two is truncated and the \
truncation is counted. 0: no limit. VL-BERT: 64 in pre-training."""
    object_tags: bool = True
    """VCR: link words that name objects to the regions of these objects; turn off for stores of \
other regions, such as a grid."""
    mentioned_objects_only: bool = False
    """VCR: read only objects that the question, answers or rationales of an example name (VisualBERT's code)."""


@settings
class VisualBertSettings(Settings):
    """Multimodal embeddings of a new VisualBERT made from a plain BERT; an existing VisualBERT keeps its own."""

    early_fusion: bool = True
    """A new VisualBERT: attend over text and regions in every layer; off: only in one added layer (ablation C2)."""
    region_boxes: bool = False
    """A new VisualBERT: append box corners, width and height to the region features (its Flickr30k code)."""
    object_classes: bool = False
    """A new VisualBERT: regions as in R2C (its VCR code): the whole image first, and a class \
embedding beside the features of each region; with --images also its segment."""


@settings
class PixelInputSettings(Settings):
    """CNN and image preprocessing of models that read pixels."""

    backbone: Annotated[str, InputKind.MODEL] = "microsoft/resnet-101"
    """--images: ResNet that initialises the CNN, hub id or folder; ignored if the model already has a CNN."""
    shortest_edge: Annotated[int, Ge(0)] = 0
    """--images: short side of the images in pixels, saved with the model; 0: the model's own, 600 for a new model."""
    longest_edge: Annotated[int, Ge(0)] = 0
    """--images: maximum long side in pixels, saved with the model; 0: the model's own, 5/3 of the \
short side for a new model. VL-BERT: 1000, on VCR 1200."""
    flip: bool = True
    """--images: mirror half of the training images, with their boxes and segments, and swap left \
and right in the texts of tasks whose paper does so."""


@settings
class CaptionColumns(Settings):
    """Columns of captions and image files in a table."""

    caption_column: Annotated[str, InputKind.COLUMN] = ""
    """Captions in a csv, tsv, json or jsonl file: caption column, or several separated by commas; \
empty: recognised by its name."""
    image_column: Annotated[str, InputKind.COLUMN] = ""
    """Captions in a csv, tsv, json or jsonl file: column of the image file name; empty: recognised by its name."""


@settings
class CaptionSettings(Settings):
    """Which captions of the files are used."""

    columns: CaptionColumns = CaptionColumns()
    caption_splits: tuple[str, ...] = ()
    """Karpathy's json, which needs this: splits to use, e.g. `train restval` or `test`."""


@settings
class CaptionedImageSettings(Settings):
    """Captions of images, and the folder of the images."""

    captions: Annotated[str, InputKind.PATH, required] = ""
    """Captions of images, in a format of docs/vision.md ("Caption and photo formats")."""
    caption_settings: CaptionSettings = CaptionSettings()
    images: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder of the images, searched recursively."""
    image_list: Annotated[str, InputKind.FILE] = ""
    """File that lists the images to use, one name per line, or as karpathy_train_images.txt does; empty: all."""
    skip_missing: bool = False
    """Skip captions whose image is missing, and count these images; otherwise a missing image is an error."""


@settings
class TableTaskSettings(Settings):
    """Columns that make a task of your own csv, tsv or json file (--data)."""

    text: Annotated[str, InputKind.COLUMN] = ""
    """Your own file: text column, or two columns separated by a comma, e.g. `question,answer`."""
    label: Annotated[str, InputKind.COLUMN] = ""
    """Your own file: label column; required to use the file as a task."""
    image: Annotated[str, InputKind.COLUMN] = ""
    """Your own file: column of the image file name. Pass it for a text-only control too, which \
then holds out the same rows."""
    label_type: Literal["auto", "classify", "regress"] = "auto"
    """Your own file: labels are classes or numbers; auto: regression if labels have fractions or \
more than 20 values."""
    dev: Annotated[str, InputKind.FILE] = ""
    """Your own file: a second file to evaluate on; empty: about a fifth of the rows is held out."""
    group: Annotated[str, InputKind.COLUMN] = ""
    """Your own file: rows with equal values in this column are held out together; empty: grouped \
by image, or by text."""


@settings
class SavedModelSettings(Settings):
    """A fine-tuned model and the images that it reads."""

    model: Annotated[str, InputKind.FOLDER, required] = ""
    """Output of `finetune`: a run folder, or a `model` folder inside it."""
    model_seed: Annotated[int, Ge(-1)] = -1
    """If --model is a run folder: seed whose model is used; -1: the seed with the best development score."""
    regions: Annotated[str, InputKind.FOLDER] = ""
    """Region store of the images, made with the same settings as that of training."""
    images: Annotated[str, InputKind.FOLDER] = ""
    """Folder of the images. A model that reads pixels reads them; for other models regions are \
extracted now, with the detector or grid and the backbone of the training regions."""
    allow_region_mismatch: bool = False
    """Accept regions made by another detector or backbone than those the model was trained on."""
    detector: Annotated[str, InputKind.MODEL] = ""
    """--images: hub id or folder of the detector, if it has moved since training."""
    backbone: Annotated[str, InputKind.MODEL] = ""
    """--images: hub id or folder of the backbone, if it has moved since training."""
    trust: Annotated[tuple[str, ...], InputKind.OBJECT] = ()
    """MODULE:NAME of each of your own objects that the model folder needs, such as its task. Code \
named in a model folder is imported only if it is listed here."""
    cpu: bool = False
    """Run on the CPU even if an accelerator is available."""


@settings
class PredictionColumns(Settings):
    """Columns of your own file that are read."""

    text: Annotated[str, InputKind.COLUMN] = ""
    """Your own file: text column, or two separated by a comma (a phrase-grounding model: text and \
phrase); empty: the column of the training file."""
    image: Annotated[str, InputKind.COLUMN] = ""
    """Your own file: column of the image file name, or several separated by commas; empty: the \
column of the training file."""
    choices: Annotated[str, InputKind.COLUMN] = ""
    """Your own file: columns of the choices of a multiple choice, separated by commas."""


def check_one_task(command: str, tasks: object, table: TableTaskSettings, setting: str) -> None:
    """Raises InputError unless exactly one is given: tasks, or a task made of the user's own file."""
    # A held-out file of one's own would go unread beside a task.
    if bool(table.label) == bool(tasks) or (tasks and table != TableTaskSettings()):
        raise InputError(f"{command} needs either {setting}, or text and label for your own file")


# Files and folders on the command line: FILE=WEIGHT with a sampling weight, and NAME=FOLDER.


class WeightedFile(NamedTuple):
    """A file and its sampling weight relative to other files."""

    file: str
    weight: float = 0.0
    """0: not given."""


def parse_weighted_file(word: str | Path, setting: str) -> WeightedFile:
    """The file and weight of FILE or FILE=WEIGHT; raises InputError for an invalid weight."""
    file, equals_sign, weight = str(word).rpartition("=")
    if not equals_sign or Path(word).exists():
        return WeightedFile(str(word))
    with convert_errors(f"{setting}={word}: not FILE or FILE=WEIGHT"):
        parsed = WeightedFile(file, float(weight))
    if not 0 < parsed.weight < inf:
        raise InputError(f"{setting}={word}: expected a weight above 0")
    return parsed


def parse_weighted_files(words: Sequence[str | Path], setting: str) -> list[WeightedFile]:
    """The files and weights of all words; raises InputError if only some have a weight, or a file is given twice."""
    files = [parse_weighted_file(word, setting) for word in words]
    unweighted = [each.file for each in files if not each.weight]
    if unweighted and len(unweighted) < len(files):
        raise InputError(
            f"{setting}: {unweighted[0]} has no weight; give one to all files or to none"
        )
    for path in duplicates(normpath(each.file) for each in files):
        raise InputError(f"{setting}: {path} is given twice; remove one")
    return files


def region_manifest(regions: str) -> str:
    """The file that identifies a region store as a run's input; empty without a store."""
    return f"{regions}/manifest.json" if regions else ""


def parse_named_folder(word: str | Path) -> tuple[str, str]:
    """Name, or "", and folder of FOLDER or NAME=FOLDER; an existing folder may have `=` in its own name."""
    name, equals_sign, folder = str(word).partition("=")
    if not equals_sign or Path(word).exists():
        return "", str(word)
    return name, folder


# How regions are found in photos: boxes, and an image encoder for their features. Imports nothing heavy.


@settings
class DetectionSettings(Settings):
    """Detector and image encoder of the regions; the same settings give the same regions on other photos."""

    detector: Annotated[str, InputKind.MODEL] = "PekingU/rtdetr_r50vd"
    """Object detector for the boxes: hub id or folder (DETR, RT-DETR, YOLOS, ...)."""
    grid: Annotated[int, Ge(0)] = 0
    """Boxes per side of a regular grid, instead of a detector; 0: use the detector."""
    backbone: Annotated[str, InputKind.MODEL] = "microsoft/resnet-101"
    """Image encoder for the region features: hub id or folder (ResNet, ViT, CLIP, ...)."""
    shortest_edge: Annotated[int, Ge(0)] = 0
    """Short side of the images for the backbone, in pixels; 0: the backbone's own square size, or \
608 if it has none."""
    score_threshold: Annotated[float, Ge(0)] = 0.2
    """Detector, --filter-imports: boxes above this confidence are kept."""
    min_boxes: Annotated[int, Ge(0)] = 10
    """Detector, --filter-imports: minimum number of boxes per image, whatever their confidence."""
    max_boxes: Annotated[int, Ge(1)] = 100
    """Detector, --filter-imports: maximum number of boxes per image."""
    iou_threshold: Annotated[float, Interval(ge=0, le=1)] = 0.7
    """Detector: drop a box whose intersection over union with a higher-scoring box exceeds this."""
    add_whole_image: bool = False
    """Also store the whole image, as the first region."""

    def manifest_entry(self) -> dict[str, Any]:
        """The settings in use, for a manifest; a grid has no detector settings."""
        names = (
            ("grid",)
            if self.grid
            else ("detector", "score_threshold", "min_boxes", "max_boxes", "iou_threshold")
        )
        return {
            name: vars(self)[name]
            for name in ("backbone", "shortest_edge", "add_whole_image", *names)
        }


@settings
class ExtractionSettings(Settings):
    """Images, and how their regions are found."""

    images: Annotated[str, InputKind.FOLDER] = ""
    """Folder of images, searched recursively; an image's id is its path in this folder, without the file ending."""
    boxes: Annotated[tuple[str, ...], InputKind.PATH] = ()
    """Existing boxes: COCO instances json, MAttNet detections (RefCOCO), both together, or VCR's \
vcr1images; only images with boxes are used."""
    add_detected_boxes: bool = False
    """--boxes: append boxes of --detector, with classes matched by name (UNITER on VCR)."""
    detection: DetectionSettings = DetectionSettings()
    skip_missing: bool = False
    """Skip images that --boxes names but the folder lacks, and count them; otherwise the first is an error."""
    batch: Annotated[int, Ge(1)] = 8
    """Images per forward pass, all of one size; one on a processor unless the backbone scales to a square."""
    shard_size: Annotated[int, Ge(1)] = 256
    """Images per file of the store; a killed run repeats at most one file per process."""
    cpu: bool = False
    """Run on the CPU even if an accelerator is available."""

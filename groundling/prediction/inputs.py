"""Inputs of a fine-tuned model: texts, and images as stored regions, detected regions or pixels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.output_types import MultipleChoice, OutputType
from groundling.data.images import ImageInput, differs_in_ending, image_id
from groundling.data.regions.inputs import (
    COMMAND_TERMS,
    ImageCollection,
    ImageInputs,
    ImageSampleBuilder,
    SettingNames,
)
from groundling.data.tables import (
    check_named_columns,
    check_one_or_two,
    read_all_columns,
    row_texts,
)
from groundling.models.adapters import ClipFeatureAdapter
from groundling.models.formats import Encoder
from groundling.prediction.model_description import InputPreprocessing, ModelDescription
from groundling.vision.extract import StoreRegionExtractor
from groundling.vision_language.end_to_end import EndToEndModel
from groundling.vision_language.single_stream import SingleStreamModel

# Image inputs: stored regions, photos in which regions are detected now, or the photos themselves.


class ImageLookup:
    """Loads the regions or pixels of images for one model."""

    def __init__(
        self,
        student: Encoder,
        description: ModelDescription,
        find: Callable[[], StoreRegionExtractor],
        regions: str = "",
        photos: ImageCollection = "",
        *,
        allow_region_mismatch: bool = False,
        decode: bool = False,
        names: SettingNames = COMMAND_TERMS,
    ) -> None:
        """`find` returns the region finder for photos, used where `regions` names no store.

        `decode` opens every photo first, so that messages name a broken one. `names` are the arguments' names in
        messages.

        Raises InputError if the model reads no images, other inputs than these, or regions of another kind (see
        `allow_region_mismatch`).
        """
        self.student = student
        self.reads_regions = description.reads.regions
        self.reads_pixels = reads_pixels(student, description)
        self.names = names
        self._check_sources(regions, photos)
        self.pictures: Mapping[str, ImageInput] | None = None
        self.photo_folder = ""
        if isinstance(photos, Mapping):
            self.pictures = photos or None
        else:
            self.photo_folder = str(photos)
        self.inputs = ImageSampleBuilder(
            description.reads.settings(
                regions=regions,
                images=self.photo_folder,
                allow_region_mismatch=allow_region_mismatch,
            ),
            features=not isinstance(student, EndToEndModel),
            zero_features=description.reads.zero_region_features,
            region_finder=find() if self.reads_regions and not regions else None,
            decode=decode,
            terms=names,
        )
        self.files: Mapping[str, Sequence[Path]] = self.inputs.files
        if regions and isinstance(student, SingleStreamModel):
            self.inputs.check(student, provenance=description.regions)
        self.other_endings: dict[str, None] = {}
        """Names whose file ending differs in capitals, each once."""

    @property
    def reads_images(self) -> bool:
        """Whether the model reads images."""
        return self.reads_regions or self.reads_pixels

    @property
    def finds_regions(self) -> bool:
        """Whether regions are detected now, which takes time and memory for every photo."""
        return self.inputs.region_finder is not None

    def id_of(self, file: str) -> str:
        """The image id of a file name with or without ending.

        Raises InputError, without the row's position, for an empty name or if the photo has another ending.
        """
        file = file.strip().removeprefix("./")
        image = image_id(file)
        if not image:
            raise InputError("no image name")
        photos = self.files.get(image, ())
        ending = file[len(image) :].lower()
        if ending and photos and all(photo.suffix.lower() != ending for photo in photos):
            raise InputError(f"{file}: no such file; {self.photo_folder} contains {photos[0].name}")
        if ending and photos and all(differs_in_ending(file, photo.name) for photo in photos):
            self.other_endings[file] = None
        return image

    @property
    def notes(self) -> list[str]:
        """A note about names whose file ending differs in capitals."""
        if not self.other_endings:
            return []
        return [
            f"{self.photo_folder}: {len(self.other_endings):,} image names differ from the files only in the "
            f"case of the ending and are accepted; the first is {next(iter(self.other_endings))}"
        ]

    def load_images(self, images: Sequence[str]) -> ImageInputs:
        """Regions, pixels and faults of these images; `images` has no repeats."""
        return (
            self.inputs.image_sources(images, self.pictures) if self.reads_images else ImageInputs()
        )

    def _check_sources(self, regions: str, photos: ImageCollection) -> None:
        """Raises InputError for inputs that this model does not read, and for missing ones."""
        names = self.names
        passed = [names.regions] if regions else []
        if photos:
            passed.append(names.images)
        if not self.reads_images:
            if passed:
                raise InputError(f"{passed[0]}: this model reads only text; leave it out")
            return
        if not self.reads_regions and regions:
            raise InputError(
                f"{names.regions}: this model reads pixels, not regions; pass {names.images}"
            )
        if self.reads_pixels and not photos:
            raise InputError(f"this model reads pixels; pass {names.images}")
        if self.reads_regions and not passed:
            raise InputError(
                f"this model reads image regions; pass {names.regions}, or {names.images} to detect them"
            )
        if regions and photos and not self.reads_pixels:
            raise InputError(
                f"{' and '.join(passed)}: regions come either from a store or from photos; pass one of them"
            )


def reads_pixels(student: Encoder, description: ModelDescription) -> bool:
    """Whether the model reads pixels; a model trained with zeros in place of image features does not."""
    if isinstance(student, ClipFeatureAdapter):
        return True
    return (
        isinstance(student, EndToEndModel)
        and description.reads.regions
        and not description.reads.zero_region_features
    )


@dataclass(frozen=True)
class InputColumns:
    """Input columns of a file; several are separated by commas."""

    text: str
    """Columns of one text or two; for tasks that locate a phrase, the text and the phrase."""
    image: str = ""
    """Columns of image file names."""
    choices: str = ""
    """Columns of the choices of a multiple-choice task."""

    @property
    def texts(self) -> list[str]:
        """Names of the text columns."""
        return split_columns(self.text)


def split_columns(columns: str) -> list[str]:
    """The column names in a comma-separated list."""
    return [name.strip() for name in columns.split(",") if name.strip()]


@dataclass(frozen=True)
class PredictionInput:
    """One input of a model."""

    text: str
    pair: str | None = None
    """The second text, or the phrase to locate."""
    choices: Sequence[str] = ()
    images: Sequence[str] = ()
    """Ids of the images."""


ImageFile = str | Path | Image.Image
"""An image: a file path or a PIL image."""
ImageFiles = ImageFile | Sequence[ImageFile]
"""One image of an input, or several."""


@dataclass(frozen=True)
class PythonInput:
    """An input passed from Python."""

    text: str
    pair: str | None
    choices: tuple[str, ...]
    pictures: tuple[ImageInput, ...]
    where: str
    """Position of the images in the input, for messages."""

    def ids(self, in_store: bool) -> tuple[str, ...]:
        """Image ids: those of a region store if `in_store`, else file paths, or `where` for PIL images.

        Raises InputError for a PIL image if `in_store`.
        """
        ids = []
        for number, picture in enumerate(self.pictures):
            if isinstance(picture, Path):
                ids.append(image_id(str(picture)) if in_store else str(picture))
                continue
            if in_store:
                raise InputError(
                    f"{self.where}: a region store finds images by file name; pass the image's path, "
                    "or leave `regions` out"
                )
            ids.append(self.where if len(self.pictures) == 1 else f"{self.where}, number {number}")
        return tuple(ids)


def python_inputs(
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    images: Any,
    choices: Sequence[Sequence[str]] | None,
) -> list[PythonInput]:
    """Combine lists into inputs; for a single text, `images` may be a single image.

    Raises InputError for empty lists, lists of different lengths, or values that are not texts or images.
    """
    if not len(texts):
        raise InputError("the list of texts is empty")
    if isinstance(images, ImageFile) and len(texts) == 1:
        images = [images]
    for name, values in (("pair", pairs), ("image", images), ("choices", choices)):
        if values is not None and (isinstance(values, ImageFile) or len(values) != len(texts)):
            raise InputError(f"{name}: expected a list of {len(texts)}, one for each text")
    return [
        PythonInput(
            _text(text, f"text {number}"),
            None if pairs is None else _text(pairs[number], f"pair of text {number}"),
            () if choices is None else tuple(choices[number]),
            () if images is None else _pictures(images[number], f"image of text {number}"),
            f"image of text {number}",
        )
        for number, text in enumerate(texts)
    ]


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{name}: expected a text, got {type(value).__name__}")
    return value


def _pictures(image: ImageFiles, name: str) -> tuple[ImageInput, ...]:
    files = image if isinstance(image, list | tuple) else (image,)
    for file in files:
        if not isinstance(file, ImageFile):
            kind = type(file).__name__
            raise InputError(f"{name}: expected a file path or a PIL image, got {kind}")
    return tuple(Path(file) if isinstance(file, str) else file for file in files)


def input_example(
    name: str,
    prediction_input: PredictionInput,
    form: OutputType,
    spec: InputPreprocessing,
    reads_images: bool,
) -> Example:
    """Build an unlabelled example from an input.

    Raises InputError, without the row's position, if a text is empty, or choices, images or phrase do not fit.
    """
    for kind, text in (("text", prediction_input.text), ("second text", prediction_input.pair)):
        if text is not None and not text.strip():
            raise InputError(f"the {kind} is empty")
    expected = len(form.labels) if isinstance(form, MultipleChoice) else 0
    if len(prediction_input.choices) != expected:
        raise InputError(f"{len(prediction_input.choices)} choices; this model expects {expected}")
    if reads_images and not 1 <= len(prediction_input.images) <= spec.images:
        raise InputError(f"{len(prediction_input.images)} images; this model reads {spec.images}")
    images = tuple(prediction_input.images) if reads_images else ()
    if form.head_input != "phrase":
        return Example(
            name,
            prediction_input.text,
            prediction_input.pair,
            choices=tuple(prediction_input.choices),
            images=images,
        )
    start = prediction_input.text.find(prediction_input.pair or "\0")
    if start < 0:
        raise InputError(
            f"the phrase {prediction_input.pair!r} is not in the text {prediction_input.text!r:.60}"
        )
    tags = ((start, start + len(prediction_input.pair or ""), 0),)
    return Example(name, prediction_input.text, images=images, region_tags=tags)


@dataclass(frozen=True)
class InputRow:
    """One row of a file, or one example of a split, with its parsed example or its fault."""

    where: str
    """File and line, for messages."""
    cells: Mapping[str, object]
    """Values by column."""
    example: Example | None
    """None if the row is invalid."""
    fault: str = ""
    """Reason why the row is invalid."""


def read_input_rows(
    path: Path,
    columns: InputColumns,
    form: OutputType,
    spec: InputPreprocessing,
    images: ImageLookup,
) -> tuple[list[str], list[InputRow]]:
    """Column names of a file, and an `InputRow` for each row, in order.

    Raises InputError if the file cannot be read or lacks a column; an invalid row only gets a `fault`.
    """
    header, rows = read_all_columns(path, ())
    check_named_columns(path, header, vars(columns), images.names.prefix)
    texts = columns.texts
    check_one_or_two(texts, f"text {columns.text!r}")
    lines = []
    for number, (where, cells) in enumerate(rows):
        try:
            first, *second = row_texts(cells, texts)
            image_ids = [
                images.id_of(file) for file in row_texts(cells, split_columns(columns.image))
            ]
            choices = row_texts(cells, split_columns(columns.choices))
            row_input = PredictionInput(first, second[0] if second else None, choices, image_ids)
            example = input_example(
                f"{path.stem}-{number}", row_input, form, spec, images.reads_images
            )
        except InputError as error:
            lines.append(InputRow(where, cells, None, str(error)))
        else:
            lines.append(InputRow(where, cells, example))
    return header, lines


def example_row(example: Example, where: str) -> InputRow:
    """The row of an official example, with columns made from its fields."""
    cells: dict[str, object] = {"id": example.official_id or example.id, "text": example.text}
    if example.text_pair is not None:
        cells["pair"] = example.text_pair
    for start, stop, _ in example.region_tags[:1] if example.gold_boxes is not None else ():
        cells["phrase"] = example.text[start:stop]
    for number, choice in enumerate(example.choices):
        cells[f"option_{number}"] = choice
    for number, image in enumerate(example.images):
        cells["image" if len(example.images) == 1 else f"image_{number}"] = image
    return InputRow(f"{where}, {cells['id']}", cells, example)

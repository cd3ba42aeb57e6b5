"""Inputs of a fine-tuned model: rows of a file, examples of a task, and texts and images passed from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from groundling.core.batch import Example
from groundling.core.errors import InputError, convert_errors, raise_first, require_known
from groundling.data.images import ImageInput, image_id
from groundling.data.regions.samples import ImageSampleBuilder
from groundling.data.tables import (
    read_all_columns,
    row_texts,
    split_columns,
    text_columns,
)
from groundling.prediction.predictions import Prediction
from groundling.settings.input_settings import PredictionColumns


@dataclass
class InputRow:
    """A row of a file, an example of a split, or a question from Python; a model adds its prediction."""

    where: str
    """File and line, or another place, for messages."""
    cells: Mapping[str, object]
    """Values by column."""
    example: Example
    """Empty if the row is invalid."""
    fault: str = ""
    """Reason why the row cannot be predicted."""
    prediction: Prediction | None = None


def make_row(where: str, cells: Mapping[str, object], make: Callable[[], Example]) -> InputRow:
    """A row with the example of `make`, or with the reason why that raises InputError."""
    try:
        return InputRow(where, cells, make())
    except InputError as error:
        return InputRow(where, cells, Example("", ""), str(error))


def raise_first_fault(rows: Sequence[InputRow], advice: str = "") -> None:
    """Raises InputError for the first row that cannot be predicted."""
    raise_first([f"{row.where}: {row.fault}" for row in rows if row.fault], advice)


def read_file_rows(
    path: Path,
    columns: PredictionColumns,
    fit: Callable[[Example], Example],
    images: ImageSampleBuilder,
) -> list[InputRow]:
    """The rows of a file, with their examples as `fit` changes them; an invalid row only gets a `fault`."""
    header, rows = read_all_columns(path)
    texts = text_columns(columns.text, "text")
    for name in [*texts, *split_columns(columns.choices), *split_columns(columns.image)]:
        require_known(name, header, f"{path}: no column {name!r}")

    def example_of(number: int, cells: Mapping[str, Any]) -> Example:
        first, *second = row_texts(cells, texts)
        files = row_texts(cells, split_columns(columns.image))
        example = Example(
            f"{path.stem}-{number}",
            first,
            second[0] if second else None,
            choices=tuple(row_texts(cells, split_columns(columns.choices))),
            images=tuple(_id_of(file, images) for file in files),
        )
        return fit(example)

    return [
        make_row(where, cells, partial(example_of, number, cells))
        for number, (where, cells) in enumerate(rows)
    ]


def _id_of(file: str, images: ImageSampleBuilder) -> str:
    """The image id of a file name with or without ending; raises InputError if the photo has another ending."""
    file = file.strip().removeprefix("./")
    image = image_id(file)
    ending = file[len(image) :].lower()
    photos = images.files.get(image, ())
    if ending and photos and all(photo.suffix.lower() != ending for photo in photos):
        folder = images.settings.images
        raise InputError(f"{file}: no such file; {folder} contains {photos[0].name}")
    return image


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


ImageFile = str | Path | Image.Image
"""An image: a file path or a PIL image."""
ImageFiles = ImageFile | Sequence[ImageFile]
"""One image of an input, or several."""


def python_examples(
    texts: Sequence[str], pairs: Any, images: Any, choices: Any, *, stored: bool
) -> tuple[list[Example], dict[str, ImageInput]]:
    """Examples, and all images by id: files' paths, or (`stored`) the ids of a region store."""
    columns = [[None] * len(texts) if one is None else one for one in (pairs, images, choices)]
    photos: dict[str, ImageInput] = {}
    examples = []
    with convert_errors("expected lists of one length, and images as paths or PIL images"):
        for number, (text, pair, files, options) in enumerate(zip(texts, *columns, strict=True)):
            ids: list[str] = []
            for file in [files] if isinstance(files, ImageFile) else files or ():
                name = f"image {len(ids)} of question {number}"
                image = file if isinstance(file, Image.Image) else Path(file)
                if isinstance(image, Path):
                    name = image_id(str(image)) if stored else str(image)
                photos[name] = image
                ids.append(name)
            choice_texts = tuple(options or ())
            examples.append(
                Example(str(number), text, pair, choices=choice_texts, images=tuple(ids))
            )
    return examples, photos

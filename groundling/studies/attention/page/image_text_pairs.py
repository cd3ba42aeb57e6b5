"""Image-text pairs of the page: your photo, a file of many, or a task's data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from groundling.core.batch import Example
from groundling.core.errors import InputError, prefix_errors, require_nonempty
from groundling.core.registry import resolve
from groundling.data.image_samples import files_below, single_file
from groundling.data.images import image_id
from groundling.data.tables import (
    read_all_columns,
    row_texts,
    text_columns,
)
from groundling.studies.attention.commands import VisualizeConfig
from groundling.tasks import Task


@dataclass(frozen=True)
class ImageTextPair:
    """An image-text pair."""

    example: Example
    photo: Path | None = None
    """The image's file; None for a text alone."""
    gold: np.ndarray | None = None
    """(G, 4) gold boxes as shares of width and height; None if unknown."""
    phrase: str = ""
    """The phrase that these boxes belong to; empty: the whole text."""
    full_example: Example | None = None
    """The example with all choices, if `example` has the right one alone; None without choices."""


def select_pairs(config: VisualizeConfig) -> list[ImageTextPair]:
    """The pairs of the settings; raises InputError for bad data."""
    most = config.limit or None
    if config.task:
        task = resolve("tasks", Task, config.task)
        examples = task.read(Path(config.data), config.split or task.dev[0])
        examples = [one for one in examples if _is_selected(one, config.example)]
        message = f"example={config.example}: {config.data} has no such image, caption or example"
        require_nonempty(examples, message)
        find = _photos(config.images)
        return [_pair_of(example, find, config.data) for example in examples[:most]]
    if config.data:
        return list(_file_pairs(config))[:most]
    images = (image_id(Path(config.image).name),) if config.image else ()
    example = Example("own", config.text, config.pair or None, images=images)
    return [ImageTextPair(example, Path(config.image) if config.image else None)]


PhotoFinder = Callable[[str], Path]
"""Finds a photo by its file name, with or without extension; raises InputError for none or several."""


def _photos(images: str) -> PhotoFinder:
    if not images:
        raise InputError("visualize needs images=FOLDER, the folder of the photos")
    files = files_below(Path(images))

    def find(name: str) -> Path:
        candidates = files.get(image_id(name), [])
        require_nonempty(candidates, f"no photo {name!r} in {images}")
        exact = [path for path in candidates if path.name == Path(name).name]
        return single_file(exact or candidates)

    return find


def _is_selected(example: Example, selector: str) -> bool:
    """Whether the setting `example` is empty, or names the example, its caption or its image."""
    caption = example.official_id.rpartition("/")[0]
    return selector in ("", example.id, example.official_id, caption, *example.images)


def _pair_of(example: Example, find: PhotoFinder, data: str) -> ImageTextPair:
    """A task's example; of multiple choice with the right choice, or the first."""
    with prefix_errors(f"{data}, {example.id}"):
        if len(example.images) != 1:
            raise InputError(f"{len(example.images)} images; expected one image for each text")
        photo = find(example.images[0])
    gold = None
    if example.gold_boxes is not None:
        gold = example.gold_boxes.boxes / np.array([*example.gold_boxes.image_size] * 2)
    full_example = example if example.choices else None
    if example.choices:
        number = int(example.label) if isinstance(example.label, int) else 0
        example = replace(
            example, text_pair=example.choices[number], choices=(), choice_region_tags=()
        )
    return ImageTextPair(example, photo, gold, _phrase(example), full_example)


def _phrase(example: Example) -> str:
    if example.gold_boxes is None or not example.region_tags:
        return ""
    (start, stop, _), *_ = example.region_tags
    return example.text[start:stop]


def _file_pairs(config: VisualizeConfig) -> Iterator[ImageTextPair]:
    """The rows of your own file."""
    path = Path(config.data)
    columns = (*text_columns(config.text_column, "text_column"), config.image_column)
    _, rows = read_all_columns(path, columns)
    find = _photos(config.images)
    for number, (where, cells) in enumerate(rows):
        with prefix_errors(where):
            text, *second, file = row_texts(cells, columns)
        file = file.strip().removeprefix("./")
        example = Example(
            f"{path.stem}-{number}", text, second[0] if second else None, images=(image_id(file),)
        )
        with prefix_errors(where):
            yield ImageTextPair(example, find(file))

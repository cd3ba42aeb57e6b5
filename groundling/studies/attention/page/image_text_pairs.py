"""Image-text pairs of the page: your photo, a file of many, a task's data, or changed answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from groundling.core.batch import Example, GoldBoxes
from groundling.core.errors import InputError, convert_errors, prefix_errors
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

BECAME_RIGHT = "became right"
BECAME_WRONG = "became wrong"
STAYED_RIGHT = "stayed right"
STAYED_WRONG = "stayed wrong"
CHANGES = (BECAME_RIGHT, BECAME_WRONG, STAYED_RIGHT, STAYED_WRONG)


@dataclass(frozen=True)
class AnswerComparison:
    """The answers of two runs to one question."""

    kind: str
    """One of `CHANGES`."""
    first: str
    """The first run's answer."""
    second: str
    """The second run's answer."""
    gold: str
    """The right answer."""


@dataclass(frozen=True)
class PhraseEntity:
    """Something that a text mentions, and its boxes."""

    phrase: str
    """The phrase that mentions it; all phrases with the same boxes, joined by commas."""
    boxes: np.ndarray
    """(G, 4), as shares of the image's width and height."""


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
    change: AnswerComparison | None = None
    entities: Sequence[PhraseEntity] = ()
    """The entities of the text that have boxes."""
    full_example: Example | None = None
    """The example with all choices, if `example` has the right one alone; None without choices."""


@dataclass(frozen=True)
class PairSelection:
    """The pairs that are shown."""

    pairs: Sequence[ImageTextPair]
    counts: Mapping[str, int]
    """Number of answers by kind of change (`CHANGES`), shown or not; empty without predictions."""


def select_pairs(config: VisualizeConfig) -> PairSelection:
    """The pairs of the settings; raises InputError for bad data and for more than --max-pairs pairs."""
    counts: dict[str, int] = {}
    data = Path(config.data)
    if config.predictions:
        columns = PairColumns.read(config.text_column, config.image_column)
        first, second = map(Path, config.predictions)
        selected_pairs, counts = _changed_pairs(
            first, second, columns, config.label_column, config.images, config.limit
        )
    elif config.task:
        task = resolve("tasks", Task, config.task)
        split_name = config.split or task.dev[0]
        examples = _select_examples(
            task.read(data, split_name), config.example, f"{data}, {split_name!r}"
        )
        selected_pairs = _task_pairs(examples, data, config.images, config.limit, config.max_pairs)
    elif config.data:
        columns = PairColumns.read(config.text_column, config.image_column)
        selected_pairs = [pair for _, _, pair in _file_pairs(data, columns, config.images)]
    else:
        selected_pairs = [_single_pair(config.text, config.pair, config.image)]
    if config.limit and not config.predictions:  # of those, the first of each kind
        selected_pairs = selected_pairs[: config.limit]
    if len(selected_pairs) > config.max_pairs:
        raise InputError(
            f"{len(selected_pairs):,} pairs are more than max_pairs={config.max_pairs:,}; pass limit=N "
            "for the first N, or a larger max_pairs "
            f"for more pages (of {config.per_page} pairs each, per_page)"
        )
    return PairSelection(selected_pairs, counts)


def _single_pair(text: str, pair: str, image: str) -> ImageTextPair:
    """The pair of --text, --pair and --image."""
    with convert_errors("the text is not UTF-8", errors=UnicodeEncodeError):
        f"{text}{pair}".encode()
    if not image:
        return ImageTextPair(Example("own", text, pair or None))
    photo = Path(image)
    if not photo.is_file():
        raise InputError(f"image={photo}: no such file")
    example = Example("own", text, pair or None, images=(image_id(photo.name),))
    return ImageTextPair(example, photo)


def _photos(images: str) -> Callable[[str, str], Path]:
    """Returns a function that finds a photo by its file name, with or without extension.

    The function raises InputError, which begins with its second argument, if there is no such
    photo, or several.
    """
    if not images:
        raise InputError("visualize needs images=FOLDER, the folder of the photos")
    files = files_below(Path(images))

    def find(name: str, where: str) -> Path:
        candidates = files.get(image_id(name), [])
        exact = [path for path in candidates if path.name == Path(name).name]
        if not candidates:
            raise InputError(f"{where}: no photo {name!r} in {images}")
        with prefix_errors(f"{where}: {images}"):
            return single_file(exact or candidates)

    return find


def _select_examples(examples: Sequence[Example], selector: str, where: str) -> list[Example]:
    """The examples that --example selects; raises InputError if there are none in `where`."""
    selected = [example for example in examples if _is_selected(example, selector)]
    if selector and not selected:
        raise InputError(f"example={selector}: {where} has no such image, caption or example")
    return selected


def _task_pairs(
    examples: Sequence[Example], data: Path, images: str, limit: int, max_pairs: int
) -> list[ImageTextPair]:
    """The first examples of a task; for multiple choice, with the right choice or the first."""
    entities = _entities(examples)
    examples = examples[:limit] if limit else examples
    if len(examples) > max_pairs:  # before searching for photos
        return [ImageTextPair(example) for example in examples]
    find = _photos(images)
    return [
        replace(
            _pair_of(example, find, f"{data}, {example.id}"),
            entities=entities.get((example.text, example.images), ()),
        )
        for example in examples
    ]


def _is_selected(example: Example, selector: str) -> bool:
    """Whether --example is empty, or names the example, its caption or its image."""
    caption = example.official_id.rpartition("/")[0]
    return selector in ("", example.id, example.official_id, caption, *example.images)


def _entities(examples: Sequence[Example]) -> dict[tuple[str, tuple[str, ...]], list[PhraseEntity]]:
    """The entities by text and images; phrases with the same boxes are one entity."""
    found: dict[tuple[str, tuple[str, ...]], list[PhraseEntity]] = {}
    for example in examples:
        if example.gold_boxes is None:
            continue
        phrase = _phrase(example) or example.text  # RefCOCO's expressions have no tag
        boxes = _in_shares(example.gold_boxes)
        own = found.setdefault((example.text, example.images), [])
        for place, one in enumerate(own):
            if np.array_equal(one.boxes, boxes):
                own[place] = PhraseEntity(f"{one.phrase}, {phrase}", boxes)
                break
        else:
            own.append(PhraseEntity(phrase, boxes))
    return found


def _in_shares(gold: GoldBoxes) -> np.ndarray:
    """Boxes (G, 4) as shares of the image's width and height."""
    return np.asarray(gold.boxes / np.array([*gold.image_size] * 2))


def _pair_of(example: Example, find: Callable[[str, str], Path], where: str) -> ImageTextPair:
    if len(example.images) != 1:
        raise InputError(f"{where}: {len(example.images)} images; expected one image for each text")
    photo = find(example.images[0], where)
    gold = None if example.gold_boxes is None else _in_shares(example.gold_boxes)
    full_example = example if example.choices else None
    if example.choices:
        number = int(example.label) if isinstance(example.label, int) else 0
        example = replace(
            example, text_pair=example.choices[number], choices=(), choice_region_tags=()
        )
    return ImageTextPair(example, photo, gold, _phrase(example), full_example=full_example)


def _phrase(example: Example) -> str:
    if example.gold_boxes is None or not example.region_tags:
        return ""
    (start, stop, _), *_ = example.region_tags
    return example.text[start:stop]


class PairColumns(NamedTuple):
    """The columns that are read from your own file."""

    texts: tuple[str, ...]
    """One or two columns of texts."""
    image: str

    @staticmethod
    def read(text: str, image: str) -> PairColumns:
        """From the flags' values; raises InputError for more than two texts."""
        return PairColumns(tuple(text_columns(text, "text_column")), image)


def _file_pairs(
    path: Path, columns: PairColumns, images: str
) -> Iterator[tuple[str, Mapping[str, Any], ImageTextPair]]:
    """The rows of your own file: file and line, all cells, and the pair."""
    _, rows = read_all_columns(path, (*columns.texts, columns.image))
    find = _photos(images)
    for number, (where, cells) in enumerate(rows):
        with prefix_errors(where):
            text, *second = row_texts(cells, columns.texts)
            (file,) = row_texts(cells, [columns.image])
        if not text.strip():
            raise InputError(f"{where}: the text is empty")
        file = file.strip().removeprefix("./")
        example = Example(
            f"{path.stem}-{number}", text, second[0] if second else None, images=(image_id(file),)
        )
        yield where, cells, ImageTextPair(example, find(file, where))


def _changed_pairs(
    first: Path, second: Path, columns: PairColumns, label_column: str, images: str, limit: int
) -> tuple[list[ImageTextPair], dict[str, int]]:
    """Pairs whose answers became right, then wrong, and counts of each kind of change.

    Raises InputError if the two files do not have the same questions.
    """
    before = list(_file_pairs(first, columns, images))
    after = read_all_columns(second, (*columns.texts, columns.image))[1]
    if len(before) != len(after):
        raise InputError(
            f"{first} has {len(before)} rows, and {second} has {len(after)}; expected predictions of the same examples"
        )
    found: dict[str, list[ImageTextPair]] = {kind: [] for kind in CHANGES}
    names = (*columns.texts, columns.image, label_column)
    for (where, old, pair), (other, new) in zip(before, after, strict=True):
        for name in names:
            if name not in old:
                raise InputError(
                    f"{where}: no column {name!r} with the right answer; pass label_column"
                )
            if old[name] != new.get(name):
                raise InputError(
                    f"{other}: {name} differs from {where}; expected predictions of the same examples"
                )
        gold = str(old[label_column]).strip()
        answers = (_answer(old, where), _answer(new, str(other)))
        was, is_now = (answer == gold for answer in answers)
        kind = CHANGES[0 if is_now and not was else 1 if was and not is_now else 2 if was else 3]
        found[kind].append(replace(pair, change=AnswerComparison(kind, *answers, gold)))
    counts = {kind: len(pairs) for kind, pairs in found.items()}
    if not found[BECAME_RIGHT] and not found[BECAME_WRONG]:
        raise InputError(
            f"{first} and {second}: no answer is right in one file and wrong in the other, so there is nothing to show"
        )
    most = limit or None
    return [*found[BECAME_RIGHT][:most], *found[BECAME_WRONG][:most]], counts


def _answer(cells: Mapping[str, Any], where: str) -> str:
    """The answer in a row of `predict`."""
    for name in ("predicted_answer", "answer"):
        if name in cells:
            return str(cells[name]).strip()
    raise InputError(
        f"{where}: no column 'answer'; expected a file that `groundling predict` wrote"
    )

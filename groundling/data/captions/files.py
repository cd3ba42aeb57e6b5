"""Readers of the layouts of captioned images, each into rows.

Captions are COCO's or Karpathy's json, Flickr8k's `*token.txt`, Conceptual Captions' tsv without a header, any table
with columns of captions and image files, and folders with a `metadata.jsonl` or with .txt files beside the images.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from groundling.core.errors import InputError, convert_read_errors, prefix_errors
from groundling.data.images import image_id, images_below
from groundling.data.tables import (
    ROWS,
    lines_of,
    load_json,
    read_all_columns,
    row_texts,
    split_columns,
)
from groundling.settings.input_settings import CaptionColumns

METADATA = "metadata.jsonl"
"""File of an imagefolder's captions (Hugging Face's datasets library)."""
KAGGLE_HEADER = b"image,caption"
"""First line of Kaggle's Flickr8k and Flickr30k, which are tables in a .txt file."""
IMAGES: tuple[str, ...] = (
    *("file_name", "image", "filename", "image_file", "image_name", "image_path", "photo"),
    *("picture", "img", "file", "path", "filepath", "img_path", "url", "image_url"),
)
"""Common names of a column of image files, the likeliest first."""
CAPTIONS = ("caption", "captions", "text", "sentence", "sentences", "description", "comment")
"""Common names of a column of captions."""
NO_COLUMNS = CaptionColumns()
"""No column is named; columns are recognised by common names."""


class CaptionRow(NamedTuple):
    """One caption, as in the file."""

    place: str
    """Its file and line, for messages."""
    image: str
    """The image's name in the file; empty in a table without a column of images."""
    file: str
    """The image's path below the image folder."""
    caption: str
    """Its words, separated by single spaces; perhaps none."""


def caption_rows(
    path: Path, splits: Sequence[str] = (), columns: CaptionColumns = NO_COLUMNS
) -> Iterator[CaptionRow]:
    """The captions of a file or folder, from Karpathy's json those of some splits."""
    content: Any = load_json(path) if path.suffix == ".json" and not path.is_dir() else None
    if is_karpathy(content):
        yield from _karpathy(path, content["images"], splits)
        return
    if splits:
        raise InputError(f"{path}: its images have no splits, as caption_splits selects")
    if _is_table(path, content):
        yield from _table(path, columns)
        return
    if path.is_dir():
        yield from _sidecars(path)
    elif path.suffix == ".json":
        yield from _coco(path, content)
    else:
        yield from (_conceptual if path.suffix == ".tsv" else _flickr8k)(path)


def is_karpathy(content: Any) -> bool:
    """Whether JSON is `dataset_coco.json` or similar, judged by its first image."""
    images = content.get("images") if isinstance(content, dict) else None
    first = images[0] if isinstance(images, list) and images else None
    return isinstance(first, dict) and {"split", "sentences"} <= first.keys()


def _is_table(path: Path, content: object) -> bool:
    if path.is_dir():
        return (path / METADATA).is_file()
    if path.suffix == ".json":
        return isinstance(content, list)
    if path.suffix == ".tsv":  # Conceptual Captions has no header
        return not any(map(_names_image, lines_of(path)[0].split("\t")[1:2]))
    return path.suffix in ROWS or is_kaggle(path)


def is_kaggle(path: Path) -> bool:
    """Whether a .txt file is a table of captions."""
    if path.suffix != ".txt":
        return False
    with convert_read_errors(path), path.open("rb") as file:
        first = file.readline(2 * len(KAGGLE_HEADER)).removeprefix(b"\xef\xbb\xbf")
    return first.strip().lower() == KAGGLE_HEADER


def _words(caption: str) -> str:
    return " ".join(caption.split())


def _name(value: object) -> str:
    """A name or number of an image; raises TypeError for any other JSON value."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{value!r:.40} is neither a text nor a whole number")
    return str(value)


# -- JSON --------------------------------------------------------------------------------------------------------------


def _karpathy(path: Path, images: Sequence[Any], splits: Sequence[str]) -> Iterator[CaptionRow]:
    """An image file is identified by its name alone, as in COCO."""
    known: dict[str, None] = {}
    for number, image in enumerate(images):
        where = f"{path}, images[{number}]"
        with convert_read_errors(where):
            split, file = _name(image["split"]), _name(image["filename"])
            name = _name(image.get("cocoid", file))
            captions = [_words(sentence["raw"]) for sentence in image["sentences"]]
        known[split] = None
        if split in splits:
            for caption in captions:
                yield CaptionRow(where, name, file, caption)
    if not splits or not known.keys() >= set(splits):
        raise InputError(f"{path}: select caption_splits from {', '.join(known)}")


def _coco(path: Path, content: Any) -> Iterator[CaptionRow]:
    files: dict[str, str] = {}
    with convert_read_errors(path):
        for image in content["images"]:
            name, file = _name(image["id"]), _name(image["file_name"])
            if files.setdefault(name, file) != file:
                raise InputError(f"{path}: {files[name]} and {file} have the same id {name}")
        for number, annotation in enumerate(content["annotations"]):
            name, caption = _name(annotation["image_id"]), _words(annotation["caption"])
            yield CaptionRow(f"{path}, annotations[{number}]", name, files[name], caption)


# -- lines -------------------------------------------------------------------------------------------------------------


def _flickr8k(path: Path) -> Iterator[CaptionRow]:
    for number, line in enumerate(lines_of(path), 1):
        key, tab, caption = line.partition("\t")
        file, sign, _ = key.partition("#")
        if not tab or not sign:
            raise InputError(f"{path}, line {number}: expected file#number<TAB>caption")
        yield CaptionRow(f"{path}, line {number}", file, file, _words(caption))


def _conceptual(path: Path) -> Iterator[CaptionRow]:
    lines = [line.split("\t") for line in lines_of(path)]
    for number, fields in enumerate(lines, 1):
        where = f"{path}, line {number}"
        # Google's file with labels has five columns; a tab inside a caption would shift the others.
        if len(fields) != len(lines[0]):
            raise InputError(f"{where}: {len(fields)} fields, but line 1 has {len(lines[0])}")
        caption, link = fields[:2]
        yield CaptionRow(where, link.strip(), _image_file(link), _words(caption))


def _names_image(text: str) -> bool:
    text = text.strip().lower()
    return text.startswith(("http://", "https://")) or image_id(text) != text


def _image_file(link: str) -> str:
    """The image file of a link: the last part of a URL, or else a path in the folder."""
    if "://" not in link:
        return link.strip()
    address, _, _ = link.partition("?")
    _, _, name = address.rpartition("/")
    return name


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(path: Path, columns: CaptionColumns) -> Iterator[CaptionRow]:
    path = path / METADATA if path.is_dir() else path
    header, rows = read_all_columns(path)
    captions, image = choose_columns(path, header, columns)
    for where, row in rows:
        with prefix_errors(where):
            (file,) = row_texts(row, [image]) if image else ("",)
            if image and not file.strip():
                raise InputError(f"column {image!r} is empty")
            texts = [text for name in captions for text in _captions_in(row, name)]
        for text in texts:
            yield CaptionRow(where, file.strip(), _image_file(file), _words(text))


def choose_columns(
    path: Path, header: Sequence[str], columns: CaptionColumns
) -> tuple[list[str], str]:
    """The columns of captions and the column of image files, which is empty if there is none."""
    captions = split_columns(columns.caption_column)
    image = columns.image_column or _named(IMAGES, header, captions)
    if not captions and (name := _named(CAPTIONS, header, [image])):
        captions = [name]
    if not captions:
        raise InputError(f"{path}: no captions among {', '.join(header)}; set caption_column")
    return captions, image


def _named(names: Sequence[str], header: Sequence[str], excluded: Sequence[str]) -> str:
    # If two names differ only in capitals, the first is used.
    by_lower_case = {
        name.strip().lower(): name for name in reversed(header) if name not in excluded
    }
    return next((by_lower_case[name] for name in names if name in by_lower_case), "")


def _captions_in(row: dict[str, Any], name: str) -> list[str]:
    """The texts of a column, which may be a list in JSON; an empty list is an empty text."""
    value = row.get(name)
    if not isinstance(value, list):
        return row_texts(row, [name])
    return [text for one in value for text in row_texts({name: one}, [name])] or [""]


# -- caption files beside images ---------------------------------------------------------------------------------------


def _sidecars(folder: Path) -> Iterator[CaptionRow]:
    for image in images_below(folder):
        sidecar = folder / f"{os.path.splitext(image)[0]}.txt"
        if not sidecar.is_file():
            continue
        with convert_read_errors(sidecar):
            lines = sidecar.read_text(encoding="utf-8-sig").split("\n")
        for text in [text for text in map(_words, lines) if text] or [""]:
            yield CaptionRow(str(sidecar), image, image, text)

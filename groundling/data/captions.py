"""Captioned images: readers of their layouts, where the images are, and pairs of captions of an image as samples.

Captions are COCO's or Karpathy's json, Flickr8k's `*token.txt`, Conceptual Captions' tsv without a header, any table
with columns of captions and image files, and folders with a `metadata.jsonl` or with .txt files beside the images.
Images are files in a folder, or have regions in a store; spelling variants of their names are matched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from groundling.core.batch import Sample
from groundling.core.errors import (
    EMPTY,
    InputError,
    convert_read_errors,
    count_suffix,
    prefix_errors,
    require_nonempty,
)
from groundling.data.images import (
    IMAGE_ENDINGS,
    FileNameMatcher,
    has_image_ending,
    image_id,
    images_below,
    is_outside_folder,
    normalize_unicode,
)
from groundling.data.samples import SampleDataset, SampleWrapper
from groundling.data.tables import (
    DATA_FILES,
    PARQUET,
    ROWS,
    lines_of,
    read_all_columns,
    read_rows,
    row_texts,
    split_columns,
)
from groundling.data.tars import TAR, Member, is_file, read_part, samples_of, tars_in
from groundling.runs.folder import decoded_json, read_json, walk_folder
from groundling.settings.input_settings import CaptionSettings

METADATA = "metadata.jsonl"
"""File of an imagefolder's captions (Hugging Face's datasets library)."""
FLICKR8K_LINE = re.compile(r"\S+\.(jpe?g|png)(#\d+)?\t", re.IGNORECASE)
"""Start of a line of Flickr8k and Flickr30k: the image, perhaps the caption's number, a tab."""
KAGGLE_HEADER = "image,caption"
"""First line of Kaggle's Flickr8k and Flickr30k, which are tables in a .txt file."""
IMAGES: tuple[str, ...] = (
    *("file_name", "image", "filename", "image_file", "image_name", "image_path", "photo"),
    *("picture", "img", "file", "path", "filepath", "img_path", "url", "image_url"),
)
"""Common names of a column of image files, the likeliest first."""
CAPTIONS = ("caption", "captions", "text", "sentence", "sentences", "description", "comment")
"""Common names of a column of captions."""
LINKS = ("http://", "https://")
NUMBERED = re.compile(r"(\S+\.\w+) \d+")
"""A line of Karpathy's lists: the image's path and its number."""
EVERYTHING = CaptionSettings()
"""All captions of files without splits; columns are recognised by common names."""


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


def _first_line(path: Path) -> str:
    with convert_read_errors(path), path.open("rb") as file:
        return file.readline(1 << 16).decode("utf-8-sig", "replace")


def is_kaggle(path: Path) -> bool:
    """Whether a .txt file is a table of captions."""
    return path.suffix == ".txt" and _first_line(path).strip().lower() == KAGGLE_HEADER


def _is_conceptual(path: Path) -> bool:
    """Whether a file is a tsv without a header: the second field of its first line is an image."""
    if path.suffix != ".tsv":
        return False
    files = [field.strip() for field in _first_line(path).lower().split("\t")[1:2]]
    return any(file.startswith(LINKS) or has_image_ending(file) for file in files)


def _words(caption: str) -> str:
    return " ".join(caption.split())


def _name(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{value!r:.40} is neither a text nor a whole number")
    return str(value)


# -- JSON --------------------------------------------------------------------------------------------------------------


def _json(path: Path, selection: CaptionSettings) -> Iterator[CaptionRow]:
    content = read_json(path)
    if isinstance(content, list):
        return _table(path, selection)
    if _is_karpathy(content):
        return _karpathy(path, content["images"], selection.caption_splits)
    return _coco(path, content)


def has_splits(path: str | Path) -> bool:
    """Whether a caption file is Karpathy's, in which every image has a split."""
    return Path(path).suffix == ".json" and _is_karpathy(read_json(Path(path)))


def _is_karpathy(content: Any) -> bool:
    match content:
        case {"images": [{"split": _, "sentences": _}, *_]}:
            return True
    return False


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


def _flickr8k(path: Path, selection: CaptionSettings) -> Iterator[CaptionRow]:
    for number, line in enumerate(lines_of(path), 1):
        key, tab, caption = line.partition("\t")
        file, sign, _ = key.partition("#")
        if not tab or not (sign or has_image_ending(file)):
            raise InputError(f"{path}, line {number}: expected file#number<TAB>caption")
        yield CaptionRow(f"{path}, line {number}", file, file, _words(caption))


def _conceptual(path: Path, selection: CaptionSettings) -> Iterator[CaptionRow]:
    lines = [line.split("\t") for line in lines_of(path)]
    for number, fields in enumerate(lines, 1):
        where = f"{path}, line {number}"
        # Google's file with labels has five columns; a tab inside a caption would shift the others.
        if len(fields) != len(lines[0]):
            raise InputError(f"{where}: {len(fields)} fields, but line 1 has {len(lines[0])}")
        caption, link = fields[:2]
        yield CaptionRow(where, link.strip(), _image_file(link), _words(caption))


def _image_file(link: str) -> str:
    """The image file of a link: the last part of a URL, or else a path in the folder."""
    if "://" not in link:
        return link.strip()
    address, _, _ = link.partition("?")
    _, _, name = address.rpartition("/")
    return name


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(path: Path, selection: CaptionSettings) -> Iterator[CaptionRow]:
    path = path / METADATA if path.is_dir() else path
    header, rows = read_all_columns(path)
    captions = split_columns(selection.columns.caption_column)
    image = selection.columns.image_column or _named(IMAGES, header, captions)
    captions = captions or list(filter(None, [_named(CAPTIONS, header, [image])]))
    if not captions:
        raise InputError(f"{path}: no captions among {', '.join(header)}; set caption_column")
    for where, row in rows:
        with prefix_errors(where):
            (file,) = row_texts(row, [image]) if image else ("",)
            if image and not file.strip():
                raise InputError(f"column {image!r} is empty")
            texts = [text for name in captions for text in _captions_in(row, name)]
        for text in texts:
            yield CaptionRow(where, file.strip(), _image_file(file), _words(text))


def _named(names: Sequence[str], header: Sequence[str], excluded: Sequence[str]) -> str:
    # If two names differ only in capitals, the first is used.
    by_lower_case = {
        name.strip().lower(): name for name in reversed(header) if name not in excluded
    }
    return next((by_lower_case[name] for name in names if name in by_lower_case), "")


def _captions_in(row: dict[str, Any], name: str) -> list[str]:
    value = row.get(name)
    if not isinstance(value, list):
        return row_texts(row, [name])
    return [text for one in value for text in row_texts({name: one}, [name])] or [""]


# -- caption files beside images ---------------------------------------------------------------------------------------


def _sidecars(folder: Path, selection: CaptionSettings) -> Iterator[CaptionRow]:
    files = (place / name for place, names in walk_folder(folder) for name in names)
    written = [file for file in files if file.name.endswith(".txt")]
    stems = {file: str(file.relative_to(folder).with_suffix("")) for file in written}
    texts = {normalize_unicode(stem): file for file, stem in stems.items()}
    for image in images_below(folder):
        sidecar = texts.get(normalize_unicode(os.path.splitext(image)[0]))
        if sidecar is None:
            continue
        with convert_read_errors(sidecar):
            lines = sidecar.read_text(encoding="utf-8-sig").split("\n")
        for text in [text for text in map(_words, lines) if text] or [""]:
            yield CaptionRow(str(sidecar), image, image, text)


# -- tar shards --------------------------------------------------------------------------------------------------------


def tar_captions(path: Path, selection: CaptionSettings) -> Iterator[CaptionRow]:
    """The captions of tar shards, one after the other: of KEY.txt, KEY.json, or the parquet beside the tar.

    Left out are samples without an image, as by webdataset's readers, and those that img2dataset calls no success.
    """
    for tar in tars_in(path):
        table: dict[str, tuple[str, str]] | None = None
        for key, parts in samples_of(tar):
            images = [ending for ending in parts if ending in IMAGE_ENDINGS]
            if len(images) > 1:
                raise InputError(
                    f"{tar}: {key}: has a {images[0]} and a {images[1]}; leave one out"
                )
            if not images:
                dotted = [ending for ending in parts if has_image_ending(f"{key}{ending}")]
                if dotted:
                    raise InputError(
                        f"{tar}: {key}{dotted[0]}: a name's first dot ends its key; rename it"
                    )
                continue
            if not {".txt", ".json"}.isdisjoint(parts):
                caption, status = _in_tar(tar, key, parts)
            else:
                table = _beside(tar) if table is None else table
                where = f"{tar}: {key}"
                found = table.get(normalize_unicode(key))
                if found is None:
                    raise InputError(
                        f"{where} has no .txt, no .json beside it in the tar, where a sample's members are "
                        f"neighbours, and no row in {tar.with_suffix(PARQUET)}"
                    )
                caption, status = found
            if status in ("", SUCCESS):
                file = f"{tar.name}/{key}{images[0]}"
                yield CaptionRow(f"{tar}: {key}", file, file, _words(caption))


SUCCESS = "success"
"""img2dataset's status of an image that it has downloaded."""


def _in_tar(tar: Path, key: str, parts: Mapping[str, Member]) -> tuple[str, str]:
    row: dict[str, Any] = {}
    if ".json" in parts:
        where = f"{tar}: {key}.json"
        with convert_read_errors(where):
            row = dict(decoded_json(where, read_part(tar, parts[".json"]).decode("utf-8-sig")))
            caption = "" if ".txt" in parts else row["caption"]
        with prefix_errors(where):
            row["caption"] = (
                "" if caption is None else row_texts({"caption": caption}, ["caption"])[0]
            )
    if ".txt" in parts:
        with convert_read_errors(f"{tar}: {key}.txt"):
            row["caption"] = read_part(tar, parts[".txt"]).decode("utf-8-sig")
    return row["caption"], str(row.get("status") or "")


def _beside(tar: Path) -> dict[str, tuple[str, str]]:
    path = tar.with_suffix(PARQUET)
    if not path.is_file():
        return {}
    found: dict[str, tuple[str, str]] = {}
    for where, row in read_rows(path, ["key"]):
        (key,) = row_texts(row, ["key"])
        with prefix_errors(where):
            caption = "" if row.get("caption", "") is None else row_texts(row, ["caption"])[0]
        one = (caption, str(row.get("status") or ""))
        if found.setdefault(normalize_unicode(key), one) != one:
            raise InputError(f"{where}: the key {key} has another caption above")
    return found


FORMATS: tuple[
    tuple[Callable[[Path], bool], Callable[[Path, CaptionSettings], Iterator[CaptionRow]]], ...
] = (
    (lambda path: bool(tars_in(path)), tar_captions),
    (lambda path: (path / METADATA).is_file(), _table),
    (Path.is_dir, _sidecars),
    (lambda path: path.suffix == ".json", _json),
    (_is_conceptual, _conceptual),
    (lambda path: path.suffix in ROWS or is_kaggle(path), _table),
    (lambda _: True, _flickr8k),
)
"""For each format, whether a path that none before has recognised is of it, and its reader."""


# -- captions by image -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CaptionedImage:
    """An image file and its captions."""

    id: str
    """The image's name in the caption file: COCO's id, a URL, or the file's name."""
    file: str
    """The image's path below the image folder."""
    captions: tuple[str, ...]
    """All captions of the image, at least one, in the order of the file."""


class CaptionCollection(NamedTuple):
    """The captions of a file or folder."""

    images: list[CaptionedImage]
    """Images with their captions, in the order of their first captions."""
    notes: list[str]
    """A note on captions without text, which are left out."""


def settings_by_file(
    files: Sequence[str | Path], settings: CaptionSettings
) -> list[CaptionSettings]:
    """The settings for each file: splits are of the files that have some, or of all if none has, which is refused."""
    splits = bool(settings.caption_splits) and len(files) > 1
    are_split = [splits and has_splits(file) for file in files]
    whole = replace(settings, caption_splits=())
    return [settings if one or not any(are_split) else whole for one in are_split]


def _rows_with_text(path: Path, selection: CaptionSettings) -> tuple[list[CaptionRow], list[str]]:
    if selection.caption_splits and not has_splits(path):
        raise InputError(f"{path}: its images have no splits, as caption_splits selects")
    read = next(read for recognises, read in FORMATS if recognises(path))
    every = list(read(path, selection))
    rows = [row for row in every if row.caption]
    require_nonempty(rows, f"{path}: no captions found")
    empty = [row for row in every if not row.caption]
    return rows, [f"{row.place}: {EMPTY}{count_suffix(empty)}" for row in empty[:1]]


def _by_image(rows: Iterable[CaptionRow]) -> list[CaptionedImage]:
    captions: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        captions.setdefault((row.image, row.file), []).append(row.caption)
    return [CaptionedImage(image, file, tuple(own)) for (image, file), own in captions.items()]


def read_captions(path: str | Path, selection: CaptionSettings = EVERYTHING) -> CaptionCollection:
    """The selected captions of a file or folder, each with its image."""
    rows, notes = _rows_with_text(Path(path), selection)
    first: dict[str, CaptionRow] = {}
    for row in rows:
        if not row.image:
            raise InputError(f"{path}: no column is recognised as image files; set image_column")
        earlier = first.setdefault(row.file, row)
        # A URL that ends in a slash names no file, so its image counts as missing.
        if row.file and row.image != earlier.image:
            raise InputError(
                f"{row.place}: {row.image} and {earlier.image} both refer to the image file {row.file}"
            )
    return CaptionCollection(_by_image(rows), notes)


def captions_of_images(
    path: str | Path, selection: CaptionSettings = EVERYTHING
) -> list[tuple[str, str]]:
    """All captions, image by image, each with its image's id in region stores, or empty; images are not checked."""
    rows, _ = _rows_with_text(Path(path), selection)
    return [
        (caption, image_id(image.file)) for image in _by_image(rows) for caption in image.captions
    ]


def is_captions(path: Path) -> bool:
    """Whether a file or folder holds captions: by its ending, or by its first line."""
    is_named = path.suffix in (*DATA_FILES, TAR) or path.name.endswith(".token.txt")
    if is_named or path.is_dir() or is_kaggle(path):
        return True
    return path.is_file() and FLICKR8K_LINE.match(_first_line(path)) is not None


def keep_listed(images: list[CaptionedImage], listing: str | Path) -> list[CaptionedImage]:
    """The images named in a list of file names, one per line, or in one of Karpathy's; all without a list."""
    if not listing:
        return images
    names = set()
    for line in lines_of(listing):
        names.add(normalize_unicode(line.strip()))
        numbered = NUMBERED.fullmatch(normalize_unicode(line.strip()))
        if numbered is not None:
            names |= {numbered[1], numbered[1].rpartition("/")[2]}
    kept = [image for image in images if normalize_unicode(image.file) in names]
    if not kept:
        raise InputError(f"{listing}: lists none of the captioned images")
    return kept


def join_captions(captions: Sequence[str], count: int) -> tuple[str, ...]:
    """Every `count` captions of an image joined to one text of sentences, in order; the last text has the rest."""
    if count == 1:
        return tuple(captions)
    sentences = [one if one[-1] in ".!?" else f"{one}." for one in captions]
    starts = range(0, len(sentences), count)
    return tuple(" ".join(sentences[start : start + count]) for start in starts)


# -- the image files ---------------------------------------------------------------------------------------------------


def find_images(
    images: Sequence[CaptionedImage], folder: str | Path, skip: bool = False
) -> tuple[list[CaptionedImage], int]:
    """The images whose files are in a folder, by their path there or else by their name in its subfolders, with it.

    Also returns the number of missing images; raises InputError for one of them unless `skip` is set.
    """
    folder = Path(folder)

    def is_here(name: str) -> bool:
        # Not with Path.is_file, which raises an error for a name that is too long.
        return not is_outside_folder(name, folder) and is_file(folder / name)

    names = {image.file: os.path.normpath(image.file) for image in images if image.file}
    place = _match(names, is_here, lambda: images_below(folder), folder)
    found = [replace(one, file=place[one.file]) for one in images if one.file in place]
    return found, _count_missing(images, place, skip, folder)


def images_in_store(
    images: Sequence[CaptionedImage], ids: Collection[str], folder: str | Path, skip: bool = False
) -> tuple[list[CaptionedImage], int]:
    """The images that the region store in `folder` with these `ids` has, with their ids there, and as `find_images`."""
    names = {image.file: image_id(image.file) for image in images}
    place = _match(names, ids.__contains__, lambda: ids, folder)
    found = [
        replace(one, id=normalize_unicode(place[one.file])) for one in images if one.file in place
    ]
    return found, _count_missing(images, place, skip, folder)


def _count_missing(
    images: Sequence[CaptionedImage], found: Collection[str], skip: bool, where: str | Path
) -> int:
    missing = [image.file for image in images if image.file not in found]
    if len(missing) == len(images) or (missing and not skip):
        raise InputError(
            f"{where}: {len(missing)} of {len(images)} captioned images are missing, the first is {missing[0]} "
            "(skip_missing)"
        )
    return len(missing)


def _match(
    names: Mapping[str, str],
    exists: Callable[[str], bool],
    existing: Callable[[], Iterable[str]],
    where: str | Path,
) -> dict[str, str]:
    place = {file: name for file, name in names.items() if exists(name)}
    matcher = FileNameMatcher(existing() if len(place) < len(names) else ())
    for file, name in names.items():
        fitting = [] if file in place else matcher.find(name)
        if len(fitting) > 1:
            raise InputError(f"{where}: {name} is ambiguous: {fitting[0]} or {fitting[1]}")
        if fitting:
            place[file] = fitting[0]
    _refuse_shared(place, where)
    return place


def _refuse_shared(place: Mapping[str, str], where: str | Path) -> None:
    first: dict[str, str] = {}
    for file, name in place.items():
        earlier = first.setdefault(normalize_unicode(name), file)
        if earlier != file:
            raise InputError(f"{where}: {earlier} and {file} both refer to the image {name}")


def with_store_ids(images: Sequence[CaptionedImage]) -> list[CaptionedImage]:
    """The images with their ids in a region store: their files without the ending."""
    _refuse_shared({image.file: image_id(image.file) for image in images}, "region store")
    return [replace(image, id=image_id(image.file)) for image in images]


IS_PAIR = "is_pair"
"""Label () of a sample: 1 if its rows are two captions, 0 if they are one caption twice."""


# -- pairs -------------------------------------------------------------------------------------------------------------


class CaptionPairs(SampleWrapper):
    """Samples whose second row is another caption of the same image, drawn anew in every epoch.

    All samples of a batch need as many rows, so a caption that is the only one of its image is repeated,
    with the label `is_pair` 0. The parts of a long caption count as captions of their own.
    """

    def __init__(self, samples: SampleDataset, who: str) -> None:
        """Samples of one row and one image each; raises InputError, in the name of `who`, if no image has two."""
        super().__init__(samples)
        numbers: dict[Sequence[str], int] = {}
        each = [numbers.setdefault(tuple(images), len(numbers)) for images in samples.images]
        self.group = np.array(each, np.int64)
        self.members = np.argsort(self.group, kind="stable")
        counts = np.bincount(self.group, minlength=len(numbers))
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        if not (counts > 1).any():
            raise InputError(f"{who} compares captions of an image, but every image has one")

    @cached_property
    def sizes(self) -> np.ndarray:
        """(len(self), 3): two rows, as long as the longest caption of the image."""
        sizes = self.samples.sizes.copy()
        most = np.maximum.reduceat(sizes[self.members], self.starts[:-1], axis=0)
        sizes[:, 0] = 2
        sizes[:, 1:] = most[self.group, 1:]
        return sizes

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
        """Pairs in the order of `indices`, each drawn with its own generator."""
        seconds = [self._draw(int(index), rng) for index, rng in zip(indices, rngs, strict=True)]
        rows = self.samples.get([*indices, *seconds], [*rngs, *rngs])
        pairs = zip(indices, seconds, rows[: len(seconds)], rows[len(seconds) :], strict=True)
        return [
            Sample(
                one.id,
                labels={IS_PAIR: np.array(int(index != second))},
                truncated_tokens=one.truncated_tokens + other.truncated_tokens,
                choices=(one, other),
                example=one.example,
            )
            for index, second, one, other in pairs
        ]

    def _draw(self, index: int, rng: np.random.Generator) -> int:
        start, stop = self.starts[self.group[index] : self.group[index] + 2].tolist()
        others = self.members[start:stop]
        others = others[others != index]
        return int(rng.choice(others)) if len(others) else index

"""Files of captioned images: COCO and Karpathy's json, Flickr8k `token.txt`, tab-separated caption and image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from groundling.data.regions import stem
from groundling.data.tables import lines_of
from groundling.errors import InputError, refuse
from groundling.runs import read_json

NUMBERED = re.compile(r"(\S+\.\w+) \d+")
"""A line of Karpathy's lists: the image's path and its number."""


@dataclass(frozen=True)
class Captioned:
    """An image file and what its annotators wrote."""

    id: str
    """What the captions' file calls the image: COCO's number, an address, or the file's name."""
    file: str
    """The image's path below the folder of images."""
    captions: tuple[str, ...]
    """All captions of the image, at least one, in the order of the file."""


@dataclass(frozen=True)
class _Row:
    """One caption, as a file has it."""

    place: str
    """Where the caption stands in the file, for messages."""
    image: str
    file: str
    caption: str


def read_captions(path: str | Path, splits: Sequence[str] = ()) -> list[Captioned]:
    """Images of a caption file with their captions in file order; images without any caption are left out.

    A `.json` file is COCO's (`images`, `annotations`) or Karpathy's (`images` with `split` and `sentences`, of which
    the images of `splits` are taken), `.tsv` is Conceptual Captions' (caption, image; no header), anything else
    Flickr8k's (`file#number<TAB>caption`).

    Raises:
        InputError: a line or entry is malformed, there is no caption at all, two images have the same file, or a file
            with splits is read without saying which, or one without them as if it had some.
    """
    path = Path(path)
    rows = _rows(path, splits)
    _refuse_shared_files(path, rows)
    return _grouped(path, rows)


def caption_lines(path: str | Path) -> list[str]:
    """All captions of a caption file as plain text, image by image; which files the images have does not matter.

    Raises:
        InputError: a line or entry is malformed, or there is no caption at all.
    """
    path = Path(path)
    images = _grouped(path, _rows(path, ()))
    return [caption for image in images for caption in image.captions]


def has_splits(path: str | Path) -> bool:
    """Whether a caption file is Karpathy's, which says of every image in which split it is."""
    return Path(path).suffix == ".json" and _is_karpathy(read_json(Path(path)))


def _rows(path: Path, splits: Sequence[str]) -> list[_Row]:
    content = read_json(path) if path.suffix == ".json" else None
    if _is_karpathy(content):
        return _karpathy(path, content["images"], splits)
    if splits:
        raise InputError(
            f"{path}: its images have no splits, but {', '.join(splits)} is asked for; expected Karpathy's json"
        )
    if content is not None:
        return _coco(path, content)
    if path.suffix == ".tsv":
        return _conceptual(path)
    return _flickr(path)


def _grouped(path: Path, rows: Sequence[_Row]) -> list[Captioned]:
    """The rows by image, in order of each image's first caption; captions of nothing but space do not count."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        caption = " ".join(row.caption.split())
        if caption:
            grouped.setdefault((row.image, row.file), []).append(caption)
    if not grouped:
        raise InputError(f"{path}: no captions found")
    return [Captioned(image, file, tuple(captions)) for (image, file), captions in grouped.items()]


def _is_karpathy(content: Any) -> TypeGuard[dict[str, Any]]:
    """Whether JSON is `dataset_coco.json` or one like it, by its first image."""
    images = content.get("images") if isinstance(content, dict) else None
    first = images[0] if isinstance(images, list) and images else None
    return isinstance(first, dict) and {"split", "sentences"} <= first.keys()


def _karpathy(path: Path, images: Sequence[Any], splits: Sequence[str]) -> list[_Row]:
    """The captions of the images of some splits; a file is known by its name alone, as COCO's own files have it."""
    rows = []
    there: dict[str, None] = {}
    for number, image in enumerate(images):
        where = f"images[{number}]"
        try:
            split = str(image["split"])
            file = str(image["filename"])
            captions = [str(sentence["raw"]) for sentence in image["sentences"]]
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{path}, {where}: expected `split`, `filename` and `sentences` with `raw`, as Karpathy's json has "
                f"them ({error})"
            ) from None
        there[split] = None
        if split in splits:
            name = str(image.get("cocoid", file))
            rows += [_Row(where, name, file, caption) for caption in captions]
    unknown = [split for split in splits if split not in there]
    if unknown or not splits:
        asked = f"no split is called {unknown[0]!r}" if unknown else "it holds several splits"
        raise InputError(f"{path}: {asked}; pass --caption-splits with some of: {', '.join(there)}")
    return rows


def _coco(path: Path, content: Any) -> list[_Row]:
    if not isinstance(content, dict) or not {"images", "annotations"} <= set(content):
        raise InputError(f"{path}: not COCO captions; expected the keys `images` and `annotations`")
    files: dict[object, str] = {}
    for number, image in enumerate(content["images"]):
        if not isinstance(image, dict) or not {"id", "file_name"} <= set(image):
            raise InputError(
                f"{path}: images[{number}] has no `id` or no `file_name`; expected COCO captions"
            )
        file = image["file_name"]
        if files.setdefault(image["id"], file) != file:
            raise InputError(
                f"{path}: images[{number}] has the id {image['id']} of an earlier image with another "
                "`file_name`; give every image an id of its own"
            )
    rows = []
    for number, entry in enumerate(content["annotations"]):
        if not isinstance(entry, dict) or not isinstance(entry.get("caption"), str):
            raise InputError(
                f"{path}: annotations[{number}] has no text in `caption`; expected COCO captions"
            )
        image_id = entry.get("image_id")
        if image_id not in files:
            raise InputError(
                f"{path}: annotations[{number}] names image {image_id}, not in `images`"
            )
        rows.append(
            _Row(f"annotations[{number}]", str(image_id), files[image_id], entry["caption"])
        )
    return rows


def _flickr(path: Path) -> list[_Row]:
    rows = []
    for number, line in enumerate(lines_of(path), 1):
        key, tab, caption = line.partition("\t")
        file, sign, _ = key.partition("#")
        if not tab or not sign:
            raise InputError(f"{path}, line {number}: expected file#number<TAB>caption")
        rows.append(_Row(f"line {number}", file, file, caption))
    return rows


def _conceptual(path: Path) -> list[_Row]:
    rows = []
    for number, line in enumerate(lines_of(path), 1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise InputError(f"{path}, line {number}: expected caption<TAB>image file")
        caption, link = fields[:2]
        rows.append(_Row(f"line {number}", link.strip(), file_of(link), caption))
    return rows


def file_of(link: str) -> str:
    """The image file that a tsv's second column means: the last part of an address, else a path in the folder."""
    if "://" not in link:
        return link.strip()
    address, _, _ = link.partition("?")
    _, _, name = address.rpartition("/")
    return name


def _refuse_shared_files(path: Path, rows: Sequence[_Row]) -> None:
    """Raises InputError if two images have the same file: whose picture it holds cannot be known."""
    advice = "write each image's local file name in the second column"
    if path.suffix == ".json":
        advice = "give each image a file_name of its own, with its folder where there are several"
    first: dict[str, _Row] = {}
    faults = []
    for row in rows:
        earlier = first.setdefault(row.file, row)
        # An address that ends in a slash names no file, so its image counts as missing.
        if row.file and row.image != earlier.image:
            faults.append(
                f"{path}, {row.place}: {row.image} and {earlier.image} ({earlier.place}) "
                f"both mean the image file {row.file}; {advice}"
            )
    refuse(faults)


def keep_listed(images: Sequence[Captioned], listing: str | Path) -> list[Captioned]:
    """The images named in a list of file names, one a line (e.g. `Flickr_8k.trainImages.txt`).

    A line of Karpathy's lists, `val2014/COCO_val2014_000000011169.jpg 11169`, names the file by its path or its name.

    Raises:
        InputError: the list cannot be read, or names none of the images.
    """
    names = set()
    for line in lines_of(listing):
        names.add(line.strip())
        numbered = NUMBERED.fullmatch(line.strip())
        if numbered is not None:
            names |= {numbered[1], numbered[1].rpartition("/")[2]}
    kept = [image for image in images if image.file in names]
    if not kept:
        raise InputError(f"{listing}: names none of the captioned images")
    return kept


def present(
    images: Sequence[Captioned], folder: str | Path, skip: bool = False
) -> tuple[list[Captioned], int]:
    """The images that exist in `folder`, and how many do not.

    Raises:
        InputError: no such folder, none of the images in it, or, unless `skip` is set, any of them missing.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such image folder")
    kept = []
    missing = []
    for image in images:
        if (folder / image.file).is_file():
            kept.append(image)
        else:
            missing.append(image)
    if missing and not skip:
        raise InputError(
            f"{folder}: {len(missing)} of {len(images)} captioned images are missing, "
            f"the first is {missing[0].file}; add them or pass --skip-missing"
        )
    if not kept:
        raise InputError(f"{folder}: holds none of the captioned images")
    return kept, len(missing)


def joined(captions: Sequence[str], count: int) -> tuple[str, ...]:
    """Every `count` captions of an image as one text, in their order; the last text has what is left.

    A caption that ends without a mark is given a full stop.
    """
    if count == 1:
        return tuple(captions)
    sentences = [one if one[-1] in ".!?" else f"{one}." for one in captions]
    starts = range(0, len(sentences), count)
    return tuple(" ".join(sentences[start : start + count]) for start in starts)


def with_store_ids(images: Sequence[Captioned]) -> list[Captioned]:
    """The images under the ids that a region store knows them by: their files without the ending.

    Raises:
        InputError: two images differ in nothing but the ending, and would share their regions.
    """
    first: dict[str, str] = {}
    faults = []
    for image in images:
        name = stem(image.file)
        earlier = first.setdefault(name, image.file)
        if earlier != image.file:
            faults.append(
                f"{image.file} and {earlier} would both be the image {name!r} of a region store; "
                "rename one of them"
            )
    refuse(faults)
    return [replace(image, id=stem(image.file)) for image in images]

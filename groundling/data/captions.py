"""Files of captioned images: COCO json, Flickr8k `token.txt`, tab-separated caption and image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from groundling.data.regions import stem
from groundling.data.tables import lines_of
from groundling.errors import InputError, refuse
from groundling.runs import read_json


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


def read_captions(path: str | Path) -> list[Captioned]:
    """Images of a caption file with their captions in file order; images without any caption are left out.

    A `.json` file is COCO's (`images`, `annotations`), `.tsv` is Conceptual Captions' (caption, image; no header),
    anything else Flickr8k's (`file#number<TAB>caption`).

    Raises:
        InputError: a line or entry is malformed, there is no caption at all, or two images have the same file.
    """
    path = Path(path)
    rows = _rows(path)
    _refuse_shared_files(path, rows)
    return _grouped(path, rows)


def caption_lines(path: str | Path) -> list[str]:
    """All captions of a caption file as plain text, image by image; which files the images have does not matter.

    Raises:
        InputError: a line or entry is malformed, or there is no caption at all.
    """
    path = Path(path)
    images = _grouped(path, _rows(path))
    return [caption for image in images for caption in image.captions]


def _rows(path: Path) -> list[_Row]:
    if path.suffix == ".json":
        return _coco(path)
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


def _coco(path: Path) -> list[_Row]:
    content = read_json(path)
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

    Raises:
        InputError: the list cannot be read, or names none of the images.
    """
    names = {line.strip() for line in lines_of(listing)}
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

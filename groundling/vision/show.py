"""Draws an image with its regions in a store."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from groundling.core.batch import RegionRow
from groundling.core.errors import InputError, did_you_mean, prefix_errors
from groundling.data.image_samples import files_below, single_file
from groundling.data.images import FileNameMatcher, check_shape, image_id, read_image
from groundling.data.regions import RegionStore
from groundling.runs.folder import read_json

COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
"""Colours that colour-blind people can distinguish (Okabe and Ito 2008)."""
SIDE = 800
"""Minimum long side in pixels, so that numbers on small images are readable."""


@dataclass(frozen=True)
class AnnotatedImage:
    """An image with its boxes drawn, and their descriptions."""

    id: str
    """The image's id in the store."""
    image: Image.Image
    """The image with numbered boxes, enlarged if it is small."""
    regions: list[str]
    """Number, class and confidence of each region, in the store's order; omits what the store lacks."""
    notes: list[str]
    """Notes for the reader."""


def show_regions(
    store: str | os.PathLike[str],
    image: str | os.PathLike[str],
    images: str | os.PathLike[str] = "",
) -> AnnotatedImage:
    """An image, by its id or file, with its boxes from the folder `store` of `groundling regions`.

    `images`: folder of the files; empty: that of the store. Raises InputError if store, image or file is missing.
    """
    regions = RegionStore(Path(store), features=False)
    found = _id_in(regions, os.fspath(image))
    file = _find_file(regions, found, os.fspath(images))
    with prefix_errors(file):
        pixels = read_image(file)
    row = regions[found]
    descriptions = _describe_regions(regions, row)
    drawn = _draw_boxes(pixels, row, descriptions)
    notes = []
    try:
        check_shape(regions.size(found), pixels)
    except InputError as error:
        notes = [f"{file}: {error}"]
    return AnnotatedImage(found, drawn, descriptions, notes)


def _id_in(store: RegionStore, image: str) -> str:
    if image in store:
        return image
    fitting = FileNameMatcher(store.ids).find(image_id(image))
    if len(fitting) != 1:
        hint = did_you_mean(image_id(Path(image).name), store.ids)
        several = f": it may be {' or '.join(fitting)}" if fitting else hint
        raise InputError(f"{store.folder}: no one image {image!r} among {len(store):,}{several}")
    return fitting[0]


def _find_file(store: RegionStore, image: str, folder: str) -> Path:
    """The file of an image, in `folder` or in the folder that the store was made from."""
    folder = folder or _made_of(store.folder)
    if not folder or not Path(folder).is_dir():
        raise InputError(f"{folder or store.folder}: no folder of images; name it in images")
    files = files_below(Path(folder))
    fitting: Collection[str] = [image] if image in files else FileNameMatcher(files).find(image)
    if not fitting:
        raise InputError(f"{folder}: no file of the image {image!r}; name another folder in images")
    with prefix_errors(folder):
        return single_file([file for name in fitting for file in files[name]])


def _made_of(store: Path) -> str:
    """The image folder in a store's run settings; empty if there is none."""
    path = store / "config.json"
    match read_json(path) if path.is_file() else None:
        case {"inputs": {"images": {"path": str(place)}}}:
            return place
    return ""


def _describe_regions(store: RegionStore, row: RegionRow) -> list[str]:
    names = store.manifest.get("class_names") or ()
    lines = []
    for number in range(len(row)):
        if row.is_whole_image[number]:
            lines.append(f"{number} whole image")
            continue
        words = [str(number)]
        if row.classes is not None and row.classes[number].max() > 0:
            best = int(row.classes[number].argmax())
            words.append(str(names[best]) if best < len(names) else f"class {best}")
        lines.append(" ".join([*words, f"{row.confidence[number]:.2f}"]))
    return lines


def _draw_boxes(image: Image.Image, row: RegionRow, descriptions: list[str]) -> Image.Image:
    scale = max(1.0, SIDE / max(image.size))
    image = image.resize((round(image.width * scale), round(image.height * scale)))
    canvas = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=max(14, min(image.size) // 40))
    line = max(2, min(image.size) // 250)
    corners = row.boxes * np.array([*image.size] * 2)
    for number in sorted(range(len(corners)), key=lambda one: (not row.is_whole_image[one], -one)):
        colour = COLOURS[number % len(COLOURS)]
        left, top, right, bottom = (float(side) for side in corners[number])
        canvas.rectangle((left, top, right, bottom), outline=colour, width=line)
        text = descriptions[number]
        x = min(left + line, image.width - canvas.textlength(text, font=font) - 2 * line)
        y = min(top + line, 0.95 * image.height)
        canvas.text((max(0, x), y), text, colour, font, stroke_width=2, stroke_fill="black")
    return image

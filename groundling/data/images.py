"""Image files: supported endings, and matching of names; and images as read by Pillow."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps

from groundling.core.errors import InputError, convert_errors
from groundling.data.tars import TAR, digest_of, members, readable
from groundling.runs.folder import walk_folder
from groundling.runs.progress import track

IMAGE_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp"})
"""Endings of image files that are always supported."""
HEIF_ENDINGS = frozenset({".heic", ".heif"})
"""Endings of iPhone photos, which need `HEIF_READER`."""
HEIF_READER = "pi_heif"
"""The package that adds HEIF to Pillow; unlike pillow_heif, it contains no GPL code."""
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Pillow's readers that may see a file, whatever its ending; others, such as EPS, start programs."""
SAME_SHAPE = 0.02
"""Tolerance for the ratio of width and height after scaling to whole pixels."""
ON_ITS_SIDE = (5, 6, 7, 8)
"""EXIF orientations that swap width and height."""
ImageInput = Path | Image.Image
"""An image file, or a Pillow image."""


def is_image_file(name: str) -> bool:
    """Whether a file has a supported image ending; macOS's companion files `._NAME` are no images."""
    if name.rpartition("/")[2].startswith("._"):
        return False
    ending = os.path.splitext(name)[1].lower()
    return ending in IMAGE_ENDINGS or (
        ending in HEIF_ENDINGS and find_spec(HEIF_READER) is not None
    )


def images_below(folder: Path) -> Iterator[str]:
    """The images below a folder, in its tars too, or in a tar, by their paths from there."""
    if folder.suffix == TAR and folder.is_file():
        yield from (member for member, _ in members(folder) if is_image_file(member))
    for place, names in walk_folder(folder):
        below = place.relative_to(folder)
        for name in names:
            if name.endswith(TAR):
                inside = (member for member, _ in members(place / name))
                start = (below / name).as_posix()
                yield from (f"{start}/{one}" for one in inside if is_image_file(one))
            elif is_image_file(name):
                yield (below / name).as_posix()


def register_heif(name: str) -> None:
    """Register a HEIF reader with Pillow, if a file's ending needs it."""
    if os.path.splitext(name)[1].lower() not in HEIF_ENDINGS:
        return
    if find_spec(HEIF_READER) is None:
        raise InputError("a HEIC file; pip install 'groundling[heic]'")
    import_module(HEIF_READER).register_heif_opener()


def open_image(path: Path) -> Image.Image:
    """An image file, opened by one of Pillow's readers in `IMAGE_FORMATS`, or by one of HEIF."""
    register_heif(path.name)
    heif = ["HEIF"] if "HEIF" in Image.OPEN else []
    return Image.open(readable(path), formats=[*IMAGE_FORMATS, *heif])


def is_outside_folder(name: str, folder: str | Path) -> bool:
    """Whether a path from a file leads out of its folder: through `..`, or as an absolute path."""
    top = os.path.abspath(folder)
    return os.path.commonpath([top, os.path.abspath(os.path.join(top, name))]) != top


def normalize_unicode(name: str) -> str:
    """A name in Unicode's composed form (NFC): macOS writes an accent as a character of its own."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def has_image_ending(file: str) -> bool:
    """Whether a name, or an address, ends as an image's does."""
    base, dot, ending = file.rpartition(".")
    return bool(base) and f"{dot}{ending}".lower() in IMAGE_ENDINGS | HEIF_ENDINGS


def image_id(file: str) -> str:
    """An image's id in a region store: its file without an image ending; other dots are part of the name."""
    return normalize_unicode(file.rpartition(".")[0] if has_image_ending(file) else file)


class FileNameMatcher:
    """Finds file names, or ids of a region store, that mean the same as another name."""

    def __init__(self, names: Iterable[str]) -> None:
        """`names` with their folders, separated by slashes."""
        self.by_last: dict[str, list[str]] = {}
        for name in names:
            self.by_last.setdefault(_last(name), []).append(name)

    def find(self, name: str) -> list[str]:
        """The names that match `name` in either Unicode form, with more or fewer leading folders."""
        plain = f"/{normalize_unicode(name)}"
        matching = []
        for other in self.by_last.get(_last(name), []):
            spelt = f"/{normalize_unicode(other)}"
            if spelt.endswith(plain) or plain.endswith(spelt):
                matching.append(other)
        return matching


def _last(name: str) -> str:
    return normalize_unicode(name.rpartition("/")[2])


# -- images ------------------------------------------------------------------------------------------------------------


def read_image(image: ImageInput) -> Image.Image:
    """An RGB image, rotated by its EXIF orientation."""
    # For damaged bytes, Pillow's readers raise many kinds of exceptions.
    with convert_errors("does not decode as an image"):
        if isinstance(image, Image.Image):
            return _in_rgb(image)
        with open_image(image) as opened:
            return _in_rgb(opened)


def image_faults(images: Mapping[str, ImageInput]) -> dict[str, str]:
    """Why images cannot be read, by name; a JPEG is decoded at an eighth of its size, in less time."""
    faults = {}
    for name, image in track(images.items(), "images checked", "image"):
        try:
            with convert_errors("does not decode as an image"):
                if not isinstance(image, Image.Image):
                    with open_image(image) as opened:
                        opened.draft(None, (1, 1))
                        _in_rgb(opened)
        except InputError as error:
            faults[name] = str(error)
    return faults


def _in_rgb(image: Image.Image) -> Image.Image:
    # 16-bit grey; Pillow's own conversion would make it white.
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image)
        if image.mode == "F" or values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError("its pixels have fractions or more than 16 bits")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    return ImageOps.exif_transpose(image).convert("RGB")


def check_shape(size: tuple[int, int], image: ImageInput) -> None:
    """Raises InputError if an image has another shape than its regions' image of `size`, at any scale or 0."""
    width, height = size
    wide, high = _size_of(image)
    if width and height and abs(wide * height - high * width) > SAME_SHAPE * wide * height:
        raise InputError(f"{wide} x {high} pixels, but its regions are of {width} x {height}")


def _size_of(image: ImageInput) -> tuple[int, int]:
    if isinstance(image, Image.Image):
        return _in_rgb(image).size
    with convert_errors("does not decode as an image"), open_image(image) as opened:
        is_turned = opened.getexif().get(ExifTags.Base.Orientation, 1) in ON_ITS_SIDE
        wide, high = opened.size
    return (high, wide) if is_turned else (wide, high)


def image_digest(image: ImageInput) -> str:
    """A hash that identifies an image: of its file, or of its pixels."""
    if isinstance(image, Image.Image):
        pixels = _in_rgb(image)
        return hashlib.sha256(f"{pixels.size}".encode() + pixels.tobytes()).hexdigest()
    return digest_of(image)

"""Image files: which endings are read here and which names mean the same file; and pictures, as Pillow reads them."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps

from groundling.core.errors import InputError, convert_errors
from groundling.runs.hashing import sha256_of

PICTURES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp"})
"""Endings of image files that are always read."""
HEIF = frozenset({".heic", ".heif"})
"""Endings of what iPhones write, which takes one of `HEIF_READERS`."""
HEIF_READERS = ("pi_heif", "pillow_heif")
"""Packages that teach Pillow to read it; the first holds no GPL code, so it is the one that is asked for."""
HEIF_ADVICE = "pip install 'groundling[heic]'"
OTHERS = frozenset({".tif", ".tiff", ".avif", ".jxl", ".jp2", ".psd", ".dng", ".cr2"})
OTHERS |= frozenset({".cr3", ".nef", ".arw", ".orf", ".rw2"})
"""Endings of images that a folder is not searched for."""
SAME_SHAPE = 0.02
"""Share by which width and height may grow apart when an image is scaled to whole pixels."""
ON_ITS_SIDE = (5, 6, 7, 8)
"""EXIF's orientations of a picture whose sides change places."""
Picture = Path | Image.Image
"""A file, or a picture of Pillow's."""


def heif_reader() -> str:
    """The installed package that reads HEIF files; empty if there is none."""
    return next((name for name in HEIF_READERS if find_spec(name) is not None), "")


def is_image_file(name: str) -> bool:
    """Whether a file's ending is that of an image that is read here; macOS's companions `._NAME` hold none."""
    if name.startswith("._"):
        return False
    ending = os.path.splitext(name)[1].lower()
    return ending in PICTURES or (ending in HEIF and bool(heif_reader()))


def register_heif(name: str) -> None:
    """Make Pillow able to open a file, if its ending needs a package; raises InputError if that is not installed."""
    if os.path.splitext(name)[1].lower() not in HEIF:
        return
    reader = heif_reader()
    if not reader:
        raise InputError(f"a HEIC file; {HEIF_ADVICE}")
    import_module(reader).register_heif_opener()


def unread_images(folder: str | Path, wanted: Iterable[str] | None = None) -> list[str]:
    """A line for each ending of images below a folder that are not read here: how many, and what to do.

    `wanted`: names that are looked for, with or without folders and endings; only what may be one of them is told.
    """
    asked = None if wanted is None else {_without_ending(name) for name in wanted}
    counts: Counter[str] = Counter()
    for _, _, names in os.walk(folder):
        for name in names:
            ending = os.path.splitext(name)[1].lower()
            if ending not in OTHERS and (ending not in HEIF or is_image_file(name)):
                continue
            if asked is None or _without_ending(name) in asked:
                counts[ending] += 1
    lines = []
    for ending, count in sorted(counts.items()):
        advice = HEIF_ADVICE if ending in HEIF else "save them as .jpg or .png"
        lines.append(f"{folder}: {count:,} {ending} images are not read; {advice}")
    return lines


def _without_ending(name: str) -> str:
    """The last part of a name, in small letters and without the ending of any image."""
    last = _plain(name).rpartition("/")[2].casefold()
    base, ending = os.path.splitext(last)
    return base if ending in PICTURES | HEIF | OTHERS else last


def is_outside_folder(name: str, folder: str | Path) -> bool:
    """Whether a path of a file's leads out of the folder that it is relative to: by dots, or from the root."""
    top = os.path.abspath(folder)
    return os.path.commonpath([top, os.path.abspath(os.path.join(top, name))]) != top


def normalize_unicode(name: str) -> str:
    """A name in Unicode's composed form: macOS writes an accent as a character of its own, others do not."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def image_id(file: str) -> str:
    """An image's id in a region store: its file without the ending of a picture; another dot is part of the name."""
    base, dot, ending = file.rpartition(".")
    is_ending = f"{dot}{ending}".lower() in PICTURES | HEIF
    return normalize_unicode(base if base and is_ending else file)


class NameLookup:
    """Names of files, or ids of a region store, among which others' spellings of them are found."""

    def __init__(self, names: Iterable[str]) -> None:
        """`names` as they are, with the folders they are in, separated by slashes."""
        self.by_last: dict[str, list[str]] = {}
        for name in names:
            self.by_last.setdefault(_key(name), []).append(name)

    def find(self, wanted: str) -> list[str]:
        """The names that may be meant: in either Unicode form, with more or fewer of the folders in front.

        What is asked for without the ending of a picture fits a name with any; capitals of endings do not count, for
        cameras write .JPG, unless one is spelt as it is asked for.
        """
        wanted = _plain(wanted)
        near = self.by_last.get(_key(wanted), [])
        exact = [name for name in near if _means(wanted, normalize_unicode(name))]
        small = _small_ending(wanted)
        return exact or [
            name for name in near if _means(small, _small_ending(normalize_unicode(name)))
        ]

    def differing_in_case(self, wanted: str) -> list[str]:
        """The names that would be meant if capital letters did not count."""
        wanted = _plain(wanted).casefold()
        near = self.by_last.get(_key(wanted), [])
        return [name for name in near if _means(wanted, normalize_unicode(name).casefold())]

    def case_note(self, missing: Sequence[str]) -> str:
        """How many names would be found if capitals did not count, in words; empty if none would."""
        alike = [(name, found[0]) for name in missing if (found := self.differing_in_case(name))]
        if not alike:
            return ""
        name, file = alike[0]
        return f"{len(alike)} differ in capitals alone, such as {name} from {file}; "


def _plain(wanted: str) -> str:
    return normalize_unicode(wanted.strip().replace("\\", "/").removeprefix("./"))


def _small_ending(name: str) -> str:
    """A name whose ending, if it is that of a picture, has no capitals."""
    base = image_id(name)
    return base + name[len(base) :].lower()


def differs_in_ending(name: str, file: str) -> bool:
    """Whether a name is that of a file but for the capitals of its ending."""
    ending = os.path.splitext(_plain(name))[1]
    other = os.path.splitext(file)[1]
    return ending != other and ending.lower() == other.lower()


def _key(name: str) -> str:
    """The last part of a name, without ending and capitals."""
    return image_id(name.rpartition("/")[2]).casefold()


def _means(wanted: str, name: str) -> bool:
    if image_id(wanted) == wanted:
        name = image_id(name)
    return wanted == name or wanted.endswith(f"/{name}") or name.endswith(f"/{wanted}")


# -- pictures ----------------------------------------------------------------------------------------------------------


def read_image(picture: Picture, reduced: bool = False) -> Image.Image:
    """A picture as an RGB image, turned as its EXIF says; `coarse`: a JPEG in an eighth of its size, for it is quicker.

    Raises InputError, without the file's name.
    """
    # Pillow's readers raise whatever broken bytes make them stumble over.
    with convert_errors("does not decode as an image", errors=Exception):
        if isinstance(picture, Image.Image):
            return _in_rgb(picture)
        if picture.exists() and not picture.is_file():  # a pipe would never end
            raise InputError("is no ordinary file")
        register_heif(picture.name)
        with Image.open(picture) as image:
            if reduced:
                image.draft("RGB", (1, 1))
            return _in_rgb(image)


def _in_rgb(image: Image.Image) -> Image.Image:
    return ImageOps.exif_transpose(_in_bytes(image)).convert("RGB")


def shape_mismatch(size: tuple[int, int], picture: Picture) -> str:
    """What is to be said of a picture whose shape is not that of the image of width and height `size`, from which
    regions are; empty if it is, in whatever size, or if nobody knows, which is 0.

    Raises InputError, without the file's name, if the picture cannot be read.
    """
    width, height = size
    wide, high = _size_of(picture)
    if not width or not height or abs(wide * height - high * width) <= SAME_SHAPE * wide * height:
        return ""
    return f"{wide} x {high} pixels, but its regions are of an image of {width} x {height}"


def _size_of(picture: Picture) -> tuple[int, int]:
    """Width and height, turned as EXIF says; of a file its beginning tells."""
    if isinstance(picture, Image.Image):
        return _in_rgb(picture).size
    # As above.
    with convert_errors("does not decode as an image", errors=Exception):
        register_heif(picture.name)
        with Image.open(picture) as image:
            turned = image.getexif().get(ExifTags.Base.Orientation, 1) in ON_ITS_SIDE
            wide, high = image.size
    return (high, wide) if turned else (wide, high)


def image_digest(picture: Picture) -> str:
    """A hash by which the same picture is known again: of its file, or of its pixels."""
    if isinstance(picture, Image.Image):
        pixels = _in_rgb(picture)
        return hashlib.sha256(f"{pixels.size}".encode() + pixels.tobytes()).hexdigest()
    return sha256_of(picture)


def _in_bytes(image: Image.Image) -> Image.Image:
    """A grey image of 16 bits as one of 8, which Pillow's own conversion would make white; any other as it is.

    Raises ValueError for numbers of which nobody says what is white.
    """
    if image.mode == "F":
        raise ValueError("its pixels are fractions; save it with 8 bits a colour")
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise ValueError("its pixels have more than 16 bits; save it with 8 bits a colour")
    return Image.fromarray((values >> 8).astype(np.uint8))


def check_image_folder(folder: Path) -> None:
    """Raises InputError if there is no such folder."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such image folder")

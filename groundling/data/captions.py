"""Images with captions, from the field's files: COCO json, Flickr8k `token.txt`, tab-separated caption and file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from groundling.batch import Example, Sample
from groundling.data.samples import TextSamples, WindowInput
from groundling.data.tables import lines_of
from groundling.errors import InputError
from groundling.runs import read_json


@dataclass(frozen=True)
class Captioned:
    """An image file and what its annotators wrote."""

    id: str
    file: str
    captions: tuple[str, ...]


def read_captions(path: str | Path) -> list[Captioned]:
    """Images of a caption file with their captions in file order; images without any caption are left out.

    A `.json` file is COCO's (`images`, `annotations`), `.tsv` is Conceptual Captions' (caption, image; no header),
    anything else Flickr8k's (`file#number<TAB>caption`).
    """
    path = Path(path)
    pairs = {".json": _coco, ".tsv": _conceptual}.get(path.suffix, _flickr)(path)
    grouped: dict[tuple[str, str], list[str]] = {}
    for image, file, caption in pairs:
        if caption.strip():
            grouped.setdefault((image, file), []).append(" ".join(caption.split()))
    if not grouped:
        raise InputError(f"{path}: no captions found")
    return [Captioned(image, file, tuple(captions)) for (image, file), captions in grouped.items()]


def _coco(path: Path) -> list[tuple[str, str, str]]:
    content = read_json(path)
    if not isinstance(content, dict) or not {"images", "annotations"} <= set(content):
        raise InputError(f"{path}: not COCO captions; expected the keys `images` and `annotations`")
    files: dict[Any, str] = {}
    for number, image in enumerate(content["images"]):
        if not isinstance(image, dict) or not {"id", "file_name"} <= set(image):
            raise InputError(
                f"{path}: images[{number}] has no `id` or no `file_name`; expected COCO captions"
            )
        files[image["id"]] = image["file_name"]
    out = []
    for number, entry in enumerate(content["annotations"]):
        if not isinstance(entry, dict) or not isinstance(entry.get("caption"), str):
            raise InputError(
                f"{path}: annotations[{number}] has no text in `caption`; expected COCO captions"
            )
        if entry.get("image_id") not in files:
            raise InputError(
                f"{path}: annotations[{number}] names image {entry.get('image_id')}, not in `images`"
            )
        out.append((str(entry["image_id"]), files[entry["image_id"]], entry["caption"]))
    return out


def _flickr(path: Path) -> list[tuple[str, str, str]]:
    out = []
    for number, line in enumerate(lines_of(path), 1):
        key, tab, caption = line.partition("\t")
        file, sign, _ = key.partition("#")
        if not tab or not sign:
            raise InputError(f"{path}, line {number}: expected file#number<TAB>caption")
        out.append((file, file, caption))
    return out


def _conceptual(path: Path) -> list[tuple[str, str, str]]:
    out = []
    for number, line in enumerate(lines_of(path), 1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise InputError(f"{path}, line {number}: expected caption<TAB>image file")
        out.append((fields[1], file_of(fields[1]), fields[0]))
    return out


def file_of(link: str) -> str:
    """The image file that a tsv's second column means: the last part of an address, else a path in the folder."""
    return link.partition("?")[0].rpartition("/")[-1] if "://" in link else link.strip()


def keep_listed(images: Sequence[Captioned], listing: str | Path) -> list[Captioned]:
    """The images named in a list of file names, one a line (e.g. `Flickr_8k.trainImages.txt`)."""
    names = {line.strip() for line in lines_of(listing)}
    kept = [image for image in images if image.file in names]
    if not kept:
        raise InputError(f"{listing}: names none of the captioned images")
    return kept


def present(
    images: Sequence[Captioned], folder: str | Path, skip: bool = False
) -> tuple[list[Captioned], int]:
    """The images that exist in `folder` and how many do not; raises InputError unless `skip` allows for gaps."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such image folder")
    kept = [image for image in images if (folder / image.file).is_file()]
    gaps = len(images) - len(kept)
    if gaps and not skip:
        first = next(image for image in images if not (folder / image.file).is_file())
        raise InputError(
            f"{folder}: {gaps} of {len(images)} captioned images are missing, the first is {first.file}; "
            "add them or pass --skip-missing"
        )
    if not kept:
        raise InputError(f"{folder}: holds none of the captioned images")
    return kept, gaps


def decode(path: Path, size: int) -> np.ndarray:
    """An image as (3, size, size) uint8 RGB: short side scaled to `size`, centre cut out (CLIP's preprocessing)."""
    try:
        with Image.open(path) as image:
            rgb = image.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise InputError(
            f"{path}: does not decode as an image ({str(error).splitlines()[0]})"
        ) from None
    if rgb.size != (size, size):
        scale = size / min(rgb.size)
        wide, high = (max(size, round(side * scale)) for side in rgb.size)
        left, top = (wide - size) // 2, (high - size) // 2
        rgb = rgb.resize((wide, high), Image.Resampling.BICUBIC).crop(
            (left, top, left + size, top + size)
        )
    return np.asarray(rgb).transpose(2, 0, 1)


class CaptionSamples:
    """Captioned images as samples: each image decoded once; with `augment`, a caption and a view drawn per epoch.

    Without `augment` the first caption and the image as it is are taken.
    """

    def __init__(
        self,
        images: Sequence[Captioned],
        folder: str | Path,
        size: int,
        captions: WindowInput,
        *,
        augment: bool = True,
        shift: float = 0.0,
        flip: bool = True,
    ) -> None:
        """`size` in pixels; `shift` is the largest move of the view, as a share of `size`."""
        self.images, self.augment, self.shift, self.flip = (
            images,
            augment,
            round(shift * size),
            flip,
        )
        self.ids = [image.id for image in images]
        self.pixels = np.stack([decode(Path(folder) / image.file, size) for image in images])
        flat = [
            Example(f"{i}-{n}", text)
            for i, image in enumerate(images)
            for n, text in enumerate(image.captions)
        ]
        self.texts = TextSamples(flat, None, captions)
        self.first = np.cumsum([0] + [len(image.captions) for image in images])
        self.lengths = self.texts.lengths[self.first[:-1]]

    def __len__(self) -> int:
        return len(self.images)

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator]) -> list[Sample]:
        """Samples with `clip`, `pixels` and the label `image` (its number, to tell false negatives)."""
        picks = [
            int(rngs[n].integers(len(self.images[i].captions))) if self.augment else 0
            for n, i in enumerate(indices)
        ]
        texts = self.texts.get(
            [int(self.first[i]) + pick for i, pick in zip(indices, picks, strict=True)]
        )
        return [
            replace(
                text,
                id=self.ids[i],
                pixels=self._view(self.pixels[i], rngs[n]) if self.augment else self.pixels[i],
                labels={"image": np.array(i)},
            )
            for n, (i, text) in enumerate(zip(indices, texts, strict=True))
        ]

    def _view(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if self.flip and rng.random() < 0.5:
            pixels = pixels[:, :, ::-1]
        if self.shift:
            down, right = rng.integers(-self.shift, self.shift + 1, 2)
            side = pixels.shape[-1]
            rows = np.clip(np.arange(side) + down, 0, side - 1)
            pixels = pixels[:, rows][:, :, np.clip(np.arange(side) + right, 0, side - 1)]
        return np.ascontiguousarray(pixels)


def caption_lines(path: str | Path) -> list[str]:
    """All captions of a caption file, as plain text."""
    return [caption for image in read_captions(path) for caption in image.captions]

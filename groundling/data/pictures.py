"""Samples whose model looks at the pictures themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from groundling.batch import Sample
from groundling.data.samples import Samples
from groundling.errors import InputError

PICTURES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp"})
"""Endings of image files."""


def read_picture(path: Path) -> Image.Image:
    """A file as an RGB image, turned as its EXIF says; raises InputError, without the file's name."""
    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except (
        Exception
    ) as error:  # Pillow's readers raise whatever broken bytes make them stumble over
        raise InputError(
            f"does not decode as an image ({(str(error).splitlines() or ['?'])[0]})"
        ) from None


class Pictured:
    """Samples that also carry their picture as `pixels` (3, H, W), scaled whole (VL-BERT's code), read when needed."""

    def __init__(
        self, samples: Samples, images: Sequence[Sequence[str]], folder: str | Path, side: int
    ) -> None:
        """`images`: each sample's ids, which are paths below `folder` without ending; exactly one each.

        `side`: pixels of the short side; the long one has at most 5/3 of it. Raises InputError if a file is missing.
        """
        self.samples, self.side, folder = samples, side, Path(folder)
        self.ids, self.lengths = samples.ids, samples.lengths
        for name, own in zip(samples.ids, images, strict=True):
            if len(own) != 1:
                raise InputError(
                    f"{name} has {len(own)} images; a model that reads pixels takes one a text"
                )
        if not folder.is_dir():
            raise InputError(f"{folder}: no such image folder")
        found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)
        files = {
            path.relative_to(folder).with_suffix("").as_posix(): path for path in reversed(found)
        }
        if missing := list(dict.fromkeys(image for (image,) in images if image not in files)):
            raise InputError(
                f"{folder}: {len(missing)} images are missing, the first is {missing[0]!r} "
                f"({', '.join(sorted(PICTURES))}); add them"
            )
        self.files = [files[image] for (image,) in images]

    def __len__(self) -> int:
        return len(self.samples)

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator]) -> list[Sample]:
        """Samples with `pixels`, in the order of `indices`; a multiple choice has them once."""
        found = zip(indices, self.samples.get(indices, rngs), strict=True)
        return [replace(sample, pixels=self._pixels(self.files[i])) for i, sample in found]

    def _pixels(self, path: Path) -> np.ndarray:
        try:
            image = read_picture(path)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        scale = min(self.side / min(image.size), self.side * 5 / 3 / max(image.size))
        wide, high = (max(1, round(side * scale)) for side in image.size)
        return np.asarray(image.resize((wide, high), Image.Resampling.BICUBIC)).transpose(2, 0, 1)

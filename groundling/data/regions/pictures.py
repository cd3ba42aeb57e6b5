"""Samples whose model looks at the pictures themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from groundling.core.batch import Sample, needed
from groundling.core.errors import InputError
from groundling.data.captions.captions import Captioned
from groundling.data.images import (
    PICTURES,
    Picture,
    is_picture,
    one_form,
    read_picture,
)
from groundling.data.regions.mirror import mirrored_regions
from groundling.data.samples import Samples


class Pictured:
    """Samples that also carry their picture as `pixels` (3, H, W), scaled whole (as VL-BERT's release does)."""

    def __init__(
        self,
        samples: Samples,
        folder: str | Path | Mapping[str, Picture],
        side: int,
        long_side: float = 0,
    ) -> None:
        """Ids of images are paths below `folder` without ending, or its keys; every sample has exactly one.

        `side`: pixels of the short side; the long one has at most `long_side`, or 5/3 of the short one. Raises
        InputError if a file is missing.
        """
        self.samples = samples
        self.side = side
        self.long_side = long_side or side * 5 / 3
        self.ids = samples.ids
        self.lengths = samples.lengths
        self.images = samples.images
        files = pictures_of(samples, folder, "a model that reads pixels")
        self.files = [files[image] for (image,) in samples.images]

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def sizes(self) -> np.ndarray:
        """(len(self), 3), as without the picture."""
        return self.samples.sizes

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator]) -> list[Sample]:
        """Samples with `pixels`, in the order of `indices`; a multiple choice has them once."""
        samples = self.samples.get(indices, rngs)
        return [
            replace(sample, pixels=self._pixels(self.files[index]))
            for index, sample in zip(indices, samples, strict=True)
        ]

    def _pixels(self, picture: Picture) -> np.ndarray:
        try:
            image = read_picture(picture)
        except InputError as error:
            raise InputError(f"{picture}: {error}") from None
        scale = min(self.side / min(image.size), self.long_side / max(image.size))
        wide, high = (max(1, round(side * scale)) for side in image.size)
        scaled = image.resize((wide, high), Image.Resampling.BICUBIC)
        return np.asarray(scaled).transpose(2, 0, 1)


class Mirrored:
    """Samples with pictures, in half of the draws mirrored, with boxes and segments (VL-BERT's release, FLIP_PROB).

    A draw is keyed by the sample's own generator. For training alone, and for models that see the picture: boxes of
    stored features must not turn, for the features do not (the release turns them).
    """

    def __init__(self, samples: Samples, mirror: Samples) -> None:
        """`mirror`: the same samples as they are asked of mirrored pictures, which are not mirrored yet."""
        self.samples = samples
        self.mirror = mirror
        self.ids = samples.ids
        self.lengths = samples.lengths
        self.images = samples.images

    @property
    def sizes(self) -> np.ndarray:
        """As those of either way round, whichever is larger: "left" and "right" may have other pieces."""
        if self.mirror is self.samples:
            return self.samples.sizes
        return np.maximum(self.samples.sizes, self.mirror.sizes)

    def __len__(self) -> int:
        return len(self.samples)

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator]) -> list[Sample]:
        """Samples in the order of `indices`, each mirrored or not."""
        turns = [bool(rng.random() < 0.5) for rng in rngs]
        out: dict[int, Sample] = {}
        for turned, source in ((False, self.samples), (True, self.mirror)):
            places = [place for place, turn in enumerate(turns) if turn == turned]
            chosen = [indices[place] for place in places]
            samples = source.get(chosen, [rngs[place] for place in places])
            for place, sample in zip(places, samples, strict=True):
                out[place] = _turned(sample) if turned else sample
        return [out[place] for place in range(len(indices))]


def _turned(sample: Sample) -> Sample:
    """A sample with its picture, boxes and segments mirrored."""
    pixels = needed(sample.pixels, "pixels", "a mirrored picture")
    width = pixels.shape[2]

    def mirrored(row: Sample) -> Sample:
        regions = needed(row.regions, "regions", "a mirrored picture")
        return replace(row, regions=mirrored_regions(regions, width))

    return replace(sample.each_row(mirrored), pixels=pixels[:, :, ::-1])


def pictures_of(
    samples: Samples, folder: str | Path | Mapping[str, Picture], who: str
) -> dict[str, Picture]:
    """Every image that samples name, by its id; ids are paths below `folder` without ending, or its keys.

    Raises InputError if a sample has not exactly one image, as `who` needs, or if a file is missing.
    """
    for name, images in zip(samples.ids, samples.images, strict=True):
        if len(images) != 1:
            raise InputError(f"{name} has {len(images)} images; {who} takes one a text")
    every = dict.fromkeys(image for (image,) in samples.images)
    if isinstance(folder, Mapping):
        return {image: folder[image] for image in every}
    files = files_below(Path(folder))
    missing = [image for image in every if image not in files]
    if missing:
        raise InputError(missing_images(Path(folder), missing))
    try:
        return {image: only(files[image]) for image in every}
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None


def missing_images(folder: Path, missing: Sequence[str]) -> str:
    """What is said of ids, one or more, that a folder has no image for."""
    return (
        f"{folder}: {len(missing)} images are missing, the first is {missing[0]!r} "
        f"({', '.join(sorted(PICTURES))}); add them"
    )


def decodable(
    images: Sequence[Captioned], folder: str | Path, skip: bool = False
) -> tuple[list[Captioned], list[str]]:
    """The images in `folder` that decode, and the files of those that do not.

    Raises:
        InputError: one does not decode, unless `skip` is set.
    """
    kept = []
    bad = []
    faults = []
    for image in images:
        try:
            read_picture(Path(folder) / image.file)
        except InputError as error:
            bad.append(image.file)
            faults.append(f"{Path(folder) / image.file}: {error}")
        else:
            kept.append(image)
    if bad and not skip:
        raise InputError(
            f"{faults[0]} ({len(bad):,} of {len(images):,} captioned images); mend it, or pass --skip-bad to leave out "
            "what does not decode"
        )
    return kept, bad


def only(files: Sequence[Path]) -> Path:
    """The file of an image; raises InputError, without the folder, if several share its name."""
    if len(files) > 1:
        names = " and ".join(file.name for file in files)
        raise InputError(f"{names} differ in nothing but the ending; remove all but one")
    return files[0]


def files_below(folder: Path) -> dict[str, list[Path]]:
    """Every image below a folder by its path there without ending; several of one name are all there."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such image folder")
    found: dict[str, list[Path]] = {}
    # Not with rglob, which takes seconds for the many thousands of images that a folder may have.
    for place, _, names in os.walk(folder):
        below = Path(place).relative_to(folder)
        prefix = "" if below == Path() else f"{below.as_posix()}/"
        for name in sorted(names, reverse=True):
            if is_picture(name):
                base, _ = os.path.splitext(prefix + name)
                found.setdefault(one_form(base), []).append(Path(place, name))
    return found

"""Samples whose model looks at the pictures themselves: of regions' photos, and of captioned images."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from groundling.core.batch import Example, RegionRow, Sample, Tags, require
from groundling.core.errors import InputError, prefix_errors
from groundling.data.captions.captions import CaptionedImage
from groundling.data.images import (
    PICTURES,
    Picture,
    check_image_folder,
    is_image_file,
    normalize_unicode,
    read_image,
)
from groundling.data.samples import ClipRowEncoder, SampleDataset, TextDataset
from groundling.data.text.words import replace_words
from groundling.runs.progress import track

# What is said of a picture, as it is true of its mirror image: left and right change places.

_SIDES = re.compile(r"\b(left|right)\b", re.IGNORECASE)
_OTHER = {"left": "right", "right": "left", "Left": "Right", "Right": "Left"}


def _swap_sides(text: str, tags: Tags = ()) -> tuple[str, Tags]:
    changes = []
    for match in _SIDES.finditer(text):
        word = match.group()
        changes.append((*match.span(), _OTHER.get(word, _OTHER[word.lower()])))
    return replace_words(text, changes, tags)


class ExampleMirror:
    """Examples as they are asked of mirrored pictures (jackroos/VL-BERT, vqa/data/datasets/vqa.py and refcoco.py)."""

    def __init__(self, labels: Sequence[str] = ()) -> None:
        """`labels`: the answers or classes of the task by number, where they are words."""
        place = {label: number for number, label in enumerate(labels)}
        self.other = np.array([place.get(_swap_sides(label)[0], -1) for label in labels], np.int64)

    def __call__(self, example: Example) -> Example:
        """The example with other sides in its texts and its label; boxes and tags' numbers stay as they are."""
        text, tags = _swap_sides(example.text, example.region_tags)
        of_choices = example.choice_region_tags or ((),) * len(example.choices)
        choices = [
            _swap_sides(choice, its)
            for choice, its in zip(example.choices, of_choices, strict=True)
        ]
        return replace(
            example,
            text=text,
            region_tags=tags,
            text_pair=None if example.text_pair is None else _swap_sides(example.text_pair)[0],
            choices=tuple(choice for choice, _ in choices),
            choice_region_tags=tuple(its for _, its in choices)
            if example.choice_region_tags
            else (),
            label=self._label(example.label),
            part_starts=(),  # no model that reads pixels reads parts, and these places no longer fit
        )

    def _label(self, label: Any) -> Any:
        """A class, or pairs (K, 2) of class and score, of which those without a counterpart count for nothing."""
        if not len(self.other) or label is None or isinstance(label, float):
            return label
        if np.ndim(label) == 0:
            other = int(self.other[label])
            return label if other < 0 else other
        if np.ndim(label) != 2:
            return label
        classes = label[:, 0].astype(np.int64)
        there = classes >= 0
        return np.column_stack(
            [np.where(there, self.other[classes.clip(0)], classes), label[:, 1]]
        ).astype(label.dtype)


def mirrored_regions(row: RegionRow, width: int) -> RegionRow:
    """Regions of a picture of `width` pixels in its mirror image: x becomes W - 1 - x (VL-BERT's release).

    The whole image stays where it is; what objects fill of their boxes turns, too.
    """
    boxes = row.boxes.copy()
    boxes[:, [0, 2]] = (1 - 1 / width - row.boxes[:, [2, 0]]).clip(0)
    boxes[row.is_whole_image] = row.boxes[row.is_whole_image]
    cover = None if row.segmentation is None else row.segmentation[:, :, ::-1].copy()
    return replace(row, boxes=boxes, segmentation=cover)


class ImageDataset:
    """Samples that also carry their picture as `pixels` (3, H, W), scaled whole (as VL-BERT's release does)."""

    def __init__(
        self,
        samples: SampleDataset,
        folder: str | Path | Mapping[str, Picture],
        side: int,
        longest_edge: float = 0,
    ) -> None:
        """Ids of images are paths below `folder` without ending, or its keys; every sample has exactly one.

        `side`: pixels of the short side; the long one has at most `longest_edge`, or 5/3 of the short one. Raises
        InputError if a file is missing.
        """
        self.samples = samples
        self.side = side
        self.longest_edge = longest_edge or side * 5 / 3
        self.ids = samples.ids
        self.lengths = samples.lengths
        self.images = samples.images
        files = image_files_by_id(samples, folder, "a model that reads pixels")
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
        with prefix_errors(picture):
            image = read_image(picture)
        scale = min(self.side / min(image.size), self.longest_edge / max(image.size))
        wide, high = (max(1, round(side * scale)) for side in image.size)
        scaled = image.resize((wide, high), Image.Resampling.BICUBIC)
        return np.asarray(scaled).transpose(2, 0, 1)


class MirroredDataset:
    """Samples with pictures, in half of the draws mirrored, with boxes and segments (VL-BERT's release, FLIP_PROB).

    A draw is keyed by the sample's own generator. For training alone, and for models that see the picture: boxes of
    stored features must not turn, for the features do not (the release turns them).
    """

    def __init__(self, samples: SampleDataset, mirror: SampleDataset) -> None:
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
                out[place] = _mirror_sample(sample) if turned else sample
        return [out[place] for place in range(len(indices))]


def _mirror_sample(sample: Sample) -> Sample:
    """A sample with its picture, boxes and segments mirrored."""
    pixels = require(sample.pixels, "pixels", "a mirrored picture")
    width = pixels.shape[2]

    def mirrored(row: Sample) -> Sample:
        regions = require(row.regions, "regions", "a mirrored picture")
        return replace(row, regions=mirrored_regions(regions, width))

    return replace(sample.each_row(mirrored), pixels=pixels[:, :, ::-1])


def image_files_by_id(
    samples: SampleDataset, folder: str | Path | Mapping[str, Picture], who: str
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
        raise InputError(missing_images_message(Path(folder), missing))
    with prefix_errors(folder):
        return {image: single_file(files[image]) for image in every}


def missing_images_message(folder: Path, missing: Sequence[str]) -> str:
    """What is said of ids, one or more, that a folder has no image for."""
    return (
        f"{folder}: {len(missing)} images are missing, the first is {missing[0]!r} "
        f"({', '.join(sorted(PICTURES))}); add them"
    )


def split_decodable(
    images: Sequence[CaptionedImage], folder: str | Path, skip: bool = False
) -> tuple[list[CaptionedImage], list[str]]:
    """The images in `folder` that decode, and the files of those that do not.

    Raises:
        InputError: one does not decode, unless `skip` is set.
    """
    kept = []
    bad = []
    faults = []
    for image in images:
        try:
            read_image(Path(folder) / image.file)
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


def single_file(files: Sequence[Path]) -> Path:
    """The file of an image; raises InputError, without the folder, if several share its name."""
    if len(files) > 1:
        names = " and ".join(file.name for file in files)
        raise InputError(f"{names} differ in nothing but the ending; remove all but one")
    return files[0]


def files_below(folder: Path) -> dict[str, list[Path]]:
    """Every image below a folder by its path there without ending; several of one name are all there."""
    check_image_folder(folder)
    found: dict[str, list[Path]] = {}
    # Not with rglob, which takes seconds for the many thousands of images that a folder may have.
    for place, _, names in os.walk(folder):
        below = Path(place).relative_to(folder)
        prefix = "" if below == Path() else f"{below.as_posix()}/"
        for name in sorted(names, reverse=True):
            if is_image_file(name):
                base, _ = os.path.splitext(prefix + name)
                found.setdefault(normalize_unicode(base), []).append(Path(place, name))
    return found


# Captioned images as samples: every image decoded once, one of its captions and a view of it drawn per epoch.

Cut = Callable[[Image.Image], np.ndarray]
"""An RGB image to the pixels (3, size, size) uint8 that a model sees of it."""


def decode_image(path: Path, size: int) -> np.ndarray:
    """An image as (3, size, size) uint8 RGB: turned as its EXIF says, short side scaled to `size`, centre cut out.

    Raises:
        InputError: the file does not decode as an image.

    Source: CLIP's preprocessing (openai/CLIP, clip/clip.py, `_transform`).
    """
    rgb = _picture(path)
    if rgb.size != (size, size):
        rgb = _centre_crop(rgb, size)
    return np.asarray(rgb).transpose(2, 0, 1)


def _picture(path: Path) -> Image.Image:
    with prefix_errors(path):
        return read_image(path)


def _centre_crop(image: Image.Image, size: int) -> Image.Image:
    """The middle square of an image, (size, size)."""
    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    scaled = image.resize((width, height), Image.Resampling.BICUBIC)
    left = (width - size) // 2
    top = (height - size) // 2
    return scaled.crop((left, top, left + size, top + size))


class CaptionedImageDataset:
    """Captioned images as samples; with `augment`, a caption and a view of the image are drawn anew in every epoch.

    Without `augment` the first caption and the image as it is are taken.
    """

    def __init__(
        self,
        images: Sequence[CaptionedImage],
        folder: str | Path,
        size: int,
        captions: ClipRowEncoder,
        *,
        augment: bool = True,
        shift: float = 0.0,
        flip: bool = True,
        cut: Cut | None = None,
    ) -> None:
        """Decodes all images.

        Args:
            images: the images, whose files lie in `folder`.
            folder: the folder of images.
            size: side of the decoded images, pixels.
            captions: cuts captions into windows of the text tower.
            augment: draw captions and views; off for evaluation.
            shift: largest move of the view, as a share of `size`.
            flip: mirror half of the views.
            cut: makes pixels of an image, where not as `decode` does.

        Raises:
            InputError: an image does not decode.
        """
        self.captioned = images
        self.images = [(image.id,) for image in images]
        self.augment = augment
        self.shift = round(shift * size)
        self.flip = flip
        self.ids = [image.id for image in images]
        reading = track(images, "reading images", "image")
        paths = (Path(folder) / image.file for image in reading)
        seen = (decode_image(path, size) if cut is None else cut(_picture(path)) for path in paths)
        self.pixels = np.stack(list(seen))
        examples = []
        for place, image in enumerate(images):
            for number, caption in enumerate(image.captions):
                examples.append(Example(f"{place}-{number}", caption))
        self.texts = TextDataset(examples, None, captions)
        # Where each image's captions begin in `texts`, and after the last one where they end; (images + 1,).
        self.first = np.cumsum([0] + [len(image.captions) for image in images])
        self.lengths = self.texts.lengths[self.first[:-1]]

    def __len__(self) -> int:
        return len(self.captioned)

    @cached_property
    def sizes(self) -> np.ndarray:
        """(len(self), 3): one row, no text encoder's pieces, the CLIP pieces of the longest caption."""
        pieces = np.split(self.texts.sizes[:, 2], self.first[1:-1])
        return np.array([(1, 0, part.max()) for part in pieces], np.int64)

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator]) -> list[Sample]:
        """Samples with `clip`, `pixels` and the label `image` (its number, to tell false negatives).

        Args:
            indices: which images.
            rngs: a generator for each; not read without `augment`.
        """
        captions = [int(self.first[index]) for index in indices]
        if self.augment:
            # The caption is drawn before the view, or a resumed run would draw otherwise.
            for place, index in enumerate(indices):
                captions[place] += int(rngs[place].integers(len(self.captioned[index].captions)))
        samples = []
        for place, (index, text) in enumerate(zip(indices, self.texts.get(captions), strict=True)):
            pixels = self.pixels[index]
            if self.augment:
                pixels = self._view(pixels, rngs[place])
            label = {"image": np.array(index)}
            samples.append(replace(text, id=self.ids[index], pixels=pixels, labels=label))
        return samples

    def _view(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A mirrored and moved copy of an image (3, S, S); what leaves the frame is filled with the border's pixels."""
        if self.flip and rng.random() < 0.5:
            pixels = pixels[:, :, ::-1]
        if self.shift:
            down, right = rng.integers(-self.shift, self.shift + 1, 2)
            side = pixels.shape[-1]
            rows = np.clip(np.arange(side) + down, 0, side - 1)
            columns = np.clip(np.arange(side) + right, 0, side - 1)
            pixels = pixels[:, rows][:, :, columns]
        return np.ascontiguousarray(pixels)

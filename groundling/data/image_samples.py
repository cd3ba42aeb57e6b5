"""Samples with pixels: images of region models, and captioned images."""

from __future__ import annotations

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
from groundling.data.captions import CaptionedImage
from groundling.data.images import ImageInput, image_faults, image_id, images_below, read_image
from groundling.data.samples import ClipRowEncoder, SampleDataset, SampleWrapper, TextDataset
from groundling.data.tars import TAR
from groundling.data.text import replace_words
from groundling.runs.progress import track

# Texts about mirrored images: left and right are swapped.

_SIDES = re.compile(r"\b(left|right)\b", re.IGNORECASE)
_OTHER = {"left": "right", "right": "left", "Left": "Right", "Right": "Left"}


def _swap_sides(text: str, tags: Tags = ()) -> tuple[str, Tags]:
    found = [(*match.span(), match.group()) for match in _SIDES.finditer(text)]
    changes = [(start, stop, _OTHER.get(word, _OTHER[word.lower()])) for start, stop, word in found]
    return replace_words(text, changes, tags)


class LeftRightWordSwap:
    """Mirrors examples: swaps left and right in texts (jackroos/VL-BERT, vqa/data/datasets/vqa.py and refcoco.py)."""

    def __init__(self, labels: Sequence[str] = ()) -> None:
        """`labels`: the task's answers or classes by number, if they are words."""
        place = {label: number for number, label in enumerate(labels)}
        self.swapped = np.array(
            [place.get(_swap_sides(label)[0], -1) for label in labels], np.int64
        )

    def __call__(self, example: Example) -> Example:
        """The example with left and right swapped in texts and label; boxes and tag numbers stay."""
        text, tags = _swap_sides(example.text, example.region_tags)
        of_choices = example.choice_region_tags or ((),) * len(example.choices)
        choices = [
            _swap_sides(choice, choice_tags)
            for choice, choice_tags in zip(example.choices, of_choices, strict=True)
        ]
        return replace(
            example,
            text=text,
            region_tags=tags,
            text_pair=None if example.text_pair is None else _swap_sides(example.text_pair)[0],
            choices=tuple(choice for choice, _ in choices),
            choice_region_tags=tuple(tags for _, tags in choices if example.choice_region_tags),
            label=self._label(example.label),
            part_starts=(),  # no model that reads pixels uses parts, and these positions are no longer valid
        )

    def _label(self, label: Any) -> Any:
        """A class, or pairs (K, 2) of class and score, where answers whose swapped text is no answer are ignored."""
        if not len(self.swapped) or label is None or isinstance(label, float):
            return label
        if np.ndim(label) == 0:
            other = int(self.swapped[label])
            return label if other < 0 else other
        if np.ndim(label) != 2:
            return label
        classes = label[:, 0].astype(np.int64)
        swapped = np.where(classes >= 0, self.swapped[classes.clip(0)], classes)
        return np.column_stack([swapped, label[:, 1]]).astype(label.dtype)


def mirrored_regions(row: RegionRow, width: int) -> RegionRow:
    """Regions of an image of `width` pixels after mirroring, except the whole image: x becomes W - 1 - x (VL-BERT)."""
    boxes = row.boxes.copy()
    boxes[:, [0, 2]] = (1 - 1 / width - row.boxes[:, [2, 0]]).clip(0)
    boxes[row.is_whole_image] = row.boxes[row.is_whole_image]
    segmentation = None if row.segmentation is None else row.segmentation[:, :, ::-1].copy()
    return replace(row, boxes=boxes, segmentation=segmentation)


class PixelDataset(SampleWrapper):
    """Samples with their image as `pixels` (3, H, W), scaled without cropping (as in VL-BERT's release)."""

    def __init__(
        self,
        samples: SampleDataset,
        folder: str | Path | Mapping[str, ImageInput],
        side: int,
        longest_edge: float = 0,
    ) -> None:
        """Every sample needs one image; its id is a path below `folder` without ending, or a key of `folder`.

        `side`: pixels of the short side; the long side has at most `longest_edge`, or 5/3 of the short one.
        """
        super().__init__(samples)
        self.side = side
        self.longest_edge = longest_edge or side * 5 / 3
        files = image_files_by_id(samples, folder, "a model that reads pixels")
        self.files = [files[image] for (image,) in samples.images]

    def change(self, sample: Sample, index: int) -> Sample:
        """A sample with `pixels`; a multiple-choice sample has them once."""
        image = _read_file(self.files[index])
        scale = min(self.side / min(image.size), self.longest_edge / max(image.size))
        wide, high = (max(1, round(side * scale)) for side in image.size)
        scaled = image.resize((wide, high), Image.Resampling.BICUBIC)
        return replace(sample, pixels=np.asarray(scaled).transpose(2, 0, 1))


class RandomFlipDataset(SampleWrapper):
    """Samples with pixels; each draw is mirrored with probability 1/2, with its boxes (VL-BERT's release, FLIP_PROB).

    The sample's own generator draws. Only for training, and for models that read pixels: boxes of
    stored features must not be mirrored, because the features are not (the release mirrors them).
    """

    def __init__(self, samples: SampleDataset, mirror: SampleDataset) -> None:
        """`mirror`: the same samples with mirrored texts, and with images that are not mirrored yet."""
        super().__init__(samples)
        self.mirror = mirror

    @property
    def sizes(self) -> np.ndarray:
        """The maximum of both orientations: "left" and "right" may have different tokens."""
        if self.mirror is self.samples:
            return self.samples.sizes
        return np.maximum(self.samples.sizes, self.mirror.sizes)

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
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
    pixels = require(sample.pixels, "pixels", "a mirrored image")
    width = pixels.shape[2]

    def mirrored(row: Sample) -> Sample:
        regions = require(row.regions, "regions", "a mirrored image")
        return replace(row, regions=mirrored_regions(regions, width))

    return replace(sample.each_row(mirrored), pixels=pixels[:, :, ::-1])


def image_files_by_id(
    samples: SampleDataset, folder: str | Path | Mapping[str, ImageInput], reader_name: str
) -> dict[str, ImageInput]:
    """All images of samples, by id; ids are paths below `folder` without ending, or its keys."""
    for name, images in zip(samples.ids, samples.images, strict=True):
        if len(images) != 1:
            raise InputError(f"{name} has {len(images)} images; {reader_name} reads one per text")
    image_ids = dict.fromkeys(image for (image,) in samples.images)
    if isinstance(folder, Mapping):
        return {image: folder[image] for image in image_ids}
    files = files_below(Path(folder))
    missing = [image for image in image_ids if image not in files]
    if missing:
        raise InputError(
            f"{folder}: {len(missing)} images are missing, the first is {missing[0]!r}"
        )
    with prefix_errors(folder):
        return {image: single_file(files[image]) for image in image_ids}


def split_decodable(
    images: Sequence[CaptionedImage], folder: str | Path, skip: bool = False
) -> tuple[list[CaptionedImage], list[str]]:
    """The images in `folder` that can be decoded, and the files of those that cannot."""
    faults = image_faults({image.file: Path(folder) / image.file for image in images})
    if faults and not skip:
        file, fault = next(iter(faults.items()))
        first = f"{Path(folder) / file}: {fault}"
        raise InputError(f"{first} ({len(faults):,} of {len(images):,} images; see skip_bad)")
    return [image for image in images if image.file not in faults], list(faults)


def single_file(files: Sequence[Path]) -> Path:
    """The file of an image; raises InputError, without the folder, if several files share its name."""
    if len(files) > 1:
        names = " and ".join(file.name for file in files)
        raise InputError(f"{names} differ only in the ending")
    return files[0]


def files_below(folder: Path) -> dict[str, list[Path]]:
    """All images below a folder, or in a tar, by their paths there without ending, all files of a name.

    Those of a tar begin with its name, as in a folder of tars.
    """
    files: dict[str, list[Path]] = {}
    start = f"{folder.name}/" if folder.suffix == TAR and folder.is_file() else ""
    for name in images_below(folder):
        files.setdefault(image_id(start + name), []).append(folder / name)
    return files


# Captioned images as samples: every image is decoded once; each epoch draws one caption and one view.

PixelMaker = Callable[[Image.Image], np.ndarray]
"""Converts an RGB image to the pixels (3, size, size) uint8 that a model reads."""


def decode_image(path: Path, size: int) -> np.ndarray:
    """An image as (3, size, size) uint8 RGB: rotated by its EXIF orientation, short side scaled to `size`, cropped.

    Source: CLIP's preprocessing (openai/CLIP, clip/clip.py, `_transform`).
    """
    rgb = _read_file(path)
    if rgb.size != (size, size):
        scale = size / min(rgb.size)
        width, height = (max(size, round(side * scale)) for side in rgb.size)
        scaled = rgb.resize((width, height), Image.Resampling.BICUBIC)
        left, top = (width - size) // 2, (height - size) // 2
        rgb = scaled.crop((left, top, left + size, top + size))
    return np.asarray(rgb).transpose(2, 0, 1)


def _read_file(file: ImageInput) -> Image.Image:
    with prefix_errors(file):
        return read_image(file)


class CaptionDraws:
    """Captioned images as samples of one caption each, drawn anew in every epoch with `augment`. Abstract."""

    def __init__(
        self, images: Sequence[CaptionedImage], captions: ClipRowEncoder, augment: bool
    ) -> None:
        """`captions` makes the rows of texts; without `augment` each image has its first caption."""
        self.captioned = images
        self.images = [(image.id,) for image in images]
        self.augment = augment
        self.ids = [image.id for image in images]
        examples = []
        for place, image in enumerate(images):
            for number, caption in enumerate(image.captions):
                examples.append(Example(f"{place}-{number}", caption))
        self.texts: SampleDataset = TextDataset(examples, None, captions)
        # The first of each image's captions in `texts`, and the end after the last; (images + 1,).
        self.first = np.cumsum([0] + [len(image.captions) for image in images])
        self.lengths = self.texts.lengths[self.first[:-1]]

    def __len__(self) -> int:
        return len(self.captioned)

    @cached_property
    def sizes(self) -> np.ndarray:
        """(len(self), 3): one row, no text tokens, the CLIP tokens of the longest caption."""
        tokens = np.split(self.texts.sizes[:, 2], self.first[1:-1])
        return np.array([(1, 0, part.max()) for part in tokens], np.int64)

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator]) -> list[Sample]:
        """Samples with `clip`, the image, and the label `image`, its number, which identifies false negatives."""
        captions = [int(self.first[index]) for index in indices]
        if self.augment:
            # The caption is drawn before the view; resumed runs depend on this order.
            for place, index in enumerate(indices):
                captions[place] += int(rngs[place].integers(len(self.captioned[index].captions)))
        samples = []
        for place, (index, text) in enumerate(
            zip(indices, self.texts.get(captions, ()), strict=True)
        ):
            one = replace(text, id=self.ids[index], labels={"image": np.array(index)})
            samples.append(self.with_image(one, index, rngs[place] if self.augment else None))
        return samples

    def with_image(self, sample: Sample, index: int, rng: np.random.Generator | None) -> Sample:
        """The sample with its image; `rng` draws a view of it. Abstract."""
        raise NotImplementedError


class FrozenTexts(SampleWrapper):
    """Texts whose frozen vectors (S,) are the feature `text`, in place of their tokens."""

    def __init__(self, samples: SampleDataset, vectors: np.ndarray) -> None:
        """`vectors` (len(samples), S) float32."""
        super().__init__(samples)
        self.vectors = vectors

    def change(self, sample: Sample, index: int) -> Sample:
        """The sample with the feature `text`."""
        return replace(sample, clip=None, features={"text": self.vectors[index]})


class CaptionedVectors(CaptionDraws):
    """Captioned images whose frozen vectors (E,) are the feature `image`."""

    def __init__(
        self,
        images: Sequence[CaptionedImage],
        vectors: np.ndarray,
        captions: ClipRowEncoder,
        *,
        augment: bool = True,
    ) -> None:
        """`vectors` (images, E) float32."""
        super().__init__(images, captions, augment)
        self.vectors = vectors

    def with_image(self, sample: Sample, index: int, rng: np.random.Generator | None) -> Sample:
        """The sample with the feature `image`."""
        return replace(sample, features={**sample.features, "image": self.vectors[index]})


class CaptionedImageDataset(CaptionDraws):
    """Captioned images as samples; with `augment`, each epoch draws a caption and a view of the image."""

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
        make_pixels: PixelMaker | None = None,
    ) -> None:
        """Decodes all images, to `size` pixels or by `make_pixels`.

        With `augment`, captions and views are drawn: mirrored if `flip`, moved by at most a share `shift` of the
        size; otherwise the first caption and the unchanged image are read.
        """
        super().__init__(images, captions, augment)
        self.shift = round(shift * size)
        self.flip = flip
        reading = track(images, "reading images", "image", reads_inputs=True)
        paths = (Path(folder) / image.file for image in reading)
        pixels = (
            decode_image(path, size) if make_pixels is None else make_pixels(_read_file(path))
            for path in paths
        )
        self.pixels = np.stack(list(pixels))

    def with_image(self, sample: Sample, index: int, rng: np.random.Generator | None) -> Sample:
        """The sample with `pixels`, and with `augment` a view of them."""
        pixels = self.pixels[index]
        return replace(sample, pixels=pixels if rng is None else self._view(pixels, rng))

    def _view(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A mirrored and translated copy of an image (3, S, S); the border's pixels fill the uncovered part."""
        if self.flip and rng.random() < 0.5:
            pixels = pixels[:, :, ::-1]
        if self.shift:
            down, right = rng.integers(-self.shift, self.shift + 1, 2)
            side = pixels.shape[-1]
            rows = np.clip(np.arange(side) + down, 0, side - 1)
            columns = np.clip(np.arange(side) + right, 0, side - 1)
            pixels = pixels[:, rows][:, :, columns]
        return np.ascontiguousarray(pixels)

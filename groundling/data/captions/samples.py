"""Captioned images as samples: every image decoded once, one of its captions and a view of it drawn per epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from groundling.core.batch import Example, Sample
from groundling.core.errors import InputError
from groundling.data.captions.captions import Captioned
from groundling.data.images import read_picture
from groundling.data.samples import TextSamples, WindowInput
from groundling.runs.progress import followed

Cut = Callable[[Image.Image], np.ndarray]
"""An RGB image to the pixels (3, size, size) uint8 that a model sees of it."""


def decode(path: Path, size: int) -> np.ndarray:
    """An image as (3, size, size) uint8 RGB: turned as its EXIF says, short side scaled to `size`, centre cut out.

    Raises:
        InputError: the file does not decode as an image.

    Source: CLIP's preprocessing (openai/CLIP, clip/clip.py, `_transform`).
    """
    rgb = _picture(path)
    if rgb.size != (size, size):
        rgb = _middle(rgb, size)
    return np.asarray(rgb).transpose(2, 0, 1)


def _picture(path: Path) -> Image.Image:
    try:
        return read_picture(path)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _middle(image: Image.Image, size: int) -> Image.Image:
    """The middle square of an image, (size, size)."""
    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    scaled = image.resize((width, height), Image.Resampling.BICUBIC)
    left = (width - size) // 2
    top = (height - size) // 2
    return scaled.crop((left, top, left + size, top + size))


class CaptionSamples:
    """Captioned images as samples; with `augment`, a caption and a view of the image are drawn anew in every epoch.

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
        reading = followed(images, "reading images", "image")
        paths = (Path(folder) / image.file for image in reading)
        seen = (decode(path, size) if cut is None else cut(_picture(path)) for path in paths)
        self.pixels = np.stack(list(seen))
        examples = []
        for place, image in enumerate(images):
            for number, caption in enumerate(image.captions):
                examples.append(Example(f"{place}-{number}", caption))
        self.texts = TextSamples(examples, None, captions)
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

"""Texts together with the regions of their images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from groundling.batch import Example, RegionRow, Sample
from groundling.data.captions import Captioned
from groundling.data.samples import TextInput, TextSamples
from groundling.errors import InputError


class Store(Protocol):
    """Regions by image id, e.g. a `RegionStore`."""

    def __getitem__(self, image: str) -> RegionRow: ...

    def __contains__(self, image: object) -> bool: ...

    def count(self, image: str) -> int:
        """How many regions an image has."""
        ...


class RegionSamples:
    """Samples of texts that also carry the regions of their examples' images, read when they are needed."""

    def __init__(
        self,
        texts: TextSamples,
        store: Store,
        *,
        whole: bool = False,
        most: int = 0,
        mark: Callable[[Example, RegionRow], np.ndarray] | None = None,
        phrases: bool = False,
        apart: bool = False,
        blind: bool = False,
    ) -> None:
        """`whole` puts the whole image first (VL-BERT, VCR); of each image at most `most` regions (0: all) are taken.

        `mark` says which regions are right, which becomes the label; with `phrases`, the text's tag is a phrase, whose
        last piece becomes the label `query`, and no region's name. `apart` makes a row of text and image of each image,
        as of a choice. `blind` puts zeros in place of features. Raises InputError if an image is not in the store, with
        the number of such images.
        """
        self.mark, self.phrases, self.apart, self.blind = mark, phrases, apart, blind
        missing = list(dict.fromkeys(i for e in texts.examples for i in e.images if i not in store))
        if missing:
            raise InputError(
                f"the region store lacks {len(missing)} images, the first is {missing[0]!r}"
            )
        self.texts, self.store, self.whole, self.most = texts, store, whole, most
        # Regions first: both sides are padded, and an image's regions differ more in number than its texts' pieces.
        counts = [
            sum(min(store.count(i), most or store.count(i)) for i in e.images)
            for e in texts.examples
        ]
        self.ids, self.lengths = texts.ids, 1000 * np.array(counts) + texts.lengths

    def __len__(self) -> int:
        return len(self.texts)

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator] = ()) -> list[Sample]:
        """Samples with regions, in the order of `indices`; of a multiple choice, every choice has them."""
        out = []
        for i, sample in zip(indices, self.texts.get(indices, rngs), strict=True):
            images = self.texts.examples[i].images
            if self.apart:
                parts = (self._one(image, number) for number, image in enumerate(images))
                out.append(
                    replace(sample, choices=tuple(self._see(sample, part) for part in parts))
                )
                continue
            row = self.regions(images)
            choices = tuple(self._see(choice, row) for choice in sample.choices)
            sample = replace(self._see(sample, row), choices=choices)
            if self.mark is not None:
                sample = sample.with_label("label", self.mark(self.texts.examples[i], row))
            out.append(sample)
        return out

    def _see(self, sample: Sample, row: RegionRow) -> Sample:
        text = sample.text
        if text is None or text.region is None:
            return replace(sample, regions=row)
        if self.phrases:
            last = np.flatnonzero(text.region >= 0)[-1:].sum()  # 0 if the phrase was cut off
            return replace(sample, regions=row, text=replace(text, region=None)).with_label(
                "query", np.array(last)
            )
        # Tags number the annotated objects, which stand in the store's order behind the whole image.
        named = np.where(text.region >= 0, text.region + row.whole[0], -1)
        return replace(
            sample,
            regions=row,
            text=replace(text, region=np.where(named < len(row.boxes), named, -1)),
        )

    def regions(self, images: Sequence[str]) -> RegionRow:
        """The regions of several images in one row, image after image."""
        rows = [self._one(image, number) for number, image in enumerate(images)]
        first = rows[0]
        classes = (
            None
            if first.classes is None
            else np.concatenate([r.classes for r in rows if r.classes is not None])
        )
        return RegionRow(
            np.concatenate([r.features for r in rows]),
            np.concatenate([r.boxes for r in rows]),
            np.concatenate([r.confidence for r in rows]),
            np.concatenate([r.image for r in rows]),
            np.concatenate([r.whole for r in rows]),
            classes,
        )

    def _one(self, image: str, number: int) -> RegionRow:
        row = self.store[image]
        if self.most:
            kept = slice(self.most)
            classes = None if row.classes is None else row.classes[kept]
            row = RegionRow(
                row.features[kept],
                row.boxes[kept],
                row.confidence[kept],
                row.image[kept],
                row.whole[kept],
                classes,
            )
        if self.whole and not row.whole.any():
            row = with_whole_image(row)
        features = np.zeros_like(row.features) if self.blind else row.features
        return replace(row, features=features, image=np.full(len(row.boxes), number, np.int64))


def with_whole_image(row: RegionRow) -> RegionRow:
    """The row with a region for the whole image in front; its features are the mean of the others' (VL-BERT's code)."""
    classes = row.classes
    if classes is not None:  # no class is claimed for the whole image
        classes = np.concatenate([np.zeros_like(classes[:1]), classes])
    return RegionRow(
        np.concatenate([row.features.mean(0, keepdims=True), row.features]),
        np.concatenate([np.array([[0, 0, 1, 1]], row.boxes.dtype), row.boxes]),
        np.concatenate([np.ones(1, row.confidence.dtype), row.confidence]),
        np.concatenate([np.zeros(1, np.int64), row.image]),
        np.concatenate([np.ones(1, bool), row.whole]),
        classes,
    )


class CaptionPairs:
    """VisualBERT's pre-training samples: a caption, another caption of the same or of a random image, and the regions.

    The second caption is of another image in half of the cases; label `sentence_image` is 1 where both describe the
    image (VisualBERT Section 3.3; the released code). Which captions are drawn is new in every epoch.
    """

    def __init__(
        self,
        images: Sequence[Captioned],
        text: TextInput,
        store: Store,
        *,
        pairs: bool = True,
        whole: bool = False,
        most: int = 0,
    ) -> None:
        """With `pairs` off a sample is one caption and its image's regions, without a label (UNITER, VL-BERT)."""
        self.images, self.pairs = images, pairs
        # An image is one sample in an epoch, whatever the number of its captions.
        one_each = [Example(c.id, c.captions[0], images=(c.id,)) for c in images]
        self.single = RegionSamples(TextSamples(one_each, text), store, whole=whole, most=most)
        self.text, self.ids, self.lengths = text, self.single.ids, self.single.lengths

    def __len__(self) -> int:
        return len(self.images)

    def get(self, indices: Sequence[int], rngs: Sequence[np.random.Generator]) -> list[Sample]:
        """Samples in the order of `indices`, each drawn with its own generator."""
        chosen, labels = [], []
        for i, rng in zip(indices, rngs, strict=True):
            own = self.images[i].captions
            one = int(rng.integers(len(own)))
            if not self.pairs:
                chosen.append(Example(self.ids[i], own[one]))
                continue
            same = rng.random() < 0.5
            other = (
                i
                if same
                else (i + 1 + int(rng.integers(max(1, len(self.images) - 1)))) % len(self.images)
            )
            theirs = self.images[other].captions
            second = (one + 1 + int(rng.integers(max(1, len(own) - 1)))) % len(own) if same else -1
            pair = own[second] if same else theirs[int(rng.integers(len(theirs)))]
            chosen.append(Example(self.ids[i], own[one], pair))
            labels.append(np.array(int(same)))
        samples = TextSamples(chosen, self.text).get(
            range(len(chosen))
        )  # a pair hardly ever comes twice: not kept
        rows = [self.single.regions((self.images[i].id,)) for i in indices]
        samples = [replace(sample, regions=row) for sample, row in zip(samples, rows, strict=True)]
        if not self.pairs:
            return samples
        return [
            s.with_label("sentence_image", label) for s, label in zip(samples, labels, strict=True)
        ]

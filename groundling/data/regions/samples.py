"""From a region store and image files to samples of texts with the regions of their images, as settings specify.

Training reads all images (`all_images`); inference looks up single ones (`image_sources`). Both then add them to texts
(`samples`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from groundling.core.batch import Example, OutputSizes, RegionRow, Sample, require
from groundling.core.errors import InputError, prefix_errors
from groundling.data.captions import CaptionedImage
from groundling.data.image_samples import PixelDataset, RandomFlipDataset, files_below, single_file
from groundling.data.images import ImageInput, check_shape, read_image
from groundling.data.regions import RegionSource, RegionStore, describe_mismatch, whole_image_first
from groundling.data.samples import (
    MultiVersionTextDataset,
    SampleDataset,
    SampleWrapper,
    TextRowEncoder,
    without_region_tags,
)
from groundling.settings.input_settings import RegionSettings

RegionLabeler = Callable[[Example, RegionRow], np.ndarray]
"""Labels the regions (R,) of an example: 1 for the right ones, else 0."""


@dataclass(frozen=True)
class RegionOptions:
    """Options for the regions that a model reads."""

    whole_image: bool = False
    """Add the whole image as first region (VL-BERT); otherwise a store's own whole-image region is removed."""
    last_pixel: bool = False
    """Boxes end at their last pixel: the whole image is W - 1 by H - 1 (VL-BERT's release)."""
    max_regions: int = 0
    """Maximum number of regions per image, most confident first, without the whole image; 0: all."""
    max_sequence: int = 0
    """Maximum number of tokens and regions together, with the whole image, see `truncate_to_budget`; 0: no limit."""
    label_regions: RegionLabeler | None = None
    """Labels the right regions, for tasks that select some."""
    phrases: bool = False
    """The text's tag is a phrase, not a region's name; the phrase's last token becomes the label `query`."""
    link_tags: bool = True
    """Link a word that names an object to that object's region; otherwise its tag is ignored."""
    separate_images: bool = False
    """Each image of an example makes a row of its own, with the whole text."""
    only_mentioned: bool = False
    """Of an example's annotated objects, keep only those that its texts mention, where this is known."""
    zero_features: bool = False
    """Zeros in place of features; boxes stay."""
    width: int = 0
    """Width of these zeros, for a model that computes features from pixels; 0: the store's."""


class RegionDataset(SampleWrapper):
    """Samples together with the regions of their images, which are read on access."""

    def __init__(
        self,
        samples: SampleDataset,
        store: RegionSource,
        options: RegionOptions | None = None,
    ) -> None:
        """Raises InputError if a sample has no image, or if images are not in the store, with their number."""
        super().__init__(samples)
        self.store = store
        self.options = options or RegionOptions()
        budget = self.options.max_sequence
        if 0 < budget < LEAST_TOKENS + LEAST_REGIONS:
            raise InputError(f"max_total_length={budget}: no room for two tokens and a region")
        # Several images share one budget, and only the last would lose regions.
        many_images = not budget or self.options.separate_images
        for sample, images in zip(samples.ids, samples.images, strict=True):
            if not images or (len(images) > 1 and not many_images):
                raise InputError(
                    f"{sample}: {len(images)} images (setting `image`); max_total_length={budget}"
                )
        every = dict.fromkeys(image for images in samples.images for image in images)
        missing = [image for image in every if image not in store]
        if missing:
            raise InputError(
                f"{len(missing)} of {len(every)} images are not in this region store, the first is {missing[0]!r}"
            )
        # Regions first: both sides are padded, and images differ more in their number of regions
        # than texts in tokens.
        counts = [sum(self._count(image) for image in images) for images in samples.images]
        lengths = samples.lengths
        self.lengths = (1 + lengths.max(initial=0)) * np.array(counts) + lengths

    @cached_property
    def sizes(self) -> np.ndarray:
        """(len(self), 3): rows, tokens, regions; regions may be one too many per image."""
        sizes = self.samples.sizes.copy()
        for place, images in enumerate(self.samples.images):
            regions = [self._count(image) + int(self.options.whole_image) for image in images]
            if self.options.separate_images:
                sizes[place, 0] = len(images)
            sizes[place, 2] += max(regions) if self.options.separate_images else sum(regions)
        return sizes

    def change(self, sample: Sample, index: int) -> Sample:
        """A sample with regions; all choices of a multiple choice have them."""
        images = self.images[index]
        if self.options.separate_images:
            row = replace(sample, labels={})  # the label belongs to the sample, not its rows
            parts = [self._of_image(image, number) for number, image in enumerate(images)]
            cut = [truncate_to_budget(row, part, self.options.max_sequence) for part in parts]
            rows = [self._add_regions(short, part) for short, part in cut]
            lost = sum(one.truncated_tokens - sample.truncated_tokens for one in rows)
            return replace(
                sample,
                choices=tuple(rows),
                truncated_tokens=sample.truncated_tokens + lost,
                truncated_regions=sum(one.truncated_regions for one in rows),
            )
        regions = self.regions(images)
        self._check_tags(sample, images, regions)
        if self.options.only_mentioned:
            sample, regions = keep_mentioned(sample, regions)
        sample, regions = truncate_to_budget(sample, regions, self.options.max_sequence)
        out = sample.each_row(lambda row: self._add_regions(row, regions))
        if self.options.phrases and sample.text is not None:
            why = (f"a phrase in {sample.id}", "a task about phrases")
            # The last token of the phrase; 0 if it was truncated.
            named = np.flatnonzero(require(sample.text.region_index, *why) >= 0)
            out = out.with_label("query", np.array(named[-1] if len(named) else 0))
        if self.options.label_regions is not None:
            example = require(sample.example, "example", "a task that labels regions")
            out = out.with_label("label", self.options.label_regions(example, regions))
        return out

    def _add_regions(self, row: Sample, regions: RegionRow) -> Sample:
        """A row with its regions; the tags of its text become indices of these regions."""
        text = row.text
        if text is None or text.region_index is None:
            return replace(row, regions=regions)
        # In a text whose image has no annotated objects, tags are phrases of the text, with any
        # options.
        names_objects = row.example is None or row.example.object_count > 0
        token_regions = None
        if names_objects and self.options.link_tags and not self.options.phrases:
            # Tags number the annotated objects, which follow the whole image in the store's order.
            numbers = text.region_index + int(regions.is_whole_image[0])
            is_there = (text.region_index >= 0) & (numbers < len(regions))
            token_regions = np.where(is_there, numbers, -1)
        return replace(row, regions=regions, text=replace(text, region_index=token_regions))

    def _check_tags(self, sample: Sample, images: Sequence[str], regions: RegionRow) -> None:
        objects = 0 if sample.example is None else sample.example.object_count
        placed = self.options.link_tags or self.options.only_mentioned
        if not objects or self.options.phrases or not placed:
            return
        for number, image in enumerate(images):
            expected = objects + self.store.appended_detections(image)
            if self.options.max_regions:
                expected = min(expected, self.options.max_regions)
            here = int((~regions.is_whole_image & (regions.image_index == number)).sum())
            if not self.store.in_annotated_order(image) or here != expected:
                raise InputError(
                    f"{sample.id}: its text numbers the objects of {image!r}, but the region store lacks the image's "
                    f"{objects} annotated objects in their order; make it of `boxes`, or pass object_tags=False"
                )

    def regions(self, images: Sequence[str]) -> RegionRow:
        """The regions of several images in one row, image after image."""
        parts = [self._of_image(image, number) for number, image in enumerate(images)]
        return RegionRow.concatenate(parts)

    def _count(self, image: str) -> int:
        count = self.store.count(image)
        return min(count, self.options.max_regions) if self.options.max_regions else count

    def _of_image(self, image: str, number: int) -> RegionRow:
        row = self.store[image]
        if not self.options.whole_image and not row.is_whole_image.all():
            row = row.take(~row.is_whole_image)
        if self.options.max_regions:
            # A store's own whole-image region comes first and does not count towards `max_regions`.
            row = row.take(
                row.is_whole_image | (np.cumsum(~row.is_whole_image) <= self.options.max_regions)
            )
        if self.options.whole_image and not row.is_whole_image.any():
            row = add_whole_image(row)
        if self.options.last_pixel:
            row = clip_to_last_pixel(row, self.store.size(image))
        if self.options.zero_features:
            width = self.options.width or row.features.shape[1]
            row = replace(row, features=np.zeros((len(row), width), np.float32))
        return replace(row, image_index=np.full(len(row), number, np.int64))


LEAST_TOKENS = 2
"""A text truncated to a budget keeps its first and its last token."""
LEAST_REGIONS = 1
"""An image keeps its first region, which is the whole image if the model reads that."""


def truncate_to_budget(sample: Sample, regions: RegionRow, budget: int) -> tuple[Sample, RegionRow]:
    """A sample and its regions, truncated to `budget` together; 0: unchanged.

    The longer side loses its last entry, and the text in a tie; the text keeps its last token,
    [SEP] (jackroos/VL-BERT, pretrain/data/datasets/conceptual_captions.py). All choices have the
    regions for which the longest choice leaves room.
    """
    rows = [row.text for row in sample.rows if row.text is not None]
    tokens = longest = max((len(row.input_ids) for row in rows), default=0)
    region_count = len(regions)
    if not budget or longest + region_count <= budget:
        return sample, regions
    while tokens + region_count > budget:
        if region_count > tokens or tokens == LEAST_TOKENS:
            region_count -= 1
        else:
            tokens -= 1

    def shortened(row: Sample) -> Sample:
        text = row.text
        if text is None or len(text.input_ids) <= tokens:
            return row
        places = np.append(np.arange(tokens - 1), len(text.input_ids) - 1)
        return replace(row, text=text.take(places))

    lost_tokens = sum(max(0, len(row.input_ids) - tokens) for row in rows)
    return replace(
        sample.each_row(shortened),
        truncated_tokens=sample.truncated_tokens + lost_tokens,
        truncated_regions=sample.truncated_regions + len(regions) - region_count,
    ), regions.take(slice(region_count))


def keep_mentioned(sample: Sample, regions: RegionRow) -> tuple[Sample, RegionRow]:
    """A sample and its image's regions, with only the whole image and the mentioned objects.

    Objects follow the whole image in the regions' order; tags are renumbered.
    """
    mentioned = () if sample.example is None else sample.example.mentioned_objects
    if not mentioned:
        return sample, regions
    first = int(regions.is_whole_image[0])
    kept = np.isin(np.arange(len(regions)) - first, mentioned) | regions.is_whole_image
    # The last entry is for tokens that name no object.
    numbers = np.append(np.where(kept[first:], np.cumsum(kept[first:]) - 1, -1), -1)

    def renumbered(row: Sample) -> Sample:
        if row.text is None or row.text.region_index is None:
            return row
        named = np.minimum(row.text.region_index, len(numbers) - 1)
        return replace(row, text=replace(row.text, region_index=numbers[named]))

    return sample.each_row(renumbered), regions.take(kept)


def add_whole_image(row: RegionRow) -> RegionRow:
    """The row with a first region for the whole image, whose features are the mean of the others'.

    As in VL-BERT's release with pre-computed features; the whole image has no class.
    """
    return replace(
        row,
        **whole_image_first(row, row.features.mean(0, keepdims=True)),
        image_index=np.insert(row.image_index, 0, 0),
        is_whole_image=np.insert(row.is_whole_image, 0, True),
    )


def clip_to_last_pixel(row: RegionRow, size: tuple[int, int]) -> RegionRow:
    """The row with boxes, in shares, clipped to [0, 0, W - 1, H - 1] pixels of an image of `size` W x H; 0: unchanged.

    As in VL-BERT's release, where this is the box of the whole image.
    """
    if not all(size):
        return row
    width, height = size
    last = np.array([1 - 1 / width, 1 - 1 / height] * 2, row.boxes.dtype)
    return replace(row, boxes=np.minimum(row.boxes, last))


class CaptionSampleDataset(MultiVersionTextDataset):
    """Samples of captioned images for pre-training: each epoch reads every caption, or one caption of every image.

    With `pairs`, a sample is VisualBERT's: a caption and a second one, from a random other image in half of the cases;
    the label `sentence_image` is 1 if both describe the image (VisualBERT Appendix A; its release). Without `pairs`, a
    sample is one caption without a label (UNITER, VL-BERT).
    """

    def __init__(
        self,
        images: Sequence[CaptionedImage],
        text: TextRowEncoder,
        pairs: bool = True,
        every_caption: bool = False,
    ) -> None:
        """With `every_caption`, each caption is a sample, as in all three releases; otherwise each image, with one."""
        self.captioned = images
        self.pairs = pairs
        # The image of each sample, and the number of its first version among the image's captions.
        self.places: list[tuple[int, int]] = []
        versions = []
        for place, image in enumerate(images):
            own = [Example(image.id, caption, images=(image.id,)) for caption in image.captions]
            if every_caption:
                own = [replace(one, id=f"{one.id}#{number}") for number, one in enumerate(own)]
            some = [[one] for one in own] if every_caption else [own]
            self.places += [(place, number) for number in range(len(some))]
            versions += some
        super().__init__(versions, text, pairs)

    @cached_property
    def sizes(self) -> np.ndarray:
        """(len(self), 3): one row, an upper bound of its tokens, nothing else."""
        sizes = super().sizes
        if self.pairs:
            # The second caption is any other one, with the same special tokens around it.
            tokens = sizes[:, 1]
            sizes[:, 1] = np.minimum(tokens + tokens.max(), self.text.max_length)
        return sizes

    def draw(self, index: int, rng: np.random.Generator) -> tuple[Example, bool]:
        """A caption or a pair of captions, and whether both are of the image."""
        if not self.pairs:
            return super().draw(index, rng)
        place, first = self.places[index]
        captions = self.captioned[place].captions
        number = int(rng.integers(len(self.versions[index])))
        example = replace(self.versions[index][number], id=self.ids[index])
        same_image = bool(rng.random() < 0.5)
        if same_image:
            step = 1 + int(rng.integers(max(1, len(captions) - 1)))
            second = captions[(first + number + step) % len(captions)]
        else:
            step = 1 + int(rng.integers(max(1, len(self.captioned) - 1)))
            other_captions = self.captioned[(place + step) % len(self.captioned)].captions
            second = other_captions[int(rng.integers(len(other_captions)))]
        return replace(example, text_pair=second), same_image


def check_mentioned(examples: Sequence[Example], name: str, tags: bool) -> None:
    """Raises InputError if `mentioned_objects_only` would remove nothing: no text names an object by number."""
    if not tags or not any(example.mentioned_objects for example in examples):
        raise InputError(f"mentioned_objects_only: no text of {name} names an object by number")


RegionFinderFunction = Callable[[Mapping[str, ImageInput]], tuple[RegionSource, dict[str, str]]]
"""Finds the regions of images; returns them, and the faults of images without regions, by id."""
FeatureSource = Literal["features", "pixels", "patches"]
"""Source of visual features: a store's features, pixels in a store's boxes, or pixels in patches."""


# -- from settings -----------------------------------------------------------------------------------------------------


class RegionRequirements:
    """What a model that reads regions requires of them. Abstract."""

    sizes: OutputSizes
    """Widths of its outputs; `regions` is the width of a region's features."""
    region_source: FeatureSource = "features"
    """Source of the regions' visual features."""
    reads_whole_image: bool
    """Whether the first region is the whole image."""
    has_inclusive_boxes: bool
    """Whether boxes end at their last pixel (VL-BERT's release)."""
    reads_tagged_regions: bool = True
    """Whether a word that names an object also reads the region of that object."""
    regions_provenance: Mapping[str, Any]
    """Facts about the regions that the model was trained with; empty if unknown."""

    @property
    def image_sides(self) -> tuple[int, float]:
        """Short side and maximum long side of an image in pixels; 0 if the model reads no pixels."""
        return 0, 0


@dataclass(frozen=True)
class ImageSources:
    """Regions and pixels of some images, for a model."""

    store: RegionSource | None = None
    """Their regions; None for a model that reads none."""
    images: Mapping[str, ImageInput] = field(default_factory=dict)
    """Their files or images by id; empty if they were not looked up."""
    folder: str = ""
    """The folder of their files, if they were not looked up."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Faults of images that cannot be used, by id."""


class ImageSampleBuilder:
    """Region store, image files, limits and tags of a model's images, and samples made with them."""

    def __init__(
        self,
        settings: RegionSettings,
        *,
        train_regions: str = "",
        features: bool | None = None,
        zero_features: bool = False,
        flip: bool = False,
        region_finder: RegionFinderFunction | None = None,
        decode: bool = False,
    ) -> None:
        """Nothing is opened yet.

        `train_regions`: the store of the training data, if it is another one. Without `features`, stores give only
        boxes and classes (None: if images are given); with `zero_features`, models read zeros, and no pixels.
        `region_finder` finds regions of images that the store lacks. With `decode`, every image that is looked up is
        decoded at once, so that errors name the file.
        """
        self.settings = settings
        self.train_regions = train_regions
        self.features = not settings.images if features is None else features
        self.zero_features = zero_features
        self.flip = flip
        self.region_finder = region_finder
        self.decode = decode

    @cached_property
    def store(self) -> RegionStore | None:
        """The region store; None without one."""
        folder = self.settings.regions
        return RegionStore(folder, self.features) if folder else None

    @cached_property
    def training_store(self) -> RegionStore | None:
        """The region store of the training data; None without one."""
        if not self.train_regions:
            return self.store
        return RegionStore(self.train_regions, self.features)

    # -- models --------------------------------------------------------------------------------------------------------

    def check_pixels(self, model: RegionRequirements, source: str) -> None:
        """Raises InputError if the model of `source` reads images and none are given, or the other way round."""
        if (model.region_source != "features") != bool(self.settings.images):
            advice = (
                "stored features, no pixels; leave out" if self.settings.images else "pixels; pass"
            )
            raise InputError(f"{source}: this model reads {advice} images=FOLDER")

    def check(
        self,
        model: RegionRequirements,
        store: RegionStore | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises InputError if features differ in width or origin from those that the model was trained with.

        `store`: by default the one of the settings. `provenance`: facts about the training regions, in place of the
        model's own. A model or a store without such facts matches any, and a model that reads pixels computes its own.
        """
        store = store or self.store
        if store is None or model.region_source != "features":
            return
        facts = model.regions_provenance if provenance is None else provenance
        difference = describe_mismatch(facts, store.manifest)
        fault = ""
        if difference and not self.settings.allow_region_mismatch:
            fault = f"{difference}; if you mean this, pass allow_region_mismatch"
        if store.width != model.sizes.regions:
            fault = f"features have width {store.width}, the model needs {model.sizes.regions}"
        if fault:
            raise InputError(f"{store.folder}: {fault}")

    def reads_images(self, model: RegionRequirements) -> bool:
        """Whether a model reads pixels; with `zero_features`, none does."""
        return model.region_source == "pixels" and not self.zero_features

    # -- images --------------------------------------------------------------------------------------------------------

    def all_images(self, training: bool = False) -> ImageSources:
        """All images in the store (of the training data), and the folder of their files."""
        store = self.training_store if training else self.store
        return ImageSources(store, folder=self.settings.images)

    @cached_property
    def files(self) -> Mapping[str, Sequence[Path]]:
        """All images of the folder by id, all files of an id; empty without a folder."""
        return files_below(Path(self.settings.images)) if self.settings.images else {}

    def image_sources(
        self, image_ids: Sequence[str], images: Mapping[str, ImageInput] | None = None
    ) -> ImageSources:
        """Regions and files of these images, which are listed once each; `images` by id replace the folder.

        Faults of images are returned, not raised. Regions are from the store, or from the `region_finder`, if any.
        """
        store: RegionSource | None = self.store
        missing = [] if store is None else [image for image in image_ids if image not in store]
        finds_regions = self.region_finder is not None and (store is None or bool(missing))
        fault = f"not in {self.settings.regions}"
        faults = dict.fromkeys(missing if self.region_finder is None else (), fault)
        found: dict[str, ImageInput] = {}
        for image in image_ids if self.settings.images or images is not None else ():
            try:
                found[image] = self._find_image(image, images)
                if self.store is not None and image in self.store:
                    check_shape(self.store.size(image), found[image])
                if self.decode and not finds_regions:
                    read_image(found[image])
            except InputError as error:
                faults.setdefault(image, str(error))
        if finds_regions and self.region_finder is not None:
            store, without_regions = self.region_finder(found)
            faults |= without_regions
        return ImageSources(store, found, faults=faults)

    def _find_image(self, image_id: str, images: Mapping[str, ImageInput] | None) -> ImageInput:
        if images is not None:
            image = images[image_id]
            if isinstance(image, Path) and not image.is_file():
                raise InputError("no such file")
            return image
        if image_id not in self.files:
            raise InputError(f"no such image in {self.settings.images}")
        return single_file(self.files[image_id])

    # -- samples -------------------------------------------------------------------------------------------------------

    def select_tags(self, examples: Sequence[Example]) -> list[Example]:
        """The examples, without region tags if the settings ignore them."""
        if self.settings.object_tags:
            return list(examples)
        return [without_region_tags(one) for one in examples]

    def samples(
        self,
        texts: SampleDataset,
        model: RegionRequirements,
        sources: ImageSources,
        options: RegionOptions | None = None,
        mirror: SampleDataset | None = None,
    ) -> SampleDataset:
        """Texts together with a model's image inputs: regions, and pixels if the model reads them.

        `options`: the task's (`label_regions`, `phrases`, `separate_images`); the model and these
        settings give the rest. `mirror`: the same texts for mirrored images, in training.
        """
        if sources.store is None:
            return texts
        options = replace(
            options or RegionOptions(),
            whole_image=model.reads_whole_image,
            last_pixel=model.has_inclusive_boxes,
            link_tags=model.reads_tagged_regions,
            width=model.sizes.regions,
            max_regions=self.settings.max_regions,
            max_sequence=self.settings.max_total_length,
            only_mentioned=self.settings.mentioned_objects_only,
            zero_features=self.zero_features,
        )
        store = sources.store
        with prefix_errors(store.folder if isinstance(store, RegionStore) else "images"):
            samples: SampleDataset = RegionDataset(texts, sources.store, options)
        if not self.reads_images(model):
            return samples
        samples = PixelDataset(samples, sources.folder or sources.images, *model.image_sides)
        if mirror is None or not self.flip:
            return samples
        if mirror is texts:
            return RandomFlipDataset(samples, samples)
        return RandomFlipDataset(samples, self.samples(mirror, model, sources, options))

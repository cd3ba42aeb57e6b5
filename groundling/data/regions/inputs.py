"""From a region store and image files to samples with regions, as a command's settings specify.

Training reads all images (`all_images`); inference looks up single ones (`image_sources`). Both then add them to texts
(`samples`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from groundling.core.batch import Example, OutputSizes
from groundling.core.errors import InputError, prefix_errors
from groundling.data.image_samples import PixelDataset, RandomFlipDataset, files_below, single_file
from groundling.data.images import ImageInput, check_shape, read_image
from groundling.data.regions.samples import RegionDataset, RegionOptions
from groundling.data.regions.store import RegionSource, RegionStore, describe_mismatch
from groundling.data.samples import SampleDataset, without_region_tags
from groundling.settings.input_settings import RegionSettings

RegionFinderFunction = Callable[[Mapping[str, ImageInput]], tuple[RegionSource, dict[str, str]]]
"""Finds the regions of images; returns them, and the faults of images without regions, by id."""
FeatureSource = Literal["features", "pixels", "patches"]
"""Source of visual features: a store's features, pixels in a store's boxes, or pixels in patches."""


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
class ImageInputs:
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

    def all_images(self, training: bool = False) -> ImageInputs:
        """All images in the store (of the training data), and the folder of their files."""
        store = self.training_store if training else self.store
        return ImageInputs(store, folder=self.settings.images)

    @cached_property
    def files(self) -> Mapping[str, Sequence[Path]]:
        """All images of the folder by id, all files of an id; empty without a folder."""
        return files_below(Path(self.settings.images)) if self.settings.images else {}

    def image_sources(
        self, image_ids: Sequence[str], images: Mapping[str, ImageInput] | None = None
    ) -> ImageInputs:
        """Regions and files of these images, which are listed once each; `images` by id replace the folder.

        Faults of images are returned, not raised. Regions are from the store, or from the `region_finder`, if any.
        """
        store: RegionSource | None = self.store
        missing = [] if store is None else [image for image in image_ids if image not in store]
        finds_regions = self.region_finder is not None and (store is None or bool(missing))
        faults: dict[str, str] = {}
        if missing and self.region_finder is None:
            faults = dict.fromkeys(missing, f"not in {self.settings.regions}")
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
        return ImageInputs(store, found, faults=faults)

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
        sources: ImageInputs,
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

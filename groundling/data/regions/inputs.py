"""From region stores and photos to samples with regions, as a command's settings specify.

Training opens stores by split (`at`); inference with a trained model looks up single images
(`visualize`). Both then add the images to texts (`samples`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, Protocol

from groundling.core.batch import Example, OutputSizes
from groundling.core.errors import InputError, require_known
from groundling.data.image_samples import MirroredDataset, PixelDataset, files_below, single_file
from groundling.data.images import (
    FileNameMatcher,
    Picture,
    read_image,
    shape_mismatch,
    unread_images,
)
from groundling.data.regions.samples import RegionDataset, RegionOptions, RegionSource
from groundling.data.regions.store import RegionStore, open_checked_store
from groundling.data.regions.stores import CombinedStore, describe_mismatch
from groundling.data.samples import SampleDataset, without_region_tags
from groundling.settings.input_settings import RegionSettings

NAMED = re.compile(r"([^=/\\]+)=(.*)")
"""NAME=STORE."""
Photos = str | Path | Mapping[str, Picture]
"""A folder of photos, whose ids are their paths there without ending, or
the photos themselves by id.
"""
Find = Callable[[Mapping[str, Picture]], tuple[RegionSource, dict[str, str]]]
"""Finds the regions of photos; returns them, and the faults of photos without regions, by id."""
Source = Literal["features", "pixels", "patches"]
"""Source of visual features: a store's features, pixels in a store's boxes, or pixels in patches."""


class RegionRequirements(Protocol):
    """A model's requirements on its regions."""

    @property
    def sizes(self) -> OutputSizes:
        """Widths of the model; `regions` is the width of a region's features."""
        ...

    @property
    def region_source(self) -> Source:
        """Source of the regions' visual features."""
        ...

    @property
    def reads_whole_image(self) -> bool:
        """Whether the first region is the whole image."""
        ...

    @property
    def has_inclusive_boxes(self) -> bool:
        """Whether boxes end at their last pixel (VL-BERT's release)."""
        ...

    @property
    def reads_tagged_regions(self) -> bool:
        """Whether the model links a word that names an object to that object's region."""
        ...

    @property
    def regions_provenance(self) -> Mapping[str, Any]:
        """Facts about the regions that the model was trained with; empty if unknown."""
        ...

    @property
    def image_sides(self) -> tuple[int, float]:
        """Short side and maximum long side of an image in pixels, for a model that reads pixels."""
        ...


class MessageTerms(NamedTuple):
    """Words of the caller's interface for messages: flags of a command, or keywords."""

    regions: str
    """The setting for region stores."""
    photos: str
    """The setting for photos."""
    accept: str = ""
    """The setting that accepts regions made by another model; empty if there is none."""
    mark: str = ""
    """Prefix of the names of other settings."""
    untie: str = ""
    """The setting that ignores region tags in texts; empty if there is none."""


FLAGS = MessageTerms("--regions STORE", "--images FOLDER", "--allow-region-mismatch", "--")
"""The words of a command."""
UNTIED = FLAGS._replace(untie="--no-object-tags")
"""The words of a command with a flag that ignores region tags."""


@dataclass(frozen=True)
class ImageSources:
    """Regions and pixels of some images, for a model."""

    store: RegionSource | None = None
    """Their regions; None for a model that reads none."""
    photos: Mapping[str, Picture] = field(default_factory=dict)
    """Their files or images by id; empty if they were not looked up."""
    folder: str = ""
    """The folder of their photos, if they were not looked up."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Faults of images that cannot be used, by id."""


class ImageInputBuilder:
    """Stores, photos, limits and tags of a model's images, and samples made with them."""

    def __init__(
        self,
        settings: RegionSettings,
        names: Collection[str] = (),
        what: str = "part",
        *,
        learned: Sequence[str] = (),
        features: bool | None = None,
        blind: bool = False,
        flip: bool = False,
        find: Find | None = None,
        decode: bool = False,
        called: MessageTerms = FLAGS,
    ) -> None:
        """`settings` name the stores: STORE serves every name, NAME=STORE only that name.

        Nothing is opened yet.

        Args:
            settings: stores, photos and limits.
            names: all names that may be used, such as a task's splits.
            what: the word for such a name in messages.
            learned: the names that are trained on together.
            features: whether stores' features are read, not only boxes and classes;
                None: unless photos are given.
            blind: use zeros in place of visual features, and no pixels.
            flip: mirror half of the training images.
            find: finds regions of photos that no store has.
            decode: decode every photo that is looked up before a model reads it, so
                that errors name the file.
            called: the words for the settings in messages.

        Raises InputError for an unknown name.
        """
        self.settings = settings
        self.what = what
        self.learns = tuple(learned)
        """The names that are trained on together."""
        self.features = not settings.images if features is None else features
        self.blind = blind
        self.flip = flip
        self.called = called
        self.find = find
        self.decode = decode
        self.folders: dict[str, list[str]] = {}
        for word in settings.regions:
            name, folder = _parts(word)
            if not folder:
                raise InputError(f"{called.mark}regions {word}: expected STORE or NAME=STORE")
            if name:
                advice = "" if names else "; leave the name out"
                told = f"{called.mark}regions {word}: no {what} is called {name!r}"
                require_known(name, names, told, advice)
            self.folders.setdefault(name, []).append(folder)
        self._open: dict[str, RegionStore] = {}

    # -- stores --------------------------------------------------------------------------------------------------------

    def stores(self, *names: str) -> CombinedStore:
        """The stores of all these names, each opened once.

        Without a name, the stores that serve every name.

        A name's own stores come first. Raises InputError if a name has no store, or if
        stores cannot be combined.
        """
        folders = [folder for name in names or ("",) for folder in self._serving(name)]
        return CombinedStore([self._store(folder) for folder in dict.fromkeys(folders)])

    def _serving(self, name: str) -> list[str]:
        """A name's own stores, or else those without a name."""
        folders = self.folders.get(name) or self.folders.get("", [])
        if not folders:
            raise InputError(
                f"{self.called.mark}regions: no store for the {self.what} {name!r}; add {name}=STORE, or one STORE for "
                "all names without their own"
            )
        return folders

    def _store(self, folder: str) -> RegionStore:
        if folder not in self._open:
            self._open[folder] = open_checked_store(folder, self.features)
        return self._open[folder]

    @property
    def training_stores(self) -> CombinedStore | None:
        """The stores of all training names; None if there are no stores."""
        return self.stores(*self.learns) if self.folders else None

    def check_together(self, samples: SampleDataset) -> None:
        """Raises InputError if two training names have different regions of the same image.

        In the combined data, a sample could not say which of them it refers to.
        """
        if len(self.learns) < 2:
            return
        store = self.stores(*self.learns)
        parts = [self.stores(name) for name in self.learns]
        for image in dict.fromkeys(image for images in samples.images for image in images):
            for name, part in zip(self.learns, parts, strict=True):
                if image in part and part.holder(image) is not store.holder(image):
                    raise InputError(
                        f"--regions: image {image!r} is in {store.holder(image).folder}, but also in "
                        f"{part.holder(image).folder}, the store of {name}; splits that are trained on together need "
                        "stores without common images, or one store for all"
                    )

    # -- models --------------------------------------------------------------------------------------------------------

    def check_pixels(self, model: RegionRequirements, source: str) -> None:
        """Raises InputError if a model reads photos that are not given, or reads no
        photos and they are given.

        `source` is the model's folder or hub id, for the message.
        """
        if (model.region_source != "features") != bool(self.settings.images):
            told = (
                "stored features, no pixels; leave out" if self.settings.images else "pixels; pass"
            )
            raise InputError(f"{source}: this model reads {told} {self.called.photos}")

    def check(
        self, model: RegionRequirements, *names: str, learned: Mapping[str, Any] | None = None
    ) -> None:
        """Raises InputError if features differ in width or origin from those that
        the model was trained with.

        `learned`: facts about the training regions, in place of the model's own. A model or a store
        without such facts matches any, and a model that reads pixels computes its own features.
        """
        if model.region_source != "features":
            return
        for store in self.stores(*names).stores:
            store.require(model.sizes.regions)
            facts = model.regions_provenance if learned is None else learned
            difference = describe_mismatch(facts, store.manifest)
            if difference and not self.settings.allow_region_mismatch:
                otherwise = f", or pass {self.called.accept}" if self.called.accept else ""
                raise InputError(
                    f"{store.folder}: {difference}; make the store in the same way{otherwise}"
                )

    def reads_images(self, model: RegionRequirements) -> bool:
        """Whether a model reads pixels; a blind one reads zeros in place of visual features."""
        return model.region_source == "pixels" and not self.blind

    # -- images --------------------------------------------------------------------------------------------------------

    def all_images(self, *names: str) -> ImageSources:
        """All images in the stores of some names, and the folder of photos."""
        return ImageSources(self.stores(*names), folder=self.settings.images)

    @cached_property
    def files(self) -> Mapping[str, Sequence[Path]]:
        """All photos of the folder by id; photos with the same id are all listed.

        Empty without a folder.
        """
        return files_below(Path(self.settings.images)) if self.settings.images else {}

    def image_sources(
        self, images: Sequence[str], photos: Mapping[str, Picture] | None = None
    ) -> ImageSources:
        """Regions and photos of these images, which are listed once each.

        `photos` by id replace the folder.

        Faults of images are returned, not raised. Regions are from the stores, or
        found, if there is a `find`.
        """
        store: RegionSource | None = None
        stores = self.stores() if self.folders else None
        faults: dict[str, str] = {}
        lacking: list[str] = []
        if stores is not None:
            store = stores
            lacking = [image for image in images if image not in stores]
        if stores is not None and self.find is None:
            fault = f"not in {stores.name}"
            if len(lacking) == len(images) and not self.settings.images and photos is None:
                fault += f" (to find regions of other photos: {self.called.photos} in place of {self.called.regions})"
            faults = dict.fromkeys(lacking, fault)
        there: dict[str, Picture] = {}
        if self.settings.images or photos is not None:
            for image in images:
                try:
                    there[image] = self._photo(image, photos)
                except InputError as error:
                    faults.setdefault(image, str(error))
        if stores is not None:
            known = {image: there[image] for image in there if image in stores}
            faults |= _of_other_shape(known, stores, faults)
        if self.find is not None and (stores is None or lacking):
            store, unfound = self.find(there)
            faults |= unfound
        elif self.decode:
            faults |= _broken(there)
        return ImageSources(store, there, faults=faults)

    def _photo(self, image: str, photos: Mapping[str, Picture] | None) -> Picture:
        """The photo of an image; raises InputError if there is none, or several."""
        if photos is not None:
            picture = photos[image]
            if isinstance(picture, Path) and not picture.is_file():
                raise InputError("no such file")
            return picture
        if image not in self.files:
            place = self.settings.images
            unread = "".join(f"; {line}" for line in unread_images(place, [image]))
            raise InputError(f"no such photo in {place}{self._nearby(image)}{unread}")
        return single_file(self.files[image])

    def _nearby(self, image: str) -> str:
        """A hint for a name that begins above the folder of photos.

        Empty if no suffix of it names a photo.
        """
        parts = PurePosixPath(image.replace("\\", "/")).parts
        ends = ("/".join(parts[start:]) for start in range(1, len(parts)))
        found = next((end for end in ends if end in self.files), "")
        return f"; names are relative to that folder, such as {found}" if found else ""

    # -- samples -------------------------------------------------------------------------------------------------------

    def select_tags(self, examples: Sequence[Example]) -> list[Example]:
        """The examples, without region tags if the settings ignore them."""
        return (
            list(examples)
            if self.settings.object_tags
            else [without_region_tags(one) for one in examples]
        )

    def samples(
        self,
        texts: SampleDataset,
        model: RegionRequirements,
        seen: ImageSources,
        asked: RegionOptions | None = None,
        mirror: SampleDataset | None = None,
    ) -> SampleDataset:
        """Texts together with a model's image inputs: regions, and pixels if the model reads them.

        `asked`: the task's options (`mark`, `phrases`, `apart`); the model and these settings give
        the rest. `mirror`: the same texts for mirrored images, in training.

        Raises InputError for an image that the store or the folder of photos lacks.
        """
        if seen.store is None:
            return texts
        if isinstance(seen.store, CombinedStore):
            _check_images(texts, seen.store)
        seeing = replace(
            asked or RegionOptions(),
            whole_image=model.reads_whole_image,
            last_pixel=model.has_inclusive_boxes,
            link_tags=model.reads_tagged_regions,
            width=model.sizes.regions,
            max_regions=self.settings.max_regions,
            max_sequence=self.settings.max_total_length,
            only_mentioned=self.settings.mentioned_objects_only,
            zero_features=self.blind,
        )
        samples: SampleDataset = RegionDataset(texts, seen.store, seeing, self.called.untie)
        if not self.reads_images(model):
            return samples
        samples = PixelDataset(samples, seen.folder or seen.photos, *model.image_sides)
        if mirror is None or not self.flip:
            return samples
        if mirror is texts:
            return MirroredDataset(samples, samples)
        return MirroredDataset(samples, self.samples(mirror, model, seen, asked))


def _parts(word: str) -> tuple[str, str]:
    """The name (empty without one) and folder of one value of `--regions`."""
    named = NAMED.fullmatch(word)
    if named is None or Path(word).exists():
        return "", word
    return named[1], named[2]


def manifests(words: Sequence[str]) -> dict[str, str | Path]:
    """The manifest of every store of `--regions`, by the name of a run's input."""
    paths = [Path(_parts(word)[1]) / "manifest.json" for word in words]
    if len(paths) == 1:
        return {"regions": paths[0]}
    return {f"regions:{number}": path for number, path in enumerate(paths)}


def _check_images(samples: SampleDataset, store: CombinedStore) -> None:
    """Raises InputError for images of samples that a store lacks, with a hint at similar ids."""
    asked: dict[str, str] = {}
    for sample, images in zip(samples.ids, samples.images, strict=True):
        for image in images:
            asked.setdefault(image, sample)
    lacking = [image for image in asked if image not in store]
    if not lacking:
        return
    hint = FileNameMatcher(store).case_note(lacking)
    raise InputError(
        f"{store.name}: {len(lacking)} of {len(asked)} images are not in this region store, the first is "
        f"{lacking[0]!r} of {asked[lacking[0]]}; {hint}add them with `groundling regions`, or remove their rows"
    )


def _of_other_shape(
    photos: Mapping[str, Picture], stores: CombinedStore, faults: Collection[str]
) -> dict[str, str]:
    """Faults of photos whose shape differs from the stored regions' image, by id.

    Photos with `faults` are skipped.
    """
    found = {}
    for image, picture in photos.items():
        if image in faults:
            continue
        try:
            fault = shape_mismatch(stores.size(image), picture)
        except InputError as error:
            fault = str(error)
        if fault:
            found[image] = fault
    return found


def _broken(photos: Mapping[str, Picture]) -> dict[str, str]:
    """Faults of photos that cannot be decoded, by id."""
    faults = {}
    for image, picture in photos.items():
        try:
            read_image(picture)
        except InputError as error:
            faults[image] = str(error)
    return faults

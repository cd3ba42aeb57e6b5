"""The one road from region stores and photos to samples: what a command's settings say of regions, made to be read.

Training opens stores by split (`at`), whoever asks a trained model looks images up (`visualize`); both then put texts beside
what is seen of their images (`samples`).
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
from groundling.data.image_samples import ImageDataset, MirroredDataset, files_below, single_file
from groundling.data.images import NameLookup, Picture, read_image, shape_mismatch, unread_images
from groundling.data.regions.samples import RegionDataset, RegionOptions, RegionSource
from groundling.data.regions.store import RegionStore, open_checked_store
from groundling.data.regions.stores import CombinedStore, describe_mismatch
from groundling.data.samples import SampleDataset, without_region_tags
from groundling.settings.input_settings import RegionSettings

NAMED = re.compile(r"([^=/\\]+)=(.*)")
"""NAME=STORE."""
Photos = str | Path | Mapping[str, Picture]
"""A folder of photos, whose ids are paths there without ending, or the photos themselves by id."""
Find = Callable[[Mapping[str, Picture]], tuple[RegionSource, dict[str, str]]]
"""The regions of photos, and what is wrong with those that have none, by id."""
Source = Literal["features", "pixels", "patches"]
"""Where looks are from: a store's features; photos, within a store's boxes; photos, within boxes of the model's own."""


class RegionRequirements(Protocol):
    """What a model says of the regions that it reads."""

    @property
    def sizes(self) -> OutputSizes:
        """Of which `regions` is the width of a region's features."""
        ...

    @property
    def region_source(self) -> Source:
        """Where the looks of its regions are from."""
        ...

    @property
    def reads_whole_image(self) -> bool:
        """Whether a region of the whole image comes first."""
        ...

    @property
    def has_inclusive_boxes(self) -> bool:
        """Whether boxes end at their last pixel."""
        ...

    @property
    def reads_tagged_regions(self) -> bool:
        """Whether a word that names an object takes something of that object's region."""
        ...

    @property
    def regions_provenance(self) -> Mapping[str, Any]:
        """What made the regions that it learned from; empty where nobody says."""
        ...

    @property
    def image_sides(self) -> tuple[int, float]:
        """Pixels of a picture's short side, and most of its long one; of a model that reads pixels."""
        ...


class MessageTerms(NamedTuple):
    """What whoever asks calls the places of images, for messages."""

    regions: str
    """That of region stores."""
    photos: str
    """That of photos."""
    accept: str = ""
    """What takes regions that were made otherwise; empty if nothing does."""
    mark: str = ""
    """What stands before the names of other settings."""
    untie: str = ""
    """What reads texts without the objects that they name; empty if nothing does."""


FLAGS = MessageTerms("--regions STORE", "--images FOLDER", "--allow-region-mismatch", "--")
"""Of a command."""
UNTIED = FLAGS._replace(untie="--no-object-tags")
"""Of a command that may read words without the objects that they name."""


@dataclass(frozen=True)
class ImageSources:
    """Some images, as a model may look at them."""

    store: RegionSource | None = None
    """Their regions; None for a model that reads none."""
    photos: Mapping[str, Picture] = field(default_factory=dict)
    """Their files or pictures; empty where nobody has looked these up."""
    folder: str = ""
    """Where their photos are, if these were not looked up."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with those that cannot be looked at, by image."""


class RegionInputs:
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
        """`settings` name the stores: STORE serves all, NAME=STORE what is called so; nothing is opened yet.

        Args:
            settings: stores, photos and limits.
            names: all that may be named, such as a task's splits.
            what: what messages call one of them.
            learned: those of them that are learned from together.
            features: whether stores' features are read, and not boxes and classes alone; None: unless photos are given.
            blind: put zeros in place of what regions look like, and no pixels.
            flip: mirror half of the pictures that are learned from.
            find: finds regions of photos that no store has.
            decode: try every photo that is looked up before a model does, so that a broken one is told by its name.
            called: what messages call the settings.

        Raises InputError for a name that there is not.
        """
        self.settings = settings
        self.what = what
        self.learns = tuple(learned)
        """The names that are learned from together."""
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
        """The stores that serve all of these names together, each opened once; without a name, those of everybody.

        Stores of its own go before those of everybody. Raises InputError if a name has none, or stores do not go
        together.
        """
        folders = [folder for name in names or ("",) for folder in self._serving(name)]
        return CombinedStore([self._store(folder) for folder in dict.fromkeys(folders)])

    def _serving(self, name: str) -> list[str]:
        """A name's own stores, or else those without a name."""
        folders = self.folders.get(name) or self.folders.get("", [])
        if not folders:
            raise InputError(
                f"{self.called.mark}regions: no store for the {self.what} {name!r}; add {name}=STORE, or a STORE for "
                "all that have none of their own"
            )
        return folders

    def _store(self, folder: str) -> RegionStore:
        if folder not in self._open:
            self._open[folder] = open_checked_store(folder, self.features)
        return self._open[folder]

    @property
    def training_stores(self) -> CombinedStore | None:
        """The stores of all that is learned from; None if there are no stores."""
        return self.stores(*self.learns) if self.folders else None

    def check_together(self, samples: SampleDataset) -> None:
        """Raises InputError if two names that are learned from together have different regions of one image.

        Which of them a sample means could not be told once they are one.
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
                        f"{part.holder(image).folder}, the store of {name}; splits that are learned from together need "
                        "stores that share no image, or one for all"
                    )

    # -- models --------------------------------------------------------------------------------------------------------

    def check_pixels(self, model: RegionRequirements, source: str) -> None:
        """Raises InputError if a model of the folder or hub id `source` reads photos that are not given, or none."""
        if (model.region_source != "features") != bool(self.settings.images):
            told = (
                "stored features, no pixels; leave out" if self.settings.images else "pixels; pass"
            )
            raise InputError(f"{source}: this model reads {told} {self.called.photos}")

    def check(
        self, model: RegionRequirements, *names: str, learned: Mapping[str, Any] | None = None
    ) -> None:
        """Raises InputError if features have another width, or were made otherwise than those it learned from.

        `learned`: what is known of these, if not what the model itself says. A model or a store that does not say what
        its regions are fits any, and a model that reads pixels makes its own.
        """
        if model.region_source != "features":
            return
        for store in self.stores(*names).stores:
            store.require(model.sizes.regions)
            facts = model.regions_provenance if learned is None else learned
            difference = describe_mismatch(facts, store.manifest)
            if difference and not self.settings.allow_region_mismatch:
                otherwise = f", or pass {self.called.accept}" if self.called.accept else ""
                raise InputError(f"{store.folder}: {difference}; make the store alike{otherwise}")

    def reads_images(self, model: RegionRequirements) -> bool:
        """Whether a model sees the pictures themselves: a blind one reads the zeros that stand for its features."""
        return model.region_source == "pixels" and not self.blind

    # -- images --------------------------------------------------------------------------------------------------------

    def all_images(self, *names: str) -> ImageSources:
        """All images of some names' stores, and the folder of photos."""
        return ImageSources(self.stores(*names), folder=self.settings.images)

    @cached_property
    def files(self) -> Mapping[str, Sequence[Path]]:
        """Every photo of the folder by its id; several of one name are all there. Raises InputError without it."""
        return files_below(Path(self.settings.images)) if self.settings.images else {}

    def image_sources(
        self, images: Sequence[str], photos: Mapping[str, Picture] | None = None
    ) -> ImageSources:
        """What there is of these images, each named once; `photos` by id in place of the folder's.

        What is wrong with an image is told, not raised. Regions are from the stores, or found, if there is a `find`.
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
        """What to say of a name that begins above the folder of photos; empty if no end of it names one."""
        parts = PurePosixPath(image.replace("\\", "/")).parts
        ends = ("/".join(parts[start:]) for start in range(1, len(parts)))
        found = next((end for end in ends if end in self.files), "")
        return f"; names are relative to that folder, such as {found}" if found else ""

    # -- samples -------------------------------------------------------------------------------------------------------

    def select_tags(self, examples: Sequence[Example]) -> list[Example]:
        """The examples, whose words name objects of their images only if they may."""
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
        """Texts beside what a model sees of their images: regions, and pixels if it reads these.

        `asked`: what a task says of it (`mark`, `phrases`, `apart`); the rest is the model's, or these settings'.
        `mirror`: the same texts as they are asked of mirrored pictures, where they are learned from.

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
        samples = ImageDataset(samples, seen.folder or seen.photos, *model.image_sides)
        if mirror is None or not self.flip:
            return samples
        if mirror is texts:
            return MirroredDataset(samples, samples)
        return MirroredDataset(samples, self.samples(mirror, model, seen, asked))


def _parts(word: str) -> tuple[str, str]:
    """Name (empty without one) and folder of one word of `--regions`."""
    named = NAMED.fullmatch(word)
    if named is None or Path(word).exists():
        return "", word
    return named[1], named[2]


def manifests(words: Sequence[str]) -> dict[str, str | Path]:
    """The manifest of every store of `--regions`, by a name for a run's inputs."""
    paths = [Path(_parts(word)[1]) / "manifest.json" for word in words]
    if len(paths) == 1:
        return {"regions": paths[0]}
    return {f"regions:{number}": path for number, path in enumerate(paths)}


def _check_images(samples: SampleDataset, store: CombinedStore) -> None:
    """Raises InputError for images that samples ask for and a store has not, and says what may have been meant."""
    asked: dict[str, str] = {}
    for sample, images in zip(samples.ids, samples.images, strict=True):
        for image in images:
            asked.setdefault(image, sample)
    lacking = [image for image in asked if image not in store]
    if not lacking:
        return
    hint = NameLookup(store).case_note(lacking)
    raise InputError(
        f"{store.name}: {len(lacking)} of {len(asked)} images are not in this region store, the first is "
        f"{lacking[0]!r} of {asked[lacking[0]]}; {hint}add them with `groundling regions`, or take their rows out"
    )


def _of_other_shape(
    photos: Mapping[str, Picture], stores: CombinedStore, faults: Collection[str]
) -> dict[str, str]:
    """What is wrong with photos that are not those of the stored regions, by id; without those that have `faults`."""
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
    """What is wrong with photos that do not decode, by id."""
    faults = {}
    for image, picture in photos.items():
        try:
            read_image(picture)
        except InputError as error:
            faults[image] = str(error)
    return faults

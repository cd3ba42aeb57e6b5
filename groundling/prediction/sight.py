"""Where a fine-tuned model looks at images: stored regions, photos whose regions are found now, or the photos."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from groundling.core.errors import InputError
from groundling.data.images import (
    Picture,
    differs_in_ending,
    other_shape,
    read_picture,
    stem,
    unread_images,
)
from groundling.data.regions.paired import Store
from groundling.data.regions.pictures import files_below, only
from groundling.data.regions.store import whole_store
from groundling.data.regions.stores import SeveralStores
from groundling.models.adapters import ClipAdapter
from groundling.models.kinds import Student
from groundling.prediction.description import Described, unlike
from groundling.vision.photos import Finder
from groundling.vision_language.end_to_end import EndToEnd
from groundling.vision_language.single_stream import SingleStream

Photos = str | Path | Mapping[str, Picture]
"""A folder of photos, whose ids are paths there without ending, or the photos themselves by id."""


class Names(NamedTuple):
    """What whoever asks calls the places of images, for messages."""

    regions: str
    """That of region stores."""
    photos: str
    """That of photos."""
    accept: str = ""
    """What takes regions that were made otherwise; empty if nothing does."""
    mark: str = ""
    """What stands before the names of other settings."""


FLAGS = Names("--regions STORE", "--images FOLDER", "--other-regions", "--")
"""Of a command."""


@dataclass(frozen=True)
class Seen:
    """Some images, as a model may look at them."""

    store: Store | None = None
    """Their regions; None for a model that reads none."""
    photos: Mapping[str, Picture] = field(default_factory=dict)
    """Their files or pictures; empty for a model that reads no pixels."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with those that cannot be looked at, by image."""


class Sight:
    """Looks up images for one model."""

    def __init__(
        self,
        student: Student,
        about: Described,
        find: Callable[[], Finder],
        regions: Sequence[str] = (),
        photos: Photos = "",
        *,
        other_regions: bool = False,
        decode: bool = False,
        names: Names = FLAGS,
    ) -> None:
        """`find` gives what finds regions of photos, if `regions`, stores of them, are not given.

        `decode`: try every photo before the model does, so that a broken one is told by its name. `names`: what
        messages call these arguments.

        Raises InputError if the model reads no images, not these, or regions of another kind (see `other_regions`).
        """
        self.about = about
        self.student = student
        self.reads_regions = about.reads.regions
        self.reads_pixels = reads_pixels(student, about)
        self.decode = decode
        self.names = names
        self._refuse(regions, photos)
        self.files: Mapping[str, Sequence[Path]] = {}
        self.given: Mapping[str, Picture] | None = None
        if isinstance(photos, Mapping):
            self.given = photos
        elif photos:
            self.files = files_below(Path(photos))
        self.place = str(photos)
        self.stores: SeveralStores | None = None
        if regions:
            whole = not isinstance(student, EndToEnd)
            self.stores = SeveralStores([whole_store(folder, whole) for folder in regions])
            self._compare(self.stores, other_regions)
        self.other_endings: dict[str, None] = {}
        """Names, each once, whose files have other capitals in their ending."""
        self.finder: Finder | None = None
        if self.reads_regions and self.stores is None:
            self.finder = find()

    @property
    def sees(self) -> bool:
        """Whether the model looks at images at all."""
        return self.reads_regions or self.reads_pixels

    @property
    def is_live(self) -> bool:
        """Whether regions are found now, which takes time and memory for every photo."""
        return self.finder is not None

    def id_of(self, file: str) -> str:
        """The id of the image that a row names by its file, with or without its ending.

        Raises InputError, without saying where, for none, or if the photo of this name has another ending.
        """
        file = file.strip().removeprefix("./")
        image = stem(file)
        if not image:
            raise InputError("no image is named")
        there = self.files.get(image, ())
        ending = file[len(image) :].lower()
        if ending and there and all(photo.suffix.lower() != ending for photo in there):
            raise InputError(f"{file}: {self.place} has {there[0].name} in its place")
        if ending and there and all(differs_in_ending(file, photo.name) for photo in there):
            self.other_endings[file] = None
        return image

    @property
    def notes(self) -> list[str]:
        """What is to be said of names that differ from their files' in the capitals of the ending."""
        if not self.other_endings:
            return []
        return [
            f"{self.place}: {len(self.other_endings):,} image names differ from their files' in the capitals of the "
            f"ending, and are taken for the same, the first is {next(iter(self.other_endings))}"
        ]

    def look(self, images: Sequence[str]) -> Seen:
        """What there is of these images, each named once."""
        if not self.sees:
            return Seen()
        faults: dict[str, str] = {}
        store: Store | None = self.stores
        if self.stores is not None:
            lacking = [image for image in images if image not in self.stores]
            fault = f"not in {self.stores.name}"
            if len(lacking) == len(images) and not self.reads_pixels:
                fault += f" (to find regions of other photos: {self.names.photos} in place of {self.names.regions})"
            faults = dict.fromkeys(lacking, fault)
        photos: dict[str, Picture] = {}
        if self.reads_pixels or self.finder is not None:
            for image in images:
                try:
                    photos[image] = self._photo(image)
                except InputError as error:
                    faults.setdefault(image, str(error))
        if self.stores is not None:
            faults |= _of_other_shape(photos, self.stores, faults)
        if self.finder is not None:
            store, unfound = self.finder(photos)
            faults |= unfound
        elif self.decode:
            faults |= _broken(photos)
        return Seen(store, photos if self.reads_pixels else {}, faults)

    def _photo(self, image: str) -> Picture:
        """The photo of an image; raises InputError if there is none, or several."""
        if self.given is not None:
            picture = self.given[image]
            if isinstance(picture, Path) and not picture.is_file():
                raise InputError("no such file")
            return picture
        if image not in self.files:
            unread = "".join(f"; {line}" for line in unread_images(self.place, [image]))
            raise InputError(f"no such photo in {self.place}{self._nearby(image)}{unread}")
        return only(self.files[image])

    def _nearby(self, image: str) -> str:
        """What to say of a name that begins above the folder of photos; empty if no end of it names one."""
        parts = PurePosixPath(image.replace("\\", "/")).parts
        ends = ("/".join(parts[start:]) for start in range(1, len(parts)))
        found = next((end for end in ends if end in self.files), "")
        return f"; names are relative to that folder, such as {found}" if found else ""

    def _refuse(self, regions: Sequence[str], photos: Photos) -> None:
        """Raises InputError for what this model does not read, or has too little of."""
        names = self.names
        given = [names.regions] if regions else []
        if photos:
            given.append(names.photos)
        if not self.sees:
            if given:
                raise InputError(f"{given[0]}: this model reads texts alone; leave it out")
            return
        if not self.reads_regions and regions:
            raise InputError(
                f"{names.regions}: this model looks at whole photos; pass {names.photos}"
            )
        if self.reads_pixels and not photos:
            raise InputError(f"this model looks at the photos themselves; pass {names.photos}")
        if self.reads_regions and not given:
            raise InputError(
                f"this model looks at regions of images; pass {names.regions}, or {names.photos} to find them now"
            )
        if regions and photos and not self.reads_pixels:
            raise InputError(
                f"{' and '.join(given)}: regions are in the store, or found in the photos; give one of them"
            )

    def _compare(self, stores: SeveralStores, accept: bool) -> None:
        """Raises InputError for regions of another width, or made otherwise than those that were learned from."""
        if isinstance(self.student, EndToEnd) or not isinstance(self.student, SingleStream):
            return
        for store in stores.stores:
            store.require(self.student.sizes.regions)
            difference = unlike(self.about.regions, store.manifest)
            if difference and not accept:
                otherwise = f", or pass {self.names.accept}" if self.names.accept else ""
                raise InputError(f"{store.folder}: {difference}; make the store alike{otherwise}")


def reads_pixels(student: Student, about: Described) -> bool:
    """Whether photos themselves go into the model; a blind one reads zeros in their place."""
    if isinstance(student, ClipAdapter):
        return True
    return isinstance(student, EndToEnd) and about.reads.regions and not about.reads.blind


def _of_other_shape(
    photos: Mapping[str, Picture], stores: SeveralStores, faults: Collection[str]
) -> dict[str, str]:
    """What is wrong with photos that are not those of the stored regions, by id; without those that have `faults`."""
    found = {}
    for image, picture in photos.items():
        if image in faults:
            continue
        try:
            fault = other_shape(stores.size(image), picture)
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
            read_picture(picture)
        except InputError as error:
            faults[image] = str(error)
    return faults

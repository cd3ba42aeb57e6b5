"""Where a fine-tuned model looks at images: stored regions, photos whose regions are found now, or the photos."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from groundling.core.errors import InputError
from groundling.data.images import Picture, differs_in_ending, stem
from groundling.data.regions.inputs import FLAGS, Called, Photos, RegionInputs, Seen
from groundling.models.adapters import ClipAdapter
from groundling.models.kinds import Student
from groundling.prediction.description import Described
from groundling.vision.photos import Finder
from groundling.vision_language.end_to_end import EndToEnd
from groundling.vision_language.single_stream import SingleStream


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
        names: Called = FLAGS,
    ) -> None:
        """`find` gives what finds regions of photos, if `regions`, stores of them, are not given.

        `decode`: try every photo before the model does, so that a broken one is told by its name. `names`: what
        messages call these arguments.

        Raises InputError if the model reads no images, not these, or regions of another kind (see `other_regions`).
        """
        self.student = student
        self.reads_regions = about.reads.regions
        self.reads_pixels = reads_pixels(student, about)
        self.names = names
        self._refuse(regions, photos)
        self.given: Mapping[str, Picture] | None = None
        self.place = ""
        if isinstance(photos, Mapping):
            self.given = photos or None
        else:
            self.place = str(photos)
        self.inputs = RegionInputs(
            about.reads.settings(
                regions=tuple(regions), images=self.place, other_regions=other_regions
            ),
            features=not isinstance(student, EndToEnd),
            blind=about.reads.blind,
            find=find() if self.reads_regions and not regions else None,
            decode=decode,
            called=names,
        )
        self.files: Mapping[str, Sequence[Path]] = self.inputs.files
        if regions and isinstance(student, SingleStream):
            self.inputs.check(student, learned=about.regions)
        self.other_endings: dict[str, None] = {}
        """Names, each once, whose files have other capitals in their ending."""

    @property
    def sees(self) -> bool:
        """Whether the model looks at images at all."""
        return self.reads_regions or self.reads_pixels

    @property
    def is_live(self) -> bool:
        """Whether regions are found now, which takes time and memory for every photo."""
        return self.inputs.find is not None

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
        return self.inputs.look(images, self.given) if self.sees else Seen()

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


def reads_pixels(student: Student, about: Described) -> bool:
    """Whether photos themselves go into the model; a blind one reads zeros in their place."""
    if isinstance(student, ClipAdapter):
        return True
    return isinstance(student, EndToEnd) and about.reads.regions and not about.reads.blind

"""Images: whether those that files ask for are there, and whether they decode."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from groundling.check.places import Match, Place, pictures_below
from groundling.check.report import Report
from groundling.core.errors import InputError
from groundling.data.images import is_picture, read_picture
from groundling.data.samples import thinned

DECODED = 2000
"""Images of a place that are decoded; of more, an evenly spaced sample."""


def try_images(
    folders: Sequence[Path],
    report: Report,
    wanted: Mapping[Path, Collection[str]] | None = None,
    captioned: Collection[Path] | None = None,
) -> None:
    """Count the images below some folders and try to decode them.

    `wanted`: names below the folders that a file expects to be there, by that file. `captioned`: images that have a
    caption; with it, those that have none are counted.
    """
    place = ", ".join(map(str, folders))
    paths: list[Path] = []
    names: set[str] = set()
    for folder in folders:
        for path in pictures_below(folder):
            paths.append(path)
            names.add(path.relative_to(folder).as_posix())
    report.saw(*paths)
    for file, expected in (wanted or {}).items():
        absent = [f"image {name}" for name in dict.fromkeys(expected) if name not in names]
        report.problem(file, f"not in {place}", absent)
    sample = thinned(paths, DECODED)
    broken = [path.name for path in sample if not _decodes(path)]
    report.problem(folders[0], "does not decode as an image", broken)
    about = f"{len(paths):,} images"
    if captioned is not None:
        about += f"; {len(set(paths).difference(captioned)):,} have no caption"
    report.fact(place, f"{about}; {len(sample):,} tried, evenly spaced")


def _decodes(path: Path) -> bool:
    """Whether commands can read an image, asked of their own reader."""
    try:
        read_picture(path, coarse=True)
    except InputError:
        return False
    return True


def find_images(place: Place, wanted: Mapping[Path, Sequence[str]], report: Report) -> None:
    """Look for images by the last part of their ids: in the place's own folders of images, else in the root's."""
    if not any(wanted.values()):
        return
    for holder in dict.fromkeys((place, place.root)):
        if not holder.image_names:
            continue
        where = ", ".join(map(str, holder.image_folders))
        for file, ids in wanted.items():
            absent = []
            for image_id in dict.fromkeys(ids):
                if image_id.rpartition("/")[2] not in holder.image_names:
                    absent.append(f"image {image_id}")
            report.problem(file, f"not in {where}", absent)
        if holder is not place.root:  # the root's images are a layout of their own
            try_images(holder.image_folders, report)
        return
    report.fact(place.folder, "no images, so none was looked for")


def image_folders(place: Place, report: Report) -> Match | None:
    """Folders of images, and images directly in the folder, that no captions speak of."""
    looked_at = place.taken.union(place.imagefolders)
    folders = [folder for folder in place.image_folders if folder not in looked_at]
    loose = [path for path in place.files if is_picture(path.name)]
    if loose and not place.taken.issuperset(loose):
        folders.append(place.folder)
    if not folders:
        return None
    try_images(folders, report)
    return Match()


def images_anywhere(place: Place, report: Report) -> Match | None:
    """Images in folders of any name, of which nothing else is known."""
    if not pictures_below(place.folder):
        return None
    try_images([place.folder], report)
    return Match()

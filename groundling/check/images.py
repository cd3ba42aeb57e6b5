"""Images: whether those that files ask for are there, and whether they decode; and regions of images."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from groundling.check.places import Match, Place, Report, pictures_below
from groundling.core.errors import InputError
from groundling.data.images import is_picture, read_picture
from groundling.data.regions.coco_boxes import OUTSIDE
from groundling.data.regions.imports import import_regions
from groundling.data.regions.store import RegionStore
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


# -- their regions -----------------------------------------------------------------------------------------------------


ROW = re.compile(r"[^\t\n]+\t\d+\t\d+\t(\d+|[\w+/=]{16,})\t")
"""What rows of bottom-up attention and LXMERT begin with: an id, two numbers, and a third, or base64."""
HDF5 = frozenset({".h5", ".hdf5"})


def region_store(place: Place, report: Report) -> Match | None:
    """A region store of this library, finished or not."""
    manifest = place.folder / "manifest.json"
    finished = '"shards"' in place.heads.get(manifest, "")
    begun = any(path.match("index-*.json") for path in place.heads)
    if not finished and not begun:
        return None
    report.saw(place.folder)
    store = RegionStore(place.folder)
    report.problems.extend(store.faults(verify=True))
    counts = []
    for name, count in store.manifest["counts"].items():
        counts.append(f"{count:,} {name.replace('_', ' ')}")
    classes = "no classes"
    if store.classes:
        classes = f"{store.classes:,} classes"
        if store.background:
            classes += ", the first is background"
    about = f"a region: {store.width:,} numbers, {classes}"
    report.fact(manifest, f"{', '.join(counts)}; {about}")
    return Match(dict.fromkeys(place.heads, ()))


def region_files(place: Place, report: Report) -> Match | None:
    """Files of region features that `groundling regions` imports."""
    sources: list[Path] = []
    for path, head in place.heads.items():
        if ".tsv" in path.suffixes and ROW.match(head):
            sources.append(path)
    sources += [path for path in place.files if path.suffix in HDF5]
    parts = place.with_fields(".json", "image_w", "num_boxes")
    database = (place.folder / "data.mdb").is_file()
    if parts or database or any(place.folder.glob("*.npz")):
        sources.append(place.folder)
    for source in sources:
        _source(source, report)
        report.saw(*(path for path in (source, *parts) if path.is_file()))
    if place.folder in sources:
        report.saw(*place.folder.glob("*.npz"), *place.folder.glob("*.mdb"))
    if not sources:
        return None
    return Match(dict.fromkeys([*sources, *parts], ()))


def _source(path: Path, report: Report) -> None:
    """Report on a file of regions, or a folder of such."""
    images: list[str] = []
    outside: list[str] = []
    faults: list[str] = []
    forms: set[str] = set()
    regions = 0
    try:
        about, items = import_regions(path, None)
        for name, read in items:
            image = f"image {name}"
            images.append(image)
            try:
                item = read()
            except InputError as error:
                faults.append(f"{path}, {error}")
                continue
            regions += len(item.boxes)
            forms.add(item.form)
            if item.left_out:
                outside.append(image)
        readable = len(images) - len(faults)
        counts = f"{len(images):,} images, {readable:,} readable with {regions:,} regions"
        form = ", ".join(sorted(forms)).replace("classes ()", "one class")
        report.fact(path, f"{about['layout']}; {counts}; a region: {form or '-'}")
    except InputError as error:
        faults.append(str(error) if str(path) in str(error) else f"{path}: {error}")
    report.errors(faults)
    report.repeated(path, images)
    report.problem(path, OUTSIDE, outside)
    expected = min(forms, default="")
    one_form = f"a store holds one kind of region, expected {expected}"
    report.problem(path, one_form, sorted(forms)[1:])

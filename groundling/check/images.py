"""Layouts of captioned images, images and region files: whether the files exist and can be read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundling.check.checked_folder import CheckedFolder, CheckReport, LayoutMatch, pictures_below
from groundling.core.errors import InputError
from groundling.data.captions.captions import CaptionCollection, find_images
from groundling.data.captions.files import COCO, METADATA, layout_of
from groundling.data.images import is_image_file, read_image
from groundling.data.regions.annotations import OUTSIDE, read_instances
from groundling.data.regions.imports import import_regions
from groundling.data.regions.store import RegionStore
from groundling.data.samples import subsample
from groundling.data.tables import ROWS
from groundling.runs.folder import read_json

MAX_DECODED = 2000
"""Maximum number of images that are decoded; more are sampled evenly."""


def try_images(
    folders: Sequence[Path],
    report: CheckReport,
    expected_names: Mapping[Path, Collection[str]] | None = None,
    captioned: Collection[Path] | None = None,
) -> None:
    """Count the images below some folders and try to decode them.

    `expected_names`: image names that a file expects below the folders, by file. `captioned`: images with a
    caption; if given, images without one are counted.
    """
    place = ", ".join(map(str, folders))
    paths: list[Path] = []
    names: set[str] = set()
    for folder in folders:
        for path in pictures_below(folder):
            paths.append(path)
            names.add(path.relative_to(folder).as_posix())
    report.mark_checked(*paths)
    for file, expected in (expected_names or {}).items():
        absent = [f"image {name}" for name in dict.fromkeys(expected) if name not in names]
        report.add_problem(file, f"not in {place}", absent)
    sample = subsample(paths, MAX_DECODED)
    broken = [path.name for path in sample if not _decodes(path)]
    report.add_problem(folders[0], "does not decode as an image", broken)
    about = f"{len(paths):,} images"
    if captioned is not None:
        about += f"; {len(set(paths).difference(captioned)):,} have no caption"
    report.add_fact(place, f"{about}; {len(sample):,} decoded, evenly spaced")


def _decodes(path: Path) -> bool:
    """Whether the commands' own reader can read an image."""
    try:
        read_image(path, reduced=True)
    except InputError:
        return False
    return True


def check_images(
    place: CheckedFolder, image_ids: Mapping[Path, Sequence[str]], report: CheckReport
) -> None:
    """Look for images by the last part of their ids: in the folder's own image folders, else in the
    root's.
    """
    if not any(image_ids.values()):
        return
    for holder in dict.fromkeys((place, place.root)):
        if not holder.image_names:
            continue
        where = ", ".join(map(str, holder.image_folders))
        for file, ids in image_ids.items():
            absent = []
            for image_id in dict.fromkeys(ids):
                if image_id.rpartition("/")[2] not in holder.image_names:
                    absent.append(f"image {image_id}")
            report.add_problem(file, f"not in {where}", absent)
        if holder is not place.root:  # the root's images have their own layout
            try_images(holder.image_folders, report)
        return
    report.add_fact(place.folder, "no images, so none were checked")


def image_folders(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """Image folders, and images directly in the folder, that no captions name."""
    excluded = place.matched_paths.union(place.imagefolders)
    folders = [folder for folder in place.image_folders if folder not in excluded]
    loose = [path for path in place.files if is_image_file(path.name)]
    if loose and not place.matched_paths.issuperset(loose):
        folders.append(place.folder)
    if not folders:
        return None
    try_images(folders, report)
    return LayoutMatch()


def images_anywhere(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """Images in folders of any name."""
    if not pictures_below(place.folder):
        return None
    try_images([place.folder], report)
    return LayoutMatch()


# -- their regions -----------------------------------------------------------------------------------------------------


ROW = re.compile(r"[^\t\n]+\t\d+\t\d+\t(\d+|[\w+/=]{16,})\t")
"""Beginning of a row of bottom-up attention or LXMERT: an id, two numbers, and a third number or \
base64."""
HDF5 = frozenset({".h5", ".hdf5"})


def region_store(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """A region store of this library, finished or not."""
    manifest = place.folder / "manifest.json"
    finished = '"shards"' in place.heads.get(manifest, "")
    begun = any(path.match("index-*.json") for path in place.heads)
    if not finished and not begun:
        return None
    report.mark_checked(place.folder)
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
    report.add_fact(manifest, f"{', '.join(counts)}; {about}")
    return LayoutMatch(dict.fromkeys(place.heads, ()))


def region_files(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """Region files that `groundling regions` can import."""
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
        _check_source(source, report)
        report.mark_checked(*(path for path in (source, *parts) if path.is_file()))
    if place.folder in sources:
        report.mark_checked(*place.folder.glob("*.npz"), *place.folder.glob("*.mdb"))
    if not sources:
        return None
    return LayoutMatch(dict.fromkeys([*sources, *parts], ()))


def _check_source(path: Path, report: CheckReport) -> None:
    """Report on a region file, or a folder of region files."""
    images: list[str] = []
    outside: list[str] = []
    faults: list[str] = []
    formats: set[str] = set()
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
            formats.add(item.form)
            if item.left_out:
                outside.append(image)
        readable = len(images) - len(faults)
        counts = f"{len(images):,} images, {readable:,} readable with {regions:,} regions"
        format_names = ", ".join(sorted(formats)).replace("classes ()", "one class")
        report.add_fact(path, f"{about['layout']}; {counts}; a region: {format_names or '-'}")
    except InputError as error:
        faults.append(str(error) if str(path) in str(error) else f"{path}: {error}")
    report.add_errors(faults)
    report.add_duplicates(path, images)
    report.add_problem(path, OUTSIDE, outside)
    expected = min(formats, default="")
    one_format = f"a store can hold only one kind of region, expected {expected}"
    report.add_problem(path, one_format, sorted(formats)[1:])


# Layouts of captioned images, read like the commands do, and COCO's boxes.

BOXES = "COCO boxes"
Record = dict[str, Any]
"""An object of a JSON file, not yet checked."""
WITHOUT_ANNOTATIONS = "image_info_*.json"
"""COCO's lists of test images, which have no annotations."""


@dataclass
class _CaptionAndBoxFiles:
    """Captions and boxes in the files of a folder."""

    names: list[str] = field(default_factory=list)
    """The layouts found."""
    captioned: dict[Path, CaptionCollection] = field(default_factory=dict)
    """Captions by file."""
    boxed: dict[Path, list[str]] = field(default_factory=dict)
    """Image files listed by each file of boxes."""

    def select(self, control: bool) -> _CaptionAndBoxFiles:
        """The part that belongs to a rendered world's control images, or to the others."""
        return _CaptionAndBoxFiles(
            self.names,
            {
                p: captions
                for p, captions in self.captioned.items()
                if ("redrawn" in p.name) == control
            },
            {p: images for p, images in self.boxed.items() if ("redrawn" in p.name) == control},
        )


def captions(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """Captions and boxes by image file, and their images."""
    contents = _CaptionAndBoxFiles()
    for path in _candidates(place):
        try:
            _check_file(path, place, contents, report)
        except InputError as error:
            report.add_error(error)
    if not contents.names:
        return None
    _check_all_images(place, contents, report)
    paths = [*place.files, *place.image_folders, *contents.captioned]
    return LayoutMatch(dict.fromkeys(paths, ()), tuple(contents.names))


def _candidates(place: CheckedFolder) -> list[Path]:
    """Files that may hold captions or boxes: the folder's own, JSON in COCO's `annotations`, the
    folder itself.
    """
    matched = place.matched_paths | place.root.matched_paths
    paths = [path for path in place.files if path not in matched]
    if place is place.root:
        paths += sorted((place.folder / "annotations").glob("*.json"))
    if not any(path.name in METADATA for path in paths) and place.root.folder not in matched:
        paths.append(place.folder)  # captions may be files beside the images
    return [path for path in paths if path not in matched]


def _check_file(
    path: Path, place: CheckedFolder, contents: _CaptionAndBoxFiles, report: CheckReport
) -> None:
    """Report on one file, or the folder, if it is in one of the layouts."""
    content = read_json(path) if path.suffix == ".json" else None
    if isinstance(content, dict) and {"images", "annotations", "categories"} <= set(content):
        if place is place.root:  # in sub-folders they belong to a data set
            contents.names.append(BOXES)
            contents.boxed[path] = _check_boxes(path, content, report)
        return
    columns = place.root.flags.columns
    layout = layout_of(path, columns, content) or _incomplete_coco(path, content)
    collection: CaptionCollection | None = None
    if not layout:
        if path.suffix not in ROWS or not _has_images(place):
            return
        collection = CaptionCollection(path, None, columns, content)
        if not _has_its_images(collection, place):
            report.lines.extend(_skipped_table_notes(collection, place))
            return
        layout = collection.caption_file.layout  # as the commands read it
    collection = collection or CaptionCollection(path, None, columns, content)
    contents.names.append(layout)
    contents.captioned[collection.path] = collection
    rows = collection.caption_file.rows
    images = {row.file for row in rows}
    about = f"; {collection.caption_file.summary}" if collection.caption_file.summary else ""
    report.add_fact(collection.path, f"{len(rows):,} captions of {len(images):,} images{about}")
    report.lines.extend(f"note: {guess}" for guess in collection.column_notes)
    if path.is_dir():
        report.mark_checked(*collection.caption_file.sidecars)
    report.problems.extend([*collection.faults, *collection.notes])


def _check_boxes(path: Path, content: Record, report: CheckReport) -> list[str]:
    """Report on COCO's boxes; returns the listed image files."""
    read = read_instances(path, content)
    for fault, places in (*read.faults.items(), *read.remarks.items()):
        report.add_problem(path, fault, places)
    about = f"{len(content['annotations']):,} boxes in {len(read.names):,} categories"
    report.add_fact(path, f"{about}; {len(read.files):,} images listed")
    return list(read.files.values())


def _has_its_images(collection: CaptionCollection, place: CheckedFolder) -> bool:
    """Whether a table with columns detected by their values holds captions of images beside it."""
    folders = place.image_folders or _folders_with_images(place, inside_out=False)
    if collection.faults or not folders:
        return False
    try:
        return bool(find_images(collection.images, _base(place, folders), collection.path).images)
    except InputError:
        return False


def _skipped_table_notes(collection: CaptionCollection, place: CheckedFolder) -> list[str]:
    """Notes on why a table beside images is not taken for captions, and on the faults that commands
    would report.
    """
    if not collection.caption_file.summary:
        return [f"note: not taken for captions: {fault}" for fault in collection.faults[:1]]
    advice = "pass --caption-column and --image-column"
    lines = [
        f"{collection.path}; if it holds {collection.caption_file.summary}, {advice}",
        *collection.faults,
        *collection.notes,
    ]
    folders = place.image_folders or _folders_with_images(place, inside_out=False)
    if folders and not collection.faults:
        try:
            found = find_images(collection.images, _base(place, folders), collection.path)
        except InputError as error:
            lines.append(str(error))
        else:
            lines += [found.fault] if found.fault else []
    return [f"note: not taken for captions: {line}" for line in lines]


def _has_images(place: CheckedFolder) -> bool:
    """Whether a folder holds images that a table beside them may describe."""
    beside = any(is_image_file(path.name) for path in place.files)
    return beside or any(pictures_below(folder) for folder in place.folders)


def _incomplete_coco(path: Path, content: object) -> str:
    """COCO captions, if the JSON lacks its annotations or its images; else empty."""
    if not isinstance(content, dict) or path.match(WITHOUT_ANNOTATIONS):
        return ""
    has_images = _has_entries(content, "images", "file_name")
    return COCO if has_images or _has_entries(content, "annotations", "caption") else ""


def _has_entries(content: Record, key: str, field_name: str) -> bool:
    """Whether a key holds a list of objects with such a field."""
    entries = content.get(key)
    if not isinstance(entries, list) or not entries:
        return False
    return isinstance(entries[0], dict) and field_name in entries[0]


# -- their images ----------------------------------------------------------------------------------------------------


def _check_all_images(
    place: CheckedFolder, contents: _CaptionAndBoxFiles, report: CheckReport
) -> None:
    inside_out = any(path.is_dir() or path.name in METADATA for path in contents.captioned)
    folders = [] if inside_out else place.image_folders
    folders = folders or _folders_with_images(place, inside_out)
    if not folders:
        report.add_fact(place.folder, "no images*/ folder, so no images were checked")
        return
    # A rendered world's control captions belong to its control images, whose names are the same.
    control = [folder for folder in folders if folder.name == "images_redrawn"]
    if not control:
        _check_captioned_images(place, folders, contents, report)
        return
    _check_captioned_images(place, control, contents.select(control=True), report)
    others = [folder for folder in folders if folder not in control]
    if others:
        _check_captioned_images(place, others, contents.select(control=False), report)


def _folders_with_images(place: CheckedFolder, inside_out: bool) -> list[Path]:
    """The folder with all images below a place, if any: the place itself, or its only sub-folder
    with images.

    `inside_out`: captions name their images by paths from the place.
    """
    holders = [folder for folder in place.folders if pictures_below(folder)]
    if inside_out or any(is_image_file(path.name) for path in place.files):
        holders.append(place.folder)
    return holders if len(holders) < 2 else [place.folder]


def _base(place: CheckedFolder, folders: Sequence[Path]) -> Path:
    """Folder from which captions name their images: the only folder, or with several the place."""
    return folders[0] if len(folders) == 1 else place.folder


def _check_captioned_images(
    place: CheckedFolder, folders: list[Path], contents: _CaptionAndBoxFiles, report: CheckReport
) -> None:
    """Look for the images in one folder, or in several together, such as COCO's train2014 and
    val2014.
    """
    base = _base(place, folders)
    captioned: set[Path] = set()
    for path, collection in contents.captioned.items():
        try:
            found = find_images(collection.images, base, path)
        except InputError as error:
            report.add_error(error)
            continue
        captioned.update(base / image.file for image in found.images)
        if found.fault:
            report.problems.append(found.fault)
        for note in found.notes:
            report.lines.append(note)
    try_images(folders, report, contents.boxed, captioned if contents.captioned else None)

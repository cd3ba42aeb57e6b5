"""Layouts of regions of images: stores of this library, and other projects' files."""

from __future__ import annotations

import re
from pathlib import Path

from groundling.check.places import Match, Place
from groundling.check.report import OUTSIDE, Report
from groundling.core.errors import InputError
from groundling.data.regions.imports import import_regions
from groundling.data.regions.store import RegionStore

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

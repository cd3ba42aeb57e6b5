"""`data check` for vision and language: data sets in their official files, and regions of images."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from groundling.check.folder import (
    EMPTY,
    OUTSIDE,
    PLACES,
    Report,
    examples_of,
    images_of,
    places_of,
)
from groundling.data.pictures import PICTURES
from groundling.data.region_imports import import_regions
from groundling.data.regions import RegionStore, inside
from groundling.errors import InputError
from groundling.runs import read_json
from groundling.tasks import flickr_entities, refcoco, snli_ve, vcr, vqa
from groundling.tasks.nlvr2 import NLVR2

Heads = dict[Path, str]
"""What files begin with: region files have tens of gigabytes, too many to tell their layout by reading them."""
Wanted = dict[Path, list[str]]
"""Files of a layout, with the ids of the images that each asks for."""
ROW = re.compile(r"[^\t\n]+\t\d+\t\d+\t(\d+|[\w+/=]{16,})\t")
"""What rows of bottom-up attention and LXMERT begin with: an id, two numbers, and a third, or base64."""
T = TypeVar("T")


def vision(folder: Path, report: Report) -> tuple[list[str], set[Path]]:
    """Layouts of a folder and its sub-folders, which are counted and looked through; and the files that are theirs."""
    kinds, theirs, seen = list[str](), set[Path](), dict[tuple[Path, ...], set[str]]()
    below = [p for p in sorted(folder.iterdir()) if p.is_dir() and not p.name.startswith(".")]
    for place in (folder, *(p for p in below if not PLACES.fullmatch(p.name))):
        files = [
            p
            for p in sorted(place.iterdir())
            if p.is_file() and {".json", ".jsonl", ".tsv"} & {*p.suffixes}
        ]
        heads = {path: _head(path) for path in files}
        for kind, look in LOOKS.items():
            try:
                if (wanted := look(place, heads, report)) is None:
                    continue
                theirs |= wanted.keys()
                _images(place, folder, wanted, seen, report)
            except InputError as error:
                report.problems.append(str(error))
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                report.problems.append(
                    f"{place}: {kind} with a field that is missing or of another type ({error!r})"
                )
            kinds.append(kind)
    return kinds, theirs


def _head(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(4096).decode("utf-8", "replace")


def _like(heads: Heads, suffix: str, *fields: str) -> list[Path]:
    """Files that begin with JSON of these fields."""
    return [
        p
        for p, head in heads.items()
        if p.suffix == suffix and all(f'"{name}"' in head for name in fields)
    ]


def _each(report: Report, reads: Iterable[Callable[[], T]]) -> list[T]:
    """What can be read; a problem for each kind of what is wrong with the rest."""
    good, faults = list[T](), list[str]()
    for read in reads:
        try:
            good.append(read())
        except InputError as error:
            faults.append(str(error))
    _tell(report, faults)
    return good


def _tell(report: Report, faults: Iterable[str]) -> None:
    """One problem for faults that differ only in their place and in numbers: the first, and how many there are."""
    kinds: dict[str, list[str]] = {}
    for fault in faults:
        kinds.setdefault(re.sub(r"[\d,]+", "", fault.partition(": ")[2]), []).append(fault)
    report.problems.extend(
        own[0] + f" ({len(own):,} such)" * (len(own) > 1) for own in kinds.values()
    )


def _images(
    place: Path, root: Path, wanted: Wanted, seen: dict[tuple[Path, ...], set[str]], report: Report
) -> None:
    """Looks for images by the last part of their ids: in the folder's own folders of images, else in the root's."""
    if not any(wanted.values()):
        return
    own = tuple(places_of(place))
    for folders in dict.fromkeys((own, tuple(places_of(root)))):
        if folders not in seen:
            seen[folders] = {
                p.stem for f in folders for p in f.rglob("*") if p.suffix.lower() in PICTURES
            }
        if not seen[folders]:
            continue
        for file, ids in wanted.items():
            absent = [
                f"image {i}"
                for i in dict.fromkeys(ids)
                if i.rpartition("/")[2] not in seen[folders]
            ]
            report.problem(file, f"not in {', '.join(map(str, folders))}", absent)
        if folders == own and place != root:  # the root's own are tried with those of its captions
            images_of(list(own), {}, report)
        return
    report.lines.append(f"{place}: no images, so none was looked for")


def _vqa(place: Path, heads: Heads, report: Report) -> Wanted | None:
    names = (vqa.QUESTIONS[:1], vqa.ANNOTATIONS)
    splits = [s for s in vqa.YEARS if any(vqa.file_of(place, s, name).is_file() for name in names)]
    splits += [path.stem for path in _like(heads, ".json", "question_id", "img_id")]
    wanted: Wanted = {
        p: [] for pattern in ("*ans2label.json", "*label2ans.json") for p in place.glob(pattern)
    }
    for split in splits:
        file, examples = vqa.file_of(place, split), examples_of(vqa.VQA, place, split, report)
        wanted |= {
            vqa.file_of(place, split, vqa.ANNOTATIONS): [],
            file: [e.images[0] for e in examples or ()],
        }
        if examples and examples[0].label is not None:
            outside, none = vqa.unknown(vqa.questions(place, split), vqa.form_of(place))
            told = f"{outside:,} answers of people are not in the answer map; {none:,} questions have no answer in it"
            report.lines.append(f"{file}: {told} and stay, with no target above 0")
    return wanted if splits else None


def _vcr(place: Path, heads: Heads, report: Report) -> Wanted | None:
    wanted: Wanted = {}
    own = _like(heads, ".jsonl", "annot_id")
    official = (
        [p for p in heads if p.name in {"train.jsonl", "val.jsonl", "test.jsonl"}] if own else []
    )
    for file in dict.fromkeys([*own, *official]):
        examples = examples_of(vcr.ANSWER, place, file.stem, report)
        wanted[file] = [e.images[0] for e in examples or ()]
        if examples and (place / "vcr1images").is_dir():
            items = {item.image: item for item in vcr.items(place, file.stem)}.values()
            sound = _each(report, (partial(vcr.objects_of, place, item) for item in items))
            boxes = sum(len(found.boxes) for found in sound)
            report.lines.append(
                f"{file}: {len(items):,} images, metadata of {len(sound):,} with {boxes:,} boxes"
            )
    return wanted or None


def _nlvr2(place: Path, heads: Heads, report: Report) -> Wanted | None:
    wanted: Wanted = {}
    for file in _like(heads, ".json", "identifier", "sentence"):
        examples = examples_of(NLVR2, place, file.stem, report) or []
        wanted[file] = [image for e in examples for image in e.images]
        # Scored with their own labels, for the lists of subsets that this reads.
        gold = [(e.official, e.label) for e in examples if isinstance(e.label, int)]
        _each(
            report,
            [partial(NLVR2.official, place, file.stem, *map(list, zip(*gold, strict=True)))]
            if gold
            else [],
        )
    return wanted or None


def _snli_ve(place: Path, heads: Heads, report: Report) -> Wanted | None:
    wanted: Wanted = {}
    for file in (p for p in heads if p.match("snli_ve_*.jsonl")):
        split = file.stem.removeprefix("snli_ve_")
        examples = examples_of(snli_ve.SNLI_VE, place, split, report)
        wanted[file] = [e.images[0] for e in examples or ()]
        if examples:
            dropped = snli_ve.load(place, split)[1]
            report.lines.append(
                f"{file}: {dropped:,} lines without a label that annotators agree on (-) are left out"
            )
    return wanted or None


def _refcoco(place: Path, heads: Heads, report: Report) -> Wanted | None:
    wanted: Wanted = {}
    for file in sorted(place.glob("refs(*).p")):
        wanted[file], by, ids = [], file.name[5:-3], list[str]()
        for split in dict.fromkeys(ref["split"] for ref in refcoco.read_plain(file)):
            for asked in _each(report, [partial(refcoco.expressions, place, split, by)]):
                wanted[file] += (images := [e.image for e in asked])
                ids += [f"expression {e.id}" for e in asked]
                told = f"{len(asked):,} expressions of {split}, {len({e.object for e in asked}):,} objects"
                report.lines.append(f"{file}: {told} in {len(set(images)):,} images")
                report.problem(
                    file, EMPTY, [f"expression {e.id}" for e in asked if not e.text.strip()]
                )
        report.repeated(file, ids)
    for file in _like(heads, ".json", "image_id", "box", "score"):
        wanted[file], found = [], refcoco.detected(file)
        sizes = refcoco.instances(place)[0] if (place / "instances.json").is_file() else {}
        named = {
            refcoco.COCO.format(subset="train2014", number=number): size
            for number, size in sizes.items()
        }
        far = [
            i
            for i, own in found.items()
            if i in named and not inside(own[:, :4] / (named[i] * 2))[1].all()
        ]
        report.problem(file, OUTSIDE, [f"image {i}" for i in far])
        report.problem(
            file, "not in instances.json", [f"image {i}" for i in found if sizes and i not in named]
        )
        full, every = sum(map(len, found.values())), len(read_json(file))
        report.lines.append(
            f"{file}: {full:,} detected boxes in {len(found):,} images; {every - full:,} empty ones"
        )
    return wanted or None


def _flickr(place: Path, heads: Heads, report: Report) -> Wanted | None:
    if not any((place / name).is_dir() for name in ("Sentences", "Annotations")):
        return None
    wanted: Wanted = {}
    for split in (s for s in ("train", "val", "test") if (place / f"{s}.txt").is_file()):
        file, images = place / f"{split}.txt", flickr_entities.images(place, split)
        told = _each(
            report, (partial(flickr_entities.captions_of, place, image) for image in images)
        )
        captions = [caption for own in told for caption in own]
        boxed, others = sum(len(c.phrases) for c in captions), sum(len(c.skipped) for c in captions)
        about = f"{len(captions):,} captions; {boxed:,} phrases with boxes, {others:,} without"
        report.lines.append(f"{file}: {len(images):,} images, {about}")
        report.repeated(file, [f"image {image}" for image in images])
        wanted[file] = images
    if not wanted:
        report.problems.append(
            f"{place}: expected lists of images train.txt, val.txt or test.txt, found none"
        )
    return wanted


def _store(place: Path, heads: Heads, report: Report) -> Wanted | None:
    manifest = place / "manifest.json"
    if '"shards"' not in heads.get(manifest, "") and not any(
        p.match("index-*.json") for p in heads
    ):
        return None
    store = RegionStore(place)
    report.problems.extend(store.faults())
    counts = ", ".join(
        f"{count:,} {name.replace('_', ' ')}" for name, count in store.manifest["counts"].items()
    )
    classes = (
        f"{store.classes:,} classes{', the first is background' * store.background}"
        if store.classes
        else "no classes"
    )
    report.lines.append(f"{manifest}: {counts}; a region: {store.width:,} numbers, {classes}")
    return {path: [] for path in heads}


def _regions(place: Path, heads: Heads, report: Report) -> Wanted | None:
    sources = [p for p, head in heads.items() if ".tsv" in p.suffixes and ROW.match(head)]
    sources += [p for p in sorted(place.iterdir()) if p.suffix in {".h5", ".hdf5"}]
    parts = _like(heads, ".json", "image_w", "num_boxes")
    if parts or (place / "data.mdb").is_file() or any(place.glob("*.npz")):
        sources.append(place)
    for path in sources:
        names, outside, faults, regions, forms = (
            list[str](),
            list[str](),
            list[str](),
            0,
            set[str](),
        )
        try:
            about, items = import_regions(path, None)
            for name, read in items:
                names.append(f"image {name}")
                try:
                    found = read()
                except InputError as error:
                    faults.append(f"{path}, {error}")
                    continue
                regions, forms = regions + len(found.boxes), forms | {found.form}
                outside += [names[-1]] * bool(found.left_out)
            told = f"{len(names):,} images, {len(names) - len(faults):,} readable with {regions:,} regions"
            form = ", ".join(sorted(forms)).replace("classes ()", "one class")
            report.lines.append(f"{path}: {about['layout']}; {told}; a region: {form or '-'}")
        except InputError as error:
            faults.append(str(error) if str(path) in str(error) else f"{path}: {error}")
        _tell(report, faults)
        report.repeated(path, names)
        report.problem(path, OUTSIDE, outside)
        report.problem(
            path,
            f"a store holds one kind of region, expected {min(forms, default='')}",
            sorted(forms)[1:],
        )
    return {p: [] for p in (*sources, *parts)} or None


LOOKS: dict[str, Callable[[Path, Heads, Report], Wanted | None]] = {
    "VQA v2": _vqa,
    "VCR": _vcr,
    "NLVR2": _nlvr2,
    "SNLI-VE": _snli_ve,
    "RefCOCO": _refcoco,
    "Flickr30k Entities": _flickr,
    "region store": _store,
    "region files": _regions,
}
"""What looks through a folder in one layout, and gives None if it is in another one."""

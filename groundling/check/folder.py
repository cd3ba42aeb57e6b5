"""What a data folder holds and what is wrong with it, told without any model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from groundling.batch import Example
from groundling.data.captions import file_of
from groundling.data.pictures import PICTURES
from groundling.data.regions import inside
from groundling.data.tables import lines_of
from groundling.errors import InputError
from groundling.forms import Classify
from groundling.runs import read_json
from groundling.tasks import Task
from groundling.tasks.glue import TASKS, Reader
from groundling.tasks.probes import CATEGORY, ODD, ORDER, TRUTH
from groundling.tasks.readability import NAMES, READABILITY
from groundling.tasks.swag import FULL, REGULAR

KNOWN = """a GLUE root or task folder (train.tsv, dev.tsv); SWAG (train.csv, val.csv, or both *_full.csv); readability \
(csv of CommonLit or CLEAR); COCO (*.json: images, annotations); Flickr8k (*token.txt); \
Conceptual Captions (*.tsv: caption<TAB>image); world.json; images (*.jpg, ...); VQA v2 (v2_*_questions.json, \
v2_*_annotations.json and an answer map, or LXMERT's lists); VCR (train.jsonl, ..., vcr1images/); NLVR2 (*.json); \
SNLI-VE (snli_ve_*.jsonl); RefCOCO (refs(*).p, instances.json); Flickr30k Entities (Sentences/, Annotations/, lists); \
a region store (manifest.json); region files (*.tsv, *.h5, data.mdb, *.npz, *.json), these and what comes after images \
also in sub-folders; plain text (*.txt, *.raw, *.tokens)"""
PLACES = re.compile(r"images.*|.*images|(train|val|test)20\d\d")
"""Names of folders of images."""
DECODED = 2000  # images; of more, an evenly spaced sample
GLUE = tuple((task, task.read) for task in TASKS if isinstance(task.read, Reader))
CSV = {"ending0": REGULAR, "gold-ending": FULL} | {excerpt: READABILITY for _, excerpt, _ in NAMES}
"""The column by which a csv file tells its task."""
EMPTY = "expected text, found none"
OUTSIDE = "expected a box inside its image, and not an empty one"


@dataclass(frozen=True)
class Report:
    """What was found: facts in `lines`, and in `problems` one line per fault, with file, place and what is expected."""

    layout: str
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def problem(self, file: Path, what: str, places: Sequence[str]) -> None:
        """One line for all places with the same fault: the first of them, and how many there are."""
        if places:
            self.problems.append(
                f"{file}, {places[0]}: {what}" + f" ({len(places):,} such)" * (len(places) > 1)
            )

    def repeated(self, file: Path, places: Sequence[str]) -> None:
        """A problem if a place occurs more than once."""
        self.problem(
            file,
            "expected only once, found again",
            [at for at, n in Counter(places).items() if n > 1],
        )


def check(folder: Path) -> Report:
    """Counts, labels and faults of a folder in one of the `KNOWN` layouts; never raises for bad data."""
    folder, report = Path(folder), Report("unknown")
    if not folder.is_dir():
        return replace(report, problems=[f"{folder}: no such folder"])
    from groundling.check.vision_folder import vision  # which needs this module

    kinds, theirs = vision(folder, report)
    kinds += _tasks(folder, report) or _captioned(folder, report, theirs)
    kinds = kinds or _texts(folder, report)
    if not kinds:
        report.problems.append(f"{folder}: no layout is recognised; expected {KNOWN}")
    return replace(report, layout=" + ".join(dict.fromkeys(kinds)) or "unknown")


def _tasks(folder: Path, report: Report) -> list[str]:
    glue = [pair for pair in GLUE if any((folder / pair[1].folder).glob("*.tsv"))]
    if not glue and any(folder.glob("*.tsv")):
        glue = [pair for pair in GLUE if pair[1].folder == folder.resolve().name]
        fit = (
            pair
            for pair in GLUE
            if examples_of(pair[0], folder, pair[0].dev[0], Report("")) is not None
        )
        glue = glue or list(islice(fit, 1))
    heads = [
        _first_line(path).replace('"', "").split(",")
        for path in folder.glob("*.csv")
        if path.is_file()
    ]
    tables = list(
        {
            task.name: task for name, task in CSV.items() if any(name in head for head in heads)
        }.values()
    )
    for task in (*(task for task, _ in glue), *tables):
        for split in (task.train, *task.dev, *task.test):
            if (
                split not in task.test or task.file(folder, split).is_file()
            ):  # only a submission needs the test file
                examples_of(task, folder, split, report)
    names = [f"GLUE {', '.join(reader.folder for _, reader in glue)}"] if glue else []
    return names + [task.name for task in tables]


def _first_line(path: Path) -> str:
    with path.open(
        encoding="utf-8-sig", errors="replace"
    ) as file:  # the task's own reader names a wrong byte
        return file.readline().rstrip()


def examples_of(task: Task, folder: Path, split: str, report: Report) -> list[Example] | None:
    """A split, counted and looked through; None if it cannot be read."""
    path = task.file(folder, split)
    try:
        examples = task.read(folder, split)
    except InputError as error:
        if str(error) not in report.problems:  # splits of one file share its faults
            report.problems.append(str(error))
        return None
    about, labels = (
        f"{len(examples):,} examples",
        [e.label for e in examples if isinstance(e.label, int | float)],
    )
    about += (
        f" of {split}" if task.file(folder, task.train) == task.file(folder, task.dev[0]) else ""
    )
    if labels and isinstance(task.form, Classify):
        about += "; labels " + ", ".join(
            f"{name}: {labels.count(i):,}" for i, name in enumerate(task.form.labels)
        )
    elif labels:
        about += f"; labels {min(labels):g} to {max(labels):g}, mean {np.mean(labels):.2f}"
    if isinstance(task.read, Reader) and task.read.skip_short:
        about += f"; {len(lines_of(path)) - 1 - len(examples):,} short rows skipped"
    report.lines.append(f"{path}: {about}")
    report.repeated(path, [f"example {e.id}" for e in examples])
    texts = [
        (e.id, text) for e in examples for text in (e.text, e.pair, *e.choices) if text is not None
    ]
    report.problem(path, EMPTY, [f"example {i}" for i, text in texts if not text.strip()])
    return examples


def _captioned(folder: Path, report: Report, known: Collection[Path]) -> list[str]:
    kinds = ["rendered world"] if (folder / "world.json").is_file() else []
    if kinds:
        for task in (TRUTH, ODD, CATEGORY, ORDER):
            for split in (
                "train",
                "dev",
                "test",
            ):  # a world has all of them, whichever its tasks report
                examples_of(task, folder, split, report)
        _texts(folder / "corpus", report)
    named: dict[Path, list[str]] = {}
    files = [p for p in sorted(folder.iterdir()) if p.is_file() and not p.name.startswith(".")]
    for path in (p for p in files if p not in known):
        try:
            if kind := _kind(path):
                kinds.append(kind)
                named[path] = names = (
                    _coco(path, report) if path.suffix == ".json" else _lines(path, report)
                )
                if kind != "COCO boxes":
                    report.lines.append(
                        f"{path}: {len(names):,} captions of {len(set(names)):,} images"
                    )
        except InputError as error:
            report.problems.append(str(error))
        except (AttributeError, KeyError, TypeError, ValueError):
            report.problems.append(
                f"{path}: an entry lacks a field, or has it in another type than COCO's"
            )
    folders = places_of(folder)
    folders += [folder] if not kinds and any(p.suffix.lower() in PICTURES for p in files) else []
    if kinds and not folders:
        report.lines.append(f"{folder}: no images*/ folder, so no image was looked for")
    # A rendered world's control captions belong to its control images, which have the same names.
    blind = [p for p in folders if p.name == "images_blind"]
    for group in filter(None, (blind, [p for p in folders if p not in blind])):
        own = {
            p: c for p, c in named.items() if not blind or (group == blind) == ("blind" in p.name)
        }
        images_of(group, own, report)
    return kinds or (["images"] if folders else [])


def _kind(path: Path) -> str:
    if path.name.endswith("token.txt"):
        return "Flickr8k captions"
    if path.suffix == ".tsv":
        links = [line.split("\t")[1] for line in lines_of(path)[:5] if "\t" in line]
        images = [s for s in links if s.startswith("http") or Path(s).suffix.lower() in PICTURES]
        return "Conceptual Captions" if images else ""
    content = read_json(path) if path.suffix == ".json" else None
    if not isinstance(content, dict) or not {"images", "annotations"} <= set(content):
        return ""
    return "COCO boxes" if "categories" in content else "COCO captions"


def _coco(path: Path, report: Report) -> list[str]:
    """The image file of every caption; none for a file of boxes."""
    content = read_json(path)
    notes = [(f"annotation {note['id']}", note) for note in content["annotations"]]
    files = {image["id"]: str(image["file_name"]) for image in content["images"]}
    report.repeated(
        path, [f"image {image['id']}" for image in content["images"]] + [at for at, _ in notes]
    )
    report.problem(
        path,
        "image_id is not among the images",
        [at for at, n in notes if n["image_id"] not in files],
    )
    if "categories" in content:
        kinds = {kind["id"] for kind in content["categories"]}
        bad = [at for at, n in notes if n["category_id"] not in kinds or len(n["bbox"]) != 4]
        report.problem(path, "expected a listed category_id and bbox [x, y, width, height]", bad)
        sizes = {
            i["id"]: (i["width"], i["height"])
            for i in content["images"]
            if {"width", "height"} <= set(i)
        }
        sized = [(at, n) for at, n in notes if n["image_id"] in sizes and len(n["bbox"]) == 4]
        boxes = (
            np.array([n["bbox"] for _, n in sized], float)
            .reshape(-1, 2, 2)
            .cumsum(1)
            .reshape(-1, 4)
        )
        good = inside(
            boxes / np.array([sizes[n["image_id"]] * 2 for _, n in sized]).reshape(-1, 4)
        )[1]
        report.problem(
            path, OUTSIDE, [at for (at, _), fine in zip(sized, good, strict=True) if not fine]
        )
        report.lines.append(
            f"{path}: {len(notes):,} boxes in {len(kinds):,} categories; {len(files):,} images listed"
        )
        return []
    report.problem(path, EMPTY, [at for at, n in notes if not n["caption"].strip()])
    return [files[n["image_id"]] for _, n in notes if n["image_id"] in files]


def _lines(path: Path, report: Report) -> list[str]:
    own = 0 if path.suffix == ".tsv" else 1  # the caption's column
    rows = [(f"line {number}", line.split("\t")) for number, line in enumerate(lines_of(path), 1)]
    broken = [at for at, row in rows if len(row) < 2 or (own and "#" not in row[0])]
    report.problem(
        path, "expected " + ("image#number<TAB>caption" if own else "caption<TAB>image"), broken
    )
    rows = [(at, row) for at, row in rows if len(row) > 1]
    report.problem(path, EMPTY, [at for at, row in rows if not row[own].strip()])
    report.repeated(path, [row[0] for _, row in rows if own])
    return [row[0].partition("#")[0] if own else file_of(row[1]) for _, row in rows]


def places_of(folder: Path) -> list[Path]:
    """The folders of images in a folder."""
    return [p for p in sorted(folder.iterdir()) if p.is_dir() and PLACES.fullmatch(p.name)]


def images_of(folders: list[Path], named: Mapping[Path, list[str]], report: Report) -> None:
    """Counts images and tries to decode them; `named` has the file names that a file expects to be there."""
    place = ", ".join(map(str, folders))
    files = [
        (p, str(p.relative_to(f)))
        for f in folders
        for p in sorted(f.rglob("*"))
        if p.suffix.lower() in PICTURES
    ]
    there = {name for _, name in files}
    for path, names in named.items():
        report.problem(
            path, f"not in {place}", [f"image {n}" for n in dict.fromkeys(names) if n not in there]
        )
    chosen = [
        files[i][0]
        for i in np.linspace(0, len(files) - 1, min(len(files), DECODED)).round().astype(int)
    ]
    report.problem(
        folders[0], "does not decode as an image", [p.name for p in chosen if not _decodes(p)]
    )
    about = f"; {len(there.difference(*named.values())):,} have no caption" if named else ""
    report.lines.append(
        f"{place}: {len(files):,} images{about}; {len(chosen):,} tried, evenly spaced"
    )


def _decodes(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            image.draft(
                "RGB", (64, 64)
            )  # faster; `verify` would take a JPEG that is cut short for whole
            image.load()
    except Exception:  # Pillow's readers raise whatever broken bytes make them stumble over
        return False
    return True


def _texts(folder: Path, report: Report) -> list[str]:
    paths = [
        p
        for p in sorted(folder.rglob("*"))
        if p.suffix in {".txt", ".raw", ".tokens"} and p.is_file()
    ]
    for path in paths:
        try:
            each = [len(line.split()) for line in lines_of(path)]
            report.lines.append(
                f"{path}: {len(each):,} lines, {sum(map(bool, each)):,} with text, {sum(each):,} words"
            )
        except InputError as error:
            report.problems.append(str(error))
    return ["plain text"] if paths else []

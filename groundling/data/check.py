"""What a data folder holds and what is wrong with it, told without any model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..errors import InputError
from ..runs import read_json
from ..tasks import Task
from ..tasks.forms import Classify
from ..tasks.glue import TASKS, Reader
from ..tasks.probes import CATEGORY, ODD, ORDER, TRUTH
from .tables import lines_of

KNOWN = (
    "a GLUE root (RTE/, CoLA/, ...) or one task's folder (train.tsv, dev.tsv); COCO (*.json with `images` and "
    "`annotations`); Flickr8k (*token.txt); Conceptual Captions (*.tsv without header: caption<TAB>image); "
    "a rendered world (world.json); images (*.jpg, *.png, ...); plain text (*.txt, *.raw, *.tokens)"
)
PICTURES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp"})
DECODED = 2000
"""Images decoded per folder; of more, an evenly spaced sample."""
GLUE = tuple((task, task.read) for task in TASKS if isinstance(task.read, Reader))


@dataclass(frozen=True)
class Report:
    """What was found."""

    layout: str
    lines: list[str] = field(default_factory=list)
    """Facts."""
    problems: list[str] = field(default_factory=list)
    """Each one line: file, place, what is expected."""

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def problem(self, places: Sequence[str], what: str) -> None:
        """One line for all places with the same fault: the first of them, and how many there are."""
        if places:
            self.problems.append(f"{places[0]}: {what}" + (f" ({len(places):,} such)" if len(places) > 1 else ""))


def check(folder: Path) -> Report:
    """Counts, labels and faults of a folder in one of the `KNOWN` layouts; never raises for bad data."""
    folder, report = Path(folder), Report("unknown")
    if not folder.is_dir():
        report.problem([str(folder)], "no such folder")
        return report
    kinds = _glue(folder, report) or _world(folder, report) + _captioned(folder, report) or _texts(folder, report)
    if not kinds:
        report.problem([str(folder)], f"no layout is recognised; expected one of: {KNOWN}")
    return replace(report, layout=" + ".join(dict.fromkeys(kinds)) or "unknown")


def _glue(folder: Path, report: Report) -> list[str]:
    found = [(task, reader) for task, reader in GLUE if any((folder / reader.folder).glob("*.tsv"))]
    if not found and any(folder.glob("*.tsv")):
        found = [(task, reader) for task, reader in GLUE if reader.folder == folder.resolve().name]
        found = found or [(task, reader) for task, reader in GLUE if _fits(reader, folder)][:1]
    for task, reader in found:
        paths = {split: reader.path(folder, split) for split in (task.train, *task.dev, *task.test)}
        for split, path in paths.items():
            if path.is_file():
                _examples(task, folder, split, path, report)
            elif split in task.test:
                report.lines.append(f"{path}: not here; only a submission needs it")
            else:
                report.problem([str(path)], "missing; fine-tuning needs it")
        _unread(next(iter(paths.values())).parent, paths.values(), report)
    return ["GLUE " + ", ".join(reader.folder for _, reader in found)] if found else []


def _fits(reader: Reader, folder: Path) -> bool:
    labelled = [p for p in sorted(folder.glob("*.tsv")) if p.name.startswith(("train", "dev"))]
    rows = [line.split("\t") for line in _head(labelled[0])] if labelled else []
    names = list(reader.headless) or (rows.pop(0) if rows else [])
    if not rows or len(rows[0]) != len(names) or not {reader.label, *reader.texts} <= set(names):
        return False
    try:
        reader.form.label(rows[0][names.index(reader.label)], "")
    except InputError:
        return False
    return True


def _examples(task: Task, folder: Path, split: str, path: Path, report: Report) -> None:
    try:
        examples = task.read(folder, split)
    except InputError as error:
        report.problems.append(str(error))
        return
    facts = [f"{len(examples):,} examples"]
    labels = [e.label for e in examples if e.label is not None]
    if not labels:
        facts.append("unlabelled")
    elif isinstance(task.form, Classify):
        counts = Counter(labels)
        facts.append("labels " + ", ".join(f"{name} {counts[i]:,}" for i, name in enumerate(task.form.labels)))
    else:
        facts.append(f"labels {min(labels):g} to {max(labels):g}, mean {np.mean(labels):.2f}")
    if isinstance(task.read, Reader) and task.read.skip_short:
        facts.append(f"{len(lines_of(path)) - 1 - len(examples):,} short rows skipped")
    report.lines.append(f"{path}: {'; '.join(facts)}")
    report.problem([f"{path}, example {i}" for i in _repeated(e.id for e in examples)], "expected once, occurs again")
    empty = [e.id for e in examples if not e.text.strip() or (e.pair is not None and not e.pair.strip())]
    report.problem([f"{path}, example {i}" for i in empty], "expected a sentence, the text is empty")


def _world(folder: Path, report: Report) -> list[str]:
    if not (folder / "world.json").is_file():
        return []
    for task in (TRUTH, ODD, CATEGORY, ORDER):
        for split in (task.train, *task.dev):
            path = folder / "probes" / f"{task.name.removeprefix('world/')}_{split}.tsv"
            _examples(task, folder, split, path, report)
    _texts(folder / "corpus", report)
    return ["rendered world"]


def _captioned(folder: Path, report: Report) -> list[str]:
    kinds: list[str] = []
    captions: dict[Path, list[str]] = {}
    files = [p for p in sorted(folder.iterdir()) if p.is_file() and not p.name.startswith(".")]
    for path in files:
        try:
            if path.suffix == ".json" and path.name != "world.json":
                kinds += _coco(path, captions, report)
            elif path.name.endswith("token.txt"):
                captions[path] = _caption_lines(path, True, report)
                kinds.append("Flickr8k captions")
            elif path.suffix == ".tsv" and any(_names_image(line) for line in _head(path)):
                captions[path] = _caption_lines(path, False, report)
                kinds.append("Conceptual Captions")
        except InputError as error:
            report.problems.append(str(error))
    folders = [p for p in sorted(folder.glob("images*")) if p.is_dir()]
    if not kinds and not folders and any(p.suffix.lower() in PICTURES for p in files):
        folders = [folder]
    if captions and not folders:
        report.lines.append(f"{folder}: no images*/ folder, so only the captions' text was checked")
    # A rendered world's control captions belong to control images that have the same names.
    blind = [p for p in folders if p.name == "images_blind"]
    for images in (blind, [p for p in folders if p not in blind]):
        own = {p: names for p, names in captions.items() if not blind or ("blind" in p.name) == (images == blind)}
        if images:
            _images(images, own, report)
    if kinds:
        _unread(folder, [*captions, *folder.glob("instances*.json"), folder / "world.json"], report)
    return kinds or (["images"] if folders else [])


def _coco(path: Path, captions: dict[Path, list[str]], report: Report) -> list[str]:
    content = read_json(path)
    if not isinstance(content, dict) or not {"images", "annotations"} <= set(content):
        return []
    key = (int, str)
    images = _entries(path, content, "images", {"id": key, "file_name": (str,)}, report)
    file = {image["id"]: image["file_name"] for image in images}
    notes = content["annotations"] if isinstance(content["annotations"], list) else []
    boxes = any(isinstance(note, dict) and "bbox" in note for note in notes)
    about: dict[str, tuple[type, ...]] = {"bbox": (list,), "category_id": key} if boxes else {"caption": (str,)}
    notes = _entries(path, content, "annotations", {"id": key, "image_id": key, **about}, report)
    stray = [f"{path}, annotation {note['id']}" for note in notes if note["image_id"] not in file]
    report.problem(stray, "its image_id is not in `images`")
    notes = [note for note in notes if note["image_id"] in file]
    if not boxes:
        empty = [f"{path}, annotation {note['id']}" for note in notes if not note["caption"].strip()]
        report.problem(empty, "expected a caption, the text is empty")
        captions[path] = [file[note["image_id"]] for note in notes]
        _count(path, captions[path], len(file), report)
        return ["COCO captions"]
    kinds = {kind["id"] for kind in _entries(path, content, "categories", {"id": key, "name": (str,)}, report)}
    strange = [f"{path}, annotation {note['id']}" for note in notes if note["category_id"] not in kinds]
    report.problem(strange, "its category_id is not in `categories`")
    flat = [f"{path}, annotation {note['id']}" for note in notes if not _is_box(note["bbox"])]
    report.problem(flat, "expected bbox [x, y, width, height] in pixels with a positive width and height")
    report.lines.append(f"{path}: {len(file):,} images, {len(notes):,} boxes of {len(kinds):,} categories")
    return ["COCO boxes"]

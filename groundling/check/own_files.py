"""Files of one's own: tables that make a task, as `finetune --text --label` reads them, their photos; plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from groundling.check.images import try_images
from groundling.check.places import Match, Place, Report, pictures_below
from groundling.core.errors import InputError
from groundling.core.forms import Classify
from groundling.data.captions.files import IMAGES, header_of
from groundling.data.images import stem
from groundling.data.regions.pictures import missing_images
from groundling.data.samples import thinned
from groundling.data.tables import OWN, lines_of
from groundling.data.text.lengths import TELLING, told_by_length
from groundling.settings.inputs import OwnFile
from groundling.tasks.table import OwnReader, own_notes

LABELS = (
    *("label", "gold_label", "y", "answer", "class", "category"),
    *("target", "gold", "score", "rating"),
)
"""What people call a column of labels, the likeliest first."""
TEXTS: tuple[tuple[str, ...], ...] = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("text1", "text2")),
    *(("question", "answer"), ("question",)),
    *(("text",), ("sentence",), ("hypothesis",), ("statement",), ("caption",), ("review",)),
)
"""What people call columns of one text or of two; the label's is none of them."""
MOST_LABELS = 10
"""So many classes are told one by one, the commonest."""
PHOTOS = (*IMAGES, "image_id", "flickr30kid")


def own_files(place: Place, report: Report) -> Match | None:
    """Tables with columns of texts and of labels: told by flags, or by what people call them."""
    told = place.root.flags.own
    if place is not place.root and not told.label:
        return None  # a data set's own files may have any columns
    taken: dict[Path, Sequence[str]] = {}
    read_as: list[OwnFile] = []
    others: dict[Path, list[str]] = {}
    for path in place.files:
        if path.suffix not in OWN or path in place.taken:
            continue
        header = _header(place, path)
        options = columns_of(header, told)
        if options is None:
            others[path] = header
            continue
        read_as.append(options)
        taken[path] = _own_file(path, options, report)
    if not taken:
        return None
    for path, header in others.items():
        if any(_lacks_the_label_alone(header, options) for options in read_as):
            report.fact(path, "the same columns without the label, as `predict` reads them")
            taken[path] = ()
    images = list(dict.fromkeys(image for ids in taken.values() for image in ids))
    folders = _photos(place, images, taken, report) if images else []
    return Match(taken | dict.fromkeys(folders, ()), ("your own file",))


def _lacks_the_label_alone(header: Sequence[str], options: OwnFile) -> bool:
    """Whether a table has the columns of texts, and of images, of another one, and not its labels."""
    read = {name.strip() for name in (*options.text.split(","), options.image) if name.strip()}
    return read <= set(header) and options.label not in header


def _header(place: Place, path: Path) -> list[str]:
    """The names of a table's columns; of .json, of its first object if its beginning holds that whole."""
    return header_of(path) if path.suffix != ".json" else place.fields_of_first(path)


def columns_of(header: Sequence[str], told: OwnFile) -> OwnFile | None:
    """The columns that make a task, those that were told among them; None if the header has not what it takes."""
    if told.label or told.text:
        asked = [*told.text.split(","), told.label, told.image, told.group]
        return told if all(name.strip() in header for name in asked if name.strip()) else None
    names = {name.strip().lower(): name for name in header}
    label = next((names[name] for name in LABELS if name in names), "")
    free = names.keys() - {label.strip().lower()}
    texts = next((some for some in TEXTS if free.issuperset(some)), ())
    if not label or not texts:
        return None
    image = next((names[name] for name in PHOTOS if name in names), "")
    return replace(told, text=",".join(names[name] for name in texts), label=label, image=image)


def _own_file(path: Path, options: OwnFile, report: Report) -> list[str]:
    """Report on a file; gives the ids of the images that it names."""
    flags = f"--text {options.text} --label {options.label}"
    flags += f" --image {options.image}" if options.image else ""
    report.saw(path)
    try:
        reader = OwnReader(path, options)
        notes = own_notes(reader)
    except InputError as error:
        report.fact(path, f"your own file, read as {flags}")
        report.error(error)
        return []
    report.fact(path, f"your own file, {len(reader.rows):,} rows{_labels(reader)}; read as {flags}")
    for note in notes:
        report.fact(path, f"note: {note.removeprefix(f'{path}: ')}")
    return [image for row in reader.rows for image in row.images]


def _labels(reader: OwnReader) -> str:
    """How often there is each class, or which numbers there are."""
    if isinstance(reader.form, Classify):
        counts = Counter(row.label for row in reader.rows)
        told = sorted(reader.form.labels, key=lambda name: -counts[name])[:MOST_LABELS]
        others = f" and {len(counts) - len(told):,} others" if len(counts) > len(told) else ""
        kept = [name for name in reader.form.labels if name in told]
        return "; labels " + ", ".join(f"{name}: {counts[name]:,}" for name in kept) + others
    numbers = [float(row.label) for row in reader.rows]
    return f"; labels {min(numbers):g} to {max(numbers):g}"


def _photos(
    place: Place, images: Sequence[str], files: dict[Path, Sequence[str]], report: Report
) -> list[Path]:
    """Look for photos in whichever folder has most of them; gives the folder, or none."""
    holders = dict.fromkeys((place, place.root))
    folders = [folder for one in holders for folder in (*one.folders, one.folder)]
    best = place.folder
    found: set[str] = set()
    for folder in folders:
        there = {stem(p.relative_to(folder).as_posix()) for p in pictures_below(folder)}
        if len(there.intersection(images)) > len(found):
            best, found = folder, there
    if not any(pictures_below(folder) for folder in folders):
        report.fact(place.folder, "no images, so none was looked for")
        return []
    for path, ids in files.items():
        absent = [image for image in dict.fromkeys(ids) if image not in found]
        if absent:
            report.problems.append(f"{path}: {missing_images(best, absent)}")
    report.fact(best, f"has {len(found.intersection(images)):,} of the {len(images):,} images")
    try_images([best], report)
    return [best]


# -- plain text --------------------------------------------------------------------------------------------------------


PLAIN = frozenset({".txt", ".raw", ".tokens"})
"""Endings of plain text."""


def plain_text(place: Place, report: Report) -> Match | None:
    """Lines of text in files below the folder."""
    return Match() if count_lines(place.folder, report) else None


def count_lines(folder: Path, report: Report) -> int:
    """Report the lines and words of the text files below a folder; returns the number of files."""
    paths = [p for p in sorted(folder.rglob("*")) if p.suffix in PLAIN and p.is_file()]
    for path in paths:
        try:
            lines = lines_of(path)
        except InputError as error:
            report.error(error)
            continue
        words = [len(line.split()) for line in lines]
        full = [line for line, count in zip(lines, words, strict=True) if count]
        report.fact(path, f"{len(words):,} lines, {len(full):,} with text, {sum(words):,} words")
        if len(full) >= LEAST:
            report.fact(path, _by_length(full))
    return len(paths)


LEAST = 100
"""Fewest lines whose lengths are compared."""
COMPARED = 2000
"""Most of them."""


def _by_length(lines: Sequence[str]) -> str:
    """Whether two lines can be told to be different by their lengths alone, in words."""
    some = thinned(lines, COMPARED)
    words = np.array([len(line.split()) for line in some])
    letters = np.array([len(line) for line in some])
    # Every line beside itself, and beside the one that lies half the file away.
    others = np.roll(letters, len(some) // 2)
    same = np.repeat([True, False], len(some))
    area = told_by_length(np.tile(words, 2), np.concatenate([letters, others]), same)
    said = f"words of one line against letters of another tell different lines at an AUC of {area:.2f} (chance .5)"
    if area < TELLING:
        return said
    return f"{said}; `adapt --arm xdbert` reads blocks, or with --form lines wants --match-negatives length"

"""Layouts of tasks: data sets in their official files, and the user's own files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from groundling.check.checked_folder import CheckedFolder, CheckReport, LayoutMatch, pictures_below
from groundling.check.images import check_images, try_images
from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.output_types import Classification
from groundling.data.captions.files import IMAGES, header_of
from groundling.data.image_samples import missing_images_message
from groundling.data.images import image_id
from groundling.data.regions.annotations import OUTSIDE, read_detections
from groundling.data.regions.store import clip_boxes
from groundling.data.samples import subsample
from groundling.data.tables import DATA_FILES, TABLES, lines_of, separator_note
from groundling.data.text.words import TELLING, length_auc
from groundling.settings.input_settings import TableTaskSettings
from groundling.tasks import Task, flickr_entities, list_oddities, nlvr2, refcoco, snli_ve, vcr, vqa
from groundling.tasks.glue import TASKS, GlueLayout
from groundling.tasks.readability import NAMES, READABILITY
from groundling.tasks.swag import FULL, REGULAR
from groundling.tasks.table import TableReader, table_notes

# The user's own files: task tables, as `finetune --text --label` reads them, their photos; plain text.

LABELS = (
    *("label", "gold_label", "y", "answer", "class", "category"),
    *("target", "gold", "score", "rating"),
)
"""Common names of label columns, the likeliest first."""
TEXTS: tuple[tuple[str, ...], ...] = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("text1", "text2")),
    *(("question", "answer"), ("question",)),
    *(("text",), ("sentence",), ("hypothesis",), ("statement",), ("caption",), ("review",)),
)
"""Common names of text columns, single or in pairs; the label column is excluded."""
MAX_LABELS = 10
"""Maximum number of classes listed, the most frequent."""
PHOTOS = (*IMAGES, "image_id", "flickr30kid")


def own_files(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """Task tables: columns given by flags, or recognised by their names."""
    columns = place.root.flags.own
    if place is not place.root and not columns.label:
        return None  # files of a data set may have any columns
    images_by_file: dict[Path, Sequence[str]] = {}
    task_tables: list[TableTaskSettings] = []
    others: dict[Path, list[str]] = {}
    for path in place.files:
        if path.suffix not in DATA_FILES or path in place.matched_paths:
            continue
        header = _header(place, path)
        options = columns_of(header, columns)
        if options is None:
            others[path] = header
            continue
        task_tables.append(options)
        images_by_file[path] = _check_own_file(path, options, report)
    if not images_by_file:
        return None
    for path, header in others.items():
        if any(_lacks_the_label_alone(header, options) for options in task_tables):
            report.add_fact(path, "the same columns without labels, for `predict`")
            images_by_file[path] = ()
    images = list(dict.fromkeys(image for ids in images_by_file.values() for image in ids))
    folders = _check_photos(place, images, images_by_file, report) if images else []
    return LayoutMatch(images_by_file | dict.fromkeys(folders, ()), ("your own file",))


def _lacks_the_label_alone(header: Sequence[str], options: TableTaskSettings) -> bool:
    """Whether a table has the text and image columns of another one, but not its label column."""
    read = {name.strip() for name in (*options.text.split(","), options.image) if name.strip()}
    return read <= set(header) and options.label not in header


def _header(place: CheckedFolder, path: Path) -> list[str]:
    """Column names of a table; for .json, the fields of its first object if the first bytes contain
    all of it.
    """
    return header_of(path) if path.suffix != ".json" else place.fields_of_first(path)


def columns_of(header: Sequence[str], columns: TableTaskSettings) -> TableTaskSettings | None:
    """The columns that make a task, with those given by flags; None if the header lacks some."""
    if columns.label or columns.text:
        names_in_flags = [*columns.text.split(","), columns.label, columns.image, columns.group]
        return (
            columns
            if all(name.strip() in header for name in names_in_flags if name.strip())
            else None
        )
    names = {name.strip().lower(): name for name in header}
    label = next((names[name] for name in LABELS if name in names), "")
    free = names.keys() - {label.strip().lower()}
    texts = next((some for some in TEXTS if free.issuperset(some)), ())
    if not label or not texts:
        return None
    image = next((names[name] for name in PHOTOS if name in names), "")
    return replace(columns, text=",".join(names[name] for name in texts), label=label, image=image)


def _check_own_file(path: Path, options: TableTaskSettings, report: CheckReport) -> list[str]:
    """Report on a file; returns the ids of its images."""
    flags = f"--text {options.text} --label {options.label}"
    flags += f" --image {options.image}" if options.image else ""
    report.mark_checked(path)
    try:
        reader = TableReader(path, options)
        notes = table_notes(reader)
    except InputError as error:
        report.add_fact(path, f"your own file, read as {flags}")
        report.add_error(error)
        return []
    report.add_fact(
        path,
        f"your own file, {len(reader.rows):,} rows{_describe_own_labels(reader)}; read as {flags}",
    )
    for note in notes:
        report.add_fact(path, f"note: {note.removeprefix(f'{path}: ')}")
    return [image for row in reader.rows for image in row.images]


def _describe_own_labels(reader: TableReader) -> str:
    """Number of examples per class, or the range of numbers."""
    if isinstance(reader.form, Classification):
        counts = Counter(row.label for row in reader.rows)
        common = sorted(reader.form.labels, key=lambda name: -counts[name])[:MAX_LABELS]
        others = f" and {len(counts) - len(common):,} others" if len(counts) > len(common) else ""
        ordered = [name for name in reader.form.labels if name in common]
        return "; labels " + ", ".join(f"{name}: {counts[name]:,}" for name in ordered) + others
    numbers = [float(row.label) for row in reader.rows]
    return f"; labels {min(numbers):g} to {max(numbers):g}"


def _check_photos(
    place: CheckedFolder,
    images: Sequence[str],
    files: dict[Path, Sequence[str]],
    report: CheckReport,
) -> list[Path]:
    """Look for photos in the folder that has most of them; returns the folder, or none."""
    holders = dict.fromkeys((place, place.root))
    folders = [folder for one in holders for folder in (*one.folders, one.folder)]
    best = place.folder
    found: set[str] = set()
    for folder in folders:
        available = {image_id(p.relative_to(folder).as_posix()) for p in pictures_below(folder)}
        if len(available.intersection(images)) > len(found):
            best, found = folder, available
    if not any(pictures_below(folder) for folder in folders):
        report.add_fact(place.folder, "no images, so none were checked")
        return []
    for path, ids in files.items():
        absent = [image for image in dict.fromkeys(ids) if image not in found]
        if absent:
            report.problems.append(f"{path}: {missing_images_message(best, absent)}")
    report.add_fact(best, f"has {len(found.intersection(images)):,} of the {len(images):,} images")
    try_images([best], report)
    return [best]


# -- plain text --------------------------------------------------------------------------------------------------------


PLAIN = frozenset({".txt", ".raw", ".tokens"})
"""Endings of plain text files."""


def plain_text(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """Text files below the folder."""
    return LayoutMatch() if count_lines(place.folder, report) else None


def count_lines(folder: Path, report: CheckReport) -> int:
    """Report lines and words of the text files below a folder; returns the number of files."""
    paths = [p for p in sorted(folder.rglob("*")) if p.suffix in PLAIN and p.is_file()]
    for path in paths:
        try:
            lines = lines_of(path)
        except InputError as error:
            report.add_error(error)
            continue
        words = [len(line.split()) for line in lines]
        full = [line for line, count in zip(lines, words, strict=True) if count]
        report.add_fact(
            path, f"{len(words):,} lines, {len(full):,} with text, {sum(words):,} words"
        )
        if len(full) >= LEAST:
            report.add_fact(path, _describe_lengths(full))
    return len(paths)


LEAST = 100
"""Minimum number of lines whose lengths are compared."""
COMPARED = 2000
"""Maximum number of lines whose lengths are compared."""


def _describe_lengths(lines: Sequence[str]) -> str:
    """Whether lines can be told apart by length alone, in words."""
    some = subsample(lines, COMPARED)
    words = np.array([len(line.split()) for line in some])
    letters = np.array([len(line) for line in some])
    # Every line with itself, and with the line half a file away.
    others = np.roll(letters, len(some) // 2)
    same = np.repeat([True, False], len(some))
    area = length_auc(np.tile(words, 2), np.concatenate([letters, others]), same)
    text = f"length alone tells equal from different lines with an AUC of {area:.2f} (chance .5)"
    if area < TELLING:
        return text
    return f"{text}; `adapt --arm xdbert` reads blocks; with --text-layout lines use --match-negatives length"


GLUE = tuple((task, task.read) for task in TASKS if isinstance(task.read, GlueLayout))
"""GLUE tasks with their readers."""
CSV = {"ending0": REGULAR, "gold-ending": FULL} | {excerpt: READABILITY for _, excerpt, _ in NAMES}
"""Column that identifies the task of a csv file."""


def examples_of(task: Task, folder: Path, split: str, report: CheckReport) -> list[Example] | None:
    """Read and report on a split; None if it cannot be read."""
    try:
        examples, notes = task.with_notes(folder, split)
    except InputError as error:
        report.add_error(error)
        return None
    path = task.file(folder, split)
    if path.suffix in TABLES and (note := separator_note(path)):
        report.add_fact(path, f"note: {note.removeprefix(f'{path}: ')}")
    if split == task.train:
        report.problems.extend(task.identical_split_notes(folder))
    about = f"{len(examples):,} examples"
    if task.file(folder, task.train) == task.file(folder, task.dev[0]):
        about += f" of {split}"  # one file holds all splits
    report.add_fact(path, f"{about}{_describe_labels(task, examples)}")
    for note in notes:
        report.add_fact(path, note)
    report.problems.extend(list_oddities(path, examples))
    return examples


def _describe_labels(task: Task, examples: list[Example]) -> str:
    """Number of examples per label, or the range of values; empty for other labels."""
    labels = [e.label for e in examples if isinstance(e.label, int | float)]
    if not labels:
        return ""
    if isinstance(task.form, Classification):
        counts = [f"{name}: {labels.count(i):,}" for i, name in enumerate(task.form.labels)]
        return "; labels " + ", ".join(counts)
    return f"; labels {min(labels):g} to {max(labels):g}, mean {np.mean(labels):.2f}"


# -- text --------------------------------------------------------------------------------------------------------------


def glue(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """A GLUE root, or the folder of one task: recognised by its name, or else the first that fits."""
    folder = place.folder
    tasks = [pair for pair in GLUE if any((folder / pair[1].folder).glob("*.tsv"))]
    read: dict[str, CheckReport] = {}
    if not tasks and any(folder.glob("*.tsv")):
        name = folder.resolve().name
        tasks = [pair for pair in GLUE if pair[1].folder == name]
        if not tasks:
            tasks, read = _first_readable_task(folder)
    for task, _ in tasks:
        _check_splits(task, folder, report, read)
    if not tasks:
        return None
    names = ", ".join(reader.folder for _, reader in tasks)
    return LayoutMatch(_all_files(place), (f"GLUE {names}",))


def _first_readable_task(
    folder: Path,
) -> tuple[list[tuple[Task, GlueLayout]], dict[str, CheckReport]]:
    """The first task whose development split can be read from the folder, and the report on the
    split.
    """
    for task, reader in GLUE:
        report = CheckReport("")
        if examples_of(task, folder, task.dev[0], report) is not None:
            return [(task, reader)], {task.dev[0]: report}
    return [], {}


def tables(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """SWAG and readability csv files."""
    tasks: dict[str, Task] = {}
    columns: set[str] = set()
    for path in place.files:
        if path.suffix == ".csv":
            columns.update(header_of(path))
    for column, task in CSV.items():
        if column in columns:
            tasks[task.name] = task
    for task in tasks.values():
        _check_splits(task, place.folder, report)
    return LayoutMatch(_all_files(place), tuple(tasks)) if tasks else None


def _check_splits(
    task: Task, folder: Path, report: CheckReport, read: Mapping[str, CheckReport] | None = None
) -> None:
    """Report on a task's splits; those in `read` have been read already."""
    for split in (task.train, *task.dev):
        if read and split in read:
            report.add(read[split])
        else:
            examples_of(task, folder, split, report)
    for split in task.test:
        if task.file(folder, split).is_file():  # needed only for a submission
            examples_of(task, folder, split, report)


def _all_files(place: CheckedFolder) -> dict[Path, list[str]]:
    """All files of a folder: further files beside a text task's own are not checked."""
    return {path: [] for path in place.files}


# -- vision and language -----------------------------------------------------------------------------------------------


RequiredImages = dict[Path, list[str]]
"""Files of a layout, each with the ids of its images."""

LISTS = ("minival.json", "nominival.json")
"""File names that only LXMERT's VQA lists have."""


def _match(
    place: CheckedFolder, images_by_file: RequiredImages, report: CheckReport
) -> LayoutMatch | None:
    """A match if there are files of the layout, after a check of their images."""
    if not images_by_file:
        return None
    report.mark_checked(*(file for file in images_by_file if file.is_file()))
    check_images(place, images_by_file, report)
    return LayoutMatch(images_by_file)


def _first_images(examples: Sequence[Example] | None) -> list[str]:
    return [example.images[0] for example in examples or ()]


def vqa_v2(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """Questions and annotations of VQA v2, or LXMERT's lists, with an answer map."""
    folder = place.folder
    splits = [split for split in vqa.YEARS if _has_vqa(folder, split)]
    lists = place.with_fields(".json", "question_id", "img_id")
    lists += [one for one in place.heads if one.name in LISTS and one not in lists]  # damaged
    splits += [path.stem for path in lists]
    if not splits:
        return None
    images_by_file: RequiredImages = {}
    for pattern in ("*ans2label.json", "*label2ans.json"):
        images_by_file.update((path, []) for path in folder.glob(pattern))
    for split in splits:
        examples = examples_of(vqa.VQA, folder, split, report)
        images_by_file[vqa.file_of(folder, split, vqa.ANNOTATIONS)] = []
        images_by_file[vqa.file_of(folder, split)] = _first_images(examples)
    return _match(place, images_by_file, report)


def _has_vqa(folder: Path, split: str) -> bool:
    names = (vqa.QUESTIONS[:1], vqa.ANNOTATIONS)
    return any(vqa.file_of(folder, split, name).is_file() for name in names)


def vcr_lines(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """VCR's jsonl files, and the metadata of their images, if present."""
    files = place.with_fields(".jsonl", "annot_id", "img_fn")  # not a log of `data shift`
    if not files:
        return None
    for path in place.heads:  # the fields of a damaged file are not recognised
        if path.name in {"train.jsonl", "val.jsonl", "test.jsonl"} and path not in files:
            files.append(path)
    images_by_file: RequiredImages = {}
    for file in files:
        examples = examples_of(vcr.ANSWER, place.folder, file.stem, report)
        images_by_file[file] = _first_images(examples)
        if examples and (place.folder / "vcr1images").is_dir():
            report.mark_checked(place.folder / "vcr1images")
            _vcr_metadata(place.folder, file, examples, report)
    return _match(place, images_by_file, report)


def _vcr_metadata(
    folder: Path, file: Path, examples: Sequence[Example], report: CheckReport
) -> None:
    by_image = {example.images[0]: example for example in examples}
    readable = report.read_all(partial(vcr.objects_of, folder, one) for one in by_image.values())
    boxes = sum(len(objects.boxes) for objects in readable)
    metadata = f"metadata of {len(readable):,} with {boxes:,} boxes"
    report.add_fact(file, f"{len(by_image):,} images, {metadata}")


def nlvr2_lines(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """NLVR2's json files, and its lists of subsets."""
    images_by_file: RequiredImages = {}
    files = place.with_fields(".json", "identifier", "sentence")
    if files:  # the other splits belong to NLVR2, whatever their first bytes
        splits = (nlvr2.NLVR2.train, *nlvr2.NLVR2.dev)
        paths = [place.folder / f"{split}.json" for split in splits]
        files += [file for file in paths if file in place.heads and file not in files]
    for file in files:
        examples = examples_of(nlvr2.NLVR2, place.folder, file.stem, report) or []
        images_by_file[file] = [image for example in examples for image in example.images]
        known = {example.official_id for example in examples if example.label is not None}
        if known:  # subsets of unlabelled splits are not scored
            report.read_all([partial(nlvr2.parts_of, place.folder, file.stem, known)])
            report.mark_checked(*place.folder.glob("*_identifiers.txt"))
    return _match(place, images_by_file, report)


def snli_ve_lines(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """SNLI-VE's jsonl files."""
    images_by_file: RequiredImages = {}
    for file in place.heads:
        if not file.match("snli_ve_*.jsonl"):
            continue
        split = file.stem.removeprefix("snli_ve_")
        examples = examples_of(snli_ve.SNLI_VE, place.folder, split, report)
        images_by_file[file] = _first_images(examples)
    return _match(place, images_by_file, report)


def refcoco_files(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """Expressions of RefCOCO, RefCOCO+ or RefCOCOg, and MAttNet's detected boxes."""
    files = sorted(place.folder.glob("refs(*).p"))
    detections = place.with_fields(".json", "image_id", "box", "score")
    if not files and not detections:
        return None
    images_by_file: RequiredImages = {file: [] for file in (*files, *detections)}
    objects: refcoco.InstanceTables | None = None
    if files or (place.folder / "instances.json").is_file():
        (objects,) = report.read_all([partial(refcoco.read_instance_tables, place.folder)]) or (
            None,
        )
    for file in files:
        images_by_file[file] = _check_expressions(file, objects, report)
    for file in detections:
        _check_detections(file, objects, report)
    return _match(place, images_by_file, report)


def _check_expressions(
    file: Path, objects: refcoco.InstanceTables | None, report: CheckReport
) -> list[str]:
    """Images of the expressions of all splits."""
    every: list[refcoco.ReferringExpression] = []
    refs = refcoco.load_plain_pickle(file)
    splits = dict.fromkeys(ref["split"] for ref in refs)
    if objects is None:
        return []
    for split in splits:
        reads = [partial(refcoco.expressions_in, file, refs, objects, split)]
        for expressions in report.read_all(reads):
            images = {expression.image for expression in expressions}
            named = {expression.object for expression in expressions}
            every += expressions
            about = f"{len(expressions):,} expressions of {split}, {len(named):,} objects"
            report.add_fact(file, f"{about} in {len(images):,} images")
    report.problems.extend(refcoco.list_ref_oddities(file, refs, every))
    return [expression.image for expression in every]


def _check_detections(
    file: Path, objects: refcoco.InstanceTables | None, report: CheckReport
) -> None:
    """Report on detected boxes: empty boxes are counted, others are checked against their images."""
    found = read_detections(file)
    full = [one for one in found if (one.corners[2:] > one.corners[:2]).all()]
    sizes = {} if objects is None else objects[0]
    known = [one for one in full if one.image in sizes]
    outside = []
    if known:
        shares = np.array([one.corners / (sizes[one.image] * 2) for one in known])
        _, good = clip_boxes(shares)
        outside = [one.image for one, fits in zip(known, good, strict=True) if not fits]
    unlisted = [one.image for one in full if sizes and one.image not in sizes]
    report.add_problem(file, OUTSIDE, _image_names(outside))
    report.add_problem(file, "not in instances.json", _image_names(unlisted))
    about = f"{len(full):,} detected boxes in {len({one.image for one in full}):,} images"
    report.add_fact(file, f"{about}; {len(found) - len(full):,} empty ones")


def _image_names(images: Sequence[int]) -> list[str]:
    """RefCOCO image numbers as named in messages."""
    names = (refcoco.COCO.format(subset="train2014", number=number) for number in images)
    return [f"image {name}" for name in dict.fromkeys(names)]


def flickr30k_entities(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """Captions with phrase annotations, boxes, and lists of the splits' images."""
    folder = place.folder
    if not any((folder / name).is_dir() for name in ("Sentences", "Annotations")):
        return None
    report.mark_checked(folder / "Sentences", folder / "Annotations")
    images_by_file: RequiredImages = {}
    for split in ("train", "val", "test"):
        file = folder / f"{split}.txt"
        if file.is_file():
            images_by_file[file] = flickr_entities.read_image_ids(folder, split)
            _check_entities(folder, file, images_by_file[file], report)
    if not images_by_file:
        expected = "found no image list, expected train.txt, val.txt or test.txt"
        report.problems.append(f"{folder}: {expected}")
        return LayoutMatch()
    return _match(place, images_by_file, report)


def _check_entities(folder: Path, file: Path, images: Sequence[str], report: CheckReport) -> None:
    reads = [partial(flickr_entities.captions_of, folder, image) for image in images]
    captions = [caption for group in report.read_all(reads) for caption in group]
    boxed = sum(len(caption.phrases) for caption in captions)
    others = sum(len(caption.skipped) for caption in captions)
    phrases = f"{boxed:,} phrases with boxes, {others:,} without"
    report.add_fact(file, f"{len(images):,} images, {len(captions):,} captions; {phrases}")
    report.add_duplicates(file, [f"image {image}" for image in images])

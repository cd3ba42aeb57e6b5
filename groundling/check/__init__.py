"""Checks a data folder without any model: what it holds and its problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from groundling.check import images, tasks
from groundling.check.checked_folder import (
    CheckedFolder,
    CheckReport,
    ColumnFlags,
    DataLayout,
    describe_files,
)
from groundling.core.errors import InputError
from groundling.core.registry import registered
from groundling.data.captions.files import IMAGEFOLDER, TABLE
from groundling.data.images import unread_images

OWN = "your own file"
DATA_SETS = (
    DataLayout(
        "VQA v2",
        "v2_*_questions.json, v2_*_annotations.json and an answer map, or LXMERT's lists",
        tasks.vqa_v2,
        in_subfolders=True,
    ),
    DataLayout("VCR", "train.jsonl, ..., vcr1images/", tasks.vcr_lines, in_subfolders=True),
    DataLayout("NLVR2", "*.json", tasks.nlvr2_lines, in_subfolders=True),
    DataLayout("SNLI-VE", "snli_ve_*.jsonl", tasks.snli_ve_lines, in_subfolders=True),
    DataLayout("RefCOCO", "refs(*).p, instances.json", tasks.refcoco_files, in_subfolders=True),
    DataLayout(
        "Flickr30k Entities",
        "Sentences/, Annotations/, lists of images",
        tasks.flickr30k_entities,
        in_subfolders=True,
    ),
    DataLayout("region store", "manifest.json", images.region_store, in_subfolders=True),
    DataLayout(
        "region files",
        "*.tsv, *.h5, data.mdb, *.npz, *.json",
        images.region_files,
        in_subfolders=True,
    ),
)
"""Layouts of data sets in their official files, and of regions."""
GENERAL = (
    DataLayout("GLUE", "a root or a task's folder: train.tsv, dev.tsv", tasks.glue),
    DataLayout(
        "SWAG or readability",
        "train.csv and val.csv, or both *_full.csv; a csv of CommonLit or CLEAR",
        tasks.tables,
    ),
    DataLayout(
        OWN,
        "a *.csv, *.tsv, *.json or *.jsonl with columns of text and of labels, such as question, answer and image; "
        "others: --text, --label and --image",
        tasks.own_files,
        in_subfolders=True,
    ),
    DataLayout(
        "captions",
        "COCO: *.json with images and annotations, also in annotations/; Karpathy's *.json; Flickr8k: *token.txt; "
        "Conceptual Captions: *.tsv, caption<TAB>image; a *.csv, *.tsv, *.json or *.jsonl with columns such as caption "
        "and image, others: --caption-column and --image-column; an imagefolder: metadata.jsonl or metadata.csv; "
        "images with *.txt or *.json beside them",
        images.captions,
        in_subfolders=True,
    ),
    DataLayout("images", "*.jpg, ... in images*/ or in the folder itself", images.image_folders),
    DataLayout("plain text", "*.txt, *.raw, *.tokens", tasks.plain_text, is_fallback=True),
    DataLayout(
        "images", "*.jpg, ... in folders of any name", images.images_anywhere, is_fallback=True
    ),
)
"""Layouts with arbitrary file names."""


def layouts() -> tuple[DataLayout, ...]:
    """All layouts in the order in which they are tried; a file belongs to the first layout that
    takes it.

    Layouts of studies are in `studies/NAME/layouts.py`.
    """
    return (*DATA_SETS, *registered("layouts", DataLayout).values(), *GENERAL)


def describe_layouts() -> str:
    """All layouts in words; those that are also found in sub-folders come first."""
    in_subfolders = [
        f"{layout.name} ({layout.files})" for layout in layouts() if layout.in_subfolders
    ]
    elsewhere = [
        f"{layout.name} ({layout.files})" for layout in layouts() if not layout.in_subfolders
    ]
    return f"{'; '.join(in_subfolders)}, these also in sub-folders; {'; '.join(elsewhere)}"


def check(folder: Path, flags: ColumnFlags | None = None) -> CheckReport:
    """Counts, labels and problems of a folder in one or more of the `layouts`; never raises for bad
    data.

    `flags`: columns of the user's own files, where their names are not recognised.
    """
    folder = Path(folder)
    report = CheckReport("unknown")
    if not folder.is_dir():
        return replace(report, problems=[f"{folder}: no such folder"])
    root = CheckedFolder(folder, flags=flags)
    names: list[str] = []
    for layout in layouts():
        if not layout.is_fallback:
            names += _check_layout(layout, root, report)
    for sub_folder in [*root.other_folders, *root.imagefolders]:
        place = CheckedFolder(sub_folder, root)
        for layout in layouts():
            if layout.in_subfolders:
                names += _check_layout(layout, place, report)
    if not names:
        for layout in layouts():
            if layout.is_fallback:
                names += _check_layout(layout, root, report)
    report.problems.extend(_missing_columns(root, names))
    report.count_files(folder)
    report.problems.extend(unread_images(folder))
    if not names:
        files = [path for path in folder.rglob("*") if path.is_file()]
        report.problems.append(
            f"{folder}: no known layout; the folder holds {describe_files(files)}; expected {describe_layouts()}"
        )
        return report
    return replace(report, layout=" + ".join(dict.fromkeys(names)))


def _missing_columns(root: CheckedFolder, names: Sequence[str]) -> list[str]:
    """A line for columns that flags name but no file has."""
    own = root.flags.own
    columns = root.flags.columns
    columns_by_layout = {
        OWN: [*own.text.split(","), own.label, own.image, own.group],
        TABLE: [*columns.caption_column.split(","), columns.image_column],
    }
    lines = []
    for layout, flagged in columns_by_layout.items():
        missing = [name.strip() for name in flagged if name.strip()]
        if missing and layout not in names and not (layout == TABLE and IMAGEFOLDER in names):
            lines.append(f"{root.folder}: no file was found with the columns {', '.join(missing)}")
    return lines


def _check_layout(layout: DataLayout, place: CheckedFolder, report: CheckReport) -> list[str]:
    """Names of the layouts found in a folder; empty if it is in another layout."""
    try:
        match = layout.check(place, report)
    except InputError as error:
        report.add_error(error)
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        fault = f"{layout.name} with a missing field or a field of the wrong type ({error!r})"
        report.problems.append(f"{place.folder}: {fault}")
    else:
        if match is None:
            return []
        place.matched_paths.update(match.images)
        return list(match.names or [layout.name])
    return [layout.name]  # its files exist, but cannot be read

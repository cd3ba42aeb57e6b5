"""Readers of common layouts of captioned images, each into rows; faults are collected, not raised."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from groundling.core.errors import (
    DUPLICATE,
    EMPTY,
    InputError,
    convert_read_errors,
    duplicates,
    require_known,
)
from groundling.data.images import HEIF_ENDINGS, IMAGE_ENDINGS, is_image_file
from groundling.data.tables import (
    DATA_FILES,
    ROWS,
    RowPosition,
    default_dialect,
    detect_dialect,
    lines_of,
    read_all_columns,
    read_csv,
    row_texts,
    separator_note,
)
from groundling.runs.folder import read_json
from groundling.settings.input_settings import CaptionColumns

COCO = "COCO captions"
KARPATHY = "Karpathy's captions"
FLICKR8K = "Flickr8k captions"
CONCEPTUAL = "Conceptual Captions"
TABLE = "captions by column"
IMAGEFOLDER = "imagefolder"
PAIRS = "images with their captions beside them"
METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
"""File names of an imagefolder's captions (Hugging Face's datasets library)."""
MAX_IMAGES_CHECKED = 100
"""Number of images in a folder that are checked for a caption file beside them."""
SURROGATE = re.compile("[\\ud800-\\udfff]")
"""Half of a surrogate pair, which JSON can contain, but text cannot."""
SPLITS = ("train", "restval", "val", "test")
"""Names of the splits in Karpathy's json."""
SIDECARS = (".txt", ".json")
"""Endings of a caption file beside its image, as in img2dataset and unpacked shards of webdataset."""


@dataclass(frozen=True)
class CaptionRow:
    """One caption, as in the file."""

    place: str
    """The caption's place in the file, for messages."""
    image: str
    """The image's name in the file."""
    file: str
    """The image's path below the image folder."""
    caption: str


@dataclass
class CaptionFile:
    """The contents of a caption file, and its faults."""

    path: Path
    layout: str
    rows: list[CaptionRow] = field(default_factory=list)
    faults: dict[str, list[str]] = field(default_factory=dict)
    """Faults for which every command rejects the file, by kind: a message for each place."""
    remarks: dict[str, list[str]] = field(default_factory=dict)
    """Entries that commands ignore, with a note."""
    summary: str = ""
    """The columns or splits that were read; empty if there are none."""
    separators: str = ""
    """A note on a table whose separator is not the default."""
    columns_detected: bool = False
    """Whether columns were detected from their values, because no name was recognised."""
    splits: Counter[str] = field(default_factory=Counter)
    """Number of images by split, in a file with splits."""
    content: Any = None
    """The parsed JSON of the file, so that it is parsed only once."""
    imageless: str = ""
    """The reason why captions have no images; empty if they have."""
    sidecars: list[Path] = field(default_factory=list)
    """The caption files that were read beside images."""

    def add_fault(self, kind: str, message: str) -> None:
        """Add a message of a kind."""
        self.faults.setdefault(kind, []).append(message)

    def add_remark(self, place: str, message: str) -> None:
        """Add a place with a note."""
        self.remarks.setdefault(message, []).append(f"{self.path}, {place}: {message}")

    def add_row(self, place: str, image: str, file: str, caption: str) -> None:
        """Add a caption; one of white space alone gets a remark."""
        text = " ".join(caption.split())
        # File names can contain such a half: Python represents bytes that are not UTF-8 in this
        # way.
        surrogate = SURROGATE.search(text if self.layout == PAIRS else text + image)
        if surrogate is not None:
            message = f"{surrogate[0]!a} is an unpaired surrogate; write the text in UTF-8"
            self.add_fault("half", f"{self.path}, {place}: {message}")
        elif text:
            self.rows.append(CaptionRow(place, image, file, text))
        else:
            self.add_remark(place, EMPTY)

    def remark_repeated(self, places: Sequence[str]) -> None:
        """Add a remark on names that occur more than once."""
        for place in duplicates(places):
            self.add_remark(place, DUPLICATE)


def layout_of(path: Path, columns: CaptionColumns, content: object = None) -> str:
    """The layout of a file or folder, from its contents; empty if no layout fits.

    `content`: the parsed JSON of the file. Raises InputError if a file cannot be read.
    """
    if path.name in METADATA and not path.is_dir():
        return IMAGEFOLDER
    if path.is_dir():
        if any((path / name).is_file() for name in METADATA):
            return IMAGEFOLDER
        return PAIRS if _has_sidecars(path) else ""
    if path.name.endswith("token.txt"):
        return FLICKR8K
    if path.suffix == ".json":
        if is_karpathy(content):
            return KARPATHY
        if isinstance(content, list):
            return TABLE if content and is_headed(names_in(content[0]), columns) else ""
        return COCO if _is_dict(content) and {"images", "annotations"} <= set(content) else ""
    if path.suffix not in ROWS and path.suffix != ".txt":
        return ""
    if is_headed(header_of(path), columns):
        return TABLE
    return CONCEPTUAL if path.suffix == ".tsv" and _names_images(path) else ""


def _names_images(path: Path) -> bool:
    """Whether a column in the first lines of a tsv without a header names images."""
    rows = [line.split("\t")[:2] for line in lines_of(path)[:5]]
    return any(len(fields) > 1 and any(map(names_image, fields)) for fields in rows)


def read_file(
    path: Path, splits: Sequence[str] | None, columns: CaptionColumns, content: object = None
) -> CaptionFile:
    """The captions of a file or folder, and its faults.

    `splits` None: all splits of the file. `content`: the parsed JSON of the
    file, if it has been read.
    """
    caption_file = CaptionFile(path, "", content=content)
    try:
        if path.suffix == ".json" and content is None:
            caption_file.content = read_json(path)
        caption_file.layout = layout_of(path, columns, caption_file.content) or _usual_layout(
            caption_file
        )
        if splits and caption_file.layout != KARPATHY:
            raise InputError(
                f"{path}: its images have no splits, but the splits {', '.join(splits)} are selected; "
                "pass Karpathy's json, or leave --caption-splits out"
            )
        chosen = columns.caption_column or columns.image_column
        if chosen and caption_file.layout not in (TABLE, IMAGEFOLDER):
            raise InputError(
                f"{path}: {caption_file.layout} have no columns to choose from; leave --caption-column and "
                "--image-column out"
            )
        if caption_file.layout == KARPATHY:
            _karpathy(caption_file, caption_file.content["images"], splits)
        else:
            READERS[caption_file.layout](caption_file, columns)
    except InputError as error:
        caption_file.add_fault("unreadable", str(error))
    caption_file.content = None  # this may free hundreds of megabytes
    return caption_file


def _usual_layout(caption_file: CaptionFile) -> str:
    """The default layout for a file or folder whose contents are not recognised.

    Raises InputError if there is none.
    """
    path = caption_file.path
    if path.suffix == ".tar":
        raise InputError(
            f"{path}: tar shards are not read; unpack it with `tar -xf` into its own folder"
        )
    if path.is_dir():
        raise InputError(f"{path}: {_what_is_in(path)}")
    if path.suffix == ".tsv":
        return CONCEPTUAL
    if path.suffix == ".json":
        return TABLE if isinstance(caption_file.content, list) else COCO
    return TABLE if path.suffix in ROWS else FLICKR8K


def _what_is_in(folder: Path) -> str:
    """The reason why a folder's captions cannot be read."""
    below = [*folder.glob("*"), *folder.glob("annotations/*.json"), *folder.glob("*/metadata.*")]
    offered = [p.relative_to(folder).as_posix() for p in sorted(below) if _may_hold(p)]
    if len(offered) == 1:
        return f"a folder; pass its file {offered[0]}, which may contain captions"
    if offered:
        return f"a folder with several files; pass one of them: {', '.join(offered[:8])}"
    if any(path.suffix == ".tar" for path in below):
        return "tar shards are not read; unpack them with `tar -xf`, each into its own folder"
    return "no captions found; expected metadata.jsonl, metadata.csv, or image files with .txt or .json beside them"


def _may_hold(path: Path) -> bool:
    is_named_so = path.suffix in DATA_FILES or path.name.endswith("token.txt")
    return is_named_so and path.is_file()


# -- JSON --------------------------------------------------------------------------------------------------------------


def is_karpathy(content: Any) -> TypeGuard[dict[str, Any]]:
    """Whether JSON is `dataset_coco.json` or similar, judged by its first image."""
    images = content.get("images") if isinstance(content, dict) else None
    first = images[0] if isinstance(images, list) and images else None
    return isinstance(first, dict) and {"split", "sentences"} <= first.keys()


def _karpathy(
    caption_file: CaptionFile, images: Sequence[Any], splits: Sequence[str] | None
) -> None:
    """The captions of the images of some splits.

    An image file is identified by its name alone, as in COCO.
    """
    for number, image in enumerate(images):
        where = f"images[{number}]"
        try:
            split = str(image["split"])
            file = str(image["filename"])
            name = image.get("cocoid", file)
            if not isinstance(name, int | str) or isinstance(name, bool):
                raise TypeError(
                    f"cocoid {json.dumps(name)[:40]} is neither a text nor a whole number"
                )
            captions = [sentence["raw"] for sentence in image["sentences"]]
            for text in captions:
                if not isinstance(text, str):
                    raise TypeError(f"{json.dumps(text)[:40]} is not a text")
        except (KeyError, TypeError) as error:
            expected = "expected `split`, `filename` and `sentences` with `raw`, as Karpathy's json has them"
            caption_file.add_fault(expected, f"{caption_file.path}, {where}: {expected} ({error})")
            continue
        caption_file.splits[split] += 1
        if splits is None or split in splits:
            for caption in captions:
                caption_file.add_row(where, str(name), file, caption)
    for split, count in caption_file.splits.items():
        if split not in SPLITS and split not in (splits or ()):
            caption_file.add_remark(
                f"{count:,} images",
                f"their split {split!r} is not one of {', '.join(SPLITS)}; read with --caption-splits {split} alone",
            )
    caption_file.summary = ", ".join(
        f"{split}: {count:,}" for split, count in caption_file.splits.items()
    )
    unknown = [split for split in splits or () if split not in caption_file.splits]
    if unknown or splits == () or splits == []:
        problem = f"no split is called {unknown[0]!r}" if unknown else "it has several splits"
        offered = ", ".join(caption_file.splits)
        caption_file.add_fault(
            "splits",
            f"{caption_file.path}: {problem}; pass --caption-splits with some of: {offered}",
        )


def _coco(caption_file: CaptionFile, columns: CaptionColumns) -> None:
    path = caption_file.path
    content = caption_file.content
    images = content.get("images") if _is_dict(content) else None
    notes = content.get("annotations") if _is_dict(content) else None
    if not isinstance(images, list) or not isinstance(notes, list):
        raise InputError(f"{path}: not COCO captions; expected the keys `images` and `annotations`")
    files = _coco_files(caption_file, images)
    for number, entry in enumerate(notes):
        where = f"annotations[{number}]"
        if not _is_dict(entry) or not isinstance(entry.get("caption"), str):
            caption_file.add_fault(
                "caption", f"{path}: {where} has no text in `caption`; expected COCO captions"
            )
            continue
        image = entry.get("image_id")
        if not isinstance(image, int | str) or image not in files:
            if "image" in caption_file.faults:
                continue  # it may be the very field that cannot be read
            caption_file.add_fault(
                "image_id", f"{path}: {where} names image {image}, not in `images`"
            )
            continue
        caption_file.add_row(where, str(image), files[image], entry["caption"])
    caption_file.remark_repeated([f"image {one['id']}" for one in images if _has_file(one)])
    caption_file.remark_repeated(
        [f"annotation {one['id']}" for one in notes if _is_dict(one) and "id" in one]
    )


def _coco_files(caption_file: CaptionFile, images: Sequence[Any]) -> dict[int | str, str]:
    """The images' files by id."""
    files: dict[int | str, str] = {}
    for number, image in enumerate(images):
        if not _has_file(image):
            caption_file.add_fault(
                "image",
                f"{caption_file.path}: images[{number}] has no `id` or no `file_name`; expected COCO captions",
            )
        elif files.setdefault(image["id"], image["file_name"]) != image["file_name"]:
            caption_file.add_fault(
                "file",
                f"{caption_file.path}: images[{number}] has the id {image['id']} of an earlier image with a different "
                "`file_name`; give every image its own id",
            )
    return files


def _is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _has_file(image: object) -> TypeGuard[dict[str, Any]]:
    if not _is_dict(image) or not isinstance(image.get("id"), int | str):
        return False
    return isinstance(image.get("file_name"), str)


# -- lines and rows ----------------------------------------------------------------------------------------------------


def _flickr8k(caption_file: CaptionFile, columns: CaptionColumns) -> None:
    expected = "expected file#number<TAB>caption"
    keys = []
    for number, line in enumerate(lines_of(caption_file.path), 1):
        key, tab, caption = line.partition("\t")
        file, sign, _ = key.partition("#")
        if not tab or not sign:
            caption_file.add_fault(expected, f"{caption_file.path}, line {number}: {expected}")
            continue
        keys.append(key)
        caption_file.add_row(f"line {number}", file, file, caption)
    caption_file.remark_repeated(keys)


def _conceptual(caption_file: CaptionFile, columns: CaptionColumns) -> None:
    path = caption_file.path
    expected = "expected caption<TAB>image file"
    fields_by_line = [line.split("\t") for line in lines_of(path)]
    whole = [fields for fields in fields_by_line if len(fields) > 1]
    if whole and _are_swapped([fields[1] for fields in whole], [fields[0] for fields in whole]):
        raise InputError(
            f"{path}, line 1: {expected}, found image file<TAB>caption: are the columns swapped? swap them back, "
            "or add a first line that names them, such as image<TAB>caption"
        )
    # Google's file with labels has five columns; a tab inside a caption adds a column and shifts
    # the others.
    (usual, _), *_ = Counter(map(len, whole)).most_common(1) or [(2, 0)]
    for number, fields in enumerate(fields_by_line, 1):
        if len(fields) < 2:
            caption_file.add_fault(expected, f"{path}, line {number}: {expected}")
            continue
        if len(fields) != usual:
            what = f"{len(fields)} fields, other lines have {usual}"
            advice = "a tab separates columns and cannot be part of a text"
            caption_file.add_fault("fields", f"{path}, line {number}: {what}; {advice}")
            continue
        caption, link = fields[:2]
        caption_file.add_row(f"line {number}", link.strip(), image_file_of(link), caption)


def _are_swapped(images: Sequence[str], captions: Sequence[str]) -> bool:
    """Whether the image column contains sentences, and the caption column names images."""
    return not any(map(names_image, images[:100])) and all(map(names_image, captions[:100]))


def image_file_of(link: str) -> str:
    """The image file of a link: the last part of a URL, or else a path in the folder."""
    if "://" not in link:
        return link.strip()
    address, _, _ = link.partition("?")
    _, _, name = address.rpartition("/")
    return name


def _table(caption_file: CaptionFile, columns: CaptionColumns) -> None:
    _rows_of_table(caption_file, caption_file.path, columns)


def _imagefolder(caption_file: CaptionFile, columns: CaptionColumns) -> None:
    """The table of an imagefolder, in which images are named by their paths from its folder."""
    file = caption_file.path
    if file.is_dir():
        file = next(file / name for name in METADATA if (file / name).is_file())
    if file.suffix == ".parquet":
        raise InputError(f"{file}: parquet is not read; save it as metadata.jsonl or metadata.csv")
    caption_file.path = file
    _rows_of_table(caption_file, file, columns)


def _rows_of_table(caption_file: CaptionFile, path: Path, columns: CaptionColumns) -> None:
    header, rows = rows_with_header(path)
    caption_file.separators = separator_note(path)
    cells = [row for _, row in rows]
    chosen = columns_for(path, header, cells, columns)
    caption_file.summary = chosen.summary
    caption_file.columns_detected = not is_headed(header, columns)
    if chosen.image:
        images = [str(row.get(chosen.image, "")) for row in cells]
        captions = [str(row.get(chosen.captions[0], "")) for row in cells]
        if _are_swapped(images, captions):
            raise InputError(
                f"{path}: the image column {chosen.image!r} has sentences, and the caption column "
                f"{chosen.captions[0]!r} files: are the columns swapped? "
                f"--caption-column {chosen.image} --image-column {chosen.captions[0]}"
            )
    else:
        caption_file.imageless = (
            f"{path}: no column is recognised as image files; there are: {', '.join(header)}; "
            "pass --image-column"
        )
    for where, row in rows:
        _row_of_table(caption_file, where, row, chosen)


def _row_of_table(
    caption_file: CaptionFile, where: RowPosition, row: Mapping[str, Any], chosen: ChosenColumns
) -> None:
    image = ""
    try:
        if chosen.image:
            (image,) = row_texts(row, [chosen.image])
        captions = [text for name in chosen.captions for text in _captions_in(row, name)]
    except InputError as error:
        field_of, _, _ = str(error).partition(" is ")
        caption_file.add_fault(field_of, f"{where}: {error}")
        return
    if chosen.image and not image.strip():
        what = f"column {chosen.image!r} is empty; expected an image file"
        caption_file.add_fault(what, f"{where}: {what}")
        return
    place = f"{where.unit} {where.number}"
    for caption in captions:
        caption_file.add_row(place, image.strip(), image_file_of(image), caption)


def _captions_in(row: Mapping[str, Any], name: str) -> list[str]:
    """The texts of a column, which may be a list in JSON; an empty list is an empty text."""
    value = row.get(name)
    if not isinstance(value, list):
        return row_texts(row, [name])
    return [text for one in value for text in row_texts({name: one}, [name])] or [""]


# -- caption files beside images ---------------------------------------------------------------------------------------


def _sidecars(folder: Path) -> Iterator[tuple[str, Path]]:
    """The images below a folder that have a caption file beside them, and
    caption files without an image.

    Each is a path from the folder (without ending if the image is missing) and its caption file.
    """
    for place, folders, names in os.walk(folder):
        folders.sort()
        below = Path(place).relative_to(folder)
        files = set(names)
        images = {name: os.path.splitext(name)[0] for name in sorted(filter(is_image_file, names))}
        has_pairs = False
        for name, base in images.items():
            sidecar = _sidecar(Path(place), base, files)
            if sidecar is not None:
                has_pairs = True
                yield (below / name).as_posix(), sidecar
        # img2dataset names all files by numbers, and also writes json for an image that it could
        # not download.
        bases = {os.path.splitext(name)[0] for name in files if name.endswith(SIDECARS)}
        for base in sorted(bases.difference(images.values())):
            sidecar = _sidecar(Path(place), base, files) if has_pairs and base.isdigit() else None
            if sidecar is not None:
                yield (below / base).as_posix(), sidecar


def _has_sidecars(folder: Path) -> bool:
    """Whether one of the first images below a folder has its caption beside it."""
    checked = 0
    for place, folders, names in os.walk(folder):
        folders.sort()
        files = set(names)
        for name in filter(is_image_file, names):
            if _sidecar(Path(place), os.path.splitext(name)[0], files) is not None:
                return True
            checked += 1
            if checked == MAX_IMAGES_CHECKED:
                return False
    return False


def _sidecar(folder: Path, base: str, files: set[str]) -> Path | None:
    """The caption file beside an image: .txt, or .json with a caption."""
    if f"{base}.txt" in files:
        return folder / f"{base}.txt"
    path = folder / f"{base}.json"
    if path.name in files and _caption_in_json(path) is not None:
        return path
    return None


def _caption_in_json(path: Path) -> str | None:
    """An image's caption, empty if it is not a text; None if the json is not about a caption."""
    content = read_json(path)
    if not isinstance(content, dict) or "caption" not in content:
        return None
    caption = content["caption"]
    return caption if isinstance(caption, str) else ""


def _pairs(caption_file: CaptionFile, columns: CaptionColumns) -> None:
    for image, sidecar in _sidecars(caption_file.path):
        caption_file.sidecars.append(sidecar)
        place = sidecar.relative_to(caption_file.path).as_posix()
        texts = [text for text in _texts_beside(sidecar) if text.strip()]
        for text in texts or [""]:
            caption_file.add_row(place, image, image, text)


def _texts_beside(path: Path) -> list[str]:
    """The captions in the file beside an image, one per line; an empty file is an empty caption."""
    if path.suffix == ".json":
        return [_caption_in_json(path) or ""]
    with convert_read_errors(path):
        is_empty = not path.read_bytes().strip()
    return [] if is_empty else lines_of(path)


READERS: Mapping[str, Callable[[CaptionFile, CaptionColumns], None]] = {
    COCO: _coco,
    FLICKR8K: _flickr8k,
    CONCEPTUAL: _conceptual,
    TABLE: _table,
    IMAGEFOLDER: _imagefolder,
    PAIRS: _pairs,
}
"""Readers by layout, except Karpathy's json, which has splits."""


# -- the columns of a table --------------------------------------------------------------------------------------------


IMAGES: tuple[str, ...] = (
    *("file_name", "image", "filename", "image_file", "image_name", "image_path", "photo"),
    *("picture", "img", "file", "path", "filepath", "img_path", "url", "image_url"),
)
"""Common names of a column of image files, the likeliest first."""
CAPTIONS = ("caption", "captions", "text", "sentence", "sentences", "description", "comment")
"""Common names of a column of captions."""
MAX_HEADER_BYTES = 65_536
"""Maximum number of bytes of a first line."""
ROWS_CHECKED = 100
"""Number of rows from which unnamed columns are detected."""


@dataclass(frozen=True)
class ChosenColumns:
    """The columns to read."""

    captions: Sequence[str]
    image: str
    """The image column; empty if only texts are read."""

    @property
    def summary(self) -> str:
        """The columns in words."""
        text = f"captions from column {', '.join(map(repr, self.captions))}"
        return f"{text}, images from {self.image!r}" if self.image else text


def names_image(text: str) -> bool:
    """Whether a text is a URL, or a file name with the ending of an image."""
    text = text.strip()
    return text.startswith(("http://", "https://")) or text.lower().endswith(
        (*IMAGE_ENDINGS, *HEIF_ENDINGS)
    )


def columns_for(
    path: Path, header: Sequence[str], rows: Sequence[Mapping[str, Any]], columns: CaptionColumns
) -> ChosenColumns:
    """The columns of captions and of image files; without an image column, only captions are read.

    Raises InputError if a named column is missing, or if no column is recognised as captions.
    """
    captions = check_named_captions(path, header, columns)
    image = columns.image_column or _named(IMAGES, header, captions)
    image = image or _only(header, captions, lambda name: _all(names_image, rows, name))
    if image and not columns.image_column and names_image(image):
        raise InputError(
            f"{path}, line 1: {image!r} is an image, not the name of a column; write a first line that names the "
            "columns, such as image and caption"
        )
    if not captions:
        name = _named(CAPTIONS, header, [image])
        name = name or _only(header, [image], lambda name: _all(_is_sentence, rows, name))
        captions = [name] if name else []
    if not captions:
        raise InputError(
            f"{path}: no column is recognised as captions; there are: {', '.join(header)}; "
            "pass --caption-column"
        )
    return ChosenColumns(captions, image)


def check_named_captions(path: Path, header: Sequence[str], columns: CaptionColumns) -> list[str]:
    """The named caption columns.

    Raises InputError if one of them or the named image column is missing.
    """
    captions = [name.strip() for name in columns.caption_column.split(",") if name.strip()]
    for flag, name in [("caption", one) for one in captions] + [("image", columns.image_column)]:
        if name:
            require_known(name, header, f"{path}: no column {name!r}", f"; correct --{flag}-column")
    return captions


def _named(names: Sequence[str], header: Sequence[str], excluded: Sequence[str]) -> str:
    """The first of some names that a header has, ignoring capitals; empty if it has none."""
    # If two names differ only in capitals, the first is used.
    by_lower_case = {
        name.strip().lower(): name for name in reversed(header) if name not in excluded
    }
    return next((by_lower_case[name] for name in names if name in by_lower_case), "")


def _only(header: Sequence[str], excluded: Sequence[str], fits: Callable[[str], bool]) -> str:
    """The only column that fits; empty if there are several or none."""
    fitting = [name for name in header if name not in excluded and fits(name)]
    return fitting[0] if len(fitting) == 1 else ""


def _all(fits: Callable[[str], bool], rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether every value of a column fits in the first rows, where it has one."""
    values = [row.get(name) for row in rows[:ROWS_CHECKED]]
    texts = [one for value in values for one in (value if isinstance(value, list) else [value])]
    full = [text for text in texts if isinstance(text, str) and text.strip()]
    return bool(full) and all(map(fits, full))


def _is_sentence(text: str) -> bool:
    """Whether a text may be a caption: several words, and not a question."""
    is_question = text.rstrip().endswith(("?", "？"))
    return len(text.split()) > 1 and not is_question and not names_image(text)


def is_headed(header: Sequence[str], columns: CaptionColumns) -> bool:
    """Whether a table has columns for images and captions, by common names or by the given ones."""
    if columns.caption_column or columns.image_column:
        names = [*columns.caption_column.split(","), columns.image_column]
        return all(name.strip() in header for name in names if name)
    image = _named(IMAGES, header, ())
    return bool(image) and bool(_named(CAPTIONS, header, [image]))


def header_of(path: Path) -> list[str]:
    """The names in the first line of a table, or of its first object; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            line = file.readline(MAX_HEADER_BYTES).decode("utf-8-sig", "replace").rstrip("\r\n")
    except OSError:
        return []
    line, _, _ = line.partition("\r")  # in a file with old Mac line ends, all is one line
    if path.suffix != ".jsonl":
        return detect_dialect(line, default_dialect(path)).names(line)
    try:
        return names_in(json.loads(line))
    except (ValueError, RecursionError):
        return []


def names_in(row: object) -> list[str]:
    """The field names of an object; empty for any other value."""
    return list(row) if isinstance(row, dict) else []


def rows_with_header(path: Path) -> tuple[list[str], list[tuple[RowPosition, Mapping[str, Any]]]]:
    """All columns and rows of a table, see `read_all_columns`.

    A .txt file is read as a csv, such as Kaggle's Flickr8k.

    Raises InputError as `read_all_columns`.
    """
    if path.suffix != ".txt":
        return read_all_columns(path, ())
    header = header_of(path)
    return header, [(RowPosition(path, "line", line), row) for line, row in read_csv(path, header)]

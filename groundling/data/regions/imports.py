"""Imports region features in the field's file formats, recognised by content.

Pickles are never loaded.

Boxes, features, confidence and classes are imported, sorted by confidence; attributes in LXMERT's
files are ignored. An image is skipped, with a reason, if a feature is NaN or infinite, or if a
confidence or a class probability is outside 0..1.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import io
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.errors import (
    MAX_QUOTED,
    InputError,
    convert_errors,
    convert_read_errors,
    first_line,
)
from groundling.data.images import image_id
from groundling.data.regions.store import BACKGROUND, ImageRegions, Item, clip_boxes, first_fault
from groundling.data.regions.stores import are_stores, combine_images
from groundling.data.tables import lines_of, read_json_lines
from groundling.runs.folder import read_json
from groundling.settings.input_settings import DetectionSettings

LAYOUTS = """a TSV of bottom-up-attention (6 columns) or LXMERT (10), .h5 or .hdf5, a folder with data.mdb (LMDB), \
a folder of *.npz (UNITER) or *.json (VL-BERT), or a .zip of such json"""
PICKLED = {".pkl", ".pickle", ".p", ".pth", ".pt", ".th", ".npy", ".bin"}
REFUSED = "loading a pickle runs code, so pickles are not read; use the TSV or HDF5 file of the same features"
VG_CLASSES = 1600
"""Number of Visual Genome's classes, as detected by bottom-up attention."""
VG = {"classes": VG_CLASSES, "background": "none; class 0 is the first line of objects_vocab.txt"}
SOFT = {"background": BACKGROUND}
HDF5 = {".h5", ".hdf5"}
NO_CONFIDENCE = "its boxes have no confidences to filter them by"
CUT = "cut row"
"""Name, in messages, of a TSV row that is too short to have an id."""
TINY = 6e-8
"""About the smallest number above 0 in half precision."""
NUMBER = re.compile(r"\d{1,18}$")
"""The number at the end of an image's id."""
SUBSET = re.compile(r"(?<![a-z])(train|val|test)20\d\d(?!\d)")
"""COCO's subsets; a name with trainval2014 covers two of them, and does not match."""
STILL = re.compile(r"^vcr_(gt_)?(train|val|test)_")
"""The prefix that UNITER's store adds to the name of a VCR still."""
PATTERN = "expected one such as COCO_{subset}_{number:012d}, COCO's json files, or VCR's jsonl"
MARK = b"\xef\xbb\xbf"
"""The byte-order mark that some editors write at the start of a file."""

LARGEST = 1 << 26
"""Maximum number of bytes of one image's file or archive member: a hundred regions with features
and classes have about three million.
"""

Arrays = dict[str, np.ndarray]
"""An image's arrays, by the names of their layout."""


class ImageNames:
    """The ids of imported images in a store, where they differ from the names in the source's files."""

    def __init__(self, specs: Sequence[str]) -> None:
        """A pattern with `{number}` or `{subset}`, or COCO's json files, whose images
        have `id` and `file_name`.

        Or VCR's jsonl files: UNITER's store names a still by its split and the last part of its
        `img_fn`. Raises InputError for an invalid pattern, or files that name no images.
        """
        self.pattern = ""
        self.files: dict[int, str] = {}
        self.stills: dict[str, str] = {}
        if all(path.endswith(".jsonl") for path in specs):
            for path in specs:
                self._add_stills(Path(path))
        elif len(specs) == 1 and not specs[0].endswith(".json"):
            self.pattern = specs[0]
            self._try_pattern()
        else:
            for path in specs:
                self._add(Path(path))

    def _try_pattern(self) -> None:
        with convert_errors(f"--ids-as {self.pattern}: invalid pattern", advice=f"; {PATTERN}"):
            ids = {self.pattern.format(subset="train2014", number=number) for number in (1, 2)}
        if len(ids) < 2:
            raise InputError(
                f"--ids-as {self.pattern}: all images would have the id {ids.pop()}; {PATTERN}"
            )

    def _add(self, path: Path) -> None:
        content = read_json(path)
        with convert_errors(
            f"{path}: not COCO's images with id and file_name", advice=f"; {PATTERN}"
        ):
            for image in content["images"]:
                # Karpathy's json has other names for these fields.
                number = image["id"] if "id" in image else image["cocoid"]
                file = image["file_name"] if "file_name" in image else image["filename"]
                self.files[int(number)] = image_id(str(file))

    def _add_stills(self, path: Path) -> None:
        for where, line in read_json_lines(path, ("img_fn",)):
            still = image_id(line["img_fn"])
            last = still.rpartition("/")[2]
            if self.stills.setdefault(last, still) != still:
                raise InputError(
                    f"{where}: {still} and {self.stills[last]} have the same file name"
                )

    def store_name(self, name: str, source: Path) -> str:
        """The id in the store of the image that a source calls `name`.

        Raises InputError if it cannot be determined.
        """
        if self.stills:
            last = STILL.sub("", name)
            if last not in self.stills:
                raise InputError(f"no image in the jsonl files of --ids-as is named {last}")
            return self.stills[last]
        ends_with = NUMBER.search(name)
        if ends_with is None:
            raise InputError("its id does not end with a number, which --ids-as needs")
        number = int(ends_with[0])
        if self.files:
            if number not in self.files:
                raise InputError(f"no image in the json files of --ids-as has the number {number}")
            return self.files[number]
        subset = SUBSET.search(name) or SUBSET.search(source.name)
        if subset is None and "{subset" in self.pattern:
            raise InputError(
                f"neither its id nor {source.name} names a subset such as train2014; write it into the pattern of "
                "--ids-as, or pass COCO's json files"
            )
        return self.pattern.format(subset=subset[0] if subset else "", number=number)


def import_several(
    paths: Sequence[str | Path],
    ids: Sequence[str] = (),
    ids_as: Sequence[str] = (),
    box_filter: DetectionSettings | None = None,
) -> tuple[dict[str, Any], Iterator[Item]]:
    """Like `import_regions`, for several sources of one layout, whose images may be
    renamed (see `ImageNames`).

    For several region stores, each image gets its regions of all stores (see `combine_images`).
    `ids` are files of ids by row, one for each HDF5 file of `paths`. Of each image only the boxes
    that pass `box_filter` are kept (see `_best_boxes`). Also raises InputError if layouts differ.
    """
    if are_stores(paths):
        if ids or ids_as:
            raise InputError(
                "--ids and --ids-as apply to files; images in stores already have ids; leave both flags out"
            )
        if box_filter is not None:
            raise InputError(
                "--filter-imports applies to files, not to stores; filter when you import the files"
            )
        return combine_images(paths)
    rows = [Path(path).suffix in HDF5 for path in paths]
    if ids and len(ids) != sum(rows):
        raise InputError(
            f"--ids: {len(ids)} files of ids for {sum(rows)} HDF5 files; pass one for each"
        )
    ids_files = iter(ids)
    sources = [
        import_regions(path, next(ids_files, "") if is_hdf5 else "")
        for path, is_hdf5 in zip(paths, rows, strict=True)
    ]
    facts, _ = sources[0]
    for path, (other, _) in zip(paths, sources, strict=True):
        if other["identity"] != facts["identity"]:
            raise InputError(
                f"{paths[0]} is a {facts['layout']}, {path} a {other['layout']}; expected one layout; make one "
                "store of each"
            )
    if len(paths) > 1:
        facts = {**facts, "source": [str(path) for path in paths]}
    names = ImageNames(ids_as) if ids_as else None
    if names is not None:
        facts = {**facts, "ids_as": list(ids_as)}
    if box_filter is not None:
        facts = {
            **facts,
            "kept_boxes": f"confidence above {box_filter.score_threshold:g}, at least "
            f"{box_filter.min_boxes} and at most {box_filter.max_boxes} per image",
        }
    opened = [(Path(path), items) for path, (_, items) in zip(paths, sources, strict=True)]
    if box_filter is not None:
        opened = [(path, _filtered(path, items, box_filter)) for path, items in opened]
    return facts, _renamed(opened, names)


def _filtered(path: Path, items: Iterator[Item], box_filter: DetectionSettings) -> Iterator[Item]:
    """The images of a source with their best boxes; raises InputError if the first readable image
    has no confidences.
    """
    checked = False
    for name, read in items:
        checked = checked or _has_confidence(path, read)
        yield name, partial(_best_boxes, read, box_filter)


def _has_confidence(path: Path, read: Callable[[], ImageRegions]) -> bool:
    """Whether an image can be read; raises InputError if it can, but has no confidences."""
    try:
        regions = read()
    except InputError:
        return False
    if not regions.has_confidence:
        raise InputError(f"{path}: {NO_CONFIDENCE}; leave --filter-imports out")
    return True


def _best_boxes(read: Callable[[], ImageRegions], box_filter: DetectionSettings) -> ImageRegions:
    """The most confident boxes of an image, as many as are above the threshold, but between the
    minimum and the maximum number (ChenRocks/UNITER, data/data.py, `compute_num_bb`).

    The whole image is always kept, and is not counted.
    """
    regions = read()
    if not regions.has_confidence:
        raise InputError(NO_CONFIDENCE)
    whole = int(regions.has_whole_image)
    confident = int((regions.confidence[whole:] > box_filter.score_threshold).sum())
    kept = whole + min(box_filter.max_boxes, max(box_filter.min_boxes, confident))
    return replace(
        regions,
        boxes=regions.boxes[:kept],
        confidence=regions.confidence[:kept],
        features=regions.features[:kept],
        classes=None if regions.classes is None else regions.classes[:kept],
    )


def _renamed(
    sources: Sequence[tuple[Path, Iterator[Item]]], names: ImageNames | None
) -> Iterator[Item]:
    """The images of all sources, under their ids in the store."""
    for path, items in sources:
        for name, read in items:
            has_id = not name.startswith(CUT)
            yield _rename_item(names, name, path, read) if names and has_id else (name, read)


def _rename_item(
    names: ImageNames, name: str, path: Path, read: Callable[[], ImageRegions]
) -> Item:
    """An image under its id in the store.

    It is skipped, with a reason, if the id cannot be determined.
    """
    try:
        new = names.store_name(name, path)
    except InputError as error:
        reason = str(error)

        def refuse() -> ImageRegions:
            raise InputError(reason)

        return name, refuse
    return new, lambda: replace(read(), id=new)


def import_regions(path: str | Path, ids: str | None = "") -> tuple[dict[str, Any], Iterator[Item]]:
    """Facts about a source for a manifest, and its images.

    `ids` is a file (text or json) of ids by row for BAN's HDF5; with None, ids are row numbers,
    which is enough for a check.

    Raises InputError if the source has no supported layout, or contains pickles.
    """
    path = Path(path)
    if path.suffix in PICKLED:
        raise InputError(f"{path}: {REFUSED}")
    layout, layout_facts, items = _open(path, ids)
    description = {"layout": layout, **layout_facts}
    text = json.dumps(description, sort_keys=True)
    facts = {
        "source": str(path),
        "model": "as the source says",
        **description,
        "identity": hashlib.sha256(text.encode()).hexdigest(),
        "made_by": f"imported: {layout}",
    }
    return facts, items


def _open(path: Path, ids: str | None) -> tuple[str, dict[str, Any], Iterator[Item]]:
    """The name of a source's layout, the facts that all sources of the layout
    share, and the source's images.
    """
    if (path / "data.mdb").is_file():
        return "LMDB of UNITER", SOFT, _lmdb(path)
    if any(path.glob("*.npz")):
        return "npz of UNITER", SOFT, _files(path, ".npz", _npz)
    if any(path.glob("*.json")) or path.suffix == ".zip":
        return "json of VL-BERT", SOFT, _files(path, ".json", _vlbert)
    if path.suffix in HDF5:
        return "HDF5", SOFT, _hdf5(path, ids)
    if not path.is_file():
        raise InputError(f"{path}: nothing to import; expected {LAYOUTS}")
    columns = _columns_of(path)
    if columns == 10:
        return "TSV of LXMERT", VG, _tsv(path, columns)
    return "TSV of bottom-up-attention", {}, _tsv(path, columns)


def _columns_of(path: Path) -> int:
    """6 or 10, from a TSV's first line; raises InputError if it has no region features."""
    with convert_read_errors(path), path.open("rb") as stream:
        fields = _fields(stream.readline())
    numbers = [b""]  # width, height and number of boxes
    if len(fields) == 6:
        numbers = fields[1:4]
    if len(fields) == 10:
        numbers = [*fields[1:3], fields[7]]
    if not all(number.strip().isdigit() for number in numbers):
        raise InputError(
            f"{path}, line 1: {len(fields)} columns without region features; expected {LAYOUTS}"
        )
    return len(fields)


def _fields(line: bytes) -> list[bytes]:
    return line.removeprefix(MARK).rstrip(b"\r\n").split(b"\t")


def _item(name: str, where: str, read: Callable[[], ImageRegions]) -> Item:
    """An image that is read later; any fault is reported in one line."""

    def safely() -> ImageRegions:
        try:
            return read()
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        except (
            Exception
        ) as error:  # the readers of six layouts raise many exceptions for damaged bytes
            raise InputError(
                f"{where}: damaged, or of another layout ({first_line(error)})"
            ) from None

    return name, safely


def _regions(
    name: str,
    boxes: np.ndarray,
    features: np.ndarray,
    confidence: np.ndarray | None = None,
    classes: np.ndarray | None = None,
    pixels: tuple[int, int] | None = None,
    size: tuple[int, int] = (0, 0),
) -> ImageRegions:
    """An image's regions, clipped to the image and sorted by confidence.

    `boxes` (R, 4) are shares, or pixels of an image of width and height `pixels`.

    Raises InputError if the arrays disagree, if no box is left, or if a confidence, feature or
    class has an invalid value.
    """
    boxes = np.asarray(boxes, np.float32)
    if pixels is not None:
        if min(pixels) < 1:
            raise InputError(f"image of {pixels[0]}x{pixels[1]} pixels")
        if len(boxes) and min(pixels) > 1 and boxes.max() <= 1:
            raise InputError("boxes are within one pixel; expected pixels, not shares of the image")
        boxes = boxes / np.array([*pixels, *pixels], np.float32)
        size = pixels
    has_confidence = confidence is not None
    if confidence is None:
        confidence = np.ones(len(boxes), np.float32)
    confidence = confidence.reshape(-1)
    arrays = {"confidence": confidence, "features": features}
    if classes is not None:
        arrays["classes"] = classes
    one_length = {len(array) for array in arrays.values()} == {len(boxes)}
    if features.ndim != 2 or boxes.ndim != 2 or boxes.shape[1] != 4 or not one_length:
        raise InputError(
            f"boxes {boxes.shape}, features {features.shape}, confidence {confidence.shape}: "
            "expected one row per region"
        )
    if features.size and np.abs(features).max() < TINY:
        raise InputError(f"all features are 0 or below {TINY}, which half precision stores as 0")
    clipped, valid = clip_boxes(boxes)
    if not valid.any():
        raise InputError(f"all {len(boxes)} boxes are empty or outside the image")
    fault = first_fault(arrays, valid)
    if fault:
        raise InputError(fault)
    order = np.argsort(-confidence, kind="stable")
    order = order[valid[order]]
    return ImageRegions(
        id=name,
        size=size,
        boxes=clipped[order],
        confidence=confidence[order],
        features=features[order],
        classes=None if classes is None else classes[order],
        left_out=int((~valid).sum()),
        has_confidence=has_confidence,
    )


def _array(text: str | bytes, rows: int, dtype: str = "<f4") -> np.ndarray:
    """Decodes Base64 of little-endian numbers: (rows, columns)."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype).reshape(rows, -1)


def _best_class(classes: np.ndarray | None) -> np.ndarray | None:
    """A detector's confidence (R,): the probability of the best class of (R, C)
    without background (column 0).
    """
    return None if classes is None else classes[:, 1:].max(1)


# -- tab-separated -----------------------------------------------------------------------------------------------------


def _tsv(path: Path, columns: int) -> Iterator[Item]:
    with convert_read_errors(path), path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            fields = _fields(line) if number == 1 else line.rstrip(b"\r\n").split(b"\t")
            name = f"{CUT} {number}"
            if len(fields) == columns:
                name = fields[0].decode("utf-8", "replace")
            yield _item(name, f"line {number}", partial(_row, name, fields, columns))


def _row(name: str, fields: list[bytes], columns: int) -> ImageRegions:
    """One line of a TSV.

    Bottom-up-attention: image_id, image_w, image_h, num_boxes, boxes, features. LXMERT: img_id,
    img_h, img_w, objects_id, objects_conf, attrs_id, attrs_conf, num_boxes, boxes, features.
    """
    if len(fields) != columns:
        raise InputError(f"{len(fields)} columns, expected {columns}; the row is cut off")
    if columns == 6:
        size = int(fields[1]), int(fields[2])
        rows = int(fields[3])
        return _regions(name, _array(fields[4], rows), _array(fields[5], rows), pixels=size)
    size = int(fields[2]), int(fields[1])
    rows = int(fields[7])
    classes = _array(fields[3], rows, "<i8")[:, 0]
    if len(classes) and not 0 <= classes.min() <= classes.max() < VG_CLASSES:
        raise InputError(f"an object's class is outside 0..{VG_CLASSES - 1}")
    return _regions(
        name,
        boxes=_array(fields[8], rows),
        features=_array(fields[9], rows),
        confidence=_array(fields[4], rows),
        classes=classes,
        pixels=size,
    )


# -- a file per image --------------------------------------------------------------------------------------------------


def _files(path: Path, suffix: str, read: Callable[[str, bytes], ImageRegions]) -> Iterator[Item]:
    """A folder's files or a zip's members, sorted by name."""

    def later(name: str, content: Callable[[], bytes]) -> Callable[[], ImageRegions]:
        return lambda: read(name, content())

    if path.is_dir():
        for file in sorted(path.glob(f"*{suffix}")):
            yield _item(file.stem, file.name, later(file.stem, partial(_file_bytes, file)))
        return
    with convert_errors(f"{path}: not a readable zip file"), zipfile.ZipFile(path) as archive:
        for member in sorted(n for n in archive.namelist() if n.endswith(suffix)):
            name = Path(member).stem
            yield _item(name, member, later(name, partial(_member, archive, member)))


def _file_bytes(path: Path) -> bytes:
    _refuse_large(path.stat().st_size)
    return path.read_bytes()


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The contents of a zip member; raises InputError for one too large, before reading it."""
    _refuse_large(archive.getinfo(name).file_size)
    return archive.read(name)  # which never returns more bytes than that


def _refuse_large(size: int) -> None:
    if size > LARGEST:
        raise InputError(
            f"{size:,} bytes, expected at most {LARGEST:,} for the regions of one image"
        )


def _vlbert(name: str, content: bytes) -> ImageRegions:
    """VL-BERT: image_w, image_h, num_boxes, boxes, features, optionally classes and
    image_box_feature (base64).
    """
    entry = json.loads(content)
    size = int(entry["image_w"]), int(entry["image_h"])
    rows = int(entry["num_boxes"])
    classes = _array(entry["classes"], rows) if "classes" in entry else None
    regions = _regions(
        name,
        boxes=_array(entry["boxes"], rows),
        features=_array(entry["features"], rows),
        confidence=_best_class(classes),
        classes=classes,
        pixels=size,
    )
    if "image_box_feature" not in entry:
        return regions
    return regions.with_whole(_array(entry["image_box_feature"], 1))


def _npz(name: str, content: bytes) -> ImageRegions:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        _refuse_large(sum(member.file_size for member in archive.infolist()))
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return _uniter(name, {key: arrays[key] for key in arrays.files})


def _uniter(name: str, entry: Arrays) -> ImageRegions:
    """UNITER: features, norm_bb (x1, y1, x2, y2, w, h in shares), conf, optionally soft_labels."""
    return _regions(
        name,
        boxes=entry["norm_bb"][:, :4],
        features=entry["features"],
        confidence=entry["conf"],
        classes=entry.get("soft_labels"),
    )


# -- LMDB --------------------------------------------------------------------------------------------------------------


def _lmdb(path: Path) -> Iterator[Item]:
    lmdb = _need("lmdb")
    _refuse_damaged(path)
    with (
        convert_errors(f"{path}: not a readable LMDB", errors=lmdb.Error),
        lmdb.open(str(path), readonly=True, lock=False, readahead=False) as base,
        base.begin() as view,
    ):
        first = next((value for key, value in view.cursor() if key != b"__keys__"), b"")
        if view.get(b"keys") is not None or first[:1] == b"\x80":
            raise InputError(f"{path}: contains pickles (as from VOLTA, ViLBERT, MMF); {REFUSED}")
        for key in view.cursor().iternext(values=False):
            if key != b"__keys__":
                name = key.decode("utf-8", "replace").removesuffix(".npz")
                yield _item(name, "value", partial(_value, name, partial(view.get, key)))


_WALK = """
import lmdb, sys
with lmdb.open(sys.argv[1], readonly=True, lock=False) as base, base.begin(buffers=True) as view:
    size = (base.info()["last_pgno"] + 1) * base.stat()["psize"]
    there = int(sys.argv[2])
    number = 0
    if there < size:
        sys.exit(f"cut off, {there:,} of at least {size:,} bytes")
    for number, (key, value) in enumerate(view.cursor(), 1):
        bytes(key), bytes(value[:1]), bytes(value[-1:])
        if number > base.stat()["entries"]:
            sys.exit("its pages lead in a circle")
    if number < base.stat()["entries"]:
        sys.exit(f"{number:,} of {base.stat()['entries']:,} entries are found")
"""
"""Reads both ends of every value of an LMDB, and so every page on the way."""


def _refuse_damaged(path: Path) -> None:
    """Raises InputError if an LMDB is damaged: reading a damaged page crashes the process, so a
    subprocess tries it first. With -P it imports nothing from the working directory.
    """
    file = path / "data.mdb"
    size = str(file.stat().st_size)
    walk = [sys.executable, "-P", "-c", _WALK, str(path), size]
    ended = subprocess.run(walk, capture_output=True, text=True, errors="replace", check=False)
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:]
        reason = last[0][:MAX_QUOTED] if last and ended.returncode > 0 else "its pages are damaged"
        raise InputError(f"{file}: {reason}; copy it again")


def _value(name: str, read: Callable[[], bytes]) -> ImageRegions:
    """A value of UNITER's store: the bytes of an npz, or msgpack with
    arrays packed by msgpack-numpy.
    """
    value = read()
    if value[:2] == b"PK":
        return _npz(name, value)
    if value[:1] == b"\x80":
        raise InputError(REFUSED)
    return _uniter(name, _need("msgpack").unpackb(value, object_hook=_unpacked))


def _unpacked(entry: dict[Any, Any]) -> Any:
    plain = {key.decode() if isinstance(key, bytes) else key: value for key, value in entry.items()}
    if plain.get("nd") is not True:
        return plain
    dtype = np.dtype(plain["type"])
    return np.frombuffer(plain["data"], dtype).reshape(plain["shape"])  # raises for objects


# -- HDF5 --------------------------------------------------------------------------------------------------------------


def _hdf5(path: Path, ids: str | None) -> Iterator[Item]:
    h5py = _need("h5py")
    with convert_errors(f"{path}: not a readable HDF5 file"), h5py.File(path, "r") as content:
        if "image_features" in content:
            yield from _ban(path, content, ids)
        else:
            for name in content:
                yield _item(name, "group", partial(_volta, name, content))


def _own_member(group: Any, name: str) -> Any:
    """A group or data set; raises InputError if it is a link to, or stored in, another file."""
    h5py = _need("h5py")
    link = group.get(name, getlink=True)
    member = None if isinstance(link, h5py.ExternalLink) else group[name]
    is_data = isinstance(member, h5py.Dataset)
    if (
        member is None
        or member.file.filename != group.file.filename
        or (is_data and (member.external or member.is_virtual))
    ):
        raise InputError(
            f"{group.file.filename}: {name!r} lies in another file, which is not read; copy it into this one"
        )
    return member


def _ban(path: Path, content: Any, ids: str | None) -> Iterator[Item]:
    """BAN: image_features, image_bb, spatial_features; 36 boxes per image, or a variable
    number with pos_boxes (N, 2).
    """
    if ids == "":
        raise InputError(
            f"{path}: its rows have no ids; give --ids FILE (one a line, or json: a list, or id to row)"
        )
    flat = _own_member(content, "pos_boxes")[()] if "pos_boxes" in content else None
    if flat is not None and (flat.ndim != 2 or flat.shape[1] != 2):
        raise InputError(f"{path}: pos_boxes is {flat.shape}, expected (images, 2)")
    count = len(_own_member(content, "image_features") if flat is None else flat)
    for row, name in enumerate(_names(path, ids, count)):
        rows: int | slice = row
        if flat is not None:
            rows = slice(int(flat[row, 0]), int(flat[row, 1]))
        yield _item(name, f"row {row}", partial(_slice, name, content, rows))


def _names(path: Path, ids: str | None, count: int) -> list[str]:
    """The ids of BAN's images by row; raises InputError if their number differs from `count`."""
    if ids is None:
        return [str(row) for row in range(count)]
    listing = read_json(Path(ids)) if ids.endswith(".json") else lines_of(ids)
    if isinstance(listing, dict):
        rows = {row: str(name) for name, row in listing.items() if isinstance(row, int)}
        wrong = len(rows) != len(listing)
    elif isinstance(listing, list):
        rows = {row: str(name) for row, name in enumerate(listing)}
        wrong = False
    else:
        raise InputError(f"{ids}: expected a list of ids, or an object that maps ids to rows")
    if wrong or sorted(rows) != list(range(count)):
        raise InputError(f"{ids}: {len(listing)} ids, but {path} has rows for {count} images")
    return [rows[row] for row in range(count)]


def _slice(name: str, content: Any, rows: int | slice) -> ImageRegions:
    pixels = _own_member(content, "image_bb")[rows]
    shares = _own_member(content, "spatial_features")[rows][:, :4]
    # The image's size is the ratio of boxes in pixels and in shares; an empty box does not
    # determine it.
    with np.errstate(divide="ignore", invalid="ignore"):
        sides = np.median(pixels / shares, 0)
    width, height = (int(side) for side in np.rint(np.nan_to_num(sides, posinf=0))[2:])
    features = _own_member(content, "image_features")[rows]
    return _regions(name, shares, features, size=(width, height))


def _volta(name: str, content: Any) -> ImageRegions:
    """VOLTA: a group per image with img_h, img_w, num_boxes, boxes, features.

    Optional: cls_prob and objects_conf; some files encode them in base64.
    """
    group = _own_member(content, name)
    rows = int(_own_member(group, "num_boxes")[()])
    arrays: Arrays = {}
    for key in ("boxes", "features", "cls_prob", "objects_conf"):
        if key in group:
            value = _own_member(group, key)[()]
            packed = isinstance(value, bytes)
            arrays[key] = _array(value, rows) if packed else value.reshape(rows, -1)
    classes = arrays.get("cls_prob")
    return _regions(
        name,
        boxes=arrays["boxes"],
        features=arrays["features"],
        confidence=arrays.get("objects_conf", _best_class(classes)),
        classes=classes,
        pixels=(int(_own_member(group, "img_w")[()]), int(_own_member(group, "img_h")[()])),
    )


def _need(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"this layout needs the package {module}: pip install 'groundling[regions]'"
        ) from None

"""Imports region features in the field's file formats, recognised by content, and merges region stores.

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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.errors import InputError, convert_errors, convert_read_errors, first_line
from groundling.data.images import image_id
from groundling.data.regions.store import (
    BACKGROUND,
    CELLS,
    ImageRegions,
    Item,
    RegionStore,
    clip_boxes,
    first_fault,
)
from groundling.data.shards import MANIFEST
from groundling.data.tables import read_json_lines
from groundling.runs.folder import read_json
from groundling.settings.input_settings import DetectionSettings

LAYOUTS = """a TSV of bottom-up-attention (6 columns) or LXMERT (10), a folder with data.mdb (LMDB of UNITER), \
a folder of *.npz (UNITER) or *.json (VL-BERT), or region stores; pickles run code and are not read"""
VG_CLASSES = 1600
"""Number of Visual Genome's classes, as detected by bottom-up attention."""
VG = {"classes": VG_CLASSES, "background": "none; class 0 is the first line of objects_vocab.txt"}
SOFT = {"background": BACKGROUND}
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
        with convert_errors(f"ids_as {self.pattern}: invalid pattern", advice=f"; {PATTERN}"):
            ids = {self.pattern.format(subset="train2014", number=number) for number in (1, 2)}
        if len(ids) < 2:
            raise InputError(
                f"ids_as {self.pattern}: all images would have the id {ids.pop()}; {PATTERN}"
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
                raise InputError(f"no image in the jsonl files of `ids_as` is named {last}")
            return self.stills[last]
        ends_with = NUMBER.search(name)
        if ends_with is None:
            raise InputError("its id does not end with a number, which `ids_as` needs")
        number = int(ends_with[0])
        if self.files:
            if number not in self.files:
                raise InputError(f"no image in the json files of `ids_as` has the number {number}")
            return self.files[number]
        subset = SUBSET.search(name) or SUBSET.search(source.name)
        if subset is None and "{subset" in self.pattern:
            raise InputError(
                f"neither its id nor {source.name} names a subset such as train2014; write it into the pattern of "
                "`ids_as`, or pass COCO's json files"
            )
        return self.pattern.format(subset=subset[0] if subset else "", number=number)


def import_several(
    paths: Sequence[str | Path],
    ids_as: Sequence[str] = (),
    box_filter: DetectionSettings | None = None,
) -> tuple[dict[str, Any], Iterator[Item]]:
    """Like `import_regions`, for several sources of one layout, whose images may be
    renamed (see `ImageNames`), or for several region stores (see `merge_stores`).

    Of each image only the boxes that pass `box_filter` are kept (see `_best_boxes`). Also raises
    InputError if layouts differ.
    """
    if any((Path(path) / MANIFEST).is_file() for path in paths):
        if ids_as or box_filter is not None:
            raise InputError("`ids_as` and `filter_imports` apply to files, not to region stores")
        return merge_stores(paths)
    sources = [import_regions(path) for path in paths]
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
        opened = [(path, _filtered(items, box_filter)) for path, items in opened]
    return facts, _renamed(opened, names)


def _filtered(items: Iterator[Item], box_filter: DetectionSettings) -> Iterator[Item]:
    for name, read in items:
        yield name, partial(_best_boxes, read, box_filter)


def _best_boxes(read: Callable[[], ImageRegions], box_filter: DetectionSettings) -> ImageRegions:
    """The most confident boxes of an image, as many as are above the threshold, but between the
    minimum and the maximum number (ChenRocks/UNITER, data/data.py, `compute_num_bb`).

    The whole image is always kept, and is not counted.
    """
    regions = read()
    if not regions.has_confidence:
        raise InputError(
            "its boxes have no confidences to filter them by; leave `filter_imports` out"
        )
    whole = int(regions.has_whole_image)
    confident = int((regions.confidence[whole:] > box_filter.score_threshold).sum())
    kept = whole + min(box_filter.max_boxes, max(box_filter.min_boxes, confident))
    return regions.take(slice(kept))


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


def import_regions(path: str | Path) -> tuple[dict[str, Any], Iterator[Item]]:
    """Facts about a source for a manifest, and its images.

    Raises InputError if the source has no supported layout.
    """
    path = Path(path)
    layout, layout_facts, items = _open(path)
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


def _open(path: Path) -> tuple[str, dict[str, Any], Iterator[Item]]:
    """The name of a source's layout, the facts that all sources of the layout
    share, and the source's images.
    """
    if (path / "data.mdb").is_file():
        return "LMDB of UNITER", SOFT, _lmdb(path)
    if any(path.glob("*.npz")):
        return "npz of UNITER", SOFT, _files(path, "*.npz", _npz)
    if any(path.glob("*.json")):
        return "json of VL-BERT", SOFT, _files(path, "*.json", _vlbert)
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
        ) as error:  # the readers of five layouts raise many exceptions for damaged bytes
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


def _files(path: Path, pattern: str, read: Callable[[str, bytes], ImageRegions]) -> Iterator[Item]:
    """A folder's files, sorted by name."""

    def later(file: Path) -> Callable[[], ImageRegions]:
        return lambda: read(file.stem, file.read_bytes())

    for file in sorted(path.glob(pattern)):
        yield _item(file.stem, file.name, later(file))


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
    with (
        convert_errors(f"{path}: not a readable LMDB", errors=lmdb.Error),
        lmdb.open(str(path), readonly=True, lock=False, readahead=False) as base,
        base.begin() as view,
    ):
        size = (base.info()["last_pgno"] + 1) * base.stat()["psize"]
        if (path / "data.mdb").stat().st_size < size:  # reading on would end the process
            raise InputError(f"{path}: cut off; copy it again")
        for key in view.cursor().iternext(values=False):
            if key != b"__keys__":
                name = key.decode("utf-8", "replace").removesuffix(".npz")
                yield _item(name, "value", partial(_value, name, partial(view.get, key)))


def _value(name: str, read: Callable[[], bytes]) -> ImageRegions:
    """A value of UNITER's store: the bytes of an npz, or msgpack with
    arrays packed by msgpack-numpy.
    """
    value = read()
    if value[:2] == b"PK":
        return _npz(name, value)
    return _uniter(name, _need("msgpack").unpackb(value, object_hook=_unpacked))


def _unpacked(entry: dict[Any, Any]) -> Any:
    plain = {key.decode() if isinstance(key, bytes) else key: value for key, value in entry.items()}
    if plain.get("nd") is not True:
        return plain
    dtype = np.dtype(plain["type"])
    return np.frombuffer(plain["data"], dtype).reshape(plain["shape"])  # raises for objects


def _need(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"this layout needs the package {module}: pip install 'groundling[regions]'"
        ) from None


# -- region stores -----------------------------------------------------------------------------------------------------


def merge_stores(paths: Sequence[str | Path]) -> tuple[dict[str, Any], Iterator[Item]]:
    """Facts for a manifest, and the images of all stores, each with its regions of all of them.

    UNITER reads VCR in this way: annotated boxes, then detected ones. The whole-image regions of
    later stores are left out. An image that has another size in another store is skipped: it is
    another image. Raises InputError if different models made the stores' features.
    """
    stores = [RegionStore(path) for path in paths]
    for store in stores[1:]:
        if unlike := _unlike(stores[0], store):
            raise InputError(
                f"{stores[0].folder} and {store.folder}: {unlike}; expected the same kind of regions"
            )
    shared = {
        name: value
        for name, value in stores[0].manifest.items()
        if name not in ("counts", "shards")
        and all(store.manifest.get(name) == value for store in stores)
    }
    # A store of unknown origin matches any, so the others describe all.
    identified = next((store for store in stores if store.identity), stores[0])
    facts = {
        **shared,
        **identified.facts,
        "source": [str(path) for path in paths],
        "layout": "region stores, one behind the other",
    }
    ids = Counter(image for store in stores for image in store)
    facts["in_several_stores"] = sum(count > 1 for count in ids.values())
    return facts, ((image, partial(_merged, stores, image)) for image in ids)


def _unlike(first: RegionStore, other: RegionStore) -> str:
    """The difference that keeps a model from reading two stores as one; empty if there is none."""
    if first.width != other.width:
        return f"features have widths {first.width} and {other.width}"
    if (first.classes, first.background) != (other.classes, other.background):
        return f"regions have {_kinds(first)} and {_kinds(other)}"
    if first.identity and other.identity and first.identity != other.identity:
        return f"made by {first.origin} and by {other.origin}"
    return ""


def _kinds(store: RegionStore) -> str:
    if not store.classes:
        return "no classes"
    return f"{store.classes} classes {'with' if store.background else 'without'} background"


def _merged(stores: Sequence[RegionStore], image_id: str) -> ImageRegions:
    """The regions of an image, store after store; where some have segmentations, others' regions
    fill their boxes.
    """
    first, *others = [store.stored(image_id) for store in stores if image_id in store]
    sizes = {one.size for one in (first, *others) if all(one.size)}
    if len(sizes) > 1:
        raise InputError(f"has the sizes {sorted(sizes)}; give each image an id of its own")
    appended = [one.take(slice(int(one.has_whole_image), None)) for one in others]
    parts = [first, *appended]
    if any(store.has_segmentations for store in stores):
        parts = [_segmented(one) for one in parts]
    names = ("boxes", "confidence", "features", "classes", "segmentation")
    arrays: dict[str, list[Any]] = {name: [getattr(one, name) for one in parts] for name in names}
    together: dict[str, Any] = {
        name: np.concatenate(some) for name, some in arrays.items() if some[0] is not None
    }
    return replace(
        first,
        **together,
        left_out=sum(one.left_out for one in parts),
        appended_detections=first.appended_detections + sum(len(one.boxes) for one in appended),
    )


def _segmented(image: ImageRegions) -> ImageRegions:
    if image.segmentation is not None:
        return image
    return replace(image, segmentation=np.ones((len(image.boxes), CELLS, CELLS), bool))

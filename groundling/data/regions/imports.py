"""Imports region features in the field's file formats, recognised by content, and merges region stores.

Pickles are never loaded. Boxes, features, confidence and classes are imported, sorted by confidence; attributes in
LXMERT's files are ignored. An image is skipped, with a reason, if its id is repeated, its data are damaged, features
are not finite or all 0, a confidence or a class is out of range, or no box lies in the image.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.errors import InputError, convert_errors, convert_read_errors, prefix_errors
from groundling.data.images import image_id
from groundling.data.regions import BACKGROUND, CELLS, ImageRegions, Item, RegionStore, clip_boxes
from groundling.data.shards import MANIFEST
from groundling.data.tables import import_optional, read_json_lines
from groundling.runs.folder import read_json
from groundling.settings.input_settings import DetectionSettings

LAYOUTS = """a TSV of bottom-up-attention (6 columns) or LXMERT (10), a folder with data.mdb (LMDB of UNITER), \
a folder of *.npz (UNITER) or *.json (VL-BERT), or region stores; pickles run code and are not read"""
VG_CLASSES = 1600
"""Number of Visual Genome's classes, as detected by bottom-up attention."""
VG = {"classes": VG_CLASSES, "background": "none; class 0 is the first line of objects_vocab.txt"}
SOFT = {"background": BACKGROUND}
NUMBER = re.compile(r"\d{1,18}$")
"""The number at the end of an image's id."""
SUBSET = re.compile(r"(?<![a-z])(train|val|test)20\d\d(?!\d)")
"""COCO's subsets; a name with trainval2014 covers two of them, and does not match."""
STILL = re.compile(r"^vcr_(gt_)?(train|val|test)_")
"""The prefix that UNITER's store adds to the name of a VCR still."""
META = struct.Struct("<40xI92xQQ")
"""LMDB's meta page: bytes of a page, number of the last page, number of the transaction (mdb.c, MDB_meta)."""
Entry = tuple[str, str, Callable[[], ImageRegions]]
"""An image's name in a source, its place there, and a function that reads its regions."""
Rename = Callable[[str, Path], str]
"""From an image's name in a source, and the source, to its id in the store; raises an error if it has none."""


def read_names(specs: Sequence[str]) -> Rename:
    """The ids of imported images in a store, where they differ from the names in the source's files.

    `specs`: a pattern with `{number}` or `{subset}`; COCO's json files, whose images have `id` and
    `file_name`; or VCR's jsonl files: UNITER's store names a still by its split and the last part
    of its `img_fn`.
    """
    if all(path.endswith(".jsonl") for path in specs):
        stills = _read_stills(specs)
        return lambda name, _: stills[STILL.sub("", name)]
    if len(specs) > 1 or specs[0].endswith(".json"):
        files = {number: file for path in specs for number, file in _read_coco(Path(path))}
        return lambda name, _: files[_number(name)]
    return partial(_fill_pattern, specs[0])


def _read_coco(path: Path) -> Iterator[tuple[int, str]]:
    content = read_json(path)
    with convert_read_errors(path):
        for image in content["images"]:
            # Karpathy's json has other names for these fields.
            number = image["id"] if "id" in image else image["cocoid"]
            file = image["file_name"] if "file_name" in image else image["filename"]
            yield int(number), image_id(str(file))


def _read_stills(paths: Sequence[str]) -> dict[str, str]:
    stills: dict[str, str] = {}
    for path in paths:
        for where, line in read_json_lines(Path(path), ("img_fn",)):
            still = image_id(line["img_fn"])
            other = stills.setdefault(still.rpartition("/")[2], still)
            if other != still:
                raise InputError(f"{where}: {still} and {other} have the same file name")
    return stills


def _number(name: str) -> int:
    (digits,) = NUMBER.findall(name)
    return int(digits)


def _fill_pattern(pattern: str, name: str, source: Path) -> str:
    subset = SUBSET.search(name) or SUBSET.search(source.name)
    fields = {"number": _number(name)}
    return pattern.format_map(fields if subset is None else {**fields, "subset": subset[0]})


def import_regions(
    paths: Sequence[str | Path],
    ids_as: Sequence[str] = (),
    box_filter: DetectionSettings | None = None,
) -> tuple[dict[str, Any], Iterator[Item]]:
    """Facts about one or several sources of one layout for a manifest, and their images.

    `ids_as`: see `read_names`. Of each image only the boxes that pass `box_filter` are kept (see
    `_best_boxes`). Region stores are merged (see `merge_stores`).
    """
    if any((Path(path) / MANIFEST).is_file() for path in paths):
        if ids_as or box_filter is not None:
            raise InputError("`ids_as` and `filter_imports` apply to files, not to region stores")
        return merge_stores(paths)
    opened = [(Path(path), *_open(Path(path))) for path in paths]
    layouts = {facts["layout"]: facts for _, facts, _ in opened}
    if len(layouts) > 1:
        raise InputError(
            f"{' and '.join(map(str, paths))}: a {' and a '.join(layouts)}; make a store of each"
        )
    (layout,) = layouts.values()
    facts = {
        "source": str(paths[0]) if len(paths) == 1 else [str(path) for path in paths],
        **layout,
        "identity": hashlib.sha256(json.dumps(layout, sort_keys=True).encode()).hexdigest(),
        "made_by": f"imported: {layout['layout']}",
    }
    rename = read_names(ids_as) if ids_as else None
    images = (
        _item(path, found, rename, box_filter) for path, _, entries in opened for found in entries
    )
    return facts, images


def _item(
    source: Path, entry: Entry, rename: Rename | None, box_filter: DetectionSettings | None
) -> Item:
    name, where, read = entry
    new, fault = name, ""
    if rename is not None:
        try:
            with convert_errors(f"`ids_as` gives no id to an image of {source.name}"):
                new = rename(name, source)
        except InputError as error:
            fault = str(error)

    def regions() -> ImageRegions:
        if fault:
            raise InputError(fault)
        with prefix_errors(where), convert_errors("damaged, or of another layout"):
            found = replace(read(), id=new)
        return found if box_filter is None else _best_boxes(found, box_filter)

    return new, regions


def _best_boxes(regions: ImageRegions, box_filter: DetectionSettings) -> ImageRegions:
    """The most confident boxes of an image, within limits (ChenRocks/UNITER, data/data.py, `compute_num_bb`).

    The whole image is always kept, and is not counted.
    """
    if not regions.has_confidence:
        raise InputError("no confidences for `filter_imports`")
    whole = int(regions.has_whole_image)
    confident = int((regions.confidence[whole:] > box_filter.score_threshold).sum())
    kept = whole + min(box_filter.max_boxes, max(box_filter.min_boxes, confident))
    return regions.take(slice(kept))


def _open(path: Path) -> tuple[dict[str, Any], Iterator[Entry]]:
    if (path / "data.mdb").is_file():
        return {"layout": "LMDB of UNITER", **SOFT}, _lmdb(path)
    if any(path.glob("*.npz")):
        return {"layout": "npz of UNITER", **SOFT}, _files(path, "*.npz", _npz)
    if any(path.glob("*.json")):
        return {"layout": "json of VL-BERT", **SOFT}, _files(path, "*.json", _vlbert)
    columns = 0
    if path.is_file():
        with convert_read_errors(path), path.open("rb") as stream:
            columns = stream.readline().count(b"\t") + 1
    if columns == 10:
        return {"layout": "TSV of LXMERT", **VG}, _tsv(path, _lxmert)
    if columns == 6:
        return {"layout": "TSV of bottom-up-attention"}, _tsv(path, _bottom_up)
    raise InputError(f"{path}: nothing to import; expected {LAYOUTS}")


TINY = 6e-8
"""About the smallest number above 0 in half precision."""


def _regions(
    name: str,
    boxes: np.ndarray,
    features: np.ndarray,
    confidence: np.ndarray | None = None,
    classes: np.ndarray | None = None,
    size: tuple[int, int] | None = None,
) -> ImageRegions:
    boxes = np.asarray(boxes, np.float32)
    if size is not None:
        if len(boxes) and min(size) > 1 and boxes.max() <= 1:
            raise InputError("expected boxes in pixels, not shares of the image")
        boxes = boxes / np.array([*size, *size], np.float32)
    sure = np.ones(len(boxes), np.float32) if confidence is None else confidence.reshape(-1)
    lengths = {len(one) for one in (boxes, features, sure, classes) if one is not None}
    if features.ndim != 2 or boxes.shape[1:] != (4,) or len(lengths) > 1:
        raise InputError(f"{len(boxes)} boxes, but features {features.shape} or others")
    if features.size and np.abs(features).max() < TINY:
        raise InputError("all features are 0 in half precision")
    clipped, valid = clip_boxes(boxes)
    if not valid.any():
        raise InputError(f"all {len(boxes)} boxes are empty or outside the image")
    order = np.argsort(-sure, kind="stable")
    order = order[valid[order]]
    return ImageRegions(
        id=name,
        size=size or (0, 0),
        boxes=clipped[order],
        confidence=sure[order],
        features=features[order],
        classes=None if classes is None else classes[order],
        left_out=int((~valid).sum()),
        has_confidence=confidence is not None,
    )


def _array(text: str | bytes, rows: int, dtype: str = "<f4") -> np.ndarray:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype).reshape(rows, -1)


# -- tab-separated -----------------------------------------------------------------------------------------------------


def _tsv(path: Path, read: Callable[[str, list[bytes]], ImageRegions]) -> Iterator[Entry]:
    with convert_read_errors(path), path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            fields = line.rstrip(b"\r\n").split(b"\t")
            name = fields[0].decode("utf-8-sig", "replace")
            yield name, f"line {number}", partial(read, name, fields)


def _bottom_up(name: str, fields: list[bytes]) -> ImageRegions:
    _, width, height, count, boxes, features = fields
    rows = int(count)
    return _regions(
        name, _array(boxes, rows), _array(features, rows), size=(int(width), int(height))
    )


def _lxmert(name: str, fields: list[bytes]) -> ImageRegions:
    _, height, width, objects, confidence, _, _, count, boxes, features = fields
    rows = int(count)
    classes = _array(objects, rows, "<i8")[:, 0]
    if len(classes) and not 0 <= classes.min() <= classes.max() < VG_CLASSES:
        raise InputError(f"an object's class is outside 0..{VG_CLASSES - 1}")
    return _regions(
        name,
        boxes=_array(boxes, rows),
        features=_array(features, rows),
        confidence=_array(confidence, rows),
        classes=classes,
        size=(int(width), int(height)),
    )


# -- a file per image --------------------------------------------------------------------------------------------------


def _files(path: Path, pattern: str, read: Callable[[str, bytes], ImageRegions]) -> Iterator[Entry]:
    for file in sorted(path.glob(pattern)):
        later = partial(lambda file: read(file.stem, file.read_bytes()), file)
        yield file.stem, file.name, later


def _vlbert(name: str, content: bytes) -> ImageRegions:
    """VL-BERT: confidence is the probability of the best class but background (column 0); arrays are in base64."""
    entry = json.loads(content)
    rows = int(entry["num_boxes"])
    classes = _array(entry["classes"], rows) if "classes" in entry else None
    regions = _regions(
        name,
        boxes=_array(entry["boxes"], rows),
        features=_array(entry["features"], rows),
        confidence=None if classes is None else classes[:, 1:].max(1),
        classes=classes,
        size=(int(entry["image_w"]), int(entry["image_h"])),
    )
    if "image_box_feature" not in entry:
        return regions
    return regions.with_whole(_array(entry["image_box_feature"], 1))


def _npz(name: str, content: bytes) -> ImageRegions:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return _uniter(name, {key: arrays[key] for key in arrays.files})


def _uniter(name: str, entry: dict[str, np.ndarray]) -> ImageRegions:
    """UNITER: features, norm_bb (x1, y1, x2, y2, w, h in shares), conf, optionally soft_labels."""
    return _regions(
        name,
        boxes=entry["norm_bb"][:, :4],
        features=entry["features"],
        confidence=entry["conf"],
        classes=entry.get("soft_labels"),
    )


# -- LMDB --------------------------------------------------------------------------------------------------------------


def _lmdb(path: Path) -> Iterator[Entry]:
    lmdb: Any = import_optional("lmdb", path, "regions")
    with convert_read_errors(path):
        size = _check_lmdb_size(path / "data.mdb")
    with (
        convert_errors(f"{path}: not a readable LMDB", errors=lmdb.Error),
        lmdb.open(str(path), readonly=True, lock=False, readahead=False) as base,
        base.begin(buffers=True) as view,
    ):
        for key in map(bytes, view.cursor().iternext(values=False)):
            if key != b"__keys__":
                name = key.decode("utf-8", "replace").removesuffix(".npz")
                yield name, "value", partial(_value, path, name, partial(_view, view, key, size))


def _check_lmdb_size(path: Path) -> int:
    """Returns a database's bytes; raises InputError if pages are missing, as reading them would end the process."""
    with path.open("rb") as stream:
        pages = []
        for start in (0, META.unpack_from(stream.read(META.size))[0]):
            stream.seek(start)
            pages.append(META.unpack(stream.read(META.size)))
    size = path.stat().st_size
    if pages[0][0] != pages[1][0] or size < (1 + max(pages, key=itemgetter(2))[1]) * pages[0][0]:
        raise InputError(f"{path}: cut off or damaged; copy it again")
    return size


def _view(view: Any, key: bytes, limit: int) -> bytes:
    value = view.get(key)
    if len(value) > limit:
        raise InputError("damaged: a value longer than its file")
    return bytes(value)


def _value(path: Path, name: str, read: Callable[[], bytes]) -> ImageRegions:
    """A value of UNITER's store: the bytes of an npz, or msgpack with arrays packed by msgpack-numpy."""
    value = read()
    if value[:2] == b"PK":
        return _npz(name, value)
    msgpack: Any = import_optional("msgpack", path, "regions")
    return _uniter(name, msgpack.unpackb(value, object_hook=_unpacked))


def _unpacked(entry: dict[Any, Any]) -> Any:
    plain = {key.decode() if isinstance(key, bytes) else key: value for key, value in entry.items()}
    if plain.get("nd") is not True:
        return plain
    dtype = np.dtype(plain["type"])
    return np.frombuffer(plain["data"], dtype).reshape(plain["shape"])  # raises for objects


# -- region stores -----------------------------------------------------------------------------------------------------


def merge_stores(paths: Sequence[str | Path]) -> tuple[dict[str, Any], Iterator[Item]]:
    """Facts for a manifest, and the images of all stores, each with its regions of all of them.

    UNITER reads VCR in this way: annotated boxes, then detected ones. The whole-image regions of
    later stores are left out. An image that has another size in another store is skipped: it is
    another image. Raises InputError if different models made the stores' features.
    """
    stores = [RegionStore(path) for path in paths]
    kinds = {(store.width, store.classes, store.background) for store in stores}
    origins = {store.identity for store in stores if store.identity}
    if len(kinds) > 1 or len(origins) > 1:
        names = " and ".join(str(path) for path in paths)
        raise InputError(f"{names}: expected features of one model, and classes of one detector")
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
        **identified.provenance,
        "source": [str(path) for path in paths],
        "layout": "region stores, one behind the other",
    }
    ids = Counter(image for store in stores for image in store)
    facts["in_several_stores"] = sum(count > 1 for count in ids.values())
    return facts, ((image, partial(_merged, stores, image)) for image in ids)


def _merged(stores: Sequence[RegionStore], image_id: str) -> ImageRegions:
    """The regions of an image, store after store; where some have segmentations, others' regions fill their boxes."""
    first, *others = [store.stored(image_id) for store in stores if image_id in store]
    sizes = {one.size for one in (first, *others) if all(one.size)}
    if len(sizes) > 1:
        raise InputError(f"has the sizes {sorted(sizes)}, so these are several images")
    appended = [one.take(slice(int(one.has_whole_image), None)) for one in others]
    parts = [first, *appended]
    if any(store.has_segmentations for store in stores):
        for place, one in enumerate(parts):
            if one.segmentation is None:
                whole = np.ones((len(one.boxes), CELLS, CELLS), bool)
                parts[place] = replace(one, segmentation=whole)
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

"""Region features as the field stores them, each layout told by its content; nothing is unpickled.

Boxes, features, confidence and classes are taken over, sorted by confidence; attributes of LXMERT's files are not.
"""

from __future__ import annotations

import base64
import importlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from groundling.data.regions import BACKGROUND, Found, Item, inside
from groundling.data.tables import lines_of
from groundling.errors import InputError
from groundling.runs import read_json

LAYOUTS = """a TSV of bottom-up-attention (6 columns) or LXMERT (10), .h5 or .hdf5, a folder with data.mdb (LMDB), \
a folder of *.npz (UNITER) or *.json (VL-BERT), or a .zip of such json"""
PICKLED = {".pkl", ".pickle", ".p", ".pth", ".pt", ".th", ".npy", ".bin"}
REFUSED = "pickles run code when read, so they are not; take the TSV or HDF5 that the same features come in"
VG = {"classes": 1600, "background": "none; class 0 is the first line of objects_vocab.txt"}
SOFT = {"background": BACKGROUND}


def import_regions(path: str | Path, ids: str | None = "") -> tuple[dict[str, Any], Iterator[Item]]:
    """What is known of a source, and its images; `ids` is a file (text or json) of ids by row for BAN's HDF5.

    With None its images are called by their rows, which is enough to see what is wrong with them.
    """
    path = Path(path)
    about: dict[str, Any] = {"source": str(path), "model": "as the source says"}
    if path.suffix in PICKLED:
        raise InputError(f"{path}: {REFUSED}")
    if (path / "data.mdb").is_file():
        return about | SOFT | {"layout": "LMDB of UNITER"}, _lmdb(path)
    if any(path.glob("*.npz")):
        return about | SOFT | {"layout": "npz of UNITER"}, _files(
            path, ".npz", lambda n, p: _npz(n, io.BytesIO(p()))
        )
    if any(path.glob("*.json")) or path.suffix == ".zip":
        return about | SOFT | {"layout": "json of VL-BERT"}, _files(path, ".json", _vlbert)
    if path.suffix in {".h5", ".hdf5"}:
        return about | SOFT | {"layout": "HDF5"}, _hdf5(path, ids)
    if not path.is_file():
        raise InputError(f"{path}: nothing to import there; expected {LAYOUTS}")
    with path.open("rb") as stream:
        first = stream.readline().rstrip(b"\r\n").split(b"\t")
    sizes = {6: first[1:4], 10: first[1:3] + first[7:8]}.get(len(first), [b""])
    if not all(f.strip().isdigit() for f in sizes):
        raise InputError(
            f"{path}, line 1: {len(first)} columns, not those of region features; expected {LAYOUTS}"
        )
    if len(first) == 10:
        return about | VG | {"layout": "TSV of LXMERT"}, _tsv(path, 10)
    return about | {"layout": "TSV of bottom-up-attention"}, _tsv(path, 6)


def _item(name: str, where: str, read: Callable[..., Found], *arguments: Any) -> Item:
    """An image to read later; whatever is wrong with it becomes one line."""

    def safely() -> Found:
        try:
            return read(name, *arguments)
        except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
            plain = isinstance(error, InputError)
            raise InputError(
                f"{where}: {error if plain else f'damaged, or another layout ({error})'}"
            ) from None

    return name, safely


def _found(
    name: str,
    boxes: np.ndarray,
    features: np.ndarray,
    confidence: np.ndarray | None = None,
    classes: np.ndarray | None = None,
    pixels: tuple[int, int] | None = None,
    size: tuple[int, int] = (0, 0),
) -> Found:
    """An image's regions, sorted and cut; boxes (R, 4) in shares, or in pixels of an image of size `pixels`."""
    boxes = np.asarray(boxes, np.float32)
    if pixels is not None:
        if min(pixels) < 1:
            raise InputError(f"image of {pixels[0]}x{pixels[1]} pixels")
        boxes, size = boxes / np.array([*pixels, *pixels], np.float32), pixels
    confidence = np.ones(len(boxes), np.float32) if confidence is None else confidence.reshape(-1)
    lengths = {len(a) for a in (boxes, features, confidence, classes) if a is not None}
    if features.ndim != 2 or boxes.ndim != 2 or boxes.shape[1] != 4 or len(lengths) > 1:
        raise InputError(
            f"boxes {boxes.shape}, features {features.shape}, confidence {confidence.shape} do not fit"
        )
    cut, kept = inside(boxes)
    order = np.argsort(-confidence, kind="stable")
    order = order[kept[order]]
    if not len(order):
        raise InputError(f"none of {len(boxes)} boxes lies in the image and has an area")
    own = None if classes is None else classes[order]
    return Found(
        name, size, cut[order], confidence[order], features[order], own, left_out=int((~kept).sum())
    )


def _array(text: str | bytes, rows: int, kind: str = "<f4") -> np.ndarray:
    """Base64 of little-endian numbers: (rows, columns)."""
    return np.frombuffer(base64.b64decode(text, validate=True), kind).reshape(rows, -1)


def _sure(classes: np.ndarray | None) -> np.ndarray | None:
    """A detector's confidence: its best class, background (column 0) aside."""
    return None if classes is None else classes[:, 1:].max(1)


def _tsv(path: Path, columns: int) -> Iterator[Item]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            fields = line.rstrip(b"\r\n").split(b"\t")
            name = (
                fields[0].decode("utf-8", "replace")
                if len(fields) == columns
                else f"cut row {number}"
            )
            yield _item(name, f"line {number}", _row, fields, columns)


def _row(name: str, fields: list[bytes], columns: int) -> Found:
    """Bottom-up-attention: image_id, image_w, image_h, num_boxes, boxes, features.

    LXMERT: img_id, img_h, img_w, objects_id, objects_conf, attrs_id, attrs_conf, num_boxes, boxes, features.
    """
    if len(fields) != columns:
        raise InputError(f"{len(fields)} columns, expected {columns}; the row is cut off")
    if columns == 6:
        w, h, n = (int(fields[at]) for at in (1, 2, 3))
        return _found(name, _array(fields[4], n), _array(fields[5], n), pixels=(w, h))
    h, w, n = (int(fields[at]) for at in (1, 2, 7))
    kind, sure = _array(fields[3], n, "<i8")[:, 0], _array(fields[4], n)
    return _found(name, _array(fields[8], n), _array(fields[9], n), sure, kind, pixels=(w, h))


def _files(
    path: Path, suffix: str, read: Callable[[str, Callable[[], bytes]], Found]
) -> Iterator[Item]:
    """A folder's files or a zip's members, by name."""
    if path.is_dir():
        for file in sorted(path.glob(f"*{suffix}")):
            yield _item(file.stem, file.name, read, file.read_bytes)
        return
    try:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(n for n in archive.namelist() if n.endswith(suffix)):
                yield _item(Path(name).stem, name, read, partial(archive.read, name))
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a readable zip file ({error})") from None


def _vlbert(name: str, read: Callable[[], bytes]) -> Found:
    """VL-BERT: image_w, image_h, num_boxes, boxes, features, and maybe classes, image_box_feature (base64)."""
    entry = json.loads(read())
    size, n = (int(entry["image_w"]), int(entry["image_h"])), int(entry["num_boxes"])
    classes = _array(entry["classes"], n) if "classes" in entry else None
    features = _array(entry["features"], n)
    found = _found(name, _array(entry["boxes"], n), features, _sure(classes), classes, pixels=size)
    return (
        found.with_whole(_array(entry["image_box_feature"], 1))
        if "image_box_feature" in entry
        else found
    )


def _npz(name: str, file: io.BytesIO) -> Found:
    with np.load(file, allow_pickle=False) as content:
        return _uniter(name, {key: content[key] for key in content.files})


def _uniter(name: str, entry: dict[str, np.ndarray]) -> Found:
    """UNITER: features, norm_bb (x1, y1, x2, y2, w, h in shares), conf, and maybe soft_labels."""
    return _found(
        name, entry["norm_bb"][:, :4], entry["features"], entry["conf"], entry.get("soft_labels")
    )


def _lmdb(path: Path) -> Iterator[Item]:
    lmdb = _need("lmdb")
    try:
        with (
            lmdb.open(str(path), readonly=True, lock=False, readahead=False) as base,
            base.begin() as view,
        ):
            first = next((value for key, value in view.cursor() if key != b"__keys__"), b"")
            if view.get(b"keys") is not None or first[:1] == b"\x80":
                raise InputError(f"{path}: holds pickles (as VOLTA, ViLBERT, MMF); {REFUSED}")
            for key in view.cursor().iternext(values=False):
                if key != b"__keys__":
                    name = key.decode("utf-8", "replace").removesuffix(".npz")
                    yield _item(name, "value", _value, partial(view.get, key))
    except lmdb.Error as error:
        raise InputError(f"{path}: not a readable LMDB ({error})") from None


def _value(name: str, read: Callable[[], bytes]) -> Found:
    """UNITER's value: the bytes of an npz, or msgpack with arrays as msgpack-numpy packs them."""
    value = read()
    if value[:2] == b"PK":
        return _npz(name, io.BytesIO(value))
    if value[:1] == b"\x80":
        raise InputError(REFUSED)
    return _uniter(name, _need("msgpack").unpackb(value, object_hook=_unpacked))


def _unpacked(entry: dict[Any, Any]) -> Any:
    plain = {key.decode() if isinstance(key, bytes) else key: value for key, value in entry.items()}
    if plain.get("nd") is not True:
        return plain
    return np.frombuffer(plain["data"], np.dtype(plain["type"])).reshape(
        plain["shape"]
    )  # refuses objects


def _hdf5(path: Path, ids: str | None) -> Iterator[Item]:
    try:
        with _need("h5py").File(path, "r") as content:
            if "image_features" in content:
                yield from _ban(path, content, ids)
            else:
                for name in content:
                    yield _item(name, "group", _volta, content[name])
    except OSError as error:
        raise InputError(f"{path}: not a readable HDF5 file ({error})") from None


def _ban(path: Path, content: Any, ids: str | None) -> Iterator[Item]:
    """BAN: image_features, image_bb, spatial_features; 36 boxes an image, or flat with pos_boxes (N, 2)."""
    if ids == "":
        raise InputError(
            f"{path}: its rows have no ids; give --ids FILE (one a line, or json: a list, or id to row)"
        )
    flat = content["pos_boxes"][()] if "pos_boxes" in content else None
    count = len(content["image_features"] if flat is None else flat)
    names: Any = range(count)
    if ids is not None:
        names = read_json(Path(ids)) if ids.endswith(".json") else lines_of(ids)
    rows = names if isinstance(names, dict) else {name: row for row, name in enumerate(names)}
    if sorted(rows.values()) != list(range(count)):
        raise InputError(f"{ids}: {len(rows)} ids, but {path} has rows for {count} images")
    for name, row in sorted(rows.items(), key=lambda pair: pair[1]):
        yield _item(
            str(name),
            f"row {row}",
            _slice,
            content,
            row if flat is None else slice(*map(int, flat[row])),
        )


def _slice(name: str, content: Any, at: Any) -> Found:
    pixels, shares = content["image_bb"][at], content["spatial_features"][at][:, :4]
    with np.errstate(
        divide="ignore", invalid="ignore"
    ):  # an empty box says nothing of the image's size
        width, height = (
            int(side)
            for side in np.rint(np.nan_to_num(np.median(pixels / shares, 0), posinf=0))[2:]
        )
    return _found(name, shares, content["image_features"][at], size=(width, height))


def _volta(name: str, group: Any) -> Found:
    """VOLTA: a group per image with img_h, img_w, num_boxes, boxes, features; cls_prob, objects_conf (maybe base64)."""
    rows = int(group["num_boxes"][()])
    fields = {
        key: group[key][()]
        for key in ("boxes", "features", "cls_prob", "objects_conf")
        if key in group
    }
    own = {
        k: _array(v, rows) if isinstance(v, bytes) else v.reshape(rows, -1)
        for k, v in fields.items()
    }
    classes, size = own.get("cls_prob"), (int(group["img_w"][()]), int(group["img_h"][()]))
    return _found(
        name,
        own["boxes"],
        own["features"],
        own.get("objects_conf", _sure(classes)),
        classes,
        pixels=size,
    )


def _need(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"this layout needs the package {module}: pip install 'groundling[regions]'"
        ) from None

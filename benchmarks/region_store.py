"""Compare the region store with the formats that it imports: bytes per image, and random reads of images per second.

A read returns features (R, 2048) and boxes (R, 4), relative to the image's size, as float32 arrays (the store also
returns confidence and, from LXMERT's TSV, classes). The formats alternate and read the same images in the same random
order, from the page cache, where the size of a format costs nothing. TSV is read through an index of byte offsets.
Without --tsv the features are made up: ReLU of normal numbers, so half of them are zeros, as in fc6.

python benchmarks/region_store.py [--images 300] [--tsv FILE]
"""

from __future__ import annotations

import argparse
import base64
import importlib
import io
import tempfile
import time
from collections.abc import Callable
from copy import copy
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from groundling.core.rng import generator
from groundling.data.regions import ImageRegions, RegionStore, RegionWriter
from groundling.data.regions.imports import import_regions

Arrays = tuple[np.ndarray, np.ndarray]
Read = Callable[[str], Arrays]


def write_tsv(path: Path, images: int, regions: int) -> None:
    """Write LXMERT's rows: id, height, width, object and attribute ids and confidences, count, boxes, features."""
    with path.open("w", encoding="ascii") as stream:
        for image in range(images):
            rng = generator("benchmark", image)
            corner = rng.random((regions, 2)) * 300
            far = corner + rng.uniform(20, 180, (regions, 2))
            boxes = np.concatenate([corner, far], 1).astype("<f4")
            confidence = np.sort(rng.random(regions))[::-1].astype("<f4")
            classes = rng.integers(0, 400, regions)
            features = rng.standard_normal((regions, 2048), np.float32).clip(0)
            fields = [f"image-{image}", "480", "480"]
            fields += [_base64(array) for array in (classes, confidence, classes, confidence)]
            fields += [str(regions), _base64(boxes), _base64(features)]
            stream.write("\t".join(fields) + "\n")


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def bytes_of(path: Path) -> int:
    """Bytes of a file or folder; of a sparse file (LMDB's) only the filled blocks."""
    files = [path]
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
    return sum(min(file.stat().st_size, 512 * file.stat().st_blocks) for file in files)


class Tsv:
    """Random access to a TSV of bottom-up-attention (6 columns) or LXMERT (10); their last columns are the same."""

    def __init__(self, path: Path, images: int) -> None:
        self.stream = path.open("rb")
        self.offsets: dict[str, int] = {}
        self.size = 0
        for line in islice(self.stream, images):
            name = line[: line.index(b"\t")].decode()
            self.offsets[name] = self.size
            self.size += len(line)

    def __call__(self, name: str) -> Arrays:
        """An image's features and boxes."""
        self.stream.seek(self.offsets[name])
        fields = self.stream.readline().split(b"\t")
        width, height = fields[1], fields[2]
        if len(fields) == 10:
            width, height = height, width
        rows = int(fields[-3])
        boxes, features = (
            np.frombuffer(base64.b64decode(field), np.float32).reshape(rows, -1)
            for field in fields[-2:]
        )
        sides = np.array([float(width), float(height)] * 2, np.float32)
        return features, boxes / sides


def hdf5_groups(path: Path, images: list[ImageRegions]) -> Read:
    """VOLTA's layout: a group per image, float32."""
    h5py: Any = importlib.import_module("h5py")
    with h5py.File(path, "w") as file:
        for image in images:
            group = file.create_group(image.id)
            group["features"] = image.features
            group["boxes"] = image.boxes
    opened = h5py.File(path)
    return lambda name: (opened[name]["features"][()], opened[name]["boxes"][()])


def hdf5_flat(path: Path, images: list[ImageRegions]) -> Read:
    """BAN's layout for adaptive boxes: all regions in one float32 data set, with each image's slice."""
    h5py: Any = importlib.import_module("h5py")
    with h5py.File(path, "w") as file:
        file["image_features"] = np.concatenate([image.features for image in images])
        file["spatial_features"] = np.concatenate([image.boxes for image in images])
    opened = h5py.File(path)
    features = opened["image_features"]
    boxes = opened["spatial_features"]
    places = {}
    start = 0
    for image in images:
        places[image.id] = slice(start, start + len(image.boxes))
        start += len(image.boxes)
    return lambda name: (features[places[name]], boxes[places[name]])


def packed(image: ImageRegions) -> bytes:
    """UNITER's npz: half precision, compressed."""
    sides = image.boxes[:, 2:] - image.boxes[:, :2]
    arrays = {
        "features": image.features,
        "norm_bb": np.concatenate([image.boxes, sides], 1),
        "conf": image.confidence,
    }
    halves = {name: array.astype(np.float16) for name, array in arrays.items()}
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **halves)
    return file.getvalue()


def unpacked(file: Path | IO[bytes]) -> Arrays:
    """An image's features and boxes from UNITER's npz."""
    with np.load(file, allow_pickle=False) as content:
        return content["features"].astype(np.float32), content["norm_bb"][:, :4].astype(np.float32)


def npz(folder: Path, images: list[ImageRegions]) -> Read:
    """UNITER's layout before its LMDB: a file per image."""
    folder.mkdir()
    for image in images:
        (folder / f"{image.id}.npz").write_bytes(packed(image))
    return lambda name: unpacked(folder / f"{name}.npz")


def lmdb_npz(folder: Path, images: list[ImageRegions]) -> Read:
    """UNITER's LMDB, whose values are these npz files."""
    lmdb: Any = importlib.import_module("lmdb")
    with lmdb.open(str(folder), map_size=2**36) as base, base.begin(write=True) as view:
        for image in images:
            view.put(f"{image.id}.npz".encode(), packed(image))
    opened = lmdb.open(str(folder), readonly=True, lock=False, readahead=False)
    view = opened.begin()
    return lambda name: unpacked(io.BytesIO(view.get(f"{name}.npz".encode())))


FORMATS: dict[str, Callable[[Path, list[ImageRegions]], Read]] = {
    "HDF5, group an image": hdf5_groups,
    "HDF5, flat": hdf5_flat,
    "npz, compressed fp16": npz,
    "LMDB of such npz": lmdb_npz,
}


def options_of() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--regions", type=int, default=36, help="regions per made-up image")
    parser.add_argument(
        "--rounds", type=int, default=3, help="how many times every image is read in every format"
    )
    parser.add_argument("--tsv", type=Path, help="a real TSV; its first --images rows are read")
    return parser.parse_args()


def main() -> None:
    """Write every format, time them in alternation, and print a table."""
    options = options_of()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = options.tsv or folder / "made-up.tsv"
        if not options.tsv:
            write_tsv(source, options.images, options.regions)
        images, reads, sizes = write_formats(source, folder, options.images)
        names = [image.id for image in images]
        seconds = race(reads, names, options.rounds, exact=not options.tsv)
    regions = sum(len(image.boxes) for image in images)
    print(f"{len(images)} images, {regions / len(images):.1f} regions each")
    print(f"{'':22}{'bytes/image':>12}{'of the store':>14}{'reads/s':>9}{'store is faster by':>20}")
    count = options.rounds * len(images)
    for name, spent in seconds.items():
        bytes_each = sizes[name] / len(images)
        share = sizes[name] / sizes["region store"]
        faster = spent / seconds["region store"]
        print(f"{name:22}{bytes_each:12.0f}{share:14.2f}{count / spent:9.0f}{faster:20.2f}")


def write_formats(
    source: Path, folder: Path, count: int
) -> tuple[list[ImageRegions], dict[str, Read], dict[str, int]]:
    """The first `count` images of a TSV in every format below `folder`: images, readers and bytes by format."""
    facts, items = import_regions([source])
    images = [read() for _, read in islice(items, count)]
    writer = RegionWriter(folder / "store")
    writer.fill((image.id, partial(copy, image)) for image in images)
    writer.close(facts)
    store = RegionStore(folder / "store")
    tsv = Tsv(source, count)

    def stored(name: str) -> Arrays:
        row = store[name]
        return row.features, row.boxes

    reads: dict[str, Read] = {"region store": stored, "TSV, byte offsets": tsv}
    sizes = {"region store": bytes_of(folder / "store"), "TSV, byte offsets": tsv.size}
    for number, (name, make) in enumerate(FORMATS.items()):
        try:
            reads[name] = make(folder / str(number), images)
        except ImportError as error:
            print(f"{name}: skipped, {error}")
            continue
        sizes[name] = bytes_of(folder / str(number))
    return images, reads, sizes


def race(reads: dict[str, Read], names: list[str], rounds: int, exact: bool) -> dict[str, float]:
    """Seconds of every format for all images, `rounds` times, each time in a new order, after one warm-up round.

    With `exact`, all formats must return the same arrays, up to half precision (a real TSV may have boxes that the
    store skips or puts in another order).
    """
    seconds = dict.fromkeys(reads, 0.0)
    for number in range(rounds + 1):
        places = generator("benchmark", "order", number).permutation(len(names))
        order = [names[at] for at in places]
        for name, read in reads.items():
            started = time.perf_counter()
            for image in order:
                features, boxes = read(image)
            if number:
                seconds[name] += time.perf_counter() - started
            assert features.dtype == boxes.dtype == np.float32
            if exact:
                expected = reads["region store"](order[-1])
                for one, other in zip((features, boxes), expected, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
    return seconds


if __name__ == "__main__":
    main()

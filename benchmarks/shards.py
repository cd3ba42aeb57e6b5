"""Compare reading images from tar shards in a run's random order with webdataset's shuffled reading of the same tars.

Shards are as img2dataset writes them: KEY.jpg, KEY.txt and KEY.json. Both ways alternate in one process and make the
same of a sample: an RGB array and its caption. groundling reads any sample at any time, so that a run is a function of
seed and step; webdataset reads shards in random order through a buffer, and needs each shard only once. Without
webdataset (pip install webdataset), groundling's figures are printed alone.

python benchmarks/shards.py [--samples 2000] [--shards 20] [--side 256] [--rounds 3]
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import resource
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from corpus import run_in_new_process
from PIL import Image, ImageFilter

from groundling.core.rng import generator
from groundling.data.captions import tar_captions
from groundling.data.images import read_image
from groundling.settings.input_settings import CaptionSettings

Captioned = tuple[np.ndarray, str]
BUFFER = 1000
"""Samples among which webdataset draws, as in open_clip's order of magnitude."""


def write_shards(folder: Path, samples: int, shards: int, side: int) -> None:
    """Write soft noise, whose jpgs are about as large as those of photographs of this size."""
    folder.mkdir(parents=True)
    for shard in range(shards):
        with tarfile.open(folder / f"{shard:05}.tar", "w") as opened:
            for number in range(shard, samples, shards):
                key = f"{shard:05}{number:07}"
                colours = generator("shards", number).integers(0, 256, (side, side, 3), np.uint8)
                image = Image.fromarray(colours).filter(ImageFilter.GaussianBlur(1.5))
                jpg = io.BytesIO()
                image.save(jpg, "JPEG", quality=90)
                caption = f"caption {number} of a photograph with some more words in it"
                facts = {"caption": caption, "key": key, "status": "success"}
                parts = {"jpg": jpg.getvalue(), "txt": caption.encode()}
                for ending, content in (*parts.items(), ("json", json.dumps(facts).encode())):
                    member = tarfile.TarInfo(f"{key}.{ending}")
                    member.size = len(content)
                    opened.addfile(member, io.BytesIO(content))


def list_shards(folder: Path) -> list[tuple[Path, str]]:
    """Each sample's image and caption, as the store of tokens keeps them."""
    rows = tar_captions(folder, CaptionSettings())
    return [(folder / row.file, row.caption) for row in rows]


def with_groundling(samples: list[tuple[Path, str]], turn: int) -> Iterable[Captioned]:
    for number in generator("order", turn).permutation(len(samples)):
        path, caption = samples[number]
        yield np.asarray(read_image(path)), caption


def with_webdataset(library: Any, folder: Path) -> Iterable[Captioned]:
    urls = [str(tar) for tar in sorted(folder.glob("*.tar"))]
    data = library.WebDataset(urls, shardshuffle=len(urls), seed=0)
    for image, caption in data.shuffle(BUFFER).decode("pilrgb").to_tuple("jpg", "txt"):
        yield np.asarray(image), caption


def speed_of(read: Callable[[], Iterable[Captioned]], samples: int) -> float:
    """Samples per processor second; stops the benchmark if a way leaves some out."""
    before = time.process_time()
    found = {caption for _, caption in read()}
    spent = time.process_time() - before
    assert len(found) == samples
    return samples / spent


def child(folder: Path) -> None:
    """Print the processor seconds that it takes to list the shards, and MiB for it."""
    before, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    samples = list_shards(folder)
    spent = time.process_time() - before
    next(iter(with_groundling(samples, 0)))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    print(json.dumps({"list_s": round(spent, 2), "peak_mib": round(grown / 1024, 1)}))


def measure(folder: Path, options: argparse.Namespace) -> None:
    """Print all figures."""
    os.environ["GROUNDLING_CACHE"] = str(folder / "cache")
    shards = folder / "shards"
    write_shards(shards, options.samples, options.shards, options.side)
    size = sum(tar.stat().st_size for tar in shards.iterdir())
    print(f"{options.samples:,} samples in {options.shards} shards, {size / 2**20:,.0f} MiB")
    for turn in ("first", "again"):
        print(f"  captions and places, {turn}: {run_in_new_process('--alone', str(shards))}")
    samples = list_shards(shards)
    try:
        library: Any = importlib.import_module("webdataset")
    except ImportError:
        library = None
    speeds: dict[str, list[float]] = {"groundling": [], "webdataset": []}
    for turn in range(options.rounds):
        own = speed_of(lambda turn=turn: with_groundling(samples, turn), len(samples))
        speeds["groundling"].append(own)
        if library is not None:
            rival = speed_of(lambda: with_webdataset(library, shards), len(samples))
            speeds["webdataset"].append(rival)
    middle = {way: statistics.median(some) for way, some in speeds.items() if some}
    told = ", ".join(f"{way} {speed:,.0f}" for way, speed in middle.items())
    ratios = [own / other for own, other in zip(*speeds.values(), strict=False)]
    ratio = f"; ratio {statistics.median(ratios):.2f}" if ratios else ""
    print(f"  samples a second of the processor: {told}{ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        child(options.alone)
        return
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), options)


if __name__ == "__main__":
    sys.exit(main())

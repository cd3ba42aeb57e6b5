"""Region stores, and the files in which others publish region features."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from PIL import Image
from torch import nn
from transformers import ConvNextImageProcessorPil, ResNetConfig, ResNetModel

from groundling.commands.regions import COMMAND as regions
from groundling.commands.regions import RegionsConfig
from groundling.data.regions import ImageRegions, RegionStore, RegionWriter
from groundling.settings.fields import make_settings
from tiny import toys
from tiny.homes import home, put


def store(
    folder: Path,
    names: list[str],
    width: int = 12,
    classes: int = 5,
    objects: int = 0,
    backbone: str = "",
    size: tuple[int, int] = (60, 40),
) -> Path:
    """A store of 2 to 5 regions an image; or of as many `objects`, in the annotators' order."""
    rng = np.random.default_rng(0)
    found = []
    for name in names:
        count = objects or int(rng.integers(2, 6))
        corners = np.sort(rng.random((count, 2, 2)), axis=1).reshape(count, 4)
        kinds = rng.dirichlet(np.ones(classes or 1), count)
        found.append(
            ImageRegions(
                name,
                size,
                corners,
                rng.random(count),
                rng.normal(size=(count, width)),
                kinds if classes else None,
                annotated_order=bool(objects),
            )
        )
    folder.mkdir(parents=True, exist_ok=True)
    writer = RegionWriter(folder)
    writer.fill([(one.id, lambda one=one: one) for one in found])  # type: ignore[misc]
    made = {"identity": f"hash of {backbone}", "made_by": backbone} if backbone else {}
    writer.close({"source": "test", **made}, [])
    return folder


def some(name: str, count: int = 3, width: int = 6, soft: int = 0) -> ImageRegions:
    rng = np.random.default_rng(len(name) + count)
    low = rng.uniform(0, 0.5, (count, 2))
    boxes = np.concatenate([low, low + 0.3], 1).astype(np.float32)
    classes = rng.dirichlet(np.ones(soft), count) if soft else None
    return ImageRegions(
        name,
        (40, 30),
        boxes,
        -np.sort(-rng.random(count)),
        rng.normal(size=(count, width)) * 5,
        classes,
    )


def b64(array: object, kind: str = "<f4") -> str:
    return base64.b64encode(np.asarray(array, kind).tobytes()).decode()


PIXELS = np.array(
    [[0, 0, 20, 15], [10, 6, 40, 30], [4, 3, 4, 20]], np.float32
)  # of 40x30; the last one is empty

SHARES = PIXELS / [40, 30, 40, 30]

FEATURES = np.arange(12, dtype=np.float32).reshape(3, 4)

SURE = np.array([0.25, 0.5, 0.9], np.float32)

SOFT = np.array([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0, 0, 1]], np.float32)


def lxmert(name: str, w: int = 40, h: int = 30) -> str:
    kinds = [b64([5, 7, 9], "<i8"), b64(SURE), b64([1, 2, 3], "<i8"), b64(SURE)]
    fields = [name, h, w, *kinds, 3, b64(PIXELS), b64(FEATURES)]
    return "\t".join(map(str, fields)) + "\n"


def bottom_up(name: str) -> str:
    return "\t".join([name, "40", "30", "3", b64(PIXELS), b64(FEATURES)]) + "\n"


def vlbert(**more: str) -> str:
    own = {
        "image_w": 40,
        "image_h": 30,
        "num_boxes": 3,
        "boxes": b64(PIXELS),
        "features": b64(FEATURES),
    }
    return json.dumps(own | {"classes": b64(SOFT)} | more)


def npz(**more: np.ndarray) -> bytes:
    boxes = np.concatenate([SHARES, SHARES[:, 2:] - SHARES[:, :2]], 1)
    own = {"features": FEATURES, "norm_bb": boxes, "conf": SURE, "soft_labels": SOFT}
    np.savez(out := io.BytesIO(), **{k: np.asarray(v, np.float16) for k, v in own.items()} | more)
    return out.getvalue()


def msgpack() -> bytes:
    """The same arrays as msgpack-numpy packs them."""

    def packed(value: np.ndarray) -> dict[bytes, object]:
        kind = {b"nd": True, b"type": value.dtype.str, b"kind": b""}
        return kind | {b"shape": value.shape, b"data": value.tobytes()}

    with np.load(io.BytesIO(npz())) as content:
        return import_module("msgpack").packb({name: packed(content[name]) for name in content})


def lmdb(folder: Path, values: Mapping[str, bytes]) -> Path:
    """UNITER's store of such values by name."""
    folder.mkdir(parents=True)
    base = import_module("lmdb").open(str(folder), map_size=1 << 22)
    with base, base.begin(write=True) as view:
        for name, value in values.items():
            view.put(name.encode(), value)
    return folder


def imported(out: Path, *paths: Path, **settings: Any) -> tuple[RegionStore, dict[str, Any]]:
    """The store that the command makes of others' files or stores, and its result."""
    result = regions(make_settings(RegionsConfig, imports=tuple(map(str, paths)), **settings), out)
    return RegionStore(out), result


def instances(
    path: Path,
    images: Mapping[int, str],
    *notes: tuple[int, int, Sequence[float]],
    size: tuple[int, int] = (40, 30),
) -> Path:
    """COCO's json of dogs (18) and cars (3): image files by id; image, class and box of every annotation."""
    content = {
        "images": [
            {"id": number, "file_name": name, "width": size[0], "height": size[1]}
            for number, name in images.items()
        ],
        "annotations": [
            {"id": number, "image_id": image, "category_id": kind, "bbox": box}
            for number, (image, kind, box) in enumerate(notes)
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}],
    }
    return put(path, json.dumps(content))


# -- Photos of noise, and the tiny models that look at them --
RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 16, 24],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}
DETECTOR = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
EDGES = {"shortest_edge": 32, "longest_edge": 64}


def rt_detr() -> hf.RTDetrForObjectDetection:
    """A detector of 12 boxes a photo, of four classes."""
    stages = hf.RTDetrResNetConfig(**RESNET, out_features=["stage2", "stage3", "stage4"])
    config = hf.RTDetrConfig(
        backbone_config=stages,
        backbone=None,
        encoder_in_channels=[16, 16, 24],
        encoder_hidden_dim=16,
        num_queries=12,
        decoder_in_channels=[16, 16, 16],
        anchor_image_size=None,
        num_labels=4,
        num_denoising=0,
        **DETECTOR,
    )
    return hf.RTDetrForObjectDetection(config)


def seeing_models(root: Path) -> dict[str, str]:
    """Folders of tiny detectors and backbones with their image processors, by name."""
    torch.manual_seed(0)
    own = hf.ResNetConfig(**RESNET, out_features=["stage4"])
    detr = hf.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=own,
        num_queries=20,
        num_labels=5,
        **DETECTOR,
    )
    tiny = {"image_size": 16, "patch_size": 8, **toys.SMALL}
    square = {"size": {"height": 16, "width": 16}}
    made = {
        "detr": (hf.DetrForObjectDetection(detr), hf.DetrImageProcessorPil(size=EDGES)),
        "rt": (
            rt_detr(),
            hf.RTDetrImageProcessorPil(size={"height": 64, "width": 64}),
        ),
        "resnet": (
            hf.ResNetModel(hf.ResNetConfig(**RESNET)),
            hf.CLIPImageProcessorPil(do_normalize=False),
        ),
        "vit": (toys.vit(), hf.CLIPImageProcessorPil(**square)),
        "vision": (
            hf.CLIPVisionModel(hf.CLIPVisionConfig(**tiny)),
            hf.CLIPImageProcessorPil(**square),
        ),
        "clip": (toys.clip(toys.clip_words()), hf.CLIPImageProcessorPil(**square)),
    }
    for name, (model, processor) in made.items():
        processor.save_pretrained(home(root / name, model, None))
    return {name: str(root / name) for name in made}


SMALL = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 2]}


def resnet(folder: Path, kind: str = "bottleneck", **options: object) -> Path:
    torch.manual_seed(4)
    model = ResNetModel(ResNetConfig(layer_type=kind, **{**SMALL, **options}))  # type: ignore[arg-type]
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):  # as trained ones are, and not neutral to padding
            nn.init.normal_(part.running_mean, std=0.2)  # type: ignore[arg-type]
            nn.init.normal_(part.bias, std=0.2)
    mean = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.2]}
    ConvNextImageProcessorPil(size={"shortest_edge": 224}, **mean).save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def pictures(folder: Path, names: list[str]) -> Path:
    rng = np.random.default_rng(3)
    for number, name in enumerate(names):
        ending = ("jpg", "png", "JPEG")[number % 3]
        path = folder / f"{name}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40 + number, 60, 3), dtype=np.uint8)).save(path)
    return folder

"""The page of a task's examples: phrases of a caption, their boxes, and heat maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import homes, toys

from groundling.cli import main
from groundling.data.regions import ImageRegions, RegionWriter
from groundling.studies.attention.commands import VisualizeConfig
from groundling.studies.attention.page import select_pairs

CAPTION = (
    "a [/EN#1/people wet dog] sees [/EN#2/other 3 $2 trees] and [/EN#1/people the dog] runs to "
    "[/EN#4/other $5 cats]"
)
"""A dog, mentioned twice; trees; cats without a region."""
BOXES = {1: [(1, 1, 50, 50)], 2: [(51, 1, 100, 50), (1, 60, 20, 100)], 4: [(90, 90, 100, 100)]}
SEEN = [
    *([0, 0, 50, 50], [4, 0, 50, 50], [50, 0, 100, 50]),
    *([0, 60, 20, 100], [40, 60, 80, 100], [60, 60, 80, 80]),
]
"""Regions of the photo."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Flickr30k Entities' files for one image, its photo, a store and a model."""
    folder = tmp_path_factory.mktemp("groups")
    homes.put(folder / "data/Sentences/7.txt", f"a [/EN#2/other bush]\n{CAPTION}\n")
    corners = ("xmin", "ymin", "xmax", "ymax")
    objects = [
        f"<object><name>{name}</name><bndbox>{''.join(f'<{c}>{n}</{c}>' for c, n in zip(corners, box, strict=True))}"
        "</bndbox></object>"
        for name, boxes in BOXES.items()
        for box in boxes
    ]
    size = "<size><width>100</width><height>100</height></size>"
    annotation = f"<annotation>{size}{''.join(objects)}</annotation>"
    homes.put(folder / "data/Annotations/7.xml", annotation)
    homes.put(folder / "data/val.txt", "7\n")
    homes.picture(folder / "photos/7.jpg", size=(100, 100))
    boxes = np.array(SEEN, np.float32) / 100
    looks = np.random.default_rng(0).normal(size=(len(SEEN), 12)).astype(np.float32)
    confidence = np.linspace(0.9, 0.1, len(SEEN), dtype=np.float32)
    writer = RegionWriter(folder / "store")
    writer.write(0, [ImageRegions("7", (100, 100), boxes, confidence, looks)])
    writer.close({"source": "test"})
    (folder / "model").mkdir()
    toys.seer().export(folder / "model")
    return folder


def test_each_phrase_is_a_pair_with_its_boxes(place: Path) -> None:
    given = {"task": "flickr30k", "data": str(place / "data"), "images": str(place / "photos")}
    pairs = select_pairs(VisualizeConfig(**given, split="val", example="7#1"))
    assert [pair.phrase for pair in pairs] == ["wet dog", "3 $2 trees", "the dog", "$5 cats"]
    for pair, chain in zip(pairs, (1, 2, 1, 4), strict=True):
        assert pair.photo == place / "photos/7.jpg" and pair.gold is not None
        np.testing.assert_allclose(pair.gold, np.array(BOXES[chain]) / 100, atol=0.011)
    assert len(select_pairs(VisualizeConfig(**given, split="val", limit=2))) == 2


def test_the_command_draws_a_caption(place: Path, tmp_path: Path, capsys: Any) -> None:
    flags = ["--task", "flickr30k", "--data", f"{place}/data", "--images", f"{place}/photos"]
    flags += ["--model", f"{place}/model", "--regions", f"{place}/store", "--cpu", "--split", "val"]
    out = ["--out", str(tmp_path / "look.html")]
    assert main(["visualize", *flags, "--example", "7#1", *out]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["pairs"] == 4
    assert main(["visualize", *flags, "--example", "8", *out]) == 2
    said = capsys.readouterr().err
    assert "example=8: " in said and "has no such image, caption or example" in said
    assert said.count("\n") == 1

"""`data show`: the photo of an image with the boxes that a region store has of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny.homes import put

import groundling
from groundling.cli import main
from groundling.core.errors import InputError
from groundling.data.regions import ImageRegions, RegionWriter
from groundling.vision.show import COLOURS, show_regions

BOXES = np.array([[0, 0, 1, 1], [0.25, 0.5, 0.75, 1], [0, 0, 0.5, 0.5]])
CLASSES = np.array([[0, 0], [0.1, 0.9], [0.8, 0.2]], np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two images with a whole image and two objects each, made of `photos`."""
    writer = RegionWriter(tmp_path / "store")
    images = [
        ImageRegions(
            id=name,
            size=(64, 48),
            boxes=BOXES,
            confidence=np.array([1, 0.91, 0.5]),
            features=np.zeros((3, 4), np.float32),
            classes=CLASSES,
            has_whole_image=True,
        )
        for name in ("holiday/beach", "grün")
    ]
    writer.write(0, images)
    writer.close({"class_names": ["cat", "dog"]})
    photo = put(tmp_path / "photos/holiday/beach.jpg", b"")
    Image.effect_noise((64, 48), 80).convert("RGB").save(photo)
    photos = {"images": {"path": str(tmp_path / "photos")}}
    put(tmp_path / "store/config.json", json.dumps({"inputs": photos}))
    return tmp_path / "store"


def test_boxes_are_drawn_where_they_are(store: Path) -> None:
    shown = show_regions(store, "holiday/beach")
    assert shown.regions == ["0 whole image", "1 dog 0.91", "2 cat 0.50"]
    assert (shown.id, shown.notes, shown.image.size) == ("holiday/beach", [], (800, 600))
    dog = tuple(int(COLOURS[1][start : start + 2], 16) for start in (1, 3, 5))
    pixels = np.asarray(shown.image).astype(int)
    for x, y in ((600, 450), (400, 598), (598, 400)):
        assert (np.abs(pixels[y - 4 : y + 4, x - 4 : x + 4] - dog).sum(-1) == 0).any(), (x, y)
    assert (np.abs(pixels[400:560, 300:500] - dog).sum(-1) > 0).all()  # inside there is the photo


@pytest.mark.parametrize(
    "name", ["beach", "holiday/beach.jpg", "beach.jpg", "photos/holiday/beach.jpg"]
)
def test_an_image_is_known_by_id_name_or_file(
    name: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.parent)
    assert groundling.show_regions(store, name).id == "holiday/beach"


def test_the_command_writes_a_picture(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = store.parent / "made/boxes.png"
    words = ["data", "show", str(store), "beach", "--out", str(out)]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["regions"][1] == "1 dog 0.91"
    with Image.open(out) as made:
        assert made.size == (800, 600)
    assert main(words) == 2
    assert "exists already; choose another `out`, or remove it" in capsys.readouterr().err
    assert main([*words[:-1], "boxes.jpg"]) == 2
    assert "expected a file name ending in .png" in capsys.readouterr().err


def test_what_cannot_be_shown(store: Path) -> None:
    for name, message in (
        ("beech", "no one image 'beech' among 2"),
        ("grün", "photos: no file of the image 'grün'; name another folder in images"),
    ):
        with pytest.raises(InputError, match=message) as told:
            show_regions(store, name)
        assert "\n" not in str(told.value)
    (store / "config.json").unlink()
    with pytest.raises(InputError, match="store: no folder of images; name it in images"):
        show_regions(store, "beach")
    with pytest.raises(InputError, match="nowhere: no folder of images"):
        show_regions(store, "beach", store.parent / "nowhere")
    put(store.parent / "photos/holiday/beach.jpg", b"x")
    with pytest.raises(InputError, match=r"beach.jpg: does not decode"):
        show_regions(store, "beach", store.parent / "photos")


def test_another_photo_of_the_same_name_is_noted(store: Path) -> None:
    Image.new("RGB", (48, 64)).save(store.parent / "photos/holiday/beach.jpg")
    (note,) = show_regions(store, "beach").notes
    assert "48 x 64 pixels, but its regions are of 64 x 48" in note

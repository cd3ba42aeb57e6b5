"""Pictures: their full range, turned as their EXIF says, and what is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image
from tiny import homes

import groundling
from groundling.core.errors import InputError
from groundling.data.image_samples import decode_image
from groundling.data.images import check_shape, read_image


def test_e1_pictures_are_read_in_their_full_range_and_turned_everywhere(tmp_path: Path) -> None:
    shades = np.arange(96, dtype=np.uint16).reshape(8, 12) * 600
    Image.fromarray(shades).save(tmp_path / "a.png")
    read = np.asarray(read_image(tmp_path / "a.png"))
    assert np.array_equal(read[..., 0], shades >> 8)
    homes.noise(tmp_path / "b.png", (9, 12))
    exif = Image.Exif()
    exif[0x0112] = 6
    homes.noise(tmp_path / "turned.png", (9, 12), exif=exif)
    turned = np.rot90(np.asarray(read_image(tmp_path / "b.png")), -1)
    assert np.array_equal(np.asarray(read_image(tmp_path / "turned.png")), turned)
    assert not np.array_equal(
        decode_image(tmp_path / "turned.png", 8), decode_image(tmp_path / "b.png", 8)
    )


def test_a_file_that_ghostscript_would_draw_is_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given: started.append(given))
    Image.new("RGB", (8, 8)).save(tmp_path / "x.jpg", "EPS")
    with pytest.raises(InputError, match="does not decode as an image"):
        read_image(tmp_path / "x.jpg")
    with pytest.raises(InputError, match="does not decode as an image"):
        check_shape((8, 8), tmp_path / "x.jpg")
    assert not started
    package = Path(groundling.__file__).parent
    opening = [path for path in package.rglob("*.py") if "Image.open(" in path.read_text()]
    assert opening == [package / "data/images.py"]


@pytest.mark.parametrize("kind", ["JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_a_picture_with_the_wrong_ending_is_read(kind: str, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), (200, 0, 0)).save(tmp_path / "x.png", kind)
    assert np.asarray(read_image(tmp_path / "x.png"))[..., 0].min() > 190

"""What a region store has of a photo, as a picture."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from groundling.commands.data_show import ShowConfig
from groundling.core.errors import InputError
from groundling.runs.folder import disk_errors, write_whole
from groundling.runs.work import Work
from groundling.vision.show import shown

MARK = "groundling data show"
"""What a picture of ours says of the software that made it."""


def data_show(config: ShowConfig, work: Work) -> dict[str, Any]:
    """Write the photo of an image with the boxes that a store has of it as a PNG; returns what each box is.

    Raises InputError for what cannot be read, and for a file in the way.
    """
    path = work.out
    _check_place(path)
    found = shown(config.store, config.image, config.images)
    about = PngInfo()
    about.add_text("Software", MARK)
    drawn = BytesIO()
    found.picture.save(drawn, "PNG", pnginfo=about)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, drawn.getvalue())
    work.note(*found.notes)
    return {"out": str(path), "image": found.id, "regions": found.regions}


def _check_place(path: Path) -> None:
    """Raises InputError for a file that is no PNG, or one that is there and was not written by this command."""
    if path.suffix.lower() != ".png":
        raise InputError(f"--out {path}: expected a file that ends in .png")
    if not path.exists():
        return
    try:
        with Image.open(path) as picture:
            ours = picture.info.get("Software") == MARK
    except OSError:
        ours = False
    if not ours:
        raise InputError(f"{path}: exists already, and is none of `{MARK}`; choose another --out")

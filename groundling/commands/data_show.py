"""`groundling data show`: a photo with the boxes that a region store has of it."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

from groundling.command import Command
from groundling.core.errors import InputError
from groundling.runs.folder import disk_errors, write_whole
from groundling.runs.leaves import Written
from groundling.runs.work import Work
from groundling.settings.fields import Input, Settings, needed


@dataclass(frozen=True)
class ShowConfig(Settings):
    """Which image of a region store is shown."""

    store: Annotated[str, Input.FOLDER, needed] = ""
    """Region store: the folder that `groundling regions` wrote."""
    image: Annotated[str, needed] = ""
    """The image's id in the store, its file name, or its file."""
    images: Annotated[str, Input.FOLDER] = ""
    """Folder of the photos; empty: the one that the store was made of."""


MARK = "groundling data show"
"""What a picture of ours says of the software that made it."""


def data_show(config: ShowConfig, work: Work) -> dict[str, Any]:
    """Write the photo of an image with the boxes that a store has of it as a PNG; returns what each box is.

    Raises InputError for what cannot be read, and for a file in the way.
    """
    from PIL.PngImagePlugin import PngInfo

    from groundling.vision.show import shown

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
    from PIL import Image

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


COMMAND = Command(
    "data show",
    "a photo with the boxes that a region store has of it",
    "groundling.commands.data_show:data_show",
    {"_own": ShowConfig()},
    title="Data",
    example="groundling data show runs/store cat --out cat.png",
    common="store image images",
    positional=("--store", "--image"),
    file="regions.png",
    writes="PNG file to write; an older picture of this command is replaced, any other file is left alone.",
    leaves=Written(),
)

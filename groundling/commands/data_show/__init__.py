"""`groundling data show`: a photo with the boxes that a region store has of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from groundling.command import Command
from groundling.runs.leaves import Written
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


COMMAND = Command(
    "data show",
    "a photo with the boxes that a region store has of it",
    "groundling.commands.data_show.run:data_show",
    {"_own": ShowConfig()},
    title="Data",
    example="groundling data show runs/store cat --out cat.png",
    common="store image images",
    positional=("--store", "--image"),
    file="regions.png",
    writes="PNG file to write; an older picture of this command is replaced, any other file is left alone.",
    leaves=Written(),
)

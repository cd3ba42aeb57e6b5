"""Winoground's file: two images and two captions of the same words in another order (Thrush et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from groundling.core.errors import InputError
from groundling.data.images import stem
from groundling.data.tables import read_json_lines

FILE = "examples.jsonl"
"""What the data set calls it."""
TEXTS = ("image_0", "image_1", "caption_0", "caption_1")
"""Fields that are read; tags may be missing."""
TAGS = ("collapsed_tag", "secondary_tag")
"""Fields by which the paper breaks its results down: what is swapped (Object, Relation, Both), and visual tags."""


@dataclass(frozen=True)
class Winoground:
    """Two images and two captions; caption n belongs to image n."""

    id: str
    """The data set's number."""
    images: tuple[str, str]
    """Ids of the images: paths without the ending."""
    captions: tuple[str, str]
    """What is said of each."""
    tags: tuple[str, ...]
    """The groups it counts in: as its file tags it, and by its number of main predicates."""


def read_winoground(path: str | Path) -> list[Winoground]:
    """The examples of a folder's `examples.jsonl`, or of that file.

    Raises InputError naming the line without an image or caption, or with an id that is there twice.
    """
    file = Path(path)
    if file.is_dir():
        file = file / FILE
    examples: dict[str, Winoground] = {}
    for where, row in read_json_lines(file, TEXTS):
        number = row.get("id", len(examples))
        if not isinstance(number, str | int) or isinstance(number, bool):
            raise InputError(f"{where}: field 'id' is {number!r:.40}, expected a number or a text")
        name = str(number)
        if name in examples:
            raise InputError(f"{where}: the id {name} is there twice")
        for field in TEXTS:
            if not row[field].strip():
                raise InputError(f"{where}: field {field!r} is empty")
        tags = [str(row[tag]) for tag in TAGS if row.get(tag)]
        if "num_main_preds" in row:
            tags.append(f"{row['num_main_preds']} main predicates")
        images = (stem(row["image_0"]), stem(row["image_1"]))
        examples[name] = Winoground(name, images, (row["caption_0"], row["caption_1"]), tuple(tags))
    return list(examples.values())
